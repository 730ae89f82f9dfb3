//! The native memory reports of others, read for comparison: HotSpot's `VM.native_memory` and Native Image's.

use std::collections::BTreeMap;

/// The figures of one category, as far as the report has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Category {
    pub reserved: u64,
    pub committed: u64,
    pub malloc: u64,
    pub count: u64,
    /// HotSpot alone: chunks in use by arenas, which are malloc'ed too.
    pub arena: u64,
    pub mapped: u64,
    /// HotSpot alone: the committed part of the threads' stacks, and the number of threads.
    pub stacks: u64,
    pub threads: u64,
}

/// Categories by name, with `Total`.
pub type Report = BTreeMap<String, Category>;

/// HotSpot, with `scale=B` or the default KB:
/// `-                 Java Heap (reserved=…, committed=…)` and, further in, `(mmap: reserved=…, committed=…, …)`,
/// `(malloc=…KB #…)`.
pub fn hotspot(text: &str) -> Report {
    let mut report = Report::new();
    let mut current = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(rest) = line.strip_prefix("Total: ") {
            let total: &mut Category = report.entry("Total".into()).or_default();
            (total.reserved, total.committed) = (field(rest, "reserved="), field(rest, "committed="));
            current = Some("Total".to_string());
        } else if let Some((name, figures)) = line.strip_prefix('-').and_then(|rest| rest.split_once('(')) {
            let name = name.trim().to_string();
            let category = report.entry(name.clone()).or_default();
            (category.reserved, category.committed) = (field(figures, "reserved="), field(figures, "committed="));
            current = Some(name);
        } else if let Some(category) = current.as_ref().and_then(|name| report.get_mut(name)) {
            // A category may have several of each (Class: metadata and class space).
            if trimmed.starts_with("(malloc=") || trimmed.starts_with("malloc:") {
                category.malloc += field(trimmed, "malloc=").max(field(trimmed, "malloc: "));
                category.count += field(trimmed, "#");
            } else if trimmed.starts_with("(arena=") {
                category.arena += field(trimmed, "arena=");
            } else if trimmed.starts_with("(stack:") {
                category.stacks += field(trimmed, "committed=");
            } else if trimmed.starts_with("(thread") {
                category.threads += field(trimmed, "#");
            } else if trimmed.starts_with("(mmap:") || trimmed.starts_with("mmap:") {
                category.mapped += field(trimmed, "committed=");
            }
        }
    }
    report
}

/// Native Image since 25: a name on a line of its own, then `(malloc=12329KB, count=419)` and so on.
pub fn native_image(text: &str) -> Report {
    let mut report = Report::new();
    let mut current = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        let Some(category) = (if trimmed.starts_with('(') { report.get_mut(&current) } else { None }) else {
            if !trimmed.is_empty() && !line.starts_with(' ') {
                current = trimmed.to_string();
                report.insert(current.clone(), Category::default());
            }
            continue;
        };
        if trimmed.starts_with("(reserved=") {
            (category.reserved, category.committed) = (field(trimmed, "reserved="), field(trimmed, "committed="));
        } else if trimmed.starts_with("(malloc=") {
            (category.malloc, category.count) = (field(trimmed, "malloc="), field(trimmed, "count="));
        } else if trimmed.starts_with("(mmap: reserved=") {
            category.mapped = field(trimmed, "committed=");
        }
    }
    report.retain(|_, category| *category != Category::default());
    report
}

/// The number after `name`, in bytes.
fn field(text: &str, name: &str) -> u64 {
    let Some(at) = text.find(name) else { return 0 };
    let rest = &text[at + name.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let number: u64 = rest[..digits].parse().unwrap_or(0);
    match &rest[digits..] {
        unit if unit.starts_with("KB") => number << 10,
        unit if unit.starts_with("MB") => number << 20,
        _ => number,
    }
}

#[test]
fn both_reports_are_read() {
    let text = "\nTotal: reserved=1500KB, committed=300KB\n       malloc: 40KB #7, peak=41KB #8\n       mmap:   reserved=1400KB, committed=260KB\n\n\
        -                 Java Heap (reserved=1024KB, committed=200KB)\n                            (mmap: reserved=1024KB, committed=200KB, at peak)\n\
        -                      Code (reserved=60KB, committed=40KB)\n                            (malloc=7KB #3) (peak=8KB #4)\n                            (mmap: reserved=53KB, committed=33KB)\n";
    let report = hotspot(text);
    assert_eq!(
        report["Java Heap"],
        Category {
            reserved: 1024 << 10,
            committed: 200 << 10,
            malloc: 0,
            count: 0,
            arena: 0,
            mapped: 200 << 10,
            ..Category::default()
        }
    );
    assert_eq!(
        report["Code"],
        Category {
            reserved: 60 << 10,
            committed: 40 << 10,
            malloc: 7 << 10,
            count: 3,
            arena: 0,
            mapped: 33 << 10,
            ..Category::default()
        }
    );
    assert_eq!((report["Total"].malloc, report["Total"].count), (40 << 10, 7));

    let text = "Native memory tracking\n\nTotal\n    (reserved=900KB, committed=90KB)\n    (malloc=12KB, count=5)\n    (peak malloc=13KB, count at peak=6)\n    \
        (mmap: reserved=888KB, committed=78KB)\n    (mmap: peak reserved=888KB, peak committed=79KB)\nUnsafe\n    (reserved=12KB, committed=12KB)\n    (malloc=12KB, count=5)\n";
    let report = native_image(text);
    assert_eq!(
        report["Total"],
        Category {
            reserved: 900 << 10,
            committed: 90 << 10,
            malloc: 12 << 10,
            count: 5,
            arena: 0,
            mapped: 78 << 10,
            ..Category::default()
        }
    );
    assert_eq!(report["Unsafe"].count, 5);
    assert_eq!(report.len(), 2);
}
