//! Call frame instructions are a program. Run up to a pc, it yields that pc's row of the unwind table (DWARF 5, 6.4.2).
//! A rule needs the CFA, the frame pointer and the return address of that row.

use super::arch::x86_64::{FP, RA, SP};
use super::eh_frame::{Cursor, Fde};
use super::expression::{Operand, Value, evaluate};
use super::rule::{Base, Cfa, Rule, SavedFp};

/// Longest program that is run, in bytes: a damaged length could span the whole mapping.
const LONGEST: usize = 1 << 16;
/// Rows that `remember_state` can put aside. Compilers nest it once or twice.
const REMEMBERED: usize = 6;

#[derive(Clone, Copy)]
struct Row {
    cfa: CfaRule,
    fp: Saved,
    ra: Saved,
    /// The caller's stack pointer isn't the CFA: code that switches stacks.
    sp_elsewhere: bool,
}

/// `register + offset`, or `*(register + offset) + deref`.
#[derive(Clone, Copy)]
struct CfaRule {
    base: Register,
    offset: i32,
    deref: Option<i8>,
}

impl CfaRule {
    const NONE: Self = Self { base: Register::Other, offset: 0, deref: None };
}

#[derive(Clone, Copy)]
enum Register {
    /// A register that a walk does not follow, or an expression that a rule cannot express.
    Other,
    Sp,
    Fp,
}

/// Where a register of the caller was saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    Same,
    Undefined,
    Cfa(i32),
    Fp(i32),
    Other,
}

/// Stands for all offsets that do not fit; no frame has it.
const FAR: i32 = i32::MIN;

fn offset(n: i64) -> i32 {
    i32::try_from(n).unwrap_or(FAR)
}

pub(super) fn run(fde: &Fde<'_>, pc: u64) -> Option<Rule> {
    if fde.cie.program.len().max(fde.program.len()) > LONGEST {
        return None;
    }
    let mut machine = Machine {
        fde,
        pc,
        location: fde.first,
        row: Row::START,
        initial: Row::START,
        remembered: [Row::START; REMEMBERED],
        depth: 0,
    };
    machine.execute(&fde.cie.program)?;
    machine.initial = machine.row;
    machine.execute(&fde.program)?;
    machine.row.rule()
}

struct Machine<'a> {
    fde: &'a Fde<'a>,
    pc: u64,
    location: u64,
    row: Row,
    initial: Row,
    remembered: [Row; REMEMBERED],
    depth: usize,
}

