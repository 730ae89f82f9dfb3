//! docs/report-lines.md defines every line by its id, and no line that isn't.

use plimsoll_observer::ledger::LineId;

#[test]
fn every_line_is_defined_in_the_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report-lines.md");
    let text = std::fs::read_to_string(path).expect("docs/report-lines.md");
    let defined: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ").map(|(id, _)| id)).collect();
    let ids: Vec<&str> = LineId::ALL.iter().map(|line| line.id()).collect();
    for id in &ids {
        assert!(defined.contains(id), "{id} is not defined");
    }
    for id in defined {
        assert!(ids.contains(&id), "{id} is defined and does not exist");
    }
}
