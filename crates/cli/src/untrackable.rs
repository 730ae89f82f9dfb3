//! Finds out, before a program starts, what keeps the tracker out of it, so that one sentence can say so. The program
//! starts in any case.
//!
//! | obstacle | why |
//! | --- | --- |
//! | static executable (no PT_INTERP) | no loader reads LD_PRELOAD |
//! | dynamic, but needs no libc (Go, -nostdlib) | the tracker counts calls of libc |
//! | setuid, setgid, file capabilities | the loader drops LD_PRELOAD (ld.so(8), secure-execution mode) |
//! | 32 bit, another machine | the tracker is built for this machine |
//! | the runtime of a sanitizer (ASan, HWASan, LSan, TSan), needed or preloaded | it must be loaded first: it ends the program, or crashes |
//! | an allocator of its own, exported or hidden | its calls never leave it; mappings and libraries are still counted |
//! | no space for a segment | the tracker passes every call through |

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadRef, elf};
use plimsoll_process::foreign::{self, Deadline, Pieces};
use plimsoll_process::proc::is_sanitizer;
use plimsoll_report::words::printable;
use plimsoll_tracked::rules::read as rules;

use crate::sys;

/// Why the tracker sees nothing, or not everything.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    Static,
    NoLibc,
    Privileged(&'static str),
    OtherMachine,
    /// The file name of its runtime.
    Sanitizer(String),
    /// The name of the allocator function inside the program.
    OwnAllocator(String),
}

impl Obstacle {
    /// The sentence without its subject, the program's name.
    pub fn sentence(&self) -> String {
        match self {
            Obstacle::Static => "is a static executable, which loads no library: it runs untracked".into(),
            Obstacle::NoLibc => "uses no C library, so the tracker would see no block: it runs untracked".into(),
            Obstacle::Privileged(how) => {
                format!("is {how}, so the loader ignores LD_PRELOAD: it runs untracked")
            }
            Obstacle::OtherMachine => "is built for another CPU than the tracker: it runs untracked".into(),
            Obstacle::Sanitizer(runtime) => format!(
                "loads a sanitizer ({runtime}), which must come before any other library: it runs untracked. See the sanitizer's own report, or run a build without it"
            ),
            Obstacle::OwnAllocator(name) => format!(
                "has an allocator of its own ({name}): the report covers its mappings and its libraries' blocks; of that allocator's own blocks, only those that it takes from libc's malloc{}",
                // Its own `malloc` hides libc's, which only dlsym finds. The other way, __libc_malloc, isn't hooked.
                if name == "malloc" { " through dlsym" } else { "" }
            ),
        }
    }

    /// Why neither `run` nor `attach` can track the program, without the subject. None: one of them may.
    pub fn for_good(&self) -> Option<&'static str> {
        match self {
            Obstacle::OtherMachine => Some("is built for another CPU than the tracker"),
            Obstacle::Static => Some("is a static program, which loads no library"),
            Obstacle::NoLibc => Some("uses no C library, so the tracker would see no block"),
            Obstacle::Sanitizer(_) => Some(SANITIZED),
            Obstacle::Privileged(_) | Obstacle::OwnAllocator(_) => None,
        }
    }

    /// Whether loading the tracker would be useless.
    pub fn shuts_out(&self) -> bool {
        !matches!(self, Obstacle::OwnAllocator(_))
    }
}

/// Why the tracker stays out of a process that has the runtime of a sanitizer, without the subject.
pub const SANITIZED: &str = "has a sanitizer in it (ASan, HWASan, LSan or TSan), which tracks its blocks itself";

/// The interpreter of a script may be a script, up to four recursions (execve(2)).
const SCRIPT_DEPTH: usize = 5;

/// The program that execve would load: the file itself, or a script's interpreter.
pub fn loaded(path: &Path, deadline: Deadline) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..SCRIPT_DEPTH {
        match interpreter(&sys::read_start(&path, 256, deadline)) {
            Some(next) => path = next,
            None => break,
        }
    }
    path
}

