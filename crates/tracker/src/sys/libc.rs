//! The real functions below the hooks, and the few other functions of libc that the tracker calls. [`super::elf`] finds
//! all of them at run time: importing a symbol that is new in glibc 2.34 would keep the tracker from loading on older
//! systems.

use super::cpu::weak_address;
use super::elf;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

macro_rules! reals {
    ($(($name:ident, $kind:ident, $n:literal, $target:path))*) => {
        /// Index of a hooked call.
        #[allow(non_camel_case_types, missing_docs, reason = "the names are those of libc's functions")]
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Call { $($name,)* }
        const NAMES: &[&CStr] = &[$(
            // SAFETY: the literal ends with its one NUL.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
        )*];
    };
}
crate::hooked_calls!(reals);

/// Addresses of the real functions, by [`Call`].
pub static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// Other functions of libc.
#[derive(Clone, Copy)]
#[repr(usize)]
#[allow(missing_docs, reason = "the names are those of libc's functions")]
pub enum Other {
    KeyCreate,
    SetSpecific,
    RegisterAtfork,
    RegisterAtforkOfMusl,
    ClockGettime,
    AttrGetstack,
    AttrGetguardsize,
    AttrOfThread,
    OwnThread,
    FindObject,
    Sigaction,
    IterateObjects,
}
const OTHERS: &[&CStr] = &[
    c"pthread_key_create",
    c"pthread_setspecific",
    c"__register_atfork",
    c"pthread_atfork",
    c"clock_gettime",
    c"pthread_attr_getstack",
    c"pthread_attr_getguardsize",
    c"pthread_getattr_np",
    c"pthread_self",
    c"_dl_find_object",
    c"sigaction",
    c"dl_iterate_phdr",
];
static OTHER: [AtomicUsize; OTHERS.len()] = [const { AtomicUsize::new(0) }; OTHERS.len()];

macro_rules! operators {
    ($(($name:ident, $kind:ident))*) => {
        const OPERATORS: &[&CStr] = &[$(
            // SAFETY: the literal ends with its one NUL.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
        )*];
    };
}
crate::hooked_operators!(operators);
/// What is known about each real operator, see [`operator`]. Also read by the entries of the operators. A word without
/// marks may also be the function that takes the operator's place ([`set_operator`]).
pub static OPERATOR: [AtomicUsize; OPERATORS.len()] = [const { AtomicUsize::new(0) }; OPERATORS.len()];
/// Address range of the object that has the real malloc, if it isn't libc.
pub static ALLOCATOR: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

macro_rules! call {
    ($addr:expr, ($($t:ty),*) -> $r:ty, $($a:expr),*) => {{
        let f: unsafe extern "C" fn($($t),*) -> $r = core::mem::transmute::<usize, _>($addr);
        f($($a),*)
    }};
}

/// The real operator with this number, and whether it belongs to the allocator itself.
///
/// libstdc++ may be loaded late (a C++ plugin of a C program), so an unknown operator is looked up again, in a list
/// that other threads may be changing. dlclose can unload what dlopen loaded. So such a result is used only while the
/// code map's generation is unchanged and the loader still has the object.
pub fn operator(i: usize, generation: u32) -> (usize, bool) {
    let known = OPERATOR[i].load(Relaxed);
    let age = (generation as usize & (LATE_BIT - 1)) << ADDRESS_BITS;
    let address = known & ((1 << ADDRESS_BITS) - 1);
    let stays = known & LATE == 0;
    let there = || other(Other::FindObject) == 0 || find_object(address).is_some();
    if known != 0 && (stays || (known & AGE == age && there())) {
        return (address, known & OWN != 0);
    }
    let mut behind = elf::is_late();
    let found =
        elf::objects_checked_after(AT_START.load(Relaxed), super::os::readable).enumerate().find_map(|(n, o)| {
            if o.is_self() {
                behind = true;
                return None;
            }
            if behind { o.symbol(OPERATORS[i]).map(|a| (n, a)) } else { None }
        });
    match found {
        Some((n, a)) => {
            let own = is_allocator(a);
            let late = if n < AT_START.load(Relaxed) { 0 } else { LATE | age };
            let word = a | late | if own { OWN } else { 0 };
            // What `set_operator` has stored meanwhile stays.
            let _ = OPERATOR[i].compare_exchange(known, word, Relaxed, Relaxed);
            (a, own)
        }
        // No object defines it, so no caller can have been linked to it. malloc and free are the closest functions.
        None => (real(if i < OPERATORS_NEW { Call::malloc } else { Call::free }), false),
    }
}

