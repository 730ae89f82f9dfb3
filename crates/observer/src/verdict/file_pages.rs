//! What the pages of the line `mapped-files` are: page cache, which the kernel can drop, or memory that it keeps.
//!
//!   resident = repeated + copied + locked + buffers + cache
//!
//! Pages that the program has written in a private mapping are copies in anonymous memory, not page cache. A page that
//! the process maps several times counts once.

use super::case::Case;
use crate::ledger::LineId;
use plimsoll_facts::snapshot::Vma;
use plimsoll_facts::units::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePages {
    pub copied: Bytes,
    /// By mlock.
    pub locked: Bytes,
    /// Memory of the kernel that looks like a file: rings of sockets, io_uring, aio and perf; DMA buffers.
    pub buffers: Bytes,
    pub cache: Bytes,
    /// Part of `cache` that differs from its file: the kernel must write it out before it can drop it.
    pub unwritten: Bytes,
}

/// Without smaps, the whole line: then the kernel has counted copies as anonymous memory.
pub fn file_pages(case: Case<'_>) -> FilePages {
    // The pieces of one mapping follow one another.
    let mut mappings: Vec<(usize, Bytes)> = Vec::new();
    for piece in case.pieces_of(LineId::MappedFiles) {
        match mappings.last_mut() {
            Some((vma, repeated)) if *vma == piece.vma => *repeated += piece.repeated,
            _ => mappings.push((piece.vma, piece.repeated)),
        }
    }
    let mappings = || mappings.iter().map(|(index, repeated)| (&case.snapshot.vmas[*index], *repeated));
    let of_file = |(vma, repeated): (&Vma, Bytes)| vma.rss - vma.anonymous - repeated;
    let is_locked = |(vma, _): &(&Vma, Bytes)| vma.flags.locked;
    let is_buffer = |(vma, _): &(&Vma, Bytes)| vma.is_kernels_buffer() && !vma.flags.locked;
    let copied = mappings().map(|(vma, _)| vma.anonymous).sum();
    let locked = mappings().filter(is_locked).map(of_file).sum();
    let buffers = mappings().filter(is_buffer).map(of_file).sum();
    let cache = case.distinct(LineId::MappedFiles) - copied - locked - buffers;
    let others = || mappings().filter(|(vma, _)| !vma.is_kept());
    let dirty: Bytes = others().map(|(vma, _)| vma.private_dirty + vma.shared_dirty - vma.anonymous).sum();
    // The kernel counts a dirty page once for each mapping, like any other.
    let all: Bytes = others().map(|(vma, _)| vma.rss - vma.anonymous).sum();
    let unwritten = dirty.scaled(others().map(of_file).sum::<Bytes>().0, all.0).min(cache);
    FilePages { copied, locked, buffers, cache, unwritten }
}
