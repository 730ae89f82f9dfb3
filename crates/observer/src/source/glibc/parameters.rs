//! Finds malloc's parameters and counters in a libc without symbols.
//!
//! `struct malloc_par mp_` (glibc malloc/malloc.c) lies in libc's data near `main_arena`, as 64-bit words and ints:
//!
//! ```text
//! trim_threshold, top_pad, mmap_threshold, arena_test, arena_max
//! thp_pagesize, hp_pagesize, int hp_flags                            from 2.35 on; later, thp_mode lies before them
//! int n_mmaps, int n_mmaps_max, int max_n_mmaps, int no_dyn_threshold, padding after hp_flags
//! mmapped_mem, max_mmapped_mem
//! max_total_mem                                                      before 2.24
//! sbrk_base
//! ```
//!
//! A program may set each of the parameters, with mallopt(3), environment variables or tunables, so no value identifies
//! the struct. The relations between its fields do. The counters agree with each other. `n_mmaps_max` differs from its
//! default only if `no_dyn_threshold` is set, because the same call sets both.

use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_process::proc::memory::{PAGE, half_at, word_at};

/// The fields of `mp_` that the observer uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MallocParameters {
    /// 0 if no cap was set; then 8 × CPUs applies.
    pub arena_max: u64,
    pub mmap_threshold: Bytes,
    pub mmapped_count: u64,
    pub mmapped: Bytes,
    /// First address from brk; 0 while the main arena is empty.
    pub sbrk_base: Avma,
}

/// Default of M_MMAP_MAX.
const N_MMAPS_MAX: u32 = 65536;
/// Limit of the threshold while malloc adapts it to the blocks that the program frees (DEFAULT_MMAP_THRESHOLD_MAX).
const ADAPTED_AT_MOST: u64 = 32 << 20;
/// A lower threshold would be below the smallest blocks.
const THRESHOLD_AT_LEAST: u64 = 64;
/// mallopt(3) takes an int.
const INT_MAX: u64 = i32::MAX as u64;

/// What differs between the versions.
#[derive(Clone, Copy)]
struct Shape {
    /// Words between `arena_max` and the ints. If there are any, `hp_flags` is the first of the ints.
    huge_words: u64,
    /// `max_total_mem`, which has been 0 since threads are supported.
    has_total: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { huge_words: 0, has_total: false },
    Shape { huge_words: 2, has_total: false },
    Shape { huge_words: 3, has_total: false },
    Shape { huge_words: 0, has_total: true },
];

/// `brk` is the range of the brk heap, None if the process has none. None if nothing in `data` has the relations of
/// `mp_`, or several things that differ.
pub(crate) fn find_parameters(base: Avma, data: &[u8], brk: Option<(Avma, Avma)>) -> Option<MallocParameters> {
    // The struct is aligned in the target's address space.
    let first = (base.0.next_multiple_of(8) - base.0) as usize;
    let of_shape = |shape: &Shape| -> Vec<MallocParameters> {
        let shape = *shape;
        (first..data.len()).step_by(8).filter_map(|at| parameters_at(data, at, shape, brk)).collect()
    };
    let all: Vec<Vec<MallocParameters>> = SHAPES.iter().map(of_shape).collect();
    // Once the main arena has memory from brk, only the right shape has its address in the right place.
    let is_in_use = |found: &&MallocParameters| found.sbrk_base != Avma(0);
    let has_base = all.iter().flatten().any(|found| is_in_use(&found));
    // A struct of 2.35 read one word too early looks like one with thp_mode, so the earlier shape is preferred.
    all.iter().find_map(|found| {
        let mut found = found.iter().filter(|found| !has_base || is_in_use(found));
        let one = found.next()?;
        Some(found.all(|other| other == one).then_some(*one))
    })?
}

