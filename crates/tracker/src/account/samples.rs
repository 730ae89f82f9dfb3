//! The live samples, and the estimates of sites that they add up to.
//!
//! ```text
//! block's key says 'sampled'
//!   address ──index (private)──▶ entry of the samples section: address, sizes, 1/p, when, site, thread
//!                                  └──▶ site ──▶ site samples: Σ alloc …, at its end Σ free …
//!
//! index     2^7, 2^10, 2^14 buckets of 8 words; an address has two buckets in each level, and lies in the first with space;
//!           word = address >> 3 << 17 | entry + 1
//! ```
//! With levels, few samples touch few pages. With the last level alone, each of the first 256 samples would touch a
//! page of its own (1 MiB).
//!
//! When a block is freed or moved, its entry is first taken out of the index. Then no other thread finds the entry, and
//! the address may already belong to another block. A sample without space is counted, but is in no estimate, and its
//! block's key doesn't say 'sampled'.

use super::rows::Amount;
use crate::segment::Segment;
use crate::sys::{CachePadded, cpu, os};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{Counter, Section, SiteSamples, TEMPORARY_NS};

const BUCKET: usize = 8;
const fn in_level(level: usize) -> usize {
    1 << [7, 10, 14][level]
}
const BUCKETS: usize = in_level(0) + in_level(1) + in_level(2);
const _: () = assert!(in_level(2) == 2 * Section::Samples.capacity() / BUCKET);
const ENTRY_BITS: u32 = 17;
const _: () = assert!(Section::Samples.capacity() < 1 << ENTRY_BITS);

static INDEX: AtomicUsize = AtomicUsize::new(0);
/// Free entries, newest first, through their `reserved` word: a stack with a tag against ABA. Entry + 1.
static FREE: CachePadded<AtomicU64> = CachePadded(AtomicU64::new(0));

/// A sample that was taken out of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSample(u32);

/// Reserves the index.
pub fn init() -> bool {
    if INDEX.load(Relaxed) == 0 {
        match os::private(BUCKETS * BUCKET * 8) {
            Some(p) => INDEX.store(p as usize, Release),
            None => return false,
        }
    }
    true
}

/// The index words of an address, first level first.
fn cells(address: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let h = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = INDEX.load(Acquire) as *const [AtomicU64; BUCKET];
    let level = move |level: usize| {
        let before: usize = (0..level).map(in_level).sum();
        [h >> 50, h >> 34].map(|h| before + (h as usize & (in_level(level) - 1)))
    };
    // SAFETY: `init` reserved that many buckets of atomics, zeroed, never unmapped. Samples exist only after `init`.
    (0..3).flat_map(level).flat_map(move |i| unsafe { &*first.add(i) })
}

fn word(address: u64, entry: u32) -> Option<u64> {
    (address < 1 << (64 - ENTRY_BITS + 3)).then_some(address >> 3 << ENTRY_BITS | (entry as u64 + 1))
}

/// Puts an entry into the index. False: no space.
fn index_insert(address: u64, entry: u32) -> bool {
    let Some(word) = word(address, entry) else { return false };
    cells(address).any(|cell| cell.load(Relaxed) == 0 && cell.compare_exchange(0, word, AcqRel, Relaxed).is_ok())
}

/// Takes an address out of the index; returns its entry.
fn index_remove(address: u64) -> Option<u32> {
    cells(address).find_map(|cell| {
        let word = cell.load(Acquire);
        let is = word != 0 && word >> ENTRY_BITS == address >> 3;
        // Only the thread that frees the block looks its address up.
        (is && cell.compare_exchange(word, 0, AcqRel, Relaxed).is_ok())
            .then(|| (word & ((1 << ENTRY_BITS) - 1)) as u32 - 1)
    })
}

fn claim(segment: Segment) -> Option<u32> {
    loop {
        let head = FREE.0.load(Acquire);
        let top = (head & 0xffff_ffff) as u32;
        if top == 0 {
            return segment.append(Section::Samples);
        }
        let next = segment.sample(top - 1).reserved.load(Acquire) & 0xffff_ffff;
        let tag = (head >> 32).wrapping_add(1) << 32;
        if FREE.0.compare_exchange(head, tag | next, AcqRel, Relaxed).is_ok() {
            return Some(top - 1);
        }
    }
}

