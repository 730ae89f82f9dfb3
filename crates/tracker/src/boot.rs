//! Boot: what to do before options are known.
//!
//! The loader binds malloc to our hook before any of our code has run: its own first blocks, then those of constructors
//! that run before ours, come when no option is read, no file made, no thread state there. The cases:
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
//!   that the constructor moves into the segment. So there is no block of an unknown kind, and free needs no look-up for
//!   pre-start blocks (HotSpot: an 8,191-bucket hash, asked at every free).
//! - A process that runs already (`plimsoll attach`) has our constructor run by dlopen: it does nothing but note main's
//!   arguments. The rest is [`crate::agent`]'s.
//! - If anything is missing (no glibc, no directory, file system full, kernel before 5.14 that can't populate), the state
//!   becomes OFF and every hook passes through; the program is never told.
//!
//! [`CALLER_EARLY`]: plimsoll_segment::CALLER_EARLY

use crate::account::blocks::Key;
use crate::account::inherited::{Child, Inherited};
use crate::account::keys::{set_key, take_key};
use crate::account::rows::{Amount, ROW_EARLY};
use crate::account::segment::Segment;
use crate::account::thread::ThreadState;
use crate::account::windows;
use crate::account::{blocks, callers, categories, control, frames, image, own, rows, samples, table, thread};
use crate::hook;
use crate::options::{Options, Path, number};
use crate::stack::module;
use crate::stacks;
use crate::sys::cpu::{CURRENT, tls_set};
use crate::sys::os::{self, Clock};
use crate::sys::{clock, elf, libc};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{
    ALL_SECTIONS, Allocator, CALLER_EARLY, Counter, FILE_BYTES, HEADER_BYTES, MAGIC, RETAINED, Runtime, SECTIONS,
    SUFFIX, Section, State, VERSION, counters,
};

const NEW: u32 = 0;
const RESOLVED: u32 = 1;
const ON: u32 = 2;
const OFF: u32 = 3;
/// Loaded late: nothing is booked, not even early; not before an attach, and after a detach.
const PASSING: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(NEW);
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static RETAIN: AtomicUsize = AtomicUsize::new(RETAINED);
/// The shim's hooks, in the order of the hook table.
pub type Exports = [AtomicUsize; libc::HOOKED];
static EXPORTS: AtomicPtr<Exports> = AtomicPtr::new(core::ptr::null_mut());
/// Six sums of a row: what was booked before the segment was there.
static EARLY: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// Directory of the segments, for fork. Written before a segment is published, read afterwards.
static mut DIRECTORY: Path<256> = Path::new();

/// Whether the real functions are known.
#[inline(always)]
pub fn resolved() -> bool {
    STATE.load(Relaxed) != NEW
}

/// Whether blocks are booked at all.
pub fn booking() -> bool {
    Segment::current().is_some() || STATE.load(Relaxed) == RESOLVED
}

/// Whether the hooks only pass calls through: loaded late, and not attached.
pub fn is_passing() -> bool {
    STATE.load(Acquire) == PASSING
}

/// Whether this tracker came to a process that was running.
pub fn is_late() -> bool {
    LATE.load(Relaxed)
}

/// Finds the real functions and looks whose malloc they are.
#[cold]
pub fn resolve() {
    libc::resolve();
    hook::calls::init();
    if !libc::is_glibc() {
        STATE.store(OFF, Release);
        return;
    }
    let below = elf::scope().find(|o| o.symbol(c"malloc").is_some());
    let allocator = match below {
        Some(o) if o.symbol(c"mallctl").or(o.symbol(c"je_mallctl")).is_some() => Allocator::Jemalloc,
        Some(o) if o.symbol(c"tc_malloc").is_some() => Allocator::Tcmalloc,
        Some(o) if o.symbol(c"mi_malloc").is_some() => Allocator::Mimalloc,
        Some(o) if o.symbol(c"gnu_get_libc_version").is_some() && chunks_are_glibc() => Allocator::Glibc,
        _ => Allocator::Other,
    };
    blocks::init(allocator);
    if let (Some(o), false) = (below, allocator == Allocator::Glibc) {
        libc::set_allocator(o);
    }
    image::init();
    // Before the allocator below registers its own: `prepare` handlers run last come first, so ours takes the map's lock
    // when the allocator's are held already. The other way round, a thread that maps memory under an allocator's lock
    // and the one that forks would wait for each other.
    hook::fork::init();
    let _ = STATE.compare_exchange(NEW, if is_late() { PASSING } else { RESOLVED }, AcqRel, Relaxed);
}

