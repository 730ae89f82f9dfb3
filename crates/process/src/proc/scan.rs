//! Finds resident pages with one call: PAGEMAP_SCAN on /proc/PID/pagemap, Linux 6.7
//! (Documentation/admin-guide/mm/pagemap.rst; fs/proc/task_mmu.c, `do_pagemap_scan`). It walks the page tables like
//! smaps, but returns ranges of pages where smaps prints 25 lines per mapping: a tenth of the time for a process with
//! 2,600 mappings.
//!
//! ```text
//! in   pages that are present and not the shared zero page, which Rss omits too
//! out  ranges, in address order
//! ```
//! Both omit PFN mappings; hugetlbfs pages are included here, but not in Rss.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use crate::foreign::give_way;
use plimsoll_facts::units::{AddressRange, Avma};

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

const _: () = assert!(size_of::<PageRegion>() == 24 && size_of::<ScanArguments>() == 96);

const PRESENT: u64 = 1 << 3;
const ZERO_PAGE: u64 = 1 << 5;
struct Scan<'r> {
    arguments: ScanArguments,
    _regions: &'r mut [PageRegion],
}

// SAFETY: the opcode is PAGEMAP_SCAN's. Its argument is a `pm_scan_arg` of 96 bytes; the kernel reads it and writes its
// `walk_end`. It points to `_regions`, which is borrowed for the lifetime of this value.
unsafe impl Ioctl for Scan<'_> {
    type Output = (usize, u64);

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<ScanArguments>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.arguments).cast()
    }

    unsafe fn output_from_ptr(filled: IoctlOutput, arguments: *mut c_void) -> rustix::io::Result<(usize, u64)> {
        // SAFETY: this is the pointer that `as_ptr` returned.
        let walk_end = unsafe { (*arguments.cast::<ScanArguments>()).walk_end };
        Ok((usize::try_from(filled).unwrap_or(0), walk_end))
    }
}

/// End of the user half with 4 levels of page tables. A program stays below it unless it requests higher addresses by a
/// hint.
pub(super) const END: u64 = if cfg!(target_arch = "aarch64") { 1 << 48 } else { (1 << 47) - 4096 };

/// The kernel holds the target's mmap lock during a call, so that its threads can neither map nor unmap memory. So a
/// call ends after this many pages, or mappings: each of the two takes the kernel about 0.1 ms.
const PAGES_AT_ONCE: usize = 4096;
const MAPPINGS_AT_ONCE: usize = 256;

/// Ranges of resident pages; some may occur twice. An error if the kernel lacks the call. `ends` are the ends of the
/// mappings as far as they are known, in address order: they only decide where a call ends.
pub(super) fn resident(pagemap: impl AsFd, ends: impl Iterator<Item = Avma>) -> io::Result<Vec<AddressRange>> {
    let ends = ends.skip(MAPPINGS_AT_ONCE - 1).step_by(MAPPINGS_AT_ONCE).filter(|end| end.0 < END);
    scan(pagemap, Avma(0), ends.chain([Avma(END)]), ZERO_PAGE)
}

/// Does the same for a part of the address space.
pub(super) fn resident_within(pagemap: impl AsFd, within: AddressRange) -> io::Result<Vec<AddressRange>> {
    scan(pagemap, within.start, [within.end].into_iter(), ZERO_PAGE)
}

/// Ranges where the shared zero page is mapped: memory that was read and never written.
pub(crate) fn zero_pages(pagemap: impl AsFd, within: AddressRange) -> io::Result<Vec<AddressRange>> {
    scan(pagemap, within.start, [within.end].into_iter(), 0)
}

