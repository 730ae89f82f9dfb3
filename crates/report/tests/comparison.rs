//! The text and the JSON of `plimsoll compare`, of one known comparison.

mod text_of;

use std::collections::BTreeMap;

use plimsoll_report::{comparison_json, comparison_pages, comparison_text};
use plimsoll_trial::budget::Budget;
use plimsoll_trial::comparison::{Category, Comparison, Lines, Measure, Part, Site, Tracked};
use plimsoll_trial::{Metric, Run, RunEnd};
use text_of::text_of;

const MIB: u64 = 1 << 20;

/// Four pairs. B has 2 MiB more of direct buffers, and a hostile library.
fn comparison() -> Comparison {
    let mut comparison = Comparison {
        commands: ["java -jar old.jar".into(), "java -jar new.jar \x1b[2J".into()],
        ready: Some("port:8080".into()),
        pairs: 4,
        names: [
            ("java-heap", "Java heap"),
            ("direct-buffers", "direct buffers"),
            ("libraries", "libraries and program"),
        ]
        .map(|(id, name)| (id.to_owned(), name.to_owned()))
        .into(),
        ..Comparison::default()
    };
    for round in 0..4 {
        for row in 0..2 {
            let (drift, more) = (round as u64 * (MIB / 4), row as u64);
            let lines = [("java-heap", "", 40 * MIB + drift), ("direct-buffers", "", (10 + 2 * more) * MIB)];
            let parts = [
                ("libraries", "", (8 + more) * MIB),
                ("libraries", "libc.so.6", 8 * MIB),
                ("libraries", "evil\x1b", more * MIB),
            ];
            let part = |(line, name, bytes): (&str, &str, u64)| (Part { line: line.into(), name: name.into() }, bytes);
            comparison.lines.insert((round, row), Lines::from_iter(lines.into_iter().chain(parts).map(part)));
            let rss = (58 + 3 * more) * MIB + drift;
            let figures = BTreeMap::from([(Metric::Steady, rss as f64), (Metric::Ready, 1.0 + round as f64 / 10.0)]);
            let (end, detail) = (RunEnd::Stopped, None);
            comparison.runs.push(Run {
                round,
                row,
                end,
                detail,
                figures,
                pss: BTreeMap::new(),
                processes: 1,
                load_errors: None,
            });
        }
    }
    let site = |category: &str, line: Option<&str>, frames: &[&str], held: [i64; 2], least| Site {
        category: category.into(),
        is_mapped: false,
        is_stackless: false,
        line: line.map(str::to_owned),
        frames: frames.iter().map(|frame| (*frame).to_owned()).collect(),
        held,
        least,
    };
    let unsafe_ = "jdk.internal.misc.Unsafe.allocateMemory:636";
    comparison.tracked = Some(Tracked {
        runs: [3, 3],
        measure: Measure::Held,
        sites: vec![
            site("Other", Some("direct-buffers"), &[unsafe_, "Shop.load:7", "Shop.main:2"], [0, 2 << 20], 2 << 20),
            site("zlib", None, &["inflateInit2_  (libz.so.1)"], [9000, 1000], 100),
        ],
        categories: vec![Category { name: "Other".into(), held: [vec![MIB; 3], vec![3 * MIB; 3]] }],
        mapping_calls: [120.0, 121.0],
        callers_of_mmap: vec![site("Class", Some("class"), &["os::commit  (libjvm.so)"], [3, 4], 1)],
        slow_paths: Some([10.0, 14.0]),
    });
    comparison
}

fn text(of: &Comparison, budget: Option<&str>) -> String {
    let budget = budget
        .map(|text| Budget::parse(text, &["direct-buffers", "java-heap", "libraries"], |_| None).expect("a budget"));
    let excesses = budget.map(|budget| budget.exceeded(of));
    text_of(|out| comparison_text::write(out, of, excesses.as_deref()))
}

