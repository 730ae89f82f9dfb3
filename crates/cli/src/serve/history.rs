//! Recordings of the targets on disk, within a budget.
//!
//! ```text
//! DIR/                 ours alone, locked by the server that writes into it
//! └── shop/            a target, under its name: a restart goes on here
//!     ├── 20261123-201500.250.jfr     full: an hour, or an eighth of the budget
//!     └── 20261123-211500.250.jfr     being written; whole after each reading, also after kill -9
//! ```
//! `plimsoll report DIR/shop` reads all of it. The oldest full files go first when the budget is exceeded. The user
//! names DIR, and may name /tmp or a project. So only files with names of ours are deleted, and a directory that is
//! open to others is closed only if it holds nothing else.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{Bound, History, Range};
use plimsoll_process::foreign::own_files::{Directory, Folder};
use plimsoll_profiles::jfr::RecordingFiles;
use rustix::fs::{FlockOperation, flock};

use super::wire::is_name;
use crate::Failure;
use crate::output::shown;
use crate::record::{Output, Pace, Writer};

/// A file is full after this time; deletion in steps of an hour suffices.
const FULL: Duration = Duration::from_secs(3600);
/// The budget holds at least this many full files.
const FILES: u64 = 8;
/// The name of a file, which `Output` makes of `%t.jfr`; each 0 stands for a digit.
const FORM: &str = "00000000-000000.000.jfr";

pub struct Store {
    directory: Directory,
    keep: Duration,
    size: Bytes,
}

/// A file of a target.
struct File {
    folder: usize,
    name: String,
    path: PathBuf,
    modified: SystemTime,
    bytes: u64,
}

impl Store {
    pub fn open(path: &Path, keep: Duration, size: Bytes) -> Result<Store, Failure> {
        let path = std::path::absolute(path).map_err(|e| format!("--history {}: {e}", shown(path)))?;
        if let Some(mode) = foreign(&path) {
            return Err(format!(
                "--history {}: it is open to other users (mode {mode:o}) and isn't a directory of recordings only: name a new directory",
                shown(&path)
            )
            .into());
        }
        let directory = Directory::open(&path).map_err(|why| format!("--history {}: {why}", shown(&path)))?;
        flock(&directory.folder, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("--history {}: another plimsoll serve writes there", shown(&path)))?;
        let store = Store { directory, keep, size };
        // A server that was killed may have left files without a reading.
        for (folder, _) in store.folders() {
            for name in folder.names().unwrap_or_default().iter().filter(|name| is_begun(name)) {
                let _ = folder.remove(OsStr::new(name));
            }
        }
        Ok(store)
    }

    pub fn writer(&self, name: &str, pid: u32, interval: Duration) -> Result<Writer, Failure> {
        let path = self.directory.path.join(name);
        let directory = Directory::open(&path).map_err(|why| format!("{}: {why}", shown(&path)))?;
        let pace = Pace::within(interval, Bytes(self.size.0 / FILES), FULL.min(self.keep / 4));
        Ok(Writer::new(pid, interval, Output::new(&directory.path.join("%t.jfr"), pid, pace)?))
    }

    /// Reads a target's files, as far back as they are kept.
    pub fn of(&self, name: &str) -> Result<History, Failure> {
        let files = RecordingFiles::open(&self.directory.path.join(name)).map_err(|gap| Failure(gap.reason))?;
        let keep = i64::try_from(self.keep.as_nanos()).unwrap_or(i64::MAX);
        Ok(History::read(&files, Range { from: Some(Bound::BeforeEnd(keep)), to: None })?)
    }

    /// Deletes files that are too old, then the oldest files until the rest is within the budget. `written`: the files
    /// that are being written, which stay. True: the files that are left exceed the budget.
    pub fn tidy(&self, written: &BTreeSet<PathBuf>) -> bool {
        let folders = self.folders();
        let mut files: Vec<File> = folders.iter().enumerate().flat_map(|(at, of)| files(at, of)).collect();
        files.sort_by_key(|file| file.modified);
        let mut total: u64 = files.iter().map(|file| file.bytes).sum();
        let now = SystemTime::now();
        for file in files.iter().filter(|file| !written.contains(&file.path)) {
            let age = now.duration_since(file.modified).unwrap_or_default();
            if age > self.keep || total > self.size.0 {
                let _ = folders[file.folder].0.remove(OsStr::new(&file.name));
                total = total.saturating_sub(file.bytes);
            }
        }
        total > self.size.0
    }

    fn folders(&self) -> Vec<(Folder, PathBuf)> {
        let names = self.directory.folder.names().unwrap_or_default();
        let open = |name: String| {
            let path = self.directory.path.join(&name);
            // Nobody else can put anything into this directory, so no name is a link.
            Some((Folder::open(&path).ok()?, path))
        };
        names.into_iter().filter(|name| is_name(name)).filter_map(open).collect()
    }
}

fn files(at: usize, (folder, path): &(Folder, PathBuf)) -> Vec<File> {
    let one = |name: String| {
        let stat = folder.stat(OsStr::new(&name)).ok()?;
        let modified = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Some(File { folder: at, path: path.join(&name), name, modified, bytes })
    };
    let names = folder.names().unwrap_or_default();
    names.into_iter().filter(|name| is_recording(name)).filter_map(one).collect()
}

fn is_recording(name: &str) -> bool {
    let is_one = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    name.len() == FORM.len() && name.bytes().zip(FORM.bytes()).all(is_one)
}

