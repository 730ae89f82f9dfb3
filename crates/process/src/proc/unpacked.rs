//! Finds programs that were unpacked into memory (UPX, custom loaders). Their mappings name no file, but the first
//! segment still begins with the ELF header, which gives the addresses of the others (elf(5), 64 bit):
//!
//! ```text
//!  0 \x7f E L F 2     16 e_type: 2 fixed, 3 anywhere     32 e_phoff     54 e_phentsize (56)     56 e_phnum
//! each: p_type 0   p_flags 4   p_offset 8   p_vaddr 16   p_filesz 32   p_memsz 40
//!
//! bias = address of the header − p_vaddr of the segment with p_offset 0
//! ```
//!
//! A copy of an ELF file that a program has merely read isn't mistaken for a program. The copy is in writable memory,
//! and no part of it is executable.

use crate::proc::memory::{Memory, PAGE, Untouched, half_at, word_at};
use plimsoll_facts::snapshot::{Backing, Unpacked, UnpackedSegment, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

const LOAD: u32 = 1;
const FRAME_HEADER: u32 = 0x6474_e550;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
/// The ELF header and the program headers: linkers place them together, and write about ten program headers.
const HEADERS: u64 = PAGE;
const MOST_SEGMENTS: u16 = 64;
/// Limit of headers whose segments are compared with all mappings. A hostile process may have one in each mapping.
const MOST_PROGRAMS: usize = 64;

/// The program, or None in the usual case that every mapping with code has a file.
pub fn find<M: Memory>(memory: &M, vmas: &[Vma]) -> Option<Unpacked> {
    let memory = Untouched::new(memory);
    let may_begin = |vma: &&Vma| {
        let unnamed = vma.backing == Backing::Anonymous && vma.name.is_empty();
        unnamed && vma.readable && !vma.writable && !vma.shared && vma.rss > Bytes(0)
    };
    let programs = vmas.iter().filter(may_begin).filter_map(|vma| {
        let mut headers = vec![0; HEADERS.min(vma.range.length().0) as usize];
        memory.read(vma.range.start, &mut headers[..4]).then_some(())?;
        headers.starts_with(b"\x7fELF").then_some(())?;
        memory.read(vma.range.start, &mut headers).then_some(())?;
        parse(&headers, vma.range.start)
    });
    programs.take(MOST_PROGRAMS).find(|program| lies_without_a_file(program, vmas))
}

fn short_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let short = bytes.get(offset..offset.checked_add(2)?)?;
    Some(u16::from_le_bytes(short.try_into().ok()?))
}

/// The segments according to the headers at `start`.
pub(super) fn parse(headers: &[u8], start: Avma) -> Option<Unpacked> {
    headers.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let (kind, size, count) = (short_at(headers, 16)?, short_at(headers, 54)?, short_at(headers, 56)?);
    (matches!(kind, 2 | 3) && size == 56 && (1..=MOST_SEGMENTS).contains(&count)).then_some(())?;
    let first = usize::try_from(word_at(headers, 32)?).ok()?;
    let headers = headers.get(first..first.checked_add(usize::from(count) * 56)?)?;
    let mut bias = None;
    let mut program = Unpacked::default();
    for header in headers.chunks_exact(56) {
        let (kind, flags) = (half_at(header, 0)?, half_at(header, 4)?);
        let (offset, address, length) = (word_at(header, 8)?, word_at(header, 16)?, word_at(header, 40)?);
        match kind {
            LOAD => {
                if offset == 0 {
                    bias.get_or_insert(start.0.wrapping_sub(address));
                }
                let from = bias?.wrapping_add(address);
                let end = from.checked_add(length)?.checked_next_multiple_of(PAGE)?;
                let range = AddressRange::new(Avma(from - from % PAGE), Avma(end));
                let (writable, executable) = (flags & WRITABLE != 0, flags & EXECUTABLE != 0);
                program.segments.push(UnpackedSegment { range, writable, executable });
            }
            FRAME_HEADER => program.frame_header = Some(Avma(bias?.wrapping_add(address))),
            _ => {}
        }
    }
    let in_order = program.segments.is_sorted_by_key(|segment| segment.range.start);
    (in_order && program.segments.len() > 1).then_some(program)
}

