//! The difference of two profiles as text: the sums, then the sites that are new, grew, shrank or are gone. Noise is
//! counted only.

use std::io::{self, Write};

use plimsoll_profiles::profile::{ChangeKind, FrameId, ProfileDiff, SiteChange};

use super::{amount, change, stack_text};
use crate::words;

/// Maximum number of sites of each kind that are listed without `all`.
const LISTED: usize = 15;
/// Without `all`, a site is listed only if its change exceeds this fraction of the largest change: 1 / `WORTH`.
const WORTH: u64 = 1000;
/// Without build ids on both sides, only the names of functions match sites.
const OTHER_NAMES: &str = "A site whose functions have other names in the second report, as in another build, is \
                           listed twice: as gone and as new.";
/// Frames shown of a site, innermost first.
const FRAMES: usize = 12;

pub fn write(out: &mut dyn Write, diff: &ProfileDiff, all: bool) -> io::Result<()> {
    let column = &diff.profile.columns[0];
    let (before, after) = diff.total();
    let grown = after.amount.saturating_sub(before.amount);
    if !diff.profile.title.is_empty() {
        writeln!(out, "{}", words::printable(&diff.profile.title))?;
    }
    let (from, to) = (amount(column, before.amount), amount(column, after.amount));
    writeln!(out, "{}: {from} → {to}   {}", diff.measure, change(column, grown))?;
    let largest = diff.sites.iter().map(|s| s.grown().unsigned_abs()).max().unwrap_or(0);
    for kind in [ChangeKind::New, ChangeKind::Grew, ChangeKind::Shrank, ChangeKind::Gone] {
        let sites: Vec<&SiteChange> = diff.sites.iter().filter(|s| s.change == kind).collect();
        if sites.is_empty() {
            continue;
        }
        let sum = sites.iter().fold(0i64, |sum, s| sum.saturating_add(s.grown()));
        let noun = if kind == ChangeKind::New { "stack" } else { "site" };
        writeln!(out, "\n{}: {}, {}", kind.name(), words::counted(sites.len() as u64, noun), change(column, sum))?;
        let worth = sites.iter().take_while(|s| s.grown().unsigned_abs() > largest / WORTH).count();
        let shown = if all { sites.len() } else { worth.min(LISTED) };
        for site in &sites[..shown] {
            one(out, diff, site, all)?;
        }
        if shown < sites.len() {
            let rest = sites[shown..].iter().fold(0i64, |sum, s| sum.saturating_add(s.grown()));
            writeln!(out, "{:>12}  {} more (--all lists them)", change(column, rest), sites.len() - shown)?;
        }
    }
    let of = |kind: ChangeKind| diff.sites.iter().filter(move |s| s.change == kind);
    if of(ChangeKind::New).count().min(of(ChangeKind::Gone).count()) > 0 {
        writeln!(out, "\n{OTHER_NAMES}")?;
    }
    let (noise, same) = (of(ChangeKind::Noise).count(), of(ChangeKind::Same).count());
    if noise > 0 {
        let sum = of(ChangeKind::Noise).fold(0i64, |sum, s| sum.saturating_add(s.grown()));
        let why = match diff.runs {
            Some([before, after]) => format!("the ranges of {before} and {after} runs overlap"),
            None => {
                format!("within {:.1} standard deviations of sampling and of blocks that come and go", diff.deviations)
            }
        };
        let counted = words::counted(noise as u64, "site");
        writeln!(out, "\nnoise: {counted}, {} together: tiny, or {why}", change(column, sum))?;
    }
    if same > 0 {
        writeln!(out, "{}same: {}", if noise > 0 { "" } else { "\n" }, words::counted(same as u64, "site"))?;
    }
    for gap in &diff.profile.gaps {
        writeln!(out, "gap: {}: {}", words::printable(&gap.reason), words::printable(&gap.effect))?;
    }
    Ok(())
}

fn one(out: &mut dyn Write, diff: &ProfileDiff, site: &SiteChange, all: bool) -> io::Result<()> {
    let (profile, column) = (&diff.profile, &diff.profile.columns[0]);
    let noise =
        if site.bound > 0 { format!("  noise up to {}", super::magnitude(column, site.bound)) } else { String::new() };
    let from = match site.change {
        ChangeKind::New | ChangeKind::Gone => String::new(),
        _ => format!("  {} → {}", amount(column, site.before.amount), amount(column, site.after.amount)),
    };
    let frames = profile.frames_of(site.stack);
    write!(out, "{:>12}{from}{noise}", change(column, site.grown()))?;
    let function = |id: &FrameId| profile.function_at(profile.function_of(*id));
    if let Some(what) = frames.first().map(function).filter(|f| f.is_no_stack()) {
        return writeln!(out, "  {}", words::cut(&what.name, 60));
    }
    writeln!(out)?;
    let shown = if all { frames.len() } else { frames.len().min(FRAMES) };
    for text in stack_text(profile, site.stack).iter().take(shown) {
        writeln!(out, "{:14}{}", "", words::cut(text, super::text::WIDTH - 14))?;
    }
    if shown < frames.len() {
        writeln!(out, "{:14}… {} further out", "", words::counted((frames.len() - shown) as u64, "frame"))?;
    }
    Ok(())
}
