//! Categories that no caller makes: thread stacks, loaded libraries, and Plimsoll's own cost.

use plimsoll_segment::{FIXED_CATEGORIES, ThreadFacts, text};

use super::{Books, Figures, Thread};
use crate::source::segment::Segment;
use crate::units::{Avma, Bytes};

/// Name of the category of Plimsoll's own cost.
pub const PLIMSOLL: &str = FIXED_CATEGORIES[2];
/// Name of the category of thread stacks.
pub const THREAD_STACK: &str = FIXED_CATEGORIES[3];
/// Name of the category of loaded objects.
pub const LOADED_LIBRARIES: &str = FIXED_CATEGORIES[4];

/// Kinds of stacks, as in the segment's thread entries.
pub const OWN_MEMORY: u64 = 1;
pub const MAIN: u64 = 2;

/// A block's trailer: the last 8 usable bytes.
pub const TRAILER_BYTES: u64 = 8;

/// Own cost. Identity: `bytes = blocks × 8 + private + segment`, of live blocks that carry a trailer. The trailers lie in
/// the blocks (live bytes are usable bytes), so the category has only the rest: nothing is counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Live blocks with a trailer.
    pub trailers: u64,
    /// Thread state, memos, the side table.
    pub private: Bytes,
    /// Populated pages of the segment.
    pub segment: Bytes,
    /// Address space kept for the side table and the segment's growth.
    pub reserved: Bytes,
}

impl Own {
    pub fn bytes(&self) -> Bytes {
        Bytes(self.trailers.saturating_mul(TRAILER_BYTES)) + self.private + self.segment
    }
}

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
    // A stack in the program's own memory is booked where that memory is. The main thread's is mapped by the kernel as it
    // grows: of its limit nothing is committed beforehand.
    let stacks = books.threads.iter().filter(|t| t.in_use && t.stack_kind != OWN_MEMORY);
    let (reserved, committed) = stacks.fold((Bytes(0), Bytes(0)), |(reserved, committed), t| {
        let committed = if t.stack_kind == MAIN { committed } else { committed + t.stack };
        (reserved + t.stack + t.guard, committed)
    });
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
    books.own = Own {
        trailers: live.saturating_sub(tabled),
        private: Bytes(segment.counter("own_private_bytes")),
        segment: Bytes(segment.counter("own_segment_bytes")),
        reserved: Bytes(segment.counter("own_reserved_bytes")),
    };
    let index = books.category_named(PLIMSOLL);
    let committed = books.own.private + books.own.segment;
    let reserved = committed.max(books.own.reserved + books.own.private + Bytes(segment.head.file_bytes));
    map(&mut books.categories[index].figures, reserved, committed);
}

fn map(figures: &mut Figures, reserved: Bytes, committed: Bytes) {
    figures.reserved += reserved;
    figures.committed += committed;
}
