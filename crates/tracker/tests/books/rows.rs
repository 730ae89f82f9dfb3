//! account/rows.rs and account/peaks/ against exact sums.

use crate::segment::{Sums, by_caller, counter};
use crate::{Random, alone, books, fresh};
use plimsoll_segment::{CategoryKind, Counter, Section};
use plimsoll_tracker::account::classify;
use plimsoll_tracker::account::rows::{self, Amount};
use plimsoll_tracker::account::thread::{self, ThreadState};
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::segment::categories;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Exact live and peak figures.
#[derive(Clone, Copy, Default)]
struct Exact {
    bytes: i64,
    count: i64,
    peak: i64,
}

impl Exact {
    fn add(&mut self, bytes: i64, count: i64) {
        self.bytes += bytes;
        self.count += count;
        self.peak = self.peak.max(self.bytes);
    }
}

/// The central figures of the segment, which lag behind the rows.
#[derive(Clone, Copy, Debug)]
struct Central {
    bytes: i64,
    count: i64,
    peak: i64,
    count_at_peak: i64,
}

macro_rules! central {
    ($of:expr) => {{
        let c = $of;
        Central {
            bytes: c.live_bytes.load(Relaxed),
            count: c.live_count.load(Relaxed),
            peak: c.peak_bytes.load(Relaxed) as i64,
            count_at_peak: c.count_at_peak.load(Relaxed) as i64,
        }
    }};
}

impl Central {
    /// `rows` rows may each lag behind by `bound`.
    fn follows(self, exact: &Exact, rows: i64, bound: i64, what: &str) {
        let slack = rows * bound;
        let lag = (self.bytes - exact.bytes).abs();
        assert!(lag <= slack, "{what}: {self:?} is {lag} from {}, {rows} rows of {bound}", exact.bytes);
        assert!(self.peak >= exact.peak - slack, "{what}: peak of {self:?} misses {} by more than {slack}", exact.peak);
        assert!(
            self.peak <= exact.peak + slack,
            "{what}: peak of {self:?} is beyond {} by more than {slack}",
            exact.peak
        );
        assert!(self.peak >= self.bytes, "{what}: {self:?}, peak below live");
    }
}

/// The parts of the peak's composition, and its total.
fn composition(segment: Segment) -> Option<((u64, u64), (u64, u64))> {
    let half = segment.header().composition.load(Relaxed) as usize;
    let kept = segment.header().compositions.get(half)?;
    let categories = || (0..segment.used(Section::Categories) as u16).map(|k| segment.category(k));
    let sum = (
        categories().map(|k| k.at_peak_bytes[half].load(Relaxed)).sum(),
        categories().map(|k| k.at_peak_count[half].load(Relaxed)).sum(),
    );
    Some((sum, (kept.total_bytes.load(Relaxed), kept.total_count.load(Relaxed))))
}

fn category_of(segment: Segment, caller: u32) -> u16 {
    segment.caller(caller).category.load(Relaxed)
}

fn make_callers(segment: Segment, n: usize) -> Vec<u32> {
    let pushed: Vec<u32> = ["alpha", "beta", "gamma", "delta", "epsilon"]
        .map(|name| categories::register(segment, name.as_bytes(), CategoryKind::Program) as u32 + 1)
        .into();
    let of = |i: usize| classify::caller(segment, &[0x4000 + i as u64 * 16], 0, pushed[i % pushed.len()]);
    (0..n).map(of).collect()
}

/// A live block of the twin.
#[derive(Clone, Copy)]
struct Block {
    caller: u32,
    amount: Amount,
}

