//! Prints `plimsoll explain` for a person: one screen, biggest first, a bar for each line, the sum, the verdicts.
//!
//! Every name that comes from the target passes `printable`: a process must not choose control bytes for the reader's
//! terminal.

use std::io::{self, Write};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{CgroupVersion, ProcessState, Snapshot};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{Group, Ledger, Line, LineId};
use plimsoll_observer::verdict::{Case, Severity, Verdict, VerdictId, certainty};

use crate::ledger_notes::{REPEATED, SHARED, note};
use crate::palette;
use crate::process_title::{runtime, title};
use crate::words::{self, as_called, count, cut, duration, printable, signed, typed, wrapped};

/// What is explained: the facts, their sum, and what to do.
pub struct Explanation {
    pub snapshot: Snapshot,
    pub ledger: Ledger,
    pub verdicts: Vec<Verdict>,
}

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub colour: bool,
    /// Columns of the terminal, at least 40.
    pub width: usize,
}

/// The line of the cgroup's sum that is printed in parentheses after that of all processes.
const OTHERS: &str = "other-processes";
/// Columns of a bar on a wide terminal; a narrow one has half of them, to leave space for the notes.
const BAR: usize = 24;
const NARROW: usize = 100;
const NAME: usize = 26;
/// Percent of RSS from which an over-claim is reported. Below it, the target changed between two readings.
const OVERCLAIMED: f64 = 1.0;
/// Percent of the charge, or of RSS, from which the process's page tables are shown, and their least size. In a small
/// program, they are a few percent of the total.
const PAGE_TABLES: f64 = 1.0;
const LEAST_TABLES: Bytes = Bytes::mib(1);
/// Minimum columns of a command beside its facts.
const COMMAND: usize = 40;
/// The longest line to type that is printed whole, in characters. A class path may have 100,000.
const WHOLE: usize = 1000;
/// The longest line at the top of the screen: the verdict below has the whole line.
const IN_HEADLINE: usize = 240;
/// A note that has fewer columns than this beside its bar goes below it.
const NOTE: usize = 24;
/// Children shown below a line, and the percentage of RSS below which a line shows none.
const CHILDREN: usize = 4;
const WORTH_CHILDREN: f64 = 4.0;

pub fn write(out: &mut impl Write, explanation: &Explanation, style: Style) -> io::Result<()> {
    let mut page = Page { out, style, snapshot: &explanation.snapshot, ledger: &explanation.ledger };
    page.head()?;
    page.headlines(&explanation.verdicts)?;
    page.lines()?;
    page.notes()?;
    page.gaps()?;
    for each in &explanation.verdicts {
        verdict(page.out, each, is_headline(each, &explanation.verdicts), style)?;
    }
    page.cost()
}

/// Whether the verdict's sentence is at the top of the screen: each warning; without a warning, the state.
fn is_headline(verdict: &Verdict, all: &[Verdict]) -> bool {
    let is_warning = |of: &Verdict| of.severity > Severity::Note;
    is_warning(verdict) || (verdict.id.is_state() && !all.iter().any(is_warning))
}

/// Terminal attributes; empty if the output is not a terminal.
#[derive(Clone, Copy)]
enum Ink {
    Bold,
    Dim,
    Red,
    Yellow,
    Green,
    Group(Group),
}

struct Page<'e, W: Write> {
    out: &'e mut W,
    style: Style,
    snapshot: &'e Snapshot,
    ledger: &'e Ledger,
}

