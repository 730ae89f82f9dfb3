//! The walk of a stopped thread by its objects' unwind tables, before `attach` borrows the thread. Object, registers
//! and stack belong to the target's user.
//!
//! ```text
//! 0  length of the object u32   4  rip and the sixteen registers of DWARF, u64 each   140  object (ELF)   then the stack
//! ```
//! `plimsoll` is a program, which no other crate can import, so its files are compiled here too.

use plimsoll_facts::snapshot::Vma;
use plimsoll_facts::units::{AddressRange, Avma};

use ptrace::Registers;
use walker::{Frames, Stack, Tables, walk};

#[path = "../../../crates/cli/src/attach/native/unwind/mod.rs"]
pub mod walker;

/// Stands for the program's `ptrace` module, which makes the system calls.
pub mod ptrace {
    /// The registers that the walk reads (`struct user_regs_struct`).
    #[derive(Debug, Default)]
    pub struct Registers {
        pub rip: u64,
        pub rax: u64,
        pub rdx: u64,
        pub rcx: u64,
        pub rbx: u64,
        pub rsi: u64,
        pub rdi: u64,
        pub rbp: u64,
        pub rsp: u64,
        pub r8: u64,
        pub r9: u64,
        pub r10: u64,
        pub r11: u64,
        pub r12: u64,
        pub r13: u64,
        pub r14: u64,
        pub r15: u64,
    }
}

/// Where the object and the stack are in the process.
pub const BASE: u64 = 0x5555_5555_0000;
pub const STACK: u64 = 0x7fff_0000_0000;
const MAPPED: u64 = 1 << 20;
const REGISTERS: usize = 17;

fn registers(bytes: &[u8]) -> Registers {
    let (words, _) = bytes.as_chunks::<8>();
    let of = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    Registers {
        rip: of(0),
        rax: of(1),
        rdx: of(2),
        rcx: of(3),
        rbx: of(4),
        rsi: of(5),
        rdi: of(6),
        rbp: of(7),
        rsp: of(8),
        r8: of(9),
        r9: of(10),
        r10: of(11),
        r11: of(12),
        r12: of(13),
        r13: of(14),
        r14: of(15),
        r15: of(16),
    }
}

/// `None`: the input is too short.
pub fn walked(bytes: &[u8]) -> Option<Result<Frames, &'static str>> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (words, rest) = rest.split_at_checked(8 * REGISTERS)?;
    let (object, bytes) = rest.split_at((u32::from_le_bytes(*length) as usize).min(rest.len()));
    let range = AddressRange::new(Avma(BASE), Avma(BASE + MAPPED));
    let vmas = [Vma { range, executable: true, inode: 1, ..Vma::default() }];
    let mut tables = Tables::default();
    tables.add(object, &[&vmas[0]]);
    let registers = registers(words);
    let stack = Stack { at: STACK, bytes };
    let code = |at: u64, into: &mut [u8]| {
        let from = at.checked_sub(BASE).and_then(|from| usize::try_from(from).ok());
        let read = from.and_then(|from| object.get(from..)?.get(..into.len()));
        read.map(|read| into.copy_from_slice(read)).is_some()
    };
    for end in walker::call::ends_of_indirect(object) {
        let at = BASE + end as u64;
        assert!(at < BASE + 7 || walker::call::ends_at(at, code), "no call ends at {end}");
    }
    let frames = walk(&tables.current(&vmas), &registers, &stack, code);
    if let Ok(frames) = &frames {
        assert_eq!(frames.pcs.first(), Some(&registers.rip), "the first frame is the interrupted one");
        assert!(frames.pcs.iter().all(|pc| (BASE..BASE + MAPPED).contains(pc)), "a frame outside of the code");
        assert!(frames.unproven.windows(2).all(|pair| pair[0].end <= pair[1].start), "the stack pointer falls");
        assert!(frames.unproven.iter().all(|part| stack.part(part).len() <= stack.bytes.len()));
        assert_eq!(frames.unproven.last().map(|part| part.end), Some(stack.end()), "the stack is not covered");
    }
    Some(frames)
}

pub fn run(bytes: &[u8]) {
    walked(bytes);
}
