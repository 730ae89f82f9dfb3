//! Verdicts over time: those that Plimsoll recorded, or those that another recorder's curves allow.

use std::collections::{BTreeMap, BTreeSet};

use super::{Growth, History, Measure, Series};
use crate::ledger::{Group, LineId};
use crate::verdict::{LargeHeap, VerdictId, ago};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::jdk_of;
use plimsoll_facts::units::Bytes;
use plimsoll_jfr::reader::Event;

/// How long a verdict applied. A recording has all verdicts of a moment when they changed, so each applies until the
/// next time. It may have ended and returned in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerdictSpan {
    pub id: String,
    pub severity: String,
    pub first_ns: i64,
    pub last_ns: i64,
    /// Time during which it applied.
    pub held_ns: i64,
    /// The verdict's bytes at first, at last, and at most.
    pub first_bytes: Bytes,
    pub last_bytes: Bytes,
    pub most_bytes: Bytes,
    /// Text of the last time.
    pub summary: String,
    pub remedy: String,
    /// Derived from the curves instead of recorded.
    pub is_derived: bool,
}

const MOST: usize = 256;
const MOST_CHANGES: usize = 1 << 16;

/// Collects recorded verdicts.
#[derive(Default)]
pub(super) struct RecordedVerdicts {
    spans: Vec<VerdictSpan>,
    /// When verdicts were recorded, and the indexes of their spans.
    changes: BTreeMap<i64, BTreeSet<usize>>,
    entered: usize,
    /// Verdicts beyond the limits.
    left_out: u64,
    /// The last verdicts before the range; they apply at its beginning.
    before: Vec<VerdictSpan>,
}

impl RecordedVerdicts {
    pub(crate) fn enter(&mut self, event: &Event<'_>, time: i64) {
        let index = enter(&mut self.spans, event, time);
        self.changed(index, time);
    }

    /// `index`: of the verdict's span; none if there is no space for another one.
    fn changed(&mut self, index: Option<usize>, time: i64) {
        match index {
            Some(index) if self.entered < MOST_CHANGES => {
                self.entered += usize::from(self.changes.entry(time).or_default().insert(index));
            }
            _ => self.left_out += 1,
        }
    }

    pub(crate) fn enter_before(&mut self, event: &Event<'_>, time: i64) {
        let last = self.before.first().map_or(i64::MIN, |span| span.first_ns);
        if last < time {
            self.before.clear();
        }
        if last <= time {
            enter(&mut self.before, event, time);
        }
    }

    /// A verdict that isn't replaced applies until the end.
    pub(crate) fn finish(self, from_ns: i64, end_ns: i64) -> (Vec<VerdictSpan>, Option<Gap>) {
        let RecordedVerdicts { mut spans, mut changes, before, left_out, .. } = self;
        if changes.first_key_value().is_none_or(|(first, _)| *first > from_ns) {
            for before in before {
                let index = spans.iter().position(|span| span.id == before.id).unwrap_or(spans.len());
                changes.entry(from_ns).or_default().insert(index);
                match spans.get_mut(index) {
                    Some(span) => {
                        (span.first_ns, span.first_bytes) = (from_ns, before.first_bytes);
                        span.most_bytes = span.most_bytes.max(before.most_bytes);
                    }
                    None => spans.push(VerdictSpan { first_ns: from_ns, last_ns: from_ns, ..before }),
                }
            }
        }
        let mut next = end_ns;
        for (time, indexes) in changes.iter().rev() {
            for index in indexes {
                let Some(span) = spans.get_mut(*index) else { continue };
                span.held_ns = span.held_ns.saturating_add(next.saturating_sub(*time).max(0));
                if *time == span.last_ns {
                    span.last_ns = next.max(*time);
                }
            }
            next = *time;
        }
        let gap = || {
            let reason = format!("the verdicts changed too often: {left_out} of them are left out");
            Gap::new(Source::Jfr, reason, "how long the verdicts held is not exact, and some may be missing")
        };
        (spans, (left_out > 0).then(gap))
    }
}

