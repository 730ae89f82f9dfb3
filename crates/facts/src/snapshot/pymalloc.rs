//! What CPython maps: pools of small objects, and chunks of frames.

use crate::units::{AddressRange, Bytes};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pymalloc {
    /// Sorted, disjoint, never touching.
    pub pools: Vec<AddressRange>,
    pub count: u64,
    /// Bytes of the blocks in use.
    pub live: Bytes,
    /// Memory for the frames of Python functions, of all threads: sorted, disjoint.
    pub frames: Vec<AddressRange>,
}
