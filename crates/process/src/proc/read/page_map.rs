//! Which pages of given ranges are resident or swapped out: by the entries of the page map, or by a scan of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::host::limits;
use crate::foreign::Deadline;
use crate::proc::residency::{ENTRY, Found};
use crate::proc::scan::{self, MOST_RUNS};
use plimsoll_facts::snapshot::Residency;
use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};

/// Entries per pread: 512 KiB of them describe 256 MiB.
const BATCH: usize = 64 << 10;

/// Reads the page map of `ranges` (page-aligned) until the deadline. A range that can't be read, such as the vsyscall
/// page, isn't part of what was seen.
pub fn read_residency(
    pagemap: &File,
    ranges: &[AddressRange],
    page: Bytes,
    deadline: Deadline,
) -> io::Result<Residency> {
    let entries = |into: &mut [u8], offset: u64| pagemap.read_at(into, offset);
    // The shared zero page is present in pagemap, but doesn't count in Rss. Only PAGEMAP_SCAN (Linux 6.7) distinguishes
    // such pages.
    let zero = |within: AddressRange| scan::zero_pages(pagemap, within, deadline).unwrap_or_default();
    residency_of(ranges, page, deadline, entries, zero)
}

/// Like `read_residency`, but without swap, by a scan. It takes time only for what is resident, however large the
/// ranges are. The kernel has this scan from Linux 6.7 on ([`can_scan`]).
pub fn scan_residency(pagemap: &File, ranges: &[AddressRange], deadline: Deadline) -> io::Result<Residency> {
    let ranges = merged(ranges.to_vec());
    let pages = scan::resident_within(pagemap, &ranges, limits(deadline))?;
    Ok(Residency::new(ranges, pages.all, Bytes(0)).with_anonymous(pages.anonymous))
}

/// Whether the kernel can scan the page map. True after the deadline: then the scan itself fails with the reason.
pub fn can_scan(pagemap: &File, deadline: Deadline) -> bool {
    let first = AddressRange::new(Avma(0), Avma(4096));
    scan::zero_pages(pagemap, first, deadline).map_or_else(|error| is_too_much(&error), |_| true)
}

/// Whether a reading of pages ended at one of its limits.
pub fn is_too_much(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Other)
}