/// Adds the event to its span, and returns the span's index.
fn enter(spans: &mut Vec<VerdictSpan>, event: &Event<'_>, time: i64) -> Option<usize> {
    let text = |name: &str| event.string(name).unwrap_or_default().into_owned();
    let (id, bytes) = (text("verdict"), Bytes(event.u64("bytes").unwrap_or(0)));
    let (severity, summary, remedy) = (text("severity"), text("summary"), text("remedy"));
    let is_full = spans.len() >= MOST;
    let index = spans.iter().position(|span| span.id == id).unwrap_or(spans.len());
    match spans.get_mut(index) {
        Some(span) => {
            if time < span.first_ns {
                (span.first_ns, span.first_bytes) = (time, bytes);
            }
            if time >= span.last_ns {
                (span.last_ns, span.last_bytes) = (time, bytes);
                (span.severity, span.summary, span.remedy) = (severity, summary, remedy);
            }
            span.most_bytes = span.most_bytes.max(bytes);
        }
        None if is_full => return None,
        None => spans.push(VerdictSpan {
            id,
            severity,
            first_ns: time,
            last_ns: time,
            held_ns: 0,
            first_bytes: bytes,
            last_bytes: bytes,
            most_bytes: bytes,
            summary,
            remedy,
            is_derived: false,
        }),
    }
    Some(index)
}

/// Growth below either limit is noise.
const LEAST_BYTES: f64 = 1048576.0;
const LEAST_SHARE: f64 = 0.02;

/// The growth of a curve that certainly grows, and its amount over the range.
fn grown(series: &Series) -> Option<(Growth, Bytes)> {
    let figures = series.figures()?;
    let growth = figures.growth.filter(Growth::is_up)?;
    let (begin, end) = (series.points().first()?.begin_ns, series.points().last()?.end_ns);
    let by = growth.least * (end - begin) as f64 / 3.6e12;
    (by >= LEAST_BYTES && by >= LEAST_SHARE * figures.first as f64)
        .then(|| (growth, Bytes(figures.last.saturating_sub(figures.first))))
}

/// Maximum number of lines named in a growth verdict.
const NAMED: usize = 3;

/// A part of RSS that certainly grows.
struct Growing {
    /// None: only the sum of the lines is known to grow.
    line: Option<LineId>,
    growth: Growth,
    bytes: Bytes,
    /// For a line of malloc: the growth of the sum of malloc's lines.
    of_group: Option<Bytes>,
    summary: String,
    series: Series,
}

/// Combines the lines of our recording that certainly grow into one verdict. The interval of a line's slope must be
/// narrower than the slope, and the amount must be significant compared with RSS. Blocks that move between malloc's
/// lines (freed, or reused) aren't growth. So these lines grow only if their sum does, and not by more.
pub(super) fn growing(history: &History) -> Option<VerdictSpan> {
    let rss = history.rss()?.figures()?;
    let certain = |series: &Series| {
        let (growth, bytes) = grown(series)?;
        (growth.is_tight() && bytes.0 as f64 >= LEAST_SHARE * rss.first as f64).then_some((growth, bytes))
    };
    let mut parts: Vec<Growing> = Vec::new();
    for (name, all) in history.of(Measure::Line) {
        let line = LineId::ALL.iter().copied().find(|line| line.id() == name && line.may_grow_without_bound());
        let series = history.readings_of_growth(Measure::Line, name, all);
        if let (Some(line), Some(series)) = (line, series)
            && let Some((mut growth, mut bytes)) = certain(series)
        {
            let mut of_group = None;
            if line.group() == Group::Allocator {
                let Some((of_all, bytes_of_all)) = certain(&sum_of_group(history, line, series)) else { continue };
                if of_all.per_hour < growth.per_hour {
                    growth = of_all;
                }
                bytes = bytes.min(bytes_of_all);
                of_group = Some(bytes_of_all);
            }
            let summary = format!("{} {}", line.name(), by(growth));
            parts.push(Growing { line: Some(line), growth, bytes, of_group, summary, series: series.clone() });
        }
    }
    if let Some(series) = unattributed(history)
        && let Some((growth, bytes)) = certain(&series)
    {
        let summary = format!("memory of {} {}; {}", owners(history), by(growth), whose_growth(history));
        parts.push(Growing { line: None, growth, bytes, of_group: None, summary, series });
    }
    parts.sort_by(|one, other| other.growth.per_hour.total_cmp(&one.growth.per_hour));
    let first = parts.first()?;
    let mut summary = parts.iter().take(NAMED).map(|part| part.summary.as_str()).collect::<Vec<_>>().join("; ");
    if let Some(hours) = hours_to_the_limit(history) {
        summary += &format!("; if that goes on, the limit is reached in {}", ago(hours * 3600.0));
    }
    let (of_malloc, others): (Vec<&Growing>, Vec<&Growing>) = parts.iter().partition(|part| part.of_group.is_some());
    let of_group = of_malloc.iter().filter_map(|part| part.of_group).max().unwrap_or_default();
    let sum = |parts: &[&Growing]| parts.iter().map(|part| part.bytes).sum::<Bytes>();
    let bytes = sum(&of_malloc).min(of_group) + sum(&others);
    let line = first.line.or_else(|| changes_between_queries(history).first().map(|(line, _)| *line));
    // `record` writes the PID that a command must name. Another recorder writes its own PID, such as 1 in a container.
    let typed = |command: &str| match history.process.pid {
        Some(pid) => command.replace("PID", &pid.to_string()),
        None => command.to_owned(),
    };
    // Calls of malloc don't lead to classes and threads.
    let command = match line {
        Some(LineId::Class) => typed(class_loaders(history)),
        Some(LineId::ThreadStacks) if history.process.runtime == "hotspot" => typed("jcmd PID Thread.print"),
        Some(LineId::ThreadStacks) => typed("ps -T -p PID -o comm= | sort | uniq -c | sort -rn | head"),
        // Free memory has no caller, and only a reading of the living process shows what a trim would return.
        Some(LineId::GlibcRetained) => typed("plimsoll explain PID"),
        // Only a reading of the living process shows which allocator's heap this is, and which command queries it.
        Some(LineId::OtherAllocator | LineId::OtherAnonymous) => typed(
            "plimsoll explain PID --format json > baseline.json && sleep 600 && plimsoll explain PID --baseline baseline.json",
        ),
        _ if history.process.callers.is_empty() => {
            typed("plimsoll attach PID && sleep 60 && plimsoll report PID --by site")
        }
        _ => history.process.callers.clone(),
    };
    span(VerdictId::Growth, &first.series, bytes, summary, &command)
}

