//! The first page of `serve`: its targets, those with a warning first. It needs no script.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;

use super::html::STYLE;
use super::markup::{hash_source, text};
use crate::serve_list::Row;
use crate::words::{count, cut};

/// Seconds after which a browser reads the page again.
const AGAIN: u32 = 15;
/// Maximum length of a command, in characters.
const COMMAND: usize = 120;

/// Writes the list. Each row comes with the age of its reading in seconds. `left_out`: processes that match and are not
/// served.
pub fn write_list(out: &mut dyn Write, rows: &[(&Row, f64)], left_out: usize) -> io::Result<()> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|(row, _)| (severity(row), std::cmp::Reverse(row.rss), row.name.clone()));
    let policy = format!("default-src 'none'; style-src {}; base-uri 'none'; form-action 'none'", hash_source(STYLE));
    writeln!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>")?;
    writeln!(out, r#"<meta http-equiv="Content-Security-Policy" content="{policy}"/>"#)?;
    writeln!(out, r#"<meta http-equiv="refresh" content="{AGAIN}"/>"#)?;
    writeln!(out, r#"<meta name="viewport" content="width=device-width, initial-scale=1"/>"#)?;
    writeln!(out, "<title>Processes – Plimsoll</title>\n<style>{STYLE}</style>\n</head>\n<body>")?;
    writeln!(out, r#"<header><h1>Processes</h1><ul class="facts"><li>{} served</li>"#, count(rows.len() as u64))?;
    if left_out > 0 {
        writeln!(out, "<li>{} more match: the server has a limit</li>", count(left_out as u64))?;
    }
    writeln!(out, r#"<li>read again every {AGAIN} s</li></ul></header><main id="main">"#)?;
    if rows.is_empty() {
        writeln!(out, "<p>No process matches the arguments that serve was started with.</p>")?;
    } else {
        table(out, &rows)?;
    }
    writeln!(
        out,
        r#"</main><footer><p>For programs: <a href="/metrics">/metrics</a>, <a href="/api/targets">/api/targets</a>.</p><p>Made by plimsoll {}.</p></footer></body></html>"#,
        env!("CARGO_PKG_VERSION")
    )
}

fn table(out: &mut dyn Write, rows: &[(&Row, f64)]) -> io::Result<()> {
    let heads = ["process", "RSS", "of its limit", "PID", "verdict"];
    write!(out, r#"<table class="targets"><thead><tr>"#)?;
    heads.iter().try_for_each(|head| write!(out, r#"<th scope="col">{head}</th>"#))?;
    writeln!(out, "</tr></thead><tbody>")?;
    for (row, age) in rows {
        let limit = match row.limit {
            Some((limit, counted)) if limit > Bytes(0) => {
                format!("{:.0} % of {limit}", counted.0 as f64 * 100.0 / limit.0 as f64)
            }
            _ => "no limit".into(),
        };
        let (id, mark, sentence) = match &row.verdict {
            Some((id, severity, summary)) => (*id, *severity, summary.as_str()),
            None => ("", "note", ""),
        };
        let stale = if *age > 120.0 { format!(" (read {age:.0} s ago)") } else { String::new() };
        // The name has only letters, digits and `._-`; it is escaped like all other text.
        let name = text(&row.name);
        writeln!(
            out,
            "<tr><td data-h=\"process\"><a href=\"/{name}\">{name}</a><br/><small>{}</small></td>\
             <td data-h=\"RSS\">{}{stale}</td><td data-h=\"of its limit\">{limit}</td><td data-h=\"PID\">{}</td>\
             <td data-h=\"verdict\" class=\"verdict {}\"><span class=\"mark\">{}</span> {}</td></tr>",
            text(&cut(&row.command, COMMAND)),
            row.rss,
            row.pid,
            text(mark),
            text(id),
            text(sentence)
        )?;
    }
    writeln!(out, "</tbody></table>")
}

fn severity(row: &Row) -> u8 {
    match row.verdict.as_ref().map(|of| of.1) {
        Some("critical") => 0,
        Some("warning") => 1,
        _ => 2,
    }
}