/// From now on the entry of this operator jumps to `to`, which does the same as the real operator.
pub fn set_operator(name: &CStr, to: usize) {
    if let Some(i) = OPERATORS.iter().position(|n| *n == name) {
        OPERATOR[i].store(to, Release);
    }
}

/// Marks an operator that belongs to the allocator. A word: own 1 │ late 1 │ generation's low bits 14 │ address 48. The
/// entries themselves jump to an operator without a mark.
const OWN: usize = 1 << 63;
/// Marks an operator of an object that was loaded after the start.
const LATE: usize = 1 << 62;
/// Bits of the address in a word of [`OPERATOR`].
pub const ADDRESS_BITS: u32 = 48;
const LATE_BIT: usize = LATE >> ADDRESS_BITS;
const AGE: usize = (LATE_BIT - 1) << ADDRESS_BITS;
/// Objects that the program started with: the first in the loader's list, never unloaded.
static AT_START: AtomicUsize = AtomicUsize::new(0);

/// See [`AT_START`].
pub fn at_start() -> usize {
    AT_START.load(Relaxed)
}

/// The first operators in the list are those that allocate (new).
const OPERATORS_NEW: usize = 8;

/// Notes the part of musl that is its malloc: calls from there (calloc's of malloc) aren't the program's. All of
/// src/malloc lies together, without other parts of libc between, because musl's Makefile sorts its files. False: this
/// musl was built in another way, or fails where a malloc lies in front of its own.
pub fn set_allocator_of_musl(o: elf::Object) -> bool {
    const FUNCTIONS: [&CStr; 6] =
        [c"calloc", c"aligned_alloc", c"malloc_usable_size", c"posix_memalign", c"memalign", c"reallocarray"];
    const MOST: usize = 16 << 10;
    // Before 1.2.2, the version that brought this function, memalign, aligned_alloc and posix_memalign fail with ENOMEM
    // where a malloc lies in front of libc's (`__malloc_replaced`, src/malloc/memalign.c of 1.1.24).
    if o.symbol(c"reallocarray").is_none() {
        return false;
    }
    let ranges = || FUNCTIONS.iter().filter_map(|name| o.symbol_and_bytes(name));
    let start = ranges().map(|(at, _)| at).min().unwrap_or(0);
    let end = ranges().map(|(at, bytes)| at + bytes).max().unwrap_or(0);
    if start == 0 || end - start > MOST {
        return false;
    }
    ALLOCATOR[0].store(start, Relaxed);
    ALLOCATOR[1].store(end, Relaxed);
    // memalign jumps there, so its caller's return address would be in this library.
    REAL[Call::memalign as usize].store(real(Call::aligned_alloc), Relaxed);
    true
}

/// Notes that the real malloc is this object's and not libc's.
pub fn set_allocator(o: elf::Object) {
    if let Some((start, end, _)) = o.extent(|_| true) {
        ALLOCATOR[0].store(start, Relaxed);
        ALLOCATOR[1].store(end, Relaxed);
    }
    NALLOCX.store(o.symbol(c"nallocx").unwrap_or(0), Relaxed);
    for (cell, name) in MIMALLOC.iter().zip([c"mi_good_size", c"mi_version"]) {
        cell.store(o.symbol(name).unwrap_or(0), Relaxed);
    }
}

