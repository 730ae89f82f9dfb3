//! Opens a recording, an unfinished chunk, or a repository (a directory of chunks, one level deep). Reads by pread in
//! pieces and never maps: a file that is truncated meanwhile gives a gap, not SIGBUS.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_jfr::reader::{
    ChunkSummary, Event, EventFilter, Flaw, HEADER_BYTES, Header, Input, Limits, MAGIC, ReadAt, Reader, Summary,
};

/// An open file.
struct Pieces(File);

impl ReadAt for Pieces {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

enum Origin {
    Files(FoundFiles),
    Bytes(Vec<u8>),
}

/// The files of a recording, and the folders that may have others.
#[derive(Default)]
struct FoundFiles {
    files: Vec<PathBuf>,
    unread: Vec<(PathBuf, io::Error)>,
}

impl FoundFiles {
    /// Adds the entries of a folder, each by `take`.
    fn folder(&mut self, folder: &Path, entries: fs::ReadDir, mut take: impl FnMut(&mut FoundFiles, PathBuf)) {
        for entry in entries {
            match entry {
                Ok(entry) => take(self, entry.path()),
                Err(error) => self.unread.push((folder.to_path_buf(), error)),
            }
        }
    }
}

/// The files found at a path; none is kept open.
pub struct RecordingFiles {
    origin: Origin,
}

/// Opens a regular file only. The owner of a directory chooses what its names lead to, and an open has an effect on a
/// FIFO, whose writer goes on, and on a device: a tape rewinds, a watchdog starts. O_PATH only locates the file. The
/// same inode is then opened through that descriptor, so that nobody can exchange it meanwhile.
fn open(path: &Path) -> io::Result<File> {
    let found = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    // Non-blocking: the holder of a lease could delay a plain open by 45 s (fcntl(2), F_SETLEASE).
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(link, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        // The descriptor is open, so only its link in /proc can be missing.
        Err(Errno::NOENT) => Err(io::Error::other("/proc is not mounted here")),
        Err(error) => Err(error.into()),
    }
}

/// Decides by the first bytes; for a directory, by those of a file in it. Empty and unreadable files don't count.
pub fn is_recording(path: &Path) -> bool {
    let begins = |path: &Path| {
        let mut magic = [0; 4];
        let count = open(path).and_then(|file| Pieces(file).read_at(&mut magic, 0));
        count.is_ok_and(|count| count == 4) && magic == MAGIC
    };
    if path.is_dir() {
        chunk_files(path).is_ok_and(|found| found.files.iter().any(|file| begins(file)))
    } else {
        begins(path)
    }
}

/// `DIR/*.jfr` and `DIR/*/*.jfr`; a JVM with `-XX:FlightRecorderOptions=repository=DIR` uses the second.
fn chunk_files(folder: &Path) -> io::Result<FoundFiles> {
    let mut found = FoundFiles::default();
    found.folder(folder, fs::read_dir(folder)?, |found, path| {
        if !path.is_dir() {
            found.files.push(path);
            return;
        }
        match fs::read_dir(&path) {
            Ok(entries) => found.folder(&path, entries, |found, path| found.files.push(path)),
            Err(error) => found.unread.push((path, error)),
        }
    });
    let files = &mut found.files;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jfr"));
    // Ordered by start time: within a second, names differ only by a suffix.
    let start = |path: &PathBuf| {
        let mut bytes = [0; HEADER_BYTES];
        let count = open(path).and_then(|file| Pieces(file).read_at(&mut bytes, 0)).unwrap_or(0);
        Header::parse(&bytes[..count]).map_or(i64::MAX, |header| header.start_ns)
    };
    files.sort_by_cached_key(|path| (start(path), path.clone()));
    Ok(found)
}

impl RecordingFiles {
    pub fn open(path: &Path) -> Result<RecordingFiles, Gap> {
        let unreadable = |path: &Path, error: &io::Error| {
            Gap::new(Source::Jfr, format!("{} can't be read: {error}", path.display()), "nothing of it is shown")
        };
        let refused = |error: io::Error| unreadable(path, &error);
        let found = if path.is_dir() {
            chunk_files(path).map_err(refused)?
        } else {
            open(path).map_err(refused)?;
            FoundFiles { files: vec![path.to_path_buf()], unread: Vec::new() }
        };
        if found.files.is_empty() {
            if let Some((folder, error)) = found.unread.first() {
                return Err(unreadable(folder, error));
            }
            let reason = format!("{} has no file *.jfr", path.display());
            return Err(Gap::new(Source::Jfr, reason, "nothing of it is shown"));
        }
        Ok(RecordingFiles { origin: Origin::Files(found) })
    }

    /// A recording in memory.
    pub fn of_bytes(bytes: Vec<u8>) -> RecordingFiles {
        RecordingFiles { origin: Origin::Bytes(bytes) }
    }

    /// Calls `visit` for each event that `wanted` selects, in the order of the file (not by time), until `visit`
    /// breaks. Reads only the bytes present at the start, and keeps the constants of one chunk.
    pub fn read(&self, wanted: &EventFilter, visit: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>) -> Summary {
        self.each(|reader, input| reader.read(input, wanted, visit))
    }

    /// Reads to the end.
    pub fn for_each(&self, wanted: &EventFilter, mut visit: impl FnMut(&Event<'_>)) -> Summary {
        self.read(wanted, &mut |event| {
            visit(event);
            ControlFlow::Continue(())
        })
    }

    /// Reads only the chunks' headers: when the recording begins and ends. In unfinished chunks, it also steps through
    /// the events.
    pub fn chunks(&self) -> Vec<ChunkSummary> {
        let outline = |reader: &mut Reader, input: Input<'_>| {
            reader.outline(input);
            ControlFlow::Continue(())
        };
        self.each(outline).chunks
    }

    fn each(&self, mut f: impl FnMut(&mut Reader, Input<'_>) -> ControlFlow<()>) -> Summary {
        let mut reader = Reader::new(Limits::default());
        match &self.origin {
            Origin::Bytes(bytes) => {
                let _ = f(&mut reader, Input::of(&bytes.as_slice()));
            }
            Origin::Files(FoundFiles { files, unread }) => {
                unread.iter().for_each(|(folder, error)| reader.unreadable(folder, error));
                for path in files {
                    let opened = open(path).and_then(|file| Ok((file.metadata()?.len(), Pieces(file))));
                    let (length, file) = match opened {
                        Ok(opened) => opened,
                        Err(error) => {
                            reader.unreadable(path, &error);
                            continue;
                        }
                    };
                    if f(&mut reader, Input { name: Some(path), bytes: &file, length }).is_break() {
                        break;
                    }
                }
            }
        }
        reader.into_summary()
    }
}

/// Turns what could not be read into gaps of a report.
pub fn gaps(flaws: Vec<Flaw>) -> Vec<Gap> {
    flaws.into_iter().map(|flaw| Gap::new(Source::Jfr, flaw.to_string(), flaw.effect)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder of another user in a repository.
    #[test]
    fn a_folder_that_cannot_be_read_is_a_flaw() {
        let folder = PathBuf::from("/repository/2026_11_26");
        let unread = vec![(folder.clone(), io::Error::from(io::ErrorKind::PermissionDenied))];
        let recording = RecordingFiles { origin: Origin::Files(FoundFiles { files: Vec::new(), unread }) };
        let flaws = recording.for_each(&EventFilter::when(|_| true), |_| {}).flaws;
        assert_eq!(flaws.len(), 1);
        assert_eq!(flaws[0].file.as_deref(), Some(folder.as_path()));
    }
}
