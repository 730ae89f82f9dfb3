//! When stack/deep.rs follows a frame pointer: chains through code without rules, valid ones, and ones that lead into
//! data.

use crate::{Random, alone, fresh};
use plimsoll_segment::{Cut, FrameKind, frame_flags};
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::stack::deep::{Deep, Reach, Scratch};
use plimsoll_tracker::stack::frames::Frame;
use plimsoll_tracker::stack::rule::{Base, Cfa, Rule, SavedFp};
use plimsoll_tracker::stack::{Entry, generated_code};

/// An object whose code keeps frame pointers and has rules for that.
const RULED: u64 = 0x10_0000;
/// An object whose code has no rules.
const BARE: u64 = 0x20_0000;
/// Memory that the program has made executable.
const MADE: u64 = 0x7000_0000;
/// Data.
const HEAP: u64 = 0x6000_0000;

fn object(pc: u64) -> Option<Rule> {
    let ruled = Rule::frame(Cfa { base: Base::Fp, offset: 16, deref: None }, SavedFp::Cfa(-16));
    match pc >> 20 {
        1 => Some(ruled),
        2 => Some(Rule::FRAME_POINTER),
        _ => None,
    }
}

struct Stack {
    words: Vec<u64>,
    scratch: Box<Scratch>,
}

impl Stack {
    fn new() -> Stack {
        let layout = std::alloc::Layout::new::<Scratch>();
        // SAFETY: zeroed memory is an empty scratch.
        let scratch = unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast::<Scratch>()) };
        Stack { words: vec![0; 512], scratch }
    }

    fn at(&self, word: usize) -> u64 {
        &raw const self.words[word] as u64
    }

    /// Records of these return addresses from word 8 on, `stride` words from each other; the frame pointer at entry.
    fn chain(&mut self, ras: &[u64], stride: usize) -> u64 {
        for (i, ra) in ras.iter().enumerate() {
            let at = 8 + i * stride;
            self.words[at] = if i + 1 < ras.len() { self.at(at + stride) } else { 0 };
            self.words[at + 1] = *ra;
        }
        self.at(8)
    }

    fn walk(&mut self, segment: Segment, ra: u64, fp: u64) -> (Vec<Frame>, usize) {
        self.words[0] = ra;
        let (low, high) = (self.at(0), self.at(511) + 8);
        let reach = Reach { low, high, unknown: false, own: (low, high) };
        self.scratch.hand_to(segment.base() as u64 ^ ra ^ fp ^ self.words[9]);
        let mut deep = Deep::new(segment, &mut self.scratch, reach, 64);
        deep.walk(object, Entry { ra, sp: low, fp });
        (deep.frames().to_vec(), deep.guards().len())
    }
}

fn shown(frames: &[Frame]) -> Vec<(FrameKind, u64)> {
    frames.iter().map(|f| (f.kind, f.value)).collect()
}

#[test]
fn a_frame_pointer_counts_only_if_it_leads_into_code() {
    alone(|| {
        let segment = fresh();
        let (native, jit) = (|pc| (FrameKind::Native, pc), |pc| (FrameKind::Jit, pc));
        let cut = |why: Cut| (FrameKind::Cut, why as u64);
        let mut stack = Stack::new();
        let returns = [MADE + 0x105, MADE + 0x205, BARE + 0x55, RULED + 0x66, 0];

        // Nobody has made that memory executable: the chain ends before it.
        let fp = stack.chain(&returns, 6);
        let (frames, guards) = stack.walk(segment, BARE + 5, fp);
        assert_eq!((shown(&frames), guards), (vec![native(BARE + 5), cut(Cut::NoRule)], 1));
        // Now the program has made it executable.
        let before = generated_code::changes();
        generated_code::note(MADE as usize, 0x1000);
        assert!(
            generated_code::changes() > before
                && generated_code::holds(MADE)
                && !generated_code::holds(MADE - 1)
                && !generated_code::holds(MADE + 0x1000)
        );
        let (frames, guards) = stack.walk(segment, BARE + 5, fp);
        let whole = [native(BARE + 5), jit(returns[0]), jit(returns[1]), native(returns[2]), native(returns[3])];
        assert_eq!((shown(&frames), guards), (whole.to_vec(), 0));
        assert!(frames[1..].iter().all(|f| f.flags == frame_flags::GUESSED), "{frames:?}");

        // The walk continues from run-time code that a rule led to, with any value in the register.
        let (frames, _) = stack.walk(segment, MADE + 5, fp);
        assert_eq!(shown(&frames)[..3], [jit(MADE + 5), jit(returns[0]), jit(returns[1])]);
        let anything = [0, 1, HEAP, stack.at(0) - 64, stack.at(511), stack.at(511) + 8, u64::MAX, u64::MAX - 7, fp + 4];
        for fp in anything {
            let (frames, _) = stack.walk(segment, MADE + 5, fp);
            assert_eq!(shown(&frames), [jit(MADE + 5), cut(Cut::Jit)], "{fp:x}");
            let (frames, _) = stack.walk(segment, BARE + 5, fp);
            assert_eq!(shown(&frames), [native(BARE + 5), cut(Cut::NoRule)], "{fp:x}");
        }

        // Structures on the stack that look like records: heap addresses, nulls; and one that holds a pointer to code.
        for word in [HEAP + 8, 0, 5, stack.at(30), u64::MAX] {
            let fp = stack.chain(&[word, RULED + 5], 6);
            let (frames, _) = stack.walk(segment, MADE + 5, fp);
            assert_eq!(shown(&frames), [jit(MADE + 5), cut(Cut::Jit)], "{word:x}");
            // A frame that was guessed must lead to the next one.
            let fp = stack.chain(&[MADE + 0x44, word, RULED + 5], 6);
            let (frames, _) = stack.walk(segment, BARE + 5, fp);
            assert_eq!(shown(&frames), [native(BARE + 5), cut(Cut::Jit)], "{word:x}");
        }

        // After a guess, a rule takes any word for a return address; such a word isn't shown as code.
        let fp = stack.chain(&[RULED + 5, HEAP, HEAP + 16], 6);
        let (frames, _) = stack.walk(segment, BARE + 5, fp);
        assert_eq!(shown(&frames), [native(BARE + 5), native(RULED + 5), cut(Cut::Broken)]);
        let (frames, _) = stack.walk(segment, RULED + 5, fp);
        assert_eq!(shown(&frames)[..2], [native(RULED + 5), native(RULED + 5)]);
    });
}

