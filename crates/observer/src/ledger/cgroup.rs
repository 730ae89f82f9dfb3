//! The second sum: the memory that the OOM killer counts. From the memory.stat of one group,
//!
//!   charged = processes (anonymous) + page cache + shared memory + kernel + sockets + zswap + hugetlb + rest
//!
//! `kernel` of memory.stat contains the compressed pages of zswap (obj_cgroup_charge_zswap in mm/memcontrol.c); here
//! they are a line of their own. Pages of hugetlbfs are charged where cgroup2 is mounted with
//! memory_hugetlb_accounting, and are in memory.stat only there.
//!
//! The kernel charges in batches per CPU and updates memory.stat with a delay, so `rest` is rarely 0. It is printed,
//! and may be negative.

use plimsoll_facts::snapshot::Cgroup;
use plimsoll_facts::units::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSum {
    pub charged: Bytes,
    pub working_set: Bytes,
    pub limit: Option<Bytes>,
    /// Ids are `processes other-processes page-cache shared-memory kernel sock`, and `zswap` and `hugetlb` if there are
    /// any; biggest first.
    pub lines: Vec<(&'static str, &'static str, Bytes)>,
    /// charged − Σ lines
    pub rest: i64,
    /// Rss of the group's other processes. It includes file pages that they share with the target.
    pub other_processes: Bytes,
}

/// `own`: the target's anonymous memory. The rest of the group's anonymous memory goes to its other processes, up to
/// their RSS. What remains stays in `processes`: /proc may hide processes, and the groups beside this one have
/// processes of their own.
pub(crate) fn sum(cgroup: &Cgroup, own: Bytes) -> CgroupSum {
    let stat = &cgroup.stat;
    let other_processes: Bytes = cgroup.others.iter().map(|(_, rss)| *rss).sum();
    let of_others = other_processes.min(stat.anon - own);
    let zswap = stat.other("zswap").min(stat.kernel);
    let mut lines = vec![
        ("processes", "anonymous memory of the process, and of processes that aren't listed", stat.anon - of_others),
        ("other-processes", "anonymous memory of the group's other processes", of_others),
        ("page-cache", "page cache", stat.file - stat.shmem),
        ("shared-memory", "shared memory and tmpfs", stat.shmem),
        ("kernel", "kernel: slab, page tables, kernel stacks", stat.kernel - zswap),
        ("sock", "socket buffers", stat.sock),
    ];
    let seldom =
        [("zswap", "compressed swap (zswap)", zswap), ("hugetlb", "pages of hugetlbfs", stat.other("hugetlb"))];
    lines.extend(seldom.into_iter().filter(|(_, _, bytes)| *bytes > Bytes(0)));
    lines.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let known: Bytes = lines.iter().map(|(_, _, bytes)| *bytes).sum();
    CgroupSum {
        charged: cgroup.charged,
        working_set: cgroup.working_set(),
        limit: cgroup.limit,
        rest: i64::try_from(i128::from(cgroup.charged.0) - i128::from(known.0)).unwrap_or_default(),
        lines,
        other_processes,
    }
}
