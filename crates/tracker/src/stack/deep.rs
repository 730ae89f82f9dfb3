//! The deep walk: from a hooked call to the outermost frame, through code of loaded objects and code that lies in none.
//!
//! ```text
//!  pc in an object          rule (8 bytes for one pc), as the short walk's         → one frame
//!  pc in the code cache     HotSpot's rules (java/mod.rs)                          → its Java frames, inlined ones too
//!  pc in other code         the frame pointer, if it leads into code; guessed      → one frame of kind Jit
//! ```
//!
//! # When a frame pointer is believed
//!
//! Code without rules may keep frame pointers (V8's builtins, what V8 and most JITs make) or use the register for
//! anything. So its frame pointer counts only if it points to a frame record above the frame, and the record's return
//! address lies in code. That may be code of an object, of HotSpot, or in memory that was made executable
//! ([`generated_code`]). If only a guess led to code outside of objects, that code is a frame only if its own frame
//! pointer leads on in the same way. So a chain that leads into data ends before the first false frame, with the mark
//! of a cut.
//!
//! JIT code that uses the register for other things shows one frame, the place that a call returns to, and then the
//! cut. If it left an outer frame's pointer in the register, the callers of that frame follow, marked as guessed.
//!
//! Every word that a step reads is logged with its address, in the order of the walk. By this log the memo decides
//! whether another walk from the same registers would have the same result (`account/memo`; walk.rs has the argument).
//! What Java frames depend on besides is logged as guards. A step is a function of its registers and of the words that
//! it logged, and of nothing else.
//!
//! # What is taken over from the last walk
//!
//! Stacks of one thread differ at their inner end. So the last walk is kept. A new walk may come to a machine frame
//! with the same registers (pc, stack pointer, where the frame pointer is). Then it takes over the rest, if every word
//! that the last walk read from there on is unchanged and its guards hold. The argument is the memo's. So a stack that
//! the memo misses costs a step for each frame that differs, and a comparison for each of the others. Guards of
//! interpreted methods aren't compared while the VM has freed no method.
//!
//! Reads are checked. On the thread's own stack everything from the stack pointer to its high end is mapped. On another
//! stack (a coroutine's, a signal's own) each page is checked by a system call. Where a signal interrupted the thread's
//! own stack, the walk continues there. A walk through the stack of a signal or a coroutine is never remembered.

use super::arch::native as arch;
use super::frames::{self, Frame};
use super::generated_code;
use super::java::{self, Guard};
use super::read::peek;
use super::rule::{BY_TABLE, Base, Cfa, Rule, SavedFp, Step};
use crate::segment::Segment;
use crate::segment::slots::{self, GENERATION};
use crate::sys::os;
use core::sync::atomic::Ordering::Relaxed;
use plimsoll_segment::{Counter, Cut, FrameKind, frame_flags};

/// Maximum number of frames, whatever the options say.
pub const MOST_FRAMES: usize = plimsoll_segment::sites::MOST_FRAMES;
/// Maximum number of words: saved frame pointer and return address of each frame, and the additional words of Java
/// frames.
const MOST_WORDS: usize = 4 * MOST_FRAMES;
/// Marks a frame that a rule led to, from a frame that a guess had led to. No flag of a logged frame has this bit.
const AFTER_GUESS: u8 = 0x40;
/// How far a stack that isn't known is followed, bytes.
const MOST_UNKNOWN: u64 = 1 << 20;

/// A word that the walk depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Word {
    /// Its address.
    pub at: u64,
    /// Its value.
    pub value: u64,
}

/// Work space for two walks, this one and the last. Not on the thread's stack, which may be small.
#[repr(C)]
pub struct Scratch {
    walks: [Record; 2],
    /// Index of the record of the last walk.
    last: usize,
    /// Bytes that walks have touched, as far as they were counted.
    counted: usize,
    /// Words of the longest of these walks.
    longest: usize,
    /// The thread that made the last walk.
    walker: u64,
}

