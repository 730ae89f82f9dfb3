//! Deletes files of the cache that have not been used for a long time.
//!
//! | file | made for | goes after |
//! | --- | --- | --- |
//! | `libplimsoll-SHA256.so` | each version of this program | [`UNUSED`], if no process maps it |
//! | `run-*.rules`, `attach-*.rules`, `BUILDID-HASH-NAME.rules` | each program, each set of objects, each object | [`UNUSED`] |
//! | `.run-…`, `.attach-…`, `.libplimsoll-…`, `.PID.…` | a file that is being written; left over by a kill | [`UNFINISHED`] |
//! | `.pruned` | the time of the last pruning | stays |
//!
//! Used means written, read (atime, if the mount keeps it) or touched ([`used`]). Plimsoll can make every file again,
//! except a library that a running program passes on by LD_PRELOAD. So each use touches the library, and it stays while
//! a visible process maps it. It also stays if the deadline passes during that search. Files with other names
//! are not ours to delete. `symbols/` in the same directory has its own limit (tracked/src/symbols/read.rs).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_process::foreign::Deadline;
use plimsoll_process::foreign::as_target::{AsTarget, Facts};
use plimsoll_process::foreign::own_files::Folder;
use rustix::fs::FileType;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const UNFINISHED: Duration = DAY;
const STAMP: &str = ".pruned";
/// How long to look for processes that have a library mapped. If that doesn't suffice, the libraries stay until the
/// next day.
const LOOKING: Duration = Duration::from_secs(2);

/// The open directory of a cache: our own, or one that a child with the target's rights has entered.
pub trait Shelf {
    fn names(&mut self) -> io::Result<Vec<String>>;
    fn facts(&mut self, name: &str) -> io::Result<Facts>;
    /// Creates the file if it is missing, and touches it.
    fn stamp(&mut self, name: &str) -> io::Result<()>;
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

impl Shelf for AsTarget {
    fn names(&mut self) -> io::Result<Vec<String>> {
        AsTarget::names(self)
    }
    fn facts(&mut self, name: &str) -> io::Result<Facts> {
        self.stat(name)
    }
    fn stamp(&mut self, name: &str) -> io::Result<()> {
        AsTarget::stamp(self, name)
    }
    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.unlink(name)
    }
}

impl Shelf for &Folder {
    fn names(&mut self) -> io::Result<Vec<String>> {
        Folder::names(self)
    }
    fn facts(&mut self, name: &str) -> io::Result<Facts> {
        Folder::facts(self, OsStr::new(name))
    }
    fn stamp(&mut self, name: &str) -> io::Result<()> {
        Folder::stamp(self, OsStr::new(name))
    }
    fn remove(&mut self, name: &str) -> io::Result<()> {
        Folder::remove(self, OsStr::new(name))
    }
}

