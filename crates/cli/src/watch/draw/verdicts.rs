//! The verdicts in full, as `explain` prints them.

use plimsoll_report::ledger_text::{self, Style};

use super::text::{Canvas, PLAIN};
use crate::watch::state::{State, Watched};

pub fn draw(canvas: &mut Canvas<'_>, state: &State, one: &Watched) {
    let mut text = Vec::new();
    let style = Style { colour: false, width: canvas.width() };
    for verdict in one.standing() {
        // A Vec takes every write.
        let _ = ledger_text::verdict(&mut text, verdict, style);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let rows: Vec<String> =
        text.trim_start_matches('\n').lines().flat_map(|line| folded(line, canvas.width())).collect();
    if rows.is_empty() {
        canvas.put(0, 0, 60, "no verdict", PLAIN);
    }
    let space = usize::from(canvas.area.height);
    let first = state.scroll.min(rows.len().saturating_sub(space));
    for (at, row) in rows.iter().skip(first).take(space).enumerate() {
        canvas.put(at as u16, 0, usize::MAX, row, PLAIN);
    }
    if rows.len() > first + space {
        let style = canvas.ink.chosen();
        canvas.put_right(space as u16 - 1, canvas.area.width.into(), " more: ↓ ", style);
    }
}

/// A line that is wider than the screen, in several rows: a command must be readable to its end.
fn folded(line: &str, width: usize) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    match chars.len() <= width {
        true => vec![line.to_owned()],
        false => chars.chunks(width.max(1)).map(|part| part.iter().collect()).collect(),
    }
}
