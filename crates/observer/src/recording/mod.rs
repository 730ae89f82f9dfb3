//! What a flight recording says about memory over time: curves by event and name, verdicts, and the process.
//!
//! One table maps the fields of events to curves. It applies to recordings of Plimsoll, HotSpot and native images; data
//! that a recording lacks gives no curve.

pub mod growth;
mod limits;
mod lines;
mod point;
mod range;
pub mod series;
mod sites;
mod verdicts;
mod vm;

use std::collections::BTreeMap;

pub use growth::Growth;
pub use limits::LimitGroup;
pub use point::Point;
pub use range::{Bound, Range};
pub use series::{CurveFigures, Series};
pub use sites::{RecordedSites, SitesOverTime, sites, sites_over_time};
pub use verdicts::VerdictSpan;

use crate::verdict::VerdictId;
use limits::LimitGroups;
use lines::{Lines, QueriedLines, needs_query};
use plimsoll_facts::ending::{Ending, Oom};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_jfr::reader::{ChunkSummary, Event, EventFilter};
use plimsoll_profiles::jfr;

/// The effect of the gap that several processes are in one directory.
pub const MIXED: &str = "their curves are mixed";

/// What a curve shows. JSON uses the same ids.
macro_rules! measures {
    ($($(#[$doc:meta])* $variant:ident $id:literal $title:literal $event:literal $name:literal $value:literal $peak:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Measure { $($(#[$doc])* $variant),* }
        impl Measure {
            pub const ALL: &'static [Measure] = &[$(Measure::$variant),*];
            pub const fn id(self) -> &'static str {
                match self { $(Measure::$variant => $id),* }
            }
            pub const fn title(self) -> &'static str {
                match self { $(Measure::$variant => $title),* }
            }
            /// Event, field that names the curve ("": only one curve), field with its value, field with its peak.
            const fn fields(self) -> (&'static str, &'static str, &'static str, &'static str) {
                match self { $(Measure::$variant => ($event, $name, $value, $peak)),* }
            }
        }
    };
}

measures! {
    Rss "rss" "RSS" "jdk.ResidentSetSize" "" "size" "peak"
    LedgerRss "ledger-rss" "RSS by smaps" "plimsoll.Ledger" "" "rss" ""
    Charged "cgroup-charged" "charged to the cgroup" "plimsoll.Cgroup" "" "charged" "peak"
    WorkingSet "cgroup-working-set" "working set of the cgroup" "plimsoll.Cgroup" "" "workingSet" ""
    Limit "cgroup-limit" "memory limit" "plimsoll.Cgroup" "" "limit" ""
    HeapCommitted "heap-committed" "Java heap committed (GC)" "jdk.GCHeapSummary" "" "heapSpace.committedSize" ""
    HeapOccupied "heap-occupied" "Java heap occupied (GC)" "jdk.GCHeapSummary" "" "heapUsed" ""
    Metaspace "metaspace-committed" "metaspace committed (GC)" "jdk.MetaspaceSummary" "" "metaspace.committed" ""
    /// A number of threads, used by the verdicts; not a row of bytes.
    Threads "java-threads" "Java threads" "jdk.JavaThreadStatistics" "" "activeCount" ""
    DirectBuffers "direct-buffers" "direct buffers (java.nio)" "jdk.DirectBufferStatistics" "" "memoryUsed" ""
    Line "line" "resident" "plimsoll.LedgerLine" "line" "resident" ""
    /// Error of `Line`: shown beside it.
    LineError "line-error" "error" "plimsoll.LedgerLine" "line" "error" ""
    /// Nanoseconds, not bytes; shown as one sentence.
    Age "provenance-age" "age of the owners" "plimsoll.Ledger" "" "provenanceAge" ""
    LineCommitted "line-committed" "committed" "plimsoll.LedgerLine" "line" "committed" ""
    Committed "category-committed" "committed" "jdk.NativeMemoryUsage" "type" "committed" ""
    Reserved "category-reserved" "reserved" "jdk.NativeMemoryUsage" "type" "reserved" ""
    TotalCommitted "total-committed" "committed, all categories" "jdk.NativeMemoryUsageTotal" "" "committed" ""
    TotalReserved "total-reserved" "reserved, all categories" "jdk.NativeMemoryUsageTotal" "" "reserved" ""
    Live "category-live" "live" "plimsoll.Category" "category" "live" "peak"
    LiveCount "category-live-count" "live blocks" "plimsoll.Category" "category" "liveCount" ""
    TotalLive "total-live" "live, all categories" "plimsoll.Total" "" "live" "peak"
    /// The peaks of `Committed`, from Native Image and Plimsoll. HotSpot has no such events.
    PeakCommitted "category-peak" "peak committed" "jdk.NativeMemoryUsagePeak" "type" "" "peakCommitted"
    TotalPeakCommitted "total-peak" "peak committed, all categories" "jdk.NativeMemoryUsageTotalPeak" "" "" "peakCommitted"
}