/// Examines the program that execve would load.
pub fn of(path: &Path, deadline: Deadline) -> Option<Obstacle> {
    let path = loaded(path, deadline);
    if let Some(how) = privileged(&path) {
        return Some(Obstacle::Privileged(how));
    }
    let file = sys::open(&path, deadline).ok()?;
    let pieces = file.pieces();
    let obstacle = of_elf(&pieces);
    if !is_dynamic(&pieces) || obstacle == Some(Obstacle::OtherMachine) {
        return obstacle;
    }
    let libraries = rules::libraries_of(&path, deadline);
    let names = libraries.found.iter().map(|path| path.to_string_lossy());
    let obstacle = sanitizer(names).or(obstacle);
    obstacle.or_else(|| libraries.lack_libc().then_some(Obstacle::NoLibc))
}

/// The runtime of a sanitizer in this value of LD_PRELOAD, which any dynamic program would load.
pub fn preloaded(value: &OsStr) -> Option<Obstacle> {
    sanitizer(value.to_string_lossy().split([':', ' ']))
}

fn sanitizer(mut paths: impl Iterator<Item = impl AsRef<str>>) -> Option<Obstacle> {
    let path = paths.find(|path| is_sanitizer(path.as_ref()))?;
    Some(Obstacle::Sanitizer(printable(path.as_ref().rsplit('/').next().unwrap_or_default())))
}

/// An allocator inside a program file.
#[derive(Debug, PartialEq, Eq)]
pub struct Allocator {
    /// Its function.
    pub name: String,
    pub way: Way,
}

/// How the allocator's calls may get to libc's malloc, judged by the functions that the program imports.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// Through a function that the tracker hooks, if they do.
    Hooked,
    /// Through `__libc_malloc`, which isn't hooked.
    Internal,
    /// Not at all: `malloc` is its own, and it can't look up another one.
    Closed,
}

/// The allocator in a program that runs or ran: its file, as it was loaded.
pub fn allocator_of(program: &foreign::Regular) -> Option<Allocator> {
    let pieces = program.pieces();
    match of_elf(&pieces)? {
        Obstacle::OwnAllocator(name) => Some(Allocator { way: way(&name, &pieces)?, name }),
        _ => None,
    }
}

fn way<'d, R: ObjectFile<'d>>(name: &str, data: R) -> Option<Way> {
    let header = Header::parse(data).ok()?;
    let imports =
        |prefixes: &[&str], stem| symbol(header, data, prefixes, stem, |symbol| !is_defined(symbol)).is_some();
    Some(match name {
        "malloc" if imports(&["__libc_"], "malloc") => Way::Internal,
        "malloc" if !imports(&[""], "dlsym") && !imports(&[""], "dlvsym") => Way::Closed,
        _ => Way::Hooked,
    })
}

/// The program in the first line of a script.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(words.next()?)))
}

/// Secure execution: execve would change our ids, or the file has capabilities.
fn privileged(path: &Path) -> Option<&'static str> {
    let meta = fs::metadata(path).ok()?;
    let (uid, gid) = (sys::uid(), sys::gid());
    if meta.mode() & 0o4000 != 0 && meta.uid() != uid {
        return Some("setuid");
    }
    // The set-group-id bit without group execution marks mandatory locking, not a privilege.
    if meta.mode() & 0o2010 == 0o2010 && meta.gid() != gid {
        return Some("setgid");
    }
    (uid != 0 && sys::has_capabilities(path)).then_some("privileged by file capabilities")
}

const MACHINE: elf::Machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
/// What may stand before `malloc` in the name of an allocator's function.
const ALLOCATOR_PREFIXES: [&str; 5] = ["", "je_", "tc_", "mi_", "je"];
type Header = elf::FileHeader64<LittleEndian>;
type Symbol = elf::Sym64<LittleEndian>;

