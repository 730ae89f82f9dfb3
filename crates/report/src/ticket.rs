//! The parts that the ticket formats of `try`, `try --pid` and `compare` share: foreign text in Markdown, and the frame
//! of a page of HTML that loads nothing and needs no script.

use std::io::{self, Write};

use crate::page::markup::{hash_source, text};

/// Escapes every character that could be Markdown within a line (CommonMark, 2.4).
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\`*_[]<>&|#~!".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2226; --quiet: #56616a; --line: #d9dfe3; --paper: #fff; --good: #00694e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaed; --quiet: #a3aeb6; --line: #38424a; --paper: #14181b; --good: #6fd6b1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 16px; overflow-wrap: anywhere; }
h1 { font-size: 20px; } h2 { font-size: 18px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); }
th:first-child, td:last-child { text-align: left; } th { font-weight: 500; }
small { display: block; color: var(--quiet); } .best { font-weight: 600; color: var(--good); } .scroll { overflow-x: auto; }
";

/// Writes a page of HTML that is also well-formed XML: title, facts and result, which are escaped here, then what
/// `body` writes.
pub(crate) fn page(
    out: &mut dyn Write,
    title: &str,
    facts: &str,
    result: &str,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (title, policy) = (text(title), format!("default-src 'none'; style-src {}", hash_source(STYLE)));
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>"
    )?;
    writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\"/>", text(&policy))?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>")?;
    writeln!(out, "<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>")?;
    writeln!(out, "<p>{}</p>\n<p class=\"best\">{}</p>", text(facts), text(result))?;
    body(out)?;
    writeln!(out, "</body>\n</html>")
}
