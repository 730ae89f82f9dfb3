//! The VM's table of interned strings, found by the shape of its blocks where the VM's books are off (JDK 11 and later):
//!
//! ```text
//! a node for each string (concurrentHashTable.hpp)                    16 bytes requested    24 usable
//! a block of handles for each 64 of them (oopStorage.inline.hpp)     632 bytes requested   632 usable
//! an array of buckets, between one and two strings for each            8 bytes
//! ```
//! With the tracker's trailer, a node keeps its size, and a block of handles has 648 bytes. Other code may have blocks
//! of these sizes too, so the result is only probable. The VM's other handles have blocks of the second size alone.

use super::case::Case;
use super::remedy::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use plimsoll_facts::units::{Bytes, count};

const NODE: u64 = 24;
const HANDLES: [u64; 2] = [632, 648];
const HANDLES_IN_A_BLOCK: u64 = 64;
/// Bytes of the array of buckets for each string, at most.
const BUCKET: u64 = 8;

/// The blocks that probably are the table.
#[derive(Clone, Copy)]
pub(crate) struct StringTable {
    strings: u64,
    /// Resident bytes of its nodes and handles.
    pub bytes: Bytes,
}

pub(crate) fn find(case: Case<'_>) -> Option<StringTable> {
    if !case.is_jvm() || case.has_vm_books() {
        return None;
    }
    let sum = |sizes: &[u64]| {
        let peaks = case.glibc().into_iter().flat_map(|glibc| &glibc.peaks);
        let alike = peaks.filter(|peak| sizes.contains(&peak.usable().0));
        alike.fold((0u64, Bytes(0)), |(number, bytes), peak| (number.saturating_add(peak.count), bytes + peak.resident))
    };
    let ((nodes, in_nodes), (handles, in_handles)) = (sum(&[NODE]), sum(&HANDLES));
    let most = handles.saturating_mul(HANDLES_IN_A_BLOCK);
    let strings = nodes.min(most);
    // Handles of others (JNI's) have no nodes.
    if strings == 0 || strings < most / 2 {
        return None;
    }
    let bytes = in_nodes.scaled(strings, nodes) + in_handles;
    // The tracker's books show the VM's tables. The books of an attached tracker lack what the tables had before.
    let booked = case.booked("Symbol").filter(|_| case.snapshot.attached.is_none());
    Some(StringTable { strings, bytes: booked.map_or(bytes, |booked| bytes.min(booked)) })
}

/// Upper bound of the VM's own bytes in the live blocks, with its string table.
pub(crate) fn vm_malloc_at_most(case: Case<'_>) -> Bytes {
    case.vm_malloc_at_most(find(case).map_or(Bytes(0), StringTable::at_most))
}

impl StringTable {
    /// Upper bound of the table's bytes, with the array of buckets.
    pub(crate) fn at_most(self) -> Bytes {
        self.bytes + Bytes(self.strings.saturating_mul(BUCKET))
    }

    pub(crate) fn evidence(self) -> String {
        format!(
            "{} have the shape of the VM's string table, with about {} strings that the program interned \
             (String.intern)",
            self.bytes,
            count(self.strings)
        )
    }

    /// None if the VM takes no commands, or has no such command.
    pub(crate) fn remedy(self, case: Case<'_>) -> Option<Remedy> {
        let has_command = case.takes_commands() && case.vm()?.jdk().is_none_or(|jdk| jdk > 8);
        has_command.then(|| {
            remedy(
                Effort::Now,
                "see how many strings the VM's string table has, and how large it is",
                format!("jcmd {} VM.stringtable", case.pid()),
                "stops the program while it counts",
            )
        })
    }

    /// The verdict where the table is large, and no other blocks are.
    pub(crate) fn verdict(self, case: Case<'_>) -> Verdict {
        let blocks = case.live_blocks();
        let mut evidence = vec![format!("{} of live malloc blocks; NMT is off", blocks.bytes()), self.evidence()];
        evidence.extend(case.growth(blocks.most.line));
        Verdict {
            id: VerdictId::NativeLeak,
            severity: Severity::Warning,
            bytes: self.bytes,
            summary: format!(
                "{} of live malloc blocks are probably the VM's table of interned strings: {:.0} % of RSS",
                self.bytes,
                self.bytes.percent_of(case.rss())
            ),
            evidence,
            remedies: [self.remedy(case), Some(case.name_the_callers()), case.collect()]
                .into_iter()
                .flatten()
                .collect(),
        }
    }
}
