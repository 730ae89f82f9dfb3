//! State → cells of the screen. Pure: the same state and size always give the same picture.
//!
//! ```text
//! row 1      what runs, its PID, runtime, age, threads                     `head`
//! row 2      RSS, what changed since the baseline, its rate
//! row 3      the limit, and the time left
//! 1 to 3     the verdict that stands, and what to type
//! table      the ledger's lines: bar, change, rate, history                `lines`
//! panel      growing sites, arenas or threads; all three if they fit       `panels`
//! last row   the keys                                                      `foot`
//! ```
//! Every name of a target passes `printable` in `put`, so no target chooses control bytes for the terminal.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::state::{Page, State};

mod foot;
mod head;
mod ink;
mod lines;
mod list;
mod panels;
mod text;
mod verdicts;

pub use head::in_time;
pub use ink::Ink;
use panels::PANEL;
use text::Canvas;

/// Least number of rows for the table of lines while a panel is shown.
const TABLE: u16 = 7;

pub fn draw(state: &State, ink: Ink, area: Rect, buffer: &mut Buffer) {
    let mut canvas = Canvas { buffer, area, ink };
    if area.height == 0 || area.width == 0 {
        return;
    }
    foot::draw(&mut canvas, state);
    canvas.area.height -= 1;
    let view = state.view();
    match (&view.one, state.page) {
        (None, _) => list::draw(&mut canvas, state, &view.list),
        (Some(one), Page::Verdicts) => verdicts::draw(&mut canvas, state, one),
        (Some(one), Page::Overview) => {
            let rows = one.rows(state.sort);
            let head = head::draw(&mut canvas, state, one);
            canvas.take(head);
            let left = canvas.area.height;
            // Title, lines, sum.
            let wanted = rows.len() as u16 + 2;
            let table = match left {
                left if left < TABLE + PANEL => left,
                left => wanted.min(left - PANEL),
            };
            lines::draw(&mut canvas, state, one, &rows, table);
            canvas.take(table);
            panels::draw(&mut canvas, state, one);
        }
    }
}
