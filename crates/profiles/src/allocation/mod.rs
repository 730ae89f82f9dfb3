//! Which code allocates Java objects, from the allocation events of a recording. The result is a [`Profile`] by stack,
//! class and thread, the slow paths of each thread, and their cost in heap chunks.
//!
//! ```text
//! jdk.ObjectAllocationInNewTLAB     slow path: the thread's buffer (TLAB) was full and it took a new one    tlabSize
//! jdk.ObjectAllocationOutsideTLAB   slow path: the object went past the buffer                              allocationSize
//! jdk.ObjectAllocationSample        one of many allocations, standing for `weight` bytes                    weight
//! ```
//! Columns: `slow_path` (bytes that slow paths took from the heap; count of slow paths), `object` (bytes of the objects
//! that met a slow path), `sampled` (weights in bytes; count of samples). If the events are on, every slow path is
//! recorded, but not the objects allocated between them. So slow-path bytes show where heap is taken, and samples show
//! where objects come from. The two are never added. Slow paths are counted, sampled bytes of a stack are estimated.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::jfr::{self, RecordingFiles};
use crate::profile::{
    Column, Focus, Frame, FrameId, FrameOrigin, GroupBy, Labels, NameId, Profile, StackId, Value, Weight,
};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_jfr::reader::{Event, EventFilter, Summary, Type};

mod chunks;
#[cfg(test)]
mod tests;

pub use chunks::Chunks;
use chunks::{Rule, TakenMemory};

pub const IN_NEW_TLAB: &str = "jdk.ObjectAllocationInNewTLAB";
pub const OUTSIDE_TLAB: &str = "jdk.ObjectAllocationOutsideTLAB";
pub const SAMPLE: &str = "jdk.ObjectAllocationSample";
const VM: &str = "jdk.JVMInformation";
const SETTING: &str = "jdk.ActiveSetting";

/// Columns of the profile, by index.
pub const SLOW_PATH_BYTES: usize = 0;
pub const SLOW_PATHS: usize = 1;
pub const OBJECT_BYTES: usize = 2;
pub(crate) const SAMPLED_BYTES: usize = 3;
pub const SAMPLES: usize = 4;
const COLUMNS: usize = 5;

/// Limit of distinct stacks with their threads and classes; the rest is one entry, and a gap.
const ENTRIES: usize = 300_000;

/// What the recording says about its VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    /// Such as `OpenJDK 64-Bit Server VM` or `Substrate VM`.
    pub name: String,
    pub version: String,
    pub pid: Option<u64>,
}

impl Vm {
    pub fn is_native_image(&self) -> bool {
        self.name.contains("Substrate")
    }

    /// The feature version: 25 for `25.0.3+9-LTS`; 17 for `OpenJDK 64-Bit Server VM (17.0.18+8-Debian-1) for
    /// linux-amd64 JRE …`.
    pub fn feature(&self) -> Option<u32> {
        let version = self.version.split_once('(').map_or(&*self.version, |(_, inner)| inner);
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }
}

/// The slow paths of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadSlowPaths {
    pub thread: String,
    pub slow_paths: u64,
    pub bytes: u64,
    /// `None` if the VM has no heap chunks.
    pub chunks: Option<Chunks>,
}

#[derive(Clone, Debug, Default)]
pub struct Allocations {
    pub profile: Profile,
    pub vm: Vm,
    /// Number of events by name.
    pub events: BTreeMap<&'static str, u64>,
    /// The thread with most slow paths first.
    pub threads: Vec<ThreadSlowPaths>,
    /// Chunks of all threads.
    pub chunks: Option<Chunks>,
    /// For each column, the part outside the focus; all other fields are inside it.
    pub left_out: Vec<Value>,
}

impl Allocations {
    /// The default measure: slow paths if they were recorded, else samples.
    pub fn measure(&self) -> &'static str {
        // If nothing lies below the focus, the rest of the recording decides.
        let elsewhere = |column: usize| self.left_out.get(column).is_some_and(|value| value.amount > 0);
        match (self.slow_paths() > 0, self.count(SAMPLE) > 0) {
            (true, _) => "slow_path",
            (false, true) => "sampled",
            _ if elsewhere(SAMPLES) && !elsewhere(SLOW_PATHS) => "sampled",
            _ => "slow_path",
        }
    }

    pub fn slow_paths(&self) -> u64 {
        self.count(IN_NEW_TLAB) + self.count(OUTSIDE_TLAB)
    }

    fn count(&self, event: &str) -> u64 {
        self.events.get(event).copied().unwrap_or(0)
    }
}

