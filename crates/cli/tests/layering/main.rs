//! Which crate and file may import which, which may open files, and which symbols of libc the tracker's library may
//! use.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

mod modules;
mod public;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// preload → tracker → segment ← facts ← process ← tracked ← observer ← report ← cli; facts, jfr ← profiles ← tracked;
/// report, cli → trial
const IMPORTS: &[(&str, &[&str])] = &[
    ("plimsoll-segment", &[]),
    ("plimsoll-category", &[]),
    ("plimsoll-tracker", &["plimsoll-segment"]),
    ("plimsoll-preload", &["plimsoll-tracker"]),
    ("plimsoll-jfr", &[]),
    ("plimsoll-facts", &["plimsoll-segment"]),
    ("plimsoll-process", &["plimsoll-facts", "plimsoll-segment"]),
    ("plimsoll-profiles", &["plimsoll-facts", "plimsoll-jfr"]),
    ("plimsoll-tracked", &["plimsoll-facts", "plimsoll-process", "plimsoll-profiles", "plimsoll-segment"]),
    (
        "plimsoll-observer",
        &[
            "plimsoll-facts",
            "plimsoll-jfr",
            "plimsoll-process",
            "plimsoll-profiles",
            "plimsoll-segment",
            "plimsoll-tracked",
        ],
    ),
    ("plimsoll-trial", &[]),
    (
        "plimsoll-report",
        &[
            "plimsoll-facts",
            "plimsoll-jfr",
            "plimsoll-observer",
            "plimsoll-process",
            "plimsoll-profiles",
            "plimsoll-tracked",
            "plimsoll-trial",
        ],
    ),
    (
        "plimsoll",
        &[
            "plimsoll-facts",
            "plimsoll-jfr",
            "plimsoll-observer",
            "plimsoll-process",
            "plimsoll-profiles",
            "plimsoll-report",
            "plimsoll-tracked",
            "plimsoll-trial",
        ],
    ),
    (
        "plimsoll-fuzz",
        &[
            "plimsoll-facts",
            "plimsoll-jfr",
            "plimsoll-observer",
            "plimsoll-process",
            "plimsoll-profiles",
            "plimsoll-report",
            "plimsoll-segment",
            "plimsoll-tracked",
            "plimsoll-tracker",
            "plimsoll-trial",
        ],
    ),
    ("xtask", &[]),
];
/// Code that runs in the target process contains no code of third parties.
const ALONE: [&str; 4] = ["plimsoll-segment", "plimsoll-category", "plimsoll-tracker", "plimsoll-preload"];

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"])
        .arg(top().join("Cargo.toml"))
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

#[test]
fn imports_point_one_way() {
    let packages = packages();
    assert_eq!(packages.len(), IMPORTS.len(), "a crate is missing in IMPORTS, or IMPORTS has one too many");
    for package in packages {
        let name = package["name"].as_str().expect("name");
        let (_, may) = IMPORTS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} isn't in IMPORTS"));
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        // Tests may use plimsoll-segment, too, and any crate of others.
        for d in dependencies {
            let (other, is_test) = (d["name"].as_str().expect("name"), d["kind"] == "dev");
            if other.starts_with("plimsoll") {
                let for_tests = is_test && other == "plimsoll-segment";
                assert!(may.contains(&other) || for_tests, "{name} must not know {other}");
            } else {
                assert!(is_test || !ALONE.contains(&name), "{name} runs in the target: it must not need {other}");
            }
        }
        let manifest = fs::read_to_string(package["manifest_path"].as_str().expect("path")).expect("manifest");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} must have the lints of the workspace");
    }
    let root = fs::read_to_string(top().join("Cargo.toml")).expect("manifest");
    assert!(root.contains("undocumented_unsafe_blocks = \"deny\""), "Cargo.toml must deny undocumented unsafe blocks");
}

