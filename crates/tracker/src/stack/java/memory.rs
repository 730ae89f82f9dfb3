//! Loads from the VM's memory (code cache, metaspace, C heap) that can't fault.
//!
//! A live frame points to live data: its nmethod, its method, the class. But a damaged stack may point anywhere. So a
//! page is read only if the map of mappings proves that it is readable ([`prove`]), or after the kernel has confirmed
//! it ([`os::readable`]). That query uses rt_sigprocmask, which systemd's filters permit. It doesn't use
//! process_vm_readv: that is in systemd's @debug group, and a filter may kill the process for it. The answer is kept
//! until memory of the process is unmapped or protected, which the hooks see before it happens. They see sbrk(2), and a
//! call that replaces memory and fails, at once after the call.

use crate::stack::read::{Plain, peek};
use crate::sys::os;
use core::marker::PhantomData;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Pages known to be readable: page number | generation << 36. A page may be in one of four cells. With one cell, two
/// pages that a VM uses together could collide, and each walk would query the kernel. A cell is one word: a lost store
/// only costs a query.
static PAGES: [[AtomicU64; WAYS]; 1024] = [const { [const { AtomicU64::new(0) }; WAYS] }; 1024];
const WAYS: usize = 4;
static GENERATION: AtomicU32 = AtomicU32::new(1);
const PAGE_BITS: u32 = 36;
const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;
/// Incremented each time that memory is unmapped or made unreadable: once before and once after.
static UNMAPPINGS: AtomicU64 = AtomicU64::new(1);

/// While this value is unchanged, memory that was found readable stays readable.
#[inline]
pub fn unmappings() -> u64 {
    UNMAPPINGS.load(Acquire)
}

#[inline]
fn cells(page: u64) -> &'static [AtomicU64; WAYS] {
    &PAGES[(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize]
}

fn mark(page: u64) -> u64 {
    page | (GENERATION.load(Relaxed) as u64) << PAGE_BITS
}

/// Whether the page is readable.
#[inline]
fn page(number: u64) -> bool {
    let mark = mark(number);
    cells(number).iter().any(|cell| cell.load(Relaxed) == mark) || probe(number, mark)
}

#[cold]
#[inline(never)]
fn probe(number: u64, mark: u64) -> bool {
    let before = UNMAPPINGS.load(SeqCst);
    if number == 0 || number >> PAGE_BITS != 0 {
        return false;
    }
    if !is_trusted(number) && !is_proven(number) && !prove(number, before) {
        // A word across the border of two pages reads both with one call, and the VM's data lie close together.
        let neighbour = number ^ 1;
        if os::readable(((number | 1) << 12) as usize - 4) {
            keep(neighbour, mark ^ 1, before);
        } else if !os::readable((number << 12) as usize) {
            return false;
        }
    }
    keep(number, mark, before);
    true
}

/// Notes that a page was found readable at this count of unmappings.
fn keep(number: u64, mark: u64, before: u64) {
    let cells = cells(number);
    let is_old = |cell: &&AtomicU64| cell.load(Relaxed) >> PAGE_BITS != mark >> PAGE_BITS;
    // Cells are filled in turn, so that pages that are queried in turn do not replace one another.
    let cell = cells.iter().find(is_old).unwrap_or(&cells[TURN.fetch_add(1, Relaxed) as usize % WAYS]);
    cell.store(mark, SeqCst);
    if UNMAPPINGS.load(SeqCst) != before {
        // The page may have been forgotten between the answer and the store.
        cell.store(0, Relaxed);
    }
}

static TURN: AtomicU32 = AtomicU32::new(0);

/// Pages that are trusted, first and one past the last, by range. (0, 0) = none.
static TRUSTED: [[AtomicU64; 2]; 4] = [const { [const { AtomicU64::new(0) }; 2] }; 4];

/// While `read` runs, takes whole pages of these ranges for readable without a query of the kernel, unless a hook sees
/// them unmapped. The ranges belong to an object's file, whose many small tables are read once. The trust ends with
/// `read`, because the loader unmaps an object past the hooks.
pub fn trusting<R>(ranges: impl Iterator<Item = Range<usize>>, read: impl FnOnce() -> R) -> R {
    for ([first, end], range) in TRUSTED.iter().zip(ranges) {
        first.store((range.start as u64).div_ceil(4096), Relaxed);
        end.store(range.end as u64 >> 12, Relaxed);
    }
    let result = read();
    TRUSTED.iter().for_each(|[_, end]| end.store(0, Relaxed));
    result
}

