//! The file of this process's segment: its directory, its creation and its removal.

use super::inherited::{Child, Inherited};
use super::retained::{self, PruneBuffer, file_name, prune};
use super::{blocks, control, image};
use crate::fixed_string::FixedString;
use crate::options::{Options, number};
use crate::phase;
use crate::segment::Segment;
use crate::segment::windows;
use crate::sys::os::{self, Clock};
use crate::sys::{elf, libc};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use plimsoll_segment::{
    ALL_SECTIONS, Counter, FILE_BYTES, HEADER_BYTES, MAGIC, RETAINED, Runtime, SECTIONS, Section, VERSION, counters,
};

/// The directory of the segments, for fork. Written before a segment is published, read afterwards.
static mut DIRECTORY: FixedString<256> = FixedString::new();

/// Makes and maps the file.
pub fn make(options: &Options) -> Option<(Segment, FixedString<256>)> {
    let mut directory = FixedString::<256>::new();
    let uid = os::geteuid();
    let fd = match options.directory {
        Some(d) => {
            directory.push(d.to_bytes());
            own_directory(&directory, uid)?
        }
        None => [c"/dev/shm/plimsoll-", c"/tmp/plimsoll-", c"/run/plimsoll-"].iter().find_map(|base| {
            directory.clear().push(base.to_bytes()).push_number(uid as u64);
            own_directory(&directory, uid)
        })?,
    };
    retained::keep(number(options.retain).unwrap_or(RETAINED));
    prune(fd, &mut PruneBuffer::new());
    let r = create(fd, os::getpid());
    os::close(fd);
    let segment = r?;
    control::start(segment, options);
    Some((segment, directory))
}

/// Opens the directory, which must belong to this user alone; creates it if it is missing.
fn own_directory(path: &FixedString<256>, uid: u32) -> Option<os::Fd> {
    let fd = os::open_dir(path.as_c()).or_else(|| {
        os::make_dir(path.as_c());
        os::open_dir(path.as_c())
    })?;
    if is_private(fd, uid) {
        return Some(fd);
    }
    os::close(fd);
    None
}

/// Whether the directory belongs to this user and no other user may enter it.
fn is_private(directory: os::Fd, uid: u32) -> bool {
    os::file_facts(directory).is_some_and(|f| f.uid == uid && f.mode & 0o077 == 0)
}

/// Creates, sizes, maps and populates a segment for a process id. The descriptor is closed again: the program's own
/// descriptors keep their numbers.
pub fn create(directory: os::Fd, pid: u32) -> Option<Segment> {
    if os::file_size_limit() < FILE_BYTES as u64 {
        return None;
    }
    let now = os::clock_ns(Clock::Boottime);
    let name = file_name(pid, now);
    let fd = os::create(directory, name.as_c()).ok()?;
    let mapped = os::truncate(fd, FILE_BYTES).then(|| windows::map(fd)).flatten();
    os::lock_while_mapped(fd);
    os::note_file_system(fd);
    os::close(fd);
    let made = mapped.and_then(|segment| {
        windows::expect_random(segment);
        windows::no_huge_pages(segment);
        if segment.populate_start() {
            return Some(segment);
        }
        // SAFETY: the mapping isn't published yet.
        unsafe { windows::unmap(segment) };
        None
    });
    let Some(segment) = made else {
        os::unlink(directory, name.as_c());
        return None;
    };
    let h = segment.header();
    h.version.store(VERSION, Relaxed);
    h.header_bytes.store(HEADER_BYTES as u32, Relaxed);
    h.file_bytes.store(FILE_BYTES as u64, Relaxed);
    h.pid.store(pid, Relaxed);
    h.ppid.store(os::getppid(), Relaxed);
    h.start_boottime_ns.store(now, Relaxed);
    h.start_realtime_ns.store(os::clock_ns(Clock::Realtime), Relaxed);
    h.allocator.store(blocks::allocator(), Relaxed);
    h.runtime.store(runtime(), Relaxed);
    h.counters.store(counters::COUNTERS.len() as u32, Relaxed);
    h.composition.store(2, Relaxed);
    for (i, e) in h.sections.iter().take(SECTIONS).enumerate() {
        let s = ALL_SECTIONS[i];
        e.kind.store(s as u32, Relaxed);
        e.entry_bytes.store(s.entry_bytes() as u32, Relaxed);
        e.offset.store(s.offset() as u64, Relaxed);
        e.capacity.store(s.capacity() as u64, Relaxed);
    }
    // SAFETY: the populated schema section of a segment that isn't published yet.
    let schema = unsafe {
        core::slice::from_raw_parts_mut(
            (segment.base() + Section::Schema.offset()) as *mut u8,
            Section::Schema.capacity(),
        )
    };
    let n = counters::SCHEMA.len().min(schema.len());
    schema[..n].copy_from_slice(&counters::SCHEMA.as_bytes()[..n]);
    segment.section(Section::Schema).used.store(n as u64, Relaxed);
    h.magic.store(MAGIC, Release);
    Some(segment)
}

