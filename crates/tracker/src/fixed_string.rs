//! A text of limited length, built from pieces without an allocation, and NUL-terminated: a path for a system call, or
//! a line of the summary.

use core::ffi::CStr;

/// At most N − 1 bytes.
pub struct FixedString<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> FixedString<N> {
    /// Empty.
    pub const fn new() -> Self {
        FixedString { bytes: [0; N], len: 0 }
    }

    /// Appends a piece, or as much of it as fits.
    pub fn push(&mut self, piece: &[u8]) -> &mut Self {
        let n = piece.len().min(N - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&piece[..n]);
        self.len += n;
        self
    }

    /// Appends a decimal number.
    pub fn push_number(&mut self, mut n: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut i = digits.len();
        loop {
            i -= 1;
            digits[i] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.push(&digits[i..])
    }

    /// Empties it.
    pub fn clear(&mut self) -> &mut Self {
        self.bytes = [0; N];
        self.len = 0;
        self
    }

    /// Its text, without the NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text as a C string.
    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl<const N: usize> Default for FixedString<N> {
    fn default() -> Self {
        Self::new()
    }
}
