//! The records of `.eh_frame`, and the position at which they are read. [`super::cfi`] finds a record;
//! [`super::instructions`] runs it.

use super::read::Image;

pub(super) mod encoding {
    pub(crate) const OMIT: u8 = 0xff;
    pub(crate) const ABSOLUTE: u8 = 0x00;
    pub(crate) const PC_RELATIVE: u8 = 0x10;
    pub(crate) const DATA_RELATIVE: u8 = 0x30;
    pub(crate) const ALIGNED: u8 = 0x50;
    pub(crate) const INDIRECT: u8 = 0x80;
    pub(crate) const SDATA4: u8 = 0x0b;
}

/// A common information entry: the part that several frame description entries share.
pub(super) struct Cie<'a> {
    pub code_factor: u64,
    pub data_factor: i64,
    /// Encoding of the code addresses in its FDEs.
    pub pointer: u8,
    pub program: Cursor<'a>,
    /// Its FDEs have augmentation data.
    pub augmented: bool,
    /// Its frames were interrupted by a signal.
    pub signal: bool,
}

/// A frame description entry: the rules of one piece of code.
pub(super) struct Fde<'a> {
    pub cie: Cie<'a>,
    /// First code address.
    pub first: u64,
    pub program: Cursor<'a>,
    /// Bytes of code.
    pub length: u64,
}

impl Fde<'_> {
    pub(super) fn covers(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.first) < self.length
    }
}

/// A bounded, advancing read position.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub left: &'a [u8],
    /// The address just after `left`.
    end: u64,
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    pub(super) fn at(tables: Image<'a>, at: u64) -> Option<Self> {
        let left = tables.tail(at)?;
        Some(Self { left, end: at.wrapping_add(left.len() as u64) })
    }

    #[inline(always)]
    pub(super) fn address(&self) -> u64 {
        self.end.wrapping_sub(self.left.len() as u64)
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.left.len()
    }

    #[inline(always)]
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*bytes)
    }

    /// The next `n` bytes as a cursor of their own.
    #[inline(always)]
    pub(super) fn block(&mut self, n: u64) -> Option<Self> {
        let (block, left) = self.left.split_at_checked(usize::try_from(n).ok()?)?;
        self.left = left;
        Some(Self { left: block, end: self.address() })
    }

    #[inline(always)]
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline(always)]
    pub(super) fn uleb(&mut self) -> Option<u64> {
        let byte = self.u8()?;
        if byte < 0x80 {
            return Some(u64::from(byte));
        }
        let (value, ..) = self.leb(byte)?;
        Some(value)
    }

    #[inline(always)]
    pub(super) fn sleb(&mut self) -> Option<i64> {
        let byte = self.u8()?;
        let (value, shift, last) = if byte < 0x80 { (u64::from(byte), 7, byte) } else { self.leb(byte)? };
        let sign = if last & 0x40 != 0 && shift < 64 { !0 << shift } else { 0 };
        Some((value | sign) as i64)
    }

    /// Takes and returns the cursor by value, so that it stays in registers.
    #[inline(always)]
    pub(super) fn leb(&mut self, first: u8) -> Option<(u64, u32, u8)> {
        let (value, shift, last, after) = self.leb_tail(first)?;
        *self = after;
        Some((value, shift, last))
    }

    /// At most ten bytes: more can't add to 64 bits.
    #[cold]
    pub(super) fn leb_tail(mut self, first: u8) -> Option<(u64, u32, u8, Self)> {
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

    /// A pointer as `DW_EH_PE_…` encodes it; `data` is the base of data-relative pointers, 0 where there is no such
    /// base. Indirect ones aren't read, since no code address is encoded that way.
    #[inline(always)]
    pub(super) fn pointer(&mut self, encoding: u8, data: u64) -> Option<u64> {
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
    pub(super) fn rare_pointer(mut self, encoding: u8) -> Option<(u64, Self)> {
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

    /// Skips a pointer whose value is not needed.
    pub(super) fn pass(&mut self, encoding: u8) -> Option<()> {
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
