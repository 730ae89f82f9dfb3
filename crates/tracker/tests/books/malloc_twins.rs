//! hook/malloc/x86_64/glibc.rs against hook/malloc/portable.rs, and over other allocators hook/malloc/x86_64/other.rs
//! against hook/malloc/slow.rs: the assembly that runs, and the same steps in Rust. hook/malloc/x86_64/operators.rs
//! is compared with the Rust of malloc and free, too.
//!
//! ```text
//! this process ── fork ──▶ assembly ── after each operation: what changed in the books ──▶ ┐
//!              └─ fork ──▶ Rust     ── after each operation: what changed in the books ──▶ ┴ compared, line by line
//! ```
//! Two processes that are forked from one have the same addresses, the same secret and the same random numbers, so the
//! books must agree word by word. Only times are left out. The functions that both versions share (calloc, realloc, the
//! aligned forms) take part, since they write and read the same trailers and rows.
//!
//! Over 800 lines: both pairs are driven by the same random operations, and their books are compared by the same code.

use crate::{Random, alone, segment};
use plimsoll_segment::{
    Allocator, Caller, Category, CategoryKind, FILE_BYTES, Sample, Section, SiteSamples, Thread,
    control as control_word,
};
use plimsoll_tracker::account::blocks::{self, TABLE_FROM};
use plimsoll_tracker::account::memo::entry::{MORE_WORDS, Memo, NO_WORDS, SEVEN_WORDS};
use plimsoll_tracker::account::page_sizes::{LAST, PAGE_SHIFT, PAGES};
use plimsoll_tracker::account::side_table::{self, page_keys};
use plimsoll_tracker::account::thread::{self, StackBounds, ThreadState};
use plimsoll_tracker::account::{classes, control, keys};
use plimsoll_tracker::guard::{Entered, enter};
use plimsoll_tracker::hook::malloc::slow::free_entry;
use plimsoll_tracker::hook::malloc::{self, portable, x86_64};
use plimsoll_tracker::hook::{aligned, c_api, resolve};
use plimsoll_tracker::options::Options;
use plimsoll_tracker::rules;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::segment::{categories, slots, windows};
use plimsoll_tracker::stack::module;
use plimsoll_tracker::sys::cpu::{CURRENT, OWN, tls_get, tls_set};
use plimsoll_tracker::sys::libc::{Call, REAL, USABLE_OF_PROGRAM};
use plimsoll_tracker::sys::os;
use plimsoll_tracker::{entry_straight, entry_with_caller};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::mem::{offset_of, transmute};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard};

entry_straight!(twin_malloc_assembly, portable::malloc);
entry_with_caller!(twin_malloc_rust, 1, portable::malloc);
entry_with_caller!(twin_calloc, 2, malloc::calloc);
entry_with_caller!(twin_realloc, 2, malloc::realloc);
entry_with_caller!(twin_aligned_alloc, 2, aligned::aligned_alloc);

const OPERATIONS: u64 = 20_000;
const THREADS: usize = 3;

/// Which version a process runs.
#[derive(Clone, Copy, PartialEq)]
enum Version {
    Assembly,
    Rust,
    /// operator new and delete in place of malloc and free.
    Operators,
}

/// Addresses of the version's malloc and free.
static MALLOC: AtomicUsize = AtomicUsize::new(0);
static FREE: AtomicUsize = AtomicUsize::new(0);
/// The version's malloc gets no smaller request: operator new makes one byte of none.
static LEAST: AtomicUsize = AtomicUsize::new(0);

/// An operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Malloc,
    Calloc,
    Realloc,
    Aligned,
    Free,
    /// In a signal handler that interrupted a hook: the thread's state is taken.
    MallocNested,
    FreeNested,
    Push,
    Pop,
    End,
}

#[derive(Clone, Copy, Debug)]
struct Todo {
    what: What,
    block: usize,
    bytes: usize,
    /// The functions between the thread's start and the call, two bits each.
    path: u64,
    depth: u32,
}

/// Calls `descend` from a frame whose CFA follows from its frame pointer, which a walk must read too.
#[unsafe(naked)]
unsafe extern "C" fn framed(todo: *const Todo, left: u32) -> usize {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 32",
        "call {on}",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        on = sym descend
    );
}

#[inline(never)]
extern "C" fn left(todo: *const Todo, left: u32) -> usize {
    std::hint::black_box(descend(todo, left))
}

#[inline(never)]
extern "C" fn right(todo: *const Todo, left: u32) -> usize {
    std::hint::black_box(descend(todo, left)) ^ std::hint::black_box(0)
}