/// Examines the bytes of the file, 64-bit little-endian ELF. A damaged file is left for execve to refuse.
fn of_elf<'d, R: ObjectFile<'d>>(data: R) -> Option<Obstacle> {
    let ident = data.read_bytes_at(0, 6).ok()?;
    if ident[..4] != elf::ELFMAG {
        return None;
    }
    if ident[4..] != [elf::ELFCLASS64.0, elf::ELFDATA2LSB.0] {
        return Some(Obstacle::OtherMachine);
    }
    let header = Header::parse(data).ok()?;
    if header.e_machine(LittleEndian) != MACHINE {
        return Some(Obstacle::OtherMachine);
    }
    if interpreter_header(header, data)?.is_none() {
        // The stub of UPX looks static, but then the loader of the packed program runs. The loader itself, if started
        // by name, has no interpreter either. Both honour LD_PRELOAD.
        let packed = data.read_bytes_at(0, 512).ok()?.windows(4).any(|w| w == b"UPX!");
        let is_loader =
            ["_rtld_global", "__dls3"].iter().any(|name| symbol(header, data, &[""], name, is_defined).is_some());
        return (!packed && !is_loader).then_some(Obstacle::Static);
    }
    own_allocator(header, data).map(Obstacle::OwnAllocator)
}

/// The program header that names the loader, if there is one.
fn interpreter_header<'d, R: ReadRef<'d>>(
    header: &Header,
    data: R,
) -> Option<Option<&'d elf::ProgramHeader64<LittleEndian>>> {
    let headers = header.program_headers(LittleEndian, data).ok()?;
    Some(headers.iter().find(|header| header.p_type(LittleEndian) == elf::PT_INTERP))
}

/// Whether the file is an ELF program that names a loader.
fn is_dynamic<'d, R: ReadRef<'d>>(data: R) -> bool {
    Header::parse(data).ok().and_then(|header| interpreter_header(header, data)).flatten().is_some()
}

/// The name of an allocator function that the program itself defines. A stripped program shows no hidden one.
fn own_allocator<'d, R: ObjectFile<'d>>(header: &Header, data: R) -> Option<String> {
    let is_function = |symbol: &Symbol| matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
    symbol(header, data, &ALLOCATOR_PREFIXES, "malloc", |symbol| is_defined(symbol) && is_function(symbol))
}

fn is_defined(symbol: &Symbol) -> bool {
    symbol.st_shndx(LittleEndian) != elf::SHN_UNDEF
}

/// The name of the first such symbol whose name is one of the prefixes and the stem.
///
/// Node's tables have 190,000 symbols. So no symbol's name is read: the stem is searched for in the strings, and the
/// symbol begins at a known distance before its end, be it inside the string of another one.
fn symbol<'d, R: ObjectFile<'d>>(
    header: &Header,
    data: R,
    prefixes: &[&str],
    stem: &str,
    is_wanted: impl Fn(&Symbol) -> bool,
) -> Option<String> {
    let sections = header.sections(LittleEndian, data).ok()?;
    [elf::SHT_SYMTAB, elf::SHT_DYNSYM].into_iter().find_map(|kind| {
        let table = sections.symbols(LittleEndian, data, kind).ok().filter(|table| !table.is_empty())?;
        let strings = sections.section(table.string_section()).ok()?.file_range(LittleEndian)?;
        let mut places = places(data, strings, prefixes, stem);
        // Sorted for a binary search: a hostile file may have as many places as symbols.
        places.sort_unstable();
        let symbols = table.iter().filter(|_| !places.is_empty());
        symbols.filter(|symbol| is_wanted(symbol)).find_map(|symbol| {
            let begins = u64::from(symbol.st_name(LittleEndian));
            let (at, prefix) = places.get(places.partition_point(|(at, _)| *at < begins))?;
            (*at == begins).then(|| format!("{prefix}{stem}"))
        })
    })
}

/// The bytes of a file, of which long parts needn't be kept.
trait ObjectFile<'d>: ReadRef<'d> {
    /// Copies the bytes at this offset. `None`: they don't exist, or can't be read.
    fn copy_at(self, offset: u64, to: &mut [u8]) -> Option<()>;
}

impl<'d> ObjectFile<'d> for &'d Pieces<'_> {
    fn copy_at(self, offset: u64, to: &mut [u8]) -> Option<()> {
        self.fill(offset, to)
    }
}

impl<'d> ObjectFile<'d> for &'d [u8] {
    fn copy_at(self, offset: u64, to: &mut [u8]) -> Option<()> {
        to.copy_from_slice(self.read_bytes_at(offset, to.len() as u64).ok()?);
        Some(())
    }
}

