//! Import tables: how calls reach the hooks in a process that is older than the tracker, and in objects that dlopen
//! loads with RTLD_DEEPBIND, which the loader binds to libc past the tracker.
//!
//! In each loaded object the loader has filled words with addresses of functions: slots of the procedure linkage table,
//! entries of the global offset table, pointers in data. A word that holds the real function of a hooked call gets the
//! hook, by one store. On detach, a word that holds a hook gets the real function again. No thread is stopped: a call
//! takes either way.
//!
//! | word | what is done |
//! | --- | --- |
//! | holds the real function, and its symbol is the hooked call's | the hook |
//! | a slot not bound yet (it points into its own object's code), symbol defined elsewhere | the hook, but see below |
//! | holds anything else: an allocator of the object's own, a wrapper | nothing |
//! | lies in pages that the loader made read-only (RELRO) | they are made writable during the change |
//! | lies in code (text relocations) | nothing; counted |
//!
//! The list is walked under the loader's lock (dl_iterate_phdr), so no object is unmapped meanwhile. An object that
//! another thread is loading at this moment is left out (`_dl_find_object` does not know it before it is relocated),
//! and the next call of dlopen, dlsym or dlclose repeats the search. That search also finds objects whose loading ends
//! without a hook: those of a dlopen without a path, and those that libc loads by itself. The loader's count of loaded
//! objects shows that there are new ones. After dlopen of a path the new objects are searched at once.
//!
//! The loader binds an object that was opened with RTLD_DEEPBIND before the attach to its own libraries first. If these
//! define malloc too, some of its slots are bound there and others not yet, and a block must be freed by the allocator
//! that it came from. The loader doesn't show how an object was opened. So if a name has several definitions, the slots
//! of such an object are left alone, unless a bound slot shows that the object binds where the program does.
//!
//! In a process that began with the tracker, the loader binds all other objects to the hooks, or to what the program
//! has in front of them. There the search is narrower: from the object that was opened with RTLD_DEEPBIND to the end of
//! the list, which has all that it brought. A slot that isn't bound yet gets the hook only if no other object of the
//! process defines the name. Otherwise an allocator that the library was linked with would come first. What a
//! constructor allocates comes before the patch, past the books.

use crate::phase::{self, Phase};
use crate::sys::os::Clock;
use crate::sys::{elf, libc, os};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

pub mod relocation;
use relocation::{RelocationKind, Tables};

/// What the words are replaced with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replacement {
    Hooks,
    Reals,
    /// 0 in place of a hook whose real function doesn't exist.
    Nothing,
}

/// The objects of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// The objects that dlopen has loaded. If the address isn't 0, they begin with the object whose dynamic section
    /// lies there.
    Opened(usize),
}

/// The result of a walk.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct PatchResult {
    /// Words written.
    pub written: u64,
    /// Words that could not be written.
    pub left: u64,
    /// Objects that were left out, because another thread was loading them.
    pub unfinished: u64,
}

/// Whether the import tables shall hold the hooks.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// There may be objects that have not been searched.
static PENDING: AtomicBool = AtomicBool::new(false);
/// How many objects the loader had ever loaded when the import tables of all objects were last searched.
static SEARCHED: AtomicU64 = AtomicU64::new(0);
/// Whether the loader may be queried for that number. Not in a fork child: another thread of its parent may have held
/// the lock of the list, which fork(2) of glibc does not reset.
static COUNTS: AtomicBool = AtomicBool::new(false);
/// How many objects were loaded at the attach, and whether one has been opened with RTLD_DEEPBIND since.
static AT_ATTACH: AtomicUsize = AtomicUsize::new(usize::MAX);
static HAS_DEEP: AtomicBool = AtomicBool::new(false);
/// Thread pointer of the walking thread.
static WALKER: AtomicUsize = AtomicUsize::new(0);

/// Whether calls come to the hooks by patched tables, not because the loader bound them.
#[inline]
pub fn is_active() -> bool {
    ACTIVE.load(Acquire)
}

/// Takes the turn to walk the loader's list. False: another thread still has the turn after this time.
fn take_turn(most_ms: u64) -> bool {
    let me = crate::sys::cpu::thread_pointer();
    let mut until = None;
    while WALKER.compare_exchange(0, me, Acquire, Relaxed).is_err() {
        // A fork child may inherit the turn of a thread that it does not have; a walk takes milliseconds. By the clock:
        // on a busy machine, a sleep of a millisecond takes ten.
        let now = os::clock_ns(Clock::Boottime);
        if now >= *until.get_or_insert(now + most_ms * 1_000_000) {
            return false;
        }
        os::sleep_ms(1);
    }
    true
}

