//! Whether a stopped thread may be borrowed for a call of pthread_create: bytes in, a verdict out.
//!
//! pthread_create takes locks of malloc, of the loader and of libc's list of threads. A thread that holds one of them would
//! wait for itself, and a thread inside malloc has left its lists half changed. So neither the instruction pointer nor any
//! word of the stack may point into that code. Words that are left over from earlier calls only cause a needless refusal.

use std::ops::Range;

/// Code in which a thread may hold such a lock.
#[derive(Debug, Default)]
pub struct Forbidden {
    /// Ascending, without overlap.
    ranges: Vec<(Range<u64>, &'static str)>,
}

impl Forbidden {
    pub fn new(mut found: Vec<(Range<u64>, &'static str)>) -> Forbidden {
        found.retain(|(range, _)| range.start < range.end);
        found.sort_by_key(|(range, _)| (range.start, range.end));
        let mut ranges: Vec<(Range<u64>, &'static str)> = Vec::with_capacity(found.len());
        for (range, what) in found {
            match ranges.last_mut() {
                Some((last, _)) if range.start < last.end => last.end = last.end.max(range.end),
                _ => ranges.push((range, what)),
            }
        }
        Forbidden { ranges }
    }

    fn at(&self, address: u64) -> Option<&'static str> {
        let next = self.ranges.partition_point(|(range, _)| range.start <= address);
        let (range, what) = self.ranges.get(next.checked_sub(1)?)?;
        (address < range.end).then_some(*what)
    }

    /// The code in which the thread is, if it is in one of these. `stack` begins at the stack pointer, which is a multiple of
    /// eight bytes away from every return address.
    pub fn found(&self, instruction: u64, stack: &[u8]) -> Option<&'static str> {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        // The call lies before its return address, which may be the first byte behind the range.
        let returns = stack.chunks_exact(8).map(word).find_map(|word| self.at(word.checked_sub(1)?));
        self.at(instruction).or(returns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_the_stack_may_point_into_forbidden_code() {
        let code = Forbidden::new(vec![(0x2000..0x3000, "b"), (0x100..0x200, "a"), (0x2800..0x3800, "c"), (9..9, "d")]);
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
        ] {
            assert_eq!(code.found(ip, &stack(words)), expected, "{ip:#x} {words:x?}");
        }
        assert_eq!(code.found(0x50, &stack(&[0x101])[..7]), None, "half a word is none");
        assert_eq!(Forbidden::default().found(1, &stack(&[1])), None);
    }
}