/// All source files below crates/NAME/src, by path from the top of the repository, without comments and unit tests.
fn sources(name: &str) -> BTreeMap<String, String> {
    fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("source folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() && !path.ends_with("tests") {
                walk(&path, into);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                into.push(path);
            }
        }
    }
    let mut files = vec![];
    walk(&top().join("crates").join(name).join("src"), &mut files);
    let code = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("source");
        let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or("");
        text.lines().filter(|l| !l.trim_start().starts_with("//")).map(|l| format!("{l}\n")).collect()
    };
    let from_top = |path: &PathBuf| path.strip_prefix(top()).expect("below the top").display().to_string();
    files.iter().map(|path| (from_top(path), code(path))).collect()
}

/// The modules of a crate in the order of the flow: one may import only from earlier stages, and not from its own.
struct Order {
    name: &'static str,
    stages: &'static [&'static [&'static str]],
}

const ORDERS: &[Order] = &[
    Order { name: "segment", stages: &[&["agent", "counters", "record", "rules", "vmap"], &["layout"], &["sites"]] },
    Order { name: "preload", stages: &[&["memory"]] },
    JFR,
    TRACKER,
    FACTS,
    PROCESS,
    PROFILES,
    TRACKED,
    OBSERVER,
    TRIAL,
    REPORT,
    CLI,
];

const TRACKER: Order = Order {
    name: "tracker",
    stages: &[
        &["sys"],
        &["fixed_string", "options", "phase", "rules"],
        &["segment"],
        &["stack"],
        &["account"],
        &["patch", "stack_bounds", "summary"],
        &["guard"],
        &["hook"],
        &["boot"],
        &["agent"],
    ],
};

const JFR: Order = Order { name: "jfr", stages: &[&["format"], &["reader", "writer"]] };

const FACTS: Order =
    Order { name: "facts", stages: &[&["ending", "lines", "shell", "units"], &["gap"], &["snapshot"]] };

const PROCESS: Order =
    Order { name: "process", stages: &[&["foreign"], &["proc"], &["cgroup", "kernel_log", "processes"], &["parsers"]] };

const PROFILES: Order = Order { name: "profiles", stages: &[&["jfr", "profile"], &["allocation"]] };

const TRACKED: Order = Order {
    name: "tracked",
    stages: &[&["rules", "segment"], &["books"], &["diff", "symbols"], &["sites"], &["parsers"]],
};

const OBSERVER: Order = Order {
    name: "observer",
    stages: &[&["source"], &["ledger"], &["verdict"], &["collect", "recording"], &["parsers"]],
};

const TRIAL: Order = Order {
    name: "trial",
    stages: &[
        &["latency", "launcher", "metric", "plan", "rate", "statistics"],
        &["remedy", "rows"],
        &["comparison", "live"],
        &["budget"],
    ],
};

const REPORT: Order = Order {
    name: "report",
    stages: &[
        &["jfr", "palette", "words"],
        &["ledger_notes", "process_title"],
        &[
            "figures_json",
            "frame_table",
            "hotspot",
            "json_lines",
            "ledger_text",
            "native_image",
            "recording",
            "text",
            "trial_text",
        ],
        &[
            "diff",
            "doctor",
            "ledger_json",
            "ledger_tables",
            "live_text",
            "profile",
            "recording_chart",
            "recording_diff",
            "recording_text",
            "serve_list",
            "sites_json",
            "trial_json",
        ],
        &["allocation", "json", "live_json", "sites_text"],
        &["comparison_text", "metrics", "recording_json"],
        &["comparison_json", "otlp", "page", "prometheus"],
        &["ticket"],
        &["comparison_pages", "live_pages", "trial_pages"],
    ],
};

const CLI: Order = Order {
    name: "cli",
    stages: &[
        &["confine", "examples", "exit", "suggestion", "sys"],
        &["pager", "progress"],
        &["cache", "output", "process_argument", "untrackable"],
        &["summary_signal", "tracker"],
        &["launch", "recording", "target"],
        &["jfr_report", "sampler", "stack_options"],
        &["allocation"],
        &["page"],
        // The commands.
        &["attach", "diff", "doctor", "explain", "report", "why"],
        &["record", "trial"],
        &["compare", "run", "serve", "watch"],
    ],
};

/// Folders of the crates whose modules have no order. Files in a circle are a defect there, too.
const UNORDERED: [&str; 3] = ["crates/category", "fuzz", "xtask"];

/// The text of all files below FOLDER/src, by their path from there.
fn texts(folder: &str) -> BTreeMap<String, String> {
    fn walk(top: &Path, dir: &Path, into: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).expect("source folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                walk(top, &path, into);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let file = path.strip_prefix(top).expect("below the top").display().to_string();
                into.insert(file, fs::read_to_string(&path).expect("source"));
            }
        }
    }
    let (top, mut into) = (top().join(folder).join("src"), BTreeMap::new());
    walk(&top, &top, &mut into);
    into
}

