//! Call sites in one of our recordings, as of the last complete instant up to a given time: `plimsoll.Site` → a
//! profile.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_jfr::reader::{self, Event, EventFilter, Summary};
use plimsoll_profiles::jfr::{RecordingFiles, gaps};
use plimsoll_profiles::profile::{
    Column, Frame, FrameId, FrameOrigin, Labels, Module, NameId, Profile, StackId, Value,
};
use plimsoll_tracked::sites::LIVE;

const SITE: &str = "plimsoll.Site";
const TARGET: &str = "plimsoll.Target";
const TOTAL: &str = "plimsoll.Total";

/// The columns that the events have: the first columns of sites, up to `TEMPORARY`.
fn columns() -> Vec<Column> {
    let mut columns = plimsoll_tracked::sites::columns();
    columns.truncate(plimsoll_tracked::sites::TEMPORARY);
    columns
}

/// Names in the event; the first value is an estimate.
const FIELDS: [&str; 7] = ["live", "liveCount", "cumulative", "cumulativeCount", "requested", "peak", "countAtPeak"];

pub enum RecordedSites {
    Of(Box<Profile>),
    /// Our recording without sites: the tracker's mode, the time of the first sites after the given time, if any, and
    /// what could not be read.
    None {
        mode: String,
        later_ns: Option<i64>,
        gaps: Vec<Gap>,
    },
    /// A recording of another program.
    Foreign,
}

/// `to_ns` is since 1970 UTC, inclusive.
pub fn sites(recording: &RecordingFiles, to_ns: Option<i64>) -> RecordedSites {
    let (mut mode, mut later_ns) = (None, None);
    let mut last: Option<i64> = None;
    let mut of = (String::new(), 0);
    // The time of the last total, and whether no block was allocated until then.
    let mut without_blocks = None;
    let is_wanted = |of: &reader::Type| [SITE, TARGET, TOTAL].contains(&&*of.name);
    let outline = recording.for_each(&EventFilter::when(is_wanted), |event| {
        if event.name() == TARGET {
            mode = event.string("mode").map(Cow::into_owned);
            of = (event.string("command").map(Cow::into_owned).unwrap_or_default(), event.u64("pid").unwrap_or(0));
            return;
        }
        let time = event.time().unwrap_or(0);
        if to_ns.is_some_and(|to| to < time) {
            if event.name() == SITE {
                later_ns = Some(later_ns.map_or(time, |later: i64| later.min(time)));
            }
            return;
        }
        match event.name() {
            TOTAL => without_blocks = Some(time).filter(|_| event.u64("cumulativeCount") == Some(0)),
            _ => last = last.max(Some(time)),
        }
    });
    let Some(last) = last.or(without_blocks.filter(|_| outline.flaws.is_empty())) else {
        let gaps = gaps(outline.flaws);
        return mode.map_or(RecordedSites::Foreign, |mode| RecordedSites::None { mode, later_ns, gaps });
    };
    // Only the stacks of one instant are decoded: they cost more than all else that is read.
    let mut filling = Filling::new(columns());
    filling.profile.time_ns = u64::try_from(last).unwrap_or(0);
    let is_wanted = |of: &reader::Type| of.name == SITE || of.name == TOTAL;
    let mut counted = None;
    let summary = recording.for_each(&EventFilter::when(is_wanted), |event| {
        if event.time().unwrap_or(0) != last {
            return;
        }
        match event.name() {
            TOTAL => counted = event.i64("live"),
            _ => filling.add(event),
        }
    });
    let mut profile = filling.finish(summary);
    if profile.total()[LIVE].variance > 0.0 {
        profile.columns[LIVE].exact_total = counted;
    }
    profile.title = format!("native memory of {}, pid {}", of.0, of.1);
    if profile.entries().all(|(_, values)| values[0].variance == 0.0) {
        return RecordedSites::Of(profile.into());
    }
    profile.gaps.push(Gap::new(
        Source::Jfr,
        "a recording has the error of live bytes only",
        "blocks, calls and peaks of sampled sites are shown without their error",
    ));
    RecordedSites::Of(profile.into())
}

/// Live bytes by call site at several moments: a column of the profile for each.
#[derive(Clone, Debug)]
pub struct SitesOverTime {
    pub profile: Profile,
    /// ns since 1970, rising.
    pub times_ns: Vec<i64>,
    /// Moments in the recording that have sites.
    pub recorded: u64,
}

