//! The change between two books as text, JSON, and HotSpot's `summary.diff`.
//!
//! Text is ordered by the growth of live blocks and resident mappings. Where the resident part isn't known (a process
//! that has ended), by that of the live blocks: lines that only map memory come after them.

use std::io::{self, Write};

use plimsoll_facts::gap::Gap;
use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::Bytes;
use plimsoll_tracked::books::{Books, Caller, Figures};
use plimsoll_tracked::diff::{Diff, FigureChange, MappingFigure, NotBooked};
use serde::Serialize;

use crate::frame_table::{FrameLine, frame_line};
use crate::hotspot::{Entry, summarize};
use crate::text::{LinesBy, frame_text, unknown_resident, write_gap};
use crate::words::{count, cut, duration, moment, moment_text, printable};

/// Schema of the JSON.
pub const SCHEMA: &str = "plimsoll.diff/1";

/// Writes the change as text, largest growth first. `all`: also the lines between, with smaller changes.
pub fn text(out: &mut dyn Write, before: &Books, after: &Books, diff: &Diff, by: LinesBy, all: bool) -> io::Result<()> {
    for (word, books) in [("before", before), ("after ", after)] {
        let command = one_line(&books.process.arguments);
        writeln!(out, "{word}  {}  pid {}  {}", moment_text(books.time_ns), books.process.pid, cut(&command, 80))?;
    }
    // After its end, a process in a container has another PID here: its segment has the PID inside the container. A
    // saved report has the start in milliseconds.
    let [was, is] = [before, after].map(|books| books.process.start_ns / 1_000_000);
    let is_same = before.process.pid == after.process.pid || was == is;
    if let Some(between) = after.time_ns.checked_sub(before.time_ns).filter(|_| is_same) {
        writeln!(out, "between {}", duration(between))?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{:>10} {:>10} {:>12} {:>10} {:>11} {:>11}  ",
        "live",
        "change",
        "blocks",
        "change",
        match diff.known {
            MappingFigure::Resident => "resident",
            MappingFigure::Committed => "committed",
        },
        "change"
    )?;
    let most = if all { usize::MAX } else { LINES };
    let lines = |out: &mut dyn Write, changes: Vec<(Vec<String>, &FigureChange)>| lines(out, diff.known, changes, most);
    match by {
        LinesBy::Category | LinesBy::Thread => {
            lines(out, diff.categories.iter().map(|(name, c)| (vec![name.clone()], c)).collect())?
        }
        LinesBy::Module => lines(out, diff.modules.iter().map(|(name, c)| (vec![name.clone()], c)).collect())?,
        LinesBy::Caller => {
            let named = |(caller, change): &(Caller, FigureChange)| -> Vec<String> {
                let of = books_of(change, before, after);
                let category = of.categories.get(caller.category).map(|c| c.name.clone()).unwrap_or_default();
                let frames = caller.frames.iter().map(|f| "  ".to_string() + &frame_text(of, f));
                std::iter::once(category).chain(frames).collect()
            };
            lines(out, diff.callers.iter().map(|of| (named(of), &of.1)).collect())?
        }
    }
    line(out, diff.known, &["total".into()], &diff.total)?;
    if diff.known == MappingFigure::Committed && diff.total.before.committed != diff.total.after.committed {
        writeln!(out, "\n{} The order is that of the live blocks.", unknown_resident(&[before, after]))?;
    }
    not_booked(out, diff.not_booked.as_ref())?;
    let common: Vec<&Gap> = before.gaps.iter().filter(|gap| after.gaps.contains(gap)).collect();
    common.iter().try_for_each(|gap| write_gap(out, "", gap))?;
    for (of, books) in [("before ", before), ("after ", after)] {
        let own = books.gaps.iter().filter(|gap| !common.contains(gap));
        own.into_iter().try_for_each(|gap| write_gap(out, of, gap))?;
    }
    Ok(())
}

/// Writes how much was committed at both moments, below sites that are compared by their live blocks.
/// `[committed, files]`, each before and after.
pub fn mappings_apart(out: &mut dyn Write, [all, files]: [[i64; 2]; 2], of: &[&Books]) -> io::Result<()> {
    let [before, after] = [0, 1].map(|at| Bytes(u64::try_from(all[at] - files[at]).unwrap_or(0)));
    if before == after {
        return Ok(());
    }
    let change = signed(before, after);
    writeln!(
        out,
        "\nmappings: {before} → {after} committed   {change}\n{} To list them: --measure committed",
        unknown_resident(of)
    )
}

