//! Finds the lines that a ledger can't show in full, because a source didn't report what belongs to them. Their memory
//! is on other lines, so the program would keep any budget of such a line.

use std::collections::BTreeMap;

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{HotSpot, NativeImage, NmtMode, Snapshot, VmTag};
use plimsoll_observer::ledger::LineId;
use plimsoll_trial::comparison::Unread;

const TOTALS: Unread = Unread { why: "the process's mappings could not be read", by_choice: false };
const NO_HOTSPOT: Unread = Unread { why: "the VM could not be queried", by_choice: false };
const UNREPORTED: Unread = Unread { why: "the JVM did not report where it lies", by_choice: false };
const UNCOUNTED: Unread = Unread { why: "the JVM did not report its own blocks", by_choice: false };
const NO_NMT: Unread = Unread { why: "the JVM counts it only with -XX:NativeMemoryTracking=summary", by_choice: true };
const NO_COUNTERS: Unread = Unread { why: "java.nio's counters could not be read", by_choice: false };
/// Without `jcmd`, an image counts its blocks but has no socket that reports them.
const NO_IMAGE_NMT: Unread =
    Unread { why: "a native image reports it only if built with --enable-monitoring=nmt,jcmd", by_choice: true };
const NO_IMAGE_HEAP: Unread = Unread { why: "the heap of the native image was not found", by_choice: false };
const NO_ARENAS: Unread = Unread { why: "malloc's arenas could not be read", by_choice: false };

/// The reasons, by the ids of the lines.
pub fn unread(snapshot: &Snapshot) -> BTreeMap<&'static str, Unread> {
    if snapshot.smaps_refused {
        return LineId::ALL.iter().map(|line| (line.id(), TOTALS)).collect();
    }
    let mut lines = BTreeMap::new();
    let has_gap = |source: Source| snapshot.gaps.iter().any(|gap| gap.source == source);
    match (&snapshot.hotspot, &snapshot.native_image) {
        (Some(vm), _) => lines.extend(of_hotspot(vm)),
        // OpenJ9.
        (None, None) if has_gap(Source::HotSpot) => {
            let all = [LineId::JavaHeap, LineId::Class, LineId::CodeCache, LineId::Gc, LineId::DirectBuffers];
            let all = all.into_iter().chain([LineId::Compiler, LineId::Symbols, LineId::VmInternal]);
            lines.extend(all.map(|line| (line, NO_HOTSPOT)));
        }
        (None, Some(image)) => lines.extend(of_image(image)),
        (None, None) => {}
    }
    // If another allocator serves malloc, glibc's lines have none of its memory, so no gap of glibc counts.
    if snapshot.glibc.is_none() && snapshot.malloc_heap.is_none() && has_gap(Source::Glibc) {
        lines.extend([LineId::GlibcLive, LineId::GlibcRetained].map(|line| (line, NO_ARENAS)));
    }
    lines.into_iter().map(|(line, why)| (line.id(), why)).collect()
}

fn of_hotspot(vm: &HotSpot) -> Vec<(LineId, Unread)> {
    let is_reported = |tag: &VmTag| vm.regions.iter().any(|region| region.tag == *tag);
    let mapped = [(LineId::JavaHeap, VmTag::JavaHeap), (LineId::Class, VmTag::Class), (LineId::CodeCache, VmTag::Code)];
    let mut lines: Vec<(LineId, Unread)> =
        mapped.into_iter().filter(|(_, tag)| !is_reported(tag)).map(|(line, _)| (line, UNREPORTED)).collect();
    // With some collectors, a VM has no card table to report, even if it answers.
    if vm.nmt == NmtMode::Unknown && !is_reported(&VmTag::Gc) {
        lines.push((LineId::Gc, UNREPORTED));
    }
    if vm.categories.is_empty() {
        let why = if vm.nmt == NmtMode::Unknown { UNCOUNTED } else { NO_NMT };
        lines.extend([LineId::Compiler, LineId::Symbols, LineId::VmInternal].map(|line| (line, why)));
    }
    if vm.direct_buffers.is_none() && !vm.categories.iter().any(|category| category.name == "Other") {
        lines.push((LineId::DirectBuffers, NO_COUNTERS));
    }
    lines
}

