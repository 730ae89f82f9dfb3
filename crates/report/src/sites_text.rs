//! Prints sites for a person: those that hold most first, each with the function that requested the memory and its
//! callers. The caller of this module has already removed the allocator's own frames (`operator new`, `os::malloc`).
//! Long stacks are cut in the middle. Sites that are not listed share one line, so that the sum is complete. Where the
//! resident part of mappings isn't known (a process that has ended), sites that only map memory come after the others,
//! by name and without a share. How much was committed doesn't say what they held.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{
    Column, Entry, Focused, Frame, FrameId, FrameOrigin, Function, Group, GroupBy, Profile, StackId, Unit, Value,
};
use plimsoll_tracked::books::{Books, Mode};
use plimsoll_tracked::segment::Life;
use plimsoll_tracked::sites::{self, Detail, Sites};

use crate::profile::{amount, called_at, error, moments_words, stack_text};
use crate::text::{legend, unknown_resident};
use crate::words::{self, count, counted, cut, duration, moment_text, printable};

/// Maximum number of sites listed.
const LINES: usize = 30;
/// Frames shown of a long stack: the innermost, then the outermost.
const INNER: usize = 16;
const OUTER: usize = 2;
/// Indentation of a stack.
const INDENT: usize = 12;
/// Further lines of a function that are shown.
const OTHER_LINES: usize = 4;

/// What to list, and how.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    pub column: usize,
    /// The pattern, and what lies outside it.
    pub focus: Option<(&'a str, &'a Focused)>,
    /// List every site and every frame.
    pub all: bool,
    /// List sites that only map memory after the others.
    pub mappings_apart: bool,
}

pub fn write(out: &mut dyn Write, books: &Books, of: &Sites, choice: Choice<'_>) -> io::Result<()> {
    let profile = &of.profile;
    let column = &profile.columns[choice.column];
    let total = profile.total();
    writeln!(out, "{}", printable(&profile.title))?;
    let kind = if books.mode == Mode::Off { "short stacks".into() } else { format!("{} sites", books.mode.name()) };
    writeln!(out, "{kind} by {}{}", measure_words(column.measure, column.unit), rate(books))?;
    if let Some(since) = books.mode_since_ns {
        let (mode, since) = (books.mode.name(), moment_text(since));
        writeln!(out, "--sites {mode} since {since}; older blocks have the stacks of the earlier mode")?;
    }
    if let Some((pattern, focused)) = choice.focus {
        let elsewhere = amount(column, focused.left_out[choice.column].amount);
        writeln!(out, "below /{}/; {elsewhere} are elsewhere", printable(pattern))?;
    }
    if let Some(words) = moments_words(profile, column) {
        writeln!(out, "{words}")?;
    }
    let table = Table::of(profile, choice, total[choice.column].amount);
    table.legend(out)?;
    writeln!(out)?;
    writeln!(out, "{}  site", table.head())?;
    let groups = profile.group(GroupBy::Site, choice.column);
    let (groups, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|g| g.values[choice.column].amount != 0);
    let shown = if choice.all { groups.len() } else { groups.len().min(LINES) };
    let mut nameless = Nameless::default();
    for group in &groups[..shown] {
        let Some(stack) = group.stack else { continue };
        let members: Vec<(Entry, &[Value])> = profile.entries().filter(|(e, _)| e.stack == stack).collect();
        let category = |e: &Entry| e.labels.category.map_or(String::new(), |c| cut(profile.name_at(c), 60));
        if profile.frames_of(stack).is_empty() {
            // One line for each category: blocks without a stack share no caller.
            let mut members: Vec<_> = members.iter().filter(|(_, v)| v[choice.column].amount != 0).collect();
            members.sort_by_key(|(_, v)| std::cmp::Reverse(v[choice.column].amount));
            for (entry, values) in members {
                writeln!(out, "{}  {}, no stack", table.line(values), category(entry))?;
            }
            continue;
        }
        writeln!(
            out,
            "{}  {}",
            table.line(&group.values),
            members.first().map(|(e, _)| category(e)).unwrap_or_default()
        )?;
        frames(out, profile, stack, &group.other_stacks, choice.all, &mut nameless)?;
        let is_member = |stack: StackId| group.stack == Some(stack) || group.other_stacks.contains(&stack);
        let details = profile.entries().filter(|(entry, _)| is_member(entry.stack));
        if let Some(detail) = Detail::merged(details.filter_map(|(entry, _)| of.details.get(&entry))) {
            about(out, &group.values, &detail)?;
        }
    }
    if shown < groups.len() {
        let mut rest = vec![Value::default(); profile.columns.len()];
        for group in &groups[shown..] {
            rest.iter_mut().zip(&group.values).for_each(|(sum, v)| *sum = sum.plus(*v));
        }
        writeln!(out, "{}  {}", table.line(&rest), counted((groups.len() - shown) as u64, "smaller site"))?;
    }
    if choice.mappings_apart {
        mappings(out, of, choice, &table, &others, &mut nameless)?;
    }
    if choice.column == sites::HELD {
        holding_nothing(out, profile, &table)?;
    }
    writeln!(out, "{}  total", table.line(&total))?;
    if choice.mappings_apart && total[sites::COMMITTED].amount > 0 {
        writeln!(
            out,
            "\n{} The order is that of the live blocks.\nIn the order of committed bytes: --measure committed",
            unknown_resident(&[books])
        )?;
    }
    if books.mode == Mode::Sampled {
        let exact = match books.life {
            Life::Live => format!("attach {} --sites exact", books.process.pid),
            _ => "run --sites exact".into(),
        };
        writeln!(
            out,
            "\nFigures of sites are estimated from samples (± is half the 95 % interval); those of categories, callers and the\ntotal are counted. Exact sites: plimsoll {exact}."
        )?;
    }
    if let Some(modules) = nameless.words() {
        writeln!(
            out,
            "\nFrames of {modules} have no names: a file with symbols of the same build gives them (--symbols FILE)."
        )?;
    }
    for gap in &profile.gaps {
        let remedy = if gap.remedy.is_empty() { String::new() } else { format!(": {}", printable(&gap.remedy)) };
        writeln!(out, "gap ({}): {}; {}{remedy}", gap.source.name(), printable(&gap.reason), printable(&gap.effect))?;
    }
    Ok(())
}

