//! Boot: from the first call of a hook until every block is booked.
//!
//! The loader binds malloc to our hook before any of our code has run. So its own first blocks, and those of
//! constructors that run before ours, come before an option is read, a file is made, or a thread has a state:
//!
//! ```text
//! loader relocates      other constructors      our constructor            main …
//! ──────────────────────┬───────────────────────┬──────────────────────────┬──────────────────
//! no hook is called     │ first block: RESOLVED │ options, file, tables    │ ON
//!                       │ 'before start' caller │ early counts → row 2     │ every block has its caller
//! ```
//!
//! - The first call of any hook finds the real functions by reading the loader's list (no dlsym, no allocation).
//! - From that very call on, blocks carry keys, under the fixed caller [`CALLER_EARLY`]; their sums are static counters
//!   that the constructor moves into the segment. So there is no block of an unknown kind, and free needs no look-up
//!   for pre-start blocks (HotSpot searches a hash table of 8,191 buckets at every free).
//! - In a process that runs already (`plimsoll attach`), dlopen runs our constructor. It only notes main's arguments
//!   and the options; [`crate::agent`] does the rest.
//! - If anything is missing (no C library that we know, no directory, file system full), the phase becomes OFF and
//!   every hook passes through. The program notices nothing.
//!
//! [`CALLER_EARLY`]: plimsoll_segment::CALLER_EARLY

use crate::account::mapping;
use crate::account::{blocks, early, image, own_mappings, rows, samples, segment_file, side_table, thread};
use crate::guard;
use crate::hook;
use crate::options::Options;
use crate::phase::{self, Phase};
use crate::rules;
use crate::segment::books::MayBook;
use crate::segment::{Segment, categories, slots};
use crate::stack::{callers, frames, module};
use crate::stack_bounds;
use crate::sys::libc::Exports;
use crate::sys::os::{self, Clock};
use crate::sys::{clock, elf, libc, program};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use plimsoll_segment::{Counter, SECTIONS, Section, State};

fn book_frees() {
    let (whole, windows) = hook::malloc::fast_frees();
    let free = match image::may_have_headers() {
        true => hook::malloc::slow::free_entry as *mut (),
        false if os::is_tight() => windows,
        false => whole,
    };
    hook::malloc::FREE.store(free, Relaxed);
    hook::fork::on_unknown_rows(free_slowly);
}

fn free_slowly() {
    hook::malloc::FREE.store(hook::malloc::slow::free_entry as *mut (), Release);
}

/// The first two arguments of main, as the constructor was given them.
static ARGUMENTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static mut LATE_OPTIONS: Option<Options> = None;

