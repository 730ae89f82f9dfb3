//! Writes a flame graph as one SVG file: a picture without scripts, interactive with the script inside.
//!
//! The root is on top. A callee hangs below its caller and is as wide as what it holds; the biggest is on the left.
//! Each box is
//!
//! ```text
//! <g class="f j">                      its kind (native, java, …) or its change
//!   <title>name ⏎ figures ⏎ where</title>   the tooltip; it needs no script
//!   <rect x y width height/>
//!   <text x y>name, cut to the box</text>
//! </g>
//! ```
//! The caller of a box is the last box before it in the row above, because callees directly follow their caller. The
//! script reads the boxes from these elements, so nothing is written twice. Foreign text is escaped and only in text
//! nodes. The script writes it with `textContent`, so a name cannot become markup.
//!
//! Colours follow the kind of code. In a difference, blue shrank, red grew, grey is noise. There a box is as wide as
//! the larger side of its stacks, so that vanished memory stays visible.

use std::io::{self, Write};

use plimsoll_profiles::profile::{FrameOrigin, ProfileDiff, Tree, Unit, Value};

use super::text::sum_words;
use super::{Exporter, View, amount, change, error, kind_words, moments_words, named, position, share};
use crate::words;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
/// Height above the first row of boxes: title, figures, search, legend and details.
const TOP: f64 = 102.0;
const MARGIN: f64 = 10.0;
/// Width of a character; the font is monospaced.
const CHARACTER: f64 = 6.63;
/// Boxes narrower than this (in pixels of the whole picture) are left out and counted. Zooming cannot show them; a
/// focus can.
const NARROWEST: f64 = 0.15;
/// Rows deeper than this are left out, too.
const DEEPEST: usize = 400;

const STYLE: &str = include_str!("svg.css");
const SCRIPT: &str = include_str!("svg.js");

pub const EXPORTER: Exporter = Exporter {
    view: |out, view, _| write(out, view),
    diff: |out, changes, _| diff(out, changes),
    is_binary: false,
    keeps_wrappers: false,
    is_of_stacks: false,
    has_closing_lines: false,
};

pub fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    let tree = Tree::of_column(view.profile, view.column);
    let total = view.profile.total();
    let mut subtitle = sum_words(view, &total);
    if let Some((pattern, left_out)) = view.focus {
        let rest = amount(view.of(), left_out[view.column].amount);
        subtitle += &format!(", below /{pattern}/; {rest} are elsewhere");
    }
    if let Some(words) = moments_words(view.profile, view.of()) {
        subtitle += &format!("; {words}");
    }
    let kinds = FrameOrigin::ALL.iter().map(|k| (kind_class(*k), kind_words(*k))).collect();
    let title = &view.profile.title;
    Picture { view, tree: &tree, title, subtitle, legend: kinds, has_errors: true, paint: &|_| None }.write(out)
}

/// Writes a difference. The colour of a box shows how much of its width it grew or shrank.
pub fn diff(out: &mut dyn Write, diff: &ProfileDiff) -> io::Result<()> {
    let view = View { profile: &diff.profile, column: 1, focus: None };
    let tree = Tree::new(&diff.profile, &[0, 1], |v| v[0].amount.max(v[1].amount));
    let (before, after) = diff.total();
    let grown = after.amount.saturating_sub(before.amount);
    let column = view.of();
    let (from, to) = (amount(column, before.amount), amount(column, after.amount));
    let subtitle =
        format!("{}: {from} → {to} ({}); a box is as wide as the larger of both", diff.measure, change(column, grown));
    let noise = match diff.runs {
        Some(_) => "tiny, or the ranges of the runs overlap",
        None => "tiny, or within the noise of estimates",
    };
    let legend = vec![
        ("s4", ""),
        ("s2", "shrank"),
        ("same", "same"),
        ("g2", ""),
        ("g4", "grew, darker: by more of its size"),
        ("noise", noise),
    ];
    let title = format!("Difference: {}", diff.profile.title);
    let paint = |values: &[Value]| Some(change_class(values, diff));
    // For comparisons of runs, the variance is the distance at which their ranges would touch, which isn't an error.
    let has_errors = diff.runs.is_none();
    Picture { view: &view, tree: &tree, title: &title, subtitle, legend, has_errors, paint: &paint }.write(out)
}

const fn kind_class(kind: FrameOrigin) -> &'static str {
    match kind {
        FrameOrigin::Native => "n",
        FrameOrigin::Java => "j",
        FrameOrigin::Jit => "c",
        FrameOrigin::Kernel => "o",
        FrameOrigin::Unknown => "u",
    }
}

