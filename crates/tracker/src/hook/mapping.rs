//! mmap, munmap, mremap, mprotect, pkey_mprotect, madvise, brk, sbrk, shmat, shmdt.
//!
//! | call | order |
//! | --- | --- |
//! | mmap where the kernel chooses | real call, then booked under the lock: nobody else knows the range yet |
//! | mmap MAP_FIXED, mprotect, mremap, munmap, brk, shmat, shmdt | lock, real call, booked if it succeeded, unlock |
//!
//! So a range that munmap gave back and another thread's mmap got at once is booked in the order in which the kernel
//! did it. A call that failed is never booked. Who has the lock, and what others do meanwhile:
//! [`crate::account::mapping::books`].
#![allow(
    clippy::just_underscores_and_digits,
    clippy::too_many_arguments,
    reason = "an entry stub passes all registers of arguments; those that a call doesn't use are named by their number"
)]

use crate::account::mapping::books::{Operation, at_once, locked, time};
use crate::account::mapping::{attachments, count_mapping, count_of_site};
use crate::account::thread::ThreadState;
use crate::account::vmas::{Placement, Remap};
use crate::account::{classify, image, memo};
use crate::guard::{CallFrame, Entered, TakenState, enter, enter_call};
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::segment::Segment;
use crate::stack::callers;
use crate::stack::read::return_address;
use crate::stack::{generated_code, java, module};
use crate::sys::cpu::{CURRENT, tls_get};
use crate::sys::libc::{self, calls};
use crate::sys::{errno, os};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::Counter;
use plimsoll_segment::vmap::{Attributes, MappingKind};

const MAP_FAILED: usize = usize::MAX;
const MAP_TYPE: c_int = 0xf;
const MAP_PRIVATE: c_int = 2;
const PRIVATE_ANONYMOUS: c_int = MAP_PRIVATE | MAP_ANONYMOUS;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MREMAP_FIXED: c_int = 2;
const MREMAP_DONTUNMAP: c_int = 4;
const PROT_READ: c_int = 1;
const PROT_EXEC: c_int = 4;
const MADV_DONTNEED: c_int = 4;
const MADV_FREE: c_int = 8;
const MADV_DONTFORK: c_int = 10;
/// Linux 6.13: pages inside of a mapping can't be accessed any more.
const MADV_GUARD_INSTALL: c_int = 102;
const MAP_HUGETLB: c_int = 0x4_0000;

/// Where a mapping call is booked: the segment, and the site (or caller) with its category. `None`: nowhere.
#[inline(always)]
unsafe fn site_of_call(sp: usize, fp: usize) -> Option<(Segment, u32, u16)> {
    if !resolved() {
        resolve();
    }
    let (segment, caller) = match enter_call(sp) {
        Entered::Thread(inside) => {
            // Only a call that has the state removes the mark, which may be that of the call that it interrupts.
            let _frame = CallFrame;
            // Behind the frame, so that the state is given back first.
            let mut inside = inside;
            let segment = inside.segment();
            // SAFETY: the entry's stack and frame pointer.
            (segment, unsafe { memo::mapping(segment, inside.state(), sp, fp) })
        }
        Entered::Shared(nested) => {
            let segment = *nested.books();
            // SAFETY: the return address lies at the stack pointer.
            let ra = unsafe { return_address(sp) };
            (segment, classify::caller(segment, &[ra], callers::TRUNCATED, 0))
        }
        Entered::Outside => return None,
    };
    Some((segment, caller, segment.caller(caller).category.load(Relaxed)))
}

/// As [`site_of_call`], if this call's stack is in the memo: what the usual call needs.
#[inline(always)]
unsafe fn remembered_site_of_call(sp: usize, fp: usize) -> Option<(Segment, memo::Site)> {
    let segment = Segment::published()?;
    let current = tls_get::<CURRENT>();
    if current == 0 {
        return None;
    }
    let _frame = CallFrame;
    // SAFETY: just found.
    let state = unsafe { TakenState::in_call(current as *mut ThreadState, sp) };
    // SAFETY: the entry's stack and frame pointer; the state is taken.
    unsafe { memo::mapping_at_once(&state, sp, fp) }.map(|site| (segment, site))
}

