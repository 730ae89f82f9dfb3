//! account/classes.rs: what is learned about an allocator's sizes, against the sizes themselves.

use crate::{Random, alone, fresh};
use plimsoll_segment::Allocator;
use plimsoll_tracker::account::blocks::{self, Key, OTHER_BELOW, TRAILER};
use plimsoll_tracker::account::classes::{
    ADDED_BYTES, IN_PAGE, QUERY, SIZES, WITHOUT_TRAILER, learn, most_added, real_request,
};
use plimsoll_tracker::account::side_table::page_keys::{CLASSES, class_of};
use plimsoll_tracker::sys::os;
use std::sync::atomic::Ordering::Relaxed;

/// Sizes like those of the three allocators: multiples of 8, four for each doubling or all multiples of 16.
fn sizes(random: &mut Random) -> Vec<usize> {
    let mut sizes = vec![8usize];
    while sizes[sizes.len() - 1] < 16 << 10 {
        let last = sizes[sizes.len() - 1];
        let step = match random.below(3) {
            0 => 8,
            1 => 16,
            _ => (last.next_power_of_two() / 8).max(8),
        };
        // Below 4 KiB there are at most 128.
        sizes.push(last + step.max(last / 32 / 8 * 8));
    }
    sizes
}

/// Returns the requests that leave space, that are enlarged, that have none, and whose keys are in arrays.
fn check(allocator: Allocator, sizes: &[usize]) -> [u64; 4] {
    let size_of = |request: usize| *sizes.iter().find(|size| **size >= request).expect("a size");
    blocks::init(allocator);
    assert!(blocks::publish(fresh()));
    learn(allocator as u32, size_of);
    let mut counts = [0; 4];
    assert_eq!(SIZES[0].load(Relaxed), QUERY);
    let in_pages = SIZES[1].load(Relaxed) & (WITHOUT_TRAILER | IN_PAGE) == WITHOUT_TRAILER | IN_PAGE;
    for (n, entry) in SIZES.iter().enumerate().skip(1) {
        let (left, real) = (entry.load(Relaxed), real_request(n));
        if left & WITHOUT_TRAILER != 0 && left & IN_PAGE != 0 {
            assert_eq!((CLASSES[usize::from(left)].load(Relaxed) >> 32) as usize, size_of(n), "{n}");
            assert_eq!((class_of(size_of(n), n), real), (Some(left), n), "{n}");
            counts[3] += 1;
        } else if in_pages {
            assert!(left == QUERY && size_of(n) > OTHER_BELOW, "{n}");
        } else if left & WITHOUT_TRAILER == 0 {
            // The trailer is in the last bytes of the block that the allocator gives for the enlarged request, and
            // behind the request.
            assert_eq!(usize::from(left), size_of(real) - TRAILER, "{n}");
            assert!(usize::from(left) >= n && real == n + ADDED_BYTES.load(Relaxed), "{n}");
            let more = size_of(real) - size_of(n);
            assert!(more <= most_added(size_of(n) == n), "{n}");
            counts[usize::from(more > 0)] += 1;
        } else {
            assert_eq!((usize::from(left), real), (size_of(n) + 1, n), "{n}");
            let more = size_of(n + TRAILER) - size_of(n);
            assert!(size_of(n) - n < TRAILER, "{n}");
            assert!(ADDED_BYTES.load(Relaxed) == 0 || more > most_added(size_of(n) == n), "{n}");
            counts[2] += 1;
        }
    }
    assert_eq!(real_request(OTHER_BELOW), OTHER_BELOW);
    counts
}

fn check_some(allocator: Allocator) {
    alone(|| {
        for seed in 1..20 {
            let sizes = sizes(&mut Random(seed));
            let [space, enlarged, none, in_pages] = check(allocator, &sizes);
            println!(
                "{} sizes; exercised: {space} requests leave space, {enlarged} are enlarged, {none} have no trailer, \
                 {in_pages} have their keys in arrays",
                sizes.len()
            );
            let is_mimalloc = allocator == Allocator::Mimalloc;
            // Beyond 64 sizes a page word has no number for the next.
            let few = sizes.iter().filter(|size| **size < OTHER_BELOW + TRAILER).count() < 64;
            assert!(if is_mimalloc { enlarged > 100 } else { enlarged == 0 });
            assert!(if few && !is_mimalloc { in_pages > 3000 } else { in_pages == 0 && space > 1000 && none > 30 });
        }
    });
}

