//! From a pc to its unwind rule, through a module's `.eh_frame_hdr` and `.eh_frame` as they lie in memory
//! (Linux Standard Base, Core, 10.6 "Exception Frames"; DWARF 5, 6.4).
//!
//! ```text
//!  .eh_frame_hdr   version=1 │ enc(eh_frame) │ enc(count) │ enc(table) │ eh_frame │ count │ table…
//!                  table: count × { i32 first pc, i32 its FDE }, both relative to the header, sorted by pc
//!
//!  .eh_frame       record… ; record = u32 length │ u32 id │ body
//!   CIE  (id = 0)  version │ "zPLR…\0" │ uleb code factor │ sleb data factor │ uleb ra column │ uleb n │ n bytes │ program
//!   FDE  (id > 0)  CIE = address of id - id;  enc(first pc) │ enc(length) │ uleb n │ n bytes │ program
//! ```

use super::Rule;
use super::arch::x86_64::RA;
use super::program;
use super::read::Image;

/// The linear search of a section without a table gives up after this many records.
const SCAN_LIMIT: u32 = 1 << 20;

mod encoding {
    pub const OMIT: u8 = 0xff;
    pub const ABSOLUTE: u8 = 0x00;
    pub const PC_RELATIVE: u8 = 0x10;
    pub const DATA_RELATIVE: u8 = 0x30;
    pub const ALIGNED: u8 = 0x50;
    pub const INDIRECT: u8 = 0x80;
    pub const SDATA4: u8 = 0x0b;
}

/// The rule for `pc`. No record covers it: `FRAME_POINTER`. Damaged, or beyond a rule's means: `UNKNOWN`.
pub fn rule(tables: Image<'_>, eh_frame_hdr: u64, pc: u64) -> Rule {
    match locate(tables, eh_frame_hdr, pc) {
        None => Rule::UNKNOWN,
        Some(None) => Rule::FRAME_POINTER,
        Some(Some(fde)) if fde.cie.signal => Rule::SIGNAL,
        Some(Some(fde)) => program::run(&fde, pc).unwrap_or(Rule::UNKNOWN),
    }
}

pub(super) struct Cie<'a> {
    pub code_factor: u64,
    pub data_factor: i64,
    /// Encoding of the code addresses in its FDEs.
    pub pointer: u8,
    pub program: Cursor<'a>,
    augmented: bool,
    signal: bool,
}

pub(super) struct Fde<'a> {
    pub cie: Cie<'a>,
    pub first: u64,
    pub program: Cursor<'a>,
    length: u64,
}

impl Fde<'_> {
    fn covers(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.first) < self.length
    }
}

/// `None`: damaged. `Some(None)`: intact, but nothing covers `pc`.
fn locate(tables: Image<'_>, hdr: u64, pc: u64) -> Option<Option<Fde<'_>>> {
    let mut cursor = Cursor::at(tables, hdr)?;
    let [version, of_frame, of_count, of_table] = cursor.take()?;
    if version != 1 {
        return None;
    }
    let eh_frame = cursor.pointer(of_frame, hdr)?;
    if of_count == encoding::OMIT || of_table != encoding::DATA_RELATIVE | encoding::SDATA4 {
        return scan(tables, eh_frame, pc);
    }
    let count = usize::try_from(cursor.pointer(of_count, hdr)?).ok()?;
    let table = cursor.left.get(..count.checked_mul(8)?)?.as_chunks::<8>().0;

    let target = pc.wrapping_sub(hdr) as i64;
    let half = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| i64::from(i32::from_le_bytes(*bytes)));
    let after = table.partition_point(|row| half(row) <= target);
    let Some(row) = after.checked_sub(1).and_then(|last| table.get(last)) else {
        return Some(None);
    };
    let fde = fde(tables, hdr.wrapping_add_signed(half(&row[4..])))?;
    Some(fde.covers(pc).then_some(fde))
}

