//! Where the target's group lies: the mounted hierarchies, and the directories from the group up to the mount.

use std::fs;
use std::path::{Component, Path, PathBuf};

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
            (Some(mut chain), _) => {
                // A group whose parent doesn't count it is below no further limit.
                let counts = |group: &&PathBuf| {
                    reader.read(group, "memory.use_hierarchy").is_none_or(|text| text.trim_ascii() != b"0")
                };
                let counted = 1 + chain.iter().skip(1).take_while(counts).count();
                chain.truncate(counted);
                let cpu_chain = paths.cpu_v1.as_deref().and_then(|path| mounts.chain(Controller::CpuV1, path));
                let path = paths.memory_v1.unwrap_or_default();
                Ok(Hierarchy { version: CgroupVersion::V1, chain, path, cpu_chain })
            }
            (None, Some(chain)) if chain.iter().any(|group| group.join("memory.stat").exists()) => {
                let cpu_chain = Some(chain.clone());
                Ok(Hierarchy { version: CgroupVersion::V2, chain, path: paths.v2.unwrap_or_default(), cpu_chain })
            }
            _ => {
                let reason = "no memory cgroup of the target is mounted where it can be seen";
                Err(Gap::new(Source::Cgroup, reason, LIMIT_UNKNOWN))
            }
        }
    }
}

/// The mounted hierarchies as the observer sees them, and as the target does.
struct Mounts {
    seen: Vec<(PathBuf, Vec<Mount>)>,
}

impl Mounts {
    fn of(target: &Target) -> Mounts {
        let own = fs::read("/proc/self/mountinfo").map(|text| parse_mounts(&text)).unwrap_or_default();
        let its = target.read("mountinfo").map(|text| parse_mounts(&text)).unwrap_or_default();
        Mounts { seen: vec![(PathBuf::from("/"), own), (target.path(""), its)] }
    }

    /// Directories of the group and its ancestors, innermost first.
    fn chain(&self, controller: Controller, path: &str) -> Option<Vec<PathBuf>> {
        self.seen.iter().find_map(|(root, mounts)| {
            let of_it: Vec<&Mount> = mounts.iter().filter(|mount| mount.controller == controller).collect();
            let below = |mount: &Mount| {
                let below = Path::new(path).strip_prefix(&mount.root).ok()?;
                below.components().all(|part| matches!(part, Component::Normal(_))).then(|| below.to_path_buf())
            };
            // If there are several mounts, use one that contains the group: others may begin elsewhere, or above this
            // namespace (`/..`).
            let found = of_it.iter().find_map(|mount| Some((*mount, below(mount)?)));
            // If the group lies outside the namespace or above the mount, the mount point is the closest visible
            // group. A mount from above the namespace has the group somewhere below, and nothing names the way to it:
            // limits of the mount point alone would look like those of the group.
            let closest = || of_it.iter().find(|mount| !Path::new(&mount.root).starts_with("/.."));
            let (mount, below) = found.or_else(|| closest().map(|mount| (*mount, PathBuf::new())))?;
            let point = root.join(mount.point.trim_start_matches('/'));
            let group = point.join(below);
            let chain: Vec<PathBuf> =
                group.ancestors().take_while(|ancestor| ancestor.starts_with(&point)).map(Path::to_path_buf).collect();
            (!chain.is_empty() && group.is_dir()).then_some(chain)
        })
    }
}

pub(super) fn ancestor(path: &str, level: usize) -> String {
    let mut ancestors = Path::new(path).ancestors();
    ancestors.nth(level).map_or_else(|| "/".to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `unshare --cgroup` leaves the mounts as they were.
    #[test]
    fn the_group_of_a_namespace_is_not_taken_for_the_mount_above_it() {
        let point = std::env::temp_dir();
        let mounts = |roots: &[&str]| {
            let line = |root: &&str| format!("35 31 0:32 {root} {} rw - cgroup cgroup rw,memory\n", point.display());
            let lines: String = roots.iter().map(line).collect();
            Mounts { seen: vec![(PathBuf::from("/"), parse_mounts(lines.as_bytes()))] }
        };
        let chain = |roots: &[&str], path: &str| mounts(roots).chain(Controller::MemoryV1, path);
        assert_eq!(chain(&["/.."], "/"), None);
        assert_eq!(chain(&["/../.."], "/own"), None);
        let here = Some(vec![point.clone()]);
        assert_eq!(chain(&["/"], "/"), here);
        assert_eq!(chain(&["/..", "/"], "/"), here);
        assert_eq!(chain(&["/../beside"], "/../beside"), here);
        assert_eq!(chain(&["/docker/1"], "/"), here, "the closest group that can be seen");
    }
}
