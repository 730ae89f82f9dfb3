//! Prints a report for a person.

use std::collections::HashMap;
use std::io::{self, Write};

use plimsoll_facts::ending::Ending;
use plimsoll_facts::gap::Gap;
use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::Bytes;
use plimsoll_tracked::books::{Books, Caller, Category, Figures, Frame, Runtime, TrackerCost};
use plimsoll_tracked::segment::Life;
use plimsoll_tracked::sites;

use crate::words::{count, counted, cut, duration, moment_text, padded, printable, wrapped};

/// What one line of the table stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinesBy {
    #[default]
    Category,
    Caller,
    Module,
    Thread,
}

/// Width of the first column.
const NAME: usize = 26;
/// Lines of callers, modules and threads that are shown. All others share one line, so that the sum is complete.
const LINES: usize = 30;
/// Columns of a legend's rows.
const LEGEND: usize = 120;
/// Memory that the books don't have is worth a sentence from here on, if it is a fifth of the anonymous memory.
const BESIDE: Bytes = Bytes::mib(16);

fn most(all: bool) -> usize {
    if all { usize::MAX } else { LINES }
}

/// `all`: also each small line that would otherwise share a line with others.
pub fn write(out: &mut dyn Write, books: &Books, by: LinesBy, all: bool) -> io::Result<()> {
    head(out, books)?;
    writeln!(out)?;
    match by {
        LinesBy::Category => categories(out, books, all)?,
        LinesBy::Caller => callers(out, books, all)?,
        LinesBy::Module => modules(out, books, all)?,
        LinesBy::Thread => threads(out, books, all)?,
    }
    foot(out, books)
}

fn head(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    let process = &books.process;
    let command = if process.arguments.is_empty() { process.executable.clone() } else { one_line(&process.arguments) };
    let state = match (books.life, &books.ending) {
        (Life::Live, _) => "live".to_owned(),
        (Life::Detached, _) => "as it was at the detach".to_owned(),
        (_, ending) => ending.unwrap_or(Ending::UNKNOWN).sentence(),
    };
    let up = age(books).map(|age| format!("   {age}"));
    let inside = process.namespaced_pid.map(|pid| format!("   ({pid} inside)")).unwrap_or_default();
    writeln!(out, "{}   pid {}{inside}   {state}{}", cut(&command, 100), process.pid, up.unwrap_or_default())?;
    writeln!(out, "{}   {}   {}", built_on(books), counted(process.threads, "thread"), moment_text(books.time_ns))?;
    let total = &books.total;
    let blocks = match total.fault {
        true => "unknown: a fault, see below".to_string(),
        false => format!("{} in {}   (requested {})", total.live, counted(total.live_count, "block"), total.requested),
    };
    let peak = match total.peak_time_ns {
        // The count at the peak lacks blocks that threads had not reported yet, often hundreds of small ones.
        Some(at) if books.peak_error.0 > total.peak.0 / 10 => format!("{} at {}", total.peak, moment_text(at)),
        Some(at) => format!("{} in {} at {}", total.peak, counted(total.count_at_peak, "block"), moment_text(at)),
        None => format!("{} in {}, now", total.peak, counted(total.count_at_peak, "block")),
    };
    writeln!(out)?;
    writeln!(out, "  live       {blocks}")?;
    writeln!(out, "  peak       {peak}")?;
    writeln!(out, "  mapped     {} committed of {} reserved", total.committed, total.reserved)?;
    let churn = format!("{}, {}", counted(total.cumulative_count, "block"), total.cumulative);
    writeln!(out, "  allocated  {churn} since {}", moment_text(process.since_ns))
}

/// `glibc malloc`, `HotSpot 25.0.3 on glibc malloc`.
pub(crate) fn built_on(books: &Books) -> String {
    let process = &books.process;
    let runtime = match (process.runtime, &process.runtime_version) {
        (Runtime::Native, _) => String::new(),
        (Runtime::HotSpot, None) => "HotSpot on ".into(),
        (Runtime::HotSpot, Some(version)) => format!("HotSpot {} on ", printable(version)),
        (Runtime::NativeImage, _) => "native image on ".into(),
    };
    format!("{runtime}{} malloc", process.allocator)
}

