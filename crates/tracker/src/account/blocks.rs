//! Which block belongs to which caller: `free` reads it from a key that malloc wrote.
//!
//! A header in front of the block (HotSpot 16 + 2 B, Native Image 16 B) shifts the pointer. Then foreign and older
//! blocks crash or need a look-up, a late attach is impossible, and a block of 1 KiB no longer fits glibc's tcache. A
//! **trailer** in the last eight usable bytes leaves pointer and alignment alone:
//!
//! ```text
//! block      requested bytes … slack … │ trailer 8 B │      usable = malloc_usable_size, the trailer included
//!
//! trailer    63         48 47    28      27 26         0
//!            │ requested 16 │ row 20 │ sampled │  0 … 0  27 │   ^ address ^ secret
//! ```
//!
//! The zero bits are the check. They lie at the trailer's lower addresses, where an overrun of the block arrives
//! first. The row (of the thread that allocated) names the caller.
//!
//! On glibc a request below 64 KiB is enlarged by eight bytes. Sizes go by 16, so a block grows by 8 B on average. On
//! mimalloc most requests below 512 B are enlarged ([`super::classes`]). Everywhere else, and for aligned and large
//! blocks, the trailer is written only where the allocator's own rounding leaves eight bytes. The other keys go to the
//! side table ([`super::side_table`]). A trailer is cleared at free. A block that has no valid trailer and isn't in the
//! table either is 'unknown or overwritten': counted, never harmful.

use crate::segment::{Segment, WIPED, slots};
use crate::sys::{cpu, libc};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{Allocator, Section};

/// Blocks with at least this many usable bytes are kept in the side table.
pub const TABLE_FROM: usize = 64 << 10;
/// Over glibc, requests below this are enlarged for a trailer. The margin covers glibc's rounding (at most 31 bytes,
/// MINSIZE − 1).
const TRAILER_BELOW: usize = TABLE_FROM - 64;
/// Requests below this may take the fast path over an allocator other than glibc's.
pub const OTHER_BELOW: usize = 4 << 10;
/// Bytes of a trailer.
pub const TRAILER: usize = 8;

/// The secret in force, kept for a prepared fork child, which has the blocks of its parent.
static KEPT: AtomicU64 = AtomicU64::new(0);
static ALLOCATOR: AtomicU32 = AtomicU32::new(Allocator::Other as u32);
static TRAILER_BELOW_NOW: AtomicUsize = AtomicUsize::new(0);
/// Sizes from `TRAILER + 1` on whose blocks have no trailer: 0, [`SMALL`], or [`NONE`] once a small block has got one.
static WITHOUT_TRAILER: AtomicUsize = AtomicUsize::new(0);
const SMALL: usize = OTHER_BELOW - TRAILER;
/// Leaves only the size of nine bytes, which no block has: where sizes are known, they are multiples of eight.
const NONE: usize = 1;

/// Whether no block of any size has a trailer: over musl, whose malloc_usable_size repeats the request (that of its old
/// malloc rounds, but has no trailers either), and over an allocator that can't report its blocks' sizes.
pub static NO_TRAILERS: AtomicBool = AtomicBool::new(false);

/// The key of a block: the row that it was booked in, and the requested bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Row; below the section's capacity, whatever the word's value.
    pub row: u32,
    /// Requested bytes.
    pub requested: u64,
    /// The block is among the live samples ([`super::samples`]).
    pub sampled: bool,
}

/// First bit of the row.
pub const ROW_SHIFT: u32 = 28;
/// First bit of the requested bytes.
pub const REQUESTED_SHIFT: u32 = 48;
const SAMPLED: u64 = 1 << (ROW_SHIFT - 1);
/// Bits that are zero in any trailer.
pub const CHECK: u64 = SAMPLED - 1;
/// Bits that are zero in the trailer of a block that isn't a sample.
pub const CHECKED: u64 = CHECK | SAMPLED;
const ROWS: u32 = (1 << (REQUESTED_SHIFT - ROW_SHIFT)) - 1;
const _: () = assert!(Section::Rows.capacity() == 1 << (REQUESTED_SHIFT - ROW_SHIFT));
const _: () = assert!(TABLE_FROM == 1 << (64 - REQUESTED_SHIFT));

/// The row's part of a trailer: what all blocks of a row share.
#[inline(always)]
pub const fn row_key(row: u32) -> u64 {
    (row as u64) << ROW_SHIFT
}

/// The row of a key.
#[inline(always)]
pub const fn row_of_key(key: u64) -> u32 {
    (key >> ROW_SHIFT) as u32 & ROWS
}

/// Requests below this are enlarged for a trailer; 0: no request is enlarged.
#[inline(always)]
pub fn trailer_below() -> usize {
    TRAILER_BELOW_NOW.load(Relaxed)
}

