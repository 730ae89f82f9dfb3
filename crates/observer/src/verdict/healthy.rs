//! Nothing to do: no rule warns, and nearly all of RSS could be judged (otherwise the verdict is `unclear`). It also
//! mentions address space, which people mistake for a problem.

use super::case::Case;
use super::suspects;
use super::{Severity, Verdict, VerdictId};
use crate::ledger::{Line, LineId};
use plimsoll_facts::units::Bytes;

/// Percentage of RSS above which the sentence names the largest holder.
const MUCH: f64 = 25.0;

pub(crate) fn verdict(case: Case<'_>, notes: usize) -> Verdict {
    let mut evidence = Vec::new();
    let space = case.address_space();
    if space.0 / 4 > case.rss().0 && !case.snapshot.smaps_refused {
        evidence.push(format!(
            "address space is {space}, RSS {}: reserved memory that is never touched costs nothing",
            case.rss()
        ));
    }
    let largest = case.ledger.lines.first().map(|line| {
        let (name, resident) = holder(line, case.rss());
        let share = resident.percent_of(case.rss());
        (format!("largest: {name}, {resident}, {share:.0} % of RSS"), share)
    });
    // A cache has an owner and a bound: it says more than the line that it lies in.
    let cache = suspects::block_cache(case).filter(|(used, _)| used.percent_of(case.rss()) > MUCH);
    let cache = cache.map(|(used, capacity)| {
        format!("RocksDB's block cache holds {used} of its {capacity}, {:.0} % of RSS", used.percent_of(case.rss()))
    });
    let (in_sentence, beside) = match largest {
        Some((text, share)) if share > MUCH => (Some(text), None),
        other => (None, other.map(|(text, _)| text)),
    };
    evidence.extend(beside);
    evidence.extend(suspects::block_caches(case));
    evidence.extend(case.over_time());
    let state = match notes {
        0 => "nothing stands out",
        _ => "no rule warns; see the notes below",
    };
    Verdict {
        id: VerdictId::Healthy,
        severity: Severity::Note,
        bytes: case.rss(),
        summary: [Some(state.to_owned()), in_sentence, cache].into_iter().flatten().collect::<Vec<_>>().join("; "),
        evidence,
        remedies: Vec::new(),
    }
}

/// What to call the line, and its bytes. For `other-allocator`, this is its largest part if that part is large enough,
/// such as `V8: old objects`.
fn holder(line: &Line, rss: Bytes) -> (String, Bytes) {
    let is_much = |part: &&Line| line.id == LineId::OtherAllocator && part.resident.percent_of(rss) > MUCH;
    match line.children.first().filter(is_much) {
        Some(part) => (part.name.clone(), part.resident),
        None => (line.label(), line.resident),
    }
}