/// The turn to change the import tables of all objects.
pub struct Turn(());

impl Turn {
    /// `None`: another thread is walking and does not finish. It may be waiting for a callback of dl_iterate_phdr,
    /// which holds the lock of the loader's list.
    pub fn take() -> Option<Turn> {
        // `then_some` would make a Turn in any case, and its drop would end the other thread's turn.
        take_turn(5_000).then(|| Turn(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WALKER.store(0, Release);
    }
}

/// Puts the hooks into the import tables of all objects. `None`: libc has no dl_iterate_phdr.
pub fn insert_hooks(_: &Turn) -> Option<PatchResult> {
    ACTIVE.store(true, Release);
    COUNTS.store(true, Relaxed);
    AT_ATTACH.store(usize::MAX, Relaxed);
    HAS_DEEP.store(false, Relaxed);
    let done = walk(Replacement::Hooks, Scope::All);
    let mut count = 0;
    libc::each_loaded(&mut |_| count += 1);
    AT_ATTACH.store(count, Relaxed);
    // Another thread is loading an object right now, so the search must be repeated.
    PENDING.store(true, Release);
    done
}

/// Puts the real functions back into all import tables.
pub fn remove_hooks(_: &Turn) -> Option<PatchResult> {
    ACTIVE.store(false, Release);
    PENDING.store(false, Release);
    walk(Replacement::Reals, Scope::All)
}

/// Removes the hooks whose real functions this libc lacks: a program finds out by a weak reference whether a function
/// exists (V8: pkey_mprotect, and then the functions beside it), or by dlsym. Called before `main`, when the loader has
/// bound all references. Objects that are loaded later don't find these hooks.
pub fn remove_missing() {
    if take_turn(0) {
        walk(Replacement::Nothing, Scope::All);
        WALKER.store(0, Release);
    }
    let Some(own) = elf::objects().find(elf::Object::is_self) else { return };
    for i in (0..libc::HOOKED).filter(|&i| is_missing(i)) {
        // SAFETY: this library, at its start.
        unsafe { own.hide(libc::name_by_number(i)) };
    }
}

/// Whether this libc lacks the real function of an exported hook, for good.
fn is_missing(i: usize) -> bool {
    libc::export(i) != 0 && libc::real_by_number(i) == 0 && !libc::may_come(i)
}

/// Whether objects that the loader binds past the tracker are to be patched in this process.
pub fn is_for_deep() -> bool {
    !phase::is_late() && phase::is(Phase::On) && libc::is_glibc()
}

/// Notes that an object is being opened with RTLD_DEEPBIND.
pub fn note_deep() {
    HAS_DEEP.store(true, Relaxed);
}

/// Notes that the loader's list may get objects that must be searched.
pub fn mark_pending() {
    PENDING.store(true, Release);
}

/// Searches the objects that are new. Called in hooks of the loader's calls, so it waits for a walking thread only
/// `most_ms`: that thread may be waiting for a lock of the loader that this thread holds.
#[cold]
pub fn patch_new_objects(most_ms: u64) {
    // Another thread that wanted the turn meanwhile has only left its mark, and its objects are in use from now on.
    for round in 0..2 {
        let is_wanted = PENDING.load(SeqCst) || round == 0 && may_have_unsearched();
        if !is_wanted || !take_turn(most_ms) {
            return;
        }
        // The tracker may have been detached meanwhile.
        let scope = if is_active() { Some(Scope::All) } else { is_for_deep().then_some(Scope::Opened(0)) };
        let mut is_done = true;
        // Whoever waits here for the loader's list has the turn, so that no detach begins meanwhile.
        if let Some(scope) = scope.filter(|_| PENDING.load(SeqCst) || is_active() && has_unsearched()) {
            PENDING.swap(false, AcqRel);
            is_done = walk(Replacement::Hooks, scope).is_some_and(|done| done.unfinished == 0);
        }
        if !is_done {
            PENDING.store(true, Release);
        }
        // Ends the turn before the mark is read again.
        WALKER.swap(0, SeqCst);
        if !is_done {
            return;
        }
    }
}

/// Searches what dlopen has just loaded with RTLD_DEEPBIND: the object whose dynamic section this is, and those that it
/// brought.
#[cold]
pub fn patch_deep(dynamic: usize) {
    if !take_turn(0) {
        mark_pending();
        return;
    }
    walk(Replacement::Hooks, Scope::Opened(dynamic));
    WALKER.store(0, Release);
}

/// Whether `patch_new_objects` may have something to look at.
#[inline]
pub fn may_be_pending() -> bool {
    PENDING.load(SeqCst) || may_have_unsearched()
}

/// Whether the loader can be asked for new objects.
fn may_have_unsearched() -> bool {
    COUNTS.load(Relaxed) && is_active()
}

/// Whether the loader has loaded an object since the last search. Waits for the lock of the loader's list.
fn has_unsearched() -> bool {
    COUNTS.load(Relaxed) && libc::loaded_so_far().is_some_and(|count| count != SEARCHED.load(Relaxed))
}

/// In a fork child: the walking thread does not exist here.
pub fn reset_after_fork() {
    // A store would copy the page.
    if WALKER.load(Relaxed) != 0 {
        WALKER.store(0, Relaxed);
    }
    if COUNTS.load(Relaxed) {
        COUNTS.store(false, Relaxed);
    }
}

fn walk(replacement: Replacement, scope: Scope) -> Option<PatchResult> {
    let mut done = PatchResult::default();
    let (mut index, mut is_behind) = (0, false);
    let mut definitions = Definitions([None; libc::HOOKED]);
    let mut searched = SEARCHED.load(Relaxed);
    let is_walked = libc::each_loaded(&mut |o| {
        let is_old = index < libc::at_start();
        let may_be_deep = !is_old && (index < AT_ATTACH.load(Relaxed) || HAS_DEEP.load(Relaxed));
        index += 1;
        let is_in = match scope {
            Scope::All => true,
            Scope::Opened(from) => {
                let is_first = o.dynamic().as_ptr() as usize == from;
                is_behind |= is_first || from == 0;
                // Another thread may be loading an object, which an older glibc can't report.
                !is_old && is_behind && (is_first || libc::other(libc::Other::FindObject) != 0)
            }
        };
        searched = o.loaded_so_far;
        if is_in && !o.is_self() {
            match is_complete(o) {
                true => object(o, replacement, Slots { scope, may_be_deep, definitions: &mut definitions }, &mut done),
                false => done.unfinished += 1,
            }
        }
    });
    if scope == Scope::All {
        let is_new = SEARCHED.swap(searched, Relaxed) != searched;
        // An older glibc doesn't show whether a new object is finished, so the object is searched once more.
        done.unfinished += u64::from(is_new && libc::other(libc::Other::FindObject) == 0);
    }
    is_walked.then_some(done)
}

/// Whether the loader has finished an object. Before glibc 2.35 there is no query for that.
fn is_complete(o: &elf::Loaded) -> bool {
    libc::other(libc::Other::FindObject) == 0
        || o.dynamic().first().is_none_or(|first| libc::find_object(&raw const *first as usize).is_some())
}

/// Whether names have one definition, as far as one walk has looked.
struct Definitions([Option<bool>; libc::HOOKED]);

impl Definitions {
    fn is_only(&mut self, i: usize) -> bool {
        *self.0[i].get_or_insert_with(|| is_only_definition(i))
    }
}

/// What shows where the loader will bind an object's slots.
struct Slots<'d> {
    scope: Scope,
    /// The object may have been opened with RTLD_DEEPBIND.
    may_be_deep: bool,
    definitions: &'d mut Definitions,
}

impl Slots<'_> {
    /// Whether a slot of this call that isn't bound yet will get the real function.
    fn will_be_real(&mut self, o: &elf::Loaded, tables: &Tables<'_>, i: usize) -> bool {
        match self.scope {
            Scope::Opened(_) => self.definitions.is_only(i),
            Scope::All => {
                let is_sure = !self.may_be_deep || !libc::is_of_allocator(i);
                is_sure || self.definitions.is_only(i) || self.has_real(o, tables)
            }
        }
    }

