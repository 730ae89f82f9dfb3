//! The walk from a hooked call to the outermost frame, and the words that determined it.
//!
//! ```text
//!    ┌──────────────┐ hi
//!    │ …            │              Coordinates are relative to the entry stack pointer: an address on the stack is
//!    │ return addr 2│ +72  read    its distance from there. Stack words that hold such addresses (saved frame
//!    │ saved fp     │ +64  read *  pointers) are logged as distances too, so that the same path compares equal on
//!    │ …            │              any thread's stack, at any depth of it.
//!    │ return addr 1│ +24  read
//!    │ …            │              * only if a later CFA depends on it. A callee-saved rbp that merely holds the
//!    │ return addr 0│  0   entry     caller's data is not read.
//!    └──────────────┘ entry.sp
//! ```
//!
//! # Soundness: when a remembered walk may stand for a new one
//!
//! A walk is a deterministic function of
//! 1. `entry.ra`, the walker's options, and the code map (the rules by pc),
//! 2. `entry.fp - entry.sp`, if `depends_on_entry_fp`,
//! 3. the logged words,
//! 4. whether the places read lie below `hi`: `extent <= hi - entry.sp`, and, if there is a `wall`,
//!    `hi - entry.sp < wall + 8`.
//!
//! For by construction no step sees an absolute stack address, and none looks at a word without logging it. Each word's
//! place follows from what was logged before it. So: compare 1, 2 and 4, then the words in order, and stop at the first
//! difference. If there is none, the walk would have the same result, and no word outside `entry.sp..hi` was touched.
//! Comparing return addresses alone is not enough. An alloca in a shared callee moves them, so one caller's stale words
//! can stand where the remembered stack had its own. Comparing without 4 isn't enough either: on another, smaller
//! stack, these addresses may not be mapped.

use core::ops::Range;

use super::arch::native as arch;
use super::read::Memory;
use super::rule::{BY_TABLE, Base, Rule, SavedFp, Step};

/// The machine state at the first instruction of the hooked function.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The return address.
    pub ra: u64,
    /// The stack pointer; on x86-64 `ra` is stored there.
    pub sp: u64,
    /// The frame pointer register: the caller's.
    pub fp: u64,
}

/// A stack word that the walk depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Read {
    /// The word as stored; with `relative`, minus the entry stack pointer.
    pub value: u64,
    /// Distance of the word from the entry stack pointer, in bytes.
    pub offset: u32,
    /// The word holds a stack address (a saved frame or stack pointer), not a return address.
    pub relative: bool,
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkEnd {
    /// The outermost frame was reached.
    Outermost,
    /// `frames` or `reads` is full.
    Limit,
    /// The next word lies beyond the stack's bounds.
    Truncated,
    /// The last frame lies in no module: code made at run time.
    Jit,
    /// The last frame's code has no usable rule, and its frame pointer leads nowhere.
    NoRule,
    /// The next frame wouldn't lie above the last one, or is misaligned: a damaged stack or a wrong rule.
    Broken,
    /// A signal handler on a stack of its own: the interrupted frame lies outside this one.
    OtherStack,
}

/// The result of a walk. The frames and words themselves are in the slices that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// Return addresses, innermost first, beginning with `entry.ra`.
    pub frames: usize,
    pub reads: usize,
    pub end: WalkEnd,
    pub depends_on_entry_fp: bool,
    /// Every word read ends at or below this offset.
    pub extent: u32,
    /// The word that the walk needed but that lies beyond `hi`, if there is one.
    pub wall: Option<u64>,
    /// Bit i: frame i isn't a return address but the very pc that a signal interrupted.
    pub interrupted: u64,
    /// Frames beyond the first that were found by frame pointers without a rule: likely, not certain.
    pub guessed: u8,
}

/// At most this many frames, whatever space `frames` has.
pub const FRAME_LIMIT: usize = 64;

#[derive(Clone, Debug)]
pub struct Walker {
    /// The bounds of the stack that `entry.sp` lies on: what may be read.
    pub stack: Range<u64>,
    /// Continue through code outside all modules along the frame pointers.
    pub through_jit: bool,
    /// Code for which `rule` gives [`Rule::convention`]: `rule` isn't called for this code.
    pub records: Range<u64>,
}

