//! Where the target's group lies: the mounted hierarchies, and the directories from the group up to the mount.

use std::cmp::Reverse;
use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use super::group_files::Reader;
use crate::cgroup::parse::{Controller, Mount, parse_mounts, parse_paths};
use crate::proc::Target;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::CgroupVersion;

/// The effect of a gap about the hierarchy or a limit in it.
pub(super) const LIMIT_UNKNOWN: &str = "the limit that an OOM kill would enforce is not known";
/// A level with a lower share of its limit in use, in percent, isn't near it, so its page cache doesn't matter.
pub(super) const NEAR: f64 = 90.0;

/// The hierarchy with the memory controller, as far as it can be seen.
pub(super) struct Hierarchy {
    pub(super) version: CgroupVersion,
    /// The group and its ancestors, innermost first.
    pub(super) chain: Vec<PathBuf>,
    pub(super) path: String,
    pub(super) cpu_chain: Option<Vec<PathBuf>>,
    /// The gap if limits further up may be hidden.
    pub(super) hidden: Option<Gap>,
}

impl Hierarchy {
    pub(super) fn of(target: &Target, reader: &Reader) -> Result<Hierarchy, Gap> {
        let paths = target.read("cgroup").map(|text| parse_paths(&text)).map_err(|error| {
            Gap::new(Source::Cgroup, format!("/proc/{}/cgroup can't be read: {error}", target.pid()), LIMIT_UNKNOWN)
        })?;
        let mounts = Mounts::of(target);
        let memory_v1 = paths.memory_v1.as_deref().and_then(|path| mounts.chain(Controller::MemoryV1, path));
        let v2 = paths.v2.as_deref().and_then(|path| mounts.chain(Controller::V2, path));
        // A hybrid host has both versions; the memory controller is attached to one of them.
        match (memory_v1, v2) {
            (Some(Chain { mut groups, view, from }), _) => {
                // If a group's parent doesn't count the group, no limit further up applies to it.
                let counts = |group: &&PathBuf| {
                    reader.read(group, "memory.use_hierarchy").is_none_or(|text| text.trim_ascii() != b"0")
                };
                let counted = 1 + groups.iter().skip(1).take_while(counts).count();
                groups.truncate(counted);
                let cpu = paths.cpu_v1.as_deref().and_then(|path| mounts.chain(Controller::CpuV1, path));
                let path = paths.memory_v1.unwrap_or_default();
                let hidden = hidden(view, &path, &from);
                let cpu_chain = cpu.map(|chain| chain.groups);
                Ok(Hierarchy { version: CgroupVersion::V1, chain: groups, path, cpu_chain, hidden })
            }
            (None, Some(Chain { groups, view, from }))
                if groups.iter().any(|group| group.join("memory.stat").exists()) =>
            {
                let path = paths.v2.unwrap_or_default();
                let hidden = hidden(view, &path, &from);
                let cpu_chain = Some(groups.clone());
                Ok(Hierarchy { version: CgroupVersion::V2, chain: groups, path, cpu_chain, hidden })
            }
            _ => {
                let reason = "no memory cgroup of the target is mounted where it can be seen";
                Err(Gap::new(Source::Cgroup, reason, LIMIT_UNKNOWN))
            }
        }
    }
}

/// The gap where the group was found in a part of the hierarchy that isn't the observer's own. Then groups with limits
/// may lie between the root of the mount, `from`, and what both parts have in common.
fn hidden(view: View, path: &str, from: &str) -> Option<Gap> {
    let is_outside = Path::new(path).starts_with("/..");
    let reason = match view {
        _ if from == "/" => return None,
        _ if is_outside => "the target's cgroup lies outside this cgroup namespace",
        View::Target => "the target's cgroup lies outside of what is mounted here",
        View::Own => return None,
    };
    let effect = match view {
        View::Target => "its limit is read through the target's own mounts, which may hide limits further up",
        View::Own => "its limit is read through a mount that may hide limits further up",
    };
    Some(Gap::new(Source::Cgroup, reason, effect))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Own,
    Target,
}

