//! Recognises mapped allocators by the names of libraries and, for those linked into the program, by the symbols that
//! the program defines. An allocator that is preloaded or linked before libc serves malloc; of several, the first in the
//! order in which the dynamic linker searches. One behind libc doesn't: a plugin loaded it for itself.

use std::collections::HashSet;
use std::fmt;

use memchr::memmem;

use plimsoll_facts::snapshot::{AllocatorKind, LoadedAllocator, Vma};

const LIBRARIES: [(&str, AllocatorKind); 6] = [
    ("libjemalloc", AllocatorKind::Jemalloc),
    ("libtcmalloc", AllocatorKind::Tcmalloc),
    ("libmimalloc", AllocatorKind::Mimalloc),
    ("libc.so.6", AllocatorKind::Glibc),
    ("libc-2.", AllocatorKind::Glibc),
    ("ld-musl-", AllocatorKind::Musl),
];

/// Symbols that only the allocator itself defines, whatever prefix its malloc was built with.
const SYMBOLS: [(&[u8], AllocatorKind); 8] = [
    (b"\0je_mallctl\0", AllocatorKind::Jemalloc),
    // The crate tikv-jemalloc-sys, unless it replaces malloc itself.
    (b"\0_rjem_mallctl\0", AllocatorKind::Jemalloc),
    (b"\0mallctl\0", AllocatorKind::Jemalloc),
    (b"\0MallocExtension_ReleaseFreeMemory\0", AllocatorKind::Tcmalloc),
    (b"\0TCMalloc_Internal_GetStats\0", AllocatorKind::Tcmalloc),
    (b"\0mi_heap_new\0", AllocatorKind::Mimalloc),
    // Go's linker writes this section even into stripped programs.
    (b"\0.go.buildinfo\0", AllocatorKind::Go),
    (b"\0_ZN2v87Isolate8AllocateEv\0", AllocatorKind::V8),
];

/// Total limit for string tables: reading more of a huge or hostile program isn't worth the time.
const LONGEST_TABLES: u64 = 32 << 20;

/// Reads a program's bytes at an offset; None if it can't, or if the program ends before.
pub(crate) trait Program {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Option<()>;
}

/// `program` is the executable, and the path from which it was started. Of several allocators, the one that serves
/// malloc comes first. `preload` is the value of LD_PRELOAD. Also returns why the program may contain one that wasn't
/// found.
pub(crate) fn recognise_allocators(
    program: Option<(&impl Program, String)>,
    vmas: &[Vma],
    preload: &str,
) -> (Vec<LoadedAllocator>, Option<Unsearched>) {
    let mut found: Vec<LoadedAllocator> = Vec::new();
    let mut code: Vec<&Vma> = vmas.iter().filter(|vma| vma.executable && vma.inode != 0).collect();
    if is_mapped_downwards(&code) {
        code.reverse();
    }
    // A hostile program may map 65,000 links to one library.
    let mut seen: HashSet<&str> = HashSet::new();
    for vma in code {
        let file = file_name(vma);
        // Debian's musl: the loader is a link to this file.
        let file = if vma.name.ends_with("-linux-musl/libc.so") { "ld-musl-" } else { file };
        let library = LIBRARIES.iter().find(|(prefix, _)| file.starts_with(prefix));
        if let Some((_, kind)) = library
            && seen.insert(&vma.name)
        {
            found.push(LoadedAllocator { kind: *kind, path: vma.name.clone(), serves_malloc: false });
        }
    }
    // musl's libc is also the dynamic linker, so the kernel maps it before all others.
    let libraries = found.len();
    let libc = found.iter().position(|known| known.kind == AllocatorKind::Glibc).unwrap_or(libraries);
    // The kernel may put a small library into a gap above one that was loaded before it.
    let named = |known: &LoadedAllocator| {
        let library = LIBRARIES.iter().find(|(_, kind)| *kind == known.kind);
        let is_needed = |name: &str| program.as_ref().is_some_and(|(program, _)| needs(*program, name));
        library.is_some_and(|(name, _)| preload.contains(name) || is_needed(name))
    };
    let behind: Vec<bool> = found.iter().enumerate().map(|(at, known)| at > libc && !named(known)).collect();
    // Allocators linked into the program, such as jemalloc (Redis, Rust programs): their symbols are in its string
    // tables.
    let mut unsearched = None;
    if let Some((program, path)) = program {
        let (kinds, why) = linked_in(program);
        unsearched = why;
        for kind in kinds {
            // After the libraries: the program may have a variable of that name.
            found.push(LoadedAllocator { kind, path: path.clone(), serves_malloc: false });
        }
    }
    let is_libc = |kind: AllocatorKind| matches!(kind, AllocatorKind::Glibc | AllocatorKind::Musl);
    let is_substitute = |(at, known): &(usize, &LoadedAllocator)| {
        !behind.get(*at).is_some_and(|behind| *behind) && !is_libc(known.kind) && !known.kind.is_runtime()
    };
    let substitute = found.iter().enumerate().find(is_substitute).map(|(_, known)| known.kind);
    for known in &mut found {
        known.serves_malloc = match substitute {
            Some(kind) => known.kind == kind,
            None => is_libc(known.kind),
        };
    }
    (found, unsearched)
}

