//! Writes the tracker's library and its rules into a directory that the target's own loader can read.
//!
//! ```text
//! child: the target's user, in the target's root ─▶ $XDG_CACHE_HOME/plimsoll │ ~/.cache/plimsoll │ /tmp, /var/tmp, /dev/shm, /var/cache, /run
//! ```
//! The target may have its own root, partly read-only, and may belong to another user (if plimsoll runs as root). That
//! user controls the paths in the target's environment. So a child process with that user's rights makes every file
//! (`plimsoll_process::foreign::as_target`). The directory must belong to the target's user and be closed to others. Nor
//! may others be able to exchange it or a directory above it, since the target loads the library by its path. A user
//! who can change the file can run code in the target.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use plimsoll_process::foreign::as_target::{AsTarget, Facts};
use plimsoll_process::foreign::{Deadline, own_files};
use plimsoll_process::proc::Target;
use plimsoll_report::words::printable;
use rustix::fs::StatVfsMountFlags;

use crate::cache;

/// A usable directory of the target, entered by the child.
pub struct LibraryDirectory<'c> {
    /// Path in the target's root.
    inside: PathBuf,
    /// The child whose working directory it is.
    child: &'c mut AsTarget,
}

/// Directories to try, in order.
pub fn candidates(target: &Target, uid: u32) -> Vec<PathBuf> {
    let environment = target.read("environ").unwrap_or_default();
    let variable = |name: &str| {
        let value = environment.split(|b| *b == 0).find_map(|e| e.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(value))).filter(|p| p.is_absolute())
    };
    let cache = variable("XDG_CACHE_HOME").map(|p| p.join("plimsoll"));
    let home = variable("HOME").map(|p| p.join(".cache/plimsoll"));
    // /var/cache and /run are root's and rarely noexec: root can use them if all public directories are noexec.
    let common = ["/tmp", "/var/tmp", "/dev/shm", "/var/cache", "/run"];
    let common = common.map(|d| PathBuf::from(format!("{d}/plimsoll-{uid}-cache")));
    // The VM takes text, and the agent's options have OPTIONS_BYTES at most. `rules=` is the last option, so a comma
    // is allowed.
    cache.into_iter().chain(home).chain(common).filter(|p| p.to_str().is_some_and(|p| p.len() < 512)).collect()
}

/// Opens a directory of the target, and makes its last component if only that is missing. The error is the reason why
/// it is unusable.
pub fn open<'c>(child: &'c mut AsTarget, inside: &Path) -> Result<LibraryDirectory<'c>, String> {
    let name = inside.file_name().ok_or("is not a usable directory")?;
    let parent = inside.parent().unwrap_or(Path::new("/"));
    child.enter_trusted(parent).map_err(|e| printable(&e.to_string()))?;
    let entered = child.make(name).map_err(|e| format!("can't be made, or opened as a directory: {e}"))?;
    if entered.uid != u64::from(child.user().uid) {
        return Err(format!("belongs to user {}", entered.uid));
    }
    if entered.mode & 0o077 != 0 {
        return Err(format!("is open to others (mode {:o})", entered.mode & 0o7777));
    }
    if StatVfsMountFlags::from_bits_retain(entered.mount).contains(StatVfsMountFlags::NOEXEC) {
        return Err("is mounted noexec".into());
    }
    Ok(LibraryDirectory { inside: inside.to_path_buf(), child })
}

impl LibraryDirectory<'_> {
    /// Writes the file unless it is there with these bytes. Returns its path in the target's root.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<String, String> {
        let path = self.inside.join(name).to_str().ok_or("has a name that isn't UTF-8")?.to_owned();
        if self.holds(name, bytes) {
            return Ok(path);
        }
        let aside = own_files::aside(OsStr::new(name)).to_string_lossy().into_owned();
        self.child.write_whole(&aside, name, bytes).map_err(|e| format!("can't be written: {e}"))?;
        if self.holds(name, bytes) { Ok(path) } else { Err("does not return what was written to it".into()) }
    }

    /// Deletes files that were not used for 30 days.
    pub fn prune(&mut self, deadline: Deadline) {
        cache::prune(self.child, deadline);
    }

    fn holds(&mut self, name: &str, bytes: &[u8]) -> bool {
        let is_old = |facts: &Facts| cache::is_old(UNIX_EPOCH + Duration::from_secs(facts.modified));
        self.child.holds(name, bytes, is_old).unwrap_or(false)
    }
}