/// Several logical threads in one, so that every figure can be compared with the exact one after every operation.
#[test]
fn figures_follow_the_exact_ones_after_each_operation() {
    alone(|| {
        let segment = fresh();
        let callers = make_callers(segment, 300);
        // Each caller has blocks of one size, so that bytes and count of the same moment must agree to the byte.
        let size = |caller: u32| [24u64, 40, 1032, 72, 5000, 136, 300_008, 264][caller as usize % 8];
        let mut random = Random(41);
        const THREADS: usize = 6;
        let mut threads: Vec<Option<&'static mut ThreadState>> =
            (0..THREADS).map(|_| thread::attach(segment, None)).collect();
        let mut live = Vec::<Block>::new();
        let mut twin = BTreeMap::<u32, Sums>::new();
        let mut of_caller = BTreeMap::<u32, Exact>::new();
        let mut of_category = BTreeMap::<u16, Exact>::new();
        let mut total = Exact::default();
        let (mut adopted, mut shared, mut kept, mut last) = (0u64, 0u64, 0u64, 2);
        for step in 0..400_000u64 {
            let t = random.below(THREADS as u64 + 1) as usize;
            if random.below(2000) == 0 && t < THREADS {
                if let Some(state) = threads[t].take() {
                    thread::detach(segment, state.slot);
                }
                threads[t] = thread::attach(segment, None);
                adopted += 1;
            }
            let state = threads.get_mut(t).and_then(|t| t.as_deref_mut());
            shared += state.is_none() as u64;
            let growing = step % 100_000 < 60_000;
            let (caller, bytes, count) = if live.is_empty() || random.below(100) < if growing { 55 } else { 44 } {
                let caller = callers[(random.below(300) * random.below(300) / 300) as usize];
                let usable = size(caller);
                let b = Block { caller, amount: Amount { usable, requested: usable - random.below(16) } };
                rows::alloc(books(segment), state, caller, b.amount);
                let s = twin.entry(caller).or_default();
                (s.alloc_count, s.alloc_bytes) = (s.alloc_count + 1, s.alloc_bytes + usable);
                s.alloc_requested += b.amount.requested;
                live.push(b);
                (caller, usable as i64, 1)
            } else {
                let b = live.swap_remove(random.below(live.len() as u64) as usize);
                rows::free(books(segment), state, b.caller, b.amount);
                let s = twin.entry(b.caller).or_default();
                (s.free_count, s.free_bytes) = (s.free_count + 1, s.free_bytes + b.amount.usable);
                s.free_requested += b.amount.requested;
                (b.caller, -(b.amount.usable as i64), -1)
            };
            let category = category_of(segment, caller);
            of_caller.entry(caller).or_default().add(bytes, count);
            of_category.entry(category).or_default().add(bytes, count);
            total.add(bytes, count);

            let bound = counter(segment, Counter::drift_bound) as i64;
            let used = segment.used(Section::Rows) as i64;
            central!(segment.header()).follows(&total, used, bound, "total");
            central!(segment.category(category)).follows(&of_category[&category], used, bound, "category");
            let c = central!(segment.caller(caller));
            c.follows(&of_caller[&caller], THREADS as i64 + 1, bound, "caller");
            assert_eq!(c.peak, c.count_at_peak * size(caller) as i64, "bytes and count at the peak of caller {caller}");
            assert_eq!(c.bytes, c.count * size(caller) as i64, "central bytes and count of caller {caller}");
            let now = segment.header().composition.load(Relaxed);
            if now != last {
                (last, kept) = (now, kept + 1);
                let (sum, says) = composition(segment).expect("a half is valid");
                assert_eq!(sum, says, "Σ categories at the peak");
            }
            if step % 40_000 == 0 {
                assert_eq!(by_caller(segment), twin);
            }
        }
        assert_eq!(by_caller(segment), twin);
        let grown = threads.iter().flatten().filter(|t| t.index_mask > 127).count();
        let flushes = counter(segment, Counter::drift_flushes);
        println!(
            "exercised: {} rows, {flushes} flushes, {adopted} adoptions, {shared} in shared rows, {kept} compositions, \
             {grown} grown indexes, {} live at the end",
            segment.used(Section::Rows),
            live.len()
        );
        assert!(adopted > 50 && shared > 10_000 && kept > 10 && grown == THREADS && flushes > 1000);
    });
}

