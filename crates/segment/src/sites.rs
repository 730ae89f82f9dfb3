//! Reads sites, stacks and estimates from decoded records. It never fails: a reference to a missing entry ends there.

use crate::layout::{CALLER_SITE, CallerFacts, FrameKind, FrameNodeFacts, MethodFacts, SiteSamplesFacts};

impl CallerFacts {
    /// Whether this entry is a site, a deep stack under a caller.
    pub const fn is_site(&self) -> bool {
        self.flags & CALLER_SITE != 0
    }

    /// Index of a site's [`SiteSamplesFacts`], if it was ever sampled.
    pub fn samples(&self) -> Option<usize> {
        (self.is_site() && self.frames[0] != 0).then_some(self.frames[0] as usize)
    }
}

/// The caller for which an entry's blocks count: the entry itself, or a site's caller. No chain is followed, whatever
/// the file holds.
pub fn caller_of(callers: &[CallerFacts], index: usize) -> usize {
    match callers.get(index) {
        Some(site) if site.is_site() => {
            let parent = site.parent as usize;
            // A site whose parent isn't a caller occurs only in damaged files; it counts for itself.
            if callers.get(parent).is_some_and(|c| !c.is_site()) { parent } else { index }
        }
        _ => index,
    }
}

/// The tracker writes no deeper stack, whatever its options say. The mark of a cut counts as a frame.
pub const MOST_FRAMES: usize = 1024;

/// The frames of a stack, innermost first; of a damaged file's endless stack, the innermost [`MOST_FRAMES`].
#[derive(Clone, Debug)]
pub struct StackFrames<'a> {
    frames: &'a [FrameNodeFacts],
    at: usize,
    left: usize,
}

/// The stack with node `stack` as its innermost frame.
pub const fn stack(frames: &[FrameNodeFacts], stack: u32) -> StackFrames<'_> {
    StackFrames { frames, at: stack as usize, left: MOST_FRAMES }
}

impl StackFrames<'_> {
    /// Whether the stack continues outwards, but is deeper than [`MOST_FRAMES`]. Known at the end of the iteration.
    pub const fn is_too_deep(&self) -> bool {
        self.left == 0 && self.at != 0
    }
}

impl<'a> Iterator for StackFrames<'a> {
    type Item = &'a FrameNodeFacts;

    fn next(&mut self) -> Option<&'a FrameNodeFacts> {
        if self.at == 0 || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let node = self.frames.get(self.at)?;
        // Parents have smaller indexes. Otherwise the file is damaged, and there might be a cycle.
        self.at = if (node.parent as usize) < self.at { node.parent as usize } else { 0 };
        Some(node)
    }
}

impl FrameNodeFacts {
    /// The kind of the value.
    pub const fn kind(&self) -> FrameKind {
        FrameKind::of(self.kind)
    }

    /// Method and bytecode index of a Java frame (`None`: unknown).
    pub const fn method(&self) -> Option<(usize, Option<u16>)> {
        match self.kind() {
            FrameKind::Java => {
                let bci = self.value as u16;
                Some(((self.value >> 16) as usize, if bci == 0xffff { None } else { Some(bci) }))
            }
            _ => None,
        }
    }
}

/// A method's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodNames<'a> {
    /// Such as `java/util/zip/Inflater`.
    pub class: &'a [u8],
    /// Such as `init`.
    pub name: &'a [u8],
    /// Such as `(Z)J`.
    pub signature: &'a [u8],
    /// Such as `Inflater.java`; may be empty.
    pub source: &'a [u8],
    lines: &'a [u8],
}

impl MethodFacts {
    /// The texts; empty if they lie outside the section.
    pub fn names<'a>(&self, names: &'a [u8]) -> MethodNames<'a> {
        let at = |from: u32, bytes: usize| names.get(from as usize..from as usize + bytes).unwrap_or_default();
        MethodNames {
            class: at(self.class_at, self.class_bytes as usize),
            name: at(self.name_at, self.name_bytes as usize),
            signature: at(self.signature_at, self.signature_bytes as usize),
            source: at(self.source_at, self.source_bytes as usize),
            lines: at(self.lines_at, self.lines_bytes as usize),
        }
    }
}

impl MethodNames<'_> {
    /// The source line of a bytecode index.
    pub fn line(&self, bci: u16) -> Option<u16> {
        let word = |b: &[u8]| b.first_chunk().map_or(0, |b| u16::from_ne_bytes(*b));
        let pairs = self.lines.chunks_exact(4).map(|pair| (word(pair), word(&pair[2..])));
        pairs.take_while(|(first, _)| *first <= bci).last().map(|(_, line)| line)
    }
}

/// An unbiased estimate from samples, with its variance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub value: u64,
    /// Its variance.
    pub variance: f64,
}

impl Estimate {
    /// Half the width of the interval that contains the true number with about 95 % probability, if there are a few
    /// dozen samples: 1.96 standard deviations.
    pub fn error(&self) -> u64 {
        (1.96 * square_root(self.variance)) as u64
    }
}

impl SiteSamplesFacts {
    /// Usable bytes of live blocks.
    pub fn live_bytes(&self) -> Estimate {
        let variance = live(self.alloc_bytes_variance, self.free_bytes_variance);
        self.known(Estimate { value: self.alloc_bytes.saturating_sub(self.free_bytes), variance })
    }

    /// Live blocks.
    pub fn live_count(&self) -> Estimate {
        let variance = live(self.alloc_count_variance, self.free_count_variance);
        self.known(Estimate { value: self.alloc_count_256.saturating_sub(self.free_count_256) / 256, variance })
    }

    /// Usable bytes of all blocks ever allocated.
    pub fn cumulative_bytes(&self) -> Estimate {
        Estimate { value: self.alloc_bytes, variance: live(self.alloc_bytes_variance, 0) }
    }

    /// All blocks ever allocated.
    pub fn cumulative_count(&self) -> Estimate {
        Estimate { value: self.alloc_count_256 / 256, variance: live(self.alloc_count_variance, 0) }
    }

    /// Usable bytes of all blocks that were freed.
    pub fn freed_bytes(&self) -> Estimate {
        Estimate { value: self.free_bytes, variance: live(self.free_bytes_variance, 0) }
    }

    /// All blocks that were freed.
    pub fn freed_count(&self) -> Estimate {
        Estimate { value: self.free_count_256 / 256, variance: live(self.free_count_variance, 0) }
    }

    /// Without a live sample, the variance is unknown: the difference of the float sums is only rounding error.
    fn known(&self, e: Estimate) -> Estimate {
        if self.alloc_samples <= self.free_samples { Estimate { value: e.value, variance: 0.0 } } else { e }
    }
}

fn live(allocated: u64, freed: u64) -> f64 {
    let variance = f64::from_bits(allocated) - f64::from_bits(freed);
    if variance.is_finite() && variance > 0.0 { variance } else { 0.0 }
}

/// Newton's iteration, starting from half the exponent; `core` has no sqrt.
fn square_root(x: f64) -> f64 {
    if !(x > 0.0 && x.is_finite()) {
        return 0.0;
    }
    let mut root = f64::from_bits((x.to_bits() >> 1) + (1023 << 51));
    for _ in 0..5 {
        root = 0.5 * (root + x / root);
    }
    root
}
