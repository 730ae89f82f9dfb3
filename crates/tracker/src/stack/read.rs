//! Checked reads over addresses. The only place under `stack/` that dereferences one.

/// Bytes that stand, or stood, at `base`: a module's unwind tables, a file's section, a copied stack.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    pub base: u64,
    pub bytes: &'a [u8],
}

impl Image<'static> {
    /// A range of this process's own address space: the segment that holds a module's unwind tables.
    ///
    /// # Safety
    /// `start..end` must be mapped readable and unchanging for as long as the value and its copies are used.
    pub const unsafe fn mapped(start: u64, end: u64) -> Self {
        // SAFETY: as the caller vouches.
        let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, end.saturating_sub(start) as usize) };
        Self { base: start, bytes }
    }
}

impl<'a> Image<'a> {
    /// What there is from `at` on.
    #[inline(always)]
    pub(super) fn tail(&self, at: u64) -> Option<&'a [u8]> {
        self.bytes.get(usize::try_from(at.checked_sub(self.base)?).ok()?..)
    }
}

/// Words by address; `None` where there is none to be read.
pub trait Memory {
    fn word(&self, at: u64) -> Option<u64>;
}

impl Memory for Image<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        self.tail(at)?.first_chunk().copied().map(u64::from_le_bytes)
    }
}

/// A thread's own stack, while it walks it.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    start: u64,
    end: u64,
}

impl Stack {
    /// # Safety
    /// `start..end` must stay mapped readable for as long as the value and its copies are used. It may be written to.
    pub const unsafe fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }
}

impl Memory for Stack {
    #[inline(always)]
    fn word(&self, at: u64) -> Option<u64> {
        if at < self.start || at >= self.end || self.end - at < 8 || !at.is_multiple_of(8) {
            return None;
        }
        // SAFETY: an aligned word within start..end, which `new`'s caller vouched for; volatile because other threads
        // may write to objects on this stack.
        Some(unsafe { (at as *const u64).read_volatile() })
    }
}
