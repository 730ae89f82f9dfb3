//! Finds the files with the names of a module's functions, and uses them only if they are of the same build.
//!
//! ```text
//! object    path below /proc/PID/root │ the process's own mapping (map_files) │ our own vdso
//! names     --symbols FILE│DIR │ the object │ /usr/lib/debug/.build-id │ .gnu_debuglink │ debuginfod's cache
//! shared    .gnu_debugaltlink (dwz)
//! JIT code  /tmp/perf-PID.map and jit-PID.dump as the process sees them
//! ```
//! The same build means the build id that the tracker saw in memory. Without a build id: the inode that the process has
//! mapped or, for a dead process, a file that hasn't changed since the process started.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use object::Object;
use rustix::time::{ClockId, clock_gettime};

use super::perf_map::Map;
use super::{jitdump, perf_map};
use crate::books::{Books, Module};
use crate::segment::start_time_ns;
use plimsoll_process::foreign::{Deadline, FileKind, Regular, Requirements, Root, Why};
use plimsoll_process::proc::Target;

/// The kernel stamps files with the time of its last tick, which at 100 Hz is up to this long ago.
const TICK: i128 = 10_000_000;

/// A file that may have names.
pub(crate) type Opened = Regular;

/// Identifies a file; no other file can have the same mark. `None`: the file's owner can invent its properties, so
/// nothing of it is cached.
pub(crate) fn mark(file: &Opened) -> Option<String> {
    Some(format!("{}:{}", file.path().display(), file.identity()?))
}

/// Whether names from this file may also be used for other files with the same build id. They may if the file belongs
/// to root or the caller, and only they could have put it where it is. A container's root isn't the host's.
pub(crate) fn is_trusted(finder: &Finder, file: &Opened) -> bool {
    let uid = file.meta().uid();
    let ours = uid == 0 || uid == rustix::process::geteuid().as_raw();
    ours && finder.shares_our_files && !file.is_made_up()
}

/// Why an object can't be used; `None`: there is nothing to read.
pub(crate) type Missing = Option<String>;

/// Where to search for files.
pub struct Finder {
    pid: Option<u32>,
    process: Option<Target>,
    /// The process's root; ours for a dead process.
    root: Root,
    /// Whether its root is ours, in the same mount namespace.
    shares_our_files: bool,
    deadline: Deadline,
    start: Start,
    given: GivenFiles,
    maps: Option<Vec<MapsLine>>,
}

/// The time with which the ages of files are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// ns since 1970; 0 if unknown.
    ns: u64,
    /// Whether this is only the time of the attach: the process had started before and has ended, so its own start is
    /// unknown.
    is_attach: bool,
}

impl Start {
    /// The tracker's start is that of its program, unless it was attached.
    pub(super) fn of(books: &Books, pid: Option<u32>) -> Start {
        if books.counter("attaches") == 0 {
            return Start { ns: books.process.start_ns, is_attach: false };
        }
        match pid.and_then(start_time_ns) {
            Some(began) => Start { ns: on_real_clock(began), is_attach: false },
            None => Start { ns: books.process.start_ns, is_attach: true },
        }
    }
}

/// Converts CLOCK_BOOTTIME to ns since 1970.
fn on_real_clock(boottime_ns: u64) -> u64 {
    let [boot, real] = [ClockId::Boottime, ClockId::Realtime].map(|clock| {
        let now = clock_gettime(clock);
        let [seconds, ns] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
        seconds.saturating_mul(1_000_000_000).saturating_add(ns)
    });
    real.saturating_sub(boot.saturating_sub(boottime_ns))
}

/// A line of /proc/PID/maps (proc(5)).
struct MapsLine {
    start: u64,
    range: String,
    inode: u64,
    path: String,
}

/// Files given by the user.
#[derive(Default)]
struct GivenFiles {
    by_build_id: HashMap<Vec<u8>, PathBuf>,
    by_name: HashMap<String, PathBuf>,
}

