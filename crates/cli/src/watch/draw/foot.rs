//! The last row: the keys, or a message.

use plimsoll_report::words;

use super::text::{Canvas, PLAIN};
use crate::watch::keys;
use crate::watch::state::State;

pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    let row = canvas.area.height - 1;
    if let Some(note) = &state.note {
        let style = canvas.ink.bold();
        canvas.put(row, 0, usize::MAX, note, style);
        return;
    }
    let mut column = 0;
    for (key, meaning) in keys::help(state) {
        let width = words::columns(key) + 1 + words::columns(meaning);
        if column + width > canvas.width() {
            break;
        }
        let style = canvas.ink.chosen();
        column = canvas.put(row, column, 8, key, style);
        column = canvas.put(row, column + 1, 20, meaning, PLAIN) + 2;
    }
}
