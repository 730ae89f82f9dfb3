//! The full tables behind the ledger: every mapping with its owner (a pmap that knows the owner), and every arena.
//! Columns are separated by blanks and free text comes last, so that awk can read them.

use std::io::{self, Write};

use plimsoll_facts::snapshot::{ArenaKind, Vma};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{LineId, Owner};

use crate::ledger_text::Explanation;
use crate::words::{cut, printable};

/// Sizes in KiB, as pmap prints them. The kernel joins adjoining mappings of several owners; here each owner has a row
/// of its own. `±` is the error of each share: 0 where the page map settled it. PSS and dirty bytes are divided in
/// proportion to the resident bytes.
pub fn maps(out: &mut impl Write, explanation: &Explanation, width: usize) -> io::Result<()> {
    let Explanation { snapshot, ledger, .. } = explanation;
    writeln!(
        out,
        "{:<16} {:<16} {:>12} {:>10} {:>8} {:>10} {:>10} {:>8} perm {:<16} owner, name",
        "start", "end", "size-KiB", "rss-KiB", "±KiB", "pss-KiB", "dirty-KiB", "swap-KiB", "line"
    )?;
    for piece in &ledger.pieces {
        let vma = &snapshot.vmas[piece.vma];
        let (line, owner) = match &piece.owner {
            Owner::Line(line, detail) => (line.id(), printable(detail)),
            Owner::Arena(index) => ("glibc", arena_name(explanation, *index)),
            Owner::OtherHeap(kind) => (LineId::OtherAllocator.id(), kind.to_string()),
        };
        let dirty = vma.private_dirty + vma.shared_dirty;
        // Swapped pages are counted for the mapping as a whole and shown in its first row.
        let first = piece.range.start == vma.range.start;
        let swap = if first { (vma.swap.0 / 1024).to_string() } else { "-".to_owned() };
        let name = format!("{}{}", printable(&vma.name), if vma.deleted { " (deleted)" } else { "" });
        let text = if owner == name { owner } else { format!("{owner}  {name}") };
        let text = cut(text.trim(), width.max(40));
        writeln!(
            out,
            "{:016x} {:016x} {:>12} {:>10} {:>8} {:>10} {:>10} {:>8} {} {line:<16} {text}",
            piece.range.start,
            piece.range.end,
            piece.range.length().0 / 1024,
            kib(piece.resident),
            kib(piece.error),
            kib(vma.pss.scaled(piece.resident.0, vma.rss.0)),
            kib(dirty.scaled(piece.resident.0, vma.rss.0)),
            swap,
            permissions(vma),
        )?;
    }
    writeln!(
        out,
        "{:<33} {:>12} {:>10}",
        "sum",
        ledger.pieces.iter().map(|piece| piece.range.length()).sum::<Bytes>().0 / 1024,
        kib(ledger.rss)
    )
}

/// The share of a mapping need not be a multiple of 1 KiB: then it has two decimals.
fn kib(bytes: Bytes) -> String {
    match bytes.0 % 1024 {
        0 => (bytes.0 / 1024).to_string(),
        _ => format!("{:.2}", bytes.0 as f64 / 1024.0),
    }
}

fn arena_name(explanation: &Explanation, index: usize) -> String {
    let arenas = explanation.snapshot.glibc.as_ref().map(|glibc| glibc.arenas.as_slice()).unwrap_or_default();
    match arenas.get(index).map(|arena| arena.kind) {
        Some(ArenaKind::Main) => "main arena".to_owned(),
        _ => format!("arena {index}"),
    }
}

fn permissions(vma: &Vma) -> String {
    let flag = |set, letter| if set { letter } else { '-' };
    [flag(vma.readable, 'r'), flag(vma.writable, 'w'), flag(vma.executable, 'x'), if vma.shared { 's' } else { 'p' }]
        .iter()
        .collect()
}

/// Sizes in KiB. `kept` is free and resident. `trim` is the part of it that a trim would return: whole pages that do
/// not lie at the end.
pub fn arenas(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    let Some(glibc) = &explanation.snapshot.glibc else {
        return writeln!(out, "no arenas: glibc's malloc was not walked");
    };
    writeln!(
        out,
        "{:>5} {:<6} {:<16} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>7} notes",
        "arena",
        "kind",
        "address",
        "reserved-KiB",
        "heap-KiB",
        "live-KiB",
        "bins-KiB",
        "cached-KiB",
        "top-KiB",
        "kept-KiB",
        "trim-KiB",
        "blocks",
        "threads"
    )?;
    let mut order: Vec<usize> = (0..glibc.arenas.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(glibc.arenas[*index].free_resident));
    for index in order {
        let arena = &glibc.arenas[index];
        let heaps: Bytes = arena.heaps.iter().map(|heap| heap.length()).sum();
        writeln!(
            out,
            "{index:>5} {:<6} {:016x} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>7} {}",
            if arena.kind == ArenaKind::Main { "main" } else { "thread" },
            arena.address,
            arena.reserved.0 / 1024,
            heaps.0 / 1024,
            arena.live.0 / 1024,
            arena.bins.0 / 1024,
            (arena.fast + arena.tcache).0 / 1024,
            arena.top.0 / 1024,
            arena.free_resident.0 / 1024,
            arena.trimmable.0 / 1024,
            arena.live_count,
            arena.attached_threads,
            if arena.whole { "-" } else { "not walked to its end" },
        )?;
    }
    let large: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum();
    writeln!(out, "{} large blocks in mappings of their own: {} KiB", glibc.mmapped.len(), large.0 / 1024)
}
