//! Reads /proc/PID/mem and /proc/PID/pagemap. Both are opened once: the descriptors keep referring to the same address
//! space, even if the process ends or execs and its PID is reused (proc(5)).

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{GUARD, Memory, PAGE, PRESENT, SWAPPED};
use crate::foreign::Deadline;
use crate::proc::status::parse_status;
use crate::proc::{Target, zero_pages};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

/// Up to this much swapped memory is read like any other. Reading it makes the kernel bring it back, which the target's
/// cgroup is charged for.
const READ_BACK: Bytes = Bytes::mib(16);
/// Limit of swapped pages that are read where more is swapped out: they hold the beginnings of the allocators' records.
const BEGINNINGS: u32 = 256;

/// Whether so much is swapped out that it isn't read.
pub fn stays_swapped(swap: Bytes) -> bool {
    swap > READ_BACK
}

pub struct Live {
    memory: File,
    pagemap: Option<File>,
    deadline: Deadline,
    /// Whether swapped pages are left where they are, but for [`BEGINNINGS`].
    spares_swap: bool,
    swapped_reads: Cell<u32>,
    states: RefCell<States>,
}

/// Entries of the page map from the page `first` on.
#[derive(Default)]
struct States {
    first: u64,
    words: Vec<u64>,
}

impl Live {
    /// Fails with EACCES or EPERM if ptrace access is not granted (ptrace(2), "access mode checking").
    pub fn open(target: &Target) -> io::Result<Live> {
        let swap = target.read("status").map(|status| parse_status(&status).swap).unwrap_or_default();
        Ok(Live {
            memory: target.file("mem")?,
            pagemap: target.file("pagemap").ok(),
            deadline: target.deadline(),
            spares_swap: stays_swapped(swap),
            swapped_reads: Cell::new(0),
            states: RefCell::default(),
        })
    }

    /// Whether the bytes may be read, as far as swapped pages are concerned.
    fn may_read(&self, at: Avma, length: usize) -> bool {
        let last = at.0.saturating_add((length as u64).saturating_sub(1)) / PAGE;
        let swapped = (at.0 / PAGE..=last).filter(|page| self.is_swapped(*page)).count();
        let reads = self.swapped_reads.get().saturating_add(u32::try_from(swapped).unwrap_or(u32::MAX));
        let may = swapped == 0 || reads <= BEGINNINGS;
        if may {
            self.swapped_reads.set(reads);
        }
        may
    }

    fn is_swapped(&self, page: u64) -> bool {
        const WINDOW: usize = 512;
        let Some(pagemap) = &self.pagemap else { return false };
        let mut states = self.states.borrow_mut();
        let is_known = |states: &States| (states.first..states.first + states.words.len() as u64).contains(&page);
        if !is_known(&states) {
            states.first = page;
            states.words.resize(WINDOW, 0);
            let read = |first, words: &mut [u64]| entries(pagemap, first, words);
            if !in_larger_pages(page, &mut states.words, machine_pages(), read) {
                states.words.clear();
                return false;
            }
        }
        states.words.get((page - states.first) as usize).is_some_and(|word| word & (SWAPPED | GUARD) == SWAPPED)
    }
}

/// How many of [`PAGE`] a page of this machine consists of.
fn machine_pages() -> u64 {
    (rustix::param::page_size() as u64 / PAGE).max(1)
}

impl Memory for Live {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        if self.spares_swap && !self.may_read(at, into.len()) {
            return false;
        }
        // The kernel treats the offset as signed and fails for the upper half, where user space has nothing.
        self.memory.read_exact_at(into, at.0).is_ok()
    }

    fn spares_swap(&self) -> bool {
        self.spares_swap
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        let Some(pagemap) = &self.pagemap else { return false };
        let pages = machine_pages();
        in_larger_pages(first, into, pages, |first, words| {
            let page = pages * PAGE;
            if !entries(pagemap, first, words) {
                return false;
            }
            // The shared zero page is present and not in Rss: like a page that isn't there, it reads as zeros.
            let length = Bytes((words.len() as u64).saturating_mul(page));
            let within = AddressRange::sized(Avma(first.saturating_mul(page)), length);
            if words.iter().any(|word| *word & PRESENT != 0)
                && let Ok(zero) = zero_pages(pagemap, within, self.deadline)
            {
                for at in zero.iter().flat_map(|run| run.start.0 / page..run.end.0 / page) {
                    let index = at.checked_sub(first).and_then(|index| usize::try_from(index).ok());
                    if let Some(word) = index.and_then(|index| words.get_mut(index)) {
                        *word = 0;
                    }
                }
            }
            true
        })
    }
}

/// Fills `into` from page number `first` on. `read` does so for larger pages, each of which consists of `pages` of
/// ours.
fn in_larger_pages(first: u64, into: &mut [u64], pages: u64, read: impl FnOnce(u64, &mut [u64]) -> bool) -> bool {
    if pages == 1 {
        return read(first, into);
    }
    let Some(last) = first.checked_add(into.len() as u64) else { return false };
    let mut words = vec![0; (last.div_ceil(pages) - first / pages) as usize];
    let is_read = read(first / pages, &mut words);
    for (at, word) in (first..last).zip(into) {
        *word = words[(at / pages - first / pages) as usize];
    }
    is_read
}

/// The entries of the page map from number `first` on.
fn entries(pagemap: &File, first: u64, into: &mut [u64]) -> bool {
    // Words that aren't filled stay 0: no page.
    let mut bytes = vec![0; into.len() * 8];
    let Some(mut offset) = first.checked_mul(8) else { return false };
    let mut filled = 0;
    while filled < bytes.len() {
        match pagemap.read_at(&mut bytes[filled..], offset) {
            // Past the end of the address space; overwritten pointers lead there.
            Ok(0) => break,
            Ok(count) => {
                filled += count;
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    for (word, bytes) in into.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with 64 KiB pages, entry 3 of the page map is about the addresses from 192 KiB on.
    #[test]
    fn a_larger_page_has_the_state_of_its_entry_everywhere() {
        for pages in [1, 4, 16] {
            for (first, length) in [(0, 1), (0, 64), (15, 1), (15, 2), (16, 16), (33, 100), (1 << 40, 7)] {
                let mut into = vec![u64::MAX; length];
                let mut asked = 0;
                assert!(in_larger_pages(first, &mut into, pages, |first, words| {
                    asked = words.len();
                    for (page, word) in (first..).zip(words) {
                        *word = page;
                    }
                    true
                }));
                let expected: Vec<u64> = (first..first + length as u64).map(|page| page / pages).collect();
                assert_eq!(into, expected, "{length} from {first}, {pages} each");
                assert_eq!(asked as u64, expected[length - 1] - expected[0] + 1);
            }
            assert!(!in_larger_pages(0, &mut [0; 2], pages, |_, _| false));
        }
        assert!(!in_larger_pages(u64::MAX, &mut [0; 2], 4, |_, _| true));
    }
}
