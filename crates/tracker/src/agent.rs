//! Attach and detach: begins tracking in a JVM that runs already, and ends it again.
//!
//! ```text
//! not attached ── attach ──▶ attached ── detach ──▶ detached ── attach ──▶ attached (new books, same file) …
//!                              │ attach: other sites
//! ```
//!
//! | attach | why in this order |
//! | --- | --- |
//! | segment and tables; or new books in those of the last attach | no segment is published: the hooks pass through |
//! | import tables of all objects | a call goes through the hook or not, and is booked in neither case |
//! | the segment is published | from this store on every call is booked: no block is booked by a hook and freed past one |
//! | mappings from before | under the map's lock: a booked call is neither missed nor doubled; for other calls, see
//! `book_existing` |
//!
//! Detach goes the other way: from one store on nothing is booked, then the tables get the real functions back. Threads
//! may be in hooks at that moment, and programs cache pointers to hooks (dlsym, FFM, ctypes). So the library stays, and
//! a hook that finds no books passes through.
//!
//! Blocks of an earlier attach carry keys under another secret: to the new books they are like blocks from before the
//! attach. New books begin only when every hook that was entered before the detach has returned. The tracker can't see
//! that: `plimsoll attach` waits, from outside, until every thread has slept or run since
//! (crates/cli/src/attach/threads_outside.rs).

use crate::account::mapping::existing;
use crate::account::side_table::page_keys;
use crate::account::{blocks, peaks, rows, samples, side_table, thread};
use crate::fixed_string::FixedString;
use crate::hook;
use crate::options::Options;
use crate::segment::books::MayBook;
use crate::segment::{LASTING, Segment, categories, set_text, slots};
use crate::stack::module;
use crate::sys::libc;
use crate::sys::os::{self, Clock};
use crate::{boot, patch, phase, stack_bounds};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU32, Ordering::*};
use plimsoll_segment::agent::{ATTACH, Answer, DETACH, OPTIONS_BYTES};
use plimsoll_segment::{Counter, Section, control};

/// Id of the process in which a thread attaches or detaches; 0: none. A fork child may inherit its parent's id, but not
/// the thread.
static BUSY: AtomicU32 = AtomicU32::new(0);

/// The right to attach or detach.
struct Turn;

impl Turn {
    /// `None`: another thread of this process has it.
    fn take() -> Option<Turn> {
        let (before, me) = (BUSY.load(Relaxed), os::getpid());
        let is_mine = before != me && BUSY.compare_exchange(before, me, Acquire, Relaxed).is_ok();
        // `then_some` would make a Turn in any case, and drop it.
        is_mine.then(|| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUSY.store(0, Release);
    }
}

struct Text(UnsafeCell<FixedString<OPTIONS_BYTES>>);
// SAFETY: only touched by the holder of the turn, which drops all pointers into it before it drops the turn.
unsafe impl Sync for Text {}
/// What `Options` points into: the VM frees its own string when the agent returns.
static TEXT: Text = Text(UnsafeCell::new(FixedString::new()));

/// Called by the VM with the agent's options.
///
/// # Safety
/// `options` is null or a C string; `exports` is the table of exported entries (crates/preload).
pub unsafe fn called(options: *const c_char, exports: &'static libc::Exports) -> i32 {
    let Some(_turn) = Turn::take() else { return Answer::Busy as i32 };
    // SAFETY: the caller's string; the holder of the turn.
    let answer = unsafe {
        let text = if options.is_null() { c"" } else { CStr::from_ptr(options) };
        match Request::parse(text, &mut *TEXT.0.get()) {
            None => Answer::BadOptions,
            Some(Request::Detach) => detach(),
            Some(Request::Attach(options)) => attach(options, exports),
        }
    };
    answer as i32
}

/// What the options request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Begin booking; or, in a process that is attached already, only change the mode and the mean.
    Attach(AttachOptions),
    /// Stop booking, and restore the import tables.
    Detach,
}

/// The options of an attach; [`plimsoll_segment::agent`] has their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// 0 off, 1 sampled, 2 exact.
    pub sites: u32,
    /// Mean of the sampling, bytes.
    pub sample: u64,
    /// File of compiled rules.
    pub rules: Option<&'static CStr>,
}

