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
use super::read::Memory;

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
pub fn rule<M: Memory>(memory: &M, eh_frame_hdr: u64, pc: u64) -> Rule {
    match locate(memory, eh_frame_hdr, pc) {
        None => Rule::UNKNOWN,
        Some(None) => Rule::FRAME_POINTER,
        Some(Some(fde)) if fde.cie.signal => Rule::SIGNAL,
        Some(Some(fde)) => program::run(&fde, pc).unwrap_or(Rule::UNKNOWN),
    }
}

pub(super) struct Cie<'m, M> {
    pub code_factor: u64,
    pub data_factor: i64,
    /// Encoding of the code addresses in its FDEs.
    pub pointer: u8,
    pub program: Cursor<'m, M>,
    augmented: bool,
    signal: bool,
}

pub(super) struct Fde<'m, M> {
    pub cie: Cie<'m, M>,
    pub first: u64,
    pub program: Cursor<'m, M>,
    length: u64,
}

impl<M> Fde<'_, M> {
    fn covers(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.first) < self.length
    }
}

/// `None`: damaged. `Some(None)`: intact, but nothing covers `pc`.
fn locate<'m, M: Memory>(memory: &'m M, hdr: u64, pc: u64) -> Option<Option<Fde<'m, M>>> {
    let [version, of_frame, of_count, of_table] = memory.bytes(hdr)?;
    if version != 1 {
        return None;
    }
    let mut cursor = Cursor { memory, at: hdr.checked_add(4)?, end: u64::MAX };
    let eh_frame = cursor.pointer(of_frame, hdr)?;
    if of_count == encoding::OMIT || of_table != encoding::DATA_RELATIVE | encoding::SDATA4 {
        return scan(memory, eh_frame, pc);
    }
    let count = cursor.pointer(of_count, hdr)?;
    let table = cursor.at;

    let target = pc.wrapping_sub(hdr) as i64;
    let (mut low, mut left) = (0, count);
    let first = |row: u64| Some(i64::from(memory.u32(row.checked_mul(8)?.checked_add(table)?)? as i32));
    if count == 0 || first(0)? > target {
        return Some(None);
    }
    while left > 1 {
        let half = left / 2;
        if first(low + half)? <= target {
            low += half;
        }
        left -= half;
    }
    let offset = memory.u32(table.checked_add(low * 8 + 4)?)? as i32;
    let fde = fde(memory, hdr.checked_add_signed(i64::from(offset))?)?;
    Some(fde.covers(pc).then_some(fde))
}

fn scan<'m, M: Memory>(memory: &'m M, eh_frame: u64, pc: u64) -> Option<Option<Fde<'m, M>>> {
    let mut at = eh_frame;
    for _ in 0..SCAN_LIMIT {
        let length = memory.u32(at)?;
        if length == 0 {
            return Some(None);
        }
        if memory.u32(at.checked_add(4)?)? != 0 {
            let fde = fde(memory, at)?;
            if fde.covers(pc) {
                return Some(Some(fde));
            }
        }
        at = at.checked_add(4)?.checked_add(u64::from(length))?;
    }
    None
}

/// The body of the record at `at`, behind its length, with its bounds. No compiler writes the 64-bit form
/// (length 0xffff_ffff), and libgcc doesn't read it.
#[inline(always)]
fn record<M: Memory>(memory: &M, at: u64) -> Option<Cursor<'_, M>> {
    let length = memory.u32(at)?;
    let body = at.checked_add(4)?;
    (length != 0 && length != u32::MAX).then_some(())?;
    Some(Cursor { memory, at: body, end: body.checked_add(u64::from(length))? })
}

fn fde<M: Memory>(memory: &M, at: u64) -> Option<Fde<'_, M>> {
    let mut cursor = record(memory, at)?;
    let id_at = cursor.at;
    let id = cursor.u32()?;
    (id != 0).then_some(())?;
    let cie = cie(memory, id_at.checked_sub(u64::from(id))?)?;
    let first = cursor.pointer(cie.pointer, 0)?;
    let length = cursor.pointer(cie.pointer & 0x0f, 0)?;
    if cie.augmented {
        let n = cursor.uleb()?;
        cursor.skip(n)?;
    }
    Some(Fde { cie, first, length, program: cursor })
}

