//! The code cache near or at its limit: at the limit the JIT stops compiling, and the program becomes slow.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::snapshot::CodeCacheSegment;
use plimsoll_facts::units::Bytes;

/// CODE_CACHE_SIZE_LIMIT (utilities/globalDefinitions.hpp).
const LARGEST: Bytes = Bytes::mib(2048);

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let resident = case.resident(LineId::CodeCache);
    let full = vm
        .code_cache
        .iter()
        .filter(|segment| segment.reserved >= Bytes::mib(8) && segment.occupied.percent_of(segment.reserved) >= 90.0)
        .max_by_key(|segment| segment.occupied);
    // A VM up to JDK 19 frees code then, so the segments may be less than full.
    let fullest = || vm.code_cache.iter().max_by_key(|segment| segment.occupied);
    let full = if vm.has_stopped_compiling { full.or_else(fullest) } else { full };
    if full.is_none() && !case.matters(resident, 25.0, Bytes::mib(96)) {
        return None;
    }
    let mut evidence: Vec<String> = vm
        .code_cache
        .iter()
        .map(|segment| format!("{}: {} occupied of {} reserved", segment.name, segment.occupied, segment.reserved))
        .collect();
    evidence.truncate(4);
    let reserved: Bytes = vm.code_cache.iter().map(|segment| segment.reserved).sum();
    Some(Verdict {
        id: VerdictId::CodeCacheGrowth,
        severity: if full.is_some() { Severity::Warning } else { Severity::Note },
        bytes: resident,
        summary: match full {
            Some(segment) if vm.has_stopped_compiling => format!(
                "the VM has stopped compiling: the code cache has no space left ({} is {:.0} % full)",
                segment.name,
                segment.occupied.percent_of(segment.reserved)
            ),
            Some(segment) => format!(
                "the code cache's {} is {:.0} % full: {}",
                segment.name,
                segment.occupied.percent_of(segment.reserved),
                match vm.code_cache.len() {
                    0 | 1 => "at its limit compilation stops",
                    // CodeCache::allocate (code/codeCache.cpp) then tries the other segments.
                    _ => "at its limit code goes into other segments, and compilation stops when they are full, too",
                }
            ),
            None => format!("compiled code holds {resident}: {:.0} % of RSS", resident.percent_of(case.rss())),
        },
        evidence,
        remedies: match full {
            // A VM refuses to start with more than `LARGEST`.
            Some(_) if reserved >= LARGEST => vec![],
            Some(_) => larger(case, &vm.code_cache).into_iter().collect(),
            None => vec![
                remedy(
                    Effort::Restart,
                    "compile less: the first tier only",
                    "-XX:TieredStopAtLevel=1",
                    "peak speed falls, often to a half: for small tools, not for servers",
                )
                .may_save_nothing(),
            ],
        },
    })
}

/// Flags of the segments, by their names in Compiler.codecache.
const SEGMENTS: [(&str, &str); 3] = [
    ("non-nmethods", "NonNMethodCodeHeapSize"),
    ("profiled nmethods", "ProfiledCodeHeapSize"),
    ("non-profiled nmethods", "NonProfiledCodeHeapSize"),
];

/// A code cache of twice the size. A VM that was started with sizes of segments needs those, too: it exits if the three
/// don't sum to the whole (CodeCache::initialize_heaps, code/codeCache.cpp).
fn larger(case: Case<'_>, segments: &[CodeCacheSegment]) -> Option<Remedy> {
    let reserved: Bytes = segments.iter().map(|segment| segment.reserved).sum();
    let mut flags = match case.started_with("CodeHeapSize=") {
        false => format!("-XX:ReservedCodeCacheSize={}m", ((reserved.0 >> 20).max(48) * 2).min(LARGEST.0 >> 20)),
        true if reserved.scaled(2, 1) > LARGEST => return None,
        true => format!("-XX:ReservedCodeCacheSize={}k", (reserved.0 >> 10) * 2),
    };
    if case.started_with("CodeHeapSize=") {
        for segment in segments {
            let (_, flag) = SEGMENTS.iter().find(|(name, _)| *name == segment.name)?;
            flags += &format!(" -XX:{flag}={}k", (segment.reserved.0 >> 10) * 2);
        }
    }
    let cost = "up to that much more RSS, once the code is compiled";
    Some(remedy(Effort::Restart, "raise the limit of the code cache", flags, cost))
}