impl Machine<'_> {
    /// Each instruction is at least a byte long, so the program's length bounds its steps.
    fn execute(&mut self, code: &Cursor<'_>) -> Option<()> {
        let mut code = *code;
        let (code_factor, data_factor) = (self.fde.cie.code_factor, self.fde.cie.data_factor);
        let factored = |n: u64| offset((n as i64).wrapping_mul(data_factor));
        // One match, so that each instruction costs one jump. Instructions that set the location reach the end of the
        // match, where the row may turn out to be the requested one. All others continue.
        while let Some(op) = code.u8() {
            let operand = u64::from(op & 0x3f);
            let location = match op {
                // Padding.
                0x00 => continue,
                // The location.
                0x40..=0x7f => self.location.wrapping_add(operand.wrapping_mul(code_factor)),
                0x02 => self.location.wrapping_add(u64::from(code.u8()?).wrapping_mul(code_factor)),
                0x03 => self.location.wrapping_add(u64::from(code.u16()?).wrapping_mul(code_factor)),
                0x04 => self.location.wrapping_add(u64::from(code.u32()?).wrapping_mul(code_factor)),
                0x01 => code.pointer(self.fde.cie.pointer, 0)?,
                // The CFA.
                0x0e => {
                    self.row.cfa.offset = offset(code.uleb()? as i64);
                    continue;
                }
                0x0c => {
                    self.cfa_register(code.uleb()?);
                    self.row.cfa.offset = offset(code.uleb()? as i64);
                    continue;
                }
                0x0d => {
                    self.cfa_register(code.uleb()?);
                    continue;
                }
                0x12 => {
                    self.cfa_register(code.uleb()?);
                    self.row.cfa.offset = factored(code.sleb()? as u64);
                    continue;
                }
                0x13 => {
                    self.row.cfa.offset = factored(code.sleb()? as u64);
                    continue;
                }
                0x0f => {
                    let n = code.uleb()?;
                    self.row.cfa = cfa_expression(code.block(n)?, self.pc).unwrap_or(CfaRule::NONE);
                    continue;
                }
                // Rows put aside.
                0x0a => {
                    *self.remembered.get_mut(self.depth)? = self.row;
                    self.depth += 1;
                    continue;
                }
                0x0b => {
                    self.depth = self.depth.checked_sub(1)?;
                    self.row = *self.remembered.get(self.depth)?;
                    continue;
                }
                // Registers.
                0x80..=0xbf => {
                    let n = code.uleb()?;
                    if matches!(operand, FP | RA | SP) {
                        self.set(operand, Saved::Cfa(factored(n)));
                    }
                    continue;
                }
                0xc0..=0xff => {
                    self.restore(operand);
                    continue;
                }
                0x2e => {
                    code.uleb()?; // the size of pushed arguments: only landing pads need it
                    continue;
                }
                _ => {
                    code = self.rare(op, code, data_factor)?;
                    continue;
                }
            };
            if location > self.pc {
                return Some(());
            }
            self.location = location;
        }
        Some(())
    }

    /// The register rules that compilers rarely write. Takes and returns the cursor by value: see `Cursor::leb_tail`.
    #[cold]
    fn rare<'c>(&mut self, op: u8, mut code: Cursor<'c>, data_factor: i64) -> Option<Cursor<'c>> {
        let factored = |n: i64| offset(n.wrapping_mul(data_factor));
        let register = code.uleb()?;
        let saved = match op {
            0x05 => Saved::Cfa(factored(code.uleb()? as i64)),
            0x11 => Saved::Cfa(factored(code.sleb()?)),
            0x2f => Saved::Cfa(factored((code.uleb()? as i64).wrapping_neg())),
            0x06 => {
                self.restore(register);
                return Some(code);
            }
            0x07 => Saved::Undefined,
            0x08 => Saved::Same,
            // In another register, or a value instead of an address.
            0x09 | 0x14 => {
                code.uleb()?;
                Saved::Other
            }
            0x15 => {
                code.sleb()?;
                Saved::Other
            }
            0x16 => {
                let n = code.uleb()?;
                code.block(n)?;
                Saved::Other
            }
            0x10 => {
                let n = code.uleb()?;
                match evaluate(code.block(n)?, Some(Value::of(Operand::Cfa, 0)), self.pc) {
                    Some(Value { base: Some(Operand::Cfa), offset: at, deref: None }) => Saved::Cfa(offset(at)),
                    Some(Value { base: Some(Operand::Fp), offset: at, deref: None }) => Saved::Fp(offset(at)),
                    _ => Saved::Other,
                }
            }
            _ => return None,
        };
        self.set(register, saved);
        Some(code)
    }

    #[inline(always)]
    fn set(&mut self, register: u64, saved: Saved) {
        match register {
            FP => self.row.fp = saved,
            RA => self.row.ra = saved,
            SP => self.row.sp_elsewhere = saved != Saved::Same,
            _ => {}
        }
    }

    fn restore(&mut self, register: u64) {
        match register {
            FP => self.row.fp = self.initial.fp,
            RA => self.row.ra = self.initial.ra,
            SP => self.row.sp_elsewhere = self.initial.sp_elsewhere,
            _ => {}
        }
    }

    fn cfa_register(&mut self, to: u64) {
        self.row.cfa.base = match to {
            SP => Register::Sp,
            FP => Register::Fp,
            _ => Register::Other,
        };
        self.row.cfa.deref = None;
    }
}

impl Row {
    /// No register is known: all zero, which makes a machine cheap to set up.
    const START: Self = Self { cfa: CfaRule::NONE, fp: Saved::Same, ra: Saved::Same, sp_elsewhere: false };

    fn rule(self) -> Option<Rule> {
        match self.ra {
            Saved::Undefined => return Some(Rule::END),
            Saved::Cfa(-8) if !self.sp_elsewhere => {}
            _ => return None,
        }
        let CfaRule { base, offset, deref } = self.cfa;
        let base = match base {
            Register::Sp => Base::Sp,
            Register::Fp => Base::Fp,
            Register::Other => return None,
        };
        if offset == FAR {
            return None;
        }
        let near = |offset: i32, saved: fn(i16) -> SavedFp| i16::try_from(offset).map_or(SavedFp::Lost, saved);
        let fp = match self.fp {
            Saved::Same => SavedFp::Same,
            Saved::Undefined | Saved::Other => SavedFp::Lost,
            Saved::Cfa(offset) => near(offset, SavedFp::Cfa),
            Saved::Fp(offset) => near(offset, SavedFp::Fp),
        };
        Some(Rule::frame(Cfa { base, offset, deref }, fp))
    }
}

#[cold]
fn cfa_expression(code: Cursor<'_>, pc: u64) -> Option<CfaRule> {
    let value = evaluate(code, None, pc)?;
    let base = match value.base? {
        Operand::Sp => Register::Sp,
        Operand::Fp => Register::Fp,
        Operand::Cfa => return None,
    };
    let deref = match value.deref {
        Some(add) => Some(i8::try_from(add).ok()?),
        None => None,
    };
    Some(CfaRule { base, offset: offset(value.offset), deref })
}
