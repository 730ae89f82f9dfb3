//! What malloc and free over glibc and over other allocators have in common: where fields lie, and pieces of assembly.
//!
//! Registers in all of them: the block or the requested bytes in `rdi`, the thread's state in `r9`, the remembered
//! entry in `rdx`. Labels: 21 and 22 leave the fast path, 24 continues it.

use crate::account::blocks::{REQUESTED_SHIFT, ROW_SHIFT, TABLE_FROM};
use crate::account::memo::entry::Memo;
use crate::account::thread::ThreadState;
use crate::segment::slots::{SHARED_BYTES, Shared};
use crate::sys::libc::Call;
use core::mem::offset_of;
use plimsoll_segment::{Row, Section};

const _: () = assert!(ROW_SHIFT == 28 && REQUESTED_SHIFT == 48 && Row::BYTES == 64, "the shifts below");
const _: () = assert!(size_of::<Memo>() == 192, "three times 64, below");
/// Where the rows begin in a segment.
pub(super) const ROWS: usize = Section::Rows.offset();

/// Where fields lie, for the assembly in `entry_straight`.
#[allow(missing_docs, reason = "each is documented at its field")]
pub mod at {
    use super::*;
    pub const COUNTDOWN: usize = offset_of!(ThreadState, countdown);
    pub const MEMO: isize = offset_of!(Shared, memo) as isize - SHARED_BYTES as isize;
    pub const MASK: usize = offset_of!(ThreadState, memo_mask_64);
    pub const CATEGORY: usize = offset_of!(ThreadState, category_tag);
    pub const TAG: usize = offset_of!(Memo, tag);
    pub const SP: usize = offset_of!(Memo, sp);
    pub const OFFSETS: usize = offset_of!(Memo, offsets);
    pub const WORDS: usize = offset_of!(Memo, words);
    pub const ROW: usize = offset_of!(Memo, row);
    pub const ROW_KEY: usize = offset_of!(Memo, row_key);
    pub const ALLOC_REQUESTED: usize = offset_of!(Row, alloc_requested);
    pub const ALLOC_BYTES: usize = offset_of!(Row, alloc_bytes);
    pub const ALLOC_COUNT: usize = offset_of!(Row, alloc_count);
    pub const ROOM: usize = offset_of!(Row, room);
    pub const CALLER: usize = offset_of!(Row, caller);
    pub const REAL_MALLOC: usize = Call::malloc as usize * 8;
    pub const CHUNK_END: usize = TABLE_FROM / 4 - 1;
    pub const ROW_BITS: u32 = ROW_SHIFT;
}

/// Finds the entry of the remembered stack for the call whose return address lies at `rsp`, with the state in `r9`, and
/// compares its words. Continues at 24 if all are the same, with the entry in `rdx`. Jumps to 22 if the entry is
/// another call's, to 45 if one of the words differs, and to 23 if the entry hasn't one to three words. Changes `rcx`,
/// `rdx`, `r10` and `r11` only.
#[macro_export]
macro_rules! recall_stack {
    () => {
        concat!(
            // The entry: as in `memo::entry::bucket`.
            "mov rcx, qword ptr [rsp]\n",
            "lea rdx, [rsp + rcx*8]\n",
            "imul edx, edx, {hash}\n",
            "and edx, dword ptr [r9 + {mask}]\n",
            "lea rdx, [rdx + rdx*2]\n",
            "add rdx, qword ptr [r9 + {memo}]\n",
            "or rcx, qword ptr [r9 + {category}]\n",
            "cmp rcx, qword ptr [rdx + {tag}]\n",
            "jne 22f\n",
            "cmp rsp, qword ptr [rdx + {sp}]\n",
            "jne 23f\n",
            "29:\n",
            $crate::compare_three!("rdx"),
            "jne 45f\n",
        )
    };
}