/// Like `read_residency`, with functions that read entries of the page map, and that find its zero pages.
fn residency_of(
    ranges: &[AddressRange],
    page: Bytes,
    deadline: Deadline,
    mut entries: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    mut zero: impl FnMut(AddressRange) -> Vec<AddressRange>,
) -> io::Result<Residency> {
    let page = page.0.max(1);
    let mut looked_at = Vec::new();
    let (mut runs, mut anonymous) = (Vec::new(), Vec::new());
    let mut swapped_pages = 0u64;
    let mut buffer = vec![0u8; BATCH * ENTRY];
    for range in merged(ranges.to_vec()) {
        let mut at = range.start.0 / page;
        let end = range.end.0.div_ceil(page);
        while at < end {
            if deadline.has_passed() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long"));
            }
            let want = usize::try_from(end - at).unwrap_or(BATCH).min(BATCH) * ENTRY;
            let got = match entries(&mut buffer[..want], at.saturating_mul(ENTRY as u64)) {
                Ok(got) => got / ENTRY,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => 0,
                Err(error) => return Err(error),
            };
            if got == 0 {
                break;
            }
            let mut found = Found::default();
            found.entries(at, page, &buffer[..got * ENTRY]);
            let first = at;
            at += got as u64;
            let seen = AddressRange::new(Avma(first.saturating_mul(page)), Avma(at.saturating_mul(page)));
            if !found.runs.is_empty() {
                found.leave_out(zero(seen));
            }
            looked_at.push(seen);
            swapped_pages += found.swapped_pages;
            runs.append(&mut found.runs);
            anonymous.append(&mut found.anonymous);
            if runs.len() > MOST_RUNS {
                return Err(io::Error::other(format!("its pages are in more than {MOST_RUNS} pieces")));
            }
        }
    }
    let swapped = Bytes(swapped_pages.saturating_mul(page));
    Ok(Residency::new(looked_at, runs, swapped).with_anonymous(anonymous))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::foreign::LOOK;
    use crate::random::Random;

    #[test]
    fn own_pages_are_resident_once_touched() {
        let page = Bytes(4096);
        let block = vec![1u8; 1 << 20];
        let start = block.as_ptr() as u64;
        let inside = AddressRange::new(
            Avma(start.next_multiple_of(page.0)),
            Avma((start + block.len() as u64) / page.0 * page.0),
        );
        let pagemap = File::open("/proc/self/pagemap").expect("own pagemap");
        let residency = read_residency(&pagemap, &[inside], page, Deadline::after(LOOK)).expect("own pagemap");
        assert!(residency.covers(inside));
        assert_eq!(residency.resident(inside), inside.length());
    }

    /// However few entries a read returns.
    #[test]
    fn residency_in_pieces_is_that_of_each_page() {
        const ABSENT: u64 = 0;
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const GUARD: u64 = SWAPPED | 1 << 58;
        /// A present page that the kernel finds to be the zero page.
        const ZERO: u64 = PRESENT | 1;
        let pages = |first: u64, number: u64| AddressRange::sized(Avma(first * 4096), Bytes(number * 4096));
        let mut random = Random(47);
        let (mut resident, mut unseen) = (0, 0);
        for _ in 0..200 {
            let states: Vec<u64> = (0..200).map(|_| [ABSENT, PRESENT, SWAPPED, GUARD, ZERO][random.index(5)]).collect();
            let ranges: Vec<AddressRange> = (0..5).map(|_| pages(random.below(180), random.below(20))).collect();
            let entries = |into: &mut [u8], offset: u64| -> io::Result<usize> {
                let length = into.len().min(ENTRY * (1 + random.index(7)));
                let words = states[offset as usize / ENTRY..].iter().flat_map(|state| state.to_ne_bytes());
                into[..length].iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
                Ok(length)
            };
            let zero = |within: AddressRange| {
                let is_zero = |page: &u64| states[*page as usize] == ZERO && within.covers(pages(*page, 1));
                (0..200).filter(is_zero).map(|page| pages(page, 1)).collect()
            };
            let found =
                residency_of(&ranges, Bytes(4096), Deadline::after(LOOK), entries, zero).expect("it can be read");
            let mut swapped = 0;
            for (page, state) in (0..).map(|page| pages(page, 1)).zip(states.iter().copied()) {
                let is_seen = ranges.iter().any(|range| range.covers(page));
                let is_resident = is_seen && state == PRESENT;
                assert_eq!(found.covers(page), is_seen);
                assert_eq!(found.resident(page), Bytes(if is_resident { 4096 } else { 0 }));
                swapped += u64::from(is_seen && state == SWAPPED);
                (resident, unseen) = (resident + u64::from(is_resident), unseen + u64::from(!is_seen));
            }
            assert_eq!(found.swapped(), Bytes(4096 * swapped));
        }
        assert!(resident > 500 && unseen > 500, "{resident} {unseen}");
    }

    #[test]
    fn a_reading_ends_at_its_deadline_and_at_too_many_runs() {
        let reads = Cell::new(0);
        let read = |deadline| {
            let every_other = |into: &mut [u8], _: u64| -> io::Result<usize> {
                reads.set(reads.get() + 1);
                for (index, entry) in into.chunks_exact_mut(ENTRY).enumerate() {
                    entry.copy_from_slice(&(index as u64 % 2 * (1 << 63)).to_ne_bytes());
                }
                Ok(into.len())
            };
            let all = [AddressRange::new(Avma(0), Avma(1 << 47))];
            let error = residency_of(&all, Bytes(4096), deadline, every_other, |_| Vec::new()).expect_err("no end");
            (reads.take(), error.kind())
        };
        assert_eq!(read(Deadline::after(Duration::ZERO)), (0, io::ErrorKind::TimedOut));
        // A batch has half as many runs as entries.
        assert_eq!(read(Deadline::after(Duration::from_secs(3600))), (2 * MOST_RUNS / BATCH + 1, io::ErrorKind::Other));
    }
}
