//! The walk on this process's own stacks, against libgcc's unwinder. A C library that is compiled here calls a probe
//! along many kinds of paths. The probe walks, and both must find the same return addresses.
//!
//! A naive memo tests the soundness condition of `walk.rs` at the same time: every remembered walk that it accepts must
//! equal a fresh walk.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::process::Command;

use plimsoll_tracker::stack::{Entry, Image, Memory, Read, Rule, Stack, Walk, WalkEnd, Walker, rule_for};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dl_iterate_phdr(each: extern "C" fn(*const PhdrInfo, usize, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn pthread_self() -> usize;
    fn pthread_getattr_np(thread: usize, attributes: *mut [u64; 8]) -> c_int;
    fn pthread_attr_getstack(attributes: *const [u64; 8], base: *mut u64, size: *mut u64) -> c_int;
    fn pthread_attr_destroy(attributes: *mut [u64; 8]) -> c_int;
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> u64;
    fn probe_entry();
}

// The state at a function's first instruction, which a Rust function can't observe about itself.
std::arch::global_asm!(
    ".globl probe_entry",
    ".type probe_entry,@function",
    "probe_entry:",
    ".cfi_startproc",
    "mov rdi, [rsp]",
    "mov rsi, rsp",
    "mov rdx, rbp",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {probe}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size probe_entry, . - probe_entry",
    probe = sym probe,
);

#[repr(C)]
struct PhdrInfo {
    base: u64,
    name: *const c_char,
    headers: *const Phdr,
    count: u16,
}

#[repr(C)]
struct Phdr {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

struct Module {
    code: std::ops::Range<u64>,
    tables: Image<'static>,
    eh_frame_hdr: Option<u64>,
}

extern "C" fn module(info: *const PhdrInfo, _: usize, into: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid record, and `into` is what `Thread::new` handed over.
    let (info, into) = unsafe { (&*info, &mut *into.cast::<Vec<Module>>()) };
    // SAFETY: as many program headers as the record says.
    let headers = unsafe { std::slice::from_raw_parts(info.headers, info.count.into()) };
    let span = |header: &Phdr| info.base + header.address..info.base + header.address + header.memory_size;
    let hdr = headers.iter().find(|h| h.kind == 0x6474_e550).map(|h| span(h).start);
    let loads = || headers.iter().filter(|h| h.kind == 1);
    let Some(segment) = loads().map(span).find(|s| hdr.is_none_or(|hdr| s.contains(&hdr))) else { return 0 };
    // SAFETY: a read-only segment of a library that stays loaded.
    let tables = unsafe { Image::mapped(segment.start, segment.end) };
    let code = loads().filter(|h| h.flags & 1 != 0).map(span);
    into.extend(code.map(|code| Module { code, tables, eh_frame_hdr: hdr }));
    0
}

/// The probe's inputs and results.
struct Thread {
    modules: Vec<Module>,
    stack: std::ops::Range<u64>,
    limit: usize,
    memo: Vec<Remembered>,
    seen: Seen,
    /// How a complete walk ends.
    last: WalkEnd,
    /// libgcc can't unwind code without tables: compare with these outer frames instead.
    outer: Option<Vec<u64>>,
}

struct Remembered {
    limit: usize,
    ra: u64,
    fp: u64,
    walk: Walk,
    frames: Vec<u64>,
    reads: Vec<Read>,
}

#[derive(Default, Debug)]
struct Seen {
    probes: u64,
    frames: u64,
    limited: u64,
    outermost: u64,
    interrupted: u64,
    relative_words: u64,
    on_entry_fp: u64,
    guessed: u64,
    memo_hits: u64,
    memo_refused: u64,
}

thread_local!(static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) });

impl Remembered {
    /// Exactly the condition that `walk.rs` states.
    fn holds(&self, memory: &impl Memory, entry: Entry, high: u64, limit: usize) -> bool {
        let room = high - entry.sp;
        self.limit == limit
            && self.ra == entry.ra
            && (!self.walk.depends_on_entry_fp || self.fp == entry.fp.wrapping_sub(entry.sp))
            && u64::from(self.walk.extent) <= room
            && self.walk.wall.is_none_or(|wall| room < wall.saturating_add(8))
            && self.reads.iter().all(|read| {
                let word = memory.word(entry.sp + u64::from(read.offset)).expect("a word below the extent");
                read.value == if read.relative { word.wrapping_sub(entry.sp) } else { word }
            })
    }
}

impl Thread {
    fn new() -> Self {
        let mut modules = Vec::<Module>::new();
        let mut attributes = [0; 8];
        let (mut base, mut size) = (0, 0);
        // SAFETY: pointers to live locals; the attribute object is larger than glibc's 56 bytes.
        unsafe {
            dl_iterate_phdr(module, (&raw mut modules).cast());
            assert_eq!(pthread_getattr_np(pthread_self(), &raw mut attributes), 0);
            assert_eq!(pthread_attr_getstack(&raw const attributes, &raw mut base, &raw mut size), 0);
            pthread_attr_destroy(&raw mut attributes);
        }
        let seen = Seen::default();
        Self {
            modules,
            stack: base..base + size,
            limit: 64,
            memo: Vec::new(),
            seen,
            last: WalkEnd::Outermost,
            outer: None,
        }
    }