/// How long the process has run, or the books cover it: `up 4.0 s`, `ran at least 4.0 s`.
pub(crate) fn age(books: &Books) -> Option<String> {
    // The books of an attached process do not include the time before the attach.
    let attached = books.counter("attaches") > 0;
    let how_long = match books.life {
        Life::Killed if attached && !books.end_is_known => "tracked at least",
        _ if attached => "tracked",
        Life::Live => "up",
        Life::Exited => "ran",
        Life::Detached => "tracked",
        Life::Killed if books.end_is_known => "ran",
        // Nobody recorded the moment of the kill.
        Life::Killed => "ran at least",
    };
    let up = books.process.up_ns?;
    let long = if attached { books.time_ns.saturating_sub(books.process.since_ns) } else { up };
    Some(format!("{how_long} {}", duration(long)))
}

fn categories(out: &mut dyn Write, books: &Books, all: bool) -> io::Result<()> {
    let resident = books.categories.iter().any(|c| c.figures.resident.is_some());
    let is_known = books.is_resident_known();
    writeln!(
        out,
        "{:NAME$} {:>9} {:>6} {:>12} {:>9} {:>10} {:>10}{}",
        "category",
        "live",
        "share",
        "blocks",
        "peak",
        "committed",
        "reserved",
        if resident { "   resident" } else { "" }
    )?;
    // Omits a category whose printed figures would all be 0; the sum stays right.
    let shown = |f: &Figures| f.size() + f.reserved + f.peak > Bytes::ZERO;
    let mut order: Vec<_> = books.categories.iter().filter(|c| shown(&c.figures)).collect();
    order.sort_by(|a, b| books.held_by(b).cmp(&books.held_by(a)).then_with(|| a.name.cmp(&b.name)));
    let held = order.iter().map(|category| books.held_by(category)).sum();
    let (shown, folded) = if all { (order, Vec::new()) } else { worth_a_line(order, books, held) };
    for category in shown {
        let share = books.held_by(category).percent_of(held);
        let share = (!category.figures.is_held_unknown()).then_some(share);
        category_line(out, &category.name, &category.figures, share, resident)?;
    }
    if !folded.is_empty() {
        let sum = |of: fn(&Figures) -> Bytes| folded.iter().map(|category| of(&category.figures)).sum::<Bytes>();
        let rest = Figures {
            live: sum(|f| f.live),
            live_count: folded.iter().fold(0, |sum, category| sum.saturating_add(category.figures.live_count)),
            committed: sum(|f| f.committed),
            reserved: sum(|f| f.reserved),
            files: sum(|f| f.files),
            resident: Some(sum(|f| f.resident_beside_arenas().unwrap_or_default())),
            fault: folded.iter().any(|category| category.figures.fault),
            // Peaks of different moments do not add up.
            ..Figures::default()
        };
        let share = folded.iter().map(|category| books.held_by(category)).sum::<Bytes>().percent_of(held);
        let share = folded.iter().any(|category| !category.figures.is_held_unknown()).then_some(share);
        category_line(out, &format!("{} small categories", folded.len()), &rest, share, resident)?;
    }
    let all: Bytes = books.categories.iter().filter_map(|category| category.figures.resident_beside_arenas()).sum();
    let whole = held.percent_of(held);
    let all = Some(all).filter(|_| is_known);
    let total = Figures { resident: all, resident_arenas: Bytes::ZERO, ..books.total };
    category_line(out, "total", &total, Some(whole), resident)?;
    writeln!(out)?;
    categories_legend(out, resident)?;
    let mut of_files: Vec<_> = books.categories.iter().filter(|c| c.figures.files >= Bytes(1 << 20)).collect();
    of_files.sort_by_key(|c| core::cmp::Reverse(c.figures.files));
    if !resident && books.total.committed > Bytes::ZERO {
        writeln!(out, "\n{} `share` is of the live blocks.", unknown_resident(&[books]))?;
    } else if !of_files.is_empty() {
        let names: Vec<_> =
            of_files.iter().take(3).map(|c| format!("{} {}", cut(&c.name, NAME), c.figures.files)).collect();
        let files = books.total.files;
        writeln!(out, "\nOf the committed {}, {files} are mapped files: {}.", books.total.committed, names.join(", "))?;
        let but = if is_known { "" } else { ", unless the program has written them," };
        writeln!(
            out,
            "The kernel can drop their pages{but} and read them again from the files, so `share` leaves them out."
        )?;
    }
    if let Some(own) = books.mappings_of_malloc().filter(|own| own.figures.resident.is_some()) {
        writeln!(
            out,
            "\nThe live blocks lie in {}'s mappings. `share` counts only the part of these mappings beyond the blocks.",
            own.name
        )?;
    }
    Ok(())
}

