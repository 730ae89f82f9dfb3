//! A native image that a packer has unpacked. No file gives the address of its heap. Its version string is in its data.
//! The view of an isolate is a copy of the image heap as linked, because there is no file to map it from. So each of
//! the two identifies the other:
//!
//! ```text
//! segments of the image:   │ … .rodata │ .svm_heap … │ .eh_frame_hdr … │       or a segment of its own
//!                                        ▲ equal page by page, but for objects that were written to
//! elsewhere, anonymous:    │ ---p │ view │
//! ```

use std::collections::HashSet;

use super::chunks::ChunkLayout;
use super::parse::{VERSION, version};
use plimsoll_facts::snapshot::{Backing, ImageHeapRange, NativeImage, Unpacked, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Limited, Memory, PAGE, Untouched};

/// How much of a segment is searched for the version, and for the start of the heap after other data.
const SEARCHED: u64 = 4 << 20;
/// Number of pages of the view that are compared with the heap as linked, spread evenly; this share must be equal.
const COMPARED: u64 = 64;
const EQUAL_OF_EIGHT: u64 = 6;
const HEADER: usize = 64;
/// Limit of reads. A mapping that begins like a view takes a thousand for each segment; a hostile process may have
/// thousands of such mappings.
const MOST_READS: u32 = 1 << 20;

/// None: the program isn't a native image.
pub fn find<M: Memory>(memory: &M, program: &Unpacked, vmas: &[Vma]) -> Option<NativeImage> {
    let untouched = Untouched::new(memory);
    let memory = Limited::new(&untouched, MOST_READS);
    let data = program.segments.iter().filter(|segment| segment.writable);
    let version = data.into_iter().find_map(|segment| {
        let mut bytes = vec![0; segment.range.length().0.min(SEARCHED) as usize];
        // The last page of a segment may be unmapped, after its zeros.
        memory.read(segment.range.start, &mut bytes).then_some(())?;
        memchr::memmem::find(&bytes, VERSION).map(|at| version(&bytes[at..]))
    })?;
    let mut image = NativeImage { version, ..NativeImage::default() };
    let mut known = HashSet::new();
    for (index, vma) in vmas.iter().enumerate().filter(|(_, vma)| is_view(vma, program)) {
        let Some((linked, length)) = copied_from(&memory, program, &vmas[index..], vma.range.start) else { continue };
        let linked = AddressRange::sized(linked, length);
        if known.insert(linked) {
            image.image_heap.push(ImageHeapRange { range: linked, view: false });
        }
        let view = AddressRange::sized(vma.range.start, length);
        image.image_heap.push(ImageHeapRange { range: view, view: true });
        // In a hostile process, each of thousands of adjacent mappings may look like a view. Together they are one
        // isolate.
        if image.isolates.last().is_none_or(|last| !last.reservation.contains(view.start)) {
            super::parse::add_isolate(&mut image, view, vmas);
        }
    }
    image.heap_chunks.sort_unstable();
    Some(image)
}

fn is_view(vma: &Vma, program: &Unpacked) -> bool {
    let memory = vma.backing == Backing::Anonymous && vma.name.is_empty() && !vma.shared && vma.readable;
    memory && vma.rss > Bytes(0) && !program.segments.iter().any(|segment| segment.range.overlaps(vma.range))
}

/// Address of the heap as linked that `view` is a copy of, and its length.
fn copied_from<M: Memory>(memory: &M, program: &Unpacked, from: &[Vma], view: Avma) -> Option<(Avma, Bytes)> {
    let mut header = [0; HEADER];
    memory.read(view, &mut header).then_some(())?;
    ChunkLayout::of(&header)?;
    program.segments.iter().filter(|segment| !segment.executable).find_map(|segment| {
        let last = segment.range.length().0.min(SEARCHED) / PAGE;
        let is_like = |at: &Avma| {
            let mut there = [0; HEADER];
            memory.read(*at, &mut there) && there == header
        };
        let linked = (0..last).map(|page| Avma(segment.range.start.0 + page * PAGE)).find(is_like)?;
        let frames = program.frame_header.filter(|at| *at > linked && segment.range.contains(*at));
        let end = frames.map_or(segment.range.end, |at| Avma(at.0 - at.0 % PAGE));
        let length = AddressRange::new(linked, end).length();
        let length = length.min(run(from, view, length));
        are_equal(memory, linked, view, length).then_some((linked, length))
    })
}

/// Length of the memory at `view`, if it is less than `longest`. The view's protection varies with the contents of the
/// image heap, so it has several mappings without a hole.
fn run(from: &[Vma], view: Avma, longest: Bytes) -> Bytes {
    let mut end = view;
    for vma in from.iter().take_while(|vma| vma.backing == Backing::Anonymous && !vma.shared && !vma.inaccessible()) {
        if vma.range.start != end || AddressRange::new(view, end).length() >= longest {
            break;
        }
        end = vma.range.end;
    }
    AddressRange::new(view, end).length()
}

fn are_equal<M: Memory>(memory: &M, one: Avma, other: Avma, length: Bytes) -> bool {
    let pages = length.0 / PAGE;
    let step = pages.div_ceil(COMPARED).max(1);
    let (mut compared, mut equal) = (0, 0);
    for page in (0..pages).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let page_of = |start: Avma| {
            let mut bytes = vec![0; PAGE as usize];
            memory.read(start.offset(Bytes(page * PAGE)), &mut bytes).then_some(bytes)
        };
        compared += 1;
        equal += u64::from(page_of(one).is_some_and(|bytes| Some(bytes) == page_of(other)));
    }
    compared > 0 && equal * 8 >= compared * EQUAL_OF_EIGHT
}

