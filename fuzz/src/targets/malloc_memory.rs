//! The walks of allocators and thread stacks over memory whose owner may have chosen every word.

use plimsoll_facts::snapshot::{OtherHeap, Snapshot, Thread, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::parsers::heap_data::{Anonymous, Data};
use plimsoll_observer::parsers::native_objects::block_cache;
use plimsoll_observer::parsers::{golang, jemalloc, mallocng, mimalloc, pymalloc, tcmalloc, v8};
use plimsoll_observer::source::glibc::{LibcData, NmtHeaders, WalkOptions, survey};
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::find_stacks;

use super::smaps::explained;
use crate::image::Image;

/// `glibc::read` reads 64 MiB of a process; an input must be cheaper.
const LARGEST_DATA: Bytes = Bytes::mib(4);

fn data_of(image: &Image, name: &str) -> Vec<Data> {
    let of = |vma: &&Vma| vma.writable && vma.name.ends_with(name) && vma.range.length() <= LARGEST_DATA;
    let data = image.vmas.iter().filter(of);
    data.map(|vma| Data { base: vma.range.start, bytes: image.bytes(vma.range) }).collect()
}

/// The heap of an allocator that replaces glibc's.
pub fn malloc_heap(image: &Image) -> Option<OtherHeap> {
    let anonymous = Anonymous::of(&image.vmas);
    let jemalloc = jemalloc::walk(image, &data_of(image, "libjemalloc.so.2"), &anonymous).ok();
    let tcmalloc = || tcmalloc::walk(image, &data_of(image, "libtcmalloc.so.4"), &anonymous).ok().map(|(heap, _)| heap);
    let mimalloc = || {
        let data = || data_of(image, "libmimalloc.so.2");
        mimalloc::walk(image, data, &anonymous, &anonymous).ok().map(|(heap, _)| heap)
    };
    // The heap of a static program with musl.
    let mallocng = || mallocng::walk(image, &data_of(image, "/app/image"), &anonymous).ok();
    jemalloc.or_else(tcmalloc).or_else(mimalloc).or_else(mallocng)
}

/// The heap of Go's runtime in the program.
pub fn go(image: &Image) -> Option<OtherHeap> {
    let mappings = golang::GoMappings {
        anonymous: Anonymous::of(&image.vmas),
        writable: Anonymous::of_writable(&image.vmas),
        named: Vec::new(),
    };
    golang::walk(image, &data_of(image, "/app/image"), &mappings).ok()
}

pub fn run(bytes: &[u8]) {
    let image = Image::parse(bytes);
    let libcs: Vec<LibcData> = (image.vmas.iter())
        .filter(|vma| vma.writable && vma.name.ends_with("libc.so.6") && vma.range.length() <= LARGEST_DATA)
        .map(|vma| LibcData { base: vma.range.start, bytes: image.bytes(vma.range) })
        .collect();
    let malloc_heap = malloc_heap(&image);
    let v8 = v8::walk(&image, &image.vmas).ok();
    let go = go(&image);
    for heap in malloc_heap.iter().chain(&v8).chain(&go) {
        let lengths: Bytes = heap.ranges.iter().map(|range| range.length()).sum();
        assert_eq!(heap.parts.values().map(|part| part.length).sum::<Bytes>(), lengths, "parts are not the heap");
        assert!(heap.ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "ranges touch or overlap");
    }
    let data: Vec<AddressRange> = image.vmas.iter().filter(|vma| !vma.name.is_empty()).map(|vma| vma.range).collect();
    for tagged in [None, Some(NmtHeaders::Whole), Some(NmtHeaders::SizeAndTag)] {
        image.reads.set(0);
        let pointing_at = if tagged.is_some() { data.as_slice() } else { &[] };
        let options = WalkOptions { tagged, pointing_at, ..WalkOptions::default() };
        let (glibc, _) = survey(&image, &libcs, &image.vmas, options);
        let mapped: u64 = image.vmas.iter().map(|vma| vma.range.length().0).sum();
        let most = 4096 + 64 * (mapped / 16 + bytes.len() as u64);
        assert!(image.reads.get() <= most, "{} reads of {mapped} mapped bytes", image.reads.get());
        // The reader may take any block for a cache of RocksDB.
        for block in glibc.iter().flat_map(|glibc| &glibc.objects).flat_map(|blocks| &blocks.some).take(4) {
            image.reads.set(0);
            block_cache(&image, *block);
            assert!(image.reads.get() <= 1 << 18, "{} reads for one cache", image.reads.get());
        }
        let mut threads: Vec<Thread> =
            (1..5).map(|tid| Thread { tid, namespaced_tid: tid, ..Thread::default() }).collect();
        let deadline = Deadline::after(LOOK);
        let idle_stacks = find_stacks(&image, &image.vmas, &mut threads, deadline, &mut Vec::new());
        let snapshot = Snapshot {
            v8: v8.clone(),
            pymalloc: pymalloc::find(&image, &image.vmas).0,
            vmas: image.vmas.clone(),
            idle_stacks,
            threads,
            glibc,
            malloc_heap: malloc_heap.clone(),
            go: go.clone(),
            ..Snapshot::default()
        };
        let ledger = Ledger::of(&snapshot);
        let lines: u64 = ledger.lines.iter().map(|line| line.resident.0).sum();
        assert_eq!(Bytes(lines + ledger.remainder.0), ledger.rss, "lines and remainder are not RSS");
        explained(snapshot);
    }
}
