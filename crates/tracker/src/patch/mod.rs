//! Import tables: how calls come to the hooks in a process that was there before them.
//!
//! Each loaded object has words that the loader filled with the addresses of functions: slots of its procedure linkage
//! table, entries of its global offset table, pointers in its data. Those that hold the real function of a hooked call get
//! the hook instead, one store each; on detach, those that hold a hook get the real function again. No thread is stopped:
//! a call goes one way or the other.
//!
//! | word | what is done |
//! | --- | --- |
//! | holds the real function, and its symbol is the hooked call's | the hook |
//! | a slot not bound yet (it points into its own object's code), symbol defined elsewhere | the hook |
//! | holds anything else: an allocator of the object's own, a wrapper | nothing |
//! | lies in pages that the loader made read-only (RELRO) | they are made writable for the moment |
//! | lies in code (text relocations) | nothing; counted |
//!
//! The list is walked under the loader's lock (dl_iterate_phdr), so no object is unmapped meanwhile. One that another thread
//! is loading at this very moment is left out (`_dl_find_object` doesn't know it before it is relocated), and found at the
//! next call of dlopen, dlsym or dlclose, as are objects that libc loads by itself. dlopen of a path is followed at once.

use crate::sys::{elf, libc, os};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

pub mod relocation;
use relocation::{Kind, Tables};

/// Which way the words go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Hooks,
    Reals,
}

/// What a walk did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Done {
    /// Words written.
    pub written: u64,
    /// Words that could not be written.
    pub left: u64,
}

/// Hooks are wanted in the import tables.
static WANTED: AtomicBool = AtomicBool::new(false);
/// There may be objects that nobody has looked at.
static PENDING: AtomicBool = AtomicBool::new(false);
/// Thread pointer of who walks.
static WALKER: AtomicUsize = AtomicUsize::new(0);

/// Whether calls come to the hooks by patched tables, and not because the loader bound them so.
#[inline]
pub fn is_wanted() -> bool {
    WANTED.load(Acquire)
}

fn take_turn(wait: bool) -> bool {
    let me = crate::sys::cpu::thread_pointer();
    let mut waited = 0;
    while WALKER.compare_exchange(0, me, Acquire, Relaxed).is_err() {
        // A fork child may find the turn of a thread that isn't there; a walk takes milliseconds.
        if !wait || waited > 5_000 {
            return false;
        }
        os::sleep_ms(1);
        waited += 1;
    }
    true
}

/// Puts the hooks into the import tables of all objects. `None`: another thread is at it and doesn't come to an end, or
/// libc has no dl_iterate_phdr.
pub fn put_hooks() -> Option<Done> {
    if !take_turn(true) {
        return None;
    }
    WANTED.store(true, Release);
    let done = walk(Way::Hooks);
    // Whoever loads an object right now isn't done with it.
    PENDING.store(true, Release);
    WALKER.store(0, Release);
    done
}

/// Gives all import tables their functions back.
pub fn take_hooks() -> Option<Done> {
    if !take_turn(true) {
        return None;
    }
    WANTED.store(false, Release);
    PENDING.store(false, Release);
    let done = walk(Way::Reals);
    WALKER.store(0, Release);
    done
}

/// The loader's list may have changed.
pub fn expect_more() {
    if is_wanted() {
        PENDING.store(true, Release);
    }
}

/// Looks at the objects that have come since. Called in hooks of the loader's calls, so it waits for nobody: whoever walks
/// at this moment may be waiting for a lock of the loader's that this thread holds.
#[cold]
pub fn look_again() {
    if !is_wanted() || !take_turn(false) {
        return;
    }
    if is_wanted() && PENDING.swap(false, AcqRel) && walk(Way::Hooks).is_none() {
        PENDING.store(true, Release);
    }
    WALKER.store(0, Release);
}

/// Whether `look_again` has something to look at.
#[inline]
pub fn is_pending() -> bool {
    PENDING.load(Relaxed)
}

/// In a fork child: who walked isn't here.
pub fn reset_after_fork() {
    // A store would copy the page.
    if WALKER.load(Relaxed) != 0 {
        WALKER.store(0, Relaxed);
    }
}

fn walk(way: Way) -> Option<Done> {
    let mut done = Done::default();
    libc::each_loaded(&mut |o| {
        if !o.is_self() && is_complete(o) {
            object(o, way, &mut done);
        }
    })
    .then_some(done)
}

/// Whether the loader is through with an object. Before glibc 2.35 it can't be asked.
fn is_complete(o: &elf::Loaded) -> bool {
    libc::other(libc::Other::FindObject) == 0
        || o.dynamic().first().is_none_or(|first| libc::find_object(&raw const *first as usize).is_some())
}

fn object(o: &elf::Loaded, way: Way, done: &mut Done) {
    let tables = Tables::find(o.dynamic(), o.bias as u64, |at, bytes| o.memory(at as usize, bytes.map(|n| n as usize)));
    let mut opened = None;
    for slot in tables.slots() {
        let at = o.bias.wrapping_add(slot.at as usize);
        if !at.is_multiple_of(8) || !o.is_data(at) {
            done.left +=
                u64::from(tables.relocates_text && tables.symbol(slot.symbol).is_some_and(|s| is_hooked(s.name)));
            continue;
        }
        // SAFETY: inside a data segment of an object that the loader's lock keeps where it is.
        let word = unsafe { elf::word(at) };
        let Some(to) = wanted(o, &tables, slot, word.load(Relaxed), way) else { continue };
        // Asks the kernel whether the page can be written, and has it there.
        if !os::populate(at & !4095, 4096) {
            let guarded = o.guarded().filter(|g| (g.start..g.end).contains(&at) && opened.is_none());
            // SAFETY: the object's RELRO pages. They are read-only, so the loader is done with them; its lock keeps them where they are.
            let Some(g) = guarded.filter(|g| unsafe { os::protect(g.start, g.end - g.start, true) }) else {
                done.left += 1;
                continue;
            };
            opened = Some(g);
        }
        word.store(to, Release);
        done.written += 1;
    }
    if let Some(g) = opened {
        // SAFETY: as above; only one walk goes on at a time, and this one is done with them.
        unsafe { os::protect(g.start, g.end - g.start, false) };
    }
}

fn is_hooked(name: &[u8]) -> bool {
    (0..libc::HOOKED).any(|i| libc::name_by_number(i).to_bytes() == name)
}

/// What the word should hold; `None`: it stays.
fn wanted(o: &elf::Loaded, tables: &Tables<'_>, slot: relocation::Slot, holds: usize, way: Way) -> Option<usize> {
    if way == Way::Reals {
        return (0..libc::HOOKED).find(|&i| holds != 0 && holds == libc::export(i)).map(libc::real_by_number);
    }
    let may_be_real = libc::is_real(holds);
    let may_be_unbound = slot.kind == Kind::Call && o.is_code(holds);
    if !may_be_real && !may_be_unbound {
        return None;
    }
    let symbol = tables.symbol(slot.symbol)?;
    let i = match libc::hooked_at(holds, symbol.name) {
        Some(i) => i,
        None if may_be_unbound && !symbol.is_own => {
            (0..libc::HOOKED).find(|&i| libc::name_by_number(i).to_bytes() == symbol.name)?
        }
        None => return None,
    };
    let hook = libc::export(i);
    (hook != 0 && libc::real_by_number(i) != 0).then_some(hook)
}
