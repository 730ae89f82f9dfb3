//! Common input of the walks of allocators: the writable data of the object that contains the allocator, and the
//! addresses of anonymous memory.

use std::collections::HashMap;

use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates, Untouched};

/// An allocator's own data is at most 2.2 MiB; a program that it is linked into may have more.
const LARGEST_DATA: Bytes = Bytes::mib(64);

/// Writable data of the object that contains the allocator.
pub struct Data {
    pub base: Avma,
    pub bytes: Vec<u8>,
}

/// Reads the object's writable mappings, each with the anonymous memory after it (.bss, and what the kernel joined to
/// it).
pub fn data_of(memory: &impl Memory, path: &str, vmas: &[Vma]) -> Vec<Data> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.readable && vma.writable && !vma.shared) {
        let may_be_bss = vma.backing == Backing::Anonymous && vma.is_named_like_bss();
        match ranges.last_mut() {
            Some(last) if last.end == vma.range.start && (may_be_bss || vma.name == path) => last.end = vma.range.end,
            _ if vma.name == path => ranges.push(vma.range),
            _ => {}
        }
    }
    let mut left = LARGEST_DATA;
    let mut pages = PageStates::new(memory);
    let read = ranges.into_iter().filter_map(|range| {
        let range = AddressRange::sized(range.start, range.length().min(left));
        left -= range.length();
        Some(Data { base: range.start, bytes: pages.read(range)? })
    });
    read.collect()
}

/// Anonymous memory with adjacent ranges joined: sorted, disjoint.
pub struct Anonymous(pub Vec<AddressRange>);

impl Anonymous {
    /// Private anonymous memory. Parts that an allocator has released may be inaccessible.
    pub fn of(vmas: &[Vma]) -> Anonymous {
        let could_hold = |vma: &&Vma| matches!(vma.backing, Backing::Anonymous | Backing::Brk) && !vma.shared;
        Anonymous(joined(vmas.iter().filter(could_hold).map(|vma| vma.range)))
    }

    /// The mappings of `of` with a page that is resident or swapped out; all mappings if none is known to have such a
    /// page (smaps was refused).
    pub fn touched(vmas: &[Vma]) -> Anonymous {
        let is_touched = |vma: &&Vma| vma.rss > Bytes(0) || vma.swap > Bytes(0);
        let touched: Vec<Vma> = vmas.iter().filter(is_touched).cloned().collect();
        Anonymous::of(if touched.is_empty() { vmas } else { &touched })
    }

    /// The writable part of private anonymous memory.
    pub fn of_writable(vmas: &[Vma]) -> Anonymous {
        let is_writable = |vma: &&Vma| vma.backing == Backing::Anonymous && vma.writable && !vma.shared;
        Anonymous(joined(vmas.iter().filter(is_writable).map(|vma| vma.range)))
    }

    pub fn holds(&self, at: u64, length: u64) -> bool {
        let range = AddressRange::sized(Avma(at), Bytes(length));
        at.checked_add(length).is_some() && self.around(at).is_some_and(|around| around.covers(range))
    }

    pub fn around(&self, at: u64) -> Option<AddressRange> {
        let after = self.0.partition_point(|range| range.start.0 <= at);
        self.0[..after].last().copied().filter(|range| range.end.0 > at)
    }
}

/// Joins those of the sorted ranges that touch.
pub fn joined(ranges: impl IntoIterator<Item = AddressRange>) -> Vec<AddressRange> {
    let mut joined: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

pub fn words(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Reads `length` bytes at each address, for many small records, in the order of the addresses. The records of one page
/// share one read of the target. A record that crosses into the next page has a read of its own. A record that can't be
/// read is left out.
pub fn records<M: Memory, T>(memory: &M, mut at: Vec<(u64, T)>, length: usize, mut seen: impl FnMut(u64, &T, &[u8])) {
    at.sort_unstable_by_key(|(address, _)| *address);
    let untouched = Untouched::new(memory);
    let mut page = [0; PAGE as usize];
    let mut alone = vec![0; length];
    let mut known = None;
    for (address, what) in &at {
        let (base, from) = (address / PAGE * PAGE, (address % PAGE) as usize);
        if known != Some(base) {
            known = untouched.read(Avma(base), &mut page).then_some(base);
        }
        match page.get(from..from + length) {
            Some(bytes) if known.is_some() => seen(*address, what, bytes),
            None if untouched.read(Avma(*address), &mut alone) => seen(*address, what, &alone),
            _ => {}
        }
    }
}

/// Pages that were read, for records that refer to each other and share pages.
#[derive(Default)]
pub struct KnownPages(HashMap<u64, Box<[u8; PAGE as usize]>>);

/// Limit of pages that are kept: 16 MiB.
const MOST_PAGES: usize = 4096;

impl KnownPages {
    /// The page with this number.
    pub fn page(&mut self, memory: &impl Memory, number: u64) -> Option<&[u8; PAGE as usize]> {
        let KnownPages(known) = self;
        if !known.contains_key(&number) {
            if known.len() >= MOST_PAGES {
                known.clear();
            }
            let mut bytes = Box::new([0; PAGE as usize]);
            memory.read(Avma(number.checked_mul(PAGE)?), &mut *bytes).then_some(())?;
            known.insert(number, bytes);
        }
        known.get(&number).map(|bytes| &**bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Memory whose pages are full of their number's lowest byte, up to a limit; and the number of reads.
    struct Numbered(Cell<usize>);

    impl Memory for Numbered {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.0.set(self.0.get() + 1);
            into.fill((at.0 / PAGE) as u8);
            at.0 < 1 << 40
        }

        fn pagemap(&self, _: u64, _: &mut [u64]) -> bool {
            false
        }
    }

    #[test]
    fn pages_are_read_once_and_a_bounded_number_of_them_is_kept() {
        let memory = Numbered(Cell::new(0));
        let mut known = KnownPages::default();
        for number in (0..3 * MOST_PAGES as u64).flat_map(|number| [number, number]) {
            let page = known.page(&memory, number).expect("a page");
            assert_eq!([page[0], page[4095]], [number as u8; 2]);
            assert!(known.0.len() <= MOST_PAGES);
        }
        assert_eq!(memory.0.get(), 3 * MOST_PAGES);
        assert!(known.page(&memory, 1 << 28).is_none() && known.page(&memory, u64::MAX).is_none());
    }

    /// A .bss may have no name, or glibc's (glibc.mem.decorate_maps=1).
    #[test]
    fn the_data_of_an_object_includes_its_bss() {
        let vma = |page: u64, pages: u64, name: &str| Vma {
            range: AddressRange::sized(Avma(page * PAGE), Bytes(pages * PAGE)),
            backing: if name.starts_with('/') { Backing::File } else { Backing::Anonymous },
            readable: true,
            writable: true,
            name: name.into(),
            ..Vma::default()
        };
        for (name, pages) in [("", 5), ("[anon: glibc: .bss for /lib/libjemalloc.so]", 5), ("[anon: glibc: malloc]", 2)]
        {
            let vmas = [vma(1, 2, "/lib/libjemalloc.so"), vma(3, 3, name), vma(9, 1, name)];
            let data = data_of(&Numbered(Cell::new(0)), "/lib/libjemalloc.so", &vmas);
            let read: Vec<_> = data.iter().map(|data| (data.base, data.bytes.len() as u64 / PAGE)).collect();
            assert_eq!(read, [(Avma(PAGE), pages)], "{name}");
        }
    }
}