/// The allocator's `nallocx(size_t, int)`, if it has one (jemalloc(3); gperftools has it too).
static NALLOCX: AtomicUsize = AtomicUsize::new(0);
/// mimalloc's `mi_good_size(size_t)` and `mi_version(void)`.
static MIMALLOC: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// mimalloc's version, 209 for 2.0.9; 0 if it isn't known.
pub fn mimalloc_version() -> c_int {
    match MIMALLOC[1].load(Relaxed) {
        0 => 0,
        // SAFETY: the allocator's own function, which stays loaded and returns a constant.
        f => unsafe { call!(f, () -> c_int,) },
    }
}

/// The usable bytes that an allocator other than libc's would give for a request. Allocates nothing. 0: it can't report
/// that.
///
/// # Safety
/// Not called from inside the allocator, whose locks the function may take.
pub unsafe fn size_of_request(request: usize) -> usize {
    match (NALLOCX.load(Relaxed), MIMALLOC[0].load(Relaxed)) {
        (0, 0) => 0,
        // SAFETY: as below.
        (0, f) => unsafe { call!(f, (usize) -> usize, request) },
        (f, _) => {
            // SAFETY: the allocator's own function, which stays loaded; this is its type.
            let f: unsafe extern "C" fn(usize, c_int) -> usize = unsafe { core::mem::transmute(f) };
            // SAFETY: the caller's contract. No flag is set.
            unsafe { f(request, 0) }
        }
    }
}

/// The malloc_usable_size that the program would call without the tracker.
pub static USABLE_OF_PROGRAM: AtomicUsize = AtomicUsize::new(0);

/// malloc_usable_size for the program's own call.
///
/// # Safety
/// As malloc_usable_size(3).
#[inline(always)]
pub unsafe fn usable_of_program(p: *mut u8) -> usize {
    // SAFETY: resolved, and the caller's contract.
    unsafe { call!(USABLE_OF_PROGRAM.load(Relaxed), (*mut u8) -> usize, p) }
}

/// From now on [`calls::malloc_usable_size`] returns 0. The allocator has no such function, and another object's
/// function would take the bytes in front of the allocator's blocks for a chunk's header.
pub fn sizes_are_unknown() {
    unsafe extern "C" fn unknown(_: *mut u8) -> usize {
        0
    }
    REAL[Call::malloc_usable_size as usize].store(unknown as *const () as usize, Relaxed);
}

/// realloc and free of a program with an allocator of its own, which stands before the tracker: libc's functions call
/// them too. 0: references to them lead to the tracker.
static BEFORE_OURS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The program's own realloc, if there is one.
pub fn own_realloc() -> Option<unsafe extern "C" fn(*mut u8, usize) -> *mut u8> {
    let f = BEFORE_OURS[0].load(Relaxed);
    // SAFETY: the function that the loader binds references to realloc to; objects before ours are never unloaded.
    (f != 0).then(|| unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(*mut u8, usize) -> *mut u8>(f) })
}

/// The program's own free, if there is one.
pub fn own_free() -> Option<unsafe extern "C" fn(*mut u8)> {
    let f = BEFORE_OURS[1].load(Relaxed);
    // SAFETY: as above.
    (f != 0).then(|| unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(*mut u8)>(f) })
}

/// Whether an address is code of an allocator other than libc's.
#[inline(always)]
pub fn is_allocator(address: usize) -> bool {
    (ALLOCATOR[0].load(Relaxed)..ALLOCATOR[1].load(Relaxed)).contains(&address)
}

/// Whether the real function lies in another object than the real malloc. The allocator lacks it, so libc's own serves
/// the call, and the allocator's functions must not be given the block.
#[inline(always)]
pub fn is_foreign(call: Call) -> bool {
    ALLOCATOR[1].load(Relaxed) != 0 && !is_allocator(real(call))
}

