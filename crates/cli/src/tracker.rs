//! Unpacks the tracker's library, which is inside this program, into a private cache.
//!
//! ```text
//! $XDG_CACHE_HOME/plimsoll │ ~/.cache/plimsoll │ /tmp/plimsoll-UID-cache     0700, ours, no symbolic link
//!                                      root: /root/.cache/plimsoll │ /var/cache/plimsoll, the first that all users reach
//!   libplimsoll-SHA256.so                                                    written aside, then renamed
//! ```
//! Whoever can change that file, or replace a directory on its path, can run code in every tracked program. So the
//! directory must be trusted up to `/` (`plimsoll_process::foreign::own_files`), and the file's hash is checked before
//! each use.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::read::ZlibDecoder;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::foreign::own_files::{self, Directory, Folder, ForPrograms};
use plimsoll_report::words;
use plimsoll_tracked::rules::read as rules;
use plimsoll_tracked::segment;
use sha2::{Digest, Sha256};

use crate::{Failure, cache, sys};

const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libplimsoll.so.z"));
pub const SHA256: &str = env!("PLIMSOLL_TRACKER_SHA256");

/// Limit for a file of ours in the cache: the library takes a hundredth of it.
const LARGEST: u64 = 64 << 20;

/// The cache, with the library in it.
pub struct Unpacked {
    pub library: PathBuf,
    cache: Directory,
    /// Whether every user may read what we write for the program.
    is_for_all: bool,
}

/// The library, unpacked at the first call.
pub fn library_bytes() -> Result<&'static [u8], String> {
    static LIBRARY: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let unpacked = LIBRARY.get_or_init(|| {
        let mut library = Vec::new();
        ZlibDecoder::new(PACKED).read_to_end(&mut library).ok().map(|_| library)
    });
    unpacked.as_deref().ok_or("the file of this plimsoll is damaged: install it again".into())
}

pub fn unpack(deadline: Deadline) -> Result<Unpacked, Failure> {
    let mut refused = Vec::new();
    for ForPrograms { path, is_for_all } in own_files::caches_for_programs() {
        // LD_PRELOAD separates its entries by colons and spaces and has no escape.
        let separates = |b: &u8| matches!(b, b':' | b' ' | b'\t' | b'\n');
        let opened = match path.as_os_str().as_encoded_bytes().iter().any(separates) {
            true => Err("its path holds a colon or a blank, which LD_PRELOAD cannot express".to_owned()),
            false if is_for_all => Directory::open_for_all(&path),
            false => Directory::open(&path),
        };
        // A mount with noexec is skipped, since another directory may do. As a private one, each is tried in any case.
        let opened = opened.and_then(|opened| match is_for_all && !opened.is_executable() {
            true => Err("is on a mount with noexec".to_owned()),
            false => Ok(opened),
        });
        match opened.and_then(|cache| unpack_into(cache, is_for_all)) {
            Ok(unpacked) => {
                cache::prune(&mut &unpacked.cache.folder, deadline);
                // Root's other caches have names of symbols, tables of `attach`, and older libraries.
                for other in
                    own_files::existing_caches().filter(|other| is_for_all && other.path != unpacked.cache.path)
                {
                    cache::prune(&mut &other.folder, deadline);
                }
                return Ok(unpacked);
            }
            // Each directory is tried again as a private one; that reason is printed.
            Err(_) if is_for_all => {}
            Err(reason) => refused.push(words::printable(&format!("{}: {reason}", path.display()))),
        }
    }
    Err(format!(
        "cannot unpack the tracker anywhere ({}). Set XDG_CACHE_HOME to a directory that you own. If other users can write to it or to a parent: chmod +t DIRECTORY",
        refused.join("; ")
    )
    .into())
}