fn book_frees() {
    let free = if blocks::allocator() == Allocator::Glibc as u32 && !image::is_image() {
        let (whole, windows) = (hook::malloc::free_glibc as *mut (), hook::malloc::free_glibc_in_windows as *mut ());
        if os::is_tight() { windows } else { whole }
    } else {
        hook::entry::free_entry as *mut ()
    };
    hook::malloc::FREE.store(free, Relaxed);
}

/// The program sets a limit on its address space: the tracker gives back what it doesn't use, and takes no more than it uses.
#[cold]
pub fn limit_address_space(limit: u64) {
    if !os::note_limit(limit) {
        return;
    }
    if let Some(segment) = Segment::mapped() {
        // Before the windows are cut: this one looks where they end.
        let (whole, windows) = (hook::malloc::free_glibc as *mut (), hook::malloc::free_glibc_in_windows as *mut ());
        let _ = hook::malloc::FREE.compare_exchange(whole, windows, AcqRel, Relaxed);
        segment.cut();
    }
    os::cut_pool(own::shorten);
}

/// Whether the size in front of a block says what malloc_usable_size says. No size that malloc maps by itself is tried:
/// the free of one would raise the program's mmap threshold for good (mallopt(3), M_MMAP_THRESHOLD).
fn chunks_are_glibc() -> bool {
    [1usize, 24, 25, 1000, 70_001].iter().all(|&n| {
        // SAFETY: resolved; the block is freed again. A libc that is not glibc has no gnu_get_libc_version.
        unsafe {
            let p = libc::calls::malloc(n);
            if p.is_null() {
                return false;
            }
            let same = blocks::usable_glibc(p) == libc::calls::malloc_usable_size(p);
            libc::calls::free(p);
            same
        }
    })
}

/// Books a block before the segment is there.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes.
pub unsafe fn early_alloc(p: *mut u8, n: usize) {
    if STATE.load(Relaxed) == RESOLVED {
        // SAFETY: the caller's contract.
        if let Some(a) = unsafe { set_key(p, Key { row: ROW_EARLY, requested: n as u64, sampled: false }) } {
            early(0, a);
        }
    }
}

/// Books a release before the segment is there.
///
/// # Safety
/// `p` is a live block.
pub unsafe fn early_free(p: *mut u8) {
    if STATE.load(Relaxed) == RESOLVED {
        // SAFETY: the caller's contract.
        early_release(unsafe { take_key(p) }.map(|(_, a)| a));
    }
}

/// The same for a block whose key was taken already.
pub fn early_release(a: Option<Amount>) {
    if let (Some(a), RESOLVED) = (a, STATE.load(Relaxed)) {
        early(3, a);
    }
}

fn early(at: usize, a: Amount) {
    for (i, n) in [1, a.usable, a.requested].into_iter().enumerate() {
        EARLY[at + i].fetch_add(n, Relaxed);
    }
}

/// The exported hook with this number (of the hook table).
pub fn export(i: usize) -> usize {
    // SAFETY: null, or the static table that `begin` was given.
    let table = unsafe { EXPORTS.load(Acquire).as_ref() };
    table.and_then(|table| table.get(i)).map_or(0, |hook| hook.load(Relaxed))
}

/// Has the end of this thread noticed.
pub fn watch_end(t: *const ThreadState) {
    let key = KEY.load(Relaxed);
    if key != u32::MAX {
        libc::set_specific(key, t as usize);
    }
}

/// The first two arguments of main, as the constructor was given them.
static ARGUMENTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static mut LATE_OPTIONS: Option<Options> = None;
static LATE: AtomicBool = AtomicBool::new(false);