impl Measure {
    /// The curve of the readings that a line or category of our own recordings belongs to.
    pub fn total(self) -> Option<Measure> {
        match self {
            Measure::Line | Measure::LineCommitted | Measure::LineError => Some(Measure::LedgerRss),
            Measure::Live | Measure::LiveCount | Measure::Committed | Measure::Reserved => Some(Measure::TotalLive),
            _ => None,
        }
    }
}

/// Limit of curves, because the file chooses the names.
const MOST_SERIES: usize = 512;
const LONGEST_NAME: usize = 200;

#[derive(Clone, Debug, Default)]
pub struct RecordedProcess {
    pub pid: Option<u64>,
    pub command: String,
    /// Such as `OpenJDK 64-Bit Server VM 25.0.1` or `native`.
    pub runtime: String,
    pub runtime_version: String,
    /// The command that names the callers of what it allocates; empty in recordings of others and older ones.
    pub(crate) callers: String,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub process: RecordedProcess,
    /// How the process ended, if the recording has it, and when it was last seen alive, ns since 1970.
    pub ending: Option<(Ending, Option<u64>)>,
    /// Times of the whole recording and of the requested part, ns since 1970 UTC.
    pub begin_ns: i64,
    pub end_ns: i64,
    pub from_ns: i64,
    pub to_ns: i64,
    pub chunks: Vec<ChunkSummary>,
    pub series: BTreeMap<(Measure, String), Series>,
    /// The groups with the memory limit, in the order of their first readings.
    pub limit_groups: Vec<LimitGroup>,
    pub verdicts: Vec<VerdictSpan>,
    pub counts: BTreeMap<String, u64>,
    pub gaps: Vec<Gap>,
    pub more_gaps: u64,
    /// When the end was recorded.
    ending_ns: Option<i64>,
    /// Recorded processes: one directory may contain files of several.
    pids: Vec<u64>,
    /// `plimsoll record` or `serve` wrote it.
    is_own: bool,
    vm: vm::RecordedVm,
    group_peak: limits::GroupPeak,
    queried: QueriedLines,
}

fn name_in(event: &Event<'_>, field: &str) -> String {
    let name = event.string(field).unwrap_or_default();
    if name.len() > LONGEST_NAME { name.chars().take(LONGEST_NAME).collect() } else { name.into_owned() }
}

/// The last live bytes and blocks of each category before the range.
#[derive(Default)]
struct FiguresBefore {
    known: BTreeMap<String, [u64; 2]>,
    /// Readings of categories beyond the limit.
    left_out: u64,
}

impl FiguresBefore {
    fn keep(&mut self, event: &Event<'_>) {
        let name = name_in(event, Measure::Live.fields().1);
        self.set(name, [Measure::Live, Measure::LiveCount].map(|of| event.u64(of.fields().2).unwrap_or(0)));
    }

