//! The table of docs/roots.md: each verb on each program in each root. BLESS=1 writes it.

use crate::matrix::{Cell, PROGRAMS, Program, verbs};
use crate::page;
use crate::roots::SUITES;
use crate::tested_root::TestedRoot;

const BEGIN: &str = "<!-- The test roots::table writes what follows. -->\n\n";
const END: &str = "\n<!-- The end of what the test writes. -->\n";

#[test]
#[ignore = "full: makes five roots and builds the static program"]
fn the_page_has_what_each_verb_finds_in_each_root() {
    let mut table = Table::default();
    for suite in 0..SUITES.len() {
        let Some(tested) = TestedRoot::of(suite) else { return };
        for program in PROGRAMS {
            table.row(&tested, program, &verbs(&tested, program));
        }
    }
    let Some(musl) = TestedRoot::of_musl() else { return };
    table.row(&musl, Program::C, &verbs(&musl, Program::C));
    page::check_table("roots.md", [BEGIN, END], &table.text());
}

#[derive(Default)]
struct Table {
    rows: String,
    notes: Vec<String>,
}

impl Table {
    fn row(&mut self, tested: &TestedRoot, program: Program, cells: &[Cell]) {
        let mut row = format!("| {} | {} | {} | {} |", tested.name, tested.library, tested.cpu, program.name());
        for cell in cells {
            let cell = match cell {
                Cell::Exact => "exact".to_owned(),
                Cell::Near => "within 3 %".to_owned(),
                Cell::Gap(reason) => {
                    let known = self.notes.iter().position(|note| note == reason);
                    let note = known.unwrap_or_else(|| {
                        self.notes.push(reason.clone());
                        self.notes.len() - 1
                    });
                    format!("no ({})", note + 1)
                }
            };
            row.push_str(&format!(" {cell} |"));
        }
        self.rows.push_str(&row);
        self.rows.push('\n');
    }

    fn text(&self) -> String {
        let head = "| root | C library | CPU | program | `run`, `report` | `explain` | `record` |\n\
                    | --- | --- | --- | --- | :-: | :-: | :-: |\n";
        let notes = self.notes.iter().enumerate().map(|(index, note)| format!("{}. {note}.\n", index + 1));
        let reasons = match self.notes.is_empty() {
            true => String::new(),
            false => format!("\nThe reasons, as the commands give them:\n\n{}", notes.collect::<String>()),
        };
        format!("{head}{}{reasons}", self.rows)
    }
}
