//! The table of docs/jdks.md: what is found on each JDK, compared with what the service reports of itself. BLESS=1
//! writes it. What isn't found needs a gap that gives the reason; without one the test fails.

use crate::fixture::{Explained, resident};
use crate::page;
use crate::roots::{JDKS, Root};
use crate::services::{Service, java, jdks};

const BEGIN: &str = "<!-- The test jdks::table writes what follows. -->\n\n";
const END: &str = "\n<!-- The end of what the test writes. -->\n";
const HEAP: u64 = 64 << 20;
/// Collectors that are product options in the JDKs, none experimental: a VM that lacks one refuses to start with it.
const COLLECTORS: [(&str, &str); 6] = [
    ("Serial", "-XX:+UseSerialGC"),
    ("Parallel", "-XX:+UseParallelGC"),
    ("CMS", "-XX:+UseConcMarkSweepGC"),
    ("G1", "-XX:+UseG1GC"),
    ("Shenandoah", "-XX:+UseShenandoahGC"),
    ("ZGC", "-XX:+UseZGC"),
];
const MODES: [(&str, &[&str]); 3] = [
    ("interpreted", &["-Xint"]),
    ("compiled by C1", &["-Xcomp", "-XX:TieredStopAtLevel=1"]),
    ("compiled by C2", &["-Xcomp", "-XX:-TieredCompilation"]),
];

#[derive(Clone)]
enum Cell {
    Found,
    /// The reason, as a gap gives it.
    Unknown(String),
    /// The VM has nothing of the kind.
    Absent,
}

type Rows = Vec<(String, Cell)>;

#[test]
#[ignore = "full: makes a root with seven JDKs"]
fn the_page_has_what_is_found_on_each_jdk() {
    let Some(root) = jdks() else { return };
    let columns: Vec<Rows> = JDKS
        .iter()
        .map(|jdk| [explained(&root, *jdk), attached(&root, *jdk), collectors(&root, *jdk)].concat())
        .collect();
    page::check_table("jdks.md", [BEGIN, END], &table(&columns));
}

fn table(columns: &[Rows]) -> String {
    let heads: String = JDKS.iter().map(|jdk| format!(" {jdk} |")).collect();
    let mut text = format!("| |{heads}\n| --- |{}\n", " :-: |".repeat(JDKS.len()));
    let mut notes: Vec<&str> = Vec::new();
    for (row, (name, _)) in columns[0].iter().enumerate() {
        text.push_str(&format!("| {name} |"));
        for column in columns {
            assert_eq!(column[row].0, *name);
            let cell = match &column[row].1 {
                Cell::Found => "yes".to_owned(),
                Cell::Absent => "–".to_owned(),
                Cell::Unknown(reason) => {
                    let known = notes.iter().position(|note| note == reason);
                    let note = known.unwrap_or_else(|| {
                        notes.push(reason);
                        notes.len() - 1
                    });
                    format!("no ({})", note + 1)
                }
            };
            text.push_str(&format!(" {cell} |"));
        }
        text.push('\n');
    }
    let notes = notes.iter().enumerate().map(|(index, note)| format!("\n{}. {note}.", index + 1));
    text + "\n`–`: the VM has no such thing. The gaps of `explain`:\n" + &notes.collect::<String>() + "\n"
}

fn near(found: u64, truth: u64) -> bool {
    found.abs_diff(truth) * 100 <= truth * 3
}

/// Distinct bytes: JDK 17's ZGC maps its heap three times.
fn heap_is_found(explained: &Explained) -> bool {
    let lines = explained.0["lines"].as_array().expect("lines").iter().filter(|line| line["id"] == "java-heap");
    near(lines.map(|line| line["distinct_bytes"].as_u64().expect("bytes")).sum(), HEAP)
}

/// A cell of one explanation. `effect`: how the gap's effect begins.
fn cell(explained: &Explained, is_found: bool, effect: &str) -> Cell {
    let mut gaps = explained.0["gaps"].as_array().expect("gaps").iter();
    let gap = gaps.find(|gap| gap["effect"].as_str().is_some_and(|text| text.starts_with(effect)));
    match (is_found, gap) {
        (true, None) => Cell::Found,
        (false, Some(gap)) => Cell::Unknown(gap["reason"].as_str().expect("a reason").to_owned()),
        (true, Some(gap)) => panic!("found, with a gap: {gap:#}"),
        (false, None) => panic!("neither found nor a gap ({effect}): {:#}", explained.0),
    }
}