/// Marks an open file of the cache as used. The mark is renewed once a day.
pub fn used(file: &File) {
    if file.metadata().and_then(|meta| meta.modified()).is_ok_and(is_old) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Whether a used file needs a new mark.
pub fn is_old(modified: SystemTime) -> bool {
    age(modified, SystemTime::now()) > DAY
}

/// Prunes once a day. A file that cannot be removed is left for the next day.
/// `deadline`: of the verb; it may have passed.
pub fn prune(shelf: &mut impl Shelf, deadline: Deadline) {
    prune_until(shelf, deadline.sooner(LOOKING));
}

fn prune_until(shelf: &mut impl Shelf, deadline: Deadline) {
    let now = SystemTime::now();
    if shelf.facts(STAMP).is_ok_and(|facts| age(moment(facts.modified), now) < DAY) {
        return;
    }
    // Stamp first: if many programs start at once, only a few of them prune.
    if shelf.stamp(STAMP).is_err() {
        return;
    }
    let mut doomed = Vec::new();
    for name in shelf.names().unwrap_or_default() {
        // Only names that Plimsoll makes: a directory may contain anything.
        let Some(kind) = kind(&name) else { continue };
        let Ok(facts) = shelf.facts(&name) else { continue };
        let unused = age(moment(facts.modified.max(facts.accessed)), now);
        if facts.is(FileType::RegularFile) && unused > kind.lasts() {
            doomed.push((name, kind, facts));
        }
    }
    if doomed.iter().any(|(_, kind, _)| *kind == EntryKind::Library) {
        let mapped = mapped_libraries(deadline);
        let is_mapped = |facts: &Facts| mapped.as_ref().is_none_or(|mapped| mapped.contains(&facts.inode));
        doomed.retain(|(_, kind, facts)| *kind != EntryKind::Library || !is_mapped(facts));
    }
    for (name, _, seen) in doomed {
        // Another process may have touched or replaced the file since.
        let same = |facts: Facts| facts.inode == seen.inode && facts.modified == seen.modified;
        if shelf.facts(&name).is_ok_and(same) {
            let _ = shelf.remove(&name);
        }
    }
}

fn moment(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EntryKind {
    Library,
    Derived,
    Unfinished,
}

impl EntryKind {
    fn lasts(self) -> Duration {
        if self == EntryKind::Unfinished { UNFINISHED } else { UNUSED }
    }
}

/// The kind of a file that Plimsoll made; `None` if the file is foreign or must stay.
fn kind(name: &str) -> Option<EntryKind> {
    let is_hex = |text: &str| text.len() >= 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some(hidden) = name.strip_prefix('.') {
        let by_pid =
            hidden.split_once('.').is_some_and(|(pid, _)| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()));
        let ours = by_pid || ["run-", "attach-", "libplimsoll-"].iter().any(|start| hidden.starts_with(start));
        return ours.then_some(EntryKind::Unfinished);
    }
    if let Some(digest) = name.strip_prefix("libplimsoll-").and_then(|rest| rest.strip_suffix(".so")) {
        return is_hex(digest).then_some(EntryKind::Library);
    }
    let stem = name.strip_suffix(".rules")?;
    let key = stem.strip_prefix("run-").or_else(|| stem.strip_prefix("attach-")).unwrap_or(stem);
    is_hex(key.split('-').next().unwrap_or_default()).then_some(EntryKind::Derived)
}

/// A time in the future gives age 0.
fn age(then: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_default()
}

/// The inodes of all tracker libraries that readable processes have mapped. On overlayfs, maps and stat report
/// different devices, so only inodes are compared; at worst one file too many is kept. `None`: the deadline passed
/// before the search was complete.
fn mapped_libraries(deadline: Deadline) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // A process may have a million mappings, so they aren't kept.
        let Ok(maps) = File::open(process.path().join("maps")) else { continue };
        for line in BufReader::with_capacity(1 << 16, maps).split(b'\n').map_while(Result::ok) {
            if deadline.has_passed() {
                return None;
            }
            let line = String::from_utf8_lossy(&line);
            if line.contains("/libplimsoll-") {
                found.extend(line.split_whitespace().nth(4).and_then(|inode| inode.parse::<u64>().ok()));
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with one old library, which no process maps.
    struct Old(bool);

    impl Shelf for Old {
        fn names(&mut self) -> io::Result<Vec<String>> {
            Ok(vec!["libplimsoll-0123456789abcdef.so".to_owned()])
        }
        fn facts(&mut self, name: &str) -> io::Result<Facts> {
            if name == STAMP {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(Facts { mode: 0o100_644, modified: 1, accessed: 1, inode: u64::MAX, ..Facts::default() })
        }
        fn stamp(&mut self, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn remove(&mut self, _: &str) -> io::Result<()> {
            self.0 = true;
            Ok(())
        }
    }

    /// Whoever has a library mapped may pass it on, so it stays unless all processes were looked at.
    #[test]
    fn a_library_stays_after_the_deadline() {
        let was_removed = |deadline| {
            let mut shelf = Old(false);
            prune_until(&mut shelf, deadline);
            shelf.0
        };
        assert!(!was_removed(Deadline::after(Duration::ZERO)));
        assert!(was_removed(Deadline::after(Duration::from_secs(600))));
    }

    #[test]
    fn only_what_we_made_has_a_kind() {
        let hex = "0123456789abcdef";
        let known = [
            (format!("libplimsoll-{hex}.so"), Some(EntryKind::Library)),
            (format!("run-{hex}.rules"), Some(EntryKind::Derived)),
            (format!("attach-{hex}.rules"), Some(EntryKind::Derived)),
            (format!("{hex}-{hex}-libc.so.6.rules"), Some(EntryKind::Derived)),
            (format!(".libplimsoll-{hex}.so-1-2"), Some(EntryKind::Unfinished)),
            (String::from(".123.x.rules"), Some(EntryKind::Unfinished)),
            (String::from(".pruned"), None),
            (String::from(".notes"), None),
            (String::from("libplimsoll-.so"), None),
            (String::from("libplimsoll.so"), None),
            (String::from("shop.rules"), None),
            (String::from("run-shop.rules"), None),
            (format!("{hex}.rules.bak"), None),
            (String::from("."), None),
        ];
        for (name, expected) in known {
            assert_eq!(kind(&name), expected, "{name}");
        }
    }
}
