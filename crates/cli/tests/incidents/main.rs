//! Incidents with known answers, on real libraries from Maven Central: the owner of the memory, exactly the right
//! verdicts, and the remedy typed as it is printed. The remedy must save what it promised, and the program must work
//! afterwards.
//!
//! One case of each kind is in `make test`, on one JVM; the others, and the other JVMs, are in `make test-full`.

mod agents;
mod allocators;
mod bursts;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/cgroup.rs"]
mod cgroup;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../explain/fixture.rs"]
mod fixture;
mod heaps;
mod inflaters;
mod kit;
mod lucene;
mod netty;
mod rocks;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;
mod streams;
mod threads;

/// docs/incidents.md has the cases: each test here is a row, and each row is a test that exists. Each row says
/// which remedies the test types, or, after a dash, why none.
#[test]
fn the_page_of_incidents_has_each_case() {
    let tests = stage::repository().join("crates/cli/tests");
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    let page = read(&stage::repository().join("docs/incidents.md"));
    let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit('`').next()).collect();
    for row in &rows {
        let (program, test) = row.split_once('/').expect("PROGRAM/TEST");
        let (file, name) = match test.split_once("::") {
            Some((module, name)) => (tests.join(program).join(format!("{module}.rs")), name),
            None => (tests.join(format!("{program}.rs")), test),
        };
        assert!(read(&file).contains(&format!("\nfn {name}()")), "docs/incidents.md: no test {row}");
    }
    for entry in std::fs::read_dir(tests.join("incidents")).expect("this program's files").flatten() {
        let module = entry.path().file_stem().expect("a name").to_string_lossy().into_owned();
        for test in read(&entry.path()).split("#[test]\n").skip(1) {
            let name = test.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function").0;
            let row = format!("incidents/{module}::{name}");
            assert!(module == "main" || rows.contains(&row.as_str()), "docs/incidents.md lacks {row}");
        }
    }
    for line in page.lines().filter(|line| line.ends_with("` |")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let is_said = cells.len() == 4 && !["", "–"].contains(&cells[2]);
        assert!(is_said, "docs/incidents.md: no remedy and no reason: {line}");
    }
}
