//! The memo: who called, without walking again.
//!
//! A walk is a function of the stack's words that it read, of the registers at entry and of the code map
//! ([`crate::stack::walk`] states and keeps that). So an entry keeps every word, with its place, and a remembered stack is taken
//! only if each of them is still what it was.
//!
//! ```text
//! Memo 192 B    tag 8: return address | site << 47 | pushed category << 48 │ sp 8 │ fp 8 │ row key 8 │ row offset 4 │ words 1 │ uses fp 1
//!               13 offsets of 2 B from sp, in bytes
//!               13 words of 8 B; those not used are the return address at offset 0, so that several compare at a time
//!               tail 8: where the rest of a deep stack's words are, or 0
//! Tail          words 2, by fours │ guards 2 │ room 4 │ readable 8 │ words of 8 B │ offsets of 2 B from sp, in words │ guards of 16 B
//! ```
//!
//! An entry of a mapping call or of a sample names a site and is a deep stack's: all words that the walk to the outermost
//! frame read, and the guards of its Java frames ([`crate::stack::java`]). In mode *exact* a block's entry is too, and its row one
//! of a site.
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

use super::blocks::{row_key, row_of_key};
use super::callers::{self, FRAMES};
use super::segment::Segment;
use super::thread::{GENERATION, ThreadState};
use super::{control, rows};
use crate::stack::deep::{Deep, Reach, Word};
use crate::stack::java::{Guard, memory};
use crate::stack::module::{self, Module};
use crate::stack::native_image;
use crate::stack::read::{peek, return_address};
use crate::stack::rule::BY_TABLE;
use crate::stack::{Entry, Image, Read, Rule, Stack, Walk, Walker, rule_for};
use crate::sys::{elf, os};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{Counter, Row, Section};

/// Words of an entry.
const WORDS: usize = 13;
/// Words of a tail at least: with 4 or 8 a pair took 52 ns 8 frames deep with frame pointers, with those filled up to 12 it
/// takes 44 (AMD EPYC, plain 26). Presumably a loop of one or two rounds has malloc's random branches mispredicted.
const TAIL_WORDS: usize = 12;
/// In the tag of an entry of a mapping call or a sample, which names a site; no user address has it.
const SITE: u64 = 1 << 47;
/// Bytes of a thread's tails beyond which no sample's stack is remembered.
const SAMPLES_TAILS: usize = 256 << 10;
/// Frames that are walked first.
const SHORT: usize = 4;

/// See the module comment.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Memo {
    /// Return address, and the pushed category.
    pub tag: u64,
    /// Stack pointer at entry; its low bits: [`NO_WORDS`], [`SEVEN_WORDS`], [`MORE_WORDS`] or 0 for one to three words.
    pub sp: usize,
    fp: usize,
    /// The upper part of the trailers of this row's blocks.
    pub row_key: u64,
    /// Offset in the segment of this thread's row for the caller; of a mapping call or a sample, its site.
    pub row: u32,
    words_used: u8,
    uses_fp: u8,
    /// Where the words are.
    pub offsets: [u16; WORDS],
    /// What they were.
    pub words: [u64; WORDS],
    tail: *mut Tail,
}
const _: () = assert!(size_of::<Memo>() == 192);

/// There is nothing to compare but the return address.
pub const NO_WORDS: usize = 1;
/// More than seven words.
pub const MORE_WORDS: usize = 2;
/// Four to seven words, or fewer and the frame pointer counts.
pub const SEVEN_WORDS: usize = 3;
/// Multiplier of [`place`].
pub const HASH: u32 = 0x61c8_8647;

impl Memo {
    /// Where the frame pointer and whether it counts are, for the assembly of malloc.
    pub const FP_AT: usize = offset_of!(Memo, fp);
    /// See [`Memo::FP_AT`].
    pub const USES_FP_AT: usize = offset_of!(Memo, uses_fp);

    /// Whether the entry is for this stack pointer, a multiple of 8.
    #[inline(always)]
    fn is_at(&self, sp: usize) -> bool {
        self.sp ^ sp < 4
    }
}

/// See the module comment; words, offsets and guards follow it in memory.
#[repr(C)]
struct Tail {
    words: u16,
    guards: u16,
    /// Bytes that were given to it, itself included.
    room: u32,
    /// [`memory::unmappings`] when the guards were last found to hold: what they name can be read as long as it is that.
    readable: AtomicU64,
}

