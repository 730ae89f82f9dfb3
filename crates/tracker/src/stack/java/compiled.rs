//! Compiled methods: the Java methods, inlined into each other, that a return address stands for.
//!
//! ```text
//! PcDesc[]  { code offset i32, scope i32, objects i32, flags i32 }   by code offset; first and last are sentinels
//!     scope ─▶ stream: sender's scope (0 = outermost), index of its Method*, bci + 1, …
//! metadata  Method* by index − 1
//! ```
//! Where these lie has changed twice: in the blob (up to 22, since 9 by addresses), pcs and scopes on the C heap (23),
//! metadata there too (24 on). A number of the stream is 1 to 5 bytes, low digits first. A byte up to 191 is the last
//! one. From JDK 20 on, each byte is one more than its digit, so that none is zero (hotspot,
//! share/utilities/unsigned5.hpp).

use super::code_cache::{Blob, Vm};
use super::memory::{Bytes, load, slice};
use super::structs::NONE;

/// Maximum number of methods that are inlined into each other: C2 stops far below.
const INLINED: usize = 64;

/// A Java frame as the VM describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Virtual {
    pub method: u64,
    pub bci: Option<u16>,
    /// Inlined into the next frame further out.
    pub inlined: bool,
}

/// Distinguishes an nmethod from a later one at the same address: the word that holds its compile id, which the VM
/// never reuses.
pub fn identity_at(vm: &Vm, blob: Blob) -> u64 {
    blob.at.wrapping_add(vm.layout.compile_id as u64 & !7)
}

pub fn level(vm: &Vm, blob: Blob) -> u8 {
    load(blob.at.wrapping_add(vm.layout.level as u64)).unwrap_or(0)
}

/// Where a deoptimised frame keeps its own return address, as an offset from its stack pointer. `None`: no deoptimised
/// frame returns to `pc`.
pub fn deoptimised(vm: &Vm, blob: Blob, pc: u64) -> Option<u32> {
    let l = &vm.layout;
    let handler = |address: u32, offset: u32| match (address, offset) {
        (NONE, NONE) => None,
        (NONE, o) => load::<i32>(blob.at.wrapping_add(o as u64)).map(|o| blob.at.wrapping_add(o as u64)),
        (a, _) => load::<u64>(blob.at.wrapping_add(a as u64)),
    };
    let at_handler = handler(l.deopt, l.deopt_offset) == Some(pc) || handler(l.deopt_mh, l.deopt_mh_offset) == Some(pc);
    let offset: i32 = load(blob.at.wrapping_add(l.original_pc as u64))?;
    (at_handler && offset > 0 && offset % 8 == 0 && (offset as u32) < blob.frame).then_some(offset as u32)
}

struct Tables {
    code: u64,
    pcs: (u64, u64),
    scopes: Bytes<'static>,
    metadata: u64,
}

fn tables(vm: &Vm, blob: Blob) -> Option<Tables> {
    let l = &vm.layout;
    let at = |offset: u32| blob.at.wrapping_add(offset as u64);
    let beyond = |base: u64, offset: u32| load::<i32>(at(offset)).map(|v| base.wrapping_add_signed(i64::from(v)));
    let code = if l.blob_code != NONE { load(at(l.blob_code))? } else { beyond(blob.at, l.blob_code_offset)? };
    let (first, last, scopes, end) = if l.immutable != NONE {
        let data: u64 = load(at(l.immutable))?;
        let scopes = beyond(data, l.scopes_offset)?;
        (beyond(data, l.scope_pcs)?, scopes, scopes, beyond(data, l.immutable_size)?)
    } else {
        let (pcs, end) = (beyond(blob.at, l.scope_pcs)?, beyond(blob.at, l.dependencies)?);
        let scopes = if l.scopes != NONE { load(at(l.scopes))? } else { beyond(blob.at, l.scopes_offset)? };
        (pcs, end, scopes, pcs)
    };
    let metadata = if l.metadata != NONE {
        beyond(blob.at, l.metadata)?
    } else {
        beyond(load(at(l.blob_mutable))?, l.blob_relocations)?
    };
    let scopes = slice(scopes, usize::try_from(end.checked_sub(scopes)?).ok()?, 16 << 20)?;
    Some(Tables { code, pcs: (first, last.checked_sub(first)? / 16), scopes, metadata })
}

impl Tables {
    /// The scope of the code that ends at `pc`.
    fn scope(&self, pc: u64) -> Option<usize> {
        let wanted = i32::try_from(pc.checked_sub(self.code)?).ok()?;
        let (mut low, mut high) = (0, self.pcs.1);
        while low < high {
            let middle = (low + high) / 2;
            let at = self.pcs.0.wrapping_add(16 * middle);
            let offset: i32 = load(at)?;
            match offset.cmp(&wanted) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => {
                    return load::<i32>(at.wrapping_add(4)).and_then(|s| usize::try_from(s).ok());
                }
            }
        }
        None
    }
}

/// The Java frames of a return address in an nmethod, innermost first. `None`: nothing is known but the method itself.
pub fn frames(vm: &Vm, blob: Blob, pc: u64, mut each: impl FnMut(Virtual)) -> Option<()> {
    let tables = tables(vm, blob)?;
    let mut at = tables.scope(pc).filter(|s| *s != 0)?;
    for _ in 0..INLINED {
        let mut stream = Stream { bytes: tables.scopes, at, skips_zero: vm.skips_zero_bytes };
        let sender = stream.number()? as usize;
        let index = stream.number()? as u64;
        let bci = stream.number()?.wrapping_sub(1);
        let method = load(tables.metadata.wrapping_add(index.checked_sub(1)? * 8))?;
        let inlined = sender != 0;
        // A sender's scope is written before the scopes of the methods that were inlined into it
        // (DebugInformationRecorder).
        if sender >= at {
            return None;
        }
        each(Virtual { method, bci: u16::try_from(bci).ok().filter(|b| *b != u16::MAX), inlined });
        if !inlined {
            return Some(());
        }
        at = sender;
    }
    None
}

/// The method an nmethod was compiled from.
pub fn method(vm: &Vm, blob: Blob) -> Option<u64> {
    load(blob.at.wrapping_add(vm.layout.method as u64))
}

/// A compressed stream of numbers.
pub struct Stream<'a> {
    pub bytes: Bytes<'a>,
    pub at: usize,
    pub skips_zero: bool,
}

impl Stream<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let b = self.bytes.byte(self.at)?;
        self.at += 1;
        Some(b)
    }

    /// Σ digit · 64^i; a digit of 192 or more (191 with zero bytes skipped) is followed by another.
    pub fn number(&mut self) -> Option<u32> {
        let skip = self.skips_zero as u32;
        let mut sum = 0u32;
        for i in 0..5 {
            let b = (self.byte()? as u32).checked_sub(skip)?;
            sum = sum.wrapping_add(b << (6 * i));
            if b < 192 - skip {
                break;
            }
        }
        Some(sum)
    }

    /// A number in zig-zag form.
    pub fn signed(&mut self) -> Option<i32> {
        self.number().map(|n| (n >> 1) as i32 ^ -((n & 1) as i32))
    }
}
