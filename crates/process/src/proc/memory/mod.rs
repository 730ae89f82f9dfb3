//! The target's memory as bytes at addresses. The walks of glibc, HotSpot and native images use it.
//!
//! A walk takes a `Memory` and does no I/O of its own, so a test can pass an image of bytes. `Live` (in `read`) is the
//! real memory.

use std::cell::{Cell, RefCell};

use plimsoll_facts::units::{AddressRange, Avma, Bytes};

mod read;

pub use read::Live;

/// The page size of this machine's pagemap. The known layouts of glibc and HotSpot are those with 4 KiB pages; another
/// size would change only this constant.
pub const PAGE: u64 = 4096;

pub trait Memory {
    /// Fills `into` from `at`, or returns false; then the contents of `into` are unspecified.
    fn read(&self, at: Avma, into: &mut [u8]) -> bool;

    /// One word of /proc/PID/pagemap per page from page number `first` on, or false.
    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool;

    fn word(&self, at: Avma) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    fn half(&self, at: Avma) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes).then(|| u32::from_le_bytes(bytes))
    }

    /// A C string of at most `longest` bytes. Invalid UTF-8 is replaced.
    fn string(&self, at: Avma, longest: usize) -> Option<String> {
        let mut text = Vec::new();
        let mut at = at.0;
        while text.len() < longest {
            // Never read across a page: the string may end directly before an unmapped page.
            let step = (PAGE - at % PAGE).min(64) as usize;
            let mut piece = [0; 64];
            if !self.read(Avma(at), &mut piece[..step]) {
                return None;
            }
            if let Some(end) = piece[..step].iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return Some(String::from_utf8_lossy(&text).into_owned());
            }
            text.extend_from_slice(&piece[..step]);
            at = at.checked_add(step as u64)?;
        }
        None
    }
}

/// A word of a byte image, little endian, as in the target.
pub fn word_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let word = bytes.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

pub fn half_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let half = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(half.try_into().ok()?))
}

/// The first address of the page after that of `at`. A wild pointer may lie in the last page, which has no successor.
fn next_page(at: u64) -> u64 {
    (at / PAGE + 1).saturating_mul(PAGE)
}

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// State of a page in pagemap. A page that is neither present nor swapped was never touched, or was released. It reads
/// as zeros, and reading it would make the kernel map a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    Present,
    Swapped,
    Absent,
}

/// A window of pagemap for lookups that mostly move forward.
pub struct PageStates<'m, M: Memory + ?Sized> {
    memory: &'m M,
    first: u64,
    words: Vec<u64>,
    /// False after the first refusal: every page then counts as present, and the caller must report a gap.
    pub readable: bool,
}

/// A lookup elsewhere reads few words; each following one reads twice as many as the last. The maximum is 128 KiB, for
/// 64 MiB of the target.
const FIRST_WINDOW: usize = 64;
const LAST_WINDOW: usize = 1 << 14;

impl<'m, M: Memory + ?Sized> PageStates<'m, M> {
    pub fn new(memory: &'m M) -> Self {
        PageStates { memory, first: 0, words: Vec::new(), readable: true }
    }

    pub fn of(&mut self, page: u64) -> PageState {
        if !self.readable {
            return PageState::Present;
        }
        let index = page.wrapping_sub(self.first) as usize;
        let word = match self.words.get(index) {
            Some(word) => *word,
            None => {
                let is_next = page == self.first.wrapping_add(self.words.len() as u64);
                let length =
                    if is_next { (self.words.len() * 2).clamp(FIRST_WINDOW, LAST_WINDOW) } else { FIRST_WINDOW };
                self.words.resize(length, 0);
                self.first = page;
                if !self.memory.pagemap(page, &mut self.words) {
                    self.readable = false;
                    self.words.clear();
                    return PageState::Present;
                }
                self.words[0]
            }
        };
        match word {
            word if word & PRESENT != 0 => PageState::Present,
            word if word & SWAPPED != 0 => PageState::Swapped,
            _ => PageState::Absent,
        }
    }