/// Limit of files and directories read below a given directory.
const GIVEN: usize = 20_000;

impl Finder {
    pub(super) fn new(pid: Option<u32>, start: Start, given: &[PathBuf], deadline: Deadline) -> Finder {
        let process = pid.and_then(|pid| Target::open(pid, deadline).ok());
        let root = pid.and_then(|pid| Root::at(Path::new(&format!("/proc/{pid}/root")), deadline).ok());
        let same = |link: &str| {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/{link}")).ok();
            pid.is_none_or(|pid| of("self").is_some_and(|own| of(&pid.to_string()) == Some(own)))
        };
        let shares_our_files = same("root") && same("ns/mnt");
        let root = root.unwrap_or_else(|| Root::own(deadline));
        let given = GivenFiles::scan(given, deadline);
        Finder { pid, process, root, shares_our_files, deadline, start, given, maps: None }
    }

    /// Opens a path as the process sees it: absolute links are resolved below its root, not ours (openat2(2)).
    fn open(&self, path: &Path) -> Option<Opened> {
        path.is_absolute().then(|| self.root.open(path, Requirements::of(FileKind::Object)).ok())?
    }

    /// Why an existing file can't be read.
    fn refusal(&self, path: &Path) -> Option<String> {
        match self.root.open(path, Requirements::of(FileKind::Object)) {
            Ok(_) => None,
            Err(Why::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(why) => Some(why.to_string()),
        }
    }

    /// Opens one of our own files.
    fn own(&self, path: &Path) -> Option<Opened> {
        own(path, self.deadline)
    }

    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The file from which the module was loaded.
    pub fn object(&mut self, module: &Module) -> Result<Opened, Missing> {
        // If a library was loaded by a relative path, that path is relative to a directory that isn't known. `open`
        // refuses it, but the kernel has the mapped file.
        let path = Path::new(&module.path);
        let found = self.open(path);
        let exists = found.is_some();
        if let Some(opened) = found
            && self.is_of(module, &opened)
        {
            return Ok(opened);
        }
        // The file was deleted or replaced, but the kernel still has the mapped file.
        let range = self.mapped(module).map(|m| m.range.clone());
        let still = range.zip(self.process.as_ref()).and_then(|(range, process)| process.still_mapped(&range).ok());
        if let Some(opened) = still
            && self.is_of(module, &opened)
        {
            return Ok(opened);
        }
        if !path.is_absolute() {
            return Err(Some("was loaded by a relative path: give its file with --symbols FILE".to_string()));
        }
        let replaced = "was replaced since it was loaded (another build id, or a newer file)";
        Err(if exists { Some(replaced.to_string()) } else { self.refusal(path) })
    }

    fn is_of(&mut self, module: &Module, opened: &Opened) -> bool {
        if !module.build_id.is_empty() {
            // The segment keeps the first 20 bytes of a build id; the usual SHA-1 ids have no more.
            return build_id(opened).is_some_and(|id| id.starts_with(&module.build_id));
        }
        if let Some(mapped) = self.mapped(module) {
            return mapped.inode == opened.meta().ino();
        }
        let changed = opened.meta().ctime() as i128 * 1_000_000_000 + i128::from(opened.meta().ctime_nsec());
        self.start.ns == 0 || changed < i128::from(self.start.ns)
    }

    fn maps(&mut self) -> &[MapsLine] {
        let process = self.process.as_ref();
        self.maps.get_or_insert_with(|| {
            let Some(text) = process.and_then(|process| process.read("maps").ok()) else { return Vec::new() };
            text.split(|&b| b == b'\n').filter_map(|line| mapped_line(&String::from_utf8_lossy(line))).collect()
        })
    }

    fn mapped(&mut self, module: &Module) -> Option<&MapsLine> {
        let start = module.range.0.0;
        let name = module.name().to_string();
        self.maps().iter().find(|m| m.start == start && m.inode != 0 && m.path.contains(&name))
    }

    /// Other files that may have the object's names, best first.
    pub(crate) fn companions(&self, module: &Module, object: Option<&Links>) -> Vec<Opened> {
        let known = object.map(|o| o.build_id.as_slice()).filter(|id| !id.is_empty());
        let id = known.unwrap_or(&module.build_id);
        let mut found: Vec<Opened> = Vec::new();
        let same = |file: &Opened| build_id(file).is_some_and(|other| other.starts_with(id));
        if !id.is_empty() {
            let given = self.given.by_build_id.iter().find(|(other, _)| other.starts_with(id));
            found.extend(given.and_then(|(_, path)| self.own(path)));
            let debug = PathBuf::from(by_build_id("/usr/lib/debug/.build-id", id));
            let cached = debuginfod_caches().map(|dir| dir.join(hex(id)).join("debuginfo"));
            let cached = cached.map(|path| self.own(&path));
            let all = [self.open(&debug), self.own(&debug)].into_iter().chain(cached);
            found.extend(all.flatten().filter(same));
        } else {
            let given = self.given.by_name.get(module.name());
            found.extend(given.and_then(|path| self.own(path)));
        }
        if let Some((name, crc)) = object.and_then(|o| o.debug_link.as_ref()) {
            let directory = Path::new(&module.path).parent().unwrap_or(Path::new("/"));
            let below = directory.strip_prefix("/").unwrap_or(directory);
            let near = [
                directory.join(name),
                directory.join(".debug").join(name),
                Path::new("/usr/lib/debug").join(below).join(name),
            ];
            // A relative path is relative to a directory that isn't known, and not to ours.
            for path in near.into_iter().filter(|_| directory.is_absolute()) {
                for opened in [self.open(&path), self.own(&path)].into_iter().flatten() {
                    let fits = if id.is_empty() { crc32_of(&opened) == Some(*crc) } else { same(&opened) };
                    if fits && opened.path() != Path::new(&module.path) {
                        found.push(opened);
                    }
                }
            }
        }
        let mut seen = Vec::new();
        found.retain(|f| {
            let key = (f.meta().dev(), f.meta().ino());
            !seen.contains(&key) && {
                seen.push(key);
                true
            }
        });
        found
    }

    /// The file that gives a module without a build id its names, only because both have the same file name.
    pub(crate) fn given_by_name(&self, module: &Module) -> Option<&Path> {
        module.build_id.is_empty().then(|| self.given.by_name.get(module.name()).map(PathBuf::as_path)).flatten()
    }

    /// The file with which a debug file shares names (dwz).
    pub fn shared(&self, of: &Path, link: &(PathBuf, Vec<u8>)) -> Option<Opened> {
        let (path, id) = link;
        let near = of.parent().unwrap_or(Path::new("/")).join(path);
        let debug = PathBuf::from(by_build_id("/usr/lib/debug/.build-id", id));
        let all = [self.open(&near), self.own(&near), self.open(&debug), self.own(&debug)];
        all.into_iter().flatten().find(|opened| build_id(opened).is_some_and(|other| other == *id))
    }

    /// Names of code made at run time. `inner` is the PID in the process's own namespace.
    pub fn jit(&mut self, inner: u32) -> (Option<Map>, Option<String>) {
        let dump = self.maps().iter().find(|m| m.path.ends_with(&format!("/jit-{inner}.dump")));
        let dump = dump.map(|m| PathBuf::from(&m.path));
        let mut reason = None;
        for path in dump.into_iter().chain([PathBuf::from(format!("/tmp/perf-{inner}.map"))]) {
            // Everybody may write to /tmp, so no link there is followed.
            let requirements = Requirements { links: false, ..Requirements::of(FileKind::JitMap) };
            let opened = match self.root.open(&path, requirements) {
                Ok(opened) => opened,
                Err(Why::Io(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(why) => {
                    reason = Some(format!("{} {why}", path.display()));
                    continue;
                }
            };
            if let Some(why) = self.distrust(&opened) {
                reason = Some(format!("{} {why}", path.display()));
                continue;
            }
            let bytes = match opened.read() {
                Ok(bytes) => bytes,
                Err(why) => {
                    reason = Some(format!("{} {why}", path.display()));
                    continue;
                }
            };
            let map = jitdump::parse(&bytes).unwrap_or_else(|| perf_map::Map::parse(&bytes));
            if map.is_cut() {
                let limit = "has too many names, or its ranges overlap too often (limit 4 million each)";
                reason = Some(format!("{} {limit}", path.display()));
            } else if !map.is_empty() {
                return (Some(map), None);
            }
        }
        (None, reason)
    }

    /// Why a JIT's file isn't used: anybody may create a file in /tmp, and another process with the same PID may have
    /// left one.
    fn distrust(&self, opened: &Opened) -> Option<&'static str> {
        let owner = match self.pid {
            Some(pid) => fs::metadata(format!("/proc/{pid}")).map(|m| m.uid()).ok(),
            None => fs::metadata("/proc/self").map(|m| m.uid()).ok(),
        };
        let written = opened.meta().mtime() as i128 * 1_000_000_000 + i128::from(opened.meta().mtime_nsec());
        // If the process has just ended, its owner is unknown: then only a file of root is accepted.
        if opened.meta().uid() != 0 && owner != Some(opened.meta().uid()) {
            Some("is another user's")
        } else if written + TICK < i128::from(self.start.ns) {
            Some(match self.start.is_attach {
                true => "was last written before the attach, maybe by an earlier process with this PID",
                false => "is older than the process",
            })
        } else {
            None
        }
    }
}

fn mapped_line(line: &str) -> Option<MapsLine> {
    let mut words = line.splitn(6, ' ');
    let range = words.next()?.to_string();
    let start = u64::from_str_radix(range.split('-').next()?, 16).ok()?;
    let inode = words.nth(3)?.trim().parse().ok()?;
    Some(MapsLine { start, range, inode, path: words.next().unwrap_or("").trim().to_string() })
}

/// What an object states about files with more of its names.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub build_id: Vec<u8>,
    pub debug_link: Option<(PathBuf, u32)>,
    pub shared: Option<(PathBuf, Vec<u8>)>,
}

impl Links {
    pub(crate) fn of<'a, R: object::read::ReadRef<'a>>(file: &object::File<'a, R>) -> Links {
        let path = |bytes: &[u8]| PathBuf::from(String::from_utf8_lossy(bytes).into_owned());
        Links {
            build_id: file.build_id().ok().flatten().unwrap_or_default().to_vec(),
            debug_link: file.gnu_debuglink().ok().flatten().map(|(name, crc)| (path(name), crc)),
            shared: file.gnu_debugaltlink().ok().flatten().map(|(name, id)| (path(name), id.to_vec())),
        }
    }
}

fn own(path: &Path, deadline: Deadline) -> Option<Opened> {
    Root::own(deadline).open(path, Requirements::of(FileKind::Object)).ok()
}

fn build_id(file: &Opened) -> Option<Vec<u8>> {
    crate::rules::modules::build_id(&file.pieces())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The path `DIR/ab/cdef….debug`.
fn by_build_id(directory: &str, id: &[u8]) -> String {
    let hex = hex(id);
    let (first, rest) = hex.split_at(hex.len().min(2));
    format!("{directory}/{first}/{rest}.debug")
}

/// Where debuginfod-find(1) stores what it fetched. Plimsoll fetches nothing.
fn debuginfod_caches() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = variable("DEBUGINFOD_CACHE_PATH");
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let old = variable("HOME").map(|home| home.join(".debuginfod_client_cache"));
    own.into_iter().chain(cache.map(|dir| dir.join("debuginfod_client"))).chain(old)
}

/// CRC-32 of a whole file, as in .gnu_debuglink (GDB manual, 'Separate Debug Files').
fn crc32_of(file: &Opened) -> Option<u32> {
    let table: Vec<u32> =
        (0..256u32).map(|i| (0..8).fold(i, |c, _| if c & 1 != 0 { 0xEDB8_8320 ^ (c >> 1) } else { c >> 1 })).collect();
    let mut crc = !0u32;
    let step = |c: u32, b: &u8| table[((c ^ u32::from(*b)) & 0xff) as usize] ^ (c >> 8);
    file.each(|piece| crc = piece.iter().fold(crc, step)).ok()?;
    Some(!crc)
}

impl GivenFiles {
    fn scan(paths: &[PathBuf], deadline: Deadline) -> GivenFiles {
        let mut given = GivenFiles::default();
        let mut queue = paths.to_vec();
        let mut seen = 0;
        while let Some(path) = queue.pop() {
            seen += 1;
            if seen > GIVEN {
                break;
            }
            let Ok(meta) = fs::metadata(&path) else { continue };
            if meta.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                // Links below it aren't followed, because they may lead in circles.
                queue.extend(
                    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir() || t.is_file())).map(|e| e.path()),
                );
            } else if let Some(opened) = own(&path, deadline)
                && is_elf(&opened)
            {
                if let Some(id) = build_id(&opened) {
                    given.by_build_id.insert(id, path.clone());
                }
                if let Some(name) = path.file_name().and_then(|n| n.to_str()) {
                    given.by_name.insert(name.strip_suffix(".debug").unwrap_or(name).into(), path.clone());
                }
            }
        }
        given
    }
}

