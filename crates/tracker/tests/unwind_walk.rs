//! The walker on stacks that a small machine builds call by call, so that the right result is known. Then the soundness
//! condition: every word that a walk didn't log may change, and the walk's result must be equal.

#[path = "../../../fixtures/random.rs"]
mod random;

use std::collections::HashMap;

use plimsoll_tracker::stack::rule::{BY_TABLE, Base, Cfa, SavedFp};
use plimsoll_tracker::stack::{Entry, Memory, Read, Rule, Walk, WalkEnd, Walker, arch::native as arch};
use random::Random;

const WORDS: usize = 4096;
const BASE: u64 = 0x7ffd_0000_0000;
const HIGH: u64 = BASE + 8 * WORDS as u64;
const MODULE: u64 = 0x5500_0000_0000;
const JIT: u64 = 0x6600_0000_0000;

/// A thread that calls functions with random frame layouts, and records the true stack.
struct Machine {
    stack: Vec<u64>,
    sp: u64,
    fp: u64,
    /// The pc that a call returns to, or that a signal interrupts.
    pc: u64,
    exact: bool,
    rules: HashMap<u64, Option<Rule>>,
    /// Outermost first.
    truth: Vec<(u64, bool)>,
    next: u64,
    made: Made,
}

#[derive(Default, Debug, Clone, Copy)]
struct Made {
    sp: u64,
    sp_saving_fp: u64,
    fp: u64,
    realigned: u64,
    uncovered: u64,
    jit: u64,
    signal: u64,
    interpreted: u64,
    deoptimised: u64,
    continuation: u64,
}

fn frame(base: Base, offset: i32, fp: SavedFp) -> Rule {
    Rule::frame(Cfa { base, offset, deref: None }, fp)
}

impl Machine {
    fn new(random: &mut Random) -> Self {
        let stack = (0..WORDS).map(|_| random.next()).collect();
        let mut machine = Self {
            stack,
            sp: HIGH - 8 * (1 + random.below(40)),
            fp: random.next(),
            pc: 0,
            exact: false,
            rules: HashMap::new(),
            truth: Vec::new(),
            next: 0,
            made: Made::default(),
        };
        machine.enter(Some(Rule::END), MODULE);
        machine
    }

    fn set(&mut self, at: u64, word: u64) {
        self.stack[((at - BASE) / 8) as usize] = word;
    }

    /// Enters a function with this rule, at a fresh pc.
    fn enter(&mut self, rule: Option<Rule>, within: u64) {
        self.next += 1;
        self.pc = within + 0x100 * self.next;
        self.rules.insert(self.pc - 1, rule);
        self.exact = false;
        self.truth.push((self.pc, false));
    }

    /// Marks the current function as interrupted by a signal: its pc is looked up unchanged, not minus one.
    fn interrupt(&mut self) {
        let rule = self.rules.remove(&(self.pc - 1)).expect("the current function's rule");
        self.rules.insert(self.pc, rule);
        *self.truth.last_mut().expect("a frame") = (self.pc, true);
    }

    /// Pushes the return address. Returns the CFA of the function that is entered next.
    fn call(&mut self) -> u64 {
        self.sp -= 8;
        self.set(self.sp, self.pc);
        self.sp + 8
    }

    /// Calls one more function. After a function without a rule or in run-time code, only functions follow that keep
    /// the chain of frame pointers, which the walk needs then.
    fn step(&mut self, random: &mut Random, jit: bool) {
        let locals = 8 * random.below(20);
        match random.below(if jit { 17 } else { 16 }) {
            0..=2 => self.call_plain(locals),
            3..=6 => self.call_saving_fp(random, locals),
            10 => self.call_realigned(locals),
            11 => {
                self.call_keeping_fp(locals, Some(Rule::FRAME_POINTER), MODULE);
                self.made.uncovered += 1;
            }
            12 => self.be_interrupted(random),
            13 => self.call_interpreted(random, locals),
            14 => self.call_deoptimised(random, locals),
            15 => self.call_compiled(random),
            16 => {
                self.call_keeping_fp(locals, None, JIT);
                self.made.jit += 1;
            }
            _ => {
                self.call_keeping_fp(locals, Some(frame(Base::Fp, 16, SavedFp::Cfa(-16))), MODULE);
                self.made.fp += 1;
            }
        }
    }

