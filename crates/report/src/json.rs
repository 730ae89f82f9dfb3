//! Schemas `plimsoll.report/1` and `/2`, documented in docs/json.md. These types are the format. They are not the
//! books, so that the books may change while the format stays. Fields are only ever added; a change of meaning makes
//! `/3`.
//!
//! `/2` holds each frame once, in a table, and each site holds indices into it instead of `frames`. That saves most of
//! the bytes of a report with many sites. Both schemas can be read.

use std::collections::HashMap;
use std::io::{self, Write};

use plimsoll_facts::ending::{Ending, How, Oom};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_tracked::books::{
    Before, Books, Caller, Category, Frame, Mode, Module, Origin, ProcessFacts, Runtime, Thread, TrackerCost,
};
use plimsoll_tracked::segment::Life;
use plimsoll_tracked::segment::parse::CounterFacts;
use plimsoll_tracked::sites::Sites;
use serde::{Deserialize, Serialize};

use crate::figures_json::{Line, figures, line};
use crate::frame_table::{FrameLine, FrameTable, frame_line};
use crate::json_lines::{self, Each};
use crate::sites_json::{self, SiteLine, WrittenSite};
use crate::words::{moment, parse_moment};

pub const SCHEMA: &str = "plimsoll.report/1";
pub(crate) const SCHEMA_WITH_TABLE: &str = "plimsoll.report/2";

/// Where a report keeps the frames of its stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// `/1`: in each site.
    InSites,
    /// `/2`: once, in a table.
    InTable,
}

/// `F`, `S`, `C`: vectors when reading; when writing, iterators that make the arrays element by element.
#[derive(Debug, Serialize, Deserialize)]
struct Report<F = Vec<FrameLine>, S = Vec<SiteLine>, C = SiteLine> {
    schema: String,
    time: String,
    process: Process,
    /// `live`, `dead` or `detached`.
    state: String,
    /// How the process ended; null if it lives.
    end: Option<End>,
    /// The same as `end`, under its older name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<EndedLine>,
    mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode_since: Option<String>,
    /// The mean as it was set; 0: an older report, which lacks it.
    #[serde(default)]
    sample_mean_bytes: u64,
    total: Line,
    peak_error_bytes: u64,
    /// What an attached process held before the attach and still holds. Not in the total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before_the_attach: Option<BeforeLine>,
    categories: Vec<NamedLine>,
    /// Only in `/2`: the frames of sites and callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<F>,
    sites: S,
    /// Short stacks, whose sums are exact in every mode. Without deep stacks they are in `sites` instead.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    callers: Vec<C>,
    threads: Vec<ThreadLine>,
    modules: Vec<ModuleLine>,
    own: OwnCost,
    counters: Vec<CounterLine>,
    gaps: Vec<GapLine>,
}

/// Older files have a word: `exited`, `killed` or `detached`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum End {
    Line(EndedLine),
    Word(String),
}

/// How a process ended, here and in the schema of recordings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndedLine {
    /// `exited`, `signal`, `oom-killed`, `exec` or `unknown`.
    how: String,
    code: Option<u8>,
    signal: Option<u8>,
    /// null: unknown.
    oom_killed: Option<bool>,
    /// The kernel killed a process of its cgroup. Whether it was this one isn't known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cgroup_oom_kill: bool,
    /// The time of the end, or of the last sign of life.
    time: Option<String>,
    /// Whether `time` is that of the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_is_exact: Option<bool>,
    /// Whether it ran its exit handlers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    orderly: Option<bool>,
}

impl EndedLine {
    pub(crate) fn of(ending: &Ending, time_ns: Option<u64>) -> EndedLine {
        EndedLine {
            how: ending.id().into(),
            code: ending.code(),
            signal: ending.signal(),
            oom_killed: match ending.oom {
                Oom::Yes => Some(true),
                Oom::No => Some(false),
                Oom::Unknown | Oom::InGroup => None,
            },
            cgroup_oom_kill: ending.oom == Oom::InGroup,
            time: time_ns.map(moment),
            time_is_exact: None,
            orderly: None,
        }
    }

