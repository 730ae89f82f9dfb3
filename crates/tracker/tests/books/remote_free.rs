//! account/remote_free.rs: a hint counts only if it names a row of the calling thread for the same caller, whoever
//! wrote it.

use crate::{Random, alone, books, fresh};
use plimsoll_tracker::account::thread::{self, StackBounds};
use plimsoll_tracker::account::{blocks, remote_free, rows};
use plimsoll_tracker::segment::books::SlotMark;
use std::sync::atomic::Ordering::Relaxed;

const CALLERS: u32 = 40;

#[test]
fn no_hint_leads_to_the_row_of_another_thread_or_caller() {
    alone(|| {
        let segment = fresh();
        assert!(blocks::publish(segment));
        // Without a state no row is this thread's.
        remote_free::note(3, SlotMark::of_thread(), 0);
        assert!((0..8).all(|row| remote_free::own_row(segment, row, SlotMark::of_thread()).is_none()));
        // Rows of three threads, one after the other, each for the same callers. The last thread is the one that frees.
        let rows: Vec<Vec<u32>> = (0..3)
            .map(|_| {
                let t = thread::attach(segment, Some(StackBounds { low: 4096, high: 8192, guard: 0, kind: 0 }));
                let t = t.expect("a slot");
                (3..3 + CALLERS).map(|caller| rows::row_for(books(segment), Some(&mut *t), caller)).collect()
            })
            .collect();
        let own = SlotMark::of_thread();
        let found =
            |row| remote_free::own_row(segment, row, own).map(|own| (own.slot.load(Relaxed), own.caller.load(Relaxed)));
        for (theirs, ours) in rows[0].iter().zip(&rows[2]) {
            remote_free::note(*theirs, own, *ours);
            assert_eq!(found(*theirs), Some((own.number(), segment.seen(*theirs).caller())));
        }
        let (mut random, mut right, mut refused) = (Random(3), 0, 0);
        for _ in 0..20_000 {
            let [theirs, hint] = [0, 1].map(|_| rows[random.below(3) as usize][random.below(CALLERS.into()) as usize]);
            // Rarely a row that no caller has.
            let theirs = if random.below(20) == 0 { (theirs + 1) << 8 } else { theirs };
            remote_free::note(theirs, own, hint);
            let (theirs_seen, hint_seen) = (segment.seen(theirs), segment.seen(hint));
            let is_right = theirs_seen.slot_mark() != 0
                && hint_seen.slot_mark() == own.number()
                && hint_seen.caller() == theirs_seen.caller();
            let found = found(theirs);
            assert_eq!(found, is_right.then(|| (own.number(), theirs_seen.caller())), "row {theirs}, hint {hint}");
            right += u64::from(is_right);
            refused += u64::from(!is_right);
        }
        println!("exercised: {right} right, {refused} refused");
        assert!(right > 100 && refused > 10_000);
    });
}
