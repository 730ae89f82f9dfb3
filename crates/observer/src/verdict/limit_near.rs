//! The limit is near, or will be: a Java heap may grow to its maximum, and native memory beside it doesn't shrink. Then
//! there is no leak; the limit is too low for the flags. Each level of the hierarchy that can be seen has its own limit,
//! and groups beside the process's may use up one above it. Where no limit is near, `throttled` judges `memory.high`.
//!
//! Where another verdict finds memory that grows, or that may be a leak, a higher limit only delays the kill. Then the
//! first remedy is that verdict's, which finds the leak. The same holds where most of the memory can't be judged, since
//! that may be a leak, too.

use super::case::Case;
use super::heap_that_fits::Needs;
use super::higher_limit::{self, NEAR, gain};
use super::remedies::remedy;
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Effort, Remedy, Severity, Verdict, VerdictId, throttled};
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion, MemoryStat};
use plimsoll_facts::units::{self, Bytes};

use std::path::Path;

const CRITICAL: f64 = 96.0;
/// From this share of what the flags need on, the summary has the memory beside the process. A smaller amount is mostly
/// the kernel's own memory for this process.
const MIN_PERCENT_OF_NEED: f64 = 2.0;
/// Verdicts on memory that grows, or that one reading can't tell from a leak. What two readings prove comes first.
const CAUSES: [VerdictId; 4] =
    [VerdictId::Growth, VerdictId::NativeLeak, VerdictId::ClassGrowth, VerdictId::DirectBufferGrowth];
const RETENTION: [VerdictId; 2] = [VerdictId::ArenaRetention, VerdictId::AllocatorRetention];

/// `others` are the rules' verdicts.
pub(crate) fn verdict(case: Case<'_>, others: &[Verdict], unclear: Option<&Verdict>) -> Option<Verdict> {
    let needs = Needs::of(case);
    let Some(judged) = judged(case, &needs) else {
        return throttled::verdict(case, cause(others));
    };
    let beside = judged.beside(&needs);
    let too_low = judged.needed(&needs).filter(|needed| *needed > judged.limit);
    // A limit of memory doesn't count what is swapped out.
    let swapped = if judged.with_swap { Bytes(0) } else { case.snapshot.process.swap };
    let most = |unclear: &&Verdict| unclear.bytes - swapped > Bytes(judged.counted.0 / 2);
    let cause = cause(others).or(unclear.filter(most));
    let mut evidence = usage(case, &judged);
    if let (Some(max), Some(needed)) = (needs.max_heap, too_low) {
        let (native, more) = (needs.native, needed - judged.limit);
        let without = if cause.is_none() { ", without any leak" } else { "" };
        let beside = match judged.beside_own(&needs) {
            Bytes(0) => String::new(),
            beside => format!(" + {beside} charged beside this process's"),
        };
        evidence.push(format!(
            "maximum Java heap {max} + native memory {native}{beside} = {needed}: {more} more than the limit{without}"
        ));
        if let Some(committed) = needs.assumed {
            evidence.push(format!(
                "the VM doesn't show where its Java heap is: its committed {committed} count as resident, so native \
                 memory may be more"
            ));
        }
    }
    evidence.extend(cause.map(delays));
    evidence.extend(kept(others, judged.counted));
    evidence.extend(group(case, &judged));
    evidence.extend(also_near(case, &judged));
    evidence.extend(throttled::evidence(case));
    let severity = judged.severity(case).max(if too_low.is_some() { Severity::Warning } else { Severity::Note });
    Some(Verdict {
        id: VerdictId::LimitNear,
        severity,
        bytes: judged.counted,
        summary: summary(case, &judged, (too_low, judged.beside_own(&needs)), severity),
        evidence,
        remedies: remedies(case, &judged, &needs, beside, cause),
    })
}

