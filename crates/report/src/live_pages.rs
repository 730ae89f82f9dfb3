//! `plimsoll try --pid` for a ticket: Markdown, and a page of HTML that loads nothing and needs no script.

use std::io::{self, Write};

use plimsoll_trial::live::LiveTrial;

use crate::live_text::{cells, details, expected, facts, most};
use crate::page::markup::text;
use crate::ticket::{self, plain};
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

pub fn html(out: &mut dyn Write, trial: &LiveTrial) -> io::Result<()> {
    let title = format!("plimsoll try --pid {}: {}", trial.pid, trial.command);
    ticket::page(out, &title, &facts(trial).join(", "), &most(trial), |out| {
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
        trial.notes.iter().try_for_each(|note| writeln!(out, "<p>{}</p>", text(note)))
    })
}
