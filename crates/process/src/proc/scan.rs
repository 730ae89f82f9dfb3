//! Finds resident pages with one call: PAGEMAP_SCAN on /proc/PID/pagemap, Linux 6.7
//! (Documentation/admin-guide/mm/pagemap.rst; fs/proc/task_mmu.c, `do_pagemap_scan`). It walks the page tables like
//! smaps, but returns ranges of pages where smaps prints 25 lines per mapping. For a process with 2,600 mappings, it
//! takes a tenth of the time.
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

use crate::foreign::{Deadline, give_way};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

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

/// The page is in the page cache, or shared memory. A present page without it is anonymous, or the zero page.
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const ZERO_PAGE: u64 = 1 << 5;
/// The page is mapped by an entry of a higher level.
const HUGE: u64 = 1 << 6;
/// The kernel's unit for ranges here.
const PAGE: u64 = 4096;

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
/// The kernel counts 512 pages for a huge page, but reads one entry. So after huge pages a call may have more pages. If
/// small pages follow, that call holds the lock 16 times as long, once.
const MOST_AT_ONCE: usize = 16 * PAGES_AT_ONCE;
/// Pages of 4 KiB in a huge page.
const HUGE_PAGE: u64 = 512;

/// Limit of runs of resident pages: 64 MiB. A hostile process may map a file with every other page present, at 65,000
/// addresses.
pub(super) const MOST_RUNS: usize = 1 << 22;

/// Where a scan gives up. A hostile process may map the same pages at 65,000 addresses.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub deadline: Deadline,
    /// Runs of resident pages that are kept.
    pub runs: usize,
    /// Pages that are found.
    pub pages: u64,
}

impl Limits {
    /// `memory` is the machine's.
    pub(super) fn until(deadline: Deadline, memory: Bytes) -> Limits {
        /// ZGC maps its heap three times, so a program may have more pages than the machine.
        const TIMES: u64 = 4;
        /// 64 GiB: a container may see less memory than the machine has.
        const FEWEST: u64 = 1 << 24;
        Limits { deadline, runs: MOST_RUNS, pages: (memory.0 / PAGE).saturating_mul(TIMES).max(FEWEST) }
    }
}

/// Ranges of pages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pages {
    pub all: Vec<AddressRange>,
    pub anonymous: Vec<AddressRange>,
}

/// Ranges of resident pages. An error if the kernel lacks the call, or if a limit is reached. `ends` are the ends of the
/// mappings as far as they are known, in address order: they only decide where a call ends.
pub(super) fn resident(pagemap: impl AsFd, ends: impl Iterator<Item = Avma>, limits: Limits) -> io::Result<Pages> {
    let ends = ends.skip(MAPPINGS_AT_ONCE - 1).step_by(MAPPINGS_AT_ONCE).filter(|end| end.0 < END);
    let mut scan = Scanned::new(limits);
    scan.part(pagemap, Avma(0), ends.chain([Avma(END)]), ZERO_PAGE)?;
    Ok(scan.found)
}

/// Like `resident`, for parts of the address space, in address order.
pub(super) fn resident_within(pagemap: impl AsFd, parts: &[AddressRange], limits: Limits) -> io::Result<Pages> {
    /// The kernel passes over absent pages without counting them, so a call also ends after this much address space.
    const PIECE: u64 = 1 << 30;
    let mut scan = Scanned::new(limits);
    for part in parts {
        let ends = (1..).map(|n| Avma(part.start.0.saturating_add(n * PIECE))).take_while(|end| *end < part.end);
        scan.part(&pagemap, part.start, ends.chain([part.end]), ZERO_PAGE)?;
    }
    Ok(scan.found)
}

/// Ranges where the shared zero page is mapped: memory that was read and never written.
pub(crate) fn zero_pages(
    pagemap: impl AsFd,
    within: AddressRange,
    deadline: Deadline,
) -> io::Result<Vec<AddressRange>> {
    // The range bounds the pages.
    let mut scan = Scanned::new(Limits { deadline, runs: MOST_RUNS, pages: u64::MAX });
    scan.part(pagemap, within.start, [within.end].into_iter(), 0)?;
    Ok(scan.found.all)
}

/// State of a scan.
struct Scanned {
    limits: Limits,
    /// For the kernel to fill in.
    regions: Vec<PageRegion>,
    found: Pages,
    pages: u64,
    /// Pages after which the next call ends.
    at_once: usize,
}

