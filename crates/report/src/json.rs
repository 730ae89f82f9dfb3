//! Schema `plimsoll.report/1`, documented in docs/json.md. These types are the format; they are not the books, so that
//! the books may change without the format. Fields are only ever added; a change of meaning makes `/2`.

use std::io::{self, Write};

use plimsoll_observer::books::{
    Books, Caller, Category, Figures, Frame, Mode, Module, Origin, Own, ProcessFacts, Runtime, Thread,
};
use plimsoll_observer::gap::{Gap, Source};
use plimsoll_observer::source::segment::Life;
use plimsoll_observer::source::segment::parse::CounterFacts;
use plimsoll_observer::units::{Avma, Bytes};
use serde::{Deserialize, Serialize};

use crate::words::{moment, parse_moment};

pub const SCHEMA: &str = "plimsoll.report/1";

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    schema: String,
    time: String,
    process: Process,
    /// `live` or `dead`.
    state: String,
    /// `exited` or `killed`, of a dead process.
    end: Option<String>,
    mode: String,
    total: Line,
    peak_error_bytes: u64,
    categories: Vec<NamedLine>,
    sites: Vec<Site>,
    threads: Vec<ThreadLine>,
    modules: Vec<ModuleLine>,
    own: OwnCost,
    counters: Vec<CounterLine>,
    gaps: Vec<GapLine>,
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
    up_ns: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    live_bytes: u64,
    live_count: u64,
    requested_bytes: u64,
    peak_bytes: u64,
    count_at_peak: u64,
    peak_time: Option<String>,
    cumulative_bytes: u64,
    cumulative_count: u64,
    reserved_bytes: u64,
    committed_bytes: u64,
    #[serde(default)]
    mapped_file_bytes: u64,
    peak_reserved_bytes: u64,
    peak_committed_bytes: u64,
    resident_bytes: Option<u64>,
    at_total_peak_bytes: u64,
    at_total_peak_count: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct NamedLine {
    name: String,
    origin: String,
    #[serde(flatten)]
    line: Line,
}

