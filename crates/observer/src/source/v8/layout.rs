//! Finds the order of the fields in the records of V8's pages. Candidates are words that agree with the page's own
//! address; the field is the candidate that agrees in most pages.

use std::collections::{BTreeMap, HashMap};

use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PageStates, Untouched, word_at};

/// Alignment of pages, and size of a page without a large object.
pub(crate) const ALIGNMENT: u64 = 256 << 10;
/// Maximum distance between the ends of a page and of its area: header, bitmap and guards lie between them.
const MARGIN: u64 = 64 << 10;
/// Words of a record that are read.
pub(crate) const WORDS: usize = 40;
/// The fields that describe the page lie within this many words.
const FIELDS: usize = 14;
/// Words of a space that are read; its statistics lie within them.
pub(crate) const SPACE_WORDS: usize = 48;
const LARGEST: u64 = 1 << 40;
/// Number of records that the search uses.
const SAMPLE: usize = 1024;
/// A few words may look like a page's by chance.
const PAGES_AT_LEAST: usize = 4;

pub(crate) type Words = [u64; WORDS];

pub(crate) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|index| word_at(bytes, index * 8).unwrap_or_default())
}

/// The first words at an address, if they can be read without making the kernel map anything.
pub(crate) fn read_words<const N: usize, M: Memory>(memory: &Untouched<'_, M>, at: u64) -> Option<[u64; N]> {
    let mut bytes = vec![0; N * 8];
    memory.read(Avma(at), &mut bytes).then(|| words(&bytes))
}

/// Index of each field in a record, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The record lies elsewhere; the page's second word points at it.
    pub behind: bool,
    pub size: usize,
    pub start: usize,
    pub end: usize,
    pub heap: usize,
    pub owner: usize,
    /// Bytes allocated; bytes wasted and the high-water mark follow.
    pub allocated: usize,
    /// The next page in the owner's list; the previous one follows.
    pub next: Option<usize>,
}

/// A page, or memory that may be one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub at: u64,
    /// The first words of the page itself.
    pub chunk: [u64; 2],
    pub record: Words,
}

impl Candidate {
    /// The address by which lists of pages refer to this one.
    pub(crate) fn node(&self, behind: bool) -> u64 {
        if behind { self.chunk[1] } else { self.at }
    }

    /// Start and end of the area, and the size, by these fields; None unless they agree with the page's address.
    fn area(&self, size: usize, start: usize, end: usize) -> Option<(u64, u64, u64)> {
        let (size, start, end) = (self.record[size], self.record[start], self.record[end]);
        let last =
            self.at.checked_add(size).filter(|_| size.is_multiple_of(4096) && (4096..LARGEST).contains(&size))?;
        let holds = start > self.at
            && start - self.at < MARGIN
            && start < end
            && end <= last
            && last - end < MARGIN
            && start.is_multiple_of(8);
        holds.then_some((size, start, end))
    }
}

impl Layout {
    pub(crate) fn area(&self, page: &Candidate) -> Option<(u64, u64, u64)> {
        page.area(self.size, self.start, self.end)
    }

    /// The flags are in the first word, or in the second one if the size is the first.
    pub(crate) fn flags(&self, page: &Candidate) -> u64 {
        let index = usize::from(!self.behind && self.size == 0);
        page.chunk[index]
    }
}

/// The layout of the records of `candidates`. The records lie in their pages; with `behind`, elsewhere.
pub(crate) fn find<M: Memory>(memory: &M, behind: bool, candidates: impl Iterator<Item = Candidate>) -> Option<Layout> {
    let has_start = |page: &Candidate| {
        page.record[..FIELDS].iter().any(|word| *word > page.at && *word - page.at < MARGIN && word.is_multiple_of(8))
    };
    let sample: Vec<Candidate> = candidates.filter(has_start).take(SAMPLE).collect();
    let (size, start, end) = area_fields(&sample)?;
    let mut layout = Layout { behind, size, start, end, ..Layout::default() };
    let pages: Vec<&Candidate> = sample.iter().filter(|page| layout.area(page).is_some()).collect();
    let untouched = Untouched::new(memory);
    let mut spaces = Spaces { memory: &untouched, known: HashMap::new() };
    (layout.owner, layout.heap) = owner_and_heap(&pages, &mut spaces)?;
    layout.allocated = allocated_field(&layout, &pages, &mut spaces)?;
    layout.next = next_field(&layout, &pages, &untouched);
    Some(layout)
}

/// The fields that are size, start and end of the area in most records.
fn area_fields(sample: &[Candidate]) -> Option<(usize, usize, usize)> {
    let mut counts: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
    for page in sample {
        for size in 0..FIELDS {
            for start in (0..FIELDS).filter(|start| page.record[*start].wrapping_sub(page.at) < MARGIN) {
                for end in (0..FIELDS).filter(|end| page.area(size, start, *end).is_some()) {
                    *counts.entry((size, start, end)).or_default() += 1;
                }
            }
        }
    }
    most(counts)
}

/// The most frequent key, if it is frequent enough; among equals, the first.
fn most<K: Ord>(counts: BTreeMap<K, usize>) -> Option<K> {
    let best = counts.into_iter().rev().max_by_key(|(_, count)| *count)?;
    (best.1 >= PAGES_AT_LEAST).then_some(best.0)
}

pub(crate) struct Spaces<'m, M: Memory> {
    pub memory: &'m Untouched<'m, M>,
    pub known: HashMap<u64, Option<[u64; SPACE_WORDS]>>,
}

