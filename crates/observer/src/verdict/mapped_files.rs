//! Mapped files count in RSS, but are page cache: the kernel reclaims clean pages when it needs them. They are often
//! mistaken for a leak. Deleted files that are still mapped keep their disk space.

use super::case::Case;
use super::file_pages::{FilePages, file_pages};
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::snapshot::Vma;
use plimsoll_facts::units::{Bytes, counted};
use std::collections::{BTreeMap, BTreeSet};

const FLOOR: Bytes = Bytes::mib(32);
const PERCENT: f64 = 25.0;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    // The pieces of one mapping follow one another.
    let mut indexes: Vec<usize> = case.pieces_of(LineId::MappedFiles).map(|piece| piece.vma).collect();
    indexes.dedup();
    let vmas = || indexes.iter().map(|index| &case.snapshot.vmas[*index]);
    let FilePages { copied, locked, buffers, cache: cached, unwritten } = file_pages(case);
    let deleted = vmas().filter(|vma| vma.deleted);
    let (deleted_count, deleted_space) =
        deleted.fold((0usize, Bytes(0)), |(count, space), vma| (count + 1, space + vma.range.length()));
    if !case.matters(cached, PERCENT, FLOOR) || case.snapshot.smaps_refused {
        return None;
    }
    let mut evidence = vec![format!(
        "{} of it is clean and can be taken back at once; {unwritten} must be written out first",
        cached - unwritten
    )];
    if locked > Bytes(0) {
        evidence.push(format!("besides, {locked} of mapped files is locked (mlock): the kernel takes none of it back"));
    }
    if buffers > Bytes(0) {
        evidence.push(format!("besides, {buffers} is buffers of the kernel (sockets, io_uring, …), which it keeps"));
    }
    if copied > Bytes(0) {
        evidence.push(format!(
            "besides, the program has written {copied} in private mappings of files: copies, which the kernel can't drop"
        ));
    }
    if let Some(child) = case.ledger.line(LineId::MappedFiles).and_then(|line| line.children.first()) {
        evidence.push(format!("the largest is {}: {}", child.name, child.resident));
        evidence.extend(largest_directory(vmas().filter(|vma| !vma.is_kept()), child.resident));
    }
    if deleted_count > 0 {
        evidence.push(format!(
            "{} of deleted files ({deleted_space} of address space): their disk space is not free until they are unmapped",
            counted(deleted_count as u64, "mapping")
        ));
    }
    Some(Verdict {
        id: VerdictId::MappedFileGrowth,
        severity: Severity::Note,
        bytes: cached,
        summary: format!(
            "{cached} of RSS ({:.0} %) is page cache of mapped files: reclaimable{}",
            cached.percent_of(case.rss()),
            // Nobody can open a deleted file again. A program that still maps many may have forgotten to unmap them.
            if deleted_count == 0 { ", not a leak" } else { "" }
        ),
        evidence,
        remedies: [
            Some(remedy(
                Effort::Now,
                "judge the process by its anonymous memory, and a container by its working set",
                format!("grep -E 'RssAnon|RssFile|RssShmem' /proc/{}/status", case.pid()),
                "",
            )),
            case.is_tracked().then(|| {
                let how = format!("plimsoll report {} --by site --measure resident", case.pid());
                remedy(Effort::Now, "see which calls map them", how, "")
            }),
        ]
        .into_iter()
        .flatten()
        .collect(),
    })
}

/// Where many files lie in one directory, none of them may be large. Then this is the directory whose files hold most
/// together, if they hold more than the largest file.
fn largest_directory<'v>(vmas: impl Iterator<Item = &'v Vma>, largest: Bytes) -> Option<String> {
    let mut directories: BTreeMap<&str, (BTreeSet<&str>, Bytes)> = BTreeMap::new();
    for vma in vmas {
        let Some((directory, file)) = vma.name.rsplit_once('/') else { continue };
        let (files, bytes) = directories.entry(directory).or_default();
        files.insert(file);
        *bytes += vma.rss - vma.anonymous;
    }
    let (directory, (files, bytes)) = directories.into_iter().max_by_key(|(_, (_, bytes))| *bytes)?;
    let is_more = files.len() > 1 && bytes > largest;
    is_more.then(|| format!("{} in {directory}/: {bytes}", counted(files.len() as u64, "file")))
}
