//! The rule for a pc in a loaded object, remembered for all threads: reading the unwind table is most of a walk's cost.

use super::module::{self, Module};
#[cfg(target_arch = "x86_64")]
use super::native_image;
use super::rule::BY_TABLE;
use super::{Image, Rule, rule_for};
use crate::segment::Segment;
use crate::segment::slots::GENERATION;
#[cfg(target_arch = "x86_64")]
use crate::sys::elf;
use crate::sys::os;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::Counter;

/// Rules by pc, remembered for all threads. A cell is (mark, rule): the mark binds pc, rule and generation by a
/// product, so that a torn pair (two threads filling one cell) matches no pc. The first table is small, since pcs touch
/// a table all over.
static RULES: AtomicUsize = AtomicUsize::new(0);
/// Number of look-ups that found no remembered rule since the table last grew.
static MISSES: AtomicU32 = AtomicU32::new(0);
const FIRST_RULES: usize = 10;
const LAST_RULES: usize = 14;

/// Makes the table, or a larger one, which begins empty. Its address is a multiple of 64: the low bits are log2 of its
/// cells.
fn grow_rules(known: usize) {
    let bits = if known == 0 { FIRST_RULES } else { (known & 63) + 2 };
    if bits <= LAST_RULES
        && let Some(p) = os::private(16 << bits)
    {
        // If another thread was first, ours stays untouched.
        let _ = RULES.compare_exchange(known, p as usize | bits, AcqRel, Relaxed);
    }
    MISSES.store(0, Relaxed);
}

#[inline(always)]
fn rule_cell(pc: u64) -> Option<&'static [AtomicU64; 2]> {
    let known = RULES.load(Acquire);
    if known == 0 {
        return None;
    }
    let at = (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - (known & 63))) as usize;
    // SAFETY: a table of 2^(known & 63) cells of atomics, zeroed, never given back; `at` is below that.
    Some(unsafe { &*((known & !63) as *const [AtomicU64; 2]).add(at) })
}

/// The rule for a pc was not remembered.
fn missed() {
    let known = RULES.load(Acquire);
    if known == 0 || MISSES.fetch_add(1, Relaxed) >> ((known & 63) + 1) != 0 {
        grow_rules(known);
    }
}

fn mark(pc: u64, bits: u64) -> u64 {
    pc ^ bits.wrapping_mul(0xd6e8_feb8_6659_fd93)
        ^ (GENERATION.load(Relaxed) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The rule for a pc; `None`: no object holds it. With [`BY_TABLE`]: by the table also where the object keeps frame
/// pointers.
#[inline(always)]
pub fn rule_at(segment: Segment, pc: u64) -> Option<Rule> {
    if module::keeping_frame_pointers_at(pc as usize).is_some() {
        return Some(Rule::convention());
    }
    remembered_rule(segment, pc)
}

#[inline(never)]
fn remembered_rule(segment: Segment, pc: u64) -> Option<Rule> {
    if let Some(cell) = rule_cell(pc) {
        let bits = cell[1].load(Relaxed);
        if cell[0].load(Relaxed) == mark(pc, bits) {
            return Some(Rule::from_bits(bits));
        }
    }
    missed();
    let at = pc & !BY_TABLE;
    let m = module::find(segment, at as usize)?;
    segment.count(Counter::rule_walks, 1);
    let rule = if m.keeps_fp && pc == at { Rule::convention() } else { rule_in(m, at) };
    if let Some(cell) = rule_cell(pc) {
        cell[1].store(rule.to_bits(), Relaxed);
        cell[0].store(mark(pc, rule.to_bits()), Relaxed);
    }
    Some(rule)
}

/// Whether a return address lies in Java code of a native image. No unwind table covers Java code, but one covers the C
/// code of the image's static libraries. On AArch64, where no tables are read, that C code passes too.
pub fn in_java_of_image(segment: Segment, ra: u64) -> bool {
    let is_java = |m: &Module| m.is_image && table_rule(m, ra - 1) == Rule::FRAME_POINTER;
    module::has_images() && ra != 0 && module::find(segment, ra as usize - 1).is_some_and(is_java)
}

/// The rule by the object's tables; [`Rule::FRAME_POINTER`]: they don't cover the pc.
fn table_rule(m: &Module, pc: u64) -> Rule {
    if m.eh_frame_hdr == 0 {
        return Rule::FRAME_POINTER;
    }
    // SAFETY: the loaded segment of an object that holds a live caller's code.
    let tables = unsafe { Image::mapped(m.unwind_low as u64, m.unwind_high as u64) };
    rule_for(tables, m.eh_frame_hdr as u64, pc)
}

fn rule_in(m: &Module, pc: u64) -> Rule {
    let rule = table_rule(m, pc);
    if m.is_image && rule == Rule::FRAME_POINTER {
        return java_rule(m, pc).unwrap_or(rule);
    }
    rule
}

/// The rule for a method of a native image.
#[cfg(target_arch = "x86_64")]
fn java_rule(m: &Module, pc: u64) -> Option<Rule> {
    let (low, high) = elf::segment_of(m.start, m.bias, pc as usize)?;
    // SAFETY: the loaded segment of the object that holds this code, which a live stack is in.
    let text = unsafe { Image::mapped(low as u64, high as u64) };
    // Methods begin at multiples of 16 of their address, wherever the segment begins.
    let skipped = low.next_multiple_of(16) - low;
    native_image::rule(text.bytes.get(skipped..)?, (pc as usize - low).checked_sub(skipped)?)
}

/// On AArch64 only the frame pointers are followed.
#[cfg(not(target_arch = "x86_64"))]
fn java_rule(_: &Module, _: u64) -> Option<Rule> {
    None
}
