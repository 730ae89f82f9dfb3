//! A signal handler that uses the side table while a level of it opens, after each instruction of the insertion that
//! opens it.

use crate::alone;
use plimsoll_tracker::account::blocks::Key;
use plimsoll_tracker::account::side_table::{self, FACTOR};
use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Entries of a bucket: with addresses of one bucket, so many insertions fill a level.
const BUCKET: usize = 8;
/// The seventh level, which lies in the second mapping, is the last level that opens here.
const LEVELS: usize = 7;
const USABLE: usize = 1024;

static STEP: AtomicU64 = AtomicU64::new(0);
/// The step that the handler works at; [`EACH`] for all.
static DUE: AtomicU64 = AtomicU64::new(0);
const EACH: u64 = u64::MAX;
/// The upper hash bits of the handler's addresses.
static ITS: AtomicU64 = AtomicU64::new(0);
static WORKED: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Addresses whose hashes have these upper 28 bits, so that they share a bucket in every level.
fn address(upper: u64, i: usize) -> *mut u8 {
    // Newton's iteration for the inverse of an odd number; each step doubles the right bits.
    let inverse = (0..6).fold(FACTOR, |x, _| x.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(x))));
    ((upper << 36 | (i as u64) << 19).wrapping_mul(inverse) >> 16) as *mut u8
}

fn key(i: usize) -> Key {
    Key { row: 5 + i as u32, requested: (USABLE - i % 8) as u64, sampled: false }
}

extern "C" fn on_trap(_: i32) {
    let step = STEP.fetch_add(1, Relaxed);
    let due = DUE.load(Relaxed);
    if due != EACH && due != step {
        return;
    }
    let upper = ITS.load(Relaxed);
    // One block stays in the table if the handler works at one step only, and one is removed again.
    for (i, goes) in [(1000, due == EACH), (1001, true)] {
        let p = address(upper, i);
        let entered = side_table::insert(p, USABLE, key(i)) && side_table::get(p, USABLE) == Some(key(i));
        let left = !goes || side_table::remove(p, USABLE) == Some(key(i)) && side_table::get(p, USABLE).is_none();
        FAULTS.fetch_add(u64::from(!entered || !left), Relaxed);
    }
    WORKED.fetch_add(1, Relaxed);
}

/// The insertion that opens level `level`, with the handler at work at one step or at each. Returns its steps.
fn open(level: usize, its: u64, due: u64) -> u64 {
    // SAFETY: nobody else uses the table.
    unsafe { side_table::reset_books() };
    let before = level * BUCKET;
    assert!((0..before).all(|i| side_table::insert(address(3, i), USABLE, key(i))));
    ITS.store(its, Relaxed);
    DUE.store(due, Relaxed);
    STEP.store(0, Relaxed);
    // SAFETY: sets the trap flag for one call; the handler is in place.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let entered = side_table::insert(address(3, before), USABLE, key(before));
    // SAFETY: clears it.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    assert!(entered);
    let steps = STEP.load(Relaxed);
    let what = format!("level {level}, handler in bucket {its}, step {due} of {steps}");
    for i in 0..=before {
        assert_eq!(side_table::remove(address(3, i), USABLE), Some(key(i)), "{what}");
        assert_eq!(side_table::get(address(3, i), USABLE), None, "{what}");
    }
    if due < steps {
        assert_eq!(side_table::remove(address(its, 1000), USABLE), Some(key(1000)), "{what}");
    }
    assert_eq!(FAULTS.load(Relaxed), 0, "{what}");
    steps
}

/// Interrupts at every `stride`-th instruction. The handler's blocks belong to the full bucket, or to a bucket that has
/// space.
fn interrupt(stride: usize) {
    alone(|| {
        // SAFETY: the handler makes no call that a handler may not make.
        unsafe { libc::signal(libc::SIGTRAP, on_trap as extern "C" fn(i32) as usize) };
        let mut openings = 0;
        for level in 0..LEVELS {
            for its in [3, 77] {
                let steps = open(level, its, EACH);
                let first = level + its as usize;
                for due in (first % stride..steps as usize).step_by(stride) {
                    open(level, its, due as u64);
                    openings += 1;
                }
            }
        }
        println!("exercised: {openings} interrupted openings, {} visits", WORKED.load(Relaxed));
        assert!(openings > 50);
    });
}

#[test]
fn a_handler_may_use_the_table_while_a_level_opens() {
    interrupt(199);
}

#[test]
#[ignore = "full: 10,000 openings, each single-stepped"]
fn a_handler_may_use_the_table_after_each_instruction() {
    interrupt(5);
}
