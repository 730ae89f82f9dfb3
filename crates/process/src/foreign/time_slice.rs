//! Gives way to other threads between reads that hold a lock of the target for long.
//!
//! The kernel holds the target's mmap lock while it reads smaps or scans the page map. If our time slice ends then, the
//! kernel takes the processor from us. The target's threads can neither map nor unmap memory until we run again. That
//! takes tens of milliseconds on a busy machine, and seconds at a low priority. So a thread that reads a process again
//! and again gives up the rest of its slice before the slice can end. It does so between reads, without such a lock.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Shorter than the kernel's slice with two processors (1.4 ms, kernel/sched/fair.c). One of these reads takes less
/// than the difference.
const TURN: Duration = Duration::from_millis(1);
/// A reading that has lasted this long doesn't give way any more, because its figures must be of one moment.
const LONGEST: Duration = Duration::from_millis(100);

thread_local! {
    /// When this thread's reading began, and its slice. None: it doesn't give way, since it reads once and somebody
    /// waits for it.
    static BEGAN: Cell<Option<(Instant, Instant)>> = const { Cell::new(None) };
    /// Time that this thread gave to others.
    static GIVEN: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Called by a thread that reads a process again and again, when it begins a reading after a pause.
pub fn begin_turn() {
    let now = Instant::now();
    BEGAN.set(Some((now, now)));
}

/// Called before a read that holds a lock of the target.
pub(crate) fn give_way() {
    #[cfg(test)]
    tests::OFFERS.set(tests::OFFERS.get() + 1);
    if let Some((reading, slice)) = BEGAN.get()
        && slice.elapsed() >= TURN
        && reading.elapsed() < LONGEST
    {
        let before = Instant::now();
        rustix::thread::sched_yield();
        let now = Instant::now();
        GIVEN.set(GIVEN.get() + (now - before));
        BEGAN.set(Some((reading, now)));
    }
}

/// Measures this thread's time, without what it gave to others: they had it while no lock of the target was held.
pub(crate) struct Stopwatch {
    began: Instant,
    given: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { began: Instant::now(), given: GIVEN.get() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_sub(GIVEN.get() - self.given)
    }
}

#[cfg(test)]
pub(crate) use tests::offers;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Deadline, LOOK, Target};

    thread_local! {
        pub static OFFERS: Cell<u64> = const { Cell::new(0) };
    }

    /// How often this thread could have given way.
    pub(crate) fn offers() -> u64 {
        OFFERS.get()
    }

    #[test]
    fn a_thread_gives_way_when_its_turn_is_over_and_only_if_it_has_one() {
        give_way();
        assert_eq!(BEGAN.get(), None);
        begin_turn();
        let first = BEGAN.get().expect("a turn");
        std::thread::sleep(TURN);
        give_way();
        let second = BEGAN.get().expect("a turn");
        // A test machine may be so busy that the reading has already lasted for too long.
        assert!(second.1 > first.1 || first.0.elapsed() > LONGEST);
        std::thread::sleep(LONGEST);
        give_way();
        assert_eq!(BEGAN.get(), Some(second), "a long reading goes on");
    }

    #[test]
    fn a_stopwatch_leaves_out_what_was_given() {
        let began = Instant::now();
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(30));
        // As if the kernel had let others run meanwhile.
        GIVEN.set(GIVEN.get() + Duration::from_millis(20));
        let took = watch.elapsed();
        assert!(took >= Duration::from_millis(10) && took <= began.elapsed() - Duration::from_millis(20), "{took:?}");
        // Only what is given after the start counts.
        let next = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(1));
        assert!(next.elapsed() >= Duration::from_millis(1));
        begin_turn();
        let given = GIVEN.get();
        std::thread::sleep(TURN);
        give_way();
        let is_long = BEGAN.get().is_none_or(|(reading, _)| reading.elapsed() > LONGEST);
        assert!(GIVEN.get() > given || is_long, "what sched_yield took");
    }

    #[test]
    fn there_is_an_offer_before_every_read_of_smaps() {
        let target = Target::open(std::process::id(), Deadline::after(LOOK)).expect("this process");
        // The kernel returns a page at most.
        let before = offers();
        let length = target.read("smaps").expect("own smaps").len() as u64;
        assert!(offers() - before > length / 4096, "{length}");
    }
}
