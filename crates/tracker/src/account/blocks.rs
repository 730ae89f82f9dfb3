//! Which block belongs to whom: known again at `free` by a key.
//!
//! A header in front of the block (HotSpot 16 + 2 B, Native Image 16 B) shifts the pointer: foreign and older blocks then
//! crash or need a look-up, the tracker can't come late, and 1 KiB leaves glibc's tcache. A **trailer** in the last eight
//! usable bytes leaves pointer and alignment alone:
//!
//! ```text
//! block      requested bytes … slack … │ trailer 8 B │      usable = malloc_usable_size, the trailer included
//!
//! trailer    63            36 35        16 15         0
//!            │   check 28   │  caller 20  │ requested 16│
//! check = high 28 bits of ((low 36 bits) ^ (address · odd) ^ secret) · odd
//! ```
//!
//! On glibc a request below 64 KiB asks for eight bytes more (8 B on average: sizes go by 16). Everywhere else, and for
//! aligned and large blocks, the trailer is written only where the allocator's own rounding leaves eight bytes; the rest
//! goes to the side table ([`super::table`]). A trailer is cleared at free. A block without a valid one that isn't in the
//! table either is 'unknown or overwritten': counted, never harmful.

use crate::sys::{cpu, libc};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::Allocator;

/// Blocks with at least this many usable bytes are kept in the side table.
pub const TABLE_FROM: usize = 64 << 10;
/// Requests below this ask glibc for a trailer. The margin covers glibc's rounding (at most 31 bytes, MINSIZE − 1).
const TRAILER_BELOW: usize = TABLE_FROM - 64;
/// Bytes of a trailer.
pub const TRAILER: usize = 8;

static SECRET: AtomicU64 = AtomicU64::new(0);
static ALLOCATOR: AtomicU32 = AtomicU32::new(Allocator::Other as u32);
static TRAILER_BELOW_NOW: AtomicUsize = AtomicUsize::new(0);

/// The key of a block: who, and how much was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Caller.
    pub caller: u32,
    /// Requested bytes.
    pub requested: u64,
}

/// Requests below this get a trailer by asking for more; 0: never ask for more.
#[inline(always)]
pub fn trailer_below() -> usize {
    TRAILER_BELOW_NOW.load(Relaxed)
}

/// Whose malloc is below.
pub fn allocator() -> u32 {
    ALLOCATOR.load(Relaxed)
}

/// Chooses the secret and looks whose malloc is below.
pub fn init(allocator: Allocator) {
    if SECRET.load(Relaxed) == 0 {
        let stack = &allocator as *const Allocator as u64;
        SECRET.store(mix(cpu::ticks() ^ stack.rotate_left(32) ^ &raw const SECRET as u64) | 1, Relaxed);
    }
    ALLOCATOR.store(allocator as u32, Relaxed);
    TRAILER_BELOW_NOW.store(if allocator == Allocator::Glibc { TRAILER_BELOW } else { 0 }, Relaxed);
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x ^ (x >> 29)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// Usable bytes of a block of glibc's, read from its chunk header as malloc_usable_size does (malloc/malloc.c,
/// `musable`): the size field in front of the block, its low three bits are flags, IS_MMAPPED is 2.
///
/// # Safety
/// `p` is a live block of glibc's malloc.
#[inline(always)]
pub unsafe fn usable_glibc(p: *mut u8) -> usize {
    // SAFETY: a chunk's size field lies directly in front of its block.
    let size = unsafe { *(p as *const usize).sub(1) };
    (size & !7) - 8 - ((size & 2) << 2)
}

/// Usable bytes of any live block of the allocator below.
///
/// # Safety
/// `p` is a live block.
#[inline(always)]
pub unsafe fn usable(p: *mut u8) -> usize {
    // SAFETY: the caller's contract.
    unsafe { if trailer_below() != 0 { usable_glibc(p) } else { libc::calls::malloc_usable_size(p) } }
}

#[inline(always)]
fn check(payload: u64, p: *mut u8) -> u64 {
    let x = payload ^ (p as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ SECRET.load(Relaxed);
    x.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 36
}

#[inline(always)]
unsafe fn trailer_of(p: *mut u8, usable: usize) -> *mut u64 {
    // SAFETY: the last eight usable bytes of the caller's block; usable sizes of all allocators here are ≥ 8.
    unsafe { p.add(usable - TRAILER) as *mut u64 }
}

/// Writes a trailer.
///
/// # Safety
/// `p` is a live block with this many usable bytes, and at least eight of them weren't asked for.
#[inline(always)]
pub unsafe fn write_trailer(p: *mut u8, usable: usize, caller: u32, requested: usize) {
    let payload = (caller as u64) << 16 | (requested as u64 & 0xffff);
    // SAFETY: the caller's contract.
    unsafe { trailer_of(p, usable).write_unaligned(check(payload, p) << 36 | payload) }
}

/// Reads a block's trailer. `None`: it has none, or it was overwritten.
///
/// # Safety
/// `p` is a live block with this many usable bytes.
#[inline(always)]
pub unsafe fn read_trailer(p: *mut u8, usable: usize) -> Option<Key> {
    // A damaged chunk header gives any number: nothing is read then, and the real free says what it says.
    if usable.wrapping_sub(TRAILER) >= TABLE_FROM - TRAILER {
        return None;
    }
    // SAFETY: the caller's contract.
    let v = unsafe { trailer_of(p, usable).read_unaligned() };
    let payload = v & 0xf_ffff_ffff;
    if v >> 36 != check(payload, p) {
        return None;
    }
    let requested = payload & 0xffff;
    if requested as usize + TRAILER > usable {
        return None;
    }
    Some(Key { caller: (payload >> 16) as u32, requested })
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