/// The sum of the lines of `line`'s group at the readings of `line`.
fn sum_of_group(history: &History, line: LineId, readings: &Series) -> Series {
    let is_queried = history.needs_query(line.id());
    let is_other =
        |name: &str| LineId::ALL.iter().any(|id| id.id() == name && *id != line && id.group() == line.group());
    let at_queries = |name: &str| history.queried.of(name).filter(|_| is_queried && history.needs_query(name));
    let others = history.of(Measure::Line).filter(|(name, _)| is_other(name));
    let others: Vec<&Series> = others.map(|(name, all)| at_queries(name).unwrap_or(all)).collect();
    if others.is_empty() {
        return readings.clone();
    }
    let mut sum = Series::default();
    for point in readings.points() {
        let beside: f64 = others.iter().filter_map(|other| other.at(point.begin_ns)).sum();
        sum.push(point.begin_ns, (point.mean() + beside) as u64);
    }
    sum
}

/// The sum of the lines that only a query can tell apart, if there were too few queries to judge each. It is RSS
/// without all other lines, and is known at each instant.
fn unattributed(history: &History) -> Option<Series> {
    if history.one(Measure::Age).is_none() || history.queries_are_enough() {
        return None;
    }
    let known = || history.of(Measure::Line).filter(|(name, _)| !history.needs_query(name));
    let mut sum = Series::default();
    for point in history.one(Measure::LedgerRss)?.points() {
        let known: f64 = known().filter_map(|(_, line)| line.at(point.begin_ns)).sum();
        sum.push(point.begin_ns, (point.mean() - known).max(0.0) as u64);
    }
    Some(sum)
}

fn owners(history: &History) -> &'static str {
    match history.process.runtime.as_str() {
        "hotspot" => "the VM and of malloc",
        _ => "malloc and of unnamed mappings",
    }
}

/// What is known of the lines when only their sum certainly grows.
fn whose_growth(history: &History) -> String {
    let queries = history.queried.count();
    let more = |(line, bytes): &(LineId, Bytes)| format!("{} {bytes} more", line.name());
    let changes: Vec<String> = changes_between_queries(history).iter().take(NAMED).map(more).collect();
    if changes.is_empty() {
        return format!("which line grows isn't known ({} of the owners in this time)", number_of_queries(queries));
    }
    let apart = ago(history.queried.span_ns() as f64 / 1e9);
    format!("from the first of {queries} queries to the last ({apart}): {}", changes.join(", "))
}

