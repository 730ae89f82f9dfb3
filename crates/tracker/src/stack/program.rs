//! Call frame instructions: a program that, run up to a pc, yields that pc's row of the unwind table (DWARF 5, 6.4.2),
//! of which a rule needs the CFA, the frame pointer and the return address.

use super::arch::x86_64::{FP, RA, SP};
use super::cfi::{Cursor, Fde};
use super::read::Memory;
use super::rule::{Base, Cfa, Rule, SavedFp};

/// A damaged length could make a program of 4 GiB.
const STEP_LIMIT: u32 = 1 << 14;
/// Compilers nest `remember_state` once or twice.
const REMEMBERED: usize = 6;
/// Expressions of PLT stubs need three.
const OPERANDS: usize = 8;

#[derive(Clone, Copy)]
struct Row {
    cfa: CfaRule,
    fp: Saved,
    ra: Saved,
    /// The caller's stack pointer is the CFA, as everywhere but in code that switches stacks.
    sp_is_cfa: bool,
}

#[derive(Clone, Copy)]
enum CfaRule {
    Register(u64, i64),
    Expression(Value),
    Other,
}

/// Where a register of the caller was saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    Same,
    Undefined,
    Cfa(i64),
    Fp(i64),
    Other,
}

pub(super) fn run<M: Memory>(fde: &Fde<'_, M>, pc: u64) -> Option<Rule> {
    let start = Row { cfa: CfaRule::Other, fp: Saved::Same, ra: Saved::Same, sp_is_cfa: true };
    let mut machine =
        Machine { fde, pc, location: fde.first, row: start, initial: start, remembered: [start; REMEMBERED], depth: 0 };
    machine.execute(fde.cie.program)?;
    machine.initial = machine.row;
    machine.execute(fde.program)?;
    machine.row.rule()
}

struct Machine<'a, 'm, M> {
    fde: &'a Fde<'m, M>,
    pc: u64,
    location: u64,
    row: Row,
    initial: Row,
    remembered: [Row; REMEMBERED],
    depth: usize,
}

impl<M: Memory> Machine<'_, '_, M> {
    fn execute(&mut self, mut code: Cursor<'_, M>) -> Option<()> {
        let data_factor = self.fde.cie.data_factor;
        let factored = |n: u64| (n as i64).wrapping_mul(data_factor);
        for _ in 0..STEP_LIMIT {
            if code.is_empty() {
                return Some(());
            }
            let op = code.u8()?;
            let operand = u64::from(op & 0x3f);
            let advance = match op >> 6 {
                1 => operand,
                2 => {
                    let offset = code.uleb()?;
                    self.set(operand, Saved::Cfa(factored(offset)));
                    continue;
                }
                3 => {
                    self.restore(operand);
                    continue;
                }
                _ => match op {
                    0x00 => continue,
                    0x01 => {
                        let to = code.pointer(self.fde.cie.pointer, 0)?;
                        if to > self.pc {
                            return Some(());
                        }
                        self.location = to;
                        continue;
                    }
                    0x02 => u64::from(code.u8()?),
                    0x03 => u64::from(code.u16()?),
                    0x04 => u64::from(code.u32()?),
                    _ => {
                        self.rule_instruction(op, &mut code, factored)?;
                        continue;
                    }
                },
            };
            self.location = self.location.wrapping_add(advance.wrapping_mul(self.fde.cie.code_factor));
            if self.location > self.pc {
                return Some(());
            }
        }
        None
    }

