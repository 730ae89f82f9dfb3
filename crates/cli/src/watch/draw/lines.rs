//! The table of the ledger's lines.
//!
//! ```text
//! columns    name       resident   bar     change   rate     history
//! ≥ 100      22         8          16      10       18       the rest
//! ≥ 74       22         8          8       10       18       the rest
//! ≥ 72       22         8          8       10       18
//! ≥ 65       22         8                  10       18       the rest
//! ≥ 61       22         8                  10       18
//! ≥ 56       22         8                  10
//! else       the rest   8                  10
//! ```

use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::Group;
use plimsoll_report::words::{duration, signed};
use ratatui::style::Style;

use super::text::{Canvas, PLAIN, bar, spark};
use crate::watch::curve::{Curve, Trend, rate};
use crate::watch::state::{Row, Sort, State, Watched};

const NAME: usize = 22;
const RESIDENT: usize = 9;
const CHANGE: usize = 11;
const RATE: usize = 19;

/// Where the columns end, by the width of the screen; 0: there is no such column. `bar`: start and width. `spark`:
/// start.
pub struct Columns {
    pub name: usize,
    pub resident: usize,
    bar: (usize, usize),
    pub change: usize,
    pub rate: usize,
    pub spark: usize,
}

impl Columns {
    pub fn of(width: usize) -> Columns {
        let name = if width < 56 { width.saturating_sub(RESIDENT + CHANGE) } else { NAME };
        let bars = match width {
            100.. => 16,
            72.. => 8,
            _ => 0,
        };
        Columns::with(width, name, bars)
    }

    /// A list has longer names and no bars.
    pub fn of_list(width: usize) -> Columns {
        let behind = RESIDENT + CHANGE + if width >= 72 { RATE } else { 0 } + if width >= 100 { 14 } else { 0 };
        Columns::with(width, width.saturating_sub(behind), 0)
    }

    fn with(width: usize, name: usize, bars: usize) -> Columns {
        let resident = name + RESIDENT;
        let behind = if bars > 0 { resident + 1 + bars } else { resident };
        let change = behind + CHANGE;
        let rate = if width >= change + RATE { change + RATE } else { 0 };
        let spark = if rate > 0 && width >= rate + 4 { rate + 2 } else { 0 };
        Columns { name, resident, bar: (resident + 1, bars), change, rate, spark }
    }
}

/// `height`: rows of the table, its title and its sum included.
pub fn draw(canvas: &mut Canvas<'_>, state: &State, one: &Watched, rows: &[Row<'_>], height: u16) {
    if rows.is_empty() {
        canvas.put(0, 0, 60, "reading the mappings …", PLAIN);
        return;
    }
    let columns = Columns::of(canvas.width());
    title(canvas, &columns, "line", "resident", state.sort);
    // Title and sum.
    let space = usize::from(height.saturating_sub(2));
    let shown = if rows.len() > space { space.saturating_sub(1) } else { rows.len() };
    let widest = rows.iter().map(|row| row.resident).max().unwrap_or_default();
    for (at, row) in rows.iter().take(shown).enumerate() {
        let curve = row.line.and_then(|line| one.lines.get(&line)).unwrap_or(&one.remainder);
        let group = row.line.map_or(Group::Other, |line| line.group());
        let style = canvas.ink.group(group);
        line(canvas, at as u16 + 1, &columns, (row.name, PLAIN), (row.resident, row.change, row.trend));
        if columns.bar.1 > 0 {
            canvas.put(
                at as u16 + 1,
                columns.bar.0,
                columns.bar.1,
                &bar(row.resident.0, widest.0, columns.bar.1),
                style,
            );
        }
        history(canvas, at as u16 + 1, &columns, curve, style);
    }
    let mut at = shown as u16 + 1;
    if shown < rows.len() {
        let rest = &rows[shown..];
        let (resident, change) =
            (rest.iter().map(|row| row.resident).sum::<Bytes>(), rest.iter().map(|row| row.change).sum());
        line(canvas, at, &columns, (&format!("{} more", rest.len()), PLAIN), (resident, change, Trend::In(0)));
        at += 1;
    }
    let sum: Bytes = rows.iter().map(|row| row.resident).sum();
    let change = rows.iter().map(|row| row.change).sum();
    let bold = canvas.ink.bold();
    let name = match one.facts.time_ns.saturating_sub(one.lines_ns) {
        0 => "sum = RSS".to_owned(),
        ns => format!("sum, {} ago", duration(ns)),
    };
    line(canvas, at, &columns, (&name, bold), (sum, change, Trend::In(0)));
}

pub fn title(canvas: &mut Canvas<'_>, columns: &Columns, name: &str, size: &str, sort: Sort) {
    let style = canvas.ink.title();
    canvas.style_row(0, style);
    let name = match canvas.width() >= 56 {
        true => format!("{name} (by {})", sort.name()),
        false => name.to_owned(),
    };
    canvas.put(0, 0, columns.name, &name, style);
    canvas.put_right(0, columns.resident, size, style);
    canvas.put_right(0, columns.change, "change", style);
    if columns.rate > 0 {
        canvas.put_right(0, columns.rate, "growth ± 95 %", style);
    }
    if columns.spark > 0 {
        let left = canvas.width().saturating_sub(columns.spark);
        canvas.put(0, columns.spark, left, "history", style);
    }
}

pub fn line(
    canvas: &mut Canvas<'_>,
    row: u16,
    columns: &Columns,
    (name, style): (&str, Style),
    (size, change, trend): (Bytes, i64, Trend),
) {
    canvas.put(row, 0, columns.name, name, style);
    canvas.put_right(row, columns.resident, &size.to_string(), style);
    let text = if change == 0 { "0".to_owned() } else { signed(change) };
    canvas.put_right(row, columns.change, &text, style);
    if columns.rate == 0 {
        return;
    }
    match trend {
        Trend::Is(growth) => {
            let style = if growth.is_up() { canvas.ink.up() } else { PLAIN };
            canvas.put_right(row, columns.rate, &rate(growth), style);
        }
        Trend::No => canvas.put_right(row, columns.rate, "no trend", PLAIN),
        Trend::In(_) => {}
    }
}

pub fn history(canvas: &mut Canvas<'_>, row: u16, columns: &Columns, curve: &Curve, style: Style) {
    if columns.spark > 0 {
        let left = canvas.width().saturating_sub(columns.spark).min(40);
        canvas.put(row, columns.spark, left, &spark(&curve.spark(left)), style);
    }
}
