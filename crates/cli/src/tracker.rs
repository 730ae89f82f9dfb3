//! The tracker's library lies inside this program and is unpacked into a private cache when it is needed.
//!
//! ```text
//! $XDG_CACHE_HOME/plimsoll │ ~/.cache/plimsoll │ /tmp/plimsoll-UID-cache     0700, ours, no symbolic link
//!   libplimsoll-SHA256.so                                                    written aside, then renamed
//! ```
//! Whoever could change that file would run code in every tracked program. So the directory must be ours alone, and the
//! file is compared by hash before each use, whatever its name says.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use plimsoll_observer::rules::read as rules;
use plimsoll_observer::source::segment;
use plimsoll_report::words;
use sha2::{Digest, Sha256};

use crate::{Failure, cache, sys};

pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libplimsoll.so"));
pub const SHA256: &str = env!("PLIMSOLL_TRACKER_SHA256");

/// Path of the unpacked library. Its directory is the cache for everything else.
pub fn unpack() -> Result<PathBuf, Failure> {
    let mut refused = Vec::new();
    for directory in candidates() {
        match cache_directory(&directory).and_then(|()| unpack_into(&directory)) {
            Ok(path) => {
                // In use from now on: only then may others go.
                cache::used_path(&path);
                if let Ok(directory) = File::open(&directory) {
                    cache::prune(&directory);
                }
                return Ok(path);
            }
            Err(reason) => refused.push(format!("{}: {reason}", directory.display())),
        }
    }
    Err(format!("the tracker can't be unpacked anywhere ({})", refused.join("; ")).into())
}

/// The category rules compiled for what `program` will load, as a file for the tracker. One file for each program, so
/// that the cache is bounded by the number of programs; it is replaced whole, since another run may be reading it.
pub fn compiled_rules(cache: &Path, files: &[PathBuf], program: &Path) -> Result<PathBuf, Failure> {
    let rules = rules::rules(files).map_err(|e| format!("--rules: {}", words::printable(&e)))?;
    let compiled = rules::compile(&rules, &rules::modules_for_command(program), Some(cache));
    let mut name = Sha256::new();
    name.update(program.as_os_str().as_encoded_bytes());
    for file in files {
        name.update(b"\0");
        name.update(file.as_os_str().as_encoded_bytes());
    }
    let path = cache.join(format!("run-{}.rules", hex(&name.finalize()[..16])));
    if fs::read(&path).is_ok_and(|old| old == compiled.blob) {
        cache::used_path(&path);
        return Ok(path);
    }
    let aside = cache.join(format!(".run-{}-{}", std::process::id(), sys::boottime_ns()));
    let written = write_aside(&aside, &compiled.blob).and_then(|()| fs::rename(&aside, &path));
    written.map_err(|e| {
        let _ = fs::remove_file(&aside);
        format!("the compiled rules can't be written into {}: {e}", cache.display())
    })?;
    Ok(path)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn candidates() -> Vec<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let mut found = Vec::new();
    found.extend(absolute("XDG_CACHE_HOME").map(|p| p.join("plimsoll")));
    found.extend(absolute("HOME").map(|p| p.join(".cache/plimsoll")));
    found.push(PathBuf::from(format!("/tmp/plimsoll-{}-cache", sys::uid())));
    // LD_PRELOAD separates its entries by colons and spaces and knows no escape.
    found.retain(|p| !p.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b':' | b' ' | b'\t' | b'\n')));
    found
}

/// The directory that the tracker takes for its segment: the same rule as its own (docs/cli.md).
pub fn default_directory() -> PathBuf {
    if let Some(dir) = std::env::var_os(segment::DIRECTORY_VARIABLE) {
        return dir.into();
    }
    let shm = Path::new("/dev/shm");
    let writable = shm.is_dir() && rustix::fs::access(shm, rustix::fs::Access::WRITE_OK).is_ok();
    PathBuf::from(format!("{}/plimsoll-{}", if writable { "/dev/shm" } else { "/tmp" }, sys::uid()))
}

/// Makes the directory if need be; it must be ours, no link, and closed to others. An open one is closed if it is there
/// for this (a fresh mkdir, a volume); any other is refused and left as it is, since root may well name /tmp or /.
pub fn private_directory(directory: &Path) -> Result<(), String> {
    let (opened, meta) = own_directory(directory)?;
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    if mode & libc::S_ISVTX != 0 || !holds_segments_only(directory) {
        return Err(format!("is open to others (mode {mode:o}) and not for segments alone"));
    }
    close(&opened)
}

/// The same for the cache, whose name is ours alone.
fn cache_directory(directory: &Path) -> Result<(), String> {
    let (opened, meta) = own_directory(directory)?;
    if meta.mode() & 0o077 != 0 { close(&opened) } else { Ok(()) }
}

fn close(directory: &fs::File) -> Result<(), String> {
    directory.set_permissions(fs::Permissions::from_mode(0o700)).map_err(|e| format!("is open to others: {e}"))
}

/// Also of a volume's root, where mkfs leaves lost+found.
fn holds_segments_only(directory: &Path) -> bool {
    let ours = |name: &[u8]| name.ends_with(b".seg") || name == b"lost+found";
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
        .map_err(|e| format!("can't be opened as a directory of ours: {e}"))?;
    let meta = opened.metadata().map_err(|e| e.to_string())?;
    if meta.uid() != sys::uid() {
        return Err(format!("belongs to user {}", meta.uid()));
    }
    Ok((opened, meta))
}

fn unpack_into(directory: &Path) -> Result<PathBuf, String> {
    let path = directory.join(format!("libplimsoll-{SHA256}.so"));
    if has_our_bytes(&path) {
        return Ok(path);
    }
    let aside = directory.join(format!(".libplimsoll-{}-{}", std::process::id(), sys::boottime_ns()));
    let written = write_aside(&aside, LIBRARY).and_then(|()| fs::rename(&aside, &path));
    if let Err(e) = written {
        let _ = fs::remove_file(&aside);
        return Err(format!("can't be written: {e}"));
    }
    if has_our_bytes(&path) { Ok(path) } else { Err("doesn't keep what is written to it".into()) }
}

fn write_aside(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o500).custom_flags(libc::O_NOFOLLOW).open(path)?;
    file.write_all(bytes)
}

fn has_our_bytes(path: &Path) -> bool {
    let open = || -> std::io::Result<Vec<u8>> {
        let mut file: File =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.uid() != sys::uid() || meta.len() != LIBRARY.len() as u64 {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::with_capacity(LIBRARY.len());
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let Ok(bytes) = open() else { return false };
    hex(&Sha256::digest(&bytes)) == SHA256
}
