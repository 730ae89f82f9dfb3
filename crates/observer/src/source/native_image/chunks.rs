//! Finds heap chunks outside a reservation. Images without one (before 22.2, or built without isolates' address spaces)
//! map each chunk separately, and the kernel merges it with its neighbours. A chunk begins with a header
//! (`HeapChunk.Header` of com.oracle.svm.core.genscavenge), 64 bit, n words before `next`:
//!
//! ```text
//! 0     end        offset of its end: an aligned chunk's size, or where the one object of an unaligned chunk ends
//! …                identity hash salt, from 22.3 on
//! n     next       offset to the next chunk of its space, or 0
//! n + 1 previous   likewise
//! n + 2 space
//! n + 3 top        offset of the first free byte; −address while the chunk is a thread's allocation buffer
//! ```
//!
//! n and the size of aligned chunks are not assumed but learnt from the image heap. It also consists of such chunks,
//! and in its first chunk the next one follows directly, so that `next` = `end`. (Few versions keep `previous`, so it
//! proves nothing.)

use crate::source::glibc::overlapping;
use plimsoll_facts::snapshot::{Backing, NativeImage, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, Untouched, word_at};

/// Words of a header in the largest layout.
pub(super) const HEADER: usize = 8 * 8;
const ALIGNED: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
/// Smaller arrays lie in aligned chunks (`LargeArrayThreshold`, 128 KiB).
const LEAST_UNALIGNED: u64 = 32 << 10;
/// Maximum number of pages checked: 4 GiB without a chunk. Pages inside chunks aren't checked.
const MOST_PAGES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLayout {
    /// Size of aligned chunks, and their alignment.
    size: u64,
    /// Index of the word `next`.
    next: usize,
}

impl ChunkLayout {
    /// Learnt from the header at the start of the image heap.
    pub fn of(header: &[u8]) -> Option<ChunkLayout> {
        let size = word_at(header, 0)?;
        (size.is_power_of_two() && ALIGNED.contains(&size)).then_some(())?;
        let next = (1..=2).find(|word| word_at(header, word * 8) == Some(size))?;
        Some(ChunkLayout { size, next })
    }

    /// Length of the chunk at `at` with these first bytes, if it is one.
    fn length(self, header: &[u8], at: u64) -> Option<u64> {
        let word = |number: usize| word_at(header, number * 8);
        let (end, next, previous, top) = (word(0)?, word(self.next)?, word(self.next + 1)?, word(self.next + 3)?);
        let begin = (self.next as u64 + 4) * 8;
        let is_buffer = top == 0u64.wrapping_sub(at);
        let aligned = end == self.size && at.is_multiple_of(self.size) && (is_buffer || (begin..=end).contains(&top));
        let unaligned = end >= LEAST_UNALIGNED && end.is_multiple_of(8) && top == end;
        let links = next.is_multiple_of(PAGE) && previous.is_multiple_of(PAGE);
        (links && (aligned || unaligned)).then(|| end.checked_next_multiple_of(PAGE))?
    }
}

/// Why chunks are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// Neither the image's file nor its heap shows how chunks are laid out.
    Layout,
    /// The search had to stop early.
    TooMuch,
}

