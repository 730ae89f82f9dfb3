//! Methods: what they are by name, and their entry in the segment.
//!
//! ```text
//! Method ─▶ ConstMethod { constants, code size, name, signature; code …, line numbers } ─▶ ConstantPool ─▶ Klass
//!                                                                       │ source file        └ symbols
//!                                                                       └▶ Symbol { length, text }
//! ```
//! A Method's address is given to another one once its class is unloaded. So an entry is found by what the method *is*:
//! the hash of its class's name, its own, its signature, its line numbers. The same class loaded again by another
//! loader has the same entries.

use core::sync::atomic::Ordering::*;

use plimsoll_segment::{Counter, Purpose, Section};

use super::code_cache::Vm;
use super::compiled::Stream;
use super::known::{self, KnownMethod};
use super::memory::{self, Bytes, load, slice};
use super::structs::NONE;
use crate::segment::Segment;
use crate::segment::index::Index;
use crate::segment::slots;

/// Maximum number of bytes of a symbol's text (Symbol::max_symbol_length).
const TEXT: usize = 65_535;
/// Maximum number of line numbers that are kept of a method, and of bytes of the VM's table that are read for them.
const LINES: usize = 1024;
const TABLE_BYTES: usize = 8192;
/// JVM_ACC_NATIVE.
const NATIVE: u16 = 0x100;

/// Identity → index of its entry + 1, since 0 marks a free cell. So a full section needs one bit more.
static INDEX: Index = Index::new(2 * Section::Methods.capacity(), &[10, 13, 15, 17, 11], Purpose::Pool);

/// Reserves all of the index, for a program that is about to forbid system calls.
pub fn reserve() {
    INDEX.reserve();
}

/// The names of a method, in the VM's memory.
struct MethodNames {
    class: Bytes<'static>,
    name: Bytes<'static>,
    signature: Bytes<'static>,
    /// What was read on the way, without the result.
    known_method: KnownMethod,
}

fn symbol(vm: &Vm, at: u64) -> Option<Bytes<'static>> {
    let length: u16 = load(at.checked_add(vm.layout.symbol_length as u64)?)?;
    slice(at.wrapping_add(vm.layout.symbol_body as u64), length as usize, TEXT)
}

fn pool_entry(vm: &Vm, pool: u64, index: u16) -> Option<u64> {
    let length: i32 = load(pool.wrapping_add(vm.layout.pool_length as u64))?;
    if index == 0 || i32::from(index) >= length {
        return None;
    }
    load(pool.wrapping_add(vm.layout.pool_size as u64 + 8 * index as u64))
}

fn names_of(vm: &Vm, method: u64) -> Option<MethodNames> {
    let l = &vm.layout;
    if method == 0 || !method.is_multiple_of(8) {
        return None;
    }
    let unmappings = memory::unmappings();
    let const_method: u64 = load(method.checked_add(l.const_method as u64)?)?;
    let pool: u64 = load(const_method.checked_add(l.pool as u64)?)?;
    let holder: u64 = load(pool.checked_add(l.holder as u64)?)?;
    let name_index = load(const_method.wrapping_add(l.name_index as u64))?;
    let signature_index = load(const_method.wrapping_add(l.signature_index as u64))?;
    let symbols = [
        load(holder.checked_add(l.class_name as u64)?)?,
        pool_entry(vm, pool, name_index)?,
        pool_entry(vm, pool, signature_index)?,
    ];
    let [class, name, signature] = [symbol(vm, symbols[0])?, symbol(vm, symbols[1])?, symbol(vm, symbols[2])?];
    let lengths = [class, name, signature].map(|text| text.len() as u16);
    let known_method = KnownMethod {
        method,
        unmappings,
        const_method,
        pool,
        holder,
        symbols,
        lengths,
        name_index,
        signature_index,
        ..KnownMethod::default()
    };
    Some(MethodNames { class, name, signature, known_method })
}

