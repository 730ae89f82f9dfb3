//! Loaded objects by address: which object holds a pc, where its unwind table lies, which rules concern it.
//!
//! glibc 2.35 and newer answer without a lock (`_dl_find_object`). Elsewhere the loader's list is read at boot, and
//! again when a pc is unknown and dlopen was called since. Each node is read only after the kernel has confirmed that
//! it is readable. Nothing here ever takes the loader's lock, since a thread in dlopen may hold it for as long as a
//! constructor runs.
//!
//! Known objects are kept by first address. dlopen and dlclose start a new generation. An object that is found again in
//! a later generation is compared by name and build id. If another object has taken its place, that object gets an
//! entry of its own. libc also loads and unloads objects without dlopen (gconv, NSS). So within a generation the
//! extent, the tables and the build id (without one, the name) are compared. If they differ, the code map has changed.

use super::callers;
use crate::segment::categories;
use crate::segment::slots::{GENERATION, forget_stacks};
use crate::segment::{Segment, set_text};
use crate::sys::{elf, libc, os};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::rules::{self, ModuleRules};
use plimsoll_segment::{Counter, Section};

/// What is known about an object. Written once, then read by all threads.
#[derive(Clone, Copy)]
pub struct Module {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Avma = Svma + bias.
    pub bias: usize,
    /// .eh_frame_hdr, and the loaded segment that it lies in; 0 = none.
    pub eh_frame_hdr: usize,
    /// Low end of that segment.
    pub unwind_low: usize,
    /// High end of that segment.
    pub unwind_high: usize,
    /// Index in the segment's module section.
    pub id: u32,
    /// All its code keeps frame pointers: no table has to be read.
    pub keeps_fp: bool,
    /// A native image: methods that no table covers are unwound by their prologues.
    pub is_image: bool,
    /// Nothing of another object lies between the first address and the last.
    pub is_contiguous: bool,
    /// How many frames are worth keeping of a caller whose innermost frame is in this object.
    pub depth: usize,
    /// Rules for the object.
    pub rules: ModuleRules<'static>,
    /// The object's build id, and its address in memory; 0 if the id doesn't lie beside the ELF header.
    build_id: [u64; 2],
    build_id_at: usize,
}

/// An entry of the list.
#[repr(C)]
struct Listed {
    /// The generation of the code map in which the object was last found; 0: the entry isn't complete. The module is
    /// written before this field.
    generation: AtomicU32,
    module: MaybeUninit<Module>,
}

/// What every native image exports, executable or library, of 21 to 25 (oracle/graal, CGlobalDataInfo of VM's version).
pub const NATIVE_IMAGE: &core::ffi::CStr = c"__svm_version_info";

const KNOWN: usize = Section::Modules.capacity();
/// The list of known modules: reserved at init, append-only.
static LIST: AtomicUsize = AtomicUsize::new(0);
/// first address → index in LIST + 1.
static BY_START: [AtomicU16; 2 * KNOWN] = [const { AtomicU16::new(0) }; 2 * KNOWN];
static LISTED: AtomicU32 = AtomicU32::new(0);
/// A native image was met.
static IMAGES: AtomicBool = AtomicBool::new(false);
static SCANNED: AtomicU32 = AtomicU32::new(0);
static MEMO_LAST: AtomicU32 = AtomicU32::new(0);
/// The first object that keeps frame pointers: its index in [`LIST`] + 1; 0 = none.
static KEEPS_FP: AtomicU32 = AtomicU32::new(0);

/// Reserves the list.
pub fn init() -> bool {
    if LIST.load(Relaxed) == 0 {
        match os::private(KNOWN * size_of::<Listed>()) {
            Some(p) => LIST.store(p as usize, Release),
            None => return false,
        }
    }
    true
}

/// Whether a native image was met.
#[inline(always)]
pub fn has_images() -> bool {
    IMAGES.load(Relaxed)
}

/// Whether this return address lies in a native image. Called for each mapping call, so it costs almost nothing without
/// an image.
pub fn in_image(segment: Segment, ra: u64) -> bool {
    IMAGES.load(Relaxed) && ra != 0 && find(segment, ra as usize - 1).is_some_and(|m| m.is_image)
}

fn entry(i: u32) -> Option<*mut Listed> {
    let list = LIST.load(Acquire) as *mut Listed;
    // SAFETY: `init` reserved KNOWN entries, never unmapped.
    (!list.is_null() && (i as usize) < KNOWN).then(|| unsafe { list.add(i as usize) })
}