    fn of_books(books: &Books) -> Option<EndedLine> {
        let line = EndedLine::of(books.ending.as_ref()?, Some(books.time_ns));
        let orderly = Some(books.life == Life::Exited);
        Some(EndedLine { time_is_exact: Some(books.end_is_known), orderly, ..line })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct BeforeLine {
    live_bytes: u64,
    live_count: u64,
    /// Always `derived`: computed as arenas less books.
    grade: String,
    error_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Process {
    pid: u32,
    ppid: u32,
    command: String,
    executable: String,
    arguments: Vec<String>,
    runtime: String,
    runtime_version: Option<String>,
    allocator: String,
    threads: u64,
    start: String,
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    anonymous_bytes: Option<u64>,
    up_ns: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NamedLine {
    name: String,
    origin: String,
    #[serde(flatten)]
    line: Line,
}

#[derive(Debug, Serialize, Deserialize)]
struct ThreadLine {
    tid: u32,
    name: Option<String>,
    in_use: bool,
    generation: u64,
    allocated_bytes: u64,
    allocated_count: u64,
    freed_bytes: u64,
    freed_count: u64,
    stack_low: u64,
    stack_high: u64,
    stack_kind: u64,
    guard_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ModuleLine {
    path: String,
    start: u64,
    end: u64,
    bias: u64,
    build_id: String,
    loaded: bool,
    #[serde(flatten)]
    line: Line,
}

/// `bytes = private_bytes + segment_bytes + library_bytes`.
#[derive(Debug, Serialize, Deserialize)]
struct OwnCost {
    bytes: u64,
    trailer_blocks: u64,
    /// Least and most that the trailers add to the heap. Reports of older versions lack both.
    #[serde(default)]
    heap_growth_bytes: [u64; 2],
    private_bytes: u64,
    #[serde(default)]
    private_by_page: bool,
    #[serde(default)]
    side_table_blocks: u64,
    #[serde(default)]
    side_table_bytes: u64,
    #[serde(default)]
    library_bytes: u64,
    /// Computed from the other fields: least and most.
    #[serde(default)]
    bytes_a_block: Option<[f64; 2]>,
    segment_bytes: u64,
    reserved_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct CounterLine {
    name: String,
    unit: String,
    value: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct GapLine {
    source: String,
    reason: String,
    effect: String,
    remedy: String,
}

/// `sites`: the deep stacks, if there are any.
pub fn write(out: &mut dyn Write, books: &Books, sites: Option<&Sites>, layout: Frames) -> io::Result<()> {
    let mut frames = FrameTable::default();
    let callers: Vec<SiteLine> = books
        .callers
        .iter()
        .filter(|c| c.figures.cumulative_count > 0)
        .map(|c| caller_line(books, c, &mut frames))
        .collect();
    if let Some(sites) = sites {
        frames.add_all(&sites.profile);
    }
    let texts = (layout == Frames::InSites).then(|| frames.texts()).transpose().map_err(io::Error::from)?;
    let written = |line| WrittenSite { line, frames: texts.as_deref() };
    let table = (layout == Frames::InTable).then(|| frames.lines());
    let callers: Vec<WrittenSite> = callers.into_iter().map(written).collect();
    let Some(sites) = sites else { return json_lines::write(out, &report(books, table, callers, Vec::new())) };
    let each = Each(|| sites_json::lines(sites, &frames).map(written));
    json_lines::write(out, &report(books, table, each, callers))
}

/// Reads the output of `write`. The error is one sentence.
pub fn parse(bytes: &[u8]) -> Result<(Books, Sites), String> {
    #[derive(Deserialize)]
    struct Title {
        schema: String,
    }
    let title: Title = serde_json::from_slice(bytes).map_err(|e| format!("it isn't a report: {e}"))?;
    if title.schema.starts_with("plimsoll.ledger/") {
        return Err("it was written by explain; make a report with: plimsoll report PID --format json -o FILE".into());
    }
    if ![SCHEMA, SCHEMA_WITH_TABLE].contains(&title.schema.as_str()) {
        return Err(format!(
            "its schema is '{}', this plimsoll reads '{SCHEMA}' and '{SCHEMA_WITH_TABLE}'",
            crate::words::cut(&title.schema, 40)
        ));
    }
    let mut report: Report = serde_json::from_slice(bytes).map_err(|e| format!("it is a damaged report: {e}"))?;
    if title.schema == SCHEMA {
        let mut frames = FrameTable::default();
        for site in report.sites.iter_mut().chain(&mut report.callers) {
            site.stack = std::mem::take(&mut site.inline).into_iter().map(|f| frames.index_of(f)).collect();
        }
        report.frames = Some(frames.into_lines());
    }
    let modules: Vec<Module> = report.modules.iter().map(module).collect();
    let mut sites = sites_json::parse(&report.sites, report.frames.as_deref().unwrap_or_default(), &modules)?;
    let books = books(report)?;
    sites.profile.time_ns = books.time_ns;
    sites.profile.title = plimsoll_tracked::sites::title(&books);
    sites.profile.gaps = books.gaps.clone();
    Ok((books, sites))
}

fn report<'a, S>(
    books: &Books,
    frames: Option<&'a [FrameLine]>,
    sites: S,
    callers: Vec<WrittenSite<'a>>,
) -> Report<&'a [FrameLine], S, WrittenSite<'a>> {
    let process = &books.process;
    Report {
        schema: if frames.is_some() { SCHEMA_WITH_TABLE } else { SCHEMA }.into(),
        time: moment(books.time_ns),
        process: Process {
            pid: process.pid,
            ppid: process.parent,
            command: if process.arguments.is_empty() {
                process.executable.clone()
            } else {
                one_line(&process.arguments)
            },
            executable: process.executable.clone(),
            arguments: process.arguments.clone(),
            runtime: process.runtime.name().into(),
            runtime_version: process.runtime_version.clone(),
            allocator: process.allocator.into(),
            threads: process.threads,
            anonymous_bytes: process.anonymous.map(|bytes| bytes.0),
            start: moment(process.start_ns),
            since: Some(moment(process.since_ns)),
            up_ns: process.up_ns,
        },
        state: match books.life {
            Life::Live => "live",
            Life::Detached => "detached",
            Life::Exited | Life::Killed => "dead",
        }
        .into(),
        end: EndedLine::of_books(books).map(End::Line),
        ended: EndedLine::of_books(books),
        mode: books.mode.name().into(),
        mode_since: books.mode_since_ns.map(moment),
        sample_mean_bytes: books.sample_mean.0,
        total: line(&books.total),
        peak_error_bytes: books.peak_error.0,
        before_the_attach: books.before.map(|b| BeforeLine {
            live_bytes: b.live.0,
            live_count: b.live_count,
            grade: "derived".into(),
            error_bytes: b.error.0,
        }),
        // A category without a name was being registered at the time of the reading: it holds nothing.
        categories: books
            .categories
            .iter()
            .filter(|c| !c.name.is_empty() || !c.figures.is_empty())
            .map(named_line)
            .collect(),
        frames,
        sites,
        callers,
        threads: books.threads.iter().filter(|t| t.in_use || t.generation > 0).map(thread_line).collect(),
        modules: books.modules.iter().map(module_line).collect(),
        own: OwnCost {
            bytes: books.own.bytes().0,
            trailer_blocks: books.own.trailers,
            heap_growth_bytes: [books.own.growth.0.0, books.own.growth.1.0],
            private_by_page: books.own.by_page,
            side_table_blocks: books.own.tabled,
            side_table_bytes: books.own.side_table.0,
            library_bytes: books.own.library.0,
            bytes_a_block: books.own.of_a_block().map(|cost| cost.map(|bytes| (bytes * 10.0).round() / 10.0)),
            private_bytes: books.own.private.0,
            segment_bytes: books.own.segment.0,
            reserved_bytes: books.own.reserved.0,
        },
        counters: books
            .counters
            .iter()
            .map(|c| CounterLine { name: c.name.clone(), unit: c.unit.clone(), value: c.value })
            .collect(),
        gaps: books
            .gaps
            .iter()
            .map(|g| GapLine {
                source: g.source.name().into(),
                reason: g.reason.clone(),
                effect: g.effect.clone(),
                remedy: g.remedy.clone(),
            })
            .collect(),
    }
}

fn named_line(category: &Category) -> NamedLine {
    NamedLine { name: category.name.clone(), origin: category.kind.name().into(), line: line(&category.figures) }
}

fn caller_line(books: &Books, caller: &Caller, frames: &mut FrameTable) -> SiteLine {
    SiteLine {
        stack: caller.frames.iter().map(|frame| frames.index_of(frame_line(books, frame))).collect(),
        inline: Vec::new(),
        category: books.categories.get(caller.category).map(|c| c.name.clone()).unwrap_or_default(),
        truncated: caller.truncated,
        line: line(&caller.figures),
        error_bytes: 0,
        error_count: 0,
        cumulative_error_bytes: 0,
        cumulative_error_count: 0,
        division_error_bytes: 0,
        division_error_count: 0,
        of_caller: 0,
        unsampled: false,
        held_bytes: caller.figures.held().0,
        temporary_bytes: 0,
        mapped_bytes: 0,
        mapped_count: 0,
        samples: 0,
        live_samples: 0,
        sizes: Vec::new(),
        oldest_ns: None,
        median_age_ns: None,
        threads: Vec::new(),
    }
}

fn thread_line(t: &Thread) -> ThreadLine {
    ThreadLine {
        tid: t.tid,
        name: t.name.clone(),
        in_use: t.in_use,
        generation: t.generation,
        allocated_bytes: t.allocated.0,
        allocated_count: t.allocated_count,
        freed_bytes: t.freed.0,
        freed_count: t.freed_count,
        stack_low: t.stack_range.0.0,
        stack_high: t.stack_range.1.0,
        stack_kind: t.stack_kind,
        guard_bytes: t.guard.0,
    }
}

fn module_line(m: &Module) -> ModuleLine {
    ModuleLine {
        path: m.path.clone(),
        start: m.range.0.0,
        end: m.range.1.0,
        bias: m.bias,
        build_id: m.build_id.iter().map(|b| format!("{b:02x}")).collect(),
        loaded: m.unloaded_ns == 0,
        line: line(&m.figures),
    }
}

fn books(r: Report) -> Result<Books, String> {
    let unknown = |what: &str, value: &str| {
        format!("it is a damaged report: '{}' is not a valid {what}", crate::words::cut(value, 40))
    };
    let (word, line) = match r.end {
        Some(End::Word(word)) => (word, r.ended),
        Some(End::Line(line)) => (String::new(), Some(line)),
        None => (String::new(), r.ended),
    };
    let orderly = word == "exited" || line.as_ref().is_some_and(|line| line.orderly == Some(true));
    let end_is_known = line.as_ref().and_then(|line| line.time_is_exact).unwrap_or(orderly);
    let life = match r.state.as_str() {
        "live" => Life::Live,
        "detached" => Life::Detached,
        "dead" if word == "detached" => Life::Detached,
        "dead" if orderly => Life::Exited,
        "dead" => Life::Killed,
        other => return Err(unknown("state", other)),
    };
    let ending = match (life, line) {
        (Life::Live | Life::Detached, _) => None,
        (_, Some(ended)) => {
            let oom = match ended.oom_killed {
                Some(true) => Oom::Yes,
                Some(false) => Oom::No,
                None if ended.cgroup_oom_kill => Oom::InGroup,
                None => Oom::Unknown,
            };
            Some(Ending::from_words(&ended.how, ended.code, ended.signal, oom))
        }
        (Life::Exited, None) => Some(Ending::of(How::Exited)),
        (Life::Killed, None) => Some(Ending::UNKNOWN),
    };
    let mode = Mode::ALL.into_iter().find(|m| m.name() == r.mode).ok_or_else(|| unknown("mode", &r.mode))?;
    let modules: Vec<Module> = r.modules.iter().map(module).collect();
    let mut categories: Vec<Category> = r.categories.iter().map(category).collect();
    let mut index: HashMap<String, usize> = HashMap::new();
    for (at, category) in categories.iter().enumerate() {
        index.entry(category.name.clone()).or_insert(at);
    }
    // A category that only a caller names is added, so that each caller keeps its own category.
    let mut category_of = |name: &str| match index.get(name) {
        Some(at) => *at,
        None => {
            index.insert(name.to_owned(), categories.len());
            categories.push(Category { name: name.to_owned(), ..Category::default() });
            categories.len() - 1
        }
    };
    let callers = if r.callers.is_empty() { r.sites } else { r.callers };
    let frames: Vec<Frame> = r.frames.into_iter().flatten().map(|f| frame(f, &modules)).collect();
    let callers = callers.into_iter().map(|s| caller(s, &mut category_of, &frames)).collect::<Result<_, _>>()?;
    Ok(Books {
        time_ns: parse_moment(&r.time).ok_or_else(|| unknown("time", &r.time))?,
        life,
        end_is_known,
        ending,
        mode,
        mode_since_ns: r.mode_since.as_deref().and_then(parse_moment),
        sample_mean: Bytes(r.sample_mean_bytes),
        total: figures(&r.total),
        peak_error: Bytes(r.peak_error_bytes),
        before: r.before_the_attach.map(|b| Before {
            live: Bytes(b.live_bytes),
            live_count: b.live_count,
            error: Bytes(b.error_bytes),
        }),
        process: process(r.process),
        categories,
        callers,
        threads: r.threads.into_iter().enumerate().map(thread).collect(),
        modules,
        // The JSON has no memory map, so a saved report has no --style hotspot detail map.
        mappings: Vec::new(),
        stack_guards: Bytes::ZERO,
        arenas: Vec::new(),
        own_mappings: Vec::new(),
        own: TrackerCost {
            trailers: r.own.trailer_blocks,
            tabled: r.own.side_table_blocks,
            side_table: Bytes(r.own.side_table_bytes),
            library: Bytes(r.own.library_bytes),
            growth: (Bytes(r.own.heap_growth_bytes[0]), Bytes(r.own.heap_growth_bytes[1])),
            by_page: r.own.private_by_page,
            private: Bytes(r.own.private_bytes),
            segment: Bytes(r.own.segment_bytes),
            reserved: Bytes(r.own.reserved_bytes),
        },
        counters: r.counters.into_iter().map(|c| CounterFacts { name: c.name, unit: c.unit, value: c.value }).collect(),
        gaps: r.gaps.into_iter().map(|g| Gap::new(Source::Segment, g.reason, g.effect).remedy(g.remedy)).collect(),
    })
}

fn process(p: Process) -> ProcessFacts {
    const ALLOCATORS: [&str; 5] = ["glibc", "jemalloc", "tcmalloc", "mimalloc", "musl"];
    const RUNTIMES: [Runtime; 2] = [Runtime::HotSpot, Runtime::NativeImage];
    ProcessFacts {
        pid: p.pid,
        namespaced_pid: None,
        parent: p.ppid,
        executable: p.executable,
        arguments: p.arguments,
        runtime: RUNTIMES.into_iter().find(|r| r.name() == p.runtime).unwrap_or_default(),
        runtime_version: p.runtime_version,
        allocator: ALLOCATORS.into_iter().find(|a| *a == p.allocator).unwrap_or("unknown"),
        threads: p.threads,
        anonymous: p.anonymous_bytes.map(Bytes),
        start_ns: parse_moment(&p.start).unwrap_or(0),
        since_ns: parse_moment(p.since.as_ref().unwrap_or(&p.start)).unwrap_or(0),
        up_ns: p.up_ns,
    }
}

fn category(l: &NamedLine) -> Category {
    let kind = Origin::ALL.into_iter().find(|o| o.name() == l.origin).unwrap_or_default();
    Category { name: l.name.clone(), kind, figures: figures(&l.line) }
}

fn frame(f: FrameLine, modules: &[Module]) -> Frame {
    Frame {
        address: Avma(f.address),
        module: f.module.and_then(|path| modules.iter().position(|m| m.path == path)),
        offset: f.offset,
        function: f.function,
        function_offset: f.function_offset,
        file: f.file,
        line: f.line,
    }
}

fn caller(s: SiteLine, category_of: &mut impl FnMut(&str) -> usize, frames: &[Frame]) -> Result<Caller, String> {
    let frame = |index: u32| frames.get(index as usize).cloned().ok_or_else(|| sites_json::no_frame(index));
    Ok(Caller {
        category: category_of(&s.category),
        truncated: s.truncated,
        figures: figures(&s.line),
        frames: s.stack.into_iter().map(frame).collect::<Result<_, _>>()?,
    })
}

fn module(m: &ModuleLine) -> Module {
    let digits = m.build_id.as_bytes().chunks_exact(2);
    Module {
        path: m.path.clone(),
        range: (Avma(m.start), Avma(m.end)),
        bias: m.bias,
        build_id: digits.filter_map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect(),
        loaded_ns: 0,
        unloaded_ns: if m.loaded { 0 } else { u64::MAX },
        figures: figures(&m.line),
    }
}

fn thread((slot, t): (usize, ThreadLine)) -> Thread {
    Thread {
        slot,
        tid: t.tid,
        in_use: t.in_use,
        name: t.name,
        stack: Bytes(t.stack_high.saturating_sub(t.stack_low)),
        guard: Bytes(t.guard_bytes),
        stack_range: (Avma(t.stack_low), Avma(t.stack_high)),
        stack_kind: t.stack_kind,
        allocated: Bytes(t.allocated_bytes),
        allocated_count: t.allocated_count,
        freed: Bytes(t.freed_bytes),
        freed_count: t.freed_count,
        generation: t.generation,
    }
}
