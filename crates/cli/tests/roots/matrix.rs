//! Each verb on programs that know their own memory, in each root. A program runs twice, with few blocks and with many:
//! whatever the C library and the interpreter need for themselves is in both, so the difference is known.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::rows::{Row, rows};
use crate::tested_root::TestedRoot;
use crate::{fixture, output, text};

/// What a verb found of a program's blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Each block and each byte.
    Exact,
    /// Within 3 %.
    Near,
    /// The reason that the verb itself gives.
    Gap(String),
}

#[derive(Clone, Copy, PartialEq)]
pub enum Program {
    C,
    Python,
    Redis,
}

pub const PROGRAMS: [Program; 3] = [Program::C, Program::Python, Program::Redis];

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::C => "C",
            Program::Python => "Python",
            Program::Redis => "Redis",
        }
    }

    /// The word of fixtures/roots/verbs, and the larger number of blocks.
    fn words(self) -> [&'static str; 2] {
        match self {
            Program::C => ["c", "1000"],
            Program::Python => ["python", "1000"],
            Program::Redis => ["redis", "20000"],
        }
    }
}

/// One run of a program.
struct Run {
    context: String,
    rows: BTreeMap<String, Row>,
}

impl Run {
    fn of(tested: &TestedRoot, program: Program, blocks: &str) -> Run {
        let script = fs::read_to_string(fixture("roots/verbs")).expect("the fixture");
        let done = output(tested.shell().args(["-c", &script, "sh", program.words()[0], blocks]));
        let context = format!("{} {}, {} {blocks}", tested.name, tested.cpu, program.name());
        let rows = rows(&text(&done.stdout));
        assert!(rows.contains_key("explain"), "{context}: {}{}", text(&done.stdout), text(&done.stderr));
        Run { context, rows }
    }

    fn json(&self, row: &str) -> Value {
        let Row { out, err, status } = &self.rows[row];
        serde_json::from_str(out).unwrap_or_else(|e| panic!("{} {row}: {e}: {status} {out}{err}", self.context))
    }

    /// What Redis itself counts.
    fn used(&self, row: &str) -> i64 {
        let used = self.rows[row].out.lines().find_map(|line| line.trim_end().strip_prefix("used_memory:"));
        used.and_then(|used| used.parse().ok()).unwrap_or_else(|| panic!("{}: {:?}", self.context, self.rows[row]))
    }

    fn total(&self, figure: &str) -> i64 {
        number(&self.json("report")["total"][figure])
    }

    /// The last reading of a series.
    fn recorded(&self, measure: &str, name: &str) -> i64 {
        let recording = self.json("recording");
        let mut series = recording["series"].as_array().expect("series").iter();
        let one = series.find(|series| series["measure"] == measure && series["name"] == name);
        number(&one.unwrap_or_else(|| panic!("{}: {recording:#}", self.context))["last"])
    }

    /// Bytes of live blocks that `explain` finds in the allocator, or the reason of its gap.
    fn explained(&self, program: Program, tested: &TestedRoot) -> Result<i64, String> {
        let ledger = self.json("explain");
        let mut gaps = ledger["gaps"].as_array().expect("gaps").iter();
        if let Some(gap) = gaps.find(|gap| ["glibc", "allocator"].iter().any(|source| gap["source"] == *source)) {
            return Err(gap["reason"].as_str().expect("a reason").to_owned());
        }
        if tested.is_musl() {
            return Ok(self.part("musl: live"));
        }
        if program != Program::Redis {
            let arenas = ledger["arenas"].as_array().expect("arenas").iter();
            return Ok(arenas.map(|arena| number(&arena["live_bytes"])).sum());
        }
        // Debian's Redis is over jemalloc.
        Ok(self.part("jemalloc: live"))
    }

    /// Resident bytes of a part of a line of `explain`. 0: there is none.
    fn part(&self, name: &str) -> i64 {
        let ledger = self.json("explain");
        let lines = ledger["lines"].as_array().expect("lines").iter();
        let mut parts = lines.filter_map(|line| line["children"].as_array()).flatten();
        parts.find(|part| part["name"] == name).map_or(0, |part| number(&part["resident_bytes"]))
    }
}

#[track_caller]
fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Exact, or else near; if it is neither, the test fails.
#[track_caller]
fn cell(is_exact: bool, found: i64, truth: i64, context: &str) -> Cell {
    if is_exact {
        assert_eq!(found, truth, "{context}");
        return Cell::Exact;
    }
    assert!(truth > 1 << 20 && found.abs_diff(truth) * 100 <= truth as u64 * 3, "{context}: {found} of {truth}");
    Cell::Near
}

/// `run` with `report`, `explain`, `record`.
pub fn verbs(tested: &TestedRoot, program: Program) -> [Cell; 3] {
    let [none, some] = ["0", program.words()[1]].map(|blocks| Run::of(tested, program, blocks));
    // In glibc a block of 1,234 bytes takes a chunk of 1,248, and one of 5,001 a chunk of 5,024. In musl the first
    // takes a slot of 1,344.
    let (count, requested, chunks) = match program {
        Program::C if tested.is_musl() => (1000, 1000 * 1234, 1000 * 1344),
        Program::C => (1000, 1000 * 1234, 1000 * 1248),
        Program::Python => (1000, 1000 * 5001, 1000 * 5024),
        Program::Redis => (0, 0, some.used("used-plain") - none.used("used-plain")),
    };
    let tracked = match program {
        Program::Redis => some.used("used-tracked") - none.used("used-tracked"),
        // What malloc_usable_size returns: in musl, the request.
        _ if tested.is_musl() => requested,
        _ => chunks,
    };
    let (context, is_exact) = (&some.context, program == Program::C);
    let reported = if program == Program::Redis {
        cell(is_exact, some.total("live_bytes") - none.total("live_bytes"), tracked, &format!("{context}: report"))
    } else {
        let more = some.total("live_count") - none.total("live_count");
        // Python's list takes one block itself, and some of its other blocks depend on addresses.
        assert!(more == count || program == Program::Python && more.abs_diff(count) < 20, "{context}: {more}");
        let more = some.total("requested_bytes") - none.total("requested_bytes");
        cell(is_exact, more, requested, &format!("{context}: report"))
    };
    let explained = match (some.explained(program, tested), none.explained(program, tested)) {
        (Ok(some), Ok(none)) => cell(is_exact, some - none, chunks, &format!("{context}: explain")),
        (Err(reason), _) | (_, Err(reason)) => Cell::Gap(reason),
    };
    let live = |run: &Run| run.recorded("total-live", "live, all categories");
    let recorded = live(&some) - live(&none);
    [reported, explained, cell(is_exact, recorded, tracked, &format!("{context}: record"))]
}

/// The oldest glibc: the three rows of docs/roots.md that `make test` repeats.
#[test]
fn each_verb_is_right_over_the_oldest_glibc() {
    let Some(tested) = TestedRoot::of(0) else { return };
    for program in PROGRAMS {
        let found = verbs(&tested, program);
        let expected = if program == Program::C { Cell::Exact } else { Cell::Near };
        assert!(found.iter().all(|cell| *cell == expected), "{}: {found:?}", program.name());
    }
}