fn file_name(vma: &Vma) -> &str {
    vma.name.rsplit('/').next().unwrap_or_default()
}

/// Whether a library that was loaded later has a lower address, as in the kernel's usual layout. Then the dynamic
/// linker, which the kernel maps first, is above libc. It loads and searches what is preloaded first.
fn is_mapped_downwards(code: &[&Vma]) -> bool {
    let first = |prefixes: &[&str]| {
        let is_one = |vma: &&&Vma| prefixes.iter().any(|prefix| file_name(vma).starts_with(prefix));
        code.iter().find(is_one).map(|vma| vma.range.start)
    };
    first(&["ld-linux", "ld-2."]) > first(&["libc.so.6", "libc-2."])
}

/// Why the names in a program were not searched, or not all. Displays as the end of a sentence that begins with the
/// program's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsearched {
    /// It isn't a 64-bit ELF file.
    Format,
    /// It has no section headers, as after `sstrip` or a packer.
    NoSections,
    Sections,
    TooLong,
}

impl fmt::Display for Unsearched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsearched::Format => write!(f, "is not a 64-bit ELF file"),
            Unsearched::NoSections => write!(f, "has no section headers"),
            Unsearched::Sections => write!(f, "has section headers that can't be read"),
            Unsearched::TooLong => write!(f, "has names of more than {} MiB", LONGEST_TABLES >> 20),
        }
    }
}

/// ELF64: section headers at `e_shoff` (0x28), with `e_shentsize` (0x3a) and `e_shnum` (0x3c). Returns the headers, and
/// the length of one.
fn section_headers(program: &impl Program) -> Result<(Vec<u8>, usize), Unsearched> {
    let mut header = [0u8; 64];
    if program.read_at(&mut header, 0).is_none() || !header.starts_with(b"\x7fELF\x02") {
        return Err(Unsearched::Format);
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let (entry, count) = (usize::from(half(0x3a)), usize::from(half(0x3c)));
    if count == 0 {
        return Err(Unsearched::NoSections);
    }
    if !(64..=256).contains(&entry) || count > 4096 {
        return Err(Unsearched::Sections);
    }
    let mut sections = vec![0u8; entry * count];
    program.read_at(&mut sections, word(&header, 0x28)).ok_or(Unsearched::Sections)?;
    Ok((sections, entry))
}

/// In each symbol: `st_name` at 0, `st_shndx` at 6, 0 if it is imported (elf(5)).
const SYMBOL: usize = 24;

fn is_defined(symbol: &[u8]) -> bool {
    symbol[6..8] != [0, 0]
}

fn name_at(symbol: &[u8]) -> usize {
    u32::from_ne_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]) as usize
}

/// The number of the section with the names of a table of symbols: `sh_link` at 0x28.
fn link(section: &[u8]) -> Option<usize> {
    section.get(0x28..0x2c).and_then(|link| link.try_into().ok()).map(|link| u32::from_ne_bytes(link) as usize)
}

/// `sh_offset` at 0x18, `sh_size` at 0x20. None if it is too long.
fn contents(program: &impl Program, section: &[u8]) -> Option<Vec<u8>> {
    let length = Some(word(section, 0x20)).filter(|length| *length <= LONGEST_TABLES)?;
    let mut bytes = vec![0u8; usize::try_from(length).ok()?];
    program.read_at(&mut bytes, word(section, 0x18)).map(|()| bytes)
}

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;

fn has_type(section: &[u8], kind: u32) -> bool {
    section[4..8] == kind.to_ne_bytes()
}