/// Directories of a group and its ancestors, innermost first.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    groups: Vec<PathBuf>,
    view: View,
    /// The root of the mount, as the observer's cgroup namespace names it.
    from: String,
}

/// The mounted hierarchies as the observer sees them, and as the target does.
struct Mounts {
    seen: Vec<(View, PathBuf, Vec<Mount>)>,
}

impl Mounts {
    fn of(target: &Target) -> Mounts {
        let own = fs::read("/proc/self/mountinfo").map(|text| parse_mounts(&text)).unwrap_or_default();
        let its = target.read("mountinfo").map(|text| parse_mounts(&text)).unwrap_or_default();
        Mounts { seen: vec![(View::Own, PathBuf::from("/"), own), (View::Target, target.path(""), its)] }
    }

    /// Uses only mounts that contain the group. Other mounts begin elsewhere, or above this namespace (`/..`). From
    /// there, nothing names the way to the group, and the limits there would look like those of the group.
    fn chain(&self, controller: Controller, path: &str) -> Option<Chain> {
        self.seen.iter().find_map(|(view, root, mounts)| {
            let below = |mount: &Mount| {
                let below = Path::new(path).strip_prefix(&mount.root).ok()?;
                below.components().all(|part| matches!(part, Component::Normal(_))).then(|| below.to_path_buf())
            };
            let of_it = mounts.iter().rev().filter(|mount| mount.controller == controller);
            let mut found: Vec<(&Mount, PathBuf)> = of_it.filter_map(|mount| Some((mount, below(mount)?))).collect();
            // The mount that shows the most levels first; of several, the one that was mounted last.
            found.sort_by_key(|(_, below)| Reverse(below.components().count()));
            found.into_iter().find_map(|(mount, below)| {
                let point = root.join(mount.point.trim_start_matches('/'));
                let group = point.join(below);
                let is_below = |ancestor: &&Path| ancestor.starts_with(&point);
                let groups = group.ancestors().take_while(is_below).map(Path::to_path_buf).collect();
                is_directory_of(&group, mount, mounts).then(|| Chain { groups, view: *view, from: mount.root.clone() })
            })
        })
    }
}

/// Whether the path is a directory of this mount. Another mount of a hierarchy may cover this one and also have a group
/// of that name. Linux before 5.8 doesn't report the mount of a file.
fn is_directory_of(group: &Path, mount: &Mount, mounts: &[Mount]) -> bool {
    let flags = StatxFlags::TYPE | StatxFlags::MNT_ID;
    let Ok(stat) = statx(CWD, group, AtFlags::empty(), flags) else { return false };
    let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    let is_of_another = stat.stx_mnt_id != mount.id && mounts.iter().any(|another| another.id == stat.stx_mnt_id);
    FileType::from_raw_mode(stat.stx_mode.into()).is_dir() && !(is_known && is_of_another)
}

