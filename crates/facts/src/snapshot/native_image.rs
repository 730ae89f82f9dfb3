//! A GraalVM native image as seen from outside.

use super::NmtCategory;
use crate::units::{AddressRange, Avma};

#[derive(Clone, Debug, Default)]
pub struct NativeImage {
    /// Version string of the image's VM, if it has one.
    pub version: String,
    /// The image heap: once in the ELF segment, and once as the heap view of each isolate.
    pub image_heap: Vec<ImageHeapRange>,
    pub isolates: Vec<Isolate>,
    /// Committed heap chunks (aligned and unaligned) outside the image heap, sorted, disjoint.
    pub heap_chunks: Vec<AddressRange>,
    /// The categories of the image's own NMT, if it was built with it and answers.
    pub nmt: Vec<NmtCategory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeapRange {
    pub range: AddressRange,
    /// True for the isolate's view, false for the ELF segment that it is mapped from.
    pub view: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolate {
    pub heap_base: Avma,
    /// The address space that the isolate reserves (32 GiB by default).
    pub reservation: AddressRange,
}
