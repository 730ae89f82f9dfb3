//! The map beside the kernel's: random mmap, munmap, mprotect and mremap inside an area of this process' own, each
//! booked, then compared with `/proc/self/maps`.

use plimsoll_segment::vmap::{Attributes, MappingKind, VmaMap};
use plimsoll_tracker::account::vmas::{Delta, Placement, Remap, VmaBook};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;

#[path = "../../../fixtures/random.rs"]
mod random;
use random::Random;

const PAGE: usize = 4096;
const PAGES: usize = 1024;
/// The time of every entry.
const TIME: u32 = 1;

/// Protection, and whether it is shared, of each page of the area; what is not mapped is `None`.
type Pages = Vec<Option<(u16, bool)>>;

fn kernels(area: usize) -> Pages {
    let mut pages = vec![None; PAGES];
    for line in fs::read_to_string("/proc/self/maps").expect("procfs").lines() {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next().and_then(|range| range.split_once('-')).expect("a range");
        let hex = |text| usize::from_str_radix(text, 16).expect("an address");
        let (start, end) = (hex(start).max(area), hex(end).min(area + PAGES * PAGE));
        let flags = fields.next().expect("permissions").as_bytes();
        let prot = [b'r', b'w', b'x'].iter().enumerate().map(|(bit, flag)| ((flags[bit] == *flag) as u16) << bit).sum();
        if start < end {
            pages[(start - area) / PAGE..(end - area) / PAGE].fill(Some((prot, flags[3] == b's')));
        }
    }
    pages
}

fn ours(region: &[u64], area: usize) -> Pages {
    let bytes: Vec<u8> = region.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut pages = vec![None; PAGES];
    let map = VmaMap::new(&bytes).expect("a map");
    let mut entries = map.entries();
    for vma in entries.by_ref() {
        let first = (vma.start as usize - area) / PAGE;
        let state = (vma.attributes().prot(), vma.attributes().kind() == MappingKind::Shared);
        pages[first..first + vma.bytes() as usize / PAGE].fill(Some(state));
    }
    assert_eq!(entries.damaged(), 0);
    pages
}

/// The area, its book, and what was done so far.
struct Area {
    start: usize,
    region: Vec<u64>,
    book: VmaBook<fn(usize) -> bool>,
    /// What file mappings map.
    file: fs::File,
    random: Random,
    committed: i64,
    /// The last mremap.
    log: String,
}

/// Pages of the area.
#[derive(Clone, Copy)]
struct Range {
    at: usize,
    n: usize,
}

