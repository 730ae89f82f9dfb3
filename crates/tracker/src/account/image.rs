//! Native images with their own NMT: the VM's category is read from the block.
//!
//! Such an image writes a header into the first 16 bytes of each block that it takes (core/nmt/NmtMallocHeader.java of
//! oracle/graal): `u64 size; u32 category; u32 magic`. Without assertions the magic isn't written, and the word keeps
//! what was there. The header is written after malloc has returned, so the category is unknown at that moment. It is
//! read at the same thread's next call of a hook: by then the thread has written the header ([`super::pending`]).
//!
//! The category is an ordinal of an enum that changes between versions, and only some versions' lists are known. A
//! block of another version is booked as `VM category 16`.
//!
//! An image either has NMT, and then the first block of its Java code begins with a header, or never writes one. So
//! after 256 such blocks without a header, the tracker looks for no more headers, and the image's calls take the fast
//! path.

use crate::account::vmas::Placement;
use crate::segment::{Segment, categories};
use crate::stack::module;
use crate::stack::read::peek;
use crate::sys::elf;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::vmap::MappingKind;
use plimsoll_segment::{CategoryKind, NATIVE_IMAGE_CATEGORIES};

/// Categories by ordinal, of Java 23 (core/nmt/NmtCategory.java); 25.0 has [`NATIVE_IMAGE_CATEGORIES`].
const OF_23: &[&str] = &[
    "Compiler",
    "Code",
    "GC",
    "Heap Dump",
    "JFR",
    "JNI",
    "jvmstat",
    "Native Memory Tracking",
    "PGO",
    "Threading",
    "Unsafe",
    "Internal",
];
const MAGIC: u32 = 0xF0F1_F2F3;
/// Bytes of a header.
pub const HEADER: usize = 16;

/// Ordinals of unknown versions are smaller.
const MOST_UNNAMED: u32 = 24;

/// Major version of Java; 0: no native image.
static VERSION: AtomicU32 = AtomicU32::new(0);
/// GraalVM's release, as major << 16 | minor; 0: not known.
static RELEASE: AtomicU32 = AtomicU32::new(0);
static HEADERS: AtomicU32 = AtomicU32::new(NONE);
/// The executable's first address, and one past its last.
static EXTENT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// No native image, or one without NMT: its blocks have no headers.
pub const NONE: u32 = 0;
/// A native image; no header was seen yet.
pub const UNKNOWN: u32 = 1;
/// It has NMT: the VM writes a header into each of its blocks.
pub const WRITTEN: u32 = 2;
/// No header is expected any more; blocks that were noted before are still settled.
pub const ENDING: u32 = 3;

/// What is known about the VM's headers.
#[inline(always)]
pub fn headers() -> u32 {
    HEADERS.load(SeqCst)
}

/// Whether a block may begin with the VM's header. If so, all calls take the slow path.
#[inline(always)]
pub fn may_have_headers() -> bool {
    // Acquire: a thread that reads NONE also sees what the claimers of blocks have written.
    HEADERS.load(Acquire) != NONE
}

/// Enters a new state, if the old one is still in force.
pub fn change_headers(old: u32, new: u32) -> bool {
    HEADERS.compare_exchange(old, new, SeqCst, Relaxed).is_ok()
}
static KNOWN: [AtomicU16; 32] = [const { AtomicU16::new(0) }; 32];

/// Whether this process is a native image.
pub fn is_image() -> bool {
    VERSION.load(Relaxed) != 0
}

/// Whether an address lies in the executable of this image: true if its extent isn't known.
pub fn holds(address: u64) -> bool {
    (EXTENT[0].load(Relaxed)..EXTENT[1].load(Relaxed)).contains(&(address as usize))
}

/// Examines the executable. Called at boot.
pub fn init() {
    let Some(exe) = elf::objects().next() else { return };
    if exe.symbol(module::NATIVE_IMAGE).is_none() {
        return;
    }
    // SAFETY: the image exports the C string `com.oracle.svm.core.VM.Java.Version=25.0.3`.
    let major = exe.symbol(c"__svm_vm_java_version").map_or(0, |p| unsafe {
        let text = CStr::from_ptr(p as *const c_char).to_bytes();
        text.iter()
            .skip_while(|b| **b != b'=')
            .skip(1)
            .take_while(|b| b.is_ascii_digit())
            .take(3)
            .fold(0u32, |n, b| n * 10 + (b - b'0') as u32)
    });
    // SAFETY: the image exports the C string `com.oracle.svm.core.VM=GraalVM CE 25.0.2+10.1`.
    let of_vm = exe.symbol(module::NATIVE_IMAGE).and_then(|p| unsafe {
        let text = CStr::from_ptr(p as *const c_char).to_bytes();
        release(text)
    });
    RELEASE.store(of_vm.map_or(0, |(major, minor)| (major << 16) | minor), Relaxed);
    let (start, end, _) = exe.extent(|_| true).unwrap_or((0, usize::MAX, 0));
    EXTENT[0].store(start, Relaxed);
    EXTENT[1].store(end, Relaxed);
    VERSION.store(major.max(1), Relaxed);
    HEADERS.store(UNKNOWN, Relaxed);
}