#[inline(never)]
extern "C" fn roomy(todo: *const Todo, left: u32) -> usize {
    let room = std::hint::black_box([0u64; 40]);
    descend(todo, left) ^ room[left as usize % 40] as usize
}

#[inline(never)]
extern "C" fn descend(todo: *const Todo, to_go: u32) -> usize {
    // SAFETY: `perform`'s local.
    let path = unsafe { (*todo).path } >> (to_go * 2) & 3;
    match (to_go, path) {
        (0, _) => call(todo),
        (_, 0) => left(todo, to_go - 1),
        (_, 1) => right(todo, to_go - 1),
        (_, 2) => roomy(todo, to_go - 1),
        // SAFETY: as for the others.
        _ => unsafe { framed(todo, to_go - 1) },
    }
}

/// The call itself: from one place for both versions, so that both have the same return addresses.
#[inline(never)]
extern "C" fn call(todo: *const Todo) -> usize {
    // SAFETY: `perform`'s local; the functions have these types; blocks are live, and nobody else's.
    unsafe {
        let Todo { what, block, bytes, .. } = *todo;
        let malloc: extern "C" fn(usize) -> usize = transmute(MALLOC.load(Relaxed));
        let free: extern "C" fn(usize) = transmute(FREE.load(Relaxed));
        match what {
            What::Malloc | What::MallocNested => malloc(bytes.max(LEAST.load(Relaxed))),
            What::Free | What::FreeNested => {
                free(block);
                0
            }
            What::Calloc => two(twin_calloc as *const ())(bytes, 3),
            What::Realloc => two(twin_realloc as *const ())(block, bytes),
            What::Aligned => two(twin_aligned_alloc as *const ())(1 << (block % 9), bytes),
            What::Push => {
                c_api::category_push(bytes as u32);
                0
            }
            What::Pop => {
                c_api::category_pop();
                0
            }
            What::End => 0,
        }
    }
}

unsafe fn two(f: *const ()) -> extern "C" fn(usize, usize) -> usize {
    // SAFETY: the caller's contract: an entry with two integer arguments.
    unsafe { transmute(f) }
}

/// Clears the stack that the call is about to use. The memo's second bucket is found by words where another path's
/// frames had theirs. The frames of this path may leave holes there, so older contents of the stack would decide.
#[inline(never)]
fn clear_stack() {
    std::hint::black_box(&mut [0u8; 64 << 10]);
}

fn perform(todo: Todo) -> usize {
    clear_stack();
    let nested = matches!(todo.what, What::MallocNested | What::FreeNested).then(enter);
    let answer = descend(&raw const todo, todo.depth);
    assert!(nested.is_none_or(|nested| matches!(nested, Entered::Thread(_))), "the state was there to be taken");
    assert_eq!(tls_get::<CURRENT>(), tls_get::<OWN>(), "{todo:?} gives the state back");
    answer
}

/// Hands operations to the other threads, one at a time, and allocates nothing for it.
struct Baton {
    now: Mutex<(usize, Option<Todo>, usize)>,
    moved: Condvar,
}

impl Baton {
    fn run(&self, on: usize, todo: Todo) -> usize {
        if on == 0 {
            return perform(todo);
        }
        *self.now.lock().expect("baton") = (on, Some(todo), 0);
        self.moved.notify_all();
        self.wait_for(0).2
    }

    fn wait_for(&self, me: usize) -> MutexGuard<'_, (usize, Option<Todo>, usize)> {
        self.moved.wait_while(self.now.lock().expect("baton"), |now| now.0 != me).expect("baton")
    }

    fn give_back(&self, answer: usize) {
        *self.now.lock().expect("baton") = (0, None, answer);
        self.moved.notify_all();
    }

    fn serve(&self, me: usize) {
        loop {
            let todo = self.wait_for(me).1.expect("an operation");
            self.give_back(perform(todo));
            if todo.what == What::End {
                return;
            }
        }
    }
}

fn attach(segment: Segment) {
    // SAFETY: an attribute that is initialised by the first call, read by the second, given back by the third.
    let (low, bytes) = unsafe {
        let (mut attr, mut low, mut bytes) = (std::mem::zeroed(), std::ptr::null_mut(), 0);
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attr), 0);
        assert_eq!(libc::pthread_attr_getstack(&attr, &mut low, &mut bytes), 0);
        libc::pthread_attr_destroy(&mut attr);
        (low as usize, bytes)
    };
    let state =
        thread::attach(segment, Some(StackBounds { low, high: low + bytes, guard: 0, kind: 0 })).expect("a slot");
    tls_set::<CURRENT>(state as *mut ThreadState as usize);
}

