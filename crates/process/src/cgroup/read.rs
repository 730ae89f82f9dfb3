//! Reads the target's group and its ancestors up to the root of the mount. Each level with a limit can kill; the one
//! with the fewest bytes left kills first. What lies above the mount can't be seen, and isn't judged.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::parse::{
    Controller, Mount, parse_bytes, parse_cpu_max, parse_limit, parse_memory_stat, parse_mounts, parse_oom_events,
    parse_paths, parse_pressure, parse_throttled, quota,
};
use crate::foreign::{self, Deadline, FileKind, Requirements, Why};
use crate::proc::Target;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion, MemoryStat, OomEvents, Pressure, Sourced, Throttle};
use plimsoll_facts::units::{Bytes, count};

const EFFECT: &str = "the limit that an OOM kill would enforce is not known";
/// The effect of a gap about other processes of the group.
pub const OTHERS_UNKNOWN: &str =
    "other processes of the group hold more than is shown, and remedies leave too little for them";
const SIBLINGS_UNKNOWN: &str = "the group that uses up the limit may be missing in the evidence of limit-near";

/// Whether a gap is about what other processes and groups hold, which [`read_limit`] doesn't read.
pub fn is_about_others(gap: &Gap) -> bool {
    [OTHERS_UNKNOWN, SIBLINGS_UNKNOWN].contains(&gap.effect.as_str())
}

/// Limit of other processes of the group whose RSS is read, about 5 µs each.
const MOST_OTHERS: usize = 1 << 14;
/// An outer level is reached first only if it has fewer bytes left by this share of the inner limit, and by this amount.
/// A pod often has the limit of its only container, and a few hundred KiB more are charged to it.
const CLEARLY_PERCENT: u64 = 1;
const CLEARLY: Bytes = Bytes::mib(1);
/// A level with a lower share of its limit in use, in percent, isn't near it, so its page cache doesn't matter.
const NEAR: f64 = 90.0;
/// Limit of groups beside the target's whose charge is read, and of those that are kept. Where there are more groups, the
/// largest may be missing.
const MOST_SIBLINGS: usize = 512;
const SIBLINGS_KEPT: usize = 8;

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

fn read(target: &Target, host_memory: Bytes, stats: Stats) -> Sourced<(Cgroup, PathBuf)> {
    let reader = Reader::until(target.deadline());
    let (cgroup, mut gaps) = match Hierarchy::of(target, &reader) {
        Ok(hierarchy) => limit(hierarchy, host_memory, stats, &reader),
        Err(gap) => (None, vec![gap]),
    };
    gaps.extend(reader.gap());
    (cgroup, gaps)
}

/// Which levels' `memory.stat` is read. The kernel first sums it up over all groups below, which is expensive near the
/// root.
#[derive(Clone, Copy, PartialEq)]
enum Stats {
    All,
    /// Those of the innermost limit, and of outer ones that are near, or could be reached first.
    ThatMatter,
}

/// The hierarchy with the memory controller, as far as it can be seen.
struct Hierarchy {
    version: CgroupVersion,
    /// The group and its ancestors, innermost first.
    chain: Vec<PathBuf>,
    path: String,
    cpu_chain: Option<Vec<PathBuf>>,
}

impl Hierarchy {
    fn of(target: &Target, reader: &Reader) -> Result<Hierarchy, Gap> {
        let paths = target.read("cgroup").map(|text| parse_paths(&text)).map_err(|error| {
            Gap::new(Source::Cgroup, format!("/proc/{}/cgroup can't be read: {error}", target.pid()), EFFECT)
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
                Err(Gap::new(Source::Cgroup, reason, EFFECT))
            }
        }
    }
}

/// A level with a limit that can take effect.
struct Level {
    level: usize,
    limit: Bytes,
    charged: Bytes,
    stat: MemoryStat,
}

impl Level {
    /// What may still be charged before the kernel kills; it takes inactive page cache back before that.
    fn left(&self) -> Bytes {
        self.limit - (self.charged - self.stat.inactive_file)
    }
}

