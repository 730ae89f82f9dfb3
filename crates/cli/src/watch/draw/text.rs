//! Text into cells: cut by columns, never beyond the area, and free of control bytes.

use plimsoll_report::words::{columns, cut};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::ink::Ink;

/// A style without attributes.
pub const PLAIN: Style = Style::new();

/// The part of the screen that is still free.
pub struct Canvas<'b> {
    pub buffer: &'b mut Buffer,
    pub area: Rect,
    pub ink: Ink,
}

impl Canvas<'_> {
    /// Moves the top of the free part down.
    pub fn take(&mut self, rows: u16) {
        let rows = rows.min(self.area.height);
        self.area.y += rows;
        self.area.height -= rows;
    }

    pub fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Puts text into at most `width` columns of a row; a cut text ends with `…`. Returns the column behind it.
    pub fn put(&mut self, row: u16, column: usize, width: usize, text: &str, style: Style) -> usize {
        let left = self.width().saturating_sub(column).min(width);
        if row >= self.area.height || left == 0 {
            return column;
        }
        let text = cut(text, left);
        let (x, y) = (self.area.x + column as u16, self.area.y + row);
        let (end, _) = self.buffer.set_stringn(x, y, text, left, style);
        usize::from(end - self.area.x)
    }

    /// Puts text so that it ends before a column.
    pub fn put_right(&mut self, row: u16, end: usize, text: &str, style: Style) {
        let width = columns(text);
        if width <= end {
            self.put(row, end - width, width, text, style);
        }
    }

    /// Sets the style of a whole row.
    pub fn style_row(&mut self, row: u16, style: Style) {
        if row < self.area.height {
            self.buffer.set_style(Rect { y: self.area.y + row, height: 1, ..self.area }, style);
        }
    }
}

/// A command without the folder of its program, which says least about it.
pub fn without_folder(command: &str) -> String {
    let (program, rest) = command.split_at(command.find(' ').unwrap_or(command.len()));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    format!("{name}{rest}")
}

/// A bar in eighths of a column, rounded down, so that it is never longer than its figure.
pub fn bar(part: u64, whole: u64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if whole == 0 {
        return String::new();
    }
    let eighths = (u128::from(part.min(whole)) * columns as u128 * 8 / u128::from(whole)) as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

pub fn spark(levels: &[Option<u8>]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    levels.iter().map(|level| level.map_or(' ', |level| LEVELS[usize::from(level.min(7))])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folder_of_the_program_is_left_out() {
        assert_eq!(without_folder("/usr/bin/python3 /srv/app.py"), "python3 /srv/app.py");
        assert_eq!(without_folder("shop.Shop   (/usr/bin/java -cp x)"), "shop.Shop   (/usr/bin/java -cp x)");
        assert_eq!(without_folder("/"), "/");
        assert_eq!(without_folder(""), "");
    }

    #[test]
    fn a_bar_is_never_longer_than_its_figure() {
        assert_eq!(bar(1, 2, 4), "██");
        assert_eq!(bar(5, 16, 4), "█▎");
        assert_eq!(bar(9, 2, 4), "████");
        assert_eq!(bar(0, 0, 4), "");
        assert_eq!(bar(u64::MAX, u64::MAX, 3), "███");
    }
}