/// Threads start and end while the total grows: the bound of a row scales with the peak, but a row's unreported bytes
/// are kept.
#[test]
fn adopted_rows_lag_no_more() {
    alone(|| {
        let segment = fresh();
        let callers = make_callers(segment, 40);
        let mut total = Exact::default();
        for round in 0..30 {
            let mut t = thread::attach(segment, None);
            for c in &callers {
                rows::alloc(books(segment), t.as_deref_mut(), *c, Amount { usable: 3000, requested: 3000 });
                total.add(3000, 1);
            }
            // A large block raises the peak, and with it the bound of rows to come.
            rows::alloc(books(segment), t.as_deref_mut(), callers[0], Amount { usable: 1 << 28, requested: 1 << 28 });
            total.add(1 << 28, 1);
            let t = t.expect("a slot");
            for c in &callers[1..] {
                // It is the caller's only row, so its unreported bytes are all that the central figure lacks.
                let e = rows::find(books(segment), t, *c).expect("a row");
                let kept_back = e.row(books(segment)).room.load(Relaxed);
                let central = segment.caller(*c).live_bytes.load(Relaxed);
                assert_eq!(central + t.room_span / 2 - kept_back, 3000 * (round + 1), "round {round}");
            }
            thread::detach(segment, t.slot);
            let bound = counter(segment, Counter::drift_bound) as i64;
            central!(segment.header()).follows(&total, segment.used(Section::Rows) as i64, bound, "total");
            let lag = (segment.header().live_bytes.load(Relaxed) - total.bytes).abs();
            assert!(lag <= callers.len() as i64 * bound, "round {round}: {lag}");
            for c in &callers[1..] {
                let mut exact = Exact::default();
                exact.add(3000 * (round + 1), round + 1);
                central!(segment.caller(*c)).follows(&exact, 1, bound, "caller");
            }
        }
        println!("exercised: 30 adoptions, bound {}", counter(segment, Counter::drift_bound));
        assert!(counter(segment, Counter::drift_bound) > 4096);
    });
}

/// A section without space: blocks are booked in the shared rows, counted as such, and nothing is lost.
#[test]
fn a_full_row_section_shares() {
    alone(|| {
        let segment = fresh();
        let callers = make_callers(segment, 20);
        let mut t = thread::attach(segment, None);
        while segment.append(Section::Rows).is_some() {}
        let (mut bytes, mut booked) = (0, BTreeMap::<u32, u64>::new());
        for i in 0..1000u64 {
            let row = rows::row_for(books(segment), t.as_deref_mut(), callers[i as usize % 20]);
            let caller = segment.seen(row).caller();
            rows::alloc(books(segment), t.as_deref_mut(), caller, Amount { usable: 40 + i, requested: i });
            *booked.entry(caller).or_default() += 40 + i;
            bytes += 40 + i;
        }
        let sums = by_caller(segment);
        assert_eq!(sums.values().map(|s| s.alloc_bytes).sum::<u64>(), bytes);
        assert!(booked.iter().all(|(c, n)| sums[c].alloc_bytes == *n));
        assert!(counter(segment, Counter::rows_shared) >= 20);
        println!("exercised: 1000 blocks of {} callers without rows", callers.len());
    });
}

/// More callers by threads than the section has rows: the threads share rows, and each block keeps its caller.
#[test]
fn threads_share_rows_before_callers_do() {
    alone(|| {
        let segment = fresh();
        const CALLERS: usize = 8000;
        const THREADS: u64 = 20;
        let callers = make_callers(segment, CALLERS);
        // Fills the section as if other threads had the rest.
        let left = Section::Rows.capacity() / 8;
        while segment.used(Section::Rows) < Section::Rows.capacity() - left {
            assert!(segment.append_some(Section::Rows, 2).is_some());
        }
        for _ in 0..THREADS {
            let mut t = thread::attach(segment, None);
            for caller in &callers {
                rows::alloc(books(segment), t.as_deref_mut(), *caller, Amount { usable: 48, requested: 40 });
            }
        }
        let sums = by_caller(segment);
        let wrong = callers.iter().filter(|c| sums.get(*c).is_none_or(|s| s.alloc_count != THREADS)).count();
        assert_eq!((wrong, sums.len()), (0, CALLERS), "callers with blocks of another number than {THREADS}");
        assert_eq!(counter(segment, Counter::rows_shared), THREADS * CALLERS as u64);
        println!("exercised: {} rows for {CALLERS} callers of {THREADS} threads", left);
    });
}

