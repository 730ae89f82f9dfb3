//! The import tables of one loaded object, from its bytes: which words the loader has filled with a function's address.
//!
//! ```text
//! dynamic     tag i64, value u64 …, DT_NULL         where the tables lie
//! DT_RELA     offset u64, symbol u32 << 32 | kind u32, addend i64      GLOB_DAT and plain pointers (data, RELRO)
//! DT_JMPREL   the same                                                 JUMP_SLOT: the procedure linkage table's
//! DT_SYMTAB   name u32, info u8, other u8, section u16, value u64, size u64        section 0: defined elsewhere
//! DT_STRTAB   names, NUL-terminated
//! ```
//! DT_RELR holds relative relocations only, and those name no symbol. (System V ABI; x86-64 and AArch64 supplements.)

/// The kinds of relocation that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationKind {
    /// Through the procedure linkage table: perhaps not bound yet.
    Call,
    /// An address in a table or in data.
    Pointer,
}

#[cfg(target_arch = "x86_64")]
mod machine {
    pub const ABSOLUTE: u32 = 1; // R_X86_64_64
    pub const GLOBAL: u32 = 6; // R_X86_64_GLOB_DAT
    pub const CALL: u32 = 7; // R_X86_64_JUMP_SLOT
}
#[cfg(target_arch = "aarch64")]
mod machine {
    pub const ABSOLUTE: u32 = 257; // R_AARCH64_ABS64
    pub const GLOBAL: u32 = 1025; // R_AARCH64_GLOB_DAT
    pub const CALL: u32 = 1026; // R_AARCH64_JUMP_SLOT
}
pub use machine::*;

const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const DT_PLTREL: u64 = 20;
const DT_TEXTREL: u64 = 22;
const DT_JMPREL: u64 = 23;

const RELA: usize = 24;
const SYMBOL: usize = 24;

/// The tables of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables<'a> {
    rela: &'a [u8],
    plt: &'a [u8],
    symbols: &'a [u8],
    strings: &'a [u8],
    /// Its code was relocated too: those words lie in no data.
    pub relocates_text: bool,
}

/// A word that the loader fills with the address of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its address (Svma).
    pub at: u64,
    /// Index of the symbol.
    pub symbol: u32,
    /// Through the procedure linkage table or not.
    pub kind: RelocationKind,
}

/// The name of a symbol, and whether the object defines it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Without its NUL.
    pub name: &'a [u8],
    /// Defined in the same object.
    pub is_own: bool,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl<'a> Tables<'a> {
    /// Finds the tables of an object loaded at `bias`. `memory` returns the bytes at an address: the requested number,
    /// or all up to the end of the mapping. A table that is missing or lies outside is empty.
    pub fn find(dynamic: &[u8], bias: u64, memory: impl Fn(u64, Option<u64>) -> Option<&'a [u8]>) -> Tables<'a> {
        let value = |tag: u64| {
            let entries = dynamic.chunks_exact(16).map(|e| (u64_at(e, 0), u64_at(e, 8)));
            entries.take_while(|e| e.0 != Some(0)).find(|e| e.0 == Some(tag)).and_then(|e| e.1)
        };
        // glibc relocates these pointers in place, except where the dynamic section is read-only.
        let pointer = |tag| value(tag).map(|v| if v < bias { v.wrapping_add(bias) } else { v });
        let table = |at: u64, bytes: u64| {
            let (at, bytes) = (pointer(at)?, value(bytes)?);
            memory(at, Some(bytes))
        };
        let is_rela = value(DT_PLTREL).is_none_or(|kind| kind == DT_RELA);
        Tables {
            rela: table(DT_RELA, DT_RELASZ).unwrap_or_default(),
            plt: if is_rela { table(DT_JMPREL, DT_PLTRELSZ).unwrap_or_default() } else { &[] },
            symbols: pointer(DT_SYMTAB).and_then(|at| memory(at, None)).unwrap_or_default(),
            strings: table(DT_STRTAB, DT_STRSZ).unwrap_or_default(),
            relocates_text: value(DT_TEXTREL).is_some(),
        }
    }

    /// All words that hold the address of a symbol with nothing added.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<'a> {
        let slot = |e: &[u8]| {
            let (at, info, addend) = (u64_at(e, 0)?, u64_at(e, 8)?, u64_at(e, 16)?);
            let kind = match info as u32 {
                CALL => RelocationKind::Call,
                // On x86-64 the addend of the first two kinds isn't used.
                GLOBAL => RelocationKind::Pointer,
                ABSOLUTE if addend == 0 => RelocationKind::Pointer,
                _ => return None,
            };
            let symbol = (info >> 32) as u32;
            (symbol != 0).then_some(Slot { at, symbol, kind })
        };
        // Some linkers include the second table in the first: a word that is met twice is already patched the second
        // time.
        self.rela.chunks_exact(RELA).chain(self.plt.chunks_exact(RELA)).filter_map(slot)
    }

    /// A symbol by its index.
    pub fn symbol(&self, index: u32) -> Option<Symbol<'a>> {
        let at = (index as usize).checked_mul(SYMBOL)?;
        let entry = self.symbols.get(at..at.checked_add(SYMBOL)?)?;
        let rest = self.strings.get(u32_at(entry, 0)? as usize..)?;
        let name = &rest[..rest.iter().position(|b| *b == 0)?];
        Some(Symbol { name, is_own: entry[6..8] != [0, 0] })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