impl Scratch {
    /// Notes the thread that makes the next walk. If another thread made the last walk, nothing is taken over from it.
    /// The next walk overwrites its record, so that the pages of the other record stay untouched.
    pub fn hand_to(&mut self, walker: u64) {
        if self.walker != walker {
            self.walker = walker;
            self.walks.iter_mut().for_each(|w| w.generation = 0);
            self.last ^= 1;
        }
    }

    /// How many more bytes the walks have touched since the last call of this function, in whole pages of each list.
    pub fn grown(&mut self) -> usize {
        let longest = self.walks[0].words_used.max(self.walks[1].words_used);
        if longest <= self.longest {
            return 0;
        }
        self.longest = longest;
        let lists = |w: &Record| {
            [
                w.frames_used * size_of::<Frame>(),
                w.frames_used * size_of::<u32>(),
                w.words_used * size_of::<Word>(),
                w.guards_used * size_of::<Guard>(),
                w.steps_used * size_of::<Reached>(),
            ]
        };
        let touched = self.walks.iter().flat_map(lists).map(|bytes| bytes.next_multiple_of(4096)).sum();
        let more = usize::saturating_sub(touched, self.counted);
        self.counted += more;
        more
    }
}

/// A finished walk. Zeroed memory is a walk from which nothing can be taken over.
#[repr(C)]
struct Record {
    frames: [Frame; MOST_FRAMES],
    /// The node of each frame: the stack from it outwards.
    nodes: [u32; MOST_FRAMES],
    words: [Word; MOST_WORDS],
    guards: [Guard; MOST_FRAMES],
    steps: [Reached; MOST_FRAMES],
    frames_used: usize,
    words_used: usize,
    guards_used: usize,
    steps_used: usize,
    /// Generation of the code map; 0: nothing may be taken over.
    generation: u32,
    depends_on_entry_fp: bool,
    /// [`java::memory::unmappings`], read when the walk began, before its guards were checked.
    readable: u64,
    /// [`java::methods_freed`], read at the same moment. 0: it is unknown.
    freed: u64,
}

/// A machine frame, and how much had been logged when the walk came to it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Reached {
    registers: Registers,
    guessed: u8,
    frames: u16,
    guards: u16,
    words: u16,
}

/// Where the frame pointer of a frame is. It is read only when a step needs it: a callee-saved register that merely
/// holds the caller's data must not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fp {
    /// In the register, still the one at entry.
    Entry(u64),
    /// Saved in the word at this address.
    Saved(u64),
    /// Known, and accounted for.
    Known(u64),
    /// Unknown.
    Lost,
}

/// A frame's machine state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registers {
    /// Return address, or with `exact` the very instruction.
    pub pc: u64,
    /// The pc is where a signal interrupted it.
    pub exact: bool,
    /// The stack pointer behind the call that this frame made: where the callee's return address was, plus 8.
    pub sp: u64,
    /// The frame pointer.
    pub fp: Fp,
}

/// Which parts of stacks may be read.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// From here …
    pub low: u64,
    /// … to here memory is mapped.
    pub high: u64,
    /// Outside this range, the kernel can be queried.
    pub unknown: bool,
    /// The thread's own stack, where a signal on a stack of its own may have interrupted it; empty if it isn't known.
    pub own: (u64, u64),
}

/// A walk in progress, and its result.
pub struct Deep<'a> {
    /// The process's segment.
    pub segment: Segment,
    reach: Reach,
    now: &'a mut Record,
    last: &'a Record,
    /// The first machine frame of the last walk that may still be met.
    last_at: usize,
    most: usize,
    /// Frames from this one outwards were taken over, and their nodes are known.
    taken_from: usize,
    generation: u32,
    /// The walk left the stack that it began on, or queried the kernel about memory: it holds for this moment only.
    pub momentary: bool,
    /// The walk is on a goroutine's stack.
    in_go: bool,
}

