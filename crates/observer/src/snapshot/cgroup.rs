//! The memory cgroup that the target is charged to, as the kernel's OOM decision sees it.

use std::path::PathBuf;
use std::time::Duration;

use crate::units::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    #[default]
    V2,
}

#[derive(Clone, Debug, Default)]
pub struct Cgroup {
    pub version: CgroupVersion,
    /// The target's own group, as the observer can open it, also when the target is no more.
    pub directory: PathBuf,
    /// Path within the hierarchy, as the target's `/proc/PID/cgroup` states it.
    pub path: String,
    /// The lowest limit between the target's group and the root: that one kills. None where nothing limits.
    pub limit: Option<Bytes>,
    /// Path of the group that sets it.
    pub limit_path: String,
    /// `memory.current` (v1: `memory.usage_in_bytes`) of the group that sets the limit (of the target's own where none does).
    pub charged: Bytes,
    pub peak: Option<Bytes>,
    pub stat: MemoryStat,
    pub oom: OomEvents,
    pub swap_charged: Option<Bytes>,
    pub swap_limit: Option<Bytes>,
    /// CPU quota in CPUs (`cpu.max`, `cpu.cfs_quota_us / cpu.cfs_period_us`), lowest between the group and the root.
    pub cpu_quota: Option<f64>,
    /// Processes charged to the same group besides the target, as `(pid, rss)`, where readable.
    pub others: Vec<(u32, Bytes)>,
}

/// memory.stat folded onto the words of the two versions; v1's hierarchical (`total_`) figures where it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    pub anon: Bytes,
    /// Page cache with tmpfs and shared memory in it.
    pub file: Bytes,
    pub shmem: Bytes,
    pub file_mapped: Bytes,
    pub inactive_file: Bytes,
    pub active_file: Bytes,
    /// All kernel memory: v2 `kernel`, v1 `memory.kmem.usage_in_bytes`. Slab, page tables and kernel stacks are in it.
    pub kernel: Bytes,
    pub slab: Bytes,
    pub page_tables: Bytes,
    pub kernel_stack: Bytes,
    pub sock: Bytes,
    pub anon_thp: Bytes,
    /// Keys this version of Plimsoll has no word for, as the kernel wrote them.
    pub unknown: Vec<(String, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomEvents {
    pub oom: u64,
    pub oom_kill: u64,
    /// Times the limit was reached (v2 `max`, v1 `memory.failcnt`).
    pub max: u64,
}

/// Pressure stall information (Documentation/accounting/psi.rst): shares of the last 10 s from 0 to 1, and totals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// The cgroup's own; the whole system's where that has none (version 1).
    pub of_cgroup: bool,
    /// A task waited for memory.
    pub some: f32,
    pub some_total: Duration,
    /// All tasks did.
    pub full: f32,
    pub full_total: Duration,
}

impl Cgroup {
    /// As the kubelet computes it (cAdvisor): charged − inactive file pages, never below 0.
    pub fn working_set(&self) -> Bytes {
        self.charged - self.stat.inactive_file
    }
}