/// Four steps in each direction: up to 10 %, 25 %, 50 % and above, of the larger side.
fn change_class(values: &[Value], diff: &ProfileDiff) -> &'static str {
    let grown = values[1].minus(values[0]);
    let larger = values[0].amount.max(values[1].amount).max(1);
    if grown.amount == 0 {
        return "same";
    }
    if grown.amount.unsigned_abs() as f64 <= (diff.deviations * grown.variance.sqrt()).max(diff.floor as f64) {
        return "noise";
    }
    let percent = share(grown.amount, larger).abs();
    let step = [10.0, 25.0, 50.0].iter().filter(|limit| percent > **limit).count();
    if grown.amount > 0 { ["g1", "g2", "g3", "g4"][step] } else { ["s1", "s2", "s3", "s4"][step] }
}

struct Picture<'a> {
    view: &'a View<'a>,
    tree: &'a Tree,
    title: &'a str,
    subtitle: String,
    /// The classes of the legend and their meaning.
    legend: Vec<(&'static str, &'static str)>,
    /// Whether the variances are those of estimates.
    has_errors: bool,
    /// The class of a box by its values; `None`: by its kind of code.
    paint: &'a dyn Fn(&[Value]) -> Option<&'static str>,
}

struct Box {
    node: usize,
    x: f64,
    width: f64,
}

