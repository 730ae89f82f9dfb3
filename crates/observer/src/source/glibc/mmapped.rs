//! Finds blocks above the mmap threshold. Each has its own mmap, and starts with a chunk header whose only flag is
//! IS_MMAPPED. The kernel merges adjacent mappings, so one VMA may hold many blocks, and other mappings beside them. It
//! also splits a block's mapping if the program advises or protects a part (numpy requests huge pages after the first
//! page). libc counts the blocks (`mp_.n_mmaps`, `mp_.mmapped_mem`). The search ends when it has found that many bytes.

use super::layout::CHUNK_HEADER;
use plimsoll_facts::snapshot::{Backing, MmappedChunk, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};

const IS_MMAPPED: u64 = 2;
/// Limit of headers checked in the second pass, one per present page: 4 GiB of pages. And limit of pages whose state is
/// looked up there: 256 GiB of addresses, of which a process may reserve 128 TiB for nothing.
const MOST_PAGES: u64 = 1 << 20;
const MOST_LOOKS: u64 = 1 << 26;

/// Bytes at the end of the mapping that the size field leaves out: none, or a chunk header from glibc 2.43 on. That
/// header is there as if another chunk followed (malloc/malloc.c, `mmap_size`). The mapping consists of whole pages, so
/// only one of the two fits.
const LEFT_OUT: [u64; 2] = [0, CHUNK_HEADER];

/// The chunk whose mapping starts at the page `start` and ends at `end` or before. If memalign moved it away from the
/// page's start, its `prev_size` is the distance (malloc/malloc.c, `_int_memalign`).
fn chunk_at<M: Memory>(memory: &M, pages: &mut PageStates<'_, M>, start: u64, end: u64) -> Option<AddressRange> {
    let mut page = [0; PAGE as usize];
    let whole = start + PAGE <= end && pages.of(start / PAGE) != PageState::Absent;
    (whole && memory.read(Avma(start), &mut page)).then_some(())?;
    chunk_in(&page, start, end)
}

/// Like `chunk_at`, in a page that was already read.
fn chunk_in(page: &[u8], start: u64, end: u64) -> Option<AddressRange> {
    (4..=12).map(|power| if power == 4 { 0 } else { (1u64 << power) - 16 }).find_map(|shift| {
        let before = word_at(page, shift as usize)?;
        let field = word_at(page, shift as usize + 8)?;
        let covered = (field & !7).checked_add(shift)?;
        let whole = |left_out| covered.checked_add(left_out).filter(|size: &u64| size.is_multiple_of(PAGE));
        let size = LEFT_OUT.into_iter().find_map(whole)?;
        let fits = before == shift && field & 7 == IS_MMAPPED && size >= PAGE && size <= end - start;
        fits.then(|| AddressRange::sized(Avma(start), Bytes(size)))
    })
}

/// Pages read together. Only present pages: reading an untouched page would map the zero page into the target.
struct Run {
    start: u64,
    bytes: Vec<u8>,
}

impl Run {
    const LONGEST: u64 = 64 * PAGE;

    fn holds(&self, page: u64) -> bool {
        self.start <= page && page + PAGE <= self.start + self.bytes.len() as u64
    }

    fn page(&self, at: u64) -> Option<&[u8]> {
        let offset = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes.get(offset..offset + PAGE as usize)
    }

    /// Reads from the present page `at` on, as long as pages are present; empty if they can't be read.
    fn read<M: Memory>(&mut self, memory: &M, pages: &mut PageStates<'_, M>, at: u64, end: u64) {
        let mut to = at;
        while to + PAGE <= end && to - at < Self::LONGEST && pages.of(to / PAGE) == PageState::Present {
            to += PAGE;
        }
        self.start = at;
        self.bytes.resize((to - at) as usize, 0);
        if !memory.read(Avma(at), &mut self.bytes) {
            self.bytes.clear();
        }
    }
}

fn could_hold(vma: &Vma) -> bool {
    vma.readable && vma.writable && !vma.shared && vma.backing == Backing::Anonymous && !vma.untouched()
}