/// One line for what is resident but holds nothing, as libraries do: without it, the lines wouldn't add up to the total.
fn holding_nothing(out: &mut dyn Write, profile: &Profile, table: &Table<'_>) -> io::Result<()> {
    let mut rest = vec![Value::default(); profile.columns.len()];
    let mut largest: Option<(i64, &str)> = None;
    for (entry, values) in profile.entries().filter(|(_, values)| values[sites::HELD].amount == 0) {
        rest.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.plus(*value));
        let name = entry.labels.category.map_or("", |name| profile.name_at(name));
        largest = largest.max(Some((values[sites::RESIDENT].amount, name)));
    }
    match largest.filter(|_| rest[sites::RESIDENT].amount > 0) {
        Some((_, name)) => writeln!(out, "{}  holds nothing, most of it {}", table.line(&rest), cut(name, 60)),
        None => Ok(()),
    }
}

/// The sites that only map memory.
fn mappings(
    out: &mut dyn Write,
    of: &Sites,
    choice: Choice<'_>,
    table: &Table<'_>,
    groups: &[Group],
    nameless: &mut Nameless,
) -> io::Result<()> {
    let profile = &of.profile;
    let category = |entry: Entry| entry.labels.category.map_or(String::new(), |name| cut(profile.name_at(name), 60));
    let is_mapped = |values: &[Value]| {
        values[choice.column].amount == 0 && values[sites::COMMITTED].amount > values[sites::FILES].amount
    };
    let mut sites: Vec<(String, Vec<String>, Option<&Group>, _)> = Vec::new();
    for group in groups.iter().filter(|group| is_mapped(&group.values)) {
        let Some(stack) = group.stack.filter(|stack| !profile.frames_of(*stack).is_empty()) else { continue };
        let of = profile.entries().find(|(entry, _)| entry.stack == stack).map(|(entry, _)| category(entry));
        sites.push((of.unwrap_or_default(), stack_text(profile, stack), Some(group), group.values.as_slice()));
    }
    for (entry, values) in profile.entries().filter(|(_, values)| is_mapped(values)) {
        if profile.frames_of(entry.stack).is_empty() {
            sites.push((category(entry) + ", no stack", Vec::new(), None, values));
        }
    }
    sites.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    let shown = if choice.all { sites.len() } else { sites.len().min(LINES) };
    for (category, _, group, values) in &sites[..shown] {
        writeln!(out, "{}  {category}", table.line(values))?;
        if let Some((group, stack)) = group.and_then(|group| Some((group, group.stack?))) {
            frames(out, profile, stack, &group.other_stacks, choice.all, nameless)?;
        }
    }
    if shown < sites.len() {
        let mut rest = vec![Value::default(); profile.columns.len()];
        for (.., values) in &sites[shown..] {
            rest.iter_mut().zip(*values).for_each(|(sum, v)| *sum = sum.plus(*v));
        }
        writeln!(out, "{}  {} of mappings", table.line(&rest), counted((sites.len() - shown) as u64, "more site"))?;
    }
    Ok(())
}

