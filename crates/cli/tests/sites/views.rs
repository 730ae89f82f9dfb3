//! Each view of the same blocks adds up to the books, and names what it can.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::harness;
use crate::harness::{PLIMSOLL, number, read_report};
use crate::stage::must;
use crate::{Tracked, adds_up, expected, fixture, native, report, scratch, stack_with};

/// The caller's peak is counted in each mode, and sites only divide it. Here one block of 2,560 is still held, so in
/// most runs no live block was sampled.
#[test]
fn sites_add_up_to_the_peak_though_almost_nothing_is_live() {
    let folder = scratch("peak");
    let program = harness::compiled("arena_burst", &folder.join("arena_burst"), &[]);
    for mode in ["sampled", "exact", "off"] {
        let segments = scratch(&format!("peak-{mode}"));
        let mut run = Command::new(PLIMSOLL);
        run.args(["run", "--sites", mode, "--report", "none", "--dir"]).arg(&segments);
        must(run.args(["--", &program, "1", "40", "end"]));
        let file = fs::read_dir(&segments).expect("a folder").next().expect("a segment").expect("its entry").path();
        for by in ["site", "caller"] {
            let folded =
                report(file.to_str().expect("UTF-8"), &["--by", by, "--measure", "peak", "--format", "folded"]);
            let value = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok());
            let sum: u64 = folded.lines().map(|line| value(line).expect(line)).sum();
            // 40 MiB of blocks, their list of pointers, and what libc holds.
            assert!((40 << 20..41 << 20).contains(&sum), "{mode}, by {by}: {sum}\n{folded}");
        }
    }
}

/// Views of one segment: each has the same sum, whatever its lines are.
#[test]
fn every_view_has_the_same_sum() {
    let (tracked, _) = Tracked::start("views", &["--sites", "exact"], Command::new(native()).arg("exceptions"));
    let total = number(&tracked.json()["total"], "live_bytes");
    for by in ["category", "caller", "site", "package", "module", "thread"] {
        let folded = tracked.report(&["--by", by, "--format", "folded"]);
        let sum: u64 = folded.lines().map(|l| l.rsplit(' ').next().expect("a number").parse::<u64>().expect(l)).sum();
        assert_eq!(sum, total, "--by {by}");
    }
    let saved = tracked.folder.join("saved.json");
    fs::write(&saved, tracked.report(&["--by", "site", "--format", "json"])).expect("written");
    let live = tracked.report(&["--by", "site", "--measure", "live"]);
    let again = report(&saved.display().to_string(), &["--by", "site", "--measure", "live"]);
    // Ages advance.
    let ageless = |text: &str| text.lines().filter(|l| !l.contains(" age ")).map(String::from).collect::<Vec<_>>();
    assert_eq!(ageless(&live), ageless(&again), "a saved report shows the same");
    let focused = tracked.report(&["--by", "site", "--focus", "^catcher"]);
    assert!(focused.contains("below /^catcher/") && focused.contains("thrower"), "{focused}");
    assert!(!focused.contains("_start"), "{focused}");
    for (format, sign) in [("html", "<html"), ("tree", "catcher")] {
        assert!(tracked.report(&["--by", "site", "--format", format]).contains(sign), "{format}");
    }
    // One page for everything: live, and of the saved report. Both have the stacks.
    for page in [tracked.report(&["--format", "html"]), report(&saved.display().to_string(), &["--format", "html"])] {
        assert!(page.contains("Memory by call stack") && page.contains("thrower"), "{page}");
    }
    tracked.end();
}

/// docs/json.md describes stacks well enough to make folded stacks from them: from a whole report, from one with a
/// table of frames, and from one with a focus.
#[test]
fn json_read_by_its_documentation_gives_the_folded_stacks() {
    const FOLD: &str = r#"
import collections, json, sys
report, folded = json.load(open(sys.argv[1])), collections.Counter()
for site in report['sites']:
    names = []
    for frame in reversed(site['frames'] if 'frames' in site else [report['frames'][place] for place in site['stack']]):
        module = frame['module'] and frame['module'].split('/')[-1]
        at = '%s+%#x' % (module, frame['offset']) if module else hex(frame['address'])
        names.append((frame['function'] or at).replace(';', ','))
    if 'main' in names:
        folded[';'.join(names[names.index('main'):])] += site['live_bytes']
for stack, amount in folded.items():
    if amount: print(stack, amount)
"#;
    let (folder, segments) = (scratch("documented"), scratch("documented-segments"));
    let program = harness::compiled("deep_stacks", &folder.join("deep_stacks"), &[]);
    let dir = segments.display().to_string();
    must(Command::new(PLIMSOLL).args(["run", "--sites", "exact", "--dir", &dir, "--", &program]));
    let below_main = ["--focus", "^main$"];
    let of = |format: &str, more: &[&str]| report(&dir, &[&["--by", "site", "--format", format], more].concat());
    // Below libc there may be frames of the allocator itself, which pictures omit.
    let is_own = |line: &&str| !line.contains("pthread_create") && !line.contains("printf");
    let lines = |text: &str| text.lines().filter(is_own).map(String::from).collect::<BTreeSet<String>>();
    let folded = lines(&of("folded", &below_main));
    assert!(folded.len() >= 4, "{folded:?}");
    let file = folder.join("report.json");
    for (more, start) in
        [(&[][..], "    {\"frames\":"), (&["--frame-table"], "    {\"stack\":"), (&below_main, "    {\"stack\":")]
    {
        let json = of("json", more);
        fs::write(&file, &json).expect("written");
        let by_python = must(Command::new("python3").args(["-c", FOLD]).arg(&file));
        assert_eq!(lines(&String::from_utf8(by_python).expect("UTF-8")), folded, "{more:?}");
        let whole = read_report(&json);
        let listed = |key: &str| whole[key].as_array().map_or(0, Vec::len);
        let written = json.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(written, listed("sites") + listed("callers"), "a site takes a line");
    }
}

