//! The cold half of malloc and free: whatever a fast path leaves out. On CPUs without the assembly, also every block of
//! an allocator other than glibc's. Both halves keep one order of booking.

use crate::account::blocks::{self, Key, TRAILER};
use crate::account::early;
use crate::account::keys::{amount, amount_of, set_key, take_key, take_key_of, to_table};
use crate::account::rows::{self, Amount};
use crate::account::samples::{self, Drawn};
use crate::account::thread::ThreadState;
use crate::account::{classes, classify, control, image, memo, pending, remote_free, sampling};
use crate::guard::{Entered, TakenState, enter, enter_at};
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::segment::books::{MayBook, OwnRow, SlotMark};
use crate::segment::{Segment, row_offset};
use crate::stack::callers;
use crate::stack::read::return_address;
use crate::sys::cpu::{CURRENT, ROOM_SPAN, tls_get};
use crate::sys::libc;
use crate::sys::libc::calls;
use core::sync::atomic::Ordering::Relaxed;
use plimsoll_segment::{CALLER_EARLY, Counter};

/// What the fast paths call. A fast path runs at any alignment of the stack; these functions align it first.
#[allow(missing_docs, reason = "each is documented where it continues")]
pub mod off_path {
    use super::ThreadState;
    crate::any_alignment! {
        pub fn malloc_slow(n: usize, sp: usize, fp: usize) -> *mut u8 = super::malloc_slow;
        pub fn malloc_walk(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 = super::malloc_walk;
        pub fn malloc_sampled(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 = super::malloc_sampled;
        pub fn finish_row(t: *mut ThreadState, p: *mut u8, n: usize, row: u32) -> *mut u8 = super::finish_row;
        pub fn unbooked_now(t: *mut ThreadState, p: *mut u8) -> *mut u8 = super::unbooked_now;
        pub fn flush(t: *mut ThreadState, p: *mut u8, caller: u32) -> *mut u8 = super::flush_now;
        pub fn other_walk(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 = super::other_walk;
        pub fn other_sampled(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 = super::other_sampled;
        pub fn other_without_trailer(p: *mut u8, n: usize, row_key: u64, usable: usize) -> *mut u8 = super::other_without_trailer;
        pub fn other_new_page(p: *mut u8, n: usize, row_key: u64) -> *mut u8 = super::other_new_page;
        pub fn other_flush(p: *mut u8, caller: u32) -> *mut u8 = super::other_flush;
        pub fn free(p: *mut u8) = super::free;
        pub fn free_sized(p: *mut u8, usable: usize) = super::free_sized;
        pub fn free_flush(p: *mut u8, caller: u32) = super::free_flush;
    }
}

/// malloc over glibc, from a stack that isn't remembered in either bucket.
#[cold]
#[inline(never)]
unsafe extern "C" fn malloc_walk(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 {
    // SAFETY: as in `portable::malloc`; the fast path has taken the state.
    unsafe {
        let mut t = TakenState::of(t);
        // The fast path has looked into both buckets, and the state was taken since.
        let walk = |(books, t): (MayBook<'_>, &mut ThreadState)| memo::walk(books, t, sp, fp);
        let attribution = t.with_books().map(walk).map(|row| Attribution { row, drawn: None });
        finish_any(t, calls::malloc(n + TRAILER), n, attribution)
    }
}

/// malloc over glibc, of a block in which a mark of the sampling lies.
#[cold]
#[inline(never)]
unsafe extern "C" fn malloc_sampled(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 {
    // SAFETY: as in `portable::malloc`; the fast path has taken the state.
    unsafe {
        let mut t = TakenState::of(t);
        let attribution = sampled(&mut t, n, sp, fp);
        finish_any(t, calls::malloc(n + TRAILER), n, attribution)
    }
}

/// The row that a block is booked in, and the sample if one was drawn.
#[derive(Clone, Copy)]
pub(super) struct Attribution {
    row: u32,
    drawn: Option<Drawn>,
}

/// Attributes a block of `n` bytes to this call. Counts down to the next sample. `None`: there are no books, after a
/// detach or in an unprepared fork child.
///
/// # Safety
/// `sp` and `fp` are the hooked call's.
pub(super) unsafe fn attribute(t: &mut ThreadState, n: usize, sp: usize, fp: usize) -> Option<Attribution> {
    // SAFETY: the caller's contract.
    unsafe {
        if t.passes_mark(n) {
            return sampled(t, n, sp, fp);
        }
        row_of(t, sp, fp).map(|row| Attribution { row, drawn: None })
    }
}

#[cold]
#[inline(never)]
unsafe fn sampled(t: &mut ThreadState, n: usize, sp: usize, fp: usize) -> Option<Attribution> {
    let (books, t) = t.with_books()?;
    let weight = sampling::weight(n as u64, t.mean);
    let mode = t.draw(*books);
    // SAFETY: as `attribute`.
    let row = unsafe { row_of(t, sp, fp) }?;
    if mode == control::OFF {
        return Some(Attribution { row, drawn: None });
    }
    // SAFETY: as `attribute`.
    let site = unsafe { site_of(*books, t, row, sp, fp) };
    let row = if site == books.seen(row).caller() { row } else { rows::row_for(books, Some(t), site) };
    Some(Attribution { row, drawn: Some(Drawn { site, slot: t.slot, weight }) })
}

/// The site of a call whose row is known: in exact mode the row is a site's already.
unsafe fn site_of(segment: Segment, t: &mut ThreadState, row: u32, sp: usize, fp: usize) -> u32 {
    let caller = segment.seen(row).caller();
    if callers::parent(segment, caller) != caller || segment.header().mode.load(Relaxed) == control::OFF {
        return caller;
    }
    // SAFETY: as `attribute`.
    unsafe { memo::site(segment, t, sp, fp, caller) }
}

/// The row for this call, remembered or found by a walk. `None`: as `attribute`.
unsafe fn row_of(t: &mut ThreadState, sp: usize, fp: usize) -> Option<u32> {
    // SAFETY: as `attribute`.
    match unsafe { memo::recall(t, sp, fp) } {
        Some(m) => Some(blocks::row_of_key(m.row_key)),
        // SAFETY: as above.
        None => unsafe { walk(t, sp, fp) },
    }
}

unsafe fn walk(t: &mut ThreadState, sp: usize, fp: usize) -> Option<u32> {
    let (books, t) = t.with_books()?;
    // SAFETY: as `attribute`.
    Some(unsafe { memo::recall_or_walk(books, t, sp, fp) })
}

/// Gives the state back without booking: since it was taken, the tracker was detached, or the process became an
/// unprepared fork child.
#[cold]
#[inline(never)]
unsafe extern "C" fn unbooked_now(t: *mut ThreadState, p: *mut u8) -> *mut u8 {
    // SAFETY: the fast path has taken the state.
    drop(unsafe { TakenState::of(t) });
    p
}

/// Books a fresh block that isn't small after all, and gives the state back.
#[cold]
#[inline(never)]
unsafe extern "C" fn finish_row(t: *mut ThreadState, p: *mut u8, n: usize, row: u32) -> *mut u8 {
    // SAFETY: as `finish_any`.
    unsafe { finish_any(TakenState::of(t), p, n, Some(Attribution { row, drawn: None })) }
}

/// As [`finish_row`], for any block and any row.
#[cold]
#[inline(never)]
pub(super) unsafe fn finish_any(mut t: TakenState, p: *mut u8, n: usize, attribution: Option<Attribution>) -> *mut u8 {
    if let (false, Some(attribution), Some((books, t))) = (p.is_null(), attribution, t.with_books()) {
        // SAFETY: p is a live block of at least n bytes.
        unsafe { book_in(books, Some(t), p, n, attribution) };
    }
    p
}

/// Writes a block's key and books it in its row.
unsafe fn book_in(books: MayBook<'_>, t: Option<&mut ThreadState>, p: *mut u8, n: usize, attribution: Attribution) {
    let segment = *books;
    let Attribution { row, drawn } = attribution;
    // SAFETY: p is a live block of at least n bytes.
    unsafe {
        // A sample is entered with the amount that `set_key` will return for the block.
        let sampled = drawn.is_some_and(|drawn| samples::insert(segment, p, drawn, amount_of(p, n)));
        match set_key(p, Key { row, requested: n as u64, sampled }) {
            Some(amount) => rows::alloc_in(books, t, row, amount),
            None => {
                if sampled && let Some(taken) = samples::take(segment, p) {
                    samples::end(segment, taken);
                }
                unbooked(segment, p);
            }
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn unbooked(segment: Segment, p: *mut u8) {
    segment.count(Counter::unbooked_blocks, 1);
    // SAFETY: the caller's live block.
    segment.count(Counter::unbooked_bytes, unsafe { blocks::usable(p) } as u64);
}

/// Updates the central figures, because the drift of this thread's row for the caller has passed its bound.
#[cold]
#[inline(never)]
fn flush(t: &mut ThreadState, caller: u32) {
    let Some((books, t)) = t.with_books() else { return };
    rows::flush(books, t, caller);
}

#[cold]
#[inline(never)]
unsafe extern "C" fn flush_now(t: *mut ThreadState, p: *mut u8, caller: u32) -> *mut u8 {
    // SAFETY: the fast path has taken the state.
    let mut t = unsafe { TakenState::of(t) };
    flush(&mut t, caller);
    p
}

/// malloc where no fast path applies: another allocator's, of a large block, or without a state.
#[inline(never)]
unsafe extern "C" fn malloc_slow(n: usize, sp: usize, fp: usize) -> *mut u8 {
    if !resolved() {
        resolve();
    }
    // SAFETY: resolved; the arguments are the program's.
    unsafe { real_call(sp, || calls::malloc(real_request(n)), |p| book_fresh(p, n, sp, fp)) }
}

/// Runs the real call, and then books its block, unless the allocator itself is the caller. Allocators other than
/// glibc's may call their own functions by the exported names, which are the hooks (malloc from calloc, operator new
/// from malloc_usable_size).
///
/// # Safety
/// `sp` is the hooked call's: the return address lies there.
#[inline(always)]
pub unsafe fn real_call(sp: usize, real: impl FnOnce() -> *mut u8, book: impl FnOnce(*mut u8)) -> *mut u8 {
    let p = real();
    // SAFETY: the caller's contract.
    if !p.is_null() && !libc::is_allocator(unsafe { return_address(sp) } as usize) {
        book(p);
    }
    p
}

/// Books a fresh block of any allocator.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes; `sp`, `fp` are the hooked call's.
#[inline(always)]
pub unsafe fn book_fresh(p: *mut u8, n: usize, sp: usize, fp: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if !book_other(p, n, sp, fp) {
            book_slow(p, n, sp, fp);
        }
    }
}

/// [`book_fresh`] for a call that the allocator may lack.
///
/// # Safety
/// As `book_fresh`, but the block may be libc's.
#[inline(always)]
pub unsafe fn book_own(call: libc::Call, p: *mut u8, n: usize, sp: usize, fp: usize) {
    // Where no block's size is known, no function of the allocator is called: libc's blocks are booked too. The usual
    // such allocator is a wrapper around libc's malloc and free.
    if libc::is_foreign(call) && !blocks::NO_TRAILERS.load(Relaxed) {
        return of_libc(n);
    }
    // SAFETY: the caller's contract.
    unsafe { book_fresh(p, n, sp, fp) }
}

/// Counts a block that libc has given beside the allocator.
#[cold]
#[inline(never)]
fn of_libc(n: usize) {
    // musl's functions call the allocator's by their exported names, whose hooks have booked the block.
    if let (false, Some(segment)) = (libc::is_musl(), Segment::current()) {
        segment.count(Counter::unbooked_blocks, 1);
        segment.count(Counter::unbooked_bytes, n as u64);
    }
}

/// Books a fresh block of any allocator by a remembered stack. The state is taken only now: other allocators map memory
/// and make threads inside malloc, and these calls go through the hooks. False: nothing was done.
#[inline(always)]
unsafe fn book_other(p: *mut u8, n: usize, sp: usize, fp: usize) -> bool {
    let t = tls_get::<CURRENT>() as *mut ThreadState;
    let Some(segment) = Segment::current() else { return false };
    if t.is_null() || image::may_have_headers() {
        return false;
    }
    // SAFETY: a non-null `current` is this thread's state; p is a live block; the entry's row is this thread's.
    unsafe {
        let mut t = TakenState::now(t);
        if t.passes_mark(n) {
            book_sample(t, p, n, sp, fp);
            return true;
        }
        let Some(m) = memo::recall_few(&t, sp, fp) else {
            // The slow path counts this block again.
            t.countdown += (n + sampling::EXTRA) as i64;
            return false;
        };
        let Some(amount) = write_key(segment, p, m.row_key, n) else { return true };
        let row = OwnRow::remembered(segment, m.row);
        if rows::add_alloc(row, amount) {
            flush(&mut t, row.caller.load(Relaxed));
        }
    }
    true
}

/// malloc called by the allocator itself: not the program's block. Also undoes what the fast path has counted for the
/// sampling.
///
/// # Safety
/// The fast path has taken the state `t`, and counted the block for the sampling.
unsafe fn for_allocator(t: *mut ThreadState, n: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        TakenState::of(t).countdown += (n + sampling::EXTRA) as i64;
        calls::malloc(n)
    }
}

/// Calls the malloc of an allocator other than glibc's. Meanwhile the state is given back, because the allocator may
/// call hooked functions itself. `None`: there is no block, or nothing to book it with.
///
/// # Safety
/// The fast path has taken the state `t`, and counted the block for the sampling.
unsafe fn call_real_malloc(t: *mut ThreadState, n: usize) -> (*mut u8, Option<TakenState>) {
    // SAFETY: the caller's contract; a `current` other than 0 is this thread's state.
    unsafe {
        drop(TakenState::of(t));
        let p = calls::malloc(real_request(n));
        let t = tls_get::<CURRENT>() as *mut ThreadState;
        if t.is_null() || Segment::current().is_none() {
            return (p, None);
        }
        let mut t = TakenState::now(t);
        if p.is_null() {
            t.countdown += (n + sampling::EXTRA) as i64;
            return (p, None);
        }
        (p, Some(t))
    }
}

/// malloc over an allocator other than glibc's, from a stack that isn't remembered.
#[cold]
#[inline(never)]
unsafe extern "C" fn other_walk(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 {
    // SAFETY: the fast path has taken the state.
    unsafe {
        // So no stack of the allocator's own calls is ever remembered, and the fast path needn't look at its caller.
        if libc::is_allocator(return_address(sp) as usize) {
            return for_allocator(t, n);
        }
        let (p, t) = call_real_malloc(t, n);
        let Some(mut t) = t else { return p };
        let attribution = walk(&mut t, sp, fp).map(|row| Attribution { row, drawn: None });
        finish_any(t, p, n, attribution)
    }
}

/// As [`other_walk`], for the block in which a mark of the sampling lies.
#[cold]
#[inline(never)]
unsafe extern "C" fn other_sampled(n: usize, sp: usize, fp: usize, t: *mut ThreadState) -> *mut u8 {
    // SAFETY: the fast path has taken the state.
    unsafe {
        if libc::is_allocator(return_address(sp) as usize) {
            return for_allocator(t, n);
        }
        let (p, t) = call_real_malloc(t, n);
        if let Some(t) = t {
            book_sample(t, p, n, sp, fp);
        }
        p
    }
}

/// Books a fresh block whose page has no array for its class yet. The state isn't taken.
#[cold]
#[inline(never)]
unsafe extern "C" fn other_new_page(p: *mut u8, n: usize, row_key: u64) -> *mut u8 {
    let Some(segment) = Segment::current() else { return p };
    // SAFETY: p is a live block of n bytes; the key, of a row of this thread, was remembered by this thread.
    unsafe {
        if let Some(amount) = write_key(segment, p, row_key, n) {
            add_to_own(segment, row_key, amount);
        }
    }
    p
}

/// Books a block in a row of this thread.
///
/// # Safety
/// This thread has remembered the key of its row.
unsafe fn add_to_own(segment: Segment, row_key: u64, amount: Amount) {
    // SAFETY: the caller's contract.
    let row = unsafe { OwnRow::remembered(segment, row_offset(blocks::row_of_key(row_key))) };
    if rows::add_alloc(row, amount) {
        flush_own(row.caller.load(Relaxed));
    }
}

/// Books a fresh block of an allocator other than glibc's that has no space for a trailer. The state isn't taken.
#[inline(never)]
unsafe extern "C" fn other_without_trailer(p: *mut u8, n: usize, row_key: u64, usable: usize) -> *mut u8 {
    let Some(segment) = Segment::current() else { return p };
    // SAFETY: p is a live block of n bytes; the key, of a row of this thread, was remembered by this thread.
    unsafe {
        if enter_table(segment, p, usable, row_key, n) {
            add_to_own(segment, row_key, amount(usable, n as u64));
        }
    }
    p
}

unsafe extern "C" fn other_flush(p: *mut u8, caller: u32) -> *mut u8 {
    flush_own(caller);
    p
}

/// Books a fresh block in which a mark of the sampling lies.
#[cold]
#[inline(never)]
unsafe fn book_sample(mut t: TakenState, p: *mut u8, n: usize, sp: usize, fp: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let attribution = sampled(&mut t, n, sp, fp);
        finish_any(t, p, n, attribution);
    }
}

/// Stores the key of a fresh block. `None`: it is not booked.
#[inline(always)]
unsafe fn write_key(segment: Segment, p: *mut u8, row_key: u64, n: usize) -> Option<Amount> {
    let key = Key { row: blocks::row_of_key(row_key), requested: n as u64, sampled: false };
    // SAFETY: the caller's block, of n bytes.
    unsafe {
        let amount = set_key(p, key);
        if amount.is_none() {
            unbooked(segment, p);
        }
        amount
    }
}

/// Enters the key of a block that has no space for a trailer in the side table. False: the block is not booked.
#[inline(always)]
unsafe fn enter_table(segment: Segment, p: *mut u8, usable: usize, row_key: u64, n: usize) -> bool {
    // SAFETY: the caller's block.
    unsafe {
        let entered =
            to_table(p, usable, Key { row: blocks::row_of_key(row_key), requested: n as u64, sampled: false });
        if !entered {
            unbooked(segment, p);
        }
        entered
    }
}

/// Bytes to request from the allocator for a request of `n`.
#[inline(always)]
pub fn real_request(n: usize) -> usize {
    if n < blocks::trailer_below() { n + TRAILER } else { classes::real_request(n) }
}

/// Books a fresh block of any kind.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes; `sp`, `fp` are the hooked call's.
#[cold]
#[inline(never)]
pub unsafe fn book_slow(p: *mut u8, n: usize, sp: usize, fp: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match enter_at(sp) {
            Entered::Thread(mut inside) => {
                let (books, t) = inside.parts();
                if image::may_have_headers() {
                    super::settle(books, t);
                }
                if let Some(attribution) = attribute(t, n, sp, fp) {
                    book_in(books, Some(&mut *t), p, n, attribution);
                }
                if image::may_have_headers() {
                    pending::note(t, p);
                }
            }
            Entered::Shared(nested) => {
                let books = nested.books();
                let ra = return_address(sp);
                let caller = classify::caller(*books, &[ra], callers::TRUNCATED, 0);
                let row = rows::shared_row(books, caller);
                book_in(books, None, p, n, Attribution { row, drawn: None });
            }
            Entered::Outside => early::alloc(p, n),
        }
    }
}

/// Takes the key out of a block that is about to be freed, and its sample out of the estimates.
///
/// # Safety
/// `p` is a live block, held by this thread.
unsafe fn take_block(segment: Segment, p: *mut u8) -> Option<(Key, Amount)> {
    // SAFETY: the caller's contract.
    let (key, amount) = unsafe { take_key(p) }?;
    if key.sampled {
        end_sample(segment, p);
    }
    Some((key, amount))
}

#[inline(never)]
unsafe extern "C" fn free_flush(p: *mut u8, caller: u32) {
    flush_own(caller);
    // SAFETY: the program's block, booked as free.
    unsafe { calls::free(p) }
}

#[cold]
#[inline(never)]
fn flush_own(caller: u32) {
    if let Entered::Thread(mut inside) = enter() {
        let (books, t) = inside.parts();
        rows::flush(books, t, caller);
    }
}

crate::free_entry!(free_entry, free_any);

/// free(3), any allocator, any thread; `sp` as at the entry.
///
/// # Safety
/// As free(3); called by the entry stub.
#[inline(never)]
pub unsafe extern "C" fn free_any(p: *mut u8, sp: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if !p.is_null() {
            if !resolved() {
                resolve();
            }
            if !libc::is_allocator(return_address(sp) as usize) {
                release_known(p);
            }
        }
        calls::free(p)
    }
}

/// As [`free_any`], without the stack pointer: the caller isn't the allocator.
///
/// # Safety
/// As free(3).
#[inline(never)]
pub(super) unsafe extern "C" fn free(p: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        if !p.is_null() {
            book_release(p);
        }
        calls::free(p)
    }
}

/// As [`free`], for a block whose usable bytes are known.
///
/// # Safety
/// `p` is a live block; `usable` is what malloc_usable_size reports for it.
#[inline(never)]
unsafe extern "C" fn free_sized(p: *mut u8, usable: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        release_sized(p, usable);
        calls::free(p)
    }
}

/// Books the release of a block, any allocator, any thread.
///
/// # Safety
/// `p` is a live block.
#[inline(never)]
pub unsafe fn book_release(p: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { release_known(p) }
}

/// [`book_release`], inlined. The usual case makes no call except the real one for the block's size.
///
/// # Safety
/// As `book_release`.
#[inline(always)]
unsafe fn release_known(p: *mut u8) {
    // SAFETY: p is a live block. Without a segment its size isn't needed, and the function that returns it may be
    // missing.
    unsafe {
        match Segment::current() {
            Some(_) => release_sized(p, blocks::usable(p)),
            None => release_slow(p),
        }
    }
}

/// As [`release_known`], for a block whose usable bytes are known.
///
/// # Safety
/// As `book_release`; `usable` is what malloc_usable_size reports for `p`.
#[inline(always)]
unsafe fn release_sized(p: *mut u8, usable: usize) {
    // SAFETY: p is a live block.
    unsafe {
        let (false, Some(segment)) = (image::may_have_headers(), Segment::current()) else { return release_slow(p) };
        let Some((key, amount)) = take_key_of(p, usable) else { return unknown(segment, p) };
        if key.sampled {
            end_sample(segment, p);
        }
        // The state isn't taken: a signal handler may add to the same row meanwhile.
        let own = SlotMark::of_thread();
        match OwnRow::of(segment, key.row, own).or_else(|| remote_free::own_row(segment, key.row, own)) {
            None => free_for_other(segment, p, key, amount),
            Some(row) if rows::add_free(row, amount, tls_get::<ROOM_SPAN>() as i64) => {
                flush_own(row.caller.load(Relaxed))
            }
            Some(_) => {}
        }
    }
}

#[cold]
#[inline(never)]
fn end_sample(segment: Segment, p: *mut u8) {
    if let Some(taken) = samples::take(segment, p) {
        samples::end(segment, taken);
    }
}

/// Books the release of a block that is booked in a row of another thread, or in a shared row.
///
/// # Safety
/// `p` is a live block.
#[inline(never)]
unsafe fn free_for_other(segment: Segment, p: *mut u8, key: Key, amount: Amount) {
    // SAFETY: the caller's contract.
    let Some(caller) = caller_of_key(segment, key) else { return unsafe { unknown(segment, p) } };
    match enter() {
        Entered::Thread(mut inside) => {
            let (books, t) = inside.parts();
            rows::free(books, Some(&mut *t), caller, amount);
            remote_free::note(key.row, SlotMark::of_thread(), rows::row_for(books, Some(t), caller));
        }
        Entered::Shared(nested) => rows::free(nested.books(), None, caller, amount),
        // Detached since `segment` was found: the block is still booked there.
        // SAFETY: no segment was published. If an attach publishes one meanwhile, a signal handler may take this
        // thread's state. `None` books in the shared rows, with locked adds, and leaves the state alone.
        Entered::Outside => rows::free(unsafe { MayBook::of(segment) }, None, caller, amount),
    }
}

#[cold]
#[inline(never)]
unsafe fn release_slow(p: *mut u8) {
    // SAFETY: the program's block.
    unsafe {
        match enter() {
            Entered::Thread(mut inside) => {
                let (books, t) = inside.parts();
                if image::may_have_headers() {
                    super::settle(books, t);
                    pending::forget(*books, p);
                }
                match take_booked(*books, p) {
                    Some((caller, amount)) => rows::free(books, Some(t), caller, amount),
                    None => unknown(*books, p),
                }
            }
            Entered::Shared(nested) => {
                let books = nested.books();
                if image::may_have_headers() {
                    pending::forget(*books, p);
                }
                match take_booked(*books, p) {
                    Some((caller, amount)) => rows::free(books, None, caller, amount),
                    None => unknown(*books, p),
                }
            }
            Entered::Outside => early::free(p),
        }
    }
}

/// Takes out a block's key and its sample. Returns its caller, and what to book.
unsafe fn take_booked(segment: Segment, p: *mut u8) -> Option<(u32, Amount)> {
    // SAFETY: the caller's contract.
    let (key, amount) = unsafe { take_block(segment, p) }?;
    Some((caller_of_key(segment, key)?, amount))
}

/// The caller of a key's row. `None`: the row isn't in use. In a fork child, other threads of the parent allocated such
/// blocks during the fork; elsewhere the key was damaged.
pub(super) fn caller_of_key(segment: Segment, key: Key) -> Option<u32> {
    let row = segment.seen(key.row);
    let caller = row.caller();
    let there = (caller as usize) < plimsoll_segment::Section::Callers.capacity();
    (row.slot_mark() != 0).then_some(if there { caller } else { CALLER_EARLY })
}

#[cold]
#[inline(never)]
unsafe fn unknown(segment: Segment, p: *mut u8) {
    segment.count(Counter::unknown_frees, 1);
    // SAFETY: the caller's live block.
    segment.count(Counter::unknown_free_bytes, unsafe { blocks::usable(p) } as u64);
}
