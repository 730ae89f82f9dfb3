//! The side table's newest level in assembly: `account/side_table` has the same steps in Rust, for all levels.
//!
//! An entry is one word ([`side_table`](crate::account::side_table)). `r10` is the address of the level, `r9` the index of the
//! entry that the hash prefers. The other entries of its bucket have an index that differs in the low bits.

/// Enters the block in `rax`, of `rsi` usable and `rdi` requested bytes, with the row's key in `rdx` and its offset in `rcx`, and
/// books it. Jumps to 28 if the drift has passed its bound, and to 29 if another level must take the entry, or an older trailer
/// is there. Keeps `rax`, `rcx`, `rdx`, `rdi` and `rsi` until then. Begins at 34.
macro_rules! enter_table {
    () => {
        concat!(
            // An earlier block's trailer must not pass for this one's.
            "34: mov r8, qword ptr [rax + rsi - 8]\n",
            "xor r8, rax\n",
            "xor r8, qword ptr [rip + {wiped} + {secret}]\n",
            "test r8d, {is_trailer}\n",
            "je 29f\n",
            "mov r8, rax\n",
            "ror r8, 3\n",
            "shr r8, 45\n",
            "jne 29f\n",
            "mov r10, qword ptr [rip + {table} + {newest}]\n",
            "test r10, r10\n",
            "je 29f\n",
            "mov r11, rcx\n",
            "mov r9, rax\n",
            "shl r9, 16\n",
            "movabs r8, {factor}\n",
            "imul r9, r8\n",
            "mov ecx, r10d\n",
            "shr r9, cl\n",
            "and r10, -64\n",
            "xor ecx, ecx\n",
            "35: mov r8, r9\n",
            "xor r8, rcx\n",
            "cmp qword ptr [r10 + r8*8], 0\n",
            "je 36f\n",
            "inc ecx\n",
            "cmp ecx, {bucket}\n",
            "jne 35b\n",
            "mov rcx, r11\n",
            "jmp 29f\n",
            "36: lea r9, [r10 + r8*8]\n",
            "mov rcx, r11\n",
            "mov r10, rax\n",
            "shl r10, 16 + 7\n",
            "movabs r8, {factor}\n",
            "imul r8, r10\n",
            "or r8, {used}\n",
            "mov r10, rsi\n",
            "sub r10, rdi\n",
            "shl r10, {slack_shift}\n",
            "or r8, r10\n",
            "mov r10, rdx\n",
            "shr r10, {row_shift}\n",
            "or r8, r10\n",
            "mov r10, rax\n",
            "xor eax, eax\n",
            "lock cmpxchg qword ptr [r9], r8\n",
            "mov rax, r10\n",
            "jne 29f\n",
            "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]\n",
            "mov r8d, dword ptr fs:[r8 + {slot_mark}]\n",
            "shl r8, {thread_shift}\n",
            "add rcx, qword ptr [rip + {lasting}]\n",
            "add r8, qword ptr [rip + {lasting}]\n",
            "inc qword ptr [r8 + {table_inserts}]\n",
            "add qword ptr [rcx + {alloc_requested}], rdi\n",
            "add qword ptr [rcx + {alloc_bytes}], rsi\n",
            "inc qword ptr [rcx + {alloc_count}]\n",
            "sub qword ptr [rcx + {room}], rsi\n",
            "js 28f\n",
            "ret\n",
        )
    };
}

/// Finds the entry of the block in `rdi`, of `rsi` usable bytes. Leaves its address in `r11`, its row's offset in `r8`, the usable
/// bytes in `rcx`, and in `rdx` how many of them weren't requested. Jumps to 21 if the newest level hasn't got the entry, or if it
/// is a sample's. Begins at 23.
macro_rules! find_in_table {
    () => {
        concat!(
            // A forked process that no handler prepared has no secret: its keys are its parent's.
            "23: cmp qword ptr [rip + {wiped} + {secret}], 0\n",
            "je 21f\n",
            "mov r8, rdi\n",
            "ror r8, 3\n",
            "shr r8, 45\n",
            "jne 21f\n",
            "mov r10, qword ptr [rip + {table} + {newest}]\n",
            "test r10, r10\n",
            "je 21f\n",
            "mov r8, rdi\n",
            "shl r8, 16\n",
            "movabs r9, {factor}\n",
            "imul r8, r9\n",
            "mov r9, r8\n",
            "mov ecx, r10d\n",
            "shr r9, cl\n",
            "and r10, -64\n",
            "shl r8, 7\n",
            "or r8, {used}\n",
            "xor ecx, ecx\n",
            "27: mov r11, r9\n",
            "xor r11, rcx\n",
            "mov rdx, qword ptr [r10 + r11*8]\n",
            "xor rdx, r8\n",
            // Neither another block nor a sample.
            "cmp rdx, {sampled}\n",
            "jb 28f\n",
            "inc ecx\n",
            "cmp ecx, {bucket}\n",
            "jne 27b\n",
            "jmp 21f\n",
            "28: lea r11, [r10 + r11*8]\n",
            "mov r8, rdx\n",
            "mov rcx, rsi\n",
            "shr rdx, {slack_shift}\n",
            "and r8d, (1 << {slack_shift}) - 1\n",
            "shl r8, 6\n",
            "cmp r8, qword ptr [rip + {mapped} + {of_rows}]\n",
            "jae 21f\n",
        )
    };
}
pub(super) use {enter_table, find_in_table};
