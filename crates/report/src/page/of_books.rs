//! The page of a tracked process: what it holds by category, and its call stacks. `add` puts these parts into the page
//! of its ledger.

use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::Profile;
use plimsoll_tracked::books::{Books, Category, Module, Thread};
use plimsoll_tracked::segment::Life;
use plimsoll_tracked::sites;

use super::model::{Bar, BarGroup, Bars, Cell, Gap, Page, Stacks, Table};
use super::of_ledger::{ROWS, caption};
use crate::text::{age, before_the_attach, built_on};
use crate::words::{counted, moment_text};

/// Columns of stacks that the page offers, and their names.
const COLUMNS: [(usize, &str); 5] = [
    (sites::LIVE, "live"),
    (sites::HELD, "held: live blocks, and resident mappings without files"),
    (sites::PEAK, "peak of each site, at different moments"),
    (sites::CUMULATIVE, "allocated since the tracker counts"),
    (sites::TEMPORARY, "freed within 0.1 s"),
];

pub fn of_books(books: &Books, profile: Profile) -> Page {
    let process = &books.process;
    let command = if process.arguments.is_empty() { process.executable.clone() } else { one_line(&process.arguments) };
    let mut facts = vec![format!("pid {}", process.pid), built_on(books), counted(process.threads, "thread")];
    facts.extend(age(books));
    facts.push(format!("sites {}", books.mode.name()));
    // When an ended process was last seen is in the sentence about its end.
    facts.extend((books.life == Life::Live).then(|| format!("read {}", moment_text(books.time_ns))));
    let ending = match (books.life, &books.ending) {
        (Life::Live, _) => None,
        (Life::Detached, _) => Some(format!("The tracker was removed {}", moment_text(books.time_ns))),
        (_, Some(ending)) => Some(format!("Ended: {}, last seen {}", ending.sentence(), moment_text(books.time_ns))),
        (_, None) => None,
    };
    let mut page = Page {
        title: command,
        facts,
        ending,
        bars: Some(bars(books)),
        notes: vec![match books.life {
            Life::Live | Life::Detached => {
                format!("Where the other memory is, and what to do: plimsoll explain {} --format html", process.pid)
            }
            Life::Exited | Life::Killed => "The page has the tracker's books alone. A recording of the next run has \
                                            RSS by line, and verdicts, too: plimsoll record -- COMMAND"
                .into(),
        }],
        ..Page::default()
    };
    add(&mut page, books, profile);
    page
}

/// Adds the call stacks and the tables of the books.
pub fn add(page: &mut Page, books: &Books, profile: Profile) {
    let total = profile.total();
    let is_known = books.is_resident_known();
    let has = |column: usize| total.get(column).is_some_and(|value| value.amount > 0);
    let has = |column: usize| has(column) && (column != sites::HELD || is_known);
    let columns: Vec<_> =
        COLUMNS.iter().filter(|(at, _)| has(*at)).map(|(at, name)| (*at, (*name).to_owned())).collect();
    if !columns.is_empty() {
        page.stacks = Some(Stacks { title: "Memory by call stack".into(), profile, columns, moments_ms: vec![] });
    }
    let tables = [categories(books), slots(books), modules(books)];
    page.tables.extend(tables.into_iter().filter(|table| !table.rows.is_empty()));
    page.gaps.extend(books.gaps.iter().map(|gap| Gap {
        reason: gap.reason.clone(),
        effect: gap.effect.clone(),
        remedy: gap.remedy.clone(),
    }));
}

/// Whether the resident bytes of any mapping are known. Those of a dead process never are.
fn is_resident_known(books: &Books) -> bool {
    books.categories.iter().any(|category| category.figures.resident.is_some())
}

fn bars(books: &Books) -> Bars {
    let mut bars: Vec<Bar> = books
        .categories
        .iter()
        .filter(|category| books.held_by(category) > Bytes(0))
        .map(|category| Bar {
            name: category.name.clone(),
            bytes: books.held_by(category).0,
            note: if category.figures.fault { "more freed than allocated: unknown".into() } else { String::new() },
            parts: vec![],
        })
        .collect();
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.bytes));
    let sum: Bytes = bars.iter().map(|bar| Bytes(bar.bytes)).sum();
    let name = match is_resident_known(books) {
        true => "live blocks, and resident mappings without files".into(),
        false => "live blocks".into(),
    };
    let groups = vec![BarGroup { name, colour: 0, bars }];
    let title = if matches!(books.life, Life::Exited | Life::Killed) { "What it held" } else { "What it holds" };
    let below = before_the_attach(books).map_or(String::new(), |before| {
        format!("{before} The bars have neither these blocks nor what malloc keeps free in its arenas.")
    });
    Bars { title: title.into(), sum_name: "counted".into(), sum: sum.0, limit: None, groups, below }
}

