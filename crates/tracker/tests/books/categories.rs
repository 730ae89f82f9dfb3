//! segment/categories.rs: one number for each name.

use crate::segment::counter;
use crate::{alone, fresh};
use plimsoll_segment::{CategoryKind, Counter, FIXED_CATEGORIES, Section};
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::segment::categories;
use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::Ordering::*;

fn register(segment: Segment, name: &str) -> u16 {
    categories::register(segment, name.as_bytes(), CategoryKind::Program)
}

fn name(segment: Segment, i: u16) -> String {
    let bytes = segment.category(i).name.iter().map(|b| b.load(Relaxed)).take_while(|b| *b != 0);
    String::from_utf8(bytes.collect()).expect("text")
}

/// Names, many of which share a beginning.
fn names() -> impl Iterator<Item = String> {
    (1..=40).flat_map(|n| ["zlib", "a", "Java"].map(|word| word.repeat(n).chars().take(47).collect()))
}

#[test]
fn four_threads_give_one_name_one_number() {
    alone(|| {
        let segment = fresh();
        let together = Barrier::new(4);
        let numbers: Vec<Vec<u16>> = std::thread::scope(|scope| {
            let run = || {
                let each = |name: String| {
                    together.wait();
                    register(segment, &name)
                };
                names().map(each).collect()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().expect("thread")).collect()
        });
        assert!(numbers.iter().all(|n| *n == numbers[0]), "threads disagree");
        assert!(names().zip(&numbers[0]).all(|(want, i)| name(segment, *i) == want));
        let all: Vec<String> = (0..segment.used(Section::Categories) as u16).map(|i| name(segment, i)).collect();
        let named: Vec<&String> = all.iter().filter(|name| !name.is_empty()).collect();
        assert_eq!(named.iter().collect::<HashSet<_>>().len(), named.len(), "{named:?}");
        assert_eq!(all[..FIXED_CATEGORIES.len()], FIXED_CATEGORIES);
        println!("exercised: {} names, {} entries given up", named.len(), all.len() - named.len());
        assert!(named.len() > 60);

        // In the child of a fork the table is made again.
        categories::reset_after_fork(segment);
        assert!(names().zip(&numbers[0]).all(|(name, i)| register(segment, &name) == *i));
        assert_eq!(segment.used(Section::Categories), all.len());
    });
}

#[test]
fn what_exceeds_the_table_is_other_and_counted() {
    alone(|| {
        let segment = fresh();
        let room = Section::Categories.capacity() - segment.used(Section::Categories);
        let numbers: Vec<u16> = (0..room).map(|n| register(segment, &format!("category {n}"))).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), room);
        assert_eq!(register(segment, "one more"), categories::OTHER);
        assert_eq!(counter(segment, Counter::categories_lost), 1);
        assert!((0..room).all(|n| register(segment, &format!("category {n}")) == numbers[n]));
        let long = "x".repeat(60);
        assert_eq!(register(segment, &long), categories::OTHER);
    });
}
