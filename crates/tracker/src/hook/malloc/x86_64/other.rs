//! malloc and free over an allocator other than glibc's, as long as nothing unusual happens: assembly for x86-64.
//!
//! ```text
//! malloc   small enough │ no sample due │ the remembered stack, each word compared │ the row's key kept on the stack │ state given
//!          back │ the real one │ jemalloc, tcmalloc: entry of the page's array
//!                              │ others: trailer if eight bytes are left, else an entry of the side table │ the row's four numbers
//! free     the page's array, else the trailer at the place known for the page, else by the size that the allocator reports,
//!          else the table's entry │ the row is this thread's │ entry or trailer cleared │ four numbers │ on to the real one
//! ```
//!
//! The allocator's own calls of these functions aren't the program's. No stack of such a call is ever remembered, and
//! its blocks have no key. So only the paths after a miss look at the caller.
//!
//! Over glibc the state is kept during the real call ([`super::glibc`]). Other allocators map memory and make threads
//! inside malloc, and these calls go through the hooks. So the state is given back before the real call, and row and
//! key are on the stack. The row stays this thread's: only the thread's end and new books give rows up, and new books
//! wait until all hooks have returned. Each counter is one instruction, so a signal handler may add to the same row
//! meanwhile.
//!
//! [`slow`](super::super::slow) has the same steps in Rust, which run on other CPUs.

use super::pages::{enter_page, find_in_page, find_page};
use super::parts::{ROWS, at, book_free, check_trailer, own_row_of_other};
use super::table::{enter_table, find_in_table};
use crate::account::blocks::{CHECKED, NO_TRAILERS, TABLE_FROM, TRAILER};
use crate::account::classes::{ADDED_BYTES, IN_PAGE, QUERY, QUERY_MASK, SIZES, WITHOUT_TRAILER};
use crate::account::memo::entry::{self as memo, Memo};
use crate::account::memo::second_entry;
use crate::account::page_sizes::{LAST, PAGE_SHIFT, PAGES};
use crate::account::remote_free::{self, HINTS};
use crate::account::side_table::levels::Levels;
use crate::account::side_table::page_keys;
use crate::account::side_table::{FACTOR, SAMPLED, SLACK_SHIFT, SMALL, USED};
use crate::hook::malloc::slow::off_path;
use crate::segment::windows::MAPPED;
use crate::segment::{self, LASTING, WIPED};
use crate::sys::cpu::{ROOM_SPAN, SLOT_MARK};
use crate::sys::libc::{ALLOCATOR, Call, REAL};
use core::mem::offset_of;
use plimsoll_segment::{Row, Section, Thread};

const _: () = assert!(TRAILER == 8 && size_of::<Row>() == 64, "the shifts below");
/// Where the record of the thread with slot mark 0 would lie: a mark is a slot's number + 1.
const THREADS: usize = Section::Threads.offset() - size_of::<Thread>();
const THREAD_SHIFT: u32 = size_of::<Thread>().trailing_zeros();
const _: () = assert!(size_of::<Thread>().is_power_of_two());

