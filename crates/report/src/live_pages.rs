//! `plimsoll try --pid` for a ticket: Markdown, and a page of HTML that loads nothing and needs no script.

use std::io::{self, Write};

use plimsoll_trial::live::LiveTrial;

use crate::live_text::{cells, details, expected, facts, most};
use crate::page::markup::{hash_source, text};
use crate::trial_pages::{STYLE, plain};
use crate::words::{cut, printable};

const HEADS: [&str; 5] = ["RSS before", "at once", "after idling", "difference", "expected"];

pub fn markdown(out: &mut dyn Write, trial: &LiveTrial) -> io::Result<()> {
    writeln!(out, "{}\n\n{}.\n", plain(&cut(&trial.command, 200)), plain(&facts(trial).join(", ")))?;
    writeln!(out, "| step | {} | |\n| --- |{} --- |", HEADS.join(" | "), " ---: |".repeat(HEADS.len()))?;
    for step in &trial.steps {
        let details: Vec<String> = details(step).iter().map(|detail| plain(&printable(detail))).collect();
        let (name, cells) = (plain(&cut(&step.label, 200)), cells(step).join(" | "));
        writeln!(out, "| {name} | {cells} | {} | {} |", expected(step), details.join("; "))?;
    }
    writeln!(out, "\n**{}**", plain(&most(trial)))?;
    trial.notes.iter().try_for_each(|note| writeln!(out, "\n- {}", plain(&printable(note))))
}

/// Well-formed XML too.
pub fn html(out: &mut dyn Write, trial: &LiveTrial) -> io::Result<()> {
    let title = text(&format!("plimsoll try --pid {}: {}", trial.pid, trial.command));
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>"
    )?;
    let policy = format!("default-src 'none'; style-src {}", hash_source(STYLE));
    writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\"/>", text(&policy))?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>")?;
    writeln!(out, "<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>")?;
    writeln!(out, "<p>{}</p>\n<p class=\"best\">{}</p>", text(&facts(trial).join(", ")), text(&most(trial)))?;
    write!(out, "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">step</th>")?;
    HEADS.iter().try_for_each(|head| write!(out, "<th scope=\"col\">{head}</th>"))?;
    writeln!(out, "<th scope=\"col\">memory that changed</th></tr></thead>\n<tbody>")?;
    for step in &trial.steps {
        write!(out, "<tr><th scope=\"row\">{}</th>", text(&step.label))?;
        cells(step).iter().try_for_each(|cell| write!(out, "<td>{}</td>", text(cell)))?;
        write!(out, "<td>{}</td><td>", text(&expected(step)))?;
        details(step).iter().try_for_each(|detail| write!(out, "<small>{}</small>", text(detail)))?;
        writeln!(out, "</td></tr>")?;
    }
    writeln!(out, "</tbody></table></div>")?;
    trial.notes.iter().try_for_each(|note| writeln!(out, "<p>{}</p>", text(note)))?;
    writeln!(out, "</body>\n</html>")
}
