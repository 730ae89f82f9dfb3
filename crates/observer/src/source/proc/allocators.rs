//! Which allocators are mapped, by the names of libraries and, for those linked into the program, by the names that
//! their objects define. Preloaded or linked before libc, they serve malloc.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memchr::memmem;

use super::target::Target;
use crate::snapshot::{AllocatorKind, LoadedAllocator, Vma};

const LIBRARIES: [(&str, AllocatorKind); 6] = [
    ("libjemalloc", AllocatorKind::Jemalloc),
    ("libtcmalloc", AllocatorKind::Tcmalloc),
    ("libmimalloc", AllocatorKind::Mimalloc),
    ("libc.so.6", AllocatorKind::Glibc),
    ("libc-2.", AllocatorKind::Glibc),
    ("ld-musl-", AllocatorKind::Musl),
];

/// Names that only the allocator itself defines, whatever prefix its malloc was built with.
const SYMBOLS: [(&[u8], AllocatorKind); 5] = [
    (b"\0je_mallctl\0", AllocatorKind::Jemalloc),
    (b"\0mallctl\0", AllocatorKind::Jemalloc),
    (b"\0MallocExtension_ReleaseFreeMemory\0", AllocatorKind::Tcmalloc),
    (b"\0TCMalloc_Internal_GetStats\0", AllocatorKind::Tcmalloc),
    (b"\0mi_heap_new\0", AllocatorKind::Mimalloc),
];

/// String tables larger than this are looked at up to here: a symbol table of a huge program, not worth the time.
const LONGEST_TABLE: u64 = 32 << 20;

pub fn recognise_allocators(target: &Target, vmas: &[Vma]) -> Vec<LoadedAllocator> {
    let mut found: Vec<LoadedAllocator> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.executable && vma.inode != 0) {
        let file = vma.name.rsplit('/').next().unwrap_or_default();
        let library = LIBRARIES.iter().find(|(prefix, _)| file.starts_with(prefix));
        if let Some((_, kind)) = library
            && !found.iter().any(|known| known.path == vma.name)
        {
            found.push(LoadedAllocator { kind: *kind, path: vma.name.clone(), serves_malloc: false });
        }
    }
    // jemalloc and its kin linked into the program (Redis, Rust programs): their names are in its string tables.
    if let Ok(program) = target.file("exe") {
        let path = target.link("exe").map(|path| String::from_utf8_lossy(&path).into_owned()).unwrap_or_default();
        for kind in linked_in(&program).unwrap_or_default() {
            found.push(LoadedAllocator { kind, path: path.clone(), serves_malloc: false });
        }
    }
    let substitute = found.iter().any(|known| !matches!(known.kind, AllocatorKind::Glibc | AllocatorKind::Musl));
    for known in &mut found {
        let libc = matches!(known.kind, AllocatorKind::Glibc | AllocatorKind::Musl);
        known.serves_malloc = libc != substitute;
    }
    found
}

/// ELF64: section headers at `e_shoff` (0x28), `e_shentsize` (0x3a), `e_shnum` (0x3c); of each, `sh_type` at 4 (3 is a
/// string table), `sh_offset` at 0x18, `sh_size` at 0x20 (elf(5)).
fn linked_in(program: &File) -> io::Result<Vec<AllocatorKind>> {
    let mut header = [0u8; 64];
    program.read_exact_at(&mut header, 0)?;
    if !header.starts_with(b"\x7fELF\x02") {
        return Ok(Vec::new());
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let (entry, count) = (usize::from(half(0x3a)), usize::from(half(0x3c)));
    if entry < 64 || count > 4096 {
        return Ok(Vec::new());
    }
    let mut sections = vec![0u8; entry * count];
    program.read_exact_at(&mut sections, word(&header, 0x28))?;
    let mut kinds = Vec::new();
    for section in sections.chunks_exact(entry) {
        let is_string_table = section[4..8] == 3u32.to_ne_bytes();
        if !is_string_table {
            continue;
        }
        let mut table = vec![0u8; usize::try_from(word(section, 0x20).min(LONGEST_TABLE)).unwrap_or(0)];
        program.read_exact_at(&mut table, word(section, 0x18))?;
        for (symbol, kind) in SYMBOLS {
            if !kinds.contains(&kind) && memmem::find(&table, symbol).is_some() {
                kinds.push(kind);
            }
        }
    }
    Ok(kinds)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_ne_bytes).unwrap_or_default()
}
