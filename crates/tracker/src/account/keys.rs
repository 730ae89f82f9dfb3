//! The keys of blocks: in the array of the page over some allocators, else in the trailer or, without space for one, in
//! the side table.

use super::blocks::{self, Key, TABLE_FROM, TRAILER};
use super::rows::Amount;
use super::side_table::{self, page_keys};
use crate::segment::Segment;
use crate::sys::libc;
use core::sync::atomic::Ordering::Relaxed;

/// Stores a block's key: in its page's array, else in a trailer if there is space, else in the side table. Returns what
/// to book.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes, held by this thread.
#[inline(always)]
pub unsafe fn set_key(p: *mut u8, key: Key) -> Option<Amount> {
    let n = key.requested as usize;
    // SAFETY: the caller's contract.
    unsafe {
        let usable = blocks::usable(p);
        if page_keys::insert(p, usable, key) {
            return Some(Amount { usable: usable as u64, requested: n as u64 });
        }
        if usable < TABLE_FROM && usable >= n + TRAILER && !blocks::NO_TRAILERS.load(Relaxed) {
            blocks::write_trailer_of(p, usable, key);
            return Some(Amount { usable: (usable - TRAILER) as u64, requested: n as u64 });
        }
        to_table(p, usable, key).then(|| amount(usable, n as u64))
    }
}

/// As [`set_key`], before the allocator's sizes are known. Once small keys lie in pages, no small block passes for one
/// with a trailer, so no small block gets one before.
///
/// # Safety
/// As `set_key`.
pub unsafe fn set_early_key(p: *mut u8, key: Key) -> Option<Amount> {
    // SAFETY: the caller's contract.
    unsafe {
        let usable = blocks::usable(p);
        if blocks::keys_may_go_to_pages(usable) {
            return to_table(p, usable, key).then(|| amount(usable, key.requested));
        }
        set_key(p, key)
    }
}

/// What to book for a block without a trailer. An allocator may not know the usable bytes. gperftools' tcmalloc reports
/// 0 before its constructor has run, also for blocks that other libraries' constructors got. Later it reports their
/// sizes.
#[inline(always)]
pub fn amount(usable: usize, requested: u64) -> Amount {
    let usable = if (usable as u64) < requested { usable_of_request(requested) } else { usable as u64 };
    Amount { usable, requested }
}

#[cold]
#[inline(never)]
fn usable_of_request(requested: u64) -> u64 {
    // SAFETY: the allocator has returned, or wasn't called yet.
    requested.max(unsafe { libc::size_of_request(requested as usize) } as u64)
}

/// Enters a block that has no space for a trailer in the side table.
///
/// # Safety
/// `p` is a live block with this many usable bytes, held by this thread.
#[inline(always)]
pub unsafe fn to_table(p: *mut u8, usable: usize, key: Key) -> bool {
    // An earlier block's trailer must not pass for this one's. The program hasn't got these bytes yet, and zero is what
    // calloc returns there. But realloc has copied the program's data there, so only a word that `take_key` would
    // accept is cleared.
    // SAFETY: the caller's contract.
    unsafe {
        if usable < TABLE_FROM && trailer(p, usable).is_some() {
            blocks::clear_trailer(p, usable);
        }
    }
    side_table::insert(p, usable, key)
}

/// What `set_key` will return if there is space.
///
/// # Safety
/// As `set_key`.
pub unsafe fn amount_of(p: *mut u8, n: usize) -> Amount {
    // SAFETY: the caller's contract.
    let usable = unsafe { blocks::usable(p) };
    let fits = usable < TABLE_FROM && usable >= n + TRAILER && !blocks::NO_TRAILERS.load(Relaxed);
    let has_trailer = fits && !page_keys::prepare(p, usable, n);
    let trailer = if has_trailer { TRAILER } else { 0 };
    amount(usable - trailer, n as u64)
}

/// Takes the key out of a block. Removing its sample is up to the caller.
///
/// # Safety
/// `p` is a live block, held by this thread.
#[inline(always)]
pub unsafe fn take_key(p: *mut u8) -> Option<(Key, Amount)> {
    // SAFETY: the caller's contract.
    unsafe { take_key_of(p, blocks::usable(p)) }
}

/// As [`take_key`], for a block whose usable bytes are known.
///
/// # Safety
/// As `take_key`; `usable` is what malloc_usable_size reports for `p`.
#[inline(always)]
pub unsafe fn take_key_of(p: *mut u8, usable: usize) -> Option<(Key, Amount)> {
    if let Some((key, usable)) = page_keys::take(p) {
        return Some((key, Amount { usable: usable as u64, requested: key.requested }));
    }
    // SAFETY: the caller's contract.
    unsafe {
        let mut usable = usable;
        if let Some(key) = blocks::read_trailer(p, usable) {
            if is_in_use(key.row) {
                blocks::clear_trailer(p, usable);
                return Some((key, Amount { usable: (usable - TRAILER) as u64, requested: key.requested }));
            }
            // The program's own bytes have passed the check. They may lie where the trailer of the page's last block
            // lay, and not at the end of this block.
            usable = blocks::usable(p);
        }
        let key = side_table::remove(p, usable)?;
        Some((key, amount(usable, key.requested)))
    }
}

/// Looks a block up. `None`: it isn't in the books.
///
/// # Safety
/// `p` is a live block.
pub unsafe fn key_of(p: *mut u8) -> Option<Key> {
    page_keys::get(p).or_else(|| {
        // SAFETY: the caller's contract.
        unsafe {
            let usable = blocks::usable(p);
            trailer(p, usable).or_else(|| side_table::get(p, usable))
        }
    })
}

/// The key in a block's trailer. `None`: it has none.
///
/// # Safety
/// `p` is a live block with this many usable bytes.
pub unsafe fn trailer(p: *mut u8, usable: usize) -> Option<Key> {
    // SAFETY: the caller's contract.
    unsafe { blocks::read_trailer(p, usable) }.filter(|key| is_in_use(key.row))
}

/// Whether blocks are booked in a row. The program's bytes may give any of 2^20 row numbers, and few of these rows are
/// in use. A fork child also finds trailers of blocks that other threads of the parent made during the fork, in rows
/// that it lacks.
fn is_in_use(row: u32) -> bool {
    Segment::current().is_none_or(|segment| segment.seen(row).slot_mark() != 0)
}
