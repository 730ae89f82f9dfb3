//! CPython's allocator of small objects (Objects/obmalloc.c). It maps arenas of 256 KiB or 1 MiB and cuts them into
//! pools; each pool has blocks of one size. The mappings have no name, and the kernel joins adjacent ones. But each
//! pool begins with a header whose fields determine each other (`struct pool_header`,
//! Include/internal/pycore_obmalloc.h, 64 bit):
//!
//! ```text
//!  0 blocks in use (4)    8 first free block, or 0    16 next pool    24 previous pool
//! 32 arena's index (4)   36 size class c (4)          40 offset of the first block never used (4)
//! 44 highest such offset (4)
//!
//! size of a block      s = 16 × (c + 1),  c < 32
//! highest offset         = pool − s
//! offset                 = 48 + k × s
//! blocks in use          ≤ (pool − 48) / s
//! ```
//!
//! Pools are aligned to their size: 16 KiB from 3.10 on, 4 KiB before.

use super::python_frames;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, Pymalloc, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, half_at, word_at};

const HEADER: u64 = 48;
const CLASSES: u64 = 32;
const GRAIN: u64 = 16;
const POOL_SIZES: [u64; 2] = [16 << 10, 4 << 10];
/// Maximum number of headers read: 16 GiB of pools of 16 KiB.
const MOST_HEADERS: usize = 1 << 20;
/// Limit of pages whose state is looked up: 256 GiB of pools of 4 KiB. A process may reserve 128 TiB for nothing.
const MOST_LOOKS: usize = 1 << 26;
/// A process with Python's name may still use another allocator, and a few pages may look like pools by chance.
const POOLS_AT_LEAST: usize = 4;

fn is_python(vmas: &[Vma]) -> bool {
    let file =
        |vma: &Vma| vma.name.rsplit('/').next().is_some_and(|f| f.starts_with("libpython") || f.starts_with("python"));
    vmas.iter().any(|vma| vma.executable && vma.backing == Backing::File && file(vma))
}

/// The pools of the process, or None if it isn't CPython or has no pools. The gap says that not all were searched for.
pub fn find<M: Memory>(memory: &M, vmas: &[Vma]) -> (Option<Pymalloc>, Option<Gap>) {
    if !is_python(vmas) {
        return (None, None);
    }
    let mut pages = PageStates::new(memory);
    let mut is_whole = true;
    let found = POOL_SIZES.into_iter().find_map(|pool| {
        let found;
        (found, is_whole) = pools(memory, &mut pages, vmas, pool);
        (found.count >= POOLS_AT_LEAST as u64).then_some(found)
    });
    let found = found.map(|found| {
        let frames = python_frames::find(memory, &mut pages, vmas, &found.pools);
        Pymalloc { frames, ..found }
    });
    let gap = || {
        let reason = "the search for Python's pools ended early: too much memory";
        Gap::new(Source::Allocator, reason, "pools at high addresses are in other-anonymous")
    };
    (found, (!is_whole).then(gap))
}

/// Pools of this size, and whether all of the memory was searched.
fn pools<M: Memory>(memory: &M, pages: &mut PageStates<'_, M>, vmas: &[Vma], pool: u64) -> (Pymalloc, bool) {
    let mut found = Pymalloc::default();
    let (mut budget, mut looks) = (MOST_HEADERS, MOST_LOOKS);
    let could_hold = |vma: &&Vma| {
        vma.backing == Backing::Anonymous
            && vma.readable
            && vma.writable
            && !vma.shared
            && vma.name.is_empty()
            && vma.rss.0 > 0
    };
    for vma in vmas.iter().filter(could_hold) {
        let mut at = vma.range.start.0.next_multiple_of(pool);
        while at.checked_add(pool).is_some_and(|end| end <= vma.range.end.0) {
            if budget == 0 || looks == 0 {
                return (found, false);
            }
            looks -= 1;
            // An untouched page has no header, and reading it would make the kernel map it.
            if pages.of(at / PAGE) == PageState::Present {
                budget -= 1;
                let mut header = [0; HEADER as usize];
                if memory.read(Avma(at), &mut header)
                    && let Some(live) = live_in(&header, at, pool)
                {
                    found.count += 1;
                    found.live += live;
                    match found.pools.last_mut() {
                        Some(last) if last.end.0 == at => last.end = Avma(at + pool),
                        _ => found.pools.push(AddressRange::sized(Avma(at), Bytes(pool))),
                    }
                }
            }
            at += pool;
        }
    }
    (found, true)
}