/// The constructor.
///
/// # Safety
/// Called once, by the loader; if that is glibc's, with main's arguments.
pub unsafe fn start(argc: i32, argv: *const *const c_char, environment: *mut *const c_char, exports: &'static Exports) {
    // Only glibc's loader calls constructors with main's arguments. Without a C library that we know, the first call of
    // a hook finds the real functions.
    let given = if libc::is_glibc() { Some((argc, argv, environment)) } else { None };
    let musls = || if libc::is_musl() { libc::arguments_of_musl() } else { None };
    let Some((argc, argv, environment)) = given.or_else(musls) else {
        if libc::is_musl() {
            hook::resolve::resolve();
            phase::enter(Phase::Off);
        }
        return;
    };
    for (cell, word) in ARGUMENTS.iter().zip([argc as usize, argv as usize]) {
        cell.store(word, Relaxed);
    }
    elf::note_own_extent();
    if elf::is_late() {
        // SAFETY: the loader's arguments; the loader runs this once.
        unsafe { (&raw mut LATE_OPTIONS).write(Some(Options::parse(environment))) };
        phase::note_late();
        return;
    }
    if !phase::resolved() {
        hook::resolve::resolve();
    }
    if phase::is(Phase::Off) {
        return;
    }
    // SAFETY: the loader's arguments.
    let (options, top) = unsafe { (Options::parse(environment), last_string(argv, environment)) };
    stack_bounds::init(top);
    let follows = options.follow.is_some_and(|f| f.to_bytes() == b"1");
    // SAFETY: the loader's block, which nobody has changed yet.
    unsafe { hook::exec::keep(environment.cast_const(), own_path(), follows) };
    if !follows {
        // SAFETY: the loader's block, writable. Before `main` only a thread of an earlier constructor could read it
        // meanwhile, and setenv(3) could change it under such a thread too.
        unsafe { remove_from_environment(environment) };
    }
    let Some(segment) = begin(&options, exports) else {
        phase::enter(Phase::Off);
        return;
    };
    crate::patch::remove_missing();
    // SAFETY: the loader runs this once, and `start_booking` below publishes the first segment.
    early::store(unsafe { MayBook::unpublished(segment) });
    side_table::settle(segment);
    early::seed(segment);
    // SAFETY: resolved above. The loader calls this, not the allocator.
    unsafe { hook::resolve::learn_sizes() };
    if !start_booking(segment) {
        segment_file::withdraw(segment, segment_file::directory());
        phase::enter(Phase::Off);
        return;
    }
    if let Some(signal) = options.signal {
        crate::summary::init(signal, options.summary);
    }
    guard::begin(segment, stack_bounds::main());
}

/// Options of a process that runs already, from its environment when the library was loaded. A copy, since setenv(3)
/// frees the array that it replaces.
pub fn late_options() -> Options {
    // SAFETY: written by the constructor, before the agent can be called, and never again.
    unsafe { (&raw const LATE_OPTIONS).read() }.unwrap_or_default()
}

/// Makes the segment and the tables. `None`: that failed, and no segment stays mapped.
pub fn begin(options: &Options, exports: &'static Exports) -> Option<Segment> {
    libc::set_exports(exports);
    clock::start();
    let (limit, of_data) = (os::address_space_limit(), os::data_limit());
    if limit < plimsoll_segment::LEAST_ADDRESS_SPACE || of_data < plimsoll_segment::LEAST_DATA {
        return None;
    }
    os::note_limit(limit.min(of_data));
    if phase::is_late() {
        os::find_locked_mappings();
    }
    let (segment, directory) = segment_file::make(options)?;
    // A failed attach may have populated sections of a segment that is gone.
    segment.populated(&[0; SECTIONS]);
    let [argc, argv] = ARGUMENTS.each_ref().map(|a| a.load(Relaxed));
    // SAFETY: argv and argc are the loader's; nobody else has the segment.
    unsafe { command(segment, argc as i32, argv as *const *const c_char) };
    rules::init(options.rules.and_then(map_rules));
    if options.check.is_some_and(|c| c.to_bytes() == b"1") {
        thread::check_memos();
    }
    let ready = thread::init()
        && hook::thread::init()
        && module::init()
        && categories::init(segment)
        && callers::init(segment)
        && frames::init()
        && samples::init()
        // SAFETY: only `start_booking` publishes a segment, and the caller calls it after this function.
        && rows::init(unsafe { MayBook::unpublished(segment) })
        && segment.append(Section::Threads) == Some(plimsoll_segment::SLOT_SHARED)
        && mapping::books::init(segment)
        && own_mappings::init(segment);
    if !ready {
        segment_file::withdraw(segment, &directory);
        return None;
    }
    mapping::readable::init();
    // SAFETY: no segment is published, so nobody reads it yet, even if a failed attach wrote it before. The agent lets
    // in one attach at a time.
    unsafe { segment_file::keep_directory(directory) };
    if let Some(key) = libc::key_create(hook::thread::end) {
        thread::watch_ends_by(key);
    }
    Some(segment)
}

/// From now on every block is booked. False: the kernel can't wipe a page on fork.
pub fn start_booking(segment: Segment) -> bool {
    STEPS.iter().all(|step| step(segment))
}

