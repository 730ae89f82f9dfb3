//! account/inherited.rs: a copy of the books while three threads continue to book. hook/fork.rs: a detach during a fork.

use crate::segment::{by_caller, counter};
use crate::{Random, alone, books, fresh};
use plimsoll_segment::{Counter, FILE_BYTES, Purpose, Section};
use plimsoll_tracker::account::classify;
use plimsoll_tracker::account::inherited::{Child, Inherited};
use plimsoll_tracker::account::mapping::{books as mappings, existing};
use plimsoll_tracker::account::rows::{self, Amount};
use plimsoll_tracker::account::thread;
use plimsoll_tracker::hook::fork;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::sys::os;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Ends the threads, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_copy_beside_three_threads_has_nothing_freed_only() {
    alone(|| {
        let parent = fresh();
        let (done, round) = (AtomicBool::new(false), AtomicU64::new(0));
        let pool = Mutex::new(Vec::<(u32, Amount)>::new());
        let (mut copies, mut grown) = (0u64, 0u64);
        std::thread::scope(|scope| {
            for n in 0..3u64 {
                let (done, round, pool) = (&done, &round, &pool);
                scope.spawn(move || {
                    let mut t = thread::attach(parent, None);
                    let mut random = Random(n + 1);
                    let mut made = 0;
                    while !done.load(Relaxed) {
                        // Sometimes a new caller; another thread may free its blocks at once.
                        made += u64::from(made < round.load(Relaxed) * 10 && random.below(4) == 0);
                        let frame = 0x1_0000 * (n + 1) + 2 * (made - random.below(made.min(8) + 1));
                        let caller = classify::caller(parent, &[frame], 0, 1);
                        let amount = Amount { usable: 24 + random.below(100) * 16, requested: 24 };
                        rows::alloc(books(parent), t.as_deref_mut(), caller, amount);
                        let mut pool = pool.lock().expect("pool");
                        pool.push((caller, amount));
                        if pool.len() > 3 {
                            let at = random.below(pool.len() as u64) as usize;
                            let (caller, amount) = pool.swap_remove(at);
                            drop(pool);
                            rows::free(books(parent), t.as_deref_mut(), caller, amount);
                        }
                    }
                });
            }
            let _ends = Ends(&done);
            // Repeats until some copies were made while new rows came. On one CPU that is one of eight copies, and
            // fewer if the copy is faster or the kernel switches threads less often. The section has space for the
            // callers of all repetitions.
            while grown < 20 && copies < 4000 {
                round.fetch_add(1, Relaxed);
                let before = parent.used(Section::Rows);
                let base = written(Inherited::take(parent).expect("memory"));
                // SAFETY: a mapping of that size, unmapped below.
                let child = unsafe { Segment::at(base as usize) };
                for (caller, s) in by_caller(child) {
                    assert!(s.alloc_count >= s.free_count && s.alloc_bytes >= s.free_bytes, "caller {caller}: {s:?}");
                    let there = (caller as usize) < child.used(Section::Callers);
                    assert!(there && child.caller(caller).hash.load(Relaxed) != 0, "caller {caller} isn't there");
                }
                copies += 1;
                grown += u64::from(parent.used(Section::Rows) > before);
                // SAFETY: no other thread uses the mapping.
                unsafe { os::unmap(base, FILE_BYTES) };
            }
        });
        println!("exercised: {copies} copies, during {grown} of them came new rows");
        assert_eq!(grown, 20);
    });
}

/// Writes a copy into zeroed memory of its own, of the length of a segment.
fn written(copy: Inherited) -> *mut u8 {
    let base = os::table(FILE_BYTES, Purpose::Data).expect("address space");
    let is_written = copy.write(Child::default(), |at, bytes, zeros| {
        assert!(at + bytes.len() + zeros <= FILE_BYTES);
        // SAFETY: inside the mapping, which no other thread uses.
        unsafe { base.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    });
    assert!(is_written);
    copy.give_back();
    base
}

/// Other threads claim the frames of a new stack together, and write them afterwards. The child reads again what wasn't
/// written yet when it was copied.
#[test]
fn frames_that_were_copied_before_they_were_written_are_in_the_child() {
    // A stack of 64 frames for each of 64 threads.
    const FRAMES: u32 = 64 * 64;
    alone(|| {
        let parent = fresh();
        let [own, _other] = [(); 2].map(|()| thread::attach(parent, None).expect("a slot").slot);
        let first = parent.append_some(Section::Frames, FRAMES as usize).expect("room");
        let mut copy = Inherited::take(parent).expect("memory");
        let frames = first..first + FRAMES;
        for i in frames.clone() {
            parent.frame(i).value.store(0x1000 + u64::from(i), Relaxed);
        }
        copy.follow(parent, own);
        let base = written(copy);
        // SAFETY: a zeroed writable mapping of that size, never unmapped.
        let child = unsafe { Segment::at(base as usize) };
        let value = |i: u32| child.frame(i).value.load(Relaxed);
        assert!(frames.clone().all(|i| value(i) == 0x1000 + u64::from(i)));
        println!("exercised: {} frames", frames.len());
    });
}

/// The map's lock is taken before the fork. A detach between the handlers must not leave it taken: the next attach begins
/// with an empty map.
#[test]
fn a_detach_during_a_fork_leaves_the_map_free() {
    alone(|| {
        let segment = fresh();
        assert!(mappings::init(segment) && segment.publish(1, 0, 0));
        // SAFETY: as libc calls them; the fork itself is left out.
        unsafe { fork::prepare() };
        Segment::withdraw();
        // SAFETY: as above.
        unsafe { fork::parent() };
        std::thread::scope(|scope| scope.spawn(|| existing::empty_map(segment)).join().expect("it ends"));
        assert_eq!((counter(segment, Counter::forks), counter(segment, Counter::faults)), (1, 0));
        println!("exercised: one fork");
    });
}
