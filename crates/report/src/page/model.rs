//! What a page shows, whatever it was made from. Text is still foreign here: the writer escapes it.

use plimsoll_profiles::profile::Profile;

/// A page. Empty parts are left out.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The command.
    pub title: String,
    pub facts: Vec<String>,
    /// How the process ended.
    pub ending: Option<String>,
    /// The most important first.
    pub verdicts: Vec<Verdict>,
    pub bars: Option<Bars>,
    pub curves: Option<Curves>,
    pub stacks: Option<Stacks>,
    pub tables: Vec<Table>,
    pub gaps: Vec<Gap>,
    /// Sentences below everything: how the page was made, what it leaves out.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub id: String,
    /// `note`, `warning` or `critical`.
    pub severity: String,
    pub summary: String,
    /// How sure the verdict is; empty if unknown.
    pub certainty: String,
    pub evidence: Vec<String>,
    pub remedies: Vec<Remedy>,
}

#[derive(Clone, Debug, Default)]
pub struct Remedy {
    pub what: String,
    /// The commands to paste.
    pub how: String,
    pub gives_back: String,
    pub trade_off: String,
}

/// Parts of a sum, as bars.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    pub title: String,
    /// Name of the sum: `RSS`.
    pub sum_name: String,
    /// Bytes.
    pub sum: u64,
    /// The limit, with the bytes that count against it.
    pub limit: Option<Limit>,
    pub groups: Vec<BarGroup>,
    /// A sentence about memory that no bar has; empty if there is none.
    pub below: String,
}

#[derive(Clone, Debug, Default)]
pub struct Limit {
    pub name: String,
    pub bytes: u64,
    /// Bytes that count against the limit.
    pub counted: u64,
}

#[derive(Clone, Debug, Default)]
pub struct BarGroup {
    pub name: String,
    /// Number of its colour in the style: class `g0`, `g1`, …
    pub colour: usize,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug, Default)]
pub struct Bar {
    pub name: String,
    pub bytes: u64,
    pub note: String,
    /// Names and bytes of parts of the bar, biggest first.
    pub parts: Vec<(String, u64)>,
}

/// Curves on one grid of times: `from_ms`, then one interval after another.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    pub from_ms: i64,
    pub step_ms: f64,
    pub intervals: usize,
    /// Readings of the densest curve.
    pub readings: u64,
    pub sets: Vec<CurveSet>,
    /// A static picture for readers without script: SVG without an XML declaration.
    pub picture: String,
}

/// Curves that are drawn together.
#[derive(Clone, Debug, Default)]
pub struct CurveSet {
    pub name: String,
    /// The curves sum to something, so they are stacked.
    pub is_stacked: bool,
    pub curves: Vec<Curve>,
}

#[derive(Clone, Debug, Default)]
pub struct Curve {
    pub name: String,
    /// What the script does with it: `rss`, `heap`, `limit`, or empty.
    pub role: &'static str,
    /// Index of the interval of its first reading; `values` begins there.
    pub first: usize,
    /// Lowest, highest and last reading of each interval, in bytes. An interval without a reading repeats the last one.
    /// The values end with the interval of the last reading.
    pub values: Vec<[u64; 3]>,
    /// Intervals with readings, if they are few: a line leads from one to the next.
    pub read: Vec<usize>,
    /// It has one reading, so it shows no change.
    pub is_one_reading: bool,
}

/// Call stacks with one or more columns of bytes.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    pub title: String,
    pub profile: Profile,
    /// Columns of `profile` that are shown, and their names.
    pub columns: Vec<(usize, String)>,
    /// For a recording, the moments of the columns (ms since 1970): the script shows the growth between two.
    pub moments_ms: Vec<i64>,
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub id: &'static str,
    pub title: String,
    pub caption: String,
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
    pub is_open: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Bytes(u64),
    Change(i64),
    Count(u64),
    /// A percentage, shown with one decimal.
    Percent(f64),
    None,
}

#[derive(Clone, Debug, Default)]
pub struct Gap {
    pub reason: String,
    pub effect: String,
    pub remedy: String,
}