impl Picture<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (boxes, left_out) = self.boxes();
        let deepest = boxes.iter().map(|b| self.tree.nodes[b.node].depth).max().unwrap_or(0);
        let height = TOP + (deepest + 1) as f64 * ROW + 30.0;
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" class="flame">"#
        )?;
        writeln!(out, "<style>{STYLE}</style>")?;
        writeln!(out, r#"<rect class="paper" width="100%" height="100%"/>"#)?;
        self.head(out, height, left_out)?;
        writeln!(out, r#"<g class="boxes">"#)?;
        for b in &boxes {
            self.one(out, b)?;
        }
        writeln!(out, "</g>")?;
        writeln!(out, "<script><![CDATA[\n{SCRIPT}]]></script>")?;
        writeln!(out, "</svg>")
    }

    fn head(&self, out: &mut dyn Write, height: f64, left_out: usize) -> io::Result<()> {
        let characters = ((WIDTH - 2.0 * MARGIN) / CHARACTER) as usize;
        let title = if self.title.is_empty() { "Flame graph" } else { self.title };
        // The font of the title is a fifth larger, and the search field is beside the title.
        writeln!(
            out,
            r#"<text class="title" x="{MARGIN}" y="22">{}</text>"#,
            escaped(&shortened(title, characters * 5 / 9))
        )?;
        writeln!(out, r#"<text x="{MARGIN}" y="41">{}</text>"#, escaped(&words::cut(&self.subtitle, characters)))?;
        let mut x = MARGIN;
        for (class, words) in self.legend.iter().filter(|(class, _)| self.has(class)) {
            writeln!(out, r#"<rect class="{class}" x="{x:.1}" y="50" width="14" height="11" rx="2"/>"#)?;
            x += 18.0;
            if !words.is_empty() {
                writeln!(out, r#"<text class="small" x="{x:.1}" y="59.5">{words}</text>"#)?;
                x += words.chars().count() as f64 * CHARACTER + 12.0;
            }
        }
        writeln!(out, r#"<text class="name" x="{MARGIN}" y="80"></text>"#)?;
        writeln!(out, r#"<text class="details" x="{MARGIN}" y="94"></text>"#)?;
        writeln!(out, r#"<text class="matched small" x="{:.1}" y="59.5"></text>"#, WIDTH - MARGIN)?;
        // The script adds the search field: without a script it would do nothing.
        if left_out > 0 {
            let boxes =
                if left_out == 1 { "1 box is".into() } else { format!("{} boxes are", words::count(left_out as u64)) };
            let text = format!("{boxes} too narrow or too deep to be drawn; a focus shows them");
            writeln!(out, r#"<text class="small" x="{MARGIN}" y="{:.1}">{text}</text>"#, height - 10.0)?;
        }
        Ok(())
    }

    /// Whether any box has the class: a legend names only these. A scale is always shown whole.
    fn has(&self, class: &str) -> bool {
        let nodes = self.tree.nodes.iter().enumerate().skip(1);
        (self.paint)(self.tree.values(0)).is_some() || nodes.into_iter().any(|(at, _)| self.class(at) == class)
    }

    fn class(&self, node: usize) -> &'static str {
        let function = self.tree.nodes[node].function;
        (self.paint)(self.tree.values(node)).unwrap_or_else(|| match function {
            Some(f) => kind_class(self.view.profile.function_at(f).kind),
            None => "root",
        })
    }

    /// The boxes in preorder, left to right, and how many were left out. The script relies on the order: the caller of
    /// a box is the last box before it in the row above.
    fn boxes(&self) -> (Vec<Box>, usize) {
        let whole = self.tree.nodes[0].weight;
        if whole == 0 {
            return (Vec::new(), 0);
        }
        let scale = (WIDTH - 2.0 * MARGIN) / whole as f64;
        let mut boxes = Vec::new();
        let mut open = vec![Box { node: 0, x: MARGIN, width: WIDTH - 2.0 * MARGIN }];
        while let Some(b) = open.pop() {
            let (first, mut x) = (open.len(), b.x);
            for child in &self.tree.nodes[b.node].children {
                let width = self.tree.nodes[*child].weight as f64 * scale;
                if width >= NARROWEST && self.tree.nodes[*child].depth <= DEEPEST {
                    open.push(Box { node: *child, x, width });
                }
                x += width;
            }
            open[first..].reverse();
            boxes.push(b);
        }
        let drawn = self.tree.nodes.iter().filter(|n| n.weight > 0).count();
        let left_out = drawn - boxes.len().min(drawn);
        (boxes, left_out)
    }

    fn one(&self, out: &mut dyn Write, b: &Box) -> io::Result<()> {
        let node = &self.tree.nodes[b.node];
        let (x, y) = (b.x, TOP + node.depth as f64 * ROW);
        let name = match node.function {
            Some(f) => named(self.view.profile.function_at(f)),
            None => "all".into(),
        };
        write!(out, r#"<g class="f {}"><title>{}"#, self.class(b.node), escaped(&name))?;
        for line in self.details(b.node) {
            write!(out, "\n{}", escaped(&line))?;
        }
        // A hairline between neighbours.
        let width = if b.width > 3.0 { b.width - 0.6 } else { b.width };
        write!(out, r#"</title><rect x="{x:.2}" y="{y:.0}" width="{width:.2}" height="{}"/>"#, ROW - 1.0)?;
        let fitting = ((b.width - 6.0) / CHARACTER) as usize;
        if fitting >= 3 {
            let text = escaped(&fitted(&name, fitting));
            write!(out, r#"<text x="{:.2}" y="{:.1}">{text}</text>"#, x + 3.0, y + 12.5)?;
        }
        writeln!(out, "</g>")
    }

    /// The part of a box's tooltip after its name.
    fn details(&self, at: usize) -> Vec<String> {
        let (profile, node) = (self.view.profile, &self.tree.nodes[at]);
        let (column, values) = (self.view.of(), self.tree.values(at));
        let mut lines = vec![];
        if (self.paint)(values).is_some() {
            let grown = values[1].minus(values[0]);
            let (from, to) = (amount(column, values[0].amount), amount(column, values[1].amount));
            let error = if self.has_errors { error(column, grown) } else { String::new() };
            lines.push(format!("{from} → {to} ({}{error})", change(column, grown.amount)));
        } else {
            let percent = share(values[0].amount, self.tree.values(0)[0].amount);
            let mut line =
                format!("{}{}, {percent:.1} % of all", amount(column, values[0].amount), error(column, values[0]));
            if let (Some(other), Some(value)) = (profile.companion(self.view.column), values.get(1)) {
                let joint = if profile.columns[other].unit == Unit::Bytes { ", " } else { " in " };
                line += &format!("{joint}{}", amount(&profile.columns[other], value.amount));
            }
            let own = self.tree.own(at)[0].amount;
            if own != 0 && own != values[0].amount {
                line += &format!("; itself {}", amount(column, own));
            }
            lines.push(line);
        }
        if let (Some(function), Some(frame)) = (node.function, node.frame) {
            let (function, frame) = (profile.function_at(function), profile.frame_at(frame));
            let position = if node.several { String::new() } else { words::printable(&position(frame)) };
            let inlined = if frame.inlined { "inlined" } else { "" };
            let module = words::printable(&function.module);
            let known = [kind_words(function.kind), inlined, &module, &position];
            lines.push(known.iter().filter(|w| !w.is_empty()).copied().collect::<Vec<_>>().join(", "));
        }
        lines
    }
}

/// A title that is too long for the picture keeps its end, which names the process.
fn shortened(title: &str, characters: usize) -> String {
    let (long, end) = title.rfind(", pid ").map_or((title, ""), |at| title.split_at(at));
    let end = words::cut(end, characters / 2);
    words::cut(long, characters - words::columns(&end)) + &end
}

/// The name in a narrow box: a Java name loses its package first. The script does the same.
fn fitted(name: &str, characters: usize) -> String {
    if name.chars().count() <= characters {
        return name.to_string();
    }
    let mut rest = name;
    while let Some((part, after)) = rest.split_once('.') {
        let is_package = part.starts_with(|c: char| c.is_ascii_lowercase())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_package {
            break;
        }
        rest = after;
    }
    // Only a prefix that ends at a class is a package: `libc.so.6` has none.
    words::cut(if rest.starts_with(|c: char| c.is_ascii_uppercase()) { rest } else { name }, characters)
}

/// Escapes text for text nodes and attributes of XML. `words::printable` has already removed most characters that XML
/// 1.0 forbids.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Noncharacters, which `printable` keeps and XML forbids.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