/// The header of the dynamic symbols, and the names that the dynamic linker reads: of symbols and of libraries.
fn dynamic<'s>(program: &impl Program, sections: &'s [u8], entry: usize) -> Option<(&'s [u8], Vec<u8>)> {
    let table = sections.chunks_exact(entry).find(|section| has_type(section, SHT_DYNSYM))?;
    let names = contents(program, sections.chunks_exact(entry).nth(link(table)?)?)?;
    Some((table, names))
}

/// Whether the program's dynamic symbols define malloc.
pub(crate) fn exports_malloc(program: &impl Program) -> bool {
    const NAME: &[u8] = b"malloc\0";
    let Ok((sections, entry)) = section_headers(program) else { return false };
    let find = || {
        let (table, names) = dynamic(program, &sections, entry)?;
        // Most programs don't have the name, and many symbols.
        memmem::find(&names, NAME)?;
        let is_malloc = |symbol: &[u8]| {
            is_defined(symbol) && names.get(name_at(symbol)..).is_some_and(|rest| rest.starts_with(NAME))
        };
        Some(contents(program, table)?.chunks_exact(SYMBOL).any(is_malloc))
    };
    find().unwrap_or(false)
}

/// Whether the program was linked to a library whose name begins like this.
fn needs(program: &impl Program, library: &str) -> bool {
    let Ok((sections, entry)) = section_headers(program) else { return false };
    let names = dynamic(program, &sections, entry).map(|(_, names)| names).unwrap_or_default();
    memmem::find(&names, format!("\0{library}").as_bytes()).is_some()
}

