//! Our own directories and files, in directories where other users may have entries too.
//!
//! Whoever can change a library in the cache can run code in every tracked program. So a cache is opened component by
//! component from `/` on, each directory by a descriptor, and every directory on the way must be trusted:
//!
//! | a directory | is trusted if it |
//! | --- | --- |
//! | on the way | belongs to root, to us, or to the owner of `/`, and nobody else may write to it; or it is sticky (`/tmp`) and our entry in it belongs to one of these |
//! | at the end | belongs to us; it is closed to others (0700) if it is open. A cache of root's may stay searchable for all, but not writable |
//!
//! A symbolic link on the way is followed if one of these users made it; the last component must not be a link. A
//! sticky directory is enough, because nobody else can rename or remove our entry in it. But a cleaner of old files
//! there (systemd-tmpfiles) makes its name free again, while a program that runs for months may still pass it on in
//! LD_PRELOAD. So the fallback in /tmp is for users without any other directory, never for root. In a user namespace,
//! all unmapped users look like the owner of `/` and can't be distinguished.
//!
//! A group may have write access if its id equals the owner's: a private group, the default in most distributions. Who
//! was made a member of that group isn't looked up. With an access control list (acl(5)), the group's bits are the most
//! that any of its entries has. So where the group's bits allow writing, the list is searched for another user or group
//! that may write. NFS's lists (version 4) aren't read; there a directory with a private group needs mode 0755.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::as_target::Facts;
use super::trust::{self, Owned};

/// The mode of root's directory for files that programs of all users load, and of the parents that are made for it.
/// Nobody needs to list it.
const FOR_ALL: Mode = Mode::RWXU.union(Mode::XGRP).union(Mode::XOTH);

