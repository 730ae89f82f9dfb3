//! Finds blocks with the header of HotSpot's NMT, which gives the category of the block.
//!
//! ```text
//! JDK 18 on   0 size (8)   8 site (4)   12 tag (1)   13 unused   14 canary E99E              mallocHeader.hpp
//! JDK 17      0 size (8)   8 tag (1)    9 position (2)   11 bucket (5), less than 511            mallocTracker.hpp
//! ```
//!
//! Up to JDK 17, NMT writes position and bucket only at level detail. At level summary, these fields keep what the
//! memory held before. Often that is a part of an address, since a free chunk begins with the addresses of two others.
//!
//! The size identifies a header: the VM requested this size plus 16 bytes (18 with JDK 18's footer) from malloc, and
//! the chunk fits that exactly.

use super::layout::{ALIGN, CHUNK_HEADER};
use plimsoll_facts::snapshot::{HotSpot, NmtMode, TaggedBlocks};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates, word_at};

const CANARY: u64 = 0xe99e;
const HEADER: u64 = 16;
const FOOTER: u64 = 2;
const SMALLEST_CHUNK: u64 = 32;
/// Tags start at 0; JDK 25 has 29.
const TAGS: usize = 64;
const BUCKETS_17: u64 = 511;
/// JDK 17 has 27 tags, older ones have fewer.
const TAGS_17: u8 = 32;

/// What the VM writes into a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NmtHeaders {
    /// All fields.
    Whole,
    /// Size and tag only: JDK 17 and older at level summary.
    SizeAndTag,
}

impl NmtHeaders {
    pub fn of(vm: &HotSpot) -> NmtHeaders {
        match (vm.jdk(), vm.nmt) {
            (Some(..=17), NmtMode::Summary) => NmtHeaders::SizeAndTag,
            _ => NmtHeaders::Whole,
        }
    }
}

/// Size and tag of a block in a chunk of `chunk` bytes, if the block has such a header.
pub(crate) fn header(first_bytes: &[u8; 16], chunk: u64, mmapped: bool, written: NmtHeaders) -> Option<(u64, u8)> {
    let size = word_at(first_bytes, 0)?;
    let second = word_at(first_bytes, 8)?;
    let canary = second >> 48 == CANARY;
    let requested = size.checked_add(HEADER + if canary { FOOTER } else { 0 })?;
    // A chunk's last word belongs to it while it is in use, except in a chunk with its own mapping (malloc.c,
    // `request2size`).
    let fits = if mmapped {
        let spare = requested.checked_add(CHUNK_HEADER).and_then(|needed| chunk.checked_sub(needed));
        spare.is_some_and(|spare| spare < 4096)
    } else {
        let needed = requested.checked_add(8)?.checked_next_multiple_of(ALIGN)?.max(SMALLEST_CHUNK);
        // malloc returns a chunk that is 16 bytes too large if the rest would be too small for a chunk.
        chunk.checked_sub(needed).is_some_and(|spare| spare == 0 || spare == ALIGN)
    };
    let tag = if canary { (second >> 32) as u8 } else { second as u8 };
    let plausible = match written {
        _ if canary => true,
        NmtHeaders::Whole => second >> 24 < BUCKETS_17,
        NmtHeaders::SizeAndTag => tag < TAGS_17,
    };
    (fits && plausible && usize::from(tag) < TAGS && size > 0).then_some((size, tag))
}

/// Sums by tag.
pub(crate) struct Tagged {
    written: NmtHeaders,
    sums: Vec<TaggedBlocks>,
}

impl Tagged {
    pub(crate) fn new(written: NmtHeaders) -> Tagged {
        let sums = (0..TAGS).map(|tag| TaggedBlocks { tag: tag as u8, ..TaggedBlocks::default() }).collect();
        Tagged { written, sums }
    }

    /// No blocks yet, of the same VM.
    pub(crate) fn empty(&self) -> Tagged {
        Tagged::new(self.written)
    }

    pub(crate) fn merge(&mut self, other: Tagged) {
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            sum.count += more.count;
            sum.bytes += more.bytes;
            sum.resident += more.resident;
            sum.around += more.around;
        }
    }

    pub(crate) fn add<M: Memory>(
        &mut self,
        first_bytes: &[u8; 16],
        at: Avma,
        chunk: u64,
        mmapped: bool,
        pages: &mut PageStates<'_, M>,
    ) {
        if let Some((size, tag)) = header(first_bytes, chunk, mmapped, self.written)
            && let Some(sum) = self.sums.get_mut(usize::from(tag))
        {
            sum.count += 1;
            sum.bytes += Bytes(size);
            let block = AddressRange::sized(at.offset(Bytes(CHUNK_HEADER + HEADER)), Bytes(size));
            let of_block = pages.resident(block);
            sum.resident += of_block;
            // The header was read, so a small chunk counts as resident.
            let whole = Bytes(chunk);
            let in_chunk = if chunk < PAGE { whole } else { pages.resident(AddressRange::sized(at, whole)) };
            sum.around += in_chunk - of_block;
        }
    }

    pub(crate) fn into_sums(self) -> Vec<TaggedBlocks> {
        self.sums.into_iter().filter(|sum| sum.count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size: u64, second: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&size.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// The block's memory was a free chunk, whose second word is an address.
    #[test]
    fn a_header_of_which_the_vm_wrote_only_size_and_tag_is_found() {
        let first_bytes = block(100, 0x7f12_3456_7800 | 7);
        assert_eq!(header(&first_bytes, 128, false, NmtHeaders::SizeAndTag), Some((100, 7)));
        assert_eq!(header(&first_bytes, 128, false, NmtHeaders::Whole), None);
        // The VM has no such tag.
        assert_eq!(header(&block(100, 0x7f12_3456_7828), 128, false, NmtHeaders::SizeAndTag), None);
        let vm = |version: &str, nmt| HotSpot { version: version.into(), nmt, ..HotSpot::default() };
        for (version, nmt, written) in [
            ("17.0.15+6-Debian-1deb12u1", NmtMode::Summary, NmtHeaders::SizeAndTag),
            ("25.402-b06", NmtMode::Summary, NmtHeaders::SizeAndTag),
            ("17.0.15+6-Debian-1deb12u1", NmtMode::Detail, NmtHeaders::Whole),
            ("18.0.2+9", NmtMode::Summary, NmtHeaders::Whole),
            ("", NmtMode::Summary, NmtHeaders::Whole),
        ] {
            assert_eq!(NmtHeaders::of(&vm(version, nmt)), written, "{version}");
        }
    }

    /// A size written by a hostile process must not wrap around to one that fits the chunk.
    #[test]
    fn impossible_sizes_fit_no_chunk() {
        let canary = CANARY << 48;
        for second in [0, canary] {
            for below in 0..200 {
                for chunk in [0, 16, 32, 48, 4096, 8192, u64::MAX - 15, u64::MAX] {
                    let first_bytes = block(u64::MAX - below, second);
                    for mmapped in [false, true] {
                        for written in [NmtHeaders::Whole, NmtHeaders::SizeAndTag] {
                            if let Some((size, _)) = header(&first_bytes, chunk, mmapped, written) {
                                assert!(size < chunk, "a block of {size} bytes in a chunk of {chunk}");
                            }
                        }
                    }
                }
            }
        }
        // A real block is found: 100 bytes requested, with header and footer, in a chunk of 128.
        assert_eq!(header(&block(100, canary | 7 << 32), 128, false, NmtHeaders::Whole), Some((100, 7)));
    }
}