    /// A signal interrupts the function: the frame of the signal, then that of its handler.
    fn be_interrupted(&mut self, random: &mut Random) {
        self.interrupt();
        // Below the red zone and some vector state.
        let context = self.sp - 128 - 8 * random.below(30) - 968;
        self.set(context + arch::SIGNAL_FP as u64, self.fp);
        self.set(context + arch::SIGNAL_SP as u64, self.sp);
        self.set(context + arch::SIGNAL_PC as u64, self.pc);
        self.sp = context;
        self.enter(Some(Rule::SIGNAL), MODULE);
        self.made.signal += 1;
        self.call();
        self.enter(Some(frame(Base::Sp, 8, SavedFp::Same)), MODULE);
    }

    /// The frame pointer stays the caller's.
    fn call_plain(&mut self, locals: u64) {
        let cfa = self.call();
        self.sp -= locals;
        self.enter(Some(frame(Base::Sp, (cfa - self.sp) as i32, SavedFp::Same)), MODULE);
        self.made.sp += 1;
    }

    /// The frame pointer is saved somewhere, and used for something else.
    fn call_saving_fp(&mut self, random: &mut Random, locals: u64) {
        let cfa = self.call();
        let at = 8 * random.below(4) + 16;
        self.set(cfa - at, self.fp);
        self.fp = random.next();
        self.sp = cfa - at - locals;
        let saved = SavedFp::Cfa(-(at as i16));
        self.enter(Some(frame(Base::Sp, (cfa - self.sp) as i32, saved)), MODULE);
        self.made.sp_saving_fp += 1;
    }

    fn call_keeping_fp(&mut self, locals: u64, rule: Option<Rule>, within: u64) {
        let cfa = self.call();
        self.set(cfa - 16, self.fp);
        self.fp = cfa - 16;
        self.sp = self.fp - locals;
        self.enter(rule, within);
    }

    /// gcc's dynamic realignment: the CFA in a slot below the aligned frame pointer.
    fn call_realigned(&mut self, locals: u64) {
        let cfa = self.call();
        let aligned = (cfa - 16) & !63;
        self.set(aligned, self.fp);
        self.set(aligned - 8, cfa);
        self.fp = aligned;
        self.sp = aligned - 8 - locals;
        let rule = Rule::frame(Cfa { base: Base::Fp, offset: -8, deref: Some(0) }, SavedFp::Fp(0));
        self.enter(Some(rule), MODULE);
        self.made.realigned += 1;
    }

    fn call_interpreted(&mut self, random: &mut Random, locals: u64) {
        let before = self.sp;
        // An adapter moved the stack pointer.
        self.sp -= 8 * random.below(5);
        let cfa = self.call();
        self.set(cfa - 16, self.fp);
        self.fp = cfa - 16;
        self.set(self.fp - 8, before);
        self.sp = self.fp - 64 - locals;
        // The interpreter of JDK 8, or of a later JDK.
        self.enter(Some(Rule::interpreted(-56 - 8 * random.below(2) as i32)), JIT);
        self.made.interpreted += 1;
    }

    fn call_deoptimised(&mut self, random: &mut Random, locals: u64) {
        let cfa = self.call();
        let bytes = 32 + locals;
        self.set(cfa - 16, self.fp);
        self.fp = random.next();
        self.sp = cfa - bytes;
        self.enter(Some(Rule::deoptimised(bytes as i32, 8)), JIT);
        self.made.deoptimised += 1;
    }

    /// Compiled Java code; if Java code calls it, the innermost frame of a continuation.
    fn call_compiled(&mut self, random: &mut Random) {
        let cfa = self.call();
        let by_java = self.rules.get(&(self.pc - 1)).copied().flatten().is_some_and(Rule::is_java);
        self.set(cfa - 16, self.fp);
        self.fp = random.next();
        self.sp = cfa - 64;
        if by_java {
            // Arguments of the innermost frame that is still in the heap.
            self.sp -= 8 * random.below(20);
            self.enter(Some(Rule::continuation(64)), JIT);
            self.made.continuation += 1;
        } else {
            self.enter(Some(Rule::compiled(64)), JIT);
        }
    }

    fn entry(&mut self) -> Entry {
        if arch::RETURN_SLOT != 0 {
            self.call();
        }
        Entry { ra: self.pc, sp: self.sp, fp: self.fp }
    }

    fn walk(&self, walker: &Walker, stack: &[u64], base: u64, entry: Entry, limit: usize) -> Outcome {
        let (mut frames, mut reads) = ([0; 64], [Read::default(); 160]);
        let rules = |pc| self.rules.get(&pc).copied().flatten();
        let memory = Words { base, words: stack };
        let walk = walker.walk(&memory, rules, entry, &mut frames[..limit], &mut reads);
        Outcome { walk, frames: frames[..walk.frames].to_vec(), reads: reads[..walk.reads].to_vec() }
    }
}

