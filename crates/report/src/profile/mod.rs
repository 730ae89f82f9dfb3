//! Profiles for people and for other tools: text tree and tables, folded stacks, SVG flame graph, HTML page, pprof, JSON.
//!
//! One file for each format. All of them show the same sums: what is too small to be shown is a line of its own.

use std::io::{self, Write};

use plimsoll_observer::profile::{By, Column, Difference, Frame, Function, Kind, Profile, Unit, Value, Weight};
use plimsoll_observer::units::Bytes;

use crate::words;

pub mod difference;
pub mod folded;
pub mod html;
pub mod json;
pub mod pprof;
pub mod svg;
pub mod text;

/// One output format: how it writes a profile, and how a difference of two.
pub struct Exporter {
    pub view: fn(&mut dyn Write, &View, Shape) -> io::Result<()>,
    pub difference: fn(&mut dyn Write, &Difference, bool) -> io::Result<()>,
    /// Bytes that a terminal can't show.
    pub is_binary: bool,
    /// Other programs read it: they get the allocator's own frames too.
    pub keeps_wrappers: bool,
    /// It is of stacks alone: of a recording it shows the stacks, not the curves.
    pub is_of_stacks: bool,
    /// More lines of text may follow it.
    pub has_closing_lines: bool,
}

pub const TEXT: Exporter = Exporter {
    view: |out, view, shape| text::write(out, view, shape.by, shape.all),
    difference: difference::write,
    is_binary: false,
    keeps_wrappers: false,
    is_of_stacks: false,
    has_closing_lines: true,
};

/// The text by call site, whatever the lines are.
pub const TREE: Exporter =
    Exporter { view: |out, view, shape| text::write(out, view, By::Site, shape.all), is_of_stacks: true, ..TEXT };

/// How much of a view is shown, and in which lines; pictures and other programs' formats have no use for it.
#[derive(Clone, Copy)]
pub struct Shape {
    pub by: By,
    pub all: bool,
}

/// A difference in a format that has no words of its own for one: the changes as a profile.
pub(crate) fn changes(difference: &Difference) -> View<'_> {
    View { profile: &difference.profile, column: 1, focus: None }
}

/// What of a profile is shown.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub profile: &'a Profile,
    /// Sizes and orders everything; an index into the profile's columns.
    pub column: usize,
    /// The focus and, for each column, what lies outside it.
    pub focus: Option<(&'a str, &'a [Value])>,
}

impl<'a> View<'a> {
    /// The given measure, else the profile's first, in the weight's unit. The error says what there is.
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
                (None, false) => format!("nothing is chosen of {}", known.join(", ")),
            }
        })?;
        Ok(View { profile, column, focus: None })
    }

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

/// With its sign: `+3.21 GiB`.
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

/// ` ±1.2 MiB` of an estimate, nothing of a counted one.
pub(crate) fn error(column: &Column, value: Value) -> String {
    match value.error() {
        0 => String::new(),
        // The unit's noun is said by the value before it.
        n => format!(" ±{}", magnitude(&Column { noun: "", ..column.clone() }, n)),
    }
}

/// What to know of figures that are of different moments. Samples don't tell when a site was highest: a sampled site's peak
/// is a share of what was counted of its caller.
pub(crate) fn moments_words(profile: &Profile, column: &Column) -> Option<String> {
    let is_estimated = || profile.entries().any(|(_, values)| values.iter().any(|value| value.variance > 0.0));
    let divided = || match is_estimated() {
        true => format!("; a sampled site has its share of the caller's {}, divided like the blocks", column.measure),
        false => String::new(),
    };
    (!column.of_one_moment).then(|| {
        format!(
            "each site's own {}, of different moments: the sum is more than was ever held at once{}",
            column.measure,
            divided()
        )
    })
}

/// In percent; 0 of nothing.
pub(crate) fn share(part: i64, whole: i64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// `Shop.java:42`, `shop.c`, or nothing.
pub(crate) fn position(frame: &Frame) -> String {
    let file = frame.file.as_deref().map(|f| f.rsplit('/').next().unwrap_or(f));
    match (file, frame.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.into(),
        (None, _) => String::new(),
    }
}

/// `grow shop.c:9`; `org.acme.Shop.order:42` where the file is called after the class.
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

pub(crate) fn named(function: &Function) -> String {
    words::printable(&function.name)
}

/// What each kind of frame is called in legends.
pub(crate) const fn kind_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Native => "native",
        Kind::Java => "Java",
        Kind::Jit => "generated code",
        Kind::Kernel => "kernel",
        Kind::Unknown => "unknown",
    }
}

pub(crate) const fn by_words(by: By) -> &'static str {
    match by {
        By::Site => "call site",
        other => other.name(),
    }
}
