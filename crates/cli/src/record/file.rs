//! The file of a recording. It is created under a temporary name and renamed once it holds its first instant. A full
//! file is finished and renamed by its start time.
//!
//! Others may be able to write to the directory (/tmp). So the directory is opened once. Inside it only a new file with
//! an unpredictable name is written, and then renamed. No link is ever followed. An existing file of the same name is
//! replaced, never written to.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_facts::units::Bytes;
use plimsoll_jfr::writer::{Batch, Recording, Series, Store};
use plimsoll_process::foreign::own_files::{self, Folder};
use plimsoll_report::jfr::TABLE;
use plimsoll_report::words;
use rustix::fs::FileType;

use super::Pace;
use crate::Failure;

/// Writes each piece with pwrite(2).
struct FileStore(File);

impl Store for FileStore {
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
    /// What the next file continues; None while a file is written, and after an error.
    series: Option<Series>,
    /// The full files, oldest first.
    full: Vec<PathBuf>,
    /// How many files were finished, and their total size.
    finished: (u64, Bytes),
    /// How many of them `keep` has removed.
    removed: u64,
}

/// What the recording left on disk.
pub struct Written {
    /// The last file.
    pub name: String,
    pub files: u64,
    /// Those that `--keep` has left.
    pub kept: u64,
    /// All files together.
    pub bytes: Bytes,
}

struct Current {
    recording: Recording<FileStore>,
    path: PathBuf,
    folder: Folder,
    /// The temporary name, until the first instant is in the file.
    aside: Option<OsString>,
    start_ns: u64,
    began: Instant,
}

/// A finished file.
struct Complete {
    path: PathBuf,
    folder: Folder,
    start_ns: u64,
    /// Whether the file still has its name.
    is_there: bool,
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
            series: None,
            full: Vec::new(),
            finished: (0, Bytes(0)),
            removed: 0,
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

    fn begin(&mut self, time_ns: u64) -> Result<Current, Failure> {
        let path = named(&self.pattern, self.pid, time_ns);
        let (folder, aside, file) = made(&path)?;
        let series = self.series.take().unwrap_or_else(|| Series::new(&TABLE));
        let recording = Recording::of_series(FileStore(file), series);
        Ok(Current { recording, path, folder, aside: Some(aside), start_ns: time_ns, began: Instant::now() })
    }

    fn is_full(&self) -> bool {
        self.current.as_ref().is_some_and(|current| {
            self.max_size.is_some_and(|most| current.recording.length() >= most.0)
                || self.max_age.is_some_and(|most| current.began.elapsed() >= most)
        })
    }