/// Ranges of pages that are present and the shared zero page. If `inverted` is `ZERO_PAGE`: ranges of pages that are
/// present and not the shared zero page. Each of `ends` ends a call at the latest, the last one the scan.
fn scan(
    pagemap: impl AsFd,
    start: Avma,
    ends: impl Iterator<Item = Avma>,
    inverted: u64,
) -> io::Result<Vec<AddressRange>> {
    let mut regions = Vec::new();
    let mut found = Vec::new();
    let mut at = start.0;
    for end in ends.map(|end| end.0) {
        let most = usize::try_from(end.saturating_sub(at) / 4096 + 1).map_or(PAGES_AT_ONCE, |n| n.min(PAGES_AT_ONCE));
        if regions.len() < most {
            regions.resize(most, PageRegion::default());
        }
        while at < end {
            give_way();
            let scan = Scan {
                arguments: ScanArguments {
                    size: size_of::<ScanArguments>() as u64,
                    start: at,
                    end,
                    regions: regions.as_mut_ptr() as u64,
                    regions_length: regions.len() as u64,
                    most_pages: PAGES_AT_ONCE as u64,
                    inverted,
                    all_of: PRESENT | ZERO_PAGE,
                    returned: PRESENT,
                    ..ScanArguments::default()
                },
                _regions: &mut regions,
            };
            // SAFETY: `Scan` describes PAGEMAP_SCAN as the kernel does, and `regions` has space for as many entries as
            // the arguments say. The file is a pagemap: this crate's callers open `pagemap` in a process's directory in
            // /proc.
            let (filled, walk_end) = unsafe { rustix::ioctl::ioctl(&pagemap, scan) }?;
            let filled = regions.get(..filled).unwrap_or_default();
            found.extend(filled.iter().map(|region| AddressRange::new(Avma(region.start), Avma(region.end))));
            // `walk_end` may lie before the last range that was filled in (seen on 6.18, if there are more ranges than
            // its internal buffer of 512).
            let last = walk_end.max(filled.last().map_or(0, |region| region.end));
            at = if last > at { last } else { end };
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Deadline, LOOK, offers};
    use crate::proc::{can_scan, read_residency, scan_residency};
    use plimsoll_facts::snapshot::Residency;
    use plimsoll_facts::units::Bytes;

    fn inside(runs: Vec<AddressRange>, within: AddressRange) -> Vec<AddressRange> {
        runs.into_iter().map(|run| run.intersection(within)).filter(|run| !run.is_empty()).collect()
    }

    /// While a call runs, no thread of the target can map memory.
    #[test]
    fn a_call_reads_few_pages_and_few_mappings() {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("own pagemap");
        if !can_scan(&pagemap) {
            return;
        }
        let block = vec![1u8; (2 * PAGES_AT_ONCE + 100) * 4096];
        let first = (block.as_ptr() as u64).next_multiple_of(4096);
        let within = AddressRange::new(Avma(first), Avma(first + (2 * PAGES_AT_ONCE as u64) * 4096));
        let bytes =
            |runs: Vec<AddressRange>| Residency::new(vec![within], inside(runs, within), Bytes(0)).resident(within);
        let calls = |ends: &[Avma]| {
            let before = offers();
            let all = resident(&pagemap, ends.iter().copied()).expect("as before");
            assert_eq!(bytes(all), within.length(), "every page, however many calls there are");
            offers() - before
        };
        let without = calls(&[]);
        assert!(without >= 2, "{without}");
        let ends: Vec<Avma> = (1..=3 * MAPPINGS_AT_ONCE as u64).map(|n| Avma(first + n * 4096)).collect();
        assert!((without + 2..without + 5).contains(&calls(&ends)), "{without}");
    }

    #[test]
    fn the_scan_is_the_page_map_without_the_zero_page() {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("own pagemap");
        const PAGE: usize = 4096;
        let length = 2048 * PAGE;
        let mut block = vec![0u8; length];
        let first = (block.as_ptr() as u64).next_multiple_of(PAGE as u64);
        let skip = (first - block.as_ptr() as u64) as usize;
        let within = AddressRange::new(Avma(first), Avma(first + (length - PAGE) as u64));
        // Touch every other page, so that there are more ranges than the kernel's internal buffer has (512), unless it
        // uses huge pages.
        for page in (0..2047).step_by(2) {
            block[skip + page * PAGE] = 1;
        }
        let scan = || {
            resident(&pagemap, [].into_iter()).map(|runs| Residency::new(vec![within], inside(runs, within), Bytes(0)))
        };
        let in_the_page_map = || {
            let deadline = Deadline::after(LOOK);
            read_residency(&pagemap, &[within], Bytes(PAGE as u64), deadline).expect("own pagemap")
        };
        let found = match scan() {
            Ok(found) => found,
            // ENOTTY: a kernel before 6.7.
            Err(refused) => return assert_eq!(refused.raw_os_error(), Some(25), "{refused}"),
        };
        assert_eq!(found, in_the_page_map());
        assert!(can_scan(&pagemap));
        assert_eq!(scan_residency(&pagemap, &[within], Deadline::after(LOOK)).expect("own pagemap"), found);
        assert!(found.resident(within) >= Bytes(1024 * PAGE as u64));
        // A page that is only read is the zero page.
        let read: u64 = (1..2047).step_by(2).map(|page| u64::from(block[skip + page * PAGE])).sum();
        assert_eq!(read, 0);
        assert_eq!(found, in_the_page_map());
        assert_eq!(scan().expect("as before"), found);
    }
}