/// Writes by how much the heap outside of the books changed, if that is more than its error.
pub fn not_booked(out: &mut dyn Write, of: Option<&NotBooked>) -> io::Result<()> {
    let Some(of) = of.filter(|of| of.has_changed()) else { return Ok(()) };
    writeln!(
        out,
        "\nnot in the books: {} → {}   {} ±{}\nThese are blocks from before the attach, and blocks of callers that kept a pointer to malloc from before it.\nA program that is started with 'plimsoll run' has all blocks in its books.",
        of.before.live,
        of.after.live,
        signed(of.before.live, of.after.live),
        of.error()
    )
}

/// Maximum number of lines shown.
const LINES: usize = 30;

fn lines(
    out: &mut dyn Write,
    known: MappingFigure,
    lines: Vec<(Vec<String>, &FigureChange)>,
    most: usize,
) -> io::Result<()> {
    let is_apart = |change: &FigureChange| known == MappingFigure::Committed && !change.has_blocks();
    let changed = lines.into_iter().filter(|(_, change)| !change.is_none(known));
    let (mut apart, mut changed): (Vec<_>, Vec<_>) = changed.partition(|(_, change)| is_apart(change));
    changed.sort_by(|(a, x), (b, y)| y.growth(known).cmp(&x.growth(known)).then_with(|| a.cmp(b)));
    // The largest shrinkage is at the end of the order, so both ends are shown.
    let hidden = changed.len().saturating_sub(most);
    for (i, (name, change)) in changed.iter().enumerate() {
        if hidden > 0 && i == most / 2 {
            writeln!(out, "{:>10} lines between with smaller changes", count(hidden as u64))?;
        }
        if hidden == 0 || i < most / 2 || i >= most / 2 + hidden {
            line(out, known, name, change)?;
        }
    }
    apart.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, change) in apart.iter().take(most) {
        line(out, known, name, change)?;
    }
    if apart.len() > most {
        writeln!(out, "{:>10} more lines that only map memory", count((apart.len() - most) as u64))?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, known: MappingFigure, name: &[String], c: &FigureChange) -> io::Result<()> {
    let mapped = |f: &Figures| match known {
        MappingFigure::Resident => f.resident_beside_arenas().unwrap_or_default(),
        MappingFigure::Committed => f.committed,
    };
    let (first, rest) = name.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    writeln!(
        out,
        "{:>10} {:>10} {:>12} {:>10} {:>11} {:>11}  {}",
        c.after.live,
        signed(c.before.live, c.after.live),
        count(c.after.live_count),
        signed_count(c.before.live_count, c.after.live_count),
        mapped(&c.after),
        signed(mapped(&c.before), mapped(&c.after)),
        printable(first)
    )?;
    rest.iter().try_for_each(|frame| writeln!(out, "{:71}{}", "", printable(frame)))
}

fn signed(before: Bytes, after: Bytes) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => "=".into(),
        std::cmp::Ordering::Greater => format!("+{}", after - before),
        std::cmp::Ordering::Less => format!("-{}", before - after),
    }
}

fn signed_count(before: u64, after: u64) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => "=".into(),
        std::cmp::Ordering::Greater => format!("+{}", count(after - before)),
        std::cmp::Ordering::Less => format!("-{}", count(before - after)),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    before: Moment,
    after: Moment,
    total: ChangeLine<'a>,
    before_the_attach: Option<NotBookedLine>,
    categories: Vec<ChangeLine<'a>>,
    modules: Vec<ChangeLine<'a>>,
    callers: Vec<CallerLine<'a>>,
    gaps: Vec<GapLine<'a>>,
}

#[derive(Serialize)]
struct CallerLine<'a> {
    /// Innermost first; without functions unless they were requested.
    frames: Vec<FrameLine>,
    truncated: bool,
    /// The name is the category.
    #[serde(flatten)]
    change: ChangeLine<'a>,
}

#[derive(Serialize)]
struct GapLine<'a> {
    /// `before` or `after`.
    of: &'static str,
    source: &'static str,
    reason: &'a str,
    effect: &'a str,
    remedy: &'a str,
}

#[derive(Serialize)]
struct NotBookedLine {
    live_bytes: u64,
    live_bytes_change: i64,
    live_count: u64,
    live_count_change: i64,
    error_bytes: u64,
}

#[derive(Serialize)]
struct Moment {
    time: String,
    pid: u32,
    command: String,
}