    fn set(&mut self, name: String, values: [u64; 2]) {
        if self.known.len() < MOST_SERIES || self.known.contains_key(&name) {
            self.known.insert(name, values);
        } else {
            self.left_out += 1;
        }
    }
}

impl History {
    pub fn read(recording: &jfr::RecordingFiles, range: Range) -> Result<History, String> {
        let chunks = recording.chunks();
        let (Some(begin), Some(end)) =
            (chunks.iter().map(|chunk| chunk.begin_ns).min(), chunks.iter().map(|chunk| chunk.end_ns).max())
        else {
            return Err("it contains no chunk of a flight recording".into());
        };
        let (from, to) = range.resolve(begin, end)?;
        let mut history = History {
            begin_ns: begin,
            end_ns: end,
            from_ns: from.max(begin),
            to_ns: to.min(end),
            ..History::default()
        };
        let wanted = EventFilter::when(|of| {
            let is_measure = || Measure::ALL.iter().any(|measure| measure.fields().0 == of.name);
            matches!(
                of.name.as_str(),
                "jdk.JVMInformation" | "plimsoll.Target" | "plimsoll.TargetEnd" | "plimsoll.Verdict"
            ) || vm::EVENTS.contains(&of.name.as_str())
                || is_measure()
        });
        let mut left_out = 0u64;
        let mut lines = Lines::default();
        let mut limits = LimitGroups::default();
        let mut verdicts = verdicts::RecordedVerdicts::default();
        let mut before = FiguresBefore::default();
        let (lower, upper) = range.open_ended(from, to);
        let summary = recording.for_each(&wanted, |event| match event.name() {
            "jdk.JVMInformation" => history.jvm(event),
            "plimsoll.Target" => history.target(event),
            // Applies to the process, whatever part of its life was requested.
            "plimsoll.TargetEnd" => history.ended(event),
            name if vm::EVENTS.contains(&name) => history.vm.enter(event),
            name => {
                let Some(time) = event.time().filter(|time| *time <= upper) else { return };
                if time < lower {
                    // Both are recorded only when they change.
                    match name {
                        "plimsoll.Verdict" => verdicts.enter_before(event, time),
                        "plimsoll.Category" => before.keep(event),
                        _ => {}
                    }
                    return;
                }
                history.end_ns = history.end_ns.max(time);
                match name {
                    "plimsoll.Ledger" => {
                        lines.next(&mut history.series, Some(time), event.u64(Measure::Age.fields().2));
                    }
                    "plimsoll.Cgroup" => limits.enter(event, time),
                    "plimsoll.LedgerLine" => {
                        let (_, name, resident, _) = Measure::Line.fields();
                        lines.has(&event.string(name).unwrap_or_default(), event.u64(resident).unwrap_or(0));
                    }
                    _ => {}
                }
                if name == "plimsoll.Verdict" {
                    verdicts.enter(event, time);
                    return;
                }
                for measure in Measure::ALL.iter().filter(|measure| measure.fields().0 == name) {
                    left_out += u64::from(!history.enter(*measure, event, time));
                }
            }
        });
        // The header of an unfinished chunk has an earlier end than its events.
        if range.is_whole() || to >= end {
            history.to_ns = history.end_ns;
        }
        lines.next(&mut history.series, None, None);
        history.queried = lines.finish();
        let more_changes;
        (history.verdicts, more_changes) = verdicts.finish(history.from_ns, history.to_ns);
        history.chunks = summary.chunks;
        history.counts = summary.counts;
        (history.gaps, history.more_gaps) = (jfr::gaps(summary.flaws), summary.more_flaws);
        let (groups, more_groups) = limits.finish();
        history.limit_groups = groups;
        history.gaps.extend(more_groups);
        history.gaps.extend(more_changes);
        history.series.values_mut().for_each(Series::settle);
        left_out += history.hold(before);
        if left_out > 0 {
            let reason = format!("more than {MOST_SERIES} curves: {left_out} readings are left out");
            history.gaps.push(Gap::new(Source::Jfr, reason, "lines are missing"));
        }
        history.nothing_before();
        history.peaks();
        history.what_is_missing();
        let derived = verdicts::derived(&history);
        history.verdicts.extend(derived);
        if let Some(growth) = verdicts::growing(&history) {
            // Healthy moments don't imply that the whole time was healthy.
            history.verdicts.retain(|span| span.id != VerdictId::Healthy.id());
            for near in history.verdicts.iter_mut().filter(|span| span.id == VerdictId::LimitNear.id()) {
                near.summary += "; memory grows, so a higher limit only delays the kill";
                near.remedy.clone_from(&growth.remedy);
            }
            history.verdicts.insert(0, growth);
        }
        Ok(history)
    }