/// Bytes of the blocks in use in the pool at `at` with these first bytes, if it is a pool.
fn live_in(header: &[u8], at: u64, pool: u64) -> Option<Bytes> {
    let half = |offset: usize| half_at(header, offset).map(u64::from);
    let (count, class, next, highest) = (half(0)?, half(36)?, half(40)?, half(44)?);
    let free = word_at(header, 8)?;
    let size = GRAIN * (class.checked_add(1).filter(|classes| *classes <= CLASSES)?);
    let is_block = |offset: u64| offset >= HEADER && (offset - HEADER).is_multiple_of(size);
    let holds = highest == pool - size
        && next > HEADER
        && next <= pool
        && is_block(next)
        && count <= (pool - HEADER) / size
        && (free == 0 || free.checked_sub(at).is_some_and(|offset| offset < pool && is_block(offset)));
    holds.then_some(Bytes(count * size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::source::made_image::Reserved;

    const START: u64 = 0x7f00_0010_0000;

    struct Image(Vec<u8>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let from = at.0.wrapping_sub(START) as usize;
            match from.checked_add(into.len()).and_then(|end| self.0.get(from..end)) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => return false,
            }
            true
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    fn vmas(length: u64) -> Vec<Vma> {
        let python = Vma {
            name: "/usr/bin/python3.11".into(),
            backing: Backing::File,
            executable: true,
            range: AddressRange::new(Avma(0x1000), Avma(0x2000)),
            ..Vma::default()
        };
        let range = AddressRange::sized(Avma(START), Bytes(length));
        let heap = Vma { range, readable: true, writable: true, rss: Bytes(length), ..Vma::default() };
        vec![python, heap]
    }

    /// `count` pages for pools, some of them with other data, and the live bytes in the pools.
    fn image(random: &mut Random, pool: u64, count: u64) -> (Vec<u8>, u64, Bytes) {
        let (mut bytes, mut pools, mut live) = (Vec::new(), 0, Bytes(0));
        for index in 0..count {
            let at = START + bytes.len() as u64;
            let mut page = vec![0u8; pool as usize];
            if random.below(4) == 0 {
                page.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
            } else {
                let class = random.below(32);
                let size = 16 * (class + 1);
                let most = (pool - 48) / size;
                let used = 1 + random.below(most);
                let in_use = random.below(used + 1);
                page[..4].copy_from_slice(&(in_use as u32).to_le_bytes());
                let free = if in_use < used { at + 48 + size * random.below(used) } else { 0 };
                page[8..16].copy_from_slice(&free.to_le_bytes());
                let word = |value: u64| (value as u32).to_le_bytes();
                page[32..36].copy_from_slice(&word(index / 64));
                page[36..40].copy_from_slice(&word(class));
                page[40..44].copy_from_slice(&word(48 + used * size));
                page[44..48].copy_from_slice(&word(pool - size));
                pools += 1;
                live += Bytes(in_use * size);
            }
            bytes.extend_from_slice(&page);
        }
        (bytes, pools, live)
    }

    #[test]
    fn pools_of_both_sizes_are_counted_to_the_byte_among_other_memory() {
        let mut random = Random(1);
        for pool in POOL_SIZES {
            for _ in 0..20 {
                let (bytes, pools, live) = image(&mut random, pool, 64);
                let vmas = vmas(bytes.len() as u64);
                let (found, gap) = find(&Image(bytes), &vmas);
                let found = found.expect("pools");
                assert_eq!(gap, None);
                assert_eq!((found.count, found.live), (pools, live));
                assert_eq!(found.pools.iter().map(|range| range.length()).sum::<Bytes>(), Bytes(pools * pool));
            }
        }
    }

    #[test]
    fn pools_with_overwritten_headers_never_exceed_the_memory() {
        let mut random = Random(2);
        let mut lost = 0;
        for _ in 0..60 {
            let (mut bytes, pools, _) = image(&mut random, POOL_SIZES[0], 64);
            for _ in 0..random.below(400) {
                // Most overwritten bytes belong to headers.
                let at = random.below(64) * POOL_SIZES[0] + random.below(48);
                bytes[at as usize] = random.below(256) as u8;
            }
            let length = bytes.len() as u64;
            let found = find(&Image(bytes), &vmas(length)).0.unwrap_or_default();
            lost += pools.saturating_sub(found.count);
            assert!(found.live.0 <= length && found.count <= 64);
            assert!(found.pools.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
        assert!(lost > 100, "{lost}");
    }

    #[test]
    fn the_search_ends_in_a_terabyte_of_addresses_and_is_not_whole() {
        let memory = Reserved::default();
        let mut pages = PageStates::new(&memory);
        let (found, is_whole) = pools(&memory, &mut pages, &vmas(1 << 40), POOL_SIZES[1]);
        assert_eq!((found.count, is_whole), (0, false));
        // 16,384 pages at a time.
        assert!((4096..4120).contains(&memory.looks.get()), "{}", memory.looks.get());
    }

    #[test]
    fn no_other_program_is_searched() {
        let (bytes, ..) = image(&mut Random(3), POOL_SIZES[0], 64);
        let mut vmas = vmas(bytes.len() as u64);
        vmas[0].name = "/usr/bin/ruby3".into();
        assert!(find(&Image(bytes), &vmas).0.is_none());
    }
}
