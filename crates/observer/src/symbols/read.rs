//! Finds the files that have the names of a module's functions, and believes them only if they are of the same build.
//!
//! ```text
//! object    path below /proc/PID/root │ what the process itself has mapped (map_files) │ our own vdso
//! names     --symbols FILE│DIR │ the object │ /usr/lib/debug/.build-id │ .gnu_debuglink │ debuginfod's cache
//! shared    .gnu_debugaltlink (dwz)
//! JIT code  /tmp/perf-PID.map and jit-PID.dump as the process sees them
//! ```
//! The same build: the build id that the tracker saw in memory. Without one, the inode that the process has mapped, and of
//! a dead process a file that hasn't changed since its start.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use object::Object;
use object::read::ReadCache;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::perf_map::Map;
use super::{jitdump, perf_map};
use crate::books::Module;

/// The kernel stamps files with the time of its last tick, which at 100 Hz lies up to this far back.
const TICK: i128 = 10_000_000;

/// A file, and by what it is known again.
pub struct Opened {
    pub file: File,
    pub path: PathBuf,
    pub meta: Metadata,
}

impl Opened {
    fn new(file: File, path: PathBuf) -> Option<Opened> {
        let meta = file.metadata().ok().filter(Metadata::is_file)?;
        Some(Opened { file, path, meta })
    }

    /// Changes when the file does.
    pub fn mark(&self) -> String {
        let m = &self.meta;
        format!("{}:{}:{}.{}:{}", self.path.display(), m.len(), m.mtime(), m.mtime_nsec(), m.ino())
    }
}

/// Why an object can't be used; `None`: there is nothing to read.
pub type Missing = Option<String>;

/// Where to look.
pub struct Finder {
    pid: Option<u32>,
    /// The process's root, if it isn't ours.
    root: Option<OwnedFd>,
    /// When the process started, ns since 1970; 0 = unknown.
    start_ns: u64,
    given: Given,
    maps: Option<Vec<Mapped>>,
}

/// A line of /proc/PID/maps (proc(5)).
struct Mapped {
    start: u64,
    range: String,
    inode: u64,
    path: String,
}

/// Files given by the user.
#[derive(Default)]
struct Given {
    by_build_id: HashMap<Vec<u8>, PathBuf>,
    by_name: HashMap<String, PathBuf>,
}

/// Files and folders looked at below a folder that was given.
const GIVEN: usize = 20_000;
/// Map of a JIT's code, at most.
const MAP: u64 = 512 << 20;