/// The constructor.
///
/// # Safety
/// Called once, by the loader, with main's arguments.
pub unsafe fn start(argc: i32, argv: *const *const c_char, environment: *mut *const c_char, exports: &'static Exports) {
    // Only glibc's loader calls constructors with main's arguments. The first hook that is called finds its real function.
    if !libc::is_glibc() {
        return;
    }
    for (cell, word) in ARGUMENTS.iter().zip([argc as usize, argv as usize]) {
        cell.store(word, Relaxed);
    }
    if elf::is_late() {
        // SAFETY: the loader's arguments; the loader runs this once.
        unsafe { (&raw mut LATE_OPTIONS).write(Some(Options::parse(environment))) };
        LATE.store(true, Relaxed);
        return;
    }
    if !resolved() {
        resolve();
    }
    // SAFETY: the loader's arguments.
    let (options, top) = unsafe { (Options::parse(environment), outermost(argv, environment)) };
    stacks::init(top);
    if options.follow.is_none_or(|f| f.to_bytes() != b"1") {
        // SAFETY: the loader's block, writable. Before `main` nobody but an earlier constructor's thread could read it meanwhile, and
        // such a thread has to expect setenv(3) too.
        unsafe { leave_environment(environment) };
    }
    let Some(segment) = begin(&options, exports) else {
        STATE.store(OFF, Release);
        return;
    };
    let early = segment.row(ROW_EARLY);
    for (to, from) in [
        &early.alloc_count,
        &early.alloc_bytes,
        &early.alloc_requested,
        &early.free_count,
        &early.free_bytes,
        &early.free_requested,
    ]
    .into_iter()
    .zip(&EARLY)
    {
        to.store(from.load(Relaxed), Relaxed);
    }
    table::settle(segment);
    let live = |i: usize| EARLY[i].load(Relaxed).wrapping_sub(EARLY[i + 3].load(Relaxed)) as i64;
    crate::account::peaks::seed(segment, CALLER_EARLY, live(1), live(0));
    if !book(segment) {
        withdraw(segment, self::directory());
        STATE.store(OFF, Release);
        return;
    }
    if let Some(signal) = options.signal {
        crate::summary::init(signal, options.summary);
    }
    if let Some(t) = thread::attach(segment, Some(stacks::main())) {
        watch_end(t);
        tls_set::<CURRENT>(t as *mut ThreadState as usize);
    }
}

/// Options of a process that runs already: what its environment said when the library was loaded. Kept, since setenv(3) frees
/// the array that it replaces.
pub fn late_options() -> Options {
    // SAFETY: written by the constructor, before the agent can be called, and never again.
    unsafe { (&raw const LATE_OPTIONS).read() }.unwrap_or_default()
}

/// Makes the segment and the tables. `None`: the program has its address space back.
pub fn begin(options: &Options, exports: &'static Exports) -> Option<Segment> {
    EXPORTS.store((&raw const *exports).cast_mut(), Release);
    clock::start();
    let limit = os::address_space_limit();
    if limit < plimsoll_segment::LEAST_ADDRESS_SPACE {
        return None;
    }
    os::note_limit(limit);
    let (segment, directory) = make(options)?;
    // An attach that found no room may have populated sections of a segment that is gone.
    segment.populated(&[0; SECTIONS]);
    let [argc, argv] = ARGUMENTS.each_ref().map(|a| a.load(Relaxed));
    // SAFETY: argv and argc are the loader's; nobody else has the segment.
    unsafe { command(segment, argc as i32, argv as *const *const c_char) };
    let rules = options.rules.and_then(map_rules);
    if options.check.is_some_and(|c| c.to_bytes() == b"1") {
        thread::check_memos();
    }
    let ready = thread::init()
        && hook::thread::init()
        && module::init(rules)
        && categories::init(segment)
        && callers::init(segment)
        && frames::init()
        && samples::init()
        && rows::init(segment)
        && segment.append(Section::Threads) == Some(plimsoll_segment::SLOT_SHARED)
        && hook::mapping::init(segment)
        && own::init(segment);
    if !ready {
        withdraw(segment, &directory);
        return None;
    }
    // SAFETY: no segment is published, so nobody reads it yet, also where an attach that found no room wrote it before; of two
    // attaches the agent lets one in.
    unsafe { (&raw mut DIRECTORY).write(directory) };
    if let Some(key) = libc::key_create(hook::thread::end) {
        KEY.store(key, Relaxed);
    }
    Some(segment)
}

