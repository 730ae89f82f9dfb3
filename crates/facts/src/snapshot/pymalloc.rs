//! CPython's pools of small objects.

use crate::units::{AddressRange, Bytes};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pymalloc {
    /// Sorted, disjoint, never touching.
    pub pools: Vec<AddressRange>,
    pub count: u64,
    /// Bytes of the blocks in use.
    pub live: Bytes,
}
