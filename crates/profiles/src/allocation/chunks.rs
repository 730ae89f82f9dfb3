//! Heap chunks of native images: the memory that a slow path takes from the kernel.
//!
//! The serial collector's heap consists of aligned chunks of one size, and of separate chunks for large arrays. The
//! cost of a slow path changed twice:
//!
//! | Substrate VM of | aligned chunk | a thread's buffer is | so a slow path is |
//! | --- | --- | --- | --- |
//! | JDK 20 and before | 1 MiB | a chunk | a chunk of 1 MiB |
//! | JDK 21 to 24 (GR-35746) | 512 KiB | a chunk | a chunk of 512 KiB |
//! | JDK 25 on (GR-32941) | 512 KiB | a slice of a chunk that threads share, 8 KiB at first | that slice |
//!
//! Sizes in the events take precedence over the version: `-H:AlignedHeapChunkSize` and vendors' back-ports differ. The
//! counts are of chunks *taken*: a chunk that a collection released and that was taken again counts twice.

use super::{SlowPath, Vm};
use plimsoll_facts::units::Bytes;

/// An array of at least this size has its own chunk (GraalVM 25: chunks of 132 KiB and more, each mapped separately).
const LARGE: u64 = 128 << 10;

/// What slow paths took, as far as the rules need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenMemory {
    /// New buffers for small objects: number, sum, smallest, largest.
    buffers: u64,
    buffer_bytes: Bytes,
    least: Bytes,
    most: Bytes,
    /// Small objects allocated outside the buffer.
    past_bytes: Bytes,
    large: u64,
    large_bytes: Bytes,
}

impl TakenMemory {
    pub(crate) fn add(&mut self, of: SlowPath) {
        let taken = Bytes(of.taken());
        match of.buffer {
            _ if of.object >= LARGE => {
                self.large += 1;
                self.large_bytes += taken;
            }
            Some(_) => self.merge(&TakenMemory {
                buffers: 1,
                buffer_bytes: taken,
                least: taken,
                most: taken,
                ..TakenMemory::default()
            }),
            None => self.past_bytes += taken,
        }
    }

    pub(crate) fn merge(&mut self, other: &TakenMemory) {
        self.least = match (self.buffers, other.buffers) {
            (_, 0) => self.least,
            (0, _) => other.least,
            _ => self.least.min(other.least),
        };
        self.most = self.most.max(other.most);
        self.buffers += other.buffers;
        self.buffer_bytes += other.buffer_bytes;
        self.past_bytes += other.past_bytes;
        self.large += other.large;
        self.large_bytes += other.large_bytes;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffers {
    /// Each buffer is a whole aligned chunk.
    Chunks,
    /// Buffers are slices of aligned chunks.
    Slices,
}

/// What a slow path means for the heap, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    buffers: Buffers,
    chunk: Bytes,
    why: String,
}

impl Rule {
    /// Derived from what all threads took. `None` for HotSpot: its buffers are parts of regions or of eden.
    pub(crate) fn of(vm: &Vm, all: &TakenMemory) -> Option<Rule> {
        if !vm.is_native_image() {
            return None;
        }
        let by_version = match vm.feature() {
            Some(..=20) => (Buffers::Chunks, Bytes::mib(1)),
            Some(21..=24) => (Buffers::Chunks, Bytes::kib(512)),
            _ => (Buffers::Slices, Bytes::kib(512)),
        };
        // The size may exclude the chunk's header, so a size up to an eighth below counts as equal.
        let is_about = |size: Bytes, of: Bytes| size <= of && size > of - Bytes(of.0 / 8);
        let whole =
            [Bytes::mib(1), Bytes::kib(512)].into_iter().find(|c| is_about(all.least, *c) && is_about(all.most, *c));
        let by_sizes = match whole {
            _ if all.buffers == 0 => None,
            Some(chunk) => Some((Buffers::Chunks, chunk)),
            None => (all.least < Bytes(LARGE)).then_some((Buffers::Slices, Bytes::kib(512))),
        };
        let (buffers, chunk) = by_sizes.unwrap_or(by_version);
        let seen = match all.buffers {
            0 => "no buffer was taken".to_string(),
            _ if all.least == all.most => format!("buffers taken are of {}", all.most),
            _ => format!("buffers taken are of {} to {}", all.least, all.most),
        };
        let means = match buffers {
            Buffers::Chunks => format!("a thread's buffer is a whole heap chunk of {chunk}"),
            Buffers::Slices => format!("buffers are slices of heap chunks of {chunk} that threads share"),
        };
        let unlike = if (buffers, chunk) == by_version { "" } else { ", unlike that version's default" };
        Some(Rule { buffers, chunk, why: format!("{} {}: {means}; {seen}{unlike}", vm.name, vm.version) })
    }
}

/// Estimated number of heap chunks that slow paths took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// Aligned chunks: one per buffer or, for all threads together, as many as the slices fill.
    pub aligned: u64,
    pub aligned_size: Bytes,
    /// For one thread: its slices of chunks that it shares with other threads.
    pub slices: Bytes,
    /// Chunks with one large array each.
    pub own: u64,
    pub own_bytes: Bytes,
    /// The rule for counting them, and the evidence in the recording.
    pub why: String,
}

impl Chunks {
    pub(super) fn of_thread(rule: &Rule, taken: &TakenMemory) -> Chunks {
        let (whole, slices) = match rule.buffers {
            Buffers::Chunks => (taken.buffers, taken.past_bytes),
            Buffers::Slices => (0, taken.buffer_bytes + taken.past_bytes),
        };
        Chunks {
            aligned: whole,
            aligned_size: rule.chunk,
            slices,
            own: taken.large,
            own_bytes: taken.large_bytes,
            why: rule.why.clone(),
        }
    }

    pub(super) fn of_all(rule: &Rule, taken: &TakenMemory) -> Chunks {
        let of = Chunks::of_thread(rule, taken);
        let filled = of.slices.0.div_ceil(rule.chunk.0.max(1));
        Chunks { aligned: of.aligned + filled, slices: Bytes::ZERO, ..of }
    }

    pub fn bytes(&self) -> Bytes {
        Bytes(self.aligned.saturating_mul(self.aligned_size.0)) + self.slices + self.own_bytes
    }
}