/// Private anonymous mappings, joined if adjacent: a block that starts in a joined range also ends there.
pub(crate) fn stretches(vmas: &[Vma]) -> Vec<AddressRange> {
    let mut joined: Vec<AddressRange> = Vec::new();
    for vma in vmas.iter().filter(|vma| !vma.shared && vma.backing == Backing::Anonymous) {
        match joined.last_mut().filter(|last| last.end == vma.range.start) {
            Some(last) => last.end = vma.range.end,
            None => joined.push(vma.range),
        }
    }
    joined
}

/// End of the range in `stretches` that contains `at`.
pub(crate) fn reach(stretches: &[AddressRange], at: Avma) -> Avma {
    let index = stretches.partition_point(|stretch| stretch.end <= at);
    stretches.get(index).filter(|stretch| stretch.start <= at).map_or(at, |stretch| stretch.end)
}

/// The ranges (sorted, disjoint) that overlap `range`.
pub(crate) fn overlapping(ranges: &[AddressRange], range: AddressRange) -> &[AddressRange] {
    let behind = &ranges[ranges.partition_point(|one| one.end <= range.start)..];
    &behind[..behind.partition_point(|one| one.start < range.end)]
}

/// The parts of `range` outside `taken` (sorted, disjoint). A page that is partly taken counts as taken.
fn without(range: AddressRange, taken: &[AddressRange]) -> Vec<AddressRange> {
    let mut open = Vec::new();
    let mut from = range.start.0;
    for taken in overlapping(taken, range) {
        let to = taken.start.0 / PAGE * PAGE;
        if from < to {
            open.push(AddressRange::new(Avma(from), Avma(to)));
        }
        from = from.max(taken.end.0.next_multiple_of(PAGE));
    }
    if from < range.end.0 {
        open.push(AddressRange::new(Avma(from), range.end));
    }
    open
}