/// From now on every block is booked. False: the kernel can't wipe a page on fork.
pub fn book(segment: Segment) -> bool {
    segment.header().end_boottime_ns.store(0, Relaxed);
    segment.header().state.store(State::Running as u32, Release);
    blocks::write_trailers(true);
    thread::ask_for_trailers(segment, if image::is_image() { 0 } else { blocks::trailer_below() });
    if !segment.publish() {
        return false;
    }
    // Not before: it looks into the rows of whatever passes for a trailer.
    book_frees();
    os::started();
    STATE.store(ON, Release);
    true
}

/// From now on no block is booked: the hooks that are still called pass on.
pub fn pass(segment: Segment) {
    STATE.store(PASSING, Release);
    Segment::withdraw();
    hook::malloc::FREE.store(libc::real(libc::Call::free) as *mut (), Release);
    blocks::write_trailers(false);
    thread::ask_for_trailers(segment, 0);
    segment.header().end_boottime_ns.store(os::clock_ns(Clock::Boottime), Relaxed);
    segment.header().state.store(State::Detached as u32, Release);
}

/// The tracker has found itself in a state that it can't go on from: nothing is booked any more.
pub fn fault() {
    if let Some(segment) = Segment::current() {
        segment.count(Counter::faults, 1);
        pass(segment);
    }
}

/// Boot gives up: the program gets its address space back.
pub fn withdraw(segment: Segment, directory: &Path<256>) {
    remove(segment, directory);
    // SAFETY: never published: no hook knows of it, and whoever made it keeps no copy.
    unsafe { windows::unmap(segment) };
}

/// The destructor: the process ends in order.
pub fn finish() {
    if let Some(s) = Segment::published() {
        let end = os::clock_ns(Clock::Boottime);
        // A sandbox may know clocks through the vdso only.
        s.header().end_boottime_ns.store(if end != 0 { end } else { clock::now_ns() }, Relaxed);
        s.header().state.store(State::Exited as u32, Release);
    }
}

/// The highest address that the kernel's start block gives away: its last string.
///
/// # Safety
/// NULL-terminated arrays.
unsafe fn outermost(argv: *const *const c_char, environment: *mut *const c_char) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let mut top = environment as usize;
        for array in [argv, environment as *const *const c_char] {
            let mut at = array;
            while !(*at).is_null() {
                let s = *at as usize;
                // Strings that setenv or a wrapper put on a heap lie elsewhere: take those near the array.
                if s > environment as usize && s - (environment as usize) < 8 << 20 {
                    top = top.max(s);
                }
                at = at.add(1);
            }
        }
        top
    }
}

