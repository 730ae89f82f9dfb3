//! Tests of stack/java/method.rs: one entry for each method, and how much memory the index of few methods touches.

use crate::segment::counter;
use crate::{alone, fresh, touched};
use plimsoll_segment::{Counter, Purpose, Section};
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::stack::java::method;
use plimsoll_tracker::sys::os;
use std::sync::Barrier;
use std::sync::atomic::Ordering::*;

/// The entry of a stub, which is a method without a class.
fn stub(segment: Segment, i: usize) -> Option<u32> {
    method::stub(segment, format!("stub {i}").as_bytes())
}

/// The name that the segment has for an entry.
fn name(segment: Segment, index: u32) -> String {
    let m = segment.method(index);
    let (at, bytes) = (m.name_at.load(Relaxed) as usize, m.name_bytes.load(Relaxed) as usize);
    let from = segment.names(at, bytes).expect("populated");
    // SAFETY: bytes of the section that nobody writes any more.
    String::from_utf8(unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()).expect("text")
}

#[test]
fn methods_have_one_entry_each_until_the_section_is_full() {
    alone(|| {
        let segment = fresh();
        let index_bytes = || {
            let mut bytes = 0;
            os::each_mapping(|mapping| bytes += if mapping.purpose == Purpose::Pool { touched(mapping) } else { 0 });
            bytes
        };
        let before = index_bytes();
        let (mut known, mut kib) = (Vec::new(), Vec::new());
        let full = Section::Methods.capacity();
        for methods in [500, 3_000, 20_000, full] {
            known.extend((known.len()..methods).map(|i| stub(segment, i).expect("room")));
            assert!((0..methods).all(|i| stub(segment, i) == Some(known[i])), "{methods} methods");
            kib.push((index_bytes() - before) >> 10);
        }
        let mut distinct = known.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), full);
        assert!((0..full).step_by(97).all(|i| name(segment, known[i]) == format!("stub {i}")));
        assert_eq!(counter(segment, Counter::methods_lost), 0);
        assert!((full..full + 10).all(|i| stub(segment, i).is_none()), "there is no space");
        assert_eq!(counter(segment, Counter::methods_lost), 10);
        println!("exercised: {full} methods, {kib:?} KiB");
        // Four bytes a cell, and twice as many cells as methods. A level may begin in the middle of a page.
        assert!(kib[0] <= 12 && kib[1] <= 48 && kib[2] <= 180 && kib[3] <= 700, "{kib:?}");
    });
}

#[test]
fn threads_that_meet_a_method_at_the_same_time_have_one_entry() {
    const THREADS: usize = 8;
    // So few that they fit into the first level even if each thread makes an entry of its own.
    const METHODS: usize = 90;
    alone(|| {
        let segment = fresh();
        let start = Barrier::new(THREADS);
        let all: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let meet = || {
                start.wait();
                (0..METHODS).map(|i| stub(segment, i).expect("room")).collect()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(meet)).collect();
            threads.into_iter().map(|thread| thread.join().expect("its entries")).collect()
        });
        assert!(all.iter().all(|entries| *entries == all[0]));
        assert!((0..METHODS).all(|i| name(segment, all[0][i]) == format!("stub {i}")));
        println!("exercised: {METHODS} methods, {} entries", segment.used(Section::Methods));
    });
}