/// Words of records that both processes have, less the times: section, words of an entry, left out.
fn compared() -> [(Section, usize, Vec<usize>); 7] {
    let threads = (0..16).filter(|i| {
        let kept =
            [offset_of!(Thread, own_bytes), offset_of!(Thread, table_inserts), offset_of!(Thread, table_removes)];
        !kept.contains(&(i * 8))
    });
    [
        (Section::Rows, 8, vec![]),
        (Section::Callers, 16, vec![offset_of!(Caller, first_ns) / 8]),
        (Section::Categories, size_of::<Category>() / 8, vec![offset_of!(Category, peak_ns) / 8]),
        (Section::Frames, 2, vec![]),
        (Section::Samples, 8, vec![offset_of!(Sample, time_ns) / 8]),
        (
            Section::SiteSamples,
            size_of::<SiteSamples>() / 8,
            [offset_of!(SiteSamples, temporary_bytes), offset_of!(SiteSamples, temporary_count_256)]
                .map(|at| at / 8)
                .into(),
        ),
        (Section::Threads, 16, threads.collect()),
    ]
}

/// The books after the last operation.
struct BookChanges {
    segment: Segment,
    of: [(Section, usize, Vec<usize>); 7],
    known: [Vec<u64>; 7],
    header: Vec<u64>,
}

impl BookChanges {
    fn new(segment: Segment) -> BookChanges {
        BookChanges { segment, of: compared(), known: Default::default(), header: vec![] }
    }

    /// Writes what has changed since the last call.
    fn changes(&mut self, text: &mut String) {
        for ((section, size, left_out), known) in self.of.iter().zip(&mut self.known) {
            let words = &self.segment.words(*section)[..self.segment.used(*section) * size];
            // SAFETY: the same words; the other threads wait, and nobody else writes them.
            let words = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u64>(), words.len()) };
            known.resize(words.len().max(known.len()), 0);
            for (at, (now, known)) in words.chunks(64).zip(known.chunks_mut(64)).enumerate() {
                if now == &known[..now.len()] {
                    continue;
                }
                for (i, (now, known)) in now.iter().zip(known).enumerate().map(|(i, both)| (at * 64 + i, both)) {
                    if now != known && !left_out.contains(&(i % size)) {
                        write!(text, " {section:?}[{}].{}={now:x}", i / size, i % size).expect("a string");
                    }
                    *known = *now;
                }
            }
        }
        let h = self.segment.header();
        let figures = [&h.peak_bytes, &h.count_at_peak].map(|n| n.load(Relaxed));
        let live = [&h.live_bytes, &h.live_count].map(|n| n.load(Relaxed) as u64);
        let counters = h.values.iter().map(|n| n.load(Relaxed));
        let header: Vec<u64> = figures.into_iter().chain(live).chain(counters).collect();
        self.header.resize(header.len(), 0);
        for (i, (now, known)) in header.iter().zip(&self.header).enumerate().filter(|(_, (now, known))| now != known) {
            write!(text, " header.{i}={now:x} (+{:x})", now.wrapping_sub(*known)).expect("a string");
        }
        self.header = header;
    }
}

/// A malloc that has no memory left, and one that returns more than was requested.
extern "C" fn refuses(_: usize) -> usize {
    0
}
extern "C" fn gives_more(bytes: usize) -> usize {
    let real: extern "C" fn(usize) -> usize =
        // SAFETY: the real malloc, put there before this function took its place.
        unsafe { transmute(REAL_MALLOC.load(Relaxed)) };
    real(bytes + TABLE_FROM)
}
static REAL_MALLOC: AtomicUsize = AtomicUsize::new(0);

/// A free that first reads the block's key, as far as it is in the array of the page or the trailer's word.
extern "C" fn looks(p: *mut u8) {
    // SAFETY: null or a live block; the real free, put there before this function took its place.
    unsafe {
        if !p.is_null() {
            let key = page_keys::get(p).or_else(|| keys::trailer(p, blocks::usable(p)));
            FREED.store(key.map_or(GONE, |key| key.row as usize), Relaxed);
        }
        let real: extern "C" fn(*mut u8) = transmute(REAL_FREE.load(Relaxed));
        real(p);
    }
}
static REAL_FREE: AtomicUsize = AtomicUsize::new(0);
/// Row in use that the key of the last freed block named; [`GONE`]: none.
static FREED: AtomicUsize = AtomicUsize::new(GONE);
const GONE: usize = usize::MAX;