fn number_of_queries(queries: u64) -> String {
    match queries {
        0 => "no query".to_owned(),
        1 => "one query".to_owned(),
        queries => format!("{queries} queries"),
    }
}

/// How much the lines grew from the first query to the last, largest first.
fn changes_between_queries(history: &History) -> Vec<(LineId, Bytes)> {
    let change = |line: &LineId| {
        let figures = history.queried.of(line.id()).filter(|_| history.needs_query(line.id()))?.figures()?;
        let more = Bytes(figures.last.saturating_sub(figures.first));
        (more.0 as f64 >= LEAST_BYTES).then_some((*line, more))
    };
    let mut changes: Vec<(LineId, Bytes)> = LineId::ALL.iter().filter_map(change).collect();
    changes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    changes
}

/// Time until the limit, at the growth rate of the working set: the kernel takes inactive file pages back before it
/// kills, so their growth brings no limit nearer. Recordings of others may only have the charge.
fn hours_to_the_limit(history: &History) -> Option<f64> {
    let limits = history.one(Measure::Limit)?.figures()?;
    // After a change, the limit that is reached first is another group's, and so is the charge. A pod may have the same
    // limit as its container.
    let is_one = limits.min == limits.max && history.limit_groups.len() <= 1;
    let limit = Some(limits.last).filter(|_| is_one)?;
    let counted = history.counted()?.figures()?;
    let rss = history.rss()?.figures()?;
    let rate = counted.growth.filter(Growth::is_tight).or(rss.growth.filter(Growth::is_tight))?.per_hour;
    (rate > 0.0).then(|| limit.saturating_sub(counted.last) as f64 / rate)
}

/// The command of this VM that counts its class loaders. JDK 8 has none, but counts objects.
fn class_loaders(history: &History) -> &'static str {
    match history.vm.jdk.or_else(|| jdk_of(&history.process.runtime_version)) {
        Some(8) => "jcmd PID GC.class_histogram | grep ClassLoader",
        _ => "jcmd PID VM.classloader_stats",
    }
}

/// The property java.vm.name of native images.
const NATIVE_IMAGE: &str = "Substrate VM";

/// The verdict for a growing NMT category of HotSpot or Native Image, and the next command to type.
fn of_category(history: &History, name: &str) -> Option<(VerdictId, &'static str)> {
    const ATTACH: &str = "plimsoll attach PID";
    // Native Image has none of HotSpot's commands for them. Its Threading holds structures of threads, but no stacks.
    let is_image = history.process.runtime == NATIVE_IMAGE;
    Some(match name {
        "Class" | "Metaspace" if is_image => (VerdictId::ClassGrowth, ATTACH),
        "Class" | "Metaspace" => (VerdictId::ClassGrowth, class_loaders(history)),
        "Code" if is_image => (VerdictId::CodeCacheGrowth, ATTACH),
        "Code" => (VerdictId::CodeCacheGrowth, "jcmd PID Compiler.codecache"),
        "Thread" => (VerdictId::ThreadStacks, "jcmd PID Thread.print"),
        // HotSpot books Unsafe.allocateMemory under Other; direct buffers use it.
        "Other" | "Unsafe" => (VerdictId::DirectBufferGrowth, ATTACH),
        _ => return None,
    })
}

/// Minimum increase of threads; a smaller one is a pool that fills up.
const LEAST_THREADS: f64 = 16.0;
/// Number of collections needed for a statement about the Java heap, and the minimum of spare heap.
const LEAST_COLLECTIONS: u64 = 6;
const LEAST_SPARE: Bytes = Bytes::mib(64);

