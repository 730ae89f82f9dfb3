//! Call stacks of Rust, Go, Node and Python.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::number;
use crate::stage::must;
use crate::{Tracked, adds_up, expected, fixture, functions, has_in_order, is_leaf, scratch, tidy};

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
