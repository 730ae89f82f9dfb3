//! Opens the target's memory and finds the data of the object that holds jemalloc.

use super::walk::{Data, walk};
use crate::gap::{Gap, Source};
use crate::snapshot::{AllocatorKind, Backing, LoadedAllocator, OpenedHeap, Sourced, Vma};
use crate::source::memory::{Live, Memory, PageStates};
use crate::source::proc::{Target, file_remedy};
use crate::units::{AddressRange, Bytes};

/// jemalloc's own data is 2.2 MiB; a program that it is linked into may have more.
const LARGEST_DATA: Bytes = Bytes::mib(64);

/// The heap of a process whose malloc is jemalloc's.
pub fn read(target: &Target, allocators: &[LoadedAllocator], vmas: &[Vma]) -> Sourced<OpenedHeap> {
    let serves = |known: &&LoadedAllocator| known.kind == AllocatorKind::Jemalloc && known.serves_malloc;
    let Some(found) = allocators.iter().find(serves) else { return (None, Vec::new()) };
    let closed = |reason: String| {
        let effect = "jemalloc's live and free memory is not separated (line other-allocator)";
        Gap::new(Source::Allocator, format!("jemalloc can't be walked: {reason}"), effect)
    };
    let memory = match Live::open(target) {
        Ok(memory) => memory,
        Err(error) => {
            let gap = closed(format!("/proc/{}/mem can't be opened: {error}", target.pid()));
            return (None, vec![gap.remedy(file_remedy(target.pid()))]);
        }
    };
    match walk(&memory, &data_of(&memory, &found.path, vmas), anonymous(vmas)) {
        Ok(heap) => (Some(heap), Vec::new()),
        Err(unopened) => (None, vec![closed(unopened.reason().to_owned())]),
    }
}

/// The object's writable mappings, each with the anonymous memory behind it (.bss, and what the kernel has joined to it).
fn data_of(memory: &impl Memory, path: &str, vmas: &[Vma]) -> Vec<Data> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.readable && vma.writable && !vma.shared) {
        let unnamed = vma.backing == Backing::Anonymous && vma.name.is_empty();
        match ranges.last_mut() {
            Some(last) if last.end == vma.range.start && (unnamed || vma.name == path) => last.end = vma.range.end,
            _ if vma.name == path => ranges.push(vma.range),
            _ => {}
        }
    }
    let mut left = LARGEST_DATA;
    let mut pages = PageStates::new(memory);
    let read = ranges.into_iter().filter_map(|range| {
        let range = AddressRange::sized(range.start, range.length().min(left));
        left -= range.length();
        Some(Data { base: range.start, bytes: pages.read(range)? })
    });
    read.collect()
}

/// Private anonymous memory, neighbours joined. What jemalloc has given back may be inaccessible.
pub fn anonymous(vmas: &[Vma]) -> Vec<AddressRange> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    let could_hold = |vma: &&Vma| matches!(vma.backing, Backing::Anonymous | Backing::Brk) && !vma.shared;
    for vma in vmas.iter().filter(could_hold) {
        match ranges.last_mut() {
            Some(last) if last.end == vma.range.start => last.end = vma.range.end,
            _ => ranges.push(vma.range),
        }
    }
    ranges
}