#[derive(Serialize)]
struct ChangeLine<'a> {
    name: &'a str,
    live_bytes: u64,
    live_bytes_change: i64,
    live_count: u64,
    live_count_change: i64,
    requested_bytes: u64,
    requested_bytes_change: i64,
    reserved_bytes: u64,
    reserved_bytes_change: i64,
    committed_bytes: u64,
    committed_bytes_change: i64,
    /// `None`: not known at both moments.
    resident_bytes: Option<u64>,
    resident_bytes_change: Option<i64>,
    cumulative_bytes: u64,
    cumulative_bytes_change: i64,
    cumulative_count: u64,
    cumulative_count_change: i64,
}

pub fn json(out: &mut dyn Write, before: &Books, after: &Books, diff: &Diff) -> io::Result<()> {
    let at = |of: &Books| {
        let process = &of.process;
        Moment { time: moment(of.time_ns), pid: process.pid, command: one_line(&process.arguments) }
    };
    let document = Document {
        schema: SCHEMA,
        before: at(before),
        after: at(after),
        total: change_line("total", diff.known, &diff.total),
        before_the_attach: diff.not_booked.map(|of| NotBookedLine {
            live_bytes: of.after.live.0,
            live_bytes_change: i64::try_from(of.growth()).unwrap_or(i64::MAX),
            live_count: of.after.live_count,
            live_count_change: of.after.live_count.cast_signed().wrapping_sub(of.before.live_count.cast_signed()),
            error_bytes: of.error().0,
        }),
        categories: diff.categories.iter().map(|(name, c)| change_line(name, diff.known, c)).collect(),
        modules: diff.modules.iter().map(|(name, c)| change_line(name, diff.known, c)).collect(),
        callers: diff.callers.iter().map(|(caller, c)| caller_line([before, after], diff.known, caller, c)).collect(),
        gaps: [("before", before), ("after", after)]
            .into_iter()
            .flat_map(|(of, books)| books.gaps.iter().map(move |gap| (of, gap)))
            .map(|(of, gap)| {
                let Gap { source, reason, effect, remedy } = gap;
                GapLine { of, source: source.name(), reason, effect, remedy }
            })
            .collect(),
    };
    crate::json_lines::write_indented(out, &document)
}

fn caller_line<'a>(
    [before, after]: [&'a Books; 2],
    known: MappingFigure,
    caller: &Caller,
    c: &FigureChange,
) -> CallerLine<'a> {
    let of = books_of(c, before, after);
    CallerLine {
        frames: caller.frames.iter().map(|frame| frame_line(of, frame)).collect(),
        truncated: caller.truncated,
        change: change_line(of.categories.get(caller.category).map_or("", |category| &category.name), known, c),
    }
}

/// The books that a caller of this change comes from: its frame ids belong to them.
fn books_of<'a>(change: &FigureChange, before: &'a Books, after: &'a Books) -> &'a Books {
    if change.after == Figures::default() { before } else { after }
}

fn change_line<'a>(name: &'a str, known: MappingFigure, c: &FigureChange) -> ChangeLine<'a> {
    let is_resident = known == MappingFigure::Resident && (c.before.resident.is_some() || c.after.resident.is_some());
    let change = |f: fn(&Figures) -> u64| {
        let change = i128::from(f(&c.after)) - i128::from(f(&c.before));
        i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
    };
    let f = &c.after;
    ChangeLine {
        name,
        live_bytes: f.live.0,
        live_bytes_change: change(|f| f.live.0),
        live_count: f.live_count,
        live_count_change: change(|f| f.live_count),
        requested_bytes: f.requested.0,
        requested_bytes_change: change(|f| f.requested.0),
        reserved_bytes: f.reserved.0,
        reserved_bytes_change: change(|f| f.reserved.0),
        committed_bytes: f.committed.0,
        committed_bytes_change: change(|f| f.committed.0),
        resident_bytes: is_resident.then(|| f.resident.unwrap_or_default().0),
        resident_bytes_change: is_resident.then(|| change(|f| f.resident.unwrap_or_default().0)),
        cumulative_bytes: f.cumulative.0,
        cumulative_bytes_change: change(|f| f.cumulative.0),
        cumulative_count: f.cumulative_count,
        cumulative_count_change: change(|f| f.cumulative_count),
    }
}