impl Area {
    /// A reservation of the whole area, booked.
    fn reserve() -> Area {
        let mut region = vec![0u64; (512 << 10) / 8];
        // SAFETY: the vector outlives the book, which alone stores there.
        let book = unsafe { VmaBook::create(region.as_mut_ptr().cast(), 512 << 10, (|_| true) as fn(usize) -> bool) };
        // SAFETY: a fresh reservation; only the operations below map over it.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), PAGES * PAGE, libc::PROT_NONE, flags, -1, 0)
        } as usize;
        assert_ne!(start, usize::MAX);
        let mut book = book.expect("room for a map");
        let reservation = Attributes::new(1, 1, MappingKind::Anonymous, 0, TIME);
        book.map(start as u64, (PAGES * PAGE) as u64, reservation, Placement::Chosen, |_| ());
        let file = fs::File::open("/proc/self/exe").expect("this program");
        let random = Random(0x0123_4567_89ab_cdef);
        Area { start, region, book, file, random, committed: 0, log: String::new() }
    }

    fn kernels(&self) -> Pages {
        kernels(self.start)
    }

    fn ours(&self) -> Pages {
        ours(&self.region, self.start)
    }

    fn address(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    /// A random operation on random pages. Returns what it was and where; `None`: nothing was done.
    fn any_operation(&mut self, round: usize) -> Option<(&'static str, Range)> {
        let n = 1 + self.random.index([3, 12, 48][round % 3]);
        let range = Range { at: self.random.index(PAGES - n + 1), n };
        let prot = [libc::PROT_NONE, libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE][self.random.index(3)];
        let what = match self.random.index(10) {
            0..=2 => self.map(range, prot),
            // Every other munmap fails.
            3 if round.is_multiple_of(2) => self.unmap(range),
            3 => self.unmap_misaligned(range),
            4..=6 => self.protect(range, prot),
            _ => self.remap(range, round.is_multiple_of(4))?,
        };
        Some((what, range))
    }

    fn map(&mut self, Range { at, n }: Range, prot: i32) -> &'static str {
        let (start, bytes) = (self.address(at), n * PAGE);
        let (kind, flags, fd) = match self.random.index(3) {
            0 => (MappingKind::Shared, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
            1 => (MappingKind::File, libc::MAP_PRIVATE, self.file.as_raw_fd()),
            _ => (MappingKind::Anonymous, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let address = start as *mut libc::c_void;
        // SAFETY: MAP_FIXED inside the area, which holds nothing that anyone uses.
        let mapped = unsafe { libc::mmap(address, bytes, prot, flags | libc::MAP_FIXED, fd, 0) };
        assert_eq!(mapped, address);
        let new = Attributes::new(1 + self.random.index(3) as u32, 2, kind, prot as u16, TIME);
        let post = |delta: Delta| self.committed += delta.committed;
        self.book.map(start as u64, bytes as u64, new, Placement::Fixed, post);
        if prot == 0 { "uncommit" } else { "commit" }
    }

    fn unmap(&mut self, Range { at, n }: Range) -> &'static str {
        let (start, bytes) = (self.address(at), n * PAGE);
        let post = |delta: Delta| self.committed += delta.committed;
        self.book.unmap(start as u64, bytes as u64, post, |_| ());
        // SAFETY: inside the area.
        assert_eq!(unsafe { libc::munmap(start as *mut _, bytes) }, 0);
        "munmap"
    }

    /// The kernel refuses the address. The test takes back what it booked.
    fn unmap_misaligned(&mut self, Range { at, n }: Range) -> &'static str {
        let (start, bytes) = (self.address(at), n * PAGE);
        let mut pieces = Vec::new();
        let mut post = |delta: Delta| self.committed += delta.committed;
        self.book.unmap(start as u64, bytes as u64, &mut post, |piece| pieces.push(piece));
        // SAFETY: the kernel refuses it.
        assert_eq!(unsafe { libc::munmap((start + 1) as *mut _, bytes) }, -1);
        for piece in &pieces {
            self.book.restore(piece, &mut post);
        }
        "munmap fails"
    }

    fn protect(&mut self, Range { at, n }: Range, prot: i32) -> &'static str {
        let start = self.address(at);
        // SAFETY: inside the area. With holes, the call fails at the first hole, and the pages before it stay changed.
        let refused = unsafe { libc::mprotect(start as *mut _, n * PAGE, prot) } != 0;
        let mapped = if refused { self.ours()[at..at + n].iter().take_while(|page| page.is_some()).count() } else { n };
        let post = |delta: Delta| self.committed += delta.committed;
        self.book.protect(start as u64, (mapped * PAGE) as u64, prot as u16, 4, TIME, post);
        if refused { "mprotect stops at a hole" } else { "mprotect" }
    }

    /// `None` if the pages and their destination overlap, or the destination leaves the area.
    fn remap(&mut self, mut range: Range, grows: bool) -> Option<&'static str> {
        let before = self.kernels();
        let mut new_n = 1 + self.random.index(16);
        if self.random.index(3) == 0 {
            new_n = range.n;
        }
        // To grow, take a page with a free one behind it: at random, the page behind is seldom free.
        let room = |&page: &usize| before[page].is_some() && before[page + 1].is_none();
        if grows && let Some(page) = (range.at..PAGES - 1).find(room) {
            (range, new_n) = (Range { at: page, n: 1 }, 2);
        }
        let Range { at, n } = range;
        let in_same_position = grows || self.random.index(3) == 0;
        let to = if in_same_position { at } else { self.random.index(PAGES - new_n + 1) };
        if to + new_n > PAGES || (!in_same_position && to < at + n && at < to + new_n) {
            return None;
        }
        let keeps = !in_same_position && n == new_n && self.random.index(3) == 0;
        let flags = match (in_same_position, keeps) {
            (true, _) => 0,
            (false, false) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            (false, true) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
        };
        self.log = format!("mremap {at}+{n} to {to}+{new_n} keeps {keeps}: {:?}", &before[at..at + n]);
        let (old, new) = (self.address(at), self.address(to) as *mut libc::c_void);
        // SAFETY: source and destination are inside the area; without MAYMOVE the mapping stays where it is.
        let moved = unsafe { libc::mremap(old as *mut _, n * PAGE, new_n * PAGE, flags, new) };
        if moved == libc::MAP_FAILED {
            self.unmap_what_a_refused_remap_unmapped(&before);
            return Some("mremap refused");
        }
        let (old, new, old_bytes, new_bytes) = (old as u64, moved as u64, (n * PAGE) as u64, (new_n * PAGE) as u64);
        let post = |delta: Delta| self.committed += delta.committed;
        self.book.remap(Remap { old, old_bytes, new, new_bytes, keeps_old: keeps }, post);
        Some(match (in_same_position, keeps, new_n > n) {
            (true, _, true) => "mremap grows",
            (true, _, false) => "mremap shrinks",
            (_, true, _) => "mremap keeps",
            _ => "mremap moves",
        })
    }

    /// A refused mremap may have unmapped its destination, or a part of it: book what the kernel shows.
    fn unmap_what_a_refused_remap_unmapped(&mut self, before: &Pages) {
        let after = self.kernels();
        for page in (0..PAGES).filter(|&page| before[page].is_some() && after[page].is_none()) {
            let address = self.address(page) as u64;
            self.book.unmap(address, PAGE as u64, |delta| self.committed += delta.committed, |_| ());
        }
    }
}

#[test]
fn the_map_equals_the_kernels() {
    let mut area = Area::reserve();
    let mut done = BTreeMap::<&str, u32>::new();
    for round in 0..3_000 {
        let Some((what, Range { at, n })) = area.any_operation(round) else { continue };
        *done.entry(what).or_default() += 1;
        if round % 16 == 0 || what.starts_with("mremap") {
            let (kernel, ours) = (area.kernels(), area.ours());
            let differs = (0..PAGES).find(|&page| kernel[page] != ours[page]);
            assert_eq!(
                differs.map(|page| (page, kernel[page], ours[page])),
                None,
                "after {what} of {at}+{n}, {round}; last {}",
                area.log
            );
        }
    }
    let accessible = area.kernels().iter().flatten().filter(|(prot, _)| *prot != 0).count();
    assert_eq!(area.committed, (accessible * PAGE) as i64);
    let wanted = [
        "commit",
        "uncommit",
        "munmap",
        "munmap fails",
        "mprotect",
        "mprotect stops at a hole",
        "mremap grows",
        "mremap shrinks",
        "mremap keeps",
        "mremap moves",
        "mremap refused",
    ];
    for what in wanted {
        assert!(done.get(what).is_some_and(|&n| n > 10), "{what}: {done:?}");
    }
}
