//! An entry of the memo, and the comparison that decides whether it is still valid.
//!
//! ```text
//! Memo 192 B    tag 8: return address | site << 47 | pushed category << 48 │ sp 8 │ fp 8 │ row key 8 │ row offset 4 │ words 1 │ uses fp 1
//!               13 offsets of 2 B from sp, in bytes
//!               13 words of 8 B; unused ones repeat the return address at offset 0, so that several compare at a time
//!               tail 8: where the rest of a deep stack's words are, or 0
//!               passed over 4: how often a lookup met this entry in the first bucket and matched another
//! Tail          words 2, by fours │ guards 2 │ room 4 │ readable 8 │ freed 8 │ words of 8 B │ offsets of 2 B from sp, in words │ guards of 16 B
//! ```

use crate::stack::Entry;
use crate::stack::java::{self, Guard, memory};
use crate::stack::read::peek;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Words of an entry.
pub(super) const WORDS: usize = 13;
/// Minimum words of a tail. Shorter tails are filled up, because they measured slower: presumably a loop of one or two
/// rounds makes the CPU mispredict malloc's branches.
pub(super) const TAIL_WORDS: usize = 12;
/// In the tag of an entry of a mapping call or a sample, which names a site; no user address has it.
pub(super) const SITE: u64 = 1 << 47;
/// See the module comment.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Memo {
    /// Return address, and the pushed category.
    pub tag: u64,
    /// Stack pointer at entry; its low bits: [`NO_WORDS`], [`SEVEN_WORDS`], [`MORE_WORDS`] or 0 for one to three words.
    pub sp: usize,
    pub(super) fp: usize,
    /// The upper part of the trailers of this row's blocks. Of a mapping call or a sample: category, and bit 16 for a
    /// site.
    pub row_key: u64,
    /// Offset in the segment of this thread's row for the caller; of a mapping call or a sample, its site.
    pub row: u32,
    pub(super) words_used: u8,
    pub(super) uses_fp: u8,
    /// Offsets of the words from the stack pointer, in bytes.
    pub offsets: [u16; WORDS],
    /// The values of the words.
    pub words: [u64; WORDS],
    pub(super) tail: *mut Tail,
    pub(super) passed_over: u32,
}
const _: () = assert!(size_of::<Memo>() == 192);

/// Only the return address is compared.
pub const NO_WORDS: usize = 1;
/// More than seven words.
pub const MORE_WORDS: usize = 2;
/// Four to seven words, or fewer and the frame pointer counts.
pub const SEVEN_WORDS: usize = 3;
/// Multiplier of [`bucket`].
pub const HASH: u32 = 0x61c8_8647;
/// How far the first words are rotated for a second bucket.
pub const ROTATE: [u32; 3] = [11, 23, 37];
/// Multiplier of a second bucket.
pub const SECOND_HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// Low bits of that product that aren't used.
pub const SECOND_SHIFT: u32 = 40;

impl Memo {
    /// Offset of the field, for the assembly of malloc.
    pub const FP_AT: usize = offset_of!(Memo, fp);
    /// See [`Memo::FP_AT`].
    pub const USES_FP_AT: usize = offset_of!(Memo, uses_fp);
    /// See [`Memo::FP_AT`].
    pub const PASSED_OVER_AT: usize = offset_of!(Memo, passed_over);
    /// See [`Memo::FP_AT`].
    pub const TAIL_AT: usize = offset_of!(Memo, tail);
    /// Offset of the field in a tail.
    pub const TAIL_WORDS_AT: usize = offset_of!(Tail, words);
    /// See [`Memo::TAIL_WORDS_AT`].
    pub const TAIL_GUARDS_AT: usize = offset_of!(Tail, guards);
    /// Where a tail's words begin.
    pub const TAIL_VALUES_AT: usize = size_of::<Tail>();

    pub(super) const EMPTY: Memo = Memo {
        tag: 0,
        sp: 0,
        fp: 0,
        row_key: 0,
        row: 0,
        words_used: 0,
        uses_fp: 0,
        offsets: [0; WORDS],
        words: [0; WORDS],
        tail: core::ptr::null_mut(),
        passed_over: 0,
    };

    /// Becomes an entry for this call, without words. [`Memo::count_words`] completes it.
    #[inline(always)]
    pub(super) fn begin(&mut self, entry: Entry, uses_fp: bool, to: Destination) {
        self.tag = entry.ra | to.tag;
        self.sp = entry.sp as usize;
        self.fp = entry.fp as usize;
        self.row_key = to.row_key;
        self.row = to.row;
        self.uses_fp = uses_fp as u8;
        self.offsets = [0; WORDS];
        self.words = [entry.ra; WORDS];
        self.tail = core::ptr::null_mut();
        self.passed_over = 0;
    }