/// `VM.native_memory summary.diff` of JDK 25. Each change is the difference of the printed figures, so changes add up
/// too.
pub fn hotspot(out: &mut dyn Write, before: &Books, after: &Books) -> io::Result<()> {
    let (old, new) = (summarize(before), summarize(after));
    writeln!(out, "\nNative Memory Tracking:\n\n(Omitting categories weighting less than 1KB)\n")?;
    let t = Pair { old: &old.total, new: &new.total };
    writeln!(out, "Total: reserved={}, committed={}\n", t.kb(Entry::all_reserved), t.kb(Entry::all_committed))?;
    writeln!(out, "malloc={}{}\n", t.kb(|e| e.malloc), t.count(|e| e.count))?;
    writeln!(out, "mmap: reserved={}, committed={}\n", t.kb(|e| e.reserved), t.kb(|e| e.committed))?;
    let none = Entry::default();
    let vanished = old.entries.iter().filter(|e| !new.entries.iter().any(|n| n.name == e.name));
    let now = new.entries.iter().map(|n| (old.entries.iter().find(|o| o.name == n.name).unwrap_or(&none), n, &n.name));
    for (old, new, name) in now.chain(vanished.map(|o| (o, &none, &o.name))) {
        if old.all_reserved() + new.all_reserved() > 0 {
            hotspot_entry(out, &printable(name), &Pair { old, new })?;
        }
    }
    Ok(())
}

fn hotspot_entry(out: &mut dyn Write, name: &str, p: &Pair<'_>) -> io::Result<()> {
    let indent = "";
    writeln!(out, "-{name:>26} (reserved={}, committed={})", p.kb(Entry::all_reserved), p.kb(Entry::all_committed))?;
    if p.new.threads + p.old.threads > 0 {
        writeln!(out, "{indent:28}(threads{})", p.count(|e| e.threads))?;
        writeln!(
            out,
            "{indent:28}(stack: reserved={}, committed={})",
            p.kb(Entry::stack_reserved),
            p.kb(Entry::stack_committed)
        )?;
    }
    if p.new.malloc + p.old.malloc > 0 {
        writeln!(out, "{indent:28}(malloc={}{})", p.kb(|e| e.malloc), p.count(|e| e.count))?;
    }
    if p.new.overhead.or(p.old.overhead).is_some() {
        writeln!(out, "{indent:28}(tracking overhead={})", p.kb(|e| e.overhead.unwrap_or(0)))?;
    } else if p.new.mmap_reserved() + p.old.mmap_reserved() > 0 {
        writeln!(
            out,
            "{indent:28}(mmap: reserved={}, committed={})",
            p.kb(Entry::mmap_reserved),
            p.kb(Entry::mmap_committed)
        )?;
    }
    writeln!(out)
}

impl Entry {
    fn all_reserved(&self) -> u64 {
        self.malloc + self.reserved
    }
    fn all_committed(&self) -> u64 {
        self.malloc + self.committed
    }
    fn stack_reserved(&self) -> u64 {
        self.stack.map_or(0, |s| s.0)
    }
    fn stack_committed(&self) -> u64 {
        self.stack.map_or(0, |s| s.1)
    }
    fn mmap_reserved(&self) -> u64 {
        self.reserved.saturating_sub(self.stack_reserved())
    }
    fn mmap_committed(&self) -> u64 {
        self.committed.saturating_sub(self.stack_committed())
    }
}

struct Pair<'a> {
    old: &'a Entry,
    new: &'a Entry,
}

