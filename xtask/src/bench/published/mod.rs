//! `make bench-published`: tables that others have published, made again by commands that anyone can type.
//!
//! | table | published | made by |
//! | --- | --- | --- |
//! | 1 `requests` | NMT in Native Image (Red Hat, 2024) | `plimsoll try` |
//! | 2 `arenas` | Taming JVM memory, part 2 | `plimsoll try` |
//! | 3 `start_up` | Quarkus native start-up RSS | `plimsoll compare` |
//! | 4 `mapping_books` | RFR 8304442, hotspot-runtime-dev, 2023-03-19 | callgrind |

mod arenas;
mod bars;
mod callgrind;
mod image;
mod mapping_books;
mod predictions;
pub mod quarkus;
mod requests;
mod section;
mod start_up;
mod threads;

pub use section::SECTION;

use std::fmt::Display;
use std::process::Command;

use serde_json::Value;

use super::machine::{Begun, commit};
use super::time_limit::{MANY_RUNS, within};
use crate::stage::{Result, folder, plimsoll, repository};

/// The options that a table gets.
pub struct Session {
    /// Rounds of alternating runs; for table 4, the booked operations.
    rounds: Option<u32>,
}

impl Session {
    pub fn rounds(&self, by_default: u32) -> u32 {
        self.rounds.unwrap_or(by_default)
    }
}

/// One made table.
#[derive(Default)]
pub struct Table {
    /// Markdown below the heading.
    pub text: String,
    /// What the README says about the table, in short sentences.
    pub summary: String,
}

impl Table {
    pub fn line(&mut self, text: &str) {
        self.text += text;
        self.text.push('\n');
    }

    pub fn head(&mut self, columns: &[&str]) {
        let rule: Vec<&str> = columns.iter().map(|_| "---").collect();
        self.line(&format!("\n| {} |\n| {} |", columns.join(" | "), rule.join(" | ")));
    }

    pub fn row(&mut self, cells: &[String]) {
        self.line(&format!("| {} |", cells.join(" | ")));
    }

    /// The result of a table without its rows of native images, which need GraalVM.
    fn without_native_images(&mut self, error: impl Display) -> String {
        self.line(&format!("\nNot run: native images ({error})."));
        "not run".into()
    }

    /// The command that made it, for a reader to type in the checkout.
    pub fn command(&mut self, words: &[String]) {
        let checkout = format!("{}/", repository().display());
        let words: Vec<String> = words.iter().map(|word| word.replace(&checkout, "")).collect();
        let quote = |word: &String| match word.contains([' ', '$', ';', '?', '&', '*']) {
            true => format!("'{word}'"),
            false => word.clone(),
        };
        self.line(&format!("\n```\n{}\n```", words.iter().map(quote).collect::<Vec<_>>().join(" ")));
    }
}

struct PublishedTable {
    number: usize,
    title: &'static str,
    make: fn(&Session) -> Result<Table>,
}

const TABLES: [PublishedTable; 4] = [
    PublishedTable { number: 1, title: "A server whose request makes 1,000 native blocks", make: requests::table },
    PublishedTable { number: 2, title: "Arena caps, allocators and one ClientResources", make: arenas::table },
    PublishedTable { number: 3, title: "Start-up of two versions of Quarkus", make: start_up::table },
    PublishedTable { number: 4, title: "Instructions of booking a reserve and a commit", make: mapping_books::table },
];

pub fn run(arguments: &[String]) -> Result<()> {
    let (mut only, mut rounds) = (None, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let number = rest.next().and_then(|text| text.parse::<u32>().ok()).filter(|number| *number > 0);
        match (argument.as_str(), number) {
            ("--table", Some(number)) if TABLES.iter().any(|table| table.number == number as usize) => {
                only = Some(number as usize);
            }
            ("--rounds", Some(number)) => rounds = Some(number),
            _ => return Err("bench-published: --table 1 to 4, --rounds N".into()),
        }
    }
    let (session, commit) = (Session { rounds }, commit());
    let mut failed = Vec::new();
    for table in TABLES.iter().filter(|table| only.is_none_or(|only| only == table.number)) {
        eprintln!("table {}: {}", table.number, table.title);
        let begun = Begun::now(&commit);
        match (table.make)(&session) {
            Ok(made) => section::write(table.number, table.title, &made, &begun.line(), rounds.is_some())?,
            // A table that can't be made must not cost the others their figures.
            Err(error) => failed.push(format!("table {}: {error}", table.number)),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// Runs plimsoll with these arguments and `--format json`; returns the document, and the command as one would type it.
pub fn measured(arguments: &[String]) -> Result<(Value, Vec<String>)> {
    let file = folder("bench/published")?.join("document.json");
    let _ = std::fs::remove_file(&file);
    // Options come before the command of a `--`.
    let (verb, rest) = arguments.split_first().ok_or("a verb")?;
    let mut command = Command::new(plimsoll()?);
    command.arg(verb).args(["--format", "json", "-o"]).arg(&file).args(rest);
    // The log of progress and of failed runs is for the person who waits.
    let mut child = command.stdin(std::process::Stdio::null()).spawn()?;
    let status = within(MANY_RUNS, child.id(), &command, || Ok(child.wait()?))?;
    let text = std::fs::read_to_string(&file).map_err(|_| format!("{command:?}: {status}, and no document"))?;
    let typed = std::iter::once("plimsoll".to_owned()).chain(arguments.iter().cloned()).collect();
    Ok((serde_json::from_str(&text)?, typed))
}

/// A TCP port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// `10 of 10`: runs of a row of `try` that succeeded.
fn ran(document: &Value, row: &str) -> String {
    let ran = document["rows"].as_array().and_then(|rows| rows.iter().find(|one| one["name"] == row));
    ran.map_or("not run".to_owned(), |one| {
        format!("{} of {}", one["runs"].as_u64().unwrap_or(0) - one["failed"].as_u64().unwrap_or(0), one["runs"])
    })
}

/// The median of a figure of a row of `try`, and its difference against plain if the rounds show one.
fn figure<'v>(document: &'v Value, row: &str, name: &str) -> Option<&'v Value> {
    let row = document["rows"].as_array()?.iter().find(|one| one["name"] == row)?;
    row["figures"].get(name)
}