/// A file without a reading, under its temporary name (`own_files::aside`).
fn is_begun(name: &str) -> bool {
    let parts = name.strip_prefix('.').and_then(|name| name.split_at_checked(FORM.len()));
    parts.is_some_and(|(name, rest)| is_recording(name) && rest.starts_with('-'))
}

/// The mode of a directory that may not be closed to others, because it may be theirs: it is sticky, or it holds
/// something that no server has put there.
fn foreign(path: &Path) -> Option<u32> {
    let mode = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_dir)?.mode() & 0o7777;
    let is_closed = mode & 0o077 == 0;
    (!is_closed && (mode & libc::S_ISVTX != 0 || !holds_recordings_only(path))).then_some(mode)
}

/// True also for the root of a volume, where mkfs leaves lost+found.
fn holds_recordings_only(path: &Path) -> bool {
    let all = |folder: &Path, is_ours: &dyn Fn(&str) -> bool| {
        let is_one = |of: fs::DirEntry| of.file_name().to_str().is_some_and(is_ours);
        fs::read_dir(folder).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_one)))
    };
    let is_of_a_target =
        |name: &str| is_name(name) && all(&path.join(name), &|name| is_recording(name) || is_begun(name));
    all(path, &|name| name == "lost+found" || is_of_a_target(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_oldest_full_files_go_first() {
        let top = std::env::temp_dir().join(format!("plimsoll-serve-history-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        let store = Store::open(&top, Duration::from_secs(3600), Bytes(1000)).unwrap_or_else(|why| panic!("{}", why.0));
        let again = Store::open(&top, Duration::from_secs(3600), Bytes(1000)).err().map(|why| why.0);
        assert!(again.is_some_and(|why| why.contains("another plimsoll serve writes there")));
        let now = SystemTime::now();
        let make = |name: &str, minutes: u64, bytes: usize| {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, vec![0; bytes]).expect("a file");
            let file = std::fs::File::options().write(true).open(&path).expect("a file");
            file.set_modified(now - Duration::from_secs(60 * minutes)).expect("a time");
            path
        };
        let old = make("shop/20261123-180000.000.jfr", 70, 1);
        let first = make("shop/20261123-182000.000.jfr", 50, 400);
        let written = make("shop-2/20261123-182500.000.jfr", 45, 400);
        let second = make("shop-2/20261123-183000.000.jfr", 40, 400);
        let last = make("shop/20261123-190900.000.jfr", 1, 400);
        let other = make("shop/keep.jfr", 100, 5000);
        assert!(!store.tidy(&BTreeSet::from([written.clone()])));
        let is_there = |paths: &[&PathBuf]| paths.iter().map(|path| path.exists()).collect::<Vec<_>>();
        // 1600 bytes are left without the old one, so the two oldest that may go do.
        assert_eq!(
            is_there(&[&old, &first, &written, &second, &last, &other]),
            [false, false, true, false, true, true]
        );
        std::fs::write(&written, vec![0; 2000]).expect("a file");
        assert!(store.tidy(&BTreeSet::from([written])), "what is written exceeds the budget alone");
        let _ = std::fs::remove_dir_all(&top);
    }

    /// The user may have named a project, or /tmp: it stays as it is.
    #[test]
    fn a_directory_of_other_things_is_left_alone() {
        let top = std::env::temp_dir().join(format!("plimsoll-serve-others-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let made = |name: &str, mode: u32, files: &[&str]| {
            let path = top.join(name);
            fs::create_dir_all(&path).expect("a folder");
            for file in files {
                fs::create_dir_all(path.join(file).parent().expect("a folder")).expect("a folder");
                fs::write(path.join(file), "").expect("a file");
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            path
        };
        let hour = Duration::from_secs(3600);
        let open = |path: &Path| Store::open(path, hour, Bytes(1000)).map(drop).map_err(|why| why.0);
        let mode = |path: &Path| fs::metadata(path).expect("it exists").mode() & 0o7777;
        let (begun, whole) = ("shop/.20261123-201500.250.jfr-7-0123456789abcdef", "shop/20261123-201500.250.jfr");
        for (name, bits, files) in [
            ("project", 0o755, &["src/.env"][..]),
            ("files", 0o755, &["notes.txt"]),
            ("names", 0o755, &["shop/20261123-201500.250.jfr.old"]),
            ("sticky", 0o1777, &[]),
        ] {
            let path = made(name, bits, files);
            let why = open(&path).expect_err(name);
            assert!(why.contains("is open to other users (mode "), "{why}");
            assert_eq!(mode(&path), bits, "{name}");
            assert!(files.iter().all(|file| path.join(file).exists()), "{name}");
        }
        // What mkdir, systemd and the kubelet make, and what a server left in it.
        for (name, files) in [("new", &[] as &[&str]), ("known", &[whole, begun])] {
            let path = made(name, 0o755, files);
            assert_eq!((open(&path), mode(&path)), (Ok(()), 0o700), "{name}");
            assert_eq!(path.join(whole).exists(), files.contains(&whole), "{name}");
            assert!(!path.join(begun).exists(), "{name}");
        }
        // A directory of the user's alone may hold anything; only what is ours is removed from it.
        let path = made("private", 0o700, &["src/.env", begun]);
        assert_eq!(open(&path), Ok(()));
        assert!(path.join("src/.env").exists() && !path.join(begun).exists());
        let _ = fs::remove_dir_all(&top);
    }
}
