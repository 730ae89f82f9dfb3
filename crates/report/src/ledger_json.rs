//! Schema `plimsoll.ledger/1`, documented in docs/json.md. These types are the format. They are not the ledger, so that
//! the ledger may change while the format stays. Fields are only ever added; a change of meaning makes `/2`.

use std::io::{self, Write};

use plimsoll_observer::ledger::{self, Baseline, Group, LineId};
use plimsoll_observer::snapshot::{ArenaKind, CgroupVersion, Snapshot};
use plimsoll_observer::units::Bytes;
use plimsoll_observer::verdict::certainty;
use serde::Serialize;

use crate::ledger_text::Explanation;
use crate::words::{moment, parse_moment};

pub const SCHEMA: &str = "plimsoll.ledger/1";

#[derive(Serialize)]
struct Ledger<'e> {
    schema: &'static str,
    time: String,
    process: Process<'e>,
    limit: Option<Limit>,
    rss_bytes: u64,
    /// RSS where a page that the process maps several times counts once.
    distinct_bytes: u64,
    pss_bytes: u64,
    remainder_bytes: u64,
    /// The remainder, plus the bytes inside lines that no source claims or could classify.
    unexplained_bytes: u64,
    overclaimed_bytes: u64,
    lines: Vec<Line<'e>>,
    groups: Vec<GroupSum>,
    arenas: Vec<Arena>,
    cgroup: Option<Cgroup<'e>>,
    gaps: Vec<Gap<'e>>,
    verdicts: Vec<Verdict<'e>>,
    readings: Vec<Reading>,
    /// The commands sent to the VM that leave memory in it.
    vm_keeps_symbols_for: Vec<&'e str>,
    /// Bytes that moved between smaps and the kernel's own sum.
    skew_bytes: Option<u64>,
    /// With `--baseline`: the changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Change>,
}

#[derive(Serialize)]
struct Change {
    time: String,
    rss_change_bytes: i64,
    lines: Vec<LineChange>,
}

#[derive(Serialize)]
struct LineChange {
    id: &'static str,
    change_bytes: i64,
}

#[derive(Serialize)]
struct Process<'e> {
    pid: u32,
    command: String,
    name: &'e str,
    runtime: &'static str,
    runtime_version: Option<&'e str>,
    threads: u64,
    uptime_seconds: Option<f64>,
    peak_rss_bytes: Option<u64>,
    swap_bytes: u64,
}

#[derive(Serialize)]
struct Limit {
    source: &'static str,
    bytes: u64,
    working_set_bytes: u64,
    charged_bytes: u64,
}

#[derive(Serialize)]
struct Line<'e> {
    id: &'static str,
    name: &'e str,
    resident_bytes: u64,
    distinct_bytes: u64,
    pss_bytes: u64,
    reserved_bytes: u64,
    committed_bytes: u64,
    grade: &'static str,
    error_bytes: u64,
    sources: Vec<&'static str>,
    children: Vec<Line<'e>>,
}

#[derive(Serialize)]
struct GroupSum {
    id: &'static str,
    resident_bytes: u64,
}

#[derive(Serialize)]
struct Arena {
    address: String,
    kind: &'static str,
    reserved_bytes: u64,
    resident_bytes: u64,
    live_bytes: u64,
    live_count: u64,
    retained_bytes: u64,
    retained_resident_bytes: u64,
    trimmable_bytes: u64,
    attached_threads: u64,
    whole: bool,
}

#[derive(Serialize)]
struct Cgroup<'e> {
    path: &'e str,
    version: u8,
    charged_bytes: u64,
    working_set_bytes: u64,
    limit_bytes: Option<u64>,
    lines: Vec<CgroupLine>,
    rest_bytes: i64,
    other_processes_bytes: u64,
    oom_kills: u64,
    cpu_quota: Option<f64>,
}

#[derive(Serialize)]
struct CgroupLine {
    id: &'static str,
    bytes: u64,
}

#[derive(Serialize)]
struct Gap<'e> {
    source: &'static str,
    reason: &'e str,
    effect: &'e str,
    remedy: &'e str,
}

#[derive(Serialize)]
struct Verdict<'e> {
    id: &'static str,
    severity: &'static str,
    bytes: u64,
    summary: &'e str,
    /// How sure the verdict is, in a few words.
    certainty: String,
    evidence: &'e [String],
    /// Upper bound of what the best remedy saves; `saving_least_bytes` is the lower bound.
    saving_bytes: Option<u64>,
    saving_least_bytes: Option<u64>,
    remedies: Vec<Remedy<'e>>,
}

