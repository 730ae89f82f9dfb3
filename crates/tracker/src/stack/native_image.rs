//! Java code of a GraalVM native image: no frame pointers, no unwind tables (`.eh_frame` covers its C code only, about
//! 1 % of the text). But a compiled method's frame has one size from its prologue to its epilogue, and methods begin at
//! multiples of 16. So the rule for a pc is found by looking backwards for the prologue:
//!
//! ```text
//!                                                CFA − sp
//! Community, 21 to 25    sub  $N,%rsp            8 │ N + 8                      CFA − sp: before the instruction │ after
//! entry from C, and      push %rbp               8 │ 16
//! -H:+PreserveFrame-     [mov %rsp,%rbp]
//! Pointer                [sub $N,%rsp]          16 │ N + 16
//! Oracle GraalVM         lea  -N(%rsp),%rbx      8
//!                        cmp  limit(%r15),%rbx   8
//!                        jbe  …                  8
//!                        mov  %rbx,%rsp          8 │ N + 8
//! epilogue of all        add  $N,%rsp              │ 8, or 16 until pop %rbp
//!                        [pop %rbp]
//!                        [safepoint poll: subl|cmpl …,disp8(%r15); jle]
//!                        ret
//! ```
//!
//! A `sub` in the middle of a method (space for the x87 unit) may lie at a multiple of 16 too. But a method begins
//! behind padding, or behind an instruction that doesn't return (`call`, `jmp`, `ret`).
//! Sources: `AMD64FrameContext` and `SubstrateAMD64Backend` of oracle/graal, and the disassembly of images of 21.0,
//! 24.1 (Oracle's) and 25.0: crates/tracker/tests/unwind_image.rs compares the rules with symbols and `.debug_frame`.

use super::rule::{Base, Cfa, Rule, SavedFp};

/// Methods begin at multiples of this.
const ALIGNMENT: usize = 16;
/// No method is longer: the longest seen has 45 KiB.
const LONGEST: usize = 256 << 10;
/// Bytes after the prologue within which an entry point has saved the frame pointer.
const SAVING: usize = 160;

/// See the module comment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PrologueKind {
    Sub,
    Push,
    Limit,
}

/// A method's beginning, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Prologue {
    kind: PrologueKind,
    /// Pushed %rbp: 8, else 0.
    pushed: i32,
    /// The size of the frame, without pushed registers.
    size: i32,
    /// The offset from which on the stack pointer has its final value.
    complete: usize,
}

fn number(text: &[u8], at: usize, wide: bool) -> Option<i32> {
    if wide {
        text.get(at..)?.first_chunk().copied().map(i32::from_le_bytes)
    } else {
        text.get(at).map(|b| i32::from(*b as i8))
    }
}

/// `sub $N,%rsp` at `at`: N and the instruction's end.
fn sub(text: &[u8], at: usize) -> Option<(i32, usize)> {
    let wide = match text.get(at..at + 3)? {
        [0x48, 0x83, 0xec] => false,
        [0x48, 0x81, 0xec] => true,
        _ => return None,
    };
    Some((number(text, at + 3, wide)?, at + if wide { 7 } else { 4 }))
}

fn prologue(text: &[u8], at: usize) -> Option<Prologue> {
    let found = match text.get(at..at + 4)? {
        [0x55, rest @ ..] => {
            // mov %rsp,%rbp in either encoding
            let moved = matches!(rest, [0x48, 0x8b, 0xec] | [0x48, 0x89, 0xe5]);
            let next = at + if moved { 4 } else { 1 };
            match sub(text, next) {
                Some((size, end)) => Prologue { kind: PrologueKind::Push, pushed: 8, size, complete: end - at },
                None if moved => Prologue { kind: PrologueKind::Push, pushed: 8, size: 0, complete: 1 },
                None => return None,
            }
        }
        [0x48, 0x8d, mode @ (0x5c | 0x9c), 0x24] => {
            let wide = *mode == 0x9c;
            let size = number(text, at + 4, wide)?.checked_neg()?;
            let end = at + if wide { 8 } else { 5 };
            // cmp disp8(%r15),%rbx; jbe rel32 or rel8; mov %rbx,%rsp in either encoding
            let jump = match text.get(end..end + 6)? {
                [0x49, 0x3b, 0x5f, _, 0x0f, 0x86] => 10,
                [0x49, 0x3b, 0x5f, _, 0x76, _] => 6,
                _ => return None,
            };
            let end = end + jump;
            if !matches!(text.get(end..end + 3)?, [0x48, 0x8b, 0xe3] | [0x48, 0x89, 0xdc]) {
                return None;
            }
            Prologue { kind: PrologueKind::Limit, pushed: 0, size, complete: end + 3 - at }
        }
        _ => {
            let (size, end) = sub(text, at)?;
            Prologue { kind: PrologueKind::Sub, pushed: 0, size, complete: end - at }
        }
    };
    (found.size >= 0 && found.size % 8 == 0).then_some(found)
}