impl Unpacked {
    /// The category rules, compiled for the objects that `program` will load, as a file for the tracker. One file for
    /// each program limits the cache to the number of programs. The file is replaced as a whole, because another run
    /// may be reading it.
    pub fn compiled_rules(&self, files: &[PathBuf], program: &Path, deadline: Deadline) -> Result<PathBuf, Failure> {
        let Directory { folder, path } = &self.cache;
        let rules = rules::rules(files, deadline).map_err(|e| format!("--rules: {}", words::printable(&e)))?;
        let compiled = rules::compile(&rules, &rules::modules_for_command(program, deadline), Some(path), deadline);
        let mut key = Sha256::new();
        key.update(program.as_os_str().as_encoded_bytes());
        for file in files {
            key.update(b"\0");
            key.update(file.as_os_str().as_encoded_bytes());
        }
        let name = format!("run-{}.rules", hex(&key.finalize()[..16]));
        if holds(folder, &name, mode(self.is_for_all), |found| found == compiled.blob) {
            return Ok(path.join(name));
        }
        folder
            .write_whole(OsStr::new(&name), mode(self.is_for_all), &compiled.blob)
            .map_err(|e| format!("cannot write the compiled rules into {}: {e}", path.display()))?;
        Ok(path.join(name))
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The directory that the tracker will choose for its segment: the same rule as in the tracker (docs/options.md).
pub fn default_directory() -> PathBuf {
    if let Some(dir) = segment::named_directory() {
        return dir;
    }
    let directories =
        segment::DIRECTORIES.map(|directory| PathBuf::from(format!("{directory}/plimsoll-{}", sys::uid())));
    let [first, ..] = &directories;
    directories.iter().find(|directory| is_usable(directory)).unwrap_or(first).clone()
}

/// Whether a directory for segments exists and is ours, or can be created. Another user may have created it first.
fn is_usable(directory: &Path) -> bool {
    match fs::symlink_metadata(directory) {
        Ok(meta) => meta.is_dir() && meta.uid() == sys::uid(),
        Err(_) => {
            directory.parent().is_some_and(|parent| rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok())
        }
    }
}

/// Creates the directory if it is missing. It must be ours, not a link, and closed to others. If it is open to others
/// but holds nothing except segments (a fresh mkdir, a volume), this closes it. Any other directory is refused and left
/// unchanged, because root may name /tmp or /.
pub fn private_directory(directory: &Path) -> Result<(), String> {
    let (opened, meta) = own_directory(directory)?;
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    if mode & libc::S_ISVTX != 0 || !holds_segments_only(directory) {
        return Err(format!("is open to other users (mode {mode:o}) and isn't a directory of segments only"));
    }
    close(&opened)
}

fn close(directory: &fs::File) -> Result<(), String> {
    directory.set_permissions(fs::Permissions::from_mode(0o700)).map_err(|e| format!("is open to others: {e}"))
}

/// True also for the root of a volume, where mkfs leaves lost+found.
fn holds_segments_only(directory: &Path) -> bool {
    // A comparison that was killed leaves the directory of its tracked runs.
    let ours = |name: &[u8]| name.ends_with(b".seg") || name.starts_with(b"compare-") || name == b"lost+found";
    fs::read_dir(directory)
        .is_ok_and(|mut all| all.all(|entry| entry.is_ok_and(|entry| ours(entry.file_name().as_encoded_bytes()))))
}

fn own_directory(directory: &Path) -> Result<(fs::File, fs::Metadata), String> {
    if let Err(e) = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
        && !directory.exists()
    {
        return Err(format!("can't be made: {e}"));
    }
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY)
        .open(directory)
        // The kernel's error for a link is the one for a file.
        .map_err(|e| match directory.is_symlink() {
            true => "is a symbolic link, which another user might change".to_owned(),
            false => format!("cannot be used as the directory of segments: {e}"),
        })?;
    let meta = opened.metadata().map_err(|e| e.to_string())?;
    if meta.uid() != sys::uid() {
        return Err(format!("belongs to user {}", meta.uid()));
    }
    Ok((opened, meta))
}

/// The mode of the files that the program loads.
fn mode(is_for_all: bool) -> u32 {
    if is_for_all { 0o555 } else { 0o500 }
}

fn unpack_into(cache: Directory, is_for_all: bool) -> Result<Unpacked, String> {
    let name = format!("libplimsoll-{SHA256}.so");
    let is_ours = |found: &[u8]| hex(&Sha256::digest(found)) == SHA256;
    let library = cache.path.join(&name);
    let mode = mode(is_for_all);
    if !holds(&cache.folder, &name, mode, is_ours) {
        let written = cache.folder.write_whole(OsStr::new(&name), mode, library_bytes()?);
        written.map_err(|e| format!("can't be written: {e}"))?;
        if !holds(&cache.folder, &name, mode, is_ours) {
            return Err("does not return what was written to it".into());
        }
    }
    Ok(Unpacked { library, cache, is_for_all })
}

/// Whether our file of that name has the right bytes, and at least these rights; if so, marks it as used.
fn holds(folder: &Folder, name: &str, mode: u32, is_right: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(file) = folder.read(OsStr::new(name)) else { return false };
    let is_ours = |meta: fs::Metadata| meta.uid() == sys::uid() && meta.len() <= LARGEST && meta.mode() & mode == mode;
    if !file.metadata().is_ok_and(is_ours) {
        return false;
    }
    let mut found = Vec::new();
    let right = (&file).read_to_end(&mut found).is_ok() && is_right(&found);
    if right {
        cache::used(&file);
    }
    right
}
