//! Growth between a baseline and now. Two readings prove that a line grew and how fast, but not that it continues: a
//! third reading without growth contradicts the verdict.
//!
//!   grown ≥ change − error of both readings
//!   rate = grown / time
//!   time to the limit = (limit − counted) / rate of all

use super::case::{Case, ago};
use super::classes::by_loader;
use super::remedies::{remedy, returned_by_trim, trim};
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Effort, Remedy, Severity, Verdict, VerdictId, inspector, listening};
use crate::ledger::{Baseline, Group, Line, LineId};
use plimsoll_facts::snapshot::{ArrayBuffers, HeapPart, OtherHeap};
use plimsoll_facts::units::{Bytes, counted};

/// A change below either limit is noise.
const FLOOR: Bytes = Bytes::mib(8);
const PERCENT: f64 = 10.0;
/// A rate needs at least this many seconds between the readings: with less, it would extrapolate one burst.
const LEAST_SECONDS: f64 = 60.0;
const NAMED: usize = 3;

/// Percentage of a line below which a part of its change doesn't show in three digits.
const SHOWN_PERCENT: f64 = 0.1;

/// A line that grew: by `change`, ± the error of both readings, which is less.
struct Grown {
    line: LineId,
    change: Bytes,
    error: Bytes,
    /// What a line of malloc gained besides `change`, from malloc's other lines.
    from_malloc: Bytes,
}

impl Grown {
    fn least(&self) -> Bytes {
        self.change - self.error
    }

    fn most(&self) -> Bytes {
        self.change + self.error
    }
}

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let baseline = case.snapshot.baseline.as_ref()?;
    let grown = grown(case, baseline)?;
    let largest = grown.first()?;
    let (least, _) = sum(case, baseline, &grown);
    let seconds = seconds_since(case, baseline);
    let was = |grown: &Grown| {
        let (line, then, now) = (label(case, grown.line), baseline.resident(grown.line), case.resident(grown.line));
        let shown = Some(grown.from_malloc).filter(|bytes| bytes.percent_of(now) >= SHOWN_PERCENT);
        let rest = shown.map_or(String::new(), |bytes| format!(", and {bytes} that malloc had before"));
        format!("{line}: {then} then, {now} now: {} more{rest}", between(grown.least(), grown.most()))
    };
    let mut evidence: Vec<String> = grown.iter().take(NAMED).map(was).collect();
    if largest.line == LineId::OtherAllocator
        && let Some(heap) = most_of_its_line(case, case.snapshot.v8.as_ref())
    {
        let objects = heap.resident(HeapPart::Old) + heap.resident(HeapPart::Large);
        let free = heap.resident(HeapPart::FreeOld);
        let young: Bytes = [HeapPart::Young, HeapPart::FreeYoung, HeapPart::YoungUnsplit]
            .map(|part| heap.resident(part))
            .iter()
            .copied()
            .sum();
        evidence.push(format!(
            "V8: {objects} of old and large objects, with garbage that no collection has found yet; {free} free in old pages; \
             {young} for young objects, which --max-semi-space-size bounds"
        ));
    }
    evidence.extend(buffers(case, largest.line));
    let mut summary = format!(
        "{} grew by {} in {}",
        label(case, largest.line),
        between(largest.least(), largest.most()),
        ago(seconds)
    );
    if let Some(rate) = rate(case) {
        summary +=
            &format!(", {} an hour", between(an_hour(largest.least(), seconds), an_hour(largest.most(), seconds)));
        if let Some((limit, counted)) = case.limit() {
            let time = lasts(limit - counted, rate);
            summary += &format!("; if that goes on, the limit of {limit} is reached in {time}");
        }
    } else {
        evidence.push(format!("a rate needs {LEAST_SECONDS:.0} s between the readings"));
    }
    if largest.line == LineId::GlibcRetained {
        evidence.extend(case.callers_of_a_burst());
    }
    Some(Verdict {
        id: VerdictId::Growth,
        severity: Severity::Warning,
        bytes: least,
        summary,
        evidence,
        remedies: remedies(case, largest.line, least),
    })
}