fn hash(seed: u64, text: Bytes<'_>) -> u64 {
    let mix = |h: u64, w: u64| {
        let h = (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^ h >> 29
    };
    let word = |i: usize| text.word(i).map_or(0, u64::from_le);
    let whole = text.len() & !7;
    // Seed and length are mixed in separately: if a text's first word could cancel them, two methods would have one
    // identity.
    let mut h = mix(seed, (text.len() as u64) << 32);
    for i in (0..whole).step_by(8) {
        h = mix(h, word(i));
    }
    match text.len().checked_sub(8) {
        // The last eight bytes, some of them a second time.
        Some(last) if last + 8 > whole => mix(h, word(last)),
        _ => mix(h, (whole..text.len()).fold(0, |w, i| w << 8 | text.byte(i).unwrap_or_default() as u64)),
    }
}

/// A hash of the names and lines that distinguish this method from all others. `None`: there is no method at this
/// address.
pub fn identity(vm: &Vm, method: u64) -> Option<u64> {
    if let Some((identity, _)) = recall(vm, method, 0) {
        return Some(identity);
    }
    let (identity, known_method) = of(vm, &names_of(vm, method)?);
    known_method.into_iter().for_each(|known_method| known::renew(vm, known_method));
    Some(identity)
}

/// What is known about this method. With PLIMSOLL_CHECK=1 the function returns nothing, but reads everything again and
/// compares.
#[inline]
fn recall(vm: &Vm, method: u64, freed: u64) -> Option<(u64, u32)> {
    let known = known::recall(vm, method, freed)?;
    if !slots::is_checking() {
        return Some(known);
    }
    let is_same = read_identity(vm, method) == Some(known.0);
    Segment::current()?.count(Counter::memo_disagreements, !is_same as u64);
    None
}

/// As [`identity`], read anew.
pub fn read_identity(vm: &Vm, method: u64) -> Option<u64> {
    names_of(vm, method).map(|t| of(vm, &t).0)
}

/// The identity; and all that it was made from, if that can be kept.
fn of(vm: &Vm, t: &MethodNames) -> (u64, Option<KnownMethod>) {
    let l = &vm.layout;
    let own = t.known_method.const_method;
    let code_size: Option<u16> = load(own.wrapping_add(l.code_size as u64));
    let h = hash(hash(hash(code_size.unwrap_or(0) as u64 + 1, t.class), t.name), t.signature);
    // In another version of the class perhaps only the lines differ. Their table has no length: up to a zero byte is
    // enough.
    let lines_at = lines_at(vm, own);
    let mut first = [0; 16];
    let lines = lines_at.and_then(|at| slice(at, 16, 16)).map_or(&[][..], |at| at.copy_to(0, &mut first));
    let identity = hash(h, lines.split(|b| *b == 0).next().unwrap_or_default().into()) | 1;
    let known_method = || {
        let pool_length: i32 = load(t.known_method.pool.wrapping_add(l.pool_length as u64))?;
        let mut words = [0; 2];
        if lines_at.is_some() {
            let (w, _) = lines.as_chunks::<8>();
            words = [u64::from_ne_bytes(*w.first()?), u64::from_ne_bytes(*w.get(1)?)];
        }
        let (has_lines, pool_length) = (u16::from(lines_at.is_some()), u16::try_from(pool_length).ok()?);
        Some(KnownMethod { code_size: code_size?, has_lines, pool_length, lines: words, identity, ..t.known_method })
    };
    (identity, known_method())
}

pub fn is_native(vm: &Vm, method: u64) -> bool {
    load::<u16>(method.wrapping_add(vm.layout.access as u64)).is_some_and(|flags| flags & NATIVE != 0)
}

pub fn is_named(vm: &Vm, method: u64, name: &[u8]) -> bool {
    names_of(vm, method).is_some_and(|t| t.name.is(name))
}

/// The index of a bytecode pointer in its method; `None` if it lies outside.
pub fn bci(vm: &Vm, method: u64, bcp: u64) -> Option<u16> {
    let const_method: u64 = load(method.checked_add(vm.layout.const_method as u64)?)?;
    let size: u16 = load(const_method.checked_add(vm.layout.code_size as u64)?)?;
    let bci = bcp.checked_sub(const_method.wrapping_add(vm.layout.const_method_size as u64))?;
    (bci < size as u64).then_some(bci as u16)
}

/// Where the VM's line number table is, if the method has one: behind the code.
fn lines_at(vm: &Vm, const_method: u64) -> Option<u64> {
    let l = &vm.layout;
    let size: u16 = load(const_method.wrapping_add(l.code_size as u64))?;
    let flags: u16 = load(const_method.wrapping_add(l.method_flags as u64))?;
    (flags & known::HAS_LINES != 0).then_some(const_method.wrapping_add(l.const_method_size as u64 + size as u64))
}

/// The table, as far as it can be read.
fn line_table(vm: &Vm, const_method: u64) -> Option<Bytes<'static>> {
    let at = lines_at(vm, const_method)?;
    let page = (4096 - (at & 4095)) as usize;
    slice(at, TABLE_BYTES, TABLE_BYTES)
        .or_else(|| slice(at, page + 4096, TABLE_BYTES))
        .or_else(|| slice(at, page, page))
}

