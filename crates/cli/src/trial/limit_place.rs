//! Where the memory cgroups of the runs can be made. `O` is plimsoll's own group, `P` the one above, `R` a run's.
//!
//! ```text
//! version 1   O ── R
//! version 2   a group has `memory.max` if the one above enables `memory` (cgroup.subtree_control), and only the root may
//!             enable it while processes are in it
//!   below     O enables it already: it is the root     O ── R
//!   beside    P enables it                             P ─┬ O
//!                                                         └ R
//!   leaf      only plimsoll is in O                    O ─┬ plimsoll-try-PID-own: plimsoll, until the last run has ended
//!                                                         └ R
//! ```
//! What is written outside of the groups that `try` makes is `memory` in O's cgroup.subtree_control, and it is taken
//! back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_facts::snapshot::CgroupVersion;
use plimsoll_process::cgroup;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc;

use super::run_cgroup::{Group, RunLimit, enter, remove_with_those_below};

/// A place where a group with the limit was made once.
pub struct LimitPlace {
    pub limit: RunLimit,
    /// Whether the limit holds for swap, too.
    counts_swap: bool,
    /// Undoes what `leaf` has changed.
    _leaf: Option<Leaf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Below,
    Beside,
    Leaf,
}

/// What the files of the groups show.
#[derive(Clone, Copy, Debug)]
struct GroupFacts {
    version: CgroupVersion,
    /// `memory` is among cgroup.controllers: the group itself may enable it.
    may_enable: bool,
    enables: bool,
    /// The same of the group above; false if it can't be seen.
    above_enables: bool,
    is_alone: bool,
}

/// The places to try, the one that changes least first.
fn choices(facts: GroupFacts) -> Vec<Choice> {
    match facts {
        GroupFacts { version: CgroupVersion::V1, .. } | GroupFacts { enables: true, .. } => vec![Choice::Below],
        GroupFacts { above_enables, may_enable, is_alone, .. } => {
            let beside = Some(Choice::Beside).filter(|_| above_enables);
            let leaf = Some(Choice::Leaf).filter(|_| may_enable && is_alone);
            beside.into_iter().chain(leaf).collect()
        }
    }
}

impl GroupFacts {
    fn of(version: CgroupVersion, groups: &[PathBuf]) -> GroupFacts {
        let has = |group: Option<&PathBuf>, file: &str| {
            let text = group.and_then(|group| fs::read_to_string(group.join(file)).ok()).unwrap_or_default();
            text.split_whitespace().any(|controller| controller == "memory")
        };
        let own = groups.first();
        let inside = own.and_then(|own| fs::read_to_string(own.join("cgroup.procs")).ok()).unwrap_or_default();
        GroupFacts {
            version,
            may_enable: has(own, "cgroup.controllers"),
            enables: has(own, "cgroup.subtree_control"),
            above_enables: has(groups.get(1), "cgroup.subtree_control"),
            is_alone: inside.split_whitespace().eq([std::process::id().to_string().as_str()]),
        }
    }
}

impl LimitPlace {
    /// The error says why this machine has no such place, and what to type instead.
    pub fn find(bytes: u64, deadline: Deadline) -> Result<LimitPlace, String> {
        let refused = |reason: &str, version| {
            let scope = Path::new("/run/systemd/system").exists() && version == Some(CgroupVersion::V2);
            let command = if crate::sys::uid() == 0 { "systemd-run" } else { "systemd-run --user" };
            let scope =
                if scope { format!(", or: {command} --scope -p Delegate=yes plimsoll try …") } else { String::new() };
            format!(
                "--limit: no memory cgroup with a limit can be made: {reason}. Run without --limit and compare RSS with the limit{scope}"
            )
        };
        let own =
            proc::Target::open(std::process::id(), deadline).map_err(|_| refused("/proc is not mounted", None))?;
        let (version, groups) = cgroup::groups_of(&own).map_err(|gap| refused(&gap.reason, None))?;
        let mut reasons = Vec::new();
        for choice in choices(GroupFacts::of(version, &groups)) {
            match LimitPlace::at(choice, bytes, version, &groups).and_then(LimitPlace::tried) {
                Ok(place) => return Ok(place),
                Err(reason) => reasons.push(reason),
            }
        }
        if reasons.is_empty() {
            let own = groups.first().map(|own| own.display().to_string()).unwrap_or_default();
            reasons.push(format!(
                "other processes are in {own}, so the kernel gives no group below it a limit, and the group above has none for others"
            ));
        }
        Err(refused(&reasons.join("; "), Some(version)))
    }

