//! Methods whose names were read before: which method lies at an address, without reading all of it again.
//!
//! ```text
//! cell by Method's address ─▶ every pointer, length and index that [`super::method::identity`] went through
//!                             its names: where they lie in the segment        the answer: identity, entry
//! ```
//! The identity is a function of bytes. These belong to four objects of the VM that lead to the names (Method,
//! ConstMethod, ConstantPool, Klass), to three Symbols, and to the first line numbers. A kept answer is used only if
//! each of these bytes is unchanged. The Symbols' texts are compared too, with the segment's copy. So a Method whose
//! class was unloaded, or that was redefined, can't pass for another Method even if all addresses and sizes are the
//! same. This saves the hashing, and a query for each page whether the page can be read. All pages could be read when
//! the answer was kept, and nothing has been unmapped since ([`super::memory::unmappings`]).
//!
//! A cell also keeps [`super::methods_freed`] of its last comparison. While that is known and unchanged, a method with
//! a frame is still the same, whichever thread compared it ([`super::lifetimes`]), and nothing is compared.

use core::mem::offset_of;
use core::sync::atomic::Ordering::*;

use super::cells::{Cells, WORDS};
use super::code_cache::Vm;
use super::memory;
use crate::segment::Segment;
use crate::stack::read::peek;

/// ConstMethod::_has_linenumber_table; from 21 on ConstMethodFlags::_misc_has_linenumber_table.
pub const HAS_LINES: u16 = 1;

/// 512 KiB, touched one after the other.
static KNOWN: Cells<4096, { 16 << 10 }> = Cells::empty();

/// What was read of a method, and the result.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct KnownMethod {
    pub method: u64,
    /// [`super::memory::unmappings`] when all of it could be read.
    pub unmappings: u64,
    pub const_method: u64,
    pub pool: u64,
    pub holder: u64,
    /// The Symbols of the class's name, of the method's name and of its signature.
    pub symbols: [u64; 3],
    pub lengths: [u16; 3],
    /// 0: it has no line numbers.
    pub has_lines: u16,
    pub code_size: u16,
    pub name_index: u16,
    pub signature_index: u16,
    /// Entries of the constant pool: an index is checked against it.
    pub pool_length: u16,
    pub lines: [u64; 2],
    pub identity: u64,
    /// Its entry in the segment, and where the names lie there, one behind the other.
    pub index: u32,
    pub names_at: u32,
    /// [`super::methods_freed`], read before the last comparison, while the method had a frame. 0: it wasn't known.
    pub freed: u64,
}

const _: () = assert!(size_of::<KnownMethod>() == 8 * WORDS);
/// Words that [`recall`] needs if nothing must be compared: from the identity to the end.
const ANSWER: usize = WORDS - offset_of!(KnownMethod, identity) / 8;
const _: () = assert!(ANSWER == 3 && offset_of!(KnownMethod, index) == offset_of!(KnownMethod, identity) + 8);

impl KnownMethod {
    #[inline(always)]
    fn from_words(words: [u64; WORDS]) -> Self {
        // SAFETY: as many bytes, and every pattern is valid.
        unsafe { core::mem::transmute(words) }
    }

    fn to_words(self) -> [u64; WORDS] {
        // SAFETY: as many bytes, none of them padding.
        unsafe { core::mem::transmute(self) }
    }
}

/// Identity and entry of the method at this address, if the VM has freed no method since it was compared, or if none
/// of its kept bytes has changed. `freed` is [`super::methods_freed`], read while the method had the frame that led
/// here; 0 compares the bytes in any case.
#[inline(always)]
pub fn recall(vm: &Vm, method: u64, freed: u64) -> Option<(u64, u32)> {
    if freed != 0
        && let Some([identity, entry, since]) = KNOWN.last_kept::<ANSWER>(method)
        && since == freed
    {
        // The index is the first half of its word.
        let [a, b, c, d, ..] = entry.to_ne_bytes();
        return Some((identity, u32::from_ne_bytes([a, b, c, d])));
    }
    let k = KnownMethod::from_words(KNOWN.kept(method)?);
    if !is_unchanged(vm, Segment::current()?, &k) {
        return None;
    }
    if freed != 0 {
        KNOWN.put(KnownMethod { freed, ..k }.to_words());
    }
    Some((k.identity, k.index))
}