fn with_malloc<T>(of: extern "C" fn(usize) -> usize, run: impl FnOnce() -> T) -> T {
    let cell = &REAL[Call::malloc as usize];
    let real = cell.swap(of as usize, Relaxed);
    REAL_MALLOC.store(real, Relaxed);
    let answer = run();
    cell.store(real, Relaxed);
    answer
}

/// A segment whose sections are windows, as under a limit on address space.
fn in_windows() -> Segment {
    assert!(os::note_limit(1 << 30));
    let name = std::ffi::CString::new(format!("twin-{}", os::getpid())).expect("a name");
    let directory = std::ffi::CString::new(env!("CARGO_TARGET_TMPDIR")).expect("a path");
    let directory = os::open_dir(&directory).expect("a scratch directory");
    let fd = os::create(directory, &name).expect("a file");
    os::unlink(directory, &name);
    assert!(os::truncate(fd, FILE_BYTES));
    let segment = windows::map(fd).expect("windows");
    os::close(fd);
    os::close(directory);
    segment::begin(segment);
    segment
}

/// Counts of the cases that occurred; both processes must have equal counts.
#[derive(Default, Debug)]
struct Exercised {
    nulls: u64,
    by_others: u64,
    /// Releases of a block whose page has another size noted.
    misled: u64,
    /// Releases that the tracker doesn't see.
    unseen: u64,
    nested: u64,
    sampled: u64,
    in_table: u64,
    in_pages: u64,
    damaged: u64,
    foreign: u64,
    /// Entries of the memos without words, with up to three, with up to seven, with more.
    entries: [u64; 4],
}

impl Exercised {
    /// Counts what this thread remembers.
    fn look_at_memo(&mut self) {
        let state = tls_get::<CURRENT>() as *const ThreadState;
        // SAFETY: this thread's own state, outside every hook; the memo has mask + 1 entries.
        let memo: &[Memo] = unsafe { std::slice::from_raw_parts((*state).own_memo, (*state).memo_mask + 1) };
        for entry in memo.iter().filter(|entry| entry.tag != 0) {
            let class = [NO_WORDS, 0, SEVEN_WORDS, MORE_WORDS].iter().position(|words| entry.sp & 7 == *words);
            self.entries[class.expect("a class")] += 1;
        }
    }
}

/// The allocator below the twins.
#[derive(Clone, Copy)]
struct Below {
    allocator: Allocator,
    /// Functions that replace glibc's: malloc, calloc, realloc, free, aligned_alloc and malloc_usable_size.
    real: Option<[usize; 6]>,
    /// Its nallocx or mi_good_size, or 0.
    size_of: usize,
}

const GLIBC: Below = Below { allocator: Allocator::Glibc, real: None, size_of: 0 };

impl Below {
    /// Loads an allocator beside glibc's. It chooses the addresses of its memory now, before the fork, so that both
    /// twins have them.
    fn load(allocator: Allocator, library: &str) -> Below {
        // By default both return memory to the kernel after some time. Then the twins' heaps would differ.
        for (name, value) in [
            ("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1"),
            ("MIMALLOC_PURGE_DELAY", "-1"),
            ("MIMALLOC_RESET_DELAY", "-1"),
        ] {
            // SAFETY: this process runs this test alone, with one thread.
            unsafe { std::env::set_var(name, value) };
        }
        let library = std::ffi::CString::new(library).expect("a name");
        // SAFETY: a library of Debian's, never closed; the functions have these types.
        let (real, size_of) = unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null(), "{library:?} is installed");
            let real = [c"malloc", c"calloc", c"realloc", c"free", c"aligned_alloc", c"malloc_usable_size"]
                .map(|name| libc::dlsym(handle, name.as_ptr()) as usize);
            let malloc: extern "C" fn(usize) -> usize = transmute(real[0]);
            let free: extern "C" fn(usize) = transmute(real[3]);
            free(malloc(100));
            let size_of = if allocator == Allocator::Mimalloc { c"mi_good_size" } else { c"nallocx" };
            (real, libc::dlsym(handle, size_of.as_ptr()) as usize)
        };
        assert!((size_of != 0 || allocator == Allocator::Musl) && real.iter().all(|f| *f != 0));
        Below { allocator, real: Some(real), size_of }
    }

    /// Makes this allocator the real one.
    fn enter(self) {
        resolve::resolve();
        let calls =
            [Call::malloc, Call::calloc, Call::realloc, Call::free, Call::aligned_alloc, Call::malloc_usable_size];
        for (call, f) in calls.into_iter().zip(self.real.into_iter().flatten()) {
            REAL[call as usize].store(f, Relaxed);
        }
        USABLE_OF_PROGRAM.store(REAL[Call::malloc_usable_size as usize].load(Relaxed), Relaxed);
        blocks::init(self.allocator);
        if self.size_of != 0 {
            // SAFETY: the library's own function; mi_good_size ignores the second argument.
            let size_of: extern "C" fn(usize, i32) -> usize = unsafe { transmute(self.size_of) };
            classes::learn(self.allocator as u32, |request| size_of(request, 0));
            assert!(classes::SIZES[1..].iter().all(|left| left.load(Relaxed) != classes::QUERY));
        }
    }
}

