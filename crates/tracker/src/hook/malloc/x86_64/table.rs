//! The side table's newest level in assembly: `account/side_table` has the same steps in Rust, for all levels.
//!
//! An entry is one word ([`side_table`](crate::account::side_table)). An index into a level, times eight, has its low
//! three bits above the low three bits of an address. So the entries of a bucket have addresses that differ in bits 3
//! to 5 only.

/// Enters the block in `rax`, of `rsi` usable and `rdi` requested bytes, with the row's key in `rdx`, and books it.
/// Jumps to 28 if the drift has passed its bound, with the row in `rcx`, and to 29 if another level must take the
/// entry. Keeps `rax`, `rdx`, `rdi` and `rsi` until then. Begins at 34.
macro_rules! enter_table {
    () => {
        concat!(
            // An earlier block's trailer must not pass for this one's. The program hasn't got these bytes yet.
            "34: mov qword ptr [rax + rsi - 8], 0\n",
            "mov r8, rax\n",
            "ror r8, 3\n",
            "shr r8, 45\n",
            "jne 29f\n",
            "mov r10, qword ptr [rip + {table} + {newest}]\n",
            "test r10, r10\n",
            "je 29f\n",
            "movabs r8, {factor}\n",
            "imul r8, rax\n",
            "mov ecx, r10d\n",
            "mov r9, r8\n",
            "shr r9, cl\n",
            "and r10, -64\n",
            "lea r9, [r10 + r9*8]\n",
            "cmp qword ptr [r9], 0\n",
            "jne 37f\n",
            "36: shl r8, 7\n",
            "or r8, {used}\n",
            "mov rcx, rsi\n",
            "sub rcx, rdi\n",
            "shl rcx, {slack_shift}\n",
            "or r8, rcx\n",
            "mov rcx, rdx\n",
            "shr rcx, {row_shift}\n",
            "or r8, rcx\n",
            "mov r10, rax\n",
            "xor eax, eax\n",
            "lock cmpxchg qword ptr [r9], r8\n",
            "mov rax, r10\n",
            "jne 29f\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "mov r8d, dword ptr fs:[r8 + {slot_mark}]\n",
            "shl r8, {thread_shift}\n",
            "add r8, qword ptr [rip + {lasting}]\n",
            "inc qword ptr [r8 + {table_inserts}]\n",
            "shl rcx, 6\n",
            "add rcx, qword ptr [rip + {lasting}]\n",
            "add qword ptr [rcx + {alloc_requested}], rdi\n",
            "add qword ptr [rcx + {alloc_bytes}], rsi\n",
            "inc qword ptr [rcx + {alloc_count}]\n",
            "sub qword ptr [rcx + {room}], rsi\n",
            "js 28f\n",
            "ret\n",
            // Another entry of the bucket.
            "37: mov ecx, 8\n",
            "38: mov r10, r9\n",
            "xor r10, rcx\n",
            "cmp qword ptr [r10], 0\n",
            "je 39f\n",
            "add ecx, 8\n",
            "cmp ecx, {bucket} * 8\n",
            "jne 38b\n",
            "jmp 29f\n",
            "39: mov r9, r10\n",
            "jmp 36b\n",
        )
    };
}

/// Finds the entry of the block in `rdi`, of `rsi` usable bytes, and continues at 28: its address in `r11`, the row and
/// the slack in `rdx`. Jumps to the label if the newest level hasn't got the entry, or if it is a sample's. Changes
/// `rcx` and `r8` to `r11`.
macro_rules! find_in_table {
    ($without:literal) => {
        concat!(
            // A forked process that no handler prepared has no secret: its keys are its parent's.
            "cmp qword ptr [rip + {wiped} + {secret}], 0\n",
            concat!("je ", $without, "\n"),
            "mov r8, rdi\n",
            "ror r8, 3\n",
            "shr r8, 45\n",
            concat!("jne ", $without, "\n"),
            "mov r10, qword ptr [rip + {table} + {newest}]\n",
            "test r10, r10\n",
            concat!("je ", $without, "\n"),
            "movabs r8, {factor}\n",
            "imul r8, rdi\n",
            "mov ecx, r10d\n",
            "mov r9, r8\n",
            "shr r9, cl\n",
            "and r10, -64\n",
            "lea r11, [r10 + r9*8]\n",
            "shl r8, 7\n",
            "or r8, {used}\n",
            "mov rdx, qword ptr [r11]\n",
            "xor rdx, r8\n",
            // Neither another block nor a sample.
            "cmp rdx, {sampled}\n",
            "jb 28f\n",
            "mov ecx, 8\n",
            "mov r10, r11\n",
            "27: mov r11, r10\n",
            "xor r11, rcx\n",
            "mov rdx, qword ptr [r11]\n",
            "xor rdx, r8\n",
            "cmp rdx, {sampled}\n",
            "jb 28f\n",
            "add ecx, 8\n",
            "cmp ecx, {bucket} * 8\n",
            "jne 27b\n",
            concat!("jmp ", $without, "\n"),
        )
    };
}
pub(super) use {enter_table, find_in_table};
