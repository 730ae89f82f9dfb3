//! Keys of small blocks in an array of their page, over allocators that keep blocks of one size on a page: jemalloc and
//! gperftools' tcmalloc.
//!
//! ```text
//! address     46      30 29      12 11         0
//!             │ GiB  17 │ page  18 │ offset 12 │
//!                  │         │          └───────────── offset / size ────────────┐
//! directory ───────┘         │                                                   │
//! leaf      ─────────────────┘                                                   ▼
//! page words  63                8 7      0          array   4 B      4 B each
//! even lane   │ array's address  │ class  │ ──────────▶    │ capacity │ entry │ entry │ …
//! odd lane    │ array's address  │ class  │ ──────────▶    │ capacity │ entry │ entry │ …
//!
//! entry       31        30    11 10       0
//!             │ sampled │ row 20 │ slack 11 │                  row 0: none, as row 0 is never used
//! class       63        32 31            0
//!             │ size      │ 2^24 / size   │                    one for each size of the allocator up to 4 KiB
//! ```
//!
//! Requested bytes are usable bytes minus slack. Blocks on a page are at least `size` apart, so no two of them have the
//! same quotient. It doesn't matter where on the page the first one begins.
//!
//! A trailer would suffice for most blocks, but then malloc and free don't know beforehand which way a block goes, and
//! the CPU guesses wrong (docs/decisions/blocks.md). A table by a hash has lines with entries of several threads. An
//! array has entries of one page only, and threads of different [`STRIPES`] get their arrays from different lines.
//!
//! tcmalloc gives blocks of one page to several threads, and sixteen entries share a line. So a page has an array for
//! each of two lanes: threads with odd slot numbers use one, the others the other. A block's key is in the lane of the
//! thread that booked it. A release looks into its own thread's lane first. A page that one thread uses has one array.
//!
//! # Order
//!
//! Only the thread that holds a block reads or writes its entry. That is the thread that has got the block from malloc
//! and has not returned it yet, or the thread that frees it. An allocator gives a page to blocks of another size only
//! when it has none left, and each of them had its entry cleared before. So a page's words change only while no entry
//! of the old size is in use, and never while an entry of the new size is in use. The other lane's word gets the new
//! class first, if there is one. Then the word of the thread's own lane gets it. A thread that gets a block of a page
//! may still read an old word. Then the class differs, and the thread exchanges the word, or finds that another thread
//! has done so. An array's capacity never changes, and its memory is never freed. It serves all sizes that it has
//! enough entries for, so a page has several in a lane only if they grew.
//!
//! A function that isn't hooked may have freed a block, whose entry stays. The next block at that address that is
//! booked in this lane replaces or clears it. An entry never passes for an entry of another class: leftover entries are
//! cleared before a page changes its class. Meanwhile the page is [`BUSY`], and blocks there have their keys elsewhere.
//! Two cases remain: the address goes to a block that isn't booked, or that is booked in one lane and freed in the
//! other. Its release is then booked with the old key, as long as the page has its class.
//!
//! A page may have blocks of two sizes at once: gperftools' emergency arena has such pages, while gperftools walks a
//! stack. Such a page loses keys each time that the size changes, and their blocks stay live in the books.
//!
//! `hook/malloc/x86_64/pages.rs` has the steps of [`insert`] and [`take`] for a page that has an array already.

use crate::account::blocks::{Key, OTHER_BELOW};
use crate::segment::{PAGE_DIRECTORY, WIPED};
use crate::sys::cpu::{SLOT_MARK, tls_get};
use crate::sys::os;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{Purpose, Section};

/// log2 of the bytes of a page.
pub const PAGE_SHIFT: u32 = 12;
/// log2 of the bytes of address space that a leaf has words for.
pub const LEAF_SHIFT: u32 = 30;
/// Words of the directory: user space ends at 2^47, unless a program asks for more (x86_64/mm.rst).
pub const LEAVES: usize = 1 << (47 - LEAF_SHIFT);
/// Pages that a leaf has words for.
pub const LEAF: usize = 1 << (LEAF_SHIFT - PAGE_SHIFT);
/// Words of a page.
pub const LANES: usize = 2;
/// Low bits of a page word, which have the class.
const CLASS: u64 = (1 << CLASS_BITS) - 1;
/// See [`CLASS`].
pub const CLASS_BITS: u32 = 8;
/// First bit of an entry's row.
pub const ROW_SHIFT: u32 = 11;
/// Bits of an entry that have the slack.
pub const SLACK: u32 = (1 << ROW_SHIFT) - 1;
/// Class of a page whose array is being cleared. Its blocks have no bytes, so no entry is valid.
const BUSY: u64 = 2;
/// The block is among the live samples.
const SAMPLED: u32 = 1 << 31;
const ROWS: u32 = Section::Rows.capacity() as u32 - 1;
const _: () = assert!((ROWS as u64) << ROW_SHIFT < SAMPLED as u64);
/// An offset times [`reciprocal`] has the quotient above this bit.
pub const QUOTIENT_SHIFT: u32 = 24;
/// Bytes of an entry, and of the capacity in front of the entries.
pub const ENTRY: usize = size_of::<AtomicU32>();
/// Bytes are handed out in multiples of this.
const UNIT: usize = 8;
/// Bytes of the first chunks that arrays are cut from. Later ones are larger, up to 64 times.
const CHUNK: usize = 64 << 10;
/// Threads with slot numbers that differ in the low bits take arrays from different chunks.
const STRIPES: usize = 8;
/// Low bits of a stripe's word: units that its chunk has left.
const LEFT_BITS: u32 = 20;
const _: () = assert!((CHUNK << 6) / UNIT < 1 << LEFT_BITS);