/// Finds the blocks in the anonymous mappings, up to `expected` bytes. Leaves out `elsewhere`: arenas, and regions that
/// a VM reports as its own. A VM's page may look like a chunk and would be counted instead of a real one.
pub(crate) fn find<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    vmas: &[Vma],
    elsewhere: &[AddressRange],
    expected: Bytes,
) -> Vec<MmappedChunk> {
    let mut found: Vec<MmappedChunk> = Vec::new();
    let mut bytes = Bytes(0);
    if expected.0 == 0 {
        return found;
    }
    let taken = merged(elsewhere.to_vec());
    let candidates: Vec<AddressRange> =
        vmas.iter().filter(|vma| could_hold(vma)).flat_map(|vma| without(vma.range, &taken)).collect();
    let open: Vec<AddressRange> = stretches(vmas).into_iter().flat_map(|stretch| without(stretch, &taken)).collect();

    // The first pass goes from the start of each mapping, chunk by chunk. The second pass searches the rest.
    let mut left = Vec::new();
    let mut at = 0;
    for vma in candidates {
        at = vma.start.0.max(at);
        let end = reach(&open, vma.start).0;
        while let Some(range) = chunk_at(memory, pages, at, end).filter(|range| bytes + range.length() <= expected) {
            found.push(MmappedChunk { range });
            bytes += range.length();
            at = range.end.0;
        }
        if at < vma.end.0 {
            left.push(AddressRange::new(Avma(at), vma.end));
        }
    }

    let firsts: Vec<u64> = found.iter().map(|chunk| chunk.range.start.0).collect();
    let (mut budget, mut looks) = (MOST_PAGES, MOST_LOOKS);
    let mut run = Run { start: 0, bytes: Vec::new() };
    let mut at = 0;
    for vma in left {
        at = vma.start.0.max(at);
        let next = firsts.get(firsts.partition_point(|first| *first < vma.start.0)).copied().unwrap_or(u64::MAX);
        let end = reach(&open, vma.start).0.min(next);
        while at < vma.end.0 && bytes < expected && budget > 0 && looks > 0 {
            looks -= 1;
            if pages.of(at / PAGE) != PageState::Present {
                at += PAGE;
                continue;
            }
            budget -= 1;
            if !run.holds(at) {
                run.read(memory, pages, at, vma.end.0);
            }
            let chunk = run.page(at).and_then(|page| chunk_in(page, at, end));
            match chunk.filter(|range| bytes + range.length() <= expected) {
                Some(range) => {
                    found.push(MmappedChunk { range });
                    bytes += range.length();
                    at = range.end.0;
                }
                None => at += PAGE,
            }
        }
    }
    found.sort_by_key(|chunk| chunk.range.start);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::source::made_image::{Image, Reserved};

    const START: u64 = 0x7000_0000_0000;

    fn anonymous(range: AddressRange, rss: u64) -> Vma {
        let vma = Vma { range, readable: true, writable: true, backing: Backing::Anonymous, ..Vma::default() };
        Vma { rss: Bytes(rss), anonymous: Bytes(rss), ..vma }
    }

    /// If libc counts more blocks than there are, the search ends long before it has looked at a terabyte of addresses.
    #[test]
    fn the_search_for_a_missing_block_ends() {
        let memory = Reserved::default();
        let vmas = [anonymous(AddressRange::sized(Avma(START), Bytes(1 << 40)), PAGE)];
        assert!(find(&memory, &mut PageStates::new(&memory), &vmas, &[], Bytes(PAGE)).is_empty());
        // 16,384 pages at a time.
        assert!((4096..4120).contains(&memory.looks.get()), "{}", memory.looks.get());
    }

    /// Each mapping is compared only with the taken ranges that overlap it. An array of pages gives the expected
    /// result.
    #[test]
    fn what_is_taken_is_left_out_and_only_what_overlaps_is_looked_at() {
        let mut random = Random(31);
        let (mut looks, mut all) = (0, 0);
        for _ in 0..500 {
            let mut range = |most: u64| {
                let start = random.below(1 << 18);
                AddressRange::sized(Avma(start), Bytes(random.below(most)))
            };
            let given: Vec<AddressRange> = (0..20).map(|_| range(1 << 15)).collect();
            let taken = merged(given.clone());
            let whole = range(1 << 18);
            let within = AddressRange::new(Avma(whole.start.0 / PAGE * PAGE), Avma((whole.end.0 / PAGE + 1) * PAGE));
            let open = without(within, &taken);
            for page in 0..1 << 8 {
                let page = AddressRange::sized(Avma(page * PAGE), Bytes(PAGE));
                let expected = within.covers(page) && !given.iter().any(|taken| taken.overlaps(page));
                assert_eq!(open.iter().any(|open| open.covers(page)), expected, "{page:?} of {within:?}, {given:?}");
            }
            let found = overlapping(&taken, within);
            assert!(found.iter().eq(taken.iter().filter(|taken| taken.overlaps(within))));
            (looks, all) = (looks + found.len(), all + taken.len());
        }
        assert!(looks > 500 && looks < all, "{looks} of {all}");
    }

    /// Three blocks in one mapping: by malloc (shift 0), by memalign to 512 bytes, and by malloc. In the layout before
    /// glibc 2.43, and in that from 2.43 on.
    #[test]
    fn size_fields_of_both_layouts_give_the_mapping() {
        for left_out in LEFT_OUT {
            let mut image = Image::default();
            let mut want = Vec::new();
            let mut at = START;
            for (pages, shift) in [(50, 0), (1, 496), (33, 0)] {
                let length = pages * PAGE;
                image.put(at + shift, shift);
                image.put(at + shift + 8, (length - shift - left_out) | IS_MMAPPED);
                want.push(MmappedChunk { range: AddressRange::sized(Avma(at), Bytes(length)) });
                at += length;
            }
            let vma = anonymous(AddressRange::new(Avma(START), Avma(at)), at - START);
            let found = find(&image, &mut PageStates::new(&image), &[vma], &[], Bytes(at - START));
            assert_eq!(found, want, "{left_out} bytes left out");
        }
    }
}