/// One process: the operations in one version, and a line for each.
fn run(below: Below, version: Version, windowed: bool, mut to: File) {
    below.enter();
    REAL_FREE.store(REAL[Call::free as usize].swap(looks as *const () as usize, Relaxed), Relaxed);
    let segment = if windowed { in_windows() } else { segment::fresh() };
    rules::init(None);
    assert!(module::init() && blocks::publish(segment));
    control::start(segment, &Options::default());
    let categories: Vec<u32> = ["zlib", "tables", "text"]
        .map(|name| categories::register(segment, name.as_bytes(), CategoryKind::Program) as u32 + 1)
        .into();
    let malloc = match version {
        Version::Assembly => twin_malloc_assembly as *const (),
        Version::Rust => twin_malloc_rust as *const (),
        Version::Operators => x86_64::operators::operator_new as *const (),
    };
    let free = match (version, below.real, windowed) {
        (Version::Assembly, None, false) => x86_64::free_glibc as *const (),
        (Version::Assembly, None, true) => x86_64::free_glibc_in_windows as *const (),
        (Version::Assembly, Some(_), false) => x86_64::other::free as *const (),
        (Version::Assembly, Some(_), true) => x86_64::other::free_in_windows as *const (),
        (Version::Rust, None, _) => portable::free_glibc as *const (),
        (Version::Rust, Some(_), _) => free_entry as *const (),
        (Version::Operators, _, _) => x86_64::operators::operator_delete as *const (),
    };
    if version == Version::Operators {
        LEAST.store(0, Relaxed);
        malloc::FREE.store(x86_64::free_glibc as *mut (), Relaxed);
        // The new of libstdc++ without a handler would throw; this one returns what its malloc does.
        x86_64::operators::REAL_NEW.store(refuses as *const () as usize, Relaxed);
    }
    MALLOC.store(malloc as usize, Relaxed);
    FREE.store(free as usize, Relaxed);
    let baton = Baton { now: Mutex::new((0, None, 0)), moved: Condvar::new() };
    attach(segment);
    std::thread::scope(|scope| {
        for me in 1..THREADS {
            // Threads run one at a time, while this thread waits, so that slots and heap are equal in both processes.
            *baton.now.lock().expect("baton") = (me, None, 0);
            let baton = &baton;
            scope.spawn(move || {
                attach(segment);
                baton.give_back(0);
                baton.serve(me);
            });
            drop(baton.wait_for(0));
        }
        let (books, random) = (BookChanges::new(segment), Random(0x7e57_ab1e));
        let operations = Operations::new(below, segment, &baton, &categories, random);
        let exercised = operations.run(books, &mut to);
        writeln!(to, "exercised {exercised:?}").expect("the pipe");
    });
}

/// The random operations of one process: both versions draw the same ones.
struct Operations<'r> {
    below: Below,
    segment: Segment,
    baton: &'r Baton,
    categories: &'r [u32],
    random: Random,
    exercised: Exercised,
    /// Blocks and their threads.
    live: Vec<(usize, usize)>,
    /// Paths and their depths. Apart from new ones there are a few dozen, so that most are remembered.
    paths: Vec<(u64, u32)>,
}

/// The parts of an operation's result that are compared, besides the books.
struct Done {
    todo: Todo,
    note: &'static str,
    /// The block that an allocation returned.
    block: Option<usize>,
}

