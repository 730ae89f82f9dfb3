//! The memo: who called, without walking again.
//!
//! A walk is a function of the stack's words that it read, of the registers at entry and of the code map
//! ([`super::walk`] states and keeps that). So an entry keeps every word, with its place, and a remembered stack is taken
//! only if each of them is still what it was.
//!
//! ```text
//! Memo 192 B    tag 8: return address | pushed category << 48 │ sp 8 │ fp 8 │ row key 8 │ row offset 4 │ words 1 │ uses fp 1
//!               13 offsets of 2 B from sp, in bytes
//!               13 words of 8 B; those not used are the return address at offset 0, so that several compare at a time
//! ```
//!
//! Two traps (experiments/mis.c, co.c): return addresses alone aren't enough (an alloca in a shared callee moves the
//! frames; the saved frame pointers tell), and the words may lie beyond a smaller stack that the thread has switched to.
//! Entries are made only on the thread's own stack and taken only for the very stack pointer they were made for: what was
//! inside that stack then is inside it now. An entry's first place is found by both; when another path leads through it at
//! the same depth, the second place by the words too. A new thread in the slot and a change of the code map (dlopen, dlclose) put
//! an empty memo in force. On any other stack (coroutines, sigaltstack) each call walks, bounded by the
//! end of the page that the stack pointer is in, which is mapped.
//!
//! With PLIMSOLL_CHECK=1 an empty memo is in force all the time: every call walks, and is compared with what would have
//! been remembered. The fast path is the same.

use super::module::{self, Module};
use super::rule::{Base, Cfa, SavedFp};
use super::{Entry, Image, Read, Rule, Stack, Walker, rule_for};
use crate::account::blocks::{row_key, row_of_key};
use crate::account::callers::{self, FRAMES};
use crate::account::rows;
use crate::account::segment::Segment;
use crate::account::thread::{GENERATION, ThreadState};
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::{Counter, Row, Section};

/// Words of an entry.
const WORDS: usize = 13;
/// Frames that are walked first.
const SHORT: usize = 4;

/// See the module comment.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Memo {
    tag: u64,
    sp: usize,
    fp: usize,
    /// The upper part of the trailers of this row's blocks.
    pub row_key: u64,
    /// Offset in the segment of this thread's row for the caller.
    pub row: u32,
    words_used: u8,
    uses_fp: u8,
    offsets: [u16; WORDS],
    words: [u64; WORDS],
}
const _: () = assert!(size_of::<Memo>() == 192);

/// Offset in the segment of a row.
pub const fn row_offset(row: u32) -> u32 {
    (Section::Rows.offset() + row as usize * Row::BYTES) as u32
}
const _: () = assert!(Section::Rows.offset() + Section::Rows.capacity() * Row::BYTES < u32::MAX as usize);

#[inline(always)]
fn place(memo: *mut Memo, mask: usize, ra: u64, sp: usize) -> *mut Memo {
    let h = ra as usize ^ (sp >> 4);
    // SAFETY: the mask is the memo's.
    unsafe { memo.add(h & mask) }
}

/// The remembered entry for this call, if every word it was concluded from is still what it was.
///
/// # Safety
/// `sp` is the stack pointer at the entry of a hooked call of this thread, whose state was taken.
#[inline(always)]
pub unsafe fn recall(t: &ThreadState, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the caller's contract.
    unsafe { recall_from(t, t.memo.load(Relaxed), sp, fp) }
}

#[inline(always)]
unsafe fn recall_from(t: &ThreadState, memo: *mut Memo, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the return address lies at the stack pointer.
    let ra = unsafe { *(sp as *const u64) };
    // SAFETY: `place` answers an entry of this thread's memo.
    let m = unsafe { &*place(memo, t.memo_mask, ra, sp) };
    if m.tag != ra | t.category_tag || m.sp != sp {
        return None;
    }
    // SAFETY: the entry was made for this return address and stack pointer.
    unsafe { same(m, sp, fp) }.then_some(m)
}