impl Scanned {
    fn new(limits: Limits) -> Scanned {
        Scanned { limits, regions: Vec::new(), found: Pages::default(), pages: 0, at_once: PAGES_AT_ONCE }
    }

    /// Finds ranges of pages that are present and the shared zero page. If `inverted` is `ZERO_PAGE`: ranges of pages
    /// that are present and not the shared zero page. A call ends at the next of `ends` at the latest. The last of
    /// `ends` is the end of the part.
    fn part(
        &mut self,
        pagemap: impl AsFd,
        start: Avma,
        ends: impl Iterator<Item = Avma>,
        inverted: u64,
    ) -> io::Result<()> {
        let mut at = start.0;
        for end in ends.map(|end| end.0) {
            let most =
                usize::try_from(end.saturating_sub(at) / PAGE + 1).map_or(PAGES_AT_ONCE, |n| n.min(PAGES_AT_ONCE));
            if self.regions.len() < most {
                self.regions.resize(most, PageRegion::default());
            }
            while at < end {
                self.check()?;
                give_way();
                let scan = Scan {
                    arguments: ScanArguments {
                        size: size_of::<ScanArguments>() as u64,
                        start: at,
                        end,
                        regions: self.regions.as_mut_ptr() as u64,
                        regions_length: self.regions.len() as u64,
                        most_pages: self.at_once as u64,
                        inverted,
                        all_of: PRESENT | ZERO_PAGE,
                        returned: PRESENT | FILE | HUGE,
                        ..ScanArguments::default()
                    },
                    _regions: &mut self.regions,
                };
                // SAFETY: `Scan` describes PAGEMAP_SCAN as the kernel does, and `regions` has space for as many entries
                // as the arguments say. The file is a pagemap: this crate's callers open `pagemap` in a process's
                // directory in /proc.
                let (filled, walk_end) = unsafe { rustix::ioctl::ioctl(&pagemap, scan) }?;
                let filled = self.regions.get(..filled).unwrap_or_default();
                let (pages, entries) = size(filled);
                self.pages = self.pages.saturating_add(pages);
                self.at_once = next_at_once(self.at_once, pages, entries);
                filled.iter().for_each(|region| add(&mut self.found.all, region));
                let anonymous = filled.iter().filter(|region| region.categories & FILE == 0);
                anonymous.for_each(|region| add(&mut self.found.anonymous, region));
                // `walk_end` may lie before the last range that was filled in (seen on 6.18, if there are more ranges
                // than its internal buffer of 512).
                let last = walk_end.max(filled.last().map_or(0, |region| region.end));
                at = if last > at { last } else { end };
            }
        }
        self.check_size()
    }

    fn check(&self) -> io::Result<()> {
        if self.limits.deadline.has_passed() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long"));
        }
        self.check_size()
    }

    fn check_size(&self) -> io::Result<()> {
        let Limits { runs, pages, .. } = self.limits;
        if self.found.all.len() > runs {
            return Err(io::Error::other(format!("its pages are in more than {runs} pieces")));
        }
        if self.pages > pages {
            return Err(io::Error::other(format!("it has more than {pages} pages, each counted where it is mapped")));
        }
        Ok(())
    }
}

/// Pages of the regions, and entries of page tables that the kernel read for them.
fn size(regions: &[PageRegion]) -> (u64, u64) {
    regions.iter().fold((0, 0), |(all, entries), region| {
        let pages = region.end.saturating_sub(region.start) / PAGE;
        let read = if region.categories & HUGE != 0 { pages.div_ceil(HUGE_PAGE) } else { pages };
        (all + pages, entries + read)
    })
}

/// Pages after which the next call ends, if it finds as many in an entry as the last call did. A call that ended earlier
/// for another reason shows too little to allow more.
fn next_at_once(last: usize, pages: u64, entries: u64) -> usize {
    let times = usize::try_from(pages / entries.max(1)).unwrap_or(1);
    let next = times.saturating_mul(PAGES_AT_ONCE).clamp(PAGES_AT_ONCE, MOST_AT_ONCE);
    match pages >= last as u64 {
        true => next,
        false if entries == 0 => last,
        false => next.min(last),
    }
}