#[derive(Serialize)]
struct Remedy<'e> {
    what: &'e str,
    how: &'e str,
    effort: &'static str,
    trade_off: &'e str,
    /// `modelled`: the bounds are computed from this snapshot. `unknown`: there are no bounds.
    confidence: &'static str,
    saving_least_bytes: Option<u64>,
    saving_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Reading {
    source: &'static str,
    began_ms: f64,
    took_ms: f64,
}

pub fn write(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    crate::lines::write_indented(out, &document(explanation))
}

fn document(explanation: &Explanation) -> Ledger<'_> {
    let Explanation { snapshot, ledger, verdicts } = explanation;
    Ledger {
        schema: SCHEMA,
        time: moment((snapshot.time.max(0.0) * 1e9) as u64),
        process: process(snapshot),
        limit: limit(explanation),
        rss_bytes: ledger.rss.0,
        distinct_bytes: ledger.distinct.0,
        pss_bytes: ledger.pss.0,
        remainder_bytes: ledger.remainder.0,
        unexplained_bytes: ledger.unexplained(snapshot).iter().map(|(_, bytes)| bytes.0).sum(),
        overclaimed_bytes: ledger.overclaimed.0,
        lines: ledger.lines.iter().map(line).collect(),
        groups: Group::ALL.map(|group| GroupSum { id: group.id(), resident_bytes: ledger.group(group).0 }).into(),
        arenas: arenas(snapshot),
        cgroup: cgroup(explanation),
        gaps: snapshot
            .gaps
            .iter()
            .map(|gap| Gap { source: gap.source.name(), reason: &gap.reason, effect: &gap.effect, remedy: &gap.remedy })
            .collect(),
        verdicts: verdicts.iter().map(|one| verdict(explanation, one)).collect(),
        readings: snapshot
            .readings
            .iter()
            .map(|reading| Reading {
                source: reading.source.name(),
                began_ms: reading.began.as_micros() as f64 / 1e3,
                took_ms: reading.took.as_micros() as f64 / 1e3,
            })
            .collect(),
        vm_keeps_symbols_for: snapshot.hotspot.iter().flat_map(|vm| vm.symbols_for.iter().copied()).collect(),
        skew_bytes: ledger.skew.map(|skew| skew.0),
        baseline: snapshot.baseline.as_ref().map(|baseline| Change {
            time: moment((baseline.time.max(0.0) * 1e9) as u64),
            rss_change_bytes: baseline.change_of_rss(ledger),
            lines: LineId::ALL
                .iter()
                .map(|id| LineChange { id: id.id(), change_bytes: baseline.change(ledger, *id) })
                .filter(|line| line.change_bytes != 0)
                .collect(),
        }),
    }
}

/// RSS with each page counted once is compared with `--limit`; the charge of the cgroup with the cgroup's limit.
fn limit(explanation: &Explanation) -> Option<Limit> {
    let Explanation { snapshot, ledger, .. } = explanation;
    if let Some(asked) = snapshot.limit_asked {
        let rss = ledger.distinct.0;
        return Some(Limit { source: "--limit", bytes: asked.0, working_set_bytes: rss, charged_bytes: rss });
    }
    let cgroup = snapshot.cgroup.as_ref()?;
    let source = match cgroup.version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    };
    Some(Limit {
        source,
        bytes: cgroup.limit?.0,
        working_set_bytes: cgroup.working_set().0,
        charged_bytes: cgroup.charged.0,
    })
}

fn process(snapshot: &Snapshot) -> Process<'_> {
    let process = &snapshot.process;
    let (runtime, runtime_version) = match (&snapshot.hotspot, &snapshot.native_image) {
        (Some(vm), _) => ("hotspot", Some(vm.version.as_str())),
        (None, Some(image)) => ("native-image", Some(image.version.as_str())),
        (None, None) => ("native", None),
    };
    Process {
        pid: process.pid,
        command: process.command.join(" "),
        name: &process.name,
        runtime,
        runtime_version: runtime_version.filter(|version| !version.is_empty()),
        threads: process.thread_count,
        uptime_seconds: process.uptime,
        peak_rss_bytes: process.peak_rss.map(|peak| peak.0),
        swap_bytes: process.swap.0,
    }
}

fn line(line: &ledger::Line) -> Line<'_> {
    Line {
        id: line.id.id(),
        name: &line.name,
        resident_bytes: line.resident.0,
        distinct_bytes: line.distinct.0,
        pss_bytes: line.pss.0,
        reserved_bytes: line.reserved.0,
        committed_bytes: line.committed.0,
        grade: line.grade.name(),
        error_bytes: line.error.0,
        sources: line.sources.iter().map(|source| source.name()).collect(),
        children: line.children.iter().map(self::line).collect(),
    }
}

