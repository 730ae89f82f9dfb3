//! Reads the target's objects: the addresses of libc's functions, and the code in which no thread may be borrowed.
//!
//! Symbols come from the mapped files. They belong to the target's user, who may have written anything there: a wrong
//! address harms that user's process only. Exported symbols bound the code around them: the functions of one source
//! file lie together, and the nearest exported functions of other files end the range.

use std::collections::BTreeMap;
use std::ops::Range;

use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{LittleEndian, ReadRef, elf};
use plimsoll_facts::snapshot::Vma;
use plimsoll_process::foreign::FileKind;
use plimsoll_process::proc::{Target, start_of};

use super::injected_thread::Functions;
use super::point::Forbidden;
use super::unwind::{Tables, call};
use crate::attach::release::Release;
use crate::target::started_behind;
use crate::tracker;

#[cfg(test)]
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print what they skip")]
#[path = "../../../../../fixtures/roots.rs"]
mod roots;

type Header = elf::FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;
const PAGE: u64 = 4096;

/// mov $15, %rax; syscall: what a signal handler returns to in glibc.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// The instruction SYSCALL ends here.
pub const RESTORER_BYTES: u64 = RESTORER.len() as u64;
/// RTLD_NOW, and __RTLD_DLOPEN, which __libc_dlopen_mode wants (glibc before 2.34).
const NOW: u32 = 2;
const NOW_INTERNAL: u32 = 0x8000_0002;

/// Exported functions of malloc's source file.
const MALLOC: [&[u8]; 14] = [
    b"malloc",
    b"free",
    b"calloc",
    b"realloc",
    b"memalign",
    b"aligned_alloc",
    b"posix_memalign",
    b"valloc",
    b"pvalloc",
    b"malloc_usable_size",
    b"malloc_trim",
    b"mallopt",
    b"malloc_info",
    b"__libc_memalign",
];
/// malloc's file is smaller; if its functions lie further apart, the file was linked in an unknown way.
const MALLOC_SPREAD: u64 = 256 << 10;
/// Functions of libc that hold locks of the loader, of the list of threads, or of fork.
const HOLDERS: [&[u8]; 26] = [
    b"fork",
    b"_Fork",
    b"vfork",
    b"exit",
    b"quick_exit",
    b"on_exit",
    b"__cxa_atexit",
    b"__cxa_finalize",
    b"__cxa_at_quick_exit",
    b"__cxa_thread_atexit_impl",
    b"pthread_atfork",
    b"__register_atfork",
    b"pthread_exit",
    b"pthread_detach",
    b"pthread_getattr_np",
    b"pthread_getattr_default_np",
    b"pthread_setattr_default_np",
    b"setuid",
    b"seteuid",
    b"setreuid",
    b"setresuid",
    b"setgid",
    b"setregid",
    b"setresgid",
    b"setgroups",
    // Its source file also gives back the stacks of ended threads, with their lock (glibc from 2.34 on).
    b"__pthread_get_minstack",
];
const HOLDER_PREFIXES: [&[u8]; 4] = [b"dl", b"_dl_", b"__libc_dl", b"__nptl_"];

/// More names for one function aren't looked at.
const MOST_ALIASES: usize = 64;
/// Limit of exported functions, of all files that are read. Node has 10⁵. A hostile process could map thousands of
/// files with a million each.
const MOST_FUNCTIONS: usize = 1 << 20;
/// How much of a name is kept. The names that count are shorter; a hostile file may name each function by the same
/// 16 KiB.
const NAME: usize = 64;

/// What an injection needs of the target.
#[derive(Debug)]
pub struct Objects {
    pub forbidden: Forbidden,
    pub tables: Tables,
    /// What the injected thread calls.
    pub called: Functions,
    pub dlopen_flags: u32,
    pub mmap: u64,
    pub mprotect: u64,
    pub create: u64,
    pub restorer: u64,
    /// The distance of errno from the thread pointer, if it is known.
    pub errno: Option<u64>,
    /// Those functions of [`Release`] that the target has, with their addresses.
    pub releases: Vec<(Release, u64)>,
}

