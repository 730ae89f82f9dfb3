//! x86-64: the raw system call, the thread-local words, the entry stubs, the thread trampoline.
//!
//! Thread-local words: 64 bytes of initial-exec TLS. glibc keeps a small surplus for objects that are loaded late with
//! static TLS; 1,024 bytes load into a running JVM, 1,600 don't (experiments/ag.c), so 64 is safe.
//!
//! ```text
//! fs:[tls + 0]   current   *ThreadState while the thread is outside the tracker; 0 while inside, or without a state
//! fs:[tls + 8]   own       *ThreadState of this thread; 0 none yet; 1 the thread is past its end
//! fs:[tls + 16]  depth     how deep slow paths are nested (32 bits)
//! fs:[tls + 20]  strict    not 0: a system call would be this thread's death (seccomp's strict mode; 32 bits)
//! fs:[tls + 24]  prepared  between the handlers around fork(): the child's segment
//! fs:[tls + 32]  parent    and the parent's
//! fs:[tls + 40]  slot      slot in the segment + 1, as this thread's rows have it; 0 without a state
//! fs:[tls + 48]  span      twice the drift bound of this thread's rows
//! fs:[tls + 56]  holds     the word that this thread last took the lock of the mapping books with; its thread id below
//! ```

use core::arch::{asm, global_asm};

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
/// And the parent's.
pub const PARENT: usize = 32;
/// Slot in the segment + 1.
pub const SLOT_MARK: usize = 40;
/// Twice the drift bound of the rows.
pub const ROOM_SPAN: usize = 48;
/// What this thread took the lock of the mapping books with ([`crate::hook::mapping`]); its id in the low half.
pub const HOLDS: usize = 56;
/// [`OWN`] of a thread past its end.
pub const GONE: usize = 1;

#[inline(always)]
fn tls_offset() -> usize {
    let off: usize;
    // SAFETY: reads one GOT word that the loader filled before any code of ours ran and that nobody writes afterwards: a
    // constant, so `nomem` hides nothing from the compiler.
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

/// Adds to the word at `base + OFFSET`, which this thread alone writes, in one instruction: a signal handler of the same
/// thread that adds to it too loses nothing. No lock prefix: other threads only read, and x86 stores are releases.
///
/// # Safety
/// A live, aligned word that all access as an atomic.
#[inline(always)]
pub unsafe fn add_own<const OFFSET: usize>(base: *const u8, n: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("add qword ptr [{p} + {o}], {n}", p = in(reg) base, o = const OFFSET, n = in(reg) n, options(nostack))
    }
}

/// Adds one, likewise.
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

/// The architecture that filters of system calls are told (linux/audit.h).
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// A raw system call; EPERM where it would be the thread's death, or a filter of the program's has something against it.
///
/// # Safety
/// The arguments must be what the call wants; memory it writes must be ours.
#[inline]
pub unsafe fn syscall(n: usize, a: [usize; 6]) -> Result<usize, i32> {
    if tls_get_half::<STRICT>() != 0 || !super::filter::permit(n, &a) {
        return Err(super::os::errno::EPERM);
    }
    let r: isize;
    // SAFETY: the kernel clobbers rcx and r11 only; the rest is the caller's contract.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => r, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&r) { Err(-r as i32) } else { Ok(r as usize) }
}