    /// Whether a word of the object has the allocator's real function, or its hook, although another definition exists.
    fn has_real(&mut self, o: &elf::Loaded, tables: &Tables<'_>) -> bool {
        tables.slots().any(|slot| {
            let at = o.bias.wrapping_add(slot.at as usize);
            if !at.is_multiple_of(8) || !o.is_data(at) {
                return false;
            }
            // SAFETY: inside a data segment of an object; the loader's lock keeps it mapped.
            let holds = unsafe { elf::word(at) }.load(Relaxed);
            let is_bound = |i: &usize| holds == libc::real_by_number(*i) || holds == libc::export(*i);
            let mut of_allocator = (0..libc::HOOKED).filter(|i| libc::is_of_allocator(*i));
            holds != 0 && of_allocator.any(|i| is_bound(&i) && !self.definitions.is_only(i))
        })
    }
}

fn object(o: &elf::Loaded, replacement: Replacement, mut unbound: Slots<'_>, done: &mut PatchResult) {
    let tables = Tables::find(o.dynamic(), o.bias as u64, |at, bytes| o.memory(at as usize, bytes.map(|n| n as usize)));
    let mut opened = None;
    for slot in tables.slots() {
        let at = o.bias.wrapping_add(slot.at as usize);
        if !at.is_multiple_of(8) || !o.is_data(at) {
            done.left +=
                u64::from(tables.relocates_text && tables.symbol(slot.symbol).is_some_and(|s| is_hooked(s.name)));
            continue;
        }
        // SAFETY: inside a data segment of an object; the loader's lock keeps it mapped.
        let word = unsafe { elf::word(at) };
        let Some(to) = wanted(o, &tables, slot, word.load(Relaxed), replacement, &mut unbound) else { continue };
        // The kernel says whether the page is writable, and makes it present.
        if !os::populate(at & !4095, 4096) {
            let guarded = o.guarded().filter(|g| (g.start..g.end).contains(&at) && opened.is_none());
            // SAFETY: the object's RELRO pages. They are read-only, so the loader is done with them; its lock keeps
            // them where they are.
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
        // SAFETY: the object's RELRO pages, as above; only one walk runs at a time, and this one is done with them.
        unsafe { os::protect(g.start, g.end - g.start, false) };
    }
}

fn is_hooked(name: &[u8]) -> bool {
    (0..libc::HOOKED).any(|i| libc::name_by_number(i).to_bytes() == name)
}

/// The new value of the word; `None`: it stays.
fn wanted(
    o: &elf::Loaded,
    tables: &Tables<'_>,
    slot: relocation::Slot,
    holds: usize,
    replacement: Replacement,
    unbound: &mut Slots<'_>,
) -> Option<usize> {
    if replacement == Replacement::Nothing {
        // A large program has a million words, and hardly one of them holds a hook.
        let is_ours = elf::own_extent().contains(&holds);
        let is_missing = |&i: &usize| holds == libc::export(i) && is_missing(i);
        return if is_ours { (0..libc::HOOKED).find(is_missing).map(|_| 0) } else { None };
    }
    if replacement == Replacement::Reals {
        return (0..libc::HOOKED).find(|&i| holds != 0 && holds == libc::export(i)).map(libc::real_by_number);
    }
    let may_be_real = libc::is_real(holds);
    let may_be_unbound = slot.kind == RelocationKind::Call && o.is_code(holds);
    if !may_be_real && !may_be_unbound {
        return None;
    }
    let symbol = tables.symbol(slot.symbol)?;
    let i = match libc::hooked_at(holds, symbol.name) {
        Some(i) => i,
        None if may_be_unbound && !symbol.is_own => {
            let named = (0..libc::HOOKED).find(|&i| libc::name_by_number(i).to_bytes() == symbol.name)?;
            if !unbound.will_be_real(o, tables, named) {
                return None;
            }
            named
        }
        None => return None,
    };
    let hook = libc::export(i);
    (hook != 0 && libc::real_by_number(i) != 0).then_some(hook)
}

/// Whether the real function is all that the loader can bind this name to, besides the hook. An older ld.so has a
/// malloc too, behind libc's.
fn is_only_definition(i: usize) -> bool {
    let is_loader = |o: &elf::Object| o.symbol(c"__tls_get_addr").is_some();
    let others = elf::objects_checked(os::readable).filter(|o| !o.is_self() && !is_loader(o));
    let mut definitions = others.filter_map(|o| o.symbol(libc::name_by_number(i)));
    definitions.all(|address| address == libc::real_by_number(i))
}
