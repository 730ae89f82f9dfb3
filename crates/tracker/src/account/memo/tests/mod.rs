//! Tests that a promotion loses no entry, returns the right entry, and puts the former leader where a search will look;
//! and that a larger memo finds what the smaller one found.

use super::entry::{Memo, WORDS, bucket_of_tag, keep_entries, recall_at, second_bucket, second_bucket_of};
use super::promote;

mod comparisons;

/// An entry whose row distinguishes it from all others.
fn entry(row: u32, tag: u64, sp: usize, words: [u64; 3]) -> Memo {
    // SAFETY: zeroes are an empty entry.
    let mut m: Memo = unsafe { core::mem::zeroed() };
    (m.row, m.tag, m.sp) = (row, tag, sp);
    m.offsets[..3].copy_from_slice(&[8, 24, 40]);
    m.words = [tag; WORDS];
    m.words[..3].copy_from_slice(&words);
    m
}

#[test]
fn a_promoted_stack_is_returned_and_its_leader_is_found_again() {
    const ENTRIES: usize = 16;
    let mut state = 1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut own_bucket, mut displaced, mut other_positions) = (0, 0, 0);
    for round in 0..20_000 {
        let (tag, sp) = (random() >> 17, (random() >> 17) as usize & !7);
        let mut memo: [Memo; ENTRIES] = core::array::from_fn(|i| entry(i as u32, random(), i * 8, [random(); 3]));
        let (first, second) = (random() as usize % ENTRIES, random() as usize % ENTRIES);
        if first == second {
            continue;
        }
        memo[first] = entry(100, tag, sp, [random(), random(), random()]);
        memo[second] = entry(200, tag, sp, [random(), random(), random()]);
        if round % 7 == 0 {
            memo[second].offsets[1] = 32;
        }
        let before = rows(&memo);
        let base = memo.as_mut_ptr();
        // SAFETY: two entries of this memo, to which nothing else refers.
        let at = unsafe { promote(base, ENTRIES - 1, base.add(first), base.add(second)) };
        // SAFETY: as above.
        assert_eq!((at, unsafe { (*at).row }), (base.wrapping_add(first), 200), "round {round}");
        assert_eq!(rows(&memo), before, "round {round}");
        let former = memo.iter().position(|m| m.row == 100).expect("it is still there");
        let bucket = second_bucket_of(ENTRIES - 1, &memo[former]);
        if round % 7 == 0 || bucket == first {
            assert_eq!(former, second, "round {round}");
            *if round % 7 == 0 { &mut other_positions } else { &mut own_bucket } += 1;
        } else {
            assert_eq!(former, bucket, "round {round}");
            displaced += usize::from(bucket != second);
        }
    }
    println!(
        "exercised: {displaced} moved on, {own_bucket} whose bucket is the first, {other_positions} with other positions"
    );
    assert!(own_bucket > 500 && displaced > 10_000 && other_positions > 1_000);
}

/// The rows of all entries, in order of size.
fn rows(memo: &[Memo]) -> Vec<u32> {
    let mut rows: Vec<u32> = memo.iter().map(|m| m.row).collect();
    rows.sort_unstable();
    rows
}

/// A stack: its return address, its stack pointer, and what lies above that.
struct Path {
    row: u32,
    ra: u64,
    sp: usize,
    words: [u64; 6],
    /// The entry keeps words at other positions than most.
    is_other: bool,
    has_tail: bool,
}

impl Path {
    /// Writes the stack's words to where they lie.
    ///
    /// # Safety
    /// Seven words lie there, of which nobody has a reference.
    unsafe fn enter(&self) {
        // SAFETY: the caller's contract.
        (1..).zip(self.words).for_each(|(i, word)| unsafe { (self.sp as *mut u64).add(i).write(word) });
    }

    fn entry(&self) -> Memo {
        let positions = if self.is_other { [1, 2, 4] } else { [0, 2, 4] };
        let mut m = entry(self.row, self.ra, self.sp, positions.map(|i| self.words[i]));
        m.offsets[..3].copy_from_slice(&positions.map(|i| i as u16 * 8 + 8));
        m.words_used = 3;
        if self.has_tail {
            m.tail = core::ptr::dangling_mut();
        }
        m
    }