/// One entry of a line number table, as differences of bci and line. It is a byte bci << 3 | line, or 0xff and two
/// signed numbers; a zero byte ends the table (hotspot, share/code/compressedStream.cpp,
/// CompressedLineNumberReadStream).
fn line(stream: &mut Stream<'_>) -> Option<Option<(i32, i32)>> {
    Some(match stream.byte()? {
        0 => None,
        0xff => Some((stream.signed()?, stream.signed()?)),
        both => Some((i32::from(both >> 3), i32::from(both & 7))),
    })
}

/// The index of this method's entry, made if there is none, and its identity. `None`: there is no method here. No
/// index: there is no space; that is counted. `freed`: as for [`known::recall`].
pub fn index(segment: Segment, vm: &Vm, method: u64, freed: u64) -> Option<(Option<u32>, u64)> {
    if let Some((identity, index)) = recall(vm, method, freed) {
        return Some((Some(index), identity));
    }
    let names = names_of(vm, method)?;
    let (identity, known_method) = of(vm, &names);
    let index = entry(segment, identity, || insert_method(segment, vm, method, &names));
    if let (Some(index), Some(known_method)) = (index, known_method) {
        known::keep(vm, segment, KnownMethod { index, freed, ..known_method });
    }
    Some((index, identity))
}

/// The index of a stub's entry: a method without a class.
pub fn stub(segment: Segment, name: &[u8]) -> Option<u32> {
    let none = Bytes::from(&[][..]);
    entry(segment, hash(2, name.into()) | 1, || insert(segment, [none, name.into(), none, none], &[], STUB))
}

/// [`plimsoll_segment::Method`] flags.
const IS_NATIVE: u64 = 1;
const HIDDEN: u64 = 2;
const STUB: u64 = 4;

fn entry(segment: Segment, identity: u64, make: impl Fn() -> Option<u32>) -> Option<u32> {
    let index = find_or_make(segment, identity, make);
    if index.is_none() {
        segment.count(Counter::methods_lost, 1);
    }
    index
}

fn find_or_make(segment: Segment, identity: u64, make: impl Fn() -> Option<u32>) -> Option<u32> {
    let is = |number: u32| segment.method(number - 1).identity.load(Relaxed) == identity;
    let mut own = None;
    loop {
        let free = match INDEX.find(identity, segment.used(Section::Methods), is) {
            Ok(number) => return Some(number - 1),
            Err(free) => free?,
        };
        let number = match own {
            Some(number) => number,
            None => {
                let index = make()?;
                let m = segment.method(index);
                m.identity.store(identity, Relaxed);
                m.first_ns.store(crate::sys::clock::ordered_ns(), Release);
                index + 1
            }
        };
        if free.put(number) {
            return Some(number - 1);
        }
        // Another thread took the cell, perhaps for this very method: look again. If so, nothing refers to our entry.
        own = Some(number);
    }
}