fn is_trusted(page: u64) -> bool {
    TRUSTED.iter().any(|[first, end]| (first.load(Relaxed)..end.load(Relaxed)).contains(&page))
}

/// What the map of mappings has at an address: a whole entry, of readable private memory.
pub struct Mapped {
    pub range: Range<u64>,
    /// Pages beyond the end of the file can't be read, although they are mapped.
    pub is_file: bool,
}

/// `fn(u64) -> Option<Mapped>`: the entry at an address, if a hook saw this memory become readable; 0 = none.
static MAP: AtomicUsize = AtomicUsize::new(0);
/// The protection in the map doesn't show what can be read (protection keys, guards by madvise, huge pages).
static MAP_IS_VAGUE: AtomicBool = AtomicBool::new(false);

/// From now on `entry` is queried before the kernel.
pub fn consult(entry: fn(u64) -> Option<Mapped>) {
    MAP.store(entry as usize, Release);
}

/// From now on only the kernel decides what can be read.
#[cold]
#[inline(never)]
pub fn map_is_vague() {
    if !MAP_IS_VAGUE.swap(true, SeqCst) {
        forget(0..usize::MAX);
    }
}

/// Ranges that the map has proven to be readable: first page | pages << 36; 0 = none. One word each, so that a reader
/// never sees the first page of one range with the length of another.
static PROVEN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
static PROVEN_TURN: AtomicU32 = AtomicU32::new(0);
/// A range of pages of a file. The kernel is queried about its last page only. The pages before it are in the file too,
/// unless the entry joins two files (docs/decisions/java-frames.md).
const FILE_PAGES: u64 = 256;

fn is_proven(page: u64) -> bool {
    let holds = |range: u64| page.wrapping_sub(range & PAGE_MASK) < range >> PAGE_BITS;
    PROVEN.iter().any(|range| holds(range.load(Relaxed)))
}

/// Whether the map proves that this page is readable. HotSpot's archive of classes alone has 3,000 pages, and a start
/// reads 150 of them.
fn prove(page: u64, before: u64) -> bool {
    let entry = MAP.load(Acquire);
    if entry == 0 || MAP_IS_VAGUE.load(Relaxed) {
        return false;
    }
    // SAFETY: the word is 0 or a function of this type: only `consult` writes it.
    let entry = unsafe { core::mem::transmute::<usize, fn(u64) -> Option<Mapped>>(entry) };
    let Some(Mapped { range, is_file }) = entry(page << 12) else { return false };
    let (mut first, mut end) = (range.start >> 12, (range.end >> 12).min(PAGE_MASK));
    if is_file {
        first = first.max(page & !(FILE_PAGES - 1));
        end = end.min((page | (FILE_PAGES - 1)) + 1);
    }
    end = end.min(first + (1 << (64 - PAGE_BITS)) - 1);
    if !(first..end).contains(&page) || (is_file && !os::readable((end as usize - 1) << 12)) {
        return false;
    }
    let proven = first | (end - first) << PAGE_BITS;
    let cell = &PROVEN[PROVEN_TURN.fetch_add(1, Relaxed) as usize % PROVEN.len()];
    cell.store(proven, SeqCst);
    if UNMAPPINGS.load(SeqCst) != before {
        // As in `keep`.
        let _ = cell.compare_exchange(proven, 0, SeqCst, Relaxed);
    }
    true
}

/// This range is about to be unmapped or made unreadable, or has been.
#[cold]
#[inline(never)]
pub fn forget(range: Range<usize>) {
    UNMAPPINGS.fetch_add(1, SeqCst);
    let (first, last) = (range.start as u64 >> 12, range.end as u64 >> 12);
    for [from, end] in &TRUSTED {
        if from.load(Relaxed) <= last && first < end.load(Relaxed) {
            end.store(0, SeqCst);
        }
    }
    for cell in &PROVEN {
        let proven = cell.load(SeqCst);
        let from = proven & PAGE_MASK;
        if from <= last && first < from + (proven >> PAGE_BITS) {
            let _ = cell.compare_exchange(proven, 0, SeqCst, Relaxed);
        }
    }
    if last.saturating_sub(first) > 64 {
        GENERATION.fetch_add(1, Relaxed);
        return;
    }
    for number in first..=last {
        for cell in cells(number) {
            if cell.load(Relaxed) & PAGE_MASK == number {
                cell.store(0, Relaxed);
            }
        }
    }
}