fn is_elf(file: &Opened) -> bool {
    file.head(4).is_ok_and(|head| head == *b"\x7fELF")
}

/// The vdso. Every process has the kernel's, so ours equals the target's if the build id is the same.
pub(crate) fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?.min(1 << 20)];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

/// The cache file of an object: by build id, or by path if there is none. `files` are the files with its names. A build
/// id is a claim that any file can make, so each file of another user has its own cache file. `None`: don't cache.
pub(crate) fn cache_file(directory: &Path, module: &Module, finder: &Finder, files: &[Opened]) -> Option<PathBuf> {
    let key = if module.build_id.is_empty() {
        // FNV-1a. If two paths collide, they only replace each other's cache.
        let hash =
            module.path.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        format!("path-{hash:016x}")
    } else {
        hex(&module.build_id)
    };
    let Some(other) = files.iter().find(|file| !is_trusted(finder, file)) else {
        return Some(directory.join(format!("{key}.symbols")));
    };
    Some(directory.join(format!("{key}-{}.symbols", other.identity()?)))
}

/// Limits of cache files, by number and bytes; the oldest are removed first.
const KEPT: usize = 1024;
const KEPT_BYTES: u64 = 1 << 30;

/// Stores resolved names. A failure only costs time.
pub(crate) fn store(path: &Path, text: &str) {
    let Some(directory) = path.parent() else { return };
    if crate::rules::read::store(path, text.as_bytes()).is_err() {
        return;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let known = |e: fs::DirEntry| e.metadata().ok().and_then(|m| Some((m.modified().ok()?, m.len(), e.path())));
    let mut files: Vec<_> = entries.filter_map(known).collect();
    files.sort();
    let mut bytes = 0;
    let fits = |(_, length, _): &&(_, u64, _)| {
        bytes += length;
        bytes <= KEPT_BYTES
    };
    let kept = files.iter().rev().take(KEPT).take_while(fits).count();
    for (_, _, path) in &files[..files.len() - kept] {
        let _ = fs::remove_file(path);
    }
}

/// A cache file, if it belongs to us and its size is plausible.
pub(crate) fn cached(path: &Path, deadline: Deadline) -> Option<String> {
    let own = [rustix::process::geteuid().as_raw()];
    let requirements = Requirements { links: false, owners: Some(&own), ..Requirements::of(FileKind::Cache) };
    Root::own(deadline).open(path, requirements).ok()?.text().ok()
}
