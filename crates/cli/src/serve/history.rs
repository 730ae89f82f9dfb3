//! Recordings of the targets on disk, within a budget.
//!
//! ```text
//! DIR/                 ours alone, locked by the server that writes into it
//! └── shop/            a target, under its name: a restart goes on here
//!     ├── 20261123-201500.250.jfr     full: an hour, or an eighth of the budget
//!     └── 20261123-211500.250.jfr     being written; whole after each reading, also after kill -9
//! ```
//! `plimsoll report DIR/shop` reads all of it. The oldest full files go first when the budget is exceeded, and a
//! target's directory goes with its last file. There may be thousands of directories: the deletion opens one at a time.
//! The user names DIR, and may name /tmp or a project. So only files with names of ours are deleted, and a directory
//! that is open to others is closed only if it holds nothing else.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{Bound, History, Range};
use plimsoll_process::foreign::own_files::{Directory, Folder};
use plimsoll_process::proc;
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

/// The recordings that are being written.
#[derive(Default)]
pub struct Written {
    /// Their files.
    pub files: BTreeSet<PathBuf>,
    /// The names of all targets that are recorded, also of those that have no file at this moment.
    pub names: BTreeSet<String>,
}

/// What is left after old files were deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// The files that are left exceed the budget.
    pub is_over: bool,
    /// Why files stay that should have been deleted: one sentence, of the first error.
    pub problem: Option<String>,
}

impl Tidied {
    /// Keeps the first error. None: what is not there needs no deletion.
    fn note<T>(&mut self, what: &str, path: &Path, result: io::Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
            let sentence = || format!("--keep and --size are exceeded: cannot {what} {}: {error}", shown(path));
            self.problem.get_or_insert_with(sentence);
        }
        None
    }
}

/// A file of a target.
struct File {
    /// The target.
    folder: String,
    name: String,
    modified: SystemTime,
    bytes: u64,
}

/// The directory of recordings where none is named.
pub fn usual_directory() -> Result<PathBuf, Failure> {
    usual_directory_of(rustix::process::geteuid().is_root(), |name| std::env::var_os(name))
}