/// Where the resident part isn't known, a note says what `share` is of.
fn categories_legend(out: &mut dyn Write, resident: bool) -> io::Result<()> {
    let columns = sites::columns();
    let of = |column: usize| (columns[column].measure, columns[column].meaning);
    let mut shown = vec![of(sites::LIVE)];
    shown.extend(resident.then_some(("share", "of live and resident bytes, without files")));
    shown.extend([sites::PEAK, sites::COMMITTED, sites::RESERVED].map(of));
    shown.extend(resident.then(|| of(sites::RESIDENT)));
    legend(out, &shown)
}

/// What the columns of a table mean.
pub(crate) fn legend(out: &mut dyn Write, columns: &[(&str, &str)]) -> io::Result<()> {
    let columns: Vec<String> = columns.iter().map(|(name, meaning)| format!("`{name}`: {meaning}")).collect();
    wrapped(&columns.join("; "), LEGEND).iter().try_for_each(|row| writeln!(out, "{row}"))
}

/// Why committed memory gives no order and no share.
pub fn unknown_resident(of: &[&Books]) -> String {
    let why = match of.iter().any(|books| books.ending.is_some()) {
        true if of.len() > 1 => ": a process has ended",
        true => ": the process has ended",
        false => "",
    };
    format!("How much of the committed memory was resident is not known{why}.")
}

/// Splits categories into those with a line of their own, and those that never held a thousandth of the total. The
/// latter share one line, unless there are only a few. JSON has them all.
fn worth_a_line<'b>(order: Vec<&'b Category>, books: &Books, held: Bytes) -> (Vec<&'b Category>, Vec<&'b Category>) {
    const FEW: usize = 3;
    let least = Bytes(held.0 / 1000);
    let is_small = |category: &Category| {
        let f = &category.figures;
        books.held_by(category) < least && f.peak < least && f.reserved < least
    };
    let (small, large): (Vec<_>, Vec<_>) = order.iter().partition(|category| is_small(category));
    if small.len() > FEW { (large, small) } else { (order, Vec::new()) }
}

fn category_line(out: &mut dyn Write, name: &str, f: &Figures, share: Option<f64>, resident: bool) -> io::Result<()> {
    write!(
        out,
        "{} {:>9} {:>6} {:>12} {:>9} {:>10} {:>10}",
        padded(name, NAME),
        if f.fault { FAULT.into() } else { dash(f.live) },
        share.map_or("-".into(), |share| format!("{share:.1}%")),
        if f.live_count == 0 || f.fault { "-".into() } else { count(f.live_count) },
        dash(f.peak),
        dash(f.committed),
        dash(f.reserved),
    )?;
    match f.resident_beside_arenas() {
        Some(bytes) if resident => writeln!(out, " {bytes:>10}"),
        _ => writeln!(out),
    }
}

/// Stands for unknown live bytes: more was freed than was allocated.
const FAULT: &str = "fault";

fn live(f: &Figures) -> String {
    if f.fault { FAULT.into() } else { f.live.to_string() }
}

fn dash(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO { "-".into() } else { bytes.to_string() }
}

/// The table of callers alone, below a report that is already printed.
pub fn callers_only(out: &mut dyn Write, books: &Books, all: bool) -> io::Result<()> {
    writeln!(out)?;
    callers(out, books, all)
}

