//! Schema `plimsoll.ledger/1`, documented in docs/json.md. These types are the format. They are not the ledger, so that
//! the ledger may change while the format stays. Fields are only ever added; a change of meaning makes `/2`.

use std::io::{self, Write};

use plimsoll_facts::gap::Source;
use plimsoll_facts::shell::one_line;
use plimsoll_facts::snapshot::{ArenaKind, CgroupVersion, Snapshot};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{self, Baseline, Group, LineId};
use plimsoll_observer::verdict;
use serde::{Deserialize, Serialize};

use crate::ledger_text::Explanation;
use crate::words::{moment, parse_moment};

pub const SCHEMA: &str = "plimsoll.ledger/1";

/// The document.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    pub(crate) schema: String,
    pub(crate) time: String,
    pub(crate) process: Process,
    pub(crate) limit: Option<Limit>,
    pub(crate) rss_bytes: u64,
    /// RSS where a page that the process maps several times counts once.
    pub(crate) distinct_bytes: u64,
    pub(crate) pss_bytes: u64,
    pub(crate) remainder_bytes: u64,
    /// The remainder, plus the bytes inside lines that no source claims or could classify.
    pub(crate) unexplained_bytes: u64,
    pub(crate) overclaimed_bytes: u64,
    pub(crate) lines: Vec<Line>,
    pub(crate) groups: Vec<GroupSum>,
    pub(crate) arenas: Vec<Arena>,
    /// V8's array buffers, which malloc holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) array_buffers: Option<ArrayBuffers>,
    /// V8's array buffers in mappings that V8 makes for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mapped_array_buffers: Option<ArrayBuffers>,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) readings: Vec<Reading>,
    /// The commands sent to the VM that leave memory in it.
    pub(crate) vm_keeps_symbols_for: Vec<String>,
    /// Bytes that moved between smaps and the kernel's own sum.
    pub(crate) skew_bytes: Option<u64>,
    /// With `--baseline`: the changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<BaselineChange>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ArrayBuffers {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BaselineChange {
    pub(crate) time: String,
    pub(crate) rss_change_bytes: i64,
    pub(crate) lines: Vec<LineChange>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LineChange {
    pub(crate) id: String,
    pub(crate) change_bytes: i64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) command: String,
    pub(crate) executable: Option<String>,
    pub(crate) name: String,
    pub(crate) runtime: String,
    pub(crate) runtime_version: Option<String>,
    pub(crate) threads: u64,
    pub(crate) uptime_seconds: Option<f64>,
    pub(crate) start_ticks: Option<u64>,
    pub(crate) boot_id: Option<String>,
    pub(crate) peak_rss_bytes: Option<u64>,
    pub(crate) swap_bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limit {
    pub(crate) source: String,
    pub(crate) bytes: u64,
    pub(crate) working_set_bytes: u64,
    pub(crate) charged_bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) resident_bytes: u64,
    pub(crate) distinct_bytes: u64,
    pub(crate) pss_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) committed_bytes: u64,
    pub(crate) grade: String,
    pub(crate) error_bytes: u64,
    pub(crate) sources: Vec<String>,
    pub(crate) children: Vec<Line>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GroupSum {
    pub(crate) id: String,
    pub(crate) resident_bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Arena {
    pub(crate) address: String,
    pub(crate) kind: String,
    pub(crate) reserved_bytes: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) live_count: u64,
    pub(crate) retained_bytes: u64,
    pub(crate) retained_resident_bytes: u64,
    pub(crate) trimmable_bytes: u64,
    pub(crate) attached_threads: u64,
    pub(crate) whole: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cgroup {
    pub(crate) path: String,
    pub(crate) version: u8,
    pub(crate) charged_bytes: u64,
    pub(crate) working_set_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) lines: Vec<CgroupLine>,
    pub(crate) rest_bytes: i64,
    pub(crate) other_processes_bytes: u64,
    pub(crate) oom_kills: u64,
    pub(crate) cpu_quota: Option<f64>,
    /// The group with the limit: this one or one above.
    pub(crate) limit_path: Option<String>,
    /// The other levels with a limit.
    pub(crate) further_limits: Vec<Level>,
    /// The levels with a memory.high.
    pub(crate) throttles: Vec<Throttle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Level {
    pub(crate) path: String,
    pub(crate) limit_bytes: u64,
    pub(crate) charged_bytes: u64,
    pub(crate) working_set_bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Throttle {
    pub(crate) path: String,
    pub(crate) high_bytes: u64,
    pub(crate) charged_bytes: u64,
    pub(crate) times: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CgroupLine {
    pub(crate) id: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Gap {
    pub(crate) source: String,
    pub(crate) reason: String,
    pub(crate) effect: String,
    pub(crate) remedy: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Verdict {
    pub(crate) id: String,
    pub(crate) severity: String,
    pub(crate) bytes: u64,
    pub(crate) summary: String,
    /// How sure the verdict is, in a few words.
    pub(crate) certainty: String,
    pub(crate) evidence: Vec<String>,
    /// Upper bound of what the best remedy saves; `saving_least_bytes` is the lower bound.
    pub(crate) saving_bytes: Option<u64>,
    pub(crate) saving_least_bytes: Option<u64>,
    pub(crate) remedies: Vec<Remedy>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Remedy {
    pub(crate) what: String,
    pub(crate) how: String,
    pub(crate) effort: String,
    pub(crate) trade_off: String,
    /// `modelled`: the bounds are computed from this snapshot. `unknown`: there are none, or they are too wide.
    pub(crate) confidence: String,
    pub(crate) saving_least_bytes: Option<u64>,
    pub(crate) saving_bytes: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reading {
    pub(crate) source: String,
    pub(crate) began_ms: f64,
    pub(crate) took_ms: f64,
}

pub fn write(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    crate::json_lines::write_indented(out, &document(explanation))
}

/// The document of an explanation.
pub fn document(explanation: &Explanation) -> Ledger {
    let Explanation { snapshot, ledger, verdicts } = explanation;
    document_of(snapshot, ledger, verdicts)
}

/// As `document`, for facts that the caller keeps.
pub fn document_of(snapshot: &Snapshot, ledger: &ledger::Ledger, verdicts: &[verdict::Verdict]) -> Ledger {
    Ledger {
        schema: SCHEMA.into(),
        time: moment((snapshot.time.max(0.0) * 1e9) as u64),
        process: process(snapshot),
        limit: limit(snapshot, ledger),
        rss_bytes: ledger.rss.0,
        distinct_bytes: ledger.distinct.0,
        pss_bytes: ledger.pss.0,
        remainder_bytes: ledger.remainder.0,
        unexplained_bytes: ledger.unexplained(snapshot).iter().map(|(_, bytes)| *bytes).sum::<Bytes>().0,
        overclaimed_bytes: ledger.overclaimed.0,
        lines: ledger.lines.iter().map(line).collect(),
        groups: Group::ALL
            .map(|group| GroupSum { id: group.id().into(), resident_bytes: ledger.group(group).0 })
            .into(),
        arenas: arenas(snapshot),
        array_buffers: snapshot
            .array_buffers()
            .map(|buffers| ArrayBuffers { count: buffers.count, bytes: buffers.bytes.0 }),
        mapped_array_buffers: Some(snapshot.mapped_array_buffers())
            .filter(|buffers| buffers.count > 0)
            .map(|buffers| ArrayBuffers { count: buffers.count, bytes: buffers.bytes.0 }),
        cgroup: cgroup(snapshot, ledger),
        gaps: snapshot
            .gaps
            .iter()
            .map(|gap| Gap {
                source: gap.source.name().into(),
                reason: gap.reason.clone(),
                effect: gap.effect.clone(),
                remedy: gap.remedy.clone(),
            })
            .collect(),
        verdicts: verdicts.iter().map(|one| verdict(snapshot, ledger, one)).collect(),
        readings: snapshot
            .readings
            .iter()
            .map(|reading| Reading {
                source: reading.source.name().into(),
                began_ms: reading.began.as_micros() as f64 / 1e3,
                took_ms: reading.took.as_micros() as f64 / 1e3,
            })
            .collect(),
        vm_keeps_symbols_for: snapshot
            .hotspot
            .iter()
            .flat_map(|vm| vm.symbols_for.iter().map(|text| text.to_string()))
            .collect(),
        skew_bytes: ledger.skew.map(|skew| skew.0),
        baseline: snapshot.baseline.as_ref().map(|baseline| BaselineChange {
            time: moment((baseline.time.max(0.0) * 1e9) as u64),
            rss_change_bytes: ledger.rss_change_since(baseline),
            lines: LineId::ALL
                .iter()
                .map(|id| LineChange { id: id.id().into(), change_bytes: ledger.change_since(baseline, *id) })
                .filter(|line| line.change_bytes != 0)
                .collect(),
        }),
    }
}

/// The source of a limit from the command line.
pub(crate) const REQUESTED: &str = "--limit";

/// RSS with each page counted once is compared with `--limit`; the charge of the cgroup with the cgroup's limit.
fn limit(snapshot: &Snapshot, ledger: &ledger::Ledger) -> Option<Limit> {
    if let Some(limit) = snapshot.limit_requested {
        let rss = ledger.distinct.0;
        return Some(Limit { source: REQUESTED.into(), bytes: limit.0, working_set_bytes: rss, charged_bytes: rss });
    }
    let cgroup = snapshot.cgroup.as_ref()?;
    let source = match cgroup.version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    };
    Some(Limit {
        source: source.into(),
        bytes: cgroup.limit?.0,
        working_set_bytes: cgroup.working_set().0,
        charged_bytes: cgroup.charged.0,
    })
}

fn process(snapshot: &Snapshot) -> Process {
    let process = &snapshot.process;
    let (runtime, runtime_version) = match (&snapshot.hotspot, &snapshot.native_image) {
        (Some(vm), _) => ("hotspot", Some(vm.version.as_str())),
        (None, Some(image)) => ("native-image", Some(image.version.as_str())),
        (None, None) => ("native", None),
    };
    Process {
        pid: process.pid,
        command: one_line(&process.command),
        executable: process.executable.clone(),
        name: process.name.clone(),
        runtime: runtime.into(),
        runtime_version: runtime_version.filter(|version| !version.is_empty()).map(str::to_owned),
        threads: process.thread_count,
        uptime_seconds: process.uptime,
        start_ticks: process.start_ticks,
        boot_id: process.boot_id.clone(),
        peak_rss_bytes: process.peak_rss.map(|peak| peak.0),
        swap_bytes: process.swap.0,
    }
}

fn line(line: &ledger::Line) -> Line {
    Line {
        id: line.id.id().into(),
        name: line.name.clone(),
        resident_bytes: line.resident.0,
        distinct_bytes: line.distinct.0,
        pss_bytes: line.pss.0,
        reserved_bytes: line.reserved.0,
        committed_bytes: line.committed.0,
        grade: line.grade.name().into(),
        error_bytes: line.error.0,
        sources: line.sources.iter().map(|source| source.name().to_owned()).collect(),
        children: line.children.iter().map(self::line).collect(),
    }
}

fn arenas(snapshot: &Snapshot) -> Vec<Arena> {
    let arenas = snapshot.glibc.iter().flat_map(|glibc| &glibc.arenas);
    arenas
        .map(|arena| Arena {
            address: format!("{:#x}", arena.address),
            kind: match arena.kind {
                ArenaKind::Main => "main".into(),
                ArenaKind::Thread => "thread".into(),
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

fn cgroup(snapshot: &Snapshot, ledger: &ledger::Ledger) -> Option<Cgroup> {
    let facts = snapshot.cgroup.as_ref()?;
    let sum = ledger.cgroup.as_ref()?;
    Some(Cgroup {
        path: facts.path.clone(),
        version: match facts.version {
            CgroupVersion::V1 => 1,
            CgroupVersion::V2 => 2,
        },
        charged_bytes: sum.charged.0,
        working_set_bytes: sum.working_set.0,
        limit_bytes: sum.limit.map(|limit| limit.0),
        lines: sum.lines.iter().map(|(id, _, Bytes(bytes))| CgroupLine { id: id.to_string(), bytes: *bytes }).collect(),
        rest_bytes: sum.rest,
        other_processes_bytes: sum.other_processes.0,
        oom_kills: facts.oom.oom_kill,
        cpu_quota: facts.cpu_quota,
        limit_path: facts.limit.map(|_| facts.limit_path.clone()),
        further_limits: facts.further.iter().filter_map(level).collect(),
        throttles: facts
            .throttles
            .iter()
            .map(|throttle| Throttle {
                path: throttle.path.clone(),
                high_bytes: throttle.high.0,
                charged_bytes: throttle.charged.0,
                times: throttle.times,
            })
            .collect(),
    })
}

fn level(level: &plimsoll_facts::snapshot::Cgroup) -> Option<Level> {
    Some(Level {
        path: level.limit_path.clone(),
        limit_bytes: level.limit?.0,
        charged_bytes: level.charged.0,
        working_set_bytes: level.working_set().0,
    })
}

fn verdict(snapshot: &Snapshot, ledger: &ledger::Ledger, verdict: &verdict::Verdict) -> Verdict {
    Verdict {
        id: verdict.id.id().into(),
        severity: verdict.severity.name().into(),
        bytes: verdict.bytes.0,
        summary: verdict.summary.clone(),
        certainty: verdict::certainty(snapshot, ledger, verdict),
        evidence: verdict.evidence.clone(),
        saving_bytes: verdict.saving().map(|(_, most)| most.0),
        saving_least_bytes: verdict.saving().map(|(least, _)| least.0),
        remedies: verdict
            .remedies
            .iter()
            .map(|remedy| Remedy {
                what: remedy.what.clone(),
                how: remedy.how.clone(),
                effort: remedy.effort.name().into(),
                trade_off: remedy.trade_off.clone(),
                confidence: remedy.effect.confidence().into(),
                saving_least_bytes: remedy.effect.figure().map(|(least, _)| least.0),
                saving_bytes: remedy.effect.figure().map(|(_, most)| most.0),
            })
            .collect(),
    }
}

/// Reads the output of `write`. A field that only a later version writes is ignored; a missing field is empty.
pub fn parse(bytes: &[u8]) -> Result<Ledger, String> {
    let ledger: Ledger = serde_json::from_slice(bytes)
        .map_err(|error| format!("isn't JSON that 'plimsoll explain PID --format json' wrote: {error}"))?;
    match ledger.schema == SCHEMA {
        true => Ok(ledger),
        false => Err(format!("has the schema '{}', not {SCHEMA}", crate::words::printable(&ledger.schema))),
    }
}

/// The part of an earlier explanation that a comparison needs, and the process that it describes.
pub struct Earlier {
    pub pid: u32,
    pub command: String,
    executable: Option<String>,
    start: Option<(String, u64)>,
    pub baseline: Baseline,
}

/// How far an earlier explanation and a snapshot may describe the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameProcess {
    Yes,
    /// The command line differs: the program changed its title, or it executed itself again.
    OtherArguments,
    /// Another program runs in the process since.
    OtherProgram,
    /// Its time and its uptime give another start than these of now: another process, or a clock that was set.
    OtherStart,
    No,
}

/// Starts that are derived from the wall clock and the uptime agree within this many seconds.
const SAME_START: f64 = 2.0;

impl Earlier {
    /// PIDs are used again, and each container has a process 1.
    pub fn is_of(&self, snapshot: &Snapshot) -> SameProcess {
        let process = &snapshot.process;
        if self.pid != process.pid {
            return SameProcess::No;
        }
        let start = process.boot_id.as_ref().zip(process.start_ticks);
        match (&self.start, start) {
            (Some((then, then_ticks)), Some((now, ticks))) if then == now && *then_ticks == ticks => {}
            (Some(_), Some(_)) => return SameProcess::No,
            // Written by an earlier version, or where /proc doesn't show them.
            _ => match self.baseline.uptime.zip(process.uptime) {
                Some((then, now)) if now < then => return SameProcess::No,
                Some((then, now)) => {
                    let moved = (snapshot.time - now) - (self.baseline.time - then);
                    if moved.abs() > SAME_START {
                        return SameProcess::OtherStart;
                    }
                }
                None => {
                    let started = process.uptime.map_or(0.0, |uptime| snapshot.time - uptime - 1.0);
                    if self.baseline.time < started {
                        return SameProcess::No;
                    }
                }
            },
        }
        // A package was installed again while the program ran.
        let path = |of: &Option<String>| of.as_deref().map(|path| path.trim_end_matches(" (deleted)").to_owned());
        match path(&self.executable).zip(path(&process.executable)) {
            Some((then, now)) if then != now => SameProcess::OtherProgram,
            // A program may set its own title.
            _ if !self.command.is_empty() && self.command != one_line(&process.command) => SameProcess::OtherArguments,
            _ => SameProcess::Yes,
        }
    }
}

/// Reads from the output of `write` what a comparison needs. Lines that only a later version writes are ignored.
pub fn parse_baseline(bytes: &[u8]) -> Result<Earlier, String> {
    #[derive(serde::Deserialize)]
    struct Written {
        schema: String,
        time: String,
        process: WrittenProcess,
        rss_bytes: u64,
        lines: Vec<WrittenLine>,
        #[serde(default)]
        gaps: Vec<WrittenGap>,
    }
    #[derive(serde::Deserialize)]
    struct WrittenGap {
        source: String,
    }
    #[derive(serde::Deserialize)]
    struct WrittenProcess {
        pid: u32,
        #[serde(default)]
        command: String,
        executable: Option<String>,
        uptime_seconds: Option<f64>,
        start_ticks: Option<u64>,
        boot_id: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct WrittenLine {
        id: String,
        resident_bytes: u64,
        #[serde(default)]
        error_bytes: u64,
    }
    let written: Written = serde_json::from_slice(bytes)
        .map_err(|error| format!("isn't JSON that 'plimsoll explain PID --format json' wrote: {error}"))?;
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
    let had_gap = |source: &Source| written.gaps.iter().any(|gap| gap.source == source.name());
    let lacking = Source::ALL.into_iter().filter(|source| source.decides_on_lines() && had_gap(source)).collect();
    let WrittenProcess { pid, command, executable, uptime_seconds: uptime, start_ticks, boot_id } = written.process;
    let baseline = Baseline { time, uptime, rss: Bytes(written.rss_bytes), lines, errors, lacking };
    Ok(Earlier { pid, command, executable, start: boot_id.zip(start_ticks), baseline })
}