    fn enter(&mut self, measure: Measure, event: &Event<'_>, time: i64) -> bool {
        let (_, name, value, peak) = measure.fields();
        let name = if name.is_empty() { String::new() } else { name_in(event, name) };
        let is_full = self.series.len() >= MOST_SERIES;
        let series = match self.series.entry((measure, name)) {
            std::collections::btree_map::Entry::Vacant(_) if is_full => return false,
            entry => entry.or_default(),
        };
        // A limit of 0 means no limit.
        let value = event.u64(value).filter(|value| measure != Measure::Limit || *value > 0);
        value.into_iter().for_each(|value| series.push(time, value));
        let peak = event.u64(peak);
        let peak = if measure == Measure::Charged { self.group_peak.risen(event, peak) } else { peak };
        peak.into_iter().for_each(|peak| series.peak(peak));
        true
    }

    fn jvm(&mut self, event: &Event<'_>) {
        self.vm.enter(event);
        let text = |name: &str| event.string(name).unwrap_or_default().into_owned();
        self.is_of(event.u64("pid"));
        if !self.process.runtime.is_empty() {
            return;
        }
        self.process = RecordedProcess {
            pid: event.u64("pid"),
            command: text("javaArguments"),
            runtime: text("jvmName"),
            runtime_version: text("jvmVersion"),
            callers: String::new(),
        };
    }

    fn is_of(&mut self, pid: Option<u64>) {
        let new = pid.filter(|pid| self.pids.len() < 8 && !self.pids.contains(pid));
        self.pids.extend(new);
    }

    fn target(&mut self, event: &Event<'_>) {
        self.is_own = true;
        self.is_of(event.u64("pid"));
        // `serve` gives a program that was restarted the directory of the one that ended. The end of a process and its
        // description have the same time.
        if event.time() > self.ending_ns {
            self.ending = None;
        }
        let text = |name: &str| event.string(name).unwrap_or_default().into_owned();
        self.process = RecordedProcess {
            pid: event.u64("pid"),
            command: text("command"),
            runtime: text("runtime"),
            runtime_version: text("runtimeVersion"),
            callers: text("callers"),
        };
    }

    fn ended(&mut self, event: &Event<'_>) {
        let number = |name: &str| event.i64(name).and_then(|number| u8::try_from(number).ok());
        let state = event.string("state").unwrap_or_default();
        let (code, signal) = (number("exitCode"), number("signal").filter(|signal| *signal > 0));
        // The flag is about any process of the cgroup; the signal is this one's.
        let oom = match event.i64("oomKilled") {
            Some(1) if signal == Some(9) => Oom::Yes,
            Some(1) => Oom::InGroup,
            _ => Oom::Unknown,
        };
        let ending = Ending::from_words(&state, code, signal, oom);
        // `lastSign` is null (the smallest number) without a segment. Then the end has the time of this event: when the
        // recorder no longer found the process.
        let last_sign = event.i64("lastSign").filter(|at| *at != i64::MIN).and_then(|_| event.nanoseconds("lastSign"));
        let time = last_sign.or_else(|| event.time());
        self.ending = Some((ending, time.and_then(|at| u64::try_from(at).ok())));
        self.ending_ns = event.time();
    }