impl Request {
    /// Reads the options. What the result points to is kept in `keep`. `None`: they aren't understood.
    pub fn parse(text: &CStr, keep: &'static mut FixedString<OPTIONS_BYTES>) -> Option<Request> {
        let text = text.to_bytes();
        if text == DETACH.as_bytes() {
            return Some(Request::Detach);
        }
        let mut rest = match text.strip_prefix(ATTACH.as_bytes()) {
            Some(rest) => rest,
            // At the VM's start, by -agentpath:PATH, the word may be missing.
            None if text.is_empty() => text,
            None => return None,
        };
        let (mut sites, mut sample, mut rules) = (1, plimsoll_segment::SAMPLE_MEAN, None);
        while let Some(option) = rest.strip_prefix(b",") {
            if let Some(path) = option.strip_prefix(b"rules=") {
                keep.clear().push(path);
                if keep.bytes().len() < path.len() {
                    return None;
                }
                rules = Some(keep.as_c());
                break;
            }
            let end = option.iter().position(|b| *b == b',').unwrap_or(option.len());
            match option[..end].split_at(end.min(6)) {
                (b"sites=", b"off") => sites = 0,
                (b"sites=", b"sampled") => sites = 1,
                (b"sites=", b"exact") => sites = 2,
                _ => {
                    let digits = option[..end].strip_prefix(b"sample=").filter(|d| !d.is_empty() && d.len() < 16)?;
                    let digit = |n: u64, d: &u8| d.is_ascii_digit().then(|| n * 10 + u64::from(d - b'0'));
                    sample = digits.iter().try_fold(0, digit)?;
                }
            }
            rest = &option[end..];
        }
        (rest.is_empty() || rules.is_some()).then_some(Request::Attach(AttachOptions { sites, sample, rules }))
    }
}

fn attach(options: AttachOptions, exports: &'static libc::Exports) -> Answer {
    if let Some(segment) = Segment::current() {
        segment.header().control.store(control(options.sites, options.sample), Release);
        return Answer::Switched;
    }
    if !phase::is_late() || !libc::is_glibc() {
        // The tracker was loaded from the start and couldn't make a segment, so every hook passes through. Or there is
        // no glibc.
        return Answer::NoSegment;
    }
    if !phase::resolved() {
        hook::resolve::resolve();
        stack_bounds::init_late();
    }
    let (segment, answer, turn) = match Segment::mapped() {
        Some(segment) => {
            // Before anything changes: the old books can still be read.
            let Some(turn) = patch::Turn::take() else { return Answer::LoaderBusy };
            // It waits for a callback of dl_iterate_phdr that the program is in, as `remove_hooks` would.
            let _ = libc::loaded_so_far();
            // While the tracker was detached, no hook saw an mlockall(2).
            if os::find_locked_mappings() {
                hook::locked::unlock_own();
            }
            // SAFETY: detached, so no hook books. `plimsoll attach` has seen every thread leave the hooks that it
            // entered before, which the tracker can't see. (There is no such promise if somebody makes the VM load the
            // agent again by hand.)
            (unsafe { reset_books(segment) }, Answer::AttachedAgain, turn)
        }
        // A fork wipes what is mapped, and nothing else: rows and slots that threads remember are of the parent's file.
        None if LASTING.load(Acquire) != 0 => return Answer::ForkChild,
        None => {
            let Some(segment) = make_segment(&options, exports) else { return Answer::NoSegment };
            // No table has had a hook here, so no thread walks. The parent of this process may have walked at the fork.
            patch::reset_after_fork();
            let Some(turn) = patch::Turn::take() else { return Answer::LoaderBusy };
            // It waits for a callback of dl_iterate_phdr that the program is in, as `remove_hooks` would.
            let _ = libc::loaded_so_far();
            (segment, Answer::Attached, turn)
        }
    };
    let h = segment.header();
    let word = control(options.sites, options.sample);
    h.mode.store(options.sites, Relaxed);
    h.control.store(word, Relaxed);
    h.in_force.store(word, Relaxed);
    let now = os::clock_ns(Clock::Boottime);
    h.in_force_ns.store(now, Relaxed);
    segment.set(Counter::attached_ns, now);
    segment.count(Counter::attaches, 1);
    // Objects may have been loaded and unloaded unseen.
    slots::forget_stacks(segment);
    let Some(done) = patch::insert_hooks(&turn) else {
        patch::remove_hooks(&turn);
        return Answer::NoLoader;
    };
    drop(turn);
    segment.set(Counter::import_words, done.written);
    segment.set(Counter::import_words_left, done.left);
    module::note_loaded(segment);
    // SAFETY: the hooks are resolved. The VM calls this on a thread of its own, outside the allocator.
    unsafe { hook::resolve::learn_sizes() };
    if !boot::start_booking(segment) {
        if let Some(turn) = patch::Turn::take() {
            patch::remove_hooks(&turn);
        }
        return Answer::NoSegment;
    }
    existing::book_existing(segment);
    // A thread that was loading an object while the tables were searched has usually finished by now.
    patch::patch_new_objects(0);
    answer
}

