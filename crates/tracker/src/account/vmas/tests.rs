//! The writer against a naive twin, one record for each page; the reader at every store; the reader on damaged bytes.
//! Over 800 lines, since all three drive the map through the same twin and the same random operations.

extern crate std;
use super::tree::Event;
use super::*;
use crate::random::Random;
use plimsoll_segment::vmap::{BLOCK, NODE_SLOTS, VmaMap};
use std::boxed::Box;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

type Watch = Box<dyn FnMut(&[u8])>;

std::thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    static EVENTS: RefCell<BTreeMap<String, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Called after every store to the region.
pub(super) fn stored(base: *const u8, bytes: usize) {
    WATCH.with_borrow_mut(|watch| {
        if let Some(watch) = watch {
            // SAFETY: the region's own base and size; the store before this is done, and no other thread has the
            // region.
            watch(unsafe { core::slice::from_raw_parts(base, bytes) });
        }
    });
}

pub(super) fn happened(event: Event) {
    count(&format!("{event:?}"));
}

fn count(what: &str) {
    EVENTS.with_borrow_mut(|events| *events.entry(what.into()).or_default() += 1);
}

fn met(what: &[&str]) {
    EVENTS.with_borrow(|events| {
        let missed: Vec<_> = what.iter().filter(|&&what| !events.contains_key(what)).collect();
        assert!(missed.is_empty(), "never exercised: {missed:?}; exercised: {events:?}");
    });
}

const BASE: u64 = 0x7f12_3400_0000;

/// A region of u64, so that it is aligned.
fn region(bytes: usize) -> Vec<u64> {
    vec![0xdead_beef_dead_beef; bytes / 8]
}