/// Notes that the call with this stack pointer at its entry made a mapping executable. `offset`: where the mapping
/// begins in the mapped file.
#[cold]
#[inline(never)]
fn executable(sp: usize, start: usize, bytes: usize, offset: Option<i64>) {
    generated_code::note(start, bytes);
    // SAFETY: the return address lies at the stack pointer.
    let ra = unsafe { return_address(sp) };
    // The look-up may add the caller's module to the books, so it isn't made on top of a hook that a signal handler
    // interrupted.
    if let (Some(offset), Entered::Thread(inside)) = (offset, enter()) {
        generated_code::mapped_file(inside.segment(), ra, start, bytes, offset as u64);
    }
}

/// mmap(2).
///
/// # Safety
/// Called by the entry stub.
#[unsafe(link_section = ".text.hot")]
pub unsafe extern "C" fn mmap(
    a: usize,
    n: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
    sp: usize,
    fp: usize,
) -> usize {
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe {
        if flags & (MAP_FIXED | MAP_HUGETLB) != 0 || module::has_images() {
            return mmap_fixed(a, n, prot, flags, fd, off, sp, fp);
        }
        let Some((segment, site)) = remembered_site_of_call(sp, fp) else {
            return mmap_by_steps(a, n, prot, flags, fd, off, sp, fp);
        };
        let r = calls::mmap(a, n, prot, flags, fd, off);
        if r == MAP_FAILED {
            return r;
        }
        note_executable(prot, flags, off, sp, r, n);
        let attributes = Attributes::new(site.index, site.category, kind_of(flags), prot as u16, time(segment));
        if site.is_site {
            count_of_site(segment, site.index, n as u64);
        }
        if !at_once::mapped(segment, sp, r, n, attributes) {
            book_later(segment, sp, r, n, attributes);
        }
        r
    }
}

/// mmap(2) with MAP_FIXED: how a VM commits and uncommits its reservations. In a native image, and with huge pages, by
/// steps.
#[inline(never)]
#[unsafe(link_section = ".text.hot")]
unsafe fn mmap_fixed(
    a: usize,
    n: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
    sp: usize,
    fp: usize,
) -> usize {
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe {
        let is_usual = flags & MAP_HUGETLB == 0 && !module::has_images();
        let of_call = if is_usual { remembered_site_of_call(sp, fp) } else { None };
        let done = of_call.and_then(|(segment, site)| {
            let real = || {
                let r = replacing(a, n, may_hide(prot, flags), || calls::mmap(a, n, prot, flags, fd, off));
                if r == MAP_FAILED {
                    return None;
                }
                note_executable(prot, flags, off, sp, r, n);
                Some(r)
            };
            let attributes = || {
                if site.is_site {
                    count_of_site(segment, site.index, n as u64);
                }
                Attributes::new(site.index, site.category, kind_of(flags), prot as u16, time(segment))
            };
            at_once::mapping_over(segment, sp, n, real, attributes)
        });
        match done {
            Some(r) => r.unwrap_or(MAP_FAILED),
            None => mmap_by_steps(a, n, prot, flags, fd, off, sp, fp),
        }
    }
}

/// Books a mapping that was made where the kernel chose.
#[cold]
#[inline(never)]
fn book_later(segment: Segment, sp: usize, start: usize, bytes: usize, attributes: Attributes) {
    let done = Operation::Map { start, bytes, attributes, placement: Placement::Chosen };
    locked(segment, sp, false, || (), |()| Some(done));
}

/// mmap(2), for any arguments and any stack.
#[inline(never)]
unsafe fn mmap_by_steps(
    a: usize,
    n: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
    sp: usize,
    fp: usize,
) -> usize {
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe { mapped(a, n, prot, flags, off, sp, fp, move || calls::mmap(a, n, prot, flags, fd, off)) }
}