#[test]
fn a_person_reads_what_owns_the_difference() {
    let expected = "\
A  java -jar old.jar
B  java -jar new.jar \\u{1b}[2J
4 pairs of runs, alternating   ready port:8080   then 6 tracked runs

medians of the runs                  A           B       B − A   all intervals hold with 99 %
RSS                           58.4 MiB    61.4 MiB   +3.00 MiB   +2.94 MiB to +3.06 MiB: 5.1 % more in B
ready after                     1.15 s      1.15 s    +0.000 s   −0.10 s to +0.10 s: no difference shown
  direct buffers              10.0 MiB    12.0 MiB   +2.00 MiB   +1.94 MiB to +2.06 MiB: 20.0 % more in B
  libraries and program       8.00 MiB    9.00 MiB   +1.00 MiB   +960 KiB to +1.06 MiB: 12.5 % more in B
    evil\\u{1b}                     0 B    1.00 MiB   +1.00 MiB   +960 KiB to +1.06 MiB: more in B
  no difference that the runs can show: Java heap

held by category and by call stack, B − A: means of 3 and 3 tracked runs, whose ranges don't overlap
   +2.00 MiB  Other                  A 1.00 MiB, B 3.00 MiB

   +2.00 MiB  Other
              jdk.internal.misc.Unsafe.allocateMemory:636
              Shop.load:7
              Shop.main:2

              1 more stack with a smaller change (--stacks DIR writes all)

mapping calls (mmap and related functions): A 120, B 121

     +1 call  Class
              os::commit  (libjvm.so)

mapping calls below the native image's slowPathNew…: A 10, B 14

B takes 3.00 MiB more than A, 5.1 %: direct buffers +2.00 MiB (Shop.load:7 ← Shop.main:2), libraries and program +1.00 MiB
over budget: rss: B takes 3.00 MiB more than A (at least 2.94 MiB more), and 2.00 MiB is allowed; site: Shop.load:7 ← Shop.main:2
over budget: direct-buffers: B takes 2.00 MiB more than A (at least 1.94 MiB more), and 1.00 MiB is allowed; site: Shop.load:7 ← Shop.main:2
";
    let found = text(&comparison(), Some("rss 2m\ndirect-buffers 1m\nlibraries 4m"));
    assert_eq!(found, expected);
    assert!(text(&comparison(), Some("* 9m")).ends_with("\nNo line is beyond its budget.\n"));
}

/// A hundred functions that each took 1 MiB in turn never held 100 MiB.
#[test]
fn own_peaks_are_not_printed_as_held_bytes() {
    let mut of = comparison();
    let expected = [
        (Measure::Live, "live blocks by category and by call stack, B − A: means", "mappings isn't known"),
        (Measure::Peak, "own peaks by category and by call stack, B − A: means", "more than was ever live at once"),
    ];
    for (measure, heading, limit) in expected {
        of.tracked.as_mut().expect("tracked").measure = measure;
        let found = text(&of, None);
        assert!(found.contains(heading) && found.contains(limit) && !found.contains("held"), "{found}");
        let page = text_of(|out| comparison_pages::html(out, &of, None));
        assert!(page.contains(" by call stack (blocks only") && !page.contains("Held"), "{page}");
        let json = text_of(|out| comparison_json::write(out, &of, None));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["tracked"]["measure"], measure.id());
    }
}

#[test]
fn categories_that_are_left_out_are_counted() {
    let mut many = comparison();
    let category = |number: u64| Category { name: format!("part {number}"), held: [vec![MIB; 3], vec![3 * MIB; 3]] };
    many.tracked.as_mut().expect("tracked").categories = (0..10).map(category).collect();
    let found = text(&many, None);
    assert_eq!(found.matches("  part ").count(), 8, "{found}");
    assert!(found.contains("\n              not listed, although they differ: 2\n"), "{found}");
}

#[test]
fn without_a_difference_it_says_what_the_runs_resolve() {
    let mut equal = comparison();
    let of_a: BTreeMap<_, _> =
        equal.lines.iter().filter(|((_, row), _)| *row == 0).map(|(at, of)| (*at, of.clone())).collect();
    for ((round, row), lines) in &mut equal.lines {
        if *row == 1 {
            lines.clone_from(&of_a[&(*round, 0)]);
        }
    }
    let figures: Vec<_> = equal.runs.iter().map(|run| run.figures.clone()).collect();
    for run in equal.runs.iter_mut().filter(|run| run.row == 1) {
        run.figures.clone_from(&figures[run.round * 2]);
    }
    let found = text(&equal, None);
    assert!(found.ends_with("\nRSS: no difference that these runs can show (they resolve 64.0 KiB).\n"), "{found}");
    equal.runs.clear();
    assert!(text(&equal, Some("rss 1m")).ends_with("two pairs in which both programs completed\n"));
}

