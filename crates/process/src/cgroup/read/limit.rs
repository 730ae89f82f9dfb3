//! The limit that is reached first, with its charge, and the further ones above it.

use std::path::{Path, PathBuf};

use super::group_files::{Files, Reader};
use super::hierarchy::{Hierarchy, LIMIT_UNKNOWN, NEAR, ancestor};
use super::swap::swap_left;
use super::throttles::throttles;
use crate::cgroup::parse::{parse_bytes, parse_cpu_max, parse_limit, parse_memory_stat, parse_oom_events, quota};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion, MemoryStat, OomEvents, Sourced};
use plimsoll_facts::units::Bytes;

/// An outer level is reached first only if it has fewer bytes left by this share of the inner limit, and by this amount.
/// A pod often has the limit of its only container, and a few hundred KiB more are charged to it.
const CLEARLY_PERCENT: u64 = 1;
const CLEARLY: Bytes = Bytes::mib(1);

/// Which levels' `memory.stat` is read. The kernel first sums it up over all groups below, which is expensive near the
/// root.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Stats {
    All,
    /// The levels of the innermost limit, and of outer limits that are near or could be reached first.
    ThatMatter,
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

pub(super) fn limit(
    hierarchy: Hierarchy,
    host_memory: Bytes,
    stats: Stats,
    reader: &Reader,
) -> Sourced<(Cgroup, PathBuf)> {
    let read = |group: &Path, name: &str| reader.read(group, name);
    let throttles = throttles(reader, &hierarchy);
    let Hierarchy { version, chain, path, cpu_chain, hidden } = hierarchy;
    let mut gaps: Vec<Gap> = hidden.into_iter().collect();
    let before = gaps.len();
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
            if gaps.len() == before && read(&chain[0], "memory.stat").is_none() {
                gaps.push(unread(files.charged, &chain[0]));
            }
            return (None, gaps);
        };
        levels.push(Level { level, limit: Bytes(u64::MAX), charged, stat: stat_of(&chain[level]) });
    }
    let events_of =
        |group: &Path, name: &str| read(group, name).map(|text| parse_oom_events(&text)).unwrap_or_default();
    let own_events = events_of(&chain[0], files.events);
    let swap_left = swap_left(reader, version, &chain);
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
            swap_left,
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
    Gap::new(Source::Cgroup, format!("{name} can't be read in {}", group.display()), LIMIT_UNKNOWN)
}

/// v1 reports kernel memory in a separate file. It counts socket buffers beside the charge
/// (`memory.kmem.tcp.usage_in_bytes`), so none are a part of it.
fn with_v1_kernel(reader: &Reader, stat: MemoryStat, group: &Path) -> MemoryStat {
    let bytes = |name| reader.read(group, name).and_then(|text| parse_bytes(&text)).unwrap_or_default();
    MemoryStat { kernel: bytes("memory.kmem.usage_in_bytes"), sock: Bytes(0), ..stat }
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