/// For root the directory is fixed: one that a variable names may belong to another user.
fn usual_directory_of(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Failure> {
    if is_root {
        return Ok(PathBuf::from("/var/lib/plimsoll/history"));
    }
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let states = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let states = states.ok_or("neither XDG_STATE_HOME nor HOME is set: name a directory with --history")?;
    Ok(states.join("plimsoll/history"))
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
        for target in store.targets(&mut Tidied::default()) {
            let Ok(folder) = Folder::open(&store.directory.path.join(&target)) else { continue };
            for name in folder.names().unwrap_or_default().iter().filter(|name| is_begun(name)) {
                let _ = folder.remove(OsStr::new(name));
            }
        }
        Ok(store)
    }

    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    pub fn writer(&self, name: &str, pid: u32, interval: Duration) -> Result<Writer, Failure> {
        let path = self.directory.path.join(name);
        let directory = Directory::open(&path).map_err(|why| format!("{}: {why}", shown(&path)))?;
        let pace = Pace::within(interval, Bytes(self.size.0 / FILES), FULL.min(self.keep / 4));
        Ok(Writer::new(pid, interval, Output::new(&directory.path.join("%t.jfr"), pid, pace)?))
    }

    /// Reads a target's files, as far back as they are kept. Readings made while the clock was ahead lie in the future
    /// and are left out. If there are no others, the newest readings are shown.
    pub fn of(&self, name: &str) -> Result<History, Failure> {
        let files = RecordingFiles::open(&self.directory.path.join(name)).map_err(|gap| Failure(gap.reason))?;
        let keep = i64::try_from(self.keep.as_nanos()).unwrap_or(i64::MAX);
        let now = i64::try_from(proc::now_ns()).unwrap_or(i64::MAX);
        let kept = Range { from: Some(Bound::At(now.saturating_sub(keep))), to: Some(Bound::At(now)) };
        let newest = || History::read(&files, Range { from: Some(Bound::BeforeEnd(keep)), to: None });
        Ok(History::read(&files, kept).or_else(|_| newest())?)
    }

    /// Deletes files that are too old, then the oldest files until the rest is within the budget. Files that are being
    /// written stay, and so do the directories of targets that are recorded.
    pub fn tidy(&self, written: &Written) -> Tidied {
        let mut tidied = Tidied::default();
        let targets = self.targets(&mut tidied);
        let mut files: Vec<File> = targets.iter().flat_map(|target| self.files(target, &mut tidied)).collect();
        files.sort_by_key(|file| file.modified);
        let mut total: u64 = files.iter().map(|file| file.bytes).sum();
        let now = SystemTime::now();
        for file in &files {
            let (folder, name) = (self.directory.path.join(&file.folder), OsStr::new(&file.name));
            let path = folder.join(name);
            let age = now.duration_since(file.modified).unwrap_or_default();
            if written.files.contains(&path) || age <= self.keep && total <= self.size.0 {
                continue;
            }
            let removed = Folder::open(&folder).and_then(|folder| folder.remove(name));
            let is_gone = removed.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NotFound);
            tidied.note("delete", &path, removed);
            if is_gone {
                total = total.saturating_sub(file.bytes);
            }
            if is_gone && !written.names.contains(&file.folder) {
                // It fails while the directory holds anything.
                let _ = self.directory.folder.remove_directory(OsStr::new(&file.folder));
            }
        }
        tidied.is_over = total > self.size.0;
        tidied
    }

    fn targets(&self, tidied: &mut Tidied) -> Vec<String> {
        let names = tidied.note("list", &self.directory.path, self.directory.folder.names());
        names.unwrap_or_default().into_iter().filter(|name| is_name(name)).collect()
    }

    fn files(&self, target: &str, tidied: &mut Tidied) -> Vec<File> {
        let path = self.directory.path.join(target);
        // Nobody else can put anything into this directory, so no name is a link.
        let opened = Folder::open(&path).and_then(|folder| Ok((folder.names()?, folder)));
        let Some((names, folder)) = tidied.note("list", &path, opened) else { return Vec::new() };
        let one = |name: String| {
            let stat = tidied.note("look at", &path.join(&name), folder.stat(OsStr::new(&name)))?;
            let modified = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            Some(File { folder: target.to_owned(), name, modified, bytes })
        };
        names.into_iter().filter(|name| is_recording(name)).filter_map(one).collect()
    }
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

    use plimsoll_report::jfr::{ChunkContents, DescribedTarget, Instant as Moment};

    use super::*;

    #[test]
    fn recordings_have_a_usual_directory() {
        let of = |is_root, variables: &[(&str, &str)]| {
            let variable = |name: &str| variables.iter().find(|of| of.0 == name).map(|of| of.1.into());
            usual_directory_of(is_root, variable).ok().map(|path| path.display().to_string())
        };
        let (home, states) = (("HOME", "/home/ada"), ("XDG_STATE_HOME", "/s"));
        assert_eq!(of(false, &[home, states]).as_deref(), Some("/s/plimsoll/history"));
        assert_eq!(of(false, &[home]).as_deref(), Some("/home/ada/.local/state/plimsoll/history"));
        assert_eq!(of(false, &[("HOME", "relative")]), None);
        assert_eq!(of(true, &[home, states]).as_deref(), Some("/var/lib/plimsoll/history"));
    }

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
        let of = |path: &PathBuf| Written { files: BTreeSet::from([path.clone()]), ..Written::default() };
        assert_eq!(store.tidy(&of(&written)), Tidied::default());
        let is_there = |paths: &[&PathBuf]| paths.iter().map(|path| path.exists()).collect::<Vec<_>>();
        // Without the old file, 1,600 bytes are left: above the budget. So the two oldest that aren't being written go.
        assert_eq!(
            is_there(&[&old, &first, &written, &second, &last, &other]),
            [false, false, true, false, true, true]
        );
        std::fs::write(&written, vec![0; 2000]).expect("a file");
        let tidied = store.tidy(&of(&written));
        assert_eq!(tidied, Tidied { is_over: true, problem: None }, "what is written exceeds the budget alone");
        // A target's directory goes with its last file, but not while the target is recorded.
        let ended = [make("ended/20261123-180000.000.jfr", 70, 1), make("ended/20261123-190000.000.jfr", 65, 1)];
        let paused = make("paused/20261123-180000.000.jfr", 70, 1);
        let written = Written { names: BTreeSet::from(["paused".to_owned()]), ..of(&written) };
        assert_eq!(store.tidy(&written), Tidied { is_over: true, problem: None });
        assert_eq!(is_there(&[&ended[0], &ended[1], &top.join("ended")]), [false; 3]);
        assert_eq!(is_there(&[&paused, &top.join("paused"), &top.join("shop"), &other]), [false, true, true, true]);
        let _ = std::fs::remove_dir_all(&top);
    }

    /// The clock was a week ahead, and was set right before the server started again.
    #[test]
    fn readings_of_the_future_hide_none_of_now() {
        let top = std::env::temp_dir().join(format!("plimsoll-serve-future-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let hour = Duration::from_secs(3600);
        let store = Store::open(&top, hour, Bytes(1 << 30)).unwrap_or_else(|why| panic!("{}", why.0));
        fs::create_dir_all(top.join("shop")).expect("a folder");
        let second = 1_000_000_000;
        let record = |from_ns: u64, rss: Bytes| {
            let pace = Pace::every(Duration::from_secs(1));
            let mut output = Output::new(&top.join("shop/%t.jfr"), 7, pace).unwrap_or_else(|why| panic!("{}", why.0));
            let moment = Moment { rss: Some((rss, rss)), ..Moment::default() };
            let (mut written, target) = (ChunkContents::default(), DescribedTarget::default());
            for time_ns in [from_ns, from_ns + second, from_ns + 2 * second] {
                let instant = output.instant(time_ns, |batch| moment.write(batch, &mut written, &target));
                instant.unwrap_or_else(|why| panic!("{}", why.0));
            }
            let _ = output.finish().unwrap_or_else(|why| panic!("{}", why.0));
        };
        let rss = || {
            let history = store.of("shop").unwrap_or_else(|why| panic!("{}", why.0));
            history.rss().and_then(|rss| rss.figures()).map(|rss| (rss.readings, Bytes(rss.last)))
        };
        let now = proc::now_ns();
        record(now + 7 * 86_400 * second, Bytes::mib(2));
        assert_eq!(rss(), Some((3, Bytes::mib(2))), "nothing else is there");
        record(now - 10 * second, Bytes::mib(1));
        assert_eq!(rss(), Some((3, Bytes::mib(1))));
        let _ = fs::remove_dir_all(&top);
    }

    /// Root may delete anything, so a directory stands where a file is expected.
    #[test]
    fn a_file_that_cannot_be_deleted_is_reported() {
        let top = std::env::temp_dir().join(format!("plimsoll-serve-stuck-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let store = Store::open(&top, Duration::from_secs(3600), Bytes(0)).unwrap_or_else(|why| panic!("{}", why.0));
        let stuck = top.join("shop/20261123-180000.000.jfr");
        fs::create_dir_all(stuck.join("more")).expect("a folder");
        let tidied = store.tidy(&Written::default());
        let problem = tidied.problem.expect("a sentence");
        let begin = format!("--keep and --size are exceeded: cannot delete {}: ", stuck.display());
        assert!(problem.starts_with(&begin) && stuck.exists(), "{problem}");
        let _ = fs::remove_dir_all(&top);
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
        // A directory that is closed to others may hold anything; only our own files are removed from it.
        let path = made("private", 0o700, &["src/.env", begun]);
        assert_eq!(open(&path), Ok(()));
        assert!(path.join("src/.env").exists() && !path.join(begun).exists());
        let _ = fs::remove_dir_all(&top);
    }
}
