//! The verdicts in full, as `explain` prints them.

use plimsoll_report::ledger_text::{self, Style};
use plimsoll_report::words;

use super::text::{Canvas, PLAIN};
use crate::watch::state::{State, Watched};

pub fn draw(canvas: &mut Canvas<'_>, state: &State, one: &Watched) {
    let mut text = Vec::new();
    let style = Style { colour: false, width: canvas.width() };
    for verdict in one.standing() {
        // A Vec takes every write.
        let _ = ledger_text::verdict(&mut text, verdict, false, style);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let rows: Vec<String> =
        text.trim_start_matches('\n').lines().flat_map(|line| folded(line, canvas.width())).collect();
    if rows.is_empty() {
        canvas.put(0, 0, 60, "no verdict", PLAIN);
    }
    let space = usize::from(canvas.area.height);
    let first = state.scroll.get().min(rows.len().saturating_sub(space));
    state.scroll.set(first);
    for (at, row) in rows.iter().skip(first).take(space).enumerate() {
        canvas.put(at as u16, 0, usize::MAX, row, PLAIN);
    }
    if space > 0 && rows.len() > first + space {
        let style = canvas.ink.chosen();
        canvas.put_right(space as u16 - 1, canvas.area.width.into(), " more: ↓ ", style);
    }
}

/// A line that is wider than the screen, in several rows: a command must be readable to its end.
fn folded(line: &str, width: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut rest = line;
    // A wide character takes two columns.
    while words::columns(rest) > width.max(2) {
        let (row, others) = words::split(rest, width.max(2));
        rows.push(row.to_owned());
        rest = others;
    }
    rows.push(rest.to_owned());
    rows
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn rows_are_as_wide_as_the_screen() {
        assert_eq!(folded("abcdefgh", 4), ["abcd", "efgh"]);
        assert_eq!(folded("日本語です", 5), ["日本", "語で", "す"]);
        assert_eq!(folded("", 4), [""]);
        assert_eq!(folded("日本", 0), ["日", "本"]);
        // Accents take no column, so they don't fill a row.
        let accents = "e\u{301}".repeat(4);
        assert_eq!(folded(&accents, 4), [accents.as_str()]);
    }
}
