//! The list of processes.

use plimsoll_facts::shell::one_line;
use plimsoll_process::processes::Listed;
use plimsoll_report::process_title::java_first;
use plimsoll_report::words::printable;

use super::lines::{Columns, history, line, title};
use super::text::{Canvas, PLAIN, without_folder};
use crate::watch::state::{List, State};

pub fn draw(canvas: &mut Canvas<'_>, state: &State, list: &List) {
    let rows = list.rows(state.sort);
    if rows.is_empty() {
        let what = if state.has_list { "the processes" } else { "the process" };
        canvas.put(0, 0, 60, &format!("reading {what} …"), PLAIN);
        return;
    }
    let columns = Columns::of_list(canvas.width());
    title(canvas, &columns, "    PID  process", "RSS", state.sort);
    let space = usize::from(canvas.area.height).saturating_sub(1);
    let chosen = list.selected(state.sort);
    // The chosen row stays in sight.
    let first = chosen.saturating_sub(space.saturating_sub(1));
    for (at, (of, curve)) in rows.iter().skip(first).take(space).enumerate() {
        let row = at as u16 + 1;
        let style = if first + at == chosen { canvas.ink.chosen() } else { PLAIN };
        canvas.style_row(row, style);
        let text = format!("{:>7}  {}{}", of.identity.pid, kind(of), printable(&command(of)));
        line(canvas, row, &columns, (&text, style), (of.rss, curve.change(), list.trend(curve)));
        history(canvas, row, &columns, curve, style);
    }
}

fn kind(of: &Listed) -> &'static str {
    match (of.kind.is_jvm, of.kind.is_tracked) {
        (true, true) => "JVM, tracked: ",
        (true, false) => "JVM: ",
        (false, true) => "tracked: ",
        (false, false) => "",
    }
}

fn command(of: &Listed) -> String {
    match (of.command.is_empty(), of.kind.is_jvm) {
        (true, _) => format!("({})", of.name),
        (false, true) => without_folder(&java_first(&of.name, &of.command)),
        (false, false) => without_folder(&one_line(&of.command)),
    }
}