fn label(case: Case<'_>, line: LineId) -> String {
    case.ledger.line(line).map_or_else(|| line.name().to_owned(), Line::label)
}

/// The lines that grew, largest first. None if together they are too little.
fn grown(case: Case<'_>, baseline: &Baseline) -> Option<Vec<Grown>> {
    let mut grown: Vec<Grown> = LineId::ALL.iter().filter_map(|line| growth(case, baseline, *line)).collect();
    grown.sort_by_key(|grown| std::cmp::Reverse(grown.least()));
    let (least, _) = sum(case, baseline, &grown);
    (least >= FLOOR && least.percent_of(baseline.rss) >= PERCENT).then_some(grown)
}

/// How much the lines grew together: at least, at most. Malloc's lines never count more than their group grew. One of
/// them may have taken new memory, and another one memory that a third had kept free.
fn sum(case: Case<'_>, baseline: &Baseline, grown: &[Grown]) -> (Bytes, Bytes) {
    let is_of_malloc = |one: &&Grown| one.line.group() == Group::Allocator;
    let of_malloc: Bytes = grown.iter().filter(is_of_malloc).map(|one| one.change).sum();
    let of_group = Bytes(u64::try_from(change_of_malloc(case, baseline)).unwrap_or(0));
    let of_others: Bytes = grown.iter().filter(|one| !is_of_malloc(one)).map(|one| one.change).sum();
    let change = of_malloc.min(of_group) + of_others;
    let error: Bytes = grown.iter().map(|one| one.error).sum();
    (change - error, change + error)
}

fn change_of_malloc(case: Case<'_>, baseline: &Baseline) -> i64 {
    let lines = LineId::ALL.iter().filter(|line| line.group() == Group::Allocator);
    lines.map(|line| case.ledger.change_since(baseline, *line)).sum()
}

fn seconds_since(case: Case<'_>, baseline: &Baseline) -> f64 {
    baseline.seconds_until(case.snapshot.time, case.snapshot.process.uptime)
}

fn an_hour(bytes: Bytes, seconds: f64) -> Bytes {
    Bytes((bytes.0 as f64 * 3600.0 / seconds) as u64)
}

/// What all lines together grow by in an hour: at least, at most. None if there is no growth, or too little time.
pub(crate) fn rate(case: Case<'_>) -> Option<(Bytes, Bytes)> {
    let baseline = case.snapshot.baseline.as_ref()?;
    let (least, most) = sum(case, baseline, &grown(case, baseline)?);
    let seconds = seconds_since(case, baseline);
    (seconds >= LEAST_SECONDS).then(|| (an_hour(least, seconds), an_hour(most, seconds)))
}

/// How long `bytes` last at a rate: `40 min to 55 min`.
pub(crate) fn lasts(bytes: Bytes, (least, most): (Bytes, Bytes)) -> String {
    let [soonest, latest] = [most, least].map(|rate| ago(bytes.0 as f64 / rate.0.max(1) as f64 * 3600.0));
    if soonest == latest { soonest } else { format!("{soonest} to {latest}") }
}

/// Blocks that move between malloc's lines (freed, or reused) aren't growth. So these lines grow only if their sum
/// grows.
fn growth(case: Case<'_>, baseline: &Baseline, line: LineId) -> Option<Grown> {
    if !line.may_grow_without_bound() {
        return None;
    }
    let whole = case.ledger.change_since(baseline, line);
    let of_group = if line.group() == Group::Allocator { change_of_malloc(case, baseline) } else { whole };
    let [change, whole] = [whole.min(of_group), whole].map(|change| u64::try_from(change).ok().map(Bytes));
    let (change, whole) = (change?, whole?);
    let error = case.ledger.line(line).map(|line| line.error).unwrap_or_default() + baseline.error(line);
    (error < change).then_some(Grown { line, change, error, from_malloc: whole - change })
}