fn give_back(segment: Segment, entry: u32) {
    let e = segment.sample(entry);
    e.address.store(0, Release);
    loop {
        let head = FREE.0.load(Acquire);
        e.reserved.store(head & 0xffff_ffff, Release);
        let tag = (head >> 32).wrapping_add(1) << 32;
        if FREE.0.compare_exchange(head, tag | (entry as u64 + 1), AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// Who allocated a sampled block, and its weight in the estimates.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// Site; or, without space for a site, a caller: then there is no sample.
    pub site: u32,
    /// Thread slot.
    pub slot: u32,
    /// 1/p.
    pub weight: f64,
}

/// Makes a fresh block's sample. Its entry is claimed before the block's key is written, because the key says whether
/// there is a sample. False: there is no space.
pub fn insert(segment: Segment, p: *mut u8, drawn: Drawn, amount: Amount) -> bool {
    let entry = samples_of(segment, drawn.site).and_then(|of| Some((of, claim(segment)?)));
    let Some((of, entry)) = entry else { return count_dropped(segment, drawn, amount) };
    let e = segment.sample(entry);
    e.address.store(1, Relaxed);
    e.usable.store(amount.usable, Relaxed);
    e.requested.store(amount.requested, Relaxed);
    e.weight.store(drawn.weight.to_bits(), Relaxed);
    e.time_ns.store(crate::sys::clock::now_ns(), Relaxed);
    e.site.store(drawn.site, Relaxed);
    e.slot.store(drawn.slot, Relaxed);
    e.generation.store(segment.thread(drawn.slot).generation.load(Relaxed), Relaxed);
    e.address.store(p as u64, Release);
    if !index_insert(p as u64, entry) {
        give_back(segment, entry);
        return count_dropped(segment, drawn, amount);
    }
    segment.count(Counter::samples, 1);
    let s = Share::of(amount.usable, amount.requested, drawn.weight);
    of.alloc_samples.fetch_add(1, Relaxed);
    of.alloc_bytes.fetch_add(s.bytes, Relaxed);
    of.alloc_requested.fetch_add(s.requested, Relaxed);
    of.alloc_count_256.fetch_add(s.count_256, Relaxed);
    add(&of.alloc_bytes_variance, s.bytes_variance);
    add(&of.alloc_count_variance, s.count_variance);
    let class = (64 - (amount.requested >> 4).leading_zeros() as usize).min(of.sizes_256.len() - 1);
    of.sizes_256[class].fetch_add(s.count_256, Relaxed);
    true
}

/// Counts a sample for which there is no space; false, as `insert` returns it.
fn count_dropped(segment: Segment, drawn: Drawn, amount: Amount) -> bool {
    segment.count(Counter::samples_dropped, 1);
    segment.count(Counter::samples_dropped_bytes, Share::of(amount.usable, amount.requested, drawn.weight).bytes);
    false
}

/// Takes a block's sample out of the index before the block is freed. `None`: the key was damaged and says 'sampled',
/// or the sample stayed behind in a fork.
pub fn take(segment: Segment, p: *mut u8) -> Option<TakenSample> {
    if INDEX.load(Relaxed) == 0 {
        return None;
    }
    let entry = index_remove(p as u64)?;
    (segment.sample(entry).address.load(Relaxed) == p as u64).then_some(TakenSample(entry))
}

/// Puts the sample back: the block was neither freed nor moved. False: its space was taken, so the sample is lost.
pub fn put_back(segment: Segment, p: *mut u8, taken: TakenSample) -> bool {
    let stays = index_insert(p as u64, taken.0);
    if !stays {
        end(segment, taken);
    }
    stays
}

/// Moves the sample to another site. In the estimates the sample leaves the old site, but isn't counted as the end of a
/// temporary block. False: it isn't a sample any more.
pub fn reassign(segment: Segment, p: *mut u8, site: u32) -> bool {
    let Some(taken) = take(segment, p) else { return false };
    let e = segment.sample(taken.0);
    let amount = Amount { usable: e.usable.load(Relaxed), requested: e.requested.load(Relaxed) };
    let drawn = Drawn { site, slot: e.slot.load(Relaxed), weight: f64::from_bits(e.weight.load(Relaxed)) };
    leave_site(segment, taken);
    insert(segment, p, drawn, amount)
}

/// Ends the sample: the block was freed.
pub fn end(segment: Segment, taken: TakenSample) {
    let since = segment.sample(taken.0).time_ns.load(Relaxed);
    let (of, s) = leave_site(segment, taken);
    if crate::sys::clock::now_ns().saturating_sub(since) <= TEMPORARY_NS {
        of.temporary_bytes.fetch_add(s.bytes, Relaxed);
        of.temporary_count_256.fetch_add(s.count_256, Relaxed);
    }
}

/// Books the sample out of its site, and gives its entry back.
fn leave_site(segment: Segment, taken: TakenSample) -> (&'static SiteSamples, Share) {
    let e = segment.sample(taken.0);
    let (usable, requested) = (e.usable.load(Relaxed), e.requested.load(Relaxed));
    let s = Share::of(usable, requested, f64::from_bits(e.weight.load(Relaxed)));
    let site = segment.caller(e.site.load(Relaxed));
    let of = segment.site_samples(site.frames[0].load(Relaxed) as u32);
    give_back(segment, taken.0);
    of.free_samples.fetch_add(1, Relaxed);
    of.free_bytes.fetch_add(s.bytes, Relaxed);
    of.free_requested.fetch_add(s.requested, Relaxed);
    of.free_count_256.fetch_add(s.count_256, Relaxed);
    add(&of.free_bytes_variance, s.bytes_variance);
    add(&of.free_count_variance, s.count_variance);
    (of, s)
}

/// What a sample adds to its site, equal at allocation and release.
struct Share {
    bytes: u64,
    requested: u64,
    count_256: u64,
    bytes_variance: f64,
    count_variance: f64,
}

impl Share {
    fn of(usable: u64, requested: u64, weight: f64) -> Share {
        cpu::with_usual_floats((usable, requested, weight), Share::computed)
    }

    fn computed((usable, requested, weight): (u64, u64, f64)) -> Share {
        let of = |n: f64| (n * weight + 0.5) as u64;
        // (1 − p) / p², with 1/p = weight
        let variance = weight * (weight - 1.0);
        let usable_squared = usable as f64 * usable as f64;
        Share {
            bytes: of(usable as f64),
            requested: of(requested as f64),
            count_256: of(256.0),
            bytes_variance: usable_squared * variance,
            count_variance: variance,
        }
    }
}

fn add(cell: &AtomicU64, n: f64) {
    let sum = |(bits, n): (u64, f64)| (f64::from_bits(bits) + n).to_bits();
    let _ = cell.fetch_update(Relaxed, Relaxed, |bits| Some(cpu::with_usual_floats((bits, n), sum)));
}

/// The estimates of a site, made at its first sample.
fn samples_of(segment: Segment, site: u32) -> Option<&'static SiteSamples> {
    let c = segment.caller(site);
    if c.parent.load(Relaxed) == 0 {
        return None;
    }
    let known = c.frames[0].load(Acquire);
    if known != 0 {
        return Some(segment.site_samples(known as u32));
    }
    if segment.used(Section::SiteSamples) == 0 {
        segment.append(Section::SiteSamples)?;
    }
    let i = segment.append(Section::SiteSamples)?;
    segment.site_samples(i).site.store(site, Release);
    // Another thread may have been first; then our entry stays empty.
    let i = match c.frames[0].compare_exchange(0, i as u64, AcqRel, Acquire) {
        Ok(_) => i,
        Err(other) => {
            segment.site_samples(i).site.store(0, Release);
            other as u32
        }
    };
    Some(segment.site_samples(i))
}

/// In a fork child, whose copy of the section may be newer than its index: keeps the samples that are in both.
pub fn reset_after_fork(child: Segment) {
    FREE.0.store(0, Relaxed);
    if INDEX.load(Relaxed) == 0 {
        return;
    }
    for entry in 0..child.used(Section::Samples) as u32 {
        let e = child.sample(entry);
        let address = e.address.load(Relaxed);
        let is = |cell: &AtomicU64| Some(cell.load(Relaxed)) == word(address, entry);
        if address <= 1 || !cells(address).any(is) {
            give_back(child, entry);
        }
    }
}

/// New books: no block is a sample, and no site has a sample.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books(segment: Segment) {
    FREE.0.store(0, Relaxed);
    let index = INDEX.load(Relaxed);
    if index != 0 {
        // SAFETY: our own private reservation, which no thread uses now.
        unsafe { os::empty(index as *mut u8, BUCKETS * BUCKET * 8) };
    }
    for entry in 0..segment.used(Section::Samples) as u32 {
        give_back(segment, entry);
    }
    for i in 0..segment.used(Section::SiteSamples) as u32 {
        let of = segment.site_samples(i);
        let sums = [
            &of.alloc_samples,
            &of.free_samples,
            &of.alloc_bytes,
            &of.alloc_requested,
            &of.alloc_count_256,
            &of.free_bytes,
            &of.free_requested,
            &of.free_count_256,
            &of.temporary_bytes,
            &of.temporary_count_256,
            &of.alloc_bytes_variance,
            &of.alloc_count_variance,
            &of.free_bytes_variance,
            &of.free_count_variance,
        ];
        sums.into_iter().chain(&of.sizes_256).for_each(|sum| sum.store(0, Relaxed));
    }
}
