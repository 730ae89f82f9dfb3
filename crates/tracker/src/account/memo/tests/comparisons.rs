//! Tests that a remembered stack is recognised exactly as long as each of its words is unchanged: by the assembly of
//! malloc and by the same steps in Rust.

use super::super::entry::{self, Destination, MORE_WORDS, Memo, NO_WORDS, SEVEN_WORDS, Tail, WORDS};
use crate::stack::Entry;

/// Words of the stack from the stack pointer up, and those below it, which a signal handler may need.
const WORDS_ABOVE: usize = 4096;
const WORDS_BELOW: usize = 16 << 10;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 17) as usize % n
    }
}

/// What the assembly returns for an entry, with the registers as malloc has them: 8 if all words are unchanged and the
/// registers are as label 24 expects them, 0 if a word differs. Switches to the test's stack meanwhile; nothing unwinds
/// it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn same_in_assembly(m: *const Memo, sp: usize, fp: usize) -> u64 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbx",
        "push rbp",
        "push r12",
        "mov rbx, rsp",
        "mov r12, rdi",
        "mov rsp, rsi",
        "mov rbp, rdx",
        "mov rdx, rdi",
        "mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]",
        "lea rax, [rdi + 8]",
        "cmp rsp, qword ptr [rdx + {sp}]",
        "jne 23f",
        "29:",
        crate::compare_three!("rdx"),
        "jne 45f",
        "24: sub rax, rdi",
        "mov r9, qword ptr [rip + plimsoll_tls@GOTTPOFF]",
        "sub r8, r9",
        "sub rdx, r12",
        "sub rdi, r12",
        "or r8, rdx",
        "or r8, rdi",
        "add rax, r8",
        "jmp 20f",
        crate::recall_more_words!(),
        "45:",
        "22: xor eax, eax",
        "20: mov rsp, rbx",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        ".cfi_endproc",
        sp = const core::mem::offset_of!(Memo, sp),
        offsets = const core::mem::offset_of!(Memo, offsets),
        words = const core::mem::offset_of!(Memo, words),
        none = const NO_WORDS,
        seven = const SEVEN_WORDS,
        more = const MORE_WORDS,
        uses_fp = const Memo::USES_FP_AT,
        fp = const Memo::FP_AT,
        tail = const Memo::TAIL_AT,
        tail_words = const Memo::TAIL_WORDS_AT,
        tail_guards = const Memo::TAIL_GUARDS_AT,
        tail_values = const Memo::TAIL_VALUES_AT,
        same = sym entry::same_words,
    );
}

/// Whether every word of an entry is unchanged. Both versions must agree.
fn is_same(m: &Memo, sp: usize, fp: u64) -> bool {
    // SAFETY: each offset is inside the test's stack; the entry has no guards.
    let is_same = unsafe { entry::same(m, sp, fp as usize) };
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as above; below `sp` there is space for a signal handler, and nobody else uses it.
        let in_assembly = unsafe { same_in_assembly(m, sp, fp as usize) };
        assert_eq!(in_assembly, u64::from(is_same) * 8, "assembly and Rust");
    }
    is_same
}

/// Writes the rest of a stack's words into the memory of a tail: the words of `base` at these places.
fn write_tail(room: &mut [u64], base: *const u64, places: &[usize]) -> *mut Tail {
    let tail = room.as_mut_ptr() as *mut Tail;
    // SAFETY: the memory is zeroed, has as many bytes as a tail of these words, and is used through this pointer only.
    unsafe {
        (*tail).words = places.len() as u16;
        let t = &*tail;
        for (i, place) in places.iter().enumerate() {
            t.values().add(i).write(base.add(*place).read());
            t.offsets().add(i).write(*place as u16);
        }
    }
    tail
}

#[test]
fn each_word_of_a_remembered_stack_is_compared() {
    let mut random = Random(1);
    let mut stack: Vec<u64> = (0..WORDS_BELOW + WORDS_ABOVE).map(|_| random.next()).collect();
    let base = stack.as_mut_ptr().wrapping_add(WORDS_BELOW);
    let sp = base as usize;
    // SAFETY: a place is less than `WORDS_ABOVE`; the vector is used through this pointer only.
    let word = |place: usize| unsafe { base.add(place).read() };
    // SAFETY: as above.
    let change = |place: usize, bit: usize| unsafe { base.add(place).write(word(place) ^ 1 << bit) };
    let (mut entries, mut with_tail, mut differences) = ([0; 4], 0, 0);
    for round in 0..2_000 {
        let uses_fp = random.below(2) == 1;
        let in_tail = [0, 0, 12, 16, 24][random.below(5)];
        let words = if in_tail > 0 { WORDS } else { random.below(WORDS + 1) };
        // The return address, at 0, stands in for unused words.
        let places: Vec<usize> = (0..words + in_tail).map(|_| 1 + random.below(WORDS_ABOVE - 1)).collect();
        let fp = random.next();
        let mut m = Memo::EMPTY;
        let to = Destination { tag: 0, row_key: 0, row: 0 };
        m.begin(Entry { ra: word(0), sp: sp as u64, fp }, uses_fp, to);
        for (i, place) in places[..words].iter().enumerate() {
            m.offsets[i] = (*place * 8) as u16;
            m.words[i] = word(*place);
        }
        let mut room = vec![0u64; Tail::bytes(in_tail, 0) / 8];
        if in_tail > 0 {
            m.tail = write_tail(&mut room, base, &places[words..]);
            with_tail += 1;
        }
        m.count_words(words);
        let class = [NO_WORDS, 0, SEVEN_WORDS, MORE_WORDS].iter().position(|class| m.sp & 7 == *class);
        entries[class.expect("a class")] += 1;

        assert!(is_same(&m, sp, fp), "round {round}");
        assert_eq!(is_same(&m, sp, fp ^ 8), !uses_fp, "round {round}: the frame pointer");
        for place in &places {
            let bit = random.below(64);
            change(*place, bit);
            assert!(!is_same(&m, sp, fp), "round {round}: the word at {place} of {places:?}");
            change(*place, bit);
            differences += 1;
        }
        let other = 1 + random.below(WORDS_ABOVE - 1);
        if !places.contains(&other) {
            change(other, 0);
            assert!(is_same(&m, sp, fp), "round {round}: {other} isn't one of {places:?}");
            change(other, 0);
        }
    }
    println!("exercised: {entries:?} entries, {with_tail} with a tail, {differences} changed words");
    assert!(entries.iter().all(|n| *n > 5) && with_tail > 500 && differences > 20_000);
}