impl Operations<'_> {
    fn new<'r>(
        below: Below,
        segment: Segment,
        baton: &'r Baton,
        categories: &'r [u32],
        mut random: Random,
    ) -> Operations<'r> {
        let live = Vec::with_capacity(4096);
        let paths = (0..24).map(|_| (random.next(), 2 + random.below(12) as u32)).collect();
        Operations { below, segment, baton, categories, random, exercised: Exercised::default(), live, paths }
    }

    /// Runs all operations, and writes a line for each.
    fn run(mut self, mut books: BookChanges, to: &mut File) -> Exercised {
        let mut text = String::with_capacity(1 << 20);
        for step in 0..OPERATIONS {
            text.clear();
            let on = self.random.below(THREADS as u64) as usize;
            let todo = self.any_malloc();
            let Done { todo, note, block } = self.any_operation(on, todo);
            let freed = FREED.swap(GONE, Relaxed);
            write!(text, "{step} {note} thread {on} {todo:?}:").expect("a string");
            if freed != GONE {
                write!(text, " freed with row {freed}").expect("a string");
            }
            if let Some(block) = block {
                self.write_new_block(block, on, &mut text);
            }
            books.changes(&mut text);
            writeln!(to, "{text}").expect("the pipe");
        }
        self.exercised.look_at_memo();
        for me in 1..THREADS {
            let end = Todo { what: What::End, block: 0, bytes: 0, path: 0, depth: 0 };
            self.baton.run(me, end);
        }
        self.exercised
    }

    /// A malloc of a random size on a random path.
    fn any_malloc(&mut self) -> Todo {
        let Self { random, paths, .. } = self;
        if random.below(60) == 0 {
            let at = random.below(paths.len() as u64) as usize;
            paths[at] = (random.next(), 2 + random.below(12) as u32);
        }
        let (path, depth) = paths[random.below(paths.len() as u64) as usize];
        let bytes = match random.below(12) {
            0 => [0, 1, 24, 25, 8, 40, 1032, 65_471, 65_472, 65_473, 65_536][random.below(11) as usize],
            1 => random.below(400_000) as usize,
            2 => TABLE_FROM - 128 + random.below(256) as usize,
            magnitude => random.below(16 << (magnitude % 9)) as usize,
        };
        Todo { what: What::Malloc, block: 0, bytes, path, depth }
    }

    /// One operation of a random kind, with the size and the path of `todo`.
    fn any_operation(&mut self, on: usize, todo: Todo) -> Done {
        let has_blocks = !self.live.is_empty();
        let is_over_glibc = self.below.real.is_none();
        match self.random.below(1000) {
            421..=779 if has_blocks => self.free(on, todo),
            780..=819 => self.allocate(on, Todo { what: What::Calloc, ..todo }, ""),
            820..=879 => self.realloc(on, todo),
            880..=899 => {
                let shift = self.random.below(9) as usize;
                self.allocate(on, Todo { what: What::Aligned, block: shift, ..todo }, "")
            }
            900..=919 => {
                self.exercised.nested += 1;
                self.allocate(on, Todo { what: What::MallocNested, ..todo }, "")
            }
            920..=934 if has_blocks => {
                let (block, _) = self.take_block();
                self.exercised.nested += 1;
                self.release(on, Todo { what: What::FreeNested, block, ..todo }, "")
            }
            935..=949 => self.push_or_pop(on, todo),
            950..=954 => self.release(on, Todo { what: What::Free, block: 0, ..todo }, ""),
            955..=964 => with_malloc(refuses, || self.allocate(on, todo, "refused")),
            // Only over glibc: `account/classes` relies on what another allocator has reported for a request.
            965..=974 if is_over_glibc => with_malloc(gives_more, || self.allocate(on, todo, "more")),
            975..=989 if has_blocks => self.free_with_another_key(on, todo),
            990..=991 => {
                slots::forget_stacks(self.segment);
                Done { todo, note: "code map", block: None }
            }
            992..=994 => self.change_mode(todo),
            // Only over glibc: over others the assembly of free may be misled by it (`page_sizes` names the case).
            995..=999 if has_blocks && is_over_glibc => self.free_unseen(todo),
            _ => self.allocate(on, todo, ""),
        }
    }

    fn allocate(&mut self, on: usize, todo: Todo, note: &'static str) -> Done {
        Done { todo, note, block: Some(self.baton.run(on, todo)) }
    }

    fn release(&mut self, on: usize, todo: Todo, note: &'static str) -> Done {
        self.baton.run(on, todo);
        Done { todo, note, block: None }
    }

    /// Takes a random live block and its thread out of the list.
    fn take_block(&mut self) -> (usize, usize) {
        self.live.swap_remove(self.random.below(self.live.len() as u64) as usize)
    }

    /// Frees a block, mostly by the thread that allocated it. Sometimes another size is noted for the page.
    fn free(&mut self, on: usize, todo: Todo) -> Done {
        let (block, by) = self.take_block();
        let Self { random, exercised, .. } = self;
        let on = if random.below(4) == 0 { on } else { by };
        exercised.by_others += u64::from(on != by);
        if random.below(3) == 0 {
            let any = [0, random.below(512) * 8, random.below(4096), random.below(1 << 16)];
            let guess = any[random.below(4) as usize] as u16;
            LAST[(block >> PAGE_SHIFT) % PAGES].store(guess, Relaxed);
            // SAFETY: a live block.
            exercised.misled += u64::from(unsafe { blocks::usable(block as *mut u8) } != usize::from(guess) + 8);
        }
        self.release(on, Todo { what: What::Free, block, ..todo }, "")
    }

    /// Reallocates a block, also a null pointer, and also to 0 bytes.
    fn realloc(&mut self, on: usize, todo: Todo) -> Done {
        let is_of_null = self.random.below(5) == 0 || self.live.is_empty();
        let block = if is_of_null { 0 } else { self.take_block().0 };
        let bytes = if self.random.below(10) == 0 { 0 } else { todo.bytes };
        self.allocate(on, Todo { what: What::Realloc, block, bytes, ..todo }, "")
    }

    fn push_or_pop(&mut self, on: usize, todo: Todo) -> Done {
        let bytes = self.categories[self.random.below(3) as usize] as usize;
        let what = if self.random.below(2) == 0 { What::Push } else { What::Pop };
        self.release(on, Todo { what, bytes, ..todo }, "")
    }

    /// Frees a block whose trailer, if it has one, was damaged or replaced.
    fn free_with_another_key(&mut self, on: usize, todo: Todo) -> Done {
        let (block, _) = self.take_block();
        let p = block as *mut u8;
        let Self { random, exercised, .. } = self;
        let mut note = "";
        // SAFETY: a live block of this many usable bytes; what lies behind the requested ones is the tracker's.
        unsafe {
            let usable = blocks::usable(p);
            let has_trailer = usable < TABLE_FROM && page_keys::get(p).is_none();
            if let (Some(key), true) = (blocks::read_trailer(p, usable), has_trailer) {
                if random.below(2) == 0 {
                    note = "damaged";
                    exercised.damaged += 1;
                    *p.add(usable - 8) ^= 1 << random.below(8);
                } else {
                    // An unused row, a row beyond the window, or another block's row.
                    let row = [3, self.segment.used(Section::Rows) as u32 + 1, (1 << 20) - 1, 1, 5];
                    note = "foreign";
                    exercised.foreign += 1;
                    let row = row[random.below(5) as usize];
                    blocks::write_trailer(p, usable, blocks::row_key(row), key.requested as usize);
                }
            }
        }
        self.release(on, Todo { what: What::Free, block, ..todo }, note)
    }

    fn change_mode(&mut self, todo: Todo) -> Done {
        self.exercised.look_at_memo();
        let mode = self.random.below(3) as u32;
        let mean = [1000, 5000, 20_000][self.random.below(3) as usize];
        self.segment.header().control.store(control_word(mode, mean), Relaxed);
        Done { todo, note: "mode", block: None }
    }

    /// Frees a block by a function that isn't hooked: the key stays in the block's memory until another block gets that
    /// memory.
    fn free_unseen(&mut self, todo: Todo) -> Done {
        self.exercised.unseen += 1;
        let (block, _) = self.take_block();
        // SAFETY: a live block; the real free.
        unsafe { transmute::<usize, extern "C" fn(usize)>(REAL_FREE.load(Relaxed))(block) };
        Done { todo, note: "unseen", block: None }
    }

    /// Writes the address of a new block, and its key.
    fn write_new_block(&mut self, p: usize, on: usize, text: &mut String) {
        let Self { exercised, live, .. } = self;
        let block = p as *mut u8;
        if p == 0 {
            exercised.nulls += 1;
            *text += " null";
            return;
        }
        live.push((p, on));
        // SAFETY: a live block.
        let (usable, trailer) = unsafe {
            let usable = blocks::usable(block);
            (usable, keys::trailer(block, usable))
        };
        let in_page = page_keys::get(block);
        let trailer = if in_page.is_none() { trailer } else { None };
        let in_table = if in_page.or(trailer).is_none() { side_table::get(block, usable) } else { None };
        let bytes = if trailer.is_some() { usable - blocks::TRAILER } else { usable };
        // SAFETY: a live block.
        assert_eq!(unsafe { malloc::malloc_usable_size(block) }, bytes, "{text}");
        exercised.in_table += u64::from(in_table.is_some());
        exercised.in_pages += u64::from(in_page.is_some());
        exercised.sampled += u64::from(in_page.or(trailer).or(in_table).is_some_and(|key| key.sampled));
        write!(text, " at {p:x}, usable {usable}, {in_page:?} {trailer:?} {in_table:?}").expect("a string");
    }
}

