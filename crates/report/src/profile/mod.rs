//! Writes profiles for people and for other tools: text tree and tables, folded stacks, SVG flame graph, HTML page,
//! pprof, JSON.
//!
//! One file for each format. All formats show the same sums: entries too small to show share a line.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{
    Column, Frame, FrameId, FrameOrigin, Function, GroupBy, Profile, ProfileDiff, StackId, Unit, Value, Weight,
};

use crate::words;

pub mod diff;
pub mod folded;
pub mod html;
pub mod json;
pub mod pprof;
pub mod svg;
pub mod text;

/// One output format: how to write a profile, and how to write the difference of two.
pub struct Exporter {
    pub view: fn(&mut dyn Write, &View, Shape) -> io::Result<()>,
    /// With the flag, every site is listed; without it, the text leaves out the small ones.
    pub diff: fn(&mut dyn Write, &ProfileDiff, bool) -> io::Result<()>,
    /// The output is not text, so it must not go to a terminal.
    pub is_binary: bool,
    /// Other programs read the output, so it keeps the allocator's own frames.
    pub keeps_wrappers: bool,
    /// The format shows stacks only. Of a recording it shows the stacks, not the curves.
    pub is_of_stacks: bool,
    /// More lines of text may follow the output.
    pub has_closing_lines: bool,
}

pub const TEXT: Exporter = Exporter {
    view: |out, view, shape| text::write(out, view, shape.by, shape.all),
    diff: diff::write,
    is_binary: false,
    keeps_wrappers: false,
    is_of_stacks: false,
    has_closing_lines: true,
};

/// The text by call site, whatever grouping was chosen.
pub const TREE: Exporter =
    Exporter { view: |out, view, shape| text::write(out, view, GroupBy::Site, shape.all), is_of_stacks: true, ..TEXT };

/// How much of a view to show, and in which lines. Pictures and formats of other programs ignore it.
#[derive(Clone, Copy)]
pub struct Shape {
    pub by: GroupBy,
    pub all: bool,
}

/// The difference as a profile of three columns, for formats that have no other way to express it.
pub(crate) fn changes(diff: &ProfileDiff) -> Profile {
    let mut profile = diff.profile.emptied();
    let growth = Column { measure: "growth", ..profile.columns[1].clone() };
    profile.columns.push(growth);
    for (entry, values) in diff.profile.entries() {
        profile.add(entry.stack, entry.labels, &[values[0], values[1], values[1].minus(values[0])]);
    }
    profile
}

/// The part of a profile that is shown.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub profile: &'a Profile,
    /// The column that sizes and orders everything: an index into the profile's columns.
    pub column: usize,
    /// The focus, and for each column the amount outside it.
    pub focus: Option<(&'a str, &'a [Value])>,
}

impl<'a> View<'a> {
    /// The given measure, else the profile's first one in the unit of `weight`. The error lists the measures.
    pub fn new(profile: &'a Profile, measure: Option<&str>, weight: Weight) -> Result<View<'a>, String> {
        let column = match measure {
            Some(measure) => profile.column(measure, weight),
            None => profile.first_column(weight),
        };
        let column = column.ok_or_else(|| {
            let of_unit = profile.columns.iter().filter(|c| c.unit == weight.unit());
            let known: Vec<&str> = of_unit.map(|c| c.measure).collect();
            let unit = if weight == Weight::Bytes { "bytes" } else { "calls" };
            match (measure, known.is_empty()) {
                (_, true) => format!("nothing here is counted in {unit}"),
                (Some(measure), false) => format!("there is no '{measure}' in {unit} here, only {}", known.join(", ")),
                (None, false) => format!("choose a measure with --measure: {}", known.join(", ")),
            }
        })?;
        Ok(View { profile, column, focus: None })
    }

    /// The same view of a focused profile. `left_out`: for each column, the amount that the pattern left out.
    pub fn focused(self, pattern: &'a str, left_out: &'a [Value]) -> View<'a> {
        View { focus: Some((pattern, left_out)), ..self }
    }

    /// `live`, `slow_path`, …
    pub fn measure(&self) -> &'static str {
        self.of().measure
    }

    fn of(&self) -> &'a Column {
        &self.profile.columns[self.column]
    }
}

