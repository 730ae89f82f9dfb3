//! The memo: finds the caller without walking the stack again.
//!
//! A walk is a function of the stack's words that it read, of the registers at entry and of the code map
//! ([`crate::stack::walk`] guarantees that). So an entry keeps every word, with its address, and a remembered stack is
//! used only if every word is unchanged. [`entry`] has the layout.
//!
//! An entry of a mapping call or of a sample names a site and keeps a deep stack. A deep stack has all words that the
//! walk to the outermost frame read, and the guards of its Java frames ([`crate::stack::java`]). In mode *exact* a
//! block's entry does too, and its row belongs to a site.
//!
//! Two traps. Return addresses alone don't suffice: an alloca in a shared callee moves the frames, which only the saved
//! frame pointers show. And the words may lie beyond a smaller stack that the thread has switched to. So entries are
//! made only on the thread's own stack, and used only for the same stack pointer. Then an address that was inside that
//! stack is still inside it. An entry's first bucket follows from return address and stack pointer. If another path
//! leads through that bucket at the same depth, the second bucket follows from the words too. A new thread in the slot
//! and a change of the code map (dlopen, dlclose) put an empty memo in force. On any other stack (coroutines,
//! sigaltstack) each call walks, up to the end of the stack pointer's page, which is mapped.
//!
//! A walk itself needs stack. Where the thread has less than [`WALK_STACK`] left, a call is booked with its innermost
//! frame at most, and counted. On a stack whose bounds aren't known, the pages below must be readable, which a guard
//! page isn't.
//!
//! With PLIMSOLL_CHECK=1 an empty memo is always in force: every call walks, and the result is compared with the
//! remembered one. The fast path's code stays the same.

use super::blocks::{row_key, row_of_key};
use super::thread::ThreadState;
use super::{classify, control, rows};
use crate::segment::books::MayBook;
use crate::segment::{Segment, row_offset};
use crate::stack::callers::{self, FRAMES};
use crate::stack::deep::{Deep, Reach, Word};
use crate::stack::java::Guard;
use crate::stack::module;
use crate::stack::read::{peek, return_address};
use crate::stack::rule_table::rule_at;
use crate::stack::{Entry, Read, Stack, Walk, Walker};
use crate::sys::os;
use core::sync::atomic::Ordering::*;
use entry::*;
use plimsoll_segment::{CALLER_OVERFLOW, CALLER_SITE, Counter, Section};

pub mod entry;
#[cfg(test)]
mod tests;

/// Once a thread's tails have this many bytes, no more samples' stacks are remembered.
const SAMPLES_TAILS: usize = 256 << 10;
/// Frames of the first, short walk.
const SHORT_FRAMES: usize = 4;
/// What a walk, and the booking around it, may take of the stack below the hooked call: 1.5 times what was measured
/// (docs/decisions/stacks.md).
const WALK_STACK: usize = 6 << 10;
/// What a walk through Java frames may take. A HotSpot thread's own guard pages lie in this part of the stack, too, at
/// the low end.
const JAVA_WALK_STACK: usize = 32 << 10;
/// HotSpot gives no Java thread a smaller stack: 17 and 25 refuse -Xss below 136 KiB.
const JAVA_THREAD: usize = 128 << 10;
/// What finding the category of one frame may take.
const CLASSIFY_STACK: usize = 1536;

/// The remembered entry for this call, if every word that it depends on is unchanged.
///
/// # Safety
/// `sp` is the stack pointer at the entry of a hooked call of this thread, whose state was taken.
#[inline(always)]
pub unsafe fn recall(t: &ThreadState, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the caller's contract; `bucket` returns an entry that only this thread writes, with its state borrowed
    // mutably.
    unsafe {
        let ra = return_address(sp);
        recall_at(&*bucket(t.memo(), t.memo_mask, ra, sp), ra | t.category_tag, sp, fp)
    }
}

/// As [`recall`], in little code: more than three words are compared out of line.
///
/// # Safety
/// As `recall`.
#[inline(always)]
pub unsafe fn recall_few(t: &ThreadState, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: as in `recall`; an offset is used where the entry was made for this stack pointer, so it is inside the
    // stack.
    unsafe {
        let ra = return_address(sp);
        let m = &*bucket(t.memo(), t.memo_mask, ra, sp);
        (m.tag == ra | t.category_tag && same_few(m, sp, fp)).then_some(m)
    }
}