    fn at(choice: Choice, bytes: u64, version: CgroupVersion, groups: &[PathBuf]) -> Result<LimitPlace, String> {
        let own = groups.first().cloned().unwrap_or_default();
        let (parent, home, leaf) = match choice {
            Choice::Below => (own.clone(), own, None),
            Choice::Beside => (groups.get(1).cloned().unwrap_or_default(), own, None),
            Choice::Leaf => {
                let leaf = Leaf::make(&own)?;
                (own, leaf.directory.clone(), Some(leaf))
            }
        };
        Ok(LimitPlace { limit: RunLimit { bytes, version, parent, home }, counts_swap: true, _leaf: leaf })
    }

    /// Makes a group once, enters and leaves it. The limit is set after that: a very low one could kill plimsoll.
    fn tried(mut self) -> Result<LimitPlace, String> {
        let group = Group::without_limit(&self.limit, "probe")?;
        let visited =
            group.visit().map(drop).map_err(|error| format!("cannot enter {}: {error}", group.directory().display()));
        let limited = visited.and_then(|()| group.set_limit(&self.limit));
        self.counts_swap = group.counts_swap(self.limit.version);
        group.remove();
        limited.map(|()| self)
    }

    /// A note about the limit, on a machine with swap.
    pub fn note(&self, has_swap: bool) -> Option<String> {
        let note = "--limit doesn't limit swap, because this kernel counts none in cgroups (swapaccount=1 at boot \
                    changes that): a run may swap where a container would be killed, and its RSS lacks what is in swap";
        (has_swap && !self.counts_swap).then(|| note.to_owned())
    }
}

/// plimsoll in a leaf below the group in which it was alone, which enables `memory` meanwhile.
struct Leaf {
    own: PathBuf,
    directory: PathBuf,
}

