//! Reads a segment file. By pread, never by mmap: a file that is truncated meanwhile is then short and not a SIGBUS.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use plimsoll_segment::vmap::{self, VmaMap};
use plimsoll_segment::{BadHeader, HEADER_BYTES, HeaderFacts, Section, ThreadFacts};

use rustix::fs::OFlags;

use super::parse::{self, Head, Raw, Segment};

/// Why a file is no segment to us. Displays as one sentence that names the file.
#[derive(Debug)]
pub struct ReadError {
    pub path: PathBuf,
    pub cause: Cause,
}

#[derive(Debug)]
pub enum Cause {
    Io(io::Error),
    NotAFile,
    Header(BadHeader),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string().escape_debug().to_string();
        match &self.cause {
            Cause::Io(error) => write!(f, "{path} can't be read: {error}"),
            Cause::NotAFile => write!(f, "{path} is not a regular file"),
            Cause::Header(BadHeader::Short) => write!(f, "{path} is not a segment: it is shorter than a header"),
            Cause::Header(BadHeader::Magic) => {
                write!(
                    f,
                    "{path} is not a segment: it begins otherwise (or was written on a machine of the other byte order)"
                )
            }
            Cause::Header(BadHeader::Version(v)) => {
                let ours = plimsoll_segment::VERSION;
                write!(f, "{path} is a segment of version {v}; this plimsoll reads version {ours}")
            }
            Cause::Header(BadHeader::Section(i)) => {
                let name = plimsoll_segment::SECTION_NAMES.get(*i).unwrap_or(&"?");
                write!(f, "{path} is a damaged segment: its section table contradicts itself at '{name}'")
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// The first page of a file, parsed.
pub fn head(path: &Path) -> Result<Head, ReadError> {
    let file = open(path)?;
    let header = at(&file, path, 0, HEADER_BYTES as u64)?;
    parse::head(&header).map_err(|bad| ReadError { path: path.into(), cause: Cause::Header(bad) })
}

/// Asks the tracker for other sites: the one word of a segment that is the observer's to write.
pub fn set_control(path: &Path, mode: u32, mean: u64) -> Result<(), ReadError> {
    let io = |error| ReadError { path: path.into(), cause: Cause::Io(error) };
    // The kernel's own links to what a process has mapped lead where they say.
    let is_mapping = path.starts_with("/proc") && path.parent().is_some_and(|parent| parent.ends_with("map_files"));
    let nofollow = if is_mapping { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = (nofollow | OFlags::NONBLOCK).bits() as i32;
    let file = File::options().write(true).custom_flags(flags).open(path).map_err(io)?;
    let word = plimsoll_segment::control(mode, mean).to_ne_bytes();
    file.write_all_at(&word, std::mem::offset_of!(plimsoll_segment::Header, control) as u64).map_err(io)
}

/// The main thread's stack; it has one of the first slots.
pub fn main_stack(path: &Path) -> Option<(u64, u64)> {
    const MAIN: u64 = 2;
    let file = open(path).ok()?;
    let header = at(&file, path, 0, HEADER_BYTES as u64).ok()?;
    let s = HeaderFacts::parse(&header).ok()?.section(Section::Threads);
    let threads = at(&file, path, s.offset, s.used.min(16) * s.entry_bytes).ok()?;
    let mut threads = threads.chunks_exact(Section::Threads.entry_bytes()).filter_map(ThreadFacts::decode);
    threads.find(|t| t.stack_kind == MAIN).map(|t| (t.stack_low, t.stack_high))
}

/// A consistent snapshot of the whole segment.
pub fn read(path: &Path) -> Result<Segment, ReadError> {
    let file = open(path)?;
    let raw = read_raw(&file, path)?;
    parse::segment(&raw).map_err(|bad| ReadError { path: path.into(), cause: Cause::Header(bad) })
}

/// The peak's composition has two halves, and the writer fills the one that isn't valid. If the valid one changed while
/// the categories were read, they may be of different moments: read them again. A peak is kept only after a rise of 1 %,
/// so a second try nearly always suffices.
const COMPOSITION_TRIES: usize = 4;

fn read_raw(file: &File, path: &Path) -> Result<Raw, ReadError> {
    let bad = |bad| ReadError { path: path.into(), cause: Cause::Header(bad) };
    let mut cut = Vec::new();
    let mut section = |facts: &HeaderFacts<'_>, of| section(file, path, facts, of, &mut cut);
    let mut header = at(file, path, 0, HEADER_BYTES as u64)?;
    let facts = HeaderFacts::parse(&header).map_err(bad)?;
    let rows_first = section(&facts, Section::Rows)?;
    let site_samples_first = section(&facts, Section::SiteSamples)?;
    // A row that is newer than the header may hold what an old row has freed: the allocations are read by a newer one.
    header = at(file, path, 0, HEADER_BYTES as u64)?;
    let facts = HeaderFacts::parse(&header).map_err(bad)?;
    let rows_second = section(&facts, Section::Rows)?;
    let site_samples_second = section(&facts, Section::SiteSamples)?;

    // Rows refer to callers, callers to categories: what is referred to is complete before the reference exists, so
    // it is read after it, by a newer header.
    let samples = section(&facts, Section::Samples)?;
    header = at(file, path, 0, HEADER_BYTES as u64)?;
    let facts = HeaderFacts::parse(&header).map_err(bad)?;
    let callers = section(&facts, Section::Callers)?;
    header = at(file, path, 0, HEADER_BYTES as u64)?;
    let facts = HeaderFacts::parse(&header).map_err(bad)?;
    let mut raw = Raw {
        rows_first,
        rows_second,
        site_samples_first,
        site_samples_second,
        samples,
        callers,
        frames: section(&facts, Section::Frames)?,
        methods: section(&facts, Section::Methods)?,
        names: section(&facts, Section::Names)?,
        threads: section(&facts, Section::Threads)?,
        modules: section(&facts, Section::Modules)?,
        schema: section(&facts, Section::Schema)?,
        command: section(&facts, Section::Command)?,
        ..Raw::default()
    };
    (raw.vmap, raw.vmap_moved) = vmap(file, path, &facts)?;
    for _ in 0..COMPOSITION_TRIES {
        let before = parse::head(&header).map_err(bad)?;
        let facts = HeaderFacts::parse(&header).map_err(bad)?;
        raw.categories = section(&facts, Section::Categories)?;
        let again = at(file, path, 0, HEADER_BYTES as u64)?;
        let after = parse::head(&again).map_err(bad)?;
        let steady = (before.composition, before.composition_ns) == (after.composition, after.composition_ns);
        header = again;
        if steady {
            break;
        }
    }
    raw.header = header;
    raw.cut = cut;
    Ok(raw)
}

/// Copies of the map that are tried until one is of one moment.
const VMAP_TRIES: usize = 8;

/// The map's own header says how much of it is in use. Its `seq` must be even, and the same before and after the copy.
/// Of a process that died in an update it stays odd: what is there then is whole all the same (see vmap.rs).
fn vmap(file: &File, path: &Path, facts: &HeaderFacts<'_>) -> Result<(Vec<u8>, bool), ReadError> {
    let s = facts.section(Section::Vmap);
    let most = s.capacity.min(Section::Vmap.capacity() as u64);
    let mut copy = Vec::new();
    for attempt in 0..VMAP_TRIES {
        let before = at(file, path, s.offset, most.min(vmap::BLOCK as u64))?;
        let Ok(map) = VmaMap::new(&before) else { return Ok((before, false)) };
        copy = at(file, path, s.offset, map.used().min(most))?;
        let seq = |bytes: &[u8]| VmaMap::new(bytes).map(|map| map.seq()).ok();
        let after = at(file, path, s.offset, most.min(vmap::BLOCK as u64))?;
        if map.seq() & 1 == 0 && seq(&copy) == Some(map.seq()) && seq(&after) == Some(map.seq()) {
            return Ok((copy, false));
        }
        // Nobody is writing any more: the same odd number each time.
        if attempt > 0 && map.seq() & 1 == 1 && seq(&after) == Some(map.seq()) {
            return Ok((copy, false));
        }
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    Ok((copy, true))
}

fn open(path: &Path) -> Result<File, ReadError> {
    let error = |cause| ReadError { path: path.into(), cause };
    // O_NONBLOCK: a FIFO in place of a segment must not hang the reader.
    let file = File::options()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
        .open(path)
        .map_err(|e| error(Cause::Io(e)))?;
    match file.metadata() {
        Ok(meta) if meta.is_file() => Ok(file),
        Ok(_) => Err(error(Cause::NotAFile)),
        Err(e) => Err(error(Cause::Io(e))),
    }
}

/// A section's used part, as much of it as the file has and as a segment of ours could hold: a header that claims more
/// can't make the reader allocate more.
fn section(
    file: &File,
    path: &Path,
    facts: &HeaderFacts<'_>,
    section: Section,
    cut: &mut Vec<(Section, u64, u64)>,
) -> Result<Vec<u8>, ReadError> {
    let s = facts.section(section);
    let used = match section {
        // Text pages carry no count; they end at a NUL.
        Section::Schema | Section::Command => s.capacity,
        _ => s.used,
    };
    let (entries, entry) = (used.min(section.capacity() as u64), section.entry_bytes() as u64);
    let bytes = at(file, path, s.offset, entries * entry)?;
    let have = bytes.len() as u64 / entry;
    if have < entries && !matches!(section, Section::Schema | Section::Command) {
        cut.push((section, have, entries));
    }
    Ok(bytes)
}

fn at(file: &File, path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(ReadError { path: path.into(), cause: Cause::Io(e) }),
        }
    }
    buffer.truncate(have);
    Ok(buffer)
}