struct Words<'a> {
    base: u64,
    words: &'a [u64],
}

impl Memory for Words<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        assert!(at.is_multiple_of(8));
        self.words.get(usize::try_from(at.checked_sub(self.base)? / 8).ok()?).copied()
    }
}

#[derive(PartialEq, Debug)]
struct Outcome {
    walk: Walk,
    frames: Vec<u64>,
    reads: Vec<Read>,
}

fn machines(n: u64, mut each: impl FnMut(&mut Machine, &mut Random, bool)) -> Made {
    let mut random = Random(0xfeed_f00d);
    let mut all = Made::default();
    for round in 0..n {
        let jit = round % 3 == 0;
        let mut machine = Machine::new(&mut random);
        for _ in 0..random.below(24) {
            machine.step(&mut random, jit);
        }
        each(&mut machine, &mut random, jit);
        let made = machine.made;
        all.sp += made.sp;
        all.sp_saving_fp += made.sp_saving_fp;
        all.fp += made.fp;
        all.realigned += made.realigned;
        all.uncovered += made.uncovered;
        all.jit += made.jit;
        all.signal += made.signal;
        all.interpreted += made.interpreted;
        all.deoptimised += made.deoptimised;
        all.continuation += made.continuation;
    }
    all
}

#[test]
fn built_stacks_are_walked_to_their_end() {
    let (mut complete, mut cut) = (0, 0);
    let made = machines(20_000, |machine, random, jit| {
        let entry = machine.entry();
        let truth: Vec<_> = machine.truth.iter().rev().copied().collect();
        let limit = if random.below(4) == 0 { 8 } else { 64 };
        let walker = Walker { stack: BASE..HIGH, through_jit: jit, records: 0..0 };
        let outcome = machine.walk(&walker, &machine.stack, BASE, entry, limit);
        let walk = outcome.walk;
        let expected: Vec<u64> = truth.iter().map(|&(pc, _)| pc).collect();
        // Code without a rule, below a function that uses the frame pointer for something else: the walk ends and
        // reports it.
        if matches!(walk.end, WalkEnd::NoRule | WalkEnd::Jit) {
            assert!(expected.starts_with(&outcome.frames), "{outcome:x?} {expected:x?}");
            let last = *outcome.frames.last().expect("a frame");
            let rule = machine.rules.get(&(last - 1)).or(machine.rules.get(&last)).expect("a rule");
            assert!(matches!(rule, None | Some(Rule::FRAME_POINTER)), "{rule:?}");
            cut += 1;
            return;
        }
        let expected = &expected[..expected.len().min(limit)];
        assert_eq!(outcome.frames, expected, "{outcome:x?}");
        assert_eq!(walk.end, if truth.len() >= limit { WalkEnd::Limit } else { WalkEnd::Outermost });
        for (i, (_, exact)) in truth.iter().take(limit).enumerate() {
            assert_eq!(walk.interrupted >> i & 1 == 1, *exact);
        }
        complete += 1;
    });
    println!("{complete} complete, {cut} cut where no rule was; {made:?}");
    assert!(complete > 15_000);
    let natives = [made.sp, made.sp_saving_fp, made.fp, made.realigned, made.uncovered, made.jit, made.signal];
    for n in natives.into_iter().chain([made.interpreted, made.deoptimised, made.continuation]) {
        assert!(n > 1000, "{made:?}");
    }
}