/// A language's heap, if it is most of its line: the tracker's books don't know its objects.
fn most_of_its_line<'c>(case: Case<'c>, heap: Option<&'c OtherHeap>) -> Option<&'c OtherHeap> {
    let heap = heap?;
    let resident: Bytes = heap.parts.values().map(|part| part.resident).sum();
    (resident.percent_of(case.resident(LineId::OtherAllocator)) > 50.0).then_some(heap)
}

/// Array buffers have their owners in V8's heap, wherever their memory is.
fn buffers(case: Case<'_>, line: LineId) -> Vec<String> {
    let text = |buffers: ArrayBuffers, of: &str, place: &str| {
        format!("V8: {} ({of}) take {} {place} now", counted(buffers.count, "array buffer"), buffers.bytes)
    };
    let of_malloc = case.snapshot.array_buffers().filter(|_| case.live_blocks().most.line == line);
    let of_malloc = of_malloc.map(|buffers| text(buffers, "Node's Buffer", "of malloc's memory"));
    let mapped = Some(case.snapshot.mapped_array_buffers());
    let mapped = mapped.filter(|buffers| line == LineId::OtherAllocator && buffers.count > 0);
    let mapped = mapped.map(|buffers| text(buffers, "WebAssembly's memory", "in mappings of its own"));
    of_malloc.into_iter().chain(mapped).collect()
}

/// Whether most of the line is V8's: its heap, or its array buffers.
fn belongs_to_v8(case: Case<'_>, line: LineId) -> bool {
    let live = case.live_blocks().most;
    let buffers = case.snapshot.array_buffers().is_some_and(|buffers| buffers.bytes.percent_of(live.bytes) > 50.0);
    let heap = most_of_its_line(case, case.snapshot.v8.as_ref()).is_some();
    let mapped = case.snapshot.mapped_array_buffers().bytes;
    let mapped = mapped.percent_of(case.resident(LineId::OtherAllocator)) > 50.0;
    (line == live.line && buffers) || (line == LineId::OtherAllocator && (heap || mapped))
}

/// `50.0 to 63.2 MiB`. After "grew by", two units would read as the change and the new size.
pub(crate) fn between(least: Bytes, most: Bytes) -> String {
    let (least, most) = (least.to_string(), most.to_string());
    match (least.split_once(' '), most.split_once(' ')) {
        _ if least == most => least,
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} to {most}"),
        _ => format!("between {least} and {most}"),
    }
}

/// `bytes`: by how much all lines grew.
fn remedies(case: Case<'_>, line: LineId, bytes: Bytes) -> Vec<Remedy> {
    let pid = case.pid();
    let confirm = remedy(
        Effort::Now,
        "see whether it goes on: ten minutes give a rate with its interval",
        format!("plimsoll record {pid} --duration 10m -o growth.jfr && plimsoll report growth.jfr"),
        "",
    );
    let who = match line {
        // Free memory has no caller, and what a trim returns wasn't in use.
        LineId::GlibcRetained if returned_by_trim(case).0.percent_of(bytes) >= MIN_PERCENT_TO_MENTION => trim(case),
        LineId::GlibcRetained => return vec![confirm],
        LineId::Class if case.is_jvm() => by_loader(case, "see which class loaders grow"),
        LineId::ThreadStacks if case.is_jvm() => {
            remedy(Effort::Now, "see which threads there are", format!("jcmd {pid} Thread.print"), "")
        }
        LineId::ThreadStacks => {
            let how = format!("ps -T -p {pid} -o comm= | sort | uniq -c | sort -rn | head");
            remedy(Effort::Now, "see which threads there are", how, "")
        }
        LineId::OtherAllocator if most_of_its_line(case, case.snapshot.go.as_ref()).is_some() => {
            let what = "see which lines of the program hold the memory, in Go's own heap profile";
            listening::heap_profile(case, what, "", "")
        }
        line if belongs_to_v8(case, line) => inspector::heap_snapshot(case).unwrap_or_else(|| case.name_the_callers()),
        LineId::OtherAnonymous => case.name_the_mapper(),
        _ => case.name_the_callers(),
    };
    vec![who, confirm]
}