fn arenas(snapshot: &Snapshot) -> Vec<Arena> {
    let arenas = snapshot.glibc.iter().flat_map(|glibc| &glibc.arenas);
    arenas
        .map(|arena| Arena {
            address: format!("{:#x}", arena.address),
            kind: match arena.kind {
                ArenaKind::Main => "main",
                ArenaKind::Thread => "thread",
            },
            reserved_bytes: arena.reserved.0,
            resident_bytes: (arena.live_resident + arena.free_resident + arena.unknown_resident).0,
            live_bytes: arena.live.0,
            live_count: arena.live_count,
            retained_bytes: arena.free().0,
            retained_resident_bytes: arena.free_resident.0,
            trimmable_bytes: arena.trimmable.0,
            attached_threads: arena.attached_threads,
            whole: arena.whole,
        })
        .collect()
}

fn cgroup(explanation: &Explanation) -> Option<Cgroup<'_>> {
    let facts = explanation.snapshot.cgroup.as_ref()?;
    let sum = explanation.ledger.cgroup.as_ref()?;
    Some(Cgroup {
        path: &facts.path,
        version: match facts.version {
            CgroupVersion::V1 => 1,
            CgroupVersion::V2 => 2,
        },
        charged_bytes: sum.charged.0,
        working_set_bytes: sum.working_set.0,
        limit_bytes: sum.limit.map(|limit| limit.0),
        lines: sum.lines.iter().map(|(id, _, Bytes(bytes))| CgroupLine { id, bytes: *bytes }).collect(),
        rest_bytes: sum.rest,
        other_processes_bytes: sum.other_processes.0,
        oom_kills: facts.oom.oom_kill,
        cpu_quota: facts.cpu_quota,
    })
}

fn verdict<'e>(of: &'e Explanation, verdict: &'e plimsoll_observer::verdict::Verdict) -> Verdict<'e> {
    Verdict {
        id: verdict.id.id(),
        severity: verdict.severity.name(),
        bytes: verdict.bytes.0,
        summary: &verdict.summary,
        certainty: certainty(&of.snapshot, &of.ledger, verdict),
        evidence: &verdict.evidence,
        saving_bytes: verdict.saving().map(|(_, most)| most.0),
        saving_least_bytes: verdict.saving().map(|(least, _)| least.0),
        remedies: verdict
            .remedies
            .iter()
            .map(|remedy| Remedy {
                what: &remedy.what,
                how: &remedy.how,
                effort: remedy.effort.name(),
                trade_off: &remedy.trade_off,
                confidence: remedy.effect.confidence(),
                saving_least_bytes: remedy.effect.bounds().map(|(least, _)| least.0),
                saving_bytes: remedy.effect.bounds().map(|(_, most)| most.0),
            })
            .collect(),
    }
}

/// The part of an earlier explanation that a comparison needs, and the process that it describes.
pub struct Earlier {
    pub pid: u32,
    pub baseline: Baseline,
}

/// Reads the output of `write`. Lines that only a later version knows are left out.
pub fn parse_baseline(bytes: &[u8]) -> Result<Earlier, String> {
    #[derive(serde::Deserialize)]
    struct Written {
        schema: String,
        time: String,
        process: WrittenProcess,
        rss_bytes: u64,
        lines: Vec<WrittenLine>,
    }
    #[derive(serde::Deserialize)]
    struct WrittenProcess {
        pid: u32,
    }
    #[derive(serde::Deserialize)]
    struct WrittenLine {
        id: String,
        resident_bytes: u64,
        #[serde(default)]
        error_bytes: u64,
    }
    let written: Written =
        serde_json::from_slice(bytes).map_err(|error| format!("is not what explain writes: {error}"))?;
    let time = parse_moment(&written.time).ok_or("has no time that can be read")? as f64 / 1e9;
    if written.schema != SCHEMA {
        return Err(format!("has the schema '{}', not {SCHEMA}", crate::words::printable(&written.schema)));
    }
    let id = |text: &str| LineId::ALL.iter().copied().find(|id| id.id() == text);
    let figures = |of: fn(&WrittenLine) -> u64| {
        let lines = written.lines.iter().filter_map(|line| Some((id(&line.id)?, Bytes(of(line)))));
        lines.collect::<Vec<_>>()
    };
    let (lines, errors) = (figures(|line| line.resident_bytes), figures(|line| line.error_bytes));
    let baseline = Baseline { time, rss: Bytes(written.rss_bytes), lines, errors };
    Ok(Earlier { pid: written.process.pid, baseline })
}
