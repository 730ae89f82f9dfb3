//! smaps and maps, in which a process chooses names, up to the printed explanation.

use plimsoll_facts::snapshot::Snapshot;
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::judge;
use plimsoll_process::proc::{parse_maps, parse_rollup, parse_smaps};
use plimsoll_report::ledger_text::{Explanation, Style};
use plimsoll_report::{ledger_json, ledger_tables, ledger_text, page};

use crate::views::{is_json, is_page, is_plain, written};

pub fn run(bytes: &[u8]) {
    parse_maps(bytes, &[]);
    let rollup = parse_rollup(bytes);
    let mut vmas = parse_smaps(bytes, &[(0, 1), (0, 25)]).vmas;
    // The kernel's ranges are ordered and disjoint; readers of the snapshot rely on that.
    vmas.sort_by_key(|vma| vma.range.start);
    explained(Snapshot { vmas, rollup, ..Snapshot::default() });
}

/// The ledger of a snapshot adds up, and every output about it is well formed.
pub fn explained(snapshot: Snapshot) {
    let ledger = Ledger::of(&snapshot);
    let lines: u128 = ledger.lines.iter().map(|line| u128::from(line.resident.0)).sum();
    if ledger.rss.0 < u64::MAX {
        let sum = lines + u128::from(ledger.remainder.0);
        assert_eq!(sum, u128::from(ledger.rss.0), "lines and remainder are not RSS");
    }
    let verdicts = judge(&snapshot, &ledger);
    let explanation = Explanation { snapshot, ledger, verdicts };
    for width in [40, 80, 160] {
        is_plain(&written(|out| ledger_text::write(out, &explanation, Style { colour: false, width })));
    }
    is_plain(&written(|out| ledger_tables::maps(out, &explanation, 120)));
    is_plain(&written(|out| ledger_tables::arenas(out, &explanation)));
    let saved = written(|out| ledger_json::write(out, &explanation));
    is_json(&saved);
    match ledger_json::parse(&saved) {
        Ok(ledger) => is_page(&page::of_ledger(&ledger)),
        Err(error) => panic!("what we wrote can't be read: {error}"),
    }
    if let Err(error) = ledger_json::parse_baseline(&saved) {
        panic!("what we wrote can't be read: {error}");
    }
}