impl Tail {
    fn bytes(words: usize, guards: usize) -> usize {
        (size_of::<Tail>() + words * 10 + guards * size_of::<Guard>()).next_multiple_of(256)
    }

    fn values(&self) -> *mut u64 {
        (self as *const Tail).wrapping_add(1) as *mut u64
    }
    fn offsets(&self) -> *mut u16 {
        self.values().wrapping_add(self.words as usize) as *mut u16
    }
    /// Words come by fours: 40 bytes each.
    fn guards(&self) -> *mut Guard {
        self.offsets().wrapping_add(self.words as usize) as *mut Guard
    }

    /// Whether its words are what they were.
    ///
    /// # Safety
    /// As [`same`].
    #[inline(always)]
    unsafe fn same(&self, sp: usize) -> bool {
        let (values, offsets) = (self.values(), self.offsets());
        let mut different = 0;
        let mut i = 0;
        while i < self.words as usize {
            // SAFETY: a tail has as many values and offsets as it says; each offset is inside the stack.
            let word = |i: usize| unsafe { peek::<u64>((sp + *offsets.add(i) as usize * 8) as u64) ^ *values.add(i) };
            different |= word(i) | word(i + 1) | word(i + 2) | word(i + 3);
            i += 4;
        }
        different == 0
    }
}

crate::any_alignment! {
    /// The hooks' fast path asks these, on the stack as it is.
    fn guards_hold(tail: *const Tail) -> bool = all_hold;
    /// Whether every word of an entry that was made for this stack pointer is what it was.
    pub fn same_words(m: *const Memo, sp: usize, fp: usize) -> bool = all_same;
}

#[inline(never)]
unsafe extern "C" fn all_same(m: *const Memo, sp: usize, fp: usize) -> bool {
    // SAFETY: the caller's contract.
    unsafe { same(&*m, sp, fp) }
}

unsafe extern "C" fn all_hold(tail: *const Tail) -> bool {
    // Before the guards are asked: what is unmapped meanwhile has them ask again next time.
    let now = memory::unmappings();
    // SAFETY: the tail of an entry of this thread, which has as many guards as it says and isn't written meanwhile.
    let (tail, guards) = unsafe { (&*tail, core::slice::from_raw_parts((*tail).guards(), (*tail).guards as usize)) };
    if tail.readable.load(Relaxed) == now {
        // SAFETY: each of them held when UNMAPPINGS was what it is now.
        return guards.iter().all(|g| unsafe { g.holds_where_readable() });
    }
    let hold = guards.iter().all(|g| g.holds());
    if hold {
        tail.readable.store(now, Relaxed);
    }
    hold
}

/// Offset in the segment of a row.
pub const fn row_offset(row: u32) -> u32 {
    (Section::Rows.offset() + row as usize * Row::BYTES) as u32
}
const _: () = assert!(Section::Rows.offset() + Section::Rows.capacity() * Row::BYTES < u32::MAX as usize);

/// Where entries of a tag begin to be looked for: of one call, those that name a site elsewhere than the row's.
#[inline(always)]
fn place_of(memo: *mut Memo, mask: usize, ra: u64, tag: u64, sp: usize) -> *mut Memo {
    place(memo, mask, ra.wrapping_add(tag >> SITE.trailing_zeros() & 1), sp)
}

/// The product carries low bits up, and its own low ones are zero: the stack pointer and 8 × ra are multiples of 8.
#[inline(always)]
fn place(memo: *mut Memo, mask: usize, ra: u64, sp: usize) -> *mut Memo {
    let h = (sp as u32).wrapping_add((ra as u32).wrapping_mul(8)).wrapping_mul(HASH);
    // SAFETY: a thread's own memo has mask + 1 entries, and what is in force instead is of the largest size.
    unsafe { memo.add((h >> 6) as usize & mask) }
}

/// The remembered entry for this call, if every word it was concluded from is still what it was.
///
/// # Safety
/// `sp` is the stack pointer at the entry of a hooked call of this thread, whose state was taken.
#[inline(always)]
pub unsafe fn recall(t: &ThreadState, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the caller's contract; `place` answers an entry that only this thread writes, with its state borrowed mutably.
    unsafe {
        let ra = return_address(sp);
        recall_at(&*place(t.shared().memo.load(Relaxed), t.memo_mask, ra, sp), ra | t.category_tag, sp, fp)
    }
}