/// Whether an entry was made for this stack pointer and every word is unchanged; more than three are compared out of
/// line.
#[inline(always)]
unsafe fn same_few(m: &Memo, sp: usize, fp: usize) -> bool {
    // SAFETY: an offset is used where the entry was made for this stack pointer, so it is inside the stack.
    unsafe {
        let word = |i: usize| peek::<u64>((sp + m.offsets[i] as usize) as u64) ^ m.words[i];
        match m.sp ^ sp {
            0 => (word(2) | word(1) | word(0)) == 0,
            NO_WORDS => true,
            SEVEN_WORDS | MORE_WORDS => all_same(m, sp, fp),
            _ => false,
        }
    }
}

/// As [`recall`], from any memo of this thread and for any tag.
#[inline(always)]
unsafe fn recall_from(t: &ThreadState, memo: *mut Memo, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: as in `recall`.
    unsafe {
        let ra = return_address(sp);
        recall_at(&*bucket_of_tag(memo, t.memo_mask, ra, tag, sp), ra | tag, sp, fp)
    }
}

/// The entry in the second bucket, if there is a leader and the words are unchanged.
unsafe fn recall_second(t: &ThreadState, memo: *mut Memo, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the caller's contract; an entry of the memo.
    unsafe { find_second(t, memo, tag, sp, fp).map(|m| &*m) }
}

/// As [`recall_second`]; returns the entry's address.
unsafe fn find_second(t: &ThreadState, memo: *mut Memo, tag: u64, sp: usize, fp: usize) -> Option<*mut Memo> {
    // SAFETY: as in `recall`; buckets are inside the memo; both entries compared were made for this stack pointer.
    unsafe {
        let ra = return_address(sp);
        let leader = &*bucket_of_tag(memo, t.memo_mask, ra, tag, sp);
        if leader.tag != ra | tag || !leader.is_at(sp) {
            return None;
        }
        let at = second_bucket(t.memo_mask, leader, sp);
        [at, at ^ 1]
            .map(|at| memo.add(at))
            .into_iter()
            .find(|m| (**m).tag == leader.tag && (**m).is_at(sp) && same(&**m, sp, fp))
    }
}

/// A leader that was passed over this often since it became the leader is replaced.
pub const PATIENCE: u32 = 64;

/// The entry in the second bucket. A stack that keeps being found there becomes the leader, since only the first bucket
/// is on the fast path. The first stack at a depth may belong to the start-up and never occur again.
///
/// # Safety
/// As `recall`.
unsafe fn recall_second_often(t: &mut ThreadState, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    let memo = t.memo();
    // SAFETY: the caller's contract. `t` is borrowed mutably, so there is no other reference to an entry.
    unsafe {
        let found = find_second(t, memo, tag, sp, fp)?;
        let leader = bucket_of_tag(memo, t.memo_mask, return_address(sp), tag, sp);
        // An empty memo that is in force instead has no leaders.
        (*leader).passed_over += 1;
        if (*leader).passed_over < PATIENCE {
            return Some(&*found);
        }
        Some(&*promote(memo, t.memo_mask, leader, found))
    }
}

/// Makes an entry that was found in its second bucket the leader. Returns where it is now: the first bucket.
///
/// # Safety
/// Both are entries of this memo, which has mask + 1 entries, for one tag and stack pointer; nothing else refers to an
/// entry.
unsafe fn promote(memo: *mut Memo, mask: usize, leader: *mut Memo, found: *mut Memo) -> *mut Memo {
    // SAFETY: the caller's contract; a bucket is inside the memo.
    unsafe {
        (*leader).passed_over = 0;
        (*found).passed_over = 0;
        core::ptr::swap(leader, found);
        // The former leader is now looked for by the words at the new one's positions. That may be the first bucket
        // itself, which the new one keeps.
        let (new, former) = (&*leader, &*found);
        let at = memo.add(second_bucket_of(mask, former));
        if new.offsets[..3] == former.offsets[..3] && at != leader {
            core::ptr::swap(found, at);
        }
        leader
    }
}

crate::any_alignment! {
    /// For the fast path of malloc, which has taken the state and found another stack in the first bucket: the entry in
    /// the second bucket, or null.
    pub fn second_entry(t: *mut ThreadState, sp: usize, fp: usize) -> *const Memo = entry_in_second;
}

