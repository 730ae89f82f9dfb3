//! Central figures: live by caller, category and total, and their peaks.
//!
//! The exact books are the rows, but a peak can't be computed from them afterwards. So each row reports to the central
//! figures when its live bytes have changed by more than the bound D since its last report:
//!
//! ```text
//! |central − exact| ≤ rows · D + U    D = max(4 KiB, peak / (128 · rows)), so that rows · D is at most
//!                                     max(rows · 4 KiB, 0.8 % of the peak); U: `drift_unreported`, usually 0
//! ```
//!
//! One try-lock guards them, so the bytes and the count of a peak belong to one moment, and so does the composition of
//! the total at its peak. A thread that doesn't get the lock leaves its report in a queue, because the holder may be
//! preempted for long, and a block may be freed meanwhile. The holder adds the queue before it releases the lock. If
//! the queue has no space either, and the lock isn't free soon, the row stays over the bound and tries again at its
//! next block. U counts the bytes that stay unreported in this way.

use self::waiting::Report;
use crate::segment::Segment;
use crate::segment::books::{MayBook, OwnRow};
use crate::stack::callers;
use crate::sys::CachePadded;
use crate::sys::clock::now_ns;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::*};
use plimsoll_segment::{Counter, Row, Section};

mod waiting;

static BUSY: CachePadded<AtomicBool> = CachePadded(AtomicBool::new(false));

const SMALLEST_BOUND: u64 = 4096;
const LARGEST_BOUND: u64 = 1 << 20;
/// Attempts to get the lock if the queue has no space.
const SPINS: u32 = 100;
/// How often the holder looks into the queue before it releases the lock: other threads may fill it for ever.
const ROUNDS: u32 = 64;

/// Twice the drift bound for new rows.
pub fn room_span(segment: Segment) -> i64 {
    let rows = segment.used(Section::Rows).max(1) as u64;
    let bound = (segment.header().peak_bytes.load(Relaxed) / (128 * rows)).clamp(SMALLEST_BOUND, LARGEST_BOUND);
    segment.raise(Counter::drift_bound, bound);
    2 * bound as i64
}

fn add(cell: &AtomicI64, n: i64) -> i64 {
    let v = cell.load(Relaxed).wrapping_add(n);
    cell.store(v, Relaxed);
    v
}

fn raise(peak: &AtomicU64, count_at_peak: &AtomicU64, bytes: i64, count: i64) -> bool {
    if bytes <= 0 || bytes as u64 <= peak.load(Relaxed) {
        return false;
    }
    peak.store(bytes as u64, Relaxed);
    count_at_peak.store(count.max(0) as u64, Relaxed);
    true
}

/// Reports to the central figures what a row of the calling thread gained or lost since its last report.
#[cold]
#[inline(never)]
pub fn flush(books: MayBook<'_>, row: OwnRow, flushed: &mut u32, span: i64) {
    let caller = row.caller.load(Relaxed);
    report(*books, &row, span / 2 - row.room.load(Relaxed), || {
        // A signal handler of this thread may free a block of this row at any moment.
        let bytes = span / 2 - row.room.swap(span / 2, Relaxed);
        let net = row.alloc_count.load(Relaxed).wrapping_sub(row.free_count.load(Relaxed)) as u32;
        let count = net.wrapping_sub(core::mem::replace(flushed, net)) as i32;
        Report { caller, bytes, count }
    });
}

/// As [`flush`], for a shared row. Bytes that aren't reported now stay in the row's `room` field for the next report.
pub fn flush_shared(books: MayBook<'_>, row: &Row, flushed: &AtomicU32) {
    let caller = row.caller.load(Relaxed);
    report(*books, row, row.room.load(Relaxed).wrapping_neg(), || {
        let bytes = row.room.swap(0, Relaxed).wrapping_neg();
        let net = row.alloc_count.load(Relaxed).wrapping_sub(row.free_count.load(Relaxed)) as u32;
        let count = net.wrapping_sub(flushed.swap(net, Relaxed)) as i32;
        Report { caller, bytes, count }
    });
}

/// Adds a row's report, or leaves it for the thread that has the lock. No thread waits for the holder of the lock: the
/// holder may be preempted, or may be this thread, interrupted by a signal handler. `bytes`: about what the report will
/// have.
fn report(segment: Segment, row: &Row, bytes: i64, take: impl FnOnce() -> Report) {
    if let Some(mut central) = Central::lock(segment) {
        return central.add(take());
    }
    let row = &raw const *row as usize;
    if let Some(place) = waiting::place(row) {
        place.fill(take());
        // The holder may have looked into the queue just before.
        return drop(Central::lock(segment));
    }
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if let Some(mut central) = Central::lock(segment) {
            return central.add(take());
        }
    }
    waiting::note_unreported(row, bytes.unsigned_abs());
}

