//! Sites against what the fixtures report: the right leaf, the right caller, the right number of blocks and bytes;
//! every view of them adds up to the books. Over 800 lines: the views share their fixtures.

mod harness;
#[allow(dead_code)]
#[path = "subjects/stage.rs"]
mod stage;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use harness::{PLIMSOLL, number, read_report};
use stage::{must, repository};

fn fixture(name: &str) -> PathBuf {
    repository().join("fixtures/sites").join(name)
}

/// Removes the map of generated code that a fixture leaves in /tmp.
fn tidy(pid: u32) {
    let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
}

/// A private folder for one test.
fn scratch(name: &str) -> PathBuf {
    harness::scratch("sites", name)
}

fn native() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = scratch("build").join("native");
        must(Command::new("g++").args(["-O2", "-g", "-o"]).arg(&program).arg(fixture("native.cc")));
        program
    })
}

/// A tracked program that has printed `ready`.
struct Tracked {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Tracked {
    fn start(name: &str, mode: &[&str], program: &mut Command) -> (Tracked, Vec<String>) {
        let folder = scratch(name);
        let mut command = Command::new(PLIMSOLL);
        command.arg("run").args(mode).arg("--dir").arg(&folder).arg("--").arg(program.get_program());
        // Node leaves a log in its working directory.
        command.args(program.get_args()).current_dir(scratch(&format!("{name}-runs")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("plimsoll starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut tracked = Tracked { child, input, output: BufReader::new(output), folder };
        let printed = tracked.until_ready();
        (tracked, printed)
    }

    fn until_ready(&mut self) -> Vec<String> {
        let mut printed = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("its output");
            assert!(read > 0, "it ended before it was ready: {printed:?}");
            match line.trim() {
                "ready" => return printed,
                line => printed.push(line.to_string()),
            }
        }
    }

    fn resume(&mut self) {
        self.input.write_all(b"\n").expect("it reads");
    }

    fn report(&self, arguments: &[&str]) -> String {
        report(&self.child.id().to_string(), arguments)
    }

    fn json(&self) -> Value {
        read_report(&self.report(&["--by", "site", "--format", "json"]))
    }

    fn end(mut self) -> PathBuf {
        self.resume();
        assert!(self.child.wait().expect("it ends").success());
        self.folder
    }
}

fn report(target: &str, arguments: &[&str]) -> String {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sites-cache");
    let mut command = Command::new(PLIMSOLL);
    let output =
        command.args(["report", target]).args(arguments).env("XDG_CACHE_HOME", cache).output().expect("report");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

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

/// Function names of a site, innermost first, without parameters.
fn functions(site: &Value) -> Vec<String> {
    let frames = site["frames"].as_array().expect("frames");
    let name = |f: &Value| f["function"].as_str().unwrap_or("?").split('(').next().unwrap_or("").trim().to_string();
    frames.iter().map(name).collect()
}

/// Σ sites = total and, for each category, = that category.
fn adds_up(report: &Value) {
    let sites = report["sites"].as_array().expect("sites");
    for key in [
        "live_bytes",
        "live_count",
        "requested_bytes",
        "cumulative_bytes",
        "cumulative_count",
        "reserved_bytes",
        "committed_bytes",
    ] {
        let all: u64 = sites.iter().map(|s| number(s, key)).sum();
        assert_eq!(all, number(&report["total"], key), "Σ sites of {key}");
        for category in report["categories"].as_array().expect("categories") {
            let of: u64 = sites.iter().filter(|s| s["category"] == category["name"]).map(|s| number(s, key)).sum();
            assert_eq!(of, number(category, key), "Σ sites of {key} in {}", category["name"]);
        }
    }
}

/// A line of the fixture, `expect LEAF COUNT REQUESTED`, against the sites whose own frames begin with LEAF.
fn expected(report: &Value, printed: &[String]) -> usize {
    let mut compared = 0;
    for line in printed {
        let words: Vec<&str> = line.split(' ').collect();
        let ["expect", leaf, count, bytes] = words[..] else { continue };
        let of = |site: &&Value| is_leaf(site, leaf);
        let sites: Vec<&Value> = report["sites"].as_array().expect("sites").iter().filter(of).collect();
        let sum = |key: &str| sites.iter().map(|s| number(s, key)).sum::<u64>();
        let names: Vec<Vec<String>> = report["sites"].as_array().expect("sites").iter().map(functions).collect();
        assert_eq!(
            (sum("live_count"), sum("requested_bytes")),
            (count.parse().expect("a count"), bytes.parse().expect("bytes")),
            "{line}; there are {names:#?}"
        );
        compared += 1;
    }
    compared
}

/// Whether this is the first function that does not belong to the allocator.
fn is_leaf(site: &Value, leaf: &str) -> bool {
    let own = ["operator new", "__cxa_allocate_exception", "alloc::", "<alloc::", "__rust", "__rdl", "std::"];
    let first = functions(site).into_iter().find(|f| !own.iter().any(|own| f.starts_with(own)));
    first.is_some_and(|f| f == leaf || f.split("::").last() == Some(leaf) || f.starts_with(&format!("{leaf} ")))
}

fn tracked_fixture(name: &str) -> (Value, Vec<String>, PathBuf) {
    let (tracked, printed) = Tracked::start(name, &["--sites", "exact"], Command::new(native()).arg(name));
    let live = tracked.json();
    adds_up(&live);
    assert!(expected(&live, &printed) > 0, "{name} printed {printed:?}");
    let pid = tracked.child.id();
    let folder = tracked.end();
    // The same after the end of the process.
    let dead = read_report(&report(&folder.display().to_string(), &["--by", "site", "--format", "json"]));
    adds_up(&dead);
    expected(&dead, &printed);
    tidy(pid);
    (live, printed, folder)
}

fn stack_with<'a>(report: &'a Value, function: &str) -> &'a Value {
    let sites = report["sites"].as_array().expect("sites");
    let found = sites.iter().find(|s| functions(s).iter().any(|f| f == function));
    found.unwrap_or_else(|| panic!("no site with {function}"))
}

/// The stack has these functions in this order, from the innermost outwards, perhaps with others in between.
fn has_in_order(site: &Value, order: &[&str]) {
    let all = functions(site);
    let mut rest = all.iter();
    for name in order {
        assert!(rest.any(|f| f == name), "{name} of {order:?} is missing in {all:?}");
    }
}

#[test]
fn exceptions_pass_through_tracked_frames() {
    let (report, ..) = tracked_fixture("exceptions");
    has_in_order(stack_with(&report, "thrower"), &["thrower", "between", "catcher", "exceptions", "main"]);
    // The exceptions themselves were allocated and freed again.
    let sites = report["sites"].as_array().expect("sites");
    let thrown = sites.iter().find(|s| functions(s).iter().any(|f| f == "__cxa_allocate_exception")).expect("a throw");
    has_in_order(thrown, &["__cxa_allocate_exception", "thrower", "between"]);
    assert_eq!((number(thrown, "live_count"), number(thrown, "cumulative_count")), (0, 100));
}

#[test]
fn a_recursion_of_ten_thousand_frames_is_cut_and_says_so() {
    let (report, ..) = tracked_fixture("recursion");
    let site = stack_with(&report, "deeper");
    assert_eq!(site["truncated"], true);
    let names = functions(site);
    assert!(names.len() >= 64 && names.iter().all(|f| f == "deeper"), "{} frames", names.len());
}

#[test]
fn a_handler_on_a_stack_of_its_own_shows_what_it_interrupted() {
    let (report, ..) = tracked_fixture("alternate");
    let site = stack_with(&report, "in_handler");
    has_in_order(site, &["in_handler", "__restore_rt", "interrupted", "alternate", "main"]);
}

#[test]
fn coroutines_keep_their_own_stacks_apart() {
    let (report, ..) = tracked_fixture("coroutines");
    has_in_order(stack_with(&report, "first_leaf"), &["first_leaf", "first_body"]);
    has_in_order(stack_with(&report, "second_leaf"), &["second_leaf", "second_body"]);
    for (leaf, other) in [("first_leaf", "second_body"), ("second_leaf", "first_body")] {
        assert!(!functions(stack_with(&report, leaf)).iter().any(|f| f == other), "{leaf} below {other}");
    }
}

#[test]
fn generated_code_has_its_name_and_code_at_a_reused_address_has_both() {
    let (report, ..) = tracked_fixture("jit");
    has_in_order(stack_with(&report, "jit_stays"), &["jit_stays", "call_jitted", "jit", "main"]);
    let frame = |s: &Value| s["frames"][0]["kind"].as_str().map(String::from);
    assert_eq!(frame(stack_with(&report, "jit_stays")).as_deref(), Some("jit"));
    has_in_order(stack_with(&report, "one of: jit_round_1 | jit_round_0"), &["call_jitted", "main"]);
}

#[test]
fn calls_of_mmap_are_counted_by_stack() {
    let (tracked, printed) = Tracked::start("mappings", &[], Command::new(native()).arg("mappings"));
    let report = tracked.json();
    adds_up(&report);
    let mut compared = 0;
    for line in &printed {
        let words: Vec<&str> = line.split(' ').collect();
        let ["mapped", leaf, count, bytes] = words[..] else { continue };
        let site = stack_with(&report, leaf);
        has_in_order(site, &[leaf, "mappings", "main"]);
        let found = (number(site, "mapped_count").to_string(), number(site, "mapped_bytes").to_string());
        assert_eq!(found, (count.to_string(), bytes.to_string()), "{leaf}");
        compared += 1;
    }
    assert_eq!(compared, 2);
    // A range that was mapped over is not counted twice: 7 + 5 calls, 7 MiB.
    let committed = |leaf: &str| number(stack_with(&report, leaf), "committed_bytes");
    assert_eq!(committed("map_here") + committed("map_again"), 7 << 20);
    // The start-up flame graph: no perf, no root.
    let svg = tracked.report(&["--by", "site", "--format", "svg", "--measure", "mapped", "--weight", "calls"]);
    assert!(svg.contains("<svg") && svg.contains("map_here") && svg.contains("map_again"), "{svg}");
    let folded = tracked.report(&["--by", "site", "--format", "folded", "--measure", "mapped", "--weight", "calls"]);
    let line = folded.lines().find(|l| l.contains("map_again")).expect("its line");
    assert!(line.ends_with(" 5") && line.contains("main;mappings;map_again"), "{line}");
    tracked.end();
}

/// Between two live reports one site leaks, and its neighbours work as before.
fn leak(name: &str, mode: &[&str]) {
    let (mut tracked, _) = Tracked::start(name, mode, Command::new(native()).arg("leak"));
    let before = tracked.folder.join("before.json");
    fs::write(&before, tracked.report(&["--by", "site", "--format", "json"])).expect("written");
    // The frames of this one have no names, and only its name shows what `xmalloc` does.
    let unnamed = tracked.folder.join("unnamed.json");
    fs::write(&unnamed, tracked.report(&["--format", "json"])).expect("written");
    tracked.resume();
    let printed = tracked.until_ready();
    let report = tracked.json();
    adds_up(&report);
    if mode.contains(&"exact") {
        assert_eq!(expected(&report, &printed), 1);
    }
    // Either mode counts the sum; samples only estimate its division among sites.
    let tree = tracked.report(&["--by", "site", "--format", "tree"]);
    let whole = tree.lines().find(|line| line.starts_with("live: ")).expect("the sum");
    assert!(!whole.contains('±'), "{whole}");
    assert_eq!(tree.contains('±'), !mode.contains(&"exact"), "{tree}");
    let pid = tracked.child.id().to_string();
    let diff_of = |before: &Path, arguments: &[&str]| {
        let mut command = Command::new(PLIMSOLL);
        let output = command.arg("diff").arg(before).arg(&pid).args(arguments).output().expect("diff");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    for from in [&before, &unnamed] {
        let changes = read_report(&diff_of(from, &["--by", "site", "--format", "json"]));
        let grew: Vec<Vec<String>> = changes["sites"]
            .as_array()
            .expect("sites")
            .iter()
            .filter(|s| ["new", "grew"].contains(&s["verdict"].as_str().unwrap_or("")))
            .map(functions)
            .collect();
        assert_eq!(grew.len(), 1, "{name}, {from:?}: {grew:?}");
        assert_eq!(grew[0][..2], ["leaks", "serve"], "{name}, {from:?}");
        let change =
            changes["sites"].as_array().expect("sites").iter().find(|s| functions(s)[0] == "leaks").expect("it");
        let bytes = change["change"].as_i64().expect("bytes");
        // 50,000 blocks of 300 bytes; glibc's usable size is 312 less the trailer.
        assert!((15_000_000..16_000_000).contains(&bytes), "{name}, {from:?}: {bytes}");
    }
    let diff = |arguments: &[&str]| diff_of(&before, arguments);
    let text = diff(&["--by", "site"]);
    assert!(text.contains("grew: 1 site") || text.contains("new: 1 stack"), "{text}");
    let svg = diff(&["--by", "site", "--format", "svg"]);
    assert!(svg.contains("<svg") && svg.contains("leaks"), "{svg}");
    tracked.end();
}

#[test]
fn a_leak_is_what_grew_between_two_reports_exact() {
    leak("leak-exact", &["--sites", "exact"]);
}

#[test]
fn a_leak_is_what_grew_between_two_reports_sampled() {
    leak("leak-sampled", &["--sites", "sampled"]);
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

fn other_language(name: &str, program: &mut Command, callers: &[&str]) -> Value {
    let (tracked, printed) = Tracked::start(name, &["--sites", "exact"], program);
    let report = tracked.json();
    adds_up(&report);
    assert_eq!(expected(&report, &printed), 1, "{name} printed {printed:?}");
    let leaf = printed[0].split(' ').nth(1).expect("a leaf").to_string();
    let sites = report["sites"].as_array().expect("sites");
    let biggest = sites.iter().filter(|s| is_leaf(s, &leaf)).max_by_key(|s| number(s, "live_bytes")).expect("a site");
    has_in_order(biggest, callers);
    let pid = tracked.child.id();
    tracked.end();
    tidy(pid);
    report
}

#[test]
fn a_trait_object_of_rust_has_its_callers() {
    let program = scratch("rust").join("blocks");
    must(Command::new("rustc").args(["-g", "-O", "-o"]).arg(&program).arg(fixture("blocks.rs")));
    other_language(
        "rust-run",
        &mut Command::new(&program),
        &["<blocks::Plain as blocks::Maker>::make", "blocks::main"],
    );
}

#[test]
fn c_code_called_by_go_has_its_goroutines_callers() {
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"].into_iter().find(|go| Path::new(go).exists());
    let go = go.expect("go (.ci/setup)");
    let folder = scratch("go");
    let program = folder.join("main");
    must(
        Command::new(go)
            .args(["build", "-o"])
            .arg(&program)
            .arg(fixture("main.go"))
            .env("GOCACHE", folder.join("cache"))
            .env("CGO_ENABLED", "1")
            .env("GOFLAGS", "-mod=mod"),
    );
    // From C on the thread's stack back to the goroutine's own, and out to its start.
    let callers = ["c_leaf", "c_caller", "runtime.cgocall", "main.inner", "main.outer"];
    let report = other_language("go-run", &mut Command::new(&program), &callers);
    let mut ends = Vec::new();
    for site in report["sites"].as_array().expect("sites").iter().filter(|s| is_leaf(s, "c_leaf")) {
        has_in_order(site, &callers);
        has_in_order(site, &["main.outer", "runtime.goexit"]);
        assert_ne!(site["truncated"], true, "{site}");
        let main = functions(site).iter().any(|f| f == "main.main");
        ends.push((main, number(site, "live_count")));
    }
    let blocks = |of: bool| ends.iter().filter(|(main, _)| *main == of).map(|(_, n)| n).sum::<u64>();
    assert_eq!((blocks(true), blocks(false)), (40, 80), "by main's goroutine, and by others: {ends:?}");
}

#[test]
#[ignore = "full: a second case of node"]
fn a_node_addon_through_v8() {
    // The headers come with node, or with Debian's libnode-dev (.ci/setup).
    let prefix = must(Command::new("node").args(["-p", "require('path').resolve(process.execPath, '../..')"]));
    let own = Path::new(String::from_utf8_lossy(&prefix).trim()).join("include/node");
    let headers = if own.join("node_api.h").exists() { own } else { PathBuf::from("/usr/include/node") };
    let addon = scratch("node").join("addon.node");
    let mut cc = Command::new("gcc");
    must(cc.args(["-O2", "-g", "-shared", "-fPIC", "-I"]).arg(headers).arg("-o").arg(&addon).arg(fixture("addon.c")));
    let mut node = Command::new("node");
    node.args(["--perf-basic-prof", "--interpreted-frames-native-stack"]).arg(fixture("addon.js")).arg(&addon);
    let report = other_language("node-run", &mut node, &["addon_leaf", "make", "Builtins_JSEntry", "node::Start"]);
    for site in report["sites"].as_array().expect("sites").iter().filter(|s| is_leaf(s, "addon_leaf")) {
        assert_eq!((named(site, "orderFromAddon"), &site["truncated"] == true), (1, false), "{site}");
    }
}

/// How often a stack has a JavaScript function by name: `JS:~name file:1:2`, `JS:*name …`.
fn named(site: &Value, function: &str) -> usize {
    let is = |f: &String| {
        f.starts_with("JS:")
            && f.split(' ').next().is_some_and(|f| f[3..].trim_start_matches(['~', '^', '*', '+']) == function)
    };
    functions(site).iter().filter(|f| is(f)).count()
}

/// Through V8's builtins, the code that it generated and its builtins again, to the outermost frame.
#[test]
fn buffers_of_node_have_javascript_callers() {
    let script = fixture("buffers.js");
    let cases: [(&str, &[&str]); 3] = [
        ("node-basic", &["--perf-basic-prof", "--interpreted-frames-native-stack"]),
        ("node-jitdump", &["--perf-prof", "--interpreted-frames-native-stack"]),
        ("node-plain", &[]),
    ];
    for (name, options) in cases {
        let mut node = Command::new("node");
        node.args(options).arg(&script);
        let (tracked, printed) = Tracked::start(name, &["--sites", "exact"], &mut node);
        let report = tracked.json();
        adds_up(&report);
        let all = report["sites"].as_array().expect("sites");
        let from_script = |s: &&Value| functions(s).iter().any(|f| f.starts_with("Builtins_"));
        let big = |s: &&Value| number(s, "requested_bytes") >= 1_000_000 && from_script(s);
        assert!(all.iter().filter(big).count() >= 2, "{name}");
        for site in all.iter().filter(big) {
            assert_ne!(site["truncated"], true, "{name}: {site}");
            has_in_order(site, &["Builtins_JSEntry", "node::Start", "_start"]);
        }
        for line in &printed {
            let words: Vec<&str> = line.split(' ').collect();
            let ["expect", names, count, bytes] = words[..] else { panic!("{line}") };
            let [count, bytes] = [count, bytes].map(|n| n.parse::<u64>().expect("a number"));
            if options.is_empty() {
                continue;
            }
            let one_of = |s: &&Value| number(s, "live_count") > 0 && names.split(',').any(|name| named(s, name) > 0);
            let sites: Vec<&Value> = all.iter().filter(one_of).collect();
            // V8's own blocks for such calls (feedback, compiled code) are smaller.
            let own = sites.iter().filter(|s| number(s, "requested_bytes") / number(s, "live_count") == bytes / count);
            let sum = |key: &str| own.clone().map(|s| number(s, key)).sum::<u64>();
            assert_eq!((sum("live_count"), sum("requested_bytes")), (count, bytes), "{name}: {line}");
            for site in own {
                assert_ne!(site["truncated"], true, "{name}: {site}");
                has_in_order(site, &["Builtins_JSEntry", "node::Start", "_start"]);
                assert!(
                    names != "priceList,countDown" || named(site, "countDown") == 11,
                    "{name}: {:?}",
                    functions(site)
                );
            }
        }
        // Without a map, code has no name, and none is invented.
        let made = all.iter().flat_map(|s| s["frames"].as_array().expect("frames")).filter(|f| f["kind"] == "jit");
        let (nameless, named): (Vec<&Value>, Vec<&Value>) = made.partition(|f| f["function"].is_null());
        println!("{name}: {} frames of made code with names, {} without", named.len(), nameless.len());
        let expected = if options.is_empty() { named.is_empty() } else { named.len() > nameless.len() };
        assert!(expected, "{name}");
        let pid = tracked.child.id();
        tracked.end();
        tidy(pid);
    }
}

#[test]
fn arrays_of_numpy_have_the_interpreter_as_a_caller() {
    let (tracked, printed) =
        Tracked::start("numpy-run", &["--sites", "exact"], Command::new("/usr/bin/python3").arg(fixture("arrays.py")));
    let report = tracked.json();
    adds_up(&report);
    assert!(printed[0].starts_with("expect numpy 80"), "{printed:?}");
    let in_numpy = |s: &&Value| {
        let module = s["frames"][0]["module"].as_str().unwrap_or("");
        module.contains("multiarray") && number(s, "live_count") > 0
    };
    let arrays: Vec<&Value> = report["sites"].as_array().expect("sites").iter().filter(in_numpy).collect();
    // The interpreter's code for one line changes while it runs, so the line may have several return addresses.
    let of_arrays = |s: &&&Value| number(s, "requested_bytes") / number(s, "live_count") == 100_000;
    let big: Vec<&&Value> = arrays.iter().filter(of_arrays).collect();
    let sum = |key: &str| big.iter().map(|s| number(s, key)).sum::<u64>();
    assert_eq!((sum("live_count"), sum("requested_bytes")), (80, 8_000_000), "{arrays:#?}");
    assert!(big.iter().all(|s| functions(s).iter().any(|f| f == "_PyEval_EvalFrameDefault")));
    tracked.end();
}

/// Only a scan of the page map (Linux 6.7) passes over empty reservations quickly, so older kernels' reports lack such
/// pages.
#[test]
fn pages_stay_resident_when_they_become_inaccessible() {
    let program = scratch("protected-build").join("protected");
    must(Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&program).arg(fixture("protected.c")));
    let (tracked, _) = Tracked::start("protected", &["--sites", "exact"], &mut Command::new(&program));
    let report = tracked.json();
    adds_up(&report);
    let map = stack_with(&report, "map_pages");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let version: Vec<u32> = release.split(['.', '-']).take(2).filter_map(|word| word.trim().parse().ok()).collect();
    let resident = if version >= vec![6, 7] { 16 << 20 } else { 12 << 20 };
    assert_eq!((number(map, "committed_bytes"), number(map, "resident_bytes")), (12 << 20, resident));
    assert_eq!(number(map, "held_bytes"), resident);
    tracked.end();
}

/// The program maps 200 MiB and touches one page of it, beside 20 MiB of blocks; then 300 MiB more beside 10 MiB more.
/// Committed bytes would put the mapping on top.
#[test]
fn a_mapping_that_nobody_touched_stands_below_blocks() {
    let program = scratch("untouched-build").join("untouched");
    must(
        Command::new("gcc")
            .args(["-O1", "-g", "-fno-optimize-sibling-calls", "-o"])
            .arg(&program)
            .arg(fixture("untouched.c")),
    );
    let (mut tracked, _) = Tracked::start("untouched", &["--sites", "exact"], &mut Command::new(&program));
    let before = tracked.folder.join("before.json");
    fs::write(&before, tracked.report(&["--by", "site", "--format", "json"])).expect("written");
    let report = tracked.json();
    adds_up(&report);
    let first = report["sites"][0].as_object().expect("a site");
    assert!(is_leaf(&report["sites"][0], "take_blocks"), "{first:?}");
    let (map, blocks) = (stack_with(&report, "map_much"), stack_with(&report, "take_blocks"));
    assert_eq!(
        (number(map, "committed_bytes"), number(map, "resident_bytes"), number(map, "held_bytes")),
        (200 << 20, 4096, 4096)
    );
    assert_eq!(number(blocks, "held_bytes"), number(blocks, "live_bytes"));
    let first =
        |text: &str| text.lines().find_map(|line| ["take_blocks", "map_much"].into_iter().find(|f| line.contains(f)));
    let text = tracked.report(&["--by", "site"]);
    assert_eq!(first(&text), Some("take_blocks"), "{text}");
    assert!(!text.contains("not known"), "{text}");
    let legend = "`held`: live blocks, and resident mappings without files; `share`: of all `held`; ";
    assert!(text.contains(legend), "{text}");

    tracked.resume();
    tracked.until_ready();
    let diff = |after: &Path, arguments: &[&str]| {
        let output = Command::new(PLIMSOLL).arg("diff").arg(&before).arg(after).args(arguments).output().expect("diff");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let pid = PathBuf::from(tracked.child.id().to_string());
    let sites = read_report(&diff(&pid, &["--by", "site", "--format", "json"]));
    let changed = sites["sites"].as_array().expect("sites");
    assert!(is_leaf(&changed[0], "take_blocks") && sites["measure"] == "held", "{sites:#}");
    let of_map = changed.iter().find(|site| is_leaf(site, "map_much"));
    assert!(of_map.is_none_or(|site| site["change"] == 4096), "{of_map:?}");
    let of_blocks = changed[0]["change"].as_i64().expect("bytes");
    assert!((10 << 20..(10 << 20) + (64 << 10)).contains(&of_blocks), "{of_blocks}");
    let by_caller = diff(&pid, &["--by", "caller"]);
    assert_eq!(first(&by_caller), Some("take_blocks"), "{by_caller}");
    assert!(by_caller.contains(" resident "), "{by_caller}");

    // The process has ended: what was resident is not known.
    let folder = tracked.folder.clone();
    tracked.child.kill().expect("it runs");
    tracked.child.wait().expect("it ends");
    let dead = read_report(&report_of(&folder, &["--by", "site", "--format", "json"]));
    adds_up(&dead);
    assert!(is_leaf(&dead["sites"][0], "take_blocks"), "{}", dead["sites"][0]);
    let mapped: Vec<&Value> =
        dead["sites"].as_array().expect("sites").iter().filter(|s| is_leaf(s, "map_much")).collect();
    let committed: Vec<u64> = mapped.iter().map(|site| number(site, "committed_bytes") >> 20).collect();
    assert_eq!(committed.iter().sum::<u64>(), 500, "{committed:?}");
    assert!(mapped.iter().all(|site| site["held_bytes"].is_null() && site["resident_bytes"].is_null()), "{mapped:?}");
    let callers = report_of(&folder, &["--by", "caller"]);
    assert!(callers.contains("   mapped: 300 MiB committed of 300 MiB reserved\n"), "{callers}");
    let text = report_of(&folder, &["--by", "site"]);
    assert_eq!(first(&text), Some("take_blocks"), "{text}");
    assert!(text.contains("was resident is not known: the process has ended."), "{text}");
    let of_map = text.lines().find(|line| line.contains(" 500 MiB ")).expect("one line for both calls");
    assert!(of_map.contains("   - ") && !of_map.contains('%'), "{text}");
    let text = diff(&folder, &["--by", "site"]);
    assert!(text.contains("\nlive: 20") && text.contains("+10.0 MiB\n"), "{text}");
    assert!(
        text.contains("+300 MiB\n") && text.contains("a process has ended. To list them: --measure committed"),
        "{text}"
    );
    let by_caller = diff(&folder, &["--by", "caller"]);
    assert_eq!(first(&by_caller), Some("take_blocks"), "{by_caller}");
}

/// The tracker learns of it only when another object lies there; here, a block of the program does.
#[test]
fn an_unloaded_library_is_no_longer_a_loaded_library() {
    const LOAD: &str = "import _ctypes, ctypes, sys
for round in range(3):
  library = ctypes.CDLL(sys.argv[1])
  library.plugin_take.restype = ctypes.c_void_p
  library.plugin_take(2 << 20)
  _ctypes.dlclose(library._handle)
maps = open('/proc/self/maps').read()
print('still mapped' if 'libplugin' in maps else 'gone')
print('ready', flush=True)
sys.stdin.readline()";
    let library = scratch("unloaded-build").join("libplugin.so");
    let source = repository().join("fixtures/c/libplugin.c");
    must(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source));
    let mut program = Command::new("/usr/bin/python3");
    let (tracked, printed) =
        Tracked::start("unloaded", &["--sites", "exact"], program.args(["-c", LOAD]).arg(&library));
    assert_eq!(printed, ["gone"]);
    let report = tracked.json();
    let modules = report["modules"].as_array().expect("modules");
    let is_loaded = |module: &Value| module["loaded"].as_bool().expect("whether it is loaded");
    let of_plugin = |module: &&Value| module["path"].as_str().is_some_and(|path| path.ends_with("libplugin.so"));
    let states: Vec<bool> = modules.iter().filter(of_plugin).map(is_loaded).collect();
    assert!(!states.is_empty() && states.iter().all(|loaded| !loaded), "{modules:?}");
    let length = |module: &Value| number(module, "end") - number(module, "start");
    let loaded: u64 = modules.iter().filter(|module| is_loaded(module)).map(length).sum();
    let categories = report["categories"].as_array().expect("categories");
    let libraries = categories.iter().find(|of| of["name"] == "Loaded Libraries").expect("a category");
    assert_eq!(number(libraries, "committed_bytes"), loaded, "{libraries}");
    adds_up(&report);
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

/// The page map of such a mapping is read by a scan, whose cost is that of its resident pages.
#[test]
fn what_is_resident_of_five_gib_is_known() {
    const MAP: &str = "import mmap, sys
p = mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
p.madvise(mmap.MADV_NOHUGEPAGE)
for at in (0, 3 << 30, (5 << 30) - 4096): p[at] = 1
print('ready', flush=True)
sys.stdin.readline()";
    let (tracked, _) = Tracked::start("five-gib", &[], Command::new("/usr/bin/python3").args(["-c", MAP]));
    let report = tracked.json();
    let is_map = |site: &&Value| number(site, "committed_bytes") >= 5 << 30;
    let sites = report["sites"].as_array().expect("sites");
    let map = sites.iter().find(is_map).unwrap_or_else(|| panic!("{sites:?}"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let version: Vec<u32> = release.split('.').take(2).filter_map(|part| part.trim().parse().ok()).collect();
    if version < vec![6, 7] {
        assert!(
            map["resident_bytes"].is_null() && report["gaps"].to_string().contains("more than 4.00 GiB"),
            "{report}"
        );
        return;
    }
    assert_eq!(number(map, "resident_bytes"), 3 * 4096, "{map}\n{}", report["gaps"]);
    tracked.end();
}

/// A program is called by the link that was started (redis-server, a link to redis-check-rdb), unless the link only
/// shortens the file's name (python3, a link to python3.11).
#[test]
fn a_program_is_called_as_it_was_started() {
    for (link, expected) in [("server", "server"), ("nat", "native")] {
        let name = format!("called-{link}");
        let path = scratch(&format!("{name}-bin")).join(link);
        std::os::unix::fs::symlink(native(), &path).expect("a link");
        let shown = if link == expected { path.clone() } else { native().to_path_buf() };
        let shown = shown.to_str().expect("a path");
        let rules = path.with_extension("rules");
        fs::write(&rules, format!("category Thrown: x\n{expected}: thrower -> Thrown\n")).expect("rules");
        let mode = ["--sites", "exact", "--rules", rules.to_str().expect("a path")];
        let (tracked, _) = Tracked::start(&name, &mode, Command::new(&path).arg("exceptions"));
        let check = |report: &Value| {
            assert_eq!(report["process"]["executable"], shown);
            let categories = report["categories"].as_array().expect("categories");
            let named = categories.iter().map(|of| of["name"].as_str().expect("a name"));
            let of_program = named.filter(|name| ["Thrown", "server", "nat", "native"].contains(name));
            assert_eq!(of_program.collect::<BTreeSet<_>>(), BTreeSet::from(["Thrown", expected]));
            let sites = report["sites"].as_array().expect("sites");
            let leaf = sites.iter().find(|site| functions(site).iter().any(|function| function == "thrower"));
            assert_eq!(leaf.expect("its symbols are found")["frames"][0]["module"], shown);
        };
        check(&tracked.json());
        let explained = harness::output_of(&["explain", &tracked.child.id().to_string(), "--format", "json"]);
        let explained: Value = serde_json::from_str(&explained).expect("JSON");
        let lines = explained["lines"].as_array().expect("lines");
        let files = lines.iter().find(|line| line["id"] == "libraries").expect("libraries")["children"].as_array();
        let is_there = |path: &str| files.expect("files").iter().any(|file| file["name"] == path);
        let native = native().to_str().expect("a path");
        assert!(is_there(shown) && is_there(native) == (shown == native), "{files:?}");
        check(&read_report(&report_of(&tracked.end(), &["--by", "site", "--format", "json"])));
    }
}

fn report_of(folder: &Path, arguments: &[&str]) -> String {
    report(&folder.display().to_string(), arguments)
}