    fn rule(&self, pc: u64) -> Option<Rule> {
        let module = self.modules.iter().find(|module| module.code.contains(&pc))?;
        Some(module.eh_frame_hdr.map_or(Rule::FRAME_POINTER, |hdr| rule_for(module.tables, hdr, pc)))
    }

    fn probe(&mut self, entry: Entry, truth: &[u64]) {
        assert!(self.stack.contains(&entry.sp), "{entry:x?} on {:x?}", self.stack);
        // SAFETY: the bounds are the stack's, as the thread library or its maker says.
        let memory = unsafe { Stack::new(self.stack.start, self.stack.end) };
        let walker = Walker { stack: self.stack.clone(), through_jit: false, records: 0..0 };
        let (mut frames, mut reads) = ([0; 64], [Read::default(); 192]);
        let frames = &mut frames[..self.limit];
        let walk = walker.walk(&memory, |pc| self.rule(pc), entry, frames, &mut reads);
        let (frames, reads) = (&frames[..walk.frames], &reads[..walk.reads]);

        match &self.outer {
            None => {
                let from = truth.iter().position(|&ip| ip == entry.ra).expect("the probe's caller");
                let truth = match walk.end {
                    // libgcc continues at the interrupted instruction.
                    WalkEnd::OtherStack => &truth[from..(from + frames.len()).min(truth.len() - 1)],
                    _ => &truth[from..],
                };
                assert_eq!(frames, &truth[..truth.len().min(self.limit)], "{walk:?}");
                assert_eq!(walk.end, if truth.len() >= self.limit { WalkEnd::Limit } else { self.last });
            }
            Some(outer) => assert!(frames.ends_with(outer), "{walk:?} {frames:x?} {outer:x?}"),
        }

        let seen = &mut self.seen;
        seen.probes += 1;
        seen.frames += frames.len() as u64;
        seen.limited += u64::from(walk.end == WalkEnd::Limit);
        seen.outermost += u64::from(walk.end == WalkEnd::Outermost);
        seen.interrupted += u64::from(walk.interrupted != 0);
        seen.relative_words += reads.iter().filter(|read| read.relative).count() as u64;
        seen.on_entry_fp += u64::from(walk.depends_on_entry_fp);
        seen.guessed += u64::from(walk.guessed);

        let mut known = false;
        for old in &self.memo {
            if old.holds(&memory, entry, self.stack.end, self.limit) {
                assert_eq!((old.walk, &*old.frames, &*old.reads), (walk, frames, reads));
                seen.memo_hits += 1;
                known = true;
            } else if old.ra == entry.ra {
                seen.memo_refused += 1;
            }
        }
        if !known && self.memo.len() < 400 {
            let fp = entry.fp.wrapping_sub(entry.sp);
            self.memo.push(Remembered {
                limit: self.limit,
                ra: entry.ra,
                fp,
                walk,
                frames: frames.to_vec(),
                reads: reads.to_vec(),
            });
        }
    }
}

extern "C-unwind" fn probe(ra: u64, sp: u64, fp: u64) {
    let truth = backtrace();
    THREAD.with_borrow_mut(|thread| thread.as_mut().expect("a probing thread").probe(Entry { ra, sp, fp }, &truth));
}

#[inline(never)]
fn backtrace() -> Vec<u64> {
    extern "C" fn frame(context: *mut c_void, into: *mut c_void) -> c_int {
        // SAFETY: libgcc passes a valid context, and `into` is the vector below.
        unsafe { (*into.cast::<Vec<u64>>()).push(_Unwind_GetIP(context)) };
        0
    }
    let mut ips = Vec::<u64>::with_capacity(256);
    // SAFETY: the callback gets what it expects.
    unsafe { _Unwind_Backtrace(frame, (&raw mut ips).cast()) };
    while ips.last() == Some(&0) {
        ips.pop();
    }
    ips
}

type Run = extern "C-unwind" fn(unsafe extern "C" fn(), u32, c_int);
/// Code that runs on a given stack.
type Switched = extern "C-unwind" fn(*mut u8, usize, c_int);

