//! Memory of a process, as tests make it: [`Image`] is written word by word, [`Reserved`] has no resident page, and
//! [`Counted`] counts the reads of another.

use std::cell::Cell;
use std::collections::BTreeMap;

use plimsoll_facts::snapshot::OtherHeap;
use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE};

/// Asserts that a heap read from damaged records is no larger than the image, and that its parts fill its ranges.
pub(crate) fn assert_bounded(heap: &OtherHeap, present: u64) {
    let resident: Bytes = heap.parts.values().map(|part| part.resident).sum();
    let lengths: Bytes = heap.parts.values().map(|part| part.length).sum();
    assert!(resident.0 <= present);
    assert_eq!(lengths, heap.ranges.iter().map(|range| range.length()).sum());
    assert!(heap.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
}

/// Pages that were never written read as zeros and aren't resident.
#[derive(Default)]
pub(crate) struct Image {
    /// Pages by number.
    pub pages: BTreeMap<u64, Vec<u8>>,
}

impl Image {
    pub(crate) fn put(&mut self, at: u64, word: u64) {
        self.touch(at / PAGE);
        let page = self.pages.get_mut(&(at / PAGE)).expect("touched");
        page[(at % PAGE) as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn touch(&mut self, page: u64) {
        self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
    }

    pub(crate) fn resident(&self, start: u64, end: u64) -> u64 {
        self.pages.range(start / PAGE..end / PAGE).count() as u64 * PAGE
    }
}

impl Memory for Image {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        let (mut at, mut into) = (at.0, into);
        while !into.is_empty() {
            let (from, length) = ((at % PAGE) as usize, into.len().min((PAGE - at % PAGE) as usize));
            let (piece, rest) = into.split_at_mut(length);
            match self.pages.get(&(at / PAGE)) {
                Some(page) => piece.copy_from_slice(&page[from..from + length]),
                None => piece.fill(0),
            }
            (at, into) = (at + length as u64, rest);
        }
        true
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        for (word, page) in into.iter_mut().zip(first..) {
            *word = u64::from(self.pages.contains_key(&page)) << 63;
        }
        true
    }
}

/// Address space of which no page is resident.
#[derive(Default)]
pub(crate) struct Reserved {
    /// How often the page map was read.
    pub looks: Cell<u64>,
}

impl Memory for Reserved {
    fn read(&self, _: Avma, into: &mut [u8]) -> bool {
        into.fill(0);
        true
    }

    fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
        self.looks.set(self.looks.get() + 1);
        into.fill(0);
        true
    }
}

/// Counts the reads of a memory.
pub(crate) struct Counted<M> {
    pub memory: M,
    pub reads: Cell<usize>,
}

impl<M> Counted<M> {
    pub(crate) fn new(memory: M) -> Counted<M> {
        Counted { memory, reads: Cell::default() }
    }
}

impl<M: Memory> Memory for Counted<M> {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        self.memory.read(at, into)
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        self.memory.pagemap(first, into)
    }
}