/// The central figures, locked: the only way to write them while hooks book.
struct Central(Segment);

impl Central {
    /// `None`: another thread has the lock, or this thread's own interrupted call.
    #[inline(always)]
    fn lock(segment: Segment) -> Option<Central> {
        if BUSY.0.compare_exchange(false, true, AcqRel, Acquire).is_err() {
            return None;
        }
        let mut central = Central(segment);
        central.add_waiting();
        Some(central)
    }

    /// Adds the waiting reports, oldest first.
    #[inline(always)]
    fn add_waiting(&mut self) {
        if !waiting::is_empty() {
            let segment = self.0;
            waiting::take_all(|report| self.add(report));
            segment.raise(Counter::drift_unreported, waiting::take_unreported());
        }
    }

    /// Adds blocks to a caller, to its category and to the total.
    fn add(&mut self, Report { caller, bytes, count }: Report) {
        let (segment, count) = (self.0, i64::from(count));
        let h = segment.header();
        segment.count(Counter::drift_flushes, 1);
        let c = segment.caller(caller);
        raise(&c.peak_bytes, &c.count_at_peak, add(&c.live_bytes, bytes), add(&c.live_count, count));
        let parent = callers::parent(segment, caller);
        if parent != caller {
            let c = segment.caller(parent);
            raise(&c.peak_bytes, &c.count_at_peak, add(&c.live_bytes, bytes), add(&c.live_count, count));
        }
        let k = segment.category(c.category.load(Relaxed));
        if raise(&k.peak_bytes, &k.count_at_peak, add(&k.live_bytes, bytes), add(&k.live_count, count)) {
            k.peak_ns.store(now_ns(), Relaxed);
        }
        let total = add(&h.live_bytes, bytes);
        let blocks = add(&h.live_count, count);
        if raise(&h.peak_bytes, &h.count_at_peak, total, blocks) {
            let now = now_ns();
            h.peak_ns.store(now, Relaxed);
            let valid = h.composition.load(Relaxed);
            let kept = match valid {
                0 | 1 => h.compositions[valid as usize].total_bytes.load(Relaxed),
                _ => 0,
            };
            if total as u64 > kept + kept / 100 {
                keep_composition(segment, if valid == 0 { 1 } else { 0 }, now);
            }
        }
    }
}

impl Drop for Central {
    #[inline(always)]
    fn drop(&mut self) {
        for _ in 0..ROUNDS {
            self.add_waiting();
            BUSY.0.store(false, Release);
            // Either this thread sees a report that was left since, or the thread that left it gets the lock.
            if waiting::is_empty_at_last() || BUSY.0.compare_exchange(false, true, AcqRel, Acquire).is_err() {
                return;
            }
        }
        BUSY.0.store(false, Release);
    }
}

/// Writes the composition of the total into the invalid half, then makes that half valid. A category is below zero for
/// a while if its releases were reported before its allocations; it counts as zero, so the total is summed again.
fn keep_composition(segment: Segment, half: u32, now: u64) {
    let h = segment.header();
    let i = half as usize;
    let (mut bytes, mut count) = (0, 0);
    for k in 0..segment.used(Section::Categories) as u16 {
        let k = segment.category(k);
        let (b, n) = (k.live_bytes.load(Relaxed).max(0) as u64, k.live_count.load(Relaxed).max(0) as u64);
        k.at_peak_bytes[i].store(b, Relaxed);
        k.at_peak_count[i].store(n, Relaxed);
        (bytes, count) = (bytes + b, count + n);
    }
    let c = &h.compositions[i];
    c.total_bytes.store(bytes, Relaxed);
    c.total_count.store(count, Relaxed);
    c.time_ns.store(now, Relaxed);
    h.composition.store(half, Release);
}

/// In a fork child: the parent's thread that held the lock doesn't exist here, and peaks begin again.
pub fn reset_after_fork(child: Segment) {
    BUSY.0.store(false, Relaxed);
    // The blocks of reports that waited in the parent are in the child's rows, and would be missing in the child's
    // central figures.
    drop(Central::lock(child));
    waiting::free_taken();
    let now = now_ns();
    let h = child.header();
    let begin = |live: &AtomicI64, count: &AtomicI64, peak: &AtomicU64, at: &AtomicU64| {
        peak.store(live.load(Relaxed).max(0) as u64, Relaxed);
        at.store(count.load(Relaxed).max(0) as u64, Relaxed);
    };
    begin(&h.live_bytes, &h.live_count, &h.peak_bytes, &h.count_at_peak);
    h.peak_ns.store(now, Relaxed);
    for i in 0..child.used(Section::Callers) as u32 {
        let c = child.caller(i);
        begin(&c.live_bytes, &c.live_count, &c.peak_bytes, &c.count_at_peak);
    }
    for i in 0..child.used(Section::Categories) as u16 {
        let k = child.category(i);
        begin(&k.live_bytes, &k.live_count, &k.peak_bytes, &k.count_at_peak);
        k.peak_ns.store(now, Relaxed);
    }
    keep_composition(child, 0, now);
}