/// Sorts levels by the order in which their limits are reached. The first is the innermost one that has about as few
/// bytes left as any.
fn sort(levels: &mut [Level]) {
    levels.sort_by_key(|level| (level.left(), level.limit, level.level));
    let Some(least) = levels.first().map(Level::left) else { return };
    let about = |level: &Level| least + level.limit.scaled(CLEARLY_PERCENT, 100).max(CLEARLY);
    let candidates = levels.iter().enumerate().filter(|(_, level)| level.left() <= about(level));
    if let Some((first, _)) = candidates.min_by_key(|(_, level)| level.level) {
        levels[..=first].rotate_right(1);
    }
}

fn limit(hierarchy: Hierarchy, host_memory: Bytes, stats: Stats, reader: &Reader) -> Sourced<(Cgroup, PathBuf)> {
    let read = |group: &Path, name: &str| reader.read(group, name);
    let throttles = throttles(reader, &hierarchy);
    let Hierarchy { version, chain, path, cpu_chain } = hierarchy;
    let mut gaps = Vec::new();
    if path.contains("/..") {
        gaps.push(Gap::new(
            Source::Cgroup,
            "the target's cgroup lies outside this cgroup namespace",
            "its limit is read through the target's own mounts, which may hide limits further up",
        ));
    }
    let files = Files::of(version);
    let stat_of = |group: &Path| read(group, "memory.stat").map(|text| parse_memory_stat(&text)).unwrap_or_default();
    let charge_of = |group: &Path| read(group, files.charged).and_then(|text| parse_bytes(&text));
    let mut levels: Vec<Level> = Vec::new();
    for (level, group) in chain.iter().enumerate() {
        let Some(limit) = read(group, files.limit).and_then(|text| parse_limit(&text)) else { continue };
        // A limit above the host's memory never takes effect.
        if host_memory.0 != 0 && limit > host_memory {
            continue;
        }
        match charge_of(group) {
            Some(charged) => {
                let may_be_first = levels.iter().all(|inner| limit - charged < inner.left());
                let matters = may_be_first || charged.percent_of(limit) >= NEAR || stats == Stats::All;
                let stat = if matters { stat_of(group) } else { MemoryStat::default() };
                levels.push(Level { level, limit, charged, stat });
            }
            None => gaps.push(unread(files.charged, group)),
        }
    }
    sort(&mut levels);
    if levels.is_empty() {
        // Version 2 charges a group without the controller to the closest one above that has it.
        let nearest = chain.iter().enumerate().find_map(|(level, group)| Some((level, charge_of(group)?)));
        let Some((level, charged)) = nearest else {
            // The root group of v2 has no memory.current, and no limit applies there.
            if gaps.is_empty() && read(&chain[0], "memory.stat").is_none() {
                gaps.push(unread(files.charged, &chain[0]));
            }
            return (None, gaps);
        };
        levels.push(Level { level, limit: Bytes(u64::MAX), charged, stat: stat_of(&chain[level]) });
    }
    let events_of =
        |group: &Path, name: &str| read(group, name).map(|text| parse_oom_events(&text)).unwrap_or_default();
    let own_events = events_of(&chain[0], files.events);
    let of = |Level { level, limit, charged, stat }: Level| {
        let group = &chain[level];
        let stat = match version {
            CgroupVersion::V2 => stat,
            CgroupVersion::V1 => with_v1_kernel(reader, stat, group),
        };
        // In version 2 a level's own `memory.events` also counts what the limits of groups below it did.
        let of_limit = match (version, level) {
            (CgroupVersion::V2, 0) => own_events,
            (CgroupVersion::V2, _) => events_of(group, "memory.events.local"),
            (CgroupVersion::V1, _) => {
                let max = read(group, "memory.failcnt").and_then(|text| parse_bytes(&text)).unwrap_or_default().0;
                OomEvents { max, ..OomEvents::default() }
            }
        };
        let oom = OomEvents { oom_kill: own_events.oom_kill, ..of_limit };
        let limit = Some(limit).filter(|limit| *limit != Bytes(u64::MAX));
        Cgroup {
            version,
            directory: chain[0].clone(),
            limit,
            limit_path: ancestor(&path, level),
            limit_directory: limit.map(|_| group.clone()).unwrap_or_default(),
            path: path.clone(),
            charged,
            peak: read(group, files.peak).and_then(|text| parse_bytes(&text)),
            stat,
            oom,
            swap_charged: read(group, files.swap).and_then(|text| parse_bytes(&text)),
            swap_limit: read(group, files.swap_limit).and_then(|text| parse_limit(&text)),
            cpu_quota: None,
            others: Vec::new(),
            siblings: Vec::new(),
            further: Vec::new(),
            throttles: Vec::new(),
        }
    };
    let mut levels = levels.into_iter().map(|level| (chain[level.level].clone(), of(level)));
    let Some((group, mut first)) = levels.next() else { return (None, gaps) };
    first.further = levels.map(|(_, level)| level).collect();
    first.throttles = throttles;
    first.cpu_quota = cpu_chain.and_then(|chain| lowest_quota(reader, &chain, version));
    (Some((first, group)), gaps)
}