fn bytes_of(region: &[u64]) -> Vec<u8> {
    region.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn book(region: &mut [u64]) -> VmaBook<impl FnMut(usize) -> bool + use<>> {
    let bytes = region.len() * 8;
    // SAFETY: the tests keep the vector, and at most read it, for as long as they use the book.
    unsafe { VmaBook::create(region.as_mut_ptr().cast(), bytes, move |upto| upto <= bytes) }.expect("room for a map")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    reserve: u32,
    commit: u32,
    category: u16,
    kind: MappingKind,
    prot: u16,
    first: bool,
}

impl Page {
    fn of(vma: &Vma) -> Self {
        let a = vma.attributes();
        let (reserve, commit) = (a.reserve_caller(), a.commit_caller());
        Self { reserve, commit, category: a.category(), kind: a.kind(), prot: a.prot(), first: a.reserved_first() }
    }
}

type Books = BTreeMap<(u16, u32, MappingKind), (i64, i64)>;

#[derive(Clone)]
struct Twin(Vec<Option<Page>>);

#[derive(Clone, Copy, Debug)]
enum Op {
    Map { at: usize, n: usize, page: Page, fixed: bool },
    Unmap { at: usize, n: usize },
    UnmapFails { at: usize, n: usize },
    Protect { at: usize, n: usize, prot: u16, caller: u32 },
    Remap { at: usize, n: usize, to: usize, to_n: usize, keeps: bool },
}

impl Op {
    /// Often a mapping adjoins one that is alike.
    fn beside(self, twin: &Twin, random: &mut Random) -> Self {
        match self {
            Op::Map { at, n, fixed, .. } if at > 0 && random.below(4) == 0 => {
                let neighbour = if random.below(2) == 0 { at - 1 } else { (at + n).min(twin.0.len() - 1) };
                match twin.0[neighbour] {
                    Some(page)
                        if page.first == (page.prot == 0) && page.commit == page.reserve * !page.first as u32 =>
                    {
                        Op::Map { at, n, page, fixed }
                    }
                    _ => self,
                }
            }
            _ => self,
        }
    }
}

impl Twin {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Map { at, n, page, fixed } => {
                for old in &mut self.0[at..at + n] {
                    *old = Some(match *old {
                        Some(old) if fixed && page.prot == 0 => {
                            Page { reserve: old.reserve, category: old.category, commit: 0, first: true, ..page }
                        }
                        Some(old) if fixed && (old.prot == 0 || old.first) => {
                            Page { reserve: old.reserve, category: old.category, first: true, ..page }
                        }
                        _ => page,
                    });
                }
            }
            Op::Unmap { at, n } => self.0[at..at + n].fill(None),
            Op::UnmapFails { .. } => {}
            Op::Protect { at, n, prot, caller } => {
                for page in self.0[at..at + n].iter_mut().flatten() {
                    if page.prot == 0 && prot != 0 {
                        page.commit = caller;
                    }
                    if prot == 0 {
                        page.commit = 0;
                        page.first = true;
                    }
                    page.prot = prot;
                }
            }
            Op::Remap { at, n, to, to_n, keeps } => {
                let source = self.0[at..at + n].to_vec();
                let last = if n == 0 { self.0[at] } else { self.0[at + n - 1] };
                if !keeps {
                    self.0[at..at + n].fill(None);
                }
                let known = source.iter().position(Option::is_some).unwrap_or(n);
                for i in 0..to_n {
                    match source.get(i) {
                        // A gap between two moved mappings.
                        Some(None) if i >= known => {}
                        Some(page) => self.0[to + i] = *page,
                        None => self.0[to + i] = last,
                    }
                }
            }
        }
    }

    fn books(&self) -> Books {
        let mut books = Books::new();
        for page in self.0.iter().flatten() {
            books.entry((page.category, page.reserve, page.kind)).or_default().0 += 4096;
            if page.prot != 0 {
                books.entry((page.category, page.commit, page.kind)).or_default().1 += 4096;
            }
        }
        books
    }

    fn touched(op: Op) -> [std::ops::Range<usize>; 2] {
        match op {
            Op::Map { at, n, .. } | Op::Unmap { at, n } | Op::UnmapFails { at, n } | Op::Protect { at, n, .. } => {
                [at..at + n, 0..0]
            }
            Op::Remap { at, n, to, to_n, .. } => [at..at + n, to..to + to_n],
        }
    }

    /// Counts which cases an operation is about to meet.
    fn classify(&self, op: Op) {
        let (at, n) = match op {
            Op::Map { at, n, page, fixed } => {
                let old = &self.0[at..at + n];
                let any = |f: fn(&Page) -> bool| old.iter().flatten().any(f);
                match (fixed, page.prot != 0) {
                    (true, true) if any(|p| p.prot == 0) => count("commit over reservation"),
                    (true, true) if any(|p| p.first) => count("re-commit"),
                    (true, true) if any(|_| true) => count("fixed replaces"),
                    (true, false) if any(|p| p.prot != 0) => count("uncommit"),
                    (false, _) if any(|_| true) => count("stale replaced"),
                    _ => count("plain"),
                }
                let before = at.checked_sub(1).and_then(|i| self.0[i]);
                let after = self.0.get(at + n).copied().flatten();
                if old.iter().all(Option::is_none) {
                    match (before == Some(page), after == Some(page)) {
                        (true, true) => count("merge both"),
                        (true, false) => count("merge left"),
                        (false, true) => count("merge right"),
                        _ => {}
                    }
                }
                (at, n)
            }
            Op::Unmap { at, n } => {
                count("unmap");
                (at, n)
            }
            Op::UnmapFails { at, n } => {
                count("unmap fails");
                (at, n)
            }
            Op::Protect { at, n, prot, .. } => {
                let old = || self.0[at..at + n].iter().flatten();
                match prot {
                    0 if old().any(|p| p.prot != 0) => count("protect uncommits"),
                    _ if old().any(|p| p.prot == 0) => count("protect commits"),
                    _ => count("protect only"),
                }
                (at, n)
            }
            Op::Remap { at, n, to, to_n, keeps } => {
                count(match (at == to, to_n > n) {
                    _ if n == 0 => "remap duplicates",
                    _ if keeps => "remap keeps",
                    (true, true) => "remap grows",
                    (true, false) => "remap shrinks",
                    (false, true) => "remap moves and grows",
                    (false, false) => "remap moves",
                });
                (at, n)
            }
        };
        // Cuts into existing mappings.
        let end = at + n;
        if n == 0 {
            return;
        }
        let joined = |i: usize| i > 0 && i < self.0.len() && self.0[i].is_some() && self.0[i - 1] == self.0[i];
        let one = self.0[at].is_some() && self.0[at..end].iter().all(|p| *p == self.0[at]);
        match (joined(at), joined(end)) {
            (true, true) if one => count("split middle"),
            (true, _) => count("split right"),
            (_, true) => count("split left"),
            _ => {}
        }
        let runs = 1 + (at + 1..end).filter(|&i| self.0[i] != self.0[i - 1]).count();
        if runs > 8 {
            count("span several");
        }
        if self.0[at..end].iter().any(Option::is_none) {
            count("hole");
        }
    }
}

