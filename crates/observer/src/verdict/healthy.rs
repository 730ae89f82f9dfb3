//! Nothing to do: no rule warns, and nearly all of RSS could be judged (otherwise the verdict is `unclear`). It also
//! mentions address space, which people mistake for a problem.

use super::case::Case;
use super::suspects;
use super::{Severity, Verdict, VerdictId};

pub(crate) fn verdict(case: Case<'_>, notes: usize) -> Verdict {
    let mut evidence = Vec::new();
    let space = case.address_space();
    if space.0 / 4 > case.rss().0 && !case.snapshot.smaps_refused {
        evidence.push(format!(
            "address space is {space}, RSS {}: reserved memory that is never touched costs nothing",
            case.rss()
        ));
    }
    if let Some(line) = case.ledger.lines.first() {
        evidence.push(format!(
            "the largest line is {}: {}, {:.0} % of RSS",
            line.name,
            line.resident,
            line.resident.percent_of(case.rss())
        ));
    }
    evidence.extend(suspects::block_caches(case));
    evidence.push(case.over_time());
    Verdict {
        id: VerdictId::Healthy,
        severity: Severity::Note,
        bytes: case.rss(),
        summary: match notes {
            0 => "nothing stands out".to_owned(),
            _ => "no rule warns; the notes are no problem by themselves".to_owned(),
        },
        evidence,
        remedies: Vec::new(),
    }
}