#[test]
fn no_stack_of_random_words_shows_data_as_code() {
    alone(|| {
        let segment = fresh();
        generated_code::note(MADE as usize, 0x1000);
        let (mut random, mut stack) = (Random(3), Stack::new());
        let (mut guessed, mut cuts, mut made) = (0u64, 0u64, 0u64);
        for _ in 0..40_000 {
            for i in 0..stack.words.len() {
                stack.words[i] = match random.below(8) {
                    0 => RULED + random.below(1 << 20),
                    1 => BARE + random.below(1 << 20),
                    2 => MADE + 1 + random.below(0xfff),
                    3 => HEAP + random.below(1 << 20),
                    4 => random.next(),
                    _ => stack.at(random.below(512) as usize) + random.below(5) / 4,
                };
            }
            let ra = [RULED, BARE, MADE][random.below(3) as usize] + 9;
            let fp = stack.at(random.below(512) as usize);
            let (frames, _) = stack.walk(segment, ra, fp);
            for (i, f) in frames.iter().enumerate() {
                let flagged = f.flags & frame_flags::GUESSED != 0;
                assert_eq!(f.flags & !frame_flags::GUESSED, 0);
                guessed += u64::from(flagged);
                match f.kind {
                    FrameKind::Native => assert!(object(f.value - 1).is_some()),
                    FrameKind::Jit => {
                        // Only an unbroken chain of rules may lead to an address that isn't known to be code.
                        let by_rules = frames[..=i].iter().all(|f| f.flags & frame_flags::GUESSED == 0);
                        assert!(generated_code::holds(f.value - 1) || by_rules, "{frames:x?}");
                        made += 1;
                    }
                    FrameKind::Cut => cuts += 1,
                    kind => panic!("{kind:?}"),
                }
            }
        }
        println!("exercised {guessed} guesses, {made} frames of made code, {cuts} cuts");
        assert!(guessed > 5000 && made > 10_000 && cuts > 20_000, "{guessed} {made} {cuts}");
    });
}

#[test]
fn made_code_is_known_by_range() {
    alone(|| {
        let mut random = Random(11);
        let mut pages = std::collections::BTreeSet::new();
        for _ in 0..100 {
            // Far enough apart that no two ranges join.
            let (page, n) = (random.below(1 << 20) * 64, 1 + random.below(4));
            generated_code::note((page << 12) as usize, (n << 12) as usize);
            pages.extend(page..page + n);
        }
        let mut both = [0; 2];
        for _ in 0..200_000 {
            let page = random.below(1 << 26);
            let known = generated_code::holds(page << 12 | random.below(4096));
            let near = pages.range(page.saturating_sub(17)..page + 17).next().is_some();
            assert!(pages.contains(&page) <= known && known <= near, "{page:x}");
            both[usize::from(known)] += 1;
        }
        assert!(pages.iter().all(|page| page == &0 || generated_code::holds(page << 12)));
        // Invalid ranges are ignored, and ranges beyond the capacity are left out.
        generated_code::note(0, 4096);
        generated_code::note(usize::MAX - 10, 100);
        for i in 0..2000usize {
            generated_code::note((1 << 44) + (i << 24), 4096);
        }
        assert!(
            generated_code::holds(1 << 44)
                && !generated_code::holds((1 << 44) + (1999 << 24))
                && !generated_code::holds(1 << 50)
        );
    });
}