/// Takes this object out of LD_PRELOAD, and its options out of the environment, so that the program and what it starts
/// see what they would see without us. PLIMSOLL_DIR stays: a `plimsoll report` started from here should find its segments.
///
/// # Safety
/// A NULL-terminated array of writable C strings, which nobody else reads meanwhile.
unsafe fn leave_environment(environment: *mut *const c_char) {
    let own = elf::objects().find(|o| o.is_self()).map_or(&[][..], |o| o.name());
    // SAFETY: the caller's contract.
    unsafe {
        let mut at = environment;
        while !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            let gone = match entry.strip_prefix(b"LD_PRELOAD=") {
                // From the block's own pointer: the slice may only be read.
                Some(list) => leave_list((*at).cast_mut().cast::<u8>().add(11), list.len(), own),
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

/// Takes `own` out of a list separated by colons or blanks, in place. True: nothing is left in it.
///
/// # Safety
/// `list` is a writable string of n bytes and a NUL that nobody else reads meanwhile.
unsafe fn leave_list(list: *mut u8, n: usize, own: &[u8]) -> bool {
    // SAFETY: the caller's contract.
    let text = unsafe { core::slice::from_raw_parts_mut(list, n + 1) };
    let mut i = 0;
    while i < n {
        let end = i + text[i..n].iter().position(|b| *b == b':' || *b == b' ').unwrap_or(n - i);
        if &text[i..end] == own {
            let from = (end + 1).min(n);
            text.copy_within(from..n, i);
            // What was the last leaves the separator in front of it, which the loader skips.
            text[i + n - from] = 0;
            return i + n - from == 0;
        }
        i = end + 1;
    }
    false
}

/// Makes and maps the file.
fn make(options: &Options) -> Option<(Segment, Path<256>)> {
    let mut directory = Path::<256>::new();
    let uid = os::geteuid();
    let fd = match options.directory {
        Some(d) => {
            directory.push(d.to_bytes());
            own_directory(&directory, uid)?
        }
        None => [c"/dev/shm/plimsoll-", c"/tmp/plimsoll-", c"/run/plimsoll-"].iter().find_map(|base| {
            directory.clear().push(base.to_bytes()).push_number(uid as u64);
            own_directory(&directory, uid)
        })?,
    };
    RETAIN.store(number(options.retain).unwrap_or(RETAINED), Relaxed);
    prune(fd, &mut Looked::new());
    let r = create(fd, os::getpid());
    os::close(fd);
    let segment = r?;
    control::start(segment, options);
    Some((segment, directory))
}

/// Opens the directory, made if it isn't there; only one that is ours alone.
fn own_directory(path: &Path<256>, uid: u32) -> Option<os::Fd> {
    let fd = os::open_dir(path.as_c()).or_else(|| {
        os::make_dir(path.as_c());
        os::open_dir(path.as_c())
    })?;
    if is_private(fd, uid) {
        return Some(fd);
    }
    os::close(fd);
    None
}

/// Whether it belongs to this user, and nobody else may enter it.
fn is_private(directory: os::Fd, uid: u32) -> bool {
    os::file_facts(directory).is_some_and(|f| f.uid == uid && f.mode & 0o077 == 0)
}

/// Creates, sizes, maps and populates a segment for a process id. The descriptor is closed again: the program's own
/// descriptors keep their numbers.
pub fn create(directory: os::Fd, pid: u32) -> Option<Segment> {
    if os::file_size_limit() < FILE_BYTES as u64 {
        return None;
    }
    let now = os::clock_ns(Clock::Boottime);
    let name = file_name(pid, now);
    let fd = os::create(directory, name.as_c()).ok()?;
    let mapped = os::truncate(fd, FILE_BYTES).then(|| windows::map(fd)).flatten();
    os::lock_while_mapped(fd);
    os::note_file_system(fd);
    os::close(fd);
    let made = mapped.and_then(|segment| {
        windows::expect_random(segment);
        windows::no_huge_pages(segment);
        if segment.populate_start() {
            return Some(segment);
        }
        // SAFETY: nobody knows of it yet.
        unsafe { windows::unmap(segment) };
        None
    });
    let Some(segment) = made else {
        os::unlink(directory, name.as_c());
        return None;
    };
    let h = segment.header();
    h.version.store(VERSION, Relaxed);
    h.header_bytes.store(HEADER_BYTES as u32, Relaxed);
    h.file_bytes.store(FILE_BYTES as u64, Relaxed);
    h.pid.store(pid, Relaxed);
    h.ppid.store(os::getppid(), Relaxed);
    h.start_boottime_ns.store(now, Relaxed);
    h.start_realtime_ns.store(os::clock_ns(Clock::Realtime), Relaxed);
    h.allocator.store(blocks::allocator(), Relaxed);
    h.runtime.store(runtime(), Relaxed);
    h.counters.store(counters::COUNTERS.len() as u32, Relaxed);
    h.composition.store(2, Relaxed);
    for (i, e) in h.sections.iter().take(SECTIONS).enumerate() {
        let s = ALL_SECTIONS[i];
        e.kind.store(s as u32, Relaxed);
        e.entry_bytes.store(s.entry_bytes() as u32, Relaxed);
        e.offset.store(s.offset() as u64, Relaxed);
        e.capacity.store(s.capacity() as u64, Relaxed);
    }
    // SAFETY: the schema section of a segment that nobody else knows of yet, populated.
    let schema = unsafe {
        core::slice::from_raw_parts_mut(
            (segment.base() + Section::Schema.offset()) as *mut u8,
            Section::Schema.capacity(),
        )
    };
    let n = counters::SCHEMA.len().min(schema.len());
    schema[..n].copy_from_slice(&counters::SCHEMA.as_bytes()[..n]);
    segment.section(Section::Schema).used.store(n as u64, Relaxed);
    h.magic.store(MAGIC, Release);
    Some(segment)
}

/// Opens the directory of this process's segment. Once the program has changed root or user, only if it is ours alone: another
/// may have that name in a new root.
pub fn open_directory() -> Option<os::Fd> {
    let fd = os::open_dir(directory().as_c())?;
    if !hook::fork::is_directory_in_doubt() || is_private(fd, os::geteuid()) {
        return Some(fd);
    }
    os::close(fd);
    None
}

/// Whether a fork child could make its segment, as far as that can be known. Costs nothing before the program has changed
/// root, user or limits.
pub fn reaches_directory() -> bool {
    if !hook::fork::is_directory_in_doubt() {
        return true;
    }
    let fd = open_directory();
    fd.inspect(|fd| os::close(*fd));
    fd.is_some() && os::file_size_limit() >= FILE_BYTES as u64
}

/// Adds 1 to a counter of another process's segment.
pub fn count_in(directory: os::Fd, (pid, start): (u32, u64), counter: Counter) {
    let Some(fd) = os::open_to_map(directory, file_name(pid, start).as_c()) else { return };
    let is_whole = os::file_facts(fd).is_some_and(|facts| facts.size >= HEADER_BYTES as u64);
    let header = if is_whole { os::map_file(fd, 0, HEADER_BYTES, 0, false) } else { None };
    os::close(fd);
    if let Some(header) = header {
        // SAFETY: a fresh mapping of a header's length, which the kernel aligned to a page. Any bytes are a header.
        unsafe {
            let h = &*(header as *const plimsoll_segment::Header);
            if h.magic.load(Acquire) == MAGIC {
                h.values[counter as usize].fetch_add(1, Relaxed);
            }
            os::unmap(header, HEADER_BYTES);
        }
    }
}

/// The segment of a fork child: mapped at `base`, where its parent's was. `None`: nothing is left of the file, and nothing
/// of use at `base`.
pub fn create_in_child(directory: os::Fd, of: Inherited, who: Child, base: usize) -> Option<Segment> {
    if os::file_size_limit() < FILE_BYTES as u64 {
        return None;
    }
    let name = file_name(who.pid, who.start_boottime_ns);
    let fd = os::create(directory, name.as_c()).ok()?;
    // Whole pages of the file, whose blocks are there from now on: a full file system is an answer here.
    let is_written =
        os::truncate(fd, FILE_BYTES) && of.write(who, |at, bytes, zeros| os::write_at(fd, at, bytes, zeros));
    // SAFETY: nobody uses what is at `base`: the segment of the parent was taken away there.
    let is_mapped = is_written && unsafe { windows::map_again(fd, Segment::at(base), &of.written()) };
    os::lock_while_mapped(fd);
    os::close(fd);
    if !is_mapped {
        os::unlink(directory, name.as_c());
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { Segment::at(base) })
}

/// Looked at once, for the process's own segment: at a fork other threads may be unloading what the loader's list names.
fn runtime() -> u32 {
    static KNOWN: AtomicU32 = AtomicU32::new(u32::MAX);
    if KNOWN.load(Relaxed) == u32::MAX {
        KNOWN.store(look_at_runtime() as u32, Relaxed);
    }
    KNOWN.load(Relaxed)
}

fn look_at_runtime() -> Runtime {
    if image::is_image() {
        Runtime::NativeImage
    } else if is_late() {
        // Only a HotSpot VM calls the agent.
        Runtime::Hotspot
    } else if elf::objects().any(|o| o.name().ends_with(b"/libjli.so") || o.name().ends_with(b"/libjvm.so")) {
        Runtime::Hotspot
    } else {
        Runtime::Native
    }
}

/// Writes executable and arguments into the command section.
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
    let mut n = os::read_link(c"/proc/self/exe", &mut out[..1024]).len() + 1;
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

fn map_rules(path: &CStr) -> Option<&'static [u8]> {
    let fd = os::open_file(path)?;
    let facts = os::file_facts(fd);
    let bytes = facts.filter(|f| f.uid == os::geteuid() || f.uid == 0).map_or(0, |f| f.size as usize);
    let p = if bytes > 0 { os::map_readonly(fd, bytes) } else { None };
    os::close(fd);
    // SAFETY: a private read-only mapping of that many bytes, never unmapped. A file that shrinks later would fault:
    // `run` writes rules under a temporary name and renames, and never changes them.
    p.map(|p| unsafe { core::slice::from_raw_parts(p, bytes) })
}

/// Withdraws a file that can't be used.
fn remove(segment: Segment, directory: &Path<256>) {
    let h = segment.header();
    h.magic.store(0, Release);
    if let Some(fd) = os::open_dir(directory.as_c()) {
        os::unlink(fd, file_name(h.pid.load(Relaxed), h.start_boottime_ns.load(Relaxed)).as_c());
        os::close(fd);
    }
}

/// The directory, for fork.
pub fn directory() -> &'static Path<256> {
    let directory = &raw const DIRECTORY;
    // SAFETY: not written after the segment was published.
    unsafe { &*directory }
}

/// What [`prune`] looks at: the first 512 names. The stack that a fork child begins its books on may be too small for it.
pub struct Looked {
    names: [(u64, u32); 512],
    buffer: [u8; 4096],
}

impl Looked {
    const fn new() -> Looked {
        Looked { names: [(0, 0); 512], buffer: [0; 4096] }
    }
}

/// Removes the oldest segments of dead processes beyond what the options say. Nobody is asked for before there are half as
/// many again, so that most starts ask for no process at all. A bounded look: the first 512 names.
///
/// Containers share a directory, each with a process 1 of its own: a PID says nothing. Who lives still maps its file, and
/// holds the lock on it for that long.
pub fn prune(directory: os::Fd, looked: &mut Looked) {
    let retain = RETAIN.load(Relaxed).max(1);
    let Looked { names, buffer } = looked;
    let mut n = 0;
    loop {
        let got = os::directory_entries(directory, buffer);
        if got == 0 {
            break;
        }
        let mut at = 0;
        while at + 19 < got {
            // struct linux_dirent64: inode 8, offset 8, length 2, type 1, name
            let length = u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]) as usize;
            if length < 20 || at + length > got {
                break;
            }
            if let (Some((pid, start)), true) = (parse_name(&buffer[at + 19..at + length]), n < names.len()) {
                names[n] = (start, pid);
                n += 1;
            }
            at += length;
        }
    }
    // One more is about to be made: room for it too.
    if n < retain + retain / 2 {
        return;
    }
    let mut dead = 0;
    for name in &mut names[..n] {
        if is_mapped(directory, *name) {
            *name = (u64::MAX, 0);
        } else {
            dead += 1;
        }
    }
    for _ in 0..(dead + 1usize).saturating_sub(retain) {
        let Some(oldest) = names[..n].iter_mut().min_by_key(|name| name.0) else { return };
        let (start, pid) = core::mem::replace(oldest, (u64::MAX, 0));
        if pid == 0 {
            return;
        }
        os::unlink(directory, file_name(pid, start).as_c());
    }
}