/// Whether its code is executable at the addresses in its header, without a mapped file there.
fn lies_without_a_file(program: &Unpacked, vmas: &[Vma]) -> bool {
    let overlapping = |segment: UnpackedSegment| vmas.iter().filter(move |vma| vma.range.overlaps(segment.range));
    let code = program.segments.iter().filter(|segment| segment.executable);
    let runs = code.flat_map(|segment| overlapping(*segment)).any(|vma| vma.executable);
    let file = |vma: &Vma| matches!(vma.backing, Backing::File | Backing::Device | Backing::Kernel);
    runs && !program.segments.iter().flat_map(|segment| overlapping(*segment)).any(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    const START: Avma = Avma(0x7f00_0060_0000);

    /// An ELF header and three segments: read-only, code, data; the frame header is in the first.
    fn headers() -> Vec<u8> {
        let mut bytes = vec![0u8; 0x40];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16] = 3;
        bytes[32] = 0x40;
        bytes[54] = 56;
        bytes[56] = 4;
        for (kind, flags, offset, address, length) in [
            (LOAD, 4, 0, 0x1000, 0x1800),
            (LOAD, 5, 0x2000, 0x3000, 0x2000),
            (LOAD, 6, 0x4f00, 0x6f00, 0x300),
            (FRAME_HEADER, 4, 0x1000, 0x2000, 0x500u64),
        ] {
            bytes.extend([kind, flags].into_iter().flat_map(u32::to_le_bytes));
            bytes.extend([offset, address, address, length, length, 0x1000].into_iter().flat_map(u64::to_le_bytes));
        }
        bytes
    }

    struct Image(Vec<u8>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            into.fill(0);
            let Some(from) = at.0.checked_sub(START.0).map(|from| from as usize) else { return true };
            for (into, byte) in into.iter_mut().zip(self.0.iter().skip(from)) {
                *into = *byte;
            }
            true
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    fn vma(start: u64, end: u64, flags: &str) -> Vma {
        let has = |flag| flags.contains(flag);
        Vma {
            range: AddressRange::new(Avma(START.0 + start), Avma(START.0 + end)),
            readable: has('r'),
            writable: has('w'),
            executable: has('x'),
            rss: Bytes(PAGE),
            ..Vma::default()
        }
    }

    fn mappings() -> Vec<Vma> {
        vec![vma(0, 0x2000, "r"), vma(0x2000, 0x4000, "rx"), vma(0x5000, 0x7000, "rw")]
    }

    #[test]
    fn segments_and_frame_header_are_found_by_the_elf_header() {
        let found = find(&Image(headers()), &mappings()).expect("a program");
        let range = |start, end| AddressRange::new(Avma(START.0 + start), Avma(START.0 + end));
        let ranges: Vec<_> = found.segments.iter().map(|segment| segment.range).collect();
        assert_eq!(ranges, [range(0, 0x2000), range(0x2000, 0x4000), range(0x5000, 0x7000)]);
        assert_eq!(found.frame_header, Some(Avma(START.0 + 0x1000)));
        assert!(found.segments[1].executable && found.segments[2].writable);
    }

    #[test]
    fn an_elf_file_in_memory_is_not_a_program() {
        let mut writable = mappings();
        writable[0].writable = true;
        assert_eq!(find(&Image(headers()), &writable), None);
        let mut data = mappings();
        data[1].executable = false;
        assert_eq!(find(&Image(headers()), &data), None);
        let mut mapped = mappings();
        mapped[1].backing = Backing::File;
        assert_eq!(find(&Image(headers()), &mapped), None);
    }

    /// The same headers at each multiple of 1 MiB.
    struct Everywhere(Image);

    impl Memory for Everywhere {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.0.read(Avma(START.0 + at.0 % (1 << 20)), into)
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            self.0.pagemap(first, into)
        }
    }

    #[test]
    fn a_bounded_number_of_headers_is_compared_with_all_mappings() {
        let found = |others: usize| {
            // Without code, none of these is a program.
            let other = |number: usize| vma((number as u64) << 20, (number as u64) << 20 | 0x2000, "r");
            let program = mappings().into_iter().map(|vma| {
                let at = |end: Avma| Avma(end.0 + ((others as u64) << 20));
                Vma { range: AddressRange::new(at(vma.range.start), at(vma.range.end)), ..vma }
            });
            let vmas: Vec<Vma> = (0..others).map(other).chain(program).collect();
            find(&Everywhere(Image(headers())), &vmas).is_some()
        };
        assert!(found(0) && found(MOST_PROGRAMS - 1));
        assert!(!found(MOST_PROGRAMS));
    }

    #[test]
    fn mutated_headers_never_panic() {
        let (mut some, mut none) = (0, 0);
        for bytes in mutated(&headers(), 20_000) {
            match find(&Image(bytes), &mappings()) {
                Some(_) => some += 1,
                None => none += 1,
            }
        }
        assert!(some > 500 && none > 500, "{some} {none}");
    }
}
