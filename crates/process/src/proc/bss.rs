//! Where the .bss of each program and library ends. The linker maps it as anonymous memory directly behind the object's
//! data. The kernel may join it with the next anonymous mapping, and an object without a .bss may lie directly below
//! one. Only the object's program headers tell how much belongs to the object: the end of the segment with its data.
//! They are read where the object's first mapping has them.

use crate::proc::memory::{Memory, PAGE, Untouched};
use crate::proc::unpacked;
use plimsoll_facts::snapshot::Vma;
use plimsoll_facts::units::{AddressRange, Avma};

/// The part of each anonymous mapping behind an object's data that is the object's, in address order; empty if all of
/// it is someone else's. An object without readable headers is left out.
pub fn find<M: Memory>(memory: &M, vmas: &[Vma]) -> Vec<AddressRange> {
    let memory = Untouched::new(memory);
    let mut first: Option<&Vma> = None;
    let mut found = Vec::new();
    for (index, data) in vmas.iter().enumerate() {
        if data.inode == 0 {
            continue;
        }
        if data.offset == 0 && data.readable {
            first = Some(data);
        }
        let behind = vmas.get(index + 1).filter(|next| next.may_be_bss_of(data));
        let object = first.filter(|first| (first.device, first.inode) == (data.device, data.inode));
        if let (Some(behind), Some(object)) = (behind, object)
            && let Some(end) = end_of_data(&memory, object, data)
        {
            found.push(AddressRange::new(behind.range.start, end.clamp(behind.range.start, behind.range.end)));
        }
    }
    found
}

/// The end of the segment that contains the last bytes of `data`, according to the headers at the start of `object`.
fn end_of_data<M: Memory>(memory: &M, object: &Vma, data: &Vma) -> Option<Avma> {
    let mut headers = vec![0; PAGE.min(object.range.length().0) as usize];
    memory.read(object.range.start, &mut headers).then_some(())?;
    let program = unpacked::parse(&headers, object.range.start)?;
    let last = Avma(data.range.end.0.checked_sub(1)?);
    program.segments.iter().find(|segment| segment.range.contains(last)).map(|segment| segment.range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;
    use plimsoll_facts::snapshot::Backing;

    const START: u64 = 0x7f00_0060_0000;

    /// The headers of an object with data at 0x3000 to 0x4800 in memory, 0x3000 to 0x3400 in its file.
    fn headers() -> Vec<u8> {
        let mut bytes = vec![0u8; 0x40];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[16], bytes[32], bytes[54], bytes[56]) = (3, 0x40, 56, 2);
        for (flags, offset, in_file, in_memory) in [(5u32, 0u64, 0x2000u64, 0x2000u64), (6, 0x3000, 0x400, 0x1800)] {
            bytes.extend([1, flags].into_iter().flat_map(u32::to_le_bytes));
            bytes.extend([offset, offset, offset, in_file, in_memory, 0x1000].into_iter().flat_map(u64::to_le_bytes));
        }
        bytes
    }

    /// Bytes at START; all other memory is zero. The flag: whether any of it is resident.
    struct Image(Vec<u8>, bool);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            into.fill(0);
            let Some(from) = at.0.checked_sub(START).map(|from| from as usize) else { return true };
            for (into, byte) in into.iter_mut().zip(self.0.iter().skip(from)) {
                *into = *byte;
            }
            true
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(u64::from(self.1) << 63);
            true
        }
    }

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Avma(START + start), Avma(START + end))
    }

    /// The object's code and data, and anonymous memory directly behind the data up to `end`.
    fn mappings(end: u64) -> Vec<Vma> {
        let file = |start, end, writable| {
            let (range, offset) = (range(start, end), start);
            Vma { range, offset, inode: 7, readable: true, writable, backing: Backing::File, ..Vma::default() }
        };
        let behind = Vma { range: range(0x4000, end), readable: true, writable: true, ..Vma::default() };
        vec![file(0, 0x2000, false), file(0x3000, 0x4000, true), behind]
    }

    #[test]
    fn bss_ends_where_the_segment_ends_however_long_the_mapping_is() {
        let found = |end| find(&Image(headers(), true), &mappings(end));
        assert_eq!(found(0x5000), [range(0x4000, 0x5000)]);
        assert_eq!(found(0x90_0000), [range(0x4000, 0x5000)]);
    }

    #[test]
    fn an_object_without_bss_has_none_of_the_memory_behind_its_data() {
        let mut bytes = headers();
        bytes[0x40 + 56 + 40..0x40 + 56 + 48].copy_from_slice(&0x1000u64.to_le_bytes());
        assert_eq!(find(&Image(bytes, true), &mappings(0x90_0000)), [range(0x4000, 0x4000)]);
    }

    #[test]
    fn an_object_whose_headers_are_not_in_memory_is_left_out() {
        assert_eq!(find(&Image(headers(), false), &mappings(0x5000)), []);
        let mut without_first = mappings(0x5000);
        without_first.remove(0);
        assert_eq!(find(&Image(headers(), true), &without_first), []);
        let mut of_another = mappings(0x5000);
        of_another[0].inode = 8;
        assert_eq!(find(&Image(headers(), true), &of_another), []);
    }

    #[test]
    fn mutated_headers_give_a_part_of_the_mapping() {
        let mut known = 0;
        for bytes in mutated(&headers(), 20_000) {
            for found in find(&Image(bytes, true), &mappings(0x6000)) {
                known += 1;
                assert!(found.start == Avma(START + 0x4000) && found.end <= Avma(START + 0x6000), "{found:?}");
            }
        }
        assert!(known > 500, "{known}");
    }
}