fn callers(out: &mut dyn Write, books: &Books, all: bool) -> io::Result<()> {
    let mut order = merged_callers(books);
    order.sort_by_key(|(f, _)| std::cmp::Reverse((f.live, f.cumulative, f.committed)));
    writeln!(out, "{:>9} {:>6} {:>12} {:>9} {:>14}  caller", "live", "share", "blocks", "peak", "allocated ever")?;
    let line = |f: &Figures| {
        format!(
            "{:>9} {:>5.1}% {:>12} {:>9} {:>14}",
            live(f),
            f.live.percent_of(books.total.live),
            count(f.live_count),
            f.peak.to_string(),
            count(f.cumulative_count)
        )
    };
    for (f, caller) in order.iter().take(most(all)) {
        let name = printable(&books.categories[caller.category].name);
        // The columns have blocks only.
        let mapped = match f.reserved {
            Bytes::ZERO => String::new(),
            reserved => format!("   mapped: {} committed of {reserved} reserved", f.committed),
        };
        writeln!(out, "{}  {name}{mapped}", line(f))?;
        for frame in &caller.frames {
            writeln!(out, "{:56}{}", "", frame_text(books, frame))?;
        }
        if caller.frames.is_empty() {
            writeln!(out, "{:56}no stack", "")?;
        }
    }
    rest(out, order.iter().skip(most(all)).map(|(f, _)| f.live), "caller")
}

/// The callers. Each has the sum of those that differ from it only in the addresses of its modules, because a library
/// may have been loaded again elsewhere. Peaks add up, too, as those of sites do.
fn merged_callers(books: &Books) -> Vec<(Figures, &Caller)> {
    let mut merged: Vec<(Figures, &Caller)> = Vec::new();
    let mut indexes = HashMap::new();
    for caller in books.callers.iter().filter(|c| !c.figures.is_empty()) {
        let of_frame = |frame: &Frame| match frame.module.and_then(|i| books.modules.get(i)) {
            Some(module) => (Some(module.path.clone()), frame.offset),
            None => (None, frame.address.0),
        };
        let key = (caller.category, caller.frames.iter().map(of_frame).collect::<Vec<_>>());
        let index = *indexes.entry(key).or_insert(merged.len());
        match merged.get_mut(index) {
            Some((sum, _)) => sum.add_with_peak(&caller.figures),
            None => merged.push((caller.figures, caller)),
        }
    }
    merged
}

fn rest(out: &mut dyn Write, figures: impl Iterator<Item = Bytes>, what: &str) -> io::Result<()> {
    let (n, bytes) = figures.fold((0, Bytes::ZERO), |(n, sum), bytes| (n + 1, sum + bytes));
    if n == 0 { Ok(()) } else { writeln!(out, "{:>9} in {}", bytes.to_string(), counted(n, &format!("more {what}"))) }
}

/// `function+0x1b  libfoo.so`, or `libfoo.so+0x4711` without a name. JIT code has its name or the bare address.
pub(crate) fn frame_text(books: &Books, frame: &Frame) -> String {
    let module = frame.module.and_then(|i| books.modules.get(i));
    match (module, &frame.function) {
        (Some(m), Some(f)) => format!("{}+{:#x}  {}", printable(f), frame.function_offset, printable(m.name())),
        (Some(m), None) => format!("{}+{:#x}", printable(m.name()), frame.offset),
        (None, Some(f)) => format!("{} (no module)", printable(f)),
        (None, None) => format!("{:#x} (no module)", frame.address),
    }
}

fn modules(out: &mut dyn Write, books: &Books, all: bool) -> io::Result<()> {
    writeln!(
        out,
        "{:>9} {:>6} {:>12} {:>14}  module that calls the allocator",
        "live", "share", "blocks", "allocated ever"
    )?;
    let mut order: Vec<(&str, Figures)> = books.modules.iter().map(|m| (m.path.as_str(), m.figures)).collect();
    let less =
        |total: u64, part: fn(&Figures) -> u64| order.iter().fold(total, |rest, (_, f)| rest.saturating_sub(part(f)));
    let none = Figures {
        live: Bytes(less(books.total.live.0, |f| f.live.0)),
        live_count: less(books.total.live_count, |f| f.live_count),
        cumulative_count: less(books.total.cumulative_count, |f| f.cumulative_count),
        ..Figures::default()
    };
    order.push(("(no module: JIT code, or before the start)", none));
    order.retain(|(_, f)| f.cumulative_count > 0);
    order.sort_by_key(|(name, f)| (std::cmp::Reverse(f.live), *name));
    for (name, f) in order.iter().take(most(all)) {
        let share = f.live.percent_of(books.total.live);
        let line =
            format!("{:>9} {share:>5.1}% {:>12} {:>14}", live(f), count(f.live_count), count(f.cumulative_count));
        writeln!(out, "{line}  {}", printable(name))?;
    }
    rest(out, order.iter().skip(most(all)).map(|(_, f)| f.live), "module")
}