unsafe extern "C" fn entry_in_second(t: *mut ThreadState, sp: usize, fp: usize) -> *const Memo {
    // SAFETY: the caller's contract: nobody else uses the state until it is given back.
    unsafe {
        let t = &mut *t;
        recall_second_often(t, t.category_tag, sp, fp).map_or(core::ptr::null(), |m| m)
    }
}

/// The row to book in, this thread's or the shared one: remembered in the second bucket, or as [`walk`].
///
/// # Safety
/// As `recall`.
#[inline]
pub unsafe fn recall_or_walk(books: MayBook<'_>, t: &mut ThreadState, sp: usize, fp: usize) -> u32 {
    // SAFETY: as this function.
    unsafe {
        match recall_second_often(t, t.category_tag, sp, fp) {
            Some(m) => row_of_key(m.row_key),
            None => walk(books, t, sp, fp),
        }
    }
}

/// Walks, numbers the caller and remembers it. Returns the row to book in: this thread's, or the shared one.
///
/// # Safety
/// As `recall`.
#[cold]
#[inline(never)]
pub unsafe fn walk(books: MayBook<'_>, t: &mut ThreadState, sp: usize, fp: usize) -> u32 {
    let segment = *books;
    // SAFETY: the caller's contract.
    let ra = unsafe { return_address(sp) };
    if let Some(caller) = unwalked(segment, t, ra, sp) {
        return rows::row_for(books, Some(t), caller);
    }
    // SAFETY: as this function.
    unsafe { walk_whole(books, t, ra, sp, fp) }
}

/// How much of the stack is left below the hooked call, at most [`walk_stack`].
fn stack_left(t: &ThreadState, sp: usize) -> usize {
    let wanted = walk_stack(t, sp);
    if t.is_on_stack(sp) {
        return sp.saturating_sub(t.stack().0).min(wanted);
    }
    // The kernel knows the bounds of a signal handler's stack. Data of the program may lie below it.
    if let Some((low, bytes)) = os::alternate_stack()
        && sp.wrapping_sub(low) < bytes
    {
        return (sp - low).min(wanted);
    }
    // A guard page isn't readable. Without a guard page, other memory may follow, and the bounds can't be known.
    let mut low = sp & !4095;
    while sp - low < wanted && low > 0 && os::readable(low - 4096) {
        low -= 4096;
    }
    (sp - low).min(wanted)
}

/// What a walk may need here. On a stack that isn't the thread's own it ends within a page.
fn walk_stack(t: &ThreadState, sp: usize) -> usize {
    let (low, high) = t.stack();
    let may_be_java = t.is_on_stack(sp) && high - low >= JAVA_THREAD && crate::stack::java::is_found();
    if may_be_java { JAVA_WALK_STACK } else { WALK_STACK }
}

/// The caller of a call whose stack has no space for a walk. `None`: the stack has enough space.
#[inline(never)]
fn unwalked(segment: Segment, t: &ThreadState, ra: u64, sp: usize) -> Option<u32> {
    let left = stack_left(t, sp);
    if left >= walk_stack(t, sp) {
        return None;
    }
    segment.count(Counter::stacks_unwalked, 1);
    if left < CLASSIFY_STACK {
        return Some(CALLER_OVERFLOW);
    }
    Some(classify::caller(segment, &[ra], callers::TRUNCATED, t.category()))
}

