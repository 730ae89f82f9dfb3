//! Keys in the array of a page, in assembly: [`page_keys`](crate::account::side_table::page_keys) has the same steps in
//! Rust, and what makes an array.

/// Enters a block into the array of its page, and books it. The block is in `rax`, its requested bytes in `rdi`, its
/// class in `rsi`, the row's key in `rdx`. Jumps to 28 if the drift has passed its bound, with the row in `rcx`. Jumps
/// to 41 if the page has no array for this class, with `rax`, `rdi` and `rdx` unchanged.
macro_rules! enter_page {
    () => {
        concat!(
            "mov r9, qword ptr [rip + {wiped} + {pages}]\n",
            "mov r8, rax\n",
            "shr r8, {leaf_shift}\n",
            "cmp r8, {leaves}\n",
            "jae 41f\n",
            "test r9, r9\n",
            "je 41f\n",
            "mov r9, qword ptr [r9 + r8*8]\n",
            "test r9, r9\n",
            "je 41f\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "mov r8d, dword ptr fs:[r8 + {slot_mark}]\n",
            "mov r10d, r8d\n",
            "and r10d, {lanes} - 1\n",
            "mov ecx, eax\n",
            "shr ecx, {page_shift}\n",
            "and ecx, {leaf} - 1\n",
            "lea rcx, [r10 + rcx*{lanes}]\n",
            "mov r10, qword ptr [r9 + rcx*8]\n",
            "cmp r10b, sil\n",
            "jne 41f\n",
            "lea r9, [rip + {classes}]\n",
            "mov r9, qword ptr [r9 + rsi*8]\n",
            "mov esi, r9d\n",
            "shr r9, 32\n",
            "mov ecx, eax\n",
            "and ecx, {page} - 1\n",
            "imul rsi, rcx\n",
            "shr rsi, {quotient_shift}\n",
            "shr r10, {class_bits}\n",
            "mov rcx, rdx\n",
            "shr rcx, {row_shift} - {row_of_entry}\n",
            "add ecx, r9d\n",
            "sub ecx, edi\n",
            "mov dword ptr [r10 + rsi*4 + {entry}], ecx\n",
            "mov r10, qword ptr [rip + {lasting}]\n",
            "shl r8, {thread_shift}\n",
            "inc qword ptr [r10 + r8 + {table_inserts}]\n",
            "mov rcx, rdx\n",
            "shr rcx, {row_shift} - 6\n",
            "add rcx, r10\n",
            "add qword ptr [rcx + {alloc_requested}], rdi\n",
            "add qword ptr [rcx + {alloc_bytes}], r9\n",
            "inc qword ptr [rcx + {alloc_count}]\n",
            "sub qword ptr [rcx + {room}], r9\n",
            "js 28f\n",
            "ret\n",
        )
    };
}

/// Finds the words of the page of the block in `rdi`: the address of this thread's in `rsi`. Jumps to the label if
/// there are none. Changes `rax`, `r8` and `r9`.
macro_rules! find_page {
    ($without:literal) => {
        concat!(
            "mov r9, qword ptr [rip + {wiped} + {pages}]\n",
            "test r9, r9\n",
            concat!("je ", $without, "\n"),
            "mov rax, rdi\n",
            "shr rax, {leaf_shift}\n",
            "cmp rax, {leaves}\n",
            concat!("jae ", $without, "\n"),
            "mov r9, qword ptr [r9 + rax*8]\n",
            "test r9, r9\n",
            concat!("je ", $without, "\n"),
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "mov r8d, dword ptr fs:[r8 + {slot_mark}]\n",
            "and r8d, {lanes} - 1\n",
            "mov eax, edi\n",
            "shr eax, {page_shift}\n",
            "and eax, {leaf} - 1\n",
            "lea rax, [r8 + rax*{lanes}]\n",
            "lea rsi, [r9 + rax*8]\n",
        )
    };
}

/// Finds the entry of the block in `rdi` by the page word at `rsi`: its address in `r11`, the usable bytes in `rcx` and
/// `rsi`, the slack in `rdx`, the row's offset in `r8`. Jumps to the first label, with `rsi` unchanged, if the array
/// has no valid entry for the block. Jumps to the second label if the entry is a sample's. Changes `rax`, `r9` and
/// `r10`.
macro_rules! find_in_page {
    ($without:literal, $sampled:literal) => {
        concat!(
            "mov r10, qword ptr [rsi]\n",
            "test r10, r10\n",
            concat!("je ", $without, "\n"),
            "movzx ecx, r10b\n",
            "lea r9, [rip + {classes}]\n",
            "mov rcx, qword ptr [r9 + rcx*8]\n",
            "mov eax, ecx\n",
            "shr rcx, 32\n",
            "mov r8d, edi\n",
            "and r8d, {page} - 1\n",
            "imul rax, r8\n",
            "shr rax, {quotient_shift}\n",
            "shr r10, {class_bits}\n",
            "lea r11, [r10 + rax*4 + {entry}]\n",
            "mov r8d, dword ptr [r11]\n",
            "mov edx, r8d\n",
            "and edx, {slack_of_entry}\n",
            "cmp edx, ecx\n",
            concat!("jae ", $without, "\n"),
            "test r8d, r8d\n",
            concat!("je ", $without, "\n"),
            "mov rsi, rcx\n",
            concat!("js ", $sampled, "\n"),
            "xor r8d, edx\n",
            "shr r8d, {row_of_entry} - 6\n",
        )
    };
}
pub(super) use {enter_page, find_in_page, find_page};
