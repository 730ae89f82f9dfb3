//! Compares the books of mappings alone: the tracker's map and the structures that were proposed for HotSpot's books.
//! Nothing is really mapped. `xtask bench-published` counts the instructions of `reserve`, `commit`, `release` and
//! `report`.
//!
//! usage: mapping_books map|list|array|queue|btree MAPPINGS ROUNDS
//!   prints the bytes that the books take for the mappings, and the bytes that they take after the rounds.
//!
//! The same addresses, order and sizes as bench/hotspot_books.c.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_segment::vmap::{Attributes, MappingKind, VmaMap};
use plimsoll_tracker::account::vmas::{Delta, Placement, VmaBook};

const REGION: u64 = 0x10000;
const STRIDE: u64 = 0x20000;
const BASE: u64 = 0x1000_0000_0000;

/// Counts bytes that live on the heap, as the C library rounds them: 8 more, up to a multiple of 16.
struct Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);

fn chunk(bytes: usize) -> usize {
    ((bytes + 8).div_ceil(16) * 16).max(32)
}

// SAFETY: passes each call on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reserved and committed bytes: what a report sums.
type Sums = (u64, u64);

trait MappingBooks {
    fn reserve(&mut self, start: u64, bytes: u64);
    /// Commits the beginning of a reserved range.
    fn commit(&mut self, start: u64, bytes: u64);
    fn release(&mut self, start: u64, bytes: u64);
    fn report(&mut self) -> Sums;
    /// Adds the regions that exist before anything is counted, the highest address first.
    fn fill(&mut self, mappings: u64) {
        for i in (0..mappings).rev() {
            self.reserve(BASE + i * STRIDE, REGION);
            self.commit(BASE + i * STRIDE, REGION / 2);
        }
    }
    fn bytes(&self) -> usize {
        LIVE.load(Ordering::Relaxed)
    }
}

/// The tracker's own map.
struct Map<G> {
    region: *const u8,
    book: VmaBook<G>,
    /// As the tracker's rows by caller and category.
    rows: [i64; 2],
}

fn map() -> Map<impl FnMut(usize) -> bool> {
    const CAPACITY: usize = 256 << 20;
    let region = Vec::leak(vec![0u64; CAPACITY / 8]).as_mut_ptr().cast::<u8>();
    // SAFETY: the vector is never freed, and only the book stores there.
    let book = unsafe { VmaBook::create(region, CAPACITY, |_| true) }.expect("an aligned region");
    Map { region, book, rows: [0; 2] }
}

fn attributes(prot: u16) -> Attributes {
    Attributes::new(7, 3, MappingKind::Anonymous, prot, 1)
}

impl<G: FnMut(usize) -> bool> MappingBooks for Map<G> {
    fn reserve(&mut self, start: u64, bytes: u64) {
        let rows = &mut self.rows;
        let post = |delta: Delta| *rows = [rows[0] + delta.reserved, rows[1] + delta.committed];
        self.book.map(start, bytes, attributes(0), Placement::Chosen, post);
    }
    fn commit(&mut self, start: u64, bytes: u64) {
        let rows = &mut self.rows;
        let post = |delta: Delta| *rows = [rows[0] + delta.reserved, rows[1] + delta.committed];
        self.book.protect(start, bytes, 3, 7, 1, post);
    }
    fn release(&mut self, start: u64, bytes: u64) {
        let rows = &mut self.rows;
        let post = |delta: Delta| *rows = [rows[0] + delta.reserved, rows[1] + delta.committed];
        self.book.unmap(start, bytes, post, |_| ());
    }
    /// The observer's own reader. It checks each block, because the target may be hostile.
    fn report(&mut self) -> Sums {
        let used = self.book.used() as usize;
        // SAFETY: the book has written these bytes, and nobody stores meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(self.region, used) };
        let map = VmaMap::new(bytes).expect("a map");
        map.entries().fold((0, 0), |(reserved, committed), vma| {
            (reserved + vma.bytes(), committed + if vma.attributes().prot() == 0 { 0 } else { vma.bytes() })
        })
    }
    fn bytes(&self) -> usize {
        self.book.used() as usize
    }
}

#[derive(Clone, Copy)]
struct Range {
    start: u64,
    bytes: u64,
    committed: u64,
}

/// Sorted by address, one node for each reserved range.
#[derive(Default)]
struct List {
    head: Option<Box<Node>>,
}

struct Node {
    range: Range,
    next: Option<Box<Node>>,
}

impl List {
    /// The link whose node is the first at `start` or behind it.
    fn link(&mut self, start: u64) -> &mut Option<Box<Node>> {
        let mut link = &mut self.head;
        while link.as_ref().is_some_and(|node| node.range.start < start) {
            link = &mut link.as_mut().expect("just seen").next;
        }
        link
    }
}

impl MappingBooks for List {
    fn reserve(&mut self, start: u64, bytes: u64) {
        let link = self.link(start);
        let next = link.take();
        *link = Some(Box::new(Node { range: Range { start, bytes, committed: 0 }, next }));
    }
    fn commit(&mut self, start: u64, bytes: u64) {
        self.link(start).as_mut().expect("reserved").range.committed = bytes;
    }
    fn release(&mut self, start: u64, _: u64) {
        let link = self.link(start);
        *link = link.take().expect("reserved").next;
    }
    fn report(&mut self) -> Sums {
        let (mut sums, mut next) = ((0, 0), &self.head);
        while let Some(node) = next {
            sums = (sums.0 + node.range.bytes, sums.1 + node.range.committed);
            next = &node.next;
        }
        sums
    }
}