/// Category of the image heap's mappings, plus 1; 0 before the first of them.
static IMAGE_HEAP: AtomicU32 = AtomicU32::new(0);

/// Category of a mapping that an image (executable or library) makes itself, and how it is booked if the image chose
/// the address. Anonymous memory is its Java heap: the reservation of an isolate, and the chunks committed in it. A
/// file mapped over the reservation is the image heap, which replaces that part and doesn't commit it. Anonymous memory
/// over the image heap has its relocated pages: it stays image heap. Files mapped elsewhere are the program's
/// (AddressRangeCommittedMemoryProvider, ImageHeapProvider of oracle/graal).
pub fn mapping_category(segment: Segment, innermost: u64, kind: MappingKind, fixed: bool) -> Option<(u16, Placement)> {
    if !module::in_image(segment, innermost) {
        return None;
    }
    match kind {
        MappingKind::Anonymous => {
            let category = categories::register(segment, b"Java Heap", CategoryKind::Vm);
            let heap = IMAGE_HEAP.load(Relaxed).checked_sub(1);
            Some((category, heap.map_or(Placement::Fixed, |heap| Placement::FixedKeeping(heap as u16))))
        }
        MappingKind::File | MappingKind::Shared if fixed => {
            let category = categories::register(segment, b"Image Heap", CategoryKind::Vm);
            IMAGE_HEAP.store(u32::from(category) + 1, Relaxed);
            Some((category, Placement::Chosen))
        }
        _ => None,
    }
}

/// Major and minor version in the VM's text: of `…=GraalVM CE 25.0.2+10.1`, `…=Mandrel-25.0.2.0-Final`, and
/// `…=Oracle GraalVM 25+37.1` the same.
pub fn release(text: &[u8]) -> Option<(u32, u32)> {
    let mut rest = text.iter().skip_while(|b| **b != b'=').skip_while(|b| !b.is_ascii_digit()).peekable();
    let mut number = || {
        let mut number: Option<u32> = None;
        while let Some(digit) = rest.next_if(|b| b.is_ascii_digit()) {
            // No version has five digits.
            number = Some((number.unwrap_or(0) * 10 + u32::from(digit - b'0')) % 10_000);
        }
        (number, rest.next())
    };
    match number() {
        (Some(major), Some(b'.')) => Some((major, number().0.unwrap_or(0))),
        (major, _) => major.map(|major| (major, 0)),
    }
}

/// The names by ordinal in an image with this major version of Java and this release of GraalVM. None: the list of this
/// version isn't known. Java 24 and GraalVM 25.1 have other lists than their predecessors.
pub fn names(java: u32, release: Option<(u32, u32)>) -> Option<&'static [&'static str]> {
    match (java, release) {
        (..=23, _) => Some(OF_23),
        (25, None | Some((25, 0))) => Some(NATIVE_IMAGE_CATEGORIES),
        _ => None,
    }
}

/// The VM's category of a block, if the block begins with the VM's header.
///
/// # Safety
/// `p` is a block of that many bytes that nobody can free.
pub unsafe fn category(segment: Segment, p: *mut u8, requested: u64) -> Option<u16> {
    if requested < HEADER as u64 {
        return None;
    }
    let at = p as u64;
    // SAFETY: the block has at least 16 bytes; volatile, since the program may be writing them.
    let (size, ordinal, magic) = unsafe { (peek::<u64>(at), peek::<u32>(at + 8), peek::<u32>(at + 12)) };
    let may_be_magic = magic == 0 || magic == MAGIC || headers() == WRITTEN;
    if size != requested - HEADER as u64 || !may_be_magic {
        return None;
    }
    let cell = KNOWN.get(ordinal as usize)?;
    let known = cell.load(Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let release = Some(RELEASE.load(Relaxed)).filter(|release| *release != 0);
    let mut unnamed = *b"VM category 00";
    let name = match names(VERSION.load(Relaxed), release.map(|release| (release >> 16, release & 0xffff))) {
        Some(names) => names.get(ordinal as usize)?.as_bytes(),
        None if ordinal < MOST_UNNAMED => {
            unnamed[12] = b'0' + (ordinal / 10) as u8;
            unnamed[13] = b'0' + (ordinal % 10) as u8;
            unnamed.as_slice()
        }
        None => return None,
    };
    let c = categories::register(segment, name, CategoryKind::Vm);
    cell.store(c + 1, Relaxed);
    Some(c)
}
