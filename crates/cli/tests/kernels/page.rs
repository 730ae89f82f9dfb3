//! The table of docs/kernels.md: for each kernel, which of the features it has that plimsoll can do without. BLESS=1
//! writes it.

use crate::docs_page;
use crate::machine::{Machine, machines};

const BEGIN: &str = "<!-- The test kernels::page writes what follows. -->\n\n";
const END: &str = "\n<!-- The end of what the test writes. -->\n";

/// Names as fixtures/kernels/features.c writes them, and what plimsoll does without.
const FEATURES: [(&str, &str); 7] = [
    ("openat2", "resolves each part of a path in another root itself, to the same result; slower"),
    ("close_range", "closes descriptors one by one"),
    (
        "MADV_POPULATE_WRITE",
        "makes pages of a segment writable by a futex call for each page: nothing is lost, and a full disk stays an error",
    ),
    (
        "PR_SET_VMA_ANON_NAME",
        "the tracker's mappings have no name in /proc/PID/maps; `explain` knows them from the segment",
    ),
    ("PAGEMAP_SCAN", "`record` and `watch` read smaps or pagemap: the same figures, some ten times the time"),
    ("memory.peak", "the peak of a cgroup's charge is not shown"),
    (
        "kernel",
        "the kernel's share of a cgroup is the sum of the parts that memory.stat has; what it lacks is in the rest",
    ),
];

fn release(machine: &Machine) -> String {
    machine.release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn table() -> String {
    let heads: String = machines().map(|machine| format!(" {} |", release(machine))).collect();
    let mut text = format!("| |{heads} without it, plimsoll |\n| --- |{} --- |\n", " :-: |".repeat(machines().count()));
    for (name, without) in FEATURES {
        let shown = if name == "kernel" { "line `kernel` of memory.stat".to_owned() } else { format!("`{name}`") };
        let cells: String = machines()
            .map(|machine| {
                let mut lines = machine.text("features").lines().filter_map(|line| line.split_once(' '));
                let (_, has) = lines.find(|(of, _)| *of == name).unwrap_or_else(|| panic!("{name}"));
                format!(" {has} |")
            })
            .collect();
        text.push_str(&format!("| {shown} |{cells} {without} |\n"));
    }
    text
}

#[test]
fn the_page_has_what_each_kernel_lacks() {
    if machines().next().is_none() {
        return;
    }
    docs_page::check_table("kernels.md", [BEGIN, END], &table());
}
