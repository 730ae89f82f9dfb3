//! The tables below the ledger: growing sites, arenas, threads by pool. One at a time, or all if they fit.

use plimsoll_facts::units::{Bytes, count};
use plimsoll_report::words;

use super::text::{Canvas, PLAIN};
use crate::watch::state::{Panel, State, Watched};

/// Rows of a panel, its title included.
pub const PANEL: u16 = 4;

pub fn draw(canvas: &mut Canvas<'_>, state: &State, one: &Watched) {
    if canvas.area.height < PANEL {
        return;
    }
    let has = |panel: &Panel| match panel {
        Panel::Sites => one.facts.is_tracked,
        Panel::Arenas => !one.facts.arenas.is_empty(),
        Panel::Threads => !one.facts.pools.is_empty(),
    };
    let there: Vec<Panel> = Panel::ALL.into_iter().filter(has).collect();
    let chosen = state.panel.or(there.first().copied());
    let fits = usize::from(canvas.area.height) >= there.len() * usize::from(PANEL);
    let shown: Vec<Panel> = if fits && state.panel.is_none() { there } else { chosen.into_iter().collect() };
    let rows = |panel: Panel| {
        1 + match panel {
            Panel::Sites => one.growing_sites().len().max(1),
            Panel::Arenas => one.facts.arenas.len(),
            Panel::Threads => one.facts.pools.len(),
        } as u16
    };
    for (at, panel) in shown.iter().copied().enumerate() {
        // The next panels get the rows that this one does not need.
        let height = rows(panel).min(canvas.area.height / (shown.len() - at) as u16);
        let all = canvas.area;
        canvas.area.height = height;
        match panel {
            Panel::Sites => sites(canvas, one),
            Panel::Arenas => arenas(canvas, one),
            Panel::Threads => threads(canvas, one),
        }
        canvas.area = all;
        canvas.take(height);
    }
}

/// Puts a title and returns the number of rows below it.
fn title(canvas: &mut Canvas<'_>, panel: Panel, text: &str) -> usize {
    let style = canvas.ink.title();
    canvas.style_row(0, style);
    canvas.put(0, 0, usize::MAX, &format!("{}: {text}", panel.name()), style);
    usize::from(canvas.area.height) - 1
}

fn sites(canvas: &mut Canvas<'_>, one: &Watched) {
    if !one.facts.is_tracked {
        title(canvas, Panel::Sites, "the process is not tracked");
        let text = format!(
            "Callers need the tracker. Type: plimsoll attach {} (or start the program with plimsoll run)",
            one.facts.pid
        );
        canvas.put(1, 0, usize::MAX, &text, PLAIN);
        return;
    }
    let grown = one.growing_sites();
    let rows = title(canvas, Panel::Sites, "more live bytes than at the baseline; read every 20 s");
    if grown.is_empty() {
        let text = match one.sites_compared_ns() {
            _ if one.sites.is_empty() => "not read yet".to_owned(),
            None => "read once since the baseline: growth shows from the next reading on".to_owned(),
            Some(ns) => format!("none has grown beyond its sampling error in {}", words::duration(ns)),
        };
        canvas.put(1, 0, usize::MAX, &text, PLAIN);
    }
    for (at, (site, change, error)) in grown.into_iter().take(rows).enumerate() {
        let row = at as u16 + 1;
        canvas.put_right(row, 10, &format!("+{change}"), PLAIN);
        let error = if error > Bytes(0) { format!("±{error}") } else { "exact".to_owned() };
        let mut column = canvas.put(row, 11, 10, &error, PLAIN);
        column = column.max(21);
        if canvas.width() >= 72 {
            column = canvas.put(row, column + 1, 14, &site.category, PLAIN).max(36);
        }
        canvas.put(row, column + 1, usize::MAX, &site.frames.join(" ← "), PLAIN);
    }
}

fn arenas(canvas: &mut Canvas<'_>, one: &Watched) {
    let arenas = &one.facts.arenas;
    let kept: Bytes = arenas.iter().map(|arena| arena.kept).sum();
    let age = words::duration((one.facts.age * 1e9) as u64);
    let number = arenas.len();
    let text = format!("glibc's malloc has {number} and keeps {kept} free in them; walked {age} ago");
    let rows = title(canvas, Panel::Arenas, &text);
    for (at, arena) in arenas.iter().take(rows).enumerate() {
        let row = at as u16 + 1;
        canvas.put(row, 0, 18, &arena.name, PLAIN);
        let text = format!("kept {}", arena.kept);
        let column = canvas.put(row, 19, 14, &text, PLAIN).max(33);
        let column = canvas.put(row, column + 1, 15, &format!("live {}", arena.live), PLAIN).max(48);
        let column = canvas.put(row, column + 1, 25, &format!("a trim frees {}", arena.trim), PLAIN).max(71);
        canvas.put(row, column + 1, 14, &words::counted(arena.threads, "thread"), PLAIN);
    }
}

fn threads(canvas: &mut Canvas<'_>, one: &Watched) {
    let pools = &one.facts.pools;
    let text =
        format!("{} in {}", words::counted(one.facts.threads, "thread"), words::counted(pools.len() as u64, "pool"));
    let rows = title(canvas, Panel::Threads, &text);
    for (at, pool) in pools.iter().take(rows).enumerate() {
        let row = at as u16 + 1;
        canvas.put_right(row, 7, &count(pool.threads), PLAIN);
        let change = one.pool_change(&pool.name, pool.threads);
        let text = if change == 0 {
            String::new()
        } else {
            format!("{}{}", if change > 0 { "+" } else { "−" }, change.unsigned_abs())
        };
        canvas.put_right(row, 14, &text, PLAIN);
        let name = canvas.width().saturating_sub(16 + 20).clamp(10, 48);
        canvas.put(row, 16, name, &pool.name, PLAIN);
        if let Some(stacks) = pool.stacks {
            canvas.put(row, 17 + name, 24, &format!("stacks {stacks}"), PLAIN);
        }
    }
}