/// The same in little code: where more than three words count, they are compared out of line.
///
/// # Safety
/// As `recall`.
#[inline(always)]
pub unsafe fn recall_few(t: &ThreadState, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: as in `recall`; an offset is used where the entry was made for this stack pointer, so it is inside the stack.
    unsafe {
        let ra = return_address(sp);
        let m = &*place(t.shared().memo.load(Relaxed), t.memo_mask, ra, sp);
        let word = |i: usize| peek::<u64>((sp + m.offsets[i] as usize) as u64) != m.words[i];
        if m.tag != ra | t.category_tag {
            return None;
        }
        let same = match m.sp ^ sp {
            0 => !(word(2) | word(1) | word(0)),
            NO_WORDS => true,
            SEVEN_WORDS | MORE_WORDS => all_same(m, sp, fp),
            _ => false,
        };
        same.then_some(m)
    }
}

/// The same from any memo of this thread's, and for any tag.
#[inline(always)]
unsafe fn recall_from(t: &ThreadState, memo: *mut Memo, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: as in `recall`.
    unsafe {
        let ra = return_address(sp);
        recall_at(&*place_of(memo, t.memo_mask, ra, tag, sp), ra | tag, sp, fp)
    }
}

#[inline(always)]
unsafe fn recall_at(m: &Memo, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    if m.tag != tag || !m.is_at(sp) {
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
    let word = |i: usize| unsafe { peek::<u64>((sp + m.offsets[i] as usize) as u64) != m.words[i] };
    let mut guarded = false;
    if m.words_used > 3 {
        if m.words_used > 7 {
            if !m.tail.is_null() {
                // SAFETY: an entry's tail is its own until the entry is given up; rooms are never unmapped.
                let tail = unsafe { &*m.tail };
                // SAFETY: as this function.
                if !unsafe { tail.same(sp) } {
                    return false;
                }
                guarded = tail.guards != 0;
            }
            if word(12) | word(11) | word(10) || word(9) | word(8) | word(7) {
                return false;
            }
        }
        if word(6) | word(5) || word(4) | word(3) || (m.uses_fp != 0 && fp != m.fp) {
            return false;
        }
    }
    if m.words_used > 0 && (word(2) | word(1) | word(0)) {
        return false;
    }
    // Last: stacks differ at their inner ends, and only a stack that is there has live methods.
    // SAFETY: `guarded` says that there is a tail.
    !guarded || unsafe { guards_hold(m.tail) }
}

/// The second place of a call: wrappers (operator new, xmalloc) are called at one depth from many places. Whoever came
/// first leads; the others lie where the words say that stand where the leader's first ones did, or beside that.
///
/// # Safety
/// `m` is the leader, made for this stack pointer on this thread's stack.
#[inline(always)]
unsafe fn second(mask: usize, m: &Memo, sp: usize) -> usize {
    // SAFETY: each offset is inside the stack.
    let word = |i: usize| unsafe { peek::<u64>((sp + m.offsets[i] as usize) as u64) };
    let h = (m.tag ^ word(0).rotate_left(11) ^ word(1).rotate_left(23) ^ word(2).rotate_left(37) ^ (sp as u64) << 3)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 40) as usize & mask
}

/// The entry in the second place, if there is a leader and the words are what they were.
unsafe fn recall_second(t: &ThreadState, memo: *mut Memo, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: as in `recall`; places are inside the memo; both entries compared were made for this stack pointer.
    unsafe {
        let ra = return_address(sp);
        let leader = &*place_of(memo, t.memo_mask, ra, tag, sp);
        if leader.tag != ra | tag || !leader.is_at(sp) {
            return None;
        }
        let at = second(t.memo_mask, leader, sp);
        [at, at ^ 1]
            .map(|at| &*memo.add(at))
            .into_iter()
            .find(|m| m.tag == leader.tag && m.is_at(sp) && same(m, sp, fp))
    }
}