/// New books: nothing is live, and all peaks are 0.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books(segment: Segment) {
    let h = segment.header();
    let zero = |live: &AtomicI64, count: &AtomicI64, peak: &AtomicU64, at: &AtomicU64| {
        live.store(0, Relaxed);
        count.store(0, Relaxed);
        peak.store(0, Relaxed);
        at.store(0, Relaxed);
    };
    zero(&h.live_bytes, &h.live_count, &h.peak_bytes, &h.count_at_peak);
    h.peak_ns.store(0, Relaxed);
    h.composition.store(2, Relaxed);
    h.peak_reserved_bytes.store(h.reserved_bytes.load(Relaxed), Relaxed);
    h.peak_committed_bytes.store(h.committed_bytes.load(Relaxed), Relaxed);
    for i in 0..segment.used(Section::Callers) as u32 {
        let c = segment.caller(i);
        zero(&c.live_bytes, &c.live_count, &c.peak_bytes, &c.count_at_peak);
    }
    for i in 0..segment.used(Section::Categories) as u16 {
        let k = segment.category(i);
        zero(&k.live_bytes, &k.live_count, &k.peak_bytes, &k.count_at_peak);
        k.peak_ns.store(0, Relaxed);
        k.peak_reserved_bytes.store(k.reserved_bytes.load(Relaxed), Relaxed);
        k.peak_committed_bytes.store(k.committed_bytes.load(Relaxed), Relaxed);
    }
    waiting::take_all(|_| ());
    waiting::take_unreported();
    BUSY.0.store(false, Release);
}

/// Reports blocks that were booked before the central figures existed. Called at boot, when no thread has the lock.
pub fn seed(segment: Segment, caller: u32, bytes: i64, count: i64) {
    if let Some(mut central) = Central::lock(segment) {
        central.add(Report { caller, bytes, count: count as i32 });
    }
}

#[cfg(test)]
#[test]
fn a_block_that_is_freed_while_another_thread_has_the_lock_is_in_the_peak() {
    use crate::segment::categories;
    use crate::sys::os;
    use plimsoll_segment::{FILE_BYTES, Purpose};
    let _one = waiting::ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
    let base = os::table(FILE_BYTES, Purpose::Data).expect("address space") as usize;
    // SAFETY: a zeroed writable mapping of that size, never unmapped, which no hook knows.
    let (segment, books) = unsafe { (Segment::at(base), MayBook::of(Segment::at(base))) };
    segment.header().composition.store(2, Relaxed);
    assert!(segment.populate_start() && categories::init(segment));
    assert!(segment.append_some(Section::Callers, 4).is_some() && segment.append_some(Section::Rows, 4).is_some());
    let (row, flushed) = (books.row(1), AtomicU32::new(0));
    row.caller.store(3, Relaxed);
    let book = |bytes: i64| {
        let count = if bytes > 0 { &row.alloc_count } else { &row.free_count };
        count.fetch_add(1, Relaxed);
        row.room.fetch_sub(bytes, Relaxed);
        flush_shared(books, row, &flushed);
    };
    let h = segment.header();
    let figures = || (h.live_bytes.load(Relaxed), h.peak_bytes.load(Relaxed), h.count_at_peak.load(Relaxed));
    let unreported = || h.values[Counter::drift_unreported as usize].load(Relaxed);

    // The holder is preempted.
    let held = Central::lock(segment).expect("nobody has the lock");
    for size in [5000, 1000 << 20, 7000] {
        book(size);
        book(100);
        book(-size);
        book(-100);
    }
    assert_eq!(figures(), (0, 0, 0));
    drop(held);
    assert_eq!((figures(), unreported()), ((0, (1000 << 20) + 100, 2), 0));

    // More reports than the queue accepts from one row: the rest stays in the row, and is counted.
    let held = Central::lock(segment).expect("nobody has the lock");
    (0..100).for_each(|_| book(1000));
    drop(held);
    let queued = figures().0;
    assert_eq!(queued + unreported() as i64, 100_000);
    assert!(queued > 0 && unreported() > 0, "{queued}");
    book(1000);
    assert_eq!(figures().0, 101_000);
}