fn file_name(pid: u32, start: u64) -> Path<64> {
    let mut name = Path::<64>::new();
    name.push_number(pid as u64).push(b"-").push_number(start).push(SUFFIX.as_bytes());
    name
}

/// Whether the process of a segment is there. Where the file system has no locks, by its PID. What can't be opened as a
/// segment (a FIFO of this name, in a directory that containers share) is nobody's to remove.
fn is_mapped(directory: os::Fd, (start, pid): (u64, u32)) -> bool {
    let Some(fd) = os::open_at(directory, file_name(pid, start).as_c()) else { return true };
    let locked = os::is_locked(fd);
    os::close(fd);
    locked.unwrap_or_else(|| os::process_exists(pid))
}

/// PID and start of a segment's name.
fn parse_name(entry: &[u8]) -> Option<(u32, u64)> {
    let name = &entry[..entry.iter().position(|&b| b == 0)?];
    let stem = name.strip_suffix(SUFFIX.as_bytes())?;
    let dash = stem.iter().position(|&b| b == b'-')?;
    let decimal = |d: &[u8]| {
        let fits = !d.is_empty() && d.len() < 20 && d.iter().all(u8::is_ascii_digit);
        fits.then(|| d.iter().fold(0u64, |n, c| n.wrapping_mul(10).wrapping_add((c - b'0') as u64)))
    };
    Some((decimal(&stem[..dash])? as u32, decimal(&stem[dash + 1..])?))
}