/// The allocators of which the program defines a symbol, and the runtimes whose names its string tables have. A program
/// may import an allocator's symbol, weakly too, to ask whether that one is there. In each section header: `sh_type` at
/// 4 (3 is a string table), `sh_offset` at 0x18, `sh_size` at 0x20 (elf(5)).
fn linked_in(program: &impl Program) -> (Vec<AllocatorKind>, Option<Unsearched>) {
    let (sections, entry) = match section_headers(program) {
        Ok(found) => found,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let mut kinds = Vec::new();
    let (mut left, mut left_of_symbols) = (LONGEST_TABLES, LONGEST_TABLES);
    let mut unsearched = None;
    for (number, section) in sections.chunks_exact(entry).enumerate() {
        let is_string_table = section[4..8] == 3u32.to_ne_bytes();
        if !is_string_table {
            continue;
        }
        let whole = word(section, 0x20);
        let length = whole.min(left);
        left -= length;
        let mut table = vec![0u8; usize::try_from(length).unwrap_or(0)];
        // If a section claims more than the file has, the other sections are still read.
        if program.read_at(&mut table, word(section, 0x18)).is_none() {
            unsearched = Some(Unsearched::Sections);
            continue;
        }
        if length < whole {
            unsearched = unsearched.or(Some(Unsearched::TooLong));
        }
        let mut named: Vec<(usize, AllocatorKind)> = Vec::new();
        for (symbol, kind) in SYMBOLS {
            if !kinds.contains(&kind)
                && let Some(at) = memmem::find(&table, symbol)
            {
                match kind.is_runtime() {
                    true => kinds.push(kind),
                    false => named.push((at + 1, kind)),
                }
            }
        }
        if named.is_empty() {
            continue;
        }
        let is_table = |of: &&[u8]| (has_type(of, SHT_SYMTAB) || has_type(of, SHT_DYNSYM)) && link(of) == Some(number);
        for symbols in sections.chunks_exact(entry).filter(is_table) {
            let length = word(symbols, 0x20);
            if length > left_of_symbols {
                unsearched = unsearched.or(Some(Unsearched::TooLong));
                continue;
            }
            left_of_symbols -= length;
            let Some(symbols) = contents(program, symbols) else {
                unsearched = Some(Unsearched::Sections);
                continue;
            };
            let is_here = |at: usize| symbols.chunks_exact(SYMBOL).any(|one| is_defined(one) && name_at(one) == at);
            for (_, kind) in named.iter().filter(|(at, _)| is_here(*at)) {
                if !kinds.contains(kind) {
                    kinds.push(*kind);
                }
            }
        }
    }
    (kinds, unsearched)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_ne_bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;
    use plimsoll_facts::units::{AddressRange, Avma, Bytes};

    impl Program for Vec<u8> {
        fn read_at(&self, into: &mut [u8], offset: u64) -> Option<()> {
            let start = usize::try_from(offset).ok()?;
            into.copy_from_slice(self.get(start..start.checked_add(into.len())?)?);
            Some(())
        }
    }

    /// A program that defines all of these symbols.
    fn program(strings: &[u8]) -> Vec<u8> {
        program_with(strings, 1)
    }

    /// Header, one string table, symbols in section `defined_in`, two section headers.
    fn program_with(strings: &[u8], defined_in: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        let ends = strings.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at as u32 + 1);
        let symbols: Vec<u8> = ends
            .flat_map(|name| {
                let mut symbol = [0u8; SYMBOL];
                symbol[..4].copy_from_slice(&name.to_ne_bytes());
                symbol[6..8].copy_from_slice(&defined_in.to_ne_bytes());
                symbol
            })
            .collect();
        let sections = (64 + strings.len() + symbols.len()) as u64;
        bytes[0x28..0x30].copy_from_slice(&sections.to_ne_bytes());
        bytes[0x3a..0x3c].copy_from_slice(&64u16.to_ne_bytes());
        bytes[0x3c..0x3e].copy_from_slice(&2u16.to_ne_bytes());
        bytes.extend_from_slice(strings);
        bytes.extend_from_slice(&symbols);
        let section = |kind: u32, at: usize, length: usize| {
            let mut section = [0u8; 64];
            section[4..8].copy_from_slice(&kind.to_ne_bytes());
            section[0x18..0x20].copy_from_slice(&(at as u64).to_ne_bytes());
            section[0x20..0x28].copy_from_slice(&(length as u64).to_ne_bytes());
            // The names are in the second section.
            section[0x28..0x2c].copy_from_slice(&1u32.to_ne_bytes());
            section
        };
        bytes.extend_from_slice(&section(SHT_DYNSYM, 64 + strings.len(), symbols.len()));
        bytes.extend_from_slice(&section(3, 64, strings.len()));
        bytes
    }

    /// cc links one program that exports malloc, one that hides it, and one that imports it; and any damage ends.
    #[test]
    fn an_exported_malloc_is_found_among_the_dynamic_symbols() {
        const OWN: &str =
            "void *malloc(unsigned long n) { (void)n; return 0; }\nint main(void) { return !malloc(1); }\n";
        const HIDDEN: &str = "#pragma GCC visibility push(hidden)\n";
        const OTHERS: &str = "void *malloc(unsigned long);\nint main(void) { return !malloc(1); }\n";
        let dir = std::env::temp_dir().join(format!("plimsoll-exports-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let build = |source: &str| {
            let (file, out) = (dir.join("source.c"), dir.join("program"));
            std::fs::write(&file, source).expect("source");
            let cc = std::process::Command::new("cc").args(["-w", "-fno-builtin", "-o"]).args([&out, &file]).status();
            assert!(cc.expect("cc").success());
            std::fs::read(out).expect("program")
        };
        let own = build(OWN);
        assert!(exports_malloc(&own));
        assert!(!exports_malloc(&build(&format!("{HIDDEN}{OWN}"))) && !exports_malloc(&build(OTHERS)));
        std::fs::remove_dir_all(dir).expect("removed");
        for text in mutated(&own, 500) {
            exports_malloc(&text);
        }
        assert!((0..own.len()).step_by(997).all(|n| !exports_malloc(&own[..n].to_vec())));
    }

    #[test]
    fn a_linked_allocator_is_recognised_by_its_symbols() {
        let redis = program(b"\0main\0je_mallctl\0");
        assert_eq!(linked_in(&redis), (vec![AllocatorKind::Jemalloc], None));
        assert_eq!(linked_in(&program(b"\0main\0not_je_mallctl_x\0")), (vec![], None));
        let (allocators, _) = recognise_allocators(Some((&redis, "/usr/bin/redis".to_owned())), &[], "");
        assert!(allocators[0].serves_malloc);
        // Folly asks by a weak reference whether jemalloc is there.
        let asks = program_with(b"\0main\0mallctl\0", 0);
        assert_eq!(linked_in(&asks), (vec![], None));
        let rust = program(b"\0main\0_rjem_malloc\0_rjem_mallctl\0_rjem_mallctlbymib\0");
        assert_eq!(linked_in(&rust), (vec![AllocatorKind::Jemalloc], None));
    }

    /// Debian's Redis links jemalloc's library. With another allocator preloaded, that one serves.
    #[test]
    fn a_preloaded_allocator_serves_before_one_that_the_program_links() {
        let library = |at: u64, name: &str| Vma {
            range: AddressRange::sized(Avma(at << 20), Bytes::mib(1)),
            name: format!("/usr/lib/{name}"),
            executable: true,
            inode: at,
            ..Vma::default()
        };
        let names = ["ld-linux-x86-64.so.2", "libtcmalloc.so.4", "libjemalloc.so.2", "libc.so.6"];
        let loaded = |order: [u64; 4]| {
            let mut vmas: Vec<Vma> = std::iter::zip(order, names).map(|(at, name)| library(at, name)).collect();
            vmas.sort_by_key(|vma| vma.range.start);
            vmas
        };
        let redis = program(b"\0main\0mallctl\0");
        let program = || Some((&redis, "/usr/bin/redis-server".to_owned()));
        // The kernel maps downwards, or, with an unlimited stack, upwards.
        for order in [[40, 30, 20, 10], [10, 20, 30, 40]] {
            let (found, _) = recognise_allocators(program(), &loaded(order), "");
            let serving: Vec<AllocatorKind> =
                found.iter().filter(|known| known.serves_malloc).map(|known| known.kind).collect();
            assert_eq!(serving, [AllocatorKind::Tcmalloc], "{found:?}");
        }
    }

    /// A plugin, opened by dlopen, brings jemalloc for itself.
    #[test]
    fn an_allocator_behind_libc_serves_only_if_it_was_preloaded_or_linked() {
        let library = |(at, name): (u64, &str)| Vma {
            range: AddressRange::sized(Avma(at << 20), Bytes::mib(1)),
            name: format!("/usr/lib/{name}"),
            executable: true,
            inode: at,
            ..Vma::default()
        };
        let names = ["ld-linux-x86-64.so.2", "libc.so.6", "libjemalloc.so.2"];
        let serving = |strings: &[u8], preload: &str| {
            let orders = [[40, 30, 20], [10, 20, 30]];
            let kinds = orders.map(|order| {
                let mut vmas: Vec<Vma> = std::iter::zip(order, names).map(library).collect();
                vmas.sort_by_key(|vma| vma.range.start);
                let program = program_with(strings, 0);
                let (found, _) = recognise_allocators(Some((&program, "/usr/bin/server".to_owned())), &vmas, preload);
                found.iter().filter(|known| known.serves_malloc).map(|known| known.kind).collect::<Vec<_>>()
            });
            assert_eq!(kinds[0], kinds[1]);
            kinds[0].clone()
        };
        assert_eq!(serving(b"\0main\0libc.so.6\0", "/opt/agent.so"), [AllocatorKind::Glibc]);
        // The kernel put it into a gap.
        assert_eq!(serving(b"\0main\0", "/usr/lib/libjemalloc.so.2"), [AllocatorKind::Jemalloc]);
        assert_eq!(serving(b"\0main\0libjemalloc.so.2\0", ""), [AllocatorKind::Jemalloc]);
    }

    /// A large program's names may exceed the limit, and a packer leaves none.
    #[test]
    fn names_that_were_not_searched_are_reported() {
        let whole = program(b"\0main\0je_mallctl\0");
        let changed = |at: usize, bytes: &[u8]| {
            let mut changed = whole.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            linked_in(&changed)
        };
        assert_eq!(changed(4, &[1]), (vec![], Some(Unsearched::Format)));
        assert_eq!(changed(0x3c, &0u16.to_ne_bytes()), (vec![], Some(Unsearched::NoSections)));
        assert_eq!(changed(0x3c, &9u16.to_ne_bytes()), (vec![], Some(Unsearched::Sections)));
        let length = whole.len() - 64 + 0x20;
        assert_eq!(changed(length, &999u64.to_ne_bytes()), (vec![], Some(Unsearched::Sections)));
        let mut strings = vec![b'x'; LONGEST_TABLES as usize];
        strings.extend_from_slice(b"\0je_mallctl\0");
        assert_eq!(linked_in(&program(&strings)), (vec![], Some(Unsearched::TooLong)));
    }

    #[test]
    fn broken_programs_have_no_allocators_and_cause_no_panic() {
        let seed = program(b"\0main\0mi_heap_new\0");
        let (mut some, mut none) = (0, 0);
        for bytes in mutated(&seed, 20_000) {
            match linked_in(&bytes).1 {
                None => some += 1,
                Some(_) => none += 1,
            }
        }
        assert!(some > 500 && none > 500, "{some} {none}");
    }
}
