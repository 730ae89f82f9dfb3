//! Native images with their own NMT: the VM's category, read from the block.
//!
//! Such an image writes a header into the first 16 bytes of each block that it takes (core/nmt/NmtMallocHeader.java of
//! oracle/graal): `u64 size; u32 category; u32 magic` (the magic only with assertions on). It does so after malloc has
//! returned, so the category can't be known at that moment. It is read at the same thread's next call of a hook: between
//! the two there is nothing but the writing of the header.
//!
//! Until then the block is *pending* in its thread's word, and booked under the image. Whoever frees it first takes it out
//! of that word, so that nobody looks into a block that is gone:
//!
//! ```text
//! 0 ── malloc ──▶ address ── next hook: claims ──▶ address | 1 ── re-booked ──▶ 0
//!                    └── free by another thread ──▶ 0           (a claimed one is waited for)
//! ```

use super::blocks::{self, Key};
use super::keys::{set_key, take_key};
use super::rows::{self, Amount};
use super::segment::Segment;
use super::thread::{self, ThreadState};
use super::{callers, categories, samples};
use crate::stack::module;
use crate::stack::read::peek;
use crate::sys::{elf, os};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::vmap::Kind;
use plimsoll_segment::{CategoryKind, Counter, NATIVE_IMAGE_CATEGORIES};

/// Categories by ordinal, core/nmt/NmtCategory.java, of 23 and 24; 25 has [`NATIVE_IMAGE_CATEGORIES`].
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
const HEADER: usize = 16;

static VERSION: AtomicU32 = AtomicU32::new(0);
static KNOWN: [AtomicU16; 32] = [const { AtomicU16::new(0) }; 32];

/// Whether this process is a native image.
pub fn is_image() -> bool {
    VERSION.load(Relaxed) != 0
}

/// Looks at the executable. Called at boot.
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
    VERSION.store(major.max(1), Relaxed);
}

/// Category of a mapping that an image, executable or library, makes itself: anonymous memory is its Java heap (the reservation of an isolate, and
/// the chunks committed in it), a file mapped over its reservation is the image heap. Files mapped elsewhere are the
/// program's (AddressRangeCommittedMemoryProvider, ImageHeapProvider of oracle/graal).
pub fn mapping_category(segment: Segment, innermost: u64, kind: Kind, fixed: bool) -> Option<u16> {
    if !module::in_image(segment, innermost) {
        return None;
    }
    let name: &[u8] = match kind {
        Kind::Anonymous => b"Java Heap",
        Kind::File | Kind::Shared if fixed => b"Image Heap",
        _ => return None,
    };
    Some(categories::register(segment, name, CategoryKind::Vm))
}

fn names() -> &'static [&'static str] {
    if VERSION.load(Relaxed) >= 25 { NATIVE_IMAGE_CATEGORIES } else { OF_23 }
}

/// The VM's category of a block, if its first bytes are a header of it.
///
/// # Safety
/// `p` is a block of that many bytes that nobody can free.
unsafe fn category(segment: Segment, p: *mut u8, requested: u64) -> Option<u16> {
    if requested < HEADER as u64 {
        return None;
    }
    let at = p as u64;
    // SAFETY: the block has at least 16 bytes; volatile, since the program may be writing them.
    let (size, ordinal, magic) = unsafe { (peek::<u64>(at), peek::<u32>(at + 8), peek::<u32>(at + 12)) };
    if size != requested - HEADER as u64 || (magic != 0 && magic != MAGIC) {
        return None;
    }
    let name = names().get(ordinal as usize)?;
    let cell = KNOWN.get(ordinal as usize)?;
    let known = cell.load(Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let c = categories::register(segment, name.as_bytes(), CategoryKind::Vm);
    cell.store(c + 1, Relaxed);
    Some(c)
}

/// Notes a block of this thread whose header the VM is about to write.
pub fn note(t: &ThreadState, p: *mut u8) {
    t.shared().pending.store(p as usize, Release);
}

/// At the entry of a hook: the thread's last block has its header now.
pub fn settle(segment: Segment, t: &mut ThreadState) {
    let p = t.shared().pending.load(Relaxed);
    if p == 0 || t.shared().pending.compare_exchange(p, p | 1, AcqRel, Relaxed).is_err() {
        return;
    }
    // SAFETY: claimed: whoever frees the block, other than a handler on top of this, waits in `forget` for this thread.
    unsafe { rebook(segment, t, p as *mut u8) };
    t.shared().pending.store(0, Release);
}

/// # Safety
/// `p` is a live block that nobody can free meanwhile.
unsafe fn rebook(segment: Segment, t: &mut ThreadState, p: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        let usable = blocks::usable(p);
        let Some(Key { row, requested, .. }) = blocks::read_trailer(p, usable).or_else(|| super::table::get(p)) else {
            return;
        };
        let Some(c) = category(segment, p, requested) else { return };
        let old = segment.row(row).caller.load(Relaxed);
        let of = segment.caller(callers::parent(segment, old));
        let mut frames = [0u64; callers::FRAMES];
        let n = (of.depth.load(Relaxed) as usize).min(frames.len());
        for (f, from) in frames.iter_mut().zip(&of.frames).take(n) {
            *f = from.load(Relaxed);
        }
        let mut new = callers::number(segment, &frames[..n], of.flags.load(Relaxed), c as u32 + 1);
        let site = segment.caller(old);
        if site.parent.load(Relaxed) != 0 {
            new = callers::site(segment, new, site.stack.load(Relaxed), site.flags.load(Relaxed));
        }
        if new == old {
            return;
        }
        let Some((key, amount)) = take_key(p) else { return };
        let row = rows::row_for(segment, Some(&mut *t), new);
        let sampled = key.sampled && samples::reassign(segment, p, new);
        let Some(Amount { .. }) = set_key(p, Key { row, sampled, ..key }) else { return };
        rows::free(segment, Some(&mut *t), old, amount);
        rows::alloc(segment, Some(t), new, amount);
        segment.count(Counter::native_image_headers, 1);
    }
}

/// Before a block is freed or moved: no thread may look at it any more.
pub fn forget(segment: Segment, p: *mut u8) {
    let claimed = p as usize | 1;
    for shared in thread::states(segment) {
        let word: &AtomicUsize = &shared.pending;
        if word.load(Relaxed) == p as usize && word.compare_exchange(p as usize, 0, AcqRel, Relaxed).is_ok() {
            return;
        }
        // A handler on top of its own thread's look would wait for ever.
        while word.load(Acquire) == claimed && !thread::is_own(shared) {
            os::sleep_ms(0);
        }
    }
}