fn pipe() -> [File; 2] {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both were just made, and are nobody else's.
    ends.map(|end| unsafe { File::from(OwnedFd::from_raw_fd(end)) })
}

/// Starts both versions, each in a process of its own. Returns their ids and their output.
fn begin(below: Below, versions: [Version; 2], windowed: bool) -> [(i32, BufReader<File>); 2] {
    // Nothing is allocated between the forks, so both processes start with equal heaps.
    let mut pipes = [Some(pipe()), Some(pipe())];
    let pids = [0, 1].map(|i: usize| {
        // SAFETY: the child runs the rest of this closure on a copy of this thread, and ends without returning.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            let own = pipes[i].take();
            pipes = [None, None];
            let [from, to] = own.expect("the pipe of this version");
            drop(from);
            // SAFETY: ends the child, whose copies of others' buffers nobody should write.
            let end = |status| unsafe { libc::_exit(status) };
            // A panic ends the process at once: its other threads would wait for their turn for ever.
            let print = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                print(panic);
                end(1)
            }));
            run(below, versions[i], windowed, to);
            end(0);
        }
        pid
    });
    let mut from = pipes.into_iter().flatten().map(|[from, _]| BufReader::new(from));
    pids.map(|pid| (pid, from.next().expect("two pipes")))
}