/// A stripped program keeps module+offset; symbols that are given later name them.
#[test]
fn symbols_given_later_name_a_stripped_program() {
    let folder = scratch("stripped");
    let program = folder.join("bare");
    must(Command::new("strip").arg("-s").arg("-o").arg(&program).arg(native()));
    let (tracked, printed) =
        Tracked::start("stripped-run", &["--sites", "exact"], Command::new(&program).arg("exceptions"));
    let bare = tracked.json();
    adds_up(&bare);
    assert!(!bare.to_string().contains("thrower"));
    let symbols = native().display().to_string();
    let named = tracked.report(&["--by", "site", "--format", "json", "--symbols", &symbols]);
    let named = read_report(&named);
    assert_eq!(expected(&named, &printed), 2);
    let offsets = |r: &Value| -> Vec<u64> {
        let sites = r["sites"].as_array().expect("sites");
        let mut all: Vec<u64> = sites
            .iter()
            .flat_map(|s| s["frames"].as_array().expect("frames").iter().map(|f| number(f, "offset")))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(offsets(&bare), offsets(&named), "the frames are the same");
    let hint = "Frames of bare have no names: a file with symbols of the same build gives them (--symbols FILE).";
    assert!(tracked.report(&["--by", "site"]).contains(hint));
    assert!(!tracked.report(&["--by", "site", "--symbols", &symbols]).contains("have no names"));
    // A focus that can't match says why, in lists and in trees.
    for format in ["text", "tree"] {
        let focus = ["--by", "site", "--format", format, "--focus", "^catcher"];
        let (bare, named) = (tracked.report(&focus), tracked.report(&[&focus[..], &["--symbols", &symbols]].concat()));
        assert!(bare.contains("bare has no function names") && bare.contains("--symbols FILE"), "{bare}");
        assert!(!named.contains("no function names") && named.contains("thrower"), "{named}");
    }
    tracked.end();
}

/// Rules that are applied again in the report see the whole stack; the total stays.
#[test]
fn own_rules_see_deep_frames() {
    let (tracked, _) = Tracked::start("rules", &["--sites", "exact"], Command::new(native()).arg("exceptions"));
    let rules = tracked.folder.join("own.rules");
    fs::write(&rules, "category Thrown [library]: test\nnative: thrower -> Thrown\n").expect("written");
    let rules = rules.display().to_string();
    let before = tracked.json();
    let after = tracked.report(&["--by", "site", "--format", "json", "--rules", &rules]);
    let after = read_report(&after);
    adds_up(&after);
    let live = |r: &Value, name: &str| {
        let all = r["categories"].as_array().expect("categories");
        all.iter().find(|c| c["name"] == name).map_or(0, |c| number(c, "live_bytes"))
    };
    let moved = live(&after, "Thrown");
    assert_eq!(number(stack_with(&before, "thrower"), "live_bytes") > 0, moved > 300_000);
    assert_eq!(live(&before, "native"), live(&after, "native") + moved);
    assert_eq!(before["total"], after["total"]);
    assert!(tracked.report(&["--rules", &rules]).contains("Thrown"), "the table of categories has it too");
    tracked.end();
}

/// One site for both calls, as they have the same functions. The line of the larger one comes first.
#[test]
fn a_site_has_the_lines_of_all_its_calls() {
    let source = fs::read_to_string(fixture("native.cc")).expect("the fixture");
    let line_of = |text: &str| source.lines().position(|line| line.contains(text)).expect("the line") + 1;
    let lines = (line_of("keep(malloc(1000 "), line_of("keep(malloc(100))"));
    let (tracked, _) = Tracked::start("lines", &["--sites", "exact"], Command::new(native()).arg("exceptions"));
    let text = tracked.report(&["--by", "site"]);
    assert!(text.contains(&format!("thrower(int) native.cc:{}, {}  native", lines.0, lines.1)), "{text}");
    tracked.end();
}