/// What [`start_booking`] does, in this order. Other threads allocate and free between any two steps: at no time may
/// malloc book while free does not.
pub const STEPS: [fn(Segment) -> bool; 4] = [write_keys, let_free_book, blocks::publish, book_by_fast_paths];

fn write_keys(segment: Segment) -> bool {
    segment.header().end_boottime_ns.store(0, Relaxed);
    segment.header().state.store(State::Running as u32, Release);
    blocks::write_trailers(true);
    slots::set_trailer_bound(segment, blocks::fast_path_below());
    true
}

/// After a detach, free is libc's own, so this makes it take the slow path. The slow path checks whether there are
/// books.
fn let_free_book(_: Segment) -> bool {
    free_slowly();
    true
}

/// Must follow the publication of the segment: from here on, free reads the row of any word that passes for a trailer.
fn book_by_fast_paths(_: Segment) -> bool {
    book_frees();
    os::started();
    phase::enter(Phase::On);
    true
}

/// From now on no block is booked: hooks that are still called pass through.
pub fn stop_booking(segment: Segment) {
    phase::enter(Phase::Passing);
    Segment::withdraw();
    hook::malloc::FREE.store(libc::real(libc::Call::free) as *mut (), Release);
    blocks::write_trailers(false);
    slots::set_trailer_bound(segment, 0);
    segment.header().end_boottime_ns.store(os::clock_ns(Clock::Boottime), Relaxed);
    segment.header().state.store(State::Detached as u32, Release);
}

/// The tracker is in a state from which it can't continue: stops booking.
pub fn fault() {
    if let Some(segment) = Segment::current() {
        segment.count(Counter::faults, 1);
        stop_booking(segment);
    }
}

/// The destructor: the process ends normally (exit(3)).
pub fn finish() {
    if let Some(s) = Segment::published() {
        let end = os::clock_ns(Clock::Boottime);
        // A sandbox may refuse the system call; the vdso needs none.
        s.header().end_boottime_ns.store(if end != 0 { end } else { clock::now_ns() }, Relaxed);
        s.header().state.store(State::Exited as u32, Release);
    }
}

/// The highest known address of the block that the kernel puts above the main stack: the address of its last string.
///
/// # Safety
/// NULL-terminated arrays.
unsafe fn last_string(argv: *const *const c_char, environment: *mut *const c_char) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let mut top = environment as usize;
        for array in [argv, environment as *const *const c_char] {
            let mut at = array;
            while !(*at).is_null() {
                let s = *at as usize;
                // Strings that setenv or a wrapper put on a heap lie elsewhere, so only strings near the array count.
                if s > environment as usize && s - (environment as usize) < 8 << 20 {
                    top = top.max(s);
                }
                at = at.add(1);
            }
        }
        top
    }
}

/// The library's own path, as the loader knows it.
fn own_path() -> &'static [u8] {
    elf::objects().find(|o| o.is_self()).map_or(&[][..], |o| o.name())
}

/// Removes this object from LD_PRELOAD, and its options from the environment, so that the program and its children see
/// the environment without the tracker. PLIMSOLL_DIR stays: a `plimsoll report` started from here should find its
/// segments.
///
/// # Safety
/// A NULL-terminated array of writable C strings, which nobody else reads meanwhile.
unsafe fn remove_from_environment(environment: *mut *const c_char) {
    let own = own_path();
    // SAFETY: the caller's contract.
    unsafe {
        let mut at = environment;
        while !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            let gone = match entry.strip_prefix(b"LD_PRELOAD=") {
                // From the block's own pointer: the slice may only be read.
                Some(list) => remove_from_list((*at).cast_mut().cast::<u8>().add(11), list.len(), own),
                None => entry.starts_with(b"PLIMSOLL_") && !entry.starts_with(b"PLIMSOLL_DIR="),
            };
            if !gone {
                at = at.add(1);
                continue;
            }
            let mut hole = at;
            while !(*hole).is_null() {
                *hole = *hole.add(1);
                hole = hole.add(1);
            }
        }
    }
}

