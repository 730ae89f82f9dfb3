//! The file of a recording: made aside and moved into place with its first instant in it, finished and named by its start
//! when it is full.
//!
//! Its directory may be one that others write to (/tmp). So the directory is opened once, and within it only a file is written that
//! did not exist before, under a name that nobody can guess; then it is renamed. No link is ever followed, and what took the
//! place of a name is replaced, never written to.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_jfr::writer::{Batch, Recording, Store};
use plimsoll_observer::foreign::own::{self, Folder};
use plimsoll_observer::units::Bytes;
use plimsoll_report::jfr::TABLE;
use plimsoll_report::words;
use rustix::fs::FileType;

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
    folder: Folder,
    /// Its name until its first instant is in it.
    aside: Option<OsString>,
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
        let failed = |path: &Path, e: io::Error| Failure(format!("cannot write {}: {e}", shown(path)));
        current.recording.instant(time_ns, write).map_err(|e| failed(&current.path, e))?;
        if let Some(aside) = current.aside.take() {
            current.folder.rename(&aside, name_of(&current.path)).map_err(|e| failed(&current.path, e))?;
        }
        Ok(())
    }

    fn begin(&self, time_ns: u64) -> Result<Current, Failure> {
        let path = named(&self.pattern, self.pid, time_ns);
        let (folder, aside, file) = made(&path)?;
        let recording = Recording::new(Place(file), &TABLE);
        Ok(Current { recording, path, folder, aside: Some(aside), start_ns: time_ns, began: Instant::now() })
    }

    fn is_full(&self) -> bool {
        self.current.as_ref().is_some_and(|current| {
            self.max_size.is_some_and(|most| current.recording.length() >= most.0)
                || self.max_age.is_some_and(|most| current.began.elapsed() >= most)
        })
    }

    /// The file is finished and gets the moment of its start into its name; the next instant begins another one.
    pub fn rotate(&mut self) -> Result<(), Failure> {
        let Some((path, folder, start_ns)) = self.close()? else { return Ok(()) };
        let moment = compact(start_ns);
        if self.pattern.to_string_lossy().contains("%t") {
            // The moment is in its name already.
            self.keep_only(&folder, path);
            return Ok(());
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let extension = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
        let full = path.with_file_name(format!("{stem}.{moment}{extension}"));
        folder.rename(name_of(&path), name_of(&full)).map_err(|e| format!("{} can't be renamed: {e}", shown(&path)))?;
        self.keep_only(&folder, full);
        Ok(())
    }

    fn keep_only(&mut self, folder: &Folder, full: PathBuf) {
        self.full.push(full);
        if let Some(keep) = self.keep {
            while self.full.len() > keep {
                // One that somebody took away already is no failure.
                let _ = folder.remove(name_of(&self.full.remove(0)));
            }
        }
    }

    fn close(&mut self) -> Result<Option<(PathBuf, Folder, u64)>, Failure> {
        let Some(Current { recording, path, folder, start_ns, .. }) = self.current.take() else { return Ok(None) };
        let length = recording.finish().and_then(|Place(file)| Ok(file.metadata()?.len()));
        let length = length.map_err(|e| format!("cannot write {}: {e}", shown(&path)))?;
        self.finished = (self.finished.0 + 1, self.finished.1 + Bytes(length));
        Ok(Some((path, folder, start_ns)))
    }

    pub fn finish(mut self) -> Result<Option<Written>, Failure> {
        let last = self.close()?.map(|(path, ..)| path).or_else(|| self.full.pop());
        let (files, bytes) = self.finished;
        Ok(last.map(|path| Written { name: shown(&path), files, bytes }))
    }

    pub fn written(&self) -> Bytes {
        self.finished.1 + self.current.as_ref().map_or(Bytes(0), |current| Bytes(current.recording.length()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(Current { folder, aside: Some(aside), .. }) = &self.current {
            let _ = folder.remove(aside);
        }
    }
}

/// Whether two processes get two names.
pub fn tells_apart(pattern: &Path) -> bool {
    pattern.to_string_lossy().contains("%p")
}

/// Whether a file can be made there.
pub fn writable(pattern: &Path) -> Result<(), Failure> {
    let (folder, aside, _) = made(&named(pattern, 0, 0))?;
    let _ = folder.remove(&aside);
    Ok(())
}

/// A new file beside the one that it will replace.
fn made(path: &Path) -> Result<(Folder, OsString, File), Failure> {
    let failed = |e: io::Error| Failure(format!("cannot make {}: {e}", shown(path)));
    let folder = Folder::open(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    is_replaceable(&folder, path)?;
    let aside = own::aside(name_of(path));
    let file = folder.create(&aside, 0o666).map_err(failed)?;
    Ok((folder, aside, file))
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// A recording takes the place of the file of its name. Root could have it take the place of /dev/null.
fn is_replaceable(folder: &Folder, path: &Path) -> Result<(), Failure> {
    let kind = folder.stat(name_of(path)).map(|there| FileType::from_raw_mode(there.st_mode));
    let what = match kind {
        Ok(FileType::Directory) => "is a directory",
        Ok(FileType::Symlink) => "is a symbolic link: name the file itself",
        _ if path.file_name().is_none() => "is a directory",
        Ok(FileType::RegularFile) | Err(_) => return Ok(()),
        Ok(_) => "is not a regular file",
    };
    Err(format!("{} {what}: a recording replaces a regular file only", shown(path)).into())
}

fn named(pattern: &Path, pid: u32, time_ns: u64) -> PathBuf {
    // A name that is no UTF-8 has no places in it that we know of.
    match pattern.to_str() {
        Some(text) => PathBuf::from(text.replace("%p", &pid.to_string()).replace("%t", &compact(time_ns))),
        None => pattern.to_owned(),
    }
}

/// `20261121-004512.250` in UTC: sorts by time.
fn compact(time_ns: u64) -> String {
    words::moment(time_ns).replace(['-', ':', 'Z'], "").replace('T', "-")
}

fn shown(path: &Path) -> String {
    words::printable(&path.display().to_string())
}
