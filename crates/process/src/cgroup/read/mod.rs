//! Reads the target's group and its ancestors up to the root of the mount. Each level with a limit can kill; the one
//! with the fewest bytes left kills first. What lies above the mount can't be seen, and isn't judged.
//!
//! ```text
//! hierarchy ──► limit, throttles, swap: the levels from the group up to the mount
//!               neighbours: what else is charged to the limit
//! ```
//! All of them read the files of a group through `group_files`.

use std::fs;
use std::path::{Path, PathBuf};

use super::parse::{parse_oom_events, parse_pressure};
use crate::foreign::Deadline;
use crate::proc::Target;
use plimsoll_facts::gap::Gap;
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion, Pressure, Sourced};
use plimsoll_facts::units::Bytes;

mod group_files;
mod hierarchy;
mod limit;
mod neighbours;
mod swap;
#[cfg(test)]
mod tests;
mod throttles;

pub use neighbours::{OTHERS_UNKNOWN, is_about_others};

use group_files::Reader;
use hierarchy::Hierarchy;
use limit::{Stats, limit};
use neighbours::{others, resident, siblings};

pub fn read_cgroup(target: &Target, host_memory: Bytes) -> Sourced<Cgroup> {
    let (mut cgroup, mut gaps) = read(target, host_memory, Stats::All);
    if let Some((cgroup, _)) = &mut cgroup {
        let reader = Reader::until(target.deadline());
        let gap;
        (cgroup.others, gap) = others(&reader, &cgroup.directory, target.pid(), resident);
        gaps.extend(gap);
        let (beside, gap) = siblings(&reader, cgroup);
        cgroup.siblings = beside;
        gaps.extend(gap);
        for level in &mut cgroup.further {
            let (beside, gap) = siblings(&reader, level);
            level.siblings = beside;
            gaps.extend(gap);
        }
    }
    (cgroup.map(|(cgroup, _)| cgroup), gaps)
}

/// Reads the cgroup as `read` does, but no other processes and no other groups, and adds the directory of the group
/// with the limit. `stat` is empty in outer levels that are far from their limits.
pub fn read_limit(target: &Target, host_memory: Bytes) -> Sourced<(Cgroup, PathBuf)> {
    read(target, host_memory, Stats::ThatMatter)
}

/// The directories of the process's group and its ancestors in the hierarchy with the memory controller, innermost
/// first, and at least one.
pub fn groups_of(target: &Target) -> Result<(CgroupVersion, Vec<PathBuf>), Gap> {
    let found = Hierarchy::of(target, &Reader::until(target.deadline()))?;
    Ok((found.version, found.chain))
}

fn read(target: &Target, host_memory: Bytes, stats: Stats) -> Sourced<(Cgroup, PathBuf)> {
    let reader = Reader::until(target.deadline());
    let (cgroup, mut gaps) = match Hierarchy::of(target, &reader) {
        Ok(hierarchy) => limit(hierarchy, host_memory, stats, &reader),
        Err(gap) => (None, vec![gap]),
    };
    gaps.extend(reader.gap());
    (cgroup, gaps)
}

/// Number of the group's processes that the kernel killed because of a limit. The group outlives its processes, except
/// where it is visible only through the target's root.
pub fn oom_kills(group: &Path, deadline: Deadline) -> Option<u64> {
    let reader = Reader::until(deadline);
    let text = ["memory.events", "memory.oom_control"].into_iter().find_map(|name| reader.read(group, name))?;
    Some(parse_oom_events(&text).oom_kill)
}

/// Pressure of the group, or of the system if there is none. `None` if the kernel doesn't count it.
pub fn pressure(group: Option<&Path>, deadline: Deadline) -> Option<Pressure> {
    let reader = Reader::until(deadline);
    let own = group.and_then(|group| reader.read(group, "memory.pressure"));
    let of_cgroup = own.is_some();
    let text = own.or_else(|| fs::read("/proc/pressure/memory").ok())?;
    parse_pressure(&text).map(|pressure| Pressure { of_cgroup, ..pressure })
}