fn threads(out: &mut dyn Write, books: &Books, all: bool) -> io::Result<()> {
    writeln!(out, "{:>10} {:>12} {:>10} {:>12} {:>10}  thread", "allocated", "blocks", "freed", "blocks", "stack")?;
    let mut order: Vec<_> =
        books.threads.iter().filter(|t| t.in_use || t.allocated_count > 0 || t.freed_count > 0).collect();
    order.sort_by_key(|t| (std::cmp::Reverse(t.allocated), t.slot));
    for t in order.iter().take(most(all)) {
        let stack = if t.in_use && t.stack != Bytes::ZERO { t.stack.to_string() } else { "-".into() };
        let figures = format!(
            "{:>10} {:>12} {:>10} {:>12} {stack:>10}",
            t.allocated.to_string(),
            count(t.allocated_count),
            t.freed.to_string(),
            count(t.freed_count)
        );
        let name = match (&t.name, t.in_use) {
            (Some(name), _) => format!("{} ({})", t.tid, printable(name)),
            (None, true) if t.tid == 0 => "shared by threads without a slot".into(),
            (None, true) => t.tid.to_string(),
            (None, false) => format!("{} ended", t.tid),
        };
        let earlier = match t.generation {
            0 | 1 => String::new(),
            many => format!(", with {}", counted(many - 1, "earlier one")),
        };
        writeln!(out, "{figures}  {name}{earlier}")?;
    }
    rest(out, order.iter().skip(most(all)).map(|t| t.allocated), "thread")?;
    writeln!(out, "A block may be freed by another thread than the one that allocated it.")
}

/// What an attached process held before the attach, and still holds.
pub(crate) fn before_the_attach(books: &Books) -> Option<String> {
    let before = books.before.as_ref()?;
    Some(format!(
        "before the attach: another {} in {}, still live (glibc's arenas minus these books; ± {}).",
        before.live,
        counted(before.live_count, "block"),
        before.error
    ))
}

fn foot(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    writeln!(out)?;
    if let Some(before) = before_the_attach(books) {
        writeln!(out, "{before}\nThe table has neither these blocks nor what malloc keeps free in its arenas.")?;
    }
    if let (Some(all), Some(beside)) = (books.process.anonymous, books.beside())
        && beside >= BESIDE.max(Bytes(all.0 / 5))
    {
        writeln!(
            out,
            "Of {all} of resident anonymous memory, {beside} or more are not in these books: free memory of malloc, or blocks\n\
             and mappings that are older than the books, or that were made past libc (as Go's are). plimsoll explain {} tells which.",
            books.process.pid
        )?;
    }
    let own = &books.own;
    // A table is resident where it was touched, and only the kernel knows that.
    let library = match (own.by_page, own.tabled) {
        (true, _) => format!(" + {} library and rules", own.library),
        (false, 0) => String::new(),
        (false, blocks) => format!(", without the tables' keys of {}", counted(blocks, "block")),
    };
    writeln!(
        out,
        "Plimsoll's own cost: {} = {} thread state and tables ({}) + {} segment{library}",
        own.bytes(),
        own.private,
        if own.by_page { "resident" } else { "allocated" },
        own.segment,
    )?;
    writeln!(out, "{}", blocks_cost(own))?;
    if books.peak_error > Bytes::ZERO {
        writeln!(
            out,
            "Peaks may read up to {} low, and so may their counts: threads report with a delay.",
            books.peak_error
        )?;
    }
    books.gaps.iter().try_for_each(|gap| write_gap(out, "", gap))
}