impl Walker {
    /// Walks from `entry`; `rule` gives the rule for a pc, `None` where the pc lies in no module. It is called with
    /// `ra - 1`, or with the pc itself where a signal interrupted it.
    ///
    /// `memory` must be readable within the stack's bounds above `entry.sp`; elsewhere it isn't read. If `frames` has
    /// no space for a frame, or the entry lies outside the bounds, the walk is empty.
    pub fn walk(
        &self,
        memory: &impl Memory,
        rule: impl FnMut(u64) -> Option<Rule>,
        entry: Entry,
        frames: &mut [u64],
        reads: &mut [Read],
    ) -> Walk {
        self.walk_noting(memory, rule, entry, frames, reads, |_, _| {})
    }

    /// As `walk`. `note` gets a frame's index and further facts from its words. For an interpreted frame, these are the
    /// method and the bytecode pointer; for a deoptimised frame, its own return address. These words are among the
    /// logged ones.
    pub fn walk_noting(
        &self,
        memory: &impl Memory,
        mut rule: impl FnMut(u64) -> Option<Rule>,
        entry: Entry,
        frames: &mut [u64],
        reads: &mut [Read],
        mut note: impl FnMut(usize, [u64; 2]),
    ) -> Walk {
        let room = frames.len().min(FRAME_LIMIT);
        let on_stack = self.stack.contains(&entry.sp);
        let high = if on_stack { i64::try_from(self.stack.end - entry.sp).unwrap_or(i64::MAX) } else { 0 };
        let mut state = State {
            memory,
            log: reads,
            origin: entry.sp,
            high,
            sp: arch::RETURN_SLOT,
            fp: Fp::Entry(distance(entry.fp, entry.sp)),
            walk: Walk {
                frames: 0,
                reads: 0,
                end: WalkEnd::Truncated,
                depends_on_entry_fp: false,
                extent: 0,
                wall: None,
                interrupted: 0,
                guessed: 0,
            },
        };
        if !on_stack || room == 0 {
            return state.walk;
        }

        let mut pc = entry.ra & arch::CODE_BITS;
        let mut exact = false;
        let mut known = None;
        let end = loop {
            if pc == 0 {
                break WalkEnd::Outermost;
            }
            frames[state.walk.frames] = pc;
            if exact {
                state.walk.interrupted |= 1 << state.walk.frames;
            }
            state.walk.frames += 1;
            if state.walk.frames == room {
                break WalkEnd::Limit;
            }
            if !exact && self.records.contains(&(pc - 1)) {
                match state.follow_records(&self.records, &mut pc, &mut frames[..room], &mut rule) {
                    Followed::UpTo => known = Some(Some(Rule::convention())),
                    Followed::Into(rule) => {
                        known = Some(rule);
                        continue;
                    }
                    Followed::ToLimit => break WalkEnd::Limit,
                }
            }
            let here = known.take().unwrap_or_else(|| rule(if exact { pc } else { pc - 1 }));
            let at = if exact { pc } else { pc - 1 };
            exact = false;
            let next = match here.map(Rule::step) {
                Some(Step::Frame { cfa, fp }) => {
                    let (before, wall) = ((state.sp, state.fp), state.walk.wall);
                    let next = state.frame(cfa, fp);
                    if here.is_some_and(Rule::is_convention) {
                        known = next.ok().and_then(|ra| caller(ra, &mut rule));
                        match (known, next) {
                            (Some(Some(_)), _) | (None, Ok(_)) => next,
                            _ => match rule(at | BY_TABLE).map(Rule::step) {
                                Some(Step::Frame { cfa, fp }) => {
                                    known = None;
                                    (state.sp, state.fp) = before;
                                    state.walk.wall = wall;
                                    state.frame(cfa, fp)
                                }
                                _ => next,
                            },
                        }
                    } else {
                        next
                    }
                }
                Some(Step::Interpreted { bytecode_slot }) => {
                    let index = state.walk.frames - 1;
                    state.interpreted(bytecode_slot).map(|(ra, words)| {
                        note(index, words);
                        ra
                    })
                }
                Some(Step::Deoptimised { bytes, original_pc }) => {
                    let own = state.read(state.sp.wrapping_add(i64::from(original_pc)), false);
                    own.and_then(|own| {
                        note(state.walk.frames - 1, [own, 0]);
                        state.compiled(bytes)
                    })
                }
                Some(Step::Continuation { entry_bytes }) => {
                    state.continuation(entry_bytes, |ra| rule(ra.wrapping_sub(1)).is_some_and(Rule::is_java))
                }
                Some(Step::WalkEnd) => break WalkEnd::Outermost,
                Some(Step::Signal) => {
                    exact = true;
                    state.signal()
                }
                // Without a rule the frame pointer may have been anything: believe it only if it leads back into code.
                Some(Step::FramePointer | Step::Unknown) => state.frame_record(WalkEnd::NoRule).and_then(|ra| {
                    known = caller(ra, &mut rule);
                    if known == Some(None) {
                        return Err(WalkEnd::NoRule);
                    }
                    state.walk.guessed += u8::from(known.is_some());
                    Ok(ra)
                }),
                None if self.through_jit => {
                    state.frame_record(WalkEnd::Jit).inspect(|&ra| state.walk.guessed += u8::from(ra != 0))
                }
                None => break WalkEnd::Jit,
            };
            pc = match next {
                Ok(pc) => pc & arch::CODE_BITS,
                Err(end) => break end,
            };
        };
        state.walk.end = end;
        state.walk
    }
}