fn unread(name: &str, group: &Path) -> Gap {
    Gap::new(Source::Cgroup, format!("{name} can't be read in {}", group.display()), EFFECT)
}

/// Version 1 has no `memory.high`.
fn throttles(reader: &Reader, hierarchy: &Hierarchy) -> Vec<Throttle> {
    let Hierarchy { version: CgroupVersion::V2, chain, path, .. } = hierarchy else { return Vec::new() };
    let of = |(level, group): (usize, &PathBuf)| {
        let high = reader.read(group, "memory.high").and_then(|text| parse_limit(&text))?;
        let charged = reader.read(group, "memory.current").and_then(|text| parse_bytes(&text))?;
        let stat = Some(group).filter(|_| charged.percent_of(high) >= NEAR);
        let stat = stat.and_then(|group| reader.read(group, "memory.stat"));
        let pressure = reader.read(&chain[0], "memory.pressure").and_then(|text| parse_pressure(&text));
        Some(Throttle {
            path: ancestor(path, level),
            directory: group.clone(),
            high,
            charged,
            stat: stat.map(|text| parse_memory_stat(&text)).unwrap_or_default(),
            times: reader.read(group, "memory.events").map(|text| parse_throttled(&text)).unwrap_or(0),
            pressure: pressure.map(|pressure| Pressure { of_cgroup: true, ..pressure }),
        })
    };
    chain.iter().enumerate().filter_map(of).collect()
}

/// The groups beside the target's below the group with the limit. Their names are read only in our own view of the
/// hierarchy: the target can mount anything over its view. They change while they are read, so one whose charge is
/// refused isn't a gap. If some groups are left out, that is a gap only where the limit is near: there they are the
/// evidence.
fn siblings(reader: &Reader, level: &Cgroup) -> (Vec<(String, Bytes)>, Option<Gap>) {
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

struct Files {
    limit: &'static str,
    charged: &'static str,
    peak: &'static str,
    events: &'static str,
    swap: &'static str,
    swap_limit: &'static str,
}

impl Files {
    fn of(version: CgroupVersion) -> Files {
        match version {
            CgroupVersion::V1 => Files {
                limit: "memory.limit_in_bytes",
                charged: "memory.usage_in_bytes",
                peak: "memory.max_usage_in_bytes",
                events: "memory.oom_control",
                swap: "memory.memsw.usage_in_bytes",
                swap_limit: "memory.memsw.limit_in_bytes",
            },
            CgroupVersion::V2 => Files {
                limit: "memory.max",
                charged: "memory.current",
                peak: "memory.peak",
                events: "memory.events",
                swap: "memory.swap.current",
                swap_limit: "memory.swap.max",
            },
        }
    }
}

/// v1 reports kernel memory in separate files.
fn with_v1_kernel(reader: &Reader, stat: MemoryStat, group: &Path) -> MemoryStat {
    let bytes = |name| reader.read(group, name).and_then(|text| parse_bytes(&text)).unwrap_or_default();
    MemoryStat { kernel: bytes("memory.kmem.usage_in_bytes"), sock: bytes("memory.kmem.tcp.usage_in_bytes"), ..stat }
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
            // If the group lies outside the namespace or above the mount, the mount point is the closest visible group.
            let (mount, below) = found.or_else(|| of_it.first().map(|mount| (*mount, PathBuf::new())))?;
            let point = root.join(mount.point.trim_start_matches('/'));
            let group = point.join(below);
            let chain: Vec<PathBuf> =
                group.ancestors().take_while(|ancestor| ancestor.starts_with(&point)).map(Path::to_path_buf).collect();
            (!chain.is_empty() && group.is_dir()).then_some(chain)
        })
    }
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