/// Bytes of a string table that are read at once. Blocks overlap, so that a name is in one of them as a whole.
const BLOCK: u64 = 256 << 10;
const OVERLAP: u64 = 16;

/// Where these names, with the zero behind them, lie in a string table: offset and prefix.
fn places<'d, 'p, R: ObjectFile<'d>>(
    data: R,
    (offset, size): (u64, u64),
    prefixes: &[&'p str],
    stem: &str,
) -> Vec<(u64, &'p str)> {
    let wanted = [stem.as_bytes(), &[0]].concat();
    let finder = memmem::Finder::new(&wanted);
    let (mut places, mut bytes) = (Vec::new(), vec![0; (BLOCK + OVERLAP) as usize]);
    for begin in (0..size).step_by(BLOCK as usize) {
        let length = (BLOCK + OVERLAP).min(size - begin);
        let block = &mut bytes[..length as usize];
        if offset.checked_add(begin).and_then(|at| data.copy_at(at, block)).is_none() {
            break;
        }
        for at in finder.find_iter(&*block) {
            let before = prefixes.iter().filter(|prefix| block[..at].ends_with(prefix.as_bytes()));
            places.extend(before.map(|prefix| (begin + (at - prefix.len()) as u64, *prefix)));
        }
    }
    places
}

/// Bytes that a segment needs at its start: its populated pages (docs/segment.md).
const START_BYTES: u64 = 128 << 10;

/// The remedy where the directory of segments can't be used.
pub const ANOTHER_DIRECTORY: &str = "name another directory: --dir DIR";

