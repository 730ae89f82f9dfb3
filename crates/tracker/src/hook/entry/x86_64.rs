//! x86-64: the entry stubs and the thread trampoline. `sys/x86_64.rs` describes how the stack is aligned.
//!
//! All are macros that take the hook as an argument: a hook imports its entry, and an entry no hook.

/// Defines an exported entry for calls with one to four integer arguments. It adds two: the stack pointer at entry,
/// where the return address lies, and the caller's frame pointer.
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
            core::arch::naked_asm!(".cfi_startproc", $sp, $fp, $crate::tail_jump!(), ".cfi_endproc", t = sym $target);
        }
    };
}

/// Defines an exported entry that jumps to `$target` with unchanged arguments.
#[macro_export]
macro_rules! entry_plain {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", $crate::tail_jump!(), ".cfi_endproc", t = sym $target);
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

/// Defines an exported entry for calls with up to six integer arguments. All six registers are kept. The stack pointer
/// at entry and the frame pointer follow on the stack as seventh and eighth argument.
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

/// Defines an exported entry of a variadic function. The hook gets two addresses: that of the stored argument
/// registers, and that of the arguments on the stack.
#[macro_export]
macro_rules! entry_variadic {
    ($name:ident, $target:path) => {
        /// Entry stub: see the hook of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "lea rax, [rsp + 8]",
                $crate::align_stack!(),
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "mov rsi, rax",
                "call {t}",
                $crate::restore_stack!(),
                "ret",
                ".cfi_endproc",
                t = sym $target
            );
        }
    };
}

/// Calls `{b}` with the arguments kept, then jumps to the address that it returns. `{b}` gets the caller's address as
/// its fourth argument, so the fourth argument of the call becomes its fifth.
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

/// Defines an exported entry that calls `$before` with the arguments kept, then jumps to the address that it returns.
/// To the real function it looks as if the program had called it directly (dlopen and dlsym look at their caller).
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

/// Defines syscall(2): a jump to the real one, except for the numbers that `hook::calls` lists. Of those, some are
/// called and booked by a hook; for the others a hook only examines the arguments first.
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
                "cmp edi, {numbers}",
                "jae 4f",
                "bt dword ptr [rip + {caught}], edi",
                "jc 5f",
                "4: jmp qword ptr [rip + {pass_through}]",
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
                numbers = const $numbers,
                caught = sym $caught,
                booked = sym $booked,
                book = sym $book,
                pass_through = sym $others
            );
        }
    };
}

/// Defines syscall(2) for as long as the address of the real one is unknown.
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

/// Defines an exported entry that calls `$before` with the arguments kept. The result of `$before` decides: the entry
/// jumps on, or it calls the real function and then `$after` with the result, and returns the result.
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
                "mov rdi, rax",
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

/// Defines the target of the exported free over an allocator other than glibc's: it adds the stack pointer and
/// continues in the hook.
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
                "mov rsi, rsp",
                $crate::tail_jump!(),
                ".cfi_endproc",
                t = sym $target
            );
        }
    };
}

/// Jumps to the real operator number `i`, if its address is final and it calls malloc or free, or to the function that
/// takes its place. A word of [`sys::libc::OPERATOR`](crate::sys::libc::OPERATOR) without marks is that address; 0, and
/// a word with a mark, fall through.
#[macro_export]
macro_rules! jump_to_operator {
    () => {
        "mov rax, [rip + {known} + 8 * {i}]
        lea r11, [rax - 1]
        shr r11, {address_bits}
        jne 3f
        jmp rax
        3:"
    };
}

/// Defines operator new number `$i`. The real operator, which `$real` finds, is called from here, so that its exceptions pass no Rust frame.
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
                $crate::align_stack!(),
                "push rdi",
                "push rsi",
                "push rdx",
                "sub rsp, 8",
                "mov edi, {i}",
                "call {real}",
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
                "call {book}",
                $crate::restore_stack!(),
                "ret",
                ".cfi_endproc",
                i = const $i,
                known = sym $crate::sys::libc::OPERATOR,
                address_bits = const $crate::sys::libc::ADDRESS_BITS,
                real = sym $real,
                book = sym $book
            );
        }
    };
}

/// Defines operator delete number `$i`.
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
                $crate::align_stack!(),
                "push rdi",
                "push rsi",
                "push rdx",
                "sub rsp, 8",
                "mov esi, {i}",
                "mov rdx, [rbp + 8]",
                "call {book}",
                "mov rdx, [rsp + 8]",
                "mov rsi, [rsp + 16]",
                "mov rdi, [rsp + 24]",
                $crate::restore_stack!(),
                "jmp rax",
                ".cfi_endproc",
                i = const $i,
                known = sym $crate::sys::libc::OPERATOR,
                address_bits = const $crate::sys::libc::ADDRESS_BITS,
                book = sym $book
            );
        }
    };
}

/// Defines the start of a thread made by pthread_create. `$begin` returns the program's routine and its argument (rax,
/// rdx). A tail jump follows, so that no frame of ours lies below the program's (pthread_exit and pthread_cancel unwind
/// to libc's).
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
                "sub rsp, 8",
                "call {begin}",
                "add rsp, 8",
                "mov rdi, rdx",
                "jmp rax",
                ".cfi_endproc",
                begin = sym $begin
            );
        }
    };
}