const PRESENT: [&str; 42] = [
    "commit over reservation",
    "re-commit",
    "fixed replaces",
    "uncommit",
    "stale replaced",
    "plain",
    "merge both",
    "merge left",
    "merge right",
    "unmap",
    "unmap fails",
    "protect uncommits",
    "protect commits",
    "protect only",
    "remap duplicates",
    "remap keeps",
    "remap grows",
    "remap shrinks",
    "remap moves and grows",
    "remap moves",
    "split middle",
    "split right",
    "split left",
    "span several",
    "hole",
    "LeafSplit",
    "LeafJoined",
    "LeafRemoved",
    "SeamJoined",
    "NodeSplit",
    "NodeJoined",
    "NodeRemoved",
    "RootRaised",
    "RootLowered",
    "OneMapped",
    "OneJoined",
    "OneUnmapped",
    "OneCut",
    "OneChanged",
    "OneChangedLow",
    "OneChangedHigh",
    "OneGrew",
];

fn random_page(random: &mut Random) -> Page {
    let prot = [0, 0, 1, 3, 3, 3, 5][random.below(7) as usize];
    let caller = 1 + random.below(3) as u32;
    let kind = [MappingKind::Anonymous, MappingKind::Anonymous, MappingKind::File, MappingKind::Shared]
        [random.below(4) as usize];
    let commit = if prot == 0 { 0 } else { caller };
    Page { reserve: caller, commit, category: random.below(3) as u16, kind, prot, first: prot == 0 }
}

fn random_op(random: &mut Random, pages: usize, longest: usize) -> Op {
    let short = [2, 4, 16][random.below(3) as usize];
    let mut n = 1 + random.below(short) as usize;
    if random.below(60) == 0 {
        n = 1 + random.below(longest as u64) as usize;
    }
    let at = random.below((pages - n + 1) as u64) as usize;
    match random.below(16) {
        0..=6 => Op::Map { at, n: n.min(64), page: random_page(random), fixed: random.below(2) == 0 },
        7 | 8 => Op::Unmap { at, n },
        9 => Op::UnmapFails { at, n },
        10..=12 => {
            Op::Protect { at, n, prot: [0, 1, 3, 5][random.below(4) as usize], caller: 1 + random.below(3) as u32 }
        }
        _ => {
            let to_n = 1 + random.below(16) as usize;
            let n = n.min(64);
            let to = if random.below(3) == 0 { at } else { random.below((pages - to_n + 1) as u64) as usize };
            let keeps = random.below(4) == 0 && n == to_n;
            let n = if random.below(10) == 0 && to != at { 0 } else { n };
            let overlaps = at < to + to_n && to < at + n;
            if to + to_n > pages || (to == at && keeps) || (to != at && overlaps) {
                return Op::Unmap { at, n: 1 };
            }
            Op::Remap { at, n, to, to_n, keeps }
        }
    }
}

fn address(page: usize) -> u64 {
    BASE + page as u64 * 4096
}

fn attributes(page: Page, time: u32) -> Attributes {
    Attributes::new(page.reserve, page.category, page.kind, page.prot, time)
}

fn perform<G: FnMut(usize) -> bool>(book: &mut VmaBook<G>, op: Op, time: u32, books: &mut Books) -> Change {
    let mut sum = Change::default();
    let mut post = |d: Delta| {
        let entry = books.entry((d.category, d.caller, d.kind)).or_default();
        *entry = (entry.0 + d.reserved, entry.1 + d.committed);
        assert!(entry.0 >= 0 && entry.1 >= 0, "negative: {d:?}");
        sum = sum + Change { reserved: d.reserved, committed: d.committed, lost: 0 };
    };
    let size = |n: usize| n as u64 * 4096;
    let diff = match op {
        Op::Map { at, n, page, fixed } => {
            let placement = if fixed { Placement::Fixed } else { Placement::Chosen };
            book.map(address(at), size(n), attributes(page, time), placement, &mut post)
        }
        Op::Unmap { at, n } => book.unmap(address(at), size(n), &mut post, |_| ()),
        Op::UnmapFails { at, n } => {
            let mut pieces = Vec::new();
            let gone = book.unmap(address(at), size(n), &mut post, |vma| pieces.push(vma));
            pieces.iter().fold(gone, |diff, piece| diff + book.restore(piece, &mut post))
        }
        Op::Protect { at, n, prot, caller } => book.protect(address(at), size(n), prot, caller, time, &mut post),
        Op::Remap { at, n, to, to_n, keeps } => book.remap(
            Remap { old: address(at), old_bytes: size(n), new: address(to), new_bytes: size(to_n), keeps_old: keeps },
            &mut post,
        ),
    };
    assert_eq!(Change { lost: 0, ..diff }, sum);
    diff
}