/// Walks, numbers the caller, remembers. Answers the caller and the row to book in: this thread's, or the shared one.
///
/// # Safety
/// As `recall`.
#[cold]
#[inline(never)]
pub unsafe fn walk(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize) -> (u32, u32) {
    // SAFETY: the caller's contract.
    let ra = unsafe { return_address(sp) };
    // SAFETY: as this function.
    if let Some(m) = unsafe { recall_second(t, t.shared().memo.load(Relaxed), t.category_tag, sp, fp) } {
        let row = row_of_key(m.row_key);
        return (segment.row(row).caller.load(Relaxed), row);
    }
    segment.count(Counter::stack_walks, 1);
    let (mode, _) = control::now(segment);
    let checking = put_in_force(segment, t, mode);
    let remembered = if checking {
        // SAFETY: as this function; the thread's own memo.
        unsafe { recall_own(t, t.category_tag, sp, fp) }.map(|m| m.row_key)
    } else {
        None
    };
    let entry = Entry { ra, sp: sp as u64, fp: fp as u64 };
    let Short { caller, walk: w, reads, known } = short(segment, t, entry, mode);
    let deep = if mode == control::EXACT { deep(segment, t, entry, caller) } else { None };
    let row = rows::row_for(segment, Some(&mut *t), deep.as_ref().map_or(caller, |d| d.0));
    if let Some(key) = remembered {
        let same = segment.row(row_of_key(key)).caller.load(Relaxed) == segment.row(row).caller.load(Relaxed);
        segment.count(Counter::memo_checks, 1);
        segment.count(Counter::memo_disagreements, !same as u64);
    }
    if known && sp.is_multiple_of(8) && segment.row(row).slot.load(Relaxed) == t.slot_mark {
        let of = Of { tag: t.category_tag, row_key: row_key(row), row: row_offset(row) };
        remember_walk(segment, t, entry, (&w, &reads), deep.map(|d| d.1), of);
    }
    t.leave(segment);
    (segment.row(row).caller.load(Relaxed), row)
}

/// The site of a mapping call, its caller in mode off: remembered, or walked for.
///
/// Mapping calls have deep stacks in every mode that has any, and no rows: an entry of theirs names the site itself.
///
/// # Safety
/// As `recall`.
pub unsafe fn mapping(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize) -> u32 {
    let tag = t.category_tag | SITE;
    // SAFETY: as this function.
    match unsafe { recall_from(t, t.shared().memo.load(Relaxed), tag, sp, fp) } {
        Some(m) => m.row,
        // SAFETY: as this function.
        None => unsafe { walk_mapping(segment, t, tag, sp, fp) },
    }
}

/// Mapping calls of a thread that aren't remembered: most threads make a few when they start, and no more.
const FIRST_MAPPINGS: u32 = 16;

#[cold]
#[inline(never)]
unsafe fn walk_mapping(segment: Segment, t: &mut ThreadState, tag: u64, sp: usize, fp: usize) -> u32 {
    // SAFETY: the caller's contract.
    let ra = unsafe { return_address(sp) };
    // SAFETY: as `recall`.
    if let Some(m) = unsafe { recall_second(t, t.shared().memo.load(Relaxed), tag, sp, fp) } {
        return m.row;
    }
    segment.count(Counter::stack_walks, 1);
    let (mode, _) = control::now(segment);
    let checking = put_in_force(segment, t, mode);
    // SAFETY: as `recall`; the thread's own memo.
    let remembered = if checking { unsafe { recall_own(t, tag, sp, fp) }.map(|m| m.row) } else { None };
    let entry = Entry { ra, sp: sp as u64, fp: fp as u64 };
    let Short { caller, walk: w, reads, known } = short(segment, t, entry, mode);
    let deep = if mode != control::OFF { deep(segment, t, entry, caller) } else { None };
    let site = deep.as_ref().map_or(caller, |d| d.0);
    if let Some(remembered) = remembered {
        segment.count(Counter::memo_checks, 1);
        segment.count(Counter::memo_disagreements, (remembered != site) as u64);
    }
    t.mappings = t.mappings.saturating_add(1);
    // A caller that stands for a site only because there is no room may have one next time.
    let kept = mode == control::OFF || deep.is_some();
    if known && kept && sp.is_multiple_of(8) && t.mappings > FIRST_MAPPINGS {
        remember_walk(segment, t, entry, (&w, &reads), deep.map(|d| d.1), Of { tag, row_key: 0, row: site });
    }
    t.leave(segment);
    site
}