/// Notes a mapping that was made executable.
#[inline(always)]
fn note_executable(prot: c_int, flags: c_int, off: i64, sp: usize, start: usize, bytes: usize) {
    if prot & PROT_EXEC != 0 {
        let is_readable_file = flags & MAP_ANONYMOUS == 0 && prot & PROT_READ != 0;
        executable(sp, start, bytes, is_readable_file.then_some(off));
    }
}

#[inline(always)]
fn kind_of(flags: c_int) -> MappingKind {
    if flags & (MAP_TYPE | MAP_ANONYMOUS) == PRIVATE_ANONYMOUS { MappingKind::Anonymous } else { other_kind_of(flags) }
}

/// Out of line, so that the usual kind is a constant.
#[cold]
#[inline(never)]
fn other_kind_of(flags: c_int) -> MappingKind {
    if flags & (MAP_TYPE | MAP_ANONYMOUS) == MAP_PRIVATE { MappingKind::File } else { MappingKind::Shared }
}

/// A call that was to replace this range has failed. The kernel may have unmapped the old memory all the same (mmap(2),
/// mremap(2)), and the map of mappings doesn't show it.
#[cold]
#[inline(never)]
fn not_replaced(start: usize, bytes: usize) {
    java::memory::map_is_vague();
    java::unmapping(start, bytes, || ());
}

/// Maps over a range, and drops what is known about it. `hides`: it may become unreadable.
#[inline(always)]
fn replacing(a: usize, n: usize, hides: bool, map: impl FnOnce() -> usize) -> usize {
    generated_code::unmapped(a, n);
    let r = java::unmapping_if(hides, a, n, map);
    if r == MAP_FAILED {
        not_replaced(a, n);
    }
    r
}

/// Whether an mmap may replace readable memory by unreadable memory: pages beyond a file's end are, whatever `prot` is.
fn may_hide(prot: c_int, flags: c_int) -> bool {
    flags & MAP_FIXED != 0 && (prot & PROT_READ == 0 || flags & MAP_ANONYMOUS == 0)
}

/// Books the mapping that `map` makes.
///
/// # Safety
/// `sp` and `fp` are the entry's.
#[inline(always)]
pub(super) unsafe fn mapped(
    a: usize,
    n: usize,
    prot: c_int,
    flags: c_int,
    off: i64,
    sp: usize,
    fp: usize,
    map: impl FnOnce() -> usize + Copy,
) -> usize {
    let hides = may_hide(prot, flags);
    if flags & MAP_HUGETLB != 0 {
        // A huge page for which the pool has no memory is mapped, but can't be read.
        java::memory::map_is_vague();
    }
    let made = move |r: usize| {
        if r != MAP_FAILED {
            note_executable(prot, flags, off, sp, r, n);
        }
        r
    };
    let real = move || {
        if flags & MAP_FIXED == 0 {
            return made(map());
        }
        made(replacing(a, n, hides, map))
    };
    // SAFETY: the entry's pointers.
    let Some((segment, caller, category)) = (unsafe { site_of_call(sp, fp) }) else { return real() };
    let kind = kind_of(flags);
    let innermost = callers::innermost(segment, caller);
    let of_image = image::mapping_category(segment, innermost, kind, flags & MAP_FIXED != 0);
    let (category, placement) = of_image.unwrap_or((category, Placement::Fixed));
    let attributes = Attributes::new(caller, category, kind, prot as u16, time(segment));
    let done = |placement| {
        move |r: &usize| {
            (*r != MAP_FAILED).then(|| {
                count_mapping(segment, caller, n as u64);
                Operation::Map { start: *r, bytes: n, attributes, placement }
            })
        }
    };
    if flags & MAP_FIXED != 0 {
        locked(segment, sp, hides, real, done(placement))
    } else {
        let r = made(map());
        locked(segment, sp, false, || r, done(Placement::Chosen))
    }
}

