//! Prints the call tree and the tables for a terminal of `WIDTH` columns.
//!
//! ```text
//!      bytes  share            calls   stack, outermost first
//!    610 MiB  75.1 %  ██████   1,204   main › serve › handle
//!    480 MiB  59.0 %  ████▊      900     parse shop.c:42 › grow
//! ```
//! A chain of single callees is one entry, whose indentation stays: a stack of forty frames that branches three times
//! has three levels. The sign › joins names, and they wrap at the terminal's width.

use std::io::{self, Write};

use plimsoll_profiles::profile::{Column, Function, Group, GroupBy, Tree, Unit, Value};

use super::{View, amount, by_words, called_at, error, magnitude, moments_words, named, share};
use crate::words;

/// Columns of the terminal.
pub const WIDTH: usize = 120;
/// Entries that a tree may have before small ones are summed up.
const ENTRIES: usize = 60;
const BAR: usize = 8;
/// Longer Java names have their packages cut to initials.
const LONG: usize = 60;
/// Lines of a table.
const LINES: usize = 50;

/// `all`: list every entry, never sum up the small ones.
pub fn write(out: &mut dyn Write, view: &View, by: GroupBy, all: bool) -> io::Result<()> {
    heading(out, view)?;
    match by {
        GroupBy::Site => tree(out, view, all),
        by => lines(out, view, by, all),
    }?;
    gaps(out, view)
}

pub(crate) fn gaps(out: &mut dyn Write, view: &View) -> io::Result<()> {
    for gap in &view.profile.gaps {
        writeln!(out, "gap: {}: {}", words::printable(&gap.reason), words::printable(&gap.effect))?;
        if !gap.remedy.is_empty() {
            writeln!(out, "     {}", words::printable(&gap.remedy))?;
        }
    }
    Ok(())
}

fn heading(out: &mut dyn Write, view: &View) -> io::Result<()> {
    let column = view.of();
    let total = view.profile.total();
    if !view.profile.title.is_empty() {
        writeln!(out, "{}", words::printable(&view.profile.title))?;
    }
    writeln!(out, "{}", sum_words(view, &total))?;
    if let Some((pattern, left_out)) = view.focus {
        let rest = amount(column, left_out[view.column].amount);
        writeln!(out, "below /{}/; {rest} are elsewhere", words::printable(pattern))?;
    }
    if let Some(words) = moments_words(view.profile, column) {
        writeln!(out, "{words}")?;
    }
    writeln!(out)
}

/// `live: 812 MiB ±14 MiB in 12,034 blocks (counted: 809 MiB)`. A total that was counted and then divided among sites
/// has no error itself.
pub(crate) fn sum_words(view: &View, total: &[Value]) -> String {
    let column = view.of();
    let of_all = |of: &Column, sum: Value| match of.exact_total {
        Some(exact) if exact == sum.amount => amount(of, exact),
        Some(exact) => format!("{}{} (counted: {})", amount(of, sum.amount), error(of, sum), amount(of, exact)),
        None => format!("{}{}", amount(of, sum.amount), error(of, sum)),
    };
    let mut text = format!("{}: {}", column.measure.replace('_', " "), of_all(column, total[view.column]));
    if let Some(other) = view.profile.companion(view.column) {
        let of = &view.profile.columns[other];
        let joint = if of.unit == Unit::Bytes { "," } else { " in" };
        text += &format!("{joint} {}", of_all(of, total[other]));
    }
    text
}

/// The figures before the name in a tree or table.
struct Figures<'a> {
    column: &'a Column,
    whole: i64,
    estimated: bool,
}

impl Figures<'_> {
    fn head(&self) -> String {
        let unit = match self.column.unit {
            Unit::Bytes => "bytes".to_string(),
            Unit::Count if self.column.noun.is_empty() => "count".into(),
            Unit::Count => format!("{}s", self.column.noun),
        };
        let error = if self.estimated { format!("{:>10}", "± 95 %") } else { String::new() };
        format!("{unit:>10}{error}    share  {:BAR$}  ", "")
    }

    fn line(&self, value: Value) -> String {
        let bare = Column { noun: "", ..self.column.clone() };
        let error = match (self.estimated, value.error()) {
            (false, _) => String::new(),
            (true, 0) => format!("{:>10}", ""),
            (true, n) => format!("{:>10}", format!("±{}", magnitude(&bare, n))),
        };
        let percent = share(value.amount, self.whole);
        format!("{:>10}{error}  {percent:>5.1} %  {}  ", amount(&bare, value.amount), bar(percent))
    }
}

/// A bar in eighths of a column; `BAR` columns are 100 %.
fn bar(percent: f64) -> String {
    let eighths = ((percent / 100.0).clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8 - 1]);
    }
    let width = bar.chars().count();
    bar + &" ".repeat(BAR - width)
}