/// Removes `own` from a list separated by colons or blanks, in place. True: the list is empty now.
///
/// # Safety
/// `list` is a writable string of n bytes and a NUL that nobody else reads meanwhile.
unsafe fn remove_from_list(list: *mut u8, n: usize, own: &[u8]) -> bool {
    // SAFETY: the caller's contract.
    let text = unsafe { core::slice::from_raw_parts_mut(list, n + 1) };
    let mut i = 0;
    while i < n {
        let end = i + text[i..n].iter().position(|b| *b == b':' || *b == b' ').unwrap_or(n - i);
        if &text[i..end] == own {
            let from = (end + 1).min(n);
            text.copy_within(from..n, i);
            // If `own` was last, the separator in front of it stays, which the loader skips.
            text[i + n - from] = 0;
            return i + n - from == 0;
        }
        i = end + 1;
    }
    false
}

/// Writes executable and arguments into the command section. A program that runs already may have moved or overwritten
/// the strings (setproctitle), so there /proc is read.
///
/// # Safety
/// `argv` has `argc` C strings; the segment isn't published.
unsafe fn command(segment: Segment, argc: i32, argv: *const *const c_char) {
    // SAFETY: the command section of a segment that nobody else knows of yet, populated.
    let out = unsafe {
        core::slice::from_raw_parts_mut(
            (segment.base() + Section::Command.offset()) as *mut u8,
            Section::Command.capacity(),
        )
    };
    let mut path = [0; program::MOST];
    let n = os::read_link(os::OwnFile::EXE, &mut path).len();
    // SAFETY: the caller's contract.
    let first = (!phase::is_late() && argc > 0).then(|| unsafe { CStr::from_ptr(*argv) }.to_bytes());
    let n = program::name_as_started(&mut path, n, first, phase::is_late());
    out[..n].copy_from_slice(&path[..n]);
    let mut n = n + 1;
    if phase::is_late() {
        let from = n.min(out.len());
        let text = os::read_file(os::OwnFile::CMDLINE, &mut out[from..]);
        // Only whole arguments. A title that the program has set may lack its NUL.
        let whole = text.iter().rposition(|byte| *byte == 0).map_or(text.len() + 1, |end| end + 1);
        segment.section(Section::Command).used.store((from + whole).min(out.len()) as u64, Relaxed);
        return;
    }
    for i in 0..argc.max(0) as usize {
        // SAFETY: the caller's contract.
        let a = unsafe { CStr::from_ptr(*argv.add(i)) }.to_bytes_with_nul();
        if n + a.len() > out.len() {
            break;
        }
        out[n..n + a.len()].copy_from_slice(a);
        n += a.len();
    }
    segment.section(Section::Command).used.store(n as u64, Relaxed);
}

/// `#N` is a descriptor that `plimsoll attach` has opened, and that it closes.
fn map_rules(path: &CStr) -> Option<&'static [u8]> {
    if let Some(digits) = path.to_bytes().strip_prefix(b"#") {
        return map_descriptor(os::Fd::of_number(digits)?);
    }
    let fd = os::open_file(path)?;
    let mapped = map_descriptor(fd);
    os::close(fd);
    mapped
}

fn map_descriptor(fd: os::Fd) -> Option<&'static [u8]> {
    let facts = os::file_facts(fd);
    let bytes = facts.filter(|f| f.uid == os::geteuid() || f.uid == 0).map_or(0, |f| f.size as usize);
    let p = if bytes > 0 { os::map_readonly(fd, bytes) } else { None };
    // SAFETY: a private read-only mapping of that many bytes, never unmapped. A file that shrinks later would fault:
    // `run` writes rules under a temporary name and renames, and never changes them.
    p.map(|p| unsafe { core::slice::from_raw_parts(p, bytes) })
}