    /// Values from before the range apply at its beginning. Returns the number of those that have no space.
    fn hold(&mut self, before: FiguresBefore) -> u64 {
        let mut left_out = before.left_out;
        for (name, values) in before.known {
            for (measure, value) in [Measure::Live, Measure::LiveCount].into_iter().zip(values) {
                if self.series.len() < MOST_SERIES || self.series.contains_key(&(measure, name.clone())) {
                    self.series.entry((measure, name.clone())).or_default().begin(self.from_ns, value);
                } else {
                    left_out += 1;
                }
            }
        }
        left_out
    }

    /// Before a line or category existed, it was zero. So the curves of our own recordings sum to their total at each
    /// moment. (HotSpot's and Native Image's events of one moment have different times, and contain all categories.)
    fn nothing_before(&mut self) {
        for total in [Measure::LedgerRss, Measure::TotalLive] {
            let Some(moments) = self.one(total).map(|total| total.points().to_vec()) else { continue };
            let curves = self.series.iter_mut().filter(|((curve, _), _)| curve.total() == Some(total));
            curves.for_each(|(_, series)| series.nothing_before(&moments));
        }
    }

    /// Native Image records peaks in separate events; add them to the curves of the same name.
    fn peaks(&mut self) {
        for (of, peak) in
            [(Measure::Committed, Measure::PeakCommitted), (Measure::TotalCommitted, Measure::TotalPeakCommitted)]
        {
            let found: Vec<(String, Option<u64>)> =
                self.of(peak).map(|(name, series)| (name.to_string(), series.known_peak)).collect();
            for (name, value) in found {
                self.series.remove(&(peak, name.clone()));
                if let (Some(series), Some(value)) = (self.series.get_mut(&(of, name)), value) {
                    series.peak(value);
                }
            }
        }
        self.series.retain(|_, series| !series.points().is_empty());
    }

    fn what_is_missing(&mut self) {
        if self.pids.len() > 1 {
            let pids: Vec<String> = self.pids.iter().map(u64::to_string).collect();
            let reason = format!("these are recordings of several processes: {}", pids.join(", "));
            let gap = Gap::new(Source::Jfr, reason, MIXED);
            self.gaps.push(gap.remedy("name one file, or a directory with those of one process"));
        }
        if self.one(Measure::Committed).is_none()
            && self.of(Measure::Line).next().is_none()
            && self.of(Measure::Committed).next().is_none()
            && !self.is_own
        {
            let gap = Gap::new(Source::Jfr, "the recording has no jdk.NativeMemoryUsage", "no categories");
            self.gaps.push(gap.remedy(
                "start the JVM (20 or later) with -XX:NativeMemoryTracking=summary, build the native image with \
                 --enable-monitoring=nmt,jfr, or record with: plimsoll record PID -o FILE.jfr",
            ));
        }
        if self.rss().is_none() {
            self.gaps.push(self.why_no_rss());
        }
    }

    /// The gap of a recording, or of a part of it, without RSS.
    pub fn why_no_rss(&self) -> Gap {
        let gap = |reason: &str| Gap::new(Source::Jfr, reason, "no RSS");
        let has = |measure: Measure| self.counts.contains_key(measure.fields().0);
        match () {
            () if has(Measure::Rss) || has(Measure::LedgerRss) => {
                gap("this part of the recording has no reading of RSS")
            }
            () if self.is_own && self.ending.is_some() => gap("the program ended before the first reading of RSS"),
            () if self.is_own => gap("the recording ended before the first reading of RSS"),
            () => gap("the recording has no jdk.ResidentSetSize").remedy(
                "JDK 21 and later have it, native images don't; or record with: plimsoll record PID -o FILE.jfr",
            ),
        }
    }