/// The rest of [`walk`], which needs much stack.
///
/// # Safety
/// As `recall`.
#[inline(never)]
unsafe fn walk_whole(books: MayBook<'_>, t: &mut ThreadState, ra: u64, sp: usize, fp: usize) -> u32 {
    let segment = *books;
    segment.count(Counter::stack_walks, 1);
    let (mode, _) = control::now(segment);
    let checking = count_miss(segment, t, mode);
    let remembered = if checking {
        // SAFETY: as this function; the thread's own memo.
        unsafe { recall_own(t, t.category_tag, sp, fp) }.map(|m| m.row_key)
    } else {
        None
    };
    let entry = Entry { ra, sp: sp as u64, fp: fp as u64 };
    let mut reads = [Read::default(); WORDS];
    let ShortWalk { caller, walk: w, on_own_stack } = short_walk(segment, t, entry, mode, &mut reads);
    let deep = if mode == control::EXACT { deep_walk(segment, t, entry, caller) } else { None };
    let row = rows::row_for(books, Some(&mut *t), deep.as_ref().map_or(caller, |d| d.0));
    if let Some(key) = remembered {
        let same = segment.seen(row_of_key(key)).caller() == segment.seen(row).caller();
        segment.count(Counter::memo_checks, 1);
        segment.count(Counter::memo_disagreements, !same as u64);
    }
    if deep.is_some() && segment.seen(row).blocks() == 0 {
        // Most deep stacks of a start-up occur once in a thread, and an entry takes up to several KiB. So a site's
        // first block isn't remembered, and its miss isn't evidence that the memo is too small.
        t.misses = t.misses.saturating_sub(1);
    } else if on_own_stack && sp.is_multiple_of(8) && segment.seen(row).slot_mark() == t.slot_mark {
        let to = Destination { tag: t.category_tag, row_key: row_key(row), row: row_offset(row) };
        remember_walk(segment, t, entry, (&w, &reads), deep.map(|d| d.1), to);
    }
    t.return_scratch(segment);
    row
}

/// The site of a mapping call, and the parts of its record that the hook needs.
#[derive(Clone, Copy)]
pub struct Site {
    /// The number of the site; in mode off, the number of the caller.
    pub index: u32,
    /// Its category.
    pub category: u16,
    /// Whether it is a site, not only a caller.
    pub is_site: bool,
}

impl Site {
    /// The site with this number. A record keeps its category and its kind, so an entry may keep them too.
    fn of(segment: Segment, index: u32) -> Site {
        let c = segment.caller(index);
        Site { index, category: c.category.load(Relaxed), is_site: c.flags.load(Relaxed) & CALLER_SITE != 0 }
    }

    /// The site in the form that a memo entry has.
    fn destination(self, tag: u64) -> Destination {
        Destination { tag, row_key: u64::from(self.category) | u64::from(self.is_site) << 16, row: self.index }
    }

    /// The site that an entry names.
    #[inline(always)]
    fn of_entry(m: &Memo) -> Site {
        Site { index: m.row, category: m.row_key as u16, is_site: m.row_key & 1 << 16 != 0 }
    }
}

/// The site of a mapping call, if the first bucket remembers it.
///
/// # Safety
/// As `recall`.
#[inline(always)]
pub unsafe fn mapping_at_once(t: &ThreadState, sp: usize, fp: usize) -> Option<Site> {
    // SAFETY: as in `recall`.
    unsafe {
        let ra = return_address(sp);
        let m = &*bucket_of_tag(t.memo(), t.memo_mask, ra, SITE, sp);
        (m.tag == ra | SITE | t.category_tag && same_few(m, sp, fp)).then(|| Site::of_entry(m))
    }
}

/// The site of a mapping call, its caller in mode off: remembered, or walked for.
///
/// Mapping calls have deep stacks in every mode that records any. They have no rows, so their entries name the site
/// itself.
///
/// # Safety
/// As `recall`.
pub unsafe fn mapping(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize) -> u32 {
    let tag = t.category_tag | SITE;
    // SAFETY: as this function.
    match unsafe { recall_from(t, t.memo(), tag, sp, fp) } {
        Some(m) => m.row,
        // SAFETY: as this function.
        None => unsafe { walk_mapping(segment, t, tag, sp, fp) },
    }
}

/// The first mapping calls of a thread aren't remembered: most threads make a few at their start and no more.
const FIRST_MAPPINGS: u32 = 16;

#[cold]
#[inline(never)]
unsafe fn walk_mapping(segment: Segment, t: &mut ThreadState, tag: u64, sp: usize, fp: usize) -> u32 {
    // SAFETY: the caller's contract.
    let ra = unsafe { return_address(sp) };
    // SAFETY: as `recall`.
    if let Some(m) = unsafe { recall_second_often(t, tag, sp, fp) } {
        return m.row;
    }
    if let Some(caller) = unwalked(segment, t, ra, sp) {
        return caller;
    }
    // SAFETY: the caller's contract.
    unsafe { walk_whole_mapping(segment, t, tag, ra, sp, fp) }
}