/// The first attach: makes the segment and the tables.
fn make_segment(attach: &AttachOptions, exports: &'static libc::Exports) -> Option<Segment> {
    let sites = [c"off", c"sampled", c"exact"][attach.sites.min(2) as usize];
    let options = Options { sites: Some(sites), rules: attach.rules, ..boot::late_options() };
    let segment = boot::begin(&options, exports)?;
    set_text(&segment.category(categories::EARLY).name, b"before the attach");
    Some(segment)
}

/// New books in the old file: callers, rows and threads keep their numbers, and their figures begin at 0.
///
/// # Safety
/// No thread is in a hook that it entered when blocks were booked.
unsafe fn reset_books(segment: Segment) -> Segment {
    blocks::renew_secret();
    existing::empty_map(segment);
    // SAFETY: the caller's contract. Only `boot::start_booking` publishes the segment, and the caller calls it later.
    unsafe {
        side_table::reset_books();
        page_keys::reset_books();
        samples::reset_books(segment);
        rows::reset_books(MayBook::unpublished(segment));
        peaks::reset_books(segment);
        thread::reset_books(MayBook::unpublished(segment));
    }
    let counted = [
        Counter::unknown_frees,
        Counter::unknown_free_bytes,
        Counter::nested_entries,
        Counter::unbooked_blocks,
        Counter::unbooked_bytes,
        Counter::table_inserts,
        Counter::table_removes,
        Counter::advised_bytes,
        Counter::vmap_operations,
        Counter::vmap_deferred,
        Counter::vmap_lost,
        Counter::samples,
        Counter::samples_dropped,
        Counter::samples_dropped_bytes,
        Counter::sample_mean_highest,
    ];
    counted.into_iter().for_each(|c| segment.set(c, 0));
    debug_assert!(segment.used(Section::Rows) > 0);
    segment
}

fn detach() -> Answer {
    if !phase::is_late() {
        return Answer::FromTheStart;
    }
    let Some(segment) = Segment::current() else { return Answer::NotAttached };
    // Before anything changes. A process that has stopped booking counts as detached, and its hooks would stay.
    let Some(turn) = patch::Turn::take() else { return Answer::LoaderBusy };
    // This call waits until the program has left a callback of dl_iterate_phdr, as `remove_hooks` would.
    let _ = libc::loaded_so_far();
    boot::stop_booking(segment);
    let removed = patch::remove_hooks(&turn);
    drop(turn);
    // No hook sees an mlockall(2) from now on, which would make all of the tracker's mappings resident.
    os::note_limit(0);
    hook::limits::unmap_unused();
    match removed {
        Some(_) => Answer::Detached,
        // Hooks that remain in tables pass through.
        None => Answer::NoLoader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &CStr) -> Option<Request> {
        Request::parse(text, Box::leak(Box::new(FixedString::new())))
    }

    #[test]
    fn options_are_parsed_into_requests() {
        let attach = |sites, sample, rules| Some(Request::Attach(AttachOptions { sites, sample, rules }));
        assert_eq!(parse(c"attach"), attach(1, 512 << 10, None));
        assert_eq!(parse(c""), attach(1, 512 << 10, None));
        assert_eq!(parse(c"attach,sites=exact,sample=4096"), attach(2, 4096, None));
        assert_eq!(parse(c"attach,sites=off,rules=/a,b=c"), attach(0, 512 << 10, Some(c"/a,b=c")));
        assert_eq!(parse(c"detach"), Some(Request::Detach));
        for bad in [c"attached", c"attach,", c"attach,sites=all", c"attach,sample=", c"attach,sample=1k", c"detach,now"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    /// The thread that attaches in the parent doesn't exist in a fork child, so it never ends its turn there.
    #[test]
    fn a_fork_child_does_not_wait_for_a_thread_of_its_parent() {
        let turn = Turn::take().expect("nobody attaches");
        assert!(Turn::take().is_none());
        // SAFETY: the child makes two system calls and ends.
        let child = unsafe { ::libc::fork() };
        if child == 0 {
            let code = if Turn::take().is_some() { 7 } else { 8 };
            // SAFETY: ends the child without the test's handlers.
            unsafe { ::libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for this test's child.
        assert_eq!(unsafe { ::libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(::libc::WEXITSTATUS(status), 7, "{status:x}");
        assert!(Turn::take().is_none(), "the parent's thread still attaches");
        drop(turn);
        assert!(Turn::take().is_some());
    }

    #[test]
    fn options_with_a_path_that_is_too_long_are_refused() {
        let long = std::ffi::CString::new(format!("attach,rules=/{}", "x".repeat(OPTIONS_BYTES))).expect("text");
        assert_eq!(parse(&long), None);
    }
}