/// The kernel's own limit (ELOOP).
const MOST_LINKS: u32 = 40;
const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory. Its entries are addressed by single names, so no path is resolved twice.
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens any directory, as open(2) finds it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The directory may be entered and written to, but not listed.
        let opened = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            }
            opened => opened,
        };
        Ok(Folder(opened?))
    }

    pub fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Makes a new file. It follows no link and never changes an existing file.
    pub fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Opens an existing regular file. A FIFO is opened without waiting, and refused.
    pub fn read(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = rustix::fs::openat(&self.0, name, flags, Mode::empty())?.into();
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("is not a regular file")) }
    }

    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    pub fn facts(&self, name: &OsStr) -> io::Result<Facts> {
        Ok(Facts::of(&self.stat(name)?))
    }

    /// The names that are UTF-8.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            names.extend(entry.file_name().to_str().ok().filter(|name| !matches!(*name, "." | "..")).map(String::from));
        }
        Ok(names)
    }

    /// Makes a file if it doesn't exist, and touches it.
    pub fn stamp(&self, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?.into();
        file.set_modified(std::time::SystemTime::now())
    }

    /// Writes a file with these bytes, which appears complete in one step.
    pub fn write_whole(&self, name: &OsStr, mode: u32, bytes: &[u8]) -> io::Result<()> {
        let aside = aside(name);
        let mut file = self.create(&aside, mode)?;
        // The umask may have taken rights away.
        let written = rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(io::Error::from);
        let written = written.and_then(|()| io::Write::write_all(&mut file, bytes));
        let written = written.and_then(|()| self.rename(&aside, name));
        if written.is_err() {
            let _ = self.remove(&aside);
        }
        written
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An unpredictable name for a file that will be renamed to `name`. Pruning recognises it by its prefix.
pub fn aside(name: &OsStr) -> OsString {
    // Seeded with the kernel's random numbers, once per process.
    let random = RandomState::new().build_hasher().finish();
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(format!("-{}-{random:016x}", std::process::id()));
    aside
}

/// A directory of ours that nobody else can change or exchange, nor any directory on the way to it.
pub struct Directory {
    pub folder: Folder,
    pub path: PathBuf,
}

impl Directory {
    /// Opens it, and makes it and missing parents. The error names the directory and the reason.
    pub fn open(path: &Path) -> Result<Directory, String> {
        Directory::open_with(path, Missing::Make, 0)
    }

    /// Opens a directory for files that programs of all users load. Every directory on the way must be searchable for
    /// all; the last one is made so.
    pub fn open_for_all(path: &Path) -> Result<Directory, String> {
        let directory = Directory::open_with(path, Missing::MakeForAll, 0o055)?;
        let failed = |e: Errno| format!("it can't be opened to others: {e}");
        if !is_searchable(&rustix::fs::fstat(&directory.folder).map_err(failed)?) {
            rustix::fs::fchmod(&directory.folder, FOR_ALL).map_err(failed)?;
        }
        Ok(directory)
    }

    /// Opens a cache, as [`Directory::open`] does. Root's cache may be [for all](Directory::open_for_all); then it
    /// stays so.
    fn open_cache(path: &Path, missing: Missing) -> Result<Directory, String> {
        Directory::open_with(path, missing, if rustix::process::geteuid().is_root() { 0o055 } else { 0 })
    }

    /// `rights`: those that others may have. If they have more, the directory is closed.
    fn open_with(path: &Path, missing: Missing, rights: u32) -> Result<Directory, String> {
        let (handle, stat) = walk(path, missing)?;
        let own = rustix::process::geteuid().as_raw();
        if stat.st_uid != own {
            return Err(format!("it belongs to user {}", stat.st_uid));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::openat(&handle, ".", flags, Mode::empty()).map_err(|e| format!("it can't be opened: {e}"))?;
        if stat.st_mode & 0o077 & !rights != 0 {
            rustix::fs::fchmod(&folder, Mode::RWXU).map_err(|e| format!("it is open to others: {e}"))?;
        }
        Ok(Directory { folder: Folder(folder), path: path.to_owned() })
    }

    /// Whether the mount lets a program map code from it.
    pub fn is_executable(&self) -> bool {
        let mount = rustix::fs::fstatvfs(&self.folder);
        mount.is_ok_and(|mount| !mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
    }
}

/// The cache's directory: the first usable one of `caches`, or the reason for each that isn't.
pub fn cache() -> Result<Directory, Vec<(PathBuf, String)>> {
    let mut refused = Vec::new();
    for path in caches() {
        match Directory::open_cache(&path, Missing::Make) {
            Ok(directory) => return Ok(directory),
            Err(reason) => refused.push((path, reason)),
        }
    }
    Err(refused)
}

/// The caches that exist, and that nobody else can change.
pub fn existing_caches() -> impl Iterator<Item = Directory> {
    caches().into_iter().filter_map(|path| Directory::open_cache(&path, Missing::Refuse).ok())
}

/// A directory in which `run` may unpack the tracker.
pub struct ForPrograms {
    pub path: PathBuf,
    /// Whether programs of all users must be able to load it from there.
    pub is_for_all: bool,
}

/// The caches again, in the order in which `run` tries them. A program that root starts may become another user
/// (gosu, setpriv, su), and its next exec loads the library again. So root prefers a directory where every user can
/// read it. But $XDG_CACHE_HOME was chosen for this purpose: if it is set and private, it stays the first.
pub fn caches_for_programs() -> Vec<ForPrograms> {
    let private = |path: PathBuf| ForPrograms { path, is_for_all: false };
    let for_all = |path: PathBuf| ForPrograms { path, is_for_all: true };
    let mut homes = caches();
    if !rustix::process::geteuid().is_root() {
        return homes.into_iter().map(private).collect();
    }
    let chosen = chosen_cache().map(|_| homes.remove(0));
    let chosen = chosen.into_iter().flat_map(|path| [for_all(path.clone()), private(path)]);
    chosen.chain(homes.clone().into_iter().map(for_all)).chain(homes.into_iter().map(private)).collect()
}

fn chosen_cache() -> Option<PathBuf> {
    absolute("XDG_CACHE_HOME").map(|p| p.join("plimsoll"))
}

fn absolute(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute())
}

/// Possible directories of our cache, in order. Root's HOME may be another user's (sudo -E, su). Then it isn't trusted,
/// and the home directory in the password database and /var/cache follow.
pub fn caches() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let mut found = Vec::new();
    found.extend(chosen_cache());
    found.extend(absolute("HOME").map(|p| p.join(".cache/plimsoll")));
    if uid.is_root() {
        found.push(home_of_root().join(".cache/plimsoll"));
        found.push("/var/cache/plimsoll".into());
    } else {
        found.push(format!("/tmp/plimsoll-{}-cache", uid.as_raw()).into());
    }
    found.dedup();
    found
}

fn home_of_root() -> PathBuf {
    let database = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_root = database.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let home = of_root.filter(|fields| fields.get(2) == Some(&"0")).find_map(|fields| fields.get(5).map(PathBuf::from));
    home.filter(|home| home.is_absolute()).unwrap_or_else(|| "/root".into())
}

/// Opens a file that the user named, to write it from its beginning. If nobody else may write to its directory, it is
/// opened like a shell's `>`: links are followed, and a FIFO or /dev/stdout is accepted. Elsewhere (/tmp, another
/// user's directory), another user may have placed something there. So only a new file is accepted, or our own regular
/// file or FIFO without a second name. A sticky directory is one of these: another user can't replace our entry, but
/// can make one before us.
pub fn create(path: &Path) -> Result<File, String> {
    let plain = |e: io::Error| e.to_string();
    let (Some(name), Ok(whole)) = (path.file_name(), std::path::absolute(path)) else {
        return File::create(path).map_err(plain);
    };
    let parent = whole.parent().unwrap_or(Path::new("/"));
    if walk_to(parent, Missing::Refuse, false).is_ok_and(|(at, stat)| !is_open_to_others(&at, &stat)) {
        return File::create(path).map_err(plain);
    }
    let folder = Folder::open(parent).map_err(plain)?;
    match folder.create(name, 0o666) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(plain),
    }
    let own = rustix::process::geteuid();
    let harmless = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Err("it is a symbolic link in a directory that other users can write to".to_owned()),
        FileType::RegularFile if stat.st_nlink > 1 => {
            Err("it has a second hard link, and other users can write to its directory".to_owned())
        }
        FileType::RegularFile if stat.st_uid != own.as_raw() => {
            Err(format!("it belongs to user {}, and other users can write to its directory", stat.st_uid))
        }
        FileType::RegularFile => Ok(()),
        FileType::Fifo if stat.st_uid == own.as_raw() => Ok(()),
        FileType::Fifo => Err(format!("it is a FIFO of user {}", stat.st_uid)),
        FileType::Directory => Err("it is a directory".to_owned()),
        _ => Err("it is not a regular file".to_owned()),
    };
    harmless(&folder.stat(name).map_err(plain)?)?;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&folder, name, flags, Mode::empty()).map_err(|e| plain(e.into()))?;
    let stat = rustix::fs::fstat(&opened).map_err(|e| plain(e.into()))?;
    harmless(&stat)?;
    let file = File::from(opened);
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        file.set_len(0).map_err(plain)?;
    }
    Ok(file)
}