/// The rest of [`walk_mapping`], which needs much stack.
#[inline(never)]
unsafe fn walk_whole_mapping(segment: Segment, t: &mut ThreadState, tag: u64, ra: u64, sp: usize, fp: usize) -> u32 {
    segment.count(Counter::stack_walks, 1);
    let (mode, _) = control::now(segment);
    let checking = count_miss(segment, t, mode);
    // SAFETY: as `recall`; the thread's own memo.
    let remembered = if checking { unsafe { recall_own(t, tag, sp, fp) }.map(|m| m.row) } else { None };
    let entry = Entry { ra, sp: sp as u64, fp: fp as u64 };
    let mut reads = [Read::default(); WORDS];
    let ShortWalk { caller, walk: w, on_own_stack } = short_walk(segment, t, entry, mode, &mut reads);
    let deep = if mode != control::OFF { deep_walk(segment, t, entry, caller) } else { None };
    let site = deep.as_ref().map_or(caller, |d| d.0);
    if let Some(remembered) = remembered {
        segment.count(Counter::memo_checks, 1);
        segment.count(Counter::memo_disagreements, (remembered != site) as u64);
    }
    t.mappings = t.mappings.saturating_add(1);
    // Without space for a site, the caller stands for the site. The memo doesn't keep this result, because the next
    // call may find space.
    let is_final = mode == control::OFF || deep.is_some();
    if on_own_stack && is_final && sp.is_multiple_of(8) && t.mappings > FIRST_MAPPINGS {
        remember_walk(segment, t, entry, (&w, &reads), deep.map(|d| d.1), Site::of(segment, site).destination(tag));
    }
    t.return_scratch(segment);
    site
}

/// Counts a miss; enlarges the memo after many. If the code map has changed, puts the usual memo in force again, empty.
/// Returns whether the self-check is on.
fn count_miss(segment: Segment, t: &mut ThreadState, mode: u32) -> bool {
    let (usual, checking) = t.usual_memo();
    if t.shared().memo.load(Acquire) != usual.cast() {
        // This store comes first: after the clearing it could undo a change of the code map that comes meanwhile.
        t.shared().memo.store(usual.cast(), Release);
        // SAFETY: this thread's own, of which no entry is borrowed now; zeroes are an empty entry.
        unsafe { core::ptr::write_bytes(t.own_memo, 0, t.memo_mask + 1) };
        t.give_up_tails();
        // The misses that follow aren't evidence that the memo is too small.
        t.misses = 0;
    }
    t.misses += 1;
    // There are more deep stacks than callers, and missing one costs more.
    let patience = if mode == control::EXACT { 2 } else { 8 };
    if t.misses as usize > patience * (t.memo_mask + 1) {
        t.grow_memo(segment);
    }
    checking
}

/// As `recall`, from the thread's own memo, both buckets.
unsafe fn recall_own(t: &ThreadState, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    // SAFETY: the caller's contract.
    unsafe { recall_from(t, t.own_memo, tag, sp, fp).or_else(|| recall_second(t, t.own_memo, tag, sp, fp)) }
}

/// A short walk, and the caller that it found.
struct ShortWalk {
    caller: u32,
    walk: Walk,
    on_own_stack: bool,
}

