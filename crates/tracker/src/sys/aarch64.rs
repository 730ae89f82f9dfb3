//! aarch64: the same surface as `x86_64.rs`. CONTRIBUTING.md says how to check that it compiles, and which test runs
//! it.
//!
//! Thread-local words lie behind `tpidr_el0` by initial-exec offsets, as drawn in `x86_64.rs`.

use core::arch::{asm, global_asm};
use core::hint::black_box;

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 4",
    ".globl plimsoll_tls",
    ".hidden plimsoll_tls",
    ".type plimsoll_tls,@object",
    ".size plimsoll_tls,64",
    "plimsoll_tls:",
    ".zero 64",
    ".text",
);

/// Bytes of the thread-local words.
const TLS_BYTES: usize = 64;
/// `*ThreadState` while the thread is outside the tracker.
pub const CURRENT: usize = 0;
/// `*ThreadState` of this thread, [`GONE`], or 0.
pub const OWN: usize = 8;
/// How deep slow paths are nested; 32 bits.
pub const DEPTH: usize = 16;
/// Not 0: this thread is in seccomp's strict mode; 32 bits.
pub const STRICT: usize = 20;
/// Between the handlers around a fork: what the child's books begin with.
pub const PREPARED: usize = 24;
/// Between the handlers around a fork: the parent's segment.
pub const PARENT: usize = 32;
/// Slot in the segment + 1.
pub const SLOT_MARK: usize = 40;
/// Twice the drift bound of the rows.
pub const ROOM_SPAN: usize = 48;
/// The word with which this thread took the lock of the mapping books ([`crate::account::mapping`]); low half: its id.
pub const HOLDS: usize = 56;
/// [`OWN`] of a thread past its end.
pub const GONE: usize = 1;

#[inline(always)]
fn tls_base() -> usize {
    let (base, off): (usize, usize);
    // SAFETY: reads the thread pointer and one GOT word that the loader filled, a constant since: `nomem` hides
    // nothing.
    unsafe {
        asm!("mrs {b}, tpidr_el0", "adrp {o}, :gottprel:plimsoll_tls",
             "ldr {o}, [{o}, :gottprel_lo12:plimsoll_tls]", b = out(reg) base, o = out(reg) off,
             options(pure, nomem, nostack, preserves_flags));
    }
    base + off
}

/// Reads a thread-local word.
#[inline(always)]
pub fn tls_get<const WORD: usize>() -> usize {
    const { assert!(WORD <= TLS_BYTES - 8 && WORD.is_multiple_of(8)) }
    // SAFETY: inside this thread's static TLS block for the thread's whole life; volatile because a signal handler of
    // this thread may have changed it.
    unsafe { ((tls_base() + WORD) as *const usize).read_volatile() }
}

/// Writes a thread-local word.
#[inline(always)]
pub fn tls_set<const WORD: usize>(v: usize) {
    const { assert!(WORD <= TLS_BYTES - 8 && WORD.is_multiple_of(8)) }
    // SAFETY: as in tls_get; the words belong to this thread alone.
    unsafe { ((tls_base() + WORD) as *mut usize).write_volatile(v) }
}

/// Reads half a thread-local word.
#[inline(always)]
pub fn tls_get_half<const HALF: usize>() -> u32 {
    const { assert!(HALF <= TLS_BYTES - 4 && HALF.is_multiple_of(4)) }
    // SAFETY: as in tls_get.
    unsafe { ((tls_base() + HALF) as *const u32).read_volatile() }
}

/// Writes half a thread-local word.
#[inline(always)]
pub fn tls_set_half<const HALF: usize>(v: u32) {
    const { assert!(HALF <= TLS_BYTES - 4 && HALF.is_multiple_of(4)) }
    // SAFETY: as in tls_set.
    unsafe { ((tls_base() + HALF) as *mut u32).write_volatile(v) }
}

/// Adds to the word at `base + OFFSET`, which this thread alone writes; see `x86_64.rs`. Here a pair of exclusive load
/// and store does what one instruction does there.
///
/// # Safety
/// A live, aligned word that every thread accesses as an atomic.
#[inline(always)]
pub unsafe fn add_own<const OFFSET: usize>(base: *const u8, n: u64) {
    use core::sync::atomic::{AtomicU64, Ordering::Release};
    // SAFETY: the caller's contract.
    unsafe { (*(base.add(OFFSET) as *const AtomicU64)).fetch_add(n, Release) };
}

/// Adds one, as [`add_own`] does.
///
/// # Safety
/// As for [`add_own`].
#[inline(always)]
pub unsafe fn count_own<const OFFSET: usize>(base: *const u8) {
    // SAFETY: the caller's contract.
    unsafe { add_own::<OFFSET>(base, 1) }
}

/// The thread pointer. glibc's `struct pthread` ends there, at the high end of the thread's stack.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let v: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {v}, tpidr_el0", v = out(reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

/// Address of a symbol that may be missing; 0 if no object in the process defines it.
macro_rules! weak_address {
    ($symbol:literal) => {{
        let p: usize;
        // SAFETY: reads one GOT word that the loader filled before any code of ours ran; a constant since.
        unsafe {
            core::arch::asm!(concat!(".weak ", $symbol), concat!("adrp {p}, :got:", $symbol),
                 concat!("ldr {p}, [{p}, :got_lo12:", $symbol, "]"),
                 p = out(reg) p, options(pure, nomem, nostack, preserves_flags));
        }
        p
    }};
}
pub(super) use weak_address;