fn tree(out: &mut dyn Write, view: &View, all: bool) -> io::Result<()> {
    let profile = view.profile;
    let tree = Tree::of_column(profile, view.column);
    let whole = tree.values(0)[0].amount;
    let estimated = profile.entries().any(|(_, v)| v[view.column].variance > 0.0);
    let figures = Figures { column: view.of(), whole, estimated };
    let least = if all { 0 } else { least_weight(&tree) };
    let indent = figures.head().chars().count();
    writeln!(out, "{}stack, outermost first", figures.head())?;
    // Depth first, biggest first; the second field is the level of indentation.
    let mut open = vec![Piece::Node(0, 0)];
    while let Some(piece) = open.pop() {
        match piece {
            Piece::Itself(value, level) => entry(out, &figures, value, indent, level, &["itself".into()])?,
            Piece::Small(many, value, level) => {
                let text = format!("{} below {}", words::counted(many, "smaller callee"), amount(view.of(), least));
                entry(out, &figures, value, indent, level, &[text])?;
            }
            Piece::Node(at, level) => {
                let (last, names) = chain(view, &tree, at);
                // The root has no name, so its children are at its level.
                let inner = if names.is_empty() { level } else { level + 1 };
                if !names.is_empty() {
                    entry(out, &figures, tree.values(at)[0], indent, level, &names)?;
                }
                let children = &tree.nodes[last].children;
                let shown = children.iter().take_while(|c| tree.nodes[**c].weight >= least.max(1)).count();
                let (big, small) = children.split_at(shown);
                let mut small = small.iter().map(|c| tree.values(*c)[0]).filter(|v| v.amount != 0).peekable();
                if small.peek().is_some() {
                    let (many, sum) = small.fold((0, Value::default()), |(n, sum), v| (n + 1, sum.plus(v)));
                    open.push(Piece::Small(many, sum, inner));
                }
                let own = tree.own(last)[0];
                if own.amount != 0 && (!children.is_empty() || names.is_empty()) {
                    open.push(if names.is_empty() { Piece::NoStack(own, inner) } else { Piece::Itself(own, inner) });
                }
                open.extend(big.iter().rev().map(|c| Piece::Node(*c, inner)));
            }
            Piece::NoStack(value, level) => entry(out, &figures, value, indent, level, &["(no stack)".into()])?,
        }
    }
    Ok(())
}

enum Piece {
    Node(usize, usize),
    /// The amount whose stacks end in a function that also calls others.
    Itself(Value, usize),
    NoStack(Value, usize),
    Small(u64, Value, usize),
}

/// The weight below which nodes are summed up: the smallest round share that leaves at most `ENTRIES` nodes, or the
/// largest one.
fn least_weight(tree: &Tree) -> i64 {
    let whole = tree.nodes[0].weight;
    let entries = |least: i64| tree.nodes.iter().filter(|n| n.weight >= least && is_start(tree, n.parent)).count();
    let shares = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05];
    let leasts = shares.map(|share| (whole as f64 * share).ceil() as i64);
    *leasts.iter().find(|least| entries(**least) <= ENTRIES).unwrap_or(&leasts[6])
}

/// Whether the callees of `parent` start entries of their own. The only callee of a node without an amount of its own
/// continues the node's entry.
fn is_start(tree: &Tree, parent: usize) -> bool {
    let node = &tree.nodes[parent];
    parent == 0 || node.children.len() > 1 || tree.own(parent)[0].amount != 0
}

/// The last node of the chain that starts at `at`, and the names on it.
fn chain(view: &View, tree: &Tree, mut at: usize) -> (usize, Vec<String>) {
    let profile = view.profile;
    let mut names: Vec<String> = Vec::new();
    // Consecutive frames of one module without names share one name.
    let mut nameless: Option<(&str, usize)> = None;
    loop {
        if let (Some(function), Some(frame)) = (tree.nodes[at].function, tree.nodes[at].frame) {
            let (function, frame) = (profile.function_at(function), profile.frame_at(frame));
            match &mut nameless {
                Some((module, more)) if !function.named && *module == function.module => *more += 1,
                _ => {
                    end_nameless(&mut names, &mut nameless);
                    names.push(short(
                        if tree.nodes[at].several { named(function) } else { called_at(function, frame) },
                        function,
                    ));
                    nameless = (!function.named && !function.module.is_empty()).then_some((&function.module, 0));
                }
            }
        }
        match tree.nodes[at].children[..] {
            [child] if !is_start(tree, at) => at = child,
            _ => break,
        }
    }
    end_nameless(&mut names, &mut nameless);
    (at, names)
}

/// A long Java name with the initials of its packages: methods differ at the end of the name.
fn short(name: String, function: &Function) -> String {
    match function.package() {
        Some(package) if name.chars().count() > LONG && name.starts_with(package) && !package.is_empty() => {
            let initials: String = package.split('.').filter_map(|p| p.chars().next()).flat_map(|c| [c, '.']).collect();
            initials + name[package.len()..].trim_start_matches('.')
        }
        _ => name,
    }
}

