//! What lies in the cache for long without being used goes.
//!
//! | file | made for | goes after |
//! | --- | --- | --- |
//! | `libplimsoll-SHA256.so` | each version of this program | [`UNUSED`], if no process maps it |
//! | `run-*.rules`, `attach-*.rules`, `BUILDID-HASH-NAME.rules` | each program, each set of objects, each object | [`UNUSED`] |
//! | `.run-…`, `.attach-…`, `.libplimsoll-…`, `.PID.…` | a file that is being written; left over by a kill | [`UNFINISHED`] |
//! | `.pruned` | the time of the last look | stays |
//!
//! Used means written, read (atime, where the mount keeps it) or touched ([`used`]). All of it can be made again, but for a
//! library that a running program hands on by LD_PRELOAD: so a library is touched when it is used, and stays while anybody
//! has it mapped, as far as /proc shows. Files that aren't named so are not ours to delete. `symbols/` beside them has a
//! bound of its own (observer/src/symbols/read.rs).

use std::fs::{self, File, FileTimes, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const UNFINISHED: Duration = DAY;
const STAMP: &str = ".pruned";

/// Notes that an open file of the cache is in use. Once a day is exact enough.
pub fn used(file: &File) {
    let is_old = file.metadata().is_ok_and(|meta| age(meta.modified().ok(), SystemTime::now()) > DAY);
    if is_old {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// The same by path, of a file that was just compared.
pub fn used_path(path: &Path) {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    if let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) {
        used(&file);
    }
}

/// Prunes once a day. What can't be done is left for another day: nothing depends on it.
pub fn prune(directory: &File) {
    let now = SystemTime::now();
    // The open directory, and not whatever bears its name by now.
    let directory = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let stamp = directory.join(STAMP);
    let last = fs::symlink_metadata(&stamp).and_then(|meta| meta.modified()).ok();
    if last.is_some_and(|last| age(Some(last), now) < DAY) {
        return;
    }
    // First, so that of many starts at once only a few look.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&stamp);
    let stamped = opened.and_then(|file| {
        // Root's attach looks into another user's cache: what it leaves there is that user's.
        if let (Ok(whose), Ok(own)) = (fs::metadata(&directory), file.metadata())
            && whose.uid() != own.uid()
        {
            std::os::unix::fs::fchown(&file, Some(whose.uid()), Some(whose.gid()))?;
        }
        file.set_times(FileTimes::new().set_modified(now))
    });
    if stamped.is_err() {
        return;
    }
    let Ok(entries) = fs::read_dir(&directory) else { return };
    let mut doomed = Vec::new();
    for entry in entries.flatten() {
        let (Ok(name), Ok(meta)) = (entry.file_name().into_string(), fs::symlink_metadata(entry.path())) else {
            continue;
        };
        let unused = age(meta.modified().ok().max(meta.accessed().ok()), now);
        if meta.is_file() && kind(&name).is_some_and(|kind| unused > kind.lasts()) {
            doomed.push((name, meta));
        }
    }
    if doomed.iter().any(|(name, _)| kind(name) == Some(Kind::Library)) {
        let mapped = mapped_libraries();
        doomed.retain(|(name, meta)| kind(name) != Some(Kind::Library) || !mapped.contains(&identity(meta)));
    }
    for (name, seen) in doomed {
        let path = directory.join(name);
        // Somebody may have touched or replaced it since.
        let same = |meta: Metadata| identity(&meta) == identity(&seen) && meta.modified().ok() == seen.modified().ok();
        if fs::symlink_metadata(&path).is_ok_and(same) {
            let _ = fs::remove_file(path);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Library,
    Derived,
    Unfinished,
}

impl Kind {
    fn lasts(self) -> Duration {
        if self == Kind::Unfinished { UNFINISHED } else { UNUSED }
    }
}

/// Of a file that we made; `None`: it is somebody else's, or stays.
fn kind(name: &str) -> Option<Kind> {
    let is_hex = |text: &str| text.len() >= 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some(hidden) = name.strip_prefix('.') {
        let by_pid =
            hidden.split_once('.').is_some_and(|(pid, _)| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()));
        let ours = by_pid || ["run-", "attach-", "libplimsoll-"].iter().any(|start| hidden.starts_with(start));
        return ours.then_some(Kind::Unfinished);
    }
    if let Some(digest) = name.strip_prefix("libplimsoll-").and_then(|rest| rest.strip_suffix(".so")) {
        return is_hex(digest).then_some(Kind::Library);
    }
    let stem = name.strip_suffix(".rules")?;
    let key = stem.strip_prefix("run-").or_else(|| stem.strip_prefix("attach-")).unwrap_or(stem);
    is_hex(key.split('-').next().unwrap_or_default()).then_some(Kind::Derived)
}

/// Nothing that is from the future is old.
fn age(then: Option<SystemTime>, now: SystemTime) -> Duration {
    then.and_then(|then| now.duration_since(then).ok()).unwrap_or_default()
}

/// Of overlay files the device differs between maps and stat: the inode has to do, and spares one too many at worst.
fn identity(meta: &Metadata) -> u64 {
    meta.ino()
}

/// The inodes of all trackers' libraries that a process has mapped, of those that we may look into.
fn mapped_libraries() -> Vec<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps = processes.filter_map(|entry| fs::read(entry.path().join("maps")).ok());
    let mut found = Vec::new();
    for maps in maps {
        for line in maps.split(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(line);
            if line.contains("/libplimsoll-") {
                found.extend(line.split_whitespace().nth(4).and_then(|inode| inode.parse::<u64>().ok()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_made_has_a_kind() {
        let hex = "0123456789abcdef";
        let known = [
            (format!("libplimsoll-{hex}.so"), Some(Kind::Library)),
            (format!("run-{hex}.rules"), Some(Kind::Derived)),
            (format!("attach-{hex}.rules"), Some(Kind::Derived)),
            (format!("{hex}-{hex}-libc.so.6.rules"), Some(Kind::Derived)),
            (format!(".libplimsoll-{hex}.so-1-2"), Some(Kind::Unfinished)),
            (String::from(".123.x.rules"), Some(Kind::Unfinished)),
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