fn explained(root: &Root, jdk: u32) -> Rows {
    let start = |flags: &[&str]| Service::start(root, jdk, &[&["-XX:+AlwaysPreTouch"], flags].concat());
    let service = start(&[]);
    let explained = service.explained();
    let is_there = |line: &str| explained.line(line) > 0;
    let metaspace = |explained: &Explained| explained.child("class", "metaspace") > 0;
    let names = explained.child("thread-stacks", "service-worker-with-a-long-name") >= service.truth("workers") * 8192;
    let direct = near(explained.line("direct-buffers"), service.truth("direct"));
    let mut rows: Rows = [
        ("`explain`: Java heap", heap_is_found(&explained), "the sizes of Java heap"),
        ("metaspace", metaspace(&explained), "metaspace is"),
        ("code cache", is_there("code-cache"), "the code cache is"),
        ("card table", is_there("gc"), "the card table"),
        ("direct buffers", direct, "direct buffers"),
        ("whole names of threads", names, "threads have"),
    ]
    .map(|(name, is_found, effect)| (name.to_owned(), cell(&explained, is_found, effect)))
    .into();
    let effect = "how much of the heap the last collection left";
    let is_known =
        explained.0["gaps"].as_array().expect("gaps").iter().all(|gap| gap["effect"] != format!("{effect} is unknown"));
    rows.push(("what the last collection left".to_owned(), cell(&explained, is_known, effect)));
    for level in ["summary", "detail"] {
        let service = start(&[&format!("-XX:NativeMemoryTracking={level}")]);
        let explained = service.explained();
        let has_categories = explained.line("symbols") > 0 && explained.line("vm-internal") > 0;
        rows.push((
            format!("NMT's categories, level {level}"),
            cell(&explained, has_categories, "the VM's categories"),
        ));
        if level == "detail" {
            let lines = explained.0["lines"].as_array().expect("lines").iter();
            let class: u64 = lines.filter(|line| line["id"] == "class").map(resident).sum();
            assert!(metaspace(&explained) && class > 0, "{service}: {:#}", explained.0["lines"]);
            rows.push(("metaspace with NMT's detail".to_owned(), Cell::Found));
        }
    }
    rows
}

/// A step that fails ends the test: every version must have all steps.
fn attached(root: &Root, jdk: u32) -> Rows {
    let mut rows = Vec::new();
    for (mode, flags) in MODES {
        let mut service = Service::start(root, jdk, &[flags, &["-XX:CompileCommand=quiet"]].concat());
        service.plimsoll(&["attach", "--sites", "exact", "--yes"]);
        service.serves();
        let blocks = Service::ZLIB_BLOCKS * service.truth("deflaters");
        let category = service.category("zlib");
        assert_eq!(category["live_count"], blocks, "{service} {mode}: {category:#}");
        assert_eq!(service.blocks_with_java_frames(), blocks, "{service} {mode}");
        service.plimsoll(&["detach"]);
        service.serves();
        rows.push((format!("Java frames, {mode}"), Cell::Found));
    }
    let steps = ["`attach`", "blocks and categories since the attach", "`detach`"];
    steps.map(|step| (step.to_owned(), Cell::Found)).into_iter().chain(rows).collect()
}

fn collectors(root: &Root, jdk: u32) -> Rows {
    let of = |(name, flag): (&str, &str)| {
        let flags = [flag, "-XX:+AlwaysPreTouch"];
        let starts = java(root, jdk).args(flags).arg("-version").output().expect("java");
        let cell = if starts.status.success() {
            let service = Service::start(root, jdk, &flags);
            let explained = service.explained();
            let direct = near(explained.line("direct-buffers"), service.truth("direct"));
            assert!(heap_is_found(&explained) && direct, "{service} {name}: {:#}", explained.0["lines"]);
            Cell::Found
        } else {
            let stderr = String::from_utf8_lossy(&starts.stderr).into_owned();
            let reasons = ["Unrecognized VM option", "is experimental", "not supported"];
            assert!(reasons.iter().any(|reason| stderr.contains(reason)), "JDK {jdk} {name}: {stderr}");
            Cell::Absent
        };
        (format!("heap and buffers under {name}"), cell)
    };
    COLLECTORS.map(of).into()
}
