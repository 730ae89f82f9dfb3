//! The memo: who called, without walking again.
//!
//! A walk is a function of the return address, the words it read, the distance of the frame pointer if it was used, and
//! the code map ([`super::walk`] states and keeps that). So an entry keeps all of these, and a remembered stack is taken
//! only if every one compares equal. What is on the stack is kept as a distance from the stack pointer: the same path at
//! another depth or on another thread compares equal.
//!
//! ```text
//! Memo 192 B    ra 8 │ fp distance 8 │ row 4 │ caller 4 │ pushed 2 │ extent 2 │ plain 1 │ relative 1 │ uses fp 1 │ 1
//!               16 offsets of 2 B, in words from the stack pointer, plain ones first
//!               16 words of 8 B
//! ```
//!
//! Two traps (experiments/mis.c, co.c): return addresses alone aren't enough (an alloca in a shared callee moves the frames;
//! the saved frame pointers tell), and the words may lie beyond a smaller stack that the thread has switched to: before
//! anything is read, `extent` must fit between the stack pointer and the end of the stack it is on. On a stack that isn't
//! known (coroutines, sigaltstack) that end is the end of the page: the page that the stack pointer is in is mapped.
//! Walks that stopped at such a bound aren't remembered.

use super::module::{self, Module};
use super::{Entry, Image, Read, Rule, Stack, Walker, rule_for};
use crate::account::callers::{self, FRAMES};
use crate::account::rows;
use crate::account::segment::Segment;
use crate::account::thread::{GENERATION, ThreadState};
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::Counter;

/// Words of an entry.
const WORDS: usize = 16;

/// See the module comment.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Memo {
    ra: u64,
    fp_distance: u64,
    /// Row of this thread for the caller; 0: the entry is empty or has no row of its own.
    pub row: u32,
    /// The caller.
    pub caller: u32,
    pushed: u16,
    extent: u16,
    plain: u8,
    relative: u8,
    uses_fp: u8,
    _pad: u8,
    offsets: [u16; WORDS],
    words: [u64; WORDS],
}
const _: () = assert!(size_of::<Memo>() == 192);

