//! Remembered stacks equal what a walk would find. Fixtures that try to mislead the memo, then real programs, run with
//! PLIMSOLL_CHECK=1, which walks again and counts disagreements. A block belongs to the caller that requested it, also
//! when other code has taken the caller's address.

mod harness;

use harness::{PLIMSOLL, compiled, number, plimsoll, read_report, segments};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn scratch(name: &str) -> PathBuf {
    harness::scratch("memo", name)
}

/// Runs a command under the tracker; returns its output and the report on each of its processes.
fn tracked(name: &str, sites: &str, check: bool, command: &[&str]) -> (String, Vec<Value>) {
    let folder = scratch(&format!("{name}-segments"));
    let output = Command::new(PLIMSOLL)
        .args(["run", "--follow", "--sites", sites, "--dir"])
        .arg(&folder)
        .arg("--")
        .args(command)
        .env("PLIMSOLL_CHECK", if check { "1" } else { "0" })
        .env("XDG_CACHE_HOME", scratch(&format!("{name}-cache")))
        .stdin(Stdio::null())
        .output()
        .expect("plimsoll");
    assert!(output.status.success(), "{name}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    let found = segments(&folder);
    let reports = found.iter().map(|segment| {
        let segment = segment.to_str().expect("path");
        let report = plimsoll(&["report", "--by", "caller", "--format", "json", segment]);
        assert!(report.status.success(), "{name}: {}", String::from_utf8_lossy(&report.stderr));
        read_report(&String::from_utf8(report.stdout).expect("UTF-8"))
    });
    (String::from_utf8_lossy(&output.stdout).into_owned(), reports.collect())
}

fn counter(report: &Value, name: &str) -> u64 {
    let counters = report["counters"].as_array().expect("counters");
    let own = counters.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no counter {name}"));
    number(own, "value")
}

/// No disagreement, and at least `enough` comparisons.
fn agrees(name: &str, reports: &[Value], enough: u64) {
    let sum = |counter_name| reports.iter().map(|r| counter(r, counter_name)).sum::<u64>();
    let (checks, disagreements) = (sum("memo_checks"), sum("memo_disagreements"));
    let printed = format!("memo {name}: {checks} remembered stacks checked, {disagreements} disagreements\n");
    let _ = std::io::stderr().write_all(printed.as_bytes());
    assert_eq!(disagreements, 0, "{name}, of {checks}");
    assert!(checks >= enough, "{name}: only {checks} checks");
}

/// Blocks of the matching sites: all that were ever allocated, and those that live.
fn allocated(report: &Value, what: impl Fn(&Value) -> bool) -> (u64, u64) {
    let sites = report["sites"].as_array().expect("sites");
    sites
        .iter()
        .filter(|s| what(s))
        .fold((0, 0), |(ever, live), s| (ever + number(s, "cumulative_count"), live + number(s, "live_count")))
}

fn has_function(site: &Value, name: &str) -> bool {
    site["frames"].as_array().is_some_and(|f| f.iter().any(|f| f["function"] == name))
}

/// Both modes that remember stacks: short ones, and deep ones.
const SITES: [&str; 2] = ["sampled", "exact"];

#[test]
fn a_shared_callee_that_moves_its_frames_has_both_callers() {
    let folder = scratch("alloca");
    let program = compiled("memo_alloca", &folder.join("memo_alloca"), &[]);
    for sites in SITES {
        let (_, reports) = tracked("alloca", sites, true, &[&program]);
        agrees("memo_alloca", &reports, 5000);
        let (_, reports) = tracked("alloca", sites, false, &[&program]);
        // The fixture does 2000 rounds of 9 sizes, the two functions in turn; every hundredth round keeps its blocks.
        let of = |name: &str| allocated(&reports[0], |s| has_function(s, name));
        assert_eq!((of("narrow"), of("wide")), ((9000, 100), (9000, 80)));
    }
}

#[test]
fn a_stack_that_became_smaller_is_not_read_past_its_end() {
    let folder = scratch("small_stack");
    let program = compiled("memo_small_stack", &folder.join("memo_small_stack"), &[]);
    for (check, sites) in [(false, "exact"), (true, "exact"), (false, "sampled"), (true, "sampled")] {
        let (output, _) = tracked("small_stack", sites, check, &[&program]);
        assert!(!output.contains("FAILED") && output.contains("moment final"), "{output}");
    }
}

/// The category follows the object that requested the block, although another object had the same addresses before.
#[test]
fn other_code_at_the_same_address_has_its_own_blocks() {
    let folder = scratch("reload");
    let library = |name: &str| compiled("libplugin", &folder.join(name), &["-shared", "-fPIC"]);
    let (one, other) = (library("libone.so"), library("libother.so"));
    let program = compiled("reload_elsewhere", &folder.join("reload_elsewhere"), &[]);
    for (check, sites) in [(false, "exact"), (true, "exact"), (false, "sampled"), (true, "sampled")] {
        let (output, reports) = tracked("reload", sites, check, &[&program, &one, &other]);
        assert!(output.contains("mostly"), "the fixture found no address twice: {output}");
        // Twenty rounds of ten blocks, and one block by each library's constructor, freed by its destructor.
        let of = |category: &str| allocated(&reports[0], |s| s["category"] == category);
        assert_eq!((of("libone.so"), of("libother.so")), ((220, 200), (220, 200)));
        let taken_in = |object: &str| {
            let taken = |s: &Value| {
                let f = &s["frames"][0];
                f["function"] == "plugin_take" && f["module"].as_str().is_some_and(|m| m.ends_with(object))
            };
            allocated(&reports[0], taken)
        };
        assert_eq!((taken_in("/libone.so"), taken_in("/libother.so")), ((200, 200), (200, 200)), "names, too");
    }
}

/// libc loads and unloads objects without a dlopen. A walk through such an object notices the replacement.
#[test]
fn objects_that_libc_loads_are_walked_by_their_own_tables() {
    let folder = scratch("gconv");
    let program = compiled("gconv", &folder.join("gconv"), &[]);
    let (output, reports) = tracked("gconv", "exact", true, &[&program]);
    if output.contains("SKIP") {
        return eprintln!("memo gconv: skipped, {output}");
    }
    let sites = reports[0]["sites"].as_array().expect("sites");
    let mut objects: Vec<&str> = sites.iter().filter_map(|s| s["frames"][0]["module"].as_str()).collect();
    objects.retain(|o| o.contains("/gconv/"));
    objects.sort();
    objects.dedup();
    eprintln!("memo gconv: {objects:?}");
    assert!(objects.len() >= 3, "{objects:?}");
    assert_eq!(counter(&reports[0], "stack_truncated"), 0, "walks by another object's tables");
}

/// The fixture's 300 stacks. Only those that occur a second time take the thread's memory.
#[test]
fn a_deep_stack_is_remembered_when_it_occurs_again() {
    let folder = scratch("once");
    let program = compiled("memo_many_stacks", &folder.join("memo_many_stacks"), &[]);
    let of = |rounds: &str| {
        let (_, reports) = tracked("once", "exact", false, &[&program, rounds]);
        ["deep_walks", "own_private_bytes"].map(|name| counter(&reports[0], name))
    };
    let [[once, small], [twice, large]] = ["1", "2"].map(of);
    assert!((300..320).contains(&once) && (600..620).contains(&twice), "{once} and {twice} walks");
    assert!(small + (64 << 10) < large, "{small} B, then {large}");
}

/// Both modes in test-full; in `make test` only the one that remembers deep stacks.
fn sites_of_this_tier() -> &'static [&'static str] {
    if std::env::var_os("PLIMSOLL_TESTS").is_some_and(|tier| tier == "full") { &SITES } else { &["exact"] }
}

