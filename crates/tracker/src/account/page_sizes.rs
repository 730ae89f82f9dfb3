//! Where the trailers of a page's blocks lay last: a guess that saves `free` the call for a block's size.
//!
//! ```text
//! block ──bits 12 to 25 of its address──▶ LAST ──▶ bytes in front of the trailer ──▶ is the word there this block's trailer?
//! ```
//! jemalloc, tcmalloc and mimalloc keep blocks of one size on a page. A trailer contains the address of its block
//! ([`super::blocks`]), and is cleared when the block is freed or moved. So the word at the guessed place passes the
//! check only if it was written for this block, at this place, and an outdated guess can't mislead. One in 2^28 of the
//! program's own words passes by chance. Its row is then almost never one of the thread's rows, and [`super::keys`]
//! looks again. If the check fails, malloc_usable_size is called. A guess is used only if the trailer lies on the page
//! where the block begins, which is readable.
//!
//! One case is left. A function that isn't hooked freed a block, so its trailer stays. The page gets another size, and
//! the same address another block. The program never writes the trailer's word. Then the release of the new block is
//! booked with the old key.
//!
//! All threads write here without order: an entry is one word of two bytes, and each of its values is a guess.

use core::sync::atomic::AtomicU16;

/// Entries. A power of two; 64 MiB of blocks have entries of their own.
pub const PAGES: usize = 1 << 14;
/// log2 of the bytes of a page.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in front of the trailer. 0: nothing is known yet.
pub static LAST: [AtomicU16; PAGES] = [const { AtomicU16::new(0) }; PAGES];
