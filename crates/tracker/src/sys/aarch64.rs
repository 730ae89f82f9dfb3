//! aarch64: the same surface as `x86_64.rs`. It compiles; no machine here runs it.
//!
//! Thread-local words lie behind `tpidr_el0` by initial-exec offsets, as drawn in `x86_64.rs`.

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
fn tls_base() -> usize {
    let (base, off): (usize, usize);
    // SAFETY: reads the thread pointer and one GOT word that the loader filled, a constant since: `nomem` hides nothing.
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

/// Adds to the word at `base + OFFSET`, which this thread alone writes; see `x86_64.rs`. Here a load-exclusive pair does
/// what one instruction does there.
///
/// # Safety
/// A live, aligned word that all access as an atomic.
#[inline(always)]
pub unsafe fn add_own<const OFFSET: usize>(base: *const u8, n: u64) {
    use core::sync::atomic::{AtomicU64, Ordering::Release};
    // SAFETY: the caller's contract.
    unsafe { (*(base.add(OFFSET) as *const AtomicU64)).fetch_add(n, Release) };
}

/// Adds one, likewise.
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

/// The architecture that filters of system calls are told (linux/audit.h).
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

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
    // SAFETY: the kernel keeps all registers but x0; the rest is the caller's contract.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => r, in("x1") a[1], in("x2") a[2], in("x3") a[3],
             in("x4") a[4], in("x5") a[5], options(nostack));
    }
    if (-4095..0).contains(&r) { Err(-r as i32) } else { Ok(r as usize) }
}

/// A counter: only to seed the key.
#[inline]
pub fn ticks() -> u64 {
    let v: u64;
    // SAFETY: reads the virtual counter.
    unsafe { asm!("mrs {v}, cntvct_el0", v = out(reg) v, options(nomem, nostack, preserves_flags)) };
    v
}

/// Numbers of the system calls used.
pub mod nr {
    #![allow(missing_docs)]
    pub const WRITE: usize = 64;
    pub const PWRITEV: usize = 70;
    pub const CLOSE: usize = 57;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MUNMAP: usize = 215;
    pub const MREMAP: usize = 216;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const MADVISE: usize = 233;
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
    pub const MKDIRAT: usize = 34;
    pub const UNLINKAT: usize = 35;
    pub const PRLIMIT64: usize = 261;
    pub const READLINKAT: usize = 78;
    pub const FSTAT: usize = 80;
    pub const READ: usize = 63;
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

/// See `x86_64.rs`. The return address is in the link register: the stub stores it where the caller's stack pointer
/// points, in a slot of its own, and so needs a frame.
#[macro_export]
macro_rules! entry_with_caller {
    ($name:ident, 1, $target:path) => { $crate::entry_with_caller!(@ $name, "mov x1, sp", "mov x2, x29", $target); };
    ($name:ident, 2, $target:path) => { $crate::entry_with_caller!(@ $name, "mov x2, sp", "mov x3, x29", $target); };
    ($name:ident, 3, $target:path) => { $crate::entry_with_caller!(@ $name, "mov x3, sp", "mov x4, x29", $target); };
    ($name:ident, 4, $target:path) => { $crate::entry_with_caller!(@ $name, "mov x4, sp", "mov x5, x29", $target); };
    (@ $name:ident, $sp:literal, $fp:literal, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "str x30, [sp, #-16]!", ".cfi_adjust_cfa_offset 16", ".cfi_rel_offset x30, 0",
                $sp, $fp, "bl {t}",
                "ldr x30, [sp], #16", ".cfi_adjust_cfa_offset -16", "ret", ".cfi_endproc", t = sym $target);
        }
    };
}