impl Finder {
    pub fn new(pid: Option<u32>, start_ns: u64, given: &[PathBuf]) -> Finder {
        let root = pid.and_then(|pid| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty()).ok()
        });
        Finder { pid, root, start_ns, given: Given::scan(given), maps: None }
    }

    /// Opens a path as the process sees it: absolute links lead to places below its root, not ours (openat2(2)).
    fn open(&self, path: &Path) -> Option<Opened> {
        let plain = path.strip_prefix("/").ok()?;
        // O_NONBLOCK: a FIFO in place of a library must not hang us.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match &self.root {
            Some(root) => rustix::fs::openat2(root, plain, flags, Mode::empty(), ResolveFlags::IN_ROOT)
                .or_else(|_| rustix::fs::openat(root, plain, flags, Mode::empty())),
            None => rustix::fs::open(path, flags, Mode::empty()),
        };
        Opened::new(file.ok()?.into(), path.into())
    }

    /// One of our own files.
    fn own(path: PathBuf) -> Option<Opened> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
        Opened::new(file.into(), path)
    }

    /// The file that the module was loaded from.
    pub fn object(&mut self, module: &Module) -> Result<Opened, Missing> {
        let path = Path::new(&module.path);
        if !path.is_absolute() {
            return Err(None);
        }
        let found = self.open(path);
        let exists = found.is_some();
        if let Some(opened) = found
            && self.is_of(module, &opened)
        {
            return Ok(opened);
        }
        // Deleted or replaced: the kernel still has what the process mapped.
        let range = self.mapped(module).map(|m| m.range.clone());
        let still = range.zip(self.pid).map(|(range, pid)| PathBuf::from(format!("/proc/{pid}/map_files/{range}")));
        if let Some(opened) = still.and_then(|path| Opened::new(File::open(&path).ok()?, path))
            && self.is_of(module, &opened)
        {
            return Ok(opened);
        }
        let replaced = "was replaced since it was loaded (another build id, or a newer file)";
        Err(exists.then(|| replaced.to_string()))
    }

    fn is_of(&mut self, module: &Module, opened: &Opened) -> bool {
        if !module.build_id.is_empty() {
            // The segment keeps the first 20 bytes of a build id, which is all that the usual SHA-1 ones have.
            return build_id(&opened.file).is_some_and(|id| id.starts_with(&module.build_id));
        }
        if let Some(mapped) = self.mapped(module) {
            return mapped.inode == opened.meta.ino();
        }
        let changed = opened.meta.ctime() as i128 * 1_000_000_000 + i128::from(opened.meta.ctime_nsec());
        self.start_ns == 0 || changed < i128::from(self.start_ns)
    }

    fn maps(&mut self) -> &[Mapped] {
        let pid = self.pid;
        self.maps.get_or_insert_with(|| {
            let Some(text) = pid.and_then(|pid| fs::read(format!("/proc/{pid}/maps")).ok()) else { return Vec::new() };
            text.split(|&b| b == b'\n').filter_map(|line| mapped_line(&String::from_utf8_lossy(line))).collect()
        })
    }

    fn mapped(&mut self, module: &Module) -> Option<&Mapped> {
        let start = module.range.0.0;
        let name = module.name().to_string();
        self.maps().iter().find(|m| m.start == start && m.inode != 0 && m.path.contains(&name))
    }

    /// Files besides the object that may have names of it, best first.
    pub fn companions(&self, module: &Module, object: Option<&Links>) -> Vec<Opened> {
        let known = object.map(|o| o.build_id.as_slice()).filter(|id| !id.is_empty());
        let id = known.unwrap_or(&module.build_id);
        let mut found: Vec<Opened> = Vec::new();
        let same = |file: &Opened| build_id(&file.file).is_some_and(|other| other.starts_with(id));
        if !id.is_empty() {
            let given = self.given.by_build_id.iter().find(|(other, _)| other.starts_with(id));
            found.extend(given.and_then(|(_, path)| Finder::own(path.clone())));
            let debug = PathBuf::from(by_build_id("/usr/lib/debug/.build-id", id));
            let cached = debuginfod_caches().map(|dir| dir.join(hex(id)).join("debuginfo"));
            let all = [self.open(&debug), Finder::own(debug.clone())].into_iter().chain(cached.map(Finder::own));
            found.extend(all.flatten().filter(same));
        } else {
            let given = self.given.by_name.get(module.name());
            found.extend(given.and_then(|path| Finder::own(path.clone())));
        }
        if let Some((name, crc)) = object.and_then(|o| o.debug_link.as_ref()) {
            let directory = Path::new(&module.path).parent().unwrap_or(Path::new("/"));
            let below = directory.strip_prefix("/").unwrap_or(directory);
            for path in [
                directory.join(name),
                directory.join(".debug").join(name),
                Path::new("/usr/lib/debug").join(below).join(name),
            ] {
                for opened in [self.open(&path), Finder::own(path.clone())].into_iter().flatten() {
                    let fits = if id.is_empty() { crc32_of(&opened.file) == Some(*crc) } else { same(&opened) };
                    if fits && opened.path != Path::new(&module.path) {
                        found.push(opened);
                    }
                }
            }
        }
        let mut seen = Vec::new();
        found.retain(|f| {
            let key = (f.meta.dev(), f.meta.ino());
            !seen.contains(&key) && {
                seen.push(key);
                true
            }
        });
        found
    }

    /// Whether a module without a build id got its names from a file that is only called the same.
    pub fn given_by_name(&self, module: &Module) -> Option<&Path> {
        module.build_id.is_empty().then(|| self.given.by_name.get(module.name()).map(PathBuf::as_path)).flatten()
    }

    /// The file that a debug file shares names with (dwz).
    pub fn shared(&self, of: &Path, link: &(PathBuf, Vec<u8>)) -> Option<Opened> {
        let (path, id) = link;
        let near = of.parent().unwrap_or(Path::new("/")).join(path);
        let debug = PathBuf::from(by_build_id("/usr/lib/debug/.build-id", id));
        let all = [self.open(&near), Finder::own(near), self.open(&debug), Finder::own(debug)];
        all.into_iter().flatten().find(|opened| build_id(&opened.file).is_some_and(|other| other == *id))
    }

    /// Names of code that was made at run time. `inner`: the PID in the process's own namespace.
    pub fn jit(&mut self, inner: u32) -> (Option<Map>, Option<String>) {
        let dump = self.maps().iter().find(|m| m.path.ends_with(&format!("/jit-{inner}.dump")));
        let dump = dump.map(|m| PathBuf::from(&m.path));
        let mut reason = None;
        for path in dump.into_iter().chain([PathBuf::from(format!("/tmp/perf-{inner}.map"))]) {
            let Some(opened) = self.open(&path) else { continue };
            if let Some(why) = self.distrust(&opened) {
                reason = Some(format!("{} {why}", path.display()));
                continue;
            }
            let mut bytes = Vec::new();
            if opened.file.take(MAP).read_to_end(&mut bytes).is_err() {
                continue;
            }
            let map = jitdump::parse(&bytes).unwrap_or_else(|| perf_map::Map::parse(&bytes));
            if !map.is_empty() {
                return (Some(map), None);
            }
        }
        (None, reason)
    }

    /// Anybody may put a file into /tmp, and one may be left of another process with the same PID.
    fn distrust(&self, opened: &Opened) -> Option<&'static str> {
        let owner = match self.pid {
            Some(pid) => fs::metadata(format!("/proc/{pid}")).map(|m| m.uid()).ok(),
            None => fs::metadata("/proc/self").map(|m| m.uid()).ok(),
        };
        let written = opened.meta.mtime() as i128 * 1_000_000_000 + i128::from(opened.meta.mtime_nsec());
        if owner.is_some_and(|owner| owner != opened.meta.uid() && opened.meta.uid() != 0) {
            Some("is another user's")
        } else if written + TICK < i128::from(self.start_ns) {
            Some("is older than the process")
        } else {
            None
        }
    }
}

