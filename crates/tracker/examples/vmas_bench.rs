//! Instructions of a booked operation: a map of N mappings, then M rounds of one kind of operation. The cost of an
//! operation is the difference of two runs' counts (`valgrind --tool=callgrind`), divided by the difference of their
//! numbers of operations.
//!
//! `vmas_bench N M KIND`, KIND one of: none pair fresh churn protect commit extend lookup

use plimsoll_segment::vmap::{Attributes, MappingKind, VmaMap};
use plimsoll_tracker::account::vmas::{Delta, Placement, VmaBook};
use std::hint::black_box;

const BASE: u64 = 0x7f00_0000_0000;
const PAGE: u64 = 4096;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |or| args.next().and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let (count, rounds): (u64, u64) = (number(2000), number(10_000));
    let kind = args.next().unwrap_or_else(|| "pair".into());
    let bytes = if count > 100_000 { 64 << 20 } else { 4 << 20 };
    let mut region = vec![0u64; bytes / 8];
    // SAFETY: the vector lives as long as the book, and nothing else stores there.
    let book = unsafe { VmaBook::create(region.as_mut_ptr().cast(), bytes, move |upto| upto <= bytes) };
    let mut book = book.expect("room for a map");
    let attributes = |caller: u64| Attributes::new(caller as u32, 1, MappingKind::Anonymous, 3, 0);
    let mut live = 0i64;
    // The bench does not measure what the tracker does with a delta; one addition stands for it.
    macro_rules! post {
        () => {
            |delta: Delta| live += black_box(delta.reserved)
        };
    }
    // Mappings of 4 pages with a free page behind each, in an order that is neither ascending nor descending.
    let address = |n: u64| BASE + (n.wrapping_mul(0x9E37_79B1) % count) * 8 * PAGE;
    for n in 0..count {
        book.map(address(n), 4 * PAGE, attributes(n % 50), Placement::Chosen, post!());
    }
    let start = std::time::Instant::now();
    let mut ops = 0;
    for n in 0..rounds {
        let at = address(black_box(n) * 7);
        ops += 2;
        match kind.as_str() {
            // mmap in a hole and munmap of it
            "pair" => {
                book.map(at + 5 * PAGE, 2 * PAGE, attributes(99), Placement::Chosen, post!());
                book.unmap(at + 5 * PAGE, 2 * PAGE, post!(), |_| ());
            }
            // munmap of an old mapping and mmap there
            "churn" => {
                book.unmap(at, 4 * PAGE, post!(), |_| ());
                book.map(at, 4 * PAGE, attributes(n % 50), Placement::Chosen, post!());
            }
            // mprotect of a whole mapping, there and back
            "protect" => {
                book.protect(at, 4 * PAGE, 1, 5, 0, post!());
                book.protect(at, 4 * PAGE, 3, 5, 0, post!());
            }
            // a guard page at the beginning of a mapping, and away again: splits and joins
            "commit" => {
                book.protect(at, PAGE, 0, (n % 50) as u32, 0, post!());
                book.map(at, PAGE, attributes(7), Placement::Fixed, post!());
            }
            // a mapping grows by an adjoining mapping, and shrinks
            "extend" => {
                let caller = book.lookup(at).map_or(0, |vma| vma.attributes().reserve_caller());
                book.map(at + 4 * PAGE, PAGE, attributes(caller as u64), Placement::Chosen, post!());
                book.unmap(at + 4 * PAGE, PAGE, post!(), |_| ());
            }
            "lookup" => {
                black_box(book.lookup(black_box(at)));
                black_box(book.lookup(black_box(at + PAGE)));
            }
            _ => ops -= 2,
        }
    }
    let took = start.elapsed();
    let copy: Vec<u8> = region.iter().flat_map(|word| word.to_le_bytes()).take(book.used() as usize).collect();
    let start = std::time::Instant::now();
    let map = VmaMap::new(&copy).expect("a map");
    let (entries, total) = map.entries().fold((0, 0), |(n, sum), vma| (n + 1, sum + vma.bytes()));
    let read = start.elapsed();
    assert_eq!((total as i64, book.lost_ops()), (live, 0), "the map says what was posted");
    println!(
        "{kind}: {count} mappings, {ops} operations in {took:?}; {entries} entries, {total} bytes (posted {live}), \
         read in {read:?}; {} KiB used, lost {}",
        book.used() >> 10,
        book.lost_ops()
    );
}
