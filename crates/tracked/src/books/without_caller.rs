//! Categories without callers: thread stacks, loaded libraries, and Plimsoll's own cost.

use std::collections::HashSet;

use plimsoll_segment::{Allocator, FIXED_CATEGORIES, ThreadFacts, text};

use super::{Books, Figures, Thread};
use crate::segment::Segment;
use plimsoll_facts::units::{Avma, Bytes};

/// Name of the category of Plimsoll's own cost.
pub(crate) const PLIMSOLL: &str = FIXED_CATEGORIES[2];
/// Name of the category of thread stacks.
pub(crate) const THREAD_STACK: &str = FIXED_CATEGORIES[3];
/// Name of the category of loaded objects.
pub(crate) const LOADED_LIBRARIES: &str = FIXED_CATEGORIES[4];

/// Kinds of stacks in the segment's thread entries.
pub(crate) const OWN_MEMORY: u64 = 1;
pub(crate) const MAIN: u64 = 2;

/// Plimsoll's own cost: `bytes = private + segment + library`. Trailers lie inside the program's blocks; `growth`
/// bounds how much they enlarge the allocator's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackerCost {
    /// Live blocks with a trailer.
    pub trailers: u64,
    /// Live blocks with a key outside: in the side table or the array of a page.
    pub tabled: u64,
    /// Growth of the heap due to trailers, at least and at most. It is computed from each caller's sums, so it is an
    /// interval.
    pub growth: (Bytes, Bytes),
    /// Thread state, memos, the side table and arrays of pages: resident pages for a live process, else the tracker's
    /// own count.
    pub private: Bytes,
    /// Whether `private`, `side_table` and `library` were counted page by page. If not, the latter two are 0.
    pub by_page: bool,
    /// The side table's and the arrays' part of `private`.
    pub side_table: Bytes,
    /// The tracker's library and the compiled rules.
    pub library: Bytes,
    /// The segment: its populated pages, or more if more are resident in a live process.
    pub segment: Bytes,
    /// Address space reserved for the side table and the segment's growth.
    pub reserved: Bytes,
}

impl TrackerCost {
    pub fn bytes(&self) -> Bytes {
        self.private + self.segment + self.library
    }

    /// Average cost of a live block in bytes, at least and at most: its share of the side table and of the heap's
    /// growth. `None` if no block is live, or if the side table's pages are unknown.
    pub fn of_a_block(&self) -> Option<[f64; 2]> {
        let blocks = self.trailers + self.tabled;
        let known = blocks > 0 && (self.by_page || self.tabled == 0);
        let share = |growth: Bytes| (self.side_table + growth).0 as f64 / blocks as f64;
        known.then(|| [share(self.growth.0), share(self.growth.1)])
    }
}

/// Growth of the allocator's blocks due to trailers, at least and at most, from each caller's sums. Over jemalloc and
/// tcmalloc usually only blocks from 4 KiB on have a trailer, in space that the allocator has added by rounding up.
fn growth(segment: &Segment, callers: &[super::Caller]) -> (Bytes, Bytes) {
    let most: fn(u64, u64, u64) -> u64 = match segment.head.allocator {
        glibc if glibc == Allocator::Glibc as u32 => most_of_glibc,
        mimalloc if mimalloc == Allocator::Mimalloc as u32 => most_of_mimalloc,
        _ => return (Bytes::ZERO, Bytes::ZERO),
    };
    let most = callers.iter().map(|caller| {
        let f = &caller.figures;
        most(f.live_count, f.requested.0, f.live.0.saturating_sub(f.requested.0))
    });
    (Bytes::ZERO, Bytes(most.fold(0, u64::saturating_add)))
}

/// A chunk has 16 bytes more than its usable bytes beside a trailer, and at least 32. So a request of n bytes takes
/// `max(32, n + 16 rounded up to 16)`, and without the tracker `max(32, n + 8 rounded up to 16)`. The difference is 16
/// bytes only if the padding (usable − requested) is 8 to 15. The sum of a caller's paddings bounds the number of such
/// blocks. A row's sum doesn't, because a row may have frees of blocks that other threads allocated. The minimum is 0:
/// requests of 16 bytes or less, and aligned blocks, have padding but don't grow. A block with a mapping of its own may
/// need one more page; then most of that page is padding.
fn most_of_glibc(count: u64, requested: u64, padding: u64) -> u64 {
    let mapped = count.min(requested / MAPPED_FROM);
    let by_count = count.saturating_mul(CHUNK_STEP).saturating_add(mapped.saturating_mul(PAGE));
    by_count.min((padding / LEAST_PADDING).saturating_mul(CHUNK_STEP))
}

/// mimalloc's block of S bytes becomes one of T ≤ S + 64 where the request leaves less than eight bytes of S. Then the
/// padding, T − 8 minus the request, is at least T − S − 8.
fn most_of_mimalloc(count: u64, _requested: u64, padding: u64) -> u64 {
    count.saturating_mul(MOST_ADDED).min(padding.saturating_add(count.saturating_mul(TRAILER)))
}

/// glibc's malloc, 64 bit (malloc/malloc.c): MALLOC_ALIGNMENT, and DEFAULT_MMAP_THRESHOLD.
const CHUNK_STEP: u64 = 16;
const LEAST_PADDING: u64 = 8;
const MAPPED_FROM: u64 = 128 << 10;
const PAGE: u64 = 4096;
/// The tracker's own choice over mimalloc (`account/classes.rs` of the tracker).
const MOST_ADDED: u64 = 64;
const TRAILER: u64 = 8;