    #[inline(always)]
    fn rule_instruction(&mut self, op: u8, code: &mut Cursor<'_, M>, factored: impl Fn(u64) -> i64) -> Option<()> {
        let minus = |n: u64| (n as i64).wrapping_neg();
        match op {
            // The CFA.
            0x0c => self.row.cfa = CfaRule::Register(code.uleb()?, code.uleb()? as i64),
            0x12 => self.row.cfa = CfaRule::Register(code.uleb()?, factored(code.sleb()? as u64)),
            0x0d => self.cfa_register(code.uleb()?),
            0x0e => self.cfa_offset(code.uleb()? as i64),
            0x13 => self.cfa_offset(factored(code.sleb()? as u64)),
            0x0f => {
                let n = code.uleb()?;
                let value = evaluate(code.block(n)?, None, self.pc);
                self.row.cfa = value.map_or(CfaRule::Other, CfaRule::Expression);
            }
            // Rows put aside.
            0x0a => {
                *self.remembered.get_mut(self.depth)? = self.row;
                self.depth += 1;
            }
            0x0b => {
                self.depth = self.depth.checked_sub(1)?;
                self.row = *self.remembered.get(self.depth)?;
            }
            // Registers.
            0x05 => {
                let register = code.uleb()?;
                let offset = code.uleb()?;
                self.set(register, Saved::Cfa(factored(offset)));
            }
            0x11 => {
                let register = code.uleb()?;
                let offset = code.sleb()? as u64;
                self.set(register, Saved::Cfa(factored(offset)));
            }
            0x2f => {
                let register = code.uleb()?;
                let offset = code.uleb()?;
                self.set(register, Saved::Cfa(factored(minus(offset) as u64)));
            }
            0x06 => {
                let register = code.uleb()?;
                self.restore(register);
            }
            0x07 => {
                let register = code.uleb()?;
                self.set(register, Saved::Undefined);
            }
            0x08 => {
                let register = code.uleb()?;
                self.set(register, Saved::Same);
            }
            // In another register, or a value instead of an address.
            0x09 | 0x14 => {
                let register = code.uleb()?;
                code.uleb()?;
                self.set(register, Saved::Other);
            }
            0x15 => {
                let register = code.uleb()?;
                code.sleb()?;
                self.set(register, Saved::Other);
            }
            0x16 => {
                let register = code.uleb()?;
                let n = code.uleb()?;
                code.skip(n)?;
                self.set(register, Saved::Other);
            }
            0x10 => {
                let register = code.uleb()?;
                let n = code.uleb()?;
                let block = code.block(n)?;
                if matches!(register, FP | RA | SP) {
                    let saved = match evaluate(block, Some(Value::register(Register::Cfa, 0)), self.pc) {
                        Some(Value { register: Some(Register::Cfa), offset, deref: None }) => Saved::Cfa(offset),
                        Some(Value { register: Some(Register::Fp), offset, deref: None }) => Saved::Fp(offset),
                        _ => Saved::Other,
                    };
                    self.set(register, saved);
                }
            }
            // The size of pushed arguments: only landing pads need it.
            0x2e => {
                code.uleb()?;
            }
            _ => return None,
        }
        Some(())
    }

    #[inline(always)]
    fn set(&mut self, register: u64, saved: Saved) {
        match register {
            FP => self.row.fp = saved,
            RA => self.row.ra = saved,
            SP => self.row.sp_is_cfa = saved == Saved::Same,
            _ => {}
        }
    }

    fn restore(&mut self, register: u64) {
        match register {
            FP => self.row.fp = self.initial.fp,
            RA => self.row.ra = self.initial.ra,
            SP => self.row.sp_is_cfa = self.initial.sp_is_cfa,
            _ => {}
        }
    }

    fn cfa_register(&mut self, to: u64) {
        self.row.cfa = match self.row.cfa {
            CfaRule::Register(_, offset) => CfaRule::Register(to, offset),
            _ => CfaRule::Other,
        }
    }

    #[inline(always)]
    fn cfa_offset(&mut self, to: i64) {
        self.row.cfa = match self.row.cfa {
            CfaRule::Register(register, _) => CfaRule::Register(register, to),
            _ => CfaRule::Other,
        }
    }
}

impl Row {
    fn rule(self) -> Option<Rule> {
        match self.ra {
            Saved::Undefined => return Some(Rule::END),
            Saved::Cfa(-8) if self.sp_is_cfa => {}
            _ => return None,
        }
        let value = match self.cfa {
            CfaRule::Register(SP, offset) => Value::register(Register::Sp, offset),
            CfaRule::Register(FP, offset) => Value::register(Register::Fp, offset),
            CfaRule::Expression(value) => value,
            _ => return None,
        };
        let base = match value.register? {
            Register::Sp => Base::Sp,
            Register::Fp => Base::Fp,
            Register::Cfa => return None,
        };
        let deref = match value.deref {
            Some(add) => Some(i8::try_from(add).ok()?),
            None => None,
        };
        let near = |offset: i64, place: fn(i16) -> SavedFp| i16::try_from(offset).map_or(SavedFp::Lost, place);
        let fp = match self.fp {
            Saved::Same => SavedFp::Same,
            Saved::Undefined | Saved::Other => SavedFp::Lost,
            Saved::Cfa(offset) => near(offset, SavedFp::Cfa),
            Saved::Fp(offset) => near(offset, SavedFp::Fp),
        };
        Some(Rule::frame(Cfa { base, offset: i32::try_from(value.offset).ok()?, deref }, fp))
    }
}