/// What to do with the missing directories of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    /// Make them with mode 0700.
    Make,
    /// Make them with mode 0711, and refuse a path with a directory that isn't searchable for all.
    MakeForAll,
}

/// Walks from `/` to a directory through trusted directories only; the last component must not be a link.
fn walk(path: &Path, missing: Missing) -> Result<(OwnedFd, Stat), String> {
    walk_to(path, missing, true)
}

fn walk_to(path: &Path, missing: Missing, refuses_last_link: bool) -> Result<(OwnedFd, Stat), String> {
    let failed = |at: &Path| {
        let at = at.display().to_string();
        move |e: Errno| format!("{at}: {e}")
    };
    let mut shown = PathBuf::from("/");
    let directory = HANDLE | OFlags::DIRECTORY;
    let root = || rustix::fs::open("/", directory, Mode::empty()).map_err(failed(Path::new("/")));
    let mut at = root()?;
    let mut stat = rustix::fs::fstat(&at).map_err(failed(&shown))?;
    let trusted = [0, rustix::process::geteuid().as_raw(), stat.st_uid];
    is_safe(&at, &stat, trusted, &shown)?;
    let mut left = names(path);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at = rustix::fs::openat(&at, "..", directory, Mode::empty()).map_err(failed(&shown))?;
            shown.pop();
            stat = rustix::fs::fstat(&at).map_err(failed(&shown))?;
            continue;
        }
        shown.push(&name);
        let mut next = rustix::fs::openat(&at, &name, HANDLE, Mode::empty());
        if missing != Missing::Refuse && matches!(next, Err(Errno::NOENT)) {
            match make(&at, &name, missing) {
                Ok(()) | Err(Errno::EXIST) => next = rustix::fs::openat(&at, &name, HANDLE, Mode::empty()),
                Err(e) => return Err(format!("cannot make {}: {e}", shown.display())),
            }
        }
        let next = next.map_err(failed(&shown))?;
        stat = rustix::fs::fstat(&next).map_err(failed(&shown))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                is_safe(&next, &stat, trusted, &shown)?;
                // The last directory is ours: `open_for_all` makes it searchable.
                if missing == Missing::MakeForAll && !left.is_empty() && !is_searchable(&stat) {
                    return Err(format!("{} isn't searchable for all users", shown.display()));
                }
                at = next;
            }
            FileType::Symlink if refuses_last_link && left.is_empty() => {
                return Err(format!("{} is a symbolic link", shown.display()));
            }
            FileType::Symlink if links < MOST_LINKS && trusted.contains(&stat.st_uid) => {
                links += 1;
                let to = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(failed(&shown))?;
                let to = PathBuf::from(OsString::from_vec(to.into_bytes()));
                shown.pop();
                if to.is_absolute() {
                    at = root()?;
                    shown = "/".into();
                }
                for name in names(&to).into_iter().rev() {
                    left.push_front(name);
                }
            }
            FileType::Symlink => {
                return Err(format!("{} is a symbolic link of user {}", shown.display(), stat.st_uid));
            }
            _ => return Err(format!("{} isn't a directory", shown.display())),
        }
    }
    Ok((at, stat))
}

