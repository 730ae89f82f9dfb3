//! Tests that a promotion loses no entry, returns the right entry, and puts the former leader where it will be looked
//! for.

use super::entry::{Memo, WORDS, second_bucket_of};
use super::promote;

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
