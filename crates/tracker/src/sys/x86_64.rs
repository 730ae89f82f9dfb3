//! x86-64: the raw system call, the thread-local words, calls from any stack.
//!
//! Thread-local words: 64 bytes of initial-exec TLS. An object that is loaded into a running process gets static TLS
//! only from the small surplus that glibc keeps (elf/dl-tls.c); 64 bytes fit.
//!
//! ```text
//! fs:[tls + 0]   current   *ThreadState while the thread is outside the tracker; 0 while inside, or without a state
//! fs:[tls + 8]   own       *ThreadState of this thread; 0 none yet; 1 the thread is past its end
//! fs:[tls + 16]  depth     how deep slow paths are nested (32 bits)
//! fs:[tls + 20]  strict    not 0: the kernel would kill this thread for a system call (seccomp's strict mode; 32 bits)
//! fs:[tls + 24]  prepared  between the handlers around fork(): what the child's books begin with
//! fs:[tls + 32]  parent    between these handlers: the parent's segment
//! fs:[tls + 40]  slot      slot in the segment + 1, as this thread's rows have it; 0 without a state
//! fs:[tls + 48]  span      twice the drift bound of this thread's rows
//! fs:[tls + 56]  holds     the word with which this thread last took the lock of the mapping books; low half: its id
//! ```

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
fn tls_offset() -> usize {
    let off: usize;
    // SAFETY: reads one GOT word that the loader filled before any code of ours ran and that nobody writes afterwards:
    // a constant, so `nomem` hides nothing from the compiler.
    unsafe {
        asm!("mov {o}, qword ptr [rip + plimsoll_tls@GOTTPOFF]", o = out(reg) off,
             options(pure, nomem, nostack, preserves_flags));
    }
    off
}

/// Reads a thread-local word.
#[inline(always)]
pub fn tls_get<const WORD: usize>() -> usize {
    const { assert!(WORD <= TLS_BYTES - 8 && WORD.is_multiple_of(8)) }
    let v: usize;
    // SAFETY: fs:[offset + WORD] is inside this thread's static TLS block for the thread's whole life.
    unsafe {
        asm!("mov {v}, qword ptr fs:[{o} + {w}]", v = out(reg) v, o = in(reg) tls_offset(), w = const WORD,
             options(nostack, preserves_flags, readonly));
    }
    v
}

/// Writes a thread-local word.
#[inline(always)]
pub fn tls_set<const WORD: usize>(v: usize) {
    const { assert!(WORD <= TLS_BYTES - 8 && WORD.is_multiple_of(8)) }
    // SAFETY: as in tls_get; the words belong to this thread alone.
    unsafe {
        asm!("mov qword ptr fs:[{o} + {w}], {v}", v = in(reg) v, o = in(reg) tls_offset(), w = const WORD,
             options(nostack, preserves_flags));
    }
}

/// Reads half a thread-local word.
#[inline(always)]
pub fn tls_get_half<const HALF: usize>() -> u32 {
    const { assert!(HALF <= TLS_BYTES - 4 && HALF.is_multiple_of(4)) }
    let v: u32;
    // SAFETY: as in tls_get.
    unsafe {
        asm!("mov {v:e}, dword ptr fs:[{o} + {w}]", v = out(reg) v, o = in(reg) tls_offset(), w = const HALF,
             options(nostack, preserves_flags, readonly));
    }
    v
}

/// Writes half a thread-local word.
#[inline(always)]
pub fn tls_set_half<const HALF: usize>(v: u32) {
    const { assert!(HALF <= TLS_BYTES - 4 && HALF.is_multiple_of(4)) }
    // SAFETY: as in tls_set.
    unsafe {
        asm!("mov dword ptr fs:[{o} + {w}], {v:e}", v = in(reg) v, o = in(reg) tls_offset(), w = const HALF,
             options(nostack, preserves_flags));
    }
}

/// Adds to the word at `base + OFFSET`, which this thread alone writes. It takes one instruction, so no addition is
/// lost if a signal handler of the thread adds to the word too. No lock prefix: other threads only read, and x86 stores
/// are releases.
///
/// # Safety
/// A live, aligned word that every thread accesses as an atomic.
#[inline(always)]
pub unsafe fn add_own<const OFFSET: usize>(base: *const u8, n: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("add qword ptr [{p} + {o}], {n}", p = in(reg) base, o = const OFFSET, n = in(reg) n, options(nostack))
    }
}

/// Adds one, as [`add_own`] does.
///
/// # Safety
/// As for [`add_own`].
#[inline(always)]
pub unsafe fn count_own<const OFFSET: usize>(base: *const u8) {
    // SAFETY: the caller's contract.
    unsafe { asm!("inc qword ptr [{p} + {o}]", p = in(reg) base, o = const OFFSET, options(nostack)) }
}

/// The thread pointer: the address of glibc's `struct pthread`, which lies at the high end of the thread's stack.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let v: usize;
    // SAFETY: fs:[0] holds its own address on x86-64 (ELF TLS ABI) and stays the same for the thread's life.
    unsafe {
        asm!("mov {v}, qword ptr fs:[0]", v = out(reg) v, options(pure, nomem, nostack, preserves_flags));
    }
    v
}