/// munmap(2).
///
/// # Safety
/// Called by the entry stub.
#[unsafe(link_section = ".text.hot")]
pub unsafe extern "C" fn munmap(a: usize, n: usize, sp: usize, _fp: usize) -> c_int {
    generated_code::unmapped(a, n);
    // SAFETY: the program's arguments.
    let real = || java::unmapping(a, n, || unsafe { calls::munmap(a, n) });
    let done = Segment::published().and_then(|segment| at_once::unmapping(segment, sp, a, n, real));
    // SAFETY: as above.
    done.unwrap_or_else(|| unsafe { munmap_by_steps(a, n, sp) })
}

/// munmap(2), whoever has the lock.
#[cold]
#[inline(never)]
unsafe fn munmap_by_steps(a: usize, n: usize, sp: usize) -> c_int {
    // SAFETY: the program's arguments.
    unmapped(a, n, sp, move || unsafe { calls::munmap(a, n) })
}

/// Books the unmapping that `unmap` does.
#[inline(always)]
pub(super) fn unmapped(a: usize, n: usize, sp: usize, unmap: impl FnOnce() -> c_int + Copy) -> c_int {
    generated_code::unmapped(a, n);
    let real = move || java::unmapping(a, n, unmap);
    let Some(segment) = booked() else { return real() };
    locked(segment, sp, true, real, |r| (*r == 0).then_some(Operation::Unmap { start: a, bytes: n }))
}

fn booked() -> Option<Segment> {
    if !resolved() {
        resolve();
    }
    Segment::current()
}

/// mremap(2).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn mremap(
    a: usize,
    old: usize,
    new: usize,
    flags: c_int,
    to: usize,
    _5: usize,
    sp: usize,
    _fp: usize,
) -> usize {
    // SAFETY: the program's arguments; without MREMAP_FIXED the kernel doesn't look at the fifth.
    remapped(a, old, new, flags, to, sp, move || unsafe { calls::mremap(a, old, new, flags, to) })
}

/// Books the change of a mapping that `remap` makes.
#[inline(always)]
pub(super) fn remapped(
    a: usize,
    old: usize,
    new: usize,
    flags: c_int,
    to: usize,
    sp: usize,
    remap: impl FnOnce() -> usize + Copy,
) -> usize {
    let real = move || remapping(a, old, new, (flags & MREMAP_FIXED != 0).then_some(to), remap);
    let Some(segment) = booked() else { return real() };
    locked(segment, sp, true, real, |r| {
        (*r != MAP_FAILED).then_some(Operation::Remap {
            remap: Remap {
                old: a as u64,
                old_bytes: old as u64,
                new: *r as u64,
                new_bytes: new as u64,
                keeps_old: flags & MREMAP_DONTUNMAP != 0,
            },
        })
    })
}

/// Calls `remap`, and drops what is known about the memory that it moves away, and about the memory at `over`, which it
/// replaces. The kernel unmaps `over` before it moves anything, also if it then refuses.
#[inline(always)]
fn remapping(a: usize, old: usize, new: usize, over: Option<usize>, remap: impl FnOnce() -> usize) -> usize {
    generated_code::unmapped(a, old);
    let replaced = over.map(|to| (to, new));
    if let Some((to, bytes)) = replaced {
        generated_code::unmapped(to, bytes);
    }
    let (to, bytes) = replaced.unwrap_or_default();
    let r = java::unmapping_if(replaced.is_some(), to, bytes, || java::unmapping(a, old, remap));
    if r == MAP_FAILED && replaced.is_some() {
        not_replaced(to, bytes);
    }
    if r != MAP_FAILED && generated_code::holds(a as u64) {
        generated_code::note(r, new);
    }
    r
}

