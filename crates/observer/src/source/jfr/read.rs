//! Files: a recording, an unfinished chunk, or a repository (a folder of chunks, one level deep). Read by pread, in pieces,
//! never mapped: a file that is truncated under us is a gap and not SIGBUS.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::Limits;
use super::chunk::{Header, MAGIC, SIZE};
use super::event::Event;
use super::walk::{ChunkSummary, Summary, Walker, Wanted};
use crate::gap::{Gap, Source};

/// Bytes by offset; fewer than asked for only at the end.
pub(super) trait Store {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Store for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match FileExt::read_at(self, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Store for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

enum Origin {
    Files(Vec<PathBuf>),
    Bytes(Vec<u8>),
}

/// What was found at a path; nothing is held open.
pub struct Recording {
    origin: Origin,
    limits: Limits,
}

/// Without O_NONBLOCK the opening of a FIFO would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// By its first bytes; a folder by that of a file in it. An empty or unreadable file is none.
pub fn is_recording(path: &Path) -> bool {
    let begins = |path: &Path| {
        let mut magic = [0; 4];
        let file = open(path).ok().filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()));
        file.is_some_and(|file| Store::read_at(&file, &mut magic, 0).is_ok_and(|count| count == 4) && magic == MAGIC)
    };
    if path.is_dir() {
        chunk_files(path).is_ok_and(|files| files.iter().any(|file| begins(file)))
    } else {
        begins(path)
    }
}

/// `DIR/*.jfr` and `DIR/*/*.jfr`: the second is how a JVM lays out `-XX:FlightRecorderOptions=repository=DIR`.
fn chunk_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else {
            files.push(path);
        }
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jfr"));
    // By when each begins: names count within a second only by a suffix.
    let start = |path: &PathBuf| {
        let mut bytes = [0; SIZE];
        let count = open(path).and_then(|file| Store::read_at(&file, &mut bytes, 0)).unwrap_or(0);
        Header::parse(&bytes[..count]).map_or(i64::MAX, |header| header.start_ns)
    };
    files.sort_by_cached_key(|path| (start(path), path.clone()));
    Ok(files)
}

impl Recording {
    pub fn open(path: &Path) -> Result<Recording, Gap> {
        let refused = |error: io::Error| {
            Gap::new(Source::Jfr, format!("{} can't be read: {error}", path.display()), "nothing of it is shown")
        };
        let files = if path.is_dir() {
            chunk_files(path).map_err(refused)?
        } else {
            open(path).map_err(refused)?;
            vec![path.to_path_buf()]
        };
        if files.is_empty() {
            let reason = format!("{} has no file *.jfr", path.display());
            return Err(Gap::new(Source::Jfr, reason, "nothing of it is shown"));
        }
        Ok(Recording { origin: Origin::Files(files), limits: Limits::default() })
    }

    /// A recording that is in memory already.
    pub fn of_bytes(bytes: Vec<u8>) -> Recording {
        Recording { origin: Origin::Bytes(bytes), limits: Limits::default() }
    }

    pub fn with_limits(self, limits: Limits) -> Recording {
        Recording { limits, ..self }
    }

    /// Calls `visit` for each event that is wanted, in the order of the file (which is not that of time), until it breaks
    /// off. Reads as many bytes as there are, and keeps a chunk's constants.
    pub fn read(&self, wanted: &Wanted, visit: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>) -> Summary {
        let mut walker = Walker::new(self.limits);
        self.each(&mut walker, |walker, window| walker.file(window, wanted, visit));
        walker.summary
    }

    /// `read` to the end.
    pub fn for_each(&self, wanted: &Wanted, mut visit: impl FnMut(&Event<'_>)) -> Summary {
        self.read(wanted, &mut |event| {
            visit(event);
            ControlFlow::Continue(())
        })
    }

    /// The chunks alone, by their headers: when the recording begins and ends. Unfinished chunks are stepped through.
    pub fn chunks(&self) -> Vec<ChunkSummary> {
        let mut walker = Walker::new(self.limits);
        self.each(&mut walker, |walker, window| {
            walker.outline(window);
            ControlFlow::Continue(())
        });
        walker.summary.chunks
    }

    fn each(&self, walker: &mut Walker, mut f: impl FnMut(&mut Walker, &mut Window<'_>) -> ControlFlow<()>) {
        match &self.origin {
            Origin::Bytes(bytes) => {
                let _ = f(walker, &mut Window::new(bytes, bytes.len() as u64));
            }
            Origin::Files(files) => {
                for path in files {
                    walker.begin_file(path);
                    let opened = open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
                    let (length, file) = match opened {
                        Ok(opened) => opened,
                        Err(error) => {
                            walker.gap(0, &format!("can't be read: {error}"));
                            continue;
                        }
                    };
                    if f(walker, &mut Window::new(&file, length)).is_break() {
                        return;
                    }
                }
            }
        }
    }
}

/// Read at once: fits a core's own cache.
const PIECE: usize = 256 << 10;

/// The part of a file that is in memory, moved where it is needed.
pub(super) struct Window<'f> {
    store: &'f dyn Store,
    /// When it was opened: what a live recorder appends afterwards isn't read.
    pub length: u64,
    buffer: Vec<u8>,
    start: u64,
}

impl<'f> Window<'f> {
    pub fn new(store: &'f dyn Store, length: u64) -> Window<'f> {
        Window { store, length, buffer: vec![], start: 0 }
    }

    /// The bytes from `at` on: at least `need` unless the file ends before, and all that happen to be there.
    pub fn view(&mut self, at: u64, need: usize) -> io::Result<&[u8]> {
        let need = need.min(usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX));
        let inside = at.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        match inside.filter(|skip| *skip <= self.buffer.len()) {
            Some(skip) if self.buffer.len() - skip >= need => return Ok(&self.buffer[skip..]),
            Some(skip) => drop(self.buffer.drain(..skip)),
            None => self.buffer.clear(),
        }
        self.start = at;
        let have = self.buffer.len();
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let size = need.max(PIECE).min(left).max(have);
        if self.buffer.capacity() > size.max(16 * PIECE) {
            self.buffer.shrink_to(size);
        }
        self.buffer.resize(size, 0);
        let count = self.store.read_at(&mut self.buffer[have..], at + have as u64);
        self.buffer.truncate(have + *count.as_ref().unwrap_or(&0));
        if count? + have < need {
            // Truncated since it was opened.
            self.length = self.length.min(at + self.buffer.len() as u64);
        }
        Ok(&self.buffer)
    }
}