    /// Puts the entry where a walk would.
    ///
    /// # Safety
    /// As [`Path::enter`], which was called; a memo of mask + 1 entries.
    unsafe fn remember(&self, memo: *mut Memo, mask: usize) {
        // SAFETY: the caller's contract; buckets are inside the memo.
        unsafe {
            let first = bucket_of_tag(memo, mask, self.ra, self.ra, self.sp);
            let is_led = (*first).tag == self.ra && (*first).is_at(self.sp);
            let to = if is_led { memo.add(second_bucket(mask, &*first, self.sp)) } else { first };
            *to = self.entry();
        }
    }

    /// The row that a memo has for this stack, and whether its first bucket has it.
    ///
    /// # Safety
    /// As [`Path::remember`].
    unsafe fn look_up(&self, memo: *mut Memo, mask: usize) -> Option<(u32, bool)> {
        // SAFETY: the caller's contract; buckets are inside the memo.
        unsafe {
            let first = &*bucket_of_tag(memo, mask, self.ra, self.ra, self.sp);
            if let Some(m) = recall_at(first, self.ra, self.sp, 0) {
                return Some((m.row, true));
            }
            if first.tag != self.ra || !first.is_at(self.sp) {
                return None;
            }
            let at = second_bucket(mask, first, self.sp);
            let found = [at, at ^ 1].into_iter().find_map(|at| recall_at(&*memo.add(at), self.ra, self.sp, 0));
            found.map(|m| (m.row, false))
        }
    }
}

#[test]
fn a_memo_that_grows_keeps_what_it_finds() {
    const SMALL: usize = 64;
    const LARGE: usize = 256;
    let mut state = 3u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    let mut stack = [0u64; 16];
    let base = stack.as_mut_ptr() as usize;
    let (mut leaders, mut others, mut left_out, mut with_tail) = (0, 0, 0, 0);
    for round in 0..300 {
        let (mut small, mut large) = ([Memo::EMPTY; SMALL], [Memo::EMPTY; LARGE]);
        let (small, large) = (small.as_mut_ptr(), large.as_mut_ptr());
        // Few return addresses and stack pointers, so that many stacks have a leader.
        let path = |row: u32| Path {
            row,
            ra: 0x40_0000 + random(8) * 0x1010,
            sp: base + random(8) as usize * 8,
            words: core::array::from_fn(|_| random(1 << 40)),
            is_other: random(7) == 0,
            has_tail: random(10) == 0,
        };
        let paths: Vec<Path> = (1..120).map(path).collect();
        // SAFETY: a stack pointer is one of the first eight words of 16, to which only these paths refer.
        unsafe {
            for path in &paths {
                path.enter();
                path.remember(small, SMALL - 1);
            }
            let rows_before = rows(core::slice::from_raw_parts(small, SMALL));
            keep_entries(small, SMALL - 1, large, LARGE - 1);
            assert_eq!(rows(core::slice::from_raw_parts(small, SMALL)), rows_before, "round {round}");
            for path in &paths {
                path.enter();
                let before = path.look_up(small, SMALL - 1);
                let after = path.look_up(large, LARGE - 1);
                match (before, after) {
                    // The entry's leader was replaced; in the larger memo the entry may be a leader itself.
                    (None, after) => assert!(after.is_none_or(|(row, _)| row == path.row), "round {round}"),
                    (Some(_), None) if path.has_tail => with_tail += 1,
                    (Some((_, true)), after) => {
                        assert_eq!(after, Some((path.row, true)), "round {round}: a leader");
                        leaders += 1;
                    }
                    (Some(_), Some((row, _))) => {
                        assert!(row == path.row && !path.has_tail, "round {round}, row {row}");
                        others += 1;
                    }
                    (Some(_), None) => left_out += 1,
                }
            }
            let kept = rows(core::slice::from_raw_parts(large, LARGE));
            let kept = &kept[kept.partition_point(|row| *row == 0)..];
            assert!(kept.is_sorted_by(|a, b| a < b), "round {round}: an entry is there twice");
        }
    }
    println!("exercised: {leaders} leaders, {others} others, {left_out} left out, {with_tail} with tails");
    assert!(leaders > 1_500 && others > 500 && with_tail > 200 && others > left_out && left_out > 0);
}