/// Time stamp counter: only to seed the key.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc has no memory effects.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Numbers of the system calls used.
pub mod nr {
    #![allow(missing_docs)]
    pub const WRITE: usize = 1;
    pub const PWRITEV: usize = 296;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const MREMAP: usize = 25;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const MADVISE: usize = 28;
    pub const SETRLIMIT: usize = 160;
    pub const PKEY_MPROTECT: usize = 329;
    pub const GETPID: usize = 39;
    pub const KILL: usize = 62;
    pub const TGKILL: usize = 234;
    pub const FCNTL: usize = 72;
    pub const GETUID: usize = 102;
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
    pub const MKDIRAT: usize = 258;
    pub const UNLINKAT: usize = 263;
    pub const FALLOCATE: usize = 285;
    pub const PRLIMIT64: usize = 302;
    pub const READLINKAT: usize = 267;
    pub const NEWFSTATAT: usize = 262;
    pub const FSTAT: usize = 5;
    pub const READ: usize = 0;
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

/// A frame that ends on a multiple of 16, wherever the stack stood. Glibc's malloc works on a misaligned stack (old code,
/// hand-written assembly, some JITs), while compiled code of ours may keep vector registers in aligned places: so every way
/// into it leads through this, or through [`go_on`](crate::go_on), where it costs nothing.
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

/// The end of such a frame.
#[macro_export]
macro_rules! restore_stack {
    () => {
        "leave
        .cfi_restore rbp
        .cfi_def_cfa rsp, 8"
    };
}

/// On to `{t}` with the arguments as they are: a jump, so that no frame is added and exceptions, pthread_exit and
/// backtraces pass as if the hook weren't there; a call where the stack isn't aligned as the ABI has it (rsp + 8).
#[macro_export]
macro_rules! go_on {
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

/// Defines functions that go on to others whatever the stack's alignment is.
#[macro_export]
macro_rules! any_alignment {
    ($($(#[doc = $d:literal])* $v:vis fn $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? = $target:path;)*) => {$(
        $(#[doc = $d])*
        ///
        /// # Safety
        /// As the function that it goes on to.
        #[unsafe(naked)]
        $v unsafe extern "C" fn $name($($a: $t),*) $(-> $r)? {
            core::arch::naked_asm!(".cfi_startproc", $crate::go_on!(), ".cfi_endproc", t = sym $target);
        }
    )*};
}

/// Defines an exported entry that adds two arguments behind the `$args` (0 to 4) integer ones: the stack pointer at
/// entry (where the return address lies) and the caller's frame pointer.
#[macro_export]
macro_rules! entry_with_caller {
    ($name:ident, 1, $target:path) => { $crate::entry_with_caller!(@ $name, "mov rsi, rsp", "mov rdx, rbp", $target); };
    ($name:ident, 2, $target:path) => { $crate::entry_with_caller!(@ $name, "mov rdx, rsp", "mov rcx, rbp", $target); };
    ($name:ident, 3, $target:path) => { $crate::entry_with_caller!(@ $name, "mov rcx, rsp", "mov r8, rbp", $target); };
    ($name:ident, 4, $target:path) => { $crate::entry_with_caller!(@ $name, "mov r8, rsp", "mov r9, rbp", $target); };
    (@ $name:ident, $sp:literal, $fp:literal, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", $sp, $fp, $crate::go_on!(), ".cfi_endproc", t = sym $target);
        }
    };
}

/// Defines an exported entry that goes on to `$target` with the arguments as they are.
#[macro_export]
macro_rules! entry_plain {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", $crate::go_on!(), ".cfi_endproc", t = sym $target);
        }
    };
}

/// Defines an exported entry that jumps through the pointer `$target`, which must not be null.
#[macro_export]
macro_rules! entry_through {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", "jmp qword ptr [rip + {t}]", ".cfi_endproc", t = sym $target);
        }
    };
}

/// Defines an exported entry for calls with up to six integer arguments: all six registers are kept, stack pointer at
/// entry and frame pointer follow on the stack as seventh and eighth.
#[macro_export]
macro_rules! entry_with_caller_on_stack {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rax, rsp",
                $crate::align_stack!(),
                "push qword ptr [rbp]",
                "push rax",
                "call {t}",
                $crate::restore_stack!(),
                "ret",
                ".cfi_endproc",
                t = sym $target
            );
        }
    };
}

/// Calls `{b}` with the arguments kept and then jumps to what it answers. The caller's address comes fourth, so the fourth
/// argument comes fifth.
#[macro_export]
macro_rules! look_then_jump {
    () => {
        concat!(
            $crate::align_stack!(),
            "
            push rdi
            push rsi
            push rdx
            push rcx
            push r8
            push r9
            mov r8, rcx
            mov rcx, [rbp + 8]
            call {b}
            mov r11, rdx
            mov r9, [rsp]
            mov r8, [rsp + 8]
            mov rcx, [rsp + 16]
            mov rdx, [rsp + 24]
            mov rsi, [rsp + 32]
            mov rdi, [rsp + 40]\n",
            $crate::restore_stack!(),
            "
            test r11, r11
            jnz 2f
            jmp rax
            2: mov rax, r11
            ret"
        )
    };
}

/// Defines an exported entry that calls `$before` with the arguments kept and then jumps to what it answers:
/// the program's call runs as if it had called the real function itself (dlopen and dlsym look at their caller).
#[macro_export]
macro_rules! entry_then_tail_jump {
    ($name:ident, $before:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", $crate::look_then_jump!(), ".cfi_endproc", b = sym $before);
        }
    };
}

