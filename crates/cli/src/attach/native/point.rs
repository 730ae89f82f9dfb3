//! Whether a stopped thread may be borrowed for a call of pthread_create: bytes in, a verdict out.
//!
//! pthread_create takes locks of malloc, of the loader and of libc's list of threads. A thread that holds one of them
//! would wait for itself, and a thread inside malloc has left its lists half changed. So no function on the stack may
//! be in that code. Where unwind tables don't prove which functions those are, no word of the stack may point there. A
//! word that is left over from an earlier call then causes a needless refusal.

use std::ops::Range;

use super::unwind::{Frames, Stack};

/// Code in which a thread may hold such a lock.
#[derive(Debug, Default)]
pub struct Forbidden {
    /// Ascending, without overlap.
    ranges: Vec<(Range<u64>, &'static str)>,
    /// The last bytes of calls that may be on a stack all the same, ascending.
    calls: Vec<u64>,
}

impl Forbidden {
    /// `calls`: the last bytes of calls within the ranges that may be on a stack all the same.
    pub fn new(mut found: Vec<(Range<u64>, &'static str)>, mut calls: Vec<u64>) -> Forbidden {
        calls.sort_unstable();
        found.retain(|(range, _)| range.start < range.end);
        found.sort_by_key(|(range, _)| (range.start, range.end));
        let mut ranges: Vec<(Range<u64>, &'static str)> = Vec::with_capacity(found.len());
        for (range, what) in found {
            match ranges.last_mut() {
                Some((last, _)) if range.start < last.end => last.end = last.end.max(range.end),
                _ => ranges.push((range, what)),
            }
        }
        Forbidden { ranges, calls }
    }

    /// The first range of this name.
    #[cfg(test)]
    pub fn named(&self, name: &str) -> Option<Range<u64>> {
        self.ranges.iter().find(|(_, what)| *what == name).map(|(range, _)| range.clone())
    }

    fn at(&self, address: u64) -> Option<&'static str> {
        let next = self.ranges.partition_point(|(range, _)| range.start <= address);
        let (range, what) = self.ranges.get(next.checked_sub(1)?)?;
        (address < range.end).then_some(*what)
    }

    fn at_call(&self, address: u64) -> Option<&'static str> {
        self.at(address).filter(|_| self.calls.binary_search(&address).is_err())
    }

    /// The code in which the thread is, if it is in one of these. `frames`: the functions on its stack, where they are
    /// proven.
    pub fn found(&self, instruction: u64, stack: &Stack<'_>, frames: Option<&Frames>) -> Option<&'static str> {
        let Some(frames) = frames else { return self.at(instruction).or_else(|| self.pointed_to(stack.bytes)) };
        let interrupted = frames.interrupted.iter().find_map(|pc| self.at(*pc));
        let functions = frames.pcs.iter().find_map(|pc| self.at_call(*pc));
        let words = || frames.unproven.iter().find_map(|range| self.pointed_to(stack.part(range)));
        self.at(instruction).or(interrupted).or(functions).or_else(words)
    }

    /// `stack` begins a multiple of eight bytes away from every return address.
    fn pointed_to(&self, stack: &[u8]) -> Option<&'static str> {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        // The call lies before its return address, which may be the first byte behind the range.
        stack.chunks_exact(8).map(word).find_map(|word| self.at_call(word.checked_sub(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_the_stack_may_point_into_forbidden_code() {
        let code = Forbidden::new(
            vec![(0x2000..0x3000, "b"), (0x100..0x200, "a"), (0x2800..0x3800, "c"), (9..9, "d")],
            vec![0x2900],
        );
        let stack = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        for (ip, words, expected) in [
            (0x50, &[0x99, 0x100, 0x201, u64::MAX, 0][..], None),
            (0x100, &[], Some("a")),
            (0x1ff, &[], Some("a")),
            (0x200, &[], None),
            (0x50, &[1, 2, 0x101], Some("a")),
            (0x50, &[0x200], Some("a")),
            (0x50, &[0x3800], Some("b")),
            (0x50, &[0x3801], None),
            (0x50, &[0x2901], None),
            (0x50, &[0x2902], Some("b")),
            (0x2900, &[], Some("b")),
        ] {
            let stack = Stack { at: 0x7000, bytes: &stack(words) };
            assert_eq!(code.found(ip, &stack, None), expected, "{ip:#x} {words:x?}");
        }
        assert_eq!(code.found(0x50, &Stack { at: 0, bytes: &stack(&[0x101])[..7] }, None), None, "half a word is none");
        assert_eq!(Forbidden::default().found(1, &Stack { at: 0, bytes: &stack(&[1]) }, None), None);
    }

    #[test]
    fn where_frames_are_proven_only_they_count() {
        let code = Forbidden::new(vec![(0x100..0x200, "a")], vec![0x180]);
        let bytes: Vec<u8> = [0x150u64, 0x60, 0x150, 0x60].iter().flat_map(|w| w.to_le_bytes()).collect();
        let stack = Stack { at: 0x7000, bytes: &bytes };
        let with = |pcs: &[u64], interrupted: &[u64], unproven: &[Range<u64>]| {
            let (pcs, interrupted, unproven) = (pcs.to_vec(), interrupted.to_vec(), unproven.to_vec());
            code.found(0x50, &stack, Some(&Frames { pcs, interrupted, unproven }))
        };
        let of = |pcs: &[u64], unproven: &[Range<u64>]| with(pcs, &[], unproven);
        assert_eq!(code.found(0x50, &stack, None), Some("a"));
        assert_eq!(of(&[0x50, 0x60], &[]), None);
        assert_eq!(of(&[0x50, 0x1ff], &[]), Some("a"));
        assert_eq!(of(&[0x50, 0x180], &[]), None);
        assert_eq!(with(&[0x50, 0x180], &[0x50, 0x180], &[]), Some("a"), "a signal came there, no call ends there");
        assert_eq!(of(&[0x50], &[0x7008..0x7010, 0x7018..0x7020]), None);
        assert_eq!(of(&[0x50], &[0x7008..0x7010, 0x7010..0x7020]), Some("a"));
        assert_eq!(of(&[0x50], &[0x7011..0x7020, 0..0]), Some("a"), "a range begins with a whole word");
        assert_eq!(of(&[], &[0..u64::MAX, 0..0]), Some("a"));
    }
}