/// Finds all functions. Called while the process has one thread, or late and without a lock: then it searches only
/// objects that are never unloaded. A second call is harmless.
pub fn resolve() {
    AT_START.store(elf::startup_count(), Relaxed);
    for (slot, name) in REAL.iter().zip(NAMES) {
        slot.store(elf::next_symbol(name).unwrap_or(0), Relaxed);
    }
    // musl from 1.2.4 on has the first names only; its loader gives them to programs that ask for the second ones.
    for (plain, wide) in
        [(Call::mmap, Call::mmap64), (Call::setrlimit, Call::setrlimit64), (Call::prlimit, Call::prlimit64)]
    {
        if real(wide) == 0 {
            REAL[wide as usize].store(real(plain), Relaxed);
        }
    }
    for (slot, name) in OTHER.iter().zip(OTHERS) {
        slot.store(elf::next_symbol(name).unwrap_or(0), Relaxed);
    }
    let lacking = LATER.iter().enumerate().filter(|(_, call)| real(**call) == 0);
    LACKING.store(lacking.fold(0usize, |bits, (bit, _)| bits | (1usize << bit)), Relaxed);
    USABLE_OF_PROGRAM.store(real(Call::malloc_usable_size), Relaxed);
    for (cell, name) in BEFORE_OURS.iter().zip([c"realloc", c"free"]).filter(|_| !elf::is_late()) {
        let before = elf::objects().take_while(|o| !o.is_self());
        cell.store(before.filter_map(|o| o.symbol(name)).next().unwrap_or(0), Relaxed);
    }
}

/// Calls that a library of glibc may bring later: before 2.34, pthread_create is libpthread's and the others are
/// libdl's, and a program that is linked with neither may load an object that is.
const LATER: [Call; 6] = [Call::pthread_create, Call::dlopen, Call::dlmopen, Call::dlclose, Call::dlsym, Call::dlvsym];
/// A bit for each call of [`LATER`] that the process lacked at its start.
static LACKING: AtomicUsize = AtomicUsize::new(0);

/// Whether an object that is loaded later may bring the hooked call with this number.
pub fn may_come(i: usize) -> bool {
    is_glibc() && LATER.iter().any(|&call| call as usize == i)
}

/// The real function of a call of [`LATER`], looked up again if the process lacked it at its start. 0: it still does.
/// An earlier result isn't reused, because libdl may have been unloaded.
pub fn real_or_later(call: Call) -> usize {
    let is_lacking = |bit: usize| LACKING.load(Relaxed) & (1 << bit) != 0;
    if !LATER.iter().position(|&later| later == call).is_some_and(is_lacking) {
        return real(call);
    }
    let found = find_later(NAMES[call as usize]);
    REAL[call as usize].store(found, Relaxed);
    found
}

/// Looks up again the other functions that the process lacked at its start.
pub fn find_others_again() {
    for (slot, name) in OTHER.iter().zip(OTHERS).filter(|(slot, _)| slot.load(Relaxed) == 0) {
        slot.store(find_later(name), Relaxed);
    }
}

/// As [`elf::next_symbol`], in a list that other threads may be changing. 0: no object defines it.
fn find_later(name: &CStr) -> usize {
    let mut is_behind = elf::is_late();
    let mut objects = elf::objects_checked_after(AT_START.load(Relaxed), super::os::readable);
    let found = objects.find_map(|o| {
        if o.is_self() {
            is_behind = true;
            return None;
        }
        if is_behind { o.symbol(name) } else { None }
    });
    found.unwrap_or(0)
}

/// Address of the real function; 0 if the system has none.
#[inline(always)]
pub fn real(call: Call) -> usize {
    REAL[call as usize].load(Relaxed)
}

/// Address of another function; 0 if the system has none.
pub fn other(f: Other) -> usize {
    OTHER[f as usize].load(Relaxed)
}

/// The hooked call with this name.
pub fn hooked(name: &CStr) -> Option<usize> {
    NAMES.iter().position(|n| *n == name)
}

/// Address of the real function by number.
pub fn real_by_number(n: usize) -> usize {
    REAL[n].load(Relaxed)
}

