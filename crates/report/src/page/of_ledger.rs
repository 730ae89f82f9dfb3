//! The page of a ledger: from `explain`, or from a JSON that it wrote earlier.

use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{Group, LineId, label_of};
use plimsoll_observer::verdict::Effect;

use super::model::{Bar, BarGroup, Bars, Cell, Gap, Limit, Page, Remedy, Table, Verdict};
use crate::ledger_json::{self as json, Ledger};
use crate::words::{count, counted, duration, signed};

/// Parts shown below a bar, and the percentage of its line below which a part is not shown.
const PARTS: usize = 4;
const WORTH: f64 = 2.0;
/// Rows of a table.
pub(crate) const ROWS: usize = 1000;

pub fn of_ledger(ledger: &Ledger) -> Page {
    let process = &ledger.process;
    let command = if process.command.trim().is_empty() { &process.name } else { &process.command };
    Page {
        title: command.trim().to_owned(),
        facts: facts(ledger),
        verdicts: ledger.verdicts.iter().map(verdict).collect(),
        bars: Some(bars(ledger)),
        tables: [lines(ledger), parts(ledger), threads(ledger), arenas(ledger), cgroup(ledger)]
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect(),
        gaps: ledger
            .gaps
            .iter()
            .map(|gap| Gap { reason: gap.reason.clone(), effect: gap.effect.clone(), remedy: gap.remedy.clone() })
            .collect(),
        notes: vec![format!("The same figures for programs: plimsoll explain {} --format json", process.pid)],
        ..Page::default()
    }
}

fn facts(ledger: &Ledger) -> Vec<String> {
    let process = &ledger.process;
    let mut facts = vec![format!("pid {}", process.pid)];
    if let Some(version) = &process.runtime_version {
        facts.push(format!("{} {version}", if process.runtime == "hotspot" { "HotSpot" } else { "native image" }));
    }
    // The largest u64 of nanoseconds is 584 years.
    facts.extend(process.uptime_seconds.map(|up| format!("up {}", duration((up.max(0.0) * 1e9) as u64))));
    facts.push(counted(process.threads, "thread"));
    facts.push(format!("RSS {}", Bytes(ledger.rss_bytes)));
    facts.extend(process.peak_rss_bytes.filter(|peak| *peak > ledger.rss_bytes).map(|n| format!("peak {}", Bytes(n))));
    facts.push(match &ledger.limit {
        Some(limit) => format!("limit {} ({})", Bytes(limit.bytes), limit.source),
        None => "no memory limit".into(),
    });
    if process.swap_bytes > 0 {
        facts.push(format!("swapped out {}", Bytes(process.swap_bytes)));
    }
    if let Some(baseline) = &ledger.baseline {
        facts.push(format!("{} RSS since {}", signed(baseline.rss_change_bytes), at(&baseline.time)));
    }
    facts.push(format!("read {}", at(&ledger.time)));
    facts
}

/// `2026-11-20 21:40:03 UTC`
fn at(time: &str) -> String {
    match (time.get(..10), time.get(11..19)) {
        (Some(day), Some(clock)) => format!("{day} {clock} UTC"),
        _ => time.to_owned(),
    }
}

fn verdict(of: &json::Verdict) -> Verdict {
    let gives = |remedy: &json::Remedy| {
        let bounds = remedy.saving_least_bytes.zip(remedy.saving_bytes);
        // Files of earlier versions have wider bounds, too.
        let figure = bounds.and_then(|(least, most)| Effect::Modelled(Bytes(least), Bytes(most)).figure());
        match figure.map(|(least, most)| [least, most].map(|bound| bound.to_string())) {
            Some([from, to]) if from != to => format!("{from} to {to}"),
            Some([_, to]) => format!("about {to}"),
            None => String::new(),
        }
    };
    Verdict {
        id: of.id.clone(),
        severity: of.severity.clone(),
        summary: of.summary.clone(),
        certainty: of.certainty.clone(),
        evidence: of.evidence.clone(),
        remedies: of
            .remedies
            .iter()
            .map(|remedy| Remedy {
                what: remedy.what.clone(),
                how: remedy.how.clone(),
                gives_back: gives(remedy),
                trade_off: remedy.trade_off.clone(),
            })
            .collect(),
    }
}

fn id_of(line: &json::Line) -> Option<LineId> {
    LineId::ALL.iter().copied().find(|id| id.id() == line.id)
}