/// Which allocator is below the hooks.
pub fn allocator() -> u32 {
    ALLOCATOR.load(Relaxed)
}

/// Chooses the secret, and determines which allocator is below the hooks.
pub fn init(allocator: Allocator) {
    if KEPT.load(Relaxed) == 0 {
        renew_secret();
    }
    ALLOCATOR.store(allocator as u32, Relaxed);
    NO_TRAILERS.store(allocator == Allocator::Musl, Relaxed);
    write_trailers(true);
}

/// Notes that the allocator can't report usable bytes: the books count the requested bytes, and all keys go to the side
/// table. Called after [`init`].
pub fn sizes_are_unknown() {
    NO_TRAILERS.store(true, Relaxed);
}

/// Makes this segment the process's own, with the secret of the existing blocks. False: the kernel refuses.
pub fn publish(segment: Segment) -> bool {
    segment.publish(KEPT.load(Relaxed), fast_path_below(), other_fast_path_below())
}

/// Lets all threads take the fast path. Until now they took the slow path.
pub fn open_fast_paths(segment: Segment) {
    slots::set_trailer_bound(segment, fast_path_below());
    Segment::set_fast_paths(fast_path_below(), other_fast_path_below());
}

/// Requests below this take the fast path. In a native image whose blocks may have headers, every call takes the slow
/// path, which reads them.
pub fn fast_path_below() -> usize {
    if super::image::may_have_headers() { 0 } else { trailer_below() }
}

/// As [`fast_path_below`], over an allocator other than glibc's.
fn other_fast_path_below() -> usize {
    if super::image::may_have_headers() || allocator() == Allocator::Glibc as u32 { 0 } else { OTHER_BELOW }
}

/// Invalidates all keys that were written before.
pub fn renew_secret() {
    let here = 0u8;
    let stack = &raw const here as u64;
    KEPT.store(mix(cpu::ticks() ^ stack.rotate_left(32) ^ &raw const KEPT as u64) | 1, Relaxed);
    restore_secret();
}

/// Puts the secret in force (again).
pub fn restore_secret() {
    WIPED.secret.store(KEPT.load(Relaxed), Relaxed);
}

#[inline(always)]
fn secret() -> u64 {
    WIPED.secret.load(Relaxed)
}

/// Sets whether requests are enlarged for a trailer. After a detach they aren't.
pub fn write_trailers(on: bool) {
    let below = if on && allocator() == Allocator::Glibc as u32 { TRAILER_BELOW } else { 0 };
    TRAILER_BELOW_NOW.store(below, Relaxed);
}