#[inline(never)]
fn short_walk(segment: Segment, t: &ThreadState, entry: Entry, mode: u32, reads: &mut [Read; WORDS]) -> ShortWalk {
    let (ra, sp) = (entry.ra, entry.sp as usize);
    let on_own_stack = t.is_on_stack(sp);
    let high = if on_own_stack { t.stack().1 } else { (sp | 4095) + 1 };
    let mut frames = [0u64; FRAMES];
    let depth = if mode != control::OFF { module::depth(segment, ra as usize - 1) } else { 1 };
    let records = module::keeping_frame_pointers().map_or(0..0, |m| m.start as u64..m.end as u64);
    let walker = Walker { stack: sp as u64 & !4095..high as u64, through_jit: false, records };
    // SAFETY: from the stack pointer to the end of its stack, or of its page, memory is mapped readable.
    let memory = unsafe { Stack::new(sp as u64, high as u64) };
    let mut walk_to = |depth: usize, frames: &mut [u64; FRAMES]| {
        walker.walk(&memory, |pc| rule_at(segment, pc), entry, &mut frames[..depth], reads)
    };
    // Four frames decide the category of most callers. If they don't, and the object's rules go deeper, eight are
    // walked.
    let first = depth.min(SHORT_FRAMES);
    let mut w = walk_to(first, &mut frames);
    let mut category = None;
    if depth > first && w.frames == first {
        match classify::is_decided(segment, &frames[..first]) {
            (true, found) => category = found,
            (false, _) => w = walk_to(depth, &mut frames),
        }
    }
    let mut flags = 0;
    if w.wall.is_some()
        || matches!(
            w.end,
            crate::stack::WalkEnd::NoRule | crate::stack::WalkEnd::Broken | crate::stack::WalkEnd::Truncated
        )
    {
        flags |= callers::TRUNCATED;
        segment.count(Counter::stack_truncated, 1);
    }
    if w.end == crate::stack::WalkEnd::Jit {
        flags |= callers::JIT;
    }
    let n = w.frames.max(1);
    if w.frames == 0 {
        frames[0] = ra;
    }
    // The length of a truncated walk depends on where the page ended, so only its innermost frame identifies the
    // caller.
    let n = if w.wall.is_some() && !on_own_stack { 1 } else { n };
    let caller = match category.filter(|_| n == first) {
        Some(category) => callers::number(segment, &frames[..n], flags, t.category(), |_| category),
        None => classify::caller(segment, &frames[..n], flags, t.category()),
    };
    ShortWalk { caller, walk: w, on_own_stack }
}

/// Remembers a deep or short walk.
fn remember_walk(
    segment: Segment,
    t: &mut ThreadState,
    entry: Entry,
    (w, reads): (&Walk, &[Read; WORDS]),
    deep: Option<Deep>,
    to: Destination,
) {
    match deep {
        Some(d) if !d.momentary => {
            remember(segment, t, entry, d.depends_on_entry_fp(), d.words(), d.guards(), to);
        }
        None if w.frames > 0 && w.extent <= u16::MAX as u32 => {
            let at = place(t, entry, entry.ra | to.tag);
            // SAFETY: an entry of this thread's own memo, whose state is borrowed mutably: written where it lies. If
            // the entry had a tail, it gives up the tail's space.
            let m = unsafe { &mut *at };
            m.begin(entry, w.depends_on_entry_fp, to);
            for (i, r) in reads[..w.reads].iter().enumerate() {
                m.offsets[i] = r.offset as u16;
                m.words[i] = if r.relative { r.value.wrapping_add(entry.sp) } else { r.value };
            }
            m.count_words(w.reads);
        }
        _ => {}
    }
}

/// Beyond this many rows, sites get no more: the rest is for callers, and for releases by other threads.
const SITE_ROWS: usize = Section::Rows.capacity() / 4 * 3;

/// Walks to the outermost frame. Returns the site and the words that it depends on; `None` if there is no space for
/// them.
fn deep_walk(segment: Segment, t: &mut ThreadState, entry: Entry, caller: u32) -> Option<(u32, Deep<'static>)> {
    let scratch = t.scratch(control::now(segment).0 == control::EXACT)?;
    let (low, top) = t.stack();
    let on_own_stack = t.is_on_stack(entry.sp as usize);
    let high = if on_own_stack { top as u64 } else { (entry.sp | 4095) + 1 };
    let own = (low as u64, top as u64);
    let reach = Reach { low: entry.sp, high, unknown: !on_own_stack, own };
    // SAFETY: this thread's work space, zeroed or as an earlier walk left it. The state is taken, so this is the only
    // walk, and `return_scratch` comes after its last use.
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

/// The site of a sample under a caller: remembered, or walked for; the caller itself if there is no space for a site.
///
/// The site depends on the stack and the pushed category, so an entry of a mapping call with the same stack names the
/// same site.
///
/// # Safety
/// As `recall`.
#[cold]
#[inline(never)]
pub unsafe fn site(segment: Segment, t: &mut ThreadState, sp: usize, fp: usize, caller: u32) -> u32 {
    let tag = t.category_tag | SITE;
    let memo = t.memo();
    // SAFETY: as this function.
    let known = unsafe { recall_from(t, memo, tag, sp, fp).or_else(|| recall_second(t, memo, tag, sp, fp)) };
    match known {
        Some(m) if callers::parent(segment, m.row) == caller => m.row,
        _ if stack_left(t, sp) < walk_stack(t, sp) => caller,
        // SAFETY: as this function.
        _ => unsafe { walk_sample(segment, t, tag, sp, fp, caller) },
    }
}

/// Most samples' stacks occur once, so a stack is remembered only if another sample of its site came shortly before.
#[inline(never)]
unsafe fn walk_sample(segment: Segment, t: &mut ThreadState, tag: u64, sp: usize, fp: usize, caller: u32) -> u32 {
    let checking = count_miss(segment, t, control::SAMPLED);
    // SAFETY: as `recall`; the thread's own memo.
    let remembered = if checking { unsafe { recall_own(t, tag, sp, fp) }.map(|m| m.row) } else { None };
    // SAFETY: the caller's contract.
    let entry = Entry { ra: unsafe { return_address(sp) }, sp: sp as u64, fp: fp as u64 };
    let on_own_stack = t.is_on_stack(sp);
    let deep = deep_walk(segment, t, entry, caller);
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
        let to = Site::of(segment, site).destination(tag);
        remember(segment, t, entry, d.depends_on_entry_fp(), d.words(), d.guards(), to);
    }
    t.return_scratch(segment);
    site
}

