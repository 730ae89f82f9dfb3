//! Parses cgroup files (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).

use std::time::Duration;

use crate::proc::{MountLine, mount_lines};
use plimsoll_facts::snapshot::{MemoryStat, OomEvents, Pressure};
use plimsoll_facts::units::Bytes;

/// Groups of a process from `/proc/PID/cgroup`: `4:memory:/docker/x` (v1), `0::/user.slice` (v2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPaths {
    pub memory_v1: Option<String>,
    pub cpu_v1: Option<String>,
    pub v2: Option<String>,
}

/// Where a hierarchy is mounted, from mountinfo: `35 31 0:32 ROOT POINT rw - cgroup cgroup rw,memory`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    /// The group that is visible at the mount point.
    pub root: String,
    pub point: String,
    pub controller: Controller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    MemoryV1,
    CpuV1,
    V2,
}

pub fn parse_paths(text: &[u8]) -> CgroupPaths {
    let mut paths = CgroupPaths::default();
    for line in String::from_utf8_lossy(text).lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        if id == "0" && controllers.is_empty() {
            paths.v2 = Some(path.to_owned());
        }
        for controller in controllers.split(',') {
            match controller {
                "memory" => paths.memory_v1 = Some(path.to_owned()),
                "cpu" => paths.cpu_v1 = Some(path.to_owned()),
                _ => {}
            }
        }
    }
    paths
}

pub fn parse_mounts(mountinfo: &[u8]) -> Vec<Mount> {
    let text = String::from_utf8_lossy(mountinfo);
    let of = |line: MountLine<'_>| {
        let has = |controller| line.options.split(',').any(|option| option == controller);
        let controller = match line.file_system {
            "cgroup2" => Controller::V2,
            "cgroup" if has("memory") => Controller::MemoryV1,
            "cgroup" if has("cpu") => Controller::CpuV1,
            _ => return None,
        };
        Some(Mount { id: line.id, root: line.root, point: line.point, controller })
    };
    mount_lines(&text).filter_map(of).collect()
}

/// Both versions have lines `key number`. In v1, plain figures exclude child groups; the `total_` figures are what is
/// charged.
pub fn parse_memory_stat(text: &[u8]) -> MemoryStat {
    let mut stat = MemoryStat::default();
    let text = String::from_utf8_lossy(text);
    let hierarchical = text.lines().any(|line| line.starts_with("total_rss "));
    for line in text.lines() {
        let Some((key, value)) = line.split_once(' ') else { continue };
        let Ok(value) = value.trim().parse::<u64>() else { continue };
        let is_v1_total = key.strip_prefix("total_");
        if hierarchical && is_v1_total.is_none() {
            continue;
        }
        let slot = match is_v1_total.unwrap_or(key) {
            "anon" | "rss" => &mut stat.anon,
            "file" | "cache" => &mut stat.file,
            "shmem" => &mut stat.shmem,
            "file_mapped" | "mapped_file" => &mut stat.file_mapped,
            "inactive_file" => &mut stat.inactive_file,
            "active_file" => &mut stat.active_file,
            "kernel" => &mut stat.kernel,
            "slab" => &mut stat.slab,
            "slab_reclaimable" => &mut stat.slab_reclaimable,
            "pagetables" => &mut stat.page_tables,
            "kernel_stack" => &mut stat.kernel_stack,
            "sock" => &mut stat.sock,
            "anon_thp" | "rss_huge" => &mut stat.anon_thp,
            _ => {
                stat.unknown.push((key.chars().take(64).collect(), value));
                continue;
            }
        };
        *slot = Bytes(value);
    }
    // Kernels before 5.18 have no `kernel` line, only its parts.
    if stat.kernel == Bytes(0) {
        let percpu = stat.unknown.iter().find(|(key, _)| key == "percpu").map(|(_, bytes)| Bytes(*bytes));
        stat.kernel = stat.slab + stat.page_tables + stat.kernel_stack + percpu.unwrap_or_default();
    }
    stat
}

/// Parses `oom_kill 3` from v2's `memory.events` or v1's `memory.oom_control`.
pub fn parse_oom_events(text: &[u8]) -> OomEvents {
    let text = String::from_utf8_lossy(text);
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok()).unwrap_or(0)
    };
    OomEvents { oom: value("oom"), oom_kill: value("oom_kill"), max: value("max") }
}

/// Parses `high 7` of v2's `memory.events`.
pub(crate) fn parse_throttled(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    text.lines().find_map(|line| line.strip_prefix("high ")?.trim().parse().ok()).unwrap_or(0)
}

/// None for `max`, and for v1's "no limit" (the largest multiple of the page size in an i64).
pub fn parse_limit(text: &[u8]) -> Option<Bytes> {
    const UNLIMITED_V1: u64 = (i64::MAX as u64) & !0xffff;
    let value: u64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    (value < UNLIMITED_V1).then_some(Bytes(value))
}

pub fn parse_bytes(text: &[u8]) -> Option<Bytes> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().map(Bytes)
}

/// Parses `cpu.max`: `200000 100000` or `max 100000`.
pub fn parse_cpu_max(text: &[u8]) -> Option<f64> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    quota(words.next()?.parse().ok()?, words.next()?.parse().ok()?)
}