/// Reads the groups' files, all with one deadline, and records refusals: a file that isn't read must not look like a
/// missing one.
struct Reader {
    deadline: Deadline,
    refused: RefCell<Vec<String>>,
}

impl Reader {
    fn until(deadline: Deadline) -> Reader {
        Reader { deadline, refused: RefCell::new(Vec::new()) }
    }

    /// A target with its own mounts can mount anything over its view of the hierarchy, so there only the kernel's files
    /// count. Our own view was mounted by whoever set up this machine or container.
    fn read(&self, group: &Path, name: &str) -> Option<Vec<u8>> {
        let path = group.join(name);
        let why = match foreign::open(&path, Requirements::of(FileKind::Text), self.deadline) {
            // A file of the kernel may have no contents (memory.pressure: EOPNOTSUPP).
            Ok(file) if file.is_of_cgroups() || !group.starts_with("/proc") => match file.read() {
                Ok(text) => return Some(text),
                Err(Why::Io(error)) if error.raw_os_error() == Some(OPNOTSUPP) => return None,
                Err(why) => why.to_string(),
            },
            Ok(_) => "is not a file of the kernel: something is mounted over it".to_owned(),
            Err(Why::Io(error)) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(why) => why.to_string(),
        };
        let mut refused = self.refused.borrow_mut();
        if refused.len() < MOST_REFUSED {
            refused.push(format!("{} {why}", path.display()));
        }
        None
    }

    fn gap(&self) -> Option<Gap> {
        let refused = self.refused.borrow();
        (!refused.is_empty()).then(|| {
            let effect = "a limit or a figure of the cgroup may be missing here although it exists";
            Gap::new(Source::Cgroup, refused.join("; "), effect)
        })
    }
}

/// The error for a feature that is switched off (EOPNOTSUPP).
const OPNOTSUPP: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();
/// Maximum number of refused files that a gap names.
const MOST_REFUSED: usize = 4;

fn ancestor(path: &str, level: usize) -> String {
    let mut ancestors = Path::new(path).ancestors();
    ancestors.nth(level).map_or_else(|| "/".to_owned(), |path| path.display().to_string())
}

