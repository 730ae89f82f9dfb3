//! Reads a segment file by pread, never by mmap: if the file is truncated meanwhile, a read is short instead of a
//! SIGBUS.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_segment::vmap::{self, VmaMap};
use plimsoll_segment::{BadHeader, HEADER_BYTES, HeaderFacts, SUFFIX, Section, ThreadFacts};

use plimsoll_facts::snapshot::OwnMapping;

use super::parse::{self, Head, Raw, RowsSkew, Segment};
use plimsoll_process::foreign::{self, Deadline, FileKind, Regular, Requirements, Why};

/// Why a file can't be used as a segment. Displays as one sentence that names the file.
#[derive(Debug)]
pub struct ReadError {
    pub path: PathBuf,
    pub cause: Cause,
}

#[derive(Debug)]
pub enum Cause {
    File(Why),
    Header(BadHeader),
    /// The file isn't the target's own, so it isn't written to.
    NotItsOwn(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string().escape_debug().to_string();
        match &self.cause {
            Cause::File(why) => write!(f, "{path} {why}"),
            Cause::NotItsOwn(why) => write!(f, "cannot write to {path}: {why}"),
            Cause::Header(BadHeader::Short) => write!(f, "{path} is not a segment: it is shorter than a header"),
            Cause::Header(BadHeader::Magic) => {
                write!(
                    f,
                    "{path} is not a segment: it doesn't begin with a segment's mark (or was written with the other byte order)"
                )
            }
            // A file with another name that is empty or begins with zeros never was a segment.
            Cause::Header(BadHeader::Starting) if !path.ends_with(SUFFIX) => {
                write!(f, "{path} is not a segment: it holds nothing, or begins with zeros")
            }
            Cause::Header(BadHeader::Starting) => {
                write!(f, "{path} holds no books: its process was killed while starting, or is starting now")
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

impl ReadError {
    /// Whether it is a segment that was opened but can't be used: of another version, or damaged. Neither more rights
    /// nor another path helps.
    pub fn is_of_contents(&self) -> bool {
        matches!(self.cause, Cause::Header(BadHeader::Version(_) | BadHeader::Section(_)))
    }
}

/// Reads and parses the first page of a file.
pub fn head(path: &Path, deadline: Deadline) -> Result<Head, ReadError> {
    let file = foreign::open(path, Requirements::of(FileKind::Segment), deadline).map_err(|why| refused(path, why))?;
    head_of(&file, path)
}

/// As [`head`], for an open file.
pub(super) fn head_of(file: &Regular, path: &Path) -> Result<Head, ReadError> {
    let header = at(file, path, 0, HEADER_BYTES as u64)?;
    parse::head(&header).map_err(|bad| ReadError { path: path.into(), cause: Cause::Header(bad) })
}

/// The head of a file that fulfils these requirements, and its metadata.
pub(super) fn read_head(path: &Path, requirements: Requirements<'_>, deadline: Deadline) -> Option<(Head, Metadata)> {
    let file = foreign::open(path, requirements, deadline).ok()?;
    Some((head_of(&file, path).ok()?, file.meta().clone()))
}

/// The main thread's stack. Its thread has one of the first slots.
pub(crate) fn main_stack(path: &Path, deadline: Deadline) -> Option<(u64, u64)> {
    const MAIN: u64 = 2;
    let file = open(path, deadline).ok()?;
    let header = at(&file, path, 0, HEADER_BYTES as u64).ok()?;
    let s = HeaderFacts::parse(&header).ok()?.section(Section::Threads);
    let threads = at(&file, path, s.offset, s.used.min(16) * s.entry_bytes).ok()?;
    let mut threads = threads.chunks_exact(Section::Threads.entry_bytes()).filter_map(ThreadFacts::decode);
    threads.find(|t| t.stack_kind == MAIN).map(|t| (t.stack_low, t.stack_high))
}

/// The tracker's own mappings.
pub fn own_mappings(path: &Path, deadline: Deadline) -> Result<Vec<OwnMapping>, ReadError> {
    let file = open(path, deadline)?;
    let header = at(&file, path, 0, HEADER_BYTES as u64)?;
    let facts =
        HeaderFacts::parse(&header).map_err(|bad| ReadError { path: path.into(), cause: Cause::Header(bad) })?;
    let s = facts.section(Section::Own);
    let entries = s.used.min(Section::Own.capacity() as u64);
    let section = at(&file, path, s.offset, entries * Section::Own.entry_bytes() as u64)?;
    Ok(parse::own_mappings(&section))
}

/// Whether the tracker was attached to a running process, by the counters in the header.
pub fn was_attached(path: &Path, deadline: Deadline) -> Result<bool, ReadError> {
    let file = open(path, deadline)?;
    let header = at(&file, path, 0, HEADER_BYTES as u64)?;
    let facts =
        HeaderFacts::parse(&header).map_err(|bad| ReadError { path: path.into(), cause: Cause::Header(bad) })?;
    let s = facts.section(Section::Schema);
    let entries = s.capacity.min(Section::Schema.capacity() as u64);
    let schema = at(&file, path, s.offset, entries * Section::Schema.entry_bytes() as u64)?;
    let counters = parse::counters(&facts, &schema, &mut Vec::new());
    Ok(counters.iter().any(|counter| counter.name == "attaches" && counter.value > 0))
}

/// How much of a segment is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    All,
    /// What the books are made of: no stacks, estimates and samples of sites, and no names of methods.
    Books,
}

/// Reads a consistent snapshot of the whole segment.
pub fn read(path: &Path, deadline: Deadline) -> Result<Segment, ReadError> {
    read_extent(path, Extent::All, deadline)
}

/// Reads a consistent snapshot of what the books are made of.
pub fn read_books(path: &Path, deadline: Deadline) -> Result<Segment, ReadError> {
    read_extent(path, Extent::Books, deadline)
}

fn read_extent(path: &Path, extent: Extent, deadline: Deadline) -> Result<Segment, ReadError> {
    let file = open(path, deadline)?;
    let raw = read_parts(path, extent, |offset, bytes| at(&file, path, offset, bytes))?;
    parse::segment(&raw).map_err(|bad| ReadError { path: path.into(), cause: Cause::Header(bad) })
}

/// The peak's composition has two halves; the writer fills the invalid one. If the valid half changed while the
/// categories were read, they may belong to different moments, so they are read again. A peak is recorded only after a
/// rise of 1 %, so a second attempt nearly always suffices.
const COMPOSITION_TRIES: usize = 4;

/// Reads all parts of a segment, each with its own read (offset, bytes), from a file that keeps changing. The order of
/// the reads makes the parts consistent. `path` is for errors.
pub fn read_parts(
    path: &Path,
    extent: Extent,
    at: impl FnMut(u64, u64) -> Result<Vec<u8>, ReadError>,
) -> Result<Raw, ReadError> {
    let has_sites = extent == Extent::All;
    let mut parts = Parts { path, at, cut: Vec::new() };
    let mut raw = Raw::default();
    let first = parts.header()?;
    if has_sites {
        raw.site_samples_first = parts.section(&first, Section::SiteSamples)?;
    }
    raw.rows_first = parts.section(&first, Section::Rows)?;
    // A row that is newer than the first header may have freed bytes of an old row. So allocations are read with a
    // newer header. The second reading is the next attempt's first.
    let mut second = parts.header()?;
    raw.rows_second = parts.section(&second, Section::Rows)?;
    for attempt in 1.. {
        let skew = RowsSkew::of(&raw.rows_first, &raw.rows_second);
        if !skew.is_much() {
            break;
        }
        if attempt == ROWS_TRIES {
            raw.rows_skew = skew.bytes;
            break;
        }
        second = parts.header()?;
        raw.rows_first = std::mem::replace(&mut raw.rows_second, parts.section(&second, Section::Rows)?);
    }

    // Rows, samples and mappings refer to callers, callers to categories, frames and estimates. The target of a
    // reference is complete before the reference exists. So it is read after the reference, with a newer header.
    if has_sites {
        raw.samples = parts.section(&second, Section::Samples)?;
    }
    (raw.vmap, raw.vmap_moved) = parts.vmap(&second)?;
    let third = parts.header()?;
    raw.callers = parts.section(&third, Section::Callers)?;
    raw.header = parts.header()?;
    if has_sites {
        raw.site_samples_second = parts.section(&raw.header, Section::SiteSamples)?;
        raw.frames = parts.section(&raw.header, Section::Frames)?;
        raw.methods = parts.section(&raw.header, Section::Methods)?;
        raw.names = parts.section(&raw.header, Section::Names)?;
    }
    raw.own = parts.section(&raw.header, Section::Own)?;
    raw.threads = parts.section(&raw.header, Section::Threads)?;
    raw.modules = parts.section(&raw.header, Section::Modules)?;
    raw.schema = parts.section(&raw.header, Section::Schema)?;
    raw.command = parts.section(&raw.header, Section::Command)?;
    for _ in 0..COMPOSITION_TRIES {
        let before = parts.head(&raw.header)?;
        raw.categories = parts.section(&raw.header, Section::Categories)?;
        raw.header = parts.header()?;
        let after = parts.head(&raw.header)?;
        if (before.composition, before.composition_ns) == (after.composition, after.composition_ns) {
            break;
        }
    }
    raw.cut = parts.cut;
    Ok(raw)
}

/// Attempts to read the rows twice with little allocated and freed in between. The reader may lose its CPU between two
/// readings.
const ROWS_TRIES: usize = 6;

struct Parts<'a, F> {
    path: &'a Path,
    at: F,
    cut: Vec<(Section, u64, u64)>,
}

impl<F: FnMut(u64, u64) -> Result<Vec<u8>, ReadError>> Parts<'_, F> {
    fn bad(&self, bad: BadHeader) -> ReadError {
        ReadError { path: self.path.into(), cause: Cause::Header(bad) }
    }

    fn header(&mut self) -> Result<Vec<u8>, ReadError> {
        let header = (self.at)(0, HEADER_BYTES as u64)?;
        HeaderFacts::parse(&header).map_err(|bad| self.bad(bad))?;
        Ok(header)
    }

    fn head(&self, header: &[u8]) -> Result<Head, ReadError> {
        parse::head(header).map_err(|bad| self.bad(bad))
    }

    /// The used part of a section, limited to what the file has and what our segments can hold. So a header that claims
    /// more can't make the reader allocate more.
    fn section(&mut self, header: &[u8], section: Section) -> Result<Vec<u8>, ReadError> {
        let s = HeaderFacts::parse(header).map_err(|bad| self.bad(bad))?.section(section);
        let is_text = matches!(section, Section::Schema | Section::Command);
        // Text pages have no count; they end at a NUL.
        let used = if is_text { s.capacity } else { s.used };
        let (entries, entry) = (used.min(section.capacity() as u64), section.entry_bytes() as u64);
        let bytes = (self.at)(s.offset, entries * entry)?;
        let have = bytes.len() as u64 / entry;
        if have < entries && !is_text {
            // Some sections are read twice; the second time the header may count more.
            self.cut.retain(|(cut, ..)| *cut != section);
            self.cut.push((section, have, entries));
        }
        Ok(bytes)
    }

    /// The map's own header says how much of it is in use. Its `seq` must be even, and equal before and after the copy.
    /// If a process died or was stopped during an update, it stays odd, but the map is complete all the same (see
    /// vmap.rs). The reader must make sure that nobody continues the update. An odd number that stays the same isn't
    /// enough: one update may have taken all the time. Two equal copies show that nothing changed.
    fn vmap(&mut self, header: &[u8]) -> Result<(Vec<u8>, bool), ReadError> {
        let s = HeaderFacts::parse(header).map_err(|bad| self.bad(bad))?.section(Section::Vmap);
        let most = s.capacity.min(Section::Vmap.capacity() as u64);
        let (mut copy, mut last) = (Vec::new(), Vec::new());
        for attempt in 0..VMAP_TRIES {
            if attempt > 0 {
                std::thread::sleep(VMAP_PAUSE * (1 << (attempt - 1)));
            }
            let before = (self.at)(s.offset, most.min(vmap::BLOCK as u64))?;
            let Ok(map) = VmaMap::new(&before) else { return Ok((before, false)) };
            last = std::mem::replace(&mut copy, (self.at)(s.offset, map.used().min(most))?);
            let seq = |bytes: &[u8]| VmaMap::new(bytes).map(|map| map.seq()).ok();
            let after = (self.at)(s.offset, most.min(vmap::BLOCK as u64))?;
            if map.seq() & 1 == 0 && seq(&copy) == Some(map.seq()) && seq(&after) == Some(map.seq()) {
                return Ok((copy, false));
            }
        }
        let moved = copy != last;
        Ok((copy, moved))
    }
}

/// Attempts to copy the map in one moment, with pauses that double. They take 51 ms in all, because a thread in an
/// update may have to wait for a CPU.
const VMAP_TRIES: u32 = 11;
const VMAP_PAUSE: Duration = Duration::from_micros(50);

pub(super) fn open(path: &Path, deadline: Deadline) -> Result<Regular, ReadError> {
    foreign::open(path, Requirements::of(FileKind::Segment), deadline).map_err(|why| refused(path, why))
}

pub(super) fn refused(path: &Path, why: Why) -> ReadError {
    ReadError { path: path.into(), cause: Cause::File(why) }
}

fn at(file: &Regular, path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
    let most = bytes.min(file.meta().len().saturating_sub(offset)).min(file.cap());
    let mut buffer = vec![0; usize::try_from(most).unwrap_or(0)];
    let count = file.at(offset, &mut buffer).map_err(|why| refused(path, why))?;
    buffer.truncate(count);
    Ok(buffer)
}
