//! V8's heap: pages of 256 KiB, aligned to that, and larger ones for large objects, each taken from the kernel by itself.
//! The mappings have no name; but a page begins with a header whose fields determine each other (src/heap/memory-chunk-layout.h,
//! V8 8 to 12, 64 bit):
//!
//! ```text
//! 0 size     8 flags     16 heap, the same in all pages of an isolate     24 area's start     32 area's end
//!
//! page < area's start < area's end ≤ page + size, and both lie within 64 KiB of the page's own ends
//! ```
//!
//! Later versions keep these fields elsewhere: there no page is found, and what V8 holds stays an estimate.

use std::collections::HashMap;

use crate::snapshot::{AllocatorKind, Backing, LoadedAllocator, Vma};
use crate::source::memory::{Memory, PAGE, PageState, PageStates, word_at};
use crate::units::{AddressRange, Avma, Bytes};

const ALIGNMENT: u64 = 256 << 10;
const HEADER: usize = 40;
/// Guards and header lie between a page's ends and its area's.
const MARGIN: u64 = 64 << 10;
/// Headers looked at: 64 GiB of pages.
const MOST_HEADERS: usize = 1 << 18;
/// Some pages may look like one by chance.
const PAGES_AT_LEAST: usize = 4;

/// Ranges of the pages, or nothing where the process has no V8 or one of another layout.
pub fn find<M: Memory>(memory: &M, allocators: &[LoadedAllocator], vmas: &[Vma]) -> Vec<AddressRange> {
    if !allocators.iter().any(|known| known.kind == AllocatorKind::V8) {
        return Vec::new();
    }
    let mut states = PageStates::new(memory);
    let mut budget = MOST_HEADERS;
    let mut found = Vec::new();
    let could_hold = |vma: &&Vma| {
        vma.backing == Backing::Anonymous && vma.readable && !vma.shared && vma.name.is_empty() && vma.rss > Bytes(0)
    };
    for vma in vmas.iter().filter(could_hold) {
        let mut at = vma.range.start.0.next_multiple_of(ALIGNMENT);
        while budget > 0 && at < vma.range.end.0 {
            let mut size = ALIGNMENT;
            // An untouched page is no header, and reading it would make the kernel map one.
            if states.of(at / PAGE) == PageState::Present {
                budget -= 1;
                let mut header = [0; HEADER];
                if memory.read(Avma(at), &mut header)
                    && let Some((length, heap)) = parse(&header, at)
                {
                    size = length.next_multiple_of(ALIGNMENT);
                    found.push((heap, AddressRange::sized(Avma(at), Bytes(length))));
                }
            }
            at = at.saturating_add(size);
        }
    }
    let mut pages_of: HashMap<u64, usize> = HashMap::new();
    for (heap, _) in &found {
        *pages_of.entry(*heap).or_default() += 1;
    }
    let real = found.iter().filter(|(heap, _)| pages_of.get(heap).is_some_and(|count| *count >= PAGES_AT_LEAST));
    real.map(|(_, range)| *range).collect()
}

/// Size and heap of the page at `at` whose first bytes these are, if it is one.
fn parse(header: &[u8], at: u64) -> Option<(u64, u64)> {
    let word = |offset: usize| word_at(header, offset);
    let (size, heap, start, end) = (word(0)?, word(16)?, word(24)?, word(32)?);
    let last = at.checked_add(size)?;
    let holds = size.is_multiple_of(PAGE)
        && size >= MARGIN
        && heap != 0
        && heap.is_multiple_of(8)
        && (at + HEADER as u64..at + MARGIN).contains(&start)
        && start < end
        && (last - MARGIN..=last).contains(&end);
    holds.then_some((size, heap))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::mutated;

    const START: u64 = 0x2a_0000_0000;
    const HEAP: u64 = 0x7e3_eec0;

    /// Headers at multiples of the alignment; between them nothing was touched.
    struct Image(Vec<(u64, Vec<u8>)>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let found = self.0.iter().find(|(start, _)| *start == at.0);
            into.fill(0);
            for (into, byte) in into.iter_mut().zip(found.map(|(_, bytes)| bytes.as_slice()).unwrap_or_default()) {
                *into = *byte;
            }
            true
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            for (page, word) in (first..).zip(into) {
                *word = if self.0.iter().any(|(start, _)| *start == page * PAGE) { 1 << 63 } else { 0 };
            }
            true
        }
    }

    fn header(at: u64, size: u64, heap: u64) -> Vec<u8> {
        [size, 4, heap, at + 0x1148, at + size].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn node() -> [LoadedAllocator; 1] {
        [LoadedAllocator { kind: AllocatorKind::V8, path: "/usr/bin/node".into(), serves_malloc: false }]
    }

    fn vma(pages: u64) -> Vma {
        let range = AddressRange::sized(Avma(START), Bytes(pages * ALIGNMENT));
        Vma { range, readable: true, writable: true, rss: Bytes(PAGE), ..Vma::default() }
    }

    #[test]
    fn pages_of_a_heap_are_found_small_and_large() {
        let mut image = Image(Vec::new());
        let mut expected = Vec::new();
        let mut number = 0;
        for large in [false, true, false, false, true, false] {
            let size = if large { 3 * ALIGNMENT + 5 * PAGE } else { ALIGNMENT };
            let at = START + number * ALIGNMENT;
            image.0.push((at, header(at, size, HEAP)));
            expected.push(AddressRange::sized(Avma(at), Bytes(size)));
            number += size.div_ceil(ALIGNMENT) + u64::from(large);
        }
        // One page of a heap that has no other, and one that is none.
        let [alone, none] = [number, number + 1].map(|number| START + number * ALIGNMENT);
        image.0.push((alone, header(alone, ALIGNMENT, HEAP + 64)));
        image.0.push((none, header(none - ALIGNMENT, ALIGNMENT, HEAP)));
        assert_eq!(find(&image, &node(), &[vma(number + 2)]), expected);
        assert!(find(&image, &[], &[vma(number + 2)]).is_empty());
    }

    #[test]
    fn mutated_headers_never_panic() {
        let (mut some, mut none) = (0, 0);
        for bytes in mutated(&header(START, ALIGNMENT, HEAP), 20_000) {
            let mut whole = bytes;
            whole.resize(HEADER, 0);
            match parse(&whole, START) {
                Some(_) => some += 1,
                None => none += 1,
            }
        }
        assert!(some > 500 && none > 500, "{some} {none}");
    }
}
