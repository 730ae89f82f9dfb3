//! mmap fails with ENOMEM when the process has vm.max_map_count mappings, however much memory is free.

use std::collections::BTreeMap;

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::{LineId, Owner};
use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_facts::units::{Bytes, count};

const NEAR: f64 = 70.0;
const CRITICAL: f64 = 90.0;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let limit = case.snapshot.host.max_map_count?;
    let mappings = case.snapshot.vmas.len() as u64;
    let near = Bytes(mappings).percent_of(Bytes(limit));
    if near < NEAR {
        return None;
    }
    // Memory files never have a name in a directory.
    let of_file = |vma: &&Vma| vma.deleted && vma.backing == Backing::File;
    let deleted = case.snapshot.vmas.iter().filter(of_file).count();
    // Number of mappings, and the last of them: the pieces of one mapping follow one another.
    let mut by_owner = BTreeMap::<String, (usize, usize)>::new();
    for piece in &case.ledger.pieces {
        let name = match &piece.owner {
            Owner::Line(LineId::OtherAllocator, part) => part.clone(),
            Owner::Line(line, _) => line.name().to_owned(),
            Owner::Arena(_) => "glibc arenas".to_owned(),
            Owner::OtherHeap(kind) => kind.to_string(),
        };
        let (number, last) = by_owner.entry(name).or_insert((0, usize::MAX));
        if *last != piece.vma {
            (*number, *last) = (*number + 1, piece.vma);
        }
    }
    let (owner, (number, _)) = by_owner.into_iter().max_by_key(|(_, (number, _))| *number)?;
    let mut evidence = vec![format!("{} of the mappings: {owner}", count(number as u64))];
    if deleted > 0 {
        evidence.push(format!(
            "of deleted files: {}; something keeps maps of files that it has replaced",
            count(deleted as u64)
        ));
    }
    let are_files = deleted as u64 * 10 >= mappings || owner == LineId::MappedFiles.name();
    let (what, how) = match are_files {
        true => {
            ("unmap files that the program doesn't read any more", "munmap, or close the reader that holds the file")
        }
        false => (
            "make fewer, larger mappings",
            "munmap what is no longer used; each guard page, and each mprotect of a part, splits a mapping",
        ),
    };
    // The kernel's own type is int.
    let higher = limit.saturating_mul(4).clamp(262_144, i32::MAX as u64);
    Some(Verdict {
        id: VerdictId::MapCount,
        severity: if near >= CRITICAL { Severity::Critical } else { Severity::Warning },
        bytes: Bytes(0),
        summary: format!(
            "{} of at most {} mappings ({near:.0} %): mmap and thread creation fail at the limit, whatever memory is free",
            count(mappings),
            count(limit)
        ),
        evidence,
        remedies: vec![
            remedy(
                Effort::Now,
                "raise the limit (on the host)",
                format!("sudo sysctl -w vm.max_map_count={higher}"),
                "until the next boot. Some kernel memory for each mapping, about 200 B",
            ),
            remedy(Effort::Code, what, how, ""),
        ],
    })
}