    /// Notes how many words are compared. A frame pointer that counts is compared with the second group, a tail with the
    /// third.
    #[inline(always)]
    pub(super) fn count_words(&mut self, words: usize) {
        self.words_used = match (self.tail.is_null(), self.uses_fp != 0) {
            (false, _) => WORDS,
            (true, true) => words.max(4),
            (true, false) => words,
        } as u8;
        self.sp |= match self.words_used {
            0 => NO_WORDS,
            1..=3 => 0,
            4..=7 => SEVEN_WORDS,
            _ => MORE_WORDS,
        };
    }

    /// Whether the entry is for this stack pointer, a multiple of 8.
    #[inline(always)]
    pub(super) fn is_at(&self, sp: usize) -> bool {
        self.sp ^ sp < 4
    }
}

/// The row or site that an entry names, and the part of its tag beside the return address.
pub(super) struct Destination {
    pub(super) tag: u64,
    pub(super) row_key: u64,
    pub(super) row: u32,
}

/// See the module comment; words, offsets and guards follow it in memory.
#[repr(C)]
pub(super) struct Tail {
    pub(super) words: u16,
    pub(super) guards: u16,
    /// Bytes of the tail, this header included.
    pub(super) room: u32,
    /// [`memory::unmappings`] when the guards last held. While it is unchanged, the memory that they name stays
    /// readable.
    pub(super) readable: AtomicU64,
    /// [`java::methods_freed`] when the guards last held. While it is known and unchanged, the guards of methods hold.
    pub(super) freed: AtomicU64,
}

impl Tail {
    pub(super) fn bytes(words: usize, guards: usize) -> usize {
        (size_of::<Tail>() + words * 10 + guards * size_of::<Guard>()).next_multiple_of(256)
    }

    pub(super) fn values(&self) -> *mut u64 {
        (self as *const Tail).wrapping_add(1) as *mut u64
    }
    pub(super) fn offsets(&self) -> *mut u16 {
        self.values().wrapping_add(self.words as usize) as *mut u16
    }
    /// Words come by fours: 40 bytes each.
    pub(super) fn guards(&self) -> *mut Guard {
        self.offsets().wrapping_add(self.words as usize) as *mut Guard
    }

    /// Whether its words are unchanged.
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
    /// Whether the guards of a tail hold. For the hooks' fast path, at any alignment of the stack.
    fn guards_hold(tail: *const Tail) -> bool = all_hold;
    /// Whether every word of an entry that was made for this stack pointer is unchanged.
    pub fn same_words(m: *const Memo, sp: usize, fp: usize) -> bool = all_same;
}

#[inline(never)]
pub(super) unsafe extern "C" fn all_same(m: *const Memo, sp: usize, fp: usize) -> bool {
    // SAFETY: the caller's contract.
    unsafe { same(&*m, sp, fp) }
}

unsafe extern "C" fn all_hold(tail: *const Tail) -> bool {
    // Read before the guards are checked: an unmapping meanwhile, or a method that is freed, makes the next call check
    // them again.
    let (now, freed) = (memory::unmappings(), java::methods_freed());
    // SAFETY: the tail of an entry of this thread, which has as many guards as it says and isn't written meanwhile.
    let (tail, guards) = unsafe { (&*tail, core::slice::from_raw_parts((*tail).guards(), (*tail).guards as usize)) };
    let hold = if tail.readable.load(Relaxed) == now {
        let methods_hold = freed != 0 && tail.freed.load(Relaxed) == freed;
        // SAFETY: each of them held when UNMAPPINGS had the value that it has now.
        guards.iter().all(|g| methods_hold && g.is_of_method() || unsafe { g.holds_where_readable() })
    } else {
        guards.iter().all(|g| g.holds())
    };
    if hold {
        tail.readable.store(now, Relaxed);
        tail.freed.store(freed, Relaxed);
    }
    hold
}

/// The first bucket of a tag. For one call, an entry that names a site and an entry that names a row have different
/// first buckets.
#[inline(always)]
pub(super) fn bucket_of_tag(memo: *mut Memo, mask: usize, ra: u64, tag: u64, sp: usize) -> *mut Memo {
    bucket(memo, mask, ra.wrapping_add(tag >> SITE.trailing_zeros() & 1), sp)
}

/// The first bucket of a call: one entry. A multiplication carries low bits up. The low bits of this product are zero,
/// since the stack pointer and 8 × ra are multiples of 8.
#[inline(always)]
pub(super) fn bucket(memo: *mut Memo, mask: usize, ra: u64, sp: usize) -> *mut Memo {
    let h = (sp as u32).wrapping_add((ra as u32).wrapping_mul(8)).wrapping_mul(HASH);
    // SAFETY: a thread's own memo has mask + 1 entries, and a memo that is in force instead has the largest size.
    unsafe { memo.add((h >> 6) as usize & mask) }
}

#[inline(always)]
pub(super) unsafe fn recall_at(m: &Memo, tag: u64, sp: usize, fp: usize) -> Option<&Memo> {
    if m.tag != tag || !m.is_at(sp) {
        return None;
    }
    // SAFETY: the entry was made for this return address and stack pointer.
    unsafe { same(m, sp, fp) }.then_some(m)
}

