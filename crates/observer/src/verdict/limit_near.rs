//! The limit is near, or will be: a Java heap may grow to its maximum, and native memory beside it doesn't shrink. Then
//! there is no leak; the limit is too low for the flags.
//!
//! Where another verdict finds memory that grows, or that may be a leak, a higher limit only delays the kill. Then the
//! first remedy is that verdict's, which finds the leak. The same holds where most of the memory can't be judged, since
//! that may be a leak, too.

use super::case::Case;
use super::remedies::remedy;
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Effort, Remedy, Severity, Verdict, VerdictId, growth, higher_limit};
use crate::ledger::LineId;
use plimsoll_facts::units::Bytes;

const NEAR: f64 = 90.0;
const CRITICAL: f64 = 96.0;
/// Verdicts on memory that grows, or that one reading can't tell from a leak. What two readings prove comes first.
const CAUSES: [VerdictId; 4] =
    [VerdictId::Growth, VerdictId::NativeLeak, VerdictId::ClassGrowth, VerdictId::DirectBufferGrowth];
const RETENTION: [VerdictId; 2] = [VerdictId::ArenaRetention, VerdictId::AllocatorRetention];

/// `others` are the rules' verdicts.
pub(crate) fn verdict(case: Case<'_>, others: &[Verdict], unclear: Option<&Verdict>) -> Option<Verdict> {
    let (limit, counted) = case.limit()?;
    let near = counted.percent_of(limit);
    let max_heap = case.vm().and_then(|vm| vm.java_heap.as_ref()?.max);
    let native = case.distinct_rss() - case.distinct(LineId::JavaHeap) - case.distinct(LineId::MappedFiles);
    let will_need = max_heap.map(|max| max + native);
    let too_low = will_need.filter(|needed| *needed > limit);
    if near < NEAR && too_low.is_none() {
        return None;
    }
    let cache = cache_in_use(case).min(counted);
    let certain = (counted - cache).percent_of(limit);
    // A limit of memory doesn't count what is swapped out.
    let swapped = case.snapshot.process.swap;
    let most = |unclear: &&Verdict| unclear.bytes - swapped > Bytes(counted.0 / 2);
    let cause = cause(others).or(unclear.filter(most));
    let mut evidence = vec![format!("{counted} of {limit} counted ({near:.0} %)")];
    if cache.percent_of(counted) >= MIN_PERCENT_TO_MENTION {
        evidence.push(format!(
            "{cache} of it is page cache in use, which the kernel takes back before it kills: {certain:.0} % without it"
        ));
    }
    if let (Some(max), Some(needed)) = (max_heap, too_low) {
        let without = if cause.is_none() { ", without any leak" } else { "" };
        evidence.push(format!(
            "maximum Java heap {max} + native memory {native} = {needed}: {} more than the limit{without}",
            needed - limit
        ));
    }
    if let Some(cause) = cause {
        let (id, summary) = (cause.id.id(), &cause.summary);
        let grows = if cause.id == VerdictId::Unclear { "If" } else { "While" };
        evidence.push(format!("{id}: {summary}. {grows} that grows, a higher limit only delays the kill"));
    }
    for kept in others.iter().filter(|other| RETENTION.contains(&other.id)) {
        let (bytes, id) = (kept.bytes, kept.id.id());
        evidence.push(format!("{bytes} of it is free inside malloc and kept: that comes first, see {id}"));
    }
    let mut beside = Bytes(0);
    if let Some(cgroup) = &case.snapshot.cgroup {
        if cgroup.oom.oom_kill > 0 {
            evidence.push(format!("the group has had {} OOM kills", cgroup.oom.oom_kill));
        }
        let others: Bytes = cgroup.others.iter().map(|(_, rss)| *rss).sum();
        if others > Bytes(0) && case.snapshot.limit_requested.is_none() {
            evidence.push(format!("{} other processes of the group hold {others}", cgroup.others.len()));
            beside = others;
        }
    }
    // A cause's first remedy names the holder. One in the code would stand behind the limit.
    let finds = |cause: &Verdict| cause.remedies.iter().find(|remedy| remedy.effort < Effort::Code).cloned();
    let mut remedies: Vec<Remedy> = cause.and_then(finds).into_iter().collect();
    if let Some(max) = max_heap.filter(|_| too_low.is_some()) {
        // Rounded down to whole MiB, the unit of the option.
        let fits = Bytes::mib((Bytes(limit.0 / 100 * 95) - native).0 >> 20);
        if fits >= smallest_cap(case) && native <= Bytes(limit.0 / 2) {
            remedies.push(remedy(
                Effort::Restart,
                format!("cap the Java heap at what native memory leaves (now {max})"),
                format!("-Xmx{}m", fits.0 >> 20),
                "more frequent collections, and OutOfMemoryError where the program needs more",
            ));
        }
    }
    // A figure below the limit in force would not raise it.
    let needed = will_need.map(|needed| needed + beside).unwrap_or_default();
    let wanted = needed.max(counted).max(limit);
    let what = match wanted {
        wanted if wanted == limit => "raise the limit by a tenth",
        wanted if wanted == needed => "raise the limit to what flags and native memory need, with a tenth to spare",
        _ => "raise the limit to what is in use, with a tenth to spare",
    };
    let mib = wanted.scaled(110, 100).0.div_ceil(1 << 20);
    remedies.push(higher_limit::raise(case, what, mib, &gain(case, cause, Bytes::mib(mib) - limit)));
    let has_killed = case.snapshot.cgroup.as_ref().is_some_and(|cgroup| cgroup.oom.oom_kill > 0);
    let severity = match certain {
        certain if certain >= CRITICAL => Severity::Critical,
        certain if certain >= NEAR || too_low.is_some() || has_killed => Severity::Warning,
        _ => Severity::Note,
    };
    Some(Verdict {
        id: VerdictId::LimitNear,
        severity,
        bytes: counted,
        summary: match too_low {
            Some(needed) if near < NEAR => {
                format!(
                    "the limit is too low for the flags: a full heap plus today's native memory needs {needed}; the limit is {limit}"
                )
            }
            _ if severity == Severity::Note => format!(
                "{near:.0} % of the limit is in use, {cache} of it by page cache, which the kernel takes back before it kills"
            ),
            _ => format!("{near:.0} % of the limit is in use: {} are left", limit - counted),
        },
        evidence,
        remedies,
    })
}

