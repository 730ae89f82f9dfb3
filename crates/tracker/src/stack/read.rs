//! Checked reads over addresses. The only place under `stack/` that dereferences one.

/// Memory by address; `None` where it may not be read.
pub trait Memory {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]>;

    #[inline(always)]
    fn u8(&self, at: u64) -> Option<u8> {
        self.bytes(at).map(u8::from_le_bytes)
    }
    #[inline(always)]
    fn u16(&self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }
    #[inline(always)]
    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }
    #[inline(always)]
    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }
}

/// Bytes that stand, or stood, at `base`: a file's section, a copied stack.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    pub base: u64,
    pub bytes: &'a [u8],
}

impl Memory for Image<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let from = usize::try_from(at.checked_sub(self.base)?).ok()?;
        self.bytes.get(from..)?.first_chunk().copied()
    }
}

/// A range of this process's own address space.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    start: u64,
    end: u64,
}

impl Mapped {
    /// # Safety
    /// Every byte of `start..end` must stay mapped readable for as long as the value and its copies are used.
    /// Its contents may change meanwhile.
    pub const unsafe fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }
}

impl Memory for Mapped {
    #[inline(always)]
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        if at < self.start || at >= self.end || self.end - at < N as u64 {
            return None;
        }
        // SAFETY: at..at + N lies within start..end, which `new`'s caller vouched for; a byte array has no alignment,
        // and volatile because the words belong to the program and may be written by others meanwhile.
        Some(unsafe { (at as *const [u8; N]).read_volatile() })
    }
}