fn usage(case: Case<'_>, judged: &Judged<'_>) -> Vec<String> {
    let Judged { limit, counted, .. } = *judged;
    let (near, above) = (judged.percent(), judged.above());
    let mut evidence = vec![match above {
        None => format!("{counted} of {limit}{} counted ({near:.0} %)", judged.of_what()),
        Some(level) => format!(
            "{counted} of {limit}{} counted ({near:.0} %) in {}, a group above this process's; this process holds {}",
            judged.of_what(),
            level.limit_path,
            case.distinct_rss()
        ),
    }];
    evidence.extend(above.and_then(siblings));
    let (reclaimable, certain) = (judged.reclaimable(), judged.certain_percent());
    if reclaimable.percent_of(counted) >= MIN_PERCENT_TO_MENTION {
        evidence.push(format!(
            "{reclaimable} of it is {} in use, which the kernel takes back before it kills: {certain:.0} % without it",
            judged.kinds()
        ));
    }
    let swappable = judged.swappable();
    if swappable > Bytes(0) && certain >= NEAR {
        evidence.push(format!(
            "{swappable} of it may be swapped out before the kernel kills, as far as can be seen; swapping slows the \
             program down"
        ));
    }
    // The kernel can't take these pages back without swap, and no process need have them mapped: an emptyDir with
    // `medium: Memory`, /dev/shm.
    let in_tmpfs = judged.stat().map(|stat| stat.shmem).unwrap_or_default();
    if in_tmpfs.percent_of(counted) >= MIN_PERCENT_TO_MENTION {
        evidence.push(format!("{in_tmpfs} of it is in tmpfs files (shared memory)"));
    }
    if let Some(kernel) = judged.kernel_unknown() {
        evidence.push(format!(
            "{kernel} of it is kernel memory. Version 1 of cgroups doesn't report how much of that the kernel takes back before \
             it kills (dentries and inodes)"
        ));
    }
    evidence
}

fn delays(cause: &Verdict) -> String {
    let (id, summary) = (cause.id.id(), &cause.summary);
    let grows = if cause.id == VerdictId::Unclear { "If" } else { "While" };
    format!("{id}: {summary}. {grows} that grows, a higher limit only delays the kill")
}

fn kept(others: &[Verdict], counted: Bytes) -> impl Iterator<Item = String> {
    let is_much = move |other: &&Verdict| other.bytes.percent_of(counted) >= MIN_PERCENT_TO_MENTION;
    others.iter().filter(|other| RETENTION.contains(&other.id)).filter(is_much).map(|kept| {
        let (bytes, id) = (kept.bytes, kept.id.id());
        format!("{bytes} of it is free inside an allocator and kept: that comes first, see {id}")
    })
}

/// The kills in the process's group, and what its other processes hold.
fn group(case: Case<'_>, judged: &Judged<'_>) -> Vec<String> {
    let (level, above) = (judged.level, judged.above());
    let mut evidence = Vec::new();
    // With --limit, the cgroup still says whether it killed.
    if let Some(cgroup) = level.or(case.snapshot.cgroup.as_ref()) {
        if above.is_some() && cgroup.oom.oom > 0 {
            let times = units::counted(cgroup.oom.oom, "time");
            evidence.push(format!("that limit itself was reached {times} with nothing left to take back"));
        }
        let group = if above.is_some() { "this process's own group" } else { "the group" };
        if cgroup.oom.oom_kill > 0 {
            evidence.push(format!("{group} has had {}", units::counted(cgroup.oom.oom_kill, "OOM kill")));
        }
        let others = case.snapshot.cgroup.iter().flat_map(|cgroup| &cgroup.others);
        let (number, held): (_, Bytes) = (others.clone().count(), others.clone().map(|(_, rss)| *rss).sum());
        let largest = others.max_by_key(|(_, rss)| *rss).filter(|_| held > Bytes(0) && level.is_some());
        evidence.extend(largest.map(|(pid, rss)| match number {
            1 => format!("1 other process of {group} holds {held}: PID {pid}"),
            many => format!("{many} other processes of {group} hold {held}, the largest {rss}: PID {pid}"),
        }));
    }
    evidence
}