/// The functions of one object, at their addresses in the target.
struct Exports {
    /// Start, size, name: ascending.
    functions: Vec<(u64, u64, Vec<u8>)>,
}

impl Exports {
    fn address(&self, name: &[u8]) -> Option<u64> {
        self.functions.iter().find(|(.., n)| n == name).map(|(start, ..)| *start)
    }

    /// From the end of the exported function before `first` to the start of the one after `last`.
    fn around(&self, first: u64, last: u64) -> Range<u64> {
        let from = |at: u64| self.functions.partition_point(|(start, ..)| *start < at);
        // Several names of one function may have different sizes.
        let before = self.functions[..from(first)].iter().rev().take(MOST_ALIASES);
        let before = before.map(|(start, size, _)| start.saturating_add(*size)).filter(|end| *end <= first).max();
        let after = self.functions.get(from(last.saturating_add(1))).map(|(start, ..)| *start);
        before.unwrap_or(first)..after.unwrap_or(last.saturating_add(PAGE))
    }
}

/// Surveys the target's objects. The error says why the process can't be entered; it follows "process PID".
pub fn survey(
    target: &Target,
    vmas: &[Vma],
    read_memory: impl Fn(Range<u64>) -> Option<Vec<u8>>,
) -> Result<Objects, String> {
    let program = target.link("exe").unwrap_or_default();
    let program = String::from_utf8_lossy(&program).trim_end_matches(" (deleted)").to_owned();
    let program = target.inside(&program);
    let run = || started_behind(&start_of(target), "plimsoll run --");
    let refused = |why: &str| format!("{why}. Start it with: {}", run());
    let mut files: BTreeMap<(u64, &str), Vec<&Vma>> = BTreeMap::new();
    for vma in vmas.iter().filter(|vma| vma.executable && vma.inode != 0 && vma.name.starts_with('/')) {
        files.entry((vma.inode, &vma.name)).or_default().push(vma);
    }
    let (mut forbidden, mut all, mut libc_code, mut tables) = (vec![], vec![], None, Tables::default());
    let (mut has_loader, mut unread) = (false, None);
    let (mut left, mut calls_of_program, mut releases) = (MOST_FUNCTIONS, vec![], vec![]);
    if let Some(vdso) = vmas.iter().find(|vma| vma.name == "[vdso]") {
        let bytes = read_memory(vdso.range.start.0..vdso.range.end.0).unwrap_or_default();
        tables.add(&bytes[..], &[vdso]);
    }
    for ((_, name), parts) in &files {
        let exports = match target.mapped(parts[0], FileKind::Object) {
            Ok(file) => read(&file.pieces(), parts, &mut tables, left),
            // Only root can read a deleted file, such as one in memory.
            Err(_) if name.contains(tracker::SHA256) => {
                tracker::library_bytes().ok().and_then(|own| read(own, parts, &mut tables, left))
            }
            Err(_) => {
                unread = unread.or(Some(*name).filter(|name| is_named_libc(name)));
                None
            }
        };
        let Some(exports) = exports else { continue };
        // Where a function is left out, a lock's holder may be missed.
        left = left
            .checked_sub(exports.functions.len())
            .ok_or_else(|| refused("has libraries with more exported functions than plimsoll reads"))?;
        let has = |name: &[u8]| exports.address(name).is_some();
        let of = |release: Release| Some((release, exports.address(release.symbol().as_bytes())?));
        let whole = |what| parts.iter().map(move |vma| (vma.range.start.0..vma.range.end.0, what));
        if has(b"_dl_debug_state") || has(b"__tls_get_addr") {
            forbidden.extend(whole("the loader"));
            has_loader |= is_loader_of_glibc(name);
        } else if has(b"gnu_get_libc_version") {
            // dlmopen(3). A thread may hold a lock of either copy, and the functions found may be those of the wrong
            // one.
            let copies = parts.iter().filter(|part| part.offset == parts[0].offset).count();
            if copies > 1 || libc_code.is_some() {
                return Err(refused("has its C library loaded twice (dlmopen or LD_AUDIT)"));
            }
            forbidden
                .extend(in_libc(&exports).ok_or_else(|| refused("has a C library whose malloc cannot be located"))?);
            libc_code = Some(parts[0].range.start.0..parts[0].range.end.0);
            releases.extend(of(Release::Glibc));
            all.insert(0, exports);
            continue;
        } else if has(b"malloc") {
            if *name == program {
                let why = "has its allocator inside its program file, so no thread of it can be borrowed";
                return Err(format!("{why}. For its mappings and its libraries' blocks, start it with: {}", run()));
            }
            forbidden.extend(whole("an allocator"));
            releases.extend([Release::Jemalloc, Release::Tcmalloc].into_iter().filter_map(of));
        } else if has(b"pthread_create") || has(b"dlopen") {
            forbidden.extend(holders(&exports));
            let is_libpthread = file_name(name).starts_with("libpthread");
            if let Some((file, calls)) = is_libpthread.then(|| around_create(&exports, &read_memory)).flatten() {
                forbidden.push((file, "pthread_create"));
                calls_of_program.extend(calls);
            }
        } else {
            continue;
        }
        let file = file_name(name);
        // Before glibc 2.34, threads and the loader's calls have libraries of their own.
        if file.starts_with("libpthread") || file.starts_with("libdl") {
            all.push(exports);
        }
    }
    let find = |name: &str| all.iter().find_map(|exports| exports.address(name.as_bytes()));
    let need = |name: &str| find(name).ok_or_else(|| refused(&format!("has a C library without {name}")));
    let code = libc_code.ok_or_else(|| without_libc(target.pid(), unread, has_loader))?;
    let bytes = read_memory(code.clone()).unwrap_or_default();
    let restorer = bytes.windows(RESTORER.len()).position(|bytes| bytes == RESTORER);
    let (dlopen, dlopen_flags) = match find("dlopen") {
        Some(dlopen) => (dlopen, NOW),
        None => (need("__libc_dlopen_mode")?, NOW_INTERNAL),
    };
    Ok(Objects {
        forbidden: Forbidden::new(forbidden, calls_of_program),
        tables,
        called: Functions {
            itself: need("pthread_self")?,
            detach: find("pthread_detach").ok_or_else(|| {
                refused("has no library for threads (libpthread), without which plimsoll can't enter it")
            })?,
            dlopen,
            dlerror: find("dlerror").unwrap_or(0),
            munmap: need("munmap")?,
        },
        dlopen_flags,
        mmap: need("mmap")?,
        mprotect: need("mprotect")?,
        create: need("pthread_create")?,
        restorer: restorer.ok_or_else(|| refused("has a C library without a known return from signals"))? as u64
            + code.start,
        errno: find("__errno_location").and_then(|function| errno_distance(function, &read_memory)),
        releases,
    })
}