/// The result of `rule` for a return address; `None` if the address is the null that ends a chain.
fn caller(ra: u64, rule: &mut impl FnMut(u64) -> Option<Rule>) -> Option<Option<Rule>> {
    let pc = ra & arch::CODE_BITS;
    (pc != 0).then(|| rule(pc - 1))
}

fn distance(address: u64, origin: u64) -> i64 {
    address.wrapping_sub(origin) as i64
}

/// Where the frame pointer of the current frame is. Read only when a CFA needs it.
#[derive(Clone, Copy)]
enum Fp {
    /// In the register, still the one at entry: this distance.
    Entry(i64),
    /// Saved in the word at this offset.
    Saved(i64),
    /// Known and accounted for.
    Known(i64),
    Lost,
}

/// Where [`State::follow_records`] ends.
enum Followed {
    /// In its last frame: the step from there is unusual.
    UpTo,
    /// In other code, which has this rule and whose frame isn't noted yet; or at the null that ends a chain.
    Into(Option<Rule>),
    /// In its last frame: there is no space for more.
    ToLimit,
}

struct State<'a, M> {
    memory: &'a M,
    log: &'a mut [Read],
    /// The entry stack pointer. Enters only into addresses to read and into `distance`.
    origin: u64,
    /// The stack's upper bound.
    high: i64,
    sp: i64,
    fp: Fp,
    walk: Walk,
}