/// Compares the first three words of an entry with the stack at `rsp`: the flags say whether all are the same. One
/// branch decides. With a branch for each word, the CPU would mispredict which of the words distinguishes two stacks.
/// Changes `rcx`, `r10` and `r11`.
#[macro_export]
macro_rules! compare_three {
    ($entry:literal) => {
        concat!(
            concat!("movzx ecx, word ptr [", $entry, " + {offsets} + 4]\n"),
            concat!("movzx r10d, word ptr [", $entry, " + {offsets} + 2]\n"),
            concat!("movzx r11d, word ptr [", $entry, " + {offsets}]\n"),
            "mov rcx, qword ptr [rsp + rcx]\n",
            "mov r10, qword ptr [rsp + r10]\n",
            "mov r11, qword ptr [rsp + r11]\n",
            concat!("xor rcx, qword ptr [", $entry, " + {words} + 16]\n"),
            concat!("xor r10, qword ptr [", $entry, " + {words} + 8]\n"),
            concat!("xor r11, qword ptr [", $entry, " + {words}]\n"),
            "or rcx, r10\n",
            "or rcx, r11\n",
        )
    };
}

/// Label 45: looks into the second bucket of the leader in `rdx`, as `memo::entry::second_bucket` finds it, and into
/// the one beside it. Continues at 24 with an entry of one to three words that matches. More words, and a leader that
/// is replaced, are handled in Rust, at 22. If the Rust code finds an entry, it continues at 24 too, and else falls
/// through. Changes every register that a call may, but `rdi` and `r9`; sets `rax`, `rdx` and `r8` as `recall_stack`
/// leaves them.
#[macro_export]
macro_rules! recall_second {
    () => {
        concat!(
            "45: movzx ecx, word ptr [rdx + {offsets}]\n",
            "mov rsi, qword ptr [rsp + rcx]\n",
            "rol rsi, {rotate_0}\n",
            "movzx ecx, word ptr [rdx + {offsets} + 2]\n",
            "mov r10, qword ptr [rsp + rcx]\n",
            "rol r10, {rotate_1}\n",
            "xor rsi, r10\n",
            "movzx ecx, word ptr [rdx + {offsets} + 4]\n",
            "mov r10, qword ptr [rsp + rcx]\n",
            "rol r10, {rotate_2}\n",
            "xor rsi, r10\n",
            "mov r10, rsp\n",
            "shl r10, 3\n",
            "xor rsi, r10\n",
            "xor rsi, qword ptr [rdx + {tag}]\n",
            "movabs r11, {second_hash}\n",
            "imul rsi, r11\n",
            "shr rsi, {second_shift} - 6\n",
            "and esi, dword ptr [r9 + {mask}]\n",
            "mov r8d, esi\n",
            "mov eax, 2\n",
            "46: lea rsi, [r8 + r8*2]\n",
            "add rsi, qword ptr [r9 + {memo}]\n",
            "mov rcx, qword ptr [rdx + {tag}]\n",
            "cmp rcx, qword ptr [rsi + {tag}]\n",
            "jne 47f\n",
            "cmp rsp, qword ptr [rsi + {sp}]\n",
            "jne 47f\n",
            $crate::compare_three!("rsi"),
            "jne 47f\n",
            "cmp dword ptr [rdx + {passed_over}], {patience} - 1\n",
            "jae 22f\n",
            "inc dword ptr [rdx + {passed_over}]\n",
            "mov rdx, rsi\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "lea rax, [rdi + 8]\n",
            "jmp 24b\n",
            // The bucket beside it.
            "47: xor r8d, 64\n",
            "dec eax\n",
            "jne 46b\n",
            "22: push rdi\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push r9\n",
            ".cfi_adjust_cfa_offset 8\n",
            "mov rdi, r9\n",
            "lea rsi, [rsp + 16]\n",
            "mov rdx, rbp\n",
            "call {second}\n",
            "pop r9\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rdi\n",
            ".cfi_adjust_cfa_offset -8\n",
            "mov rdx, rax\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "lea rax, [rdi + 8]\n",
            "test rdx, rdx\n",
            "jne 24b\n",
        )
    };
}

