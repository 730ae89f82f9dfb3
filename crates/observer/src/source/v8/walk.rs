//! Sums over all pages, with the resident bytes of each.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::buffers;
use super::layout::{self, ALIGNMENT, Candidate, Chunks, Layout, Spaces, Words, read_words};
use crate::source::heap_data::{Anonymous, joined, words};
use plimsoll_facts::snapshot::{AllocatorKind, Backing, HeapPart, OtherHeap, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates, Untouched};

/// Limit of headers that are read: 64 GiB of pages.
const MOST_HEADERS: usize = 1 << 18;
/// Upper bound of an isolate's size. The heap is a part of its isolate.
const ISOLATE: u64 = 64 << 10;
/// Bytes that are searched in a heap, and in an allocator that the heap points at.
const HEAP: u64 = 16 << 10;
const ALLOCATOR: u64 = 4 << 10;
/// Flags of pages in the two halves of the young generation (kFromPage, kToPage).
const YOUNG: u64 = 8 | 16;
/// Index of the word in a space's record that states its committed bytes.
const COMMITTED: usize = 3;
/// One in this many bytes may have changed between the first page and the last, because the target keeps running.
const MOVED: u64 = 32;

/// Why the heap can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    NoPages,
    OtherSums,
    Unreadable,
}

impl WalkError {
    pub const fn reason(self) -> &'static str {
        match self {
            WalkError::NoPages => "no pages whose records share one layout were found",
            WalkError::OtherSums => "the sizes of its pages don't add up to what its spaces state",
            WalkError::Unreadable => "its records can't be read",
        }
    }
}

struct Page {
    range: AddressRange,
    node: u64,
    next: u64,
    heap: u64,
    owner: u64,
    start: u64,
    end: u64,
    allocated: u64,
    kind: PageKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Young,
    /// A young page with one large object.
    LargeYoung,
    Old,
    Large,
    Code,
    ReadOnly,
    /// It belongs to no space any more, but is still mapped.
    Released,
}

pub fn walk<M: Memory>(memory: &M, vmas: &[Vma]) -> Result<OtherHeap, WalkError> {
    let untouched = Untouched::new(memory);
    let chunks = || Chunks::new(memory, could_hold(vmas), MOST_HEADERS);
    let behind = |(at, chunk): (u64, Words)| {
        let record = chunk[1].is_multiple_of(8).then(|| read_words(&untouched, chunk[1]))??;
        Some(Candidate { at, chunk: [chunk[0], chunk[1]], record })
    };
    let inside = |(at, record): (u64, Words)| Some(Candidate { at, chunk: [record[0], record[1]], record });
    let found = layout::find(memory, false, chunks().filter_map(inside))
        .or_else(|| layout::find(memory, true, chunks().filter_map(behind)));
    let layout = found.ok_or(WalkError::NoPages)?;
    let candidate = |chunk| if layout.behind { behind(chunk) } else { inside(chunk) };
    let pages = pages(&layout, chunks(), vmas, candidate);
    let mut spaces = Spaces { memory: &untouched, known: HashMap::new() };
    if !is_proven(&pages, &mut spaces) {
        return Err(WalkError::OtherSums);
    }
    let heaps = heaps(&pages);
    let tops = Tops::of(&pages, &heaps, &untouched);
    let heap = heap_of(memory, &pages, &tops)?;
    let (buffers, buffers_at_pages) = buffers::of(memory, heaps).unzip();
    Ok(OtherHeap { buffers, buffers_at_pages: buffers_at_pages.unwrap_or_default(), ..heap })
}

fn could_hold(vmas: &[Vma]) -> Vec<AddressRange> {
    let holds = |vma: &&Vma| {
        vma.backing == Backing::Anonymous && vma.readable && !vma.shared && vma.name.is_empty() && vma.rss > Bytes(0)
    };
    joined(vmas.iter().filter(holds).map(|vma| vma.range))
}