/// Calls of the real functions. All are unsafe, because the arguments come from the program.
#[allow(missing_docs, clippy::missing_safety_doc, reason = "each is libc's function of that name")]
pub mod calls {
    use super::*;
    macro_rules! wrappers {
        ($($name:ident($($a:ident: $t:ty),*) -> $r:ty;)*) => {$(
            #[inline(always)]
            pub unsafe fn $name($($a: $t),*) -> $r {
                // SAFETY: a hook calls `hook::resolve` before its real part; the signature is libc's.
                unsafe { call!(real(Call::$name), ($($t),*) -> $r, $($a),*) }
            }
        )*};
    }
    type P = *mut u8;
    type Strings = *const *const c_char;
    wrappers! {
        malloc(n: usize) -> P;
        calloc(n: usize, size: usize) -> P;
        realloc(p: P, n: usize) -> P;
        free(p: P) -> ();
        posix_memalign(out: *mut P, align: usize, n: usize) -> c_int;
        aligned_alloc(align: usize, n: usize) -> P;
        memalign(align: usize, n: usize) -> P;
        valloc(n: usize) -> P;
        pvalloc(n: usize) -> P;
        malloc_usable_size(p: P) -> usize;
        mmap(a: usize, n: usize, prot: c_int, flags: c_int, fd: c_int, off: i64) -> usize;
        munmap(a: usize, n: usize) -> c_int;
        mremap(a: usize, old: usize, new: usize, flags: c_int, to: usize) -> usize;
        mprotect(a: usize, n: usize, prot: c_int) -> c_int;
        pkey_mprotect(a: usize, n: usize, prot: c_int, key: c_int) -> c_int;
        madvise(a: usize, n: usize, advice: c_int) -> c_int;
        mlockall(flags: c_int) -> c_int;
        brk(a: usize) -> c_int;
        sbrk(n: isize) -> usize;
        shmat(id: c_int, a: usize, flags: c_int) -> usize;
        shmdt(a: usize) -> c_int;
        pthread_create(t: *mut c_void, attr: *const c_void, f: *const c_void, arg: *mut c_void) -> c_int;
        execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int;
        execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int;
        fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int;
        execveat(dir: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int;
        posix_spawn(
            pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Strings,
            environment: Strings
        ) -> c_int;
        posix_spawnp(
            pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Strings,
            environment: Strings
        ) -> c_int;
        dlsym(h: *mut c_void, name: *const c_char) -> *mut c_void;
        dlvsym(h: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    }

    /// The system call with this number, by libc's syscall(2).
    #[inline(always)]
    pub unsafe fn by_number(n: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
        type A = usize;
        // SAFETY: as above; syscall(2) takes as many words as the kernel.
        unsafe { call!(real(Call::syscall), (A, A, A, A, A, A, A) -> A, n, a, b, c, d, e, f) }
    }
}

/// Whether the process has a C library that the tracker knows. Without one (another, or none) nothing of libc may be
/// called, and the tracker books nothing.
pub fn is_known() -> bool {
    is_glibc() || is_musl()
}

/// Whether the process has glibc. gcompat, which runs programs for glibc over musl, has this function too.
pub fn is_glibc() -> bool {
    weak_address!("gnu_get_libc_version") != 0 && !is_musl()
}

/// glibc's version: 2043 for 2.43. 0: it isn't known.
pub fn glibc_version() -> u32 {
    let f = weak_address!("gnu_get_libc_version");
    if f == 0 || is_musl() {
        return 0;
    }
    // SAFETY: gnu_get_libc_version(3), which returns a constant string.
    let text = unsafe { CStr::from_ptr(call!(f, () -> *const c_char,)) }.to_bytes();
    let digit = |n: u32, byte: &u8| n.wrapping_mul(10).wrapping_add(u32::from(*byte).wrapping_sub(48));
    let mut numbers = text.split(|byte| *byte == b'.').map(|digits| digits.iter().fold(0, digit));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    major.wrapping_mul(1000).wrapping_add(minor)
}

/// Whether the process has musl, whose loader exports its own third stage (ldso/dynlink.c).
pub fn is_musl() -> bool {
    weak_address!("__dls3") != 0
}

/// main's arguments and the environment, in a constructor of musl, which gets none. All of it lies above the first
/// frame (System V ABI, "Initial Process Stack"):
///
/// ```text
/// argc │ argv[0] … argv[argc-1] │ 0 │ environment … │ 0 │ auxiliary vector │ strings
/// ```
///
/// `None`: `environ` doesn't lead there.
pub fn arguments_of_musl() -> Option<(c_int, *const *const c_char, *mut *const c_char)> {
    // execve(2) allows three quarters of the 8 MiB of a main stack.
    const MOST: usize = 6 << 20;
    let environment = environment();
    if environment.is_null() {
        return None;
    }
    let is_string = |word: usize| word.wrapping_sub(environment as usize) <= MOST;
    // SAFETY: the tracker's own variables are there, so `environ` has a first entry, and it ends with 0.
    if !is_string(unsafe { *environment } as usize) {
        return None;
    }
    let mut argc = 0;
    loop {
        // SAFETY: below the environment and the 0 lie addresses of strings, up to argc: the first word that is the
        // number of words above it. Any other word ends the search.
        match unsafe { *environment.sub(argc + 2) } as usize {
            word if word == argc => break,
            word if is_string(word) => argc += 1,
            _ => return None,
        }
    }
    Some((argc as c_int, environment.wrapping_sub(argc + 1), environment.cast_mut()))
}

/// The process's environment (`environ`); null where it has none.
pub fn environment() -> *const *const c_char {
    let variable = weak_address!("environ") as *const *const *const c_char;
    if variable.is_null() {
        return core::ptr::null();
    }
    // SAFETY: libc's variable, or the program's copy of it.
    unsafe { variable.read_volatile() }
}

/// The calling thread's errno; null where the process has no C library.
fn errno_location() -> *mut c_int {
    let f = weak_address!("__errno_location");
    if f == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: libc returns a valid pointer for every thread.
    unsafe { call!(f, () -> *mut c_int,) }
}

/// errno of this thread; 0 where there is none.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { errno_location().as_ref() }.copied().unwrap_or(0)
}

/// Sets errno of this thread.
pub fn set_errno(e: c_int) {
    // SAFETY: as above.
    if let Some(errno) = unsafe { errno_location().as_mut() } {
        *errno = e;
    }
}

/// Nanoseconds on a clock through the vdso, if libc has been found.
pub fn clock_ns(clock: super::os::Clock) -> u64 {
    let f = other(Other::ClockGettime);
    if f == 0 {
        return without_libc(clock);
    }
    let mut t = [0i64; 2];
    // SAFETY: clock_gettime writes one timespec; it touches errno only on a bad clock id.
    unsafe { call!(f, (usize, *mut i64) -> c_int, clock as usize, t.as_mut_ptr()) };
    t[0] as u64 * 1_000_000_000 + t[1] as u64
}

#[cold]
#[inline(never)]
fn without_libc(clock: super::os::Clock) -> u64 {
    super::os::clock_ns(clock)
}

/// Creates a thread-specific key whose destructor runs at thread exit; `None` if all keys are taken.
pub fn key_create(destructor: extern "C" fn(*mut c_void)) -> Option<u32> {
    let f = other(Other::KeyCreate);
    let mut key = 0u32;
    // SAFETY: pthread_key_create writes the key.
    (f != 0 && unsafe { call!(f, (*mut u32, extern "C" fn(*mut c_void)) -> c_int, &mut key, destructor) } == 0)
        .then_some(key)
}

/// Sets this thread's value of a key. Keys below 32 need no memory (nptl/pthread_setspecific.c).
pub fn set_specific(key: u32, value: usize) {
    let f = other(Other::SetSpecific);
    if f != 0 {
        // SAFETY: a key that key_create made.
        unsafe { call!(f, (u32, usize) -> c_int, key, value) };
    }
}

/// A handler around fork().
pub type AtFork = unsafe extern "C" fn();

/// Registers handlers around every fork() of libc, including those inside libc (daemon, forkpty).
pub fn at_fork(prepare: AtFork, parent: AtFork, child: AtFork) -> bool {
    type H = AtFork;
    match (other(Other::RegisterAtfork), other(Other::RegisterAtforkOfMusl)) {
        (0, 0) => false,
        // SAFETY: handlers live as long as this object, which is never unloaded.
        (0, f) => unsafe { call!(f, (H, H, H) -> c_int, prepare, parent, child) == 0 },
        // SAFETY: as above; a null dso handle also means an object that is never unloaded.
        (f, _) => unsafe {
            call!(f, (H, H, H, *mut c_void) -> c_int, prepare, parent, child, core::ptr::null_mut()) == 0
        },
    }
}

/// Reads a pthread_attr_t: low end of a stack that the program provides, its bytes (0 = default), bytes of the guard.
///
/// # Safety
/// `attr` is an initialised pthread_attr_t.
pub unsafe fn attr_stack(attr: *const c_void) -> Option<(Option<usize>, usize, usize)> {
    let (stack, guard) = (other(Other::AttrGetstack), other(Other::AttrGetguardsize));
    if stack == 0 {
        return None;
    }
    let (mut low, mut bytes, mut g) = (0usize, 0usize, 0usize);
    // SAFETY: the caller's attr; the out pointers are locals.
    unsafe {
        // musl's fails without pthread_attr_setstack. `stack_of_musl` has the bytes, once the thread runs.
        call!(stack, (*const c_void, *mut usize, *mut usize) -> c_int, attr, &mut low, &mut bytes);
        if guard != 0 {
            call!(guard, (*const c_void, *mut usize) -> c_int, attr, &mut g);
        }
    }
    // Without pthread_attr_setstack glibc returns stackaddr - stacksize of zeros: a wrapped or null address.
    let own = low != 0 && (low as isize) > 0;
    Some((own.then_some(low), bytes, g))
}

/// The calling thread's stack as musl knows it: low end without the guard, and bytes of the guard. musl's
/// pthread_getattr_np only reads the thread's descriptor, except for the main thread, which must not call this.
pub fn stack_of_musl() -> Option<(usize, usize)> {
    let [own, attr_of, stack, guard] =
        [Other::OwnThread, Other::AttrOfThread, Other::AttrGetstack, Other::AttrGetguardsize].map(other);
    if [own, attr_of, stack, guard].contains(&0) {
        return None;
    }
    // pthread_attr_t: 56 bytes.
    let mut attr = [0u64; 16];
    let attr: *mut c_void = (&raw mut attr).cast();
    let (mut low, mut bytes, mut guard_bytes) = (0usize, 0usize, 0usize);
    // SAFETY: pthread_getattr_np(3), pthread_attr_getstack(3), pthread_attr_getguardsize(3); all write into locals.
    let failed = unsafe {
        call!(attr_of, (usize, *mut c_void) -> c_int, call!(own, () -> usize,), attr) != 0
            || call!(stack, (*const c_void, *mut usize, *mut usize) -> c_int, attr, &mut low, &mut bytes) != 0
            || call!(guard, (*const c_void, *mut usize) -> c_int, attr, &mut guard_bytes) != 0
    };
    (!failed).then_some((low, guard_bytes))
}

/// `struct dl_find_object` of glibc 2.35 (dlfcn.h).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FoundObject {
    flags: u64,
    /// First mapped address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// The loader's node.
    pub map: *const elf::LinkMap,
    /// .eh_frame_hdr.
    pub eh_frame_hdr: usize,
    reserved: [u64; 8],
}

