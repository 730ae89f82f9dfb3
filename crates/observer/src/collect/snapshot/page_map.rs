//! Reads the page map of mappings with several owners, and of memory that the process maps more than once.

use crate::ledger;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Snapshot, Vma};
use plimsoll_facts::units::AddressRange;
use plimsoll_process::proc::{self, Target};

/// Reads the page map, but only of mappings that several owners claim or that the process maps more than once.
pub(crate) fn residency(target: &Target, snapshot: &mut Snapshot, gaps: &mut Vec<Gap>) {
    let cut: Vec<AddressRange> = ledger::mappings_with_several_owners(snapshot).map(|vma: &Vma| vma.range).collect();
    let again: Vec<AddressRange> = ledger::mapped_again(snapshot).map(|vma| vma.range).collect();
    if cut.is_empty() && again.is_empty() {
        return;
    }
    let all = [cut.as_slice(), again.as_slice()].concat();
    let read = target
        .file("pagemap")
        .and_then(|file| proc::read_residency(&file, &all, snapshot.host.page, target.deadline()));
    match read {
        Ok(residency) => snapshot.residency = Some(residency),
        Err(error) => {
            let gap = Gap::new(
                Source::Pagemap,
                format!("/proc/{}/pagemap can't be read: {error}", target.pid()),
                [
                    (cut.len(), "mappings with several owners are divided by length"),
                    (again.len(), "mappings of the same memory are each counted in full"),
                ]
                .iter()
                .filter(|(number, _)| *number > 0)
                .map(|(number, effect)| format!("{number} {effect}"))
                .collect::<Vec<_>>()
                .join("; "),
            );
            // If the process has too much to read, no additional right helps.
            gaps.push(if proc::is_too_much(&error) { gap } else { gap.remedy(proc::file_remedy(target.pid())) });
        }
    }
}