#[test]
fn a_program_reads_the_same() {
    let comparison = comparison();
    let budget = Budget::parse("rss 2m", &[], |_| None).expect("a budget").exceeded(&comparison);
    let mut out = Vec::new();
    comparison_json::write(&mut out, &comparison, Some(&budget)).expect("a vector takes all");
    let found: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!((&found["schema"], &found["rss"]["verdict"]), (&"plimsoll.comparison/1".into(), &"grew".into()));
    assert_eq!(found["rss"]["mean"], 3.0 * MIB as f64);
    let lines = found["lines"].as_array().expect("lines");
    let shown: Vec<_> = lines
        .iter()
        .map(|line| (line["id"].as_str().expect("id"), line["verdict"].as_str().expect("verdict")))
        .collect();
    assert_eq!(shown, [("direct-buffers", "grew"), ("libraries", "grew"), ("java-heap", "same")]);
    assert_eq!(lines[1]["parts"].as_array().map(Vec::len), Some(2));
    assert_eq!(found["tracked"]["sites"][0]["change"], 2 << 20);
    assert_eq!(
        (&found["tracked"]["slow_paths_b"], &found["tracked"]["mapping_sites"][0]["a"]),
        (&14.0.into(), &3.into())
    );
    assert_eq!(
        (&found["over_budget"][0]["line"], &found["over_budget"][0]["site"][1]),
        (&"rss".into(), &"Shop.load:7".into())
    );
    assert_eq!((found["runs"].as_array().map(Vec::len), &found["runs"][1]["side"]), (Some(8), &"B".into()));
}

/// A program chooses the names in its stacks, so no name may become markup.
#[test]
fn a_ticket_and_a_page_have_the_table_and_the_stacks() {
    let comparison = comparison();
    let budget = Budget::parse("rss 2m", &[], |_| None).expect("a budget").exceeded(&comparison);
    let written = |write: fn(&mut dyn std::io::Write, &Comparison, _) -> std::io::Result<()>| {
        text_of(|out| write(out, &comparison, Some(budget.as_slice())))
    };
    let found = written(comparison_pages::markdown);
    assert!(found.starts_with("**B takes 3.00 MiB more than A, 5.1 %: direct buffers +2.00 MiB"), "{found}");
    assert!(found.contains("\n- over budget: rss: B takes 3.00 MiB more than A"), "{found}");
    let row = "| **direct buffers** | 10.0 MiB | 12.0 MiB | +2.00 MiB | +1.94 MiB to +2.06 MiB: 20.0 % more in B |";
    assert!(found.contains(row), "{found}");
    assert!(found.contains("| **— evil\\\\u{1b}** | 0 B |") && !found.contains("Java heap"), "{found}");
    assert!(
        found.contains("\n- +2.00 MiB  Other: jdk.internal.misc.Unsafe.allocateMemory:636 ← Shop.load:7 ←"),
        "{found}"
    );
    let found = written(comparison_pages::html);
    let (_, xml) = found.split_once("<!DOCTYPE html>\n").expect("a type");
    let parsed = roxmltree::Document::parse(xml).unwrap_or_else(|error| panic!("{error}\n{found}"));
    let named = |name: &'static str| {
        parsed.descendants().filter(move |node| node.has_tag_name(("http://www.w3.org/1999/xhtml", name)))
    };
    // RSS, ready after, two lines and a part, below the heads; two stacks.
    assert_eq!((named("tr").count(), named("pre").count(), named("script").count()), (6, 2, 0), "{found}");
    let stacks: Vec<Vec<&str>> = named("pre").map(|pre| pre.text().expect("a stack").lines().collect()).collect();
    let unsafe_ = "jdk.internal.misc.Unsafe.allocateMemory:636";
    assert_eq!(stacks, [vec![unsafe_, "Shop.load:7", "Shop.main:2"], vec!["os::commit  (libjvm.so)"]]);
    assert!(!found.contains('\u{1b}') && found.contains("Mapping calls: A 120, B 121"), "{found}");
}

/// The pairs are complete, so the figures are those of all pairs.
#[test]
fn an_interrupt_in_the_tracked_runs_leaves_the_pairs_complete() {
    let mut of = comparison();
    of.interrupted = true;
    let found = text(&of, None);
    assert!(found.contains("4 pairs of runs, alternating; interrupted in the tracked runs"), "{found}");
    of.runs[7].end = RunEnd::Interrupted;
    assert!(text(&of, None).contains("interrupted in pair 4 of 4"));
}

/// A side that fails again and again isn't run to the end.
#[test]
fn pairs_that_were_not_run_are_not_claimed() {
    let mut of = comparison();
    of.pairs = 10;
    let found = text(&of, None);
    assert!(found.contains("\ngiven up in pair 4 of 10   ready port:8080") && !found.contains("10 pairs"), "{found}");
}