/// The object that holds `pc`, from the loader's lock-free index (`_dl_find_object`, glibc 2.35). `None`: no object
/// does, or glibc is older.
pub fn find_object(pc: usize) -> Option<FoundObject> {
    let f = other(Other::FindObject);
    if f == 0 {
        return None;
    }
    let mut r = FoundObject { flags: 0, start: 0, end: 0, map: core::ptr::null(), eh_frame_hdr: 0, reserved: [0; 8] };
    // SAFETY: async-signal-safe by its manual; writes the struct.
    (unsafe { call!(f, (usize, *mut FoundObject) -> c_int, pc, &mut r) } == 0).then_some(r)
}

/// Calls a function with every loaded object of the base namespace. The loader's lock is held, so no object is unmapped
/// meanwhile. False: this libc has no such function.
pub fn each_loaded(mut visit: elf::Visit<'_>) -> bool {
    type Shown = unsafe extern "C" fn(*const c_void, usize, *mut c_void) -> c_int;
    let f = other(Other::IterateObjects);
    if f != 0 {
        // SAFETY: dl_iterate_phdr(3), with a callback of its type and the callback's argument.
        unsafe { call!(f, (Shown, *mut c_void) -> c_int, elf::visit_loaded, (&raw mut visit).cast()) };
    }
    f != 0
}