/// Defines syscall(2): a jump to the real one, but for the numbers that `hook::calls` names. Of those some are booked by a
/// call, the others looked at.
#[macro_export]
macro_rules! entry_numbered {
    ($name:ident, $before:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp edi, {numbers}",
                "jae 4f",
                "bt dword ptr [rip + {caught}], edi",
                "jc 5f",
                "4: jmp qword ptr [rip + {go_on}]",
                "5: bt dword ptr [rip + {booked}], edi",
                "jc 6f",
                $crate::look_then_jump!(),
                "6: mov rax, rsp",
                $crate::align_stack!(),
                "sub rsp, 48",
                "mov [rsp], rsi",
                "mov [rsp + 8], rdx",
                "mov [rsp + 16], rcx",
                "mov [rsp + 24], r8",
                "mov [rsp + 32], r9",
                "mov r10, [rax + 8]",
                "mov [rsp + 40], r10",
                "mov rsi, rsp",
                "mov rdx, rax",
                "mov rcx, [rbp]",
                "call {book}",
                $crate::restore_stack!(),
                "ret",
                ".cfi_endproc",
                b = sym $before,
                numbers = const $crate::hook::calls::NUMBERS,
                caught = sym $crate::hook::calls::CAUGHT,
                booked = sym $crate::hook::calls::BOOKED,
                book = sym $crate::hook::calls::booked,
                go_on = sym $crate::hook::calls::GO_ON
            );
        }
    };
}

/// syscall(2) while the real one isn't known.
///
/// # Safety
/// As syscall(2).
#[unsafe(naked)]
pub unsafe extern "C" fn first_syscall() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        crate::look_then_jump!(),
        ".cfi_endproc",
        b = sym crate::hook::calls::before_any_call
    );
}

/// Defines an exported entry that calls `$before` with the arguments kept and then, as that answers, jumps on, or calls the
/// real function and then `$after`, and hands back what the real one answered.
#[macro_export]
macro_rules! entry_around {
    ($name:ident, $before:path, $after:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::align_stack!(),
                "push rdi",
                "push rsi",
                "push rdx",
                "sub rsp, 8",
                "call {b}",
                "mov rcx, rdx",
                "mov rdx, [rsp + 8]",
                "mov rsi, [rsp + 16]",
                "mov rdi, [rsp + 24]",
                "test rcx, rcx",
                "jnz 2f",
                ".cfi_remember_state",
                $crate::restore_stack!(),
                "jmp rax",
                ".cfi_restore_state",
                "2: call rax",
                "mov [rsp], rax",
                "call {a}",
                "mov rax, [rsp]",
                $crate::restore_stack!(),
                "ret",
                ".cfi_endproc",
                b = sym $before,
                a = sym $after
            );
        }
    };
}

/// Where the exported free goes over an allocator other than glibc's: adds the stack pointer and goes on.
///
/// # Safety
/// As free(3).
#[unsafe(naked)]
pub unsafe extern "C" fn free_entry(p: *mut u8) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "mov rsi, rsp",
        crate::go_on!(),
        ".cfi_endproc",
        t = sym crate::hook::malloc::free_any
    );
}

/// Defines operator new number `$i`: the real one is called from here, so that what it throws passes no Rust frame.
#[macro_export]
macro_rules! entry_makes {
    ($name:ident, $i:expr) => {
        /// Entry stub: see `hook::operator`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::align_stack!(),
                "push rdi",
                "push rsi",
                "push rdx",
                "sub rsp, 8",
                "mov edi, {i}",
                "call {next}",
                "mov rcx, rdx",
                "mov rdx, [rsp + 8]",
                "mov rsi, [rsp + 16]",
                "mov rdi, [rsp + 24]",
                "test rcx, rcx",
                "jnz 2f",
                ".cfi_remember_state",
                $crate::restore_stack!(),
                "jmp rax",
                ".cfi_restore_state",
                "2: call rax",
                "mov rdi, rax",
                "mov rsi, [rsp + 24]",
                "lea rdx, [rbp + 8]",
                "mov rcx, [rbp]",
                "call {made}",
                $crate::restore_stack!(),
                "ret",
                ".cfi_endproc",
                i = const $i,
                next = sym $crate::hook::operator::next,
                made = sym $crate::hook::operator::made
            );
        }
    };
}

/// Defines operator delete number `$i`.
#[macro_export]
macro_rules! entry_ends {
    ($name:ident, $i:expr) => {
        /// Entry stub: see `hook::operator`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::align_stack!(),
                "push rdi",
                "push rsi",
                "push rdx",
                "sub rsp, 8",
                "mov esi, {i}",
                "mov rdx, [rbp + 8]",
                "call {ending}",
                "mov rdx, [rsp + 8]",
                "mov rsi, [rsp + 16]",
                "mov rdi, [rsp + 24]",
                $crate::restore_stack!(),
                "jmp rax",
                ".cfi_endproc",
                i = const $i,
                ending = sym $crate::hook::operator::ending
            );
        }
    };
}

/// Start of a thread made by pthread_create: `begin` answers the program's routine and its argument (rax, rdx), then a
/// tail jump, so that no frame of ours lies below the program's (pthread_exit and pthread_cancel unwind to libc's).
///
/// # Safety
/// Only as a start routine, with the pointer that the pthread_create hook made.
#[unsafe(naked)]
pub unsafe extern "C" fn thread_trampoline(record: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        "call {begin}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        begin = sym crate::hook::thread::begin
    );
}