fn pages<M: Memory>(
    layout: &Layout,
    mut chunks: Chunks<'_, M>,
    vmas: &[Vma],
    candidate: impl Fn((u64, Words)) -> Option<Candidate>,
) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    let anonymous = Anonymous::of(vmas);
    while let Some(chunk) = chunks.next() {
        let Some(found) = candidate(chunk) else { continue };
        let Some((size, start, end)) = layout.area(&found) else { continue };
        let record = &found.record;
        let allocated = record[layout.allocated];
        let at = vmas.partition_point(|vma| vma.range.end.0 <= found.at);
        let Some(vma) = vmas.get(at) else { continue };
        if !anonymous.holds(found.at, size) {
            continue;
        }
        let (owner, heap) = (record[layout.owner], record[layout.heap]);
        // The page of a large object holds nothing else, so its high-water mark stays at the start of the area.
        let is_large = size != ALIGNMENT && allocated > 0 && record[layout.allocated + 2] == start - found.at;
        let flags = layout.flags(&found);
        let kind = match () {
            () if owner == 0 && !vma.writable => PageKind::ReadOnly,
            () if owner == 0 => PageKind::Released,
            () if flags & YOUNG != 0 && is_large => PageKind::LargeYoung,
            () if flags & YOUNG != 0 => PageKind::Young,
            // Up to V8 12, a code page isn't executable while V8 writes to it. But a guard lies between the end of its
            // area and the end of the page.
            () if vma.executable || found.at + size - end >= PAGE => PageKind::Code,
            () if is_large => PageKind::Large,
            () => PageKind::Old,
        };
        let range = AddressRange::sized(Avma(found.at), Bytes(size));
        chunks.skip_to(range.end.0);
        let (node, next) = (found.node(layout.behind), layout.next.map(|next| record[next]).unwrap_or_default());
        pages.push(Page { range, node, next, heap, owner, start, end, allocated, kind });
    }
    pages
}

/// Whether the sizes of all pages of a space sum to what the space states, for nearly all bytes. A page whose space has
/// another heap counts as wrong.
fn is_proven<M: Memory>(pages: &[Page], spaces: &mut Spaces<'_, M>) -> bool {
    let mut sums: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for page in pages.iter().filter(|page| page.owner != 0) {
        let sum = sums.entry((page.owner, page.heap)).or_default();
        *sum = sum.saturating_add(page.range.length().0);
    }
    let (mut all, mut wrong) = (0u64, 0u64);
    for ((owner, heap), sum) in sums {
        let stated = spaces.at(owner).filter(|space| space[1] == heap).map(|space| space[COMMITTED]);
        all = all.saturating_add(sum);
        wrong = wrong.saturating_add(stated.map_or(sum, |stated| stated.abs_diff(sum)));
    }
    all > 0 && wrong <= all / MOVED
}

/// The heaps, one for each isolate.
fn heaps(pages: &[Page]) -> Vec<u64> {
    let mut heaps: Vec<u64> = pages.iter().filter(|page| page.owner != 0).map(|page| page.heap).collect();
    heaps.sort_unstable();
    heaps.dedup();
    heaps.retain(|heap| heap.is_multiple_of(8) && *heap > ISOLATE);
    heaps
}

/// The positions of the next objects.
#[derive(Default)]
struct Tops {
    /// Bytes of objects by page. A young page that is missing here has none.
    young: HashMap<u64, u64>,
    /// Heaps whose young page in use was found.
    known: HashSet<u64>,
    /// By page: bytes that V8 counts as allocated but that are still free.
    free: HashMap<u64, u64>,
}