/// Derives verdicts from the curves of a recording without verdicts:
///
/// ```text
/// class-growth, code-cache-growth,
/// thread-stacks, direct-buffer-growth   a category certainly grows; without NMT: metaspace, threads
/// native-leak                           RSS certainly grows beyond what the VM has committed;
///                                       without NMT: while the Java heap doesn't grow
/// heap-committed-unused                 no collection found more than half of the committed heap occupied
/// ```
/// The C library and foreign code allocate RSS beyond the VM's commitment.
pub(super) fn derived(history: &History) -> Vec<VerdictSpan> {
    if history.verdicts.iter().any(|span| !span.is_derived) {
        return vec![];
    }
    let mut spans = vec![];
    for (name, series) in history.of(Measure::Committed) {
        if let (Some((id, remedy)), Some((growth, bytes))) = (of_category(history, name), grown(series)) {
            spans.extend(span(id, series, bytes, format!("{name}, committed, {}", by(growth)), remedy));
        }
    }
    let has = |spans: &[VerdictSpan], id: VerdictId| spans.iter().any(|span| span.id == id.id());
    let metaspace = history.one(Measure::Metaspace).filter(|_| !has(&spans, VerdictId::ClassGrowth));
    if let Some((series, (growth, bytes))) = metaspace.and_then(|series| Some((series, grown(series)?))) {
        let summary = format!("metaspace, committed, {}", by(growth));
        spans.extend(span(VerdictId::ClassGrowth, series, bytes, summary, class_loaders(history)));
    }
    if let Some(series) = history.one(Measure::Threads).filter(|_| !has(&spans, VerdictId::ThreadStacks)) {
        spans.extend(more_threads(series));
    }
    spans.extend(match history.one(Measure::TotalCommitted) {
        Some(committed) => outside(history, committed),
        None => beside_the_heap(history),
    });
    spans.extend(spare_heap(history));
    spans
}

fn span(id: VerdictId, series: &Series, bytes: Bytes, summary: String, remedy: &str) -> Option<VerdictSpan> {
    let (first, last) = (series.points().first()?, series.points().last()?);
    Some(VerdictSpan {
        id: id.id().into(),
        severity: if id == VerdictId::HeapCommittedUnused { "note" } else { "warning" }.into(),
        first_ns: first.begin_ns,
        last_ns: last.end_ns,
        held_ns: last.end_ns.saturating_sub(first.begin_ns),
        first_bytes: Bytes(0),
        last_bytes: bytes,
        most_bytes: bytes,
        summary,
        remedy: match remedy.contains(" PID") {
            true => format!("{remedy}   # PID: that of the recorded process"),
            false => remedy.into(),
        },
        is_derived: true,
    })
}

fn by(growth: Growth) -> String {
    let per_hour = |value: f64| Bytes(value.max(0.0) as u64);
    let (least, most) = (per_hour(growth.least), per_hour(growth.most));
    format!("grows by {} an hour ({least} to {most})", per_hour(growth.per_hour))
}

fn more_threads(series: &Series) -> Option<VerdictSpan> {
    let figures = series.figures()?;
    let growth = figures.growth.filter(Growth::is_up)?;
    let (begin, end) = (series.points().first()?.begin_ns, series.points().last()?.end_ns);
    let more = growth.least * (end - begin) as f64 / 3.6e12;
    let surely = more >= LEAST_THREADS && more >= LEAST_SHARE * figures.first as f64;
    let summary = format!(
        "Java threads, {} to {}, grow by {:.0} an hour ({:.0} to {:.0}); each has a stack",
        figures.first, figures.last, growth.per_hour, growth.least, growth.most
    );
    surely.then(|| span(VerdictId::ThreadStacks, series, Bytes(0), summary, "jcmd PID Thread.print"))?
}

/// RSS minus the VM's committed memory, reading by reading.
fn outside(history: &History, committed: &Series) -> Option<VerdictSpan> {
    // Shifted, because untouched pages of committed memory make the difference negative.
    const SHIFT: f64 = (1u64 << 50) as f64;
    let rss = history.rss()?;
    let mut outside = Series::default();
    for point in rss.points() {
        let committed = committed.at(point.begin_ns).unwrap_or(0.0);
        outside.push(point.begin_ns, (SHIFT + point.mean() - committed) as u64);
    }
    let growth = outside.figures()?.growth.filter(Growth::is_up)?;
    let more = outside.points().last()?.last.saturating_sub(outside.points().first()?.first);
    grown(rss).filter(|_| more as f64 >= LEAST_BYTES)?;
    // Committed pages may be touched much later. So only RSS above the whole commitment certainly isn't the VM's.
    if rss.points().last()?.last <= committed.points().last()?.last {
        return None;
    }
    let summary = format!("RSS beyond what the VM has committed {}", by(growth));
    span(VerdictId::NativeLeak, &outside, Bytes(more), summary, "plimsoll explain PID")
}