/// Size and reciprocal of each class; [`byte`] is its place.
pub static CLASSES: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// Place in [`CLASSES`] of each size, in steps of eight bytes. 0: there is none.
static OF_SIZE: [AtomicU8; OTHER_BELOW / 8 + 1] = [const { AtomicU8::new(0) }; OTHER_BELOW / 8 + 1];
static CHUNKS: AtomicUsize = AtomicUsize::new(0);
/// The rest of a chunk for each stripe: address / 8, and the units from there on.
static REST: [AtomicU64; STRIPES] = [const { AtomicU64::new(0) }; STRIPES];

/// The low byte of a class's page words. Its two low bits are set, as in no other entry of
/// [`SIZES`](crate::account::classes::SIZES).
fn byte(class: usize) -> u8 {
    (class << 2 | 3) as u8
}

/// Makes the arrays' directory, for an allocator with these sizes. Called while no block is booked. False: there are no
/// arrays. Once there are, a later call (another attach) keeps them: small blocks have no trailers since
/// ([`small_keys_are_in_pages`](crate::account::blocks::small_keys_are_in_pages)).
pub fn enable(sizes: &[u16]) -> bool {
    OF_SIZE.iter().for_each(|class| class.store(0, Relaxed));
    let is_made = PAGE_DIRECTORY.load(Relaxed) != 0;
    // Under a limit on address space, leaves of 4 MiB are too large.
    if os::is_tight() && !is_made || sizes.len() > 1 << (CLASS_BITS - 2) {
        return false;
    }
    for (class, size) in sizes.iter().enumerate().filter(|(_, size)| **size as usize <= OTHER_BELOW) {
        CLASSES[byte(class) as usize].store((*size as u64) << 32 | reciprocal(*size as usize), Relaxed);
        OF_SIZE[*size as usize / 8].store(byte(class), Relaxed);
    }
    if is_made {
        return true;
    }
    let Some(p) = os::table(LEAVES * size_of::<AtomicUsize>(), Purpose::SideTable) else { return false };
    PAGE_DIRECTORY.store(p as usize, Release);
    true
}

/// With offsets below 2^12, the quotient is exact. The error of the reciprocal is below 1, so the error of the product
/// is below 2^12, and 2^24 / size is at least 2^12.
fn reciprocal(size: usize) -> u64 {
    (1u64 << QUOTIENT_SHIFT).div_ceil(size as u64)
}

/// Class of blocks of this size for a request of `n` bytes, as it stands in
/// [`SIZES`](crate::account::classes::SIZES). `None`: they have their keys elsewhere, as blocks for requests of 0
/// bytes.
pub fn class_of(size: usize, n: usize) -> Option<u16> {
    let class = OF_SIZE.get(size / 8)?.load(Relaxed);
    let is_class = CLASSES[class as usize].load(Relaxed) >> 32 == size as u64;
    (class != 0 && is_class && n > 0 && size.wrapping_sub(n) <= SLACK as usize).then_some(class as u16)
}

/// Word `i` of one of the tracker's tables, by the table's address.
///
/// # Safety
/// `table` is 0, or the address of a table of `of` words that is never unmapped.
unsafe fn word_of<T>(table: usize, i: usize, of: usize) -> Option<&'static T> {
    // SAFETY: the caller's contract.
    (table != 0 && i < of).then(|| unsafe { &*(table as *const T).add(i) })
}

/// The leaf of an address, in this directory.
fn leaf_of(directory: usize, p: usize) -> Option<&'static AtomicUsize> {
    // SAFETY: 0 or what `enable` reserved.
    unsafe { word_of(directory, p >> LEAF_SHIFT, LEAVES) }
}