pub(super) fn ancestor(path: &str, level: usize) -> String {
    let mut ancestors = Path::new(path).ancestors();
    ancestors.nth(level).map_or_else(|| "/".to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1 mounts of the same directory, with their roots. `id` is that of the directory's mount, or another.
    fn mounts(view: View, point: &Path, mounts: &[(u64, &str)]) -> (View, PathBuf, Vec<Mount>) {
        let line = |(id, root): &(u64, &str)| {
            format!("{id} 31 0:32 {root} {} rw - cgroup cgroup rw,memory\n", point.display())
        };
        let lines: String = mounts.iter().map(line).collect();
        (view, PathBuf::from("/"), parse_mounts(lines.as_bytes()))
    }

    /// The mount in which the directories of these tests lie.
    fn id_of(directory: &Path) -> u64 {
        statx(CWD, directory, AtFlags::empty(), StatxFlags::MNT_ID).expect("a directory").stx_mnt_id
    }

    /// `unshare --cgroup` leaves the mounts as they were, and a container may have its own group bound there.
    #[test]
    fn only_a_mount_that_contains_the_group_is_used() {
        let point = std::env::temp_dir();
        let id = id_of(&point);
        let chain = |roots: &[&str], path: &str| {
            let of: Vec<(u64, &str)> = roots.iter().map(|root| (id, *root)).collect();
            let mounts = Mounts { seen: vec![mounts(View::Own, &point, &of)] };
            mounts.chain(Controller::MemoryV1, path).map(|chain| (chain.groups, chain.from))
        };
        let here = |from: &str| Some((vec![point.clone()], from.to_owned()));
        for (roots, path) in [
            (&["/.."][..], "/"),
            (&["/../.."], "/own"),
            // Beside the target, in its own namespace, and with its own group bound at the mount.
            (&["/"], "/../shop"),
            (&["/docker/1"], "/docker/2"),
            (&["/docker/1"], "/"),
        ] {
            assert_eq!(chain(roots, path), None, "{roots:?} {path}");
        }
        assert_eq!(chain(&["/"], "/"), here("/"));
        assert_eq!(chain(&["/..", "/"], "/"), here("/"));
        assert_eq!(chain(&["/../beside"], "/../beside"), here("/../beside"));
    }

    #[test]
    fn the_targets_mounts_are_used_where_ours_do_not_contain_its_group() {
        let point = std::env::temp_dir();
        let id = id_of(&point);
        let of = |own: &str, its: &str, path: &str| {
            let seen = vec![mounts(View::Own, &point, &[(id, own)]), mounts(View::Target, &point, &[(id, its)])];
            let found = Mounts { seen }.chain(Controller::MemoryV1, path)?;
            Some((found.view, hidden(found.view, path, &found.from).map(|gap| gap.reason)))
        };
        let outside = |words: &str| Some((View::Target, Some(words.to_owned())));
        assert_eq!(of("/", "/../shop", "/../shop"), outside("the target's cgroup lies outside this cgroup namespace"));
        assert_eq!(
            of("/docker/1", "/docker/2", "/docker/2"),
            outside("the target's cgroup lies outside of what is mounted here")
        );
        // The host's mounts hide nothing.
        assert_eq!(of("/docker/1", "/", "/"), Some((View::Target, None)));
        assert_eq!(of("/", "/", "/"), Some((View::Own, None)));
        assert_eq!(of("/", "/../other", "/../shop"), None);
    }

    /// `mount --bind` of a group, or a second mount of the hierarchy at the same point.
    #[test]
    fn a_covered_mount_is_passed_over_for_the_next() {
        let point = std::env::temp_dir().join(format!("plimsoll-covered-{}", std::process::id()));
        fs::create_dir_all(point.join("b")).expect("a directory");
        let id = id_of(&point);
        let chain = |of: &[(u64, &str)], path: &str| {
            let mounts = Mounts { seen: vec![mounts(View::Own, &point, of)] };
            mounts.chain(Controller::MemoryV1, path).map(|chain| chain.groups)
        };
        // `b` is there, but it is the group /a/b of the mount on top.
        assert_eq!(chain(&[(id + 1, "/"), (id, "/a")], "/b"), None);
        assert_eq!(chain(&[(id + 1, "/"), (id, "/a")], "/a/b"), Some(vec![point.join("b"), point.clone()]));
        assert_eq!(chain(&[(id + 1, "/"), (id, "/b")], "/b"), Some(vec![point.clone()]));
        // Where something else is mounted, the reader of the files decides.
        assert_eq!(chain(&[(id + 1, "/")], "/b"), Some(vec![point.join("b"), point.clone()]));
        // The mount with the most levels, whichever was mounted first.
        for of in [[(id, "/"), (id, "/b")], [(id, "/b"), (id, "/")]] {
            assert_eq!(chain(&of, "/b"), Some(vec![point.join("b"), point.clone()]));
        }
        fs::remove_dir_all(&point).expect("a directory");
    }
}