/// Whether every word of an entry is unchanged. `hook/malloc/x86_64/parts.rs` has the same steps.
///
/// # Safety
/// The entry was made for this stack pointer on this thread's stack.
#[inline(always)]
pub(super) unsafe fn same(m: &Memo, sp: usize, fp: usize) -> bool {
    // SAFETY: each offset is inside the stack. Unused offsets are 0.
    let word = |i: usize| unsafe { peek::<u64>((sp + m.offsets[i] as usize) as u64) ^ m.words[i] };
    let mut guarded = false;
    if m.words_used > 3 {
        if m.words_used > 7 {
            if !m.tail.is_null() {
                // SAFETY: an entry's tail is its own until the entry is given up; the memory of tails is never
                // unmapped.
                let tail = unsafe { &*m.tail };
                // SAFETY: as this function.
                if !unsafe { tail.same(sp) } {
                    return false;
                }
                guarded = tail.guards != 0;
            }
            if (word(12) | word(11) | word(10)) != 0 || (word(9) | word(8) | word(7)) != 0 {
                return false;
            }
        }
        if (word(6) | word(5)) != 0 || (word(4) | word(3)) != 0 || (m.uses_fp != 0 && fp != m.fp) {
            return false;
        }
    }
    if m.words_used > 0 && (word(2) | word(1) | word(0)) != 0 {
        return false;
    }
    // Guards last: stacks differ at their inner ends, and only the methods of an unchanged stack are live.
    // SAFETY: `guarded` says that there is a tail.
    !guarded || unsafe { guards_hold(m.tail) }
}

/// The index of a call's second bucket. Wrappers (operator new, xmalloc) are called at one depth from many places. One
/// such stack is the leader, in the first bucket: initially the first stack, later a stack that occurs often. The other
/// stacks' bucket follows from their words at the positions of the leader's first words.
///
/// # Safety
/// `m` is the leader, made for this stack pointer on this thread's stack.
#[inline(always)]
pub(super) unsafe fn second_bucket(mask: usize, m: &Memo, sp: usize) -> usize {
    // SAFETY: each offset is inside the stack.
    let word = |i: usize| unsafe { peek::<u64>((sp + m.offsets[i] as usize) as u64) };
    index_of(mask, m.tag, [word(0), word(1), word(2)], sp)
}

/// The second bucket of an entry, once another with the same positions leads.
pub(super) fn second_bucket_of(mask: usize, m: &Memo) -> usize {
    index_of(mask, m.tag, [m.words[0], m.words[1], m.words[2]], m.sp & !7)
}

/// Copies the entries of a memo into a larger one, to the buckets where a search will look. A leader stays the leader.
/// Entries with a tail are left out, since a larger memo has other tails, and so are entries whose buckets are taken.
///
/// # Safety
/// The smaller memo has `mask` + 1 entries; the larger has `to_mask` + 1, all empty; nobody else uses either.
pub unsafe fn keep_entries(memo: *mut Memo, mask: usize, to: *mut Memo, to_mask: usize) {
    // Two leaders have different buckets in the smaller memo, and so in the larger one. So if the leaders come first,
    // each finds its bucket empty.
    for leads in [true, false] {
        for i in 0..=mask {
            // SAFETY: an entry of the smaller memo.
            let m = unsafe { &*memo.add(i) };
            let (ra, sp) = (m.tag & (SITE - 1), m.sp & !7);
            let is_leader = core::ptr::eq(bucket_of_tag(memo, mask, ra, m.tag, sp), m);
            if m.tag == 0 || !m.tail.is_null() || is_leader != leads {
                continue;
            }
            // SAFETY: buckets are inside the larger memo, which nobody else uses.
            unsafe {
                let first = bucket_of_tag(to, to_mask, ra, m.tag, sp);
                if (*first).tag == 0 {
                    *first = *m;
                    continue;
                }
                // The second bucket follows from the words at the leader's positions.
                let leader = &*first;
                let is_led = leader.tag == m.tag && leader.is_at(sp) && leader.offsets[..3] == m.offsets[..3];
                let at = second_bucket_of(to_mask, m);
                let mut places = [at, at ^ 1].map(|at| to.add(at)).into_iter();
                if let Some(free) = places.find(|place| (**place).tag == 0).filter(|_| is_led) {
                    *free = *m;
                }
            }
        }
    }
}

#[inline(always)]
fn index_of(mask: usize, tag: u64, words: [u64; 3], sp: usize) -> usize {
    let [a, b, c] = [0, 1, 2].map(|i| words[i].rotate_left(ROTATE[i]));
    let h = (tag ^ a ^ b ^ c ^ (sp as u64) << 3).wrapping_mul(SECOND_HASH);
    (h >> SECOND_SHIFT) as usize & mask
}