/// Appends a region, or extends the last range if the region continues it. The kernel ends a region at each change
/// between huge and small pages, and at the end of a call.
fn add(found: &mut Vec<AddressRange>, region: &PageRegion) {
    let (start, end) = (Avma(region.start), Avma(region.end));
    match found.last_mut() {
        Some(last) if last.start <= start && start <= last.end => last.end = last.end.max(end),
        _ => found.push(AddressRange::new(start, end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{LOOK, Target, offers};
    use crate::proc::{can_scan, read_residency, read_smaps, scan_residency};
    use plimsoll_facts::snapshot::Residency;
    use std::time::Duration;

    fn limits() -> Limits {
        Limits::until(Deadline::after(LOOK), Bytes(0))
    }

    fn inside(runs: Vec<AddressRange>, within: AddressRange) -> Vec<AddressRange> {
        runs.into_iter().map(|run| run.intersection(within)).filter(|run| !run.is_empty()).collect()
    }

    /// While a call runs, no thread of the target can map memory.
    #[test]
    fn a_call_reads_few_pages_and_few_mappings() {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("own pagemap");
        if !can_scan(&pagemap, Deadline::after(LOOK)) {
            return;
        }
        let block = vec![1u8; (2 * PAGES_AT_ONCE + 100) * 4096];
        let first = (block.as_ptr() as u64).next_multiple_of(4096);
        let within = AddressRange::new(Avma(first), Avma(first + (2 * PAGES_AT_ONCE as u64) * 4096));
        let bytes =
            |runs: Vec<AddressRange>| Residency::new(vec![within], inside(runs, within), Bytes(0)).resident(within);
        let calls = |ends: &[Avma]| {
            let before = offers();
            let all = resident(&pagemap, ends.iter().copied(), limits()).expect("as before");
            assert_eq!(bytes(all.all), within.length(), "every page, however many calls there are");
            offers() - before
        };
        let without = calls(&[]);
        assert!(without >= 2, "{without}");
        let ends: Vec<Avma> = (1..=3 * MAPPINGS_AT_ONCE as u64).map(|n| Avma(first + n * 4096)).collect();
        assert!((without + 2..without + 5).contains(&calls(&ends)), "{without}");
    }

    #[test]
    fn huge_pages_do_not_multiply_the_calls() {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("own pagemap");
        if !can_scan(&pagemap, Deadline::after(LOOK)) {
            return;
        }
        const LARGE: usize = HUGE_PAGE as usize * PAGE as usize;
        const LENGTH: usize = 64 * LARGE;
        let mut block = vec![0u8; LENGTH + LARGE];
        let skip = (block.as_ptr() as usize).next_multiple_of(LARGE) - block.as_ptr() as usize;
        let block = &mut block[skip..skip + LENGTH];
        // SAFETY: the range is this block's. The advice doesn't change its contents.
        unsafe { libc::madvise(block.as_mut_ptr().cast(), LENGTH, libc::MADV_HUGEPAGE) };
        block.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
        let within = AddressRange::sized(Avma(block.as_ptr() as u64), Bytes(LENGTH as u64));
        let target = Target::open(std::process::id(), Deadline::after(LOOK)).expect("this process");
        let vmas = read_smaps(&target, &mut Vec::new()).vmas;
        let huge: u64 = vmas.iter().filter(|vma| vma.range.overlaps(within)).map(|vma| vma.anon_huge.0).sum();
        if huge < LENGTH as u64 {
            return eprintln!("huge pages: skipped, the kernel has given {huge} bytes in huge pages");
        }
        let before = offers();
        let found = resident_within(&pagemap, &[within], limits()).expect("as before");
        let calls = offers() - before;
        assert_eq!(found.all, [within], "one range, however many calls");
        // 4,096 pages, and then the others at once.
        assert_eq!(calls, 2, "{} pages", LENGTH as u64 / PAGE);
    }

    #[test]
    fn only_a_full_call_that_found_huge_pages_allows_more() {
        let at_once = PAGES_AT_ONCE as u64;
        let huge = |pages: u64| (pages, pages / HUGE_PAGE);
        let next = |last: usize, (pages, entries): (u64, u64)| next_at_once(last, pages, entries);
        assert_eq!(next(PAGES_AT_ONCE, huge(at_once)), MOST_AT_ONCE);
        assert_eq!(next(PAGES_AT_ONCE, (at_once, at_once)), PAGES_AT_ONCE);
        assert_eq!(next(PAGES_AT_ONCE, huge(512)), PAGES_AT_ONCE, "it ended early");
        assert_eq!(next(MOST_AT_ONCE, huge(512)), MOST_AT_ONCE);
        assert_eq!(next(MOST_AT_ONCE, (100, 100)), PAGES_AT_ONCE, "small pages begin");
        assert_eq!(next(MOST_AT_ONCE, (0, 0)), MOST_AT_ONCE, "it shows nothing");
        // A quarter of the pages are small.
        assert_eq!(next(PAGES_AT_ONCE, (at_once, at_once / 4 + at_once * 3 / 4 / 512)), 3 * PAGES_AT_ONCE);
        let region = |pages: u64, categories| PageRegion { start: PAGE, end: PAGE * (pages + 1), categories };
        assert_eq!(size(&[region(1024, PRESENT | HUGE), region(7, PRESENT)]), (1031, 9));
    }

    #[test]
    fn a_scan_ends_at_its_deadline_and_at_too_many_runs_or_pages() {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("own pagemap");
        if !can_scan(&pagemap, Deadline::after(LOOK)) {
            return;
        }
        // Twice as many pages as a call reads, of which every other is touched, and as many again that all are.
        const BLOCK: usize = 2 * PAGES_AT_ONCE * PAGE as usize;
        let mut block = vec![0u8; 2 * BLOCK + PAGE as usize];
        let skip = (block.as_ptr() as usize).next_multiple_of(PAGE as usize) - block.as_ptr() as usize;
        block[skip..skip + BLOCK].iter_mut().step_by(2 * PAGE as usize).for_each(|byte| *byte = 1);
        block[skip + BLOCK..].iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
        let first = Avma(block.as_ptr() as u64 + skip as u64);
        let (sparse, dense) = (
            AddressRange::sized(first, Bytes(BLOCK as u64)),
            AddressRange::sized(first.offset(Bytes(BLOCK as u64)), Bytes(BLOCK as u64)),
        );
        let scan = |within: Option<AddressRange>, limits: Limits| {
            let before = offers();
            let found = match within {
                Some(within) => resident_within(&pagemap, &[within], limits),
                None => resident(&pagemap, [].into_iter(), limits),
            };
            (offers() - before, found.map(|pages| pages.all).map_err(|error| error.kind()))
        };
        let late = Limits { deadline: Deadline::after(Duration::ZERO), ..limits() };
        assert_eq!(scan(Some(dense), late), (0, Err(io::ErrorKind::TimedOut)));
        assert_eq!(scan(None, late), (0, Err(io::ErrorKind::TimedOut)));
        let late = zero_pages(&pagemap, dense, Deadline::after(Duration::ZERO)).map_err(|error| error.kind());
        assert_eq!(late, Err(io::ErrorKind::TimedOut));

        let few = Limits { pages: PAGES_AT_ONCE as u64, ..limits() };
        let (calls, found) = scan(Some(dense), few);
        assert!(found == Err(io::ErrorKind::Other) && calls <= 2, "{calls} {found:?}");
        assert_eq!(scan(None, few).1, Err(io::ErrorKind::Other));
        assert_eq!(scan(Some(dense), Limits { runs: 1, ..limits() }).1, Ok(vec![dense]));

        let few = Limits { runs: 100, ..limits() };
        let found = scan(Some(sparse), limits()).1.expect("as before");
        if found.len() > 100 {
            assert_eq!(scan(Some(sparse), few).1, Err(io::ErrorKind::Other));
            assert_eq!(scan(None, few).1, Err(io::ErrorKind::Other));
        }
    }

    #[test]
    fn adjacent_regions_are_one_range() {
        let mut found = Vec::new();
        for (start, end, categories) in [(1, 3, PRESENT), (3, 5, PRESENT | HUGE), (4, 6, PRESENT), (7, 8, PRESENT)] {
            add(&mut found, &PageRegion { start: start * PAGE, end: end * PAGE, categories });
        }
        let pages = |start: u64, end: u64| AddressRange::new(Avma(start * PAGE), Avma(end * PAGE));
        assert_eq!(found, [pages(1, 6), pages(7, 8)]);
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
            resident(&pagemap, [].into_iter(), limits()).map(|pages| {
                let all = Residency::new(vec![within], inside(pages.all, within), Bytes(0));
                all.with_anonymous(inside(pages.anonymous, within))
            })
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
        assert!(can_scan(&pagemap, Deadline::after(LOOK)));
        assert_eq!(scan_residency(&pagemap, &[within], Deadline::after(LOOK)).expect("own pagemap"), found);
        assert!(found.resident(within) >= Bytes(1024 * PAGE as u64));
        // A page that is only read is the zero page.
        let read: u64 = (1..2047).step_by(2).map(|page| u64::from(block[skip + page * PAGE])).sum();
        assert_eq!(read, 0);
        assert_eq!(found, in_the_page_map());
        assert_eq!(scan().expect("as before"), found);
    }
}