/// Why glibc was not found; it follows "process PID". `unread`: a C library that is mapped. The kernel maps the loader
/// at the exec; the loader maps the libraries later.
fn without_libc(pid: u32, unread: Option<&str>, has_loader: bool) -> String {
    match (unread, has_loader) {
        (Some(path), _) => format!("has mapped {path}, which cannot be read: was it replaced? Try again as root"),
        (None, true) => "has a loader that has mapped no glibc yet. If it has only just started, try again".to_owned(),
        (None, false) => format!(
            "doesn't use glibc, without which plimsoll can't enter it. For its mappings: plimsoll explain {pid}"
        ),
    }
}

/// `ld-linux-x86-64.so.2`, and before glibc 2.34 `ld-2.31.so`; not musl's `ld-musl-x86_64.so.1`.
fn is_loader_of_glibc(path: &str) -> bool {
    let file = file_name(path);
    file.starts_with("ld-linux") || file.starts_with("ld-2.")
}

/// `libc.so.6`, and before glibc 2.34 `libc-2.31.so`.
fn is_named_libc(path: &str) -> bool {
    let file = file_name(path);
    file.starts_with("libc.so") || file.starts_with("libc-")
}

/// Keeps an object's unwind table, and returns what it exports.
fn read<'d, R: ReadRef<'d>>(data: R, parts: &[&Vma], tables: &mut Tables, most: usize) -> Option<Exports> {
    tables.add(data, parts);
    exports(data, parts[0], most)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The code around pthread_create in libpthread, where no thread may be borrowed, and the last byte of each call in it
/// that goes to the program (glibc before 2.34).
///
/// The source file of pthread_create also allocates and gives back stacks, with their lock. Its functions aren't
/// exported. One of them is `start_thread`, the first function of every thread, which lies on every stack. It calls the
/// program's function by a pointer and without the lock. The file calls destructors of thread-specific data in the same
/// way, and nothing else by a pointer.
fn around_create(
    exports: &Exports,
    read_memory: impl Fn(Range<u64>) -> Option<Vec<u8>>,
) -> Option<(Range<u64>, Vec<u64>)> {
    let create = exports.address(b"pthread_create")?;
    let file = exports.around(create, create);
    let is_possible = file.end - file.start < MALLOC_SPREAD;
    let code = Some(file.clone()).filter(|_| is_possible).and_then(read_memory).unwrap_or_default();
    let calls = call::ends_of_indirect(&code).into_iter().map(|end| file.start + end as u64 - 1).collect();
    Some((file, calls))
}

/// The distance of errno from the thread pointer, by the code of `__errno_location`. That code adds a word of libc's to
/// fs:0, in one of two orders. `None`: the code is different.
fn errno_distance(function: u64, read_memory: impl Fn(Range<u64>) -> Option<Vec<u8>>) -> Option<u64> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const LOAD_WORD: &[u8] = &[0x48, 0x8b, 0x05];
    const ADD_WORD: &[u8] = &[0x48, 0x03, 0x05];
    const LOAD_THREAD: &[u8] = &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
    const ADD_THREAD: &[u8] = &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0];
    const RET: &[u8] = &[0xc3];
    let code = read_memory(function..function.checked_add(24)?)?;
    let rest = code.strip_prefix(ENDBR64).unwrap_or(&code);
    let is = |at: usize, bytes: &[u8]| rest.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    // The distance of the word counts from the end of that instruction.
    let at = if is(0, LOAD_WORD) && is(7, ADD_THREAD) && is(16, RET) {
        3
    } else if is(0, LOAD_THREAD) && is(9, ADD_WORD) && is(16, RET) {
        12
    } else {
        return None;
    };
    let distance = i32::from_le_bytes(*rest.get(at..)?.first_chunk()?);
    let end = function.checked_add((code.len() - rest.len() + at + 4) as u64)?;
    let word = end.checked_add_signed(distance.into())?;
    let bytes = read_memory(word..word.checked_add(8)?)?;
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}