/// Four real threads that hand blocks to each other, two of them without a slot, while a reader sums by the reader
/// algorithm.
#[test]
fn a_reader_beside_four_threads_finds_no_negative_figure() {
    alone(|| {
        let segment = fresh();
        let callers = make_callers(segment, 24);
        let done = AtomicBool::new(false);
        let pool = Mutex::new(Vec::<Block>::new());
        let mut twin = BTreeMap::<u32, Sums>::new();
        let mut snapshots = 0u64;
        let locals: Vec<BTreeMap<u32, Sums>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|n| {
                    let (callers, pool) = (&callers, &pool);
                    scope.spawn(move || {
                        let mut t = if n < 2 { thread::attach(segment, None) } else { None };
                        let mut random = Random(n + 1);
                        let mut own = Vec::<Block>::new();
                        let mut sums = BTreeMap::<u32, Sums>::new();
                        for _ in 0..150_000 {
                            if own.len() < 50 || random.below(2) == 0 {
                                let caller = callers[random.below(24) as usize];
                                let usable = 24 + random.below(100) * 16;
                                let b = Block { caller, amount: Amount { usable, requested: usable - 8 } };
                                rows::alloc(books(segment), t.as_deref_mut(), caller, b.amount);
                                let s = sums.entry(caller).or_default();
                                (s.alloc_count, s.alloc_bytes) = (s.alloc_count + 1, s.alloc_bytes + usable);
                                s.alloc_requested += usable - 8;
                                if random.below(3) == 0 { pool.lock().expect("pool").push(b) } else { own.push(b) }
                            } else {
                                let taken =
                                    if random.below(3) == 0 { pool.lock().expect("pool").pop() } else { own.pop() };
                                let Some(b) = taken else { continue };
                                rows::free(books(segment), t.as_deref_mut(), b.caller, b.amount);
                                let s = sums.entry(b.caller).or_default();
                                (s.free_count, s.free_bytes) = (s.free_count + 1, s.free_bytes + b.amount.usable);
                                s.free_requested += b.amount.requested;
                            }
                        }
                        sums
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut n = 0;
                while !done.load(Relaxed) {
                    for (caller, s) in by_caller(segment) {
                        assert!(s.alloc_count >= s.free_count, "caller {caller}: {s:?}");
                        assert!(s.alloc_bytes >= s.free_bytes && s.alloc_requested >= s.free_requested, "{s:?}");
                    }
                    n += 1;
                }
                n
            });
            let locals = threads.into_iter().map(|t| t.join().expect("thread")).collect();
            done.store(true, Relaxed);
            snapshots = reader.join().expect("reader");
            locals
        });
        for (caller, s) in locals.into_iter().flatten() {
            let t = twin.entry(caller).or_default();
            t.alloc_count += s.alloc_count;
            t.alloc_bytes += s.alloc_bytes;
            t.alloc_requested += s.alloc_requested;
            t.free_count += s.free_count;
            t.free_bytes += s.free_bytes;
            t.free_requested += s.free_requested;
        }
        assert_eq!(by_caller(segment), twin);
        // The central figures of each caller equal its rows less their unreported bytes: a taken lock loses nothing.
        let mut kept_back = BTreeMap::<u32, i64>::new();
        for i in 0..segment.used(Section::Rows) as u32 {
            let row = books(segment).row(i);
            let half = if row.slot.load(Relaxed) > 1 { HALF } else { 0 };
            *kept_back.entry(row.caller.load(Relaxed)).or_default() += half - row.room.load(Relaxed);
        }
        for (caller, s) in &twin {
            let exact = s.alloc_bytes as i64 - s.free_bytes as i64;
            let central = segment.caller(*caller).live_bytes.load(Relaxed);
            assert_eq!(central + kept_back[caller], exact, "caller {caller}");
        }
        println!("exercised: {snapshots} snapshots beside 4 threads");
        assert!(snapshots > 10);
    });
}

/// The initial bound of rows in a small segment.
const HALF: i64 = 4096;