/// Puts the usual memo in force, emptied if the code map has changed. Answers whether what it remembers is to be checked.
fn put_in_force(segment: Segment, t: &mut ThreadState, mode: u32) -> bool {
    let (usual, checking) = t.usual_memo();
    if t.shared().memo.load(Acquire) != usual {
        // In force again first: a change of the code map that comes now must not be undone by this store afterwards.
        t.shared().memo.store(usual, Release);
        // SAFETY: this thread's own, of which no entry is borrowed now; zeroes are an empty entry.
        unsafe { core::ptr::write_bytes(t.own_memo, 0, t.memo_mask + 1) };
        t.give_up_tails();
        // What follows says nothing about the memo's size.
        t.misses = 0;
    }
    t.misses += 1;
    // Deep stacks are more, and missing one costs more.
    let patience = if mode == control::EXACT { 2 } else { 8 };
    if t.misses as usize > patience * (t.memo_mask + 1) {
        t.grow_memo(segment);
    }
    checking
}

/// As `recall`, from the thread's own memo, both places.
unsafe fn recall_own(t: &ThreadState, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the caller's contract.
    unsafe { recall_from(t, t.own_memo, tag, sp, fp).or_else(|| recall_second(t, t.own_memo, tag, sp, fp)) }
}

/// The short walk, and the caller it found.
struct Short {
    caller: u32,
    walk: Walk,
    reads: [Read; WORDS],
    /// It is on the thread's own stack.
    known: bool,
}

fn short(segment: Segment, t: &ThreadState, entry: Entry, mode: u32) -> Short {
    let (ra, sp) = (entry.ra, entry.sp as usize);
    let known = t.is_on_stack(sp);
    let high = if known { t.stack().1 } else { (sp | 4095) + 1 };
    let mut frames = [0u64; FRAMES];
    let mut reads = [Read::default(); WORDS];
    let depth = if mode != control::OFF { module::depth(segment, ra as usize - 1) } else { 1 };
    let walker = Walker { stack: sp as u64 & !4095..high as u64, through_jit: false };
    // SAFETY: from the stack pointer to the end of its stack, or of its page, memory is mapped readable.
    let memory = unsafe { Stack::new(sp as u64, high as u64) };
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
    if w.wall.is_some()
        || matches!(w.end, crate::stack::End::NoRule | crate::stack::End::Broken | crate::stack::End::Truncated)
    {
        flags |= callers::TRUNCATED;
        segment.count(Counter::stack_truncated, 1);
    }
    if w.end == crate::stack::End::Jit {
        flags |= callers::JIT;
    }
    let n = w.frames.max(1);
    if w.frames == 0 {
        frames[0] = ra;
    }
    // What a truncated walk saw depends on where the page ended: as a caller it is what its innermost frame is.
    let n = if w.wall.is_some() && !known { 1 } else { n };
    let caller = callers::number(segment, &frames[..n], flags, t.category());
    Short { caller, walk: w, reads, known }
}

/// What an entry is for, and what it stands for.
struct Of {
    tag: u64,
    row_key: u64,
    row: u32,
}

/// Remembers what was walked: deep, or short.
fn remember_walk(
    segment: Segment,
    t: &mut ThreadState,
    entry: Entry,
    (w, reads): (&Walk, &[Read; WORDS]),
    deep: Option<Deep>,
    of: Of,
) {
    match deep {
        Some(d) if !d.momentary => {
            remember(segment, t, entry, d.depends_on_entry_fp(), d.words(), d.guards(), of);
        }
        None if w.frames > 0 && w.extent <= u16::MAX as u32 => {
            let mut words = [Word::default(); WORDS];
            for (word, r) in words.iter_mut().zip(&reads[..w.reads]) {
                let value = if r.relative { r.value.wrapping_add(entry.sp) } else { r.value };
                *word = Word { at: entry.sp + r.offset as u64, value };
            }
            remember(segment, t, entry, w.depends_on_entry_fp, &words[..w.reads], &[], of);
        }
        _ => {}
    }
}

/// Rows beyond which sites get no more of them: what is left is for callers, and for releases by other threads.
const SITE_ROWS: usize = Section::Rows.capacity() / 4 * 3;