pub fn quota(quota: i64, period: i64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// Parses `some avg10=0.12 avg60=… avg300=… total=MICROSECONDS`, and `full …` likewise.
pub fn parse_pressure(text: &[u8]) -> Option<Pressure> {
    let text = String::from_utf8_lossy(text);
    let of = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let field = |key: &str| line.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        let percent: f32 = field("avg10")?.parse().ok()?;
        let total = Duration::from_micros(field("total")?.parse().ok()?);
        Some(((percent / 100.0).clamp(0.0, 1.0), total))
    };
    let (some, some_total) = of("some")?;
    let (full, full_total) = of("full").unwrap_or_default();
    Some(Pressure { of_cgroup: false, some, some_total, full, full_total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read() {
        let text =
            b"some avg10=1.50 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=40\n";
        let pressure = parse_pressure(text).expect("both lines");
        assert_eq!((pressure.some, pressure.full), (0.015, 0.0025));
        assert_eq!(pressure.some_total, Duration::from_micros(2500));
        assert_eq!(pressure.full_total, Duration::from_micros(40));
        for text in
            ["", "some", "some avg10=x total=1", "full avg10=1.0 total=1", "some avg10=NaN total=99999999999999999999"]
        {
            assert_eq!(parse_pressure(text.as_bytes()), None, "{text}");
        }
    }
    use crate::mutated::mutated;

    const V1: &[u8] = b"cache 1\nrss 2\nshmem 1\ninactive_file 1\ntotal_cache 589148160\ntotal_rss 238837760\n\
        total_shmem 9084928\ntotal_inactive_file 308154368\ntotal_active_file 271908864\ntotal_new_key 5\n";
    const V2: &[u8] = b"anon 1048576\nfile 2097152\nkernel 524288\nkernel_stack 16384\npagetables 8192\nsock 4096\n\
        shmem 65536\ninactive_file 1000000\nslab_reclaimable 70000\nzswap 0\n";

    #[test]
    fn version_1_reads_the_hierarchical_figures() {
        let stat = parse_memory_stat(V1);
        assert_eq!((stat.anon, stat.file, stat.shmem), (Bytes(238_837_760), Bytes(589_148_160), Bytes(9_084_928)));
        assert_eq!(stat.unknown, [("total_new_key".to_owned(), 5)]);
    }

    #[test]
    fn version_2_reads_kernel_and_sock() {
        let stat = parse_memory_stat(V2);
        assert_eq!((stat.anon, stat.kernel, stat.sock), (Bytes(1 << 20), Bytes(524_288), Bytes(4096)));
        assert_eq!(stat.slab_reclaimable, Bytes(70_000));
        let older = parse_memory_stat(b"anon 1\nslab 100\npagetables 20\nkernel_stack 3\npercpu 7\n");
        assert_eq!(older.kernel, Bytes(130));
    }

    #[test]
    fn paths_and_mounts_of_both_versions() {
        let paths = parse_paths(b"9:name=systemd:/\n4:cpu,cpuacct:/c\n3:memory:/docker/a:b\n0::/user.slice\n");
        assert_eq!(paths.memory_v1.as_deref(), Some("/docker/a:b"));
        assert_eq!((paths.cpu_v1.as_deref(), paths.v2.as_deref()), (Some("/c"), Some("/user.slice")));
        let mounts = parse_mounts(b"35 31 0:32 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        assert_eq!((mounts[0].root.as_str(), mounts[0].controller), ("/docker/a", Controller::MemoryV1));
        // systemd writes a minus in a unit's name as \x2d, and the kernel the backslash in octal.
        let escaped = br"36 31 0:33 /a\134x2db.service /sys/c\040d rw - cgroup2 c rw,nsdelegate";
        let mounts = parse_mounts(escaped);
        assert_eq!((mounts[0].root.as_str(), mounts[0].point.as_str()), (r"/a\x2db.service", "/sys/c d"));
    }

    #[test]
    fn no_limit_is_none_in_both_versions() {
        assert_eq!(parse_limit(b"max\n"), None);
        assert_eq!(parse_limit(b"9223372036854771712\n"), None);
        assert_eq!(parse_limit(b"4294967296\n"), Some(Bytes(4 << 30)));
        assert_eq!(parse_cpu_max(b"200000 100000\n"), Some(2.0));
        assert_eq!(parse_cpu_max(b"max 100000\n"), None);
    }

    #[test]
    fn throttling_is_counted() {
        assert_eq!(parse_throttled(b"low 0\nhigh 41\nmax 7\noom 0\n"), 41);
        assert_eq!(parse_throttled(b"low 0\nmax 7\n"), 0);
    }

    #[test]
    fn mutated_files_never_panic() {
        let mut changed = 0;
        for seed in [V1, V2, b"3:memory:/docker\n0::/x\n35 31 0:32 / /sys rw - cgroup2 c rw\noom_kill 3\nmax 1\n"] {
            let expected = parse_memory_stat(seed);
            for text in mutated(seed, 5000) {
                changed += usize::from(parse_memory_stat(&text) != expected);
                let _ = (parse_paths(&text), parse_mounts(&text), parse_oom_events(&text), parse_throttled(&text));
                let _ = (parse_limit(&text), parse_cpu_max(&text));
            }
        }
        assert!(changed > 1000, "{changed}");
    }
}