/// Opens the directory of this process's segment. After the program has changed root or user, the directory must belong
/// to this user alone: in a new root another directory may have that name.
pub fn open_directory() -> Option<os::Fd> {
    let fd = os::open_dir(directory().as_c())?;
    if !IN_DOUBT.load(Relaxed) || is_private(fd, os::geteuid()) {
        return Some(fd);
    }
    os::close(fd);
    None
}

/// Whether a fork child can probably make its segment. Makes no system call before the program has changed root, user
/// or limits.
pub fn reaches_directory() -> bool {
    if !IN_DOUBT.load(Relaxed) {
        return true;
    }
    let fd = open_directory();
    fd.inspect(|fd| os::close(*fd));
    fd.is_some() && os::file_size_limit() >= FILE_BYTES as u64
}

/// Adds 1 to a counter of another process's segment.
pub fn count_in(directory: os::Fd, (pid, start): (u32, u64), counter: Counter) {
    let Some(fd) = os::open_to_map(directory, file_name(pid, start).as_c()) else { return };
    let is_whole = os::file_facts(fd).is_some_and(|facts| facts.size >= HEADER_BYTES as u64);
    let header = if is_whole { os::map_file(fd, 0, HEADER_BYTES, 0, false) } else { None };
    os::close(fd);
    if let Some(header) = header {
        // SAFETY: a fresh mapping of a header's length, which the kernel aligned to a page. Every bit pattern is a
        // valid header.
        unsafe {
            let h = &*(header as *const plimsoll_segment::Header);
            if h.magic.load(Acquire) == MAGIC {
                h.values[counter as usize].fetch_add(1, Relaxed);
            }
            os::unmap(header, HEADER_BYTES);
        }
    }
}

/// Makes the segment of a fork child, mapped at `base`, where its parent's was. `None`: the file was removed again, and
/// the memory at `base` is unusable.
pub fn create_in_child(directory: os::Fd, of: Inherited, who: Child, base: usize) -> Option<Segment> {
    if os::file_size_limit() < FILE_BYTES as u64 {
        return None;
    }
    let name = file_name(who.pid, who.start_boottime_ns);
    let fd = os::create(directory, name.as_c()).ok()?;
    // Allocates the file's blocks as whole pages, so that a full file system is an error here.
    let is_written =
        os::truncate(fd, FILE_BYTES) && of.write(who, |at, bytes, zeros| os::write_at(fd, at, bytes, zeros));
    // SAFETY: no thread uses the memory at `base`: the parent's segment was unmapped there.
    let is_mapped = is_written && unsafe { windows::map_again(fd, Segment::at(base), &of.written()) };
    os::lock_while_mapped(fd);
    os::close(fd);
    if !is_mapped {
        os::unlink(directory, name.as_c());
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { Segment::at(base) })
}

/// Determined once, for the process's own segment: at a fork, other threads may be unloading objects of the loader's
/// list.
fn runtime() -> u32 {
    static KNOWN: AtomicU32 = AtomicU32::new(u32::MAX);
    if KNOWN.load(Relaxed) == u32::MAX {
        KNOWN.store(find_runtime() as u32, Relaxed);
    }
    KNOWN.load(Relaxed)
}

fn find_runtime() -> Runtime {
    if image::is_image() {
        Runtime::NativeImage
    } else if has_hotspot(phase::is_late()) {
        Runtime::Hotspot
    } else {
        Runtime::Native
    }
}

/// Whether libjvm or the launcher's library is loaded. `is_late`: other threads may be unloading objects, so the list
/// is read under the loader's lock.
pub fn has_hotspot(is_late: bool) -> bool {
    let is = |name: &[u8]| name.ends_with(b"/libjli.so") || name.ends_with(b"/libjvm.so");
    if !is_late {
        return elf::objects().any(|o| is(o.name()));
    }
    let mut found = false;
    libc::each_loaded(&mut |o| found |= is(o.name()));
    found
}

/// Removes a file that can't be used.
fn remove(segment: Segment, directory: &FixedString<256>) {
    let h = segment.header();
    h.magic.store(0, Release);
    if let Some(fd) = os::open_dir(directory.as_c()) {
        os::unlink(fd, file_name(h.pid.load(Relaxed), h.start_boottime_ns.load(Relaxed)).as_c());
        os::close(fd);
    }
}

/// Unmaps the segment after a failed boot.
pub fn withdraw(segment: Segment, directory: &FixedString<256>) {
    remove(segment, directory);
    // SAFETY: never published, so no hook uses it, and the function that made it keeps no copy.
    unsafe { windows::unmap(segment) };
}

/// The directory of the segments, for fork.
pub fn directory() -> &'static FixedString<256> {
    let directory = &raw const DIRECTORY;
    // SAFETY: not written after the segment was published.
    unsafe { &*directory }
}

/// Sets the directory of the segments.
///
/// # Safety
/// No segment is published, so no thread reads it, and no two threads call this at the same time.
pub unsafe fn keep_directory(directory: FixedString<256>) {
    // SAFETY: the caller's contract.
    unsafe { (&raw mut DIRECTORY).write(directory) };
}

/// Set if the path of the segments' directory may mean another directory now.
static IN_DOUBT: AtomicBool = AtomicBool::new(false);

/// Notes that the program changes root, user or limits. From now on the directory is checked whenever it is opened.
pub fn distrust_directory() {
    IN_DOUBT.store(true, Relaxed);
}
