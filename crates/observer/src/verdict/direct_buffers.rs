//! Direct byte buffers: memory that the garbage collector frees only when it collects the buffer's owner. NMT counts them
//! together with all other memory of Unsafe, which no limit and perhaps no collection concerns.

use super::case::Case;
use super::remedies::{fewer_threads, remedy, without_copies_of_nio};
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::snapshot::DirectBuffers;
use plimsoll_facts::units::{Bytes, counted};

const FLOOR: Bytes = Bytes::mib(32);
const PERCENT: f64 = 20.0;
/// Percentage of -XX:MaxDirectMemorySize from which on it warns.
const FULL: f64 = 80.0;
/// From this percentage of the line on, the counted memory stands for the whole line.
const ALL: f64 = 80.0;
/// NIO's copies are limited from this size on (`without_copies_of_nio`).
const KEPT_FROM: Bytes = Bytes::kib(256);
/// A proposed limit is a multiple of this.
const STEP: u64 = 64 << 20;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let resident = case.resident(LineId::DirectBuffers);
    let direct = vm.direct_buffers.as_ref();
    let full = direct.and_then(|direct| {
        let max = direct.max.filter(|max| *max > Bytes(0))?;
        Some((direct.capacity.percent_of(max), max)).filter(|(full, _)| *full >= FULL)
    });
    if !case.matters(resident, PERCENT, FLOOR) && full.is_none() {
        return None;
    }
    let others =
        direct.map(|direct| uncounted(direct, resident)).filter(|others| case.matters(*others, PERCENT, FLOOR));
    let mut evidence = vec![format!("{resident} resident in direct buffers and other Unsafe memory")];
    if let Some(direct) = direct {
        let buffers = direct.count.map(|number| format!("{} of ", counted(number, "buffer"))).unwrap_or_default();
        evidence.push(match direct.count {
            Some(0) if direct.capacity == Bytes(0) => "java.nio counts no buffer".to_owned(),
            _ => format!("java.nio counts {buffers}{} in all", direct.capacity),
        });
        if direct.by_netty > Bytes(0) {
            evidence.push(format!(
                "Netty counts {} that it allocated with Unsafe, which java.nio doesn't count",
                direct.by_netty
            ));
        }
        if let Some(max) = direct.max {
            evidence.push(format!("-XX:MaxDirectMemorySize in force: {max}"));
        }
    }
    if let Some(others) = others {
        evidence.push(format!(
            "{others} belong to no buffer that is counted: memory that the program or a library allocates with Unsafe{}",
            if may_belong_to_nio(case, resident) && !counts_copies(case) {
                ", or copies that NIO keeps for each thread"
            } else {
                ""
            }
        ));
    }
    evidence.extend(case.growth(LineId::DirectBuffers));
    let mut remedies = Vec::new();
    // Only the callers show what uncounted memory is for.
    remedies.extend((others.is_some() || direct.is_none()).then(|| case.name_the_callers()));
    if case.collects_on_demand() {
        let has_buffers = direct.is_none_or(|direct| direct.capacity + direct.by_netty > Bytes(0));
        let what = match has_buffers {
            true => "run a collection: if the buffers go away, nothing leaks and collections are just too rare",
            false => {
                "run a collection: if the memory goes away, its owners were waiting for one; if it stays, they are reachable, or nothing frees it"
            }
        };
        remedies.push(remedy(
            Effort::Now,
            what,
            format!("jcmd {} GC.run", case.pid()),
            "a full collection pauses the program",
        ));
    }
    // The limit doesn't concern other memory of Unsafe.
    remedies.extend(limit(direct, resident).filter(|_| others.is_none()));
    if !case.has_netty() && may_belong_to_nio(case, resident) {
        remedies.push(without_copies_of_nio(case));
    }
    remedies.extend(fewer_threads(case));
    Some(Verdict {
        id: VerdictId::DirectBufferGrowth,
        severity: if full.is_some() || resident.percent_of(case.rss()) >= 30.0 {
            Severity::Warning
        } else {
            Severity::Note
        },
        bytes: resident,
        summary: summary(case, resident, full, others),
        evidence,
        remedies,
    })
}

