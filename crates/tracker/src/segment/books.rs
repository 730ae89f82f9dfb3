//! Who may write the rows. A row is written by its own thread with plain adds, and a shared row by every thread with
//! locked ones. A write by the wrong thread makes sums wrong, so nobody gets a row without a token that shows the
//! right.
//!
//! | token | shows that | from |
//! | --- | --- | --- |
//! | [`MayBook`] | the calling thread is inside the tracker | `guard::enter`, a taken state |
//! | | no segment is published, so nobody is inside | [`MayBook::unpublished`]: boot, an attach, a fork child |
//! | [`OwnRow`] | the row is the calling thread's | the row's slot; the thread's own index or memo |
//! | `account::mapping::books::Held` | the calling thread holds the lock of the map | the lock |
//!
//! A token is an address and costs no instruction. Reading a row needs none: [`Segment::seen`].
//!
//! Each use without the right must not compile. Beside it is the same with the right, so that nothing else makes it fail.
//!
//! ```
//! fn row_of_a_token(books: plimsoll_tracker::segment::books::MayBook<'static>) {
//!     books.row(1);
//! }
//! ```
//! ```compile_fail,E0624
//! fn row_without_a_token(segment: plimsoll_tracker::segment::Segment) {
//!     segment.row(1);
//! }
//! ```
//! ```
//! fn number_in_another_thread(n: u64) {
//!     std::thread::spawn(move || n + 1);
//! }
//! ```
//! ```compile_fail,E0277
//! fn token_in_another_thread(books: plimsoll_tracker::segment::books::MayBook<'static>) {
//!     std::thread::spawn(move || books.row(1));
//! }
//! ```

use super::Segment;
use crate::sys::cpu::{SLOT_MARK, tls_get_half};
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::Row;

/// Keeps a token in the calling thread.
type OfThread = PhantomData<*const ()>;

/// The right to book.
#[derive(Clone, Copy)]
pub struct MayBook<'a> {
    segment: Segment,
    held: PhantomData<&'a ()>,
    thread: OfThread,
}

impl MayBook<'_> {
    /// # Safety
    /// As long as the token is used, no hook takes the calling thread's state: it is taken already, by this frame or by
    /// one that a signal handler interrupted; the thread has none; or no segment is published.
    #[inline(always)]
    pub unsafe fn of(segment: Segment) -> Self {
        MayBook { segment, held: PhantomData, thread: PhantomData }
    }

    /// The right to book in a segment that no hook can find yet.
    ///
    /// # Safety
    /// As long as the token is used, no segment is published, and no hook is still running that entered while a segment
    /// was published.
    pub unsafe fn unpublished(segment: Segment) -> Self {
        debug_assert!(Segment::published().is_none());
        MayBook { segment, held: PhantomData, thread: PhantomData }
    }

    /// A row, to be written with locked adds unless it is the calling thread's. Any number names one.
    #[inline(always)]
    pub fn row(self, i: u32) -> &'static Row {
        self.segment.row(i)
    }
}

impl Deref for MayBook<'_> {
    type Target = Segment;
    #[inline(always)]
    fn deref(&self) -> &Segment {
        &self.segment
    }
}

/// The slot, as the rows of the calling thread have it.
#[derive(Clone, Copy)]
pub struct SlotMark(u32, OfThread);

impl SlotMark {
    /// The mark of the calling thread. Without a state, a mark that no row in use has.
    #[inline(always)]
    pub fn of_thread() -> SlotMark {
        SlotMark(tls_get_half::<SLOT_MARK>(), PhantomData)
    }

    /// The slot + 1; 0 where the thread has no state.
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A row of the calling thread.
#[derive(Clone, Copy)]
pub struct OwnRow {
    row: &'static Row,
    thread: OfThread,
}

impl OwnRow {
    /// The row with this number, if it is of the calling thread's slot. A thread without a slot has the mark of rows
    /// that aren't in use.
    #[inline(always)]
    pub fn of(segment: Segment, i: u32, own: SlotMark) -> Option<OwnRow> {
        let row = segment.row(i);
        (row.slot.load(Relaxed) == own.0 && own.0 != 0).then_some(OwnRow { row, thread: PhantomData })
    }

    /// # Safety
    /// An entry of the calling thread's index names this row.
    #[inline(always)]
    pub unsafe fn indexed(segment: Segment, i: u32) -> OwnRow {
        OwnRow { row: segment.row(i), thread: PhantomData }
    }

    /// # Safety
    /// An entry of the calling thread's memo has this offset, of [`super::row_offset`].
    #[inline(always)]
    pub unsafe fn remembered(segment: Segment, offset: u32) -> OwnRow {
        // SAFETY: the caller's contract.
        OwnRow { row: unsafe { segment.row_at(offset) }, thread: PhantomData }
    }
}

impl Deref for OwnRow {
    type Target = Row;
    #[inline(always)]
    fn deref(&self) -> &Row {
        self.row
    }
}

/// A row to be read, whoever writes it.
#[derive(Clone, Copy)]
pub struct Seen(&'static Row);

impl Seen {
    /// Its caller.
    #[inline(always)]
    pub fn caller(self) -> u32 {
        self.0.caller.load(Relaxed)
    }

    /// Its slot + 1; 0: not in use.
    #[inline(always)]
    pub fn slot_mark(self) -> u32 {
        self.0.slot.load(Relaxed)
    }

    /// Whether it is in use: then its caller can be read.
    pub fn is_used(self) -> bool {
        self.0.slot.load(Acquire) != 0
    }

    /// Blocks that were allocated.
    pub fn blocks(self) -> u64 {
        self.0.alloc_count.load(Relaxed)
    }

    /// Bytes and blocks that were allocated.
    pub fn allocated(self) -> (u64, u64) {
        (self.0.alloc_bytes.load(Acquire), self.0.alloc_count.load(Acquire))
    }

    /// Bytes and blocks that were freed: to be read before what was allocated.
    pub fn freed(self) -> (u64, u64) {
        (self.0.free_bytes.load(Acquire), self.0.free_count.load(Acquire))
    }
}

impl Segment {
    /// A row to be read. Any number names one.
    #[inline(always)]
    pub fn seen(self, i: u32) -> Seen {
        Seen(self.row(i))
    }
}