/// Defines functions that go on to others whatever the stack's alignment is: the CPU faults on any access through a
/// misaligned stack pointer (SCTLR_EL1.SA0, which Linux sets), so no program has one.
#[macro_export]
macro_rules! any_alignment {
    ($($(#[doc = $d:literal])* $v:vis fn $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? = $target:path;)*) => {$(
        $(#[doc = $d])*
        ///
        /// # Safety
        /// As the function that it goes on to.
        $v unsafe extern "C" fn $name($($a: $t),*) $(-> $r)? {
            #[allow(unused_unsafe)]
            // SAFETY: the caller's contract is that function's.
            unsafe {
                $target($($a),*)
            }
        }
    )*};
}

/// Defines an exported entry that adds the stack pointer at entry and the caller's frame pointer behind one argument.
#[macro_export]
macro_rules! entry_straight {
    ($name:ident, $target:path) => {
        $crate::entry_with_caller!($name, 1, $target);
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_plain {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", "b {t}", ".cfi_endproc", t = sym $target);
        }
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_through {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", "adrp x9, {t}", "ldr x9, [x9, :lo12:{t}]", "br x9", ".cfi_endproc",
                                   t = sym $target);
        }
    };
}

/// See `x86_64.rs`: eight registers hold all arguments here.
#[macro_export]
macro_rules! entry_with_caller_on_stack {
    ($name:ident, $target:path) => {
        $crate::entry_with_caller!(@ $name, "mov x6, sp", "mov x7, x29", $target);
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! look_then_jump {
    () => {
        "stp x0, x1, [sp, #-64]!
        .cfi_adjust_cfa_offset 64
        stp x2, x30, [sp, #16]
        .cfi_rel_offset x30, 24
        stp x3, x4, [sp, #32]
        stp x5, x6, [sp, #48]
        mov x4, x3
        mov x3, x30
        bl {b}
        mov x9, x0
        mov x10, x1
        ldp x5, x6, [sp, #48]
        ldp x3, x4, [sp, #32]
        ldp x2, x30, [sp, #16]
        .cfi_same_value x30
        ldp x0, x1, [sp], #64
        .cfi_adjust_cfa_offset -64
        cbnz x10, 2f
        br x9
        2: mov x0, x10
        ret"
    };
}

/// See `x86_64.rs`.
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

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_numbered {
    ($name:ident, $before:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp w0, {numbers}", "b.hs 4f",
                "lsr w9, w0, #6",
                "adrp x10, {caught}", "add x10, x10, :lo12:{caught}",
                "ldr x10, [x10, w9, uxtw #3]", "lsr x10, x10, x0", "tbnz x10, #0, 5f",
                "4: adrp x9, {go_on}", "ldr x9, [x9, :lo12:{go_on}]", "br x9",
                "5: adrp x10, {booked}", "add x10, x10, :lo12:{booked}",
                "ldr x10, [x10, w9, uxtw #3]", "lsr x10, x10, x0", "tbnz x10, #0, 6f",
                $crate::look_then_jump!(),
                // The return address where the stack pointer points, as the hooks expect it.
                "6: stp x29, x30, [sp, #-80]!",
                ".cfi_adjust_cfa_offset 80",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x1, x2, [sp, #16]", "stp x3, x4, [sp, #32]", "stp x5, x6, [sp, #48]", "str x30, [sp, #64]",
                "mov x3, x29", "mov x29, sp",
                "add x1, sp, #16", "add x2, sp, #64",
                "bl {book}",
                "ldp x29, x30, [sp], #80",
                ".cfi_same_value x29", ".cfi_same_value x30", ".cfi_adjust_cfa_offset -80",
                "ret",
                ".cfi_endproc",
                b = sym $before,
                numbers = const $crate::hook::calls::NUMBERS,
                caught = sym $crate::hook::calls::CAUGHT,
                booked = sym $crate::hook::calls::BOOKED,
                book = sym $crate::hook::calls::booked,
                go_on = sym $crate::hook::calls::GO_ON);
        }
    };
}

/// See `x86_64.rs`.
///
/// # Safety
/// As syscall(2).
#[unsafe(naked)]
pub unsafe extern "C" fn first_syscall() {
    core::arch::naked_asm!(".cfi_startproc", crate::look_then_jump!(), ".cfi_endproc",
                           b = sym crate::hook::calls::before_any_call);
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_around {
    ($name:ident, $before:path, $after:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x0, x1, [sp, #-32]!", ".cfi_adjust_cfa_offset 32",
                "stp x2, x30, [sp, #16]", ".cfi_rel_offset x30, 24",
                "bl {b}",
                "mov x9, x0", "mov x10, x1",
                "ldp x2, x30, [sp, #16]",
                "ldp x0, x1, [sp], #32", ".cfi_adjust_cfa_offset -32", ".cfi_same_value x30",
                "cbnz x10, 2f", "br x9",
                "2:", "str x30, [sp, #-16]!", ".cfi_adjust_cfa_offset 16", ".cfi_rel_offset x30, 0",
                "blr x9",
                "str x0, [sp, #8]",
                "bl {a}",
                "ldr x0, [sp, #8]", "ldr x30, [sp], #16", ".cfi_adjust_cfa_offset -16", ".cfi_same_value x30",
                "ret",
                ".cfi_endproc",
                b = sym $before, a = sym $after);
        }
    };
}

/// See `x86_64.rs`.
///
/// # Safety
/// As free(3).
#[unsafe(naked)]
pub unsafe extern "C" fn free_entry(p: *mut u8) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "str x30, [sp, #-16]!",
        ".cfi_adjust_cfa_offset 16",
        ".cfi_rel_offset x30, 0",
        "mov x1, sp",
        "bl {t}",
        "ldr x30, [sp], #16",
        ".cfi_adjust_cfa_offset -16",
        "ret",
        ".cfi_endproc",
        t = sym crate::hook::malloc::free_any
    );
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_makes {
    ($name:ident, $i:expr) => {
        /// Entry stub: see `hook::operator`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x0, x1, [sp, #-48]!", ".cfi_adjust_cfa_offset 48",
                "stp x2, x30, [sp, #16]", ".cfi_rel_offset x30, 24",
                "mov w0, #{i}", "bl {next}",
                "mov x9, x0", "mov x10, x1",
                "ldp x0, x1, [sp]", "ldr x2, [sp, #16]",
                "cbnz x10, 2f",
                "ldr x30, [sp, #24]", "add sp, sp, #48", "br x9",
                "2: blr x9",
                "ldr x1, [sp]", "add x2, sp, #24", "mov x3, x29", "bl {made}",
                "ldr x30, [sp, #24]", "add sp, sp, #48", "ret", ".cfi_endproc",
                i = const $i, next = sym $crate::hook::operator::next, made = sym $crate::hook::operator::made);
        }
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_ends {
    ($name:ident, $i:expr) => {
        /// Entry stub: see `hook::operator`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x0, x1, [sp, #-32]!", ".cfi_adjust_cfa_offset 32",
                "stp x2, x30, [sp, #16]", ".cfi_rel_offset x30, 24",
                "mov w1, #{i}", "mov x2, x30", "bl {ending}", "mov x9, x0",
                "ldp x2, x30, [sp, #16]", "ldp x0, x1, [sp], #32", ".cfi_adjust_cfa_offset -32", "br x9",
                ".cfi_endproc", i = const $i, ending = sym $crate::hook::operator::ending);
        }
    };
}

/// See `x86_64.rs`.
///
/// # Safety
/// Only as a start routine, with the pointer that the pthread_create hook made.
#[unsafe(naked)]
pub unsafe extern "C" fn thread_trampoline(record: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "str x30, [sp, #-16]!",
        "bl {begin}",
        "ldr x30, [sp], #16",
        "mov x9, x0",
        "mov x0, x1",
        "br x9",
        ".cfi_endproc",
        begin = sym crate::hook::thread::begin
    );
}