/// Walks to the outermost frame. The site, and what it was concluded from; `None` if there is no room for either.
fn deep(segment: Segment, t: &mut ThreadState, entry: Entry, caller: u32) -> Option<(u32, Deep<'static>)> {
    let scratch = t.scratch(control::now(segment).0 == control::EXACT)?;
    let (low, top) = t.stack();
    let known = t.is_on_stack(entry.sp as usize);
    let high = if known { top as u64 } else { (entry.sp | 4095) + 1 };
    let own = (low as u64, top as u64);
    let reach = Reach { low: entry.sp, high, unknown: !known, own };
    // SAFETY: this thread's room, zeroed or as an earlier walk left it; the state is taken, so this is the only walk, and
    // `leave` comes after its last use.
    let mut deep = Deep::new(segment, unsafe { &mut *scratch }, reach, control::depth());
    deep.walk(|pc| rule_at(segment, pc), entry);
    segment.count(Counter::deep_walks, 1);
    segment.count(Counter::deep_frames, deep.frames().len() as u64);
    let flags = if deep.is_cut() { callers::TRUNCATED } else { 0 };
    if segment.used(Section::Rows) > SITE_ROWS {
        segment.count(Counter::sites_merged, 1);
        return None;
    }
    let stack = deep.node()?;
    Some((callers::site(segment, caller, stack, flags), deep))
}

/// The site of a sample under a caller: remembered, or walked for; the caller itself if there is no room for a site.
///
/// Stack and pushed category decide it, so an entry of a mapping call at the same place says the same.
///
/// # Safety
/// As `recall`.
#[cold]
#[inline(never)]
pub unsafe fn site(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize, caller: u32) -> u32 {
    let tag = t.category_tag | SITE;
    let memo = t.shared().memo.load(Relaxed);
    // SAFETY: as this function.
    let known = unsafe { recall_from(t, memo, tag, sp, fp).or_else(|| recall_second(t, memo, tag, sp, fp)) };
    match known {
        Some(m) if callers::parent(segment, m.row) == caller => m.row,
        // SAFETY: as this function.
        _ => unsafe { walk_sample(segment, t, tag, sp, fp, caller) },
    }
}

/// Most samples' stacks are met once, so only one that leads to the same site as another shortly before is remembered.
unsafe fn walk_sample(segment: Segment, t: &mut ThreadState, tag: u64, sp: usize, fp: usize, caller: u32) -> u32 {
    let checking = put_in_force(segment, t, control::SAMPLED);
    // SAFETY: as `recall`; the thread's own memo.
    let remembered = if checking { unsafe { recall_own(t, tag, sp, fp) }.map(|m| m.row) } else { None };
    // SAFETY: the caller's contract.
    let entry = Entry { ra: unsafe { return_address(sp) }, sp: sp as u64, fp: fp as u64 };
    let on_own_stack = t.is_on_stack(sp);
    let deep = deep(segment, t, entry, caller);
    let site = deep.as_ref().map_or(caller, |d| d.0);
    if let Some(remembered) = remembered {
        segment.count(Counter::memo_checks, 1);
        segment.count(Counter::memo_disagreements, (remembered != site) as u64);
    }
    if let Some((_, d)) = deep
        && core::mem::replace(&mut t.sampled[site as usize % t.sampled.len()], site) == site
        && on_own_stack
        && !d.momentary
        && sp.is_multiple_of(8)
        && t.tails_used() < SAMPLES_TAILS
    {
        remember(segment, t, entry, d.depends_on_entry_fp(), d.words(), d.guards(), Of { tag, row_key: 0, row: site });
    }
    t.leave(segment);
    site
}

