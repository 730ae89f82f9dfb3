//! A program that lies in memory without a file behind it.

use crate::units::{AddressRange, Avma};

/// What a packer left of a program after it unpacked it: no mapping names a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// `PT_LOAD`, in address order, on whole pages.
    pub segments: Vec<UnpackedSegment>,
    /// `PT_GNU_EH_FRAME`: linkers put it behind all other read-only data.
    pub frame_header: Option<Avma>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackedSegment {
    pub range: AddressRange,
    pub writable: bool,
    pub executable: bool,
}
