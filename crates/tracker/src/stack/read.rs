//! Checked reads at addresses: the only place under `stack/` that dereferences an address which a walk has found.

/// A type that can be loaded at any alignment.
///
/// # Safety
/// Every bit pattern is a valid value.
pub unsafe trait Plain: Copy {}
macro_rules! plain {
    ($($t:ty)*) => {$(
        // SAFETY: an integer.
        unsafe impl Plain for $t {}
    )*};
}
plain! { u8 i8 u16 i16 u32 i32 u64 }

#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// The value at `at`. Volatile, because other threads of the program or its VM may be writing it. At any alignment: the
/// program may have misaligned its stack.
///
/// # Safety
/// Its bytes can be read.
#[inline(always)]
pub unsafe fn peek<T: Plain>(at: u64) -> T {
    // SAFETY: the caller's contract; the packed struct needs no alignment, and every pattern is valid.
    unsafe { (at as *const Unaligned<T>).read_volatile() }.0
}

/// The return address of the hooked call whose entry's stack pointer this is.
///
/// # Safety
/// The call's frame is still there.
#[inline(always)]
pub unsafe fn return_address(sp: usize) -> u64 {
    // SAFETY: the caller's contract; it lies at the stack pointer.
    unsafe { peek(sp as u64) }
}

/// Bytes that are, or were, at `base`: a module's unwind tables, a file's section, a copied stack.
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
        // SAFETY: the caller's contract.
        let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, end.saturating_sub(start) as usize) };
        Self { base: start, bytes }
    }
}

impl<'a> Image<'a> {
    /// All bytes from `at` on.
    #[inline(always)]
    pub(super) fn tail(&self, at: u64) -> Option<&'a [u8]> {
        self.bytes.get(usize::try_from(at.checked_sub(self.base)?).ok()?..)
    }
}

/// Words by address; `None` if there is none to read.
pub trait Memory {
    fn word(&self, at: u64) -> Option<u64>;
}

impl Memory for Image<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        self.tail(at)?.first_chunk().copied().map(u64::from_le_bytes)
    }
}

/// The stack of the thread that walks it.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// The first word, aligned, and how many follow.
    first: u64,
    words: u64,
}

impl Stack {
    /// # Safety
    /// `start..end` must stay mapped readable for as long as the value and its copies are used. It may be written to.
    pub const unsafe fn new(start: u64, end: u64) -> Self {
        // Rounded up; nothing lies beyond the end.
        let first = start.saturating_add(7) & !7;
        Self { first, words: end.saturating_sub(first) / 8 }
    }
}

impl Memory for Stack {
    #[inline(always)]
    fn word(&self, at: u64) -> Option<u64> {
        // The low bits, which an aligned address lacks, become the highest.
        if at.wrapping_sub(self.first).rotate_right(3) >= self.words {
            return None;
        }
        // SAFETY: a word within start..end, which `new`'s caller vouched for.
        Some(unsafe { peek(at) })
    }
}