/// Tests the condition in `walk.rs`. After a walk, moves the stack, and changes every word that the walk didn't log,
/// the frame pointer at entry unless flagged, and the bounds as far as allowed. A second walk must have the same
/// result.
#[test]
fn a_walk_depends_on_its_log_alone() {
    let mut random_words = 0_u64;
    let mut ends = HashMap::new();
    let (mut free_fp, mut moved_bounds, mut bound) = (0, 0, 0);
    machines(6000, |machine, random, jit| {
        let entry = machine.entry();
        // Half of the stacks are damaged first: a garbage walk must be as reproducible as a good one.
        for _ in 0..random.below(2) * (1 + random.below(30)) {
            let used = (entry.sp - BASE) / 8;
            let at = used + random.below(WORDS as u64 - used);
            machine.stack[at as usize] = match random.below(4) {
                0 => BASE + random.below(8 * WORDS as u64 + 64),
                1 => MODULE + 0x100 * random.below(machine.next + 1),
                2 => JIT + 0x100 * random.below(machine.next + 1),
                _ => random.next(),
            };
        }
        let high = if random.below(3) == 0 { HIGH - 8 * random.below((HIGH - entry.sp) / 8) } else { HIGH };
        let walker = Walker { stack: BASE..high, through_jit: jit, records: 0..0 };
        let before = machine.walk(&walker, &machine.stack, BASE, entry, 64);
        *ends.entry(format!("{:?}", before.walk.end)).or_insert(0_u64) += 1;

        // If the walk used a word both as return address and as frame pointer, it is only valid at its own address.
        let both = |r: &Read| before.reads.iter().any(|s| s.offset == r.offset && s.relative != r.relative);
        let distance = if before.reads.iter().any(both) { 0 } else { 8 * random.below(1 << 20) };
        bound += u64::from(distance == 0);
        let base = BASE - distance;
        let mut stack: Vec<u64> = (0..WORDS).map(|_| random.next()).collect();
        for word in &mut stack {
            // Plausible words as well as random ones.
            match random.below(3) {
                0 => *word = base + random.below(8 * WORDS as u64) / 8 * 8,
                1 => *word = MODULE + 0x100 * random.below(machine.next + 1),
                _ => {}
            }
        }
        let sp = entry.sp - distance;
        let mut logged = 0;
        for read in &before.reads {
            let at = (u64::from(read.offset) + sp - base) / 8;
            stack[at as usize] = if read.relative { read.value.wrapping_add(sp) } else { read.value };
            logged += 1;
        }
        random_words += WORDS as u64 - logged;
        let fp = if before.walk.depends_on_entry_fp {
            entry.fp.wrapping_sub(distance)
        } else {
            free_fp += 1;
            random.next()
        };
        let extent = u64::from(before.walk.extent);
        let most = before.walk.wall.map_or(base + 8 * WORDS as u64, |wall| {
            (sp.wrapping_add(wall).saturating_add(7)).min(base + 8 * WORDS as u64)
        });
        let least = (sp + extent).max(sp + 1);
        let high = least + random.below(most - least + 1);
        moved_bounds += u64::from(high != walker.stack.end - distance);
        let walker = Walker { stack: base..high, through_jit: jit, records: 0..0 };
        let after = machine.walk(&walker, &stack, base, Entry { ra: entry.ra, sp, fp }, 64);
        assert_eq!(before, after);
    });
    println!(
        "{random_words} unlogged words changed; {free_fp} frame pointers, {moved_bounds} bounds, {bound} not moved; {ends:?}"
    );
    assert!(bound < 1500 && free_fp > 2000 && moved_bounds > 2000);
    for end in ["Outermost", "Truncated", "Broken", "NoRule", "Jit", "OtherStack"] {
        assert!(ends.get(end).is_some_and(|&n| n > 50), "{end}: {ends:?}");
    }
}

/// Where code keeps frame pointers, the walk follows their records in a loop of its own. The result equals that of a
/// walk that queries each rule: frames, words, bounds and end, on whole and damaged stacks, with any space.
#[test]
fn records_are_followed_as_by_the_rule() {
    let (mut spared, mut by_table) = (0_u64, 0_u64);
    machines(20_000, |machine, random, jit| {
        let mut entry = machine.entry();
        let used = (entry.sp - BASE) / 8;
        for _ in 0..random.below(2) * (1 + random.below(30)) {
            let at = used + random.below(WORDS as u64 - used);
            machine.stack[at as usize] = match random.below(4) {
                0 => BASE + random.below(8 * WORDS as u64 + 64),
                1 => MODULE + 0x100 * random.below(machine.next + 1),
                2 => 0,
                _ => random.next(),
            };
        }
        // A chain of records, which the machine makes only now and then.
        if random.below(2) == 0 {
            let mut at = used + 1 + random.below(4);
            entry.fp = BASE + 8 * at;
            while at + 8 < WORDS as u64 && random.below(12) != 0 {
                let next = at + 2 + random.below(5);
                machine.stack[at as usize] = BASE + 8 * next;
                machine.stack[at as usize + 1] = MODULE + 0x100 * random.below(machine.next + 1) + random.below(9);
                at = next;
            }
        }
        let records = MODULE..MODULE + 0x100 * random.below(machine.next + 2);
        let high = if random.below(3) == 0 { HIGH - random.below(HIGH - entry.sp) } else { HIGH };
        let (frames_kept, reads_kept) = (1 + random.below(64) as usize, random.below(80) as usize);
        let [twin, walk] = [0..0, records.clone()].map(|followed| {
            let walker = Walker { stack: BASE..high, through_jit: jit, records: followed };
            let (mut frames, mut reads) = ([0; 64], [Read::default(); 80]);
            let mut asked = [0_u64; 2];
            let rule = |pc: u64| {
                asked[usize::from(pc & BY_TABLE != 0)] += 1;
                if records.contains(&pc) {
                    return Some(Rule::convention());
                }
                machine.rules.get(&(pc & !BY_TABLE)).copied().flatten()
            };
            let memory = Words { base: BASE, words: &machine.stack };
            let walk = walker.walk(&memory, rule, entry, &mut frames[..frames_kept], &mut reads[..reads_kept]);
            let (frames, reads) = (frames[..walk.frames].to_vec(), reads[..walk.reads].to_vec());
            (Outcome { walk, frames, reads }, asked)
        });
        assert_eq!(twin.0, walk.0, "{records:x?} {high:x} {frames_kept} {reads_kept}");
        spared += twin.1[0].saturating_sub(walk.1[0]);
        by_table += walk.1[1];
    });
    println!("{spared} rules not asked for, {by_table} asked of the table");
    assert!(spared > 20_000 && by_table > 1_000);
}

