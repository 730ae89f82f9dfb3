//! Reads integers and lengths from bytes, never beyond their end.

/// Why a value could not be read from the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The bytes end too early. The caller may get more of them from the file and try again.
    Short,
    Malformed(&'static str),
}

pub(super) type Parsed<T> = Result<T, Broken>;

#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    pub compressed: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], compressed: bool) -> Cursor<'a> {
        Cursor { bytes, at: 0, compressed }
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Parsed<u8> {
        let byte = *self.bytes.get(self.at).ok_or(Broken::Short)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Parsed<&'a [u8]> {
        let end = self.at.checked_add(length).ok_or(Broken::Malformed("a length that overflows"))?;
        let taken = self.bytes.get(self.at..end).ok_or(Broken::Short)?;
        self.at = end;
        Ok(taken)
    }

    fn big_endian(&mut self, width: usize) -> Parsed<u64> {
        Ok(self.take(width)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Reads an integer. `width` is its size in bytes in the uncompressed form.
    #[inline]
    fn integer(&mut self, width: usize) -> Parsed<u64> {
        if self.compressed { self.leb128() } else { self.big_endian(width) }
    }

    #[inline]
    pub(super) fn leb128(&mut self) -> Parsed<u64> {
        let first = self.u8()?;
        if first < 0x80 { Ok(u64::from(first)) } else { self.leb128_rest(first) }
    }

    fn leb128_rest(&mut self, first: u8) -> Parsed<u64> {
        let mut value = u64::from(first & 0x7f);
        for shift in [7, 14, 21, 28, 35, 42, 49] {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        // The ninth byte has no continuation bit: 8 × 7 + 8 = 64.
        Ok(value | u64::from(self.u8()?) << 56)
    }

    #[inline]
    pub(super) fn skip_leb128(&mut self, count: usize) -> Parsed<()> {
        for _ in 0..count {
            let mut length = 1;
            while self.u8()? >= 0x80 {
                length += 1;
                if length == 9 {
                    self.u8()?;
                    break;
                }
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn i64(&mut self) -> Parsed<i64> {
        Ok(self.integer(8)? as i64)
    }

    /// Writers widen an int to 64 bits with or without its sign, so only the low 32 bits are the value.
    #[inline]
    pub(super) fn i32(&mut self) -> Parsed<i32> {
        Ok(self.integer(4)? as u32 as i32)
    }

    pub(super) fn i16(&mut self) -> Parsed<i16> {
        Ok(self.integer(2)? as u16 as i16)
    }

    pub(super) fn u16(&mut self) -> Parsed<u16> {
        Ok(self.integer(2)? as u16)
    }

    pub(super) fn f32(&mut self) -> Parsed<f32> {
        Ok(f32::from_bits(self.big_endian(4)? as u32))
    }

    pub(super) fn f64(&mut self) -> Parsed<f64> {
        Ok(f64::from_bits(self.big_endian(8)?))
    }

    /// Reads the number of elements that follow.
    #[inline]
    pub(super) fn count(&mut self) -> Parsed<usize> {
        usize::try_from(self.i32()?).map_err(|_| Broken::Malformed("a negative count"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leb128(mut value: u64) -> Vec<u8> {
        let mut bytes = vec![];
        while bytes.len() < 8 && value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    #[test]
    fn compressed_integers_are_decoded() {
        let mut lengths = [0u32; 10];
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
            let bytes = leb128(value);
            lengths[bytes.len()] += 1;
            assert_eq!(Cursor::new(&bytes, true).i64(), Ok(value as i64));
            let mut skipped = Cursor::new(&bytes, true);
            assert_eq!((skipped.skip_leb128(1), skipped.at), (Ok(()), bytes.len()), "{value:#x}");
            for short in 0..bytes.len() {
                assert_eq!(Cursor::new(&bytes[..short], true).i64(), Err(Broken::Short));
                assert_eq!(Cursor::new(&bytes[..short], true).skip_leb128(1), Err(Broken::Short));
            }
        }
        assert!(lengths[1..].iter().all(|count| *count > 0), "each length was met: {lengths:?}");
        assert_eq!(Cursor::new(&leb128(u64::MAX), true).i32(), Ok(-1));
        assert_eq!(Cursor::new(&leb128(0xffff_ffff), true).i32(), Ok(-1));
    }

    #[test]
    fn uncompressed_integers_are_decoded() {
        let bytes = [0xff, 0xfe, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        let mut cursor = Cursor::new(&bytes, false);
        assert_eq!((cursor.i16(), cursor.i32(), cursor.i64()), (Ok(-2), Ok(1), Ok(0x0203_0405_0607_0809)));
        assert_eq!(cursor.i16(), Err(Broken::Short));
    }
}