fn parameters_at(data: &[u8], at: usize, shape: Shape, brk: Option<(Avma, Avma)>) -> Option<MallocParameters> {
    let word = |index: u64| word_at(data, at.checked_add(index as usize * 8)?);
    let [top_pad, threshold, arena_test, arena_max] = [word(1)?, word(2)?, word(3)?, word(4)?];
    let is_configured = threshold >= THRESHOLD_AT_LEAST && (1..=INT_MAX).contains(&arena_test) && arena_max <= INT_MAX;
    if !is_configured {
        return None;
    }
    let has_huge = shape.huge_words > 0;
    let ints = 5 + shape.huge_words;
    let int = |index: usize| half_at(data, at.checked_add(ints as usize * 8 + index * 4)?);
    let from = usize::from(has_huge);
    let [count, count_limit, most, is_fixed] = [int(from)?, int(from + 1)?, int(from + 2)?, int(from + 3)?];
    let sums = ints + if has_huge { 3 } else { 2 };
    let [mapped, most_mapped] = [word(sums)?, word(sums + 1)?];
    let total = if shape.has_total { word(sums + 2)? } else { 0 };
    let sbrk_base = word(sums + 2 + u64::from(shape.has_total))?;

    let huge_page = if has_huge { word(ints - 1)? } else { 0 };
    if has_huge {
        // The largest huge page of any CPU: 16 GiB.
        let is_size = |size: u64| size == 0 || (size.is_power_of_two() && (PAGE..=1 << 34).contains(&size));
        // The modes are 0 to 3.
        let mode = if shape.huge_words == 3 { word(5)? } else { 0 };
        let fits = is_size(huge_page) && is_size(word(ints - 2)?) && mode <= 3 && int(from + 4)? == 0;
        if !fits || (int(0)? != 0 && huge_page == 0) {
            return None;
        }
    }
    let fits_limits = match is_fixed {
        0 => count_limit == N_MMAPS_MAX && threshold <= ADAPTED_AT_MOST && top_pad <= INT_MAX,
        1 => true,
        _ => false,
    };
    let counts = count <= most
        && u64::from(most) <= INT_MAX
        && (count == 0) == (mapped == 0)
        && (most == 0) == (most_mapped == 0)
        && mapped <= most_mapped
        && mapped.is_multiple_of(PAGE)
        && most_mapped.is_multiple_of(PAGE)
        && most_mapped < 1 << 47
        && total == 0;
    // With huge pages, the main arena gets its memory by mmap instead of brk.
    let is_mapped = huge_page > 0 && sbrk_base.is_multiple_of(PAGE) && sbrk_base < 1 << 47;
    let is_base = sbrk_base == 0 || is_mapped || brk.is_some_and(|(start, end)| (start.0..end.0).contains(&sbrk_base));
    (fits_limits && counts && is_base).then_some(MallocParameters {
        arena_max,
        mmap_threshold: Bytes(threshold),
        mmapped_count: count.into(),
        mmapped: Bytes(mapped),
        sbrk_base: Avma(sbrk_base),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Avma = Avma(0x7f00_0000_0000);
    const BRK: (Avma, Avma) = (Avma(0x5500_0000_0000), Avma(0x5500_0010_0000));

    /// What a program has set, and what malloc has counted.
    #[derive(Clone, Copy)]
    struct Set {
        threshold: u64,
        arenas: [u64; 2],
        mmap_max: u32,
        is_fixed: bool,
        blocks: (u32, u64),
        sbrk_base: u64,
    }

    const UNSET: Set = Set {
        threshold: 128 << 10,
        arenas: [8, 0],
        mmap_max: 65536,
        is_fixed: false,
        blocks: (0, 0),
        sbrk_base: BRK.0.0 + 0x10,
    };

    fn expected(set: Set) -> MallocParameters {
        MallocParameters {
            arena_max: set.arenas[1],
            mmap_threshold: Bytes(set.threshold),
            mmapped_count: set.blocks.0.into(),
            mmapped: Bytes(set.blocks.1),
            sbrk_base: Avma(set.sbrk_base),
        }
    }

    fn push(data: &mut Vec<u8>, words: &[u64]) {
        data.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// libc's data: pointers and zeros, another 65536 among zeros, then `mp_` as this version has it.
    fn data(set: Set, shape: Shape) -> Vec<u8> {
        let mut data = Vec::new();
        push(&mut data, &[BASE.0 + 0x100, 8, 0, 0, 0, 0, 0, 65536, 0, 0, 0, 0, 0, 0, 0, 0, 0, BASE.0 + 0x40]);
        push(&mut data, &[128 << 10, 128 << 10, set.threshold, set.arenas[0], set.arenas[1]]);
        push(&mut data, &[1, 0, 0][3 - shape.huge_words as usize..]);
        let (count, bytes) = set.blocks;
        let ints = [count, set.mmap_max, count + u32::from(bytes > 0), u32::from(set.is_fixed)];
        let has_huge = shape.huge_words > 0;
        let huge = [0u32].into_iter().take(usize::from(has_huge));
        let padding = huge.clone();
        data.extend(huge.chain(ints).chain(padding).flat_map(u32::to_le_bytes));
        push(&mut data, &[bytes, bytes + if bytes > 0 { 0x21000 } else { 0 }]);
        push(&mut data, &[0][..usize::from(shape.has_total)]);
        push(&mut data, &[set.sbrk_base, 64, 1032, 7, 0, 0, 0, BASE.0, 0]);
        data
    }

    #[test]
    fn each_version_is_read_whatever_the_program_has_set() {
        let used = Set { blocks: (2666, 2666 * 0x31000), ..UNSET };
        let fixed = Set { is_fixed: true, ..used };
        let sets = [
            UNSET,
            used,
            Set { mmap_max: 1_000_000, ..fixed },
            Set { mmap_max: 65537, threshold: 20000, ..fixed },
            Set { mmap_max: 0, is_fixed: true, arenas: [8, 3], ..UNSET },
            Set { mmap_max: u32::MAX, threshold: 1 << 40, ..fixed },
            Set { arenas: [1, 3], ..used },
            Set { arenas: [32, 1 << 20], ..used },
            Set { sbrk_base: 0, ..UNSET },
        ];
        for (index, set) in sets.into_iter().enumerate() {
            for shape in SHAPES {
                let data = data(set, shape);
                let found = find_parameters(BASE, &data, Some(BRK));
                assert_eq!(found, Some(expected(set)), "{index}, {} words", shape.huge_words);
            }
        }
    }

    #[test]
    fn other_data_is_not_taken_for_the_parameters() {
        let mut zeros = vec![0; 4096];
        assert_eq!(find_parameters(BASE, &zeros, Some(BRK)), None);
        zeros[2048..2052].copy_from_slice(&65536u32.to_le_bytes());
        assert_eq!(find_parameters(BASE, &zeros, Some(BRK)), None);
        // A limit that no call has set, and two structs that differ.
        let shape = SHAPES[1];
        assert_eq!(find_parameters(BASE, &data(Set { mmap_max: 65537, ..UNSET }, shape), Some(BRK)), None);
        let two = [data(UNSET, shape), data(Set { arenas: [8, 3], ..UNSET }, shape)].concat();
        assert_eq!(find_parameters(BASE, &two, Some(BRK)), None);
    }
}