#[test]
fn a_trailer_lies_in_the_block_that_jemalloc_gives() {
    check_some(Allocator::Jemalloc);
}

#[test]
fn a_trailer_lies_in_the_block_that_tcmalloc_gives() {
    check_some(Allocator::Tcmalloc);
}

#[test]
fn a_trailer_lies_in_the_larger_block_that_mimalloc_gives() {
    check_some(Allocator::Mimalloc);
}

/// An allocator that pads each block reports other sizes than it gives, so requests aren't enlarged.
#[test]
fn nothing_is_learned_from_an_allocator_without_classes() {
    alone(|| {
        blocks::init(Allocator::Mimalloc);
        assert!(blocks::publish(fresh()));
        for size_of in [|request| request, |_| 0, |request| request / 8 * 8 + 12] {
            learn(Allocator::Mimalloc as u32, size_of);
            assert!(SIZES.iter().all(|left| left.load(Relaxed) == QUERY));
            assert!((0..=OTHER_BELOW).all(|n| real_request(n) == n));
        }
    });
}

#[test]
fn small_blocks_have_no_trailer_until_one_gets_one() {
    alone(|| {
        assert!((0..2 * OTHER_BELOW).all(|usable| !blocks::has_no_trailer(usable)), "nothing is known");
        check(Allocator::Jemalloc, &sizes(&mut Random(1)));
        // The block of malloc(0) has 8 usable bytes and a trailer.
        let without = |usable| usable > TRAILER && usable <= OTHER_BELOW;
        assert!((0..2 * OTHER_BELOW).step_by(8).all(|usable| blocks::has_no_trailer(usable) == without(usable)));
        let mut block = [0u64; OTHER_BELOW / 4];
        let mut write = |usable| {
            let key = Key { row: 5, requested: 0, sampled: false };
            // SAFETY: memory of this many bytes, all of them ours.
            unsafe { blocks::write_trailer_of(block.as_mut_ptr().cast(), usable, key) };
        };
        write(TRAILER);
        write(OTHER_BELOW + 8);
        assert!(blocks::has_no_trailer(64), "these are never taken for blocks without one");
        write(64);
        check(Allocator::Jemalloc, &sizes(&mut Random(1)));
        let any = (0..2 * OTHER_BELOW).step_by(8).find(|usable| blocks::has_no_trailer(*usable));
        assert_eq!(any, None, "also once the sizes are learned again");
    });
}

/// A detach leaves address space tight, and the next attach learns the sizes again. Trailers would not be found then:
/// since the first attach, no small block has one.
#[test]
fn arrays_stay_where_address_space_has_become_tight() {
    alone(|| {
        let sizes = sizes(&mut Random(1));
        let before = check(Allocator::Jemalloc, &sizes);
        assert!(before[3] > 3000, "{before:?}");
        assert!(os::note_limit(0));
        assert_eq!(check(Allocator::Jemalloc, &sizes), before);
        let has_trailer = |n: usize| SIZES[n].load(Relaxed) & WITHOUT_TRAILER == 0;
        assert!((1..OTHER_BELOW).all(|n| !has_trailer(n)), "{before:?}");
    });
}

/// An allocator that is tight from the start gets no arrays, also later.
#[test]
fn there_are_no_arrays_where_address_space_is_tight() {
    alone(|| {
        let sizes = sizes(&mut Random(1));
        assert!(os::note_limit(0));
        for _ in 0..2 {
            let [space, _, none, in_pages] = check(Allocator::Jemalloc, &sizes);
            assert!(in_pages == 0 && space > 1000 && none > 30);
        }
    });
}