/// The value at `at`, if it can be read. No reference to the VM's memory is ever made: its own threads write there.
#[inline]
pub fn load<T: Plain>(at: u64) -> Option<T> {
    let last = at.checked_add(size_of::<T>() as u64 - 1)?;
    if !page(at >> 12) || (last >> 12 != at >> 12 && !page(last >> 12)) {
        return None;
    }
    // SAFETY: both pages were found readable, and no hook has seen them unmapped since. Memory that a live frame leads
    // to stays mapped while its thread is in this function.
    Some(unsafe { peek(at) })
}

/// A range of memory that others may write, or of the tracker's own memory. It is loaded from, never borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    at: u64,
    len: usize,
    of: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(own: &'a [u8]) -> Self {
        Self { at: own.as_ptr() as u64, len: own.len(), of: PhantomData }
    }
}

/// `bytes` bytes from `at` on, if all can be read and are no more than `most`.
pub fn slice(at: u64, bytes: usize, most: usize) -> Option<Bytes<'static>> {
    let last = at.checked_add(bytes as u64)?.checked_sub(1).unwrap_or(at);
    let can_be_read = bytes <= most && (at >> 12..=last >> 12).all(page);
    can_be_read.then_some(Bytes { at, len: bytes, of: PhantomData })
}

impl Bytes<'_> {
    #[inline(always)]
    pub fn len(self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn load<T: Plain>(self, i: usize) -> Option<T> {
        let end = i.checked_add(size_of::<T>())?;
        // SAFETY: inside a range that is borrowed, or that `slice` found readable: as in `load`.
        (end <= self.len).then(|| unsafe { peek(self.at + i as u64) })
    }

    /// The byte with this index.
    #[inline(always)]
    pub fn byte(self, i: usize) -> Option<u8> {
        self.load(i)
    }

    /// The eight bytes from this index on.
    #[inline(always)]
    pub fn word(self, i: usize) -> Option<u64> {
        self.load(i)
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..self.len).map_while(move |i| self.byte(i))
    }

    /// Whether these are the bytes.
    pub fn is(self, text: &[u8]) -> bool {
        self.len == text.len() && self.iter().eq(text.iter().copied())
    }

    /// Copies as many bytes as fit, from this index on; returns them.
    pub fn copy_to(self, from: usize, buffer: &mut [u8]) -> &[u8] {
        let n = buffer.len().min(self.len.saturating_sub(from));
        for (to, i) in buffer[..n].iter_mut().zip(from..) {
            *to = self.byte(i).unwrap_or_default();
        }
        &buffer[..n]
    }
}

/// A short text of the VM's, copied.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; 64],
    len: usize,
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The text that a C string of the VM holds, up to 64 bytes.
pub fn c_string(at: u64) -> Option<Name> {
    let whole = slice(at, 64, 64).or_else(|| slice(at, (4096 - (at & 4095) as usize).min(64), 64))?;
    let mut name = Name { bytes: [0; 64], len: whole.len() };
    let (words, _) = name.bytes.as_chunks_mut();
    for (i, to) in words.iter_mut().enumerate() {
        let Some(word) = whole.word(8 * i) else { break };
        *to = word.to_le_bytes();
        if let Some(end) = to.iter().position(|b| *b == 0) {
            name.len = 8 * i + end;
            return Some(name);
        }
    }
    // The string may lie in the last bytes of a page, the next one being unreadable.
    let read = whole.len() & !7;
    whole.copy_to(read, &mut name.bytes[read..]);
    name.len = read + name.bytes[read..whole.len()].iter().position(|b| *b == 0).unwrap_or(whole.len() - read);
    Some(name)
}

/// What is known about pages is the process's, so tests that change it run one at a time.
#[cfg(test)]
pub static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
pub fn is_map_vague() -> bool {
    MAP_IS_VAGUE.load(SeqCst)
}