impl<'a> Deep<'a> {
    /// A walk with space for `most` frames.
    pub fn new(segment: Segment, scratch: &'a mut Scratch, reach: Reach, most: usize) -> Deep<'a> {
        let [a, b] = &mut scratch.walks;
        let (last, now) = if scratch.last == 0 { (a, b) } else { (b, a) };
        scratch.last ^= 1;
        let generation = GENERATION.load(Relaxed);
        now.generation = 0;
        (now.frames_used, now.words_used, now.guards_used, now.steps_used) = (0, 0, 0, 0);
        now.depends_on_entry_fp = false;
        // Read before any guard is made or checked: what changes meanwhile makes the next walk check all of them.
        now.readable = java::memory::unmappings();
        now.freed = if java::is_found() { java::methods_freed() } else { 0 };
        let last_at = if last.generation == generation && !reach.unknown { 0 } else { MOST_FRAMES };
        let most = most.clamp(2, MOST_FRAMES);
        let momentary = reach.unknown;
        Deep { segment, reach, now, last, last_at, most, taken_from: usize::MAX, generation, momentary, in_go: false }
    }

    /// Frames logged, innermost first. If the stack continues beyond them, the last one is of kind `Cut`.
    pub fn frames(&self) -> &[Frame] {
        &self.now.frames[..self.now.frames_used]
    }

    /// Whether the walk depends on the frame pointer at entry.
    pub fn depends_on_entry_fp(&self) -> bool {
        self.now.depends_on_entry_fp
    }

    /// The node of the innermost frame. `None`: there is no space for it. The next walk may take this one's frames
    /// over.
    pub fn node(&mut self) -> Option<u32> {
        let known = self.taken_from.min(self.now.frames_used);
        let parent = if known < self.now.frames_used { self.now.nodes[known] } else { 0 };
        let depth = self.now.frames_used - known;
        let (frames, nodes) = (&self.now.frames[..known], &mut self.now.nodes[..known]);
        let node = frames::stack(self.segment, parent, depth, frames, nodes)?;
        // Below other inner frames, a stack that was cut for its depth would be cut elsewhere.
        let deep = self.now.frames.get(self.now.frames_used.wrapping_sub(1)).is_some_and(|f| *f == cut_mark(Cut::Deep));
        if !self.momentary && !deep {
            self.now.generation = self.generation;
        }
        Some(node)
    }

    /// Takes over the rest of the last walk, if that walk came to the same registers and the words that it read are
    /// unchanged.
    fn take_over(&mut self, r: Registers, guessed: u8) -> bool {
        let last = self.last;
        while self.last_at < last.steps_used && last.steps[self.last_at].registers.sp < r.sp {
            self.last_at += 1;
        }
        let Some(met) = last.steps[..last.steps_used].get(self.last_at) else { return false };
        if met.registers != r || met.guessed != guessed {
            return false;
        }
        let (frames, words, guards) = (met.frames as usize, met.words as usize, met.guards as usize);
        let now = &mut *self.now;
        let fits = now.frames_used + last.frames_used - frames < self.most
            && now.words_used + last.words_used - words < MOST_WORDS
            && now.guards_used + last.guards_used - guards < MOST_FRAMES
            && now.steps_used + last.steps_used - self.last_at < MOST_FRAMES;
        let is = |w: &Word| {
            // SAFETY: a word in the reach, which is checked first: as in `stack_word`.
            let value = || unsafe { peek::<u64>(w.at) };
            (self.reach.low..self.reach.high - 7).contains(&w.at) && value() == w.value
        };
        let rest = &last.words[words..last.words_used];
        if let Some(other) = rest.iter().position(|w| !is(w)) {
            // Every frame that the last walk met before it read this word depends on the word too.
            while self.last_at < last.steps_used && last.steps[self.last_at].words as usize <= words + other {
                self.last_at += 1;
            }
            return false;
        }
        if !fits || !guards_hold(self.segment, last, now, guards) {
            self.last_at = MOST_FRAMES;
            return false;
        }
        self.taken_from = now.frames_used;
        for step in &last.steps[self.last_at..last.steps_used] {
            let of = |now: usize, at: u16, from: usize| (now + at as usize - from) as u16;
            now.steps[now.steps_used] = Reached {
                frames: of(now.frames_used, step.frames, frames),
                words: of(now.words_used, step.words, words),
                guards: of(now.guards_used, step.guards, guards),
                ..*step
            };
            now.steps_used += 1;
        }
        let n = last.frames_used - frames;
        now.frames[now.frames_used..][..n].copy_from_slice(&last.frames[frames..last.frames_used]);
        now.nodes[now.frames_used..][..n].copy_from_slice(&last.nodes[frames..last.frames_used]);
        now.frames_used += n;
        now.words[now.words_used..][..rest.len()].copy_from_slice(rest);
        now.words_used += rest.len();
        let n = last.guards_used - guards;
        now.guards[now.guards_used..][..n].copy_from_slice(&last.guards[guards..last.guards_used]);
        now.guards_used += n;
        // Once the frame pointer was saved or read, the register no longer counts.
        if matches!(r.fp, Fp::Entry(_)) {
            now.depends_on_entry_fp |= last.depends_on_entry_fp;
        }
        true
    }

    /// Whether the stack continues beyond the frames.
    pub fn is_cut(&self) -> bool {
        self.frames().last().is_some_and(|f| f.kind == FrameKind::Cut)
    }

    /// Words logged, in walk order.
    pub fn words(&self) -> &[Word] {
        &self.now.words[..self.now.words_used]
    }

    /// The guards that must hold as well, in walk order.
    pub fn guards(&self) -> &[Guard] {
        &self.now.guards[..self.now.guards_used]
    }

    /// Logs a frame. The last place is kept for the mark of a cut.
    fn frame(&mut self, kind: FrameKind, value: u64, flags: u8) -> Result<(), Cut> {
        let at = self.now.frames_used;
        if at + 1 >= self.most {
            return Err(Cut::Deep);
        }
        self.now.frames[at] = Frame { value, kind, flags: flags & !AFTER_GUESS };
        self.now.frames_used = at + 1;
        Ok(())
    }

    fn log(&mut self, at: u64, value: u64) -> Result<u64, Cut> {
        let slot = self.now.words.get_mut(self.now.words_used).ok_or(Cut::Deep)?;
        *slot = Word { at, value };
        self.now.words_used += 1;
        Ok(value)
    }

    /// A word of the stack, logged. Below the frames walked so far, or where no stack is known to be: an error.
    fn stack_word(&mut self, at: u64) -> Result<u64, Cut> {
        if at < self.reach.low || !at.is_multiple_of(8) {
            return Err(Cut::Broken);
        }
        let end = at.checked_add(8).ok_or(Cut::Broken)?;
        if end > self.reach.high && !self.extend(end) {
            return Err(Cut::OtherStack);
        }
        // SAFETY: a word in the reach, which is mapped as long as the walk's thread is in this call.
        let value = unsafe { peek(at) };
        self.log(at, value)
    }

    fn extend(&mut self, end: u64) -> bool {
        let most = self.reach.low.saturating_add(MOST_UNKNOWN);
        if !self.reach.unknown || end > most {
            return false;
        }
        while self.reach.high < end {
            if !os::readable(self.reach.high as usize) {
                return false;
            }
            self.reach.high += 4096;
        }
        true
    }

    /// The value of a frame pointer, logged.
    fn frame_pointer(&mut self, fp: &mut Fp) -> Result<u64, Cut> {
        let value = match *fp {
            Fp::Known(value) => value,
            Fp::Entry(value) => {
                self.now.depends_on_entry_fp = true;
                value
            }
            Fp::Saved(at) => self.stack_word(at)?,
            Fp::Lost => return Err(Cut::NoRule),
        };
        *fp = Fp::Known(value);
        Ok(value)
    }

    /// Walks. `object` gives the rule for a pc in a loaded object, `None` if it lies in none.
    pub fn walk(&mut self, mut object: impl FnMut(u64) -> Option<Rule>, entry: super::Entry) {
        let mut rule = |pc: u64| match object(pc) {
            Some(rule) => Some((rule, false)),
            None => java::rule(pc).map(|rule| (rule, true)),
        };
        let mut r =
            Registers { pc: entry.ra, exact: false, sp: entry.sp + arch::RETURN_SLOT as u64, fp: Fp::Entry(entry.fp) };
        let mut known = None;
        let mut guessed = 0;
        loop {
            r.pc = generated_code::original(r.pc & arch::CODE_BITS);
            if r.pc == 0 {
                return;
            }
            if self.last_at < MOST_FRAMES && self.take_over(r, guessed) {
                return;
            }
            if let Some(step) = self.now.steps.get_mut(self.now.steps_used) {
                let (frames, words, guards) = (self.now.frames_used, self.now.words_used, self.now.guards_used);
                *step = Reached {
                    registers: r,
                    guessed,
                    frames: frames as u16,
                    words: words as u16,
                    guards: guards as u16,
                };
                self.now.steps_used += 1;
            }
            let here = known.take().unwrap_or_else(|| rule(if r.exact { r.pc } else { r.pc - 1 }));
            match self.step(here, r, guessed, &mut rule) {
                Ok(Some((next, guess))) => {
                    guessed = match guess {
                        Guess::FramePointer(there) => {
                            known = there;
                            frame_flags::GUESSED
                        }
                        Guess::None if guessed != 0 => AFTER_GUESS,
                        Guess::None => 0,
                    };
                    r = next;
                }
                Ok(None) => return,
                Err(why) => return self.cut(why),
            }
        }
    }

    /// Marks that the stack continues.
    fn cut(&mut self, why: Cut) {
        let at = self.now.frames_used.min(self.most - 1);
        self.now.frames[at] = cut_mark(why);
        self.now.frames_used = at + 1;
    }

    fn step(
        &mut self,
        here: Option<(Rule, bool)>,
        mut r: Registers,
        guessed: u8,
        rule: &mut impl FnMut(u64) -> Option<(Rule, bool)>,
    ) -> Result<Option<(Registers, Guess)>, Cut> {
        let Some((here, is_java)) = here else {
            // No user address: a damaged stack.
            if !(4096..1 << 47).contains(&r.pc) {
                return Err(Cut::Broken);
            }
            // After a wrong guess, a rule takes any word for a return address.
            if guessed == AFTER_GUESS && !self.is_code(r.pc - 1, false) {
                return Err(Cut::Broken);
            }
            let before = self.now.frames_used;
            self.frame(FrameKind::Jit, r.pc, guessed)?;
            let next = self.record_of_code(r, false, rule);
            if guessed == frame_flags::GUESSED && matches!(next, Err(Cut::Jit)) {
                self.now.frames_used = before;
            }
            return next;
        };
        if is_java {
            let (next, words) = match here.step() {
                Step::Frame { cfa, fp } => (self.by_rule(r, cfa, fp)?, [0; 2]),
                Step::Interpreted { bytecode_slot } => self.interpreted(r, bytecode_slot)?,
                Step::Deoptimised { bytes, original_pc } => {
                    let own = self.stack_word(r.sp.wrapping_add_signed(i64::from(original_pc)))?;
                    (self.compiled(r, bytes)?, [own, 0])
                }
                Step::Continuation { entry_bytes } => {
                    let is_java = |ra: u64| rule(ra.wrapping_sub(1)).is_some_and(|(rule, java)| java && rule.is_java());
                    (self.continuation(r, entry_bytes, is_java)?, [0; 2])
                }
                _ => {
                    // A stub whose frame is unknown.
                    self.java(r.pc, [0; 2])?;
                    return self.record_of_code(r, true, rule);
                }
            };
            self.java(r.pc, words)?;
            return Ok(Some((next, Guess::None)));
        }
        self.frame(if r.exact { FrameKind::Interrupted } else { FrameKind::Native }, r.pc, guessed)?;
        match here.step() {
            Step::Frame { cfa, fp } => {
                let next = self.by_rule(r, cfa, fp);
                let mut leads_on = |pc: u64| pc == 0 || rule(pc.wrapping_sub(1)).is_some();
                if here.is_convention() && !next.is_ok_and(|next| leads_on(next.pc & arch::CODE_BITS)) {
                    let pc = if r.exact { r.pc } else { r.pc - 1 };
                    if let Some((Step::Frame { cfa, fp }, _)) =
                        rule(pc | BY_TABLE).map(|(rule, java)| (rule.step(), java))
                    {
                        return Ok(Some((self.by_rule(r, cfa, fp)?, Guess::None)));
                    }
                }
                Ok(Some((next?, Guess::None)))
            }
            Step::WalkEnd => Ok(None),
            Step::Signal => Ok(Some((self.signal(r)?, Guess::None))),
            _ => {
                // Without a rule the frame pointer may have been anything: believe it only if it leads back into code.
                let next = match self.frame_record(r) {
                    Ok(next) => next,
                    Err(Cut::Deep) => return Err(Cut::Deep),
                    // A goroutine's outermost frame: the frame pointer that it was started with (proc.go, newproc1).
                    Err(_) if self.in_go && self.frame_pointer(&mut r.fp) == Ok(0) => return Ok(None),
                    Err(_) => self.goroutine(r).map_err(|_| Cut::NoRule)?,
                };
                self.by_frame_pointer(next, true, rule).ok_or(Cut::NoRule).map(Some)
            }
        }
    }

    /// Where a frame pointer led to, if that is code, or the chain's end where a null may be one.
    fn by_frame_pointer(
        &mut self,
        next: Registers,
        may_end: bool,
        rule: &mut impl FnMut(u64) -> Option<(Rule, bool)>,
    ) -> Option<(Registers, Guess)> {
        let pc = generated_code::original(next.pc & arch::CODE_BITS);
        if pc == 0 {
            return may_end.then_some((next, Guess::FramePointer(None)));
        }
        let there = rule(pc - 1);
        self.is_code(pc - 1, there.is_some()).then_some((next, Guess::FramePointer(Some(there))))
    }

    /// Whether `pc` is known to be code: of an object or of HotSpot, as the caller found (`known`), or in memory that a
    /// hook saw made executable.
    fn is_code(&mut self, pc: u64, known: bool) -> bool {
        // Read before the query: memory that is added in between must not count as known.
        let so_far = Guard::no_more_code();
        let is = known || generated_code::holds(pc);
        if !is {
            // If more memory is made executable, the walk may lead further. Without space for this guard, the walk is
            // valid only at this moment.
            match self.now.guards.get_mut(self.now.guards_used) {
                Some(slot) => {
                    *slot = so_far;
                    self.now.guards_used += 1;
                }
                None => self.momentary = true,
            }
        }
        is
    }

    /// The frame above a frame of code that lies in no object, or of a stub of HotSpot's.
    fn record_of_code(
        &mut self,
        r: Registers,
        may_end: bool,
        rule: &mut impl FnMut(u64) -> Option<(Rule, bool)>,
    ) -> Result<Option<(Registers, Guess)>, Cut> {
        match self.frame_record(r) {
            Ok(next) => self.by_frame_pointer(next, may_end, rule).ok_or(Cut::Jit).map(Some),
            Err(Cut::Deep) => Err(Cut::Deep),
            Err(_) => Err(Cut::Jit),
        }
    }

    /// Logs the frames that a return address in the code cache stands for.
    fn java(&mut self, ra: u64, words: [u64; 2]) -> Result<(), Cut> {
        let (segment, mut outcome, before) = (self.segment, Ok(()), self.now.frames_used);
        let guard = java::frames(segment, ra, words, self.now.freed, |f| {
            if outcome.is_ok() {
                outcome = self.frame(f.kind, f.value, f.flags);
            }
        });
        outcome?;
        match guard {
            Some(guard) => {
                *self.now.guards.get_mut(self.now.guards_used).ok_or(Cut::Deep)? = guard;
                self.now.guards_used += 1;
            }
            // A stub, which is never freed, or code that isn't understood: a frame without a name.
            None if self.now.frames_used == before => self.frame(FrameKind::Jit, ra, 0)?,
            None => {}
        }
        Ok(())
    }

    fn compiled(&mut self, r: Registers, bytes: i32) -> Result<Registers, Cut> {
        self.by_rule(r, Cfa { base: Base::Sp, offset: bytes, deref: None }, SavedFp::Cfa(-16))
    }

    /// The step out of an interpreted frame. `walk.rs` lists its slots, relative to the frame pointer.
    fn interpreted(&mut self, mut r: Registers, bytecode_slot: i32) -> Result<(Registers, [u64; 2]), Cut> {
        let fp = self.frame_pointer(&mut r.fp)?;
        if fp < r.sp {
            return Err(Cut::Broken);
        }
        let pc = self.stack_word(fp.saturating_add(8))?;
        let sp = self.stack_word(fp - 8)?;
        let bytecode = fp.wrapping_add_signed(i64::from(bytecode_slot));
        let words = [self.stack_word(fp - 3 * 8)?, self.stack_word(bytecode)?];
        // The saved pointer is one word too low where a method handle's linker popped an argument (walk.rs).
        if sp < fp || sp % 8 != 0 {
            return Err(Cut::Broken);
        }
        Ok((Registers { pc, exact: false, sp: sp.max(fp + 16), fp: Fp::Saved(fp) }, words))
    }

    /// The step to the frame through which a virtual thread was entered. It is searched for, because arguments of the
    /// frame inside it lie in between.
    fn continuation(
        &mut self,
        r: Registers,
        entry_bytes: i32,
        mut is_java: impl FnMut(u64) -> bool,
    ) -> Result<Registers, Cut> {
        for words in 0..32 {
            let top = r.sp.wrapping_add_signed(words * 8 + i64::from(entry_bytes));
            let pc = self.stack_word(top.wrapping_sub(8))?;
            if is_java(pc) {
                return Ok(Registers { pc, exact: false, sp: top, fp: Fp::Saved(top - 16) });
            }
        }
        Err(Cut::NoRule)
    }

    fn by_rule(&mut self, mut r: Registers, cfa: Cfa, fp: SavedFp) -> Result<Registers, Cut> {
        let base = match cfa.base {
            Base::Sp => r.sp,
            Base::Fp => self.frame_pointer(&mut r.fp)?,
        };
        let mut top = base.wrapping_add_signed(i64::from(cfa.offset));
        if let Some(add) = cfa.deref {
            if top < r.sp {
                return Err(Cut::Broken);
            }
            top = self.stack_word(top)?.wrapping_add_signed(i64::from(add));
        }
        if top <= r.sp || top % 8 != 0 {
            return Err(Cut::Broken);
        }
        let pc = self.stack_word(top - 8)?;
        let fp = match fp {
            SavedFp::Same => r.fp,
            SavedFp::Lost => Fp::Lost,
            SavedFp::Cfa(offset) => Fp::Saved(top.wrapping_add_signed(i64::from(offset))),
            SavedFp::Fp(offset) => Fp::Saved(self.frame_pointer(&mut r.fp)?.wrapping_add_signed(i64::from(offset))),
        };
        Ok(Registers { pc, exact: false, sp: top, fp })
    }

    /// A frame record, { caller's frame pointer, return address }, where the frame pointer points.
    fn frame_record(&mut self, mut r: Registers) -> Result<Registers, Cut> {
        let record = self.frame_pointer(&mut r.fp)?;
        if record < r.sp || record % 8 != 0 {
            return Err(Cut::NoRule);
        }
        let pc = self.stack_word(record.saturating_add(8))?;
        Ok(Registers { pc, exact: false, sp: record + 16, fp: Fp::Saved(record) })
    }

    /// Go calls C on its thread's stack; the goroutine's own stack lies elsewhere. runtime.asmcgocall (asm_amd64.s, the
    /// same in Go 1.21 to 1.26) leaves two words on the thread's stack, where it called C. By these words it finds the
    /// way back. The register keeps the goroutine's frame pointer.
    ///
    /// ```text
    /// sp      depth: high end of the goroutine's stack less its stack pointer
    /// sp + 8  g, the goroutine ── word 0 low end of its stack, word 1 high end     (runtime2.go, g.stack)
    /// ```
    /// If these values don't fit together, this isn't such a frame.
    fn goroutine(&mut self, mut r: Registers) -> Result<Registers, Cut> {
        const LARGEST: u64 = 1 << 30;
        if !cfg!(target_arch = "x86_64") {
            return Err(Cut::NoRule);
        }
        let fp = self.frame_pointer(&mut r.fp)?;
        let (depth, g) = (self.stack_word(r.sp)?, self.stack_word(r.sp + 8)?);
        if !g.is_multiple_of(8) || g & 4095 > 4096 - 16 || !(4096..1 << 47).contains(&g) || !os::readable(g as usize) {
            return Err(Cut::NoRule);
        }
        // SAFETY: two words of a page that the kernel has just found readable; a goroutine that waits for this very
        // call keeps its g.
        let [low, high] = [0, 8].map(|at| unsafe { peek::<u64>(g + at) });
        let sp = high.wrapping_sub(depth);
        let fits = low < high && high - low <= LARGEST && low <= sp && sp <= fp && fp < high && high < 1 << 47;
        if !fits || !sp.is_multiple_of(8) {
            return Err(Cut::NoRule);
        }
        self.reach = Reach { low: sp, high: sp & !4095, unknown: true, own: (0, 0) };
        self.momentary = true;
        self.in_go = true;
        self.frame_record(Registers { sp, ..r })
    }

    fn signal(&mut self, r: Registers) -> Result<Registers, Cut> {
        let at = |offset: i64| r.sp.wrapping_add_signed(offset);
        let sp = self.stack_word(at(arch::SIGNAL_SP))?;
        let pc = self.stack_word(at(arch::SIGNAL_PC))?;
        let here = (self.reach.low..self.reach.high).contains(&sp);
        let fp = if here && sp > r.sp {
            Fp::Saved(at(arch::SIGNAL_FP))
        } else {
            // The handler ran on a stack of its own. Its words are read before the walk leaves it.
            let (low, high) = self.reach.own;
            if !(low..high).contains(&sp) || here {
                return Err(Cut::OtherStack);
            }
            let fp = Fp::Known(self.stack_word(at(arch::SIGNAL_FP))?);
            self.reach = Reach { low: sp, high, unknown: false, own: (0, 0) };
            self.momentary = true;
            fp
        };
        if sp % 8 != 0 {
            return Err(Cut::Broken);
        }
        Ok(Registers { pc, exact: true, sp, fp })
    }
}

/// Whether the last walk's guards, from index `from` on, hold now. The words of their frames are unchanged, so these
/// frames are live. If [`java::methods_freed`] is unchanged as well, the VM has freed no method since.
fn guards_hold(segment: Segment, last: &Record, now: &Record, from: usize) -> bool {
    let guards = &last.guards[from..last.guards_used];
    let methods_hold = now.freed != 0 && now.freed == last.freed;
    if slots::is_checking() {
        // Checks all guards, and counts a change that the shorter check would have missed.
        let hold = guards.iter().all(|g| g.holds());
        let short = || guards.iter().all(|g| methods_hold && g.is_of_method() || g.holds());
        segment.count(Counter::memo_disagreements, (!hold && short()) as u64);
        return hold;
    }
    let readable = now.readable == last.readable;
    guards.iter().all(|g| {
        // SAFETY: each of them held when UNMAPPINGS had the value that it had when this walk began, and the word of each
        // lies in the code cache.
        methods_hold && g.is_of_method() || if readable { unsafe { g.holds_where_readable() } } else { g.holds() }
    })
}

fn cut_mark(why: Cut) -> Frame {
    Frame { value: why as u64, kind: FrameKind::Cut, flags: 0 }
}

/// How the way to the next frame was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guess {
    /// By a rule.
    None,
    /// By a frame pointer, into code; the code's rule, if that was looked up.
    FramePointer(Option<Option<(Rule, bool)>>),
}