impl<W: Write> Page<'_, W> {
    fn ink(&self, ink: Ink, text: &str) -> String {
        inked(self.style, ink, text)
    }

    fn head(&mut self) -> io::Result<()> {
        let process = &self.snapshot.process;
        let command = title(self.snapshot);
        let mut facts = vec![format!("pid {}", process.pid)];
        if let Some(inner) = process.namespaced_pid {
            facts.push(format!("({inner} inside)"));
        }
        facts.extend(runtime(self.snapshot));
        if let Some(up) = process.uptime {
            facts.push(format!("up {}", duration((up * 1e9) as u64)));
        }
        let threads = process.thread_count;
        facts.push(format!("{} thread{}", count(threads), if threads == 1 { "" } else { "s" }));
        if process.state == ProcessState::Stopped {
            facts.push("stopped".to_owned());
        }
        let facts = facts.join("   ");
        let columns = self.style.width.saturating_sub(words::columns(&facts) + 3);
        // The end of a command says what it does: if little of it would fit, the facts get a row of their own.
        if columns >= COMMAND || words::columns(&command) <= columns {
            writeln!(self.out, "{}   {facts}", self.ink(Ink::Bold, &cut(&command, columns)))?;
        } else {
            writeln!(
                self.out,
                "{}\n{facts}",
                self.ink(Ink::Bold, &cut(&command, self.style.width)),
                facts = spread(&facts, self.style.width)
            )?;
        }

        let rss = self.ledger.rss;
        let mut second = format!("RSS {rss}");
        let distinct = self.ledger.distinct;
        if (rss - distinct).percent_of(rss) >= REPEATED {
            second +=
                &format!("   {distinct} distinct: the rest of RSS counts pages again that are mapped several times");
        }
        if (distinct - self.ledger.pss).percent_of(distinct) >= SHARED {
            second += &format!("   PSS {}", self.ledger.pss);
        }
        if let Some(limit) = self.snapshot.limit_requested {
            second += &format!("   {:.0} % of {limit} (--limit)", distinct.percent_of(limit));
        } else if let Some(cgroup) = &self.snapshot.cgroup {
            match cgroup.limit {
                Some(limit) => {
                    let name = match cgroup.version {
                        CgroupVersion::V1 => "memory.limit_in_bytes",
                        CgroupVersion::V2 => "memory.max",
                    };
                    let near = cgroup.charged.percent_of(limit);
                    let above = match cgroup.is_above() {
                        true => format!(" of {}", printable(&cgroup.limit_path)),
                        false => String::new(),
                    };
                    second += &format!(
                        "   cgroup charged {} of {limit} ({name}{above}), {near:.0} %   working set {}",
                        cgroup.charged,
                        cgroup.working_set()
                    );
                }
                None => second += "   no memory limit",
            }
        }
        if let Some(peak) = process.peak_rss
            && peak > rss
        {
            second += &format!("   peak {peak}");
        }
        let hugetlb: Bytes = self.snapshot.vmas.iter().map(|vma| vma.hugetlb).sum();
        if hugetlb > Bytes(0) {
            second += &format!("   besides RSS {hugetlb} of hugetlbfs");
        }
        if process.swap > Bytes(0) {
            second += &format!("   swapped out {}", process.swap);
        }
        writeln!(self.out, "{}", spread(&second, self.style.width))?;
        if let Some(baseline) = &self.snapshot.baseline {
            let seconds = baseline.seconds_until(self.snapshot.time, process.uptime);
            let change = signed(self.ledger.rss_change_since(baseline));
            writeln!(self.out, "{change} RSS since the baseline, {} ago", duration((seconds * 1e9) as u64))?;
        }
        writeln!(self.out)
    }

    /// The top of the screen. For each warning, or without one for the state: what is wrong, what the figure is based
    /// on, what to run.
    fn headlines(&mut self, verdicts: &[Verdict]) -> io::Result<()> {
        let shown = || verdicts.iter().filter(|verdict| is_headline(verdict, verdicts));
        let several = shown().nth(1).is_some();
        for verdict in shown() {
            let (mark, ink) = mark(verdict);
            let indent = (mark_width(verdict) + 1).max(2);
            let width = self.style.width.max(60) - indent;
            // The verdict in full, below, doesn't repeat its sentence, so the id leads to it.
            let id = if several { format!("{}: ", verdict.id.id()) } else { String::new() };
            for (index, row) in wrapped(&printable(&format!("{id}{}", verdict.summary)), width).iter().enumerate() {
                let mark = if index == 0 { self.ink(ink, mark) } else { String::new() };
                let pad = if index == 0 { indent - mark_width(verdict) } else { indent };
                writeln!(self.out, "{mark}{:pad$}{}", "", self.ink(Ink::Bold, row))?;
            }
            let basis = certainty(self.snapshot, self.ledger, verdict);
            writeln!(self.out, "    basis  {}", wrapped(&basis, width - 9).join("\n           "))?;
            if let Some((remedy, how)) =
                verdict.remedies.first().and_then(|first| Some((first, first.headline(verdict.id)?)))
            {
                let (verb, then) = remedy.verb();
                let row = format!(
                    "    {verb:<5}  {}   {}",
                    self.ink(Ink::Green, &typed(&how, IN_HEADLINE)),
                    self.ink(Ink::Dim, then)
                );
                writeln!(self.out, "{}", row.trim_end())?;
            }
        }
        if shown().next().is_some() { writeln!(self.out) } else { Ok(()) }
    }

    fn lines(&mut self) -> io::Result<()> {
        let rss = self.ledger.rss;
        let widest = self.ledger.lines.first().map(|line| line.resident).unwrap_or_default();
        let mut groups: Vec<Group> = Group::ALL.into_iter().filter(|group| *group != Group::Other).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(self.ledger.group(*group)));
        groups.push(Group::Other);
        for group in groups {
            let lines: Vec<&Line> =
                self.ledger.lines.iter().filter(|line| line.id.group() == group && line.resident > Bytes(0)).collect();
            if lines.is_empty() {
                continue;
            }
            let sum: Bytes = lines.iter().map(|line| line.resident).sum();
            let head =
                format!("  {:<w$}{:>10}  {:>4.0} %", group.name(), sum.to_string(), sum.percent_of(rss), w = NAME + 2);
            writeln!(self.out, "{}", self.ink(Ink::Bold, &head))?;
            for line in lines {
                self.line(line, widest)?;
            }
        }
        let row = |name: &str, bytes: Bytes| {
            format!("  {name:<w$}{:>10}  {:>4.1} %", bytes.to_string(), bytes.percent_of(rss), w = NAME + 2)
        };
        if self.ledger.remainder > Bytes(0) {
            writeln!(self.out, "{}", row("remainder", self.ledger.remainder))?;
        }
        let sum = format!("  {:<w$}{:>10}  = RSS", "sum", rss.to_string(), w = NAME + 2);
        writeln!(self.out, "{}", self.ink(Ink::Bold, &sum))?;
        let parts = self.ledger.unexplained(self.snapshot);
        let unexplained: Bytes = parts.iter().map(|(_, bytes)| *bytes).sum();
        let names: Vec<String> =
            parts.iter().take(3).map(|(name, bytes)| format!("{} {bytes}", cut(name, 32))).collect();
        let (row, names) = (row("of which unexplained", unexplained), names.join(", "));
        if words::columns(&row) + 2 + words::columns(&names) <= self.style.width {
            writeln!(self.out, "{}", format!("{row}  {}", self.ink(Ink::Dim, &names)).trim_end())?;
        } else {
            writeln!(self.out, "{row}")?;
            self.below(&names, true)?;
        }
        if self.ledger.overclaimed.percent_of(rss) >= OVERCLAIMED {
            let text = format!(
                "sources claim {} more than is resident: the process changed while it was read, or Plimsoll has a bug",
                self.ledger.overclaimed
            );
            self.below(&text, false)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &Line, widest: Bytes) -> io::Result<()> {
        let bar = self.bar(line, widest);
        let column = 4 + NAME + 12 + self.bar_width() + 2;
        let columns = self.style.width.saturating_sub(column);
        let (column, columns) = if columns < NOTE { (8, self.style.width - 8) } else { (column, columns) };
        let case = Case { snapshot: self.snapshot, ledger: self.ledger };
        let mut notes = wrapped(&note(case, line), columns).into_iter();
        let beside = if column == 8 { String::new() } else { notes.next().unwrap_or_default() };
        let pad = if beside.is_empty() { 0 } else { self.bar_width() - words::columns(&bar) + 2 };
        let text = format!("    {:<w$}{:>10}  ", line.label(), line.resident.to_string(), w = NAME);
        let text = if bar.is_empty() && beside.is_empty() { text.trim_end() } else { &text };
        let bar = self.ink(Ink::Group(line.id.group()), &bar);
        writeln!(self.out, "{text}{bar}{:pad$}{}", "", self.ink(Ink::Dim, &beside))?;
        for row in notes.filter(|row| !row.is_empty()) {
            writeln!(self.out, "{:column$}{}", "", self.ink(Ink::Dim, &row))?;
        }
        if line.resident.percent_of(self.ledger.rss) < WORTH_CHILDREN || line.children.len() < 2 {
            return Ok(());
        }
        let mut rest = line.resident;
        let shown = line.children.iter().filter(|child| child.resident > Bytes(0));
        let mut left = shown.clone().count();
        for child in shown.take(CHILDREN) {
            // The name of the last child takes no more rows than "1 more" would.
            if child.resident.percent_of(line.resident) < 2.0 && left > 1 {
                break;
            }
            let name = short(child, self.style.width.saturating_sub(24).max(30));
            let text = format!("      {:>10}  {name}", child.resident.to_string());
            writeln!(self.out, "{}", self.ink(Ink::Dim, &text))?;
            rest -= child.resident;
            left -= 1;
        }
        if left > 0 && rest > Bytes(0) {
            let text = format!("      {:>10}  {left} more", rest.to_string());
            writeln!(self.out, "{}", self.ink(Ink::Dim, &text))?;
        }
        Ok(())
    }

    /// A bar in eighths of a character, rounded down, so that it is never longer than its figure.
    fn bar(&self, line: &Line, widest: Bytes) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = Bytes((self.bar_width() * 8) as u64).scaled(line.resident.0, widest.0).0 as usize;
        format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
    }

    fn bar_width(&self) -> usize {
        if self.style.width < NARROW { BAR / 2 } else { BAR }
    }

    /// A sentence below the table, in as many rows as the terminal needs.
    fn below(&mut self, text: &str, dim: bool) -> io::Result<()> {
        for (index, row) in wrapped(text, self.style.width - 4).iter().enumerate() {
            let indent = if index == 0 { 2 } else { 4 };
            let row = if dim { self.ink(Ink::Dim, row) } else { row.clone() };
            writeln!(self.out, "{:indent$}{row}", "")?;
        }
        Ok(())
    }

    /// The other processes of the group, in parentheses.
    fn others(&self, held: Bytes) -> String {
        let others = self.snapshot.cgroup.iter().flat_map(|cgroup| &cgroup.others);
        let Some((pid, _)) = others.clone().max_by_key(|(_, rss)| *rss).filter(|_| held > Bytes(0)) else {
            return String::new();
        };
        match others.count() {
            1 => format!(" (of it 1 other, PID {pid}: {held})"),
            many => format!(" (of it {many} others: {held}, the largest PID {pid})"),
        }
    }

    /// The notes below the table: the cgroup's sum, NMT's sum, the arena cap, what the report cost the VM.
    fn notes(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        if let Some(sum) = &self.ledger.cgroup
            && sum.limit.is_some()
        {
            let of_others = sum.lines.iter().find(|(id, ..)| *id == OTHERS).map_or(Bytes(0), |(_, _, bytes)| *bytes);
            let parts = sum.lines.iter().filter_map(|(id, _, bytes)| match *id {
                OTHERS => None,
                "processes" => Some((*id, *bytes + of_others, self.others(of_others))),
                _ => Some((*id, *bytes, String::new())),
            });
            let mut parts: Vec<_> = parts.filter(|(_, bytes, _)| *bytes > Bytes(0)).collect();
            parts.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
            let parts = parts.into_iter().map(|(id, bytes, note)| format!("{} {bytes}{note}", id.replace('-', " ")));
            let parts: Vec<String> = parts.collect();
            let rest = Bytes(sum.rest.unsigned_abs());
            let sign = if sum.rest < 0 { '−' } else { '+' };
            writeln!(self.out)?;
            self.below(
                &format!("counted against the limit: {} = {} {sign} rest {rest}", sum.charged, parts.join(" + ")),
                false,
            )?;
        }
        // RSS doesn't count page tables, and the cgroup's kernel memory doesn't show to which process they belong.
        let counted = self.ledger.cgroup.as_ref().filter(|sum| sum.limit.is_some()).map(|sum| sum.charged);
        let tables = snapshot.process.page_tables.unwrap_or_default();
        if tables >= LEAST_TABLES && tables.percent_of(counted.unwrap_or(self.ledger.rss)) >= PAGE_TABLES {
            let within = if counted.is_some() { "in kernel, above" } else { "not in RSS" };
            writeln!(self.out)?;
            self.below(&format!("page tables of this process: {tables} ({within})"), false)?;
        }
        if let Some(total) = snapshot.hotspot.as_ref().and_then(|vm| vm.nmt_total.as_ref()) {
            let of_vm = self.ledger.group(Group::Vm) + self.ledger.resident(LineId::ThreadStacks);
            let rss = self.ledger.rss;
            writeln!(self.out)?;
            let text = format!(
                "NMT reports {} committed. RSS is {rss}: {of_vm} in the Java runtime and thread stacks, {} in the other lines",
                total.committed,
                rss - of_vm
            );
            self.below(&text, false)?;
        }
        if let Some(glibc) = &snapshot.glibc
            && let (Some(cap), Some(most)) = (glibc.arena_cap_text(), glibc.most_arenas())
            && glibc.arenas.len() > 1
        {
            let quota = snapshot.cgroup.as_ref().and_then(|cgroup| cgroup.cpu_quota);
            let quota = quota.map(|cpus| format!("; the cgroup's quota is {cpus:.1} CPUs")).unwrap_or_default();
            let ceiling = Bytes::mib(64).scaled(most, 1);
            writeln!(self.out)?;
            self.below(
                &format!(
                    "glibc arenas: {} of at most {cap}, which may reserve {ceiling} in all{quota}",
                    glibc.arenas.len()
                ),
                false,
            )?;
        }
        let symbols_for =
            snapshot.hotspot.as_ref().map(|vm| vm.symbols_for.join(", ")).filter(|commands| !commands.is_empty());
        if let Some(commands) = symbols_for {
            let text = format!(
                "this report sent {commands} to the VM. The first time, that makes the VM 4 to 5 MiB larger until it ends"
            );
            self.below(&text, true)?;
        }
        Ok(())
    }

    /// What the readings cost the target, and how far apart they are.
    fn cost(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        let sources: Vec<String> = snapshot
            .readings
            .iter()
            .map(|reading| format!("{} {} ms", name(reading.source), millis(reading.took)))
            .collect();
        // If the kernel refused the mappings, a gap reports it; "0 mappings" would be false.
        if let Some(smaps) = snapshot.reading(Source::Proc).filter(|_| !snapshot.vmas.is_empty()) {
            let skew = match self.ledger.skew {
                Some(skew) if skew > Bytes(0) => format!("; {skew} changed between two readings"),
                _ => String::new(),
            };
            let text = format!(
                "{} mappings; reading them held the target's mmap lock for at most {} ms{skew}; time by source: {}",
                count(snapshot.vmas.len() as u64),
                millis(smaps.took),
                sources.join(", ")
            );
            writeln!(self.out)?;
            self.below(&text, true)?;
        }
        Ok(())
    }

    /// A remedy that closes several gaps is printed once, below the last of them.
    fn gaps(&mut self) -> io::Result<()> {
        let gaps = &self.snapshot.gaps;
        for (index, gap) in gaps.iter().enumerate() {
            let mark = self.ink(Ink::Yellow, "?");
            writeln!(self.out, "{mark} {}: {}", gap.source.name(), printable(&gap.reason))?;
            writeln!(self.out, "    so   {}", printable(&gap.effect))?;
            let again = gaps[index + 1..].iter().any(|later| later.remedy == gap.remedy);
            if !gap.remedy.is_empty() && !again {
                writeln!(self.out, "    type {}", printable(&as_called(&gap.remedy)))?;
            }
        }
        Ok(())
    }
}