#[inline(always)]
fn place(t: &ThreadState, ra: u64, sp: usize) -> *mut Memo {
    let h = (ra ^ (sp as u64).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SAFETY: the mask keeps the index inside this thread's memo.
    unsafe { t.memo.add((h >> 40) as usize & t.memo_mask) }
}

/// The remembered entry for this call, if every word it was concluded from is still what it was.
///
/// # Safety
/// `sp` is the stack pointer at the entry of a hooked call of this thread.
#[inline(always)]
pub unsafe fn recall(t: &ThreadState, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the return address lies at the stack pointer.
    let ra = unsafe { *(sp as *const u64) };
    // SAFETY: `place` answers an entry of this thread's memo.
    let m = unsafe { &*place(t, ra, sp) };
    let room = t.stack_high.wrapping_sub(sp);
    if m.ra != ra
        || m.pushed as u32 != t.category
        || room > t.stack_bytes
        || room < (m.extent as usize) * 8
        || t.generation != GENERATION.load(Relaxed)
    {
        return None;
    }
    let at = sp as *const u64;
    let mut different = 0;
    let (plain, all) = (m.plain as usize, m.plain as usize + m.relative as usize);
    if all > WORDS {
        return None;
    }
    for i in 0..plain {
        // SAFETY: offset < extent ≤ room: inside the stack that sp is on.
        different |= unsafe { *at.add(m.offsets[i] as usize) } ^ m.words[i];
    }
    for i in plain..all {
        // SAFETY: as above.
        different |= unsafe { *at.add(m.offsets[i] as usize) }.wrapping_sub(sp as u64) ^ m.words[i];
    }
    if m.uses_fp != 0 {
        different |= (fp as u64).wrapping_sub(sp as u64) ^ m.fp_distance;
    }
    (different == 0).then_some(m)
}

/// Walks, numbers the caller, remembers. Answers the caller and this thread's row for it (0 = none).
///
/// # Safety
/// As `recall`.
#[cold]
#[inline(never)]
pub unsafe fn walk(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize) -> (u32, u32) {
    // SAFETY: the return address lies at the stack pointer.
    let ra = unsafe { *(sp as *const u64) };
    segment.count(Counter::stack_walks, 1);
    let generation = GENERATION.load(Acquire);
    if t.generation != generation {
        // SAFETY: this thread's memo.
        unsafe { core::ptr::write_bytes(t.memo, 0, t.memo_mask + 1) };
        t.generation = generation;
    }
    t.misses += 1;
    if t.misses as usize > 8 * (t.memo_mask + 1) {
        t.grow_memo(segment);
    }
    let known = t.stack_high.wrapping_sub(sp) <= t.stack_bytes;
    let high = if known { t.stack_high } else { (sp | 4095) + 1 };
    let mut frames = [0u64; FRAMES];
    let mut reads = [Read::default(); WORDS];
    let depth = module::find(segment, ra as usize - 1).map_or(1, |m| m.depth);
    let walker = Walker { stack: sp as u64 & !4095..high as u64, through_jit: false };
    // SAFETY: from the stack pointer to the end of its stack, or of its page, memory is mapped readable.
    let memory = unsafe { Stack::new(sp as u64, high as u64) };
    let entry = Entry { ra, sp: sp as u64, fp: fp as u64 };
    let w = walker.walk(&memory, |pc| rule_at(segment, pc), entry, &mut frames[..depth], &mut reads);
    let mut flags = 0;
    if w.wall.is_some() || matches!(w.end, super::End::NoRule | super::End::Broken | super::End::Truncated) {
        flags |= callers::TRUNCATED;
        segment.count(Counter::stack_truncated, 1);
    }
    if w.end == super::End::Jit {
        flags |= callers::JIT;
    }
    let n = w.frames.max(1);
    if w.frames == 0 {
        frames[0] = ra;
    }
    // What a truncated walk saw depends on where the page ended: as a caller it is what its innermost frame is.
    let n = if w.wall.is_some() && !known { 1 } else { n };
    let caller = callers::number(segment, &frames[..n], flags, t.category);
    let row = rows::find(segment, t, caller).map_or(0, |e| e.row);
    if w.wall.is_none() && known && w.frames > 0 {
        remember(t, entry, &w, &reads[..w.reads], caller, row);
    }
    (caller, row)
}

fn remember(t: &mut ThreadState, entry: Entry, w: &super::Walk, reads: &[Read], caller: u32, row: u32) {
    if w.extent as usize / 8 > u16::MAX as usize || row == 0 {
        return;
    }
    let mut m = Memo {
        ra: entry.ra,
        fp_distance: entry.fp.wrapping_sub(entry.sp),
        row,
        caller,
        pushed: t.category as u16,
        extent: w.extent.div_ceil(8) as u16,
        plain: 0,
        relative: 0,
        uses_fp: w.depends_on_entry_fp as u8,
        _pad: 0,
        offsets: [0; WORDS],
        words: [0; WORDS],
    };
    let mut i = 0;
    for relative in [false, true] {
        for r in reads.iter().filter(|r| r.relative == relative) {
            m.offsets[i] = (r.offset / 8) as u16;
            m.words[i] = r.value;
            i += 1;
        }
        if relative {
            m.relative = i as u8 - m.plain;
        } else {
            m.plain = i as u8;
        }
    }
    // SAFETY: an entry of this thread's memo.
    unsafe { *place(t, entry.ra, entry.sp as usize) = m };
}

/// Rules by pc, remembered for all threads. A cell is (pc ^ rule ^ generation, rule): a torn pair matches no pc.
static RULES: [[AtomicU64; 2]; 1024] = [const { [const { AtomicU64::new(0) }; 2] }; 1024];

fn rule_at(segment: Segment, pc: u64) -> Option<Rule> {
    let generation = (GENERATION.load(Relaxed) as u64) << 48;
    let cell = &RULES[(pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize];
    let (mark, bits) = (cell[0].load(Relaxed), cell[1].load(Relaxed));
    if mark ^ bits ^ generation == pc {
        return Some(Rule::from_bits(bits));
    }
    let m = module::find(segment, pc as usize)?;
    segment.count(Counter::rule_walks, 1);
    let rule = rule_in(&m, pc);
    cell[0].store(0, Relaxed);
    cell[1].store(rule.to_bits(), Relaxed);
    cell[0].store(pc ^ rule.to_bits() ^ generation, Relaxed);
    Some(rule)
}

fn rule_in(m: &Module, pc: u64) -> Rule {
    if m.eh_frame_hdr == 0 {
        return Rule::FRAME_POINTER;
    }
    // SAFETY: the loaded segment of an object that holds a live caller's code.
    let tables = unsafe { Image::mapped(m.unwind_low as u64, m.unwind_high as u64) };
    rule_for(tables, m.eh_frame_hdr as u64, pc)
}