/// `3.21 GiB`, `1,234 blocks`.
pub(crate) fn amount(column: &Column, value: i64) -> String {
    let sign = if value < 0 { "−" } else { "" };
    format!("{sign}{}", magnitude(column, value.unsigned_abs()))
}

/// Like `amount`, with a plus sign: `+3.21 GiB`.
pub(crate) fn change(column: &Column, value: i64) -> String {
    format!("{}{}", if value > 0 { "+" } else { "" }, amount(column, value))
}

pub(crate) fn magnitude(column: &Column, value: u64) -> String {
    match column.unit {
        Unit::Bytes => Bytes(value).to_string(),
        Unit::Count if column.noun.is_empty() => words::count(value),
        Unit::Count => words::counted(value, column.noun),
    }
}

/// ` ±1.2 MiB` for an estimate, nothing for a counted figure.
pub(crate) fn error(column: &Column, value: Value) -> String {
    match value.error() {
        0 => String::new(),
        // The value before the error already names the unit.
        n => format!(" ±{}", magnitude(&Column { noun: "", ..column.clone() }, n)),
    }
}

/// A stack as locations, innermost first: each is an address with the functions inlined there, the last one outermost.
pub(crate) fn locations<'a>(profile: &'a Profile, frames: &'a [FrameId]) -> impl Iterator<Item = &'a [FrameId]> {
    frames.split_inclusive(|frame| !profile.frame_at(*frame).inlined)
}

/// A sentence for figures that belong to different moments. Samples do not show when a site was at its peak: a sampled
/// site gets a share of its caller's counted peak.
pub(crate) fn moments_words(profile: &Profile, column: &Column) -> Option<String> {
    let is_estimated = || profile.entries().any(|(_, values)| values.iter().any(|value| value.variance > 0.0));
    let divided = || match is_estimated() {
        true => format!("; a sampled site has its share of the caller's {}, divided like the blocks", column.measure),
        false => String::new(),
    };
    (!column.of_one_moment).then(|| {
        format!(
            "each site's own {}, at different moments: the sum is more than was ever held at once{}",
            column.measure,
            divided()
        )
    })
}

/// A percentage; 0 if the whole is 0.
pub(crate) fn share(part: i64, whole: i64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// `Shop.java:42`, `shop.c`, or an empty string.
pub(crate) fn position(frame: &Frame) -> String {
    let file = frame.file.as_deref().map(|f| f.rsplit('/').next().unwrap_or(f));
    match (file, frame.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.into(),
        (None, _) => String::new(),
    }
}

/// `grow shop.c:9`; `org.acme.Shop.order:42` if the file has the name of the class.
pub(crate) fn called_at(function: &Function, frame: &Frame) -> String {
    let (name, position) = (named(function), words::printable(&position(frame)));
    let file = position.split(['.', ':']).next().unwrap_or_default();
    let class = name.rsplit('.').nth(1).and_then(|class| class.split('$').next());
    match frame.line {
        Some(line) if class == Some(file) => format!("{name}:{line}"),
        _ if position.is_empty() => name,
        _ => format!("{name} {position}"),
    }
}

/// The frames of a stack, innermost first: `grow shop.c:9  (shop)`.
pub fn stack_text(profile: &Profile, stack: StackId) -> Vec<String> {
    let text = |id: &FrameId| {
        let (function, frame) = (profile.function_at(profile.function_of(*id)), profile.frame_at(*id));
        // A function without a name has its module in the text already.
        match function.named && !function.module.is_empty() {
            true => format!("{}  ({})", called_at(function, frame), words::printable(&function.module)),
            false => called_at(function, frame),
        }
    };
    profile.frames_of(stack).iter().map(text).collect()
}

pub(crate) fn named(function: &Function) -> String {
    words::printable(&function.name)
}

/// The name of each kind of frame in legends.
pub(crate) const fn kind_words(kind: FrameOrigin) -> &'static str {
    match kind {
        FrameOrigin::Native => "native",
        FrameOrigin::Java => "Java",
        FrameOrigin::Jit => "generated code",
        FrameOrigin::Kernel => "kernel",
        FrameOrigin::Unknown => "unknown",
    }
}

pub(crate) const fn by_words(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Site => "call site",
        other => other.name(),
    }
}
