//! The memory cgroup that the target is charged to, with the figures of the kernel's OOM decision.

use std::path::PathBuf;
use std::time::Duration;

use crate::units::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    #[default]
    V2,
}

/// One level of the hierarchy: the target's group, or one above it.
#[derive(Clone, Debug, Default)]
pub struct Cgroup {
    pub version: CgroupVersion,
    /// The target's own group, by a path that the observer can open even after the target's end.
    pub directory: PathBuf,
    /// Path within the hierarchy, from the target's `/proc/PID/cgroup`.
    pub path: String,
    /// The limit that is reached first between the target's group and the root, if the group's other members stay as
    /// they are. This limit triggers the OOM killer. If several limits are about equally near, it is the innermost
    /// group's. None if there is no limit.
    pub limit: Option<Bytes>,
    /// Path of the group with that limit.
    pub limit_path: String,
    /// That group's directory. Empty if there is no limit.
    pub limit_directory: PathBuf,
    /// `memory.current` (v1: `memory.usage_in_bytes`) of the group with the limit. If there is no limit, of the closest
    /// group that is charged.
    pub charged: Bytes,
    pub peak: Option<Bytes>,
    pub stat: MemoryStat,
    pub oom: OomEvents,
    /// What counts against `swap_limit`: swapped pages (`memory.swap.current`); in version 1 memory and swap together
    /// (`memory.memsw.usage_in_bytes`).
    pub swap_charged: Option<Bytes>,
    pub swap_limit: Option<Bytes>,
    /// How much more of the target's memory the kernel may swap out, as far as the machine and the groups that can be
    /// seen show. 0: the kernel kills without swapping. None: the kernel doesn't report the amount.
    pub swap_left: Option<Bytes>,
    /// CPU quota in CPUs (`cpu.max`, `cpu.cfs_quota_us / cpu.cfs_period_us`), lowest between the group and the root.
    pub cpu_quota: Option<f64>,
    /// Other processes of the target's own group, as `(pid, rss)`, if readable.
    pub others: Vec<(u32, Bytes)>,
    /// Groups beside the one that has the target, where the limit is that of a group above: path and charge, largest
    /// first.
    pub siblings: Vec<(String, Bytes)>,
    /// The visible levels with another limit, in the order in which their limits are reached. Their own `further` is
    /// empty.
    pub further: Vec<Cgroup>,
    /// The levels of the target's group and those above that have a `memory.high`, innermost first. Only a level near its
    /// `memory.high` has a `stat`.
    pub throttles: Vec<Throttle>,
}

/// A group with a `memory.high` (version 2). Above it the kernel doesn't kill: it takes pages back, and makes the
/// group's threads wait for that.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    pub path: String,
    pub directory: PathBuf,
    pub high: Bytes,
    pub charged: Bytes,
    pub stat: MemoryStat,
    /// Number of times that a thread of the group, or of one below, was throttled (`high` in `memory.events`).
    pub times: u64,
    /// The pressure of the target's own group, if the kernel counts it.
    pub pressure: Option<Pressure>,
}

/// memory.stat in common names for both versions; v1's hierarchical (`total_`) figures if it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    pub anon: Bytes,
    /// Page cache, including tmpfs and shared memory.
    pub file: Bytes,
    pub shmem: Bytes,
    pub file_mapped: Bytes,
    pub inactive_file: Bytes,
    pub active_file: Bytes,
    /// All kernel memory, including slab, page tables and kernel stacks: v2 `kernel`, v1 `memory.kmem.usage_in_bytes`.
    pub kernel: Bytes,
    pub slab: Bytes,
    /// Slab that the kernel can take back, mostly dentries and inodes. Version 1 doesn't report it.
    pub slab_reclaimable: Bytes,
    pub page_tables: Bytes,
    pub kernel_stack: Bytes,
    /// Socket buffers in the charge; 0 in version 1, which counts them beside it.
    pub sock: Bytes,
    pub anon_thp: Bytes,
    /// Keys unknown to this version of Plimsoll, as the kernel wrote them.
    pub unknown: Vec<(String, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomEvents {
    /// Number of times that this group's own limit was reached and the kernel found nothing to take back (v2).
    pub oom: u64,
    /// Number of processes of the target's own group that the kernel killed, whichever limit was reached.
    pub oom_kill: u64,
    /// Number of times that the limit was reached (v2 `max`, v1 `memory.failcnt`).
    pub max: u64,
}

/// Pressure stall information (Documentation/accounting/psi.rst): shares of the last 10 s from 0 to 1, and totals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// True: the cgroup's own figures. False: the whole system's, because the cgroup has none (version 1).
    pub of_cgroup: bool,
    /// At least one task waited for memory.
    pub some: f32,
    pub some_total: Duration,
    /// All tasks waited for memory.
    pub full: f32,
    pub full_total: Duration,
}

impl Cgroup {
    /// This level and the other ones with a limit, in the order in which their limits are reached.
    pub fn levels(&self) -> impl Iterator<Item = &Cgroup> {
        std::iter::once(self).chain(&self.further)
    }

    /// Whether the limit is that of a group above the target's.
    pub fn is_above(&self) -> bool {
        self.limit.is_some() && self.limit_path != self.path
    }

    /// As the kubelet computes it (cAdvisor): charged − inactive file pages, never below 0.
    pub fn working_set(&self) -> Bytes {
        self.charged - self.stat.inactive_file
    }
}

impl MemoryStat {
    /// The figure of a key without a field of its own; 0 if the kernel doesn't report it. Version 1 has `total_` in
    /// front.
    pub fn other(&self, key: &str) -> Bytes {
        let is_it = |known: &str| known.strip_prefix("total_").unwrap_or(known) == key;
        self.unknown.iter().find(|(known, _)| is_it(known)).map(|(_, bytes)| Bytes(*bytes)).unwrap_or_default()
    }

    /// What the working set includes although the kernel takes it back before it kills: page cache that was used lately,
    /// and slab. Exceptions that memory.stat doesn't show: open files and tmpfs hold their dentries and inodes.
    pub fn reclaimable_in_use(&self) -> Bytes {
        self.active_file + self.slab_reclaimable
    }
}

impl Throttle {
    pub fn working_set(&self) -> Bytes {
        self.charged - self.stat.inactive_file
    }
}