fn remember(
    segment: Segment,
    t: &mut ThreadState,
    entry: Entry,
    uses_fp: bool,
    words: &[Word],
    guards: &[Guard],
    of: Of,
) {
    let offset = |w: &Word| w.at.wrapping_sub(entry.sp);
    let fits = |w: &&Word| offset(w) <= u16::MAX as u64;
    // What lies far up goes into the tail, and what comes behind it too.
    let near = words.iter().take(WORDS).take_while(fits).count();
    let (first, rest) = words.split_at(near);
    if rest.iter().any(|w| offset(w) > u16::MAX as u64 * 8) {
        return;
    }
    let mut m = Memo {
        tag: entry.ra | of.tag,
        sp: entry.sp as usize,
        fp: entry.fp as usize,
        row_key: of.row_key,
        row: of.row,
        // A frame pointer that counts is compared with the second group, a tail with the third.
        words_used: 0,
        uses_fp: uses_fp as u8,
        offsets: [0; WORDS],
        words: [entry.ra; WORDS],
        tail: core::ptr::null_mut(),
    };
    for (i, w) in first.iter().enumerate() {
        m.offsets[i] = offset(w) as u16;
        m.words[i] = w.value;
    }
    // SAFETY: entries of this thread's own memo, whichever is in force; only a leader was made for this stack pointer, so the
    // second place is asked of no other.
    let at = unsafe {
        let first = place_of(t.own_memo, t.memo_mask, entry.ra, of.tag, m.sp);
        if (*first).tag != m.tag || !(*first).is_at(m.sp) {
            first
        } else {
            let at = second(t.memo_mask, &*first, m.sp);
            let taken = (*t.own_memo.add(at)).tag != 0;
            // Both in turn, so that of two stacks that meet here none is always the loser.
            t.own_memo.add(if taken { at ^ (t.misses as usize & 1) } else { at })
        }
    };
    // SAFETY: as above.
    let mut tail = unsafe { (*at).tail };
    if !rest.is_empty() || !guards.is_empty() {
        let count = rest.len().next_multiple_of(4).max(TAIL_WORDS);
        let bytes = Tail::bytes(count, guards.len());
        // SAFETY: an entry's tail is in this thread's room.
        if tail.is_null() || (unsafe { (*tail).room } as usize) < bytes {
            let Some(room) = t.tail(segment, bytes) else {
                // SAFETY: as in `put_in_force`; no entry may name a tail any more.
                unsafe { core::ptr::write_bytes(t.own_memo, 0, t.memo_mask + 1) };
                return;
            };
            tail = room as *mut Tail;
            // SAFETY: fresh room of at least that many bytes.
            unsafe { (*tail).room = bytes as u32 };
        }
        // SAFETY: the tail has room for what is written, and nobody else reads it: the entry is this thread's.
        unsafe {
            (*tail).readable.store(0, Relaxed);
            (*tail).words = count as u16;
            (*tail).guards = guards.len() as u16;
            let t = &*tail;
            for i in 0..count {
                let (value, words) = rest.get(i).map_or((entry.ra, 0), |w| (w.value, offset(w) / 8));
                t.values().add(i).write(value);
                t.offsets().add(i).write(words as u16);
            }
            for (i, g) in guards.iter().enumerate() {
                t.guards().add(i).write(*g);
            }
        }
        m.tail = tail;
    }
    m.words_used = match (m.tail.is_null(), uses_fp) {
        (false, _) => WORDS,
        (true, true) => near.max(4),
        (true, false) => near,
    } as u8;
    m.sp |= match m.words_used {
        0 => NO_WORDS,
        1..=3 => 0,
        4..=7 => SEVEN_WORDS,
        _ => MORE_WORDS,
    };
    // SAFETY: as above. An entry without a tail gives up the room that the one in its place had.
    unsafe { *at = m };
}

/// Rules by pc, remembered for all threads. A cell is (mark, rule): the mark binds pc, rule and generation by a product,
/// so that a torn pair (two threads filling one cell) matches no pc. Small first: pcs touch a table all over.
static RULES: AtomicUsize = AtomicUsize::new(0);
/// Rules that were not remembered, since the table last grew.
static MISSES: AtomicU32 = AtomicU32::new(0);
const FIRST_RULES: usize = 10;
const LAST_RULES: usize = 14;

/// Makes the table, or a larger one, which begins empty. Its address is a multiple of 64: the low bits are log2 of its cells.
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

fn rule_at(segment: Segment, pc: u64) -> Option<Rule> {
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
    let rule = if m.keeps_fp && pc == at { Rule::convention() } else { rule_in(&m, at) };
    if let Some(cell) = rule_cell(pc) {
        cell[1].store(rule.to_bits(), Relaxed);
        cell[0].store(mark(pc, rule.to_bits()), Relaxed);
    }
    Some(rule)
}

fn rule_in(m: &Module, pc: u64) -> Rule {
    let rule = if m.eh_frame_hdr == 0 {
        Rule::FRAME_POINTER
    } else {
        // SAFETY: the loaded segment of an object that holds a live caller's code.
        let tables = unsafe { Image::mapped(m.unwind_low as u64, m.unwind_high as u64) };
        rule_for(tables, m.eh_frame_hdr as u64, pc)
    };
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