fn mapped_line(line: &str) -> Option<Mapped> {
    let mut words = line.splitn(6, ' ');
    let range = words.next()?.to_string();
    let start = u64::from_str_radix(range.split('-').next()?, 16).ok()?;
    let inode = words.nth(3)?.trim().parse().ok()?;
    Some(Mapped { start, range, inode, path: words.next().unwrap_or("").trim().to_string() })
}

/// What an object says about its other files.
#[derive(Debug, Default)]
pub struct Links {
    pub build_id: Vec<u8>,
    pub debug_link: Option<(PathBuf, u32)>,
    pub shared: Option<(PathBuf, Vec<u8>)>,
}

impl Links {
    pub fn of<'a, R: object::read::ReadRef<'a>>(file: &object::File<'a, R>) -> Links {
        let path = |bytes: &[u8]| PathBuf::from(String::from_utf8_lossy(bytes).into_owned());
        Links {
            build_id: file.build_id().ok().flatten().unwrap_or_default().to_vec(),
            debug_link: file.gnu_debuglink().ok().flatten().map(|(name, crc)| (path(name), crc)),
            shared: file.gnu_debugaltlink().ok().flatten().map(|(name, id)| (path(name), id.to_vec())),
        }
    }
}

fn build_id(file: &File) -> Option<Vec<u8>> {
    crate::rules::modules::build_id(&ReadCache::new(file))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// `DIR/ab/cdef….debug`.
fn by_build_id(directory: &str, id: &[u8]) -> String {
    let hex = hex(id);
    let (first, rest) = hex.split_at(hex.len().min(2));
    format!("{directory}/{first}/{rest}.debug")
}

/// Where debuginfod-find(1) keeps what it fetched. Nothing is fetched by us.
fn debuginfod_caches() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = variable("DEBUGINFOD_CACHE_PATH");
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let old = variable("HOME").map(|home| home.join(".debuginfod_client_cache"));
    own.into_iter().chain(cache.map(|dir| dir.join("debuginfod_client"))).chain(old)
}

/// CRC-32 of a whole file, as .gnu_debuglink has it (GDB manual, 'Separate Debug Files').
fn crc32_of(file: &File) -> Option<u32> {
    let table: Vec<u32> =
        (0..256u32).map(|i| (0..8).fold(i, |c, _| if c & 1 != 0 { 0xEDB8_8320 ^ (c >> 1) } else { c >> 1 })).collect();
    let (mut crc, mut at, mut buffer) = (!0u32, 0, vec![0; 1 << 16]);
    loop {
        match file.read_at(&mut buffer, at).ok()? {
            0 => return Some(!crc),
            n => {
                crc = buffer[..n].iter().fold(crc, |c, b| table[((c ^ u32::from(*b)) & 0xff) as usize] ^ (c >> 8));
                at += n as u64;
            }
        }
    }
}

impl Given {
    fn scan(paths: &[PathBuf]) -> Given {
        let mut given = Given::default();
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
                // Links below it are not followed: they may lead in circles.
                queue.extend(
                    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir() || t.is_file())).map(|e| e.path()),
                );
            } else if let Some(opened) = Finder::own(path.clone())
                && is_elf(&opened.file)
            {
                if let Some(id) = build_id(&opened.file) {
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

fn is_elf(file: &File) -> bool {
    let mut head = [0; 4];
    file.read_exact_at(&mut head, 0).is_ok() && head == *b"\x7fELF"
}

/// The vdso: every process has the kernel's, so ours is as good as the target's if the build id is the same.
pub fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?.min(1 << 20)];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

/// The cache file of an object: by build id; without one by where it lies.
pub fn cache_file(directory: &Path, module: &Module) -> PathBuf {
    let key = if module.build_id.is_empty() {
        // FNV-1a: two paths in one file would only take turns in it.
        let hash =
            module.path.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        format!("path-{hash:016x}")
    } else {
        hex(&module.build_id)
    };
    directory.join(format!("{key}.symbols"))
}

/// Cache files kept; the oldest go first.
const KEPT: usize = 1024;

/// Keeps what was resolved. That it can't be written costs time, nothing else.
pub fn store(path: &Path, text: &str) {
    let Some(directory) = path.parent() else { return };
    if crate::rules::read::store(path, text.as_bytes()).is_err() {
        return;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
    if files.len() > KEPT {
        files.sort();
        for (_, path) in &files[..files.len() - KEPT] {
            let _ = fs::remove_file(path);
        }
    }
}

/// A cache file, if it is ours and of a size that one of ours could have.
pub fn cached(path: &Path) -> Option<String> {
    let opened = Finder::own(path.into())?;
    let ours = fs::metadata("/proc/self").ok()?.uid() == opened.meta.uid();
    if !ours || opened.meta.len() > super::cache::LARGEST {
        return None;
    }
    let mut bytes = Vec::new();
    opened.file.take(super::cache::LARGEST).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}
