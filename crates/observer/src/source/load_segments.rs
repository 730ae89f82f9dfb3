//! Which part of an object file lies at which address, by its program headers.

use object::read::ReadRef;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment};

/// A library has five or so. A hostile file has 65,000, and a reader looks through them for each of thousands of names.
const MOST_SEGMENTS: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadSegment {
    /// As linked, and the size in memory.
    address: u64,
    size: u64,
    /// In the file.
    offset: u64,
    length: u64,
}

/// The first segments of a file.
pub(crate) fn load_segments<'a, R: ReadRef<'a>>(file: &ElfFile64<'a, Endianness, R>) -> Vec<LoadSegment> {
    let segments = file.segments().take(MOST_SEGMENTS).map(|segment| {
        let (offset, length) = segment.file_range();
        LoadSegment { address: segment.address(), size: segment.size(), offset, length }
    });
    segments.collect()
}

/// The offset in the file of an address as linked.
pub(crate) fn offset_of(segments: &[LoadSegment], address: u64) -> Option<u64> {
    let of = segments.iter().find(|of| address >= of.address && address - of.address < of.size)?;
    (address - of.address).checked_add(of.offset)
}

/// The address as linked of an offset in the file.
pub(crate) fn address_of(segments: &[LoadSegment], offset: u64) -> Option<u64> {
    let of = segments.iter().find(|of| offset >= of.offset && offset - of.offset < of.length)?;
    of.address.checked_add(offset - of.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose segments of one page each lie at 16 MiB and more.
    fn file(segments: u16) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        bytes.extend([0, 64, 0].map(u64::to_le_bytes).concat());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend([64, 56, segments, 64, 0, 0].map(u16::to_le_bytes).concat());
        for page in (0..u64::from(segments)).map(|n| n * 4096) {
            bytes.extend([1u32, 4].map(u32::to_le_bytes).concat());
            bytes.extend([page, page + (16 << 20), 0, 4096, 4096, 4096].map(u64::to_le_bytes).concat());
        }
        bytes
    }

    #[test]
    fn addresses_and_offsets_correspond_in_the_first_segments() {
        let bytes = file(65_000);
        let file = ElfFile64::<Endianness>::parse(bytes.as_slice()).expect("an object file");
        let segments = load_segments(&file);
        assert_eq!((file.segments().count(), segments.len()), (65_000, MOST_SEGMENTS));
        for (offset, address) in [(0, 16 << 20), (5000, (16 << 20) + 5000), (64 * 4096 - 1, (16 << 20) + 64 * 4096 - 1)]
        {
            assert_eq!(offset_of(&segments, address), Some(offset));
            assert_eq!(address_of(&segments, offset), Some(address));
        }
        assert_eq!(offset_of(&segments, (16 << 20) + 64 * 4096), None);
        assert_eq!(offset_of(&segments, (16 << 20) - 1), None);
        assert_eq!(address_of(&segments, 64 * 4096), None);
    }
}