/// How far apart the samples are.
fn rate(books: &Books) -> String {
    let (mean, highest) = (books.sample_mean, Bytes(books.counter("sample_mean_highest")));
    match books.mode {
        Mode::Sampled if highest > mean => format!(", a sample every {mean}, every {highest} at high rates"),
        Mode::Sampled if mean > Bytes(0) => format!(", a sample every {mean}"),
        _ => String::new(),
    }
}

fn measure_words(measure: &str, unit: Unit) -> String {
    let unit = if unit == Unit::Bytes { "bytes" } else { "calls" };
    format!("{} {unit}", measure.replace('_', " "))
}

/// The columns before a site.
struct Table<'a> {
    profile: &'a Profile,
    column: usize,
    whole: i64,
    estimated: bool,
    mappings_apart: bool,
}

impl Table<'_> {
    fn of<'p>(profile: &'p Profile, choice: Choice<'_>, whole: i64) -> Table<'p> {
        let Choice { column, mappings_apart, .. } = choice;
        let estimated = profile.entries().any(|(_, v)| v[column].variance > 0.0);
        Table { profile, column, whole, estimated, mappings_apart }
    }

    /// The columns beside the main one: its parts, or the same measure in the other unit.
    fn beside(&self) -> Vec<usize> {
        if self.column == sites::HELD {
            return vec![sites::LIVE, sites::LIVE_COUNT, sites::RESIDENT];
        }
        if self.mappings_apart {
            return vec![sites::LIVE_COUNT, sites::COMMITTED];
        }
        self.profile.companion(self.column).into_iter().collect()
    }

    fn word(&self, column: usize) -> String {
        let column = &self.profile.columns[column];
        match column.unit {
            Unit::Bytes => column.measure.to_string(),
            Unit::Count => format!("{}s", column.noun),
        }
    }

    fn head(&self) -> String {
        let beside: String = self.beside().into_iter().map(|c| format!(" {:>10}", self.word(c))).collect();
        let error = if self.estimated { format!(" {:>9}", "± 95 %") } else { String::new() };
        format!("{:>10}{error} {:>6}{beside}", self.word(self.column), "share")
    }

    fn legend(&self, out: &mut dyn Write) -> io::Result<()> {
        let main = self.word(self.column);
        let share = format!("of all `{main}`");
        let beside: Vec<(String, usize)> = self.beside().into_iter().map(|c| (self.word(c), c)).collect();
        let meaning = |c: usize| self.profile.columns[c].meaning;
        let mut shown = vec![(main.as_str(), meaning(self.column)), ("share", share.as_str())];
        shown.extend(beside.iter().map(|(word, c)| (word.as_str(), meaning(*c))));
        legend(out, &shown)
    }

    fn line(&self, values: &[Value]) -> String {
        let bare = |c: usize| Column { noun: "", ..self.profile.columns[c].clone() };
        let value = values[self.column];
        let share = value.amount as f64 * 100.0 / self.whole.max(1) as f64;
        let share = if self.mappings_apart && value.amount == 0 { "-".into() } else { format!("{share:.1}%") };
        let text = |c: usize| if values[c].amount == 0 { "-".into() } else { amount(&bare(c), values[c].amount) };
        let beside: String = self.beside().into_iter().map(|c| format!(" {:>10}", text(c))).collect();
        let error = error(&bare(self.column), value);
        let error = if self.estimated { format!(" {:>9}", error.trim_start()) } else { String::new() };
        format!("{:>10}{error} {share:>6}{beside}", amount(&bare(self.column), value.amount))
    }
}

/// How many frames were listed, and how many frames without a name each module has.
#[derive(Default)]
struct Nameless {
    listed: usize,
    by_module: BTreeMap<String, usize>,
}