/// `  65,012 blocks end in a trailer of 8 bytes, which enlarges the heap by up to 0.97 MiB; 512 KiB of the tables are for
/// 31 blocks without one; in all 8.0 to 24.1 bytes a block`. Without a trailer there is nothing to say about trailers:
/// `  512 KiB of the tables are for the keys of 31 live blocks: 16912.5 bytes a block`
fn blocks_cost(own: &TrackerCost) -> String {
    if own.trailers == 0 {
        return match (own.tabled, own.of_a_block()) {
            (0, _) => "  no live block is in the books".to_string(),
            (tabled, Some([each, _])) => {
                let blocks = counted(tabled, "live block");
                format!("  {} of the tables are for the keys of {blocks}: {each:.1} bytes a block", own.side_table)
            }
            (tabled, None) => format!("  the tables have the keys of {}", counted(tabled, "live block")),
        };
    }
    let growth = match own.growth {
        (Bytes::ZERO, Bytes::ZERO) => "0 B".to_string(),
        (Bytes::ZERO, most) => format!("up to {most}"),
        (least, most) => format!("{least} to {most}"),
    };
    let end = if own.trailers == 1 { "block ends" } else { "blocks end" };
    let mut text =
        format!("  {} {end} in a trailer of 8 bytes, which enlarges the heap by {growth}", count(own.trailers));
    if own.tabled > 0 {
        let pages = if own.by_page { format!("{} of the tables are for ", own.side_table) } else { String::new() };
        text += &format!("; {pages}{} without one", counted(own.tabled, "block"));
    }
    if let Some(cost) = own.of_a_block() {
        let [least, most] = cost.map(|bytes| format!("{bytes:.1}"));
        let least = match cost[0] {
            _ if least == most => String::new(),
            0.0 => "at most ".to_string(),
            _ => format!("{least} to "),
        };
        text += &format!("; in all {least}{most} bytes a block");
    }
    text
}