fn cie<M: Memory>(memory: &M, at: u64) -> Option<Cie<'_, M>> {
    let mut cursor = record(memory, at)?;
    (cursor.u32()? == 0).then_some(())?;
    let version = cursor.u8()?;
    matches!(version, 1 | 3 | 4).then_some(())?;
    let mut letters = cursor;
    let mut n = 0;
    while cursor.u8()? != 0 {
        n += 1;
    }
    if version == 4 {
        cursor.skip(2)?; // address and segment selector sizes
    }
    let code_factor = cursor.uleb()?;
    let data_factor = cursor.sleb()?;
    let column = if version == 1 { u64::from(cursor.u8()?) } else { cursor.uleb()? };
    (column == RA).then_some(())?;

    let mut cie =
        Cie { code_factor, data_factor, pointer: encoding::ABSOLUTE, program: cursor, augmented: false, signal: false };
    if n == 0 {
        return Some(cie);
    }
    // Without 'z' the length of the augmentation is unknown, and with it what follows.
    (letters.u8()? == b'z').then_some(())?;
    cie.augmented = true;
    let size = cursor.uleb()?;
    let mut data = cursor;
    cursor.skip(size)?;
    cie.program = cursor;
    for _ in 1..n {
        match letters.u8()? {
            b'R' => cie.pointer = data.u8()?,
            b'P' => {
                let personality = data.u8()?;
                data.pass(personality)?;
            }
            b'L' => data.skip(1)?,
            b'S' => cie.signal = true,
            b'B' | b'G' => {} // AArch64: return addresses are signed with the B key; tagged memory
            _ => return None,
        }
    }
    Some(cie)
}

/// A bounded, advancing read position.
pub(super) struct Cursor<'m, M> {
    memory: &'m M,
    at: u64,
    end: u64,
}

impl<M> Clone for Cursor<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Cursor<'_, M> {}

impl<'m, M: Memory> Cursor<'m, M> {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.at > self.end || self.end - self.at < N as u64 {
            return None;
        }
        let bytes = self.memory.bytes(self.at)?;
        self.at += N as u64;
        Some(bytes)
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
    pub fn skip(&mut self, n: u64) -> Option<()> {
        let at = self.at.checked_add(n)?;
        (at <= self.end).then(|| self.at = at)
    }

    /// The next `n` bytes as a cursor of their own.
    pub fn block(&mut self, n: u64) -> Option<Cursor<'m, M>> {
        let at = self.at;
        self.skip(n)?;
        Some(Cursor { memory: self.memory, at, end: self.at })
    }

    #[inline(always)]
    pub fn uleb(&mut self) -> Option<u64> {
        let byte = self.u8()?;
        if byte < 0x80 {
            return Some(u64::from(byte));
        }
        self.leb_tail(byte).map(|(value, _, _)| value)
    }

    #[inline(always)]
    pub fn sleb(&mut self) -> Option<i64> {
        let byte = self.u8()?;
        let (value, shift, last) = if byte < 0x80 { (u64::from(byte), 7, byte) } else { self.leb_tail(byte)? };
        let sign = if last & 0x40 != 0 && shift < 64 { !0 << shift } else { 0 };
        Some((value | sign) as i64)
    }

    /// At most ten bytes: more can't add to 64 bits.
    fn leb_tail(&mut self, first: u8) -> Option<(u64, u32, u8)> {
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        while shift < 70 {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte < 0x80 {
                return Some((value, shift, byte));
            }
        }
        None
    }

    /// A pointer as `DW_EH_PE_…` encodes it; `data` is what data-relative ones count from, 0 where there is no such
    /// base. Indirect ones name a slot, and no code address is written so.
    #[inline(always)]
    pub fn pointer(&mut self, encoding: u8, data: u64) -> Option<u64> {
        let at = self.at;
        let value = match encoding & 0x0f {
            0x0b => i64::from(self.u32()? as i32) as u64,
            0x03 => u64::from(self.u32()?),
            _ => self.rare_pointer(encoding)?,
        };
        match encoding & 0xf0 {
            encoding::ABSOLUTE => Some(value),
            encoding::PC_RELATIVE => Some(at.wrapping_add(value)),
            encoding::DATA_RELATIVE if data != 0 => Some(data.wrapping_add(value)),
            _ => None,
        }
    }

    fn rare_pointer(&mut self, encoding: u8) -> Option<u64> {
        Some(match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.u64()?,
            0x01 => self.uleb()?,
            0x09 => self.sleb()? as u64,
            0x02 => u64::from(self.u16()?),
            0x0a => i64::from(self.u16()? as i16) as u64,
            0x03 => u64::from(self.u32()?),
            0x0b => i64::from(self.u32()? as i32) as u64,
            _ => return None,
        })
    }

    /// Steps over a pointer whose value isn't needed.
    fn pass(&mut self, encoding: u8) -> Option<()> {
        if encoding == encoding::OMIT {
            return Some(());
        }
        if encoding & !encoding::INDIRECT == encoding::ALIGNED {
            self.skip(self.at.wrapping_neg() & 7)?;
        }
        self.rare_pointer(encoding).map(|_| ())
    }
}
