//! What `plimsoll doctor` found: as text, and as JSON (schema `plimsoll.doctor/1`, documented in docs/json.md).

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use serde::{Serialize, Serializer};

use crate::words::{cut, printable};

pub const SCHEMA: &str = "plimsoll.doctor/1";

#[derive(Serialize)]
pub struct Findings {
    pub checks: Vec<Check>,
    /// False: the time ran out before all directories and processes were reached.
    pub complete: bool,
    pub tracked: Vec<Tracked>,
}

/// One property of this machine.
#[derive(Serialize)]
pub struct Check {
    /// In JSON the id: lower case, with hyphens.
    #[serde(rename = "id", serialize_with = "id")]
    pub name: &'static str,
    pub ok: bool,
    pub text: String,
    /// What to type, or to change, so that the check passes.
    pub remedy: Option<String>,
    pub notes: &'static [&'static str],
}

impl Check {
    pub fn new(name: &'static str, ok: bool, text: impl Into<String>) -> Check {
        Check { name, ok, text: text.into(), remedy: None, notes: &[] }
    }

    pub fn with_remedy(self, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..self }
    }
}

fn id<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&name.to_lowercase().replace(' ', "-"))
}

/// A tracked process, or the segment that one left.
#[derive(Serialize)]
pub struct Tracked {
    pub pid: u32,
    /// `live`, `exited`, `killed` (it ran no exit handlers) or `detached`.
    pub state: &'static str,
    pub segment: String,
    #[serde(flatten)]
    pub books: BooksFound,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum BooksFound {
    Read {
        live_bytes: u64,
        committed_bytes: u64,
        command: String,
    },
    /// Why they could not be read.
    Refused {
        error: String,
    },
}

#[derive(Serialize)]
struct Document<'f> {
    schema: &'static str,
    version: &'f str,
    #[serde(flatten)]
    findings: &'f Findings,
}

/// `version`: of the program.
pub fn json(out: &mut dyn Write, findings: &Findings, version: &str) -> io::Result<()> {
    crate::json_lines::write_indented(out, &Document { schema: SCHEMA, version, findings })
}

pub fn text(out: &mut dyn Write, findings: &Findings) -> io::Result<()> {
    for check in &findings.checks {
        let mark = if check.ok { " " } else { "!" };
        writeln!(out, "{mark} {:<10} {}", check.name, printable(&check.text))?;
        let below = check.remedy.as_deref().into_iter().chain(check.notes.iter().copied());
        below.into_iter().try_for_each(|line| writeln!(out, "{:13}{}", "", printable(line)))?;
    }
    if !findings.complete {
        writeln!(out, "! tracked    not all directories and processes were reached in time: some may be missing here")?;
    }
    if findings.tracked.is_empty() {
        let nothing = if findings.complete { "Nothing is tracked." } else { "Nothing tracked was found." };
        return writeln!(out, "\n{nothing} Start a program with:  plimsoll run -- COMMAND");
    }
    writeln!(out, "\n{:>9} {:<8} {:>10} {:>10}  command", "pid", "state", "live", "committed")?;
    for Tracked { pid, state, segment, books } in &findings.tracked {
        // A process that ran no exit handlers may have ended by `_exit` or exec.
        let state = if *state == "killed" { "ended" } else { state };
        match books {
            BooksFound::Read { live_bytes, committed_bytes, command } => {
                let (live, committed) = (Bytes(*live_bytes).to_string(), Bytes(*committed_bytes).to_string());
                writeln!(out, "{pid:>9} {state:<8} {live:>10} {committed:>10}  {}", cut(command, 60))?;
                if state != "live" {
                    writeln!(out, "{:>42}{}", "", printable(segment))?;
                }
            }
            BooksFound::Refused { error } => writeln!(out, "{pid:>9} {state:<8} {}", printable(error))?,
        }
    }
    writeln!(out, "\nPrint what one of them holds:  plimsoll report PID, or, after its end:  plimsoll report SEGMENT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let read = BooksFound::Read { live_bytes: 3 << 20, committed_bytes: 1 << 10, command: "sleep\u{1b} 9".into() };
        let by_exit = BooksFound::Read { live_bytes: 0, committed_bytes: 0, command: "true".into() };
        let refused = BooksFound::Refused { error: "cannot read it".into() };
        Findings {
            checks: vec![
                Check::new("kernel", true, "6.1"),
                Check::new("C library", false, "not glibc").with_remedy("type this"),
            ],
            complete: false,
            tracked: vec![
                Tracked { pid: 7, state: "detached", segment: "/dev/shm/7.seg".into(), books: read },
                Tracked { pid: 8, state: "live", segment: "/dev/shm/8.seg".into(), books: refused },
                Tracked { pid: 9, state: "killed", segment: "/dev/shm/9.seg".into(), books: by_exit },
            ],
        }
    }

    #[test]
    fn text_has_a_mark_at_what_does_not_work() {
        let mut out = Vec::new();
        text(&mut out, &findings()).expect("a vector takes all");
        let expected = "  kernel     6.1
! C library  not glibc
             type this
! tracked    not all directories and processes were reached in time: some may be missing here

      pid state          live  committed  command
        7 detached   3.00 MiB   1.00 KiB  sleep\\u{1b} 9
                                          /dev/shm/7.seg
        8 live     cannot read it
        9 ended           0 B        0 B  true
                                          /dev/shm/9.seg

Print what one of them holds:  plimsoll report PID, or, after its end:  plimsoll report SEGMENT
";
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
    }

    /// docs/json.md has every key of the document.
    #[test]
    fn json_has_the_keys_that_the_documentation_lists() {
        let mut out = Vec::new();
        json(&mut out, &findings(), "1.2").expect("a vector takes all");
        let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!((&document["schema"], &document["version"]), (&SCHEMA.into(), &"1.2".into()));
        assert_eq!(document["checks"][1]["id"], "c-library");
        assert_eq!(document["checks"][1]["remedy"], "type this");
        assert_eq!(document["tracked"][0]["live_bytes"], 3 << 20);
        assert_eq!(document["tracked"][1]["error"], "cannot read it");
        assert_eq!(document["tracked"][2]["state"], "killed");
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).expect("the page");
        let section = page.split(&format!("## `{SCHEMA}`")).nth(1).expect("a section").split("\n## ").next();
        let objects = [&document, &document["checks"][0], &document["tracked"][0], &document["tracked"][1]];
        let keys = objects.iter().flat_map(|object| object.as_object().expect("an object").keys());
        let missing: Vec<&String> = keys.filter(|key| !section.expect("text").contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "docs/json.md lacks {missing:?}");
    }
}