/// Page cache that was used lately, which the working set includes. The kernel kills only after it has taken back this
/// cache, too; until then the program reads its files again.
fn cache_in_use(case: Case<'_>) -> Bytes {
    let cgroup = case.snapshot.cgroup.as_ref().filter(|_| case.snapshot.limit_requested.is_none());
    cgroup.map(|cgroup| cgroup.stat.active_file).unwrap_or_default()
}

fn cause(others: &[Verdict]) -> Option<&Verdict> {
    let warning = |id: &VerdictId| others.iter().find(|other| other.id == *id && other.severity > Severity::Note);
    CAUSES.iter().find_map(warning)
}

/// What a limit that is higher by `more` gains: time, if memory grows.
fn gain(case: Case<'_>, cause: Option<&Verdict>, more: Bytes) -> String {
    match (cause, growth::rate(case)) {
        (_, Some(rate)) => format!(
            "it only gains time: at {} an hour the {more} more last {}",
            growth::between(rate.0, rate.1),
            growth::lasts(more, rate)
        ),
        (Some(cause), None) if cause.id == VerdictId::Unclear => {
            format!("it only gains time if what {} names grows", cause.id.id())
        }
        (Some(cause), None) => format!("it only gains time if what {} names goes on growing", cause.id.id()),
        (None, None) if case.snapshot.baseline.is_none() => {
            "enough only if memory doesn't grow, which one reading can't show".to_owned()
        }
        (None, None) => String::new(),
    }
}

/// Never cap the Java heap below 1.5 times its current objects, or below its committed size: peaks needed that much. If
/// native memory takes most of the limit, the heap isn't the cause, and no cap is proposed.
fn smallest_cap(case: Case<'_>) -> Bytes {
    let Some(heap) = case.vm().and_then(|vm| vm.java_heap.as_ref()) else { return Bytes(u64::MAX) };
    let objects = heap.live_after_gc.unwrap_or(heap.occupied).max(heap.occupied);
    Bytes(objects.0 / 2 * 3).max(heap.committed).max(Bytes::mib(32))
}