impl Tops {
    fn of<M: Memory>(pages: &[Page], heaps: &[u64], memory: &Untouched<'_, M>) -> Tops {
        let mut tops = Tops::default();
        let before = before(pages);
        for heap in heaps.iter().copied() {
            // The young generation's area lies in the isolate, before its heap.
            let isolate: Vec<Area<'_>> =
                read(memory, heap - ISOLATE, ISOLATE).map(|words| areas(pages, heap, &words)).unwrap_or_default();
            if let Some(area) = isolate.iter().find(|area| area.page.kind == PageKind::Young) {
                tops.known.insert(heap);
                tops.young.insert(area.page.node, area.top - area.page.start);
                tops.fill_before(&before, area.page);
            }
            // Each old space has one too: in the isolate, in the heap, or in an allocator that the heap points at.
            let within = read(memory, heap, HEAP).unwrap_or_default();
            let is_pointer = |word: &&u64| word.is_multiple_of(8) && (PAGE..1 << 47).contains(*word);
            let mut pointers: Vec<u64> = within.iter().filter(is_pointer).copied().collect();
            pointers.sort_unstable();
            pointers.dedup();
            let pointed = pointers.iter().filter_map(|at| read(memory, *at, ALLOCATOR));
            let pointed: Vec<Area<'_>> = pointed.flat_map(|words| areas(pages, heap, &words)).collect();
            // Keyed by limit, because there may be older copies of the same area.
            let mut free: HashMap<u64, (u64, u64)> = HashMap::new();
            for area in isolate.into_iter().chain(areas(pages, heap, &within)).chain(pointed) {
                if matches!(area.page.kind, PageKind::Old | PageKind::Code) {
                    let known = free.entry(area.limit).or_insert((area.page.node, area.limit - area.top));
                    known.1 = known.1.min(area.limit - area.top);
                }
            }
            for (page, bytes) in free.into_values() {
                *tops.free.entry(page).or_default() += bytes;
            }
        }
        tops
    }

    /// Marks the pages before the one in use as full.
    fn fill_before(&mut self, before: &Before<'_>, current: &Page) {
        let mut node = current.node;
        // If a list leads back to itself, each page counts once.
        while let Some(page) = before.get(&(current.owner, current.heap, node)) {
            if self.young.contains_key(&page.node) {
                return;
            }
            self.young.insert(page.node, page.end - page.start);
            node = page.node;
        }
    }
}

/// The young pages by their space, heap and next page: each page is entered once, whatever the number of heaps.
type Before<'p> = HashMap<(u64, u64, u64), &'p Page>;

fn before(pages: &[Page]) -> Before<'_> {
    let young = pages.iter().filter(|page| page.kind == PageKind::Young);
    young.map(|page| ((page.owner, page.heap, page.next), page)).collect()
}

/// Free space for the next objects of a heap: from `top` to `limit`, in one page.
struct Area<'p> {
    page: &'p Page,
    top: u64,
    limit: u64,
}

/// All areas among these words: start, top, limit.
fn areas<'p>(pages: &'p [Page], heap: u64, words: &[u64]) -> Vec<Area<'p>> {
    let area = |words: &[u64]| {
        let &[start, top, limit] = words else { return None };
        // These words aren't references to objects: V8 sets the lowest bit of a reference.
        let is_ordered = 0 < start && start <= top && top <= limit && (start | top | limit).is_multiple_of(8);
        let after = is_ordered.then(|| pages.partition_point(|page| page.range.start.0 <= start))?;
        let page = pages[..after].last()?;
        (page.heap == heap && start >= page.start && limit <= page.end).then_some(Area { page, top, limit })
    };
    words.windows(3).filter_map(area).collect()
}

fn read<M: Memory>(memory: &Untouched<'_, M>, at: u64, length: u64) -> Option<Vec<u64>> {
    let mut bytes = vec![0; length as usize];
    memory.read(Avma(at), &mut bytes).then(|| words(&bytes).collect())
}

