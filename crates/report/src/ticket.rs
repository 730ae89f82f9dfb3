//! The parts that the ticket formats of `try`, `try --pid` and `compare` share. These are foreign text in Markdown, and
//! the frame of a page of HTML that loads nothing and needs no script.

use std::io::{self, Write};

use crate::page::markup::{hash_source, text};

/// Escapes every character that could be Markdown, at the start of a line too (CommonMark, 2.4; lists: 5.2).
pub(crate) fn plain(text: &str) -> String {
    let text = text.trim_start();
    let mut out = String::with_capacity(text.len());
    let number = text.bytes().take_while(u8::is_ascii_digit).count();
    for (at, c) in text.char_indices() {
        // A list with `-`, `+` or a number, or a row of `-` or `=` below a heading or between blocks.
        let next = text[at + c.len_utf8()..].chars().next();
        let begins_a_block = match c {
            '-' | '+' | '=' if at == 0 => next.is_none_or(|next| next == ' ' || next == c),
            '.' | ')' if at == number && number > 0 => next.is_none_or(|next| next == ' '),
            _ => false,
        };
        if begins_a_block || "\\`*_[]<>&|#~!".contains(c) {
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
small, td b { display: block; } small { color: var(--quiet); } .best { font-weight: 600; color: var(--good); } .scroll { overflow-x: auto; }
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

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn text_of_others_makes_no_markdown() {
        for (text, shown) in [
            ("java -Xmx1g", "java -Xmx1g"),
            ("- a", "\\- a"),
            ("+ a", "\\+ a"),
            ("12. a.b", "12\\. a.b"),
            ("1) a", "1\\) a"),
            ("1.5 MiB", "1.5 MiB"),
            ("-0.5 to +1", "-0.5 to +1"),
            ("---", "\\---"),
            ("    code", "code"),
            ("===", "\\==="),
            ("<b>|*x*", "\\<b\\>\\|\\*x\\*"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }
}
