//! A program in memory without a file.

use crate::units::{AddressRange, Avma};

/// A program that a packer unpacked: its mappings name no file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// `PT_LOAD` segments in address order, on whole pages.
    pub segments: Vec<UnpackedSegment>,
    /// `PT_GNU_EH_FRAME`: linkers place it after all other read-only data.
    pub frame_header: Option<Avma>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackedSegment {
    pub range: AddressRange,
    pub writable: bool,
    pub executable: bool,
}