/// Registers that hold a call's first arguments.
pub const ARGUMENT_REGISTERS: usize = 8;

/// A raw system call. EPERM, and no call, if the thread is in seccomp's strict mode or a filter of the program would
/// refuse it.
///
/// # Safety
/// The arguments are valid for the call; memory that it writes is ours.
#[inline]
pub unsafe fn syscall(n: usize, a: [usize; 6]) -> Result<usize, i32> {
    if tls_get_half::<STRICT>() != 0 || !super::filter::permit(n, &a) {
        return Err(super::errno::EPERM);
    }
    let r: isize;
    // SAFETY: the kernel keeps all registers but x0; the rest is the caller's contract.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => r, in("x1") a[1], in("x2") a[2], in("x3") a[3],
             in("x4") a[4], in("x5") a[5], options(nostack));
    }
    if (-4095..0).contains(&r) { Err(-r as i32) } else { Ok(r as usize) }
}

/// A counter, which only seeds the secret of the trailers.
#[inline]
pub fn ticks() -> u64 {
    let v: u64;
    // SAFETY: reads the virtual counter.
    unsafe { asm!("mrs {v}, cntvct_el0", v = out(reg) v, options(nomem, nostack, preserves_flags)) };
    v
}

/// Computes with the floating-point environment that a thread begins with, and leaves the program's as it is.
#[inline]
pub fn with_usual_floats<I, T>(given: I, compute: impl FnOnce(I) -> T) -> T {
    let (control, status): (u64, u64);
    // SAFETY: reads and clears the two registers. What runs up to the second block has the environment that Rust
    // expects.
    unsafe {
        asm!("mrs {c}, fpcr", "mrs {s}, fpsr", "msr fpcr, xzr", "msr fpsr, xzr", c = out(reg) control,
             s = out(reg) status, options(nostack, preserves_flags));
    }
    // The compiler knows of no order between arithmetic and these registers: the black boxes make one.
    let result = black_box(compute(black_box(given)));
    // SAFETY: the words that the program had.
    unsafe {
        asm!("msr fpcr, {c}", "msr fpsr, {s}", c = in(reg) control, s = in(reg) status,
             options(nostack, preserves_flags));
    }
    result
}

/// Numbers of the system calls used.
pub mod nr {
    #![allow(missing_docs, reason = "the names are those of section 2 of the manual")]
    pub const WRITE: usize = 64;
    pub const PWRITEV: usize = 70;
    pub const CLOSE: usize = 57;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MUNMAP: usize = 215;
    pub const MREMAP: usize = 216;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const MADVISE: usize = 233;
    pub const MLOCK: usize = 228;
    pub const MUNLOCK: usize = 229;
    pub const MLOCKALL: usize = 230;
    pub const MUNLOCKALL: usize = 231;
    pub const MLOCK2: usize = 284;
    pub const SIGALTSTACK: usize = 132;
    pub const FUTEX: usize = 98;
    pub const SETRLIMIT: usize = 164;
    pub const PKEY_MPROTECT: usize = 288;
    pub const GETPID: usize = 172;
    pub const KILL: usize = 129;
    pub const TGKILL: usize = 131;
    pub const FCNTL: usize = 25;
    pub const GETEUID: usize = 175;
    pub const GETPPID: usize = 173;
    pub const PRCTL: usize = 167;
    pub const GETTID: usize = 178;
    pub const FSTATFS: usize = 44;
    pub const SECCOMP: usize = 277;
    pub const FTRUNCATE: usize = 46;
    pub const GETDENTS64: usize = 61;
    pub const CLOCK_GETTIME: usize = 113;
    pub const OPENAT: usize = 56;
    pub const FACCESSAT: usize = 48;
    pub const MKDIRAT: usize = 34;
    pub const UNLINKAT: usize = 35;
    pub const PRLIMIT64: usize = 261;
    pub const READLINKAT: usize = 78;
    pub const FSTAT: usize = 80;
    pub const READ: usize = 63;
    pub const PREAD64: usize = 67;
    pub const SHMCTL: usize = 195;
    pub const PPOLL: usize = 73;
    pub const CHROOT: usize = 51;
    pub const PIVOT_ROOT: usize = 41;
    pub const SETUID: usize = 146;
    pub const SETREUID: usize = 145;
    pub const SETRESUID: usize = 147;
    pub const SETFSUID: usize = 151;
    pub const SETNS: usize = 268;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// Defines functions that continue in others. Nothing needs to be aligned: the CPU faults on any access through a
/// misaligned stack pointer (SCTLR_EL1.SA0, which Linux sets), so no program has a misaligned stack.
#[macro_export]
macro_rules! any_alignment {
    ($($(#[doc = $d:literal])* $v:vis fn $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? = $target:path;)*) => {$(
        $(#[doc = $d])*
        ///
        /// # Safety
        /// As the function that it continues in.
        $v unsafe extern "C" fn $name($($a: $t),*) $(-> $r)? {
            #[allow(unused_unsafe, reason = "some of the targets are safe")]
            // SAFETY: the caller's contract is that function's.
            unsafe {
                $target($($a),*)
            }
        }
    )*};
}