/// The words of a page, by lane.
type Page = [AtomicU64; LANES];

/// The lane of this thread.
#[inline(always)]
fn lane() -> usize {
    tls_get::<SLOT_MARK>() % LANES
}

/// The page of an address, if its leaf exists.
#[inline(always)]
fn page_of(p: *mut u8) -> Option<&'static Page> {
    let p = p as usize;
    let leaf = leaf_of(WIPED.pages.load(Relaxed), p)?.load(Acquire);
    // SAFETY: 0 or what `page_made` reserved.
    unsafe { word_of(leaf, p >> PAGE_SHIFT & (LEAF - 1), LEAF) }
}

/// As [`page_of`]; makes the leaf if it is missing.
#[cold]
fn page_made(p: *mut u8) -> Option<&'static Page> {
    let leaf = leaf_of(WIPED.pages.load(Relaxed), p as usize)?;
    if leaf.load(Acquire) == 0 {
        let fresh = os::table(LEAF * size_of::<Page>(), Purpose::SideTable)? as usize;
        // If another thread was first, ours stays reserved and untouched.
        let _ = leaf.compare_exchange(0, fresh, AcqRel, Relaxed);
    }
    page_of(p)
}

/// The entry of a block on a page with this word, which isn't 0, and the usable bytes.
#[inline(always)]
fn entry_of(word: u64, p: *mut u8) -> (&'static AtomicU32, usize) {
    let class = CLASSES[(word & CLASS) as usize].load(Relaxed);
    let offset = p as u64 & ((1 << PAGE_SHIFT) - 1);
    let i = (offset * (class & u32::MAX as u64)) >> QUOTIENT_SHIFT;
    let at = (word >> CLASS_BITS) as usize + ENTRY + i as usize * ENTRY;
    // SAFETY: the array has an entry for each quotient of this class (`capacity`), and is never unmapped.
    (unsafe { &*(at as *const AtomicU32) }, (class >> 32) as usize)
}

/// A block's entry, its key and its usable bytes: of this thread's lane, else of the other.
#[inline(always)]
fn find(p: *mut u8) -> Option<(&'static AtomicU32, Key, usize)> {
    let (page, own) = (page_of(p)?, lane());
    [&page[own], &page[own ^ 1]].into_iter().find_map(|word| {
        let word = word.load(Acquire);
        let (entry, usable) = (word != 0).then(|| entry_of(word, p))?;
        Some((entry, key_of(entry.load(Relaxed), usable)?, usable))
    })
}

/// Entries of an array for blocks of this size.
fn capacity(size: usize) -> usize {
    ((1 << PAGE_SHIFT) - 1) / size + 1
}

/// Prepares the page of a block of `usable` bytes, `n` of them requested. False: its key must be elsewhere.
pub fn prepare(p: *mut u8, usable: usize, n: usize) -> bool {
    if WIPED.pages.load(Relaxed) == 0 {
        return false;
    }
    class_of(usable, n).and_then(|class| prepared(p, class, usable)).is_some()
}

/// The word of a block's page in this thread's lane, for its class.
fn prepared(p: *mut u8, class: u16, usable: usize) -> Option<u64> {
    let (page, own) = (page_of(p).or_else(|| page_made(p))?, lane());
    if page[own].load(Acquire) & CLASS != class as u64 && page[own ^ 1].load(Acquire) != 0 {
        changed(&page[own ^ 1], class, usable)?;
    }
    changed(&page[own], class, usable)
}

/// Gives the page word this class. Returns the word that is then in force.
fn changed(page: &AtomicU64, class: u16, usable: usize) -> Option<u64> {
    loop {
        let word = page.load(Acquire);
        if word & CLASS == class as u64 {
            return Some(word);
        }
        if word & CLASS == BUSY {
            return None;
        }
        let entries = capacity(usable);
        let is_enough = word != 0 && capacity_of(word) >= entries;
        let array = if is_enough { word >> CLASS_BITS } else { make_array(entries)? };
        let new = array << CLASS_BITS | class as u64;
        let is_clean = !is_enough || entries_of(word).all(|entry| entry.load(Relaxed) == 0);
        let next = if is_clean { new } else { array << CLASS_BITS | BUSY };
        // Another thread with a block of this page may be first; then its array serves.
        if page.compare_exchange(word, next, AcqRel, Relaxed).is_ok() {
            if !is_clean {
                entries_of(word).for_each(|entry| entry.store(0, Relaxed));
                page.store(new, Release);
            }
            return Some(new);
        }
    }
}

