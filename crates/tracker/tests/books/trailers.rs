//! account/blocks.rs: every trailer is recognised at free, and no other bytes are taken for one.

use crate::{Random, alone, fresh};
use plimsoll_segment::{Allocator, Section};
use plimsoll_tracker::account::blocks::{self, Key, TABLE_FROM, TRAILER};
use plimsoll_tracker::account::{keys, rows, side_table};
use plimsoll_tracker::hook::resolve;

/// A block of `usable` bytes somewhere in a buffer, at an address that is a multiple of 16, as malloc's are.
struct Block {
    memory: Vec<u128>,
    usable: usize,
}

impl Block {
    fn new(usable: usize) -> Block {
        Block { memory: vec![0; usable / 16 + 2], usable }
    }
    fn start(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast()
    }
    fn write(&mut self, row: u32, requested: usize) {
        let (p, usable) = (self.start(), self.usable);
        // SAFETY: the buffer has that many bytes.
        unsafe { blocks::write_trailer(p, usable, blocks::row_key(row), requested) }
    }
    fn read(&mut self) -> Option<Key> {
        let (p, usable) = (self.start(), self.usable);
        // SAFETY: as above.
        unsafe { blocks::read_trailer(p, usable) }
    }
    fn clear(&mut self) {
        let (p, usable) = (self.start(), self.usable);
        // SAFETY: as above.
        unsafe { blocks::clear_trailer(p, usable) }
    }
    fn bytes(&mut self) -> &mut [u8] {
        let (p, n) = (self.start(), self.memory.len() * 16);
        // SAFETY: the buffer's own bytes.
        unsafe { std::slice::from_raw_parts_mut(p, n) }
    }
    fn trailer(&mut self) -> &mut [u8] {
        let end = self.usable;
        &mut self.bytes()[end - TRAILER..end]
    }
}

/// Every size that can have a trailer, glibc's (16 n + 8) and other allocators', with distinctive rows and requests.
#[test]
fn every_trailer_is_recognised_at_free() {
    alone(|| {
        blocks::init(Allocator::Glibc);
        let mut random = Random(7);
        let rows = Section::Rows.capacity() as u64;
        let mut exercised = 0u64;
        for usable in (TRAILER..TABLE_FROM).filter(|n| n % 8 == 0 || n % 61 == 0) {
            let mut b = Block::new(usable);
            assert_eq!(b.read(), None, "zeros aren't a trailer");
            for i in 0..4 {
                let row = [0, 1, rows - 1, random.below(rows)][i] as u32;
                let requested = [0, usable - TRAILER, random.below((usable - TRAILER) as u64 + 1) as usize, 1][i]
                    .min(usable - TRAILER);
                b.write(row, requested);
                assert_eq!(b.read(), Some(Key { row, requested: requested as u64, sampled: false }), "usable {usable}");
                exercised += 1;
            }
            b.clear();
            assert_eq!(b.read(), None);
        }
        // A sampled block's trailer is valid, but not for the fast path of free.
        let mut b = Block::new(104);
        let key = Key { row: 5, requested: 90, sampled: true };
        // SAFETY: the buffer has that many bytes.
        unsafe {
            blocks::write_trailer_of(b.start(), b.usable, key);
            assert_eq!((b.read(), blocks::read_trailer_small(b.start(), b.usable)), (Some(key), None));
        }
        // Sizes from damaged chunk headers: nothing is read, so nothing may fault.
        for usable in [0, 1, 7, TABLE_FROM, TABLE_FROM + 8, usize::MAX, usize::MAX - 7, 1 << 47] {
            let mut b = Block::new(64);
            b.usable = usable;
            assert_eq!(b.read(), None, "usable {usable:#x}");
        }
        println!("exercised: {exercised} round trips");
    });
}

/// An overrun arrives at the lowest byte. One to three changed bytes are always seen, since they lie in the check; from
/// four on, 28 bits must be right by chance.
#[test]
fn overruns_are_seen() {
    alone(|| {
        blocks::init(Allocator::Glibc);
        let mut b = Block::new(104);
        for value in 0..=255u8 {
            b.write(77, 91);
            let was = b.trailer()[0];
            b.trailer()[0] = value;
            assert_eq!(b.read().is_some(), was == value, "lowest byte {was:#x} became {value:#x}");
        }
        const RUNS: u64 = 1_000_000;
        let mut random = Random(0x5eed);
        let (mut accepted, mut changed, mut by_length) = (0u64, 0u64, [0u64; 9]);
        for _ in 0..RUNS {
            b.write(random.below(1 << 20) as u32, random.below(97) as usize);
            let before = b.trailer().to_vec();
            let n = 1 + random.below(8) as usize;
            let noise = random.next().to_le_bytes();
            b.trailer()[..n].copy_from_slice(&noise[..n]);
            if b.trailer() == before {
                continue;
            }
            (changed, by_length[n]) = (changed + 1, by_length[n] + 1);
            let passed = b.read().is_some();
            assert!(!passed || n > 3, "{n} overwritten bytes went unseen");
            accepted += passed as u64;
        }
        println!("exercised: {changed} overruns, by length {:?}, accepted {accepted}", &by_length[1..]);
        assert!(by_length[1..].iter().all(|n| *n > RUNS / 10), "every length");
        // RUNS · 5/8 of the overruns have four bytes or more, and each passes with a probability of 2^-28. So one in
        // 430 runs of this test would have a single such overrun.
        assert!(accepted <= 1, "{accepted} overruns passed for trailers");
    });
}