/// mprotect(2).
///
/// # Safety
/// Called by the entry stub.
#[unsafe(link_section = ".text.hot")]
pub unsafe extern "C" fn mprotect(a: usize, n: usize, prot: c_int, sp: usize, fp: usize) -> c_int {
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe {
        let done = remembered_site_of_call(sp, fp).and_then(|(segment, site)| {
            let real = || {
                let r = java::unmapping_if(prot & 1 == 0, a, n, || calls::mprotect(a, n, prot));
                if prot & PROT_EXEC != 0 && r == 0 {
                    executable(sp, a, n, None);
                }
                r
            };
            // `plimsoll_segment::vmap` keeps the lowest three bits.
            let change = (a, n, prot as u16 & 7, site.index);
            at_once::protecting(segment, sp, change, real, || failed_protection(a, n, prot, site.index))
        });
        done.unwrap_or_else(|| mprotect_by_steps(a, n, prot, sp, fp))
    }
}

/// mprotect(2), for any stack and whoever has the lock.
#[inline(never)]
unsafe fn mprotect_by_steps(a: usize, n: usize, prot: c_int, sp: usize, fp: usize) -> c_int {
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe { protected(a, n, prot, sp, fp, move || calls::mprotect(a, n, prot)) }
}

/// What a failed change of a protection may have changed. The kernel goes through the mappings in order, up to a hole,
/// a limit (ENOMEM), or a mapping whose file isn't open for that access (EACCES).
#[cold]
#[inline(never)]
fn failed_protection(a: usize, n: usize, prot: c_int, caller: u32) -> Option<Operation> {
    // A range beyond the end of the address space fails with ENOMEM too, and changes nothing.
    let wraps = a.checked_add(n).and_then(|end| end.checked_add(4095)).is_none();
    let change = Operation::Protect { start: a, bytes: n, prot: prot as u16 & 7, caller, failed: true };
    (matches!(libc::errno(), errno::ENOMEM | errno::EACCES) && !wraps).then_some(change)
}

/// pkey_mprotect(2): how V8 makes its code's pages executable where the processor has protection keys.
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn pkey_mprotect(
    a: usize,
    n: usize,
    prot: c_int,
    key: c_int,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    if !resolved() {
        resolve();
    }
    if libc::real(libc::Call::pkey_mprotect) == 0 {
        // This libc lacks the function (glibc has it from 2.27 on, musl doesn't): fail as a kernel without the call
        // does.
        libc::set_errno(errno::ENOSYS);
        return -1;
    }
    keyed(key);
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe { protected(a, n, prot, sp, fp, move || calls::pkey_mprotect(a, n, prot, key)) }
}

/// Memory is about to get a protection key. Each thread has its own rights for a key, and they change without a call.
pub(crate) fn keyed(key: c_int) {
    if key > 0 {
        java::memory::map_is_vague();
    }
}

/// Books the change of protection that `protect` makes.
///
/// # Safety
/// `sp` and `fp` are the entry's.
#[inline(always)]
pub(super) unsafe fn protected(
    a: usize,
    n: usize,
    prot: c_int,
    sp: usize,
    fp: usize,
    protect: impl FnOnce() -> c_int + Copy,
) -> c_int {
    let hides = prot & PROT_READ == 0;
    let real = move || {
        let r = java::unmapping_if(hides, a, n, protect);
        if prot & PROT_EXEC != 0 && r == 0 {
            executable(sp, a, n, None);
        }
        r
    };
    // SAFETY: the entry's pointers.
    let Some((segment, caller, _)) = (unsafe { site_of_call(sp, fp) }) else { return real() };
    locked(segment, sp, hides, real, |r| {
        let change = Operation::Protect { start: a, bytes: n, prot: prot as u16, caller, failed: false };
        if *r == 0 { Some(change) } else { failed_protection(a, n, prot, caller) }
    })
}

/// madvise(2): changes what is resident, not what is mapped; counted.
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn madvise(
    a: usize,
    n: usize,
    advice: c_int,
    _3: usize,
    _4: usize,
    _5: usize,
    _sp: usize,
    _fp: usize,
) -> c_int {
    // SAFETY: the program's arguments.
    advised(a, n, advice, move || unsafe { calls::madvise(a, n, advice) })
}