/// Label 23: entries with other numbers of words. The low bits of the entry's stack pointer say whether it has none, up
/// to seven, or more. Words are compared outermost first, in groups with their own exit. More than seven words, at 26:
/// the tail's by fours, then six, then those of *seven*, since unused words of an entry are always the same. Only an
/// entry with guards is compared in Rust. Keeps `rdi`, `r9` and `rdx`; leaves `rax` and `r8` as `recall_stack` does.
#[macro_export]
macro_rules! recall_more_words {
    () => {
        concat!(
            "23: mov rcx, qword ptr [rdx + {sp}]\n",
            "xor rcx, rsp\n",
            "cmp rcx, {none}\n",
            "je 24b\n",
            "cmp rcx, {seven}\n",
            "jne 26f\n",
            "55: movzx ecx, word ptr [rdx + {offsets} + 12]\n",
            "mov rcx, qword ptr [rsp + rcx]\n",
            "cmp rcx, qword ptr [rdx + {words} + 48]\n",
            "jne 22f\n",
            "movzx ecx, word ptr [rdx + {offsets} + 10]\n",
            "mov rcx, qword ptr [rsp + rcx]\n",
            "cmp rcx, qword ptr [rdx + {words} + 40]\n",
            "jne 22f\n",
            "movzx ecx, word ptr [rdx + {offsets} + 8]\n",
            "mov rcx, qword ptr [rsp + rcx]\n",
            "cmp rcx, qword ptr [rdx + {words} + 32]\n",
            "jne 22f\n",
            "movzx ecx, word ptr [rdx + {offsets} + 6]\n",
            "mov rcx, qword ptr [rsp + rcx]\n",
            "cmp rcx, qword ptr [rdx + {words} + 24]\n",
            "jne 22f\n",
            "cmp byte ptr [rdx + {uses_fp}], 0\n",
            "je 29b\n",
            "cmp rbp, qword ptr [rdx + {fp}]\n",
            "je 29b\n",
            "jmp 22f\n",
            "26: cmp rcx, {more}\n",
            "jne 22f\n",
            "mov rsi, qword ptr [rdx + {tail}]\n",
            "test rsi, rsi\n",
            "jne 57f\n",
            // As `memo::entry::same`.
            "56: movzx ecx, word ptr [rdx + {offsets} + 24]\n",
            "movzx r10d, word ptr [rdx + {offsets} + 22]\n",
            "movzx r11d, word ptr [rdx + {offsets} + 20]\n",
            "mov rcx, qword ptr [rsp + rcx]\n",
            "mov r10, qword ptr [rsp + r10]\n",
            "mov r11, qword ptr [rsp + r11]\n",
            "xor rcx, qword ptr [rdx + {words} + 96]\n",
            "xor r10, qword ptr [rdx + {words} + 88]\n",
            "xor r11, qword ptr [rdx + {words} + 80]\n",
            "or rcx, r10\n",
            "or rcx, r11\n",
            "jne 22f\n",
            "movzx ecx, word ptr [rdx + {offsets} + 18]\n",
            "movzx r10d, word ptr [rdx + {offsets} + 16]\n",
            "movzx r11d, word ptr [rdx + {offsets} + 14]\n",
            "mov rcx, qword ptr [rsp + rcx]\n",
            "mov r10, qword ptr [rsp + r10]\n",
            "mov r11, qword ptr [rsp + r11]\n",
            "xor rcx, qword ptr [rdx + {words} + 72]\n",
            "xor r10, qword ptr [rdx + {words} + 64]\n",
            "xor r11, qword ptr [rdx + {words} + 56]\n",
            "or rcx, r10\n",
            "or rcx, r11\n",
            "je 55b\n",
            "jmp 22f\n",
            // As `Tail::same`, from the last four to the first: `rcx` counts down, `r8` has the difference.
            "57: cmp word ptr [rsi + {tail_guards}], 0\n",
            "jne 59f\n",
            "movzx ecx, word ptr [rsi + {tail_words}]\n",
            "lea rax, [rsi + rcx*8]\n",
            "xor r8d, r8d\n",
            "58: movzx r10d, word ptr [rax + rcx*2 + {tail_values} - 2]\n",
            "movzx r11d, word ptr [rax + rcx*2 + {tail_values} - 4]\n",
            "mov r10, qword ptr [rsp + r10*8]\n",
            "mov r11, qword ptr [rsp + r11*8]\n",
            "xor r10, qword ptr [rsi + rcx*8 + {tail_values} - 8]\n",
            "xor r11, qword ptr [rsi + rcx*8 + {tail_values} - 16]\n",
            "or r8, r10\n",
            "or r8, r11\n",
            "movzx r10d, word ptr [rax + rcx*2 + {tail_values} - 6]\n",
            "movzx r11d, word ptr [rax + rcx*2 + {tail_values} - 8]\n",
            "mov r10, qword ptr [rsp + r10*8]\n",
            "mov r11, qword ptr [rsp + r11*8]\n",
            "xor r10, qword ptr [rsi + rcx*8 + {tail_values} - 24]\n",
            "xor r11, qword ptr [rsi + rcx*8 + {tail_values} - 32]\n",
            "or r8, r10\n",
            "or r8, r11\n",
            "sub ecx, 4\n",
            "jne 58b\n",
            "test r8, r8\n",
            "jne 22f\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "lea rax, [rdi + 8]\n",
            "jmp 56b\n",
            "59: push rdi\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push r9\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rdx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "mov rdi, rdx\n",
            "lea rsi, [rsp + 24]\n",
            "mov rdx, rbp\n",
            "call {same}\n",
            "pop rdx\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop r9\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rdi\n",
            ".cfi_adjust_cfa_offset -8\n",
            "test al, al\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "lea rax, [rdi + 8]\n",
            "jne 24b\n",
        )
    };
}

