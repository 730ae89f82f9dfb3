//! The frames of a stopped thread, from its registers to its first function, as far as unwind tables prove them: bytes
//! in, frames out.
//!
//! ```text
//! registers ─▶ rules of the function ─▶ its caller's registers ─▶ … ─▶ a function without a caller
//! ```
//! Each step must hold by itself: a table has the address, the stack pointer rises, and a call ends at the return
//! address. A table may be wrong between two instructions of a function's prologue or epilogue: not every compiler
//! makes it exact there. So the words of an interrupted frame are reported too, and the caller of [`walk`] checks all
//! of them.

use std::ops::Range;

use gimli::{CfaRule, Encoding, EvaluationResult, Expression, Location, Register, RegisterRule, UnwindContext, Value};

use super::ptrace::Registers;
pub use objects::{Current, Tables};
use table::{Bytes, Rules, Table};

pub(super) mod call;
mod objects;
pub(super) mod table;

/// A deeper stack isn't walked: the thread would stand still for too long.
const MOST_FRAMES: usize = 512;
/// Bytes of rules that one walk interprets. A frame takes about fifty.
const MOST_WORK: usize = 1 << 20;
/// Steps of one expression. The longest in use, in libc's return from signals, has two.
const MOST_STEPS: u32 = 100;
/// The instruction SYSCALL.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

const REGISTERS: usize = 16;
const RSP: usize = 7;
const RETURN: Register = Register(16);
/// rbx, rbp, r12 to r15: a function leaves them as they were, unless its rules say otherwise.
const KEPT: [usize; 6] = [3, 6, 12, 13, 14, 15];

/// The part of the target's stack that was read.
pub struct Stack<'s> {
    pub at: u64,
    pub bytes: &'s [u8],
}

impl Stack<'_> {
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.bytes.len() as u64)
    }

    /// The word at an address.
    pub fn word(&self, at: u64) -> Option<u64> {
        let from = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes.get(from..)?.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// The words in a range of addresses, from the word on that has the first one.
    pub fn part(&self, range: &Range<u64>) -> &[u8] {
        let offset = |at: u64| at.saturating_sub(self.at).min(self.bytes.len() as u64) as usize;
        self.bytes.get(offset(range.start) & !7..offset(range.end)).unwrap_or_default()
    }
}

/// What was proven.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// One address in each function on the stack, innermost first: the instruction, or the last byte of the call.
    pub pcs: Vec<u64>,
    /// Those of them where a function was interrupted, by plimsoll or by a signal.
    pub interrupted: Vec<u64>,
    /// Parts of the stack for which the tables don't vouch.
    pub unproven: Vec<Range<u64>>,
}

/// The error says which proof is missing. `code` reads the target's instructions.
pub fn walk(
    tables: &Current<'_>,
    registers: &Registers,
    stack: &Stack<'_>,
    code: impl Fn(u64, &mut [u8]) -> bool,
) -> Result<Frames, &'static str> {
    let mut now = dwarf(registers);
    let mut at = registers.rip;
    // Whether the function was interrupted at `at`, or made a call that returns there.
    let mut is_interrupted = true;
    let (mut frames, mut work) = (Frames::default(), 0);
    let mut context = UnwindContext::new();
    while frames.pcs.len() < MOST_FRAMES {
        let pc = if is_interrupted { at } else { at.checked_sub(1).ok_or("a return address is 0")? };
        let (table, address) = tables.at(pc).ok_or("code without an unwind table")?;
        let rules = table.rules(address, &mut context).ok_or("a function without unwind rules")?;
        work += rules.cost;
        if work > MOST_WORK {
            return Err("too many unwind rules");
        }
        // The kernel has put the return from a signal there; no call did.
        if !is_interrupted && !rules.is_signal && !call::ends_at(at, &code) {
            return Err("a return address that no call has");
        }
        frames.pcs.push(pc);
        if is_interrupted {
            frames.interrupted.push(pc);
        }
        let pointer = now[RSP].ok_or("no stack pointer")?;
        if matches!(rules.row.register(RETURN), Some(RegisterRule::Undefined)) {
            frames.unproven.push(pointer..stack.end());
            return Ok(frames);
        }
        let (caller, back) = caller(table, &rules, &now, stack).ok_or("a frame that its rules don't explain")?;
        let above = caller[RSP].filter(|above| *above > pointer && *above <= stack.end() && above % 8 == 0);
        let above = above.ok_or("a stack pointer that doesn't rise")?;
        if is_interrupted && !is_after(&SYSCALL, at, &code) {
            frames.unproven.push(pointer..above);
        }
        (now, at, is_interrupted) = (caller, back, rules.is_signal);
    }
    Err("too many frames")
}

type RegisterValues = [Option<u64>; REGISTERS];

fn dwarf(r: &Registers) -> RegisterValues {
    [r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15]
        .map(Some)
}

fn is_after(instruction: &[u8; 2], at: u64, code: impl Fn(u64, &mut [u8]) -> bool) -> bool {
    let mut bytes = [0; 2];
    at.checked_sub(2).is_some_and(|from| code(from, &mut bytes)) && bytes == *instruction
}

/// The caller's registers and where it goes on.
fn caller(table: &Table, rules: &Rules<'_>, now: &RegisterValues, stack: &Stack<'_>) -> Option<(RegisterValues, u64)> {
    let section = table.section();
    let get = |register: Register| now.get(usize::from(register.0)).copied().flatten();
    let cfa = match rules.row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => get(*register)?.checked_add_signed(*offset)?,
        CfaRule::Expression(expression) => evaluate(expression.get(&section).ok()?, None, now, stack)?,
    };
    let value = |rule: RegisterRule<usize>, same: Option<u64>| match rule {
        RegisterRule::SameValue => same,
        RegisterRule::Offset(offset) => stack.word(cfa.checked_add_signed(offset)?),
        RegisterRule::ValOffset(offset) => cfa.checked_add_signed(offset),
        RegisterRule::Register(register) => get(register),
        RegisterRule::Expression(expression) => {
            stack.word(evaluate(expression.get(&section).ok()?, Some(cfa), now, stack)?)
        }
        RegisterRule::ValExpression(expression) => evaluate(expression.get(&section).ok()?, Some(cfa), now, stack),
        _ => None,
    };
    let mut caller: RegisterValues = [None; REGISTERS];
    for (number, into) in caller.iter_mut().enumerate() {
        let same = now[number];
        *into = match rules.row.register(Register(number as u16)) {
            Some(rule) => value(rule, same),
            None if number == RSP => Some(cfa),
            None => same.filter(|_| KEPT.contains(&number)),
        };
    }
    Some((caller, value(rules.row.register(RETURN)?, None)?))
}

/// The value of an expression. It may read the stack and the registers.
fn evaluate(
    expression: Expression<Bytes<'_>>,
    cfa: Option<u64>,
    now: &RegisterValues,
    stack: &Stack<'_>,
) -> Option<u64> {
    let encoding = Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(MOST_STEPS);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let mut result = evaluation.evaluate().ok()?;
    for _ in 0..MOST_STEPS {
        result = match result {
            EvaluationResult::Complete => match evaluation.result().first()?.location {
                Location::Address { address } => return Some(address),
                _ => return None,
            },
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = now.get(usize::from(register.0)).copied().flatten()?;
                evaluation.resume_with_register(Value::Generic(value)).ok()?
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                evaluation.resume_with_memory(Value::Generic(stack.word(address)?)).ok()?
            }
            _ => return None,
        };
    }
    None
}
