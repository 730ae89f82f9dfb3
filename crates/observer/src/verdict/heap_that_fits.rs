//! Computes what the VM's flags allow: a Java heap of its maximum size, beside the present native memory.
//!
//!   native memory = RSS − resident Java heap − page cache of mapped files
//!   needed        = maximum of the Java heap + native memory + what is charged beside this process (`limit_near`)
//!
//! RSS counts no page of hugetlbfs (-XX:+UseLargePages). The memory controller doesn't charge them either, unless
//! cgroup2 is mounted with memory_hugetlb_accounting: then memory.stat has them.
//!
//! hsperfdata has the heap's sizes, but only the VM's memory and its answers have its addresses. Without addresses, all
//! of the heap that is committed counts as resident. Then native memory is at least the computed figure, and no verdict
//! counts the heap twice.

use super::case::Case;
use super::file_pages::file_pages;
use crate::ledger::LineId;
use plimsoll_facts::snapshot::{Cgroup, VmTag, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};

/// What the VM's flags allow, and what the process holds beside its heap.
pub(crate) struct Needs {
    /// None without a VM, and if the kernel doesn't charge the heap's pages.
    pub max_heap: Option<Bytes>,
    /// Bytes of the Java heap that are charged now.
    pub heap: Bytes,
    pub native: Bytes,
    pub together: Option<Bytes>,
    /// The committed bytes that count as resident, because the heap's addresses are unknown.
    pub assumed: Option<Bytes>,
}

impl Needs {
    pub(crate) fn of(case: Case<'_>) -> Needs {
        let (vm, rss) = (case.vm(), case.distinct_rss());
        let regions = vm.into_iter().flat_map(|vm| &vm.regions);
        let located: Vec<AddressRange> =
            regions.filter(|region| region.tag == VmTag::JavaHeap).map(|region| region.range).collect();
        let is_heap = |vma: &&Vma| located.is_empty() || located.iter().any(|range| vma.range.overlaps(*range));
        let vmas = case.snapshot.vmas.iter().filter(|vma| vm.is_some() && vma.flags.hugetlb);
        let huge: Vec<&Vma> = vmas.filter(is_heap).collect();
        let charged = charged_hugetlb(case);
        let heap_facts = vm.and_then(|vm| vm.java_heap.as_ref());
        let is_charged = huge.is_empty() || charged.is_some();
        let max_heap = heap_facts.filter(|_| is_charged).and_then(|heap| heap.max);
        let assumed = heap_facts.filter(|_| located.is_empty()).map(|heap| heap.committed.min(rss));
        let assumed = assumed.filter(|committed| *committed > Bytes(0));
        let resident = assumed.unwrap_or_else(|| case.distinct(LineId::JavaHeap));
        let in_hugetlb: Bytes = huge.iter().map(|vma| vma.hugetlb).sum();
        let heap = resident + charged.map_or(Bytes(0), |charged| in_hugetlb.min(charged));
        let native = rss - resident - file_pages(case).cache;
        Needs { max_heap, heap, native, together: max_heap.map(|max| max + native), assumed }
    }
}

/// What the innermost level with a limit is charged for pages of hugetlbfs.
fn charged_hugetlb(case: Case<'_>) -> Option<Bytes> {
    let of_levels = case.snapshot.cgroup.iter().flat_map(Cgroup::levels).map(|level| level.stat.other("hugetlb"));
    // A level above is charged for what the one below is charged for.
    of_levels.filter(|bytes| *bytes > Bytes(0)).min()
}