fn heap_of<M: Memory>(memory: &M, pages: &[Page], tops: &Tops) -> Result<OtherHeap, WalkError> {
    let mut heap = OtherHeap::new(AllocatorKind::V8);
    let mut states = PageStates::new(memory);
    for page in pages {
        let (length, resident) = (page.range.length(), states.resident(page.range));
        let area = Bytes(page.end - page.start);
        let allocated = Bytes(page.allocated).min(area);
        let free = Bytes(tops.free.get(&page.node).copied().unwrap_or_default());
        let (objects, rest, live) = match page.kind {
            PageKind::Young if tops.known.contains(&page.heap) => {
                let live = tops.young.get(&page.node).copied().unwrap_or_default();
                (HeapPart::Young, HeapPart::FreeYoung, Bytes(live).min(area))
            }
            PageKind::Young => (HeapPart::YoungUnsplit, HeapPart::YoungUnsplit, area),
            PageKind::LargeYoung => (HeapPart::Young, HeapPart::FreeYoung, allocated),
            PageKind::Old => (HeapPart::Old, HeapPart::FreeOld, allocated - free),
            PageKind::Large => (HeapPart::Large, HeapPart::FreeOld, allocated),
            PageKind::Code => (HeapPart::Code, HeapPart::FreeOld, allocated - free),
            PageKind::ReadOnly => (HeapPart::ReadOnly, HeapPart::Records, allocated),
            PageKind::Released => (HeapPart::Leaving, HeapPart::Leaving, area),
        };
        // V8 wrote the header first, and each object when it was made. So resident bytes count for these before the
        // rest.
        let header = Bytes(page.start - page.range.start.0).min(resident);
        let live_resident = live.min(resident - header);
        heap.add(HeapPart::Records, length - area, header);
        heap.add(objects, live, live_resident);
        heap.add(rest, area - live, resident - header - live_resident);
    }
    heap.ranges = joined(pages.iter().map(|page| page.range));
    if states.readable { Ok(heap) } else { Err(WalkError::Unreadable) }
}

const _: () = assert!(ALIGNMENT.is_multiple_of(PAGE));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::source::made_image::Image;

    const PAGES: u64 = 0x2a_0000_0000;
    const HEAPS: u64 = 0x7000_0000;

    /// The young pages of a heap that lie in the list before `current`, found by a look at each page.
    fn filled(pages: &[Page], current: &Page) -> HashMap<u64, u64> {
        let mut full = HashMap::new();
        let mut node = current.node;
        let is_before =
            |page: &&Page, node: u64| page.next == node && (page.owner, page.heap) == (current.owner, current.heap);
        while let Some(page) = pages.iter().rev().find(|page| is_before(page, node)) {
            if page.node == current.node || full.insert(page.node, page.end - page.start).is_some() {
                break;
            }
            node = page.node;
        }
        full
    }

    /// Heaps with three or more young pages, each in one of two spaces. Some lists lead back, or into another heap.
    #[test]
    fn the_pages_before_the_one_in_use_are_those_of_its_own_list() {
        let mut random = Random(37);
        let (mut image, mut pages, mut number) = (Image::default(), Vec::new(), 0);
        let heaps: Vec<u64> = (1..200).map(|heap| HEAPS + (heap << 20)).collect();
        for heap in heaps.iter().copied() {
            let many = 3 + random.below(4);
            for index in 0..many {
                let at = PAGES + (number + index) * ALIGNMENT;
                let next = match random.below(8) {
                    0 => PAGES + random.below(number + many) * ALIGNMENT,
                    _ if index + 1 < many => at + ALIGNMENT,
                    _ => 0,
                };
                pages.push(Page {
                    range: AddressRange::sized(Avma(at), Bytes(ALIGNMENT)),
                    node: at,
                    next,
                    heap,
                    owner: heap + 8 * random.below(8).min(1),
                    start: at + 64 + 8 * random.below(100),
                    end: at + ALIGNMENT,
                    allocated: 0,
                    kind: PageKind::Young,
                });
            }
            let current = &pages[(number + random.below(many)) as usize];
            for (word, value) in [current.start, current.start + 800, current.end].into_iter().enumerate() {
                image.put(heap - 0x9000 + word as u64 * 8, value);
            }
            number += many;
        }
        let tops = Tops::of(&pages, &heaps, &Untouched::new(&image));
        let mut expected = HashMap::new();
        for heap in heaps.iter().copied() {
            let mut words = [0; 8];
            assert!(image.read(Avma(heap - 0x9000), &mut words));
            let start = u64::from_le_bytes(words);
            let current = pages.iter().find(|page| page.start == start).expect("the page in use");
            expected.extend(filled(&pages, current));
            expected.insert(current.node, 800);
        }
        assert!(expected.len() > 300 && expected.len() < pages.len());
        assert_eq!(tops.young, expected);
        assert_eq!(tops.known, heaps.into_iter().collect::<HashSet<u64>>());
    }
}
