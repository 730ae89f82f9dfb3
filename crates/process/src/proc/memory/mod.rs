//! The target's memory as bytes at addresses. The walks of glibc, HotSpot and native images use it.
//!
//! A walk takes a `Memory` and does no I/O of its own, so a test can pass an image of bytes. `Live` (in `read`) is the
//! real memory.

use std::cell::{Cell, RefCell};

use plimsoll_facts::units::{AddressRange, Avma, Bytes};

mod read;

pub use read::{Live, stays_swapped};

/// The unit of page states, and the page size of the known layouts. A machine's pages may consist of several (aarch64:
/// 16 or 64 KiB); `Live` translates.
pub const PAGE: u64 = 4096;

pub trait Memory {
    /// Fills `into` from `at`, or returns false; then the contents of `into` are unspecified.
    fn read(&self, at: Avma, into: &mut [u8]) -> bool;

    /// One word of /proc/PID/pagemap per [`PAGE`] from page number `first` on, or false.
    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool;

    /// Whether swapped pages are to be left where they are: a walk doesn't read them. A few may be read, for the
    /// beginnings of an allocator's records.
    fn spares_swap(&self) -> bool {
        false
    }

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
/// A guard page (MADV_GUARD_INSTALL, Linux 6.13; in pagemap since 6.15), as glibc has below stacks since 2.42. It also
/// has the bit of a swapped page, but no contents: reading it fails, also through /proc/PID/mem.
const GUARD: u64 = 1 << 58;

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
            word if word & (SWAPPED | GUARD) == SWAPPED => PageState::Swapped,
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

/// Memory for a limited number of reads: a search that follows guesses ends, whatever the memory claims.
pub struct Limited<'m, M: Memory + ?Sized> {
    memory: &'m M,
    left: Cell<u32>,
}

impl<'m, M: Memory + ?Sized> Limited<'m, M> {
    pub fn new(memory: &'m M, most: u32) -> Self {
        Limited { memory, left: Cell::new(most) }
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

/// Number of pages that [`Paged`] keeps: 1 MiB.
const KEPT: usize = 256;
/// No page has this number.
const NO_PAGE: u64 = u64::MAX;

/// The same memory, read by whole pages, some of which are kept. For a walk along pointers, whose targets often lie
/// close together: each word by itself would cost a system call. What the target writes meanwhile may go unseen until
/// [`Paged::forget`].
pub struct Paged<'m, M: Memory + ?Sized> {
    memory: &'m M,
    kept: RefCell<Kept>,
}

/// Page `n` has the index `n % KEPT`.
struct Kept {
    numbers: [u64; KEPT],
    bytes: Vec<u8>,
}

impl<'m, M: Memory + ?Sized> Paged<'m, M> {
    pub fn new(memory: &'m M) -> Self {
        Paged { memory, kept: RefCell::new(Kept { numbers: [NO_PAGE; KEPT], bytes: vec![0; KEPT * PAGE as usize] }) }
    }

    /// Makes the next reads see the memory as it is then.
    pub fn forget(&self) {
        self.kept.borrow_mut().numbers.fill(NO_PAGE);
    }
}

impl Kept {
    /// Copies bytes of one page, from `offset` in it on.
    fn copy(&mut self, memory: &(impl Memory + ?Sized), page: u64, offset: usize, into: &mut [u8]) -> bool {
        let place = (page % KEPT as u64) as usize;
        let bytes = &mut self.bytes[place * PAGE as usize..][..PAGE as usize];
        if self.numbers[place] != page {
            self.numbers[place] = NO_PAGE;
            if !memory.read(Avma(page * PAGE), bytes) {
                return false;
            }
            self.numbers[place] = page;
        }
        into.copy_from_slice(&bytes[offset..offset + into.len()]);
        true
    }
}

impl<M: Memory + ?Sized> Memory for Paged<'_, M> {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        // A long read gains nothing and would push out what is kept. An image of bytes may end within a page.
        let is_short = into.len() <= PAGE as usize && at.0.checked_add(2 * PAGE).is_some();
        let offset = (at.0 % PAGE) as usize;
        let copied = is_short && {
            let (head, tail) = into.split_at_mut(into.len().min(PAGE as usize - offset));
            let (page, mut kept) = (at.0 / PAGE, self.kept.borrow_mut());
            kept.copy(self.memory, page, offset, head) && (tail.is_empty() || kept.copy(self.memory, page + 1, 0, tail))
        };
        copied || self.memory.read(at, into)
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