    /// The bytes of `range`, read without making the kernel map any page: untouched pages are zeros.
    pub fn read(&mut self, range: AddressRange) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(range.length().0).ok()?];
        let mut at = range.start.0;
        while at < range.end.0 {
            let mut end = at;
            while end < range.end.0 && self.of(end / PAGE) != PageState::Absent {
                end = next_page(end).min(range.end.0);
            }
            if end == at {
                at = next_page(at).min(range.end.0);
                continue;
            }
            let (from, to) = ((at - range.start.0) as usize, (end - range.start.0) as usize);
            self.memory.read(Avma(at), &mut bytes[from..to]).then_some(())?;
            at = end;
        }
        Some(bytes)
    }

    /// Fills a slice, from any address.
    fn fill(&mut self, at: Avma, into: &mut [u8]) -> bool {
        let range = AddressRange::sized(at, Bytes(into.len() as u64));
        self.read(range).is_some_and(|bytes| {
            into.copy_from_slice(&bytes);
            true
        })
    }

    /// Bytes of `range` on present pages.
    pub fn resident(&mut self, range: AddressRange) -> Bytes {
        let mut resident = 0;
        let mut at = range.start.0;
        while at < range.end.0 {
            let is_present = self.of(at / PAGE) == PageState::Present;
            // After a refusal, all pages count as present: no look at each of terabytes.
            let next = if self.readable { next_page(at).min(range.end.0) } else { range.end.0 };
            if is_present {
                resident += next - at;
            }
            at = next;
        }
        Bytes(resident)
    }
}

/// The same memory, read so that the kernel maps no page of the target for it. Each read checks its page first. For
/// addresses that are only guesses.
pub struct Untouched<'m, M: Memory + ?Sized> {
    pages: RefCell<PageStates<'m, M>>,
}

impl<'m, M: Memory + ?Sized> Untouched<'m, M> {
    pub fn new(memory: &'m M) -> Self {
        Untouched { pages: RefCell::new(PageStates::new(memory)) }
    }
}

impl<M: Memory + ?Sized> Memory for Untouched<'_, M> {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        at.0.checked_add(into.len() as u64).is_some() && self.pages.borrow_mut().fill(at, into)
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        self.pages.borrow().memory.pagemap(first, into)
    }
}

/// [`Untouched`] for a limited number of reads: a search that follows guesses ends, whatever the memory claims.
pub struct Limited<'m, M: Memory + ?Sized> {
    memory: Untouched<'m, M>,
    left: Cell<u32>,
}

impl<'m, M: Memory + ?Sized> Limited<'m, M> {
    pub fn new(memory: &'m M, most: u32) -> Self {
        Limited { memory: Untouched::new(memory), left: Cell::new(most) }
    }
}

impl<M: Memory + ?Sized> Memory for Limited<'_, M> {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0 && self.memory.read(at, into)
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        self.memory.pagemap(first, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address space without any mapping.
    struct Nothing;

    impl Memory for Nothing {
        fn read(&self, _: Avma, _: &mut [u8]) -> bool {
            false
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(0);
            true
        }
    }

    /// Memory whose page map is refused from the third call on, as after a deadline; before, every page is there.
    struct Refused(Cell<u32>);

    impl Memory for Refused {
        fn read(&self, _: Avma, _: &mut [u8]) -> bool {
            false
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            self.0.set(self.0.get() + 1);
            into.fill(PRESENT);
            self.0.get() < 3
        }
    }

    /// Page by page, this would take minutes.
    #[test]
    fn after_a_refusal_a_range_of_any_length_is_resident_at_once() {
        let memory = Refused(Cell::new(0));
        let mut pages = PageStates::new(&memory);
        let half = |part: u64| AddressRange::sized(Avma(5 + (part << 46)), Bytes(1 << 46));
        assert_eq!(pages.resident(half(0)), Bytes(1 << 46));
        assert!(!pages.readable && memory.0.get() == 3);
        assert_eq!(pages.resident(half(1)), Bytes(1 << 46));
        assert_eq!(memory.0.get(), 3);
    }

    #[test]
    fn a_wild_pointer_into_the_last_page_reads_as_any_other() {
        let mut bytes = [1; 32];
        assert!(Untouched::new(&Nothing).read(Avma(u64::MAX - 40), &mut bytes));
        assert_eq!(bytes, [0; 32]);
        let range = AddressRange::new(Avma(u64::MAX - 5000), Avma(u64::MAX));
        assert_eq!(PageStates::new(&Nothing).resident(range), Bytes(0));
    }
}