/// Entries of the array that a page word names.
fn capacity_of(word: u64) -> usize {
    // SAFETY: the word isn't 0, so its array begins with the capacity.
    unsafe { (*((word >> CLASS_BITS) as *const AtomicU32)).load(Relaxed) as usize }
}

/// All entries of this array.
fn entries_of(word: u64) -> impl Iterator<Item = &'static AtomicU32> {
    let first = ((word >> CLASS_BITS) as usize + ENTRY) as *const AtomicU32;
    // SAFETY: the array has `capacity_of(word)` entries, and is never unmapped.
    (0..capacity_of(word)).map(move |i| unsafe { &*first.add(i) })
}

/// A fresh array of free entries.
fn make_array(entries: usize) -> Option<u64> {
    let units = ((entries + 1) * ENTRY).div_ceil(UNIT) as u64;
    let rest = &REST[tls_get::<SLOT_MARK>() % STRIPES];
    loop {
        let word = rest.load(Acquire);
        let (at, left) = (word >> LEFT_BITS, word & ((1 << LEFT_BITS) - 1));
        if left < units {
            let bytes = CHUNK << (CHUNKS.fetch_add(1, Relaxed) / STRIPES).min(6);
            let chunk = os::table(bytes, Purpose::SideTable)? as usize / UNIT;
            // If another thread of the stripe was first, ours stays reserved and untouched.
            let _ = rest.compare_exchange(word, (chunk as u64) << LEFT_BITS | (bytes / UNIT) as u64, AcqRel, Relaxed);
            continue;
        }
        if rest.compare_exchange(word, (at + units) << LEFT_BITS | (left - units), AcqRel, Relaxed).is_ok() {
            let array = at * UNIT as u64;
            // SAFETY: claimed by the exchange, for this thread alone; memory of ours that is never unmapped.
            unsafe { (*(array as *const AtomicU32)).store(entries as u32, Relaxed) };
            return Some(array);
        }
    }
}

/// Inserts a block with these usable bytes. False: its key must be elsewhere; an old entry is cleared.
#[inline(always)]
pub fn insert(p: *mut u8, usable: usize, key: Key) -> bool {
    if WIPED.pages.load(Relaxed) == 0 {
        return false;
    }
    insert_in_page(p, usable, key)
}

fn insert_in_page(p: *mut u8, usable: usize, key: Key) -> bool {
    let class = class_of(usable, key.requested as usize);
    let Some(word) = class.and_then(|class| prepared(p, class, usable)) else {
        // Clears an old entry. Its row still has the old block, so `table_removes` doesn't count it.
        // On a page that is BUSY, the place isn't this block's, and all entries are being cleared.
        for word in page_of(p).into_iter().flatten().map(|word| word.load(Acquire)).filter(|word| *word != 0) {
            let (entry, usable) = entry_of(word, p);
            if usable != 0 && entry.load(Relaxed) != 0 {
                entry.store(0, Relaxed);
            }
        }
        return false;
    };
    let sampled = if key.sampled { SAMPLED } else { 0 };
    let slack = usable as u32 - key.requested as u32;
    super::count_insert();
    entry_of(word, p).0.store(sampled | (key.row & ROWS) << ROW_SHIFT | slack, Relaxed);
    true
}

/// Looks a block up.
#[inline(always)]
pub fn get(p: *mut u8) -> Option<Key> {
    find(p).map(|(_, key, _)| key)
}

#[inline(always)]
fn key_of(word: u32, usable: usize) -> Option<Key> {
    let requested = (usable as u64).checked_sub((word & SLACK) as u64).filter(|requested| *requested > 0)?;
    let row = word >> ROW_SHIFT & ROWS;
    (row != 0).then_some(Key { row, requested, sampled: word & SAMPLED != 0 })
}

/// Removes a block. Returns its key and its usable bytes.
#[inline(always)]
pub fn take(p: *mut u8) -> Option<(Key, usize)> {
    let (entry, key, usable) = find(p)?;
    entry.store(0, Relaxed);
    super::count_remove();
    Some((key, usable))
}

/// New books: removes all blocks. Pages keep their arrays.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books() {
    let directory = PAGE_DIRECTORY.load(Acquire);
    for leaf in (0..LEAVES).map_while(|i| leaf_of(directory, i << LEAF_SHIFT)).map(|leaf| leaf.load(Acquire)) {
        // SAFETY: 0 or a leaf of ours.
        let pages = (0..LEAF).map_while(|i| unsafe { word_of::<Page>(leaf, i, LEAF) });
        for word in pages.flatten().map(|word| word.load(Relaxed)) {
            if word != 0 {
                entries_of(word).filter(|entry| entry.load(Relaxed) != 0).for_each(|entry| entry.store(0, Relaxed));
            }
        }
    }
}