/// The map as pages, and whether the walk found it sound.
fn pages_of(bytes: &[u8], pages: usize) -> (Vec<Option<Page>>, u64) {
    let mut found = vec![None; pages];
    let map = VmaMap::new(bytes).expect("a map");
    let mut entries = map.entries();
    for vma in entries.by_ref() {
        let first = ((vma.start - BASE) / 4096) as usize;
        found[first..first + (vma.bytes() / 4096) as usize].fill(Some(Page::of(&vma)));
    }
    (found, entries.damaged())
}

fn strip(mut books: Books) -> Books {
    books.retain(|_, sums| *sums != (0, 0));
    books
}

#[test]
fn books_equal_the_naive_twins() {
    const PAGES: usize = 4096;
    for seed in 1..=2 {
        let mut random = Random(0x1E37_79B9_7F4A_7C15 * seed);
        let mut region = region(1 << 20);
        let mut book = book(&mut region);
        let mut twin = Twin(vec![None; PAGES]);
        let (mut books, mut before) = (Books::new(), Books::new());
        for round in 0..55_000u32 {
            // Now and then nearly everything is unmapped, so that the tree shrinks, too.
            let op = match round % 10_000 {
                9_000..=9_400 => {
                    let at = random.below(PAGES as u64 - 33) as usize;
                    Op::Unmap { at, n: 1 + random.below(32) as usize }
                }
                9_401 => Op::Unmap { at: 0, n: PAGES },
                // Every page another entry, in sequence, so that nodes are full; then a node's whole share is unmapped.
                9_402 => {
                    for at in 0..PAGES {
                        let page = Page { category: at as u16 % 2, ..random_page(&mut Random(at as u64 + 1)) };
                        perform(&mut book, Op::Map { at, n: 1, page, fixed: false }, round, &mut books);
                        twin.apply(Op::Map { at, n: 1, page, fixed: false });
                    }
                    let share = (NODE_SLOTS - 7) * LEAF_ENTRIES;
                    Op::Unmap { at: 2 * share - 15, n: share + 30 }
                }
                _ => random_op(&mut random, PAGES, 300).beside(&twin, &mut random),
            };
            twin.classify(op);
            let diff = perform(&mut book, op, round, &mut books);
            assert_eq!(diff.lost, 0);
            twin.apply(op);
            if round % 64 == 0 {
                before = strip(books.clone());
                assert_eq!(before, twin.books(), "after {op:?} in round {round}");
            }
            if round % 256 == 0 || matches!(op, Op::Unmap { n: PAGES, .. }) {
                let (found, damaged) = pages_of(&bytes_of(&region), PAGES);
                assert_eq!(damaged, 0);
                assert!(found == twin.0, "round {round}, {op:?}");
                for _ in 0..8 {
                    let page = random.below(PAGES as u64) as usize;
                    let found = book.lookup(address(page) + random.below(4096));
                    assert_eq!(found.map(|vma| Page::of(&vma)), twin.0[page]);
                }
            }
        }
        assert!(!before.is_empty());
    }
    met(&PRESENT);
}

#[test]
fn every_store_leaves_the_old_or_the_new_state() {
    const PAGES: usize = 1500;
    let mut random = Random(0xfeed_5eed_0000_0001);
    let mut region = region(256 << 10);
    let mut book = book(&mut region);
    let mut twin = Twin(vec![None; PAGES]);
    let mut books = Books::new();
    let (stores, mixed) = (std::rc::Rc::new(RefCell::new(0u64)), std::rc::Rc::new(RefCell::new(0u64)));
    for round in 0..6000 {
        let op = match round {
            4000..=4300 => Op::Unmap { at: random.below(PAGES as u64 - 16) as usize, n: 1 + random.below(16) as usize },
            _ => random_op(&mut random, PAGES, PAGES),
        };
        // A failed munmap is two operations: the pages are old, gone, or old again.
        let absent = matches!(op, Op::UnmapFails { .. });
        let (old, mut new) = (twin.0.clone(), twin.clone());
        new.apply(op);
        // Few rounds are watched at first, while the map is small and its stores are of no new kind.
        if round > 1000 && (round % 4 == 0 || (4000..4301).contains(&round)) {
            let touched = Twin::touched(op);
            let (new, stores, mixed) = (new.0.clone(), stores.clone(), mixed.clone());
            WATCH.set(Some(Box::new(move |bytes| {
                let (found, damaged) = pages_of(bytes, PAGES);
                assert_eq!(damaged, 0, "{op:?}");
                let (mut some_old, mut some_new) = (false, false);
                for (page, found) in found.iter().enumerate() {
                    if !touched.iter().any(|range| range.contains(&page)) {
                        assert_eq!(*found, old[page], "an untouched page, in {op:?}");
                        continue;
                    }
                    some_old |= *found != new[page];
                    some_new |= *found != old[page];
                    let states = *found == old[page] || *found == new[page] || absent && found.is_none();
                    assert!(states, "page {page} in {op:?}: {found:?} is neither {:?} nor {:?}", old[page], new[page]);
                }
                *stores.borrow_mut() += 1;
                *mixed.borrow_mut() += (some_old && some_new) as u64;
            })));
        }
        twin.classify(op);
        perform(&mut book, op, round, &mut books);
        WATCH.set(None);
        twin = new;
    }
    let (stores, mixed) = (*stores.borrow(), *mixed.borrow());
    assert!(stores > 20_000 && mixed > 100, "{stores} stores seen, {mixed} of them between old and new");
    met(&[
        "LeafSplit",
        "LeafJoined",
        "LeafRemoved",
        "RootRaised",
        "OneMapped",
        "OneUnmapped",
        "OneCut",
        "OneChanged",
        "OneChangedLow",
        "OneChangedHigh",
        "split middle",
        "remap moves",
        "commit over reservation",
    ]);
}