/// Whether all bytes are unchanged.
#[inline(always)]
fn is_unchanged(vm: &Vm, segment: Segment, k: &KnownMethod) -> bool {
    if k.unmappings != memory::unmappings() {
        return false;
    }
    let l = &vm.layout;
    let own = |offset: u32| k.const_method + offset as u64;
    let entry = |index: u16| k.pool + l.pool_size as u64 + 8 * index as u64;
    // SAFETY: every byte that `k` names could be read when it was kept, and no hook has seen anything unmapped since.
    // Each address is compared before it is followed, so all of them belong to the frame's own method, and stay while
    // that runs.
    unsafe {
        if peek::<u64>(k.method + l.const_method as u64) != k.const_method
            || peek::<u64>(own(l.pool)) != k.pool
            || peek::<u16>(own(l.code_size)) != k.code_size
            || peek::<u16>(own(l.name_index)) != k.name_index
            || peek::<u16>(own(l.signature_index)) != k.signature_index
            || peek::<u16>(own(l.method_flags)) & HAS_LINES != k.has_lines
            || peek::<u64>(k.pool + l.holder as u64) != k.holder
            || peek::<u32>(k.pool + l.pool_length as u64) != k.pool_length as u32
            || peek::<u64>(k.holder + l.class_name as u64) != k.symbols[0]
            || peek::<u64>(entry(k.name_index)) != k.symbols[1]
            || peek::<u64>(entry(k.signature_index)) != k.symbols[2]
        {
            return false;
        }
        if k.has_lines != 0 {
            let lines = own(l.const_method_size) + k.code_size as u64;
            if peek::<u64>(lines) != k.lines[0] || peek::<u64>(lines + 8) != k.lines[1] {
                return false;
            }
        }
        let is_long = |i: usize| peek::<u16>(k.symbols[i] + l.symbol_length as u64) == k.lengths[i];
        if !is_long(0) || !is_long(1) || !is_long(2) {
            return false;
        }
        let [class, name, signature] = k.symbols.map(|symbol| symbol + l.symbol_body as u64);
        let lengths = k.lengths.map(|length| length as usize);
        segment.names(k.names_at as usize, lengths[0] + lengths[1] + lengths[2]).is_some_and(|names| {
            let names = names as u64;
            same(names, class, lengths[0])
                && same(names + lengths[0] as u64, name, lengths[1])
                && same(names + (lengths[0] + lengths[1]) as u64, signature, lengths[2])
        })
    }
}

/// Whether two texts are the same. Most are too short to be worth a call of memcmp.
///
/// # Safety
/// `bytes` bytes can be read at both addresses.
#[inline(always)]
unsafe fn same(a: u64, b: u64, bytes: usize) -> bool {
    // SAFETY: the caller's contract: each place with what is read there ends within `bytes`.
    unsafe {
        let eight = |at: usize| peek::<u64>(a + at as u64) == peek::<u64>(b + at as u64);
        let four = |at: usize| peek::<u32>(a + at as u64) == peek::<u32>(b + at as u64);
        let one = |at: usize| peek::<u8>(a + at as u64) == peek::<u8>(b + at as u64);
        match bytes {
            0 => true,
            1..4 => one(0) && one(bytes / 2) && one(bytes - 1),
            4..8 => four(0) && four(bytes - 4),
            _ => {
                let mut at = 0;
                while at + 8 < bytes {
                    if !eight(at) {
                        return false;
                    }
                    at += 8;
                }
                eight(bytes - 8)
            }
        }
    }
}

/// Keeps what was read of a method, unless another thread is writing its cell. Also doesn't keep it if the method's
/// entry in the segment has other names, which is possible because the entry was found by a hash.
pub fn keep(vm: &Vm, segment: Segment, k: KnownMethod) {
    let m = segment.method(k.index);
    let [class, name, signature] = k.lengths;
    let (class_at, name_at) = (m.class_at.load(Relaxed), m.name_at.load(Relaxed));
    let k = KnownMethod { names_at: class_at, ..k };
    let is_its = (m.class_bytes.load(Relaxed), m.name_bytes.load(Relaxed), m.signature_bytes.load(Relaxed))
        == (class, name, signature)
        && name_at == class_at.wrapping_add(class as u32)
        && m.signature_at.load(Relaxed) == name_at.wrapping_add(name as u32);
    if is_its && is_unchanged(vm, segment, &k) {
        KNOWN.put(k.to_words());
    }
}

/// The same method was read again: replaces what was kept of it, if the names are still the same.
pub fn renew(vm: &Vm, k: KnownMethod) {
    if let (Some(old), Some(segment)) = (KNOWN.kept(k.method), Segment::current()) {
        let old = KnownMethod::from_words(old);
        if old.identity == k.identity {
            keep(vm, segment, KnownMethod { index: old.index, ..k });
        }
    }
}
