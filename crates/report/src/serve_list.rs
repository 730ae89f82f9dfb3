//! The list of targets of `serve`: its rows, and the JSON for programs. `page/list.rs` makes the page for people.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use serde::Serialize;

pub const SCHEMA: &str = "plimsoll.targets/1";

/// One target.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The target's name: it is in addresses and labels.
    pub name: String,
    pub command: String,
    pub pid: u32,
    pub rss: Bytes,
    /// The limit, and the bytes that count against it.
    pub limit: Option<(Bytes, Bytes)>,
    /// Id, severity and sentence of the most important verdict.
    pub verdict: Option<(&'static str, &'static str, String)>,
    pub is_tracked: bool,
}

#[derive(Serialize)]
struct Document<'r> {
    schema: &'static str,
    targets: Vec<ServedTarget<'r>>,
    left_out: usize,
}

#[derive(Serialize)]
struct ServedTarget<'r> {
    name: &'r str,
    pid: u32,
    command: &'r str,
    tracked: bool,
    rss_bytes: u64,
    limit_bytes: Option<u64>,
    working_set_bytes: Option<u64>,
    /// Seconds since the figures were read.
    age_seconds: f64,
    verdict: Option<&'static str>,
    severity: Option<&'static str>,
    summary: Option<&'r str>,
}

/// `rows`: each with the seconds since it was read. `left_out`: processes that match and are not served.
pub fn json(out: &mut dyn Write, rows: &[(&Row, f64)], left_out: usize) -> io::Result<()> {
    let targets = rows
        .iter()
        .map(|(row, age)| ServedTarget {
            name: &row.name,
            pid: row.pid,
            command: &row.command,
            tracked: row.is_tracked,
            rss_bytes: row.rss.0,
            limit_bytes: row.limit.map(|(limit, _)| limit.0),
            working_set_bytes: row.limit.map(|(_, counted)| counted.0),
            age_seconds: (age * 1e3).round() / 1e3,
            verdict: row.verdict.as_ref().map(|of| of.0),
            severity: row.verdict.as_ref().map(|of| of.1),
            summary: row.verdict.as_ref().map(|of| of.2.as_str()),
        })
        .collect();
    crate::json_lines::write_indented(out, &Document { schema: SCHEMA, targets, left_out })
}