#[test]
#[ignore = "full: a third big program; make test has javac and node"]
fn a_cpp_compiler() {
    let folder = scratch("real");
    let source = folder.join("words.cc");
    let text = "#include <map>\n#include <regex>\n#include <string>\n#include <vector>\n\
                int main(int n, char **v) { std::map<std::string, std::vector<int>> m; m[v[0]].push_back(n);\n\
                return std::regex_match(v[0], std::regex(\"a+b*\")) + m.size(); }\n";
    fs::write(&source, text).expect("source");
    let object = folder.join("words.o");
    let (source, object) = (source.to_str().expect("path"), object.to_str().expect("path"));
    for sites in sites_of_this_tier() {
        let (_, reports) = tracked("compiler", sites, true, &["g++", "-O1", "-c", source, "-o", object]);
        assert!(reports.len() >= 3, "g++, cc1plus, as");
        agrees(&format!("g++ {sites}"), &reports, 200_000);
    }
}

#[test]
fn python() {
    let python = "import json, threading, re, decimal, collections\n\
                  def work():\n  texts = [json.dumps({str(i): list(range(i % 50))}) for i in range(3000)]\n  \
                  [json.loads(t) for t in texts]\n  re.findall('a.b', 'axb' * 1000)\n\
                  threads = [threading.Thread(target=work) for _ in range(3)]\n\
                  [t.start() for t in threads]\n[t.join() for t in threads]\n";
    for sites in sites_of_this_tier() {
        let (_, reports) = tracked("python", sites, true, &["/usr/bin/python3", "-c", python]);
        agrees(&format!("python3 {sites}"), &reports, 20_000);
    }
}

#[test]
fn node() {
    let node = "const z = require('zlib'); let kept = [];\n\
                function leaf(n) { kept.push(Buffer.allocUnsafeSlow(n)); }\n\
                function way(n, d) { if (d > 0) way(n, d - 1); else leaf(n); }\n\
                for (let i = 0; i < 30000; i++) {\n  way(5000 + i % 7, i % 5); if (i % 100 === 0) kept = [];\n  \
                if (i % 500 === 0) z.deflateSync(Buffer.alloc(5000));\n}\n";
    for sites in sites_of_this_tier() {
        let (_, reports) = tracked("node", sites, true, &["node", "-e", node]);
        agrees(&format!("node {sites}"), &reports, 20_000);
    }
}

#[test]
fn javac() {
    let folder = scratch("javac");
    if Command::new("javac").arg("-version").output().is_ok_and(|o| o.status.success()) {
        let java = folder.join("Hello.java");
        fs::write(&java, "class Hello { public static void main(String[] a) { System.out.println(a.length); } }\n")
            .expect("source");
        let (folder, java) = (folder.to_str().expect("path"), java.to_str().expect("path"));
        for sites in sites_of_this_tier() {
            let (_, reports) = tracked("javac", sites, true, &["javac", "-d", folder, java]);
            agrees(&format!("javac {sites}"), &reports, 10_000);
        }
    } else {
        panic!("memo javac: there is none; .ci/setup installs a JDK");
    }
}