/// A complete entry, and the generation it was last found in.
fn listed(i: u32) -> Option<(&'static Module, &'static AtomicU32)> {
    let entry = entry(i)?;
    // SAFETY: zeroed, or written by `append`; of one that isn't complete only the atomic is touched.
    let generation = unsafe { &(*entry).generation };
    // SAFETY: written before the generation was stored, and never again.
    (generation.load(Acquire) != 0).then(|| (unsafe { (*entry).module.assume_init_ref() }, generation))
}

/// How many frames are worth keeping of a caller whose innermost frame is at `pc`. Called at every walk, so it doesn't
/// check whether libc has silently replaced the object since.
pub fn depth(segment: Segment, pc: usize) -> usize {
    let last = MEMO_LAST.load(Relaxed);
    if last != 0
        && let Some((m, generation)) = listed(last - 1)
        && (m.start..m.end).contains(&pc)
        && generation.load(Relaxed) == GENERATION.load(Relaxed)
    {
        return m.depth;
    }
    find(segment, pc).map_or(1, |m| m.depth)
}

/// The object whose code keeps frame pointers, if one was met and the code map hasn't changed since. That object is
/// HotSpot, and no library of libc's (gconv, NSS) takes its place without a dlopen. So within a generation the loader
/// need not be queried.
#[inline(always)]
pub fn keeping_frame_pointers() -> Option<&'static Module> {
    let i = KEEPS_FP.load(Acquire);
    if i == 0 {
        return None;
    }
    let (m, generation) = listed(i - 1)?;
    (m.is_contiguous && generation.load(Relaxed) == GENERATION.load(Relaxed)).then_some(m)
}

/// As [`keeping_frame_pointers`], if that object holds `pc`.
#[inline(always)]
pub fn keeping_frame_pointers_at(pc: usize) -> Option<&'static Module> {
    keeping_frame_pointers().filter(|m| (m.start..m.end).contains(&pc))
}

/// The object that holds `pc`.
pub fn find(segment: Segment, pc: usize) -> Option<&'static Module> {
    if let Some(o) = libc::find_object(pc) {
        // SAFETY: the loader's node lives as long as the object, which holds code of a frame of this thread.
        let map = unsafe { &*o.map };
        let object = elf::object(map);
        // An object whose segments have gaps between them (a native image: 64 KiB alignment) is found by segment.
        let whole = if elf::is_header(o.start) { None } else { object.extent(|_| true) };
        let found = match whole {
            Some((start, end, _)) if (start..end).contains(&pc) => (start, end, false),
            _ => (o.start, o.end, true),
        };
        return learn(segment, found, o.eh_frame_hdr, object);
    }
    if libc::other(libc::Other::FindObject) == 0 {
        return scan(segment, pc);
    }
    None
}

/// Notes all loaded objects. Otherwise an object would become known with its first call. Then libraries would seem to
/// be new in the second report after an attach.
pub fn note_loaded(segment: Segment) {
    if libc::other(libc::Other::FindObject) == 0 {
        scan(segment, 0);
        return;
    }
    // The loader's lock keeps each object where it is meanwhile.
    libc::each_loaded(&mut |o| {
        let dynamic = o.dynamic();
        if !o.is_self() && !dynamic.is_empty() {
            find(segment, dynamic.as_ptr() as usize);
        }
    });
}

/// The end of the loaded object that holds an address, in whole pages. `None`: no object does. With glibc before 2.35:
/// none of those that [`note_loaded`] has noted.
pub fn end_of_loaded(at: usize) -> Option<usize> {
    let end = if libc::other(libc::Other::FindObject) != 0 { libc::find_object(at)?.end } else { end_of_noted(at)? };
    Some(end.next_multiple_of(4096))
}

fn end_of_noted(at: usize) -> Option<usize> {
    let generation = GENERATION.load(Relaxed);
    (0..LISTED.load(Acquire).min(KNOWN as u32)).find_map(|i| {
        let (m, found) = listed(i)?;
        let is_there = (m.start..m.end).contains(&at) && found.load(Relaxed) == generation;
        is_there.then_some(m.end)
    })
}

/// A known object that is still loaded, by its file's name. `None` also where glibc is older than 2.35.
pub fn loaded(segment: Segment, file: &[u8]) -> Option<elf::Object> {
    (0..LISTED.load(Acquire).min(KNOWN as u32)).find_map(|i| {
        let (m, _) = listed(i)?;
        let path = segment.module(m.id).path.each_ref().map(|b| b.load(Relaxed));
        if rules::file_name(plimsoll_segment::text(&path)) != file {
            return None;
        }
        // SAFETY: a node that the loader has just named.
        let object = unsafe { elf::object_checked(libc::find_object(m.start)?.map, os::readable) }?;
        (object.bias() == m.bias && rules::file_name(object.name()) == file).then_some(object)
    })
}