/// Whether every word of an entry is what it was.
///
/// # Safety
/// The entry was made for this stack pointer on this thread's stack.
#[inline(always)]
unsafe fn same(m: &Memo, sp: usize, fp: usize) -> bool {
    // SAFETY: each offset is inside the stack. Unused offsets are 0.
    let word = |i: usize| unsafe { *((sp + m.offsets[i] as usize) as *const u64) ^ m.words[i] };
    let mut different = if m.words_used > 0 { word(0) | word(1) | word(2) } else { 0 };
    if m.words_used > 3 {
        different |= word(3) | word(4) | word(5) | word(6);
        if m.words_used > 7 {
            different |= word(7) | word(8) | word(9) | word(10) | word(11) | word(12);
        }
        if m.uses_fp != 0 {
            different |= (fp ^ m.fp) as u64;
        }
    }
    different == 0
}

/// The second place of a call: wrappers (operator new, xmalloc) are called at one depth from many places. Whoever came
/// first leads; the others lie where the words say that stand where the leader's first ones did.
///
/// # Safety
/// `m` is the leader, made for this stack pointer on this thread's stack.
#[inline(always)]
unsafe fn second(mask: usize, m: &Memo, sp: usize) -> usize {
    // SAFETY: each offset is inside the stack.
    let word = |i: usize| unsafe { *((sp + m.offsets[i] as usize) as *const u64) };
    let h = (m.tag ^ word(0).rotate_left(11) ^ word(1).rotate_left(23) ^ word(2).rotate_left(37) ^ (sp as u64) << 3)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 40) as usize & mask
}

/// The entry in the second place, if there is a leader and the words are what they were.
unsafe fn recall_second(t: &ThreadState, memo: *mut Memo, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the return address lies at the stack pointer; places are inside the memo; both entries compared were made
    // for this stack pointer.
    unsafe {
        let ra = *(sp as *const u64);
        let leader = &*place(memo, t.memo_mask, ra, sp);
        if leader.tag != ra | t.category_tag || leader.sp != sp {
            return None;
        }
        let m = &*memo.add(second(t.memo_mask, leader, sp));
        (m.tag == leader.tag && m.sp == sp && same(m, sp, fp)).then_some(m)
    }
}

/// Walks, numbers the caller, remembers. Answers the caller and the row to book in: this thread's, or the shared one.
///
/// # Safety
/// As `recall`.
#[cold]
#[inline(never)]
pub unsafe fn walk(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize) -> (u32, u32) {
    // SAFETY: the return address lies at the stack pointer.
    let ra = unsafe { *(sp as *const u64) };
    // SAFETY: as this function.
    if let Some(m) = unsafe { recall_second(t, t.memo.load(Relaxed), sp, fp) } {
        let row = row_of_key(m.row_key);
        return (segment.row(row).caller.load(Relaxed), row);
    }
    segment.count(Counter::stack_walks, 1);
    let (usual, checking) = t.usual_memo();
    if t.memo.load(Acquire) != usual {
        // In force again first: a change of the code map that comes now must not be undone by this store afterwards.
        t.memo.store(usual, Release);
        // SAFETY: this thread's memo.
        unsafe { core::ptr::write_bytes(t.own_memo, 0, t.memo_mask + 1) };
    }
    t.misses += 1;
    if t.misses as usize > 8 * (t.memo_mask + 1) {
        t.grow_memo(segment);
    }
    let remembered = if checking {
        // SAFETY: as this function; the thread's own memo.
        unsafe { recall_from(t, t.own_memo, sp, fp).or_else(|| recall_second(t, t.own_memo, sp, fp)) }
            .map(|m| m.row_key)
    } else {
        None
    };
    let known = t.stack_high.wrapping_sub(sp) <= t.stack_bytes;
    let high = if known { t.stack_high } else { (sp | 4095) + 1 };
    let mut frames = [0u64; FRAMES];
    let mut reads = [Read::default(); WORDS];
    let exact = segment.header().mode.load(Relaxed) != 0;
    let depth = if exact { module::depth(segment, ra as usize - 1) } else { 1 };
    let walker = Walker { stack: sp as u64 & !4095..high as u64, through_jit: false };
    // SAFETY: from the stack pointer to the end of its stack, or of its page, memory is mapped readable.
    let memory = unsafe { Stack::new(sp as u64, high as u64) };
    let entry = Entry { ra, sp: sp as u64, fp: fp as u64 };
    let mut walk_to = |depth: usize, frames: &mut [u64; FRAMES]| {
        walker.walk(&memory, |pc| rule_at(segment, pc), entry, &mut frames[..depth], &mut reads)
    };
    // Four frames tell most callers' category; where they don't, and the object's rules go deeper, eight.
    let first = depth.min(SHORT);
    let mut w = walk_to(first, &mut frames);
    if depth > first && w.frames == first && !callers::is_decided(segment, &frames[..first]) {
        w = walk_to(depth, &mut frames);
    }
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
    let caller = callers::number(segment, &frames[..n], flags, t.category());
    let row = rows::row_for(segment, Some(&mut *t), caller);
    if let Some(key) = remembered {
        let same = segment.row(row_of_key(key)).caller.load(Relaxed) == segment.row(row).caller.load(Relaxed);
        segment.count(Counter::memo_checks, 1);
        segment.count(Counter::memo_disagreements, !same as u64);
    }
    if known && w.frames > 0 && w.extent <= u16::MAX as u32 && segment.row(row).slot.load(Relaxed) == t.slot_mark {
        remember(t, entry, &w, &reads[..w.reads], row);
    }
    (caller, row)
}