#[test]
fn an_operation_in_flight_is_named() {
    let mut region = region(64 << 10);
    let mut book = book(&mut region);
    let seen = std::rc::Rc::new(RefCell::new((0, 0)));
    let watched = seen.clone();
    WATCH.set(Some(Box::new(move |bytes| {
        let map = VmaMap::new(bytes).expect("a map");
        let mut seen = watched.borrow_mut();
        match map.in_flight() {
            Some(op) => {
                assert_eq!((op.operation, op.start, op.bytes), (Operation::Map, BASE, 8192));
                seen.0 += 1;
            }
            None => {
                assert_eq!(map.entries().count(), (seen.0 > 0) as usize);
                seen.1 += 1;
            }
        }
    })));
    book.map(BASE, 8192, Attributes::new(1, 2, MappingKind::Anonymous, 3, 9), Placement::Chosen, |_| ());
    WATCH.set(None);
    assert!(seen.borrow().0 > 2 && seen.borrow().1 > 2, "{:?}", seen.borrow());

    // Only a remap has a destination: the one that it leaves in the header is not the next operation's.
    let destinations = std::rc::Rc::new(RefCell::new(Vec::new()));
    let watched = destinations.clone();
    WATCH.set(Some(Box::new(move |bytes| {
        let op = VmaMap::new(bytes).expect("a map").in_flight();
        watched.borrow_mut().extend(op.map(|op| (op.operation, op.new_start, op.new_bytes)));
    })));
    let to = BASE + (1 << 20);
    book.remap(Remap { old: BASE, old_bytes: 8192, new: to, new_bytes: 4096, keeps_old: false }, |_| ());
    book.unmap(to, 4096, |_| (), |_| ());
    WATCH.set(None);
    destinations.borrow_mut().dedup();
    assert_eq!(*destinations.borrow(), [(Operation::Remap, to, 4096), (Operation::Unmap, 0, 0)]);
}

#[test]
fn a_full_region_loses_operations_and_nothing_else() {
    const PAGES: usize = 4096;
    for room in [32 << 10, 64 << 10] {
        let mut region = region(64 << 10);
        let bytes = region.len() * 8;
        let base = region.as_mut_ptr().cast();
        // SAFETY: the vector outlives the book.
        let mut book = unsafe { VmaBook::create(base, bytes, move |upto| upto <= room) }.expect("room");
        let mut random = Random(77);
        let mut books = Books::new();
        let (mut lost_ops, mut lost_bytes, mut kept) = (0, 0, 0);
        for round in 0..60_000u32 {
            let op = random_op(&mut random, PAGES, 20);
            let diff = perform(&mut book, op, round, &mut books);
            lost_bytes += diff.lost;
            match op {
                // These are two or more operations.
                Op::UnmapFails { .. } => lost_ops = book.lost_ops(),
                _ => lost_ops += (diff.lost > 0) as u64,
            }
            kept += (diff.lost == 0) as u64;
            assert_eq!((book.lost_ops(), book.lost_bytes()), (lost_ops, lost_bytes));
            if round % 128 == 0 {
                let copy = bytes_of(&region);
                let (found, damaged) = pages_of(&copy, PAGES);
                assert_eq!(damaged, 0);
                assert_eq!(Twin(found).books(), strip(books.clone()), "what was posted is what the map says");
                let map = VmaMap::new(&copy).expect("a map");
                assert!(map.used() as usize <= room && map.lost_ops() == lost_ops && map.lost_bytes() == lost_bytes);
            }
        }
        assert!(lost_ops > 1000 && kept > 1000, "{lost_ops} lost, {kept} kept");
        assert!(book.used() as usize > room - 16 * BLOCK, "the region was full");
        // Once all is unmapped, there is space again.
        book.unmap(BASE, 4096 * PAGES as u64, |_| (), |_| ());
        assert_eq!(pages_of(&bytes_of(&region), PAGES).0, vec![None; PAGES]);
        let lost = book.lost_ops();
        for page in 0..100 {
            book.map(
                address(page),
                4096,
                Attributes::new(page as u32, 0, MappingKind::File, 1, 0),
                Placement::Chosen,
                |_| (),
            );
        }
        assert_eq!(book.lost_ops(), lost);
        assert_eq!(VmaMap::new(&bytes_of(&region)).expect("a map").entries().count(), 100);
    }
}