/// The code in libc where no thread may be borrowed. `None`: malloc's functions are missing, or lie too far apart.
fn in_libc(exports: &Exports) -> Option<Vec<(Range<u64>, &'static str)>> {
    let malloc = exports.functions.iter().filter(|(.., name)| MALLOC.contains(&name.as_slice()));
    let (first, last) = malloc.fold((u64::MAX, 0), |(first, last), (at, ..)| (first.min(*at), last.max(*at)));
    let spread = last.checked_sub(first).filter(|spread| *spread < MALLOC_SPREAD);
    spread.map(|_| [vec![(exports.around(first, last), "malloc")], holders(exports)].concat())
}

fn holders(exports: &Exports) -> Vec<(Range<u64>, &'static str)> {
    // Breakpoints for debuggers, which do nothing. Behind them lies the wait of condition variables and of
    // pthread_join.
    let is_event = |name: &[u8]| name.ends_with(b"_event");
    let is_holder =
        |name: &[u8]| HOLDERS.contains(&name) || HOLDER_PREFIXES.iter().any(|p| name.starts_with(p)) && !is_event(name);
    let around = |(at, ..): &(u64, u64, Vec<u8>)| (exports.around(*at, *at), "the loader, fork or exit");
    let mut found: Vec<_> = exports.functions.iter().filter(|(.., name)| is_holder(name)).map(around).collect();
    // Its source file also has the first function of every thread, which is on every stack.
    let create = exports.functions.iter().filter(|(.., name)| name == b"pthread_create");
    found.extend(create.map(|(at, size, _)| (*at..at.saturating_add(*size), "pthread_create")));
    found
}