/// The folder of a package, from the top of the repository.
fn folder(package: &Value) -> String {
    let manifest = Path::new(package["manifest_path"].as_str().expect("path"));
    let folder = manifest.parent().and_then(|folder| folder.strip_prefix(top()).ok());
    folder.expect("below the top").display().to_string()
}

#[test]
fn every_crate_has_an_order_or_is_listed() {
    let ordered = ORDERS.iter().map(|order| format!("crates/{}", order.name));
    let mut listed: Vec<String> = ordered.chain(UNORDERED.map(str::to_owned)).collect();
    let mut there: Vec<String> = packages().iter().map(folder).collect();
    listed.sort();
    there.sort();
    assert_eq!(listed, there, "give each crate a row in ORDERS");
    for folder in UNORDERED {
        let files = texts(folder);
        let circles = modules::Crate::new(&files);
        assert!(
            circles.circles().is_empty(),
            "{folder}: files import one another in a circle: {:#?}",
            circles.circles()
        );
    }
}

#[test]
fn modules_import_earlier_stages_only() {
    for Order { name, stages } in ORDERS {
        let files = texts(&format!("crates/{name}"));
        let split = files.keys().find(|file| files.keys().any(|f| f.starts_with(&file.replace(".rs", "/"))));
        assert_eq!(split, None, "crates/{name}: a module with files of its own is FOLDER/mod.rs, as all others are");
        let found = modules::Crate::new(&files);
        let staged: BTreeSet<&str> = stages.iter().flat_map(|stage| stage.iter().copied()).collect();
        let (found_top, row) = (found.top(), "a row after every module that it imports");
        let lacking: Vec<_> = found_top.difference(&staged).collect();
        assert!(lacking.is_empty(), "crates/{name}: no stage in this test, give it {row}: {lacking:?}");
        let stale: Vec<_> = staged.difference(&found_top).collect();
        assert!(stale.is_empty(), "crates/{name}: stages of this test without a module: {stale:?}");
        let upward = found.upward(stages);
        assert!(
            upward.is_empty(),
            "crates/{name}: a file imports another module of its stage, or one of a later stage: {upward:#?}"
        );
        let circles = found.circles();
        assert!(circles.is_empty(), "crates/{name}: files import one another in a circle: {circles:#?}");
    }
}

/// The crates outside the target that read processes, segments and recordings.
const OUTSIDE: [&str; 5] = ["facts", "process", "profiles", "tracked", "observer"];

/// Files and folders with unsafe code: system calls, assembly, the program's memory, and the contents of the segment.
const UNSAFE: &[&str] = &[
    "crates/category/src/lib.rs",
    "crates/cli/src/attach/native/injected_thread.rs",
    "crates/cli/src/attach/native/ptrace.rs",
    "crates/cli/src/confine.rs",
    "crates/cli/src/sys/",
    "crates/process/src/foreign/as_target/child.rs",
    "crates/process/src/foreign/lock.rs",
    "crates/observer/src/source/hotspot/peer.rs",
    "crates/process/src/proc/scan.rs",
    "crates/preload/src/lib.rs",
    "crates/tracker/src/account/blocks.rs",
    "crates/tracker/src/account/early.rs",
    "crates/tracker/src/account/image.rs",
    "crates/tracker/src/account/inherited.rs",
    "crates/tracker/src/account/keys.rs",
    "crates/tracker/src/account/mapping/",
    "crates/tracker/src/account/memo/",
    "crates/tracker/src/account/peaks/mod.rs",
    "crates/tracker/src/account/pending.rs",
    "crates/tracker/src/account/rows.rs",
    "crates/tracker/src/account/samples.rs",
    "crates/tracker/src/account/segment_file.rs",
    "crates/tracker/src/account/side_table/",
    "crates/tracker/src/account/thread.rs",
    "crates/tracker/src/account/vmas/",
    "crates/tracker/src/agent.rs",
    "crates/tracker/src/boot.rs",
    "crates/tracker/src/guard.rs",
    "crates/tracker/src/hook/",
    "crates/tracker/src/options.rs",
    "crates/tracker/src/patch/",
    "crates/tracker/src/rules.rs",
    "crates/tracker/src/segment/",
    "crates/tracker/src/stack/deep.rs",
    "crates/tracker/src/stack/java/known.rs",
    "crates/tracker/src/stack/java/memory.rs",
    "crates/tracker/src/stack/java/mod.rs",
    "crates/tracker/src/stack/java/once.rs",
    "crates/tracker/src/stack/module.rs",
    "crates/tracker/src/stack/read.rs",
    "crates/tracker/src/stack/rule_table.rs",
    "crates/tracker/src/summary.rs",
    "crates/tracker/src/sys/",
];