/// Checks the trailer in the last eight bytes of a block. Jumps to the label if there is none, else leaves its row's
/// offset in `r8` and the trailer in `rdx`. `rdi` is the block, `rcx` the bytes in front of the trailer.
macro_rules! check_trailer {
    ($without:literal) => {
        concat!(
            "mov rdx, qword ptr [rdi + rcx]\n",
            "xor rdx, rdi\n",
            "xor rdx, qword ptr [rip + {wiped} + {secret}]\n",
            "test edx, {check}\n",
            concat!("jne ", $without, "\n"),
            "mov r8, rdx\n",
            "shl r8, 16\n",
            "shr r8, 38\n",
        )
    };
}

/// Books a release in the row with its offset in `r8`, and jumps to the real free. Jumps to 25 if the row isn't this
/// thread's, and to 22 if the drift has passed its bound. Label 26 continues with a row of this thread in `r8`. `rcx`
/// has the bytes. `$take` leaves the requested bytes in `rdx`, and takes the key out of the block.
macro_rules! book_free {
    () => {
        book_free!("shr rdx, 48\n", "mov qword ptr [rdi + rcx], 0\n")
    };
    ($($take:literal),*) => {
        concat!(
            "add r8, qword ptr [rip + {lasting}]\n",
            "mov r9, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "mov r10d, dword ptr fs:[r9 + {slot_mark}]\n",
            "cmp r10d, dword ptr [r8 + {slot}]\n",
            "jne 25f\n",
            "26:\n",
            $($take,)*
            "add qword ptr [r8 + {free_bytes}], rcx\n",
            "add qword ptr [r8 + {free_requested}], rdx\n",
            "inc qword ptr [r8 + {free_count}]\n",
            "add qword ptr [r8 + {room}], rcx\n",
            "mov rcx, qword ptr fs:[r9 + {room_span}]\n",
            "cmp qword ptr [r8 + {room}], rcx\n",
            "jg 22f\n",
            "jmp qword ptr [rip + {real} + {real_free}]\n",
        )
    };
}

/// Label 25 of [`book_free`]: finds the thread's own row for the caller of the row in `r8`, by a hint of
/// [`remote_free`](crate::account::remote_free); jumps to 21 if there is none. Changes `rax` and `r8`. `$bound`
/// compares an offset with the mapped rows.
macro_rules! own_row_of_other {
    ($($bound:literal),*) => {
        concat!(
            "25: cmp dword ptr [r8 + {slot}], 0\n",
            "je 21f\n",
            "test r10d, r10d\n",
            "je 21f\n",
            "mov rax, r8\n",
            "sub rax, qword ptr [rip + {lasting}]\n",
            "shr rax, 6\n",
            "imul r9d, r10d, {spread}\n",
            "add eax, r9d\n",
            "and eax, {hints_mask}\n",
            "lea r9, [rip + {hints}]\n",
            "mov eax, dword ptr [r9 + rax*4]\n",
            "shl rax, 6\n",
            $($bound,)*
            "add rax, qword ptr [rip + {lasting}]\n",
            "cmp r10d, dword ptr [rax + {slot}]\n",
            "jne 21f\n",
            "mov r9d, dword ptr [rax + {caller}]\n",
            "cmp r9d, dword ptr [r8 + {caller}]\n",
            "jne 21f\n",
            "mov r8, rax\n",
            "mov r9, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "jmp 26b\n",
        )
    };
}
pub(super) use {book_free, check_trailer, own_row_of_other};