/// `full`: the percentage of the limit that the buffers take, and the limit. `others`: memory of the line that no
/// counter of buffers has.
fn summary(case: Case<'_>, resident: Bytes, full: Option<(f64, Bytes)>, others: Option<Bytes>) -> String {
    let percent = resident.percent_of(case.rss());
    let direct = case.vm().and_then(|vm| vm.direct_buffers.as_ref());
    let counted = direct.map_or(resident, |direct| direct.capacity);
    let are_all_buffers = direct.is_some_and(|direct| (direct.capacity + direct.by_netty).percent_of(resident) >= ALL);
    match (full, others) {
        (Some((full, max)), None) => format!(
            "direct buffers take {full:.0} % of their limit of {max}, above which an allocation fails; up to {} of that \
             is resident",
            resident.min(counted)
        ),
        (Some((full, max)), Some(others)) => format!(
            "direct buffers take {full:.0} % of their limit of {max}, above which an allocation fails; {others} of other \
             memory of Unsafe is in no buffer that java.nio counts"
        ),
        (None, None) if are_all_buffers => format!("direct buffers hold {resident}: {percent:.0} % of RSS"),
        (None, None) => {
            let counts = direct.map_or(String::new(), |direct| format!("; java.nio counts {}", direct.capacity));
            format!("direct buffers and other memory of Unsafe hold {resident}: {percent:.0} % of RSS{counts}")
        }
        (None, Some(others)) => format!(
            "direct buffers and other memory of Unsafe hold {resident}: {percent:.0} % of RSS; {others} of it is in no \
             buffer that java.nio counts"
        ),
    }
}

/// Memory that neither java.nio nor Netty counts. The result is too small if counted buffers aren't resident.
fn uncounted(direct: &DirectBuffers, resident: Bytes) -> Bytes {
    resident - direct.capacity - direct.by_netty
}

/// Whether java.nio's count includes the copies that NIO keeps for each thread.
fn counts_copies(case: Case<'_>) -> bool {
    const UNCOUNTED_FROM: u32 = 25;
    case.vm().and_then(|vm| vm.jdk()).is_some_and(|jdk| jdk < UNCOUNTED_FROM)
}

/// Whether the line may contain java.nio's own copies of large heap buffers, about one for each thread. java.nio counts
/// these copies up to JDK 24. An option that limits them is taken to leave none.
fn may_belong_to_nio(case: Case<'_>, resident: Bytes) -> bool {
    if case.started_with("jdk.nio.maxCachedBufferSize") {
        return false;
    }
    let Some(direct) = case.vm().and_then(|vm| vm.direct_buffers.as_ref()) else { return true };
    let is_more_than_threads = direct.count.is_some_and(|count| count > case.snapshot.threads.len() as u64);
    let are_all_counted = direct.capacity.percent_of(resident) >= ALL;
    let may_be_copies = match counts_copies(case) {
        true => direct.capacity.percent_of(resident) >= MIN_PERCENT_TO_MENTION,
        false => may_have_large_blocks(case, uncounted(direct, resident)),
    };
    may_be_copies && !(are_all_counted && (is_more_than_threads || !counts_copies(case)))
}

/// Whether `of` may lie in blocks as large as the copies: enough live bytes must remain besides the frequent small
/// sizes.
fn may_have_large_blocks(case: Case<'_>, of: Bytes) -> bool {
    let Some(glibc) = case.glibc() else { return true };
    let in_arenas: Bytes = glibc.arenas.iter().map(|arena| arena.live).sum();
    let live = in_arenas + glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum::<Bytes>();
    let small = glibc.peaks.iter().filter(|peak| peak.usable() < KEPT_FROM);
    let small: Bytes = small.map(|peak| peak.size.scaled(peak.count, 1)).sum();
    (live - small).percent_of(of) >= 100.0 - ALL
}

/// Proposes a limit above today's use: twice what java.nio counts, or twice what is resident if that is more, and only if
/// the current limit is higher. If java.nio counts less than half of the line, the limit doesn't apply to the rest
/// (Netty's memory), and none is proposed.
fn limit(direct: Option<&DirectBuffers>, resident: Bytes) -> Option<Remedy> {
    let direct = direct?;
    let twice = Bytes(direct.capacity.max(resident).0.saturating_mul(2).next_multiple_of(STEP));
    let governs = direct.capacity.0 >= resident.0 / 2;
    if !governs || direct.max.is_none_or(|max| twice >= max) {
        return None;
    }
    Some(remedy(
        Effort::Restart,
        "limit them: a leak then ends in an OutOfMemoryError, not in a kill",
        format!("-XX:MaxDirectMemorySize={}m", twice.0 >> 20),
        "this is twice today's use. If the program's peak is higher, take twice the peak: any allocation above the \
         limit fails, whichever call leaks",
    ))
}
