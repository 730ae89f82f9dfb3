//! malloc and free over glibc, as long as nothing unusual happens: assembly for x86-64.
//!
//! Written by hand, since it runs for every block of the program. The compiler needs more instructions for the same
//! steps. It saves six registers for paths that a block doesn't take, and uses two for the entry's stack and frame
//! pointer. It also loads every pointer to a real function into a register. The assembly stores nothing in aligned
//! places, so it runs on any stack; the functions that it jumps to align the stack ([`crate::any_alignment`]).
//! [`portable`](super::super::portable) has the same steps in Rust.
//!
//! ```text
//! malloc   the thread's state, taken │ small enough │ no sample due │ the remembered stack, each word compared
//!          │ the real one, 8 bytes more │ the size that glibc gave │ trailer │ the row's four numbers │ state given back
//! free     the size │ the trailer's check │ the row is this thread's │ trailer cleared │ four numbers │ on to the real one
//! ```

use super::parts::{ROWS, at, book_free, check_trailer, own_row_of_other};
use crate::account::blocks::CHECKED;
use crate::account::remote_free::{self, HINTS};
use crate::hook::malloc::slow::off_path;
use crate::segment::windows::MAPPED;
use crate::segment::{self, LASTING, WIPED};
use crate::sys::cpu::{ROOM_SPAN, SLOT_MARK};
use crate::sys::libc::{Call, REAL};
use core::mem::offset_of;
use plimsoll_segment::{Row, Section};

/// Defines malloc(3) itself: the program's call comes straight here.
#[macro_export]
macro_rules! entry_straight {
    ($name:ident, $target:path) => {
        $crate::over_glibc! {
            /// See `hook::malloc::x86_64`.
            #[unsafe(no_mangle)]
            $name,
            first: [],
            beyond: "jae {other}",
            null: "je 25f",
            exits: ["jmp {slow}", "jmp {sampled}", "jmp {walk}"],
            last: [],
            other = sym $crate::hook::malloc::x86_64::other::malloc
        }
    };
}