fn group_of(line: &json::Line) -> Group {
    id_of(line).map_or(Group::Other, LineId::group)
}

pub(super) fn label(line: &json::Line) -> String {
    let resident = line.children.iter().filter(|child| child.resident_bytes > 0);
    let names = resident.map(|child| child.name.as_str());
    match id_of(line) {
        Some(LineId::OtherAllocator) => label_of(LineId::OtherAllocator, names),
        _ => line.name.clone(),
    }
}

fn bars(ledger: &Ledger) -> Bars {
    let mut groups = Vec::new();
    for (colour, group) in Group::ALL.into_iter().enumerate() {
        let lines = ledger.lines.iter().filter(|line| group_of(line) == group && line.resident_bytes > 0);
        let mut bars: Vec<Bar> = lines.map(|line| bar(line, ledger)).collect();
        if group == Group::Other && ledger.remainder_bytes > 0 {
            let note = "resident, and in no line".into();
            bars.push(Bar { name: "remainder".into(), bytes: ledger.remainder_bytes, note, parts: vec![] });
        }
        if !bars.is_empty() {
            groups.push(BarGroup { name: group.name().into(), colour, bars });
        }
    }
    let size = |group: &BarGroup| group.bars.iter().map(|bar| Bytes(bar.bytes)).sum::<Bytes>();
    // The group Other comes last, as in the text.
    groups.sort_by_key(|group| (group.name == Group::Other.name(), std::cmp::Reverse(size(group))));
    let limit = ledger.limit.as_ref().map(|limit| Limit {
        name: limit.source.clone(),
        bytes: limit.bytes,
        counted: limit.charged_bytes,
    });
    Bars {
        title: "Where the memory is".into(),
        sum_name: "RSS".into(),
        sum: ledger.rss_bytes,
        limit,
        groups,
        below: String::new(),
    }
}

fn bar(line: &json::Line, ledger: &Ledger) -> Bar {
    let mut notes = Vec::new();
    let change = ledger.baseline.iter().flat_map(|baseline| &baseline.lines).find(|change| change.id == line.id);
    notes.extend(change.map(|change| format!("{} since the baseline", signed(change.change_bytes))));
    if line.reserved_bytes > line.committed_bytes && line.committed_bytes > line.resident_bytes {
        notes.push(format!("committed {}", Bytes(line.committed_bytes)));
    }
    if line.grade == "estimated" {
        notes.push(match line.error_bytes {
            0 => "estimated".into(),
            error => format!("± {}", Bytes(error)),
        });
    }
    let worth = |child: &&json::Line| {
        line.children.len() > 1 && Bytes(child.resident_bytes).percent_of(Bytes(line.resident_bytes)) >= WORTH
    };
    let parts = line.children.iter().filter(worth).take(PARTS);
    Bar {
        name: label(line),
        bytes: line.resident_bytes,
        note: notes.join(", "),
        parts: parts.map(|child| (child.name.clone(), child.resident_bytes)).collect(),
    }
}

fn lines(ledger: &Ledger) -> Table {
    let row = |line: &json::Line| {
        let change = ledger.baseline.iter().flat_map(|baseline| &baseline.lines).find(|change| change.id == line.id);
        vec![
            Cell::Text(label(line)),
            Cell::Bytes(line.resident_bytes),
            Cell::Percent(Bytes(line.resident_bytes).percent_of(Bytes(ledger.rss_bytes))),
            Cell::Bytes(line.pss_bytes),
            Cell::Bytes(line.committed_bytes),
            Cell::Bytes(line.reserved_bytes),
            Cell::Bytes(line.error_bytes),
            change.map_or(Cell::None, |change| Cell::Change(change.change_bytes)),
            Cell::Text(line.sources.join(", ")),
        ]
    };
    let mut heads =
        vec!["line", "resident", "share", "PSS", "committed", "reserved", "error", "since the baseline", "read from"];
    let mut rows: Vec<_> = ledger.lines.iter().map(row).collect();
    if ledger.baseline.is_none() {
        heads.remove(7);
        rows.iter_mut().for_each(|row| drop(row.remove(7)));
    }
    Table {
        id: "lines",
        title: "Lines of the ledger".into(),
        caption: format!(
            "They and the remainder of {} sum to RSS. PSS divides shared pages among processes.",
            Bytes(ledger.remainder_bytes)
        ),
        heads,
        rows,
        is_open: false,
    }
}

