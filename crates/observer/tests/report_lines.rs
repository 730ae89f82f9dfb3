//! The tables in docs/report-lines.md are made from the table of lines. BLESS=1 writes them; without it, they must
//! equal what would be written. The text around them is written by hand.

use plimsoll_observer::ledger::{Group, LineId};
use std::fs;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report-lines.md");
const HEAD: &str = "| id | what is in it |\n| --- | --- |\n";

/// The rows of a group: lines of the table, then the group's other rows in the page (the remainder isn't a line).
fn rows(group: Group, there: &str) -> String {
    let lines = LineId::ALL.iter().filter(|line| line.group() == group);
    let others = there.lines().filter(|row| !row.starts_with("| `")).map(|row| format!("{row}\n"));
    lines.map(|line| format!("| `{}` | {} |\n", line.id(), line.meaning())).chain(others).collect()
}

fn page(text: &str) -> String {
    let mut page = text.to_owned();
    for group in Group::ALL {
        let name = group.name();
        let heading = format!("\n### {}{} (`{}`)\n", name[..1].to_uppercase(), &name[1..], group.id());
        let at = page.find(&heading).unwrap_or_else(|| panic!("{PATH} has no heading {heading:?}"));
        let from = at + page[at..].find(HEAD).unwrap_or_else(|| panic!("no table below {heading:?}")) + HEAD.len();
        let length = page[from..].find("\n\n").expect("an end of the table") + 1;
        let rows = rows(group, &page[from..from + length]);
        page.replace_range(from..from + length, &rows);
    }
    page
}

#[test]
fn the_pages_tables_are_current() {
    let text = fs::read_to_string(PATH).expect("docs/report-lines.md");
    let made = page(&text);
    if std::env::var_os("BLESS").is_some() {
        fs::write(PATH, made).expect("docs/report-lines.md");
        return;
    }
    let differs = text.lines().zip(made.lines()).find(|(there, made)| there != made);
    assert!(
        text == made,
        "docs/report-lines.md differs from crates/facts/src/lines.rs: {differs:#?}; BLESS=1 writes it"
    );
}
