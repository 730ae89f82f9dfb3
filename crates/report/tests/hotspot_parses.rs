//! One parser reads HotSpot's own report and ours. The parser follows HotSpot's output alone.

use std::collections::BTreeMap;
use std::process::Stdio;

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_report::hotspot;
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment::{self, Life};

#[path = "../../../fixtures/jdks.rs"]
mod jdks;
#[path = "../../tracked/tests/synthetic/mod.rs"]
mod synthetic;

#[derive(Debug, Default)]
struct Parsed {
    total: (u64, u64),
    /// Total's malloc and mmap: reserved, committed.
    malloc: u64,
    mmap: (u64, u64),
    /// reserved, committed, and the names of the parts in parentheses.
    categories: BTreeMap<String, (u64, u64, Vec<String>)>,
    regions: usize,
    committed_ranges: usize,
    sites: usize,
    frames: usize,
}

fn kb(text: &str, key: &str) -> u64 {
    let rest = text.split_once(key).unwrap_or_else(|| panic!("no {key} in {text}")).1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    assert!(rest[digits.len()..].starts_with("KB"), "{rest}");
    digits.parse().unwrap()
}

fn parse(report: &str) -> Parsed {
    let mut p = Parsed::default();
    let mut category = String::new();
    let mut lines = report.lines().skip_while(|l| !l.starts_with("Native Memory Tracking:"));
    for line in &mut lines {
        if let Some(rest) = line.strip_prefix("Total: ") {
            p.total = (kb(rest, "reserved="), kb(rest, "committed="));
        } else if let Some(rest) = line.strip_prefix("       malloc: ") {
            p.malloc = kb(line, "malloc: ");
            assert!(rest.contains('#'));
        } else if line.starts_with("       mmap:   ") {
            p.mmap = (kb(line, "reserved="), kb(line, "committed="));
        } else if let Some(rest) = line.strip_prefix('-') {
            let (name, figures) = rest.split_once(" (").unwrap();
            assert_eq!(name.len(), name.trim_start().len().max(26), "right-aligned in 26 columns: {line:?}");
            category = name.trim_start().to_string();
            p.categories.insert(category.clone(), (kb(figures, "reserved="), kb(figures, "committed="), Vec::new()));
        } else if let Some(part) = line.strip_prefix(&" ".repeat(28)) {
            let part = part.trim_start_matches(['(', ' ']);
            let key: String = part.chars().take_while(|c| c.is_ascii_alphabetic()).collect();
            p.categories.get_mut(&category).unwrap().2.push(key);
        } else if line == "Virtual memory map:" {
            break;
        }
    }
    for line in lines {
        if line.starts_with("[0x") && line.contains(" - 0x") {
            p.regions += 1;
            assert!(line.contains("] reserved") && line.contains("KB for "), "{line}");
        } else if line.trim_start().starts_with("[0x") && line.contains(" - 0x") {
            p.committed_ranges += 1;
            assert!(line.starts_with("        [0x") && line.contains("] committed "), "{line}");
        } else if line.trim_start().starts_with("[0x") {
            p.frames += 1;
            assert_eq!(line.trim_start().find(']'), Some(19), "sixteen digits: {line}");
        } else if line.trim_start().starts_with("((malloc=") {
            p.sites += 1;
            assert!(
                line.starts_with(&(" ".repeat(29) + "((malloc=")) && line.contains(" tag=") && line.ends_with("))"),
                "{line}"
            );
        }
    }
    p
}

fn ours() -> String {
    let mut s = synthetic::server(4711);
    s.caller(7, &[0x40_3000]);
    let path = std::env::temp_dir().join(format!("plimsoll-hotspot-{}.seg", std::process::id()));
    std::fs::write(&path, s.trimmed()).unwrap();
    let books = Books::new(&segment::read(&path, Deadline::after(NAMES)).unwrap(), Life::Killed, 1_010_000_000_000);
    std::fs::remove_file(path).unwrap();
    let mut out = Vec::new();
    hotspot::detail(&mut out, &books).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn our_report_is_read_and_adds_up() {
    let p = parse(&ours());
    let sum = p.categories.values().fold((0, 0), |s, c| (s.0 + c.0, s.1 + c.1));
    assert_eq!(sum, p.total, "Σ categories = Total, as printed");
    assert_eq!(p.total, (p.malloc + p.mmap.0, p.malloc + p.mmap.1));
    assert_eq!(p.categories["Java Heap"], (256 << 10, 64 << 10, vec!["mmap".into()]));
    assert_eq!(p.categories["Thread"].2, ["threads", "stack"]);
    assert_eq!(p.categories["Native Memory Tracking"].2, ["tracking"]);
    assert_eq!(p.categories["zlib"].2, ["malloc"]);
    assert!(p.regions > 0 && p.sites == 3 && p.frames >= 4, "{p:?}");
}

/// HotSpot's own report, if JDK 25 is on this machine. The test prints which JDK it was.
#[test]
fn hotspots_own_report_is_read_by_the_same_parser() {
    let Some(jdk) = jdks::jdk(25) else { return eprintln!("no JDK 25 here: only our own report was parsed") };
    let mut vm = jdk
        .tool("java")
        .args(["-XX:NativeMemoryTracking=detail", "-Xmx32m", "-XX:+UseSerialGC", "-XX:+UnlockDiagnosticVMOptions"])
        .args(["-XX:+PrintNMTStatistics", "-version"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut vm.stdout.take().unwrap(), &mut text).unwrap();
    vm.wait().unwrap();
    // At exit HotSpot prints bytes; jcmd prints KB. The shape of the lines is the same.
    let text = in_kb(&text);
    let p = parse(&text);
    assert!(p.categories.len() > 10 && p.categories.contains_key("Java Heap"), "{p:?}");
    assert!(p.categories["Thread"].2.contains(&"stack".to_string()));
    assert!(p.regions > 10 && p.sites > 10 && p.frames > 50, "{} regions, {} sites", p.regions, p.sites);
    eprintln!("parsed the report of {}", jdk.bin("java").display());
}

/// `reserved=1234` → `reserved=1KB`, for each figure in the text.
fn in_kb(text: &str) -> String {
    const KEYS: [&str; 9] =
        ["reserved=", "committed=", "malloc=", "malloc: ", "peak=", "arena=", "overhead=", "reserved ", "committed "];
    let mut out = String::new();
    for line in text.lines() {
        let mut rest = line;
        let figure = |text: &str| {
            let ends = KEYS.iter().flat_map(|k| text.match_indices(k).map(|(at, k)| at + k.len()));
            ends.filter(|&at| text[at..].starts_with(|c: char| c.is_ascii_digit())).min()
        };
        while let Some(at) = figure(rest) {
            let digits = rest[at..].chars().take_while(char::is_ascii_digit).count();
            let number: u64 = rest[at..at + digits].parse().unwrap();
            out += &rest[..at];
            out += &format!("{}KB", number / 1024);
            rest = &rest[at + digits..];
        }
        out += rest;
        out.push('\n');
    }
    out
}