    /// Pages 16 to 19, of which the third is a guard page that can't be read, and the last is swapped.
    struct Guarded;

    impl Memory for Guarded {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            into.fill(1);
            let guard = AddressRange::sized(Avma(18 * PAGE), Bytes(PAGE));
            !guard.overlaps(AddressRange::sized(at, Bytes(into.len() as u64)))
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            for (page, word) in (first..).zip(into) {
                *word = match page {
                    18 => SWAPPED | GUARD,
                    19 => SWAPPED,
                    _ => PRESENT,
                };
            }
            true
        }
    }

    #[test]
    fn guard_pages_are_no_swapped_pages() {
        let mut pages = PageStates::new(&Guarded);
        assert_eq!(
            [17, 18, 19].map(|page| pages.of(page)),
            [PageState::Present, PageState::Absent, PageState::Swapped]
        );
        let read = pages.read(AddressRange::new(Avma(16 * PAGE), Avma(20 * PAGE))).expect("all but the guard is read");
        assert_eq!(read.iter().filter(|byte| **byte == 0).count(), PAGE as usize);
    }

    #[test]
    fn a_wild_pointer_into_the_last_page_reads_as_any_other() {
        let mut bytes = [1; 32];
        assert!(Untouched::new(&Nothing).read(Avma(u64::MAX - 40), &mut bytes));
        assert_eq!(bytes, [0; 32]);
        let range = AddressRange::new(Avma(u64::MAX - 5000), Avma(u64::MAX));
        assert_eq!(PageStates::new(&Nothing).resident(range), Bytes(0));
    }

    /// Bytes from page 16 to the middle of page 18, which differ from word to word; counts the reads.
    struct Words(Cell<u32>, Cell<u8>);

    impl Memory for Words {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.0.set(self.0.get() + 1);
            let is_there = at.0 >= 16 * PAGE && at.0 + into.len() as u64 <= 18 * PAGE + PAGE / 2;
            for (at, byte) in (at.0..).zip(into) {
                *byte = (at.wrapping_mul(0x9e37_79b9) >> 24) as u8 ^ self.1.get();
            }
            is_there
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(PRESENT);
            true
        }
    }

    #[test]
    fn pages_that_are_kept_have_the_bytes_of_the_memory() {
        let (words, twin) = (Words(Cell::new(0), Cell::new(0)), Words(Cell::new(0), Cell::new(0)));
        let paged = Paged::new(&words);
        let mut compared = [0; 2];
        for at in (15 * PAGE..20 * PAGE).step_by(56).chain([u64::MAX - 5001, u64::MAX - 3 * PAGE]) {
            for length in [1, 8, 24, 4096, 5000] {
                let (mut got, mut want) = (vec![0; length], vec![0; length]);
                let is_there = twin.read(Avma(at), &mut want);
                assert_eq!(paged.read(Avma(at), &mut got), is_there, "{length} bytes at {at:#x}");
                assert!(!is_there || got == want, "{length} bytes at {at:#x}");
                compared[usize::from(is_there)] += 1;
            }
        }
        assert!(compared.iter().all(|count| *count > 100), "{compared:?}");
    }

    #[test]
    fn a_page_is_read_once_until_it_is_forgotten() {
        let words = Words(Cell::new(0), Cell::new(0));
        let paged = Paged::new(&words);
        let all = || (16 * PAGE..18 * PAGE - 8).step_by(8).map(|at| paged.word(Avma(at))).collect::<Vec<_>>();
        let before = all();
        assert_eq!(words.0.get(), 2);
        words.1.set(1);
        assert_eq!((all() == before, words.0.get()), (true, 2));
        paged.forget();
        assert_eq!((all() == before, words.0.get()), (false, 4));
    }
}