/// The remedies: the cause's first one, a smaller heap, and a higher limit.
fn remedies(case: Case<'_>, judged: &Judged<'_>, needs: &Needs, beside: Bytes, cause: Option<&Verdict>) -> Vec<Remedy> {
    let Judged { limit, counted, level, with_swap } = *judged;
    // A cause's first remedy names the holder. One in the code would stand behind the limit.
    let finds = |cause: &Verdict| cause.remedies.iter().find(|remedy| remedy.effort < Effort::Code).cloned();
    let mut remedies: Vec<Remedy> = cause.and_then(finds).into_iter().collect();
    let is_too_low = judged.needed(needs).is_some_and(|needed| needed > limit);
    if let Some(max) = needs.max_heap.filter(|_| is_too_low) {
        // Rounded down to whole MiB, the unit of the option.
        let fits = Bytes::mib((Bytes(limit.0 / 100 * 95) - needs.native - beside).0 >> 20);
        if fits >= smallest_cap(case) && needs.native <= Bytes(limit.0 / 2) {
            remedies.push(remedy(
                Effort::Restart,
                format!("cap the Java heap at what native memory leaves (its maximum is now {max})"),
                cap_options(case, max, fits),
                "more frequent collections, and OutOfMemoryError where the program needs more",
            ));
        }
    }
    if let Some(level) = level.filter(|_| with_swap) {
        let what = format!("raise the limit{} by a tenth", judged.of_what());
        let mib = counted.max(limit).scaled(110, 100).0.div_ceil(1 << 20);
        let gain = gain(case, cause, Bytes::mib(mib) - limit);
        remedies.push(higher_limit::raise_with_swap(level, &what, mib, &gain));
        return remedies;
    }
    // A figure below the limit in force would not raise it.
    let needed = needs.together.map(|needed| needed + beside).unwrap_or_default();
    let wanted = needed.max(counted).max(limit);
    let what = match wanted {
        wanted if wanted == limit => "raise the limit by a tenth",
        wanted if wanted == needed => "raise the limit to what flags and native memory need, with a tenth to spare",
        _ => "raise the limit to what is in use, with a tenth to spare",
    };
    let mib = wanted.scaled(110, 100).0.div_ceil(1 << 20);
    remedies.push(higher_limit::raise(case, level, what, mib, &gain(case, cause, Bytes::mib(mib) - limit)));
    remedies
}

/// `too_low`: what flags, native memory and what is charged beside the process need, if that is more than the limit.
fn summary(
    case: Case<'_>,
    judged: &Judged<'_>,
    (too_low, beside): (Option<Bytes>, Bytes),
    severity: Severity,
) -> String {
    let Judged { limit, counted, level, with_swap } = *judged;
    let near = judged.percent();
    let whose = match (judged.above(), level) {
        (Some(level), _) if with_swap => {
            format!("the limit{} in {}, a group above this process's,", judged.of_what(), level.limit_path)
        }
        (Some(level), _) => format!("the limit of {}, a group above this process's,", level.limit_path),
        (None, _) if with_swap => format!("the limit{}", judged.of_what()),
        // The report's head then has the limit of another group.
        (None, Some(level)) if is_another(case, level) => {
            format!("the limit of {}, this process's own group,", level.limit_path)
        }
        (None, _) => "the limit".to_owned(),
    };
    match too_low {
        Some(needed) if near < NEAR && beside.percent_of(needed) >= MIN_PERCENT_OF_NEED => format!(
            "{whose} is too low for the flags: a full heap, today's native memory and {beside} charged beside this process's \
             need {needed}; the limit is {limit}"
        ),
        Some(needed) if near < NEAR => format!(
            "{whose} is too low for the flags: a full heap plus today's native memory needs {needed}; the limit is {limit}"
        ),
        _ if severity == Severity::Note => format!(
            "{near:.0} % of {whose} is in use, {} of it by {}, which the kernel takes back before it kills",
            judged.reclaimable(),
            judged.kinds()
        ),
        _ => format!("{near:.0} % of {whose} is in use: {} are left", limit - counted),
    }
}

/// The limit that the verdict is about.
struct Judged<'c> {
    limit: Bytes,
    counted: Bytes,
    /// The level that has it; none for `--limit`.
    level: Option<&'c Cgroup>,
    /// Whether it is version 1's limit of memory and swap together.
    with_swap: bool,
}

