//! A JVM whose live native memory lies mostly outside the VM's books: a JNI library, zlib, a database client. One
//! reading can't prove a leak, but it shows where to look.

use std::collections::{BTreeMap, HashMap};

use super::case::{Case, LiveBlocks};
use super::remedies::without_copies_of_nio;
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::string_table;
use super::suspects;
use super::{Severity, Verdict, VerdictId};
use crate::ledger::{LineId, large_buffers};
use plimsoll_facts::snapshot::Glibc;
use plimsoll_facts::units::{Avma, Bytes, counted};

const FLOOR: Bytes = Bytes::mib(48);
const PERCENT: f64 = 20.0;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    case.vm()?;
    let blocks = case.live_blocks();
    let live = blocks.bytes();
    let has_vm_books = case.has_vm_books();
    // With NMT, the line excludes the VM's own blocks. Without NMT, it includes them, up to a bound.
    let own = string_table::vm_malloc_at_most(case);
    let alike = large_blocks_alike(case);
    let large = alike.as_ref().filter(|alike| alike.size >= Alike::NOT_THE_VM_S).map(|alike| alike.resident);
    let others = (live - own - suspects::bounded(case)).max(large.unwrap_or_default());
    let strings = string_table::find(case);
    if !case.matters(others, PERCENT, FLOOR) {
        let large = strings.filter(|strings| case.matters(strings.bytes, PERCENT, FLOOR));
        return large.map(|strings| strings.verdict(case));
    }
    if large.is_none() && suspects::may_be_a_cache(case, others) && !has_grown(case, blocks) {
        return None;
    }
    // Blocks of zlib's sizes aren't the VM's, even if the VM's upper bound would cover them.
    let others = others.max(suspects::zlib(case).1.min(live));
    let in_arenas = |glibc: &Glibc| {
        let blocks: u64 = glibc.arenas.iter().map(|arena| arena.live_count).sum();
        format!("; {} in the arenas in all", counted(blocks, "block"))
    };
    let mut evidence = vec![match has_vm_books {
        true => format!(
            "{live} of live malloc blocks are not in the VM's books (NMT){}",
            case.glibc().map(in_arenas).unwrap_or_default()
        ),
        false if case.has_tracker_books() => {
            format!("{live} of live malloc blocks; by the tracker's books, at most {own} are the VM's own")
        }
        false => format!("{live} of live malloc blocks; NMT is off, and of a VM like this at most {own} are its own"),
    }];
    let threads = case.snapshot.threads.len() as u64;
    evidence.extend(alike.as_ref().map(|alike| alike.evidence(threads)));
    let strings = strings.filter(|strings| strings.bytes.percent_of(others) >= MIN_PERCENT_TO_MENTION);
    evidence.extend(strings.map(|strings| format!("of the VM's own, probably: {}", strings.evidence())));
    let may_be_copies = alike.is_some_and(|alike| alike.may_be_copies_of_nio(threads))
        && !case.started_with("jdk.nio.maxCachedBufferSize");
    evidence.extend(suspects::evidence(case, others));
    evidence.extend(case.growth(blocks.most.line));
    Some(Verdict {
        id: VerdictId::NativeLeak,
        severity: Severity::Warning,
        bytes: others,
        summary: format!(
            "{}{others} of live malloc blocks are {}: {:.0} % of RSS",
            if has_vm_books && own.percent_of(others) < 1.0 { "" } else { "at least " },
            match suspects::bounded(case) {
                Bytes(0) => "not the VM's own",
                _ => "neither the VM's own nor in a RocksDB block cache",
            },
            others.percent_of(case.rss())
        ),
        evidence,
        remedies: [
            Some(case.name_the_callers()),
            strings.and_then(|strings| strings.remedy(case)),
            case.collect(),
            may_be_copies.then(|| without_copies_of_nio(case)),
            (!case.is_musl() && case.barrier().is_none())
                .then(|| case.start_tracked("see the calls from the start of the program on")),
            suspects::endings(case, others),
        ]
        .into_iter()
        .flatten()
        .collect(),
    })
}

/// Whether the lines of the blocks grew since the baseline, by more than a tenth.
fn has_grown(case: Case<'_>, blocks: LiveBlocks) -> bool {
    case.snapshot.baseline.as_ref().is_some_and(|baseline| {
        let change: i64 = blocks.parts().map(|part| case.ledger.change_since(baseline, part.line)).sum();
        let before: Bytes = blocks.parts().map(|part| baseline.resident(part.line)).sum();
        change > 0 && (before == Bytes(0) || Bytes(change.unsigned_abs()).percent_of(before) >= 10.0)
    })
}

/// Large blocks of one size, if they are most of the memory in large blocks.
struct Alike {
    size: Bytes,
    number: u64,
    /// Resident bytes of all of them.
    resident: Bytes,
}

fn large_blocks_alike(case: Case<'_>) -> Option<Alike> {
    const ALIKE_AT_LEAST: u64 = 4;
    let mut by_size = BTreeMap::<Bytes, Alike>::new();
    let chunks: HashMap<Avma, Bytes> =
        case.glibc()?.mmapped.iter().map(|chunk| (chunk.range.start, chunk.range.length())).collect();
    for size in chunks.values() {
        let alike = by_size.entry(*size).or_insert(Alike { size: *size, number: 0, resident: Bytes(0) });
        alike.number += 1;
    }
    // A chunk in several mappings has several pieces; only the first piece starts at the chunk's address.
    let mut chunk = None;
    for piece in case.pieces_of(LineId::GlibcLive) {
        if let Some(size) = chunks.get(&piece.range.start) {
            chunk = Some((piece.range.start.offset(*size), *size));
        }
        if let Some((end, size)) = chunk
            && piece.range.end <= end
            && let Some(alike) = by_size.get_mut(&size)
        {
            alike.resident += piece.resident;
        }
    }
    // The line excludes blocks that java.nio counts: those of the size that its buffers have.
    let direct = case.vm().and_then(|vm| vm.direct_buffers.as_ref());
    if let Some(buffers) = direct.and_then(|direct| large_buffers(direct, case.glibc()?, case.snapshot.host.page)) {
        let (mut number, mut bytes) = (buffers.number, buffers.bytes);
        for (_, alike) in by_size.range_mut(buffers.lengths) {
            let (fewer, less) = (number.min(alike.number), bytes.min(alike.resident));
            (alike.number, alike.resident) = (alike.number - fewer, alike.resident - less);
            (number, bytes) = (number - fewer, bytes - less);
        }
    }
    let most = by_size.into_values().max_by_key(|alike| alike.resident)?;
    let live = case.resident(LineId::GlibcLive);
    (most.number >= ALIKE_AT_LEAST && most.resident <= live && most.resident.percent_of(live) >= 20.0).then_some(most)
}

impl Alike {
    /// Larger than the queue that the VM keeps for each of its workers.
    const NOT_THE_VM_S: Bytes = Bytes::mib(2);

    fn evidence(&self, threads: u64) -> String {
        let Alike { size, number, resident } = self;
        let found = format!("{} of {size} have {resident} of it", counted(*number, "block"));
        match self.may_be_copies_of_nio(threads) {
            true => {
                format!("{found}: java.nio may be keeping one for each thread that reads or writes large heap buffers")
            }
            false => format!("{found}, each in a mapping of its own: more than there are threads"),
        }
    }

    /// java.nio keeps one copy per thread; JDK 25 and later leave these out of its count.
    fn may_be_copies_of_nio(&self, threads: u64) -> bool {
        self.number <= threads
    }
}