/// Without `_dl_find_object`: the list itself.
fn scan(segment: Segment, pc: usize) -> Option<&'static Module> {
    let n = LISTED.load(Acquire);
    let generation = GENERATION.load(Relaxed);
    for i in 0..n {
        if let Some((m, found)) = listed(i)
            && (m.start..m.end).contains(&pc)
            && found.load(Relaxed) == generation
        {
            return Some(m);
        }
    }
    if SCANNED.swap(generation, Relaxed) == generation {
        return None;
    }
    let mut found = None;
    for o in elf::objects_checked(os::readable) {
        if let Some((start, end, hdr)) = o.extent(os::readable) {
            let m = learn(segment, (start, end, false), hdr, o);
            if (start..end).contains(&pc) {
                found = m;
            }
        }
    }
    found
}

/// First address, one past the last, whether the object is contiguous.
type Extent = (usize, usize, bool);

fn learn(segment: Segment, extent: Extent, hdr: usize, object: elf::Object) -> Option<&'static Module> {
    let (start, end, _) = extent;
    let bias = object.bias();
    let generation = GENERATION.load(Relaxed);
    let mut at = (start >> 12).wrapping_mul(0x9e37_79b1) % BY_START.len();
    for _ in 0..BY_START.len() {
        let cell = &BY_START[at];
        let i = cell.load(Acquire);
        if i == 0 {
            break;
        }
        let (m, found) = listed(i as u32 - 1)?;
        if m.start == start {
            let is_old = found.load(Relaxed) != generation;
            if (!is_old && has_build_id(m, end, bias, hdr)) || same(segment, m, end, bias, hdr, object.name(), is_old) {
                if is_old {
                    found.store(generation, Relaxed);
                }
                MEMO_LAST.store(i as u32, Relaxed);
                return Some(m);
            }
            return append(segment, cell, i, extent, hdr, object);
        }
        at = (at + 1) % BY_START.len();
    }
    append(segment, &BY_START[at], 0, extent, hdr, object)
}

/// Whether the object at the address of a known one has its extent, tables and build id. Called for each rule that must
/// be computed. The id is read only where the ELF header is, which the loader has mapped for any object.
fn has_build_id(m: &Module, end: usize, bias: usize, hdr: usize) -> bool {
    let fits = m.build_id_at != 0 && m.end == end && m.bias == bias && (m.eh_frame_hdr == hdr || m.eh_frame_hdr == 0);
    // SAFETY: in the page of the object's ELF header, which is mapped as long as the object is; it holds code of a live
    // frame.
    fits && unsafe { (m.build_id_at as *const [u64; 2]).read_unaligned() } == m.build_id
}

/// Bytes of a path's end that tell objects of one folder apart.
const FILE_NAME: usize = 24;

/// Whether the object at the address of a known object is still that object; `whole`: compares the full path and the
/// build id.
fn same(segment: Segment, m: &Module, end: usize, bias: usize, hdr: usize, name: &[u8], whole: bool) -> bool {
    if m.end != end || m.bias != bias || (m.eh_frame_hdr != hdr && m.eh_frame_hdr != 0) {
        return false;
    }
    let r = segment.module(m.id);
    let tail = &name[name.len().saturating_sub(r.path.len() - 1)..];
    // Without a build id, this is called for each rule that must be computed. For that the file's own name is enough.
    let from = if whole { 0 } else { tail.len().saturating_sub(FILE_NAME) };
    let named = || tail[from..].iter().zip(&r.path[from..]).all(|(b, c)| c.load(Relaxed) == *b);
    let built = |id: &[u8]| id.iter().zip(&r.build_id).all(|(b, c)| c.load(Relaxed) == *b);
    (name.is_empty() || named()) && (!whole || built(elf::build_id(m.start, end, bias)))
}