/// Address of a symbol that may be missing; 0 if no object in the process defines it.
macro_rules! weak_address {
    ($symbol:literal) => {{
        let p: usize;
        // SAFETY: reads one GOT word that the loader filled before any code of ours ran; a constant since.
        unsafe {
            core::arch::asm!(concat!(".weak ", $symbol), concat!("mov {p}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                 p = out(reg) p, options(pure, nomem, nostack, preserves_flags));
        }
        p
    }};
}
pub(super) use weak_address;

/// Registers that hold a call's first arguments.
pub const ARGUMENT_REGISTERS: usize = 6;

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
    // SAFETY: the kernel clobbers rcx and r11 only; the rest is the caller's contract.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => r, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&r) { Err(-r as i32) } else { Ok(r as usize) }
}

/// The time stamp counter, which only seeds the secret of the trailers.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc has no memory effects.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Computes with the floating-point environment that a thread begins with, and leaves the program's as it is: its
/// exception flags, its rounding, and the exceptions that it has unmasked (feenableexcept(3)), which would end it by
/// SIGFPE.
#[inline]
pub fn with_usual_floats<I, T>(given: I, compute: impl FnOnce(I) -> T) -> T {
    static USUAL: u32 = 0x1f80;
    let mut programs = 0u32;
    // SAFETY: writes the local, reads the static. What runs up to the second block has the environment that Rust
    // expects.
    unsafe {
        asm!("stmxcsr dword ptr [{p}]", "ldmxcsr dword ptr [{u}]", p = in(reg) &raw mut programs,
             u = in(reg) &raw const USUAL, options(nostack, preserves_flags));
    }
    // The compiler knows of no order between arithmetic and these registers: the black boxes make one.
    let result = black_box(compute(black_box(given)));
    // SAFETY: the word that the program had.
    unsafe { asm!("ldmxcsr dword ptr [{p}]", p = in(reg) &raw const programs, options(nostack, preserves_flags)) };
    result
}

/// Numbers of the system calls used.
pub mod nr {
    #![allow(missing_docs, reason = "the names are those of section 2 of the manual")]
    pub const WRITE: usize = 1;
    pub const PWRITEV: usize = 296;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const MREMAP: usize = 25;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const MADVISE: usize = 28;
    pub const MLOCK: usize = 149;
    pub const MUNLOCK: usize = 150;
    pub const MLOCKALL: usize = 151;
    pub const MUNLOCKALL: usize = 152;
    pub const MLOCK2: usize = 325;
    pub const SIGALTSTACK: usize = 131;
    pub const FUTEX: usize = 202;
    pub const SETRLIMIT: usize = 160;
    pub const PKEY_MPROTECT: usize = 329;
    pub const GETPID: usize = 39;
    pub const KILL: usize = 62;
    pub const TGKILL: usize = 234;
    pub const FCNTL: usize = 72;
    pub const GETEUID: usize = 107;
    pub const GETPPID: usize = 110;
    pub const PRCTL: usize = 157;
    pub const GETTID: usize = 186;
    pub const FTRUNCATE: usize = 77;
    pub const FSTATFS: usize = 138;
    pub const SECCOMP: usize = 317;
    pub const GETDENTS64: usize = 217;
    pub const CLOCK_GETTIME: usize = 228;
    pub const OPENAT: usize = 257;
    pub const ACCESS: usize = 21;
    pub const MKDIRAT: usize = 258;
    pub const UNLINKAT: usize = 263;
    pub const PRLIMIT64: usize = 302;
    pub const READLINKAT: usize = 267;
    pub const FSTAT: usize = 5;
    pub const READ: usize = 0;
    pub const PREAD64: usize = 17;
    pub const SHMCTL: usize = 31;
    pub const PPOLL: usize = 271;
    pub const CHROOT: usize = 161;
    pub const PIVOT_ROOT: usize = 155;
    pub const SETUID: usize = 105;
    pub const SETREUID: usize = 113;
    pub const SETRESUID: usize = 117;
    pub const SETFSUID: usize = 122;
    pub const SETNS: usize = 308;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// Makes a frame that ends on a multiple of 16, wherever the stack pointer was. Programs call glibc's malloc on
/// misaligned stacks too (old code, hand-written assembly, some JITs), and it works. Our compiled code may keep vector
/// registers in aligned places, so every path into it makes this frame, or uses [`tail_jump`](crate::tail_jump), which
/// makes it only if needed.
#[macro_export]
macro_rules! align_stack {
    () => {
        "push rbp
        .cfi_def_cfa_offset 16
        .cfi_offset rbp, -16
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        and rsp, -16"
    };
}

/// Ends the frame of [`align_stack`].
#[macro_export]
macro_rules! restore_stack {
    () => {
        "leave
        .cfi_restore rbp
        .cfi_def_cfa rsp, 8"
    };
}

/// Continues in `{t}` with unchanged arguments. It is a jump, so that no frame is added, and exceptions, pthread_exit
/// and backtraces pass as if the hook didn't exist. It is a call only if the stack isn't aligned as the ABI requires
/// (rsp + 8).
#[macro_export]
macro_rules! tail_jump {
    () => {
        concat!(
            "lea rax, [rsp + 8]
            test al, 15
            jnz 2f
            jmp {t}
            2:\n",
            $crate::align_stack!(),
            "\ncall {t}\n",
            $crate::restore_stack!(),
            "\nret"
        )
    };
}

/// Defines functions that continue in others, at any alignment of the stack.
#[macro_export]
macro_rules! any_alignment {
    ($($(#[doc = $d:literal])* $v:vis fn $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? = $target:path;)*) => {$(
        $(#[doc = $d])*
        ///
        /// # Safety
        /// As the function that it continues in.
        #[unsafe(naked)]
        $v unsafe extern "C" fn $name($($a: $t),*) $(-> $r)? {
            core::arch::naked_asm!(".cfi_startproc", $crate::tail_jump!(), ".cfi_endproc", t = sym $target);
        }
    )*};
}