fn remember(t: &mut ThreadState, entry: Entry, w: &super::Walk, reads: &[Read], row: u32) {
    let mut m = Memo {
        tag: entry.ra | t.category_tag,
        sp: entry.sp as usize,
        fp: entry.fp as usize,
        row_key: row_key(row),
        row: row_offset(row),
        // A frame pointer that counts is compared with the second group.
        words_used: if w.depends_on_entry_fp { reads.len().max(4) } else { reads.len() } as u8,
        uses_fp: w.depends_on_entry_fp as u8,
        offsets: [0; WORDS],
        words: [entry.ra; WORDS],
    };
    for (i, r) in reads.iter().enumerate() {
        m.offsets[i] = r.offset as u16;
        m.words[i] = if r.relative { r.value.wrapping_add(entry.sp) } else { r.value };
    }
    // SAFETY: entries of this thread's own memo, whichever is in force; a leader was made for this stack pointer.
    unsafe {
        let first = place(t.own_memo, t.memo_mask, entry.ra, m.sp);
        let leads = (*first).tag == m.tag && (*first).sp == m.sp;
        let at = if leads { t.own_memo.add(second(t.memo_mask, &*first, m.sp)) } else { first };
        *at = m;
    }
}

/// Rules by pc, remembered for all threads. A cell is (mark, rule): the mark binds pc, rule and generation by a product,
/// so that a torn pair (two threads filling one cell) matches no pc.
static RULES: [[AtomicU64; 2]; 4096] = [const { [const { AtomicU64::new(0) }; 2] }; 4096];

fn mark(pc: u64, bits: u64) -> u64 {
    pc ^ bits.wrapping_mul(0xd6e8_feb8_6659_fd93)
        ^ (GENERATION.load(Relaxed) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn rule_at(segment: Segment, pc: u64) -> Option<Rule> {
    let cell = &RULES[(pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize];
    let bits = cell[1].load(Relaxed);
    if cell[0].load(Relaxed) == mark(pc, bits) {
        return Some(Rule::from_bits(bits));
    }
    let m = module::find(segment, pc as usize)?;
    segment.count(Counter::rule_walks, 1);
    let rule = rule_in(&m, pc);
    cell[1].store(rule.to_bits(), Relaxed);
    cell[0].store(mark(pc, rule.to_bits()), Relaxed);
    Some(rule)
}

fn rule_in(m: &Module, pc: u64) -> Rule {
    if m.keeps_fp {
        // Behind a call the frame is complete: the saved pointer below the return address.
        return Rule::frame(Cfa { base: Base::Fp, offset: 16, deref: None }, SavedFp::Cfa(-16));
    }
    if m.eh_frame_hdr == 0 {
        return Rule::FRAME_POINTER;
    }
    // SAFETY: the loaded segment of an object that holds a live caller's code.
    let tables = unsafe { Image::mapped(m.unwind_low as u64, m.unwind_high as u64) };
    rule_for(tables, m.eh_frame_hdr as u64, pc)
}
