//! The order in which booking begins and ends.

use crate::{alone, fresh};
use plimsoll_tracker::boot;
use plimsoll_tracker::hook::malloc::FREE;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::sys::libc::{self, Call};
use std::sync::atomic::Ordering::Relaxed;

/// After a detach, free is libc's own. A block that malloc books must not be freed by it, after whichever step of the
/// next attach another thread frees the block.
#[test]
fn free_books_before_malloc_does() {
    alone(|| {
        libc::resolve();
        let segment = fresh();
        let free = || FREE.load(Relaxed) as usize;
        for round in 0..2 {
            for (n, step) in boot::STEPS.iter().enumerate() {
                assert!(step(segment), "round {round}, step {n}");
                let is_past_the_books = free() == libc::real(Call::free);
                assert!(Segment::published().is_none() || !is_past_the_books, "round {round}, step {n}");
            }
            assert!(Segment::published().is_some());
            boot::stop_booking(segment);
            assert!(Segment::published().is_none() && free() == libc::real(Call::free));
        }
    });
}
