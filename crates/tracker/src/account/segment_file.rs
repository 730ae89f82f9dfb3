//! The file of this process's segment: where it lies, how it is made, and how it is given up.

use super::inherited::{Child, Inherited};
use super::retained::{self, Looked, file_name, prune};
use super::{blocks, control, image};
use crate::options::{Options, Path, number};
use crate::phase;
use crate::segment::Segment;
use crate::segment::windows;
use crate::sys::elf;
use crate::sys::os::{self, Clock};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use plimsoll_segment::{
    ALL_SECTIONS, Counter, FILE_BYTES, HEADER_BYTES, MAGIC, RETAINED, Runtime, SECTIONS, Section, VERSION, counters,
};

/// Directory of the segments, for fork. Written before a segment is published, read afterwards.
static mut DIRECTORY: Path<256> = Path::new();

/// Makes and maps the file.
pub fn make(options: &Options) -> Option<(Segment, Path<256>)> {
    let mut directory = Path::<256>::new();
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
    prune(fd, &mut Looked::new());
    let r = create(fd, os::getpid());
    os::close(fd);
    let segment = r?;
    control::start(segment, options);
    Some((segment, directory))
}

/// Opens the directory, made if it isn't there; only one that is ours alone.
fn own_directory(path: &Path<256>, uid: u32) -> Option<os::Fd> {
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

/// Whether it belongs to this user, and nobody else may enter it.
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
        // SAFETY: nobody knows of it yet.
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
    // SAFETY: the schema section of a segment that nobody else knows of yet, populated.
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

/// Opens the directory of this process's segment. Once the program has changed root or user, only if it is ours alone: another
/// may have that name in a new root.
pub fn open_directory() -> Option<os::Fd> {
    let fd = os::open_dir(directory().as_c())?;
    if !IN_DOUBT.load(Relaxed) || is_private(fd, os::geteuid()) {
        return Some(fd);
    }
    os::close(fd);
    None
}

/// Whether a fork child could make its segment, as far as that can be known. Costs nothing before the program has changed
/// root, user or limits.
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
        // SAFETY: a fresh mapping of a header's length, which the kernel aligned to a page. Any bytes are a header.
        unsafe {
            let h = &*(header as *const plimsoll_segment::Header);
            if h.magic.load(Acquire) == MAGIC {
                h.values[counter as usize].fetch_add(1, Relaxed);
            }
            os::unmap(header, HEADER_BYTES);
        }
    }
}

/// The segment of a fork child: mapped at `base`, where its parent's was. `None`: nothing is left of the file, and nothing
/// of use at `base`.
pub fn create_in_child(directory: os::Fd, of: Inherited, who: Child, base: usize) -> Option<Segment> {
    if os::file_size_limit() < FILE_BYTES as u64 {
        return None;
    }
    let name = file_name(who.pid, who.start_boottime_ns);
    let fd = os::create(directory, name.as_c()).ok()?;
    // Whole pages of the file, whose blocks are there from now on: a full file system is an answer here.
    let is_written =
        os::truncate(fd, FILE_BYTES) && of.write(who, |at, bytes, zeros| os::write_at(fd, at, bytes, zeros));
    // SAFETY: nobody uses what is at `base`: the segment of the parent was taken away there.
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

/// Looked at once, for the process's own segment: at a fork other threads may be unloading what the loader's list names.
fn runtime() -> u32 {
    static KNOWN: AtomicU32 = AtomicU32::new(u32::MAX);
    if KNOWN.load(Relaxed) == u32::MAX {
        KNOWN.store(look_at_runtime() as u32, Relaxed);
    }
    KNOWN.load(Relaxed)
}

fn look_at_runtime() -> Runtime {
    if image::is_image() {
        Runtime::NativeImage
    } else if phase::is_late() {
        // Only a HotSpot VM calls the agent.
        Runtime::Hotspot
    } else if elf::objects().any(|o| o.name().ends_with(b"/libjli.so") || o.name().ends_with(b"/libjvm.so")) {
        Runtime::Hotspot
    } else {
        Runtime::Native
    }
}

/// Withdraws a file that can't be used.
fn remove(segment: Segment, directory: &Path<256>) {
    let h = segment.header();
    h.magic.store(0, Release);
    if let Some(fd) = os::open_dir(directory.as_c()) {
        os::unlink(fd, file_name(h.pid.load(Relaxed), h.start_boottime_ns.load(Relaxed)).as_c());
        os::close(fd);
    }
}

/// Boot gives up: the program gets its address space back.
pub fn withdraw(segment: Segment, directory: &Path<256>) {
    remove(segment, directory);
    // SAFETY: never published: no hook knows of it, and whoever made it keeps no copy.
    unsafe { windows::unmap(segment) };
}

/// The directory, for fork.
pub fn directory() -> &'static Path<256> {
    let directory = &raw const DIRECTORY;
    // SAFETY: not written after the segment was published.
    unsafe { &*directory }
}

/// This is the directory.
///
/// # Safety
/// No segment is published, so nobody reads it; of two threads that could call this, one does.
pub unsafe fn keep_directory(directory: Path<256>) {
    // SAFETY: the caller's contract.
    unsafe { (&raw mut DIRECTORY).write(directory) };
}

/// This process may have lost its way to the directory of the segments.
static IN_DOUBT: AtomicBool = AtomicBool::new(false);

/// The program changes root, user or limits: from now on whoever opens the directory looks whether it is the one of the start.
pub fn doubt_directory() {
    IN_DOUBT.store(true, Relaxed);
}