#[test]
fn grow_is_called_before_the_first_store() {
    use std::rc::Rc;
    let mut region = region(1 << 20);
    let (safe, grow_calls) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(0)));
    let (grown, calls) = (safe.clone(), grow_calls.clone());
    let grow = move |upto: usize| {
        assert!(upto > *grown.borrow());
        *grown.borrow_mut() = upto;
        *calls.borrow_mut() += 1;
        true
    };
    let watched = safe.clone();
    WATCH.set(Some(Box::new(move |bytes| {
        let untouched = 0xdead_beef_dead_beef_u64.to_le_bytes();
        let safe = *watched.borrow();
        assert!(bytes[safe..].chunks(8).take(BLOCK).all(|word| word == untouched), "a store beyond {safe}");
    })));
    // SAFETY: the vector outlives the book.
    let mut book = unsafe { VmaBook::create(region.as_mut_ptr().cast(), 1 << 20, grow) }.expect("room");
    let mut random = Random(5);
    for _ in 0..3000 {
        let page = random.below(1 << 20) as usize;
        book.map(address(page), 4096, Attributes::new(1, 0, MappingKind::File, 1, 0), Placement::Chosen, |_| ());
    }
    WATCH.set(None);
    assert!(*grow_calls.borrow() > 5 && book.lost_ops() == 0);
}

#[test]
fn ascending_and_descending_mappings_fill_the_leaves() {
    for descending in [true, false] {
        let mut region = region(4 << 20);
        let mut book = book(&mut region);
        let count = 65_530;
        for n in 0..count {
            let page = 2 * if descending { count - n } else { n };
            // Three mappings far below, like the program's own.
            let fixed = [10, 20, 30].map(|low| 0x5500_0000_0000 + low * 8192);
            if n < 3 {
                book.map(fixed[n], 4096, Attributes::new(9, 0, MappingKind::File, 5, 0), Placement::Chosen, |_| ());
            }
            book.map(address(page), 4096, Attributes::new(1, 0, MappingKind::File, 1, 0), Placement::Chosen, |_| ());
        }
        assert_eq!(book.lost_ops(), 0);
        let fill = count as f64 * 32.0 / book.used() as f64;
        // 0.47 if leaves were cut in the middle; the three below cost one leaf in five.
        assert!(fill > 0.7, "descending {descending}: {fill}");
        assert_eq!(VmaMap::new(&bytes_of(&region)).expect("a map").entries().count(), count + 3);
    }
}

#[test]
fn a_copied_map_goes_on() {
    let mut region = region(256 << 10);
    let mut parent = book(&mut region);
    let mut books = Books::new();
    let mut random = Random(31);
    for round in 0..2000 {
        perform(&mut parent, random_op(&mut random, 1024, 100), round, &mut books);
    }
    let used = parent.used() as usize;
    let mut copy = vec![0u64; (256 << 10) / 8];
    copy[..used / 8].copy_from_slice(&region[..used / 8]);
    // SAFETY: the vector outlives the book.
    let child = unsafe { VmaBook::resume(copy.as_mut_ptr().cast(), 256 << 10, 256 << 10, |_| true) };
    let mut child = child.expect("the parent's map");
    for round in 0..2000 {
        perform(&mut child, random_op(&mut random, 1024, 100), round, &mut books);
    }
    let (found, damaged) = pages_of(&bytes_of(&copy), 1024);
    assert_eq!((Twin(found).books(), damaged), (strip(books), 0));
    // SAFETY: the parent's book isn't used any more; its vector is longer than that.
    assert!(unsafe { VmaBook::resume(region[1..].as_mut_ptr().cast(), 64 << 10, 64 << 10, |_| true) }.is_none());
}