/// `of`: which of several books has it.
pub(crate) fn write_gap(out: &mut dyn Write, of: &str, gap: &Gap) -> io::Result<()> {
    let remedy = if gap.remedy.is_empty() { String::new() } else { format!(": {}", printable(&gap.remedy)) };
    writeln!(out, "gap {of}({}): {}; {}{remedy}", gap.source.name(), printable(&gap.reason), printable(&gap.effect))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tracked::books::Before;

    fn category(name: &str, live: u64, committed: u64, resident: Option<u64>) -> Category {
        let [live, committed] = [live, committed].map(Bytes::mib);
        let figures =
            Figures { live, committed, reserved: committed, resident: resident.map(Bytes::mib), ..Figures::default() };
        Category { name: name.into(), figures, ..Category::default() }
    }

    #[test]
    fn without_a_trailer_the_tables_have_the_cost() {
        let of = |trailers: u64, tabled: u64, by_page: bool| {
            let side_table = if by_page { Bytes(120 * tabled) } else { Bytes::ZERO };
            blocks_cost(&TrackerCost { trailers, tabled, by_page, side_table, ..TrackerCost::default() })
        };
        assert_eq!(of(0, 0, true), "  no live block is in the books");
        let keys = "  60.0 KiB of the tables are for the keys of 512 live blocks: 120.0 bytes a block";
        assert_eq!(of(0, 512, true), keys);
        assert_eq!(of(0, 1, false), "  the tables have the keys of 1 live block");
        let both = "  1 block ends in a trailer of 8 bytes, which enlarges the heap by 0 B; 1 block without one";
        assert_eq!(of(1, 1, false), both);
        assert!(of(2, 0, false).starts_with("  2 blocks end in a trailer"), "{}", of(2, 0, false));
    }

    /// A fifth of the anonymous memory, and 16 MiB. What an attach found in the arenas isn't missing.
    #[test]
    fn memory_that_the_books_lack_is_named_if_it_is_much() {
        let missing = |anonymous: Option<u64>, live: u64, before: u64| {
            let mut books = Books { categories: vec![category("app", live, 0, None)], ..Books::default() };
            books.process.anonymous = anonymous.map(Bytes::mib);
            books.before = Some(Before { live: Bytes::mib(before), ..Before::default() });
            let mut out = Vec::new();
            foot(&mut out, &books).expect("a Vec takes it");
            let text = String::from_utf8(out).expect("UTF-8");
            text.lines().find(|line| line.contains("are not in these books")).map(|line| line[..70].to_owned())
        };
        let named = "Of 160 MiB of resident anonymous memory, 128 MiB or more are not in the";
        assert_eq!(missing(Some(160), 32, 0).as_deref(), Some(&named[..70]));
        assert_eq!(missing(Some(160), 2, 30).as_deref(), Some(&named[..70]));
        // Less than a fifth, less than 16 MiB, more than is resident, and a dead process.
        for (anonymous, live) in [(Some(160), 130), (Some(20), 5), (Some(160), 400), (None, 32)] {
            assert_eq!(missing(anonymous, live, 0), None, "{anonymous:?} {live}");
        }
    }

    #[test]
    fn one_of_a_kind_has_no_plural() {
        let mut books = Books::default();
        (books.total.live_count, books.total.cumulative_count, books.total.count_at_peak) = (1, 1, 1);
        let mut out = Vec::new();
        head(&mut out, &books).expect("a Vec takes it");
        rest(&mut out, [Bytes(5)].into_iter(), "caller").expect("a Vec takes it");
        let text = String::from_utf8(out).expect("UTF-8");
        for one in [" in 1 block   (requested", " in 1 block, now", "allocated  1 block, ", " in 1 more caller"] {
            assert!(text.contains(one), "{one}: {text}");
        }
        assert!(!text.contains("1 blocks") && !text.contains("callers"), "{text}");
    }

    /// Only 17 of 185 MiB of stacks are resident, so the stacks must not be on top.
    #[test]
    fn resident_bytes_order_and_share_the_table() {
        let lines = |resident: Option<u64>| {
            let categories = vec![category("Thread Stack", 0, 185, resident), category("zlib", 83, 0, None)];
            let mut out = Vec::new();
            super::categories(&mut out, &Books { categories, ..Books::default() }, false).expect("a Vec takes it");
            let text = String::from_utf8(out).expect("UTF-8");
            text.lines()
                .skip(1)
                .map(|line| line.split_whitespace().take(5).collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            lines(Some(17))[..3],
            ["zlib 83.0 MiB 83.0% -", "Thread Stack - 17.0% -", "total - 100.0% - -"].map(String::from).to_vec()
        );
        // If one category has no resident bytes, as the tracker's own, this says nothing about the others.
        let categories = vec![category("Thread Stack", 0, 185, Some(17)), category("Plimsoll", 0, 1, None)];
        let mut out = Vec::new();
        super::categories(&mut out, &Books { categories, ..Books::default() }, false).expect("a Vec takes it");
        assert!(!String::from_utf8(out).expect("UTF-8").contains("not known"));
        // The resident bytes of a dead process are unknown.
        assert_eq!(lines(None)[..2], ["zlib 83.0 MiB 100.0% -", "Thread Stack - - -"].map(String::from));
    }

    /// The line below the table says that the table has neither the blocks in these arenas nor their free memory.
    #[test]
    fn arenas_from_before_an_attach_are_in_no_column_of_the_table() {
        let mut older = category("before the attach", 0, 257, Some(30));
        older.figures.resident_arenas = Bytes::mib(28);
        let mut books = Books { categories: vec![older, category("app", 60, 4, Some(4))], ..Books::default() };
        books.total.resident = Some(Bytes::mib(34));
        books.total.resident_arenas = Bytes::mib(28);
        let mut out = Vec::new();
        super::categories(&mut out, &books, false).expect("a Vec takes it");
        let text = String::from_utf8(out).expect("UTF-8");
        for (name, resident) in [("before the attach", " 2.00 MiB"), ("app", " 4.00 MiB"), ("total", " 6.00 MiB")] {
            assert!(text.lines().any(|line| line.starts_with(name) && line.ends_with(resident)), "{text}");
        }
    }

    /// 60 MiB of live blocks lie in 64 resident MiB that jemalloc mapped: they must not be counted twice.
    #[test]
    fn the_mappings_of_malloc_count_beyond_its_blocks() {
        let categories = vec![category("app", 60, 0, None), category("jemalloc", 0, 80, Some(64))];
        let mut books = Books { categories, ..Books::default() };
        books.process.allocator = "jemalloc";
        books.total.live = Bytes::mib(60);
        let mut out = Vec::new();
        super::categories(&mut out, &books, false).expect("a Vec takes it");
        let text = String::from_utf8(out).expect("UTF-8");
        let share = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a line");
            line.split_whitespace().find(|word| word.ends_with('%')).expect("a share").to_string()
        };
        assert_eq!((share("app"), share("jemalloc")), ("93.8%".into(), "6.2%".into()), "{text}");
        assert!(text.contains("in jemalloc's mappings"), "{text}");
        assert!(text.contains("`share`: of live and resident bytes, without files; "), "{text}");
    }
}