    /// Whether `plimsoll record` or `serve` wrote it: then no setting of a JVM would have added a curve.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    pub fn of(&self, measure: Measure) -> impl Iterator<Item = (&str, &Series)> {
        let range = (measure, String::new())..;
        self.series.range(range).take_while(move |((of, _), _)| *of == measure).map(|((_, name), s)| (name.as_str(), s))
    }

    pub fn one(&self, measure: Measure) -> Option<&Series> {
        self.series.get(&(measure, String::new()))
    }

    /// The time of the last reading of a measure, ns since 1970. A category is recorded only when it changes, so the
    /// last reading of their sum is one of each category too.
    pub fn last_reading_ns(&self, measure: Measure) -> Option<i64> {
        let total = measure.total().and_then(|total| self.one(total));
        let all = self.of(measure).map(|(_, series)| series).chain(total);
        all.filter_map(|series| Some(series.points().last()?.end_ns)).max()
    }

    /// How long before the end a reading is, in ns, from one second on: shorter times are less than what a report shows.
    pub fn before_the_end(&self, reading_ns: i64) -> Option<u64> {
        u64::try_from(self.to_ns.saturating_sub(reading_ns)).ok().filter(|ago| *ago >= 1_000_000_000)
    }

    /// Whether the line's memory may be in another line at an instant without a query of the owners. Recordings without
    /// the age of the owners don't show it.
    pub(crate) fn needs_query(&self, line: &str) -> bool {
        let has_books = self.process.runtime == "native" && self.one(Measure::TotalLive).is_some();
        self.one(Measure::Age).is_some() && needs_query(line, has_books)
    }

    /// Whether the owners were queried often enough to say which line grows.
    fn queries_are_enough(&self) -> bool {
        let points = self.one(Measure::LedgerRss).map_or(&[][..], Series::points);
        let whole_ns =
            points.first().zip(points.last()).map_or(0, |(first, last)| last.end_ns.saturating_sub(first.begin_ns));
        self.queried.are_enough(whole_ns)
    }

    /// The readings that show whether a curve grows: all, or for most ledger lines only those at queries of the owners.
    /// None if there were too few queries.
    pub fn readings_of_growth<'h>(&'h self, measure: Measure, name: &str, all: &'h Series) -> Option<&'h Series> {
        match measure == Measure::Line && self.needs_query(name) {
            true => self.queried.of(name).filter(|_| self.queries_are_enough()),
            false => Some(all),
        }
    }

    pub fn rss(&self) -> Option<&Series> {
        self.one(Measure::Rss).or_else(|| self.one(Measure::LedgerRss))
    }

    /// What counts against the limit: the working set, or in a recording without it the charge.
    pub fn counted(&self) -> Option<&Series> {
        let has_readings = |series: &&Series| !series.points().is_empty();
        self.one(Measure::WorkingSet).filter(has_readings).or_else(|| self.one(Measure::Charged))
    }

    /// The committed Java heap: NMT records it each second, GC events only at each collection.
    pub fn java_heap(&self) -> Option<&Series> {
        let named = |measure, name: &str| self.series.get(&(measure, name.to_string()));
        named(Measure::LineCommitted, "java-heap")
            .or_else(|| named(Measure::Committed, "Java Heap"))
            .or_else(|| self.one(Measure::HeapCommitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_from_before_the_range_that_have_no_space_are_counted() {
        let mut before = FiguresBefore::default();
        for number in 0..MOST_SERIES + 3 {
            before.set(format!("category {number}"), [1, 1]);
        }
        before.set("category 0".into(), [2, 2]);
        assert_eq!(before.left_out, 3);
        let mut history = History::default();
        // Each has two curves.
        assert_eq!(history.hold(before), 3 + MOST_SERIES as u64);
        assert_eq!(history.series.len(), MOST_SERIES);
    }
}
