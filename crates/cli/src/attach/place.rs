//! Files for the target: the tracker's library and its rules, written where the target's own loader finds them.
//!
//! ```text
//! /proc/PID/root ── openat2(RESOLVE_IN_ROOT) ─▶ $XDG_CACHE_HOME/plimsoll │ ~/.cache/plimsoll │ /tmp, /var/tmp, /dev/shm, /var/cache, /run
//! ```
//! The target may have a root of its own, mounted read-only in part, and belong to another user, if we are root. So every
//! path is resolved inside that root, no link leads out of it; the directory must be the target's own and closed to others;
//! what is made there is given to it. Whoever could change the file would run code in the target.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use plimsoll_observer::source::proc::Target;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags};

use crate::{cache, sys};

/// A directory of the target's that files can be put in.
pub struct Place {
    /// As the target sees it.
    pub inside: PathBuf,
    directory: OwnedFd,
    owner: Owner,
}

/// Whom files are given to.
#[derive(Clone, Copy)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Where to look, in order.
pub fn candidates(target: &Target, owner: Owner) -> Vec<PathBuf> {
    let environment = target.read("environ").unwrap_or_default();
    let variable = |name: &str| {
        let value = environment.split(|b| *b == 0).find_map(|e| e.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(value))).filter(|p| p.is_absolute())
    };
    let cache = variable("XDG_CACHE_HOME").map(|p| p.join("plimsoll"));
    let home = variable("HOME").map(|p| p.join(".cache/plimsoll"));
    // The last two are root's, and no tmpfs as a rule: where all that is open to everybody is noexec, they are left.
    let common = ["/tmp", "/var/tmp", "/dev/shm", "/var/cache", "/run"];
    let common = common.map(|d| PathBuf::from(format!("{d}/plimsoll-{}-cache", owner.uid)));
    // A comma or a NUL would end the path in the agent's options.
    cache.into_iter().chain(home).chain(common).filter(|p| p.to_str().is_some_and(|p| p.len() < 512)).collect()
}

/// Opens a directory of the target's, made if only its last part is missing. The error is why it won't do.
pub fn open(target: &Target, inside: &Path, owner: Owner) -> Result<Place, String> {
    let name = inside.file_name().ok_or("is no directory to write in")?;
    let parent = inside.parent().unwrap_or(Path::new("/"));
    let root = rustix::fs::open(target.path("/"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| format!("the target's root can't be opened: {e}"))?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat2(&root, parent, directory, Mode::empty(), within).map_err(|e| e.to_string())?;
    let made = rustix::fs::mkdirat(&parent, name, Mode::RWXU).is_ok();
    let opened = rustix::fs::openat(&parent, name, directory | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|e| format!("can't be opened as a directory: {e}"))?;
    let place = Place { inside: inside.to_path_buf(), directory: opened, owner };
    if made {
        place.give(&place.directory)?;
    }
    let meta =
        File::from(place.directory.try_clone().map_err(|e| e.to_string())?).metadata().map_err(|e| e.to_string())?;
    if meta.uid() != owner.uid {
        return Err(format!("belongs to user {}", meta.uid()));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!("is open to others (mode {:o})", meta.mode() & 0o7777));
    }
    let flags = rustix::fs::fstatvfs(&place.directory).map_err(|e| e.to_string())?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err("is mounted noexec".into());
    }
    Ok(place)
}

impl Place {
    /// Has a file with these bytes there; answers its path as the target sees it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<String, String> {
        let path = self.inside.join(name).to_str().ok_or("has a name that is no UTF-8")?.to_owned();
        if self.holds(name, bytes) {
            return Ok(path);
        }
        let aside = format!(".{name}-{}-{}", std::process::id(), sys::boottime_ns());
        let written = self.write_aside(&aside, bytes).and_then(|()| {
            rustix::fs::renameat(&self.directory, &*aside, &self.directory, name).map_err(|e| e.to_string())
        });
        if let Err(reason) = written {
            let _ = rustix::fs::unlinkat(&self.directory, &*aside, AtFlags::empty());
            return Err(format!("can't be written: {reason}"));
        }
        if self.holds(name, bytes) { Ok(path) } else { Err("doesn't keep what is written to it".into()) }
    }

    /// What nobody has used there for long goes.
    pub fn prune(&self) {
        if let Ok(directory) = self.directory.try_clone() {
            cache::prune(&File::from(directory));
        }
    }

    fn write_aside(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::XUSR);
        let mut file = File::from(file.map_err(|e| e.to_string())?);
        file.write_all(bytes).map_err(|e| e.to_string())?;
        // Whatever the umask says.
        file.set_permissions(Permissions::from_mode(0o500)).map_err(|e| e.to_string())?;
        self.give(&file)
    }

    fn give(&self, to: impl std::os::fd::AsFd) -> Result<(), String> {
        if sys::uid() == self.owner.uid {
            return Ok(());
        }
        std::os::unix::fs::fchown(to, Some(self.owner.uid), Some(self.owner.gid))
            .map_err(|e| format!("can't be given to user {}: {e}", self.owner.uid))
    }

    fn holds(&self, name: &str, bytes: &[u8]) -> bool {
        let read = || -> std::io::Result<Vec<u8>> {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::openat(&self.directory, name, flags, Mode::empty())?);
            let meta = file.metadata()?;
            let mut found = Vec::new();
            if meta.is_file() && meta.uid() == self.owner.uid && meta.len() == bytes.len() as u64 {
                cache::used(&file);
                file.take(bytes.len() as u64 + 1).read_to_end(&mut found)?;
            }
            Ok(found)
        };
        read().is_ok_and(|found| found == bytes)
    }
}