impl Nameless {
    fn note(&mut self, function: &Function, kind: FrameOrigin) {
        self.listed += 1;
        if matches!(kind, FrameOrigin::Native | FrameOrigin::Unknown) && !function.named && !function.module.is_empty()
        {
            *self.by_module.entry(function.module.clone()).or_default() += 1;
        }
    }

    /// The modules whose symbols are worth a look. Every library has a few functions without a name, so a module needs
    /// a tenth of the frames.
    fn words(&self) -> Option<String> {
        let many = self.by_module.iter().filter(|(_, frames)| **frames * 10 >= self.listed);
        let names: Vec<String> = many.map(|(module, _)| printable(module)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

fn frames(
    out: &mut dyn Write,
    profile: &Profile,
    stack: StackId,
    others: &[StackId],
    all: bool,
    nameless: &mut Nameless,
) -> io::Result<()> {
    let frames = profile.frames_of(stack);
    let hidden = frames.len().saturating_sub(INNER + OUTER);
    for (i, id) in frames.iter().enumerate() {
        if hidden > 1 && !all {
            if i == INNER {
                writeln!(out, "{:INDENT$}  … {hidden} more frames", "")?;
            }
            if i >= INNER && i < INNER + hidden {
                continue;
            }
        }
        let (function, frame) = (profile.function_at(profile.function_of(*id)), profile.frame_at(*id));
        nameless.note(function, frame.kind);
        let module = match (frame.kind, function.named) {
            (FrameOrigin::Native | FrameOrigin::Unknown, true) if !function.module.is_empty() => {
                format!("  {}", printable(&function.module))
            }
            _ => String::new(),
        };
        let lines = other_lines(profile, frame, others.iter().filter_map(|of| profile.frames_of(*of).get(i)), all);
        writeln!(out, "{:INDENT$}  {}{lines}{module}", "", called_at(function, frame))?;
    }
    Ok(())
}

/// The other lines from which the same function calls, in the order of the stacks: `, 28, 24`.
fn other_lines<'a>(profile: &Profile, frame: &Frame, others: impl Iterator<Item = &'a FrameId>, all: bool) -> String {
    let Some(line) = frame.line else { return String::new() };
    let mut seen = vec![line];
    for other in others.map(|id| profile.frame_at(*id)).filter(|other| other.file == frame.file) {
        let Some(line) = other.line.filter(|line| !seen.contains(line)) else { continue };
        if seen.len() > OTHER_LINES && !all {
            return seen[1..].iter().map(|line| format!(", {line}")).collect::<String>() + ", …";
        }
        seen.push(line);
    }
    seen[1..].iter().map(|line| format!(", {line}")).collect()
}

/// 100 only if it was all.
fn temporary_percent(temporary: i64, cumulative: i64) -> f64 {
    let percent = temporary as f64 * 100.0 / cumulative as f64;
    if temporary < cumulative { percent.min(99.0) } else { percent }
}

/// Ages, threads and churn, if samples show them.
fn about(out: &mut dyn Write, values: &[Value], detail: &Detail) -> io::Result<()> {
    let mut parts = Vec::new();
    let cumulative = values[sites::CUMULATIVE].amount;
    if cumulative > 0 && values[sites::LIVE].amount < cumulative {
        let temporary = temporary_percent(values[sites::TEMPORARY].amount, cumulative);
        if temporary >= 1.0 {
            parts.push(format!("{temporary:.0} % of all that it ever allocated was freed within 0.1 s"));
        }
    }
    if let (Some(oldest), Some(median)) = (detail.oldest_ns, detail.median_age_ns()) {
        parts.push(format!("age {} (median), oldest {}", duration(median), duration(oldest)));
    }
    let threads = detail.thread_names();
    if !threads.is_empty() {
        let names: Vec<String> = threads.iter().take(3).map(|t| cut(t, 30)).collect();
        let more = threads.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {}", count(more as u64)) } else { String::new() };
        parts.push(format!("by {}{more}", names.join(", ")));
    }
    if parts.is_empty() { Ok(()) } else { writeln!(out, "{:INDENT$}  {}", "", words::printable(&parts.join("; "))) }
}

#[cfg(test)]
#[test]
fn not_all_is_less_than_100_percent() {
    let shown = |temporary, cumulative| format!("{:.0}", temporary_percent(temporary, cumulative));
    assert_eq!(shown(400_020, 400_021), "99");
    assert_eq!(shown(400_021, 400_021), "100");
    assert_eq!(shown(1, 3), "33");
}
