//! What a GraalVM native image looks like from outside.

use crate::units::{AddressRange, Avma, Bytes};

#[derive(Clone, Debug, Default)]
pub struct NativeImage {
    /// Version string of the image's VM, where it states one.
    pub version: String,
    /// The image heap: once in the ELF segment, once as the heap view of each isolate.
    pub image_heap: Vec<ImageHeapRange>,
    pub isolates: Vec<Isolate>,
    /// Committed heap chunks (aligned and unaligned) outside the image heap, sorted, disjoint.
    pub heap_chunks: Vec<AddressRange>,
    /// Other ranges the VM owns, with a name: card tables, unpacked text.
    pub vm_ranges: Vec<(AddressRange, String)>,
    /// The image's own NMT figures, where it was built with them: (category, live bytes).
    pub nmt: Vec<(String, Bytes)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeapRange {
    pub range: AddressRange,
    /// True for the isolate's view, false for the ELF segment it is mapped from.
    pub view: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolate {
    pub heap_base: Avma,
    /// The address space the isolate reserves (32 GiB by default).
    pub reservation: AddressRange,
}