#[test]
fn unsafe_code_stays_in_its_fence() {
    let is_word = |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe");
    let mut used = vec![];
    for name in ["segment", "tracker", "preload", "jfr", "trial", "report", "cli", "category"].iter().chain(&OUTSIDE) {
        for (path, code) in sources(name) {
            // Attributes (no_mangle, naked), the name of the lint and a page's content policy are not unsafe code.
            if !is_word(&code.replace("#[unsafe(", "#[").replace("'unsafe-inline'", "")) {
                continue;
            }
            let fence = UNSAFE.iter().find(|f| path.starts_with(*f));
            used.push(*fence.unwrap_or_else(|| panic!("{path}: unsafe code outside the fence")));
        }
    }
    let empty: Vec<_> = UNSAFE.iter().filter(|f| !used.contains(*f)).collect();
    assert!(empty.is_empty(), "a fence around nothing: {empty:?}");
}

/// Calls that open files and processes, read the environment, or end the process.
const OPENS: [&str; 8] = [
    "std::fs",
    "std::env",
    "std::process",
    "std::net",
    "std::os::unix::net",
    "rustix::fs",
    "rustix::process",
    "rustix::net",
];
/// Readers beside the files that are called read.rs, or lie in a folder read/: the one that finds segments.
const READERS: [&str; 1] = ["crates/tracked/src/segment/find.rs"];

/// Code without I/O and without a clock.
const PURE: [&str; 6] = [
    "facts/src/",
    "observer/src/ledger/",
    "observer/src/verdict/",
    "profiles/src/profile/",
    "tracked/src/books/",
    "tracked/src/diff.rs",
];

#[test]
fn only_readers_open_anything() {
    let opens = |code: &str| OPENS.iter().find(|o| code.contains(*o)).copied();
    let (mut readers, mut listed) = (0, 0);
    for (path, code) in OUTSIDE.into_iter().flat_map(sources) {
        let is_foreign = path.starts_with("crates/process/src/foreign/");
        let is_called_read = path.ends_with("/read.rs") || path.contains("/read/");
        let is_listed = READERS.contains(&path.as_str());
        let is_reader = is_called_read || is_foreign || is_listed;
        let found = opens(&code);
        listed += usize::from(is_listed);
        assert!(!is_listed || found.is_some(), "{path} opens nothing: take it from READERS");
        readers += usize::from(is_reader && found.is_some());
        assert!(is_reader || found.is_none(), "{path} uses {}", found.unwrap_or(""));
    }
    assert_eq!(listed, READERS.len(), "a file of READERS is gone");
    assert!(readers > READERS.len(), "only {readers} readers found");
    for (path, code) in ["jfr", "report", "trial"].into_iter().flat_map(sources) {
        assert_eq!(opens(&code), None, "{path}");
    }
    // Pure code has none of these calls even in a file or folder called read, and no clock.
    for (path, code) in OUTSIDE.into_iter().flat_map(sources) {
        if PURE.iter().any(|prefix| path.starts_with(&format!("crates/{prefix}"))) {
            let clock = ["SystemTime", "Instant::now"].into_iter().find(|clock| code.contains(clock));
            assert_eq!(opens(&code).or(clock), None, "{path}");
        }
    }
    // The tracker's system calls and assembly are only in sys/, except for the entries of the hooks, malloc and free.
    for (path, code) in sources("tracker") {
        let inside = ["sys/", "hook/entry/", "hook/malloc/x86_64/"]
            .iter()
            .any(|p| path.starts_with(&format!("crates/tracker/src/{p}")));
        assert!(inside || !["asm!(", "syscall("].iter().any(|w| code.contains(w)), "{path} leaves the fence");
        assert!(!code.contains("extern crate alloc") && !code.contains("extern crate std"), "{path} can allocate");
    }
}