impl Pair<'_> {
    /// `24613KB +4812KB`; without the second part if nothing changed.
    fn kb(&self, figure: impl Fn(&Entry) -> u64) -> String {
        let (old, new) = (figure(self.old), figure(self.new));
        format!("{new}KB{}", Self::change(old, new, "KB"))
    }
    /// ` #8258 +1567`.
    fn count(&self, figure: impl Fn(&Entry) -> u64) -> String {
        let (old, new) = (figure(self.old), figure(self.new));
        format!(" #{new}{}", Self::change(old, new, ""))
    }
    fn change(old: u64, new: u64, unit: &str) -> String {
        match new.cmp(&old) {
            std::cmp::Ordering::Equal => String::new(),
            std::cmp::Ordering::Greater => format!(" +{}{unit}", new - old),
            std::cmp::Ordering::Less => format!(" -{}{unit}", old - new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tracked::books::{Before, Category};
    use plimsoll_tracked::diff::diff;

    /// 200 MiB more are committed, of which 4 KiB were touched; the live blocks grew by 20 MiB.
    fn grown(resident: Option<[u64; 2]>) -> [Books; 2] {
        let books = |grown: bool| {
            let resident = resident.map(|bytes| Bytes(bytes[usize::from(grown)]));
            let bytes = Bytes::mib(if grown { 300 } else { 100 });
            let mapped = Figures { reserved: bytes, committed: bytes, resident, ..Figures::default() };
            let blocks = Figures { live: Bytes::mib(if grown { 30 } else { 10 }), live_count: 1, ..Figures::default() };
            let mut books = Books::default();
            for (name, figures) in [("Java Heap", mapped), ("zlib", blocks)] {
                books.total.live += figures.live;
                books.total.committed += figures.committed;
                books.categories.push(Category { name: name.into(), figures, ..Category::default() });
            }
            books
        };
        [books(false), books(true)]
    }

    fn written([before, after]: &[Books; 2]) -> (Vec<String>, String) {
        let mut out = Vec::new();
        text(&mut out, before, after, &diff(before, after), LinesBy::Category, false).expect("a Vec takes it");
        let text = String::from_utf8(out).expect("UTF-8");
        let table = text.lines().skip_while(|line| !line.contains("live ")).take_while(|line| !line.is_empty());
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        (table.map(words).collect(), text.clone())
    }

    #[test]
    fn committed_memory_that_nobody_touched_comes_after_blocks() {
        let (known, text) = written(&grown(Some([8192, 12288])));
        assert_eq!(
            known[..3],
            [
                "live change blocks change resident change",
                "30.0 MiB +20.0 MiB 1 = 0 B = zlib",
                "0 B = 0 = 12.0 KiB +4.00 KiB Java Heap"
            ]
        );
        assert!(!text.contains("not known"), "{text}");
        // An ended process: nothing is known of the 200 MiB.
        let mut ended = grown(None);
        ended[1].ending = Some(plimsoll_facts::ending::Ending::UNKNOWN);
        let (unknown, text) = written(&ended);
        assert_eq!(
            unknown[..3],
            [
                "live change blocks change committed change",
                "30.0 MiB +20.0 MiB 1 = 0 B = zlib",
                "0 B = 0 = 300 MiB +200 MiB Java Heap"
            ]
        );
        assert!(
            text.contains("How much of the committed memory was resident is not known: a process has ended."),
            "{text}"
        );
        // A mapping that was touched further is growth, although no more was committed.
        let [mut before, after] = grown(Some([8192, 100 << 20]));
        before.categories[0].figures.committed = Bytes::mib(300);
        let (touched, _) = written(&[before, after]);
        assert_eq!(touched[1], "0 B = 0 = 100 MiB +100 MiB Java Heap");
        // Shrunk blocks are still blocks: they come before what only maps memory.
        let mut shrunk = grown(None);
        (shrunk[1].categories[1].figures.live, shrunk[1].categories[1].figures.live_count) = (Bytes::ZERO, 0);
        assert!(written(&shrunk).0[1].ends_with("zlib"));
    }

    #[test]
    fn gaps_name_the_books_that_have_them() {
        let gap = |reason: &str| Gap::new(plimsoll_facts::gap::Source::Segment, reason, "lost");
        let [mut before, mut after] = grown(None);
        before.gaps = vec![gap("cut"), gap("late")];
        after.gaps = vec![gap("full"), gap("cut")];
        let (_, text) = written(&[before.clone(), after.clone()]);
        let gaps: Vec<&str> = text.lines().filter(|line| line.starts_with("gap ")).collect();
        assert_eq!(
            gaps,
            ["gap (segment): cut; lost", "gap before (segment): late; lost", "gap after (segment): full; lost"]
        );
        let mut out = Vec::new();
        json(&mut out, &before, &after, &diff(&before, &after)).expect("a Vec takes it");
        let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        let of =
            document["gaps"].as_array().expect("gaps").iter().map(|gap| (gap["of"].as_str(), gap["reason"].as_str()));
        let expected = [("before", "cut"), ("before", "late"), ("after", "full"), ("after", "cut")];
        assert_eq!(of.collect::<Vec<_>>(), expected.map(|(of, reason)| (Some(of), Some(reason))));
    }

    #[test]
    fn what_is_not_in_the_books_is_reported_beyond_its_error() {
        let of = |mib: u64| Before { live: Bytes::mib(mib), live_count: mib, error: Bytes::mib(1) };
        let text = |from: u64, to: u64| {
            let mut out = Vec::new();
            not_booked(&mut out, Some(&NotBooked { before: of(from), after: of(to) })).expect("a Vec takes it");
            String::from_utf8(out).expect("UTF-8")
        };
        assert!(
            text(30, 150).contains("not in the books: 30.0 MiB → 150 MiB   +120 MiB ±2.00 MiB\n"),
            "{}",
            text(30, 150)
        );
        assert!(text(150, 30).contains("   -120 MiB ±2.00 MiB\n"), "{}", text(150, 30));
        assert_eq!([text(30, 32), text(30, 30)], [String::new(), String::new()]);
    }
}
