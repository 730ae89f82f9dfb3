//! Finds the objects that a command will load, as ld.so(8) does, and caches the compiled tables.

use super::compile::{self, Table};
use super::modules::{self, Needs};
use super::{RuleSet, parse};
use plimsoll_process::foreign::{self, Deadline, FileKind, Regular, Requirements};
use plimsoll_segment::rules::{Rules, glob_matches, is_other_name, padded};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Limit of objects per command.
const MODULES: usize = 1024;

/// The rules in these files, and the built-in ones.
pub fn rules(files: &[PathBuf], deadline: Deadline) -> Result<RuleSet, String> {
    let mut texts = Vec::new();
    for path in files {
        let read = foreign::read_argument(path, FileKind::Text, deadline);
        let bytes = read.map_err(|why| format!("{} {why}", path.display()))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))?;
        texts.push((path.display().to_string(), text));
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    parse::parse(&texts).map_err(|e| e.to_string())
}

/// The built-in rules alone.
pub fn built_in() -> Result<RuleSet, String> {
    parse::parse(&[]).map_err(|e| e.to_string())
}

/// The objects that a command is going to load: program, interpreter, libraries. For a JDK's launcher, also the VM and
/// its libraries. Objects that a program opens later are unknown here.
pub fn modules_for_command(command: &Path, deadline: Deadline) -> Vec<PathBuf> {
    let mut search = Search::new(deadline);
    search.program(command, 0);
    search.found
}

/// The program and the libraries that it needs, directly or through others.
pub fn libraries_of(program: &Path, deadline: Deadline) -> Libraries {
    let mut search = Search::new(deadline);
    search.object(program.to_path_buf(), &[]);
    Libraries { found: search.found, misses: search.misses }
}

/// Objects that the loader will load.
pub struct Libraries {
    pub found: Vec<PathBuf>,
    /// Whether one of them wasn't found.
    pub misses: bool,
}

impl Libraries {
    /// Whether none of them is a C library. False if one of them isn't found.
    pub fn lack_libc(&self) -> bool {
        // glibc's, and musl's as Alpine calls it, and as it calls itself.
        let names =
            |name: &OsStr| name == "libc.so.6" || name == "libc.so" || name.as_bytes().starts_with(b"libc.musl-");
        let is_libc = |p: &PathBuf| p.file_name().is_some_and(names);
        !self.found.is_empty() && !self.misses && !self.found.iter().any(is_libc)
    }
}

struct Search {
    found: Vec<PathBuf>,
    /// Whether a needed library was not found.
    misses: bool,
    seen: BTreeSet<PathBuf>,
    preset: Vec<PathBuf>,
    system: Vec<PathBuf>,
    /// Applies to all objects together.
    deadline: Deadline,
}

impl Search {
    fn new(deadline: Deadline) -> Search {
        let preset =
            std::env::var_os("LD_LIBRARY_PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
        let mut system = configured(Path::new("/etc/ld.so.conf"), 0, deadline);
        for default in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
            system.push(default.into());
        }
        Search { found: Vec::new(), misses: false, seen: BTreeSet::new(), preset, system, deadline }
    }

    fn program(&mut self, command: &Path, depth: usize) {
        let Some(path) = look_up(command) else { return };
        let Some(head) = opened(&path, self.deadline).and_then(|file| file.head(256).ok()).filter(|_| depth <= 4)
        else {
            return;
        };
        if let Some((program, looked_up)) = modules::interpreter(&head) {
            // The commands of a script are unknown, but if the script starts a JVM, it is one of these.
            let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
            let others = [Some(PathBuf::from(program)), looked_up.map(PathBuf::from), home, Some("java".into())];
            for other in others.into_iter().flatten() {
                self.program(&other, depth + 1);
            }
            return;
        }
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        // If the program is started by a name other than its file's, the tracker uses that name.
        let [name, file] = [&path, &real].map(|path| path.file_name().unwrap_or_default().as_encoded_bytes());
        self.object(if is_other_name(name, file) { path } else { real.clone() }, &[]);
        let Some(home) = real.parent().and_then(Path::parent) else { return };
        if home.join("lib/server/libjvm.so").exists() {
            self.object(home.join("lib/server/libjvm.so"), &[]);
            let mut libraries: Vec<PathBuf> = entries(&home.join("lib"));
            libraries.retain(|p| p.extension().is_some_and(|e| e == "so"));
            for library in libraries {
                self.object(library, &[]);
            }
        }
    }

