//! What else is charged to the limit: the other processes of the group, and the groups beside it.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::group_files::{Files, Reader};
use super::hierarchy::NEAR;
use crate::cgroup::parse::parse_bytes;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::Cgroup;
use plimsoll_facts::units::{Bytes, count};

/// The effect of a gap about other processes of the group.
pub const OTHERS_UNKNOWN: &str =
    "other processes of the group hold more than is shown, and remedies leave too little for them";
const SIBLINGS_UNKNOWN: &str = "the group that uses up the limit may be missing in the evidence of limit-near";

/// Whether a gap is about what other processes and groups hold, which [`super::read_limit`] doesn't read.
pub fn is_about_others(gap: &Gap) -> bool {
    [OTHERS_UNKNOWN, SIBLINGS_UNKNOWN].contains(&gap.effect.as_str())
}

/// Limit of other processes of the group whose RSS is read, about 5 µs each.
const MOST_OTHERS: usize = 1 << 14;
/// Limit of groups beside the target's whose charge is read, and of those that are kept. Where there are more groups, the
/// largest may be missing.
pub(super) const MOST_SIBLINGS: usize = 512;
const SIBLINGS_KEPT: usize = 8;

/// The groups beside the target's below the group with the limit. Their names are read only in our own view of the
/// hierarchy: the target can mount anything over its view. They change while they are read, so one whose charge is
/// refused isn't a gap. If some groups are left out, that is a gap only where the limit is near: there they are the
/// evidence.
pub(super) fn siblings(reader: &Reader, level: &Cgroup) -> (Vec<(String, Bytes)>, Option<Gap>) {
    let folder = &level.limit_directory;
    if !level.is_above() || folder.starts_with("/proc") {
        return (Vec::new(), None);
    }
    let is_near = level.limit.is_some_and(|limit| level.charged.percent_of(limit) >= NEAR);
    let gap = |reason: String| is_near.then(|| Gap::new(Source::Cgroup, reason, SIBLINGS_UNKNOWN));
    let charged = Files::of(level.version).charged;
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return (Vec::new(), gap(format!("the groups in {} can't be listed: {error}", folder.display()))),
    };
    let mut beside: Vec<fs::DirEntry> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && !level.directory.starts_with(entry.path()))
        .take(MOST_SIBLINGS + 1)
        .collect();
    let is_cut = beside.len() > MOST_SIBLINGS;
    beside.truncate(MOST_SIBLINGS);
    let mut found: Vec<(String, Bytes)> = beside
        .iter()
        .filter_map(|entry| {
            let bytes = reader.read(&entry.path(), charged).and_then(|text| parse_bytes(&text))?;
            let path = Path::new(&level.limit_path).join(entry.file_name());
            Some((path.display().to_string(), bytes))
        })
        .collect();
    found.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    found.truncate(SIBLINGS_KEPT);
    let reason = || format!("{} has more than {MOST_SIBLINGS} groups, and the rest was not read", folder.display());
    (found, is_cut.then(reason).and_then(gap))
}

/// RSS of the group's other processes: statm is readable even if smaps isn't, unless /proc hides the process (hidepid).
/// The kernel lists a process of another PID namespace as 0.
pub(super) fn others(
    reader: &Reader,
    group: &Path,
    pid: u32,
    mut resident: impl FnMut(u32) -> Option<Bytes>,
) -> (Vec<(u32, Bytes)>, Option<Gap>) {
    let listed = || -> Option<Vec<u32>> {
        let text = reader.read(group, "cgroup.procs")?;
        let numbers = String::from_utf8_lossy(&text).lines().filter_map(|line| line.trim().parse().ok()).collect();
        Some(numbers)
    };
    let gap = |reason: String| Some(Gap::new(Source::Cgroup, reason, OTHERS_UNKNOWN));
    let Some(pids) = listed() else {
        return (Vec::new(), gap(format!("cgroup.procs can't be read in {}", group.display())));
    };
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for other in pids.iter().copied().filter(|other| *other != pid && *other != 0) {
        let is_late = found.len() >= MOST_OTHERS || reader.deadline.has_passed();
        match Some(other).filter(|_| !is_late).and_then(&mut resident) {
            Some(rss) => found.push((other, rss)),
            None => unread.push(other),
        }
    }
    // Processes that have ended since aren't listed again.
    if !unread.is_empty()
        && let Some(still) = listed()
    {
        let still: HashSet<u32> = still.into_iter().collect();
        unread.retain(|other| still.contains(other));
    }
    let unread = unread.len() + pids.iter().filter(|other| **other == 0).count();
    let reason = || {
        let processes = if unread == 1 { "process" } else { "processes" };
        format!("the RSS of {} other {processes} of the group can't be read", count(unread as u64))
    };
    let gap = (unread > 0).then(reason).and_then(gap);
    (found, gap)
}

/// The second field of statm, in pages.
pub(super) fn resident(pid: u32) -> Option<Bytes> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(Bytes(pages.saturating_mul(rustix::param::page_size() as u64)))
}