pub(super) fn threads(segment: &Segment) -> Vec<Thread> {
    segment.threads.iter().enumerate().map(|(slot, facts)| thread(slot, facts)).collect()
}

fn thread(slot: usize, facts: &ThreadFacts) -> Thread {
    Thread {
        slot,
        tid: facts.tid,
        name: Some(String::from_utf8_lossy(text(&facts.name)).into_owned()).filter(|name| !name.is_empty()),
        in_use: facts.state == 1,
        stack: Bytes(facts.stack_high.saturating_sub(facts.stack_low)),
        guard: Bytes(facts.guard_bytes),
        stack_range: (Avma(facts.stack_low), Avma(facts.stack_high)),
        stack_kind: facts.stack_kind,
        generation: facts.generation,
        ..Thread::default()
    }
}

pub(super) fn book(books: &mut Books, segment: &Segment) {
    // A stack in the program's own memory is booked with that memory. The kernel maps the main thread's stack as it
    // grows, so its limit doesn't count as committed.
    let (reserved, committed) = stack_bytes(&books.threads);
    let index = books.category_named(THREAD_STACK);
    map(&mut books.categories[index].figures, reserved, committed);

    let loaded = books.modules.iter().filter(|m| m.unloaded_ns == 0);
    let libraries = loaded.map(|m| Bytes(m.range.1.0.saturating_sub(m.range.0.0))).sum();
    let index = books.category_named(LOADED_LIBRARIES);
    map(&mut books.categories[index].figures, libraries, libraries);
    books.categories[index].figures.files += libraries;

    let slots = segment.threads.iter();
    let (put, taken) = slots
        .fold((0u64, 0u64), |sum, t| (sum.0.saturating_add(t.table_inserts), sum.1.saturating_add(t.table_removes)));
    let put = put.saturating_add(segment.counter("table_inserts"));
    let tabled = put.saturating_sub(taken.saturating_add(segment.counter("table_removes")));
    let live = books.callers.iter().fold(0u64, |sum, c| sum.saturating_add(c.figures.live_count));
    let trailers = live.saturating_sub(tabled);
    books.own = TrackerCost {
        trailers,
        tabled: tabled.min(live),
        // A caller's sums don't show which of its blocks have a trailer.
        growth: if trailers == 0 { (Bytes::ZERO, Bytes::ZERO) } else { growth(segment, &books.callers) },
        by_page: false,
        side_table: Bytes::ZERO,
        library: Bytes::ZERO,
        private: Bytes(segment.counter("own_private_bytes")),
        segment: Bytes(segment.counter("own_segment_bytes")),
        reserved: Bytes(segment.counter("own_reserved_bytes")),
    };
    books.own_mappings.clone_from(&segment.own_mappings);
    let index = books.category_named(PLIMSOLL);
    let committed = books.own.private + books.own.segment;
    let reserved = committed.max(books.own.reserved + books.own.private + Bytes(segment.head.file_bytes));
    map(&mut books.categories[index].figures, reserved, committed);
}

/// The threads in use, one for each stack. libc gives a thread's stack to a later thread. So of those with equal stacks
/// all but one ended by exit(2), past libc, and keep their slots.
fn with_own_stack(threads: &[Thread]) -> impl Iterator<Item = &Thread> {
    let mut seen = HashSet::new();
    let in_use = threads.iter().filter(|thread| thread.in_use);
    in_use.filter(move |thread| thread.stack == Bytes::ZERO || seen.insert(thread.stack_range))
}

/// The number of threads with a slot.
pub(super) fn count(threads: &[Thread]) -> u64 {
    with_own_stack(threads).filter(|thread| thread.tid != 0).count() as u64
}

/// The stacks, reserved and committed.
fn stack_bytes(threads: &[Thread]) -> (Bytes, Bytes) {
    let stacks = with_own_stack(threads).filter(|t| t.stack_kind != OWN_MEMORY);
    stacks.fold((Bytes(0), Bytes(0)), |(reserved, committed), t| {
        let committed = if t.stack_kind == MAIN { committed } else { committed + t.stack };
        (reserved + t.stack + t.guard, committed)
    })
}

impl Books {
    /// Takes out the threads that a running process no longer has: a thread that ended by exit(2), past libc, keeps its
    /// slot. `exists` has an id as the process sees it. To be called before [`Books::read_resident`].
    pub fn keep_threads(&mut self, exists: impl Fn(u32) -> bool) {
        let before = stack_bytes(&self.threads);
        for thread in self.threads.iter_mut().filter(|t| t.in_use && t.tid != 0) {
            thread.in_use = exists(thread.tid);
        }
        let now = stack_bytes(&self.threads);
        let (reserved, committed) = (before.0 - now.0, before.1 - now.1);
        let index = self.category_named(THREAD_STACK);
        for figures in [&mut self.categories[index].figures, &mut self.total] {
            let less = |present: &mut Bytes, peak: &mut Bytes, bytes| {
                let is_present = *peak == *present;
                *present -= bytes;
                *peak = if is_present { *present } else { *peak };
            };
            less(&mut figures.reserved, &mut figures.peak_reserved, reserved);
            less(&mut figures.committed, &mut figures.peak_committed, committed);
        }
        self.process.threads = count(&self.threads);
    }
}

fn map(figures: &mut Figures, reserved: Bytes, committed: Bytes) {
    figures.reserved += reserved;
    figures.committed += committed;
}
