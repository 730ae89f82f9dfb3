//! The file of a recording: made aside and moved into place with its first instant in it, finished and named by its start
//! when it is full.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_observer::units::Bytes;
use plimsoll_report::jfr::{Batch, Recording, Store};
use plimsoll_report::words;

use super::Pace;
use crate::Failure;

/// pwrite(2), once for each piece.
struct Place(File);

impl Store for Place {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }
}

pub struct Output {
    pattern: PathBuf,
    pid: u32,
    max_size: Option<Bytes>,
    max_age: Option<Duration>,
    keep: Option<usize>,
    current: Option<Current>,
    /// Full ones, oldest first.
    full: Vec<PathBuf>,
    /// How many were finished, and their size together.
    finished: (u64, Bytes),
}

/// What there is in the end.
pub struct Written {
    /// Of the last file.
    pub name: String,
    pub files: u64,
    /// Of all files.
    pub bytes: Bytes,
}

struct Current {
    recording: Recording<Place>,
    path: PathBuf,
    /// Where it lies until its first instant is in it.
    aside: Option<PathBuf>,
    start_ns: u64,
    began: Instant,
}

impl Output {
    pub fn new(pattern: &Path, pid: u32, pace: Pace) -> Result<Output, Failure> {
        let Pace { max_size, max_age, keep, .. } = pace;
        Ok(Output {
            pattern: pattern.to_owned(),
            pid,
            max_size,
            max_age,
            keep,
            current: None,
            full: Vec::new(),
            finished: (0, Bytes(0)),
        })
    }

    pub fn instant(&mut self, time_ns: u64, write: impl FnOnce(&mut Batch<'_>)) -> Result<(), Failure> {
        if self.is_full() {
            self.rotate()?;
        }
        if self.current.is_none() {
            self.current = Some(self.begin(time_ns)?);
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        let failed = |path: &Path, e: io::Error| Failure(format!("{} can't be written: {e}", shown(path)));
        current.recording.instant(time_ns, write).map_err(|e| failed(&current.path, e))?;
        if let Some(aside) = current.aside.take() {
            fs::rename(&aside, &current.path).map_err(|e| failed(&current.path, e))?;
        }
        Ok(())
    }

    fn begin(&self, time_ns: u64) -> Result<Current, Failure> {
        let path = named(&self.pattern, self.pid, time_ns);
        is_replaceable(&path)?;
        let aside = beside(&path, &format!(".{}.part", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).open(&aside);
        let file = file.map_err(|e| format!("{} can't be made: {e}", shown(&aside)))?;
        let recording = Recording::new(Place(file));
        Ok(Current { recording, path, aside: Some(aside), start_ns: time_ns, began: Instant::now() })
    }

    fn is_full(&self) -> bool {
        self.current.as_ref().is_some_and(|current| {
            self.max_size.is_some_and(|most| current.recording.length() >= most.0)
                || self.max_age.is_some_and(|most| current.began.elapsed() >= most)
        })
    }

    /// The file is finished and gets the moment of its start into its name; the next instant begins another one.
    pub fn rotate(&mut self) -> Result<(), Failure> {
        let Some((path, start_ns)) = self.close()? else { return Ok(()) };
        let moment = compact(start_ns);
        if self.pattern.to_string_lossy().contains("%t") {
            // The moment is in its name already.
            self.keep_only(path);
            return Ok(());
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let extension = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
        let full = path.with_file_name(format!("{stem}.{moment}{extension}"));
        fs::rename(&path, &full).map_err(|e| format!("{} can't be renamed: {e}", shown(&path)))?;
        self.keep_only(full);
        Ok(())
    }

    fn keep_only(&mut self, full: PathBuf) {
        self.full.push(full);
        if let Some(keep) = self.keep {
            while self.full.len() > keep {
                // One that somebody took away already is no failure.
                let _ = fs::remove_file(self.full.remove(0));
            }
        }
    }

    fn close(&mut self) -> Result<Option<(PathBuf, u64)>, Failure> {
        let Some(Current { recording, path, start_ns, .. }) = self.current.take() else { return Ok(None) };
        let length = recording.finish().and_then(|Place(file)| Ok(file.metadata()?.len()));
        let length = length.map_err(|e| format!("{} can't be written: {e}", shown(&path)))?;
        self.finished = (self.finished.0 + 1, self.finished.1 + Bytes(length));
        Ok(Some((path, start_ns)))
    }

    pub fn finish(mut self) -> Result<Option<Written>, Failure> {
        let last = self.close()?.map(|(path, _)| path).or_else(|| self.full.pop());
        let (files, bytes) = self.finished;
        Ok(last.map(|path| Written { name: shown(&path), files, bytes }))
    }

    pub fn written(&self) -> Bytes {
        self.finished.1 + self.current.as_ref().map_or(Bytes(0), |current| Bytes(current.recording.length()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(aside) = self.current.as_ref().and_then(|current| current.aside.as_ref()) {
            let _ = fs::remove_file(aside);
        }
    }
}

/// Whether two processes get two names.
pub fn tells_apart(pattern: &Path) -> bool {
    pattern.to_string_lossy().contains("%p")
}

/// Whether a file can be made there.
pub fn writable(pattern: &Path) -> Result<(), Failure> {
    is_replaceable(&named(pattern, 0, 0))?;
    let probe = beside(&named(pattern, 0, 0), &format!(".{}.probe", std::process::id()));
    let made = OpenOptions::new().write(true).create(true).truncate(true).open(&probe);
    made.map_err(|e| format!("{} can't be made: {e}", shown(&named(pattern, 0, 0))))?;
    let _ = fs::remove_file(&probe);
    Ok(())
}

/// A recording takes the place of the file of its name. Root could have it take the place of /dev/null.
fn is_replaceable(path: &Path) -> Result<(), Failure> {
    let kind = fs::symlink_metadata(path).map(|there| there.file_type());
    let what = match kind {
        Ok(kind) if kind.is_dir() => "is a directory",
        Ok(kind) if kind.is_symlink() => "is a symbolic link: name the file itself",
        Ok(kind) if !kind.is_file() => "is no regular file",
        _ => return Ok(()),
    };
    Err(format!("{} {what}; a recording takes the place of a file", shown(path)).into())
}

fn named(pattern: &Path, pid: u32, time_ns: u64) -> PathBuf {
    // A name that is no UTF-8 has no places in it that we know of.
    match pattern.to_str() {
        Some(text) => PathBuf::from(text.replace("%p", &pid.to_string()).replace("%t", &compact(time_ns))),
        None => pattern.to_owned(),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{suffix}"))
}

/// `20261121-004512.250` in UTC: sorts by time.
fn compact(time_ns: u64) -> String {
    words::moment(time_ns).replace(['-', ':', 'Z'], "").replace('T', "-")
}

fn shown(path: &Path) -> String {
    words::printable(&path.display().to_string())
}