/// A number that differs between processes.
pub fn seed() -> u64 {
    mix(KEPT.load(Relaxed))
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x ^ (x >> 29)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// The bytes that the size field of a chunk with its own mapping counts in addition to that of another chunk: 8 for a
/// header at the mapping's end, or 0.
static MAPPED_MORE: AtomicUsize = AtomicUsize::new(8);

/// Records that glibc leaves this header out of the size: from 2.43 on (malloc/malloc.c, `mmap_set_chunk`).
pub fn mapped_sizes_leave_a_header_out() {
    MAPPED_MORE.store(0, Relaxed);
}

/// Usable bytes of a block of glibc's, read from its chunk header as malloc_usable_size does (malloc/malloc.c,
/// `musable`): from the size field in front of the block. Its low three bits are flags; IS_MMAPPED is 2.
///
/// # Safety
/// `p` is a live block of glibc's malloc, or of another malloc whose blocks have eight readable bytes in front. In the
/// second case the result is meaningless.
#[inline(always)]
pub unsafe fn usable_glibc(p: *mut u8) -> usize {
    // SAFETY: a chunk's size field lies directly in front of its block.
    let size = unsafe { *(p as *const usize).sub(1) };
    (size & !7).wrapping_sub(8).wrapping_sub((size & 2) << 2 & MAPPED_MORE.load(Relaxed))
}

/// Usable bytes of a small block of glibc's that malloc didn't map by itself. `None`: any other, or a damaged header.
///
/// The flag IS_MMAPPED is rotated to the top, so that one comparison finds both the flag and large sizes.
///
/// # Safety
/// `p` is a live block of glibc's malloc.
#[inline(always)]
pub unsafe fn usable_small(p: *mut u8) -> Option<usize> {
    // SAFETY: as in `usable_glibc`.
    let size = unsafe { *(p as *const usize).sub(1) };
    let quarter = (size & !5).rotate_right(2);
    if quarter >= TABLE_FROM / 4 { None } else { Some((quarter * 4).wrapping_sub(8)) }
}

/// Usable bytes of any live block of the allocator below.
///
/// # Safety
/// `p` is a live block.
#[inline(always)]
pub unsafe fn usable(p: *mut u8) -> usize {
    if trailer_below() != 0 {
        // SAFETY: the caller's contract.
        return unsafe { usable_glibc(p) };
    }
    // SAFETY: the caller's contract.
    unsafe { libc::calls::malloc_usable_size(p) }
}

#[inline(always)]
fn trailer_of(p: *mut u8, usable: usize) -> *mut u64 {
    p.wrapping_add(usable.wrapping_sub(TRAILER)) as *mut u64
}

/// Writes a trailer; `row_key` as [`row_key`] makes it.
///
/// # Safety
/// `p` is a live block with this many usable bytes, and at least eight of them weren't requested.
#[inline(always)]
pub unsafe fn write_trailer(p: *mut u8, usable: usize, row_key: u64, requested: usize) {
    debug_assert!(requested < TABLE_FROM);
    let v = row_key | (requested as u64) << REQUESTED_SHIFT;
    // SAFETY: the caller's contract.
    unsafe { trailer_of(p, usable).write_unaligned(v ^ p as u64 ^ secret()) }
}

/// From now on, small blocks have their keys in arrays of their pages ([`super::side_table::page_keys`]). Called while
/// no block is booked, or only early ones ([`super::keys::set_early_key`]).
pub fn small_keys_are_in_pages() {
    // A second call must not undo what `write_trailer_of` has noted.
    let _ = WITHOUT_TRAILER.compare_exchange(0, SMALL, Relaxed, Relaxed);
}

/// Whether [`small_keys_are_in_pages`] may be called later, and will hold for a block of this size.
pub fn keys_may_go_to_pages(usable: usize) -> bool {
    usable <= OTHER_BELOW && [Allocator::Jemalloc, Allocator::Tcmalloc].iter().any(|a| *a as u32 == allocator())
}

/// Whether no block with this many usable bytes has a trailer. Also false where that isn't known, and for blocks of
/// eight bytes: the block of `malloc(0)` has a trailer.
#[inline(always)]
pub fn has_no_trailer(usable: usize) -> bool {
    usable.wrapping_sub(TRAILER + 1) < WITHOUT_TRAILER.load(Relaxed)
}

/// Writes a trailer for any key.
///
/// # Safety
/// As `write_trailer`.
pub unsafe fn write_trailer_of(p: *mut u8, usable: usize, key: Key) {
    if has_no_trailer(usable) {
        // Rare: no memory for the page's array, or another thread is clearing it.
        WITHOUT_TRAILER.store(NONE, Relaxed);
    }
    let sampled = if key.sampled { SAMPLED } else { 0 };
    // SAFETY: the caller's contract.
    unsafe { write_trailer(p, usable, row_key(key.row) | sampled, key.requested as usize) };
}

/// Reads a block's trailer. `None`: it has none, or it was overwritten.
///
/// The last bytes of a block without a trailer are the program's, and one block in 2^27 passes the check. So the
/// requested bytes must fit in front of the trailer, and code that relies on the key checks its row ([`super::keys`]).
///
/// # Safety
/// `p` is a live block with this many usable bytes.
#[inline(always)]
pub unsafe fn read_trailer(p: *mut u8, usable: usize) -> Option<Key> {
    // A damaged chunk header gives any number. Then nothing is read, and the real free detects the damage as it would
    // without the tracker.
    let room = usable.wrapping_sub(TRAILER);
    if room >= TABLE_FROM - TRAILER || NO_TRAILERS.load(Relaxed) {
        return None;
    }
    // SAFETY: the caller's contract.
    let v = unsafe { trailer_word(p, usable) };
    let is_whole = v & CHECK == 0 && v >> REQUESTED_SHIFT <= room as u64;
    is_whole.then_some(Key { row: row_of_key(v), requested: v >> REQUESTED_SHIFT, sampled: v & SAMPLED != 0 })
}

#[inline(always)]
unsafe fn trailer_word(p: *mut u8, usable: usize) -> u64 {
    // SAFETY: the caller's contract. A chunk of size 0 (damaged) reads the word in front of the chunk header.
    unsafe { trailer_of(p, usable).read_unaligned() ^ p as u64 ^ secret() }
}

/// Reads the trailer of a small block that isn't sampled. `None` also for sampled blocks.
///
/// # Safety
/// `p` is a live block with this many usable bytes, less than [`TABLE_FROM`].
#[inline(always)]
pub unsafe fn read_trailer_small(p: *mut u8, usable: usize) -> Option<Key> {
    // SAFETY: the caller's contract.
    let v = unsafe { trailer_word(p, usable) };
    if v & CHECKED != 0 {
        return None;
    }
    Some(Key { row: row_of_key(v), requested: v >> REQUESTED_SHIFT, sampled: false })
}

/// Clears a trailer.
///
/// # Safety
/// As in `read_trailer`.
#[inline(always)]
pub unsafe fn clear_trailer(p: *mut u8, usable: usize) {
    // SAFETY: the caller's contract.
    unsafe { trailer_of(p, usable).write_unaligned(0) }
}