impl<M: Memory> Spaces<'_, M> {
    pub(crate) fn at(&mut self, address: u64) -> Option<&[u64; SPACE_WORDS]> {
        let is_pointer = address.is_multiple_of(8) && (4096..1 << 47).contains(&address);
        let memory = self.memory;
        let read = || if is_pointer { read_words(memory, address) } else { None };
        self.known.entry(address).or_insert_with(read).as_ref()
    }
}

/// The fields of the owner and the heap. The owner is a space: it lies outside all pages, and its second word is also
/// the heap.
fn owner_and_heap<M: Memory>(pages: &[&Candidate], spaces: &mut Spaces<'_, M>) -> Option<(usize, usize)> {
    let mut counts = BTreeMap::new();
    for page in pages {
        for owner in 0..FIELDS {
            let address = page.record[owner];
            if address.wrapping_sub(page.at) < ALIGNMENT {
                continue;
            }
            let Some(heap) = spaces.at(address).map(|space| space[1]) else { continue };
            let is_heap =
                |field: &usize| *field != owner && heap != 0 && heap != address && page.record[*field] == heap;
            for field in (0..FIELDS).filter(is_heap) {
                *counts.entry((owner, field)).or_default() += 1;
            }
        }
    }
    most(counts)
}

/// The field with the bytes allocated: its sums over the pages of a space are words of that space.
fn allocated_field<M: Memory>(layout: &Layout, pages: &[&Candidate], spaces: &mut Spaces<'_, M>) -> Option<usize> {
    let taken = [layout.size, layout.start, layout.end, layout.heap, layout.owner];
    // A page that is being made or freed may not agree.
    let agree_at_least = pages.len() - pages.len() / 8;
    let proven = |field: usize, spaces: &mut Spaces<'_, M>| {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        let mut agree = 0;
        for page in pages {
            let (size, start, end) = layout.area(page)?;
            let [allocated, wasted, mark] = [0, 1, 2].map(|more| page.record[field + more]);
            let holds = allocated.checked_add(wasted).is_some_and(|bytes| bytes <= end - start);
            if holds && mark <= size.max(ALIGNMENT) {
                agree += 1;
                *sums.entry(page.record[layout.owner]).or_default() += allocated;
            }
        }
        let is_stated = |(owner, sum): &(&u64, &u64)| {
            spaces.at(**owner).is_some_and(|space| space.iter().any(|word| word.abs_diff(**sum) <= **sum / 64))
        };
        let sum = sums.iter().filter(is_stated).map(|(_, sum)| *sum).sum::<u64>();
        (agree >= agree_at_least).then_some(sum)
    };
    let free = |field: &usize| taken.iter().all(|taken| !(*field..*field + 3).contains(taken));
    let fields = (0..FIELDS).filter(free).filter_map(|field| Some((proven(field, spaces)?, field)));
    fields
        .filter(|(sum, _)| *sum > 0)
        .max_by_key(|(sum, field)| (*sum, std::cmp::Reverse(*field)))
        .map(|(_, field)| field)
}

/// The field that leads to a record whose next field leads back.
fn next_field<M: Memory>(layout: &Layout, pages: &[&Candidate], memory: &Untouched<'_, M>) -> Option<usize> {
    /// This many links are enough to choose a field.
    const LINKS: usize = 64;
    let mut counts = BTreeMap::new();
    for page in pages.iter().take(LINKS) {
        let node = page.node(layout.behind);
        for field in FIELDS..WORDS - 1 {
            let next = page.record[field];
            let is_pointer = next.is_multiple_of(8) && (4096..1 << 47).contains(&next) && next != node;
            let back = next.checked_add((field as u64 + 1) * 8).filter(|_| is_pointer);
            if back.and_then(|back| memory.word(Avma(back))) == Some(node) {
                *counts.entry(field).or_default() += 1;
            }
        }
    }
    most(counts)
}

/// Iterates over the first words of possible pages, in address order.
pub(crate) struct Chunks<'m, M: Memory> {
    memory: &'m M,
    states: PageStates<'m, M>,
    ranges: std::vec::IntoIter<AddressRange>,
    range: AddressRange,
    budget: usize,
}

impl<'m, M: Memory> Chunks<'m, M> {
    pub(crate) fn new(memory: &'m M, ranges: Vec<AddressRange>, budget: usize) -> Self {
        let range = AddressRange::new(Avma(0), Avma(0));
        Chunks { memory, states: PageStates::new(memory), ranges: ranges.into_iter(), range, budget }
    }

    /// Skips all pages before `at`.
    pub(crate) fn skip_to(&mut self, at: u64) {
        if at > self.range.start.0 {
            self.range = AddressRange::new(Avma(at.min(self.range.end.0)), self.range.end);
        }
    }
}

impl<M: Memory> Iterator for Chunks<'_, M> {
    type Item = (u64, Words);

    fn next(&mut self) -> Option<(u64, Words)> {
        use plimsoll_process::proc::memory::{PAGE, PageState};
        while self.budget > 0 {
            let at = self.range.start.0.checked_next_multiple_of(ALIGNMENT).filter(|at| *at < self.range.end.0);
            let Some(at) = at else {
                self.range = self.ranges.next()?;
                continue;
            };
            self.range = AddressRange::new(Avma(at.saturating_add(ALIGNMENT).min(self.range.end.0)), self.range.end);
            // An untouched page has no header, and reading it would make the kernel map it.
            if self.states.of(at / PAGE) != PageState::Present {
                continue;
            }
            self.budget -= 1;
            let mut bytes = [0; WORDS * 8];
            if Bytes(self.range.end.0 - at) >= Bytes(bytes.len() as u64) && self.memory.read(Avma(at), &mut bytes) {
                return Some((at, words(&bytes)));
            }
        }
        None
    }
}
