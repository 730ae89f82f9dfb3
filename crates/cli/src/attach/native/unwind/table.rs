//! The unwind table of one object, `.eh_frame` with its index `.eh_frame_hdr`: bytes in, the rules for an address out.
//!
//! ```text
//! index: version 1 │ encodings 1b 03 3b │ → .eh_frame │ count │ (function, its entry) … ascending
//! ```
//! Addresses are those of the file. The tables belong to the target's user: every length is checked, and an index is
//! refused unless it has the encoding that linkers write.

use gimli::{BaseAddresses, EhFrame, EndianSlice, FrameDescriptionEntry, UnwindContext, UnwindTableRow};
use gimli::{LittleEndian as Little, UnwindSection};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, ReadRef, elf};
use plimsoll_facts::snapshot::Vma;

pub type Bytes<'t> = EndianSlice<'t, Little>;

const LE: LittleEndian = LittleEndian;
const PAGE: u64 = 4096;
/// Version; a 32-bit distance for the pointer; a 32-bit count; 32-bit distances from the index.
const INDEX: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const INDEX_HEADER: u64 = 12;
/// A larger index or table isn't read.
const LARGEST: u64 = 64 << 20;
/// Longer rules of one function aren't interpreted.
const LONGEST_ENTRY: usize = 64 << 10;

type Segment = elf::ProgramHeader64<LittleEndian>;

/// The difference between an object's addresses in the process and in the file, from one of its mappings with code.
pub fn bias<'d, R: ReadRef<'d>>(data: R, part: &Vma) -> Option<u64> {
    let is_part = |s: &&Segment| s.p_offset(LE) & !(PAGE - 1) == part.offset && s.p_flags(LE).contains(elf::PF_X);
    let segment = loaded(segments(data)?).find(is_part)?;
    Some(part.range.start.0.wrapping_sub(segment.p_vaddr(LE) & !(PAGE - 1)))
}

fn segments<'d, R: ReadRef<'d>>(data: R) -> Option<&'d [Segment]> {
    elf::FileHeader64::<LittleEndian>::parse(data).ok()?.program_headers(LE, data).ok()
}

fn loaded(segments: &[Segment]) -> impl Iterator<Item = &Segment> {
    segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD)
}

pub struct Table {
    index: Vec<u8>,
    index_at: u64,
    frames: Vec<u8>,
    frames_at: u64,
}

/// The rules at one address.
pub struct Rules<'c> {
    pub row: &'c UnwindTableRow<usize>,
    /// Whether the function is a signal handler's return: its caller was interrupted, and has not called.
    pub is_signal: bool,
    /// Bytes that were interpreted to find the rules.
    pub cost: usize,
}

impl Table {
    /// Reads the table of an object, if it has one.
    pub fn read<'d, R: ReadRef<'d>>(data: R) -> Option<Table> {
        let segments = segments(data)?;
        let index = segments.iter().find(|segment| segment.p_type(LE) == elf::PT_GNU_EH_FRAME)?;
        let (index_at, size) = (index.p_vaddr(LE), index.p_filesz(LE));
        let read = |from: u64, size: u64| {
            let size = Some(size).filter(|size| *size <= LARGEST)?;
            data.read_bytes_at(from, size).ok().map(<[u8]>::to_vec)
        };
        let index = read(index.p_offset(LE), size)?;
        let distance = index.get(4..8).filter(|_| index.starts_with(&INDEX))?;
        let distance = i32::from_le_bytes(distance.try_into().ok()?);
        let frames_at = index_at.wrapping_add(4).wrapping_add_signed(distance.into());
        // The index has no length of the table: it ends with its segment at the latest.
        let frames = loaded(segments).find_map(|segment| {
            let offset = frames_at.checked_sub(segment.p_vaddr(LE)).filter(|o| *o < segment.p_filesz(LE))?;
            read(segment.p_offset(LE).checked_add(offset)?, segment.p_filesz(LE) - offset)
        })?;
        Some(Table { index, index_at, frames, frames_at })
    }

    /// The rules for an address of the file; `None`: no function in the table has it, or the table is broken.
    pub fn rules<'c>(&self, address: u64, context: &'c mut UnwindContext<usize>) -> Option<Rules<'c>> {
        let section = self.section();
        let fde = self.entry(address)?;
        let cost = fde.entry_len().checked_add(fde.cie().entry_len())?;
        let row = (cost <= LONGEST_ENTRY).then(|| {
            let bases = self.bases();
            fde.unwind_info_for_address(&section, &bases, context, address).ok()
        })??;
        Some(Rules { row, is_signal: fde.is_signal_trampoline(), cost })
    }

    pub fn bytes(&self) -> usize {
        self.index.len() + self.frames.len()
    }

    pub fn section(&self) -> EhFrame<Bytes<'_>> {
        EhFrame::new(&self.frames, Little)
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame_hdr(self.index_at).set_eh_frame(self.frames_at)
    }

    fn entry(&self, address: u64) -> Option<FrameDescriptionEntry<Bytes<'_>>> {
        let count = u32::from_le_bytes(self.index.get(8..12)?.try_into().ok()?);
        let (rows, _) = self.index.get(INDEX_HEADER as usize..)?.as_chunks::<8>();
        let rows = rows.get(..count as usize)?;
        let distance = |half: &[u8]| half.try_into().map_or(0, i32::from_le_bytes);
        let at = |half: &[u8]| self.index_at.wrapping_add_signed(distance(half).into());
        let next = rows.partition_point(|row| at(&row[..4]) <= address);
        let entry = at(&rows.get(next.checked_sub(1)?)?[4..]);
        let offset = usize::try_from(entry.checked_sub(self.frames_at)?).ok().filter(|o| *o < self.frames.len())?;
        let (section, bases) = (self.section(), self.bases());
        let fde = section.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
        fde.contains(address).then_some(fde)
    }
}