#[cfg(test)]
mod tests {
    use super::super::chunks::tests::{Image, header, memory};
    use super::*;
    use crate::source::made_image::Counted;
    use plimsoll_facts::snapshot::UnpackedSegment;

    const BASE: u64 = 0x7f00_0000_0000;
    const RESERVED: u64 = 0x7e00_0000_0000;
    const RODATA: u64 = 3 * PAGE;
    const CHUNK: u64 = 64 << 10;
    const HEAP: u64 = 8 * CHUNK;

    /// Headers, code, read-only data with the image heap and frames after it, data. Then 64 KiB without access, and a
    /// view with `changed` modified pages.
    fn process(changed: u64) -> (Image, Unpacked, Vec<Vma>) {
        let mut heap = header(2, CHUNK, CHUNK, CHUNK);
        heap.extend((1..HEAP / PAGE).flat_map(|page| vec![page as u8; PAGE as usize]));
        let mut view = heap.clone();
        for page in 1..=changed {
            view[(page * PAGE) as usize] = 0xee;
        }
        let mut rodata = vec![1; RODATA as usize];
        rodata.extend(&heap);
        rodata.extend(vec![2; 2 * PAGE as usize]);
        let mut data = vec![0; PAGE as usize];
        data[100..140].copy_from_slice(b"com.oracle.svm.core.VM=GraalVM CE 21.0.2");
        let length = rodata.len() as u64;
        let segment = |start, length, writable, executable| UnpackedSegment {
            range: AddressRange::sized(Avma(start), Bytes(length)),
            writable,
            executable,
        };
        let program = Unpacked {
            segments: vec![
                segment(BASE, PAGE, false, false),
                segment(BASE + PAGE, PAGE, false, true),
                segment(BASE + 2 * PAGE, length, false, false),
                segment(BASE + 2 * PAGE + length, PAGE, true, false),
            ],
            frame_header: Some(Avma(BASE + 2 * PAGE + RODATA + HEAP + 8)),
        };
        let image = Image(vec![
            (RESERVED + CHUNK, view),
            (BASE, vec![3; 2 * PAGE as usize]),
            (BASE + 2 * PAGE, rodata),
            (BASE + 2 * PAGE + length, data),
        ]);
        let base = Vma { readable: false, writable: false, rss: Bytes(0), ..memory(RESERVED, RESERVED + CHUNK) };
        let mut vmas = vec![base, memory(RESERVED + CHUNK, RESERVED + CHUNK + HEAP)];
        vmas.push(memory(BASE, BASE + 3 * PAGE + length));
        (image, program, vmas)
    }

    #[test]
    fn the_heap_as_linked_and_its_view_identify_each_other() {
        let (image, program, vmas) = process(5);
        let found = find(&image, &program, &vmas).expect("an image");
        let range = |start| AddressRange::sized(Avma(start), Bytes(HEAP));
        assert_eq!(found.version, "GraalVM CE 21.0.2");
        assert_eq!(
            found.image_heap,
            [
                ImageHeapRange { range: range(BASE + 2 * PAGE + RODATA), view: false },
                ImageHeapRange { range: range(RESERVED + CHUNK), view: true },
            ]
        );
        assert_eq!(found.isolates[0].heap_base, Avma(RESERVED));
    }

    #[test]
    fn memory_that_only_begins_like_the_heap_is_not_a_view() {
        let (image, program, vmas) = process(HEAP / PAGE - 1);
        let found = find(&image, &program, &vmas).expect("an image");
        assert!(found.image_heap.is_empty());
    }

    #[test]
    fn the_search_ends_among_thousands_of_mappings_that_begin_like_a_view() {
        const OTHERS: u64 = RESERVED + (1 << 36);
        let (mut image, program, mut vmas) = process(0);
        image.0.push((OTHERS, header(2, 2 * CHUNK, 2 * CHUNK, 2 * CHUNK)));
        vmas.extend(vec![memory(OTHERS, OTHERS + PAGE); 20_000]);
        let image = Counted::new(image);
        let found = find(&image, &program, &vmas).expect("an image");
        assert_eq!(found.isolates.len(), 1);
        let most = MOST_READS as usize;
        assert!((most / 2..=most).contains(&image.reads.get()), "{} reads", image.reads.get());
    }

    /// If each mapping were an isolate with all memory after it as chunks, the chunks would grow with the square of the
    /// mappings.
    #[test]
    fn thousands_of_adjacent_mappings_that_are_views_are_one_isolate() {
        const OTHERS: u64 = RESERVED + (1 << 36);
        const COUNT: u64 = 20_000;
        let (mut image, mut program, mut vmas) = process(0);
        // A heap of one page.
        program.frame_header = Some(Avma(BASE + 2 * PAGE + RODATA + PAGE + 8));
        let copies = header(2, CHUNK, CHUNK, CHUNK).repeat(COUNT as usize);
        image.0.push((OTHERS, copies));
        let last = vmas.pop().expect("the program");
        vmas.extend((0..COUNT).map(|page| memory(OTHERS + page * PAGE, OTHERS + (page + 1) * PAGE)));
        vmas.push(last);
        let found = find(&image, &program, &vmas).expect("an image");
        assert_eq!(found.image_heap.iter().filter(|heap| heap.view).count() as u64, 1 + COUNT);
        assert_eq!((found.isolates.len(), found.heap_chunks.len() as u64), (2, COUNT - 1));
    }

    #[test]
    fn a_program_without_the_version_is_not_an_image() {
        let (mut image, program, vmas) = process(0);
        image.0.last_mut().expect("data").1[100] = b'x';
        assert!(find(&image, &program, &vmas).is_none());
    }
}