/// Where an entry with this tag belongs in the thread's own memo: in its first bucket, or in the second if another stack
/// leads there.
#[inline(always)]
fn place(t: &ThreadState, entry: Entry, tag: u64) -> *mut Memo {
    let sp = entry.sp as usize;
    // SAFETY: entries of this thread's own memo, whichever is in force; only a leader was made for this stack pointer,
    // so the second bucket is computed for no other entry.
    unsafe {
        let first = bucket_of_tag(t.own_memo, t.memo_mask, entry.ra, tag, sp);
        if (*first).tag != tag || !(*first).is_at(sp) {
            return first;
        }
        let at = second_bucket(t.memo_mask, &*first, sp);
        let taken = (*t.own_memo.add(at)).tag != 0;
        // Alternates, so that neither of two colliding stacks always loses.
        t.own_memo.add(if taken { at ^ (t.misses as usize & 1) } else { at })
    }
}

/// Remembers a deep walk.
fn remember(
    segment: Segment,
    t: &mut ThreadState,
    entry: Entry,
    uses_fp: bool,
    words: &[Word],
    guards: &[Guard],
    to: Destination,
) {
    let offset = |w: &Word| w.at.wrapping_sub(entry.sp);
    let fits = |w: &&Word| offset(w) <= u16::MAX as u64;
    // A word that lies far up goes into the tail, and so do all words behind it.
    let near = words.iter().take(WORDS).take_while(fits).count();
    let (first, rest) = words.split_at(near);
    if rest.iter().any(|w| offset(w) > u16::MAX as u64 * 8) {
        return;
    }
    let mut m = Memo::EMPTY;
    m.begin(entry, uses_fp, to);
    for (i, w) in first.iter().enumerate() {
        m.offsets[i] = offset(w) as u16;
        m.words[i] = w.value;
    }
    let at = place(t, entry, m.tag);
    // SAFETY: an entry of this thread's own memo.
    let mut tail = unsafe { (*at).tail };
    if !rest.is_empty() || !guards.is_empty() {
        let count = rest.len().next_multiple_of(4).max(TAIL_WORDS);
        let bytes = Tail::bytes(count, guards.len());
        // SAFETY: an entry's tail is in this thread's space.
        if tail.is_null() || (unsafe { (*tail).room } as usize) < bytes {
            let Some(room) = t.tail(segment, bytes) else {
                // SAFETY: as in `count_miss`; no entry may name a tail any more.
                unsafe { core::ptr::write_bytes(t.own_memo, 0, t.memo_mask + 1) };
                return;
            };
            tail = room as *mut Tail;
            // SAFETY: fresh space of at least that many bytes.
            unsafe { (*tail).room = bytes as u32 };
        }
        // SAFETY: the tail has space for what is written, and nobody else reads it: the entry is this thread's.
        unsafe {
            (*tail).readable.store(0, Relaxed);
            (*tail).freed.store(0, Relaxed);
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
    m.count_words(near);
    // SAFETY: as above. An entry without a tail gives up the space of the entry that it replaces.
    unsafe { *at = m };
}