/// How many objects the loader has ever loaded, unloaded ones included. `None`: this libc doesn't count them.
pub fn loaded_so_far() -> Option<u64> {
    type Shown = unsafe extern "C" fn(*const c_void, usize, *mut c_void) -> c_int;
    let f = other(Other::IterateObjects);
    let mut count = 0u64;
    // SAFETY: dl_iterate_phdr(3), with a callback of its type and the word that the callback writes.
    let is_shown = f != 0
        && unsafe { call!(f, (Shown, *mut c_void) -> c_int, elf::note_count, (&raw mut count).cast::<c_void>()) } != 0;
    is_shown.then_some(count)
}

/// The hooked call with this name, if `address` is its real function.
pub fn hooked_at(address: usize, name: &[u8]) -> Option<usize> {
    NAMES.iter().position(|n| n.to_bytes() == name).filter(|&i| address == real_by_number(i))
}

/// Name of a hooked call by number.
pub fn name_by_number(n: usize) -> &'static CStr {
    NAMES[n]
}

/// Whether a hooked call belongs to the allocator, which must get back the blocks that it gave. These come first in the
/// table.
pub fn is_of_allocator(i: usize) -> bool {
    i <= Call::malloc_usable_size as usize
}

/// Whether an address is a real function of any hooked call.
pub fn is_real(address: usize) -> bool {
    address != 0 && REAL.iter().any(|r| r.load(Relaxed) == address)
}