fn inked(style: Style, ink: Ink, text: &str) -> String {
    if !style.colour || text.is_empty() {
        return text.to_owned();
    }
    let colour = |number: u8| format!("38;5;{number}");
    let code = match ink {
        Ink::Bold => "1".to_owned(),
        Ink::Dim => "2".to_owned(),
        Ink::Red => format!("1;{}", colour(palette::BAD)),
        Ink::Yellow => format!("1;{}", colour(palette::DOUBTFUL)),
        Ink::Green => colour(palette::GOOD),
        Ink::Group(group) => colour(palette::of_group(group)),
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A verdict in full: its sentence, what proves it, and its remedies. Where the sentence is at the top of the screen,
/// the severity of a warning takes its place.
pub fn verdict(out: &mut impl Write, verdict: &Verdict, has_headline: bool, style: Style) -> io::Result<()> {
    let ink = |ink: Ink, text: &str| inked(style, ink, text);
    let (mark, colour) = mark(verdict);
    let width = style.width.max(60);
    let id = verdict.id.id();
    let head = format!("{mark} {id}");
    let what = match (has_headline, verdict.severity) {
        (false, _) => printable(&verdict.summary),
        (true, Severity::Note) => String::new(),
        (true, severity) => severity.name().to_owned(),
    };
    let mut what = wrapped(&what, width - head.len() - 2).into_iter();
    let first = format!("\n{} {}  {}", ink(colour, mark), ink(Ink::Bold, id), what.next().unwrap_or_default());
    writeln!(out, "{}", first.trim_end())?;
    for row in what {
        writeln!(out, "{:indent$}{row}", "", indent = head.len() + 2)?;
    }
    for text in &verdict.evidence {
        if text.starts_with("plimsoll ") {
            writeln!(out, "      {}", ink(Ink::Green, &typed(text, WHOLE)))?;
            continue;
        }
        for row in wrapped(&printable(text), width - 4) {
            writeln!(out, "    {row}")?;
        }
    }
    for (number, remedy) in verdict.remedies.iter().enumerate() {
        let head = format!("{}  {}", number + 1, printable(&remedy.what));
        writeln!(out, "  {}", ink(Ink::Bold, &head))?;
        let mut above = "";
        for row in remedy.how.lines() {
            let label = remedy.label(row);
            if label != above && !label.is_empty() {
                writeln!(out, "       {}", ink(Ink::Dim, label))?;
            }
            above = label;
            let indent = if label.is_empty() { 7 } else { 9 };
            writeln!(out, "{:indent$}{}", "", ink(Ink::Green, &typed(row, WHOLE)))?;
        }
        if let Some((least, most)) = remedy.effect.figure() {
            let [from, to] = [least, most].map(|bound| bound.to_string());
            // Bounds that print the same are one figure.
            let saves = if from == to { format!("about {to}") } else { format!("{from} to {to}") };
            writeln!(out, "       gives back {saves}")?;
        }
        if !remedy.trade_off.is_empty() {
            for row in wrapped(&printable(&remedy.trade_off), width - 7) {
                writeln!(out, "       {}", ink(Ink::Dim, &row))?;
            }
        }
    }
    if !verdict.remedies.is_empty() || verdict.severity > Severity::Note {
        writeln!(out, "{}", ink(Ink::Dim, &as_called(&format!("    why: plimsoll why {id}"))))?;
    }
    Ok(())
}

fn mark(verdict: &Verdict) -> (&'static str, Ink) {
    match verdict.severity {
        Severity::Critical => ("!!", Ink::Red),
        Severity::Warning => ("!", Ink::Yellow),
        Severity::Note if verdict.id == VerdictId::Unclear => ("?", Ink::Yellow),
        Severity::Note => ("·", Ink::Green),
    }
}

fn mark_width(verdict: &Verdict) -> usize {
    words::columns(mark(verdict).0)
}

/// The end of a path says more than its beginning.
fn short(child: &Line, width: usize) -> String {
    let name = printable(&child.name);
    let length = words::columns(&name);
    match length <= width {
        true => name,
        false => std::iter::once('…').chain(name.chars().skip(length + 1 - width)).collect(),
    }
}

fn name(source: Source) -> &'static str {
    match source {
        Source::Proc => "smaps",
        other => other.name(),
    }
}

fn millis(took: std::time::Duration) -> String {
    format!("{:.1}", took.as_secs_f64() * 1e3)
}

/// Facts, three blanks apart, in rows of at most `width` columns.
fn spread(facts: &str, width: usize) -> String {
    let mut column = 0;
    let mut out = String::new();
    for fact in facts.split("   ") {
        let length = words::columns(fact);
        let (gap, at) = match column {
            0 => ("", 0),
            n if n + 3 + length > width => ("\n", 0),
            n => ("   ", n + 3),
        };
        out += gap;
        out += fact;
        column = at + length;
    }
    out
}