/// A signal handler jumps out of an update, or a fork copies it, at any store. A writer that continues with what lies
/// there has a sound map, and no block in two places.
#[test]
fn a_writer_that_was_left_at_any_store_goes_on() {
    const PAGES: usize = 500;
    const BYTES: usize = 64 << 10;
    let mut random = Random(0x1ef7_0000_0000_0007);
    let mut region = region(BYTES);
    let mut book = book(&mut region);
    let mut books = Books::new();
    let stores = std::rc::Rc::new(RefCell::new(Vec::<Vec<u8>>::new()));
    let mut left = 0;
    for round in 0..4000 {
        let op = match round % 500 {
            // Holes, so that leaves are joined and their blocks given back.
            400.. => Op::Unmap { at: random.below(PAGES as u64 - 16) as usize, n: 1 + random.below(16) as usize },
            _ => random_op(&mut random, PAGES, 40),
        };
        if round > 400 && round % 40 == 0 {
            let stores = stores.clone();
            WATCH.set(Some(Box::new(move |bytes| stores.borrow_mut().push(bytes.to_vec()))));
        }
        perform(&mut book, op, round, &mut books);
        WATCH.set(None);
        for bytes in stores.borrow_mut().drain(..) {
            let mut copy: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            // SAFETY: the vector outlives the book.
            let resumed = unsafe { VmaBook::resume(copy.as_mut_ptr().cast(), BYTES, BYTES, |_| true) };
            let mut resumed = resumed.expect("a map");
            let mut twin = Twin(pages_of(&bytes, PAGES).0);
            let mut own = twin.books();
            for later in 0..60 {
                // Splits until blocks are taken, then holes until they are given back.
                let at = random.below(PAGES as u64 - 24) as usize;
                let op = match later {
                    30.. => Op::Unmap { at, n: 24 },
                    _ => Op::Map { at, n: 1, page: random_page(&mut random), fixed: false },
                };
                assert_eq!(perform(&mut resumed, op, 9999, &mut own).lost, 0);
                twin.apply(op);
            }
            let (found, damaged) = pages_of(&bytes_of(&copy), PAGES);
            assert_eq!(damaged, 0, "after {op:?} was left");
            assert!(found == twin.0, "after {op:?} was left");
            left += 1;
        }
    }
    assert!(left > 800, "left {left} times");
    met(&["LeafSplit", "LeafJoined", "LeafRemoved"]);
}

#[test]
fn times_are_of_the_state_and_the_oldest_wins() {
    let mut region = region(64 << 10);
    let mut book = book(&mut region);
    let anonymous = |prot, time| Attributes::new(1, 2, MappingKind::Anonymous, prot, time);
    book.map(BASE, 8192, anonymous(3, 50), Placement::Chosen, |_| ());
    book.map(BASE - 4096, 4096, anonymous(3, 60), Placement::Chosen, |_| ());
    let vma = book.lookup(BASE - 1).expect("mapped");
    assert_eq!((vma.start, vma.end, vma.attributes().time()), (BASE - 4096, BASE + 8192, 50));
    book.protect(BASE, 4096, 1, 7, 70, |_| ());
    assert_eq!(book.lookup(BASE).map(|vma| vma.attributes().time()), Some(50));
    book.protect(BASE, 4096, 0, 7, 80, |_| ());
    assert_eq!(book.lookup(BASE).map(|vma| vma.attributes().time()), Some(80));
    book.protect(BASE, 4096, 3, 7, 90, |_| ());
    let vma = book.lookup(BASE).expect("mapped").attributes();
    assert_eq!((vma.time(), vma.reserve_caller(), vma.commit_caller()), (90, 1, 7));
    assert_eq!(book.lookup(BASE + 8192), None);
}

