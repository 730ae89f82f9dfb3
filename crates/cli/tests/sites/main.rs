//! Sites against what the fixtures report: the right leaf, the right caller, the right number of blocks and bytes;
//! every view of them adds up to the books. Here are the functions that more than one module uses, and the tests of
//! what grew.

#[path = "../harness/mod.rs"]
mod harness;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;

mod languages;
mod mappings;
mod stacks;
mod titles;
mod views;

use serde_json::Value;
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

fn report_of(folder: &Path, arguments: &[&str]) -> String {
    report(&folder.display().to_string(), arguments)
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
    for measure in ["live", "cumulative"] {
        let table = tracked.report(&["--measure", measure]);
        assert!(!table.contains('±') && table.contains("  sum"), "categories are counted: {table}");
    }
    let list = tracked.report(&["--by", "site"]);
    let sum = list.lines().find(|line| line.ends_with("  total")).expect("the total");
    assert!(!sum.contains('±'), "{sum}");
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
            // The loader writes a page of a library's data when a function is called for the first time.
            .filter(|functions| functions[0] != "[no stack: Loaded Libraries]")
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
    assert!((text.contains("grew: ") || text.contains("new: 1 stack")) && text.contains("leaks"), "{text}");
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