/// Which events are read.
#[derive(Clone, Copy, Default)]
pub struct Choice<'a> {
    /// ns since 1970 UTC, both inclusive.
    pub from_ns: Option<i64>,
    pub to_ns: Option<i64>,
    /// Applies to the threads' slow paths and chunks too.
    pub focus: Option<&'a Focus>,
}

/// Reads the whole recording once.
pub fn read(recording: &RecordingFiles, choice: Choice) -> Allocations {
    // The settings refer to event types by number; each chunk's types resolve these numbers.
    let types: Rc<RefCell<HashMap<i64, &'static str>>> = Rc::default();
    let seen = Rc::clone(&types);
    let is_wanted = move |of: &Type| {
        let known = [IN_NEW_TLAB, OUTSIDE_TLAB, SAMPLE].into_iter().find(|name| *name == of.name);
        if let Some(name) = known {
            seen.borrow_mut().insert(of.id, name);
        }
        known.is_some() || of.name == VM || of.name == SETTING
    };
    // The VM and its settings are recorded at the start of each chunk, perhaps before the range.
    let in_range = |event: &Event| {
        let time = event.time().unwrap_or(0);
        choice.from_ns.is_none_or(|from| from <= time) && choice.to_ns.is_none_or(|to| time <= to)
    };
    let mut filling = Filling::new(choice.focus);
    let summary = recording.for_each(&EventFilter::when(is_wanted), |event| match event.name() {
        VM => filling.vm(event),
        SETTING => filling.setting(event, &types.borrow()),
        _ if in_range(event) => filling.allocation(event),
        _ => {}
    });
    filling.finish(summary)
}

/// The sizes in an event, for counting chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlowPath {
    object: u64,
    /// Size of the new buffer; `None`: the object was allocated outside it.
    buffer: Option<u64>,
}

impl SlowPath {
    fn taken(self) -> u64 {
        self.buffer.unwrap_or(self.object)
    }

    /// One for each column.
    fn values(self) -> [Value; COLUMNS] {
        let mut values = [Value::default(); COLUMNS];
        values[SLOW_PATH_BYTES] = Value::exact(self.taken());
        values[SLOW_PATHS] = Value::exact(1);
        values[OBJECT_BYTES] = Value::exact(self.object);
        values
    }
}

/// One for each column. Which allocation becomes the sample is chance: the number of samples of a stack varies as that
/// of random arrivals, so n samples of the weights w have the variance Σ w².
fn of_sample(weight: u64) -> [Value; COLUMNS] {
    let mut values = [Value::default(); COLUMNS];
    values[SAMPLED_BYTES] = Value::estimated(weight, weight as f64 * weight as f64);
    values[SAMPLES] = Value::exact(1);
    values
}

fn columns() -> Vec<Column> {
    vec![
        Column::bytes("slow_path"),
        Column::count("slow_path", "slow path"),
        Column::bytes("object"),
        Column::bytes("sampled"),
        Column::count("sampled", "sample"),
    ]
}

/// The profile for a comparison with another recording: in a comparison, the number of samples is chance, too.
pub fn comparable(of: &Allocations) -> Profile {
    let mut profile = of.profile.emptied();
    for (entry, values) in of.profile.entries() {
        let mut values = values.to_vec();
        values[SAMPLES].variance = values[SAMPLES].amount as f64;
        profile.add_copy(&of.profile, entry, (entry.stack, entry.labels), &values);
    }
    profile
}

struct Filling<'a> {
    focus: Option<&'a Focus>,
    allocations: Allocations,
    /// The current chunk, in which the keys of the next three fields are valid.
    chunk: u32,
    /// `None`: not below the focus.
    stacks: HashMap<i64, Option<StackId>>,
    classes: HashMap<i64, NameId>,
    threads: HashMap<i64, NameId>,
    slow_paths: HashMap<NameId, TakenMemory>,
    /// Events by name, inside and outside the focus.
    recorded: BTreeMap<&'static str, u64>,
    /// Events that were enabled in some chunk.
    enabled: Vec<&'static str>,
    beyond: u64,
}

