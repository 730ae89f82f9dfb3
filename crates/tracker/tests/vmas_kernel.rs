//! The map beside the kernel's: random mmap, munmap, mprotect and mremap inside an area of this process' own, each
//! booked, then compared with `/proc/self/maps`.

use plimsoll_segment::vmap::{Attributes, MappingKind, VmaMap};
use plimsoll_tracker::account::vmas::{Placement, Remap, VmaBook};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;

#[path = "../../../fixtures/random.rs"]
mod random;
use random::Random;

const PAGE: usize = 4096;
const PAGES: usize = 1024;

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

#[test]
fn the_map_equals_the_kernels() {
    let mut region = vec![0u64; (512 << 10) / 8];
    // SAFETY: the vector outlives the book, which alone stores there.
    let book = unsafe { VmaBook::create(region.as_mut_ptr().cast(), 512 << 10, |_| true) };
    let mut book = book.expect("room for a map");
    let file = fs::File::open("/proc/self/exe").expect("this program");
    // SAFETY: a fresh reservation; only what follows here maps over it.
    let area = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), PAGES * PAGE, libc::PROT_NONE, flags, -1, 0)
    } as usize;
    assert_ne!(area, usize::MAX);
    let time = 1;
    let reservation = Attributes::new(1, 1, MappingKind::Anonymous, 0, time);
    book.map(area as u64, (PAGES * PAGE) as u64, reservation, Placement::Chosen, |_| ());
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut done = BTreeMap::<&str, u32>::new();
    let mut committed = 0i64;
    let mut log = String::new();
    for round in 0..3_000 {
        let n = 1 + random.index([3, 12, 48][round % 3]);
        let at = random.index(PAGES - n + 1);
        let (start, bytes) = (area + at * PAGE, n * PAGE);
        let address = start as *mut libc::c_void;
        let prot = [libc::PROT_NONE, libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE][random.index(3)];
        let mut post = |delta: plimsoll_tracker::account::vmas::Delta| committed += delta.committed;
        let what = match random.index(10) {
            0..=2 => {
                let (kind, flags, fd) = match random.index(3) {
                    0 => (MappingKind::Shared, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
                    1 => (MappingKind::File, libc::MAP_PRIVATE, file.as_raw_fd()),
                    _ => (MappingKind::Anonymous, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
                };
                // SAFETY: MAP_FIXED inside the area, which holds nothing that anyone uses.
                let mapped = unsafe { libc::mmap(address, bytes, prot, flags | libc::MAP_FIXED, fd, 0) };
                assert_eq!(mapped, address);
                let new = Attributes::new(1 + random.index(3) as u32, 2, kind, prot as u16, time);
                book.map(start as u64, bytes as u64, new, Placement::Fixed, &mut post);
                if prot == 0 { "uncommit" } else { "commit" }
            }
            3 => {
                let mut pieces = Vec::new();
                book.unmap(start as u64, bytes as u64, &mut post, |piece| pieces.push(piece));
                // Every other munmap fails, because its address is misaligned.
                if round % 2 == 0 {
                    // SAFETY: inside the area.
                    assert_eq!(unsafe { libc::munmap(address, bytes) }, 0);
                    "munmap"
                } else {
                    // SAFETY: the kernel refuses it.
                    assert_eq!(unsafe { libc::munmap((start + 1) as *mut _, bytes) }, -1);
                    for piece in &pieces {
                        book.restore(piece, &mut post);
                    }
                    "munmap fails"
                }
            }
            4..=6 => {
                // SAFETY: inside the area. With holes it fails at the first hole, and what lies before that stays
                // changed.
                let refused = unsafe { libc::mprotect(address, bytes, prot) } != 0;
                let mapped = if refused {
                    let pages = ours(&region, area);
                    pages[at..at + n].iter().take_while(|page| page.is_some()).count()
                } else {
                    n
                };
                book.protect(start as u64, (mapped * PAGE) as u64, prot as u16, 4, time, &mut post);
                if refused { "mprotect stops at a hole" } else { "mprotect" }
            }
            _ => {
                let before = kernels(area);
                let (mut at, mut n, mut new_n) = (at, n, 1 + random.index(16));
                let mut bytes = bytes;
                if random.index(3) == 0 {
                    new_n = n;
                }
                // Every fourth round takes a page with a free one behind it: at random, the page behind is seldom free.
                let room = |&page: &usize| before[page].is_some() && before[page + 1].is_none();
                if round % 4 == 0
                    && let Some(page) = (at..PAGES - 1).find(room)
                {
                    (at, n, new_n, bytes) = (page, 1, 2, PAGE);
                }
                let (start, address) = (area + at * PAGE, (area + at * PAGE) as *mut libc::c_void);
                let in_same_position = round % 4 == 0 || random.index(3) == 0;
                let to = if in_same_position { at } else { random.index(PAGES - new_n + 1) };
                if to + new_n > PAGES || (!in_same_position && to < at + n && at < to + new_n) {
                    continue;
                }
                let new = (area + to * PAGE) as *mut libc::c_void;
                let keeps = !in_same_position && n == new_n && random.index(3) == 0;
                let flags = match (in_same_position, keeps) {
                    (true, _) => 0,
                    (false, false) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    (false, true) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
                };
                log = format!("mremap {at}+{n} to {to}+{new_n} keeps {keeps}: {:?}", &before[at..at + n]);
                // SAFETY: source and destination are inside the area; without MAYMOVE it stays where it is.
                let moved = unsafe { libc::mremap(address, bytes, new_n * PAGE, flags, new) };
                if moved == libc::MAP_FAILED {
                    // A refused mremap may have unmapped its destination, or a part of it: book what the kernel shows.
                    let after = kernels(area);
                    for page in (0..PAGES).filter(|&page| before[page].is_some() && after[page].is_none()) {
                        book.unmap((area + page * PAGE) as u64, PAGE as u64, &mut post, |_| ());
                    }
                    "mremap refused"
                } else {
                    let (old, new) = (start as u64, moved as u64);
                    let (old_bytes, new_bytes) = (bytes as u64, (new_n * PAGE) as u64);
                    book.remap(Remap { old, old_bytes, new, new_bytes, keeps_old: keeps }, &mut post);
                    match (in_same_position, keeps, new_n > n) {
                        (true, _, true) => "mremap grows",
                        (true, _, false) => "mremap shrinks",
                        (_, true, _) => "mremap keeps",
                        _ => "mremap moves",
                    }
                }
            }
        };
        *done.entry(what).or_default() += 1;
        if round % 16 == 0 || what.starts_with("mremap") {
            let (kernel, ours) = (kernels(area), ours(&region, area));
            let differs = (0..PAGES).find(|&page| kernel[page] != ours[page]);
            assert_eq!(
                differs.map(|page| (page, kernel[page], ours[page])),
                None,
                "after {what} of {at}+{n}, {round}; last {log}"
            );
        }
    }
    let accessible = kernels(area).iter().flatten().filter(|(prot, _)| *prot != 0).count();
    assert_eq!(committed, (accessible * PAGE) as i64);
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