/// Counts the advice that `advise` gives.
pub(crate) fn advised(a: usize, n: usize, advice: c_int, advise: impl FnOnce() -> c_int) -> c_int {
    let segment = booked();
    let hides = advice == MADV_GUARD_INSTALL;
    // A child after fork has the map, but not that memory.
    if hides || advice == MADV_DONTFORK {
        java::memory::map_is_vague();
    }
    let r = java::unmapping_if(hides, a, n, advise);
    if let (0, MADV_DONTNEED | MADV_FREE, Some(s)) = (r, advice, segment) {
        s.count(Counter::advised_bytes, n as u64);
    }
    r
}

/// brk(2). What lies below the first break that the program sets is not in the books: it is libc's or the kernel's.
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn brk(
    to: usize,
    _1: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    // SAFETY: the entry's pointers; the program's argument.
    unsafe {
        let Some((segment, caller, category)) = site_of_call(sp, fp) else { return calls::brk(to) };
        locked(
            segment,
            sp,
            true,
            || {
                let before = calls::sbrk(0);
                let r = calls::brk(to);
                (r, (r == 0 && is_break_moved(before, to)).then_some(before))
            },
            |&(_, before)| moved_break(segment, before?, to, caller, category),
        )
        .0
    }
}

/// sbrk(2).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn sbrk(
    by: isize,
    _1: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> usize {
    // SAFETY: the entry's pointers; the program's argument.
    unsafe {
        if by == 0 {
            booked();
            return calls::sbrk(0);
        }
        let Some((segment, caller, category)) = site_of_call(sp, fp) else { return calls::sbrk(by) };
        locked(
            segment,
            sp,
            true,
            || {
                let before = calls::sbrk(by);
                let to = before.wrapping_add_signed(by);
                (before, (before != MAP_FAILED && is_break_moved(before, to)).then_some(to))
            },
            |&(before, to)| moved_break(segment, before, to?, caller, category),
        )
        .0
    }
}

/// Whether a call that succeeded has moved the break. The kernel doesn't lower it below the heap's beginning (brk(0)),
/// nor where it can't unmap the pages, and then returns the old break. libc takes that for success: it isn't below the
/// break that was requested.
fn is_break_moved(before: usize, to: usize) -> bool {
    // SAFETY: changes nothing; glibc makes no system call for it.
    to >= before || unsafe { calls::sbrk(0) } < before
}

/// A break is a byte address; mappings are pages: the page that a break lies in belongs to what is below it.
fn moved_break(segment: Segment, before: usize, after: usize, caller: u32, category: u16) -> Option<Operation> {
    let (from, to) = (before.next_multiple_of(4096), after.next_multiple_of(4096));
    let attributes = Attributes::new(caller, category, MappingKind::Anonymous, 3, time(segment));
    match to.cmp(&from) {
        core::cmp::Ordering::Greater => {
            Some(Operation::Map { start: from, bytes: to - from, attributes, placement: Placement::Chosen })
        }
        core::cmp::Ordering::Less => {
            // After the real call, but before the map shows the change.
            java::unmapping(to, from - to, || ());
            Some(Operation::Unmap { start: to, bytes: from - to })
        }
        core::cmp::Ordering::Equal => None,
    }
}

/// shmat(2).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn shmat(
    id: c_int,
    a: usize,
    flags: c_int,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> usize {
    const SHM_RDONLY: c_int = 0o10000;
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe {
        let Some((segment, caller, category)) = site_of_call(sp, fp) else { return calls::shmat(id, a, flags) };
        let prot = if flags & SHM_RDONLY != 0 { 1 } else { 3 };
        let attributes = Attributes::new(caller, category, MappingKind::Shared, prot, time(segment));
        locked(
            segment,
            sp,
            false,
            || calls::shmat(id, a, flags),
            |r| {
                let bytes = (*r != MAP_FAILED).then(|| os::shared_memory_bytes(id)).flatten()?;
                attachments::attached(*r, bytes);
                Some(Operation::Map { start: *r, bytes, attributes, placement: Placement::Chosen })
            },
        )
    }
}

