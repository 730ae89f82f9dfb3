//! The writer against a naive twin, one record for each page; the reader at every store; the reader on damaged bytes.
//! Here are the twin and the random operations that drive all three.

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

mod damaged;
mod stores;
mod twin;

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

type Totals = BTreeMap<(u16, u32, MappingKind), (i64, i64)>;

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

    fn books(&self) -> Totals {
        let mut books = Totals::new();
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

fn perform<G: FnMut(usize) -> bool>(book: &mut VmaBook<G>, op: Op, time: u32, books: &mut Totals) -> Change {
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

fn strip(mut books: Totals) -> Totals {
    books.retain(|_, sums| *sums != (0, 0));
    books
}