/// Reads the exported functions of a mapped file, if it exports one that matters here; at most one more than `most`.
fn exports<'d, R: ReadRef<'d>>(data: R, part: &Vma, most: usize) -> Option<Exports> {
    let header = Header::parse(data).ok()?;
    let segments = header.program_headers(LE, data).ok()?;
    let is_part = |segment: &&elf::ProgramHeader64<LittleEndian>| {
        segment.p_type(LE) == elf::PT_LOAD && segment.p_offset(LE) & !(PAGE - 1) == part.offset
    };
    let segment = segments.iter().filter(is_part).find(|segment| segment.p_flags(LE).contains(elf::PF_X))?;
    let bias = part.range.start.0.wrapping_sub(segment.p_vaddr(LE) & !(PAGE - 1));
    let sections = header.sections(LE, data).ok()?;
    let table = sections.symbols(LE, data, elf::SHT_DYNSYM).ok()?;
    let is_function = |symbol: &&elf::Sym64<LittleEndian>| {
        symbol.st_shndx(LE) != elf::SHN_UNDEF && matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC)
    };
    let name = |symbol: &elf::Sym64<LittleEndian>| symbol.name(LE, table.strings()).ok();
    const MARKERS: [&[u8]; 6] =
        [b"malloc", b"gnu_get_libc_version", b"pthread_create", b"dlopen", b"__tls_get_addr", b"_dl_debug_state"];
    let is_marker = |symbol: &elf::Sym64<LittleEndian>| name(symbol).is_some_and(|name| MARKERS.contains(&name));
    let functions = || table.iter().filter(is_function);
    functions().any(is_marker).then_some(())?;
    let function = |symbol: &elf::Sym64<LittleEndian>| {
        let name = name(symbol)?;
        let name = name[..name.len().min(NAME)].to_vec();
        Some((bias.wrapping_add(symbol.st_value(LE)), symbol.st_size(LE), name))
    };
    let mut functions: Vec<_> = functions().filter_map(function).take(most.saturating_add(1)).collect();
    functions.sort_unstable();
    Some(Exports { functions })
}

/// Offsets of functions in a library of ours.
pub fn offsets<const N: usize>(library: &[u8], names: [&str; N]) -> Option<[u64; N]> {
    let header = Header::parse(library).ok()?;
    let table = header.sections(LE, library).ok()?.symbols(LE, library, elf::SHT_DYNSYM).ok()?;
    let find = |wanted: &str| {
        let mut defined = table.iter().filter(|symbol| symbol.st_shndx(LE) != elf::SHN_UNDEF);
        let found = defined.find(|symbol| symbol.name(LE, table.strings()) == Ok(wanted.as_bytes()));
        found.map_or(0, |symbol| symbol.st_value(LE))
    };
    Some(names.map(find)).filter(|offsets| !offsets.contains(&0))
}

#[cfg(test)]
mod tests {
    use super::super::unwind::Stack;
    use super::*;
    use plimsoll_facts::units::{AddressRange, Avma};
    use std::path::Path;