/// Calls that open a file by its path.
const OPENERS: [&str; 12] = [
    "File::open(",
    "File::create(",
    "File::options(",
    "OpenOptions::new(",
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::copy(",
    "fs::open(",
    "openat(",
    "openat2(",
    "UnixStream::connect(",
];
/// The files outside of `foreign/` that may open something, how often, and why they never open another user's file.
const MAY_OPEN: [(&str, usize, &str); 22] = [
    ("crates/cli/src/cache.rs", 1, "/proc/PID/maps: the kernel's own"),
    ("crates/cli/src/doctor.rs", 2, "settings of the kernel, /proc/self"),
    ("crates/cli/src/untrackable.rs", 1, "a new file (O_EXCL) of a random name, in a directory of ours"),
    ("crates/cli/src/serve/rounds.rs", 3, "/proc/PID: the kernel's own figures"),
    ("crates/cli/src/sys/child.rs", 1, "/proc/PID/comm: the kernel's own"),
    ("crates/cli/src/sys/machine.rs", 1, "/proc/sys: the kernel's own"),
    ("crates/cli/src/target.rs", 1, "/proc/PID/task/TID/comm: the kernel's own, 16 bytes"),
    ("crates/cli/src/trial/limit_place.rs", 3, "files of our own cgroup and the one above: the kernel's"),
    ("crates/cli/src/trial/run_cgroup.rs", 2, "files of cgroups below our own or beside it: the kernel's"),
    ("crates/cli/src/tracker.rs", 1, "the directory of segments: O_NOFOLLOW | O_DIRECTORY, owner compared"),
    ("crates/tracked/src/rules/read.rs", 1, "a new file (O_EXCL) in the cache, whose directories are trusted"),
    ("crates/process/src/cgroup/read/hierarchy.rs", 1, "/proc/self/mountinfo: the kernel's own"),
    ("crates/process/src/cgroup/read/mod.rs", 1, "/proc/pressure: the kernel's own"),
    ("crates/process/src/cgroup/read/neighbours.rs", 1, "/proc/PID/statm: the kernel's own"),
    ("crates/process/src/kernel_log/read.rs", 1, "/dev/kmsg: the kernel's own"),
    ("crates/process/src/processes/read.rs", 2, "/proc/uptime, /proc/self: the kernel's own"),
    ("crates/profiles/src/jfr/read.rs", 2, "a recording: located by O_PATH, opened only if it is a regular file"),
    ("crates/process/src/proc/read/access.rs", 1, "/proc/PID/status, /proc/self, settings of the kernel"),
    ("crates/process/src/proc/read/host.rs", 4, "settings of the kernel, /proc: the kernel's own"),
    ("crates/process/src/proc/read/process.rs", 2, "/proc/uptime, /proc/sys: the kernel's own"),
    ("crates/tracked/src/segment/find.rs", 4, "/proc: figures of the kernel's own, and maps line by line"),
    ("crates/tracked/src/symbols/read.rs", 2, "/proc/self"),
];

/// The owner of a target chooses what is at its paths: a FIFO, a device, a sparse terabyte, a link out of a container.
#[test]
fn files_of_others_are_opened_in_one_module() {
    let calls = |code: &str| OPENERS.iter().map(|call| code.matches(call).count()).sum::<usize>();
    let of_foreign = outside_and_ends().filter(|(path, _)| path.starts_with(FOREIGN));
    let openings: usize = of_foreign.map(|(_, code)| calls(&code)).sum();
    assert_counts(&MAY_OPEN, calls, "open files of others through process/src/foreign, or give a reason in MAY_OPEN");
    assert!(openings >= 8, "foreign/ opens in {openings} places: does this test still see it?");
}

/// The files outside of `foreign/` that may make a deadline, how many, and for what. All code below a command gets one
/// passed down: with separate limits, many short waits add up.
const MAKE_DEADLINES: [(&str, usize, &str); 24] = [
    ("crates/cli/src/attach/process.rs", 1, "attach, detach"),
    ("crates/cli/src/compare/mod.rs", 1, "compare: the caller's own budget, before the runs"),
    ("crates/cli/src/compare/tracked.rs", 1, "compare: the segment of each tracked run"),
    ("crates/cli/src/diff.rs", 1, "diff"),
    ("crates/cli/src/doctor.rs", 1, "doctor"),
    (
        "crates/cli/src/explain.rs",
        5,
        "explain, or its list; before it the caller's own baseline, after it the books of a page or of metrics",
    ),
    ("crates/cli/src/process_argument.rs", 1, "before any verb: the processes of a name"),
    ("crates/cli/src/serve/answers.rs", 1, "serve: each page or document"),
    ("crates/cli/src/serve/exports.rs", 1, "serve: the call stacks of one target"),
    ("crates/cli/src/serve/mod.rs", 2, "serve: at its start, the token's file and the list of processes"),
    ("crates/cli/src/serve/rounds.rs", 1, "serve: each listing"),
    ("crates/cli/src/watch/worker.rs", 1, "watch: each listing"),
    ("crates/cli/src/sampler/names.rs", 1, "names: in the background, no sample waits for them"),
    ("crates/cli/src/sampler/end.rs", 1, "record, watch: the end"),
    ("crates/cli/src/sampler/mod.rs", 2, "record, watch: the start, each sample"),
    ("crates/cli/src/report.rs", 1, "report"),
    ("crates/cli/src/launch.rs", 2, "run, record, compare: what is read before the program starts"),
    ("crates/cli/src/trial/live/guard.rs", 1, "try --pid: the guard's own handle"),
    (
        "crates/cli/src/trial/live/mod.rs",
        3,
        "try --pid: the first snapshot, one after each step, and a call of the allocator",
    ),
    ("crates/cli/src/trial/live/vm.rs", 1, "try --pid: the commands of each step"),
    ("crates/cli/src/trial/mod.rs", 2, "try: where the cgroups of its runs can be made, argument files of java"),
    ("crates/cli/src/trial/runner.rs", 3, "try: the cgroup after a run, the snapshot, a trim"),
    ("crates/cli/src/trial/process_tree.rs", 3, "try: each reading of the kernel's own figures, which wait for nobody"),
    ("crates/cli/src/run/mod.rs", 3, "run: kills in its cgroup before and after, the report"),
];

#[test]
fn only_verbs_make_deadlines() {
    let made = |code: &str| code.matches("Deadline::after(").count();
    assert_counts(&MAKE_DEADLINES, made, "take the deadline of the verb");
}

const FOREIGN: &str = "crates/process/src/foreign/";

fn outside_and_ends() -> impl Iterator<Item = (String, String)> {
    OUTSIDE.into_iter().chain(["report", "cli"]).flat_map(sources)
}

/// The files outside of `foreign/` for which `count` isn't 0, and their counts, are exactly those of `allowed`.
#[track_caller]
fn assert_counts(allowed: &[(&str, usize, &str)], count: impl Fn(&str) -> usize, advice: &str) {
    let found: BTreeMap<String, usize> = outside_and_ends()
        .filter(|(path, _)| !path.starts_with(FOREIGN))
        .map(|(path, code)| (path, count(&code)))
        .filter(|(_, number)| *number > 0)
        .collect();
    let allowed: BTreeMap<String, usize> = allowed.iter().map(|(path, n, _)| (path.to_string(), *n)).collect();
    let differing = |of: &BTreeMap<String, usize>, other: &BTreeMap<String, usize>| {
        of.iter().filter(|(path, n)| other.get(*path) != Some(n)).map(|(path, n)| format!("{path}: {n}")).collect()
    };
    let (more, stale): (Vec<String>, Vec<String>) = (differing(&found, &allowed), differing(&allowed, &found));
    assert!(more.is_empty() && stale.is_empty(), "{advice}\nfound: {more:#?}\nthe table has: {stale:#?}");
}

/// All symbols that the tracker's library imports, by name. All are weak: a program without a C library defines none of
/// them, and must start all the same. Each has been in glibc since its first x86-64 version, except `__dls3` and
/// `_dl_debug_addr`, which are musl's; other functions are looked up at run time.
const IMPORTED_WEAKLY: [&str; 10] = [
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "__cxa_finalize",
    "__dls3",
    "__errno_location",
    "__gmon_start__",
    "_dl_debug_addr",
    "_r_debug",
    "environ",
    "gnu_get_libc_version",
];
/// The newest symbol version that a reference may have.
const NEWEST: (u32, u32) = (2, 17);

fn unpacked_library() -> PathBuf {
    // Not below the clone: LD_PRELOAD cannot express a path with a blank, so plimsoll would use another cache.
    let dir = std::env::temp_dir().join(format!("plimsoll-layering-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::DirBuilder::new().mode(0o700).create(&dir).expect("scratch directory");
    let status = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["run", "--", "true"])
        .env("XDG_CACHE_HOME", &dir)
        .env("PLIMSOLL_DIR", dir.join("segments"))
        .status()
        .expect("plimsoll");
    assert!(status.success());
    let unpacked = fs::read_dir(dir.join("plimsoll")).expect("cache").map(|e| e.expect("entry").path());
    let mut libraries = unpacked.filter(|p| p.extension().is_some_and(|e| e == "so"));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layering.so");
    fs::copy(libraries.next().expect("the library is unpacked"), &kept).expect("a copy");
    fs::remove_dir_all(dir).expect("our own");
    kept
}

fn printed(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(file).output().expect(program);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_library_imports_little_of_libc() {
    let library = unpacked_library();
    let (mut strong, mut weak) = (vec![], vec![]);
    for line in printed("nm", &["-D", "--undefined-only"], &library).lines() {
        let mut words = line.split_whitespace();
        let (kind, name) = (words.next().expect("kind"), words.next().expect("name"));
        let name = name.split('@').next().expect("a name");
        if kind == "U" { strong.push(name.to_string()) } else { weak.push(name.to_string()) }
    }
    assert!(strong.is_empty(), "strong imports {strong:?}: not every program has them; look them up at run time");
    weak.sort();
    assert_eq!(weak, IMPORTED_WEAKLY, "weak imports");
    for line in printed("objdump", &["-T"], &library).lines() {
        let Some(version) = line.split_once("GLIBC_").map(|(_, v)| v.split(|c: char| c != '.' && !c.is_ascii_digit()))
        else {
            continue;
        };
        let mut numbers = version.take(1).flat_map(|v| v.split('.')).map(|n| n.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        assert!(version <= NEWEST, "newer than glibc {NEWEST:?}: {line}");
    }
    // No dependency, little thread-local memory, and no writable page from which code can run.
    let dynamic = printed("readelf", &["-dW"], &library);
    assert!(!dynamic.contains("(NEEDED)") && !dynamic.contains("TEXTREL"), "{dynamic}");
    let segments = printed("readelf", &["-lW"], &library);
    let tls = segments.lines().find(|l| l.trim_start().starts_with("TLS")).expect("a TLS segment");
    let bytes = tls.split_whitespace().nth(5).and_then(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).ok());
    assert!(bytes.is_some_and(|n| n <= 64), "late loading has space for 64 bytes of static TLS: {tls}");
}

/// A test program that no group names stops every run of the tests. The reader of the table checks this, too; here the
/// author of a new program learns it first.
#[test]
fn every_test_program_is_in_the_table_of_groups() {
    let table = fs::read_to_string(top().join("xtask/src/test/groups.rs")).expect("the table");
    let mut found = 0;
    for package in packages() {
        for target in package["targets"].as_array().expect("targets").iter().filter(|t| t["kind"][0] == "test") {
            let folder = Path::new(package["manifest_path"].as_str().expect("path")).parent().expect("a folder");
            let folder = folder.file_name().expect("a name").to_string_lossy();
            let name = format!("{folder}/{}", target["name"].as_str().expect("name"));
            let entries = [format!("\"{name}\""), format!("\"{name}::")];
            let is_there = entries.iter().any(|entry| table.contains(entry));
            assert!(is_there, "{name} is in no group: add \"{name}\" to one in xtask/src/test/groups.rs");
            found += 1;
        }
    }
    assert!(found > 40, "only {found} test programs found");
}

/// An example in a comment runs only in the group of examples. One that must not compile holds an invariant.
#[test]
fn every_crate_with_examples_is_in_their_group() {
    let table = fs::read_to_string(top().join("xtask/src/test/groups.rs")).expect("the table");
    let (_, group) = table.split_once("\"--doc\"").expect("the group of examples");
    let group = group.split_once("]").expect("its end").0;
    let mut found = 0;
    for package in packages() {
        // The program itself and xtask have no library, so nothing runs their examples.
        let mut kinds = package["targets"].as_array().expect("targets").iter().map(|target| &target["kind"][0]);
        let (is_library, name) = (kinds.any(|kind| kind == "lib"), package["name"].as_str().expect("name"));
        let examples: usize = texts(&folder(&package)).values().map(|text| examples(text)).sum();
        if examples > 0 {
            found += 1;
            assert!(is_library, "{name} is no library: nothing runs its examples, so mark them as text");
            assert!(group.contains(&format!("\"{name}\"")), "{name} has examples: add it to the group \"doc\"");
        }
    }
    assert!(found >= 3, "only {found} crates with examples found");
}

/// The number of examples in the comments of a file that rustdoc compiles.
fn examples(text: &str) -> usize {
    let comments = text.lines().map(str::trim_start);
    let fences = comments.filter_map(|line| line.strip_prefix("//! ```").or_else(|| line.strip_prefix("/// ```")));
    fences.step_by(2).filter(|tag| !matches!(*tag, "text" | "ignore" | "c" | "sh" | "json")).count()
}

/// docs/security.md names a test for each claim: every named test must exist.
#[test]
fn the_security_page_names_tests_that_exist() {
    let page = fs::read_to_string(top().join("docs/security.md")).expect("the page");
    let table = page.split_once("## Which test holds which sentence").expect("the table").1;
    let cells = table.lines().filter(|line| line.starts_with("| ")).skip(2).filter_map(|line| line.split(" | ").nth(1));
    let cited: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(cited.len() > 40, "{} names: does this test still see the table?", cited.len());
    let mut files = vec![];
    let mut folders: Vec<PathBuf> =
        ["cli", "tracker"].iter().chain(&OUTSIDE).map(|name| top().join("crates").join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(fs::read_to_string(path).expect("source"));
            }
        }
    }
    let is_there = |name: &str| {
        let (function, row) = (format!("#[test]\nfn {name}() {{"), format!("\n    {name} over "));
        // A test in a module of a source file is indented.
        let indented = format!("#[test]\n    fn {name}() {{");
        files.iter().any(|text| [&function, &indented, &row].iter().any(|form| text.contains(form.as_str())))
    };
    let missing: Vec<&str> = cited.into_iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "docs/security.md names tests that don't exist: {missing:?}");
}

/// A module with files below it is `name/mod.rs`, so that everything about it is in one folder.
#[test]
fn a_module_with_submodules_is_a_folder_with_mod_rs() {
    let mut folders: Vec<PathBuf> = vec![top().join("xtask/src"), top().join("fuzz/src")];
    let crates = fs::read_dir(top().join("crates")).expect("crates");
    folders.extend(crates.map(|entry| entry.expect("entry").path().join("src")).filter(|src| src.is_dir()));
    let mut modules = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                let beside = path.with_extension("rs");
                assert!(!beside.exists(), "{}: move it to {}/mod.rs", beside.display(), path.display());
                modules += usize::from(path.join("mod.rs").exists());
                folders.push(path);
            }
        }
    }
    assert!(modules > 30, "only {modules} modules with files below them found");
}