/// shmdt(2): the mapping that begins there.
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn shmdt(
    a: usize,
    _1: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    _fp: usize,
) -> c_int {
    // SAFETY: the program's argument.
    let real = move || unsafe { calls::shmdt(a) };
    let Some(segment) = booked() else { return real() };
    locked(segment, sp, true, real, |r| {
        (*r == 0).then(|| match attachments::detached(a) {
            Some(bytes) => Operation::Unmap { start: a, bytes },
            None => Operation::UnmapEntry { start: a },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::java::memory::load;
    use ::libc as c;

    #[test]
    fn a_file_mapped_over_memory_may_hide_it() {
        let (file, anonymous) = (MAP_PRIVATE | MAP_FIXED, PRIVATE_ANONYMOUS | MAP_FIXED);
        assert!(may_hide(1, file) && may_hide(0, anonymous) && !may_hide(3, anonymous));
        assert!(!may_hide(0, file & !MAP_FIXED), "where the kernel chooses, nothing was known");
    }

    /// A page of the VM was found readable. The program moves another page over it, which can't be read: a load that
    /// trusted the old answer would kill the program.
    #[test]
    fn a_page_that_is_moved_over_is_no_longer_known() {
        let _one = java::memory::ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
        java::begin_test();
        // SAFETY: a fresh private mapping.
        let at = unsafe {
            let flags = c::MAP_PRIVATE | c::MAP_ANONYMOUS;
            c::mmap(core::ptr::null_mut(), 4 * 4096, c::PROT_READ | c::PROT_WRITE, flags, -1, 0) as usize
        };
        // Not neighbours: the page after an unmapped range is forgotten too.
        let (hidden, known) = (at, at + 2 * 4096);
        // SAFETY: this test's page.
        assert_eq!(unsafe { c::mprotect(hidden as *mut c::c_void, 4096, c::PROT_NONE) }, 0);
        assert_eq!(load::<u64>(known as u64), Some(0));
        // SAFETY: both pages are this test's.
        let moved = remapping(hidden, 4096, 4096, Some(known), || unsafe {
            let flags = c::MREMAP_MAYMOVE | c::MREMAP_FIXED;
            c::mremap(hidden as *mut c::c_void, 4096, 4096, flags, known as *mut c::c_void) as usize
        });
        assert_eq!(moved, known);
        assert_eq!(load::<u64>(known as u64), None);
    }

    /// The kernel has unmapped the page, and then refuses.
    #[test]
    fn a_call_that_fails_may_have_unmapped_what_it_was_to_replace() {
        let _one = java::memory::ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
        java::begin_test();
        let refused = |is_remap: bool| {
            // SAFETY: a fresh private mapping, which only this test has.
            unsafe {
                let flags = c::MAP_PRIVATE | c::MAP_ANONYMOUS;
                let at = c::mmap(core::ptr::null_mut(), 4096, c::PROT_READ, flags, -1, 0) as usize;
                assert_eq!(load::<u64>(at as u64), Some(0));
                let refuse = || {
                    // Stands for an unmapping: this way nobody else can map memory at this address.
                    c::mprotect(at as *mut c::c_void, 4096, c::PROT_NONE);
                    MAP_FAILED
                };
                let r = match is_remap {
                    true => remapping(at + (1 << 30), 4096, 4096, Some(at), refuse),
                    false => replacing(at, 4096, false, refuse),
                };
                assert_eq!((r, load::<u64>(at as u64)), (MAP_FAILED, None), "{is_remap}");
            }
            assert!(java::memory::is_map_vague());
        };
        [true, false].into_iter().for_each(refused);
        java::memory::consult_again();
    }
}