    /// The C library that this test runs with, mapped at an address of our choice.
    fn libc() -> (Vec<u8>, Vma) {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.contains("/libc.so.6") && line.contains("r-xp")).expect("a libc");
        let fields: Vec<&str> = line.split_whitespace().collect();
        let offset = u64::from_str_radix(fields[2], 16).expect("an offset");
        let range = AddressRange::new(Avma(0x7000_0000_0000), Avma(0x7000_0020_0000));
        let vma = Vma { range, offset, executable: true, ..Vma::default() };
        (std::fs::read(fields[5]).expect("the file"), vma)
    }

    #[test]
    fn a_program_whose_loader_is_at_work_is_no_program_without_glibc() {
        assert!(without_libc(7, None, false).contains("use glibc"), "{}", without_libc(7, None, false));
        let loading = without_libc(7, None, true);
        assert!(loading.ends_with("try again") && !loading.contains("use glibc"), "{loading}");
        let unread = without_libc(7, Some("/lib/libc.so.6"), true);
        assert!(unread.contains("/lib/libc.so.6") && unread.ends_with("as root"), "{unread}");
        let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-2.31.so", "/lib/ld-musl-x86_64.so.1"];
        assert_eq!(loaders.map(is_loader_of_glibc), [true, true, false]);
        let named = ["/lib/x/libc.so.6", "/lib/libc-2.31.so", "/lib/libcap.so.2", "/opt/ld-musl-x86_64.so.1"];
        assert_eq!(named.map(is_named_libc), [true, true, false, false]);
    }

    #[test]
    fn errno_lies_where_its_function_says() {
        let of = |code: &[u8]| {
            let memory = |range: Range<u64>| {
                let bytes = match range.start {
                    0x1000 => [code, &[0x90; 24]].concat(),
                    0x3010 => (-0x80i64).to_le_bytes().to_vec(),
                    _ => return None,
                };
                Some(bytes[..(range.end - range.start) as usize].to_vec())
            };
            errno_distance(0x1000, memory)
        };
        let load: [u8; 9] = [0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
        let add: [u8; 9] = [0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0];
        let expected = Some((-0x80i64) as u64);
        // As glibc 2.31 to 2.42 of Debian have it; with ENDBR64; in the other order.
        assert_eq!(of(&[&[0x48u8, 0x8b, 0x05, 0x09, 0x20, 0, 0][..], &add, &[0xc3]].concat()), expected);
        let marked: [u8; 11] = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05, 0x05, 0x20, 0, 0];
        assert_eq!(of(&[&marked[..], &add, &[0xc3]].concat()), expected);
        assert_eq!(of(&[&load[..], &[0x48, 0x03, 0x05, 0, 0x20, 0, 0, 0xc3]].concat()), expected);
        // No word there, and other code.
        assert_eq!(of(&[&[0x48u8, 0x8b, 0x05, 0x08, 0x20, 0, 0][..], &add, &[0xc3]].concat()), None);
        assert_eq!((of(&[]), of(&load), of(&add)), (None, None, None));
    }

    #[test]
    fn the_range_of_malloc_leaves_out_what_waits() {
        let (bytes, vma) = libc();
        let exports = exports(&bytes[..], &vma, MOST_FUNCTIONS).expect("exports");
        let forbidden = Forbidden::new(in_libc(&exports).expect("malloc"), vec![]);
        let at = |name: &str| {
            let stack = Stack { at: 0, bytes: &[] };
            forbidden.found(exports.address(name.as_bytes()).expect(name), &stack, None)
        };
        for name in
            ["malloc", "free", "realloc", "malloc_info", "fork", "dl_iterate_phdr", "exit", "__pthread_get_minstack"]
        {
            assert!(at(name).is_some(), "{name}");
        }
        // If one of these were forbidden, hardly a thread could ever be borrowed.
        for name in
            ["read", "epoll_wait", "nanosleep", "pthread_cond_wait", "pthread_join", "poll", "__libc_start_main"]
        {
            assert_eq!(at(name), None, "{name}");
        }
        // The function in which they wait is not exported. In glibc 2.34 and newer it lies before this one.
        let wait = exports.address(b"__lll_lock_wait_private").expect("glibc 2.34") - 0x20;
        assert_eq!(forbidden.found(wait, &Stack { at: 0, bytes: &[] }, None), None);
    }

    /// glibc before 2.34: pthread_create's file has functions that hold the lock of stacks. Only the program's
    /// function, which `start_thread` calls, may be on the stack.
    #[test]
    fn of_libpthread_only_the_calls_of_the_program_are_allowed() {
        // The export before, a function that calls munmap, `start_thread`, pthread_create, the export after.
        let exports = Exports {
            functions: [
                (0x1000, 8, "__libpthread_freeres"),
                (0x1040, 0x10, "pthread_create"),
                (0x1060, 4, "pthread_exit"),
            ]
            .map(|(at, size, name)| (at, size, name.as_bytes().to_vec()))
            .into(),
        };
        let mut code = vec![0x90; 0x58];
        code[0x08..0x0d].copy_from_slice(&[0xe8, 1, 2, 3, 4]);
        code[0x20..0x22].copy_from_slice(&[0xff, 0xd0]);
        code[0x28..0x2d].copy_from_slice(&[0xe8, 1, 2, 3, 4]);
        let (file, calls) = around_create(&exports, |range| (range == (0x1008..0x1060)).then(|| code.clone())).unwrap();
        let forbidden = Forbidden::new([holders(&exports), vec![(file, "pthread_create")]].concat(), calls);
        let at = |returns: u64| {
            let stack = returns.to_le_bytes();
            forbidden.found(0x9000, &Stack { at: 0, bytes: &stack }, None)
        };
        assert_eq!(at(0x1008 + 0x22), None, "where the program's function returns to");
        for returns in [0x1008 + 0x0d, 0x1008 + 0x2d, 0x1008 + 0x21, 0x1045] {
            assert_eq!(at(returns), Some("pthread_create"), "{returns:#x}");
        }
        // pthread_exit is a holder.
        assert_eq!((at(0x1062), at(0x1004)), (Some("pthread_create"), None));
        let unread = around_create(&exports, |_| None).expect("pthread_create");
        assert_eq!(unread, (0x1008..0x1060, vec![]), "no call is allowed that wasn't read");
    }

    /// The same in Debian's glibc 2.31, whose libpthread has the names of its own functions.
    #[test]
    #[ignore = "full: makes a root of bullseye"]
    fn the_functions_that_hold_the_lock_of_stacks_are_found_in_glibc_2_31() {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let Some(root) = roots::Root::of(roots::SUITES[0].0, &target) else { return };
        let bytes = std::fs::read(root.0.join("lib/x86_64-linux-gnu/libpthread.so.0")).expect("libpthread");
        let header = Header::parse(&bytes[..]).expect("ELF");
        let code = header.program_headers(LE, &bytes[..]).expect("segments").iter();
        let code = code.clone().find(|segment| segment.p_flags(LE).contains(elf::PF_X)).expect("code");
        let range = AddressRange::new(Avma(code.p_vaddr(LE)), Avma(code.p_vaddr(LE) + code.p_memsz(LE)));
        let vma = Vma { range, offset: code.p_offset(LE), executable: true, ..Vma::default() };
        let read = |range: Range<u64>| {
            // The first segments of this file have equal addresses and offsets.
            assert_eq!(code.p_vaddr(LE), code.p_offset(LE));
            bytes.get(range.start as usize..range.end as usize).map(<[u8]>::to_vec)
        };
        let exports = exports(&bytes[..], &vma, MOST_FUNCTIONS).expect("exports");
        let (file, calls) = around_create(&exports, read).expect("pthread_create");
        let forbidden = Forbidden::new(vec![(file, "pthread_create")], calls);
        let table = header.sections(LE, &bytes[..]).and_then(|all| all.symbols(LE, &bytes[..], elf::SHT_SYMTAB));
        let table = table.expect("Debian leaves the names in libpthread");
        let function = |wanted: &str| {
            let is = |symbol: &&elf::Sym64<LittleEndian>| symbol.name(LE, table.strings()) == Ok(wanted.as_bytes());
            let symbol = table.iter().find(is).unwrap_or_else(|| panic!("no {wanted}"));
            symbol.st_value(LE)..symbol.st_value(LE) + symbol.st_size(LE)
        };
        // Whether a thread is refused where it is, and where it has called from.
        let is_refused = |instruction: u64, stack: &[u8]| {
            forbidden.found(instruction, &Stack { at: 0, bytes: stack }, None).is_some()
        };
        // What is called by a pointer: a POSIX thread's function, a C11 thread's, a destructor (objdump -d).
        let calls = |name| function(name).filter(|at| !is_refused(0, &(at + 1).to_le_bytes())).count();
        assert_eq!((calls("start_thread"), calls("__nptl_deallocate_tsd")), (2, 1));
        for name in ["__free_tcb", "__deallocate_stack", "free_stacks", "__nptl_setxid", "__reclaim_stacks"] {
            for at in function(name) {
                assert!(is_refused(at, &[]), "{name}, {at:#x}");
            }
        }
    }

    /// Each holder's range is found without a look at all functions: a quadratic survey would take minutes here.
    #[test]
    fn a_library_full_of_holders_is_surveyed() {
        let functions = (0..400_000u64).map(|n| (n * 16, 8, format!("dl{n}").into_bytes())).collect();
        let found = holders(&Exports { functions });
        assert_eq!(found.len(), 400_000);
        assert_eq!((found[1].0.clone(), found[399_999].0.clone()), (8..32, 6_399_976..6_399_984 + PAGE));
    }

    /// A library with `malloc`, and with so many functions that have one name of 10,000 bytes.
    fn library(functions: u64) -> Vec<u8> {
        let strings = [&b"\0malloc\0"[..], &[b'x'; 10_000], b"\0"].concat();
        let symbol = |name: u32, at: u64| {
            // A global function of section 1.
            [&name.to_le_bytes()[..], &[0x12, 0, 1, 0], &at.to_le_bytes(), &8u64.to_le_bytes()].concat()
        };
        let others = (0..functions).flat_map(|number| symbol(8, 0x2000 + 16 * number));
        let symbols: Vec<u8> = [0; 24].into_iter().chain(symbol(1, 0x1000)).chain(others).collect();
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let halves = |halves: &[u32]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
        let section = |kind: u32, at: u64, length: u64, link: u32, entry: u64| {
            [halves(&[0, kind]), words(&[0, 0, at, length]), halves(&[link, 0]), words(&[8, entry])].concat()
        };
        let (at, strings_at) = (120, 120 + symbols.len() as u64);
        let sections_at = strings_at + strings.len() as u64;
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        bytes.extend(words(&[0, 64, sections_at]));
        bytes.extend(halves(&[0]));
        bytes.extend([64u16, 56, 1, 64, 3, 2].map(u16::to_le_bytes).concat());
        // All of the file is code.
        bytes.extend(halves(&[1, 5]));
        bytes.extend(words(&[0, 0, 0, sections_at, sections_at, 4096]));
        bytes.extend(symbols);
        bytes.extend(strings);
        bytes.extend(section(0, 0, 0, 0, 0));
        bytes.extend(section(11, at, strings_at - at, 2, 24));
        bytes.extend(section(3, strings_at, sections_at - strings_at, 0, 0));
        bytes
    }

    #[test]
    fn functions_and_names_are_kept_within_limits() {
        let vma = Vma { range: AddressRange::new(Avma(0x7000_0000_0000), Avma(0x7000_0010_0000)), ..Vma::default() };
        let bytes = library(1000);
        let read = |most| exports(&bytes[..], &vma, most).expect("exports").functions;
        assert_eq!(read(MOST_FUNCTIONS).len(), 1001);
        assert_eq!(read(700).len(), 701, "one more than allowed shows that some are missing");
        assert_eq!(
            read(0).first().map(|(at, size, name)| (*at, *size, &name[..])),
            Some((0x7000_0000_1000, 8, &b"malloc"[..]))
        );
        assert!(read(MOST_FUNCTIONS)[1..].iter().all(|(.., name)| *name == [b'x'; NAME]));
    }

    /// Every truncation and every flipped byte of the tables gives an answer.
    #[test]
    fn broken_objects_are_survived() {
        let (mut bytes, vma) = libc();
        for n in (0..bytes.len()).step_by(bytes.len() / 11) {
            let _ = exports(&bytes[..n], &vma, MOST_FUNCTIONS).map(|exports| in_libc(&exports));
        }
        let headers = (bytes.len() - 4096..bytes.len()).step_by(151);
        for i in (0..1200).step_by(29).chain(headers) {
            bytes[i] ^= 0xff;
            let _ = exports(&bytes[..], &vma, MOST_FUNCTIONS).map(|exports| in_libc(&exports));
            let _ = offsets(&bytes, ["malloc"]);
            bytes[i] ^= 0xff;
        }
        assert!(offsets(&bytes, ["malloc", "munmap"]).is_some() && offsets(&bytes, ["no such function"]).is_none());
    }
}