impl Leaf {
    fn make(own: &Path) -> Result<Leaf, String> {
        let directory = own.join(format!("plimsoll-try-{}-own", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        let leaf = Leaf { own: own.to_owned(), directory };
        enter(&leaf.directory).map_err(|error| format!("cannot enter {}: {error}", leaf.directory.display()))?;
        leaf.enable("+memory").map_err(|error| format!("cannot enable memory in {}: {error}", own.display()))?;
        Ok(leaf)
    }

    fn enable(&self, word: &str) -> io::Result<()> {
        fs::write(self.own.join("cgroup.subtree_control"), word)
    }
}

impl Drop for Leaf {
    /// In this order: no process may enter a group that enables a controller.
    fn drop(&mut self) {
        let _ = self.enable("-memory");
        let _ = enter(&self.own);
        remove_with_those_below(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cgroup-v2.rst, "No Internal Process Constraint".
    #[test]
    fn the_group_of_a_run_lies_where_the_kernel_gives_it_a_limit() {
        let v2 = GroupFacts {
            version: CgroupVersion::V2,
            may_enable: true,
            enables: false,
            above_enables: false,
            is_alone: false,
        };
        for (facts, expected) in [
            // A shell's group in a container.
            (v2, &[][..]),
            (GroupFacts { is_alone: true, ..v2 }, &[Choice::Leaf]),
            // The session of a user's shell, and a scope of systemd-run.
            (GroupFacts { above_enables: true, ..v2 }, &[Choice::Beside]),
            (GroupFacts { above_enables: true, is_alone: true, ..v2 }, &[Choice::Beside, Choice::Leaf]),
            // A group without the controller can't pass it on.
            (GroupFacts { is_alone: true, may_enable: false, ..v2 }, &[]),
            // The root.
            (GroupFacts { enables: true, ..v2 }, &[Choice::Below]),
            (GroupFacts { version: CgroupVersion::V1, ..v2 }, &[Choice::Below]),
        ] {
            assert_eq!(choices(facts), expected, "{facts:?}");
        }
    }

    /// Directories with the files of a group as the kernel shows them.
    #[test]
    fn the_files_of_the_groups_are_read() {
        let above = std::env::temp_dir().join(format!("plimsoll-place-{}", std::process::id()));
        // A killed test with this PID may have left it.
        let _ = fs::remove_dir_all(&above);
        let own = above.join("own");
        fs::create_dir_all(&own).expect("a directory");
        let write = |group: &Path, file: &str, text: &str| fs::write(group.join(file), text).expect("a file");
        let pid = std::process::id();
        write(&above, "cgroup.subtree_control", "cpu memory pids\n");
        write(&own, "cgroup.controllers", "memory pids\n");
        write(&own, "cgroup.subtree_control", "\n");
        write(&own, "cgroup.procs", &format!("{pid}\n"));
        let of = |groups: &[&Path]| {
            let groups: Vec<PathBuf> = groups.iter().map(|group| group.to_path_buf()).collect();
            choices(GroupFacts::of(CgroupVersion::V2, &groups))
        };
        assert_eq!(of(&[&own, &above]), [Choice::Beside, Choice::Leaf]);
        // In a container, the group above can't be seen.
        assert_eq!(of(&[&own]), [Choice::Leaf]);
        // A process of another PID namespace is 0.
        for procs in [format!("{pid}\n0\n"), format!("1\n{pid}\n"), String::new()] {
            write(&own, "cgroup.procs", &procs);
            assert_eq!(of(&[&own]), [], "{procs}");
        }
        write(&above, "cgroup.subtree_control", "cpu memory.x\n");
        assert_eq!(of(&[&own, &above]), []);
        write(&own, "cgroup.subtree_control", "memory\n");
        assert_eq!(of(&[&own, &above]), [Choice::Below]);
        fs::remove_dir_all(&above).expect("a directory");
    }

    #[test]
    fn a_limit_that_swap_widens_is_noted() {
        let note = |counts_swap: bool, has_swap: bool| {
            let (parent, home) = (PathBuf::new(), PathBuf::new());
            let limit = RunLimit { bytes: 4096, version: CgroupVersion::V1, parent, home };
            LimitPlace { limit, counts_swap, _leaf: None }.note(has_swap)
        };
        assert!(note(false, true).is_some_and(|note| note.starts_with("--limit doesn't limit swap")));
        assert_eq!([note(true, true), note(true, false), note(false, false)], [None, None, None]);
    }

    /// In directories, where the kernel's rules don't hold: the words that are written, and their order.
    #[test]
    fn a_leaf_is_undone() {
        let own = std::env::temp_dir().join(format!("plimsoll-leaf-{}", std::process::id()));
        let _ = fs::remove_dir_all(&own);
        fs::create_dir_all(&own).expect("a directory");
        let read = |group: &Path, file: &str| fs::read_to_string(group.join(file)).expect("a file");
        let place = LimitPlace::at(Choice::Leaf, 4096, CgroupVersion::V2, std::slice::from_ref(&own)).expect("a leaf");
        let pid = std::process::id().to_string();
        assert_eq!((&place.limit.parent, read(&place.limit.home, "cgroup.procs")), (&own, pid.clone()));
        assert_eq!(read(&own, "cgroup.subtree_control"), "+memory");
        assert!(!own.join("cgroup.procs").exists(), "nothing enters the group while it enables the controller");
        let leaf = place.limit.home.clone();
        // The kernel removes a group's files with it.
        fs::remove_file(leaf.join("cgroup.procs")).expect("a file");
        drop(place);
        assert_eq!((read(&own, "cgroup.subtree_control"), read(&own, "cgroup.procs")), ("-memory".to_owned(), pid));
        assert!(!leaf.exists());
        fs::remove_dir_all(&own).expect("a directory");
    }
}