#[cfg(test)]
pub fn consult_again() {
    MAP_IS_VAGUE.store(false, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies of the text at every distance from the end of a page, the next page being unreadable.
    #[test]
    fn a_string_at_the_end_of_a_page_is_read_to_its_end() {
        let pages = os::map_private(8192, 4096).expect("two pages");
        let end = pages as usize + 4096;
        // It stays mapped, so that no other test gets its address, and makes it readable for a moment.
        // SAFETY: our own page.
        assert_eq!(unsafe { ::libc::mprotect(end as *mut ::libc::c_void, 4096, ::libc::PROT_NONE) }, 0);
        for length in 0..70usize {
            let at = end - 1 - length;
            for i in 0..length {
                // SAFETY: in the first page.
                unsafe { ((at + i) as *mut u8).write(b'a' + (i % 26) as u8) };
            }
            // SAFETY: its last byte.
            unsafe { ((end - 1) as *mut u8).write(0) };
            let name = c_string(at as u64).expect("it can be read");
            assert_eq!(name.len(), length.min(64), "{length}");
            assert!(name.iter().enumerate().all(|(i, b)| *b == b'a' + (i % 26) as u8), "{length}");
        }
    }

    /// The map that the next test consults. Nothing is mapped at these addresses, so the kernel would refuse.
    fn map(address: u64) -> Option<Mapped> {
        let page = address >> 12;
        let known = [(0x6_2000_0010..0x6_2000_0040, false), (0x6_2000_0040..0x6_2000_0050, true)];
        let (pages, is_file) = known.into_iter().find(|(pages, _)| pages.contains(&page))?;
        (!GONE.load(SeqCst)).then_some(Mapped { range: pages.start << 12..pages.end << 12, is_file })
    }
    static GONE: AtomicBool = AtomicBool::new(false);

    #[test]
    fn what_the_map_proves_holds_until_a_hook_sees_some_of_it_unmapped() {
        let _one = ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
        let base = 0x6_2000_0000_u64;
        let unmap = |first: u64, pages: u64| forget((first as usize) << 12..((first + pages) as usize) << 12);
        consult(map);
        assert!(page(base + 0x10) && page(base + 0x3f) && !page(base + 0xf));
        assert!(!page(base + 0x41), "the kernel is queried about the last page of a file's range");
        // A proven range stays proven without the map.
        GONE.store(true, SeqCst);
        assert!(page(base + 0x20));
        unmap(base + 0x50, 0x10);
        assert!(page(base + 0x21), "something else was unmapped");
        unmap(base + 0x30, 1);
        assert!(page(base + 0x21), "this page was noted by itself");
        assert!(!page(base + 0x30) && !page(base + 0x22));
        // Once more, from the range's first page.
        GONE.store(false, SeqCst);
        assert!(page(base + 0x22));
        GONE.store(true, SeqCst);
        unmap(base + 0x8, 0x9);
        assert!(!page(base + 0x23));
        // Memory that a hook saw guarded by other means than its protection.
        GONE.store(false, SeqCst);
        assert!(page(base + 0x23));
        map_is_vague();
        assert!(!page(base + 0x23));
        MAP_IS_VAGUE.store(false, SeqCst);
        assert!(page(base + 0x23));
        crate::hook::mapping::keyed(0);
        assert!(page(base + 0x23));
        crate::hook::mapping::keyed(1);
        assert!(!page(base + 0x23));
        MAP_IS_VAGUE.store(false, SeqCst);
        assert!(page(base + 0x23));
        crate::hook::mapping::advised(0, 4096, 102, || 0);
        assert!(!page(base + 0x23));
        MAP_IS_VAGUE.store(false, SeqCst);
        MAP.store(0, SeqCst);
    }

    #[test]
    fn a_page_is_trusted_until_it_is_forgotten_or_the_reading_ends() {
        let _one = ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
        // Nothing is mapped there, so the kernel would refuse.
        let page = 0x6_0000_0123_u64;
        let range = || core::iter::once((page as usize - 1) << 12..(page as usize + 1) << 12);
        trusting(range(), || {
            assert!(super::page(page) && !super::page(page + 1));
            forget((page as usize) << 12..((page as usize) << 12) + 4096);
            assert!(!super::page(page));
        });
        trusting(range(), || ());
        assert!(!super::page(page));
    }
}