/// Without NMT: RSS that grows by more than the committed heap can explain.
fn beside_the_heap(history: &History) -> Option<VerdictSpan> {
    let (rss, heap) = (history.rss()?, history.java_heap()?);
    let (growth, bytes) = grown(rss)?;
    let figures = heap.figures()?;
    // Pages of a committed heap may be touched much later. So only RSS above the whole heap certainly isn't the heap's.
    let above = rss.figures()?.last > figures.max;
    let stays = (figures.max - figures.min) as f64 <= LEAST_SHARE * figures.max as f64;
    if !above || !stays {
        return None;
    }
    let summary = format!("RSS {} while the committed Java heap stays at {}", by(growth), Bytes(figures.max));
    span(VerdictId::NativeLeak, rss, bytes, summary, "plimsoll explain PID")
}

fn spare_heap(history: &History) -> Option<VerdictSpan> {
    let occupied = history.one(Measure::HeapOccupied)?;
    let (heap, of) = (history.java_heap()?.figures()?, occupied.figures()?);
    let spare = Bytes(heap.min) - Bytes(of.max);
    if of.readings < LEAST_COLLECTIONS || of.max > heap.min / 2 || spare < LEAST_SPARE {
        return None;
    }
    let summary = format!(
        "of {} committed Java heap at most {} were occupied, before and after {} collections",
        Bytes(heap.min),
        Bytes(of.max),
        of.readings.div_ceil(2)
    );
    let heap = LargeHeap {
        collector: history.vm.collector,
        jdk: history.vm.jdk.unwrap_or(0),
        needed: Bytes(of.max),
        min: history.vm.min.unwrap_or_default(),
        initial: history.vm.initial,
        max: history.vm.max,
        // A recording has no other flags.
        flags: &[],
    };
    let how = heap.by_restart().map(|remedy| remedy.how).unwrap_or_default();
    span(VerdictId::HeapCommittedUnused, occupied, spare, summary, &how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::LimitGroup;

    #[test]
    fn verdicts_beyond_the_limits_are_counted() {
        let mut verdicts = RecordedVerdicts::default();
        verdicts.spans.push(VerdictSpan::default());
        for time in 0..=MOST_CHANGES as i64 {
            verdicts.changed(Some(0), time);
        }
        verdicts.changed(None, 0);
        let (spans, gap) = verdicts.finish(0, 1);
        assert_eq!(spans.len(), 1);
        assert!(gap.is_some_and(|gap| gap.reason == "the verdicts changed too often: 2 of them are left out"));
        assert_eq!(RecordedVerdicts::default().finish(0, 1).1, None);
    }

    /// A pod and its only container have the same limit, so its value doesn't show the change.
    #[test]
    fn the_time_to_a_limit_is_that_of_one_group() {
        let mut history = History::default();
        for minute in 0..100u64 {
            let mut reading = |measure, mib: u64| {
                let series = history.series.entry((measure, String::new())).or_default();
                series.push(minute as i64 * 60_000_000_000, mib << 20);
            };
            reading(Measure::Limit, 1000);
            reading(Measure::Charged, 100 + minute);
            reading(Measure::Rss, 100 + minute);
        }
        let group = |path: &str| LimitGroup { path: path.into(), ..LimitGroup::default() };
        history.limit_groups = vec![group("/pod/container")];
        // 801 MiB at 60 MiB an hour.
        assert!(hours_to_the_limit(&history).is_some_and(|hours| (hours - 801.0 / 60.0).abs() < 0.01));
        history.limit_groups.push(group("/pod"));
        assert_eq!(hours_to_the_limit(&history), None);
    }

    /// Page cache fills the group, and the program leaks beside it. The kernel takes the cache back before it kills.
    #[test]
    fn page_cache_brings_no_limit_nearer() {
        let mut history = History::default();
        for minute in 0..100u64 {
            let mut reading = |measure, kib: u64| {
                let series = history.series.entry((measure, String::new())).or_default();
                series.push(minute as i64 * 60_000_000_000, kib << 10);
            };
            reading(Measure::Limit, 1024 << 10);
            // 60 MiB of cache an hour, up to 1 MiB below the limit.
            reading(Measure::Charged, (924 + minute) << 10);
            // 30 MiB an hour.
            reading(Measure::WorkingSet, (400 << 10) + minute * 512);
            reading(Measure::Rss, (390 << 10) + minute * 512);
        }
        let left = 1024.0 - (400.0 + 99.0 * 0.5);
        assert!(hours_to_the_limit(&history).is_some_and(|hours| (hours - left / 30.0).abs() < 0.01));
    }
}