/// malloc(3), after the entry has found this thread's state (in `r9`; the offset of its thread-local word in `r8`), and
/// that the request isn't below the bound of glibc's fast path.
///
/// # Safety
/// Reached by a jump from the entry only.
#[unsafe(naked)]
pub unsafe extern "C" fn malloc(n: usize) -> *mut u8 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, qword ptr [rip + {wiped} + {below}]",
        "jae 20f",
        "mov qword ptr fs:[r8], 0",
        "lea rax, [rdi + 8]",
        "sub qword ptr [r9 + {countdown}], rax",
        "js 21f",
        crate::recall_stack!(),
        // Once the state is given back, a signal handler may replace the entry.
        "24: lea rcx, [rip + {sizes}]",
        "movzx ecx, word ptr [rcx + rdi*2]",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push qword ptr [rdx + {row_key}]",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "mov qword ptr fs:[r8], r9",
        "test cl, {without_trailer}",
        "jne 27f",
        "add rdi, qword ptr [rip + {added}]",
        "call qword ptr [rip + {real} + {real_malloc}]",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "je 25f",
        "test dword ptr [rip + {query_mask}], eax",
        "je 33f",
        "31: mov rcx, rdx",
        "shr rcx, {row_shift} - 6",
        "add rcx, qword ptr [rip + {lasting}]",
        "add qword ptr [rcx + {alloc_requested}], rdi",
        "shl rdi, 48",
        "or rdi, rdx",
        "xor rdi, rax",
        "xor rdi, qword ptr [rip + {wiped} + {secret}]",
        "mov qword ptr [rax + rsi], rdi",
        "add qword ptr [rcx + {alloc_bytes}], rsi",
        "inc qword ptr [rcx + {alloc_count}]",
        "sub qword ptr [rcx + {room}], rsi",
        "js 28f",
        "ret",
        "20: mov rsi, rsp",
        "mov rdx, rbp",
        "jmp {slow}",
        "21: mov rsi, rsp",
        "mov rdx, rbp",
        "mov rcx, r9",
        "jmp {sampled}",
        crate::recall_more_words!(),
        crate::recall_second!(),
        "mov rsi, rsp",
        "mov rdx, rbp",
        "mov rcx, r9",
        "jmp {walk}",
        // No memory: takes back what was counted for the sampling.
        "25: mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]",
        "mov r9, qword ptr fs:[r8]",
        "test r9, r9",
        "je 32f",
        "add rdi, 8",
        "add qword ptr [r9 + {countdown}], rdi",
        "32: ret",
        // Reached in three cases: the page has an array, the size is known to leave fewer than eight bytes, or nothing
        // is known.
        ".cfi_adjust_cfa_offset 24",
        "27: call qword ptr [rip + {real} + {real_malloc}]",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "je 25b",
        "test sil, {in_page}",
        "jne 40f",
        "cmp esi, {query}",
        "je 33f",
        "test dword ptr [rip + {query_mask}], eax",
        "je 33f",
        "dec rsi",
        enter_table!(),
        "29: mov r8, rsi",
        "30: mov rcx, r8",
        "mov rsi, rdi",
        "mov rdi, rax",
        "jmp {finish}",
        // Asks the allocator for the block's size.
        "33: cmp qword ptr [rip + {wiped} + {pages}], 0",
        "jne 41f",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rax",
        "call qword ptr [rip + {real} + {real_usable}]",
        "mov r8, rax",
        "lea rsi, [rax - 8]",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "cmp rsi, {table_from} - 8",
        "jae 30b",
        "cmp rsi, rdi",
        "jb 35f",
        "cmp byte ptr [rip + {no_trailers}], 0",
        "je 31b",
        // More slack than an entry of the newest level has bits for.
        "jmp 30b",
        "35: mov rsi, r8",
        "jmp 34b",
        "40:",
        enter_page!(),
        "28: mov rdi, rax",
        "mov esi, dword ptr [rcx + {caller}]",
        "jmp {flush}",
        "41: mov rsi, rdi",
        "mov rdi, rax",
        "jmp {new_page}",
        ".p2align 6",
        ".cfi_endproc",
        below = const segment::OTHER_BELOW_AT,
        sizes = sym SIZES,
        added = sym ADDED_BYTES,
        query_mask = sym QUERY_MASK,
        query = const QUERY,
        without_trailer = const WITHOUT_TRAILER,
        in_page = const IN_PAGE,
        pages = const segment::PAGES_AT,
        leaf_shift = const page_keys::LEAF_SHIFT,
        leaves = const page_keys::LEAVES,
        leaf = const page_keys::LEAF,
        lanes = const page_keys::LANES,
        classes = sym page_keys::CLASSES,
        quotient_shift = const page_keys::QUOTIENT_SHIFT,
        class_bits = const page_keys::CLASS_BITS,
        entry = const page_keys::ENTRY,
        row_of_entry = const page_keys::ROW_SHIFT,
        page_shift = const PAGE_SHIFT,
        page = const 1 << PAGE_SHIFT,
        table = sym SMALL,
        newest = const Levels::<1>::NEWEST_AT,
        factor = const FACTOR << 16,
        used = const USED,
        bucket = const Levels::<1>::BUCKET,
        slack_shift = const SLACK_SHIFT,
        row_shift = const at::ROW_BITS,
        slot_mark = const SLOT_MARK,
        thread_shift = const THREAD_SHIFT,
        table_inserts = const THREADS + offset_of!(Thread, table_inserts),
        countdown = const at::COUNTDOWN,
        memo = const at::MEMO,
        mask = const at::MASK,
        category = const at::CATEGORY,
        hash = const memo::HASH,
        tag = const at::TAG,
        sp = const at::SP,
        offsets = const at::OFFSETS,
        words = const at::WORDS,
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
        patience = const crate::account::memo::PATIENCE,
        rotate_0 = const memo::ROTATE[0],
        rotate_1 = const memo::ROTATE[1],
        rotate_2 = const memo::ROTATE[2],
        second_hash = const memo::SECOND_HASH,
        second_shift = const memo::SECOND_SHIFT,
        wiped = sym WIPED,
        lasting = sym LASTING,
        secret = const segment::SECRET_AT,
        alloc_requested = const ROWS + at::ALLOC_REQUESTED,
        alloc_bytes = const ROWS + at::ALLOC_BYTES,
        alloc_count = const ROWS + at::ALLOC_COUNT,
        room = const ROWS + at::ROOM,
        caller = const ROWS + at::CALLER,
        real = sym REAL,
        real_malloc = const at::REAL_MALLOC,
        real_usable = const Call::malloc_usable_size as usize * 8,
        table_from = const TABLE_FROM,
        no_trailers = sym NO_TRAILERS,
        slow = sym off_path::malloc_slow,
        sampled = sym off_path::other_sampled,
        walk = sym off_path::other_walk,
        same = sym memo::same_words,
        second = sym second_entry,
        finish = sym off_path::other_without_trailer,
        new_page = sym off_path::other_new_page,
        flush = sym off_path::other_flush,
    );
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
        find_page!("19f"),
        find_in_page!("12f", "14f"),
        "13:",
        $($bound,)*
        book_free!(
            // A thread without a slot has the mark of rows that aren't in use.
            "test r10d, r10d\n",
            "je 21f\n",
            "sub rdx, rcx\n",
            "neg rdx\n",
            "mov dword ptr [r11], 0\n",
            "shl r10, {thread_shift}\n",
            "add r10, qword ptr [rip + {lasting}]\n",
            "inc qword ptr [r10 + {table_removes}]\n"
        ),
        own_row_of_other!($($bound_of_own),*),
        "21: mov rsi, rcx",
        "14: jmp {sized}",
        "22: mov esi, dword ptr [r8 + {caller}]",
        "jmp {flush}",
        // The other lane's word.
        "12: xor rsi, 8",
        find_in_page!("19f", "14b"),
        "jmp 13b",
        "19:",
        // The trailer at the place known for the page (`account/page_sizes.rs`).
        "mov r11, rdi",
        "shr r11, {page_shift}",
        "and r11d, {pages_mask}",
        "lea r9, [rip + {last}]",
        "movzx ecx, word ptr [r9 + r11*2]",
        "test ecx, ecx",
        "je 18f",
        "mov eax, edi",
        "and eax, {page} - 1",
        "add eax, ecx",
        "cmp eax, {page} - 8",
        "ja 18f",
        check_trailer!("18f"),
        "16:",
        $($bound,)*
        book_free!(),
        own_row_of_other!($($bound_of_own),*),
        "20: ret",
        "21: lea rsi, [rcx + 8]",
        "jmp {sized}",
        "24: jmp {slow}",
        "22: mov esi, dword ptr [r8 + {caller}]",
        "jmp {flush}",
        // No trailer there.
        "18: mov rcx, qword ptr [rsp]",
        "cmp rcx, qword ptr [rip + {allocator}]",
        "jb 17f",
        "cmp rcx, qword ptr [rip + {allocator} + 8]",
        "jb 24b",
        // The allocator knows the size.
        "17: push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call qword ptr [rip + {real} + {real_usable}]",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "mov rsi, rax",
        "lea rcx, [rax - 8]",
        "cmp rcx, {table_from} - 8",
        "jae 23f",
        "cmp byte ptr [rip + {no_trailers}], 0",
        "jne 15f",
        check_trailer!("15f"),
        "mov rax, rdi",
        "shr rax, {page_shift}",
        "and eax, {pages_mask}",
        "lea r9, [rip + {last}]",
        "cmp cx, word ptr [r9 + rax*2]",
        "je 16b",
        "mov word ptr [r9 + rax*2], cx",
        "jmp 16b",
        "15:",
        find_in_table!("23f"),
        "28: mov rcx, rsi",
        "mov r8, rdx",
        "shr rdx, {slack_shift}",
        "and r8d, (1 << {slack_shift}) - 1",
        "shl r8, 6",
        $($bound,)*
        book_free!(
            // A thread without a slot has the mark of rows that aren't in use.
            "test r10d, r10d\n",
            "je 21f\n",
            "sub rdx, rcx\n",
            "neg rdx\n",
            "mov qword ptr [r11], 0\n",
            "shl r10, {thread_shift}\n",
            "add r10, qword ptr [rip + {lasting}]\n",
            "inc qword ptr [r10 + {table_removes}]\n"
        ),
        own_row_of_other!($($bound_of_own),*),
        "21: mov rsi, rcx",
        "23: jmp {sized}",
        "22: mov esi, dword ptr [r8 + {caller}]",
        "jmp {flush}",
        ".p2align 6",
        ".cfi_endproc",
        pages = const segment::PAGES_AT,
        leaf_shift = const page_keys::LEAF_SHIFT,
        leaves = const page_keys::LEAVES,
        leaf = const page_keys::LEAF,
        lanes = const page_keys::LANES,
        classes = sym page_keys::CLASSES,
        quotient_shift = const page_keys::QUOTIENT_SHIFT,
        class_bits = const page_keys::CLASS_BITS,
        entry = const page_keys::ENTRY,
        row_of_entry = const page_keys::ROW_SHIFT,
        slack_of_entry = const page_keys::SLACK,
        allocator = sym ALLOCATOR,
        real_usable = const Call::malloc_usable_size as usize * 8,
        table_from = const TABLE_FROM,
        last = sym LAST,
        no_trailers = sym NO_TRAILERS,
        pages_mask = const PAGES - 1,
        page_shift = const PAGE_SHIFT,
        page = const 1 << PAGE_SHIFT,
        wiped = sym WIPED,
        secret = const segment::SECRET_AT,
        check = const CHECKED,
        table = sym SMALL,
        newest = const Levels::<1>::NEWEST_AT,
        factor = const FACTOR << 16,
        used = const USED,
        bucket = const Levels::<1>::BUCKET,
        sampled = const SAMPLED,
        slack_shift = const SLACK_SHIFT,
        thread_shift = const THREAD_SHIFT,
        table_removes = const THREADS + offset_of!(Thread, table_removes),
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
        sized = sym off_path::free_sized,
        slow = sym crate::hook::malloc::slow::free_entry,
        flush = sym off_path::free_flush,
    );
        }
    };
}

free! {
    /// free(3).
    free, ["# {mapped} {of_rows}: all rows are mapped"], []
}
free! {
    /// As [`free`], where only a window of the rows is mapped: a word that passes for a trailer may name a row outside
    /// it.
    free_in_windows,
    ["cmp r8, qword ptr [rip + {mapped} + {of_rows}]\njae 21f"],
    ["cmp rax, qword ptr [rip + {mapped} + {of_rows}]\n", "jae 21f\n"]
}