    /// Adds an object and what it needs. `inherited` has run paths of the objects that need it.
    fn object(&mut self, path: PathBuf, inherited: &[PathBuf]) {
        let mut queue = vec![(path, inherited.to_vec())];
        while let Some((path, inherited)) = queue.pop() {
            let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            if self.found.len() >= MODULES || !self.seen.insert(real.clone()) {
                continue;
            }
            let Some(needs) = needs(&real, self.deadline) else {
                self.misses = true;
                continue;
            };
            self.found.push(path);
            let origin = real.parent().unwrap_or(Path::new("/")).display().to_string();
            let expand = |p: &String| PathBuf::from(p.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
            let own: Vec<PathBuf> = needs.path.iter().map(expand).collect();
            // ld.so(8): RPATH, LD_LIBRARY_PATH, RUNPATH, then the system's configuration.
            let (before, after) = if needs.inherited { (&own[..], &[][..]) } else { (&[][..], &own[..]) };
            let order = before.iter().chain(&inherited).chain(&self.preset).chain(after).chain(&self.system);
            let order: Vec<&PathBuf> = order.collect();
            let hand_down: Vec<PathBuf> = before.iter().chain(&inherited).cloned().collect();
            for name in &needs.needed {
                let resolved = match name.contains('/') {
                    true => Some(PathBuf::from(name)),
                    false => {
                        order.iter().map(|d| d.join(name)).find(|p| machine(p, self.deadline) == Some(needs.machine))
                    }
                };
                self.misses |= resolved.is_none();
                queue.extend(resolved.map(|path| (path, hand_down.clone())));
            }
        }
    }
}

/// Any of them may be another user's file. A FIFO isn't an object, and a sparse file costs only its data.
fn opened(path: &Path, deadline: Deadline) -> Option<Regular> {
    foreign::open(path, Requirements::of(FileKind::Object), deadline).ok()
}

fn needs(path: &Path, deadline: Deadline) -> Option<Needs> {
    modules::needs(&opened(path, deadline)?.pieces())
}

fn machine(path: &Path, deadline: Deadline) -> Option<u16> {
    let head = opened(path, deadline)?.head(20).ok()?;
    let head: [u8; 20] = head.try_into().ok()?;
    (head[..5] == *b"\x7fELF\x02").then(|| u16::from_ne_bytes([head[18], head[19]]))
}

/// The file of a command: with a slash as it is, otherwise searched in PATH.
fn look_up(command: &Path) -> Option<PathBuf> {
    if command.as_os_str().as_encoded_bytes().contains(&b'/') {
        return command.is_file().then(|| command.to_path_buf());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(command)).find(|p| p.is_file())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect();
    out.sort();
    out
}

/// Directories named in ld.so.conf and in the files that it includes.
fn configured(path: &Path, depth: usize, deadline: Deadline) -> Vec<PathBuf> {
    let file = foreign::open(path, Requirements::of(FileKind::Text), deadline);
    let Some(text) = file.ok().and_then(|file| file.text().ok()) else { return Vec::new() };
    let (directories, includes) = modules::loader_directories(&text);
    let mut out: Vec<PathBuf> = directories.into_iter().map(PathBuf::from).collect();
    for pattern in includes.iter().filter(|_| depth < 4) {
        let pattern = path.parent().unwrap_or(Path::new("/")).join(pattern);
        let (Some(directory), Some(name)) = (pattern.parent(), pattern.file_name()) else { continue };
        let (directory, name) = (directory.to_path_buf(), name.as_encoded_bytes().to_vec());
        for file in entries(&directory) {
            if file.file_name().is_some_and(|f| glob_matches(&name, f.as_encoded_bytes())) {
                out.extend(configured(&file, depth + 1, deadline));
            }
        }
    }
    out
}

/// The compiled bytes for a run, and their origin.
#[derive(Debug, Default)]
pub struct Compiled {
    /// The bytes for the tracker.
    pub blob: Vec<u8>,
    /// Number of objects whose table was in the cache.
    pub cached: usize,
    /// Number of objects compiled now.
    pub compiled: usize,
    /// Objects without a table, and why. Rules match them only by their file names.
    pub without: Vec<(PathBuf, String)>,
}

/// Compiles the rules for these objects. Tables are read from and written to `cache`, if there is one.
pub fn compile(rules: &RuleSet, modules: &[PathBuf], cache: Option<&Path>, deadline: Deadline) -> Compiled {
    let mut out = Compiled::default();
    let mut tables = Vec::new();
    for path in modules {
        match table(rules, path, cache, deadline) {
            Ok((table, true)) => {
                out.cached += 1;
                tables.push(table);
            }
            Ok((table, false)) => {
                out.compiled += 1;
                tables.push(table);
            }
            Err(why) => out.without.push((path.clone(), why)),
        }
    }
    out.blob = compile::blob(rules, &tables);
    out
}

/// A build id is only a claim: another user's file may claim the build id of a system library. So a cached table is
/// valid only for the file from which it was made, not for all files with the same build id.
fn table(rules: &RuleSet, path: &Path, cache: Option<&Path>, deadline: Deadline) -> Result<(Table, bool), String> {
    let file = foreign::open(path, Requirements::of(FileKind::Object), deadline).map_err(|why| why.to_string())?;
    let pieces = file.pieces();
    let id = modules::build_id(&pieces).ok_or("it has no build id")?;
    let key = padded(&id).ok_or("it has no build id")?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Rules identify objects by file name, so the table depends on the name too.
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let kept = cache.zip(file.identity()).map(|(dir, identity)| {
        let name = name.replace('%', "%25");
        let name = shortened(&name);
        dir.join(format!("{hex}-{:016x}-{identity}-{name}.rules", rules.hash))
    });
    if let Some(bytes) = kept.as_ref().and_then(|kept| kept_bytes(kept, deadline))
        && let Some(parsed) = Rules::parse(&bytes).filter(|parsed| parsed.hash() == rules.hash)
    {
        let ranges = parsed.ranges(&key).map(Iterator::collect).unwrap_or_default();
        return Ok((Table { build_id: key, ranges }, true));
    }
    let debug = (hex.len() > 2)
        .then(|| format!("/usr/lib/debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]))
        .and_then(|path| foreign::open(Path::new(&path), Requirements::of(FileKind::Object), deadline).ok());
    let of_debug = debug.as_ref().map(Regular::pieces);
    let table = compile::table(rules, &name, &pieces, of_debug.as_ref())?;
    if let Some(why) = pieces.refused() {
        return Err(format!("it {why}"));
    }
    if let Some(kept) = kept {
        // A cache that can't be written only costs time.
        let _ = store(&kept, &compile::blob(rules, std::slice::from_ref(&table)));
    }
    Ok((table, false))
}

/// Reads only files that this user owns.
fn kept_bytes(path: &Path, deadline: Deadline) -> Option<Vec<u8>> {
    let own = [rustix::process::geteuid().as_raw()];
    let requirements = Requirements { links: false, owners: Some(&own), ..Requirements::of(FileKind::Cache) };
    foreign::open(path, requirements, deadline).ok()?.read().ok()
}

/// A file name has at most 255 bytes (NAME_MAX), and another user's file name may use all of them.
fn shortened(name: &str) -> &str {
    let end = (0..=name.len().min(96)).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// Writes to another name and renames, so that nobody reads an incomplete file.
pub(crate) fn store(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // In a container, a plimsoll that was killed meanwhile had the same PID.
    let (pid, random) = (std::process::id(), RandomState::new().build_hasher().finish());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = directory.join(format!(".{pid}.{random:016x}.{name}"));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// `$XDG_CACHE_HOME/plimsoll`, `~/.cache/plimsoll`, or another directory that nobody else can change
/// (`foreign::own_files`). It is made if it is missing.
pub fn cache_dir() -> Option<PathBuf> {
    plimsoll_process::foreign::own_files::cache().ok().map(|directory| directory.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_with_this_pid_left_hinders_no_store() {
        let directory = std::env::temp_dir().join(format!("plimsoll-store-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).expect("a folder");
        let path = directory.join("table");
        fs::write(directory.join(format!(".{}.table", std::process::id())), "a part").expect("a file");
        for text in ["first", "second"] {
            store(&path, text.as_bytes()).expect("stored");
            assert_eq!(fs::read_to_string(&path).expect("a file"), text);
        }
        assert_eq!(fs::read_dir(&directory).expect("a folder").count(), 2);
        fs::remove_dir_all(&directory).expect("ours");
    }
}