#[test]
fn ranges_beyond_all_bounds_are_harmless() {
    let mut region = region(64 << 10);
    let mut book = book(&mut region);
    let odd = [0, 1, 4095, BASE, ADDRESS_END - 1, ADDRESS_END, ADDRESS_END + 1, u64::MAX - 4096, u64::MAX];
    let mut sums = (0, 0);
    for start in odd {
        for bytes in odd {
            let mut post = |d: Delta| sums = (sums.0 + d.reserved, sums.1 + d.committed);
            book.map(start, bytes, Attributes::new(1, 1, MappingKind::Shared, 3, 0), Placement::Fixed, &mut post);
            book.protect(start, bytes / 2, 0, 2, 0, &mut post);
            for new in odd {
                let remap = Remap { old: start, old_bytes: bytes, new, new_bytes: bytes / 3, keeps_old: false };
                book.remap(remap, &mut post);
            }
            book.unmap(start, bytes / 5, &mut post, |_| ());
            let copy = bytes_of(&region);
            let map = VmaMap::new(&copy).expect("a map");
            let mut entries = map.entries();
            let total: u64 = entries.by_ref().map(|vma| vma.bytes()).sum();
            assert_eq!((total as i64, entries.damaged()), (sums.0, 0));
        }
    }
}

#[test]
fn damaged_bytes_give_gaps_and_disjoint_ranges() {
    let mut region = region(256 << 10);
    let mut book = book(&mut region);
    let mut random = Random(0xabcd_ef12_3456_789a);
    let mut books = Books::new();
    for round in 0..5_000 {
        perform(&mut book, random_op(&mut random, 1200, 100), round, &mut books);
    }
    let used = book.used() as usize;
    let whole = bytes_of(&region);
    let (mut refused, mut damaged, mut unharmed) = (0, 0, 0);
    let mut bytes = whole[..used].to_vec();
    for round in 0..100_000 {
        let mut undo = Vec::new();
        for _ in 0..1 + random.below(4) {
            // Often the words that steer the walk.
            let at = match random.below(3) {
                0 => random.below(15 * 8) as usize,
                1 => random.below((used / BLOCK) as u64) as usize * BLOCK + random.below(16) as usize,
                _ => random.below(used as u64) as usize,
            };
            undo.push((at, bytes[at]));
            bytes[at] = match random.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ 1 << random.below(8),
                _ => random.below(256) as u8,
            };
        }
        let cut = if round % 5 == 0 { random.below(used as u64) as usize } else { used };
        match VmaMap::new(&bytes[..cut]) {
            Err(_) => refused += 1,
            Ok(map) => {
                map.in_flight();
                let (mut entries, mut end, mut n) = (map.entries(), 0, 0);
                for vma in entries.by_ref() {
                    assert!(vma.start >= end && vma.end > vma.start && vma.end <= ADDRESS_END);
                    end = vma.end;
                    n += 1;
                }
                assert!(n <= cut / 32);
                damaged += (entries.damaged() > 0) as u64;
                unharmed += (entries.damaged() == 0) as u64;
            }
        }
        for (at, byte) in undo.into_iter().rev() {
            bytes[at] = byte;
        }
    }
    assert!(refused > 100 && damaged > 10_000 && unharmed > 100, "{refused} {damaged} {unharmed}");
}

#[test]
fn a_scribbled_region_never_leads_the_writer_out_of_it() {
    const PAGES: usize = 1024;
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..3000u32 {
        let mut space = region(96 << 10);
        let guard = space.len() - 2048;
        let mut book = book(&mut space[2048..guard]);
        let mut books = Books::new();
        for n in 0..100 {
            perform(&mut book, random_op(&mut random, PAGES, 100), n, &mut books);
        }
        let used = book.used();
        for _ in 0..1 + random.below(8) {
            let at = 2048 + random.below(used / 8) as usize;
            let word = random.below(1 << 31) << random.below(33);
            space[at] = if random.below(2) == 0 { word } else { space[at] ^ 1 << random.below(64) };
        }
        for n in 0..100 {
            let op = random_op(&mut random, PAGES, 100);
            // The sums can be anything now, but the calls return.
            match op {
                Op::Unmap { at, n } => drop(book.unmap(address(at), n as u64 * 4096, |_| (), |_| ())),
                Op::Map { at, n: size, page, .. } => {
                    book.map(address(at), size as u64 * 4096, attributes(page, n), Placement::Fixed, |_| ());
                }
                Op::Protect { at, n, prot, caller } => {
                    book.protect(address(at), n as u64 * 4096, prot, caller, 0, |_| ());
                }
                Op::Remap { at, n, to, to_n, keeps } => {
                    let size = |n: usize| n as u64 * 4096;
                    let (old, new) = (address(at), address(to));
                    let remap = Remap { old, old_bytes: size(n), new, new_bytes: size(to_n), keeps_old: keeps };
                    book.remap(remap, |_| ());
                }
                Op::UnmapFails { .. } => {}
            }
        }
        let mut around = space[..2048].iter().chain(&space[guard..]);
        assert!(around.all(|&word| word == 0xdead_beef_dead_beef), "round {round}");
    }
}