/// A name that is too long, with the initials of its packages: `j.u.c.ConcurrentHashMap$Node[]`. Packages begin with a
/// lower-case letter, and classes don't.
fn with_initials(name: &str, columns: usize) -> String {
    if name.chars().count() <= columns {
        return name.into();
    }
    let is_package = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase()) && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    let (mut short, mut rest) = (String::new(), name);
    while let Some((part, after)) = rest.split_once('.').filter(|(part, _)| is_package(part)) {
        short.extend(part.chars().next());
        short.push('.');
        rest = after;
    }
    short + rest
}

fn end_nameless(names: &mut [String], nameless: &mut Option<(&str, usize)>) {
    if let (Some((_, more)), Some(name)) = (nameless.take(), names.last_mut())
        && more > 0
    {
        *name += &format!(" and {more} more there");
    }
}

fn entry(
    out: &mut dyn Write,
    figures: &Figures,
    value: Value,
    indent: usize,
    level: usize,
    names: &[String],
) -> io::Result<()> {
    // Limits the indentation, so that deep branching leaves columns for names.
    let level = (2 * level).min(WIDTH / 3);
    let columns = WIDTH.saturating_sub(indent + level).max(20);
    for (i, line) in wrap(names, columns).iter().enumerate() {
        match i {
            0 => writeln!(out, "{}{:level$}{line}", figures.line(value), "")?,
            _ => writeln!(out, "{:indent$}{:level$}{line}", "", "")?,
        }
    }
    Ok(())
}

/// Joins names by › and breaks lines between names; a name wider than a line is cut.
fn wrap(names: &[String], columns: usize) -> Vec<String> {
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for (i, name) in names.iter().enumerate() {
        let name = words::cut(name, columns.saturating_sub(2));
        let (wide, joint) = (name.chars().count(), if i == 0 { "" } else { " › " });
        if i > 0 && used + 3 + wide > columns {
            lines.push(std::mem::replace(&mut line, format!("› {name}")));
            used = 2 + wide;
        } else {
            line.push_str(joint);
            line.push_str(&name);
            used += joint.chars().count() + wide;
        }
    }
    lines.push(line);
    lines
}

fn lines(out: &mut dyn Write, view: &View, by: GroupBy, all: bool) -> io::Result<()> {
    let profile = view.profile;
    let groups = profile.group(by, view.column);
    let total = profile.total();
    let estimated = groups.iter().any(|g| g.values[view.column].variance > 0.0);
    let figures = Figures { column: view.of(), whole: total[view.column].amount, estimated };
    // The other columns, as many as leave space for a name.
    let is_shown = |c: &usize| *c != view.column && profile.columns[*c].is_recorded;
    let others: Vec<usize> = (0..profile.columns.len()).filter(is_shown).take(4).collect();
    let heads: Vec<String> = others.iter().map(|c| column_words(&profile.columns[*c])).collect();
    let widths: Vec<usize> = heads.iter().map(|h| h.chars().count().max(10) + 2).collect();
    let head: String = heads.iter().zip(&widths).map(|(head, width)| format!("{head:>width$}")).collect();
    writeln!(out, "{}{head}  {}", figures.head(), by_words(by))?;
    let shown = if all { groups.len() } else { groups.len().min(LINES) };
    let figures_of = |values: &[Value]| -> String {
        let bare = |c: usize| Column { noun: "", ..profile.columns[c].clone() };
        let others =
            others.iter().zip(&widths).map(|(c, width)| format!("{:>width$}", amount(&bare(*c), values[*c].amount)));
        figures.line(values[view.column]) + &others.collect::<String>()
    };
    let columns = WIDTH.saturating_sub(figures.head().chars().count() + widths.iter().sum::<usize>() + 2).max(20);
    let is_java = matches!(by, GroupBy::Class | GroupBy::Caller | GroupBy::Package);
    let name = |group: &Group| if is_java { with_initials(&group.name, columns) } else { group.name.clone() };
    let names: Vec<String> = groups[..shown].iter().map(name).collect();
    let names = words::cut_apart(names.iter().map(String::as_str), columns);
    for (group, name) in groups[..shown].iter().zip(names) {
        writeln!(out, "{}  {name}", figures_of(&group.values))?;
    }
    if shown < groups.len() {
        let mut rest = vec![Value::default(); profile.columns.len()];
        for group in &groups[shown..] {
            rest.iter_mut().zip(&group.values).for_each(|(sum, v)| *sum = sum.plus(*v));
        }
        writeln!(out, "{}  {}", figures_of(&rest), words::counted((groups.len() - shown) as u64, "smaller line"))?;
    }
    writeln!(out, "{}  sum", figures_of(&total))
}

fn column_words(column: &Column) -> String {
    let measure = column.measure.replace('_', " ");
    match column.unit {
        Unit::Bytes => measure,
        Unit::Count => format!("{measure} {}s", if column.noun.is_empty() { "count" } else { column.noun }),
    }
}