/// At most `most` moments of the range, evenly spread, including the first and the last. None without sites.
pub fn sites_over_time(recording: &RecordingFiles, (from_ns, to_ns): (i64, i64), most: usize) -> Option<SitesOverTime> {
    let mut times = BTreeSet::new();
    let in_range = |event: &Event| event.time().filter(|time| (from_ns..=to_ns).contains(time));
    let is_site = |of: &reader::Type| of.name == SITE;
    recording.for_each(&EventFilter::when(is_site), |event| {
        times.extend(in_range(event).filter(|_| times.len() < MOST_MOMENTS));
    });
    let all: Vec<i64> = times.into_iter().collect();
    let last = all.len().checked_sub(1)?;
    let kept = most.clamp(1, all.len());
    let indexes = (0..kept).map(|n| if kept == 1 { last } else { n * last / (kept - 1) });
    let times_ns: Vec<i64> = indexes.map(|index| all[index]).collect();
    let mut filling = Filling::new(vec![Column::bytes("live"); times_ns.len()]);
    let summary = recording.for_each(&EventFilter::when(is_site), |event| {
        let Some(column) = event.time().and_then(|time| times_ns.binary_search(&time).ok()) else { return };
        let mut values = vec![Value::default(); times_ns.len()];
        values[column] = Value::exact(event.u64("live").unwrap_or(0));
        filling.add_values(event, &values);
    });
    Some(SitesOverTime { profile: filling.finish(summary), times_ns, recorded: all.len() as u64 })
}

/// Limit of moments, because the file chooses them: two months of moments 20 s apart.
const MOST_MOMENTS: usize = 1 << 18;
/// Limit of distinct stacks. Plimsoll writes 200.
const ENTRIES: usize = 10_000;

/// A profile that is filled from events.
struct Filling {
    profile: Profile,
    /// The current chunk, in which the keys of `stacks` are valid.
    chunk: u32,
    stacks: HashMap<i64, (StackId, Option<NameId>)>,
    /// Events whose stacks are beyond the limit.
    beyond: u64,
}

impl Filling {
    fn new(columns: Vec<Column>) -> Filling {
        Filling { profile: Profile::new(columns), chunk: 0, stacks: HashMap::new(), beyond: 0 }
    }

    fn finish(self, summary: Summary) -> Profile {
        let mut profile = self.profile;
        profile.gaps = gaps(summary.flaws);
        if self.beyond > 0 {
            let reason = format!("{} events had stacks beyond the limit", self.beyond);
            profile.gaps.push(Gap::new(Source::Jfr, reason, "their memory has no stack"));
        }
        profile
    }

    fn add(&mut self, event: &Event) {
        // The event has half the width of the 95 % interval.
        let sigma = event.u64("error").unwrap_or(0) as f64 / 1.96;
        let mut values = FIELDS.map(|field| Value::exact(event.u64(field).unwrap_or(0)));
        values[0].variance = sigma * sigma;
        self.add_values(event, &values);
    }

    fn add_values(&mut self, event: &Event, values: &[Value]) {
        let (stack, class) = self.stack(event);
        let category = event.string("category").filter(|name| !name.is_empty());
        let category = category.map(|name| self.profile.name(&name));
        let labels = Labels { category, class, ..Labels::default() };
        if !self.profile.add_within(ENTRIES, stack, labels, values) {
            self.beyond += 1;
            let stack = self.profile.stack(&[]);
            self.profile.add(stack, Labels { class: None, ..labels }, values);
        }
    }

    /// The stack, and the class of the Java method that requested the memory.
    fn stack(&mut self, event: &Event) -> (StackId, Option<NameId>) {
        if event.chunk_number != self.chunk {
            self.chunk = event.chunk_number;
            self.stacks.clear();
        }
        let profile = &mut self.profile;
        let key = event.key("stackTrace");
        if let Some(known) = key.and_then(|key| self.stacks.get(&key)) {
            return *known;
        }
        let (mut frames, mut class) = (Vec::new(), None);
        if let Some(stack) = event.stack() {
            for of in stack.frames() {
                if class.is_none() && is_java(&of) {
                    class = of.class().map(|name| profile.name(&name));
                }
                frames.push(frame(profile, &of));
            }
            if stack.is_truncated() {
                frames.push(profile.frame(Frame::truncated()));
            }
        }
        let found = (profile.stack(&frames), class);
        self.stacks.extend(key.map(|key| (key, found)));
        found
    }
}

/// Native blocks have no class; by class, they count under the innermost Java method that requested them.
fn is_java(of: &reader::Frame) -> bool {
    let (kind, class) = (of.kind().unwrap_or_default(), of.class().unwrap_or_default());
    !matches!(&*kind, "Native" | "Kernel") && !class.is_empty()
}

fn frame(profile: &mut Profile, of: &reader::Frame) -> FrameId {
    let class = of.class().unwrap_or_default();
    let name = of.method().unwrap_or_default().into_owned();
    let kind = of.kind().unwrap_or_default();
    let line = of.line();
    let frame = if is_java(of) {
        let function = Some(format!("{class}.{name}"));
        Frame { function, line, kind: FrameOrigin::Java, inlined: kind == "Inlined", ..Frame::default() }
    } else {
        let module = (!class.is_empty()).then(|| Module { path: class.into_owned(), ..Module::default() });
        let module = module.map(|module| profile.module(module));
        let kind = match &*kind {
            "Native" => FrameOrigin::Native,
            "Kernel" => FrameOrigin::Kernel,
            _ => FrameOrigin::Jit,
        };
        // A frame without a name is recorded by its offset.
        match name.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(offset) => {
                Frame { module, offset, address: plimsoll_facts::units::Avma(offset), kind, ..Frame::default() }
            }
            None => Frame { function: Some(name), module, line, kind, ..Frame::default() },
        }
    };
    profile.frame(frame)
}