#[cold]
#[inline(never)]
fn insert_method(segment: Segment, vm: &Vm, method: u64, t: &MethodNames) -> Option<u32> {
    let l = &vm.layout;
    let source = match l.class_source_index {
        NONE => t.known_method.pool.wrapping_add(l.source_index as u64),
        index => t.known_method.holder.wrapping_add(index as u64),
    };
    let source = load(source)
        .and_then(|i| pool_entry(vm, t.known_method.pool, i))
        .and_then(|at| symbol(vm, at))
        .unwrap_or(Bytes::from(&[][..]));
    let mut lines = [[0u8; 4]; LINES];
    let lines = lines_of(vm, t.known_method.const_method, &mut lines).as_flattened();
    // Hidden classes have an address behind a plus (up to 14: a slash) in their names (JEP 371).
    let is = |i: usize, b: u8| t.class.byte(i) == Some(b);
    let hidden = (0..t.class.len()).any(|i| (is(i, b'+') || is(i, b'/')) && is(i + 1, b'0') && is(i + 2, b'x'));
    let flags = if is_native(vm, method) { IS_NATIVE } else { 0 } | if hidden { HIDDEN } else { 0 };
    insert(segment, [t.class, t.name, t.signature, source], lines, flags)
}

fn insert(segment: Segment, texts: [Bytes<'_>; 4], lines: &[u8], flags: u64) -> Option<u32> {
    let bytes = texts.iter().map(|t| t.len()).sum::<usize>() + lines.len();
    let mut at = segment.append_bytes(Section::Names, bytes)?;
    let index = segment.append(Section::Methods)?;
    let m = segment.method(index);
    let mut put = |text: Bytes<'_>| {
        let mut buffer = [0; 256];
        for from in (0..text.len()).step_by(buffer.len()) {
            segment.set_names(at + from as u32, text.copy_to(from, &mut buffer));
        }
        at += text.len() as u32;
        at - text.len() as u32
    };
    let [class, name, signature, source] = texts;
    m.class_at.store(put(class), Relaxed);
    m.name_at.store(put(name), Relaxed);
    m.signature_at.store(put(signature), Relaxed);
    m.source_at.store(put(source), Relaxed);
    m.lines_at.store(put(lines.into()), Relaxed);
    m.lines_bytes.store(lines.len() as u32, Relaxed);
    m.class_bytes.store(class.len() as u16, Relaxed);
    m.name_bytes.store(name.len() as u16, Relaxed);
    m.signature_bytes.store(signature.len() as u16, Relaxed);
    m.source_bytes.store(source.len() as u16, Relaxed);
    m.flags.store(flags, Relaxed);
    Some(index)
}

/// Pairs of first bytecode index and line, by bytecode index.
fn lines_of<'a>(vm: &Vm, const_method: u64, pairs: &'a mut [[u8; 4]; LINES]) -> &'a [[u8; 4]] {
    let mut n = 0;
    let table = line_table(vm, const_method).unwrap_or(Bytes::from(&[][..]));
    let mut stream = Stream { bytes: table, at: 0, skips_zero: vm.skips_zero_bytes };
    let (mut bci, mut number) = (0i32, 0i32);
    while let Some(Some((b, l))) = line(&mut stream) {
        (bci, number) = (bci.wrapping_add(b), number.wrapping_add(l));
        let (Ok(bci), Ok(number)) = (u16::try_from(bci), u16::try_from(number)) else { break };
        let Some(pair) = pairs.get_mut(n) else { break };
        pair[..2].copy_from_slice(&bci.to_ne_bytes());
        pair[2..].copy_from_slice(&number.to_ne_bytes());
        n += 1;
    }
    // javac writes them in order; other compilers may not.
    pairs[..n].sort_unstable_by_key(|p| u16::from_ne_bytes([p[0], p[1]]));
    &pairs[..n]
}