fn compare(below: Below, windowed: bool) {
    compare_with_rust(Version::Assembly, below, windowed);
}

fn compare_with_rust(version: Version, below: Below, windowed: bool) {
    LEAST.store(usize::from(version == Version::Operators), Relaxed);
    // Chosen before the fork: both processes have one secret, and so one sequence of samples.
    blocks::renew_secret();
    let mut twins = begin(below, [version, Version::Rust], windowed);
    let (mut lines, mut last) = ([String::new(), String::new()], String::new());
    loop {
        for ((_, from), line) in twins.iter_mut().zip(&mut lines) {
            line.clear();
            from.read_line(line).expect("the pipe");
        }
        if lines[0] != lines[1] {
            // SAFETY: our own children, not yet waited for.
            twins.iter().for_each(|(pid, _)| unsafe { assert_eq!(libc::kill(*pid, libc::SIGKILL), 0) });
            panic!("assembly: {}\nRust:     {}\nafter     {last}", lines[0], lines[1]);
        }
        if lines[0].is_empty() {
            break;
        }
        std::mem::swap(&mut last, &mut lines[0]);
    }
    for (pid, _) in twins {
        let mut status = 0;
        // SAFETY: our own child; writes the local.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "a twin failed");
    }
    println!("{OPERATIONS} operations, {}", last.trim());
    let last = if below.real.is_some() { last.replace("unseen: 0", "") } else { last };
    let in_pages = matches!(below.allocator, Allocator::Jemalloc | Allocator::Tcmalloc);
    let last = if in_pages { last } else { last.replace("in_pages: 0", "") };
    let has_trailers = below.allocator != Allocator::Musl;
    let last = if has_trailers { last } else { last.replace("damaged: 0", "").replace("foreign: 0", "") };
    let numbers: Vec<u64> = last.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(last.starts_with("exercised") && numbers.iter().all(|n| *n > 0), "each kind was met: {last}");
}

#[test]
fn assembly_and_rust_keep_the_same_books() {
    alone(|| compare(GLIBC, false));
}

/// operator new and delete of libstdc++, which take the same steps as malloc and free.
#[test]
fn operators_and_rust_keep_the_same_books() {
    alone(|| compare_with_rust(Version::Operators, GLIBC, false));
}

/// Under a limit on address space, where the assembly of free differs.
#[test]
fn assembly_and_rust_keep_the_same_books_in_windows() {
    alone(|| compare(GLIBC, true));
}

#[test]
fn assembly_and_rust_keep_the_same_books_over_jemalloc() {
    alone(|| compare(Below::load(Allocator::Jemalloc, "libjemalloc.so.2"), false));
}

/// Over tcmalloc, and in windows.
#[test]
fn assembly_and_rust_keep_the_same_books_over_tcmalloc() {
    alone(|| compare(Below::load(Allocator::Tcmalloc, "libtcmalloc_minimal.so.4"), true));
}

/// Over mimalloc, whose requests are enlarged.
#[test]
fn assembly_and_rust_keep_the_same_books_over_mimalloc() {
    alone(|| compare(Below::load(Allocator::Mimalloc, "libmimalloc.so.2"), false));
}

/// Over an allocator that rounds, without trailers, as musl's old malloc. glibc's takes its part.
#[test]
fn assembly_and_rust_keep_the_same_books_without_trailers() {
    alone(|| compare(Below::load(Allocator::Musl, "libc.so.6"), false));
}