#[derive(Debug, Serialize, Deserialize)]
struct Site {
    frames: Vec<FrameLine>,
    category: String,
    truncated: bool,
    #[serde(flatten)]
    line: Line,
    error_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct FrameLine {
    function: Option<String>,
    function_offset: u64,
    module: Option<String>,
    offset: u64,
    address: u64,
    file: Option<String>,
    line: Option<u32>,
    kind: String,
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

/// `bytes = trailer_blocks × 8 + private_bytes + segment_bytes`.
#[derive(Debug, Serialize, Deserialize)]
struct OwnCost {
    bytes: u64,
    trailer_blocks: u64,
    private_bytes: u64,
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

pub fn write(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &report(books)).map_err(io::Error::from)?;
    writeln!(out)
}

/// Reads what `write` wrote. The error is one sentence.
pub fn parse(bytes: &[u8]) -> Result<Books, String> {
    #[derive(Deserialize)]
    struct Title {
        schema: String,
    }
    let title: Title = serde_json::from_slice(bytes).map_err(|e| format!("it is no report: {e}"))?;
    if title.schema.starts_with("plimsoll.ledger/") {
        return Err("it is what explain wrote; wanted is: plimsoll report PID --format json -o FILE".into());
    }
    if title.schema != SCHEMA {
        return Err(format!(
            "its schema is '{}', this plimsoll reads '{SCHEMA}'",
            crate::words::cut(&title.schema, 40)
        ));
    }
    let report: Report = serde_json::from_slice(bytes).map_err(|e| format!("it is a damaged report: {e}"))?;
    books(report)
}

fn report(books: &Books) -> Report {
    let process = &books.process;
    Report {
        schema: SCHEMA.into(),
        time: moment(books.time_ns),
        process: Process {
            pid: process.pid,
            ppid: process.parent,
            command: if process.arguments.is_empty() {
                process.executable.clone()
            } else {
                process.arguments.join(" ")
            },
            executable: process.executable.clone(),
            arguments: process.arguments.clone(),
            runtime: process.runtime.name().into(),
            runtime_version: process.runtime_version.clone(),
            allocator: process.allocator.into(),
            threads: process.threads,
            start: moment(process.start_ns),
            up_ns: process.up_ns,
        },
        state: if books.life == Life::Live { "live" } else { "dead" }.into(),
        end: match books.life {
            Life::Live => None,
            Life::Exited => Some("exited".into()),
            Life::Killed => Some("killed".into()),
        },
        mode: books.mode.name().into(),
        total: line(&books.total),
        peak_error_bytes: books.peak_error.0,
        categories: books.categories.iter().map(named_line).collect(),
        sites: books.callers.iter().filter(|c| c.figures.cumulative_count > 0).map(|c| site(books, c)).collect(),
        threads: books.threads.iter().filter(|t| t.in_use || t.generation > 0).map(thread_line).collect(),
        modules: books.modules.iter().map(module_line).collect(),
        own: OwnCost {
            bytes: books.own.bytes().0,
            trailer_blocks: books.own.trailers,
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

fn line(f: &Figures) -> Line {
    Line {
        live_bytes: f.live.0,
        live_count: f.live_count,
        requested_bytes: f.requested.0,
        peak_bytes: f.peak.0,
        count_at_peak: f.count_at_peak,
        peak_time: f.peak_time_ns.map(moment),
        cumulative_bytes: f.cumulative.0,
        cumulative_count: f.cumulative_count,
        reserved_bytes: f.reserved.0,
        committed_bytes: f.committed.0,
        mapped_file_bytes: f.files.0,
        peak_reserved_bytes: f.peak_reserved.0,
        peak_committed_bytes: f.peak_committed.0,
        resident_bytes: f.resident.map(|b| b.0),
        at_total_peak_bytes: f.at_peak.0,
        at_total_peak_count: f.at_peak_count,
    }
}

fn figures(l: &Line) -> Figures {
    Figures {
        live: Bytes(l.live_bytes),
        live_count: l.live_count,
        requested: Bytes(l.requested_bytes),
        peak: Bytes(l.peak_bytes),
        count_at_peak: l.count_at_peak,
        peak_time_ns: l.peak_time.as_deref().and_then(parse_moment),
        cumulative: Bytes(l.cumulative_bytes),
        cumulative_count: l.cumulative_count,
        reserved: Bytes(l.reserved_bytes),
        committed: Bytes(l.committed_bytes),
        files: Bytes(l.mapped_file_bytes),
        peak_reserved: Bytes(l.peak_reserved_bytes),
        peak_committed: Bytes(l.peak_committed_bytes),
        resident: l.resident_bytes.map(Bytes),
        at_peak: Bytes(l.at_total_peak_bytes),
        at_peak_count: l.at_total_peak_count,
    }
}

fn named_line(category: &Category) -> NamedLine {
    NamedLine { name: category.name.clone(), origin: category.kind.name().into(), line: line(&category.figures) }
}

fn site(books: &Books, caller: &Caller) -> Site {
    Site {
        frames: caller.frames.iter().map(|frame| frame_line(books, frame)).collect(),
        category: books.categories.get(caller.category).map(|c| c.name.clone()).unwrap_or_default(),
        truncated: caller.truncated,
        line: line(&caller.figures),
        error_bytes: 0,
    }
}

fn frame_line(books: &Books, frame: &Frame) -> FrameLine {
    FrameLine {
        function: frame.function.clone(),
        function_offset: frame.function_offset,
        module: frame.module.and_then(|i| books.modules.get(i)).map(|m| m.path.clone()),
        offset: frame.offset,
        address: frame.address.0,
        file: None,
        line: None,
        kind: if frame.module.is_some() { "native" } else { "unknown" }.into(),
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
    let unknown =
        |what: &str, value: &str| format!("it is a damaged report: '{}' is no {what}", crate::words::cut(value, 40));
    let life = match (r.state.as_str(), r.end.as_deref()) {
        ("live", _) => Life::Live,
        ("dead", Some("exited")) => Life::Exited,
        ("dead", _) => Life::Killed,
        (other, _) => return Err(unknown("state", other)),
    };
    let mode = Mode::ALL.into_iter().find(|m| m.name() == r.mode).ok_or_else(|| unknown("mode", &r.mode))?;
    let modules: Vec<Module> = r.modules.iter().map(module).collect();
    let categories: Vec<Category> = r.categories.iter().map(category).collect();
    let callers = r.sites.into_iter().map(|s| caller(s, &categories, &modules)).collect();
    Ok(Books {
        time_ns: parse_moment(&r.time).ok_or_else(|| unknown("time", &r.time))?,
        life,
        mode,
        total: figures(&r.total),
        peak_error: Bytes(r.peak_error_bytes),
        process: process(r.process),
        categories,
        callers,
        threads: r.threads.into_iter().enumerate().map(thread).collect(),
        modules,
        // The map is not in the JSON: a saved report has no --style hotspot detail map.
        mappings: Vec::new(),
        own: Own {
            trailers: r.own.trailer_blocks,
            private: Bytes(r.own.private_bytes),
            segment: Bytes(r.own.segment_bytes),
            reserved: Bytes(r.own.reserved_bytes),
        },
        counters: r.counters.into_iter().map(|c| CounterFacts { name: c.name, unit: c.unit, value: c.value }).collect(),
        gaps: r.gaps.into_iter().map(|g| Gap::new(Source::Segment, g.reason, g.effect).remedy(g.remedy)).collect(),
    })
}

fn process(p: Process) -> ProcessFacts {
    const ALLOCATORS: [&str; 4] = ["glibc", "jemalloc", "tcmalloc", "mimalloc"];
    const RUNTIMES: [Runtime; 2] = [Runtime::HotSpot, Runtime::NativeImage];
    ProcessFacts {
        pid: p.pid,
        parent: p.ppid,
        executable: p.executable,
        arguments: p.arguments,
        runtime: RUNTIMES.into_iter().find(|r| r.name() == p.runtime).unwrap_or_default(),
        runtime_version: p.runtime_version,
        allocator: ALLOCATORS.into_iter().find(|a| *a == p.allocator).unwrap_or("unknown"),
        threads: p.threads,
        start_ns: parse_moment(&p.start).unwrap_or(0),
        up_ns: p.up_ns,
    }
}

fn category(l: &NamedLine) -> Category {
    let kind = Origin::ALL.into_iter().find(|o| o.name() == l.origin).unwrap_or_default();
    Category { name: l.name.clone(), kind, figures: figures(&l.line) }
}

fn caller(s: Site, categories: &[Category], modules: &[Module]) -> Caller {
    let frame = |f: FrameLine| Frame {
        address: Avma(f.address),
        module: f.module.and_then(|path| modules.iter().position(|m| m.path == path)),
        offset: f.offset,
        function: f.function,
        function_offset: f.function_offset,
    };
    Caller {
        category: categories.iter().position(|c| c.name == s.category).unwrap_or(0),
        truncated: s.truncated,
        figures: figures(&s.line),
        frames: s.frames.into_iter().map(frame).collect(),
    }
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