/// Retires the objects that were known to lie where a new object lies, and their callers. A later caller with the same
/// addresses is a new caller.
fn retire(segment: Segment, start: usize, end: usize, bias: usize, hdr: usize, name: &[u8]) {
    let mut gone = false;
    for i in 0..LISTED.load(Acquire).min(KNOWN as u32) {
        let Some((m, _)) = listed(i) else { continue };
        let r = segment.module(m.id);
        let overlaps = m.start < end && start < m.end && r.unloaded_ns.load(Relaxed) == 0;
        // Another thread may have just added the same object.
        if overlaps && !(m.start == start && same(segment, m, end, bias, hdr, name, true)) {
            r.unloaded_ns.store(crate::sys::clock::ordered_ns(), Relaxed);
            gone = true;
        }
    }
    if gone {
        callers::retire(segment, start as u64..end as u64);
        forget_stacks(segment);
    }
}

fn append(
    segment: Segment,
    cell: &AtomicU16,
    known: u16,
    (start, end, is_contiguous): Extent,
    hdr: usize,
    object: elf::Object,
) -> Option<&'static Module> {
    let (bias, name) = (object.bias(), object.name());
    retire(segment, start, end, bias, hdr, name);
    let Some(id) = segment.append(Section::Modules) else {
        segment.count(Counter::modules_lost, 1);
        return None;
    };
    // The executable has no name in the loader's list. Boot has noted its name, since /proc isn't read after start.
    let path = if name.is_empty() { segment.executable() } else { name };
    let build_id = elf::build_id(start, end, bias);
    let rules = crate::rules::rules()?.module(path, build_id);
    let (unwind_low, unwind_high) = elf::segment_of(start, bias, hdr).unwrap_or((0, 0));
    let file = rules::file_name(path);
    // Deeper frames help only if there are rules for symbols, which examine them.
    let depth = match file {
        b"libjvm.so" if rules.has_symbols() => 8,
        _ if file.starts_with(b"libstdc++") => 5,
        _ => 4,
    };
    let keeps_fp = file == b"libjvm.so";
    if keeps_fp && segment.header().mode.load(Relaxed) != 0 {
        segment.grow_for_vm();
    }
    let id_at = build_id.as_ptr() as usize;
    let beside_header = build_id.len() >= 16 && elf::is_header(start) && (start..start + 4096 - 16).contains(&id_at);
    let m = Module {
        build_id: build_id.first_chunk::<16>().map_or([0; 2], |id| {
            let (words, _) = id.as_chunks::<8>();
            [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
        }),
        build_id_at: if beside_header { id_at } else { 0 },
        // HotSpot is built with -fno-omit-frame-pointer, since its own NMT walks by them (os::get_native_stack);
        // reading its 2 MiB of .eh_frame would make them resident.
        keeps_fp,
        is_image: object.symbol(NATIVE_IMAGE).is_some(),
        is_contiguous,
        start,
        end,
        bias,
        eh_frame_hdr: if unwind_high == 0 { 0 } else { hdr },
        unwind_low,
        unwind_high,
        id,
        depth,
        rules,
    };
    let generation = GENERATION.load(Relaxed);
    let r = segment.module(id);
    r.start.store(start as u64, Relaxed);
    r.end.store(end as u64, Relaxed);
    r.bias.store(bias as u64, Relaxed);
    r.loaded_ns.store(crate::sys::clock::ordered_ns(), Relaxed);
    set_text(&r.path, &path[path.len().saturating_sub(r.path.len() - 1)..]);
    for (c, b) in r.build_id.iter().zip(build_id) {
        c.store(*b, Relaxed);
    }
    r.build_id_bytes.store(build_id.len().min(20) as u16, Relaxed);
    r.category.store(categories::of_module(segment, path, &rules), Relaxed);
    if m.is_image {
        IMAGES.store(true, Relaxed);
    }
    let i = LISTED.fetch_add(1, AcqRel);
    let Some(entry) = entry(i) else {
        LISTED.store(KNOWN as u32, Relaxed);
        segment.count(Counter::modules_lost, 1);
        return None;
    };
    // SAFETY: index i is this thread's; others look at the module once the generation isn't 0.
    unsafe {
        (*entry).module.write(m);
        (*entry).generation.store(generation, Release);
    }
    if keeps_fp {
        let _ = KEEPS_FP.compare_exchange(0, i + 1, AcqRel, Relaxed);
    }
    // If another thread was first with this address, its entry wins the index and ours is a duplicate: harmless.
    let _ = cell.compare_exchange(known, i as u16 + 1, AcqRel, Relaxed);
    listed(i).map(|(m, _)| m)
}

#[cfg(test)]
#[test]
fn an_entry_that_is_counted_and_not_written_is_not_read() {
    assert!(init());
    // The state in which another thread leaves the list between its two steps.
    let i = LISTED.fetch_add(1, AcqRel);
    assert!(listed(i).is_none() && listed(KNOWN as u32).is_none());
}