    /// Finishes the file and adds its start time to its name. The next instant begins a new file. A file that somebody
    /// has moved or deleted (`mv`, then SIGHUP, as logrotate does) stays as it is.
    pub fn rotate(&mut self) -> Result<(), Failure> {
        let Some(Complete { path, folder, start_ns, is_there }) = self.close()? else { return Ok(()) };
        if !is_there {
            return Ok(());
        }
        let moment = compact(start_ns);
        if has(&self.pattern, b"%t") {
            // %t has put the start time into the name already.
            self.keep_only(&folder, path);
            return Ok(());
        }
        let mut name = path.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".{moment}"));
        if let Some(extension) = path.extension() {
            name.push(".");
            name.push(extension);
        }
        let full = path.with_file_name(name);
        folder.rename(name_of(&path), name_of(&full)).map_err(|e| format!("cannot rename {}: {e}", shown(&path)))?;
        self.keep_only(&folder, full);
        Ok(())
    }

    fn keep_only(&mut self, folder: &Folder, full: PathBuf) {
        self.full.push(full);
        if let Some(keep) = self.keep {
            while self.full.len() > keep {
                // The file may already be gone: not an error.
                let _ = folder.remove(name_of(&self.full.remove(0)));
                self.removed += 1;
            }
        }
    }

    fn close(&mut self) -> Result<Option<Complete>, Failure> {
        let Some(Current { recording, path, folder, start_ns, .. }) = self.current.take() else { return Ok(None) };
        let finished = recording.finish_file().and_then(|(FileStore(file), series)| Ok((file.metadata()?, series)));
        let (file, series) = finished.map_err(|e| format!("cannot write {}: {e}", shown(&path)))?;
        self.series = Some(series);
        self.finished = (self.finished.0 + 1, self.finished.1 + Bytes(file.len()));
        let found = folder.stat(name_of(&path));
        let is_there = found.is_ok_and(|found| (found.st_dev, found.st_ino) == (file.dev(), file.ino()));
        Ok(Some(Complete { path, folder, start_ns, is_there }))
    }

    pub fn finish(mut self) -> Result<Option<Written>, Failure> {
        let last = self.close()?.map(|last| last.path).or_else(|| self.full.pop());
        let (files, bytes) = self.finished;
        let kept = files.saturating_sub(self.removed);
        Ok(last.map(|path| Written { name: shown(&path), files, kept, bytes }))
    }

    /// Whether the next instant is the first of a file.
    pub fn begins_file(&self) -> bool {
        self.current.is_none() || self.is_full()
    }

    pub fn path(&self) -> Option<&Path> {
        self.current.as_ref().map(|current| current.path.as_path())
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
pub fn makes_distinct_names(pattern: &Path) -> bool {
    has(pattern, b"%p")
}

fn has(pattern: &Path, placeholder: &[u8; 2]) -> bool {
    pattern.as_os_str().as_bytes().windows(2).any(|pair| pair == placeholder)
}

/// Fails if no file can be created there.
pub fn writable(pattern: &Path) -> Result<(), Failure> {
    let (folder, aside, _) = made(&named(pattern, 0, 0))?;
    let _ = folder.remove(&aside);
    Ok(())
}

/// Creates a new file beside the one that it will replace.
fn made(path: &Path) -> Result<(Folder, OsString, File), Failure> {
    let failed = |e: io::Error| Failure(format!("cannot make {}: {e}", shown(path)));
    let folder = Folder::open(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    is_replaceable(&folder, path)?;
    let aside = own_files::aside(name_of(path));
    let file = folder.create(&aside, 0o666).map_err(failed)?;
    Ok((folder, aside, file))
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// A recording replaces the file of its name. Without this check, root could replace /dev/null.
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
    let mut name = Vec::new();
    // The name need not be UTF-8.
    let mut rest = pattern.as_os_str().as_bytes();
    loop {
        rest = match rest {
            [b'%', b'p', rest @ ..] => {
                name.extend(pid.to_string().bytes());
                rest
            }
            [b'%', b't', rest @ ..] => {
                name.extend(compact(time_ns).bytes());
                rest
            }
            [byte, rest @ ..] => {
                name.push(*byte);
                rest
            }
            [] => return OsString::from_vec(name).into(),
        };
    }
}

/// `20261121-004512.250` in UTC: file names sort by time.
fn compact(time_ns: u64) -> String {
    words::moment(time_ns).replace(['-', ':', 'Z'], "").replace('T', "-")
}

fn shown(path: &Path) -> String {
    words::printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_utf8_is_a_name_like_others() {
        let top = std::env::temp_dir().join(format!("plimsoll-record-names-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        std::fs::create_dir_all(&top).expect("a folder");
        let in_top = |name: &[u8]| top.join(OsStr::from_bytes(name));
        // 2026-11-23T20:15:00.250Z
        let time_ns = 1_795_464_900_250_000_000;
        let pattern = in_top(b"\xff-%p-%t-%%p%.jfr");
        assert_eq!(named(&pattern, 42, time_ns), in_top(b"\xff-42-20261123-201500.250-%42%.jfr"));
        assert!(makes_distinct_names(&pattern) && !makes_distinct_names(&in_top(b"\xff-%t.jfr")));
        // Full files under two names that differ only in a byte that isn't UTF-8, and under one with the time in it.
        for pattern in [&b"\xff.jfr"[..], b"\xfe.jfr", b"\xff-%t.jfr"] {
            let mut output =
                Output::new(&in_top(pattern), 42, Pace::default()).unwrap_or_else(|why| panic!("{}", why.0));
            for second in 0..2 {
                let instant = output.instant(time_ns + second * 1_000_000_000, |_| {});
                assert_eq!(instant.and_then(|()| output.rotate()).map_err(|why| why.0), Ok(()));
            }
        }
        let names = std::fs::read_dir(&top).expect("a folder").flatten().map(|entry| entry.file_name().into_vec());
        let mut names: Vec<Vec<u8>> = names.collect();
        names.sort();
        let expected: [&[u8]; 6] = [
            b"\xfe.20261123-201500.250.jfr",
            b"\xfe.20261123-201501.250.jfr",
            b"\xff-20261123-201500.250.jfr",
            b"\xff-20261123-201501.250.jfr",
            b"\xff.20261123-201500.250.jfr",
            b"\xff.20261123-201501.250.jfr",
        ];
        assert_eq!(names, expected);
        let _ = std::fs::remove_dir_all(&top);
    }
}