/// Adds the chunks that have their own mappings or lie beside other memory. `layout`: as the image's file has it. In
/// memory, the kernel may have taken back the page of the first header, which is clean.
pub fn find<M: Memory>(
    memory: &M,
    image: &mut NativeImage,
    vmas: &[Vma],
    layout: Option<ChunkLayout>,
) -> Result<(), NotFound> {
    let untouched = Untouched::new(memory);
    let mut header = [0; HEADER];
    let mut of_memory = || {
        let mut starts = image.image_heap.iter().map(|heap| heap.range.start);
        starts.find_map(|start| untouched.read(start, &mut header).then(|| ChunkLayout::of(&header)).flatten())
    };
    let shape = layout.or_else(&mut of_memory).ok_or(NotFound::Layout)?;
    let heaps = image.image_heap.iter().map(|heap| heap.range);
    let known = merged(heaps.chain(image.isolates.iter().map(|one| one.reservation)).collect());
    let may_hold = |vma: &&Vma| {
        let memory = vma.backing == Backing::Anonymous && vma.name.is_empty() && !vma.shared;
        memory && vma.readable && vma.writable && vma.rss > Bytes(0)
    };
    let mut pages = PageStates::new(memory);
    let mut budget = MOST_PAGES;
    for vma in vmas.iter().filter(may_hold).filter(|vma| overlapping(&known, vma.range).is_empty()) {
        let mut at = vma.range.start.0;
        while at < vma.range.end.0 {
            if budget == 0 {
                return Err(NotFound::TooMuch);
            }
            budget -= 1;
            let chunk = || {
                memory.read(Avma(at), &mut header).then_some(())?;
                let length = shape.length(&header, at)?;
                let next = word_at(&header, shape.next * 8)?;
                let leads_to_one = || {
                    let target = Avma(at.wrapping_add(next));
                    let mut next = [0; HEADER];
                    untouched.read(target, &mut next) && shape.length(&next, target.0).is_some()
                };
                let fits = at.checked_add(length).is_some_and(|end| end <= vma.range.end.0);
                (fits && (next == 0 || leads_to_one())).then_some(length)
            };
            // An untouched page has no header, and reading it would make the kernel map it.
            let found = (pages.of(at / PAGE) == PageState::Present).then(chunk).flatten();
            if let Some(length) = found {
                match image.heap_chunks.last_mut() {
                    Some(last) if last.end.0 == at => last.end = Avma(at + length),
                    _ => image.heap_chunks.push(AddressRange::sized(Avma(at), Bytes(length))),
                }
            }
            at += found.unwrap_or(PAGE);
        }
    }
    image.heap_chunks.sort_unstable();
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::random::Random;
    use plimsoll_facts::snapshot::ImageHeapRange;

    /// Memory made of pieces at page boundaries; nothing between them was touched.
    #[derive(Default)]
    pub(crate) struct Image(pub Vec<(u64, Vec<u8>)>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            into.fill(0);
            for (start, bytes) in &self.0 {
                let from = at.0.max(*start);
                let end = (at.0 + into.len() as u64).min(start + bytes.len() as u64);
                if from < end {
                    let piece = &bytes[(from - start) as usize..(end - start) as usize];
                    into[(from - at.0) as usize..(end - at.0) as usize].copy_from_slice(piece);
                }
            }
            true
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            for (page, word) in (first..).zip(into) {
                let present =
                    |(start, bytes): &(u64, Vec<u8>)| (*start..start + bytes.len() as u64).contains(&(page * PAGE));
                *word = if self.0.iter().any(present) { 1 << 63 } else { 0 };
            }
            true
        }
    }

    pub(crate) fn memory(start: u64, end: u64) -> Vma {
        Vma {
            range: AddressRange::new(Avma(start), Avma(end)),
            readable: true,
            writable: true,
            rss: Bytes(PAGE),
            ..Vma::default()
        }
    }

    /// A header with `next` as word `n`.
    pub(crate) fn header(n: usize, end: u64, next: u64, top: u64) -> Vec<u8> {
        let mut words = [0u64; PAGE as usize / 8];
        words[0] = end;
        words[n] = next;
        words[n + 3] = top;
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    const VIEW: u64 = 0x7f10_0000_0000;
    const HEAP: u64 = 0x7f00_0000_0000;

    #[test]
    fn chunks_among_other_memory_are_found_and_nothing_else() {
        let (mut random, mut aligned, mut unaligned, mut others) = (Random(11), 0, 0, 0);
        for round in 0..60 {
            let (n, size) = (1 + round % 2, [512 << 10, 1 << 20][round / 2 % 2]);
            let mut image = Image(vec![(VIEW, header(n, size, size, size))]);
            let mut expected: Vec<AddressRange> = Vec::new();
            let mut at = HEAP;
            for _ in 0..1 + random.below(12) {
                let length = match random.below(3) {
                    0 => {
                        let next = at.next_multiple_of(size);
                        let top = match random.below(2) {
                            0 => size - 8 * random.below(1000),
                            _ => 0u64.wrapping_sub(next),
                        };
                        at = next;
                        aligned += 1;
                        image.0.push((at, header(n, size, 0, top)));
                        size
                    }
                    1 => {
                        let end = (128 << 10) + 8 * random.below(40_000);
                        unaligned += 1;
                        image.0.push((at, header(n, end, 0, end)));
                        end.next_multiple_of(PAGE)
                    }
                    _ => {
                        // Other pages: a malloc'ed block, a header with a wrong pointer, a length that doesn't fit.
                        let bytes = match random.below(3) {
                            0 => header(n, 0, 0x21002, 0),
                            1 => header(n, 256 << 10, 0x7000_0000, 256 << 10),
                            _ => header(n, 1 << 40, 0, 1 << 40),
                        };
                        others += 1;
                        image.0.push((at, bytes));
                        at += PAGE * (1 + random.below(4));
                        continue;
                    }
                };
                match expected.last_mut() {
                    Some(last) if last.end.0 == at => last.end = Avma(at + length),
                    _ => expected.push(AddressRange::sized(Avma(at), Bytes(length))),
                }
                at += length;
            }
            let view = AddressRange::sized(Avma(VIEW), Bytes(4 * size));
            let mut native =
                NativeImage { image_heap: vec![ImageHeapRange { range: view, view: true }], ..NativeImage::default() };
            assert_eq!(find(&image, &mut native, &[memory(HEAP, at), memory(VIEW, view.end.0)], None), Ok(()));
            assert_eq!(native.heap_chunks, expected);
        }
        assert!(aligned > 50 && unaligned > 50 && others > 50, "{aligned} {unaligned} {others}");
    }

    #[test]
    fn a_chunk_leads_to_a_chunk() {
        let size = 1 << 20;
        let of = |next: u64, there: Vec<u8>| {
            let first = (HEAP, header(1, size, next, size));
            let image = Image(vec![(VIEW, header(1, size, size, size)), first, (HEAP + next, there)]);
            let range = AddressRange::sized(Avma(VIEW), Bytes(4 * size));
            let mut native =
                NativeImage { image_heap: vec![ImageHeapRange { range, view: true }], ..NativeImage::default() };
            assert_eq!(find(&image, &mut native, &[memory(HEAP, HEAP + 8 * size)], None), Ok(()));
            native.heap_chunks.iter().map(|range| range.length().0 / size).collect::<Vec<_>>()
        };
        assert_eq!(of(2 * size, header(1, size, 0, 100 << 10)), [1, 1]);
        assert_eq!(of(2 * size, header(1, 0, 0, 0)), Vec::<u64>::new());
    }

    /// The kernel has taken back the page of the view's first header: nothing of the view is in memory.
    #[test]
    fn the_layout_of_the_file_serves_where_the_first_header_is_not_in_memory() {
        let size = 1 << 20;
        let image = Image(vec![(HEAP, header(1, size, 0, 100 << 10))]);
        let range = AddressRange::sized(Avma(VIEW), Bytes(4 * size));
        let chunks = |layout| {
            let image_heap = vec![ImageHeapRange { range, view: true }];
            let mut native = NativeImage { image_heap, ..NativeImage::default() };
            let found = find(&image, &mut native, &[memory(HEAP, HEAP + size)], layout);
            (found, native.heap_chunks.len())
        };
        assert_eq!(chunks(ChunkLayout::of(&header(1, size, size, size))), (Ok(()), 1));
        assert_eq!(chunks(None), (Err(NotFound::Layout), 0));
    }
}