fn library(name: &str, flags: &[&str]) -> (Run, [Switched; 2]) {
    let directory = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let to = directory.join(format!("{name}-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stack/paths.c");
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-w"])
        .args(flags)
        .args(["-o", to.to_str().expect("a plain path"), source])
        .status();
    assert!(status.expect("gcc").success());
    let path = CString::new(to.to_str().expect("a plain path")).expect("no NUL");
    // SAFETY: a library of ours whose functions have these types; it stays loaded.
    let found = unsafe {
        let handle = dlopen(path.as_ptr(), 2);
        assert!(!handle.is_null(), "dlopen {}", to.display());
        let symbols = [c"run", c"coroutine", c"alternate"].map(|name| dlsym(handle, name.as_ptr()));
        assert!(symbols.iter().all(|symbol| !symbol.is_null()));
        let switched = |symbol| std::mem::transmute::<*mut c_void, Switched>(symbol);
        (std::mem::transmute::<*mut c_void, Run>(symbols[0]), [switched(symbols[1]), switched(symbols[2])])
    };
    std::fs::remove_file(&to).expect("the library just loaded");
    found
}

/// Runs `work` with a fresh probe on a fresh thread's stack; the memo keeps what it has from earlier stacks.
fn on_thread(memo: Vec<Remembered>, work: impl FnOnce() + Send) -> (Vec<Remembered>, Seen) {
    struct Across(Vec<Remembered>);
    let memo = Across(memo);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let Across(memo) = { memo };
            THREAD.set(Some(Thread { memo, ..Thread::new() }));
            work();
            let thread = THREAD.take().expect("set above");
            (thread.memo, thread.seen)
        });
        thread.join().expect("the probing thread")
    })
}

fn with_thread<T>(f: impl FnOnce(&mut Thread) -> T) -> T {
    THREAD.with_borrow_mut(|thread| f(thread.as_mut().expect("a probing thread")))
}

#[test]
fn live_walks_equal_libgccs() {
    for (name, flags) in [
        ("o2", &["-O2", "-fomit-frame-pointer"][..]),
        ("fp", &["-O1", "-fno-omit-frame-pointer"]),
        ("o0", &["-O0"]),
        ("avx", &["-O3", "-fomit-frame-pointer", "-mstackrealign"]),
    ] {
        let (run, _) = library(name, flags);
        let work = move || {
            for n in 0..60 {
                for path in 0..7 {
                    with_thread(|thread| thread.limit = if n % 4 == 0 { 8 } else { 64 });
                    run(probe_entry, path, n);
                }
            }
        };
        let (memo, first) = on_thread(Vec::new(), work);
        // Another thread has other addresses: the first thread's memo must still be right.
        let (_, second) = on_thread(memo, work);
        println!("{name}: {first:?}\n    on another thread: {second:?}");
        assert!(first.probes > 500 && first.limited > 50 && first.outermost > 200 && first.interrupted > 100);
        assert!(first.relative_words > 100, "no frame pointer was needed");
        assert!(first.memo_hits > 200 && first.memo_refused > 1000);
        assert!(second.memo_hits * 10 > second.probes * 9, "the memo is bound to one stack");
    }
}

#[test]
fn coroutines_end_where_their_stack_does() {
    let (run, [coroutine, _]) = library("co", &["-O2", "-fomit-frame-pointer"]);
    let (_, seen) = on_thread(Vec::new(), move || {
        run(probe_entry, 1, 1);
        let mut space = vec![0_u8; 1 << 20];
        for n in 0..200 {
            // Different stacks in the same memory: above the end of one lie the frames of an earlier one.
            let size = (1 << 19) + 16 * (n as usize * 37 % 10);
            let base = space.as_mut_ptr() as u64;
            let before = with_thread(|thread| std::mem::replace(&mut thread.stack, base..base + size as u64));
            // glibc has a coroutine's function return to the first instruction of `__start_context`, and before that
            // no table covers the code: libgcc takes this for the end, too.
            with_thread(|thread| thread.last = WalkEnd::NoRule);
            coroutine(space.as_mut_ptr(), size, n);
            with_thread(|thread| thread.stack = before);
            with_thread(|thread| thread.last = WalkEnd::Outermost);
        }
    });
    println!("{seen:?}");
    assert!(seen.probes == 201 && seen.outermost == 1 && seen.memo_hits > 100 && seen.memo_refused > 100);
}

#[test]
fn a_handler_on_its_own_stack_is_walked_to_the_switch() {
    let (run, [_, alternate]) = library("alt", &["-O2", "-fomit-frame-pointer"]);
    let (_, seen) = on_thread(Vec::new(), move || {
        run(probe_entry, 1, 1);
        let mut space = vec![0_u8; 1 << 19];
        let base = space.as_mut_ptr() as u64;
        for n in 0..50 {
            let before = with_thread(|thread| std::mem::replace(&mut thread.stack, base..base + (1 << 19)));
            with_thread(|thread| thread.last = WalkEnd::OtherStack);
            alternate(space.as_mut_ptr(), space.len(), n);
            with_thread(|thread| thread.stack = before);
        }
    });
    println!("{seen:?}");
    assert!(seen.probes == 51 && seen.outermost == 1 && seen.memo_hits == 49 && seen.frames >= 50 * 3);
}

#[test]
fn code_without_tables_is_crossed_by_its_frame_pointers() {
    let flags = ["-O1", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let (run, _) = library("bare", &flags);
    let (_, seen) = on_thread(Vec::new(), move || {
        for n in 0..40 {
            for path in 0..4 {
                // The pc in this closure's frame differs between the two calls; the outer frames are equal.
                let outer = backtrace().split_off(2);
                with_thread(|thread| thread.outer = Some(outer));
                run(probe_entry, path, n);
            }
        }
    });
    println!("{seen:?}");
    assert!(seen.probes > 200 && seen.outermost == seen.probes && seen.guessed > seen.probes);
}
