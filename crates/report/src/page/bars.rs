//! Parts of a sum as bars: a table with a picture in each row, and one bar of everything beside the limit.
//! Pictures are SVG with attributes only, because the policy forbids style attributes.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;

use super::markup::text;
use super::model::{Bar, Bars};
use crate::words::count;

/// Width of the bar of everything, in units of its picture.
const WIDE: f64 = 1000.0;

pub(crate) fn write(out: &mut dyn Write, bars: &Bars) -> io::Result<()> {
    writeln!(out, r#"<section id="memory" aria-labelledby="memory-h"><h2 id="memory-h">{}</h2>"#, text(&bars.title))?;
    whole(out, bars)?;
    let widest = bars.groups.iter().flat_map(|group| &group.bars).map(|bar| bar.bytes).max().unwrap_or(0);
    writeln!(
        out,
        r#"<table class="bars"><caption class="hidden">{}</caption><thead><tr><th scope="col">part</th><th scope="col">size</th><th scope="col">share</th><th scope="col" class="bar"><span class="hidden">bar</span></th></tr></thead>"#,
        text(&bars.title)
    )?;
    for group in &bars.groups {
        let sum: Bytes = group.bars.iter().map(|bar| Bytes(bar.bytes)).sum();
        let (name, share) = (text(&group.name), share(sum.0, bars.sum));
        writeln!(
            out,
            r#"<tbody><tr class="group"><th scope="rowgroup">{name}</th><td>{sum}</td><td>{share}</td><td class="bar"></td></tr>"#
        )?;
        for bar in &group.bars {
            one(out, bar, bars.sum, widest, group.colour)?;
        }
        writeln!(out, "</tbody>")?;
    }
    writeln!(out, "</table>")?;
    if !bars.below.is_empty() {
        writeln!(out, "<p>{}</p>", text(&bars.below))?;
    }
    writeln!(out, "</section>")
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", Bytes(part).percent_of(Bytes(whole)))
}

fn one(out: &mut dyn Write, bar: &Bar, sum: u64, widest: u64, colour: usize) -> io::Result<()> {
    write!(out, r#"<tr><th scope="row">{}"#, text(&bar.name))?;
    if !bar.note.is_empty() {
        write!(out, r#" <small>{}</small>"#, text(&bar.note))?;
    }
    if !bar.parts.is_empty() {
        write!(out, r#"<ul class="parts">"#)?;
        for (name, bytes) in &bar.parts {
            write!(out, "<li><b>{}</b> {}</li>", Bytes(*bytes), text(name))?;
        }
        write!(out, "</ul>")?;
    }
    let width = Bytes(bar.bytes).percent_of(Bytes(widest));
    writeln!(
        out,
        r#"</th><td>{}</td><td>{}</td><td class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="g{colour}" width="{width:.2}" height="10"/></svg></td></tr>"#,
        Bytes(bar.bytes),
        share(bar.bytes, sum)
    )
}

/// All groups side by side, and the limit as a line.
fn whole(out: &mut dyn Write, bars: &Bars) -> io::Result<()> {
    let (limit, counted) = bars.limit.as_ref().map_or((0, 0), |limit| (limit.bytes, limit.counted));
    let end = bars.sum.max(limit).max(1) as f64;
    let mut words = format!("{} {}", bars.sum_name, Bytes(bars.sum));
    if let Some(limit) = &bars.limit {
        words += &format!(
            "; {} of the limit of {} ({}) are in use, {:.0} %",
            Bytes(counted),
            Bytes(limit.bytes),
            limit.name,
            Bytes(counted).percent_of(Bytes(limit.bytes))
        );
    }
    write!(
        out,
        r#"<figure class="whole"><svg viewBox="0 0 {WIDE} 24" preserveAspectRatio="none" role="img" aria-label="{}">"#,
        text(&words)
    )?;
    let mut x = 0.0;
    for group in &bars.groups {
        let sum: Bytes = group.bars.iter().map(|bar| Bytes(bar.bytes)).sum();
        let width = sum.0 as f64 / end * WIDE;
        write!(out, r#"<rect class="g{}" x="{x:.2}" width="{width:.2}" height="24"/>"#, group.colour)?;
        x += width;
    }
    if limit > 0 {
        let at = (limit as f64 / end * WIDE).min(WIDE - 3.0);
        write!(out, r#"<rect class="limit" x="{at:.2}" width="3" height="24"/>"#)?;
    }
    write!(out, r#"</svg><figcaption>{}<ul class="legend">"#, text(&words))?;
    for group in &bars.groups {
        write!(
            out,
            r#"<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="g{}" width="10" height="10"/></svg>{}</li>"#,
            group.colour,
            text(&group.name)
        )?;
    }
    let bars = bars.groups.iter().map(|group| group.bars.len() as u64).sum();
    writeln!(out, r#"</ul></figcaption></figure><p class="hidden">{} parts follow.</p>"#, count(bars))
}
