//! aarch64: the same macros and functions as `x86_64.rs`. CONTRIBUTING.md says how to check that it compiles;
//! `make test GROUP=roots` runs it, under qemu-user.

/// See `x86_64.rs`. The return address is in the link register. The hooks expect it where the stack pointer points, so
/// the stub makes a frame and stores it there.
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

/// As `entry_with_caller` for one argument.
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
macro_rules! entry_variadic {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov x9, sp",
                "stp x29, x30, [sp, #-80]!", ".cfi_adjust_cfa_offset 80",
                ".cfi_rel_offset x29, 0", ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "add x0, sp, #16", "mov x1, x9",
                "bl {t}",
                "ldp x29, x30, [sp], #80",
                ".cfi_same_value x29", ".cfi_same_value x30", ".cfi_adjust_cfa_offset -80",
                "ret",
                ".cfi_endproc",
                t = sym $target
            );
        }
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
    ($name:ident, $before:path, numbers: $numbers:path, caught: $caught:path, booked: $booked:path, book: $book:path,
     others: $others:path) => {
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
                "4: adrp x9, {pass_through}", "ldr x9, [x9, :lo12:{pass_through}]", "br x9",
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
                numbers = const $numbers,
                caught = sym $caught,
                booked = sym $booked,
                book = sym $book,
                pass_through = sym $others);
        }
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! first_syscall {
    ($name:ident, $before:path) => {
        /// syscall(2) while the address of the real one is unknown.
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", $crate::look_then_jump!(), ".cfi_endproc", b = sym $before);
        }
    };
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
#[macro_export]
macro_rules! free_entry {
    ($name:ident, $target:path) => {
        /// Entry stub of free(3) over any allocator.
        ///
        /// # Safety
        /// As free(3).
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(p: *mut u8) {
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
                t = sym $target
            );
        }
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! jump_to_operator {
    () => {
        "adrp x16, {known}
        add x16, x16, :lo12:{known}
        ldr x16, [x16, #8 * {i}]
        sub x17, x16, #1
        lsr x17, x17, #{address_bits}
        cbnz x17, 3f
        br x16
        3:"
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_operator_new {
    ($name:ident, $i:expr, $real:path, $book:path) => {
        /// Entry stub: see `hook::operator`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::jump_to_operator!(),
                "stp x0, x1, [sp, #-48]!", ".cfi_adjust_cfa_offset 48",
                "stp x2, x30, [sp, #16]", ".cfi_rel_offset x30, 24",
                "mov w0, #{i}", "bl {real}",
                "mov x9, x0", "mov x10, x1",
                "ldp x0, x1, [sp]", "ldr x2, [sp, #16]",
                "cbnz x10, 2f",
                "ldr x30, [sp, #24]", "add sp, sp, #48", "br x9",
                "2: blr x9",
                "ldr x1, [sp]", "add x2, sp, #24", "mov x3, x29", "bl {book}",
                "ldr x30, [sp, #24]", "add sp, sp, #48", "ret", ".cfi_endproc",
                i = const $i,
                known = sym $crate::sys::libc::OPERATOR,
                address_bits = const $crate::sys::libc::ADDRESS_BITS,
                real = sym $real,
                book = sym $book);
        }
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! entry_operator_delete {
    ($name:ident, $i:expr, $book:path) => {
        /// Entry stub: see `hook::operator`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::jump_to_operator!(),
                "stp x0, x1, [sp, #-32]!", ".cfi_adjust_cfa_offset 32",
                "stp x2, x30, [sp, #16]", ".cfi_rel_offset x30, 24",
                "mov w1, #{i}", "mov x2, x30", "bl {book}", "mov x9, x0",
                "ldp x2, x30, [sp, #16]", "ldp x0, x1, [sp], #32", ".cfi_adjust_cfa_offset -32", "br x9",
                ".cfi_endproc", i = const $i,
                known = sym $crate::sys::libc::OPERATOR,
                address_bits = const $crate::sys::libc::ADDRESS_BITS,
                book = sym $book);
        }
    };
}

/// See `x86_64.rs`.
#[macro_export]
macro_rules! thread_trampoline {
    ($name:ident, $begin:path) => {
        /// The start of a thread.
        ///
        /// # Safety
        /// Only as a start routine, with the pointer that the pthread_create hook made.
        #[unsafe(naked)]
        unsafe extern "C" fn $name(record: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "str x30, [sp, #-16]!",
                "bl {begin}",
                "ldr x30, [sp], #16",
                "mov x9, x0",
                "mov x0, x1",
                "br x9",
                ".cfi_endproc",
                begin = sym $begin
            );
        }
    };
}