impl<'c> Judged<'c> {
    /// The level, if it is a group above the process's.
    fn above(&self) -> Option<&'c Cgroup> {
        self.level.filter(|level| level.is_above())
    }

    fn stat(&self) -> Option<&'c MemoryStat> {
        self.level.map(|level| &level.stat)
    }

    /// Page cache that was used lately, and slab. The kernel kills only after it has taken these back. Until then, the
    /// program must read its files again.
    fn reclaimable(&self) -> Bytes {
        self.stat().map(MemoryStat::reclaimable_in_use).unwrap_or_default().min(self.counted)
    }

    /// What is charged beside this process's memory and stays when a kill is near: other processes, files of a tmpfs,
    /// the kernel's own. Libraries and mapped files count as this process's and as reclaimable. So the result may be
    /// too low by them; `Needs::native` has the libraries.
    fn beside(&self, needs: &Needs) -> Bytes {
        if self.level.is_none() {
            return Bytes(0);
        }
        let stays = self.counted - self.reclaimable() - self.kernel_unknown().unwrap_or_default();
        stays - needs.heap - needs.native
    }

    /// Like `beside`, but 0 if the limit is that of a group above. There, other groups shrink and grow with their own
    /// programs, and no flag of this process is to blame for a limit that all share.
    fn beside_own(&self, needs: &Needs) -> Bytes {
        if self.above().is_some() { Bytes(0) } else { self.beside(needs) }
    }

    fn of_what(&self) -> &'static str {
        if self.with_swap { " of memory and swap" } else { "" }
    }

    /// What a full Java heap brings the charge to. How much of it would be swapped out is unknown, and the limit of memory
    /// is never the higher one.
    fn needed(&self, needs: &Needs) -> Option<Bytes> {
        needs.together.filter(|_| !self.with_swap).map(|together| together + self.beside_own(needs))
    }

    /// The large parts of what is reclaimable.
    fn kinds(&self) -> &'static str {
        let is_large = |part: fn(&MemoryStat) -> Bytes| {
            self.stat().is_some_and(|stat| part(stat).percent_of(stat.reclaimable_in_use()) >= MIN_PERCENT_TO_MENTION)
        };
        match (is_large(|stat| stat.active_file), is_large(|stat| stat.slab_reclaimable)) {
            (true, true) => "page cache and slab (dentries and inodes)",
            (false, true) => "slab (dentries and inodes)",
            _ => "page cache",
        }
    }

    /// Kernel memory that is most of what counts, where its reclaimable part is unknown.
    fn kernel_unknown(&self) -> Option<Bytes> {
        let level = self.level.filter(|level| level.version == CgroupVersion::V1)?;
        Some(level.stat.kernel).filter(|kernel| *kernel > Bytes(self.counted.0 / 2))
    }

    fn percent(&self) -> f64 {
        self.counted.percent_of(self.limit)
    }

    /// The percentage of the limit that is in use without what the kernel can take back.
    fn certain_percent(&self) -> f64 {
        (self.counted - self.reclaimable()).percent_of(self.limit)
    }

    /// What the kernel may swap out before it kills. Locked pages stay. 0 if nothing shows that it swaps.
    fn swappable(&self) -> Bytes {
        let Some(level) = self.level.filter(|_| !self.with_swap) else { return Bytes(0) };
        let pages = level.stat.anon + level.stat.shmem - level.stat.other("unevictable");
        pages.min(level.swap_left.unwrap_or_default()).min(self.counted)
    }

    /// A note if only reclaimable memory brings the charge near the limit. Not critical if swapping would bring it
    /// down. With --limit, the cgroup still shows whether the kernel killed.
    fn severity(&self, case: Case<'_>) -> Severity {
        // In a group above, `oom_kill` also counts kills that other limits caused.
        let has_killed = self.level.or(case.snapshot.cgroup.as_ref()).is_some_and(|cgroup| match self.level {
            Some(level) if level.is_above() => cgroup.oom.oom > 0,
            _ => cgroup.oom.oom_kill > 0,
        });
        let stays = (self.counted - self.reclaimable() - self.swappable()).percent_of(self.limit);
        match self.certain_percent() {
            _ if stays >= CRITICAL && self.kernel_unknown().is_none() => Severity::Critical,
            certain if certain >= NEAR || has_killed => Severity::Warning,
            _ => Severity::Note,
        }
    }

    /// Number of groups from the root to the level.
    fn depth(&self) -> usize {
        self.level.map_or(0, |level| Path::new(&level.limit_path).components().count())
    }
}

/// Whether the report's head shows the limit of another level: the one that is reached first.
fn is_another(case: Case<'_>, level: &Cgroup) -> bool {
    case.snapshot.cgroup.as_ref().is_some_and(|first| !std::ptr::eq(first, level))
}

/// Among the limits that are near: the most severe, and then the fullest. If none is near: the lowest, if the flags
/// need more.
fn judged<'c>(case: Case<'c>, needs: &Needs) -> Option<Judged<'c>> {
    let is_too_low = |judged: &Judged<'_>| judged.needed(needs).is_some_and(|needed| needed > judged.limit);
    if case.snapshot.limit_requested.is_some() {
        let (limit, counted) = case.limit()?;
        let judged = Judged { limit, counted, level: None, with_swap: false };
        let matters = judged.percent() >= NEAR || is_too_low(&judged);
        return matters.then_some(judged);
    }
    let levels = || case.snapshot.cgroup.iter().flat_map(Cgroup::levels).flat_map(of_level);
    // A pod has the limit of its only container, and a little more is charged to it. So among limits with the same
    // percentage, as it is printed, the innermost is judged: its path is the longest.
    let near = levels().filter(|judged| judged.percent() >= NEAR);
    let near = near.max_by_key(|judged| (judged.severity(case), judged.percent().round() as u64, judged.depth()));
    near.or_else(|| levels().filter(is_too_low).min_by_key(|judged| judged.limit))
}