fn scan(tables: Image<'_>, eh_frame: u64, pc: u64) -> Option<Option<Fde<'_>>> {
    let mut at = eh_frame;
    for _ in 0..SCAN_LIMIT {
        let mut cursor = Cursor::at(tables, at)?;
        let length = cursor.u32()?;
        if length == 0 {
            return Some(None);
        }
        if cursor.u32()? != 0 {
            let fde = fde(tables, at)?;
            if fde.covers(pc) {
                return Some(Some(fde));
            }
        }
        at = at.checked_add(4)?.checked_add(u64::from(length))?;
    }
    None
}

/// The body of the record at `at`, behind its length. No compiler writes the 64-bit form (length 0xffff_ffff), and
/// libgcc doesn't read it.
#[inline(always)]
fn record(tables: Image<'_>, at: u64) -> Option<Cursor<'_>> {
    let mut cursor = Cursor::at(tables, at)?;
    let length = cursor.u32()?;
    cursor.block(u64::from(length))
}

#[inline(always)]
fn fde(tables: Image<'_>, at: u64) -> Option<Fde<'_>> {
    let mut cursor = record(tables, at)?;
    let id_at = cursor.address();
    let id = cursor.u32()?;
    if id == 0 {
        return None;
    }
    let cie = cie(tables, id_at.checked_sub(u64::from(id))?)?;
    let first = cursor.pointer(cie.pointer, 0)?;
    let length = cursor.pointer(cie.pointer & 0x0f, 0)?;
    if cie.augmented {
        let n = cursor.uleb()?;
        cursor.block(n)?;
    }
    Some(Fde { cie, first, length, program: cursor })
}

#[inline(always)]
fn cie(tables: Image<'_>, at: u64) -> Option<Cie<'_>> {
    let mut cursor = record(tables, at)?;
    if cursor.u32()? != 0 {
        return None;
    }
    let version = cursor.u8()?;
    if !matches!(version, 1 | 3 | 4) {
        return None;
    }
    let mut letters = cursor;
    while cursor.u8()? != 0 {}
    if version == 4 {
        cursor.block(2)?; // address and segment selector sizes
    }
    let code_factor = cursor.uleb()?;
    let data_factor = cursor.sleb()?;
    let column = if version == 1 { u64::from(cursor.u8()?) } else { cursor.uleb()? };
    if column != RA {
        return None;
    }

    let mut cie =
        Cie { code_factor, data_factor, pointer: encoding::ABSOLUTE, program: cursor, augmented: false, signal: false };
    match letters.u8()? {
        0 => return Some(cie),
        b'z' => {}
        // Without 'z' the length of the augmentation is unknown, and with it what follows.
        _ => return None,
    }
    cie.augmented = true;
    let size = cursor.uleb()?;
    let mut data = cursor.block(size)?;
    cie.program = cursor;
    loop {
        match letters.u8()? {
            0 => return Some(cie),
            b'R' => cie.pointer = data.u8()?,
            b'P' => {
                let personality = data.u8()?;
                data.pass(personality)?;
            }
            b'L' => {
                data.u8()?;
            }
            b'S' => cie.signal = true,
            b'B' | b'G' => {} // AArch64: return addresses are signed with the B key; tagged memory
            _ => return None,
        }
    }
}

/// A bounded, advancing read position.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    left: &'a [u8],
    /// The address just behind `left`.
    end: u64,
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    fn at(tables: Image<'a>, at: u64) -> Option<Self> {
        let left = tables.tail(at)?;
        Some(Self { left, end: at.wrapping_add(left.len() as u64) })
    }

    #[inline(always)]
    fn address(&self) -> u64 {
        self.end.wrapping_sub(self.left.len() as u64)
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.left.len()
    }

    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*bytes)
    }

    /// The next `n` bytes as a cursor of their own.
    #[inline(always)]
    pub fn block(&mut self, n: u64) -> Option<Self> {
        let (block, left) = self.left.split_at_checked(usize::try_from(n).ok()?)?;
        self.left = left;
        Some(Self { left: block, end: self.address() })
    }

    #[inline(always)]
    pub fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }
    #[inline(always)]
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    #[inline(always)]
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    #[inline(always)]
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline(always)]
    pub fn uleb(&mut self) -> Option<u64> {
        let byte = self.u8()?;
        if byte < 0x80 {
            return Some(u64::from(byte));
        }
        let (value, ..) = self.leb(byte)?;
        Some(value)
    }

    #[inline(always)]
    pub fn sleb(&mut self) -> Option<i64> {
        let byte = self.u8()?;
        let (value, shift, last) = if byte < 0x80 { (u64::from(byte), 7, byte) } else { self.leb(byte)? };
        let sign = if last & 0x40 != 0 && shift < 64 { !0 << shift } else { 0 };
        Some((value | sign) as i64)
    }

    /// By value and back, so that a cursor whose address nobody takes stays in registers.
    #[inline(always)]
    fn leb(&mut self, first: u8) -> Option<(u64, u32, u8)> {
        let (value, shift, last, after) = self.leb_tail(first)?;
        *self = after;
        Some((value, shift, last))
    }

    /// At most ten bytes: more can't add to 64 bits.
    #[cold]
    fn leb_tail(mut self, first: u8) -> Option<(u64, u32, u8, Self)> {
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        while shift < 70 {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte < 0x80 {
                return Some((value, shift, byte, self));
            }
        }
        None
    }

    /// A pointer as `DW_EH_PE_…` encodes it; `data` is what data-relative ones count from, 0 where there is no such
    /// base. Indirect ones name a slot, and no code address is written so.
    #[inline(always)]
    pub fn pointer(&mut self, encoding: u8, data: u64) -> Option<u64> {
        let at = self.address();
        let value = match encoding & 0x0f {
            0x0b => i64::from(self.u32()? as i32) as u64,
            0x03 => u64::from(self.u32()?),
            _ => {
                let (value, after) = self.rare_pointer(encoding)?;
                *self = after;
                value
            }
        };
        match encoding & 0xf0 {
            encoding::ABSOLUTE => Some(value),
            encoding::PC_RELATIVE => Some(at.wrapping_add(value)),
            encoding::DATA_RELATIVE if data != 0 => Some(data.wrapping_add(value)),
            _ => None,
        }
    }

    #[cold]
    fn rare_pointer(mut self, encoding: u8) -> Option<(u64, Self)> {
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.u64()?,
            0x01 => self.uleb()?,
            0x09 => self.sleb()? as u64,
            0x02 => u64::from(self.u16()?),
            0x0a => i64::from(self.u16()? as i16) as u64,
            0x03 => u64::from(self.u32()?),
            0x0b => i64::from(self.u32()? as i32) as u64,
            _ => return None,
        };
        Some((value, self))
    }

    /// Steps over a pointer whose value isn't needed.
    fn pass(&mut self, encoding: u8) -> Option<()> {
        if encoding == encoding::OMIT {
            return Some(());
        }
        if encoding & !encoding::INDIRECT == encoding::ALIGNED {
            self.block(self.address().wrapping_neg() & 7)?;
        }
        let (_, after) = self.rare_pointer(encoding)?;
        *self = after;
        Some(())
    }
}
