//! Verdicts over time: as Plimsoll recorded them, or as far as the curves of another recorder allow one.

use std::collections::BTreeSet;

use super::{Growth, History, Measure, Series};
use crate::source::jfr::Event;
use crate::units::Bytes;
use crate::verdict::VerdictId;

/// How long a verdict held. Recordings have all verdicts of a moment when they are others than before, so each holds until the next time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictSpan {
    pub id: String,
    pub severity: String,
    pub first_ns: i64,
    pub last_ns: i64,
    /// What it was about, first, last and at most.
    pub first_bytes: Bytes,
    pub last_bytes: Bytes,
    pub most_bytes: Bytes,
    /// Of the last time.
    pub summary: String,
    pub remedy: String,
    /// Not recorded: concluded from the curves.
    pub is_derived: bool,
}

const MOST: usize = 256;
pub(super) const MOST_CHANGES: usize = 1 << 16;

/// `changes`: when verdicts were recorded. What is not replaced holds to the end.
pub(super) fn hold(spans: &mut [VerdictSpan], changes: &BTreeSet<i64>, end_ns: i64) {
    for span in spans {
        let next = changes.range(span.last_ns.saturating_add(1)..).next();
        span.last_ns = next.copied().unwrap_or(end_ns).max(span.last_ns);
    }
}

pub(super) fn enter(spans: &mut Vec<VerdictSpan>, event: &Event<'_>, time: i64) {
    let text = |name: &str| event.string(name).unwrap_or_default().into_owned();
    let (id, bytes) = (text("verdict"), Bytes(event.u64("bytes").unwrap_or(0)));
    let (severity, summary, remedy) = (text("severity"), text("summary"), text("remedy"));
    let is_full = spans.len() >= MOST;
    match spans.iter_mut().find(|span| span.id == id) {
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
        None if !is_full => spans.push(VerdictSpan {
            id,
            severity,
            first_ns: time,
            last_ns: time,
            first_bytes: bytes,
            last_bytes: bytes,
            most_bytes: bytes,
            summary,
            remedy,
            is_derived: false,
        }),
        None => {}
    }
}

/// Growth below both is weather.
const LEAST_BYTES: f64 = 1048576.0;
const LEAST_SHARE: f64 = 0.02;

/// A curve that surely grows: how much over its range.
fn grown(series: &Series) -> Option<(Growth, Bytes)> {
    let figures = series.figures()?;
    let growth = figures.growth.filter(Growth::is_up)?;
    let (begin, end) = (series.points().first()?.begin_ns, series.points().last()?.end_ns);
    let by = growth.least * (end - begin) as f64 / 3.6e12;
    (by >= LEAST_BYTES && by >= LEAST_SHARE * figures.first as f64)
        .then(|| (growth, Bytes(figures.last.saturating_sub(figures.first))))
}

/// Which verdict a category of HotSpot's or Native Image's NMT speaks for, and the next thing to type.
fn of_category(name: &str) -> Option<(VerdictId, &'static str)> {
    Some(match name {
        "Class" | "Metaspace" => (VerdictId::ClassGrowth, "jcmd PID VM.classloader_stats"),
        "Code" => (VerdictId::CodeCacheGrowth, "jcmd PID Compiler.codecache"),
        "Thread" | "Threading" => (VerdictId::ThreadStacks, "jcmd PID Thread.print"),
        // HotSpot books Unsafe.allocateMemory, which direct buffers are made of, under Other.
        "Other" | "Unsafe" => (VerdictId::DirectBufferGrowth, "plimsoll attach PID"),
        _ => return None,
    })
}

/// Threads more at the end than at the beginning: fewer are a pool that fills.
const LEAST_THREADS: f64 = 16.0;
/// Collections before anything is said of what the Java heap needs, and how much of it must be spare.
const LEAST_COLLECTIONS: u64 = 6;
const LEAST_SPARE: Bytes = Bytes::mib(64);

/// What the curves of a recording without verdicts allow:
///
/// ```text
/// class-growth, code-cache-growth, thread-stacks, direct-buffer-growth    a category surely grows; without NMT metaspace, threads
/// native-leak                RSS surely grows beyond what the VM has committed; without NMT, while the Java heap stays
/// heap-committed-unused      no collection found more than half of the committed heap occupied
/// ```
/// RSS beyond the VM's commitment is where the C library and foreign code allocate.
pub(super) fn derived(history: &History) -> Vec<VerdictSpan> {
    if history.verdicts.iter().any(|span| !span.is_derived) {
        return vec![];
    }
    let mut spans = vec![];
    for (name, series) in history.of(Measure::Committed) {
        if let (Some((id, remedy)), Some((growth, bytes))) = (of_category(name), grown(series)) {
            spans.extend(span(id, series, bytes, format!("{name}, committed, {}", by(growth)), remedy));
        }
    }
    let has = |spans: &[VerdictSpan], id: VerdictId| spans.iter().any(|span| span.id == id.id());
    let metaspace = history.one(Measure::Metaspace).filter(|_| !has(&spans, VerdictId::ClassGrowth));
    if let Some((series, (growth, bytes))) = metaspace.and_then(|series| Some((series, grown(series)?))) {
        let summary = format!("metaspace, committed, {}", by(growth));
        spans.extend(span(VerdictId::ClassGrowth, series, bytes, summary, "jcmd PID VM.classloader_stats"));
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
        first_bytes: Bytes(0),
        last_bytes: bytes,
        most_bytes: bytes,
        summary,
        remedy: remedy.into(),
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

/// RSS less what the VM has committed, reading by reading.
fn outside(history: &History, committed: &Series) -> Option<VerdictSpan> {
    // Shifted, since untouched pages of committed memory make the difference negative.
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
    let summary = format!("RSS beyond what the VM has committed {}", by(growth));
    span(VerdictId::NativeLeak, &outside, Bytes(more), summary, "plimsoll explain PID")
}

/// Without NMT: RSS that grows by more than the committed heap can have.
fn beside_the_heap(history: &History) -> Option<VerdictSpan> {
    let (rss, heap) = (history.rss()?, history.java_heap()?);
    let (growth, bytes) = grown(rss)?;
    let figures = heap.figures()?;
    // Pages of a heap that was committed long ago are touched later: only what lies above all of it is surely not the heap's.
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
    span(VerdictId::HeapCommittedUnused, occupied, spare, summary, "-XX:G1PeriodicGCInterval=60000, or a smaller -Xms")
}