/// Defines malloc(3), or operator new (`operators.rs`), over glibc. `$first` runs at the entry. `$beyond` leaves the path
/// after the request was compared with its bound, `$null` after the test of what malloc returned, `$exits` to the
/// functions off the path. `$last` follows the last of these.
#[macro_export]
macro_rules! over_glibc {
    (
        $(#[doc = $d:literal])* $(#[unsafe($exported:ident)])? $name:ident, first: [$($first:literal),*],
        beyond: $beyond:literal, null: $null:literal, exits: [$slow:literal, $sampled:literal, $walk:literal],
        last: [$($last:literal),*], $($operands:tt)*
    ) => {
        $(#[doc = $d])*
        ///
        /// # Safety
        /// As malloc(3).
        $(#[unsafe($exported)])?
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(n: usize) -> *mut u8 {
            use $crate::segment;
            use $crate::hook::malloc::slow::off_path;
            use $crate::account::memo::entry::{self as memo, Memo};
            use $crate::hook::malloc::x86_64::at;
            core::arch::naked_asm!(
                ".cfi_startproc",
                $($first,)*
                "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]",
                "mov r9, qword ptr fs:[r8]",
                "test r9, r9",
                "je 20f",
                "cmp rdi, qword ptr [rip + {wiped} + {below}]",
                $beyond,
                "mov qword ptr fs:[r8], 0",
                "lea rax, [rdi + 8]",
                "sub qword ptr [r9 + {countdown}], rax",
                "js 21f",
                $crate::recall_stack!(),
                // The state is taken: nobody changes the entry during the real call.
                "24: push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, rax",
                "call qword ptr [rip + {real} + {real_malloc}]",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop r9",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                $null,
                // `blocks::usable_small`
                "mov rsi, qword ptr [rax - 8]",
                "and rsi, -6",
                "rol rsi, 62",
                "cmp rsi, {chunk_end}",
                "ja 27f",
                "lea rsi, [rsi*4 - 16]",
                "mov ecx, dword ptr [rdx + {row}]",
                "add rcx, qword ptr [rip + {lasting}]",
                "add qword ptr [rcx + {alloc_requested}], rdi",
                "shl rdi, 48",
                "or rdi, qword ptr [rdx + {row_key}]",
                "xor rdi, rax",
                "xor rdi, qword ptr [rip + {wiped} + {secret}]",
                "mov qword ptr [rax + rsi], rdi",
                "add qword ptr [rcx + {alloc_bytes}], rsi",
                "inc qword ptr [rcx + {alloc_count}]",
                "sub qword ptr [rcx + {room}], rsi",
                "js 28f",
                "25: mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]",
                "mov qword ptr fs:[r8], r9",
                "ret",
                "20: mov rsi, rsp",
                "mov rdx, rbp",
                $slow,
                "21: mov rsi, rsp",
                "mov rdx, rbp",
                "mov rcx, r9",
                $sampled,
                $crate::recall_more_words!(),
                $crate::recall_second!(),
                "mov rsi, rsp",
                "mov rdx, rbp",
                "mov rcx, r9",
                $walk,
                $($last,)*
                "27: mov rcx, qword ptr [rdx + {row_key}]",
                "shr rcx, {row_shift}",
                "mov rdx, rdi",
                "mov rsi, rax",
                "mov rdi, r9",
                "jmp {large}",
                "28: mov rdi, r9",
                "mov rsi, rax",
                "mov edx, dword ptr [rcx + {caller}]",
                "jmp {flush}",
                // At the end, so that the section, and the function with it, begins on a cache line.
                ".p2align 6",
                ".cfi_endproc",
                below = const segment::BELOW_AT,
                countdown = const at::COUNTDOWN,
                memo = const at::MEMO,
                mask = const at::MASK,
                category = const at::CATEGORY,
                hash = const memo::HASH,
                tag = const at::TAG,
                sp = const at::SP,
                offsets = const at::OFFSETS,
                words = const at::WORDS,
                row = const at::ROW,
                row_key = const at::ROW_KEY,
                none = const memo::NO_WORDS,
                seven = const memo::SEVEN_WORDS,
                more = const memo::MORE_WORDS,
                uses_fp = const Memo::USES_FP_AT,
                fp = const Memo::FP_AT,
                passed_over = const Memo::PASSED_OVER_AT,
                tail = const Memo::TAIL_AT,
                tail_words = const Memo::TAIL_WORDS_AT,
                tail_guards = const Memo::TAIL_GUARDS_AT,
                tail_values = const Memo::TAIL_VALUES_AT,
                patience = const $crate::account::memo::PATIENCE,
                rotate_0 = const memo::ROTATE[0],
                rotate_1 = const memo::ROTATE[1],
                rotate_2 = const memo::ROTATE[2],
                second_hash = const memo::SECOND_HASH,
                second_shift = const memo::SECOND_SHIFT,
                row_shift = const at::ROW_BITS,
                wiped = sym segment::WIPED,
                lasting = sym segment::LASTING,
                secret = const segment::SECRET_AT,
                chunk_end = const at::CHUNK_END,
                alloc_requested = const at::ALLOC_REQUESTED,
                alloc_bytes = const at::ALLOC_BYTES,
                alloc_count = const at::ALLOC_COUNT,
                room = const at::ROOM,
                caller = const at::CALLER,
                real = sym $crate::sys::libc::REAL,
                real_malloc = const at::REAL_MALLOC,
                slow = sym off_path::malloc_slow,
                sampled = sym off_path::malloc_sampled,
                walk = sym off_path::malloc_walk,
                same = sym memo::same_words,
                second = sym $crate::account::memo::second_entry,
                large = sym off_path::finish_row,
                flush = sym off_path::flush,
                $($operands)*
            );
        }
    };
}

macro_rules! free {
    ($(#[doc = $d:literal])* $name:ident, [$($bound:literal),*], [$($bound_of_own:literal),*]) => {
        $(#[doc = $d])*
        ///
        /// # Safety
        /// As free(3).
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(p: *mut u8) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "test rdi, rdi",
        "je 20f",
        "mov rcx, qword ptr [rdi - 8]",
        "and rcx, -6",
        "rol rcx, 62",
        "cmp rcx, {chunk_end}",
        "ja 21f",
        "lea rcx, [rcx*4 - 16]",
        check_trailer!("21f"),
        $($bound,)*
        book_free!(),
        own_row_of_other!($($bound_of_own),*),
        "20: ret",
        "21: jmp {slow}",
        "22: mov esi, dword ptr [r8 + {caller}]",
        "jmp {flush}",
        ".p2align 6",
        ".cfi_endproc",
        chunk_end = const at::CHUNK_END,
        wiped = sym WIPED,
        secret = const segment::SECRET_AT,
        check = const CHECKED,
        mapped = sym MAPPED,
        of_rows = const Section::Rows as usize * 8,
        lasting = sym LASTING,
        slot_mark = const SLOT_MARK,
        room_span = const ROOM_SPAN,
        hints = sym HINTS,
        hints_mask = const remote_free::NUMBER - 1,
        spread = const remote_free::SPREAD,
        slot = const ROWS + offset_of!(Row, slot),
        free_bytes = const ROWS + offset_of!(Row, free_bytes),
        free_requested = const ROWS + offset_of!(Row, free_requested),
        free_count = const ROWS + offset_of!(Row, free_count),
        room = const ROWS + offset_of!(Row, room),
        caller = const ROWS + offset_of!(Row, caller),
        real = sym REAL,
        real_free = const Call::free as usize * 8,
        slow = sym off_path::free,
        flush = sym off_path::free_flush,
    );
        }
    };
}

free! {
    /// free(3) over glibc's malloc. The state isn't taken: each counter is one instruction, so a signal handler may add
    /// to the same row meanwhile.
    ///
    /// In a forked process that no handler prepared, the secret is zero. Real secrets are odd, so no trailer passes the
    /// check there.
    free_glibc, ["# {mapped} {of_rows}: all rows are mapped"], []
}
free! {
    /// As [`free_glibc`], where only a window of the rows is mapped: a word that passes for a trailer may name a row
    /// outside it.
    free_glibc_in_windows,
    ["cmp r8, qword ptr [rip + {mapped} + {of_rows}]", "jae 21f"],
    ["cmp rax, qword ptr [rip + {mapped} + {of_rows}]\n", "jae 21f\n"]
}