/// The last bytes of a block without a trailer are the program's, and may pass the check by chance.
#[test]
fn the_programs_own_bytes_are_no_trailer() {
    alone(|| {
        let segment = fresh();
        blocks::init(Allocator::Glibc);
        assert!(blocks::publish(segment));
        // SAFETY: a block of the allocator below, which the test owns.
        unsafe {
            let p = std::alloc::alloc(std::alloc::Layout::from_size_align(1000, 16).expect("a layout"));
            let usable = blocks::usable(p);
            let last = p.add(usable - TRAILER).cast::<u64>();
            let key = Key { row: rows::ROW_EARLY, requested: usable as u64, sampled: false };
            let unused = segment.used(Section::Rows) as u32 + 1;
            for row in [3, unused, (1 << 20) - 1] {
                assert!(side_table::insert(p, usable, key));
                blocks::write_trailer(p, usable, blocks::row_key(row), 9);
                let own = last.read_unaligned();
                assert_eq!((keys::key_of(p), keys::trailer(p, usable)), (Some(key), None), "row {row}");
                let (taken, amount) = keys::take_key_of(p, usable).expect("the table's");
                assert_eq!((taken, amount.usable, amount.requested), (key, usable as u64, usable as u64));
                assert_eq!(last.read_unaligned(), own, "the program's data");
                assert_eq!(keys::key_of(p), None, "it was taken");
                // As realloc does, after it has copied the data.
                let amount = keys::set_key(p, key).expect("space in the table");
                assert_eq!((amount.usable, amount.requested), (usable as u64, usable as u64));
                assert_eq!(last.read_unaligned(), own, "the program's data");
                assert_eq!(keys::take_key(p).map(|(key, _)| key), Some(key));
            }
            // No request is larger than what lies in front of its trailer.
            blocks::write_trailer(p, usable, blocks::row_key(rows::ROW_EARLY), usable - TRAILER + 1);
            assert_eq!(blocks::read_trailer(p, usable), None);
            blocks::write_trailer(p, usable, blocks::row_key(rows::ROW_EARLY), usable - TRAILER);
            assert!(blocks::read_trailer(p, usable).is_some());
            // musl leaves no space for a trailer.
            blocks::init(Allocator::Musl);
            assert_eq!(blocks::read_trailer(p, usable), None);
        }
    });
}

/// From 2.43 on, glibc leaves a header out of the size of a chunk with its own mapping.
#[test]
fn mapped_chunks_of_both_kinds_have_their_sizes() {
    alone(|| {
        let usable = |flags: u64| {
            let chunk = [0, 0x21000 | flags, 0u64];
            // SAFETY: only the word in front of the block is read.
            unsafe { blocks::usable_glibc(chunk.as_ptr().wrapping_add(2).cast_mut().cast()) }
        };
        assert_eq!([usable(1), usable(2)], [0x20ff8, 0x20ff0]);
        blocks::mapped_sizes_leave_a_header_out();
        assert_eq!([usable(1), usable(2)], [0x20ff8, 0x20ff8]);
    });
}

/// musl's old malloc rounds, and yet no block over musl has a trailer.
#[test]
fn slack_without_trailers_is_in_the_table() {
    alone(|| {
        resolve::resolve();
        let segment = fresh();
        blocks::init(Allocator::Musl);
        assert!(blocks::publish(segment));
        // SAFETY: a block of the allocator below, which the test owns.
        unsafe {
            let p = std::alloc::alloc(std::alloc::Layout::from_size_align(1000, 16).expect("a layout"));
            let usable = blocks::usable(p);
            for slack in [0, 7, 8, 20, 900] {
                let requested = usable - slack;
                let key = Key { row: rows::ROW_EARLY, requested: requested as u64, sampled: false };
                let expected = keys::amount_of(p, requested);
                let booked = keys::set_key(p, key).expect("space in the table");
                let (taken, freed) = keys::take_key(p).expect("its key");
                assert_eq!(taken, key, "slack {slack}");
                for amount in [expected, booked, freed] {
                    assert_eq!((amount.usable, amount.requested), (usable as u64, requested as u64), "slack {slack}");
                }
            }
        }
    });
}

/// A trailer is valid for its block only: copied to another block it is invalid, unless the blocks lie a multiple of
/// 2^28 bytes apart (the check has 28 bits of the address).
#[test]
fn a_copy_elsewhere_is_none() {
    alone(|| {
        blocks::init(Allocator::Glibc);
        let mut random = Random(3);
        let mut arena = vec![0u128; 1 << 16];
        let base = arena.as_mut_ptr() as *mut u8;
        let usable = 88;
        for _ in 0..200_000 {
            let (a, b) = (random.below(60_000) as usize * 16, random.below(60_000) as usize * 16);
            if a == b {
                continue;
            }
            // SAFETY: both blocks lie in the arena of a mebibyte.
            unsafe {
                let (p, q) = (base.add(a), base.add(b));
                blocks::write_trailer(p, usable, blocks::row_key(random.below(1 << 20) as u32), 80);
                q.add(usable - TRAILER).copy_from(p.add(usable - TRAILER), TRAILER);
                assert_eq!(blocks::read_trailer(q, usable), None, "{a:#x} copied to {b:#x}");
                blocks::clear_trailer(p, usable);
                blocks::clear_trailer(q, usable);
            }
        }
        println!("exercised: 200000 copies");
    });
}