fn make(at: &OwnedFd, name: &OsStr, missing: Missing) -> rustix::io::Result<()> {
    if missing != Missing::MakeForAll {
        return rustix::fs::mkdirat(at, name, Mode::RWXU);
    }
    rustix::fs::mkdirat(at, name, FOR_ALL)?;
    // The umask may have taken rights away. Only a trusted user can have exchanged our new entry.
    rustix::fs::chmodat(at, name, FOR_ALL, AtFlags::empty())
}

/// Whether every user may use the names in a directory.
fn is_searchable(stat: &Stat) -> bool {
    stat.st_mode & 0o011 == 0o011
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(name).collect()
}

/// Whether only trusted users can exchange the entries of a directory.
fn is_safe(at: &OwnedFd, stat: &Stat, trusted: [u32; 3], shown: &Path) -> Result<(), String> {
    match owned(stat).why_unsafe(trusted, || has_others_in_its_list(at)) {
        None => Ok(()),
        Some(why) => Err(format!("{} {why}", shown.display())),
    }
}

/// Whether others may make entries in a directory, which `at` is a handle of.
fn is_open_to_others(at: &OwnedFd, stat: &Stat) -> bool {
    owned(stat).is_open_to_others(|| has_others_in_its_list(at))
}

fn owned(stat: &Stat) -> Owned {
    Owned { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode }
}

/// Whether the directory's access control list has another user or group that may write. A list that can't be read
/// counts as one.
fn has_others_in_its_list(at: &OwnedFd) -> bool {
    // The descriptor is a handle only, which has no attributes itself.
    let path = format!("/proc/self/fd/{}", at.as_raw_fd());
    let mut list = Vec::with_capacity(LONGEST_LIST);
    match rustix::fs::getxattr(path, "system.posix_acl_access", rustix::buffer::spare_capacity(&mut list)) {
        Ok(_) => trust::lets_others_write(&list),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
        Err(_) => true,
    }
}

/// No list is longer (XATTR_SIZE_MAX).
const LONGEST_LIST: usize = 64 << 10;