impl<M: Memory> State<'_, M> {
    /// The word at `offset`, logged.
    fn read(&mut self, offset: i64, relative: bool) -> Result<u64, WalkEnd> {
        if offset < 0 || offset % 8 != 0 {
            return Err(WalkEnd::Broken);
        }
        self.reach(offset, WalkEnd::Truncated)?;
        let slot = self.log.get_mut(self.walk.reads).ok_or(WalkEnd::Limit)?;
        let word = self.memory.word(self.origin.wrapping_add(offset as u64)).ok_or(WalkEnd::Broken)?;
        let value = if relative { word.wrapping_sub(self.origin) } else { word };
        *slot = Read { value, offset: offset as u32, relative };
        self.walk.reads += 1;
        Ok(value)
    }

    /// Checks that the word at `offset` lies on the stack, and notes the result in `extent` or `wall`.
    fn reach(&mut self, offset: i64, or: WalkEnd) -> Result<(), WalkEnd> {
        if offset.checked_add(8).is_none_or(|end| end > self.high) {
            self.walk.wall = Some(offset as u64);
            return Err(or);
        }
        let end = u32::try_from(offset + 8).map_err(|_| WalkEnd::Limit)?;
        self.walk.extent = self.walk.extent.max(end);
        Ok(())
    }

    fn frame_pointer(&mut self) -> Result<i64, WalkEnd> {
        let value = match self.fp {
            Fp::Known(value) => value,
            Fp::Entry(value) => {
                self.walk.depends_on_entry_fp = true;
                value
            }
            Fp::Saved(offset) => self.read(offset, true)? as i64,
            Fp::Lost => return Err(WalkEnd::NoRule),
        };
        self.fp = Fp::Known(value);
        Ok(value)
    }

    fn frame(&mut self, cfa: super::rule::Cfa, fp: SavedFp) -> Result<u64, WalkEnd> {
        let base = match cfa.base {
            Base::Sp => self.sp,
            Base::Fp => self.frame_pointer()?,
        };
        let mut top = base.wrapping_add(i64::from(cfa.offset));
        if let Some(add) = cfa.deref {
            if top < self.sp {
                return Err(WalkEnd::Broken);
            }
            top = (self.read(top, true)? as i64).wrapping_add(i64::from(add));
        }
        if top <= self.sp || top % 8 != 0 {
            return Err(WalkEnd::Broken);
        }
        let ra = self.read(top - 8, false)?;
        self.fp = match fp {
            SavedFp::Same => self.fp,
            SavedFp::Lost => Fp::Lost,
            SavedFp::Cfa(offset) => Fp::Saved(top.wrapping_add(i64::from(offset))),
            SavedFp::Fp(offset) => Fp::Saved(self.frame_pointer()?.wrapping_add(i64::from(offset))),
        };
        self.sp = top;
        Ok(ra)
    }

    /// Steps along frame records, as [`State::frame`] does by [`Rule::convention`], while each lies on the stack and leads
    /// into code of `records`: nearly every step in HotSpot. `pc` is the last frame's, which lies there; it ends up as the
    /// pc of the frame where the walk continues. At an unusual step the loop stops before it changes anything;
    /// the caller handles that step.
    #[inline(always)]
    fn follow_records(
        &mut self,
        records: &Range<u64>,
        pc: &mut u64,
        frames: &mut [u64],
        rule: &mut impl FnMut(u64) -> Option<Rule>,
    ) -> Followed {
        // A word at this offset lies on the stack, is aligned, and offsets fit in 32 bits: one comparison.
        let words = self.high.min(i64::from(u32::MAX)) as u64 / 8;
        let holds = |offset: i64| (offset as u64).rotate_right(3) < words;
        let (mut in_register, mut slot) = match self.fp {
            Fp::Entry(fp) | Fp::Known(fp) => (Some(fp), 0),
            Fp::Saved(slot) => (None, slot),
            Fp::Lost => return Followed::UpTo,
        };
        let (mut sp, mut reads, mut n) = (self.sp, self.walk.reads, self.walk.frames);
        let end = loop {
            let (fp, saved) = match in_register {
                Some(fp) => (fp, 0),
                None => {
                    let word = if holds(slot) { self.memory.word(self.origin.wrapping_add(slot as u64)) } else { None };
                    let (Some(word), Some(entry)) = (word, self.log.get_mut(reads)) else { break Followed::UpTo };
                    let fp = word.wrapping_sub(self.origin);
                    *entry = Read { value: fp, offset: slot as u32, relative: true };
                    (fp as i64, 1)
                }
            };
            let at = fp.wrapping_add(8);
            let ra = if holds(at) { self.memory.word(self.origin.wrapping_add(at as u64)) } else { None };
            let (Some(ra), Some(entry)) = (ra, self.log.get_mut(reads + saved)) else { break Followed::UpTo };
            let next = ra & arch::CODE_BITS;
            let there = if records.contains(&next.wrapping_sub(1)) {
                Some(Rule::convention())
            } else if next == 0 {
                None
            } else {
                rule(next - 1)
            };
            // The record must end above the stack pointer, and lead to a further frame; else the object's table is
            // queried.
            if at + 8 <= sp || (there.is_none() && next != 0) {
                break Followed::UpTo;
            }
            *entry = Read { value: ra, offset: at as u32, relative: false };
            (in_register, slot, sp, reads) = (None, fp, at + 8, reads + saved + 1);
            if !records.contains(&next.wrapping_sub(1)) {
                *pc = next;
                break Followed::Into(there);
            }
            *pc = next;
            frames[n] = next;
            n += 1;
            if n == frames.len() {
                break Followed::ToLimit;
            }
        };
        if reads != self.walk.reads {
            self.walk.depends_on_entry_fp |= matches!(self.fp, Fp::Entry(_));
            (self.fp, self.sp) = (Fp::Saved(slot), sp);
            (self.walk.reads, self.walk.frames) = (reads, n);
            self.walk.extent = self.walk.extent.max(sp as u32);
        }
        end
    }

    /// A frame record, { caller's frame pointer, return address }, where the frame pointer points.
    fn frame_record(&mut self, or: WalkEnd) -> Result<u64, WalkEnd> {
        let record = self.frame_pointer().map_err(|_| or)?;
        if record < self.sp || record % 8 != 0 {
            return Err(or);
        }
        let ra =
            self.read(record.saturating_add(8), false).map_err(|end| if end == WalkEnd::Limit { end } else { or })?;
        self.fp = Fp::Saved(record);
        self.sp = record + 16;
        Ok(ra)
    }

    fn compiled(&mut self, bytes: i32) -> Result<u64, WalkEnd> {
        self.frame(super::rule::Cfa { base: Base::Sp, offset: bytes, deref: None }, SavedFp::Cfa(-16))
    }

    /// Slots from the frame pointer (hotspot, cpu/x86/frame_x86.hpp; the same in 9 to 27): 0 the caller's, 1 return
    /// address, -1 the caller's stack pointer before arguments and adapters moved it, -3 method, -8 bytecode pointer
    /// (8: -7).
    fn interpreted(&mut self, bytecode_slot: i32) -> Result<(u64, [u64; 2]), WalkEnd> {
        let fp = self.frame_pointer()?;
        if fp < self.sp {
            return Err(WalkEnd::Broken);
        }
        let ra = self.read(fp.saturating_add(8), false)?;
        let sp = self.read(fp - 8, true)? as i64;
        let words = [self.read(fp - 3 * 8, false)?, self.read(fp.wrapping_add(i64::from(bytecode_slot)), false)?];
        // Where a method handle's linker has popped its last argument, the frame lies a word above what the caller
        // noted. Such a caller is interpreted and found by its frame pointer.
        if sp < fp || sp % 8 != 0 {
            return Err(WalkEnd::Broken);
        }
        self.fp = Fp::Saved(fp);
        self.sp = sp.max(fp + 16);
        Ok((ra, words))
    }

    /// The step to the frame through which a virtual thread was entered. It is searched for, because arguments of the
    /// frame inside it lie in between.
    fn continuation(&mut self, entry_bytes: i32, mut is_java: impl FnMut(u64) -> bool) -> Result<u64, WalkEnd> {
        for words in 0..32 {
            let top = self.sp.wrapping_add(words * 8 + i64::from(entry_bytes));
            let ra = self.read(top.wrapping_sub(8), false)?;
            if is_java(ra) {
                self.fp = Fp::Saved(top - 16);
                self.sp = top;
                return Ok(ra);
            }
        }
        Err(WalkEnd::NoRule)
    }

    fn signal(&mut self) -> Result<u64, WalkEnd> {
        let sp = self.read(self.sp + arch::SIGNAL_SP, true)? as i64;
        if sp <= self.sp {
            return Err(WalkEnd::OtherStack);
        }
        if sp % 8 != 0 {
            return Err(WalkEnd::Broken);
        }
        self.reach(sp, WalkEnd::OtherStack)?;
        let pc = self.read(self.sp + arch::SIGNAL_PC, false)?;
        self.fp = Fp::Saved(self.sp + arch::SIGNAL_FP);
        self.sp = sp;
        Ok(pc)
    }
}