/// Why no segment can be made in `directory`, if so: creates a file of a segment's size and removes it.
pub fn no_space(directory: &Path, file_bytes: u64) -> Option<String> {
    if sys::file_size_limit() < file_bytes {
        return Some("the limit on file sizes (ulimit -f) is below a segment's".into());
    }
    if sys::address_space_limit() < plimsoll_tracked::segment::LEAST_ADDRESS_SPACE {
        return Some("the limit on address space (ulimit -v) is too low for the tracker's tables".into());
    }
    if sys::data_limit() < plimsoll_tracked::segment::LEAST_DATA {
        return Some("the limit on writable memory (ulimit -d) is too low for the tracker's tables".into());
    }
    let path = directory.join(format!(".probe-{}", std::process::id()));
    // Readable, too: where the file system can't allocate (ext2, NFS 3), the C library reads before it writes.
    let made = File::options().read(true).write(true).create_new(true).open(&path).and_then(|file| {
        file.set_len(file_bytes)?;
        sys::allocate(&file, START_BYTES)
    });
    let _ = fs::remove_file(&path);
    made.err().map(|e| format!("{e}; {ANOTHER_DIRECTORY}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_process::foreign::NAMES;

    fn of(path: &Path) -> Option<Obstacle> {
        super::of(path, Deadline::after(NAMES))
    }

    #[test]
    fn this_program_has_no_obstacle() {
        assert_eq!(of(&std::env::current_exe().expect("path")), None);
    }

    /// cc links each program as the sentence says. (A set-user-ID program needs root: see tests/situations.)
    #[test]
    fn linkage_is_read_from_the_file() {
        let dir = std::env::temp_dir().join(format!("plimsoll-linkage-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join("plain.c"), "int main(void) { return 0; }\n").expect("source");
        let own = "#include <stddef.h>\nVIS void *malloc(size_t n) { (void)n; return 0; }\nint main(void) { return !malloc(1); }\n";
        fs::write(dir.join("own.c"), own).expect("source");
        let build = |source: &str, arguments: &[&str]| {
            let out = dir.join("program");
            let cc =
                std::process::Command::new("cc").arg(dir.join(source)).arg("-o").arg(&out).args(arguments).output();
            assert!(cc.expect("cc").status.success(), "cc {arguments:?}");
            of(&out)
        };
        let own = Some(Obstacle::OwnAllocator("malloc".into()));
        assert_eq!(build("plain.c", &[]), None);
        assert_eq!(build("plain.c", &["-static"]), Some(Obstacle::Static));
        assert_eq!(build("plain.c", &["-static-pie"]), Some(Obstacle::Static));
        assert_eq!(build("own.c", &["-DVIS=", "-rdynamic", "-s"]), own);
        assert_eq!(build("own.c", &["-DVIS=__attribute__((visibility(\"hidden\")))"]), own);
        let way = |calls: &str| {
            fs::write(
                dir.join("way.c"),
                format!("#include <stddef.h>\n{calls}\nint main(void) {{ return !malloc(1); }}\n"),
            )
            .expect("source");
            let obstacle = build("way.c", &["-fno-builtin"]);
            let bytes = fs::read(dir.join("program")).expect("program");
            (obstacle == own).then(|| super::way("malloc", &bytes[..])).flatten()
        };
        const INTERNAL: &str =
            "extern void *__libc_malloc(size_t);\nvoid *malloc(size_t n) { return __libc_malloc(n); }";
        const LOOKS_UP: &str = "extern void *dlsym(void *, const char *);\n\
            void *malloc(size_t n) { return ((void *(*)(size_t))dlsym((void *)-1L, \"malloc\"))(n); }";
        assert_eq!(way(INTERNAL), Some(Way::Internal));
        assert_eq!(way(LOOKS_UP), Some(Way::Hooked));
        assert_eq!(way("void *malloc(size_t n) { (void)n; return 0; }"), Some(Way::Closed));
        build("plain.c", &["-static"]);
        let mut packed = fs::read(dir.join("program")).expect("program");
        packed[500..504].copy_from_slice(b"UPX!");
        fs::write(dir.join("packed"), packed).expect("program");
        assert_eq!(of(&dir.join("packed")), None, "a packed program is not static");
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        assert!(!loader.exists() || of(loader).is_none(), "nor is the loader");
        fs::remove_dir_all(dir).expect("removed");
    }

    /// Each name at each distance from the border of two blocks, and as the end of another string.
    #[test]
    fn a_name_is_found_wherever_it_lies_in_the_strings() {
        for prefix in ALLOCATOR_PREFIXES {
            for before in (BLOCK - 2 * OVERLAP..BLOCK + OVERLAP).map(|n| n as usize) {
                let mut strings = vec![b'x'; before];
                strings.extend(format!("{prefix}malloc\0malloc_trim\0mallocx\0").bytes());
                strings.resize(BLOCK as usize * 2, b'y');
                let data: Vec<u8> = [&[b'z'; 8][..], &strings].concat();
                let mut found = places(&data[..], (8, strings.len() as u64), &ALLOCATOR_PREFIXES, "malloc");
                found.dedup();
                assert!(found.contains(&(before as u64, prefix)), "{prefix} at {before}: {found:?}");
                let stem = (before + prefix.len()) as u64;
                assert!(
                    found.iter().all(|(at, prefix)| at + prefix.len() as u64 == stem),
                    "{prefix} at {before}: {found:?}"
                );
            }
        }
        assert_eq!(places(&b"malloc"[..], (0, 6), &ALLOCATOR_PREFIXES, "malloc"), []);
        assert_eq!(places(&b"malloc\0"[..], (u64::MAX, 6), &ALLOCATOR_PREFIXES, "malloc"), []);
        // A table that claims more than the file has ends the search.
        assert_eq!(places(&b"malloc\0"[..], (0, u64::MAX), &ALLOCATOR_PREFIXES, "malloc"), []);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nexit"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#!/usr/bin/env -S python3 -u\n"), Some("/usr/bin/env".into()));
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    /// Every truncation and every flipped byte of a real program gives an answer.
    #[test]
    fn broken_files_are_survived() {
        let bytes = fs::read(std::env::current_exe().expect("path")).expect("program");
        assert_eq!(of_elf(&bytes[..]), None);
        for n in (0..bytes.len()).step_by(bytes.len() / 97) {
            of_elf(&bytes[..n]);
        }
        let mut head = bytes[..4096].to_vec();
        for i in 0..head.len() {
            head[i] ^= 0xff;
            of_elf(&head[..]);
            head[i] ^= 0xff;
        }
    }
}
