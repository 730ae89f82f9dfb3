//! Reports to the central figures that wait for the thread that has their lock.
//!
//! ```text
//! row ──hash──▶ group of 16 places ──▶ a free one, filled ──▶ newest ─▶ older ─▶ … oldest ─▶ END
//! ```
//! A thread links a place only when it is filled, and the holder takes the whole list at once. So a thread that is
//! preempted, or ends, blocks no other one. A row has no more places than its group: a busy row doesn't take the places
//! of other groups.

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::*};

/// What a row gained or lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The row's caller.
    pub caller: u32,
    /// Usable bytes.
    pub bytes: i64,
    /// Blocks.
    pub count: i32,
}

/// States of [`Place::next`]; any larger number − LINK is the index of the next older place.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const END: u32 = 2;
const LINK: u32 = 3;

/// A place for a report.
pub(super) struct Place {
    next: AtomicU32,
    caller: AtomicU32,
    bytes: AtomicI64,
    count: AtomicI32,
}

const GROUPS: usize = 64;
const OF_GROUP: usize = 16;

static PLACES: [[Place; OF_GROUP]; GROUPS] = [const {
    [const {
        Place {
            next: AtomicU32::new(FREE),
            caller: AtomicU32::new(0),
            bytes: AtomicI64::new(0),
            count: AtomicI32::new(0),
        }
    }; OF_GROUP]
}; GROUPS];
static NEWEST: AtomicU32 = AtomicU32::new(END);

/// The largest report that found no place, for the rows of each group, since the list was last taken.
static UNREPORTED: [AtomicU64; GROUPS] = [const { AtomicU64::new(0) }; GROUPS];

fn group_of(row: usize) -> usize {
    row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - GROUPS.trailing_zeros())
}

fn place_at(i: u32) -> &'static Place {
    &PLACES[i as usize / OF_GROUP % GROUPS][i as usize % OF_GROUP]
}

/// A free place for a report of the row at this address. `None`: all places of the row's group are taken.
pub(super) fn place(row: usize) -> Option<ClaimedPlace> {
    let group = group_of(row);
    let is_mine = |p: &Place| p.next.compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_ok();
    let i = PLACES[group].iter().position(is_mine)?;
    Some(ClaimedPlace((group * OF_GROUP + i) as u32))
}

/// A place that this call has claimed, and that isn't in the list yet.
pub(super) struct ClaimedPlace(u32);

impl ClaimedPlace {
    /// Puts the report into the list.
    pub(super) fn fill(self, report: Report) {
        let place = place_at(self.0);
        place.caller.store(report.caller, Relaxed);
        place.bytes.store(report.bytes, Relaxed);
        place.count.store(report.count, Relaxed);
        let mut newest = NEWEST.load(Relaxed);
        loop {
            place.next.store(newest, Relaxed);
            match NEWEST.compare_exchange_weak(newest, self.0 + LINK, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(other) => newest = other,
            }
        }
    }
}

/// Whether nothing waits.
#[inline(always)]
pub(super) fn is_empty() -> bool {
    NEWEST.load(Relaxed) == END
}

/// Whether nothing waits, for the holder after it has released the lock. This is an atomic exchange of the list's head.
/// A report that the exchange doesn't see is linked later, so that report's thread sees the lock released.
pub(super) fn is_empty_at_last() -> bool {
    NEWEST.fetch_or(0, AcqRel) == END
}

/// Takes all reports, oldest first. Only the holder of the lock calls this.
pub(super) fn take_all(mut add: impl FnMut(Report)) {
    let (mut at, mut oldest) = (NEWEST.swap(END, AcqRel), END);
    // Turns the list round. The places are the holder's until they are free.
    while at >= LINK {
        let older = place_at(at - LINK).next.swap(oldest, Relaxed);
        (oldest, at) = (at, older);
    }
    while oldest >= LINK {
        let place = place_at(oldest - LINK);
        let report = Report {
            caller: place.caller.load(Relaxed),
            bytes: place.bytes.load(Relaxed),
            count: place.count.load(Relaxed),
        };
        oldest = place.next.load(Relaxed);
        place.next.store(FREE, Release);
        add(report);
    }
}

/// In a fork child, where nothing waits: frees the places that a thread of the parent had taken from the list. A
/// claimed place stays claimed, since the frame that has it may be this thread's.
pub(super) fn free_taken() {
    for place in PLACES.iter().flatten().filter(|place| place.next.load(Relaxed) >= END) {
        place.next.store(FREE, Relaxed);
    }
}

/// Notes bytes of the row at this address that found no place. They stay in the row.
#[cold]
pub(super) fn note_unreported(row: usize, bytes: u64) {
    UNREPORTED[group_of(row)].fetch_max(bytes, Relaxed);
}

/// The sum of what was noted since the last call.
pub(super) fn take_unreported() -> u64 {
    UNREPORTED.iter().fold(0, |sum: u64, most| sum.saturating_add(most.swap(0, Relaxed)))
}

/// The list is static, so the tests that use it run one at a time.
#[cfg(test)]
pub(super) static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    /// First in one thread, then with a taker beside four threads that leave reports.
    #[test]
    fn each_report_is_taken_once_and_in_order() {
        let _one = ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
        let report = |i: i64| Report { caller: i as u32, bytes: i, count: -(i as i32) };
        let mut taken = vec![];
        for i in 0..5 {
            place(i as usize).expect("a free place").fill(report(i));
        }
        take_all(|r| taken.push(r));
        assert_eq!(taken, (0..5).map(report).collect::<Vec<_>>());
        assert!(is_empty());
        // A holder that doesn't exist in a fork child has taken a report.
        place(0).expect("a free place").fill(report(1));
        assert_ne!(NEWEST.swap(END, AcqRel), END);
        free_taken();

        let left = core::iter::from_fn(|| place(0)).take(100).collect::<Vec<_>>();
        assert_eq!(left.len(), OF_GROUP, "a row has the places of its group");
        let other = (1..99).find(|r| group_of(*r) != group_of(0)).expect("a row of another group");
        assert!(place(other).map(|p| p.fill(report(9))).is_some());
        left.into_iter().for_each(|p| p.fill(report(7)));
        let mut sum = 0;
        take_all(|r| sum += r.bytes);
        assert_eq!(sum, 9 + 7 * OF_GROUP as i64);

        for bytes in [5, 3, 8] {
            note_unreported(0, bytes);
        }
        note_unreported(other, 100);
        assert_eq!((take_unreported(), take_unreported()), (108, 0), "the largest of a row, the sum over rows");

        const EACH: i64 = 20_000;
        let done = AtomicU32::new(0);
        let (mut last, mut sum) = ([0i64; 4], 0);
        std::thread::scope(|s| {
            for t in 0..4 {
                let done = &done;
                s.spawn(move || {
                    for i in 1..=EACH {
                        while place(t).map(|p| p.fill(Report { caller: t as u32, bytes: i, count: 1 })).is_none() {
                            std::thread::yield_now();
                        }
                    }
                    done.fetch_add(1, Release);
                });
            }
            loop {
                let ended = done.load(Acquire) == 4;
                take_all(|r| {
                    assert_eq!(r.bytes, last[r.caller as usize] + 1, "in the order of each thread");
                    last[r.caller as usize] = r.bytes;
                    sum += i64::from(r.count);
                });
                if ended && is_empty() {
                    break;
                }
            }
        });
        assert_eq!((last, sum), ([EACH; 4], 4 * EACH));
    }
}