fn categories(books: &Books) -> Table {
    let row = |category: &Category| {
        let figures = &category.figures;
        vec![
            Cell::Text(category.name.clone()),
            Cell::Bytes(figures.live.0),
            Cell::Count(figures.live_count),
            Cell::Bytes(figures.peak.0),
            Cell::Bytes(figures.cumulative.0),
            Cell::Bytes(figures.committed.0),
            figures.resident_beside_arenas().map_or(Cell::None, |resident| Cell::Bytes(resident.0)),
        ]
    };
    let mut all: Vec<&Category> = books.categories.iter().filter(|category| !category.figures.is_empty()).collect();
    all.sort_by_key(|category| std::cmp::Reverse(books.held_by(category)));
    Table {
        id: "categories",
        title: "Categories".into(),
        caption: match is_resident_known(books) {
            true => caption("Blocks that the tracker counted, and mappings.", all.len()),
            false => caption(
                "Blocks that the tracker counted, and mappings; how much of these was resident is not known.",
                all.len(),
            ),
        },
        heads: vec!["category", "live", "blocks", "peak", "allocated", "mapped, committed", "of it resident"],
        rows: all.into_iter().take(ROWS).map(row).collect(),
        is_open: true,
    }
}

fn slots(books: &Books) -> Table {
    let row = |thread: &Thread| {
        vec![
            Cell::Text(thread.name.clone().unwrap_or_else(|| "(no name)".into())),
            Cell::Count(u64::from(thread.tid)),
            Cell::Bytes(thread.allocated.0),
            Cell::Count(thread.allocated_count),
            Cell::Bytes(thread.freed.0),
            Cell::Bytes(thread.stack.0),
        ]
    };
    let mut all: Vec<&Thread> = books.threads.iter().filter(|thread| thread.in_use).collect();
    all.sort_by_key(|thread| std::cmp::Reverse(thread.allocated));
    Table {
        id: "allocating-threads",
        title: "Threads that allocate".into(),
        caption: caption("A block may be freed by another thread.", all.len()),
        heads: vec!["thread", "tid", "allocated", "blocks", "freed", "stack, reserved"],
        rows: all.into_iter().take(ROWS).map(row).collect(),
        is_open: false,
    }
}

fn modules(books: &Books) -> Table {
    let row = |module: &Module| {
        let figures = &module.figures;
        vec![
            Cell::Text(module.path.clone()),
            Cell::Bytes(figures.live.0),
            Cell::Count(figures.live_count),
            Cell::Bytes(figures.cumulative.0),
        ]
    };
    let mut all: Vec<&Module> = books.modules.iter().filter(|module| module.figures.cumulative > Bytes(0)).collect();
    all.sort_by_key(|module| std::cmp::Reverse(module.figures.live));
    Table {
        id: "modules",
        title: "Libraries that allocate".into(),
        caption: caption("By the innermost caller.", all.len()),
        heads: vec!["module", "live", "blocks", "allocated"],
        rows: all.into_iter().take(ROWS).map(row).collect(),
        is_open: false,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_tracked::books::Before;

    use super::*;

    #[test]
    fn what_is_older_than_the_attach_is_below_the_bars() {
        let mut books = Books::default();
        assert_eq!(bars(&books).below, "");
        books.before = Some(Before { live: Bytes::mib(132), live_count: 8650, error: Bytes(4096) });
        let page = of_books(&books, Profile::default());
        let mut html = Vec::new();
        crate::page::write(&mut html, &page).expect("written to memory");
        let html = String::from_utf8(html).expect("UTF-8");
        let sentence = "<p>before the attach: another 132 MiB in 8,650 blocks, still live";
        let at = |what: &str| html.find(what).unwrap_or_else(|| panic!("no {what}"));
        assert!(at("<table class=\"bars\">") < at(sentence), "{html}");
    }

    #[test]
    fn a_table_that_lacks_rows_has_a_caption_that_says_so() {
        let thread = |slot: usize| Thread { slot, in_use: true, ..Thread::default() };
        let of = |number: usize| {
            let books = Books { threads: (0..number).map(thread).collect(), ..Books::default() };
            let table = slots(&books);
            (table.rows.len(), table.caption)
        };
        assert_eq!(of(ROWS), (ROWS, "A block may be freed by another thread.".to_owned()));
        let cut = "A block may be freed by another thread. The 1,000 biggest of 1,001.";
        assert_eq!(of(ROWS + 1), (ROWS, cut.to_owned()));
    }
}