/// Whether a method begins at `at`. A push or a comparison with the limit occurs nowhere else. A plain `sub` counts if
/// a check of the stack follows it, or if the instruction in front of the `sub` doesn't continue into it.
fn begins(text: &[u8], at: usize, p: Prologue) -> bool {
    let behind = at + p.complete;
    // cmp disp8(%r15),%rsp
    if p.kind != PrologueKind::Sub || matches!(text.get(behind..behind + 3), Some([0x49, 0x3b, 0x67])) {
        return true;
    }
    let before = |n: usize| at.checked_sub(n).and_then(|i| text.get(i)).copied();
    match before(1) {
        None | Some(0xcc | 0x90 | 0xc3 | 0xf4) => true,
        // nop of several bytes, ud2
        Some(0x00) if before(3) == Some(0x1f) || before(4) == Some(0x1f) || before(5) == Some(0x1f) => true,
        Some(0x0b) if before(2) == Some(0x0f) => true,
        // jmp and call rel32, jmp rel8, jmp *reg
        _ => matches!(before(5), Some(0xe8 | 0xe9)) || matches!(before(2), Some(0xeb | 0xff)),
    }
}

/// Bytes still on the stack below the CFA, if `at` lies behind the `add` that takes this frame down.
fn epilogue(text: &[u8], at: usize, p: Prologue) -> Option<i32> {
    // Backwards over a poll (subl|cmpl $imm8,disp8(%r15); jle rel32) and pop %rbp, to the add.
    let mut i = at;
    if text.get(i.checked_sub(6)?..i)?.starts_with(&[0x0f, 0x8e]) {
        i -= 6;
    }
    if let Some([0x41, 0x83, 0x6f | 0x7f, ..]) = text.get(i.checked_sub(5)?..i) {
        i -= 5;
    }
    let popped = p.pushed != 0 && text.get(i.checked_sub(1)?) == Some(&0x5d);
    if popped {
        i -= 1;
    }
    let narrow = matches!(text.get(i.checked_sub(4)?..i), Some([0x48, 0x83, 0xc4, n]) if i32::from(*n as i8) == p.size);
    let wide = || {
        let add = text.get(i.checked_sub(7)?..i)?;
        (add.starts_with(&[0x48, 0x81, 0xc4]) && number(add, 3, true)? == p.size).then_some(())
    };
    if !narrow && wide().is_none() {
        return None;
    }
    Some(if p.pushed != 0 && !popped { 16 } else { 8 })
}

/// Where the frame pointer of a C caller lies below the CFA: entry points save it, mov %rbp,disp(%rsp).
fn saved_fp(text: &[u8], from: usize, cfa: i32) -> Option<i16> {
    let code = text.get(from..)?;
    let code = &code[..code.len().min(SAVING)];
    let at = code.windows(4).position(|w| matches!(w, [0x48, 0x89, 0x6c | 0xac, 0x24]))?;
    let offset = number(code, at + 4, code[at + 2] == 0xac)?;
    if offset < 0 || offset >= cfa - 8 {
        return None;
    }
    i16::try_from(offset - cfa).ok()
}

/// The rule for the code at offset `at` of `text`, an executable segment of an image, which begins at a multiple of 16.
/// `None`: no method begins near enough.
///
/// As for every rule, pass a return address minus one.
pub fn rule(text: &[u8], at: usize) -> Option<Rule> {
    let mut start = at & !(ALIGNMENT - 1);
    let nearest = at.saturating_sub(LONGEST);
    loop {
        if let Some(p) = prologue(text, start)
            && begins(text, start, p)
        {
            return Some(within(text, start, at, p));
        }
        start = start.checked_sub(ALIGNMENT).filter(|s| *s >= nearest)?;
    }
}

fn within(text: &[u8], start: usize, at: usize, p: Prologue) -> Rule {
    let sp = |offset| Cfa { base: Base::Sp, offset, deref: None };
    let pushed = SavedFp::Cfa(-16);
    let inside = at - start;
    if inside == 0 || (p.pushed == 0 && inside < p.complete) {
        return Rule::frame(sp(8), SavedFp::Same);
    }
    if inside < p.complete {
        return Rule::frame(sp(16), pushed);
    }
    match epilogue(text, at, p) {
        Some(8) if p.pushed != 0 => return Rule::frame(sp(8), SavedFp::Same),
        Some(16) => return Rule::frame(sp(16), pushed),
        Some(cfa) => return Rule::frame(sp(cfa), SavedFp::Lost),
        None => {}
    }
    let cfa = p.size.saturating_add(8 + p.pushed);
    let fp = if p.pushed != 0 {
        pushed
    } else {
        saved_fp(text, start + p.complete, cfa).map_or(SavedFp::Lost, SavedFp::Cfa)
    };
    Rule::frame(sp(cfa), fp)
}