/// Number of hooked calls.
pub const HOOKED: usize = NAMES.len();

/// Installs a signal handler with SA_RESTART. The program may replace it.
pub fn handle_signal(number: c_int, handler: extern "C" fn(c_int)) {
    const SA_RESTART: c_int = 0x1000_0000;
    /// struct sigaction of libc (x86-64, aarch64).
    #[repr(C)]
    struct Action {
        handler: extern "C" fn(c_int),
        mask: [u64; 16],
        flags: c_int,
        restorer: usize,
    }
    let f = other(Other::Sigaction);
    if f != 0 {
        let a = Action { handler, mask: [!0; 16], flags: SA_RESTART, restorer: 0 };
        // SAFETY: reads the struct; the handler lives as long as the process.
        unsafe { call!(f, (c_int, *const Action, *mut c_void) -> c_int, number, &a, core::ptr::null_mut()) };
    }
}

/// The exported entries of the shared object (crates/preload), in the order of the hook table.
pub type Exports = [AtomicUsize; HOOKED];

static EXPORTS: AtomicPtr<Exports> = AtomicPtr::new(core::ptr::null_mut());

/// The exported hook with this number (of the hook table).
pub fn export(i: usize) -> usize {
    // SAFETY: null, or the static table that `set_exports` was given.
    let table = unsafe { EXPORTS.load(Acquire).as_ref() };
    table.and_then(|table| table.get(i)).map_or(0, |hook| hook.load(Relaxed))
}

/// Sets the exported hooks.
pub fn set_exports(exports: &'static Exports) {
    EXPORTS.store((&raw const *exports).cast_mut(), Release);
}