fn parts(ledger: &Ledger) -> Table {
    let of = |line: &json::Line, child: &json::Line| {
        vec![
            Cell::Text(label(line)),
            Cell::Text(child.name.clone()),
            Cell::Bytes(child.resident_bytes),
            Cell::Bytes(child.committed_bytes),
            Cell::Bytes(child.reserved_bytes),
        ]
    };
    let is_pool = |line: &&json::Line| line.id != LineId::ThreadStacks.id();
    let all = ledger.lines.iter().filter(is_pool).flat_map(|line| line.children.iter().map(move |one| (line, one)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, child)| std::cmp::Reverse(child.resident_bytes));
    Table {
        id: "parts",
        title: "Parts of the lines".into(),
        caption: shown(all.len()),
        heads: vec!["line", "part", "resident", "committed", "reserved"],
        rows: all.into_iter().take(ROWS).map(|(line, child)| of(line, child)).collect(),
        is_open: false,
    }
}

/// A caption, and which of `rows` rows the table shows if it lacks some.
pub(crate) fn caption(text: &str, rows: usize) -> String {
    if rows > ROWS { format!("{text} {}", shown(rows)) } else { text.to_owned() }
}

fn shown(rows: usize) -> String {
    match rows > ROWS {
        true => format!("The {} biggest of {}.", count(ROWS as u64), count(rows as u64)),
        false => "Biggest first.".into(),
    }
}

fn threads(ledger: &Ledger) -> Table {
    let stacks = ledger.lines.iter().find(|line| line.id == LineId::ThreadStacks.id());
    let pools: Vec<&json::Line> = stacks.iter().flat_map(|line| &line.children).collect();
    let row = |pool: &&json::Line| {
        let name = pool.name.clone();
        vec![Cell::Text(name), Cell::Bytes(pool.resident_bytes), Cell::Bytes(pool.reserved_bytes)]
    };
    Table {
        id: "threads",
        title: "Threads by pool".into(),
        caption: format!("Stacks of {}. {}", counted(ledger.process.threads, "thread"), shown(pools.len())),
        heads: vec!["pool", "resident stacks", "reserved"],
        rows: pools.iter().take(ROWS).map(row).collect(),
        is_open: false,
    }
}

fn arenas(ledger: &Ledger) -> Table {
    let mut arenas: Vec<&json::Arena> = ledger.arenas.iter().collect();
    arenas.sort_by_key(|arena| std::cmp::Reverse(arena.retained_resident_bytes));
    let row = |arena: &&json::Arena| {
        vec![
            Cell::Text(format!("{} {}", arena.kind, arena.address)),
            Cell::Bytes(arena.resident_bytes),
            Cell::Bytes(arena.live_bytes),
            Cell::Bytes(arena.retained_resident_bytes),
            Cell::Bytes(arena.trimmable_bytes),
            Cell::Count(arena.live_count),
            Cell::Count(arena.attached_threads),
            Cell::Bytes(arena.reserved_bytes),
            Cell::Text(if arena.whole { String::new() } else { "not walked to its end".into() }),
        ]
    };
    Table {
        id: "arenas",
        title: "Arenas of glibc's malloc".into(),
        caption: caption(
            "Free and resident is what malloc keeps; a trim gives back the whole pages of it.",
            arenas.len(),
        ),
        heads: vec![
            "arena",
            "resident",
            "live",
            "free and resident",
            "a trim gives back",
            "blocks",
            "threads",
            "reserved",
            "note",
        ],
        rows: arenas.iter().take(ROWS).map(row).collect(),
        is_open: false,
    }
}

/// The charge of the cgroup by kind of memory.
fn cgroup(ledger: &Ledger) -> Table {
    let Some(cgroup) = &ledger.cgroup else { return Table::default() };
    let row = |line: &json::CgroupLine| vec![Cell::Text(line.id.replace('-', " ")), Cell::Bytes(line.bytes)];
    let mut rows: Vec<_> = cgroup.lines.iter().filter(|line| line.bytes > 0).map(row).collect();
    rows.push(vec![Cell::Text("rest".into()), Cell::Change(cgroup.rest_bytes)]);
    Table {
        id: "cgroup",
        title: "What the cgroup counts".into(),
        caption: format!(
            "They sum to the charge of {}; working set {}. OOM kills of the process's own group: {}.",
            Bytes(cgroup.charged_bytes),
            Bytes(cgroup.working_set_bytes),
            count(cgroup.oom_kills)
        ),
        heads: vec!["kind", "charged"],
        rows,
        is_open: false,
    }
}