/// What an expression can come to without the registers' values: a constant, `register + offset`, or
/// `*(register + offset) + add`.
#[derive(Clone, Copy)]
struct Value {
    register: Option<Register>,
    offset: i64,
    deref: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Register {
    Sp,
    Fp,
    Cfa,
}

impl Value {
    const fn register(register: Register, offset: i64) -> Self {
        Self { register: Some(register), offset, deref: None }
    }
    const fn constant(offset: i64) -> Self {
        Self { register: None, offset, deref: None }
    }
    fn as_constant(self) -> Option<i64> {
        (self.register.is_none() && self.deref.is_none()).then_some(self.offset)
    }
    fn plus(mut self, n: i64) -> Self {
        match &mut self.deref {
            Some(add) => *add = add.wrapping_add(n),
            None => self.offset = self.offset.wrapping_add(n),
        }
        self
    }
}

/// A DWARF expression (DWARF 5, 2.5), evaluated as far as a rule can hold its value. The pc is known, which settles
/// those of PLT stubs: `rsp + 8 + ((rip & 15) >= 11) * 8`.
fn evaluate<M: Memory>(mut code: Cursor<'_, M>, pushed: Option<Value>, pc: u64) -> Option<Value> {
    let mut stack = [Value::constant(0); OPERANDS];
    let mut depth = 0_usize;
    if let Some(value) = pushed {
        stack[0] = value;
        depth = 1;
    }
    for _ in 0..STEP_LIMIT {
        if code.is_empty() {
            return stack.get(depth.checked_sub(1)?).copied();
        }
        let op = code.u8()?;
        // How many operands it takes: they stand at depth, depth + 1.
        let takes = match op {
            0x06 | 0x23 => 1,
            0x1a | 0x1c | 0x22 | 0x24 | 0x2a => 2,
            _ => 0,
        };
        let top = depth.checked_sub(1).and_then(|top| stack.get(top)).copied();
        depth = depth.checked_sub(takes)?;
        let left = stack.get(depth).copied();
        let result = match op {
            0x96 => continue,
            0x08 => Value::constant(i64::from(code.u8()?)),
            0x09 => Value::constant(i64::from(code.u8()? as i8)),
            0x0a => Value::constant(i64::from(code.u16()?)),
            0x0b => Value::constant(i64::from(code.u16()? as i16)),
            0x0c => Value::constant(i64::from(code.u32()?)),
            0x0d => Value::constant(i64::from(code.u32()? as i32)),
            0x0e | 0x0f => Value::constant(code.u64()? as i64),
            0x10 => Value::constant(code.uleb()? as i64),
            0x11 => Value::constant(code.sleb()?),
            0x12 => top?,
            0x30..=0x4f => Value::constant(i64::from(op - 0x30)),
            0x70..=0x8f => {
                let offset = code.sleb()?;
                match u64::from(op - 0x70) {
                    SP => Value::register(Register::Sp, offset),
                    FP => Value::register(Register::Fp, offset),
                    RA => Value::constant((pc as i64).wrapping_add(offset)),
                    _ => return None,
                }
            }
            0x06 => match left? {
                Value { register: Some(register), offset, deref: None } => {
                    Value { register: Some(register), offset, deref: Some(0) }
                }
                _ => return None,
            },
            0x23 => left?.plus(code.uleb()? as i64),
            0x22 => match (left?, top?) {
                (value, n) if n.as_constant().is_some() => value.plus(n.offset),
                (n, value) if n.as_constant().is_some() => value.plus(n.offset),
                _ => return None,
            },
            0x1c => left?.plus(top?.as_constant()?.wrapping_neg()),
            0x1a => Value::constant(left?.as_constant()? & top?.as_constant()?),
            0x24 => {
                let bits = u32::try_from(top?.as_constant()?).ok()?;
                Value::constant(left?.as_constant()?.checked_shl(bits).unwrap_or(0))
            }
            0x2a => Value::constant(i64::from(left?.as_constant()? >= top?.as_constant()?)),
            _ => return None,
        };
        *stack.get_mut(depth)? = result;
        depth += 1;
    }
    None
}