impl<'a> Filling<'a> {
    fn new(focus: Option<&'a Focus>) -> Filling<'a> {
        let left_out = vec![Value::default(); COLUMNS];
        Filling {
            focus,
            allocations: Allocations { profile: Profile::new(columns()), left_out, ..Allocations::default() },
            chunk: 0,
            stacks: HashMap::new(),
            classes: HashMap::new(),
            threads: HashMap::new(),
            slow_paths: HashMap::new(),
            recorded: BTreeMap::new(),
            enabled: Vec::new(),
            beyond: 0,
        }
    }

    fn vm(&mut self, event: &Event) {
        let text = |name| event.string(name).map(Cow::into_owned).unwrap_or_default();
        self.allocations.vm = Vm { name: text("jvmName"), version: text("jvmVersion"), pid: event.u64("pid") };
    }

    fn setting(&mut self, event: &Event, types: &HashMap<i64, &'static str>) {
        let is_on =
            event.string("name").is_some_and(|n| n == "enabled") && event.string("value").is_some_and(|v| v == "true");
        let of = event.i64("id").and_then(|id| types.get(&id));
        if let (true, Some(name)) = (is_on, of)
            && !self.enabled.contains(name)
        {
            self.enabled.push(name);
        }
    }

    fn allocation(&mut self, event: &Event) {
        if event.chunk_number != self.chunk {
            self.chunk = event.chunk_number;
            self.stacks.clear();
            self.classes.clear();
            self.threads.clear();
        }
        let size = event.u64("allocationSize").unwrap_or(0);
        let (name, slow_path) = match event.name() {
            IN_NEW_TLAB => {
                let buffer = Some(event.u64("tlabSize").unwrap_or(0));
                (IN_NEW_TLAB, Some(SlowPath { object: size, buffer }))
            }
            OUTSIDE_TLAB => (OUTSIDE_TLAB, Some(SlowPath { object: size, buffer: None })),
            _ => (SAMPLE, None),
        };
        let values = match slow_path {
            Some(of) => of.values(),
            None => of_sample(event.u64("weight").unwrap_or(0)),
        };
        *self.recorded.entry(name).or_default() += 1;
        if let Some(time) = event.time().and_then(|t| u64::try_from(t).ok()) {
            self.allocations.profile.time_ns = self.allocations.profile.time_ns.max(time);
        }
        let Some(stack) = self.stack(event) else {
            self.allocations.left_out.iter_mut().zip(&values).for_each(|(sum, v)| *sum = sum.plus(*v));
            return;
        };
        *self.allocations.events.entry(name).or_default() += 1;
        let thread = self.thread(event);
        if let Some(of) = slow_path {
            self.slow_paths.entry(thread).or_default().add(of);
        }
        let labels = Labels { thread: Some(thread), class: Some(self.class(event)), category: None };
        if !self.allocations.profile.add_within(ENTRIES, stack, labels, &values) {
            self.beyond += 1;
            let stack = self.beyond_stack();
            self.allocations.profile.add(stack, Labels { class: None, ..labels }, &values);
        }
    }

    fn thread(&mut self, event: &Event) -> NameId {
        let key = event.key("eventThread");
        if let Some(known) = key.and_then(|k| self.threads.get(&k)) {
            return *known;
        }
        let thread = event.thread();
        let name = thread.and_then(|t| t.name()).filter(|n| !n.is_empty());
        let name = name.map(Cow::into_owned).or_else(|| {
            let thread = thread?;
            let kind = if thread.is_virtual() { "virtual thread" } else { "thread" };
            Some(format!("{kind} {}", thread.java_id().filter(|id| *id > 0).or_else(|| thread.os_id())?))
        });
        let id = self.allocations.profile.name(name.as_deref().unwrap_or("(no thread)"));
        self.threads.extend(key.map(|k| (k, id)));
        id
    }

    fn class(&mut self, event: &Event) -> NameId {
        let key = event.key("objectClass");
        if let Some(known) = key.and_then(|k| self.classes.get(&k)) {
            return *known;
        }
        let name = event.class("objectClass").map(|c| readable_class(&c));
        let id = self.allocations.profile.name(name.as_deref().unwrap_or("(no class)"));
        self.classes.extend(key.map(|k| (k, id)));
        id
    }

    fn stack(&mut self, event: &Event) -> Option<StackId> {
        let key = event.key("stackTrace");
        if let Some(known) = key.and_then(|k| self.stacks.get(&k)) {
            return *known;
        }
        let profile = &mut self.allocations.profile;
        let mut frames: Vec<FrameId> = vec![];
        if let Some(stack) = event.stack() {
            frames.extend(stack.frames().map(|frame| profile.frame(java_frame(&frame))));
            if stack.is_truncated() {
                frames.push(profile.frame(Frame::truncated()));
            }
        }
        let is_root = |f: &FrameId| {
            let function = profile.function_at(profile.function_of(*f));
            self.focus.is_none_or(|focus| focus.matches(&function.name))
        };
        let id = match (self.focus, frames.iter().rposition(is_root)) {
            (None, _) => Some(profile.stack(&frames)),
            (Some(_), root) => root.map(|root| profile.stack(&frames[..=root])),
        };
        self.stacks.extend(key.map(|k| (k, id)));
        id
    }

    fn beyond_stack(&mut self) -> StackId {
        let profile = &mut self.allocations.profile;
        let frame = Frame { function: Some("[stacks beyond the limit]".into()), ..Frame::default() };
        let frame = profile.frame(frame);
        profile.stack(&[frame])
    }

    fn finish(self, summary: Summary) -> Allocations {
        let mut allocations = self.allocations;
        let mut all = TakenMemory::default();
        self.slow_paths.values().for_each(|taken| all.merge(taken));
        let rule = Rule::of(&allocations.vm, &all).filter(|_| allocations.slow_paths() > 0);
        allocations.chunks = rule.as_ref().map(|rule| Chunks::of_all(rule, &all));
        for group in allocations.profile.group(GroupBy::Thread, SLOW_PATHS) {
            let [bytes, slow_paths] = [SLOW_PATH_BYTES, SLOW_PATHS].map(|c| group.values[c].amount.max(0) as u64);
            let id = allocations.profile.name(&group.name);
            if let Some(taken) = self.slow_paths.get(&id) {
                let chunks = rule.as_ref().map(|rule| Chunks::of_thread(rule, taken));
                allocations.threads.push(ThreadSlowPaths { thread: group.name, slow_paths, bytes, chunks });
            }
        }
        let has = |event: &str| self.recorded.contains_key(event) || self.enabled.contains(&event);
        let (of_slow_paths, of_samples) = (has(IN_NEW_TLAB) || has(OUTSIDE_TLAB), has(SAMPLE));
        for (index, column) in allocations.profile.columns.iter_mut().enumerate() {
            column.is_recorded = if index < SAMPLED_BYTES { of_slow_paths } else { of_samples };
        }
        // The weight of a sample is all that its thread allocated since the one before, so all weights together are
        // counted. Only their division among stacks is estimated.
        if self.focus.is_none() {
            allocations.profile.sums_are_counted(|at, _| at == SAMPLED_BYTES);
        }
        allocations.profile.gaps = jfr::gaps(summary.flaws);
        allocations.profile.gaps.extend(missing(&allocations.vm, &self.recorded, &self.enabled));
        if self.beyond > 0 {
            let reason = format!("{} allocation events had stacks beyond the limit", self.beyond);
            allocations.profile.gaps.push(Gap::new(Source::Jfr, reason, "they are one line"));
        }
        allocations
    }
}

/// What the recording lacks, and the command that enables it.
fn missing(vm: &Vm, recorded: &BTreeMap<&str, u64>, enabled: &[&str]) -> Option<Gap> {
    let lacks = |event: &&str| !recorded.contains_key(event) && !enabled.contains(event);
    let of_tlabs: Vec<&str> = [IN_NEW_TLAB, OUTSIDE_TLAB].into_iter().filter(lacks).collect();
    // If one of the two is enabled, that was a choice.
    if of_tlabs.len() < 2 {
        return None;
    }
    let has_samples = recorded.contains_key(SAMPLE);
    let effect = if has_samples {
        "slow paths and heap chunks can't be counted; what is shown are samples, throttled by the VM"
    } else {
        "nothing is known of allocations"
    };
    let settings: String = of_tlabs.iter().map(|event| format!(" {event}#enabled=true")).collect();
    let start = if vm.is_native_image() {
        "PROGRAM -XX:+FlightRecorder -XX:StartFlightRecording=settings=tlab.jfc,filename=recording.jfr"
    } else {
        "java -XX:StartFlightRecording=settings=tlab.jfc,filename=recording.jfr …"
    };
    let remedy = format!("jfr configure{settings} --output tlab.jfc; {start}");
    Some(Gap::new(Source::Jfr, format!("the recording has no {}", of_tlabs.join(" and no ")), effect).remedy(remedy))
}

fn java_frame(frame: &plimsoll_jfr::reader::Frame) -> Frame {
    let (class, method) = (frame.class(), frame.method());
    let function = match (&class, method) {
        (Some(class), Some(method)) => Some(format!("{class}.{method}")),
        (None, Some(method)) => Some(method.into_owned()),
        (Some(class), None) => Some(class.to_string()),
        (None, None) => None,
    };
    // A recording has no file names. The source file usually has the outermost class's name.
    let file = class.as_deref().and_then(|c| {
        let outer = c.split(['$', '/']).next().unwrap_or(c);
        outer.rsplit('.').next().filter(|name| !name.is_empty()).map(|name| format!("{name}.java"))
    });
    let line = frame.line();
    let inlined = frame.kind().is_some_and(|k| k == "Inlined");
    Frame {
        function,
        file: file.filter(|_| line.is_some()),
        line,
        kind: FrameOrigin::Java,
        inlined,
        ..Frame::default()
    }
}

/// `[Ljava.lang.String;` → `java.lang.String[]`, `[[B` → `byte[][]`; other names unchanged.
fn readable_class(name: &str) -> String {
    let element = name.trim_start_matches('[');
    let dimensions = name.len() - element.len();
    if dimensions == 0 {
        return name.to_string();
    }
    let element = match element {
        "B" => "byte",
        "C" => "char",
        "D" => "double",
        "F" => "float",
        "I" => "int",
        "J" => "long",
        "S" => "short",
        "Z" => "boolean",
        other => other.strip_prefix('L').and_then(|o| o.strip_suffix(';')).unwrap_or(other),
    };
    format!("{element}{}", "[]".repeat(dimensions))
}

/// Native images take heap chunks by mmap (or, since GR-59749, by committing a part of their reservation), so the
/// tracker recorded the chunks themselves. For a profile of mapping calls, returns the number of calls below
/// `slowPathNew*`, and their bytes if a column has them.
pub fn slow_paths_of_mappings(profile: &Profile, measure: &str) -> (u64, Option<u64>) {
    let (calls, bytes) = (profile.column(measure, Weight::Calls), profile.column(measure, Weight::Bytes));
    let mut sums = (0i64, 0i64);
    for (entry, values) in profile.entries() {
        let is_slow_path = profile.frames_of(entry.stack).iter().any(|f| {
            let name = &profile.function_at(profile.function_of(*f)).name;
            name.contains("ThreadLocalAllocation") && name.contains("slowPathNew")
        });
        if is_slow_path {
            let of = |column: Option<usize>| column.map_or(0, |c| values[c].amount);
            sums = (sums.0.saturating_add(of(calls)), sums.1.saturating_add(of(bytes)));
        }
    }
    (sums.0.max(0) as u64, bytes.map(|_| sums.1.max(0) as u64))
}

/// Whether some Java frame has a name: in a stripped image none has, and then no stack shows a `slowPathNew*`.
pub fn has_java_names(profile: &Profile) -> bool {
    let is_named = |f: &FrameId| {
        let function = profile.function_at(profile.function_of(*f));
        function.kind == FrameOrigin::Java && function.named
    };
    profile.entries().any(|(entry, _)| profile.frames_of(entry.stack).iter().any(is_named))
}