/// A flat array of 16 bytes an entry: all entries behind a new one move.
#[derive(Default)]
struct Array(Vec<Entry>);

#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    pages: u32,
    committed: u32,
}

impl Array {
    fn at(&self, start: u64) -> usize {
        self.0.partition_point(|entry| entry.start < start)
    }
}

impl MappingBooks for Array {
    fn reserve(&mut self, start: u64, bytes: u64) {
        let at = self.at(start);
        self.0.insert(at, Entry { start, pages: (bytes >> 12) as u32, committed: 0 });
    }
    fn commit(&mut self, start: u64, bytes: u64) {
        let at = self.at(start);
        self.0[at].committed = (bytes >> 12) as u32;
    }
    fn release(&mut self, start: u64, _: u64) {
        let at = self.at(start);
        self.0.remove(at);
    }
    /// Fills from the lowest address: any other order would move half of a large array for each region.
    fn fill(&mut self, mappings: u64) {
        for i in 0..mappings {
            self.reserve(BASE + i * STRIDE, REGION);
            self.commit(BASE + i * STRIDE, REGION / 2);
        }
    }
    fn report(&mut self) -> Sums {
        self.0.iter().fold((0, 0), |(reserved, committed), entry| {
            (reserved + (u64::from(entry.pages) << 12), committed + (u64::from(entry.committed) << 12))
        })
    }
}

#[derive(Default)]
struct Tree(BTreeMap<u64, Range>);

impl MappingBooks for Tree {
    fn reserve(&mut self, start: u64, bytes: u64) {
        self.0.insert(start, Range { start, bytes, committed: 0 });
    }
    fn commit(&mut self, start: u64, bytes: u64) {
        self.0.get_mut(&start).expect("reserved").committed = bytes;
    }
    fn release(&mut self, start: u64, _: u64) {
        self.0.remove(&start);
    }
    fn report(&mut self) -> Sums {
        self.0.values().fold((0, 0), |sums, range| (sums.0 + range.bytes, sums.1 + range.committed))
    }
}

/// Deferred booking: events of 64 bytes, as in the proposal for HotSpot; a report applies them to a tree.
#[derive(Default)]
struct Queue {
    events: Vec<Event>,
    done: Tree,
}

#[derive(Clone, Copy)]
enum What {
    Reserve,
    Commit,
    Release,
}

#[derive(Clone, Copy)]
struct Event {
    what: What,
    start: u64,
    bytes: u64,
    /// A call stack of four frames, and the tag.
    _stack: [u64; 5],
}

impl Queue {
    fn push(&mut self, what: What, start: u64, bytes: u64) {
        self.events.push(Event { what, start, bytes, _stack: black_box([0; 5]) });
    }
}

impl MappingBooks for Queue {
    fn reserve(&mut self, start: u64, bytes: u64) {
        self.push(What::Reserve, start, bytes);
    }
    fn commit(&mut self, start: u64, bytes: u64) {
        self.push(What::Commit, start, bytes);
    }
    fn release(&mut self, start: u64, bytes: u64) {
        self.push(What::Release, start, bytes);
    }
    fn report(&mut self) -> Sums {
        for event in std::mem::take(&mut self.events) {
            match event.what {
                What::Reserve => self.done.reserve(event.start, event.bytes),
                What::Commit => self.done.commit(event.start, event.bytes),
                What::Release => self.done.release(event.start, event.bytes),
            }
        }
        self.done.report()
    }
}

// The functions that callgrind counts: never inlined, and named alike for each structure.

#[inline(never)]
fn books_reserve<B: MappingBooks>(books: &mut B, start: u64, bytes: u64) {
    books.reserve(black_box(start), black_box(bytes));
}

#[inline(never)]
fn books_commit<B: MappingBooks>(books: &mut B, start: u64, bytes: u64) {
    books.commit(black_box(start), black_box(bytes));
}

#[inline(never)]
fn books_release<B: MappingBooks>(books: &mut B, start: u64, bytes: u64) {
    books.release(black_box(start), black_box(bytes));
}

#[inline(never)]
fn books_report<B: MappingBooks>(books: &mut B) -> Sums {
    black_box(books.report())
}

#[inline(never)]
fn rounds_of<B: MappingBooks>(books: &mut B, mappings: u64, rounds: u64) {
    for i in 0..rounds {
        // The gap behind a region. The rounds use gaps that are spread evenly over all regions.
        let at = BASE + i * mappings / rounds * STRIDE + REGION + 0x4000;
        books_reserve(books, at, REGION / 4);
        books_commit(books, at, REGION / 8);
        books_release(books, at, REGION / 4);
    }
}

fn run<B: MappingBooks>(mut books: B, mappings: u64, number: u64) {
    let before = books.bytes();
    books.fill(mappings);
    let held = books.bytes() - before;
    rounds_of(&mut books, mappings, number);
    println!("{held} {}", books.bytes() - before);
    let sums = books_report(&mut books);
    assert_eq!(sums, (mappings * REGION, mappings * REGION / 2), "the books are wrong");
    // Dropping a list of a million nodes would recurse a million times.
    std::mem::forget(books);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok());
    let (Some(mappings), Some(rounds)) = (number(1), number(2)) else { panic!("usage: STRUCTURE MAPPINGS ROUNDS") };
    match arguments[0].as_str() {
        "map" => run(map(), mappings, rounds),
        "list" => run(List::default(), mappings, rounds),
        "array" => run(Array::default(), mappings, rounds),
        "queue" => run(Queue::default(), mappings, rounds),
        "btree" => run(Tree::default(), mappings, rounds),
        other => panic!("no structure {other}"),
    }
}