#[test]
fn no_frame_pointer_is_logged_that_no_cfa_needs() {
    let walker = Walker { stack: BASE..HIGH, through_jit: false, records: 0..0 };
    let mut random = Random(5);
    let mut machine = Machine::new(&mut random);
    for _ in 0..10 {
        // Saves the frame pointer, as a callee-saved register.
        let cfa = machine.call();
        machine.set(cfa - 16, machine.fp);
        machine.fp = random.next();
        machine.sp = cfa - 32;
        machine.enter(Some(frame(Base::Sp, 32, SavedFp::Cfa(-16))), MODULE);
    }
    let entry = machine.entry();
    let outcome = machine.walk(&walker, &machine.stack, BASE, entry, 64);
    assert_eq!((outcome.frames.len(), outcome.walk.end), (11, WalkEnd::Outermost));
    assert!(outcome.reads.iter().all(|read| !read.relative) && outcome.reads.len() == 10);
    assert!(!outcome.walk.depends_on_entry_fp);
}

#[test]
fn nothing_outside_the_stack_is_read() {
    struct Fence(std::cell::Cell<u64>);
    impl Memory for Fence {
        fn word(&self, at: u64) -> Option<u64> {
            assert!(at >= BASE + 64 && at + 8 <= BASE + 8192, "{at:#x}");
            self.0.set(self.0.get() + 1);
            // A word that hashes to stack addresses, code and noise alike.
            let word = (at ^ self.0.get() << 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Some(match word >> 62 {
                0 => BASE + (word >> 20) % 9000,
                1 => BASE + (word >> 20) % 8000 / 8 * 8,
                2 => MODULE + (word >> 40) % 4096,
                _ => word,
            })
        }
    }
    let memory = Fence(0.into());
    let mut random = Random(99);
    let mut ends = HashMap::new();
    for _ in 0..100_000 {
        // An arbitrary rule.
        let seed = random.next();
        let rule = |pc: u64| {
            let bits = (pc ^ seed).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (pc >> 40 == MODULE >> 40).then(|| {
                let kind = if bits & 7 < 5 { 0x10 | bits >> 8 & 7 } else { bits >> 8 & 3 };
                Rule::from_bits(bits >> 16 & 0xffff_00ff_03f8 & !0xff << 40 | kind << 56)
            })
        };
        let walker = Walker { stack: BASE..BASE + 8192, through_jit: seed & 1 == 1, records: 0..0 };
        let entry = Entry { ra: MODULE + random.below(4096), sp: BASE + 64, fp: BASE + random.below(9000) };
        let (mut frames, mut reads) = ([0; 64], [Read::default(); 40]);
        let walk = walker.walk(&memory, rule, entry, &mut frames, &mut reads);
        *ends.entry(format!("{:?}", walk.end)).or_insert(0_u64) += 1;
    }
    println!("{} words read; {ends:?}", memory.0.get());
    assert!(ends.len() >= 6 && memory.0.get() > 30_000);

    // An entry outside the bounds, or no space: an empty walk.
    let walker = Walker { stack: BASE..BASE + 8192, through_jit: true, records: 0..0 };
    let entry = Entry { ra: MODULE, sp: BASE + 8192, fp: 0 };
    let walk = walker.walk(&memory, |_| Some(Rule::END), entry, &mut [0; 8], &mut []);
    assert_eq!((walk.frames, walk.end), (0, WalkEnd::Truncated));
}