fn of_level(level: &Cgroup) -> impl Iterator<Item = Judged<'_>> {
    let (counted, with_swap) = (level.working_set(), false);
    let of_memory = level.limit.map(|limit| Judged { limit, counted, level: Some(level), with_swap });
    of_memory.into_iter().chain(of_swap_too(level))
}

/// Version 1's limit of memory and swap together: swap makes room below the limit of memory, not below this one. It is
/// never the lower one, so without a swapped page it isn't the first.
fn of_swap_too(level: &Cgroup) -> Option<Judged<'_>> {
    let (limit, charged) = (level.swap_limit?, level.swap_charged?);
    let counted = charged - level.stat.inactive_file;
    let is_judged = level.version == CgroupVersion::V1 && charged > level.charged;
    is_judged.then_some(Judged { limit, counted, level: Some(level), with_swap: true })
}

/// Who uses the limit of a group above, beside the process's own group.
fn siblings(level: &Cgroup) -> Option<String> {
    let most: Vec<String> = level
        .siblings
        .iter()
        .take(3)
        .filter(|(_, bytes)| bytes.percent_of(level.charged) >= MIN_PERCENT_TO_MENTION)
        .map(|(path, bytes)| format!("{path} {bytes}"))
        .collect();
    (!most.is_empty()).then(|| format!("charged in groups beside this process's, with page cache: {}", most.join(", ")))
}

/// The other limits that are near, too.
fn also_near(case: Case<'_>, chosen: &Judged<'_>) -> Vec<String> {
    let is_chosen = |judged: &Judged<'_>| {
        let levels = judged.level.zip(chosen.level);
        judged.with_swap == chosen.with_swap && levels.is_some_and(|(one, other)| std::ptr::eq(one, other))
    };
    let levels = case.snapshot.cgroup.iter().flat_map(Cgroup::levels).flat_map(of_level);
    let near = levels.filter(|judged| chosen.level.is_some() && !is_chosen(judged) && judged.percent() >= NEAR);
    let text = |judged: Judged<'_>| {
        let Judged { limit, counted, level, .. } = judged;
        let (what, percent) = (judged.of_what(), judged.percent());
        let path = &level?.limit_path;
        Some(match judged.with_swap {
            true => format!("the limit{what} in {path} is near, too: {counted} of {limit} counted ({percent:.0} %)"),
            false => format!("the limit of {path} is near, too: {counted} of {limit} counted ({percent:.0} %)"),
        })
    };
    near.filter_map(text).collect()
}

fn cause(others: &[Verdict]) -> Option<&Verdict> {
    let warning = |id: &VerdictId| others.iter().find(|other| other.id == *id && other.severity > Severity::Note);
    CAUSES.iter().find_map(warning)
}

/// Never cap the Java heap below 1.5 times its current objects, or below its committed size: peaks needed that much. If
/// native memory takes most of the limit, the heap isn't the cause, and no cap is proposed. The VM doesn't start with
/// an initial size above the cap; the committed size is never below -Xms, but may be below -XX:InitialHeapSize.
fn smallest_cap(case: Case<'_>) -> Bytes {
    let Some(heap) = case.vm().and_then(|vm| vm.java_heap.as_ref()) else { return Bytes(u64::MAX) };
    let objects = heap.live_after_gc.unwrap_or(heap.occupied).max(heap.occupied);
    let initial = case.size_option("InitialHeapSize").unwrap_or_default();
    Bytes(objects.0 / 2 * 3).max(heap.committed).max(Bytes::mib(32)).max(initial)
}

/// The options for a heap of at most `cap`. The VM doesn't start with a SoftMaxHeapSize above -Xmx
/// (SoftMaxHeapSizeConstraintFunc in HotSpot's sources). If that flag wasn't set, it has the value of -Xmx, now `max`.
fn cap_options(case: Case<'_>, max: Bytes, cap: Bytes) -> String {
    let in_force = case.flag("SoftMaxHeapSize").and_then(|value| value.parse().ok()).map(Bytes);
    let set = [case.size_option("SoftMaxHeapSize"), in_force.filter(|soft| *soft != max)];
    let mib = cap.0 >> 20;
    match set.into_iter().flatten().any(|soft| soft > cap) {
        true => format!("-Xmx{mib}m -XX:SoftMaxHeapSize={mib}m"),
        false => format!("-Xmx{mib}m"),
    }
}