fn lowest_quota(reader: &Reader, chain: &[PathBuf], version: CgroupVersion) -> Option<f64> {
    let read = |group: &Path, name: &str| reader.read(group, name);
    let of = |group: &PathBuf| match version {
        CgroupVersion::V2 => parse_cpu_max(&read(group, "cpu.max")?),
        CgroupVersion::V1 => {
            let number = |name| String::from_utf8(read(group, name)?).ok()?.trim().parse::<i64>().ok();
            quota(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        }
    };
    chain.iter().filter_map(of).min_by(f64::total_cmp)
}

/// RSS of the group's other processes: statm is readable even if smaps isn't, unless /proc hides the process (hidepid).
/// The kernel lists a process of another PID namespace as 0.
fn others(
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
    // Those that have ended since aren't listed again.
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
fn resident(pid: u32) -> Option<Bytes> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(Bytes(pages.saturating_mul(rustix::param::page_size() as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A hierarchy of version 2 in a directory, innermost level first.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, levels: &[&[(&str, String)]]) -> (Tree, Hierarchy) {
            let root = std::env::temp_dir().join(format!("plimsoll-cgroup-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let names = ["kubepods", "pod", "container"];
            let path: PathBuf = names.iter().take(levels.len()).collect();
            let chain: Vec<PathBuf> = path.ancestors().take(levels.len()).map(|group| root.join(group)).collect();
            fs::create_dir_all(&chain[0]).expect("a directory");
            for (group, files) in chain.iter().zip(levels) {
                for (file, text) in *files {
                    fs::write(group.join(file), text).expect("a file");
                }
            }
            let path = format!("/{}", path.display());
            let hierarchy = Hierarchy { version: CgroupVersion::V2, chain, path, cpu_chain: None };
            (Tree(root), hierarchy)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn level(max: u64, current: u64, inactive: u64) -> [(&'static str, String); 3] {
        [
            ("memory.max", format!("{max}\n")),
            ("memory.current", format!("{current}\n")),
            ("memory.stat", format!("anon 1\ninactive_file {inactive}\n")),
        ]
    }

    fn read(name: &str, levels: &[&[(&str, String)]], stats: Stats) -> Cgroup {
        let (_tree, hierarchy) = Tree::new(name, levels);
        let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
        let (cgroup, gaps) = limit(hierarchy, Bytes(0), stats, &reader);
        assert!(gaps.is_empty() && reader.gap().is_none(), "{gaps:?}");
        cgroup.expect("a group").0
    }

    /// The pod of one container has its limit, and the pause process's charge as well.
    #[test]
    fn a_pod_with_the_limit_of_its_container_does_not_replace_it() {
        let container = level(256 * MIB, 200 * MIB, 0);
        let of = |name, pod_charged| {
            let pod = level(256 * MIB, pod_charged, 0);
            read(name, &[&container, &pod], Stats::All)
        };
        let near = of("pod-near", 200 * MIB + 600 * 1024);
        assert_eq!((near.limit_path.as_str(), near.is_above()), ("/kubepods/pod", false));
        assert_eq!(near.further[0].limit_path, "/kubepods");
        // A sidecar has clearly more.
        assert_eq!(of("pod-sidecar", 250 * MIB).limit_path, "/kubepods");
    }

    #[test]
    fn outer_levels_far_from_their_limits_have_no_statistics_read() {
        let levels =
            || [level(100 * MIB, 60 * MIB, MIB), level(1000 * MIB, 500 * MIB, MIB), level(1000 * MIB, 950 * MIB, MIB)];
        let stats = |name, stats| {
            let [inner, middle, outer] = levels();
            let cgroup = read(name, &[&inner, &middle, &outer], stats);
            cgroup
                .levels()
                .map(|level| (level.limit_path.clone(), level.stat.inactive_file.0 / MIB))
                .collect::<Vec<_>>()
        };
        let of = |middle| {
            [("/kubepods/pod/container", 1), ("/kubepods", 1), ("/kubepods/pod", middle)]
                .map(|(path, mib)| (path.to_owned(), mib))
        };
        assert_eq!(stats("stat-some", Stats::ThatMatter), of(0));
        assert_eq!(stats("stat-all", Stats::All), of(1));
    }

    /// The group above counts kills that the limits of others below it caused.
    #[test]
    fn kills_are_those_of_the_own_group_and_oom_that_of_the_limit() {
        let events = |oom: u64, kills: u64| format!("low 0\nhigh 0\nmax 4\noom {oom}\noom_kill {kills}\n");
        let own = [level(1000 * MIB, 10 * MIB, 0).to_vec(), vec![("memory.events", events(2, 1))]].concat();
        let local = ("memory.events.local", events(3, 0));
        let above = [level(100 * MIB, 95 * MIB, 0).to_vec(), vec![("memory.events", events(90, 80)), local]].concat();
        let cgroup = read("kills", &[&own, &above], Stats::All);
        assert_eq!((cgroup.limit_path.as_str(), cgroup.oom.oom, cgroup.oom.oom_kill), ("/kubepods", 3, 1));
        assert_eq!((cgroup.further[0].oom.oom, cgroup.further[0].oom.oom_kill), (2, 1));
    }

    #[test]
    fn groups_beside_that_are_left_out_are_a_gap_if_the_limit_is_near() {
        let (tree, hierarchy) = Tree::new("siblings", &[&[], &[]]);
        let folder = hierarchy.chain[1].clone();
        let level = |charged| Cgroup {
            directory: hierarchy.chain[0].clone(),
            path: "/kubepods/pod".into(),
            limit: Some(Bytes(100)),
            limit_path: "/kubepods".into(),
            limit_directory: folder.clone(),
            charged: Bytes(charged),
            ..Cgroup::default()
        };
        let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
        for number in 0..=MOST_SIBLINGS {
            fs::create_dir(folder.join(format!("beside-{number}"))).expect("a directory");
        }
        fs::write(folder.join("beside-0/memory.current"), "7\n").expect("a file");
        let gap = siblings(&reader, &level(95)).1.expect("one is left out");
        assert!(gap.reason.ends_with("has more than 512 groups, and the rest was not read") && is_about_others(&gap));
        assert_eq!(siblings(&reader, &level(50)).1, None);
        fs::remove_dir(folder.join("beside-1")).expect("a directory");
        assert_eq!(siblings(&reader, &level(95)), (vec![("/kubepods/beside-0".to_owned(), Bytes(7))], None));
        let gone = Cgroup { limit_directory: folder.join("gone"), ..level(95) };
        assert!(siblings(&reader, &gone).1.is_some());
        drop(tree);
    }

    #[test]
    fn other_processes_that_cannot_be_read_are_a_gap() {
        // Of another PID namespace, ourselves, and two others, of which /proc hides one.
        let (tree, hierarchy) = Tree::new("others", &[&[("cgroup.procs", "0\n7\n8\n9\n".to_owned())]]);
        let group = &hierarchy.chain[0];
        let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
        let resident = |pid: u32| (pid == 8).then_some(Bytes(4096));
        let (found, gap) = others(&reader, group, 7, resident);
        assert_eq!(found, [(8, Bytes(4096))]);
        let gap = gap.expect("two are unknown");
        assert_eq!(
            (gap.reason.as_str(), gap.effect.as_str()),
            ("the RSS of 2 other processes of the group can't be read", OTHERS_UNKNOWN)
        );
        // One that has ended meanwhile.
        let ends = |pid: u32| {
            fs::write(group.join("cgroup.procs"), "7\n8\n").expect("a file");
            (pid == 8).then_some(Bytes(4096))
        };
        fs::write(group.join("cgroup.procs"), "7\n8\n9\n").expect("a file");
        assert_eq!(others(&reader, group, 7, ends), (vec![(8, Bytes(4096))], None));
        fs::remove_file(group.join("cgroup.procs")).expect("a file");
        let (found, gap) = others(&reader, group, 7, resident);
        assert!(found.is_empty() && gap.is_some_and(|gap| gap.reason.starts_with("cgroup.procs can't be read in ")));
        drop(tree);
    }

    #[test]
    fn a_memory_high_that_cannot_be_read_is_a_gap() {
        let (tree, hierarchy) = Tree::new("refused", &[&level(100 * MIB, 60 * MIB, MIB)]);
        fs::create_dir(tree.0.join("kubepods/memory.high")).expect("a directory");
        let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
        assert!(limit(hierarchy, Bytes(0), Stats::ThatMatter, &reader).0.is_some());
        assert!(reader.gap().is_some_and(|gap| gap.reason.contains("memory.high")));
    }

    /// The group has no memory controller, so those above are charged.
    #[test]
    fn a_level_that_throttles_above_a_group_without_the_controller_is_found() {
        let pressure = "some avg10=12.00 avg60=0.00 avg300=0.00 total=2500\n".to_owned();
        let high = [
            ("memory.max", "max\n".to_owned()),
            ("memory.high", format!("{}\n", 100 * MIB)),
            ("memory.current", format!("{}\n", 95 * MIB)),
            ("memory.stat", format!("inactive_file {MIB}\n")),
            ("memory.events", "high 7\n".to_owned()),
        ];
        let cgroup = read("high", &[&[("memory.pressure", pressure)], &high], Stats::ThatMatter);
        assert_eq!((cgroup.limit, cgroup.charged), (None, Bytes::mib(95)));
        let throttle = &cgroup.throttles[0];
        assert_eq!((throttle.path.as_str(), throttle.times, throttle.working_set()), ("/kubepods", 7, Bytes::mib(94)));
        assert_eq!(throttle.pressure.map(|pressure| pressure.some), Some(0.12));
    }
}
