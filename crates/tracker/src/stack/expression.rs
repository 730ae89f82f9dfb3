//! DWARF expressions (DWARF 5, 2.5), limited to the operations of unwind tables and without the registers' values.

use super::arch::x86_64::{FP, RA, SP};
use super::eh_frame::Cursor;

/// Maximum number of operands on the expression's stack. PLT stubs need three.
const OPERANDS: usize = 8;

/// The possible results of an expression: a constant, `base + offset`, or `*(base + offset) + deref`.
#[derive(Clone, Copy)]
pub(super) struct Value {
    pub base: Option<Operand>,
    pub offset: i64,
    pub deref: Option<i64>,
}

/// A quantity that is unknown before the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Sp,
    Fp,
    Cfa,
}

impl Value {
    pub(super) const fn of(base: Operand, offset: i64) -> Self {
        Self { base: Some(base), offset, deref: None }
    }

    const fn constant(offset: i64) -> Self {
        Self { base: None, offset, deref: None }
    }

    fn as_constant(self) -> Option<i64> {
        (self.base.is_none() && self.deref.is_none()).then_some(self.offset)
    }

    fn plus(mut self, n: i64) -> Self {
        match &mut self.deref {
            Some(add) => *add = add.wrapping_add(n),
            None => self.offset = self.offset.wrapping_add(n),
        }
        self
    }
}

/// `None`: the expression is damaged, has other operations, or its result does not fit a `Value`. The pc is known,
/// which settles the expressions of PLT stubs, `rsp + 8 + ((rip & 15) >= 11) * 8`. Each operation has at least one
/// byte, so the loop ends.
#[cold]
pub(super) fn evaluate(mut code: Cursor<'_>, pushed: Option<Value>, pc: u64) -> Option<Value> {
    let mut stack = [Value::constant(0); OPERANDS];
    let mut depth = 0_usize;
    if let Some(value) = pushed {
        stack[0] = value;
        depth = 1;
    }
    while let Some(op) = code.u8() {
        // The number of operands that the operation takes: they are at depth and depth + 1.
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
                    SP => Value::of(Operand::Sp, offset),
                    FP => Value::of(Operand::Fp, offset),
                    RA => Value::constant((pc as i64).wrapping_add(offset)),
                    _ => return None,
                }
            }
            0x06 => match left? {
                value @ Value { base: Some(_), deref: None, .. } => Value { deref: Some(0), ..value },
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
    stack.get(depth.checked_sub(1)?).copied()
}
