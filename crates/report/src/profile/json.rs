//! Writes profiles as JSON, `plimsoll.profile/2`, and the difference of two, `plimsoll.profile-diff/2` (docs/json.md).
//!
//! The keys of a site's figures are the column names (`live_bytes`, `live_count`, …). `error_bytes` is the half width
//! of the 95 % interval of the first column in bytes, `error_count` that of the first count. 0: the figure is counted,
//! not estimated.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_profiles::profile::{ChangeKind, Column, Entry, Profile, ProfileDiff, SiteChange, Unit, Value};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Exporter, View};
use crate::frame_table::{FrameLine, FrameTable};
use crate::json_lines::{self, Each};
use crate::words::moment;

pub const SCHEMA: &str = "plimsoll.profile/2";
pub(crate) const DIFFERENCE_SCHEMA: &str = "plimsoll.profile-diff/2";

pub(crate) struct Document<'a> {
    view: View<'a>,
    /// The names of the columns, which are the keys of each site.
    keys: Vec<String>,
    frames: FrameTable,
}

#[derive(Serialize)]
struct ColumnLine {
    name: String,
    unit: &'static str,
    of_one_moment: bool,
    exact_total: Option<i64>,
}

#[derive(Serialize)]
struct FocusLine<'a> {
    pattern: &'a str,
    left_out: BTreeMap<String, i64>,
}

#[derive(Serialize)]
struct GapLine<'a> {
    source: &'a str,
    reason: &'a str,
    effect: &'a str,
    remedy: &'a str,
}

pub const EXPORTER: Exporter = Exporter {
    view: |out, view, _| write(out, view),
    diff: |out, changes, _| diff(out, changes),
    is_binary: false,
    keeps_wrappers: true,
    is_of_stacks: false,
    has_closing_lines: false,
};

/// Biggest first by the view's column.
pub fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    json_lines::write(out, &document(view))
}

pub(crate) fn document<'a>(view: &View<'a>) -> Document<'a> {
    let keys = view.profile.columns.iter().map(|c| c.name()).collect();
    Document { view: *view, keys, frames: FrameTable::of(view.profile) }
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let profile = self.view.profile;
        let column = |c: &Column| ColumnLine {
            name: c.name(),
            unit: if c.unit == Unit::Bytes { "bytes" } else { "count" },
            of_one_moment: c.of_one_moment,
            exact_total: c.exact_total,
        };
        let focus = |(pattern, left)| FocusLine { pattern, left_out: figures(profile, left) };
        let mut entries: Vec<(Entry, &[Value])> = profile.entries().collect();
        entries.sort_by_key(|(_, values)| std::cmp::Reverse(values.get(self.view.column).map_or(0, |v| v.amount)));
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schema", SCHEMA)?;
        map.serialize_entry("title", &profile.title)?;
        map.serialize_entry("time", &(profile.time_ns != 0).then(|| moment(profile.time_ns)))?;
        map.serialize_entry("columns", &profile.columns.iter().map(column).collect::<Vec<_>>())?;
        map.serialize_entry("total", &figures(profile, &profile.total()))?;
        map.serialize_entry("focus", &self.view.focus.map(focus))?;
        map.serialize_entry("frames", self.frames.lines())?;
        let site = |(entry, values)| Site { of: self, entry, values };
        map.serialize_entry("sites", &Each(|| entries.iter().copied().map(site)))?;
        map.serialize_entry("gaps", &gaps(profile))?;
        map.end()
    }
}

/// A stack with its labels.
struct Site<'a> {
    of: &'a Document<'a>,
    entry: Entry,
    values: &'a [Value],
}

impl Serialize for Site<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let profile = self.of.view.profile;
        let (stack, truncated) = self.of.frames.stack(profile, self.entry.stack);
        let error = |unit| {
            let of_unit = profile.columns.iter().zip(self.values).find(|(c, _)| c.unit == unit);
            of_unit.map_or(0, |(_, value)| value.error())
        };
        let labels = self.entry.labels;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("stack", &stack)?;
        for (key, id) in [("category", labels.category), ("thread", labels.thread), ("class", labels.class)] {
            if let Some(id) = id {
                map.serialize_entry(key, profile.name_at(id))?;
            }
        }
        map.serialize_entry("truncated", &truncated)?;
        for (key, value) in self.of.keys.iter().zip(self.values) {
            map.serialize_entry(key, &value.amount)?;
        }
        map.serialize_entry("error_bytes", &error(Unit::Bytes))?;
        map.serialize_entry("error_count", &error(Unit::Count))?;
        map.end()
    }
}

fn figures(profile: &Profile, values: &[Value]) -> BTreeMap<String, i64> {
    profile.columns.iter().zip(values).map(|(c, v)| (c.name(), v.amount)).collect()
}

fn gaps(profile: &Profile) -> Vec<GapLine<'_>> {
    profile
        .gaps
        .iter()
        .map(|g| GapLine { source: g.source.name(), reason: &g.reason, effect: &g.effect, remedy: &g.remedy })
        .collect()
}

#[derive(Serialize)]
pub(crate) struct DifferenceDocument<'a> {
    schema: &'static str,
    unit: &'static str,
    measure: &'static str,
    before: i64,
    after: i64,
    change: i64,
    /// A site whose change is smaller than this, in standard deviations, is noise.
    deviations: f64,
    counts: BTreeMap<&'static str, usize>,
    frames: &'a [FrameLine],
    sites: Vec<ChangedSite>,
    gaps: Vec<GapLine<'a>>,
}

#[derive(Serialize)]
struct ChangedSite {
    stack: Vec<u32>,
    truncated: bool,
    verdict: &'static str,
    before: i64,
    after: i64,
    change: i64,
    noise_up_to: u64,
}

/// New stacks first. Sites without a change are counted, not listed.
pub fn diff(out: &mut dyn Write, diff: &ProfileDiff) -> io::Result<()> {
    let mut frames = FrameTable::default();
    json_lines::write(out, &difference(diff, &mut frames))
}

/// The document, whose frames are in `frames`.
pub(crate) fn difference<'a>(diff: &'a ProfileDiff, frames: &'a mut FrameTable) -> DifferenceDocument<'a> {
    let profile = &diff.profile;
    let (before, after) = diff.total();
    let of = |change: ChangeKind| diff.sites.iter().filter(move |s| s.change == change);
    let changed = || diff.sites.iter().filter(|s| s.change != ChangeKind::Same);
    changed().for_each(|s| frames.add(profile, s.stack));
    let frames = &*frames;
    let site = |s: &SiteChange| {
        let (stack, truncated) = frames.stack(profile, s.stack);
        let (before, after) = (s.before.amount, s.after.amount);
        ChangedSite {
            stack,
            truncated,
            verdict: s.change.name(),
            before,
            after,
            change: s.grown(),
            noise_up_to: diff.noise_up_to(s),
        }
    };
    DifferenceDocument {
        schema: DIFFERENCE_SCHEMA,
        unit: if profile.columns[0].unit == Unit::Bytes { "bytes" } else { "count" },
        measure: diff.measure,
        before: before.amount,
        after: after.amount,
        change: after.amount.saturating_sub(before.amount),
        deviations: diff.deviations,
        counts: ChangeKind::ALL.iter().map(|c| (c.name(), of(*c).count())).collect(),
        frames: frames.lines(),
        sites: changed().map(site).collect(),
        gaps: gaps(profile),
    }
}