fn of_image(image: &NativeImage) -> Vec<(LineId, Unread)> {
    let mut lines = Vec::new();
    if image.image_heap.is_empty() {
        lines.push((LineId::ImageHeap, NO_IMAGE_HEAP));
    }
    if image.nmt.is_empty() {
        lines.extend([LineId::DirectBuffers, LineId::Gc, LineId::VmInternal].map(|line| (line, NO_IMAGE_NMT)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::gap::Gap;
    use plimsoll_facts::snapshot::{AllocatorKind, DirectBuffers, Glibc, NmtCategory, OtherHeap, VmRegion};
    use plimsoll_facts::units::{AddressRange, Avma};

    fn region(number: u64, tag: VmTag) -> VmRegion {
        let range = AddressRange::new(Avma(number << 20), Avma((number + 1) << 20));
        VmRegion { range, tag, committed: vec![range] }
    }

    fn lines(of: &Snapshot) -> Vec<&'static str> {
        unread(of).into_keys().collect()
    }

    /// The VM of the defaults: NMT is off, all else is known.
    fn vm() -> HotSpot {
        let regions = vec![region(1, VmTag::JavaHeap), region(2, VmTag::Class), region(3, VmTag::Code)];
        let direct_buffers = Some(DirectBuffers::default());
        HotSpot { nmt: NmtMode::Off, regions, direct_buffers, ..HotSpot::default() }
    }

    fn of_vm(hotspot: HotSpot) -> Snapshot {
        Snapshot { hotspot: Some(hotspot), ..Snapshot::default() }
    }

    #[test]
    fn lines_of_a_vm_that_reports_nothing_are_unread() {
        assert_eq!(lines(&Snapshot::default()), [""; 0]);
        let off = unread(&of_vm(vm()));
        assert_eq!(off.keys().copied().collect::<Vec<_>>(), ["compiler", "symbols", "vm-internal"]);
        assert!(off.values().all(|unread| unread.by_choice));
        let other = NmtCategory { name: "Other".into(), ..NmtCategory::default() };
        let tracked = HotSpot { nmt: NmtMode::Summary, categories: vec![other], direct_buffers: None, ..vm() };
        assert_eq!(lines(&of_vm(tracked)), [""; 0]);
        // The VM doesn't answer: its table of fields shows the code cache, the names of mappings show the archive.
        let regions = vec![region(3, VmTag::Code), region(4, VmTag::SharedClassSpace)];
        let mute = HotSpot { nmt: NmtMode::Unknown, regions, ..vm() };
        assert_eq!(lines(&of_vm(mute)), ["class", "compiler", "gc", "java-heap", "symbols", "vm-internal"]);
        let uncounted = HotSpot { direct_buffers: None, ..vm() };
        assert!(unread(&of_vm(uncounted)).contains_key("direct-buffers"));
        let openj9 = Snapshot { gaps: vec![Gap::new(Source::HotSpot, "OpenJ9", "")], ..Snapshot::default() };
        assert_eq!(lines(&openj9).len(), 8);
    }

    #[test]
    fn lines_of_malloc_and_of_images_are_unread_without_their_source() {
        let refused = Snapshot { gaps: vec![Gap::new(Source::Glibc, "refused", "")], ..Snapshot::default() };
        assert_eq!(lines(&refused), ["glibc-live", "glibc-retained"]);
        let walked = Snapshot { glibc: Some(Glibc::default()), ..refused.clone() };
        let heap = OtherHeap::new(AllocatorKind::Jemalloc);
        let jemalloc = Snapshot { malloc_heap: Some(heap), ..refused.clone() };
        assert_eq!((lines(&walked), lines(&jemalloc)), (vec![], vec![]));
        let image = Snapshot { native_image: Some(NativeImage::default()), ..Snapshot::default() };
        assert_eq!(lines(&image), ["direct-buffers", "gc", "image-heap", "vm-internal"]);
        assert!(unread(&image)["gc"].why.ends_with("built with --enable-monitoring=nmt,jcmd"));
        let totals = Snapshot { smaps_refused: true, ..refused };
        assert_eq!(lines(&totals).len(), LineId::ALL.len());
    }
}
