//! Comparisons of figures that are made up: seeded noise, known growth.

use std::slice::from_ref;

use super::*;
use crate::random::Random;
use crate::rows::{Pss, RunEnd};

const MIB: f64 = 1048576.0;

/// Ten pairs of a program with 50 MiB. B has `growth` MiB more of direct buffers. The Java heap has the noise, with
/// this deviation in MiB.
pub(crate) fn compared(growth: f64, deviation: f64) -> Comparison {
    made(growth, deviation, &mut Random(0x2545_f491_4f6c_dd1d))
}

fn made(growth: f64, deviation: f64, noise: &mut Random) -> Comparison {
    let mut comparison = Comparison { pairs: 10, ..Comparison::default() };
    for round in 0..10 {
        for side in [A, B] {
            let heap = (40.0 + deviation * noise.normal()) * MIB;
            let buffers = (10.0 + if side == B { growth } else { 0.0 }) * MIB;
            let figures = BTreeMap::from([(Metric::Steady, heap + buffers)]);
            let (end, detail, pss) = (RunEnd::Stopped, None, BTreeMap::new());
            comparison.runs.push(Run { round, row: side, end, detail, figures, pss, processes: 1, load_errors: None });
            let lines = [("java-heap", heap), ("direct-buffers", buffers)];
            let lines = lines.map(|(line, bytes)| (Part::line(line), bytes as u64));
            comparison.lines.insert((round, side), Lines::from(lines));
        }
    }
    comparison
}

/// B forks: its sum of PSS is smaller than the RSS of A's only process, but larger than that one's PSS.
#[test]
fn a_program_that_forks_is_compared_by_pss() {
    let mut comparison = compared(-5.0, 0.0);
    assert_eq!(comparison.rss().map(|change| change.direction()), Some(Direction::Shrank));
    for run in &mut comparison.runs {
        let (mib, several) = if run.row == A { (40.0, false) } else { (45.0, true) };
        run.pss.insert(Metric::Steady, Pss { bytes: Some(mib * MIB), several });
        // Not a figure of a comparison, so the note must not name it.
        run.pss.insert(Metric::Idle, Pss { bytes: None, several });
    }
    let rss = comparison.rss().expect("compared");
    assert_eq!(
        (rss.medians, rss.interval.mean, rss.direction()),
        ([40.0 * MIB, 45.0 * MIB], 5.0 * MIB, Direction::Grew)
    );
    let note = comparison.pss_note().expect("a note");
    assert!(note.starts_with("RSS: some runs had one process") && !note.contains("can't be read"), "{note}");
}

/// A regression of 3 % in a program whose RSS varies by 0.6 %, as that of a small JVM server does.
#[test]
fn a_growth_of_three_percent_is_always_found_with_its_line() {
    let mut noise = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..200 {
        let comparison = made(1.5, 0.3, &mut noise);
        let rss = comparison.rss().expect("compared");
        assert_eq!(rss.direction(), Direction::Grew, "{rss:?}");
        let lines = comparison.line_changes();
        assert_eq!((lines[0].0.line.as_str(), lines[0].1.direction()), ("direct-buffers", Direction::Grew));
        assert!((lines[0].1.interval.mean - 1.5 * MIB).abs() < 1.0);
    }
}

#[test]
fn a_source_that_one_side_mostly_lacks_is_reported() {
    let mut comparison = made(0.0, 0.3, &mut Random(1));
    let none = BTreeSet::new;
    comparison.lacking = comparison.lines.keys().map(|at| (*at, none())).collect();
    comparison.lacking.insert((4, A), BTreeSet::from(["glibc"]));
    assert_eq!(comparison.unequal_ledgers(), None, "in one run of ten");
    let lacking = |at: &At| if at.1 == A && at.0 > 2 { BTreeSet::from(["hotspot", "proc"]) } else { none() };
    comparison.lacking = comparison.lines.keys().map(|at| (*at, lacking(at))).collect();
    let expected = "A: hotspot and proc were not read in full; B: all was read in full: ";
    assert!(comparison.unequal_ledgers().is_some_and(|sentence| sentence.starts_with(expected)));
}

#[test]
fn of_equal_programs_one_comparison_in_a_hundred_shows_a_change_at_most() {
    let mut noise = Random(0x2545_f491_4f6c_dd1d);
    let wrong = (0..1000).filter(|_| {
        let comparison = made(0.0, 0.3, &mut noise);
        let lines = comparison.line_changes().into_iter().map(|(_, change)| change);
        lines.chain(comparison.rss()).any(|change| change.direction() != Direction::Same)
    });
    let wrong = wrong.count();
    assert!(wrong <= 10, "{wrong} of 1000");
}

/// Figures, lines and the parts of all lines: one comparison in a hundred has an interval that misses at most.
#[test]
fn the_intervals_of_parts_hold_together_with_all_others() {
    const LINES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut noise = Random(0x51ab_03f7_2e6c_dd1d);
    let mut intervals = 0;
    let wrong = (0..200).filter(|_| {
        let mut comparison = made(0.0, 0.3, &mut noise);
        for lines in comparison.lines.values_mut() {
            for line in LINES {
                let mut of_part = |number: usize| {
                    let bytes = ((10.0 + noise.normal()) * MIB) as u64;
                    (Part { line: line.to_owned(), name: number.to_string() }, bytes)
                };
                let parts: Vec<(Part, u64)> = (0..10).map(&mut of_part).collect();
                lines.insert(Part::line(line), parts.iter().map(|(_, bytes)| bytes).sum());
                lines.extend(parts);
            }
        }
        let parts = LINES.iter().flat_map(|line| comparison.part_changes(line));
        let all = parts.chain(comparison.line_changes()).map(|(_, change)| change).chain(comparison.rss());
        let all: Vec<MedianChange> = all.collect();
        intervals += all.len();
        all.iter().any(|change| !change.interval.contains_zero())
    });
    let wrong = wrong.count();
    assert_eq!(intervals, 200 * (80 + 8 + 2 + 1));
    assert!(wrong <= 4, "{wrong} of 200");
}

/// Pairs with a failed run don't count. A line that only one side has is 0 on the other.
#[test]
fn only_complete_pairs_count() {
    let mut comparison = compared(0.0, 0.0);
    for run in &mut comparison.runs {
        if run.row == B && run.round < 8 {
            run.end = RunEnd::Exited(1);
        }
    }
    comparison.lines.get_mut(&(8, B)).expect("a ledger").insert(Part::line("gc"), 4 << 20);
    comparison.lines.get_mut(&(9, B)).expect("a ledger").insert(Part::line("gc"), 4 << 20);
    assert_eq!((comparison.failed(A).count(), comparison.failed(B).count()), (0, 8));
    let (part, change) = &comparison.line_changes()[0];
    assert_eq!((part.line.as_str(), change.medians, change.interval.pairs), ("gc", [0.0, 4.0 * MIB], 2));
    comparison.runs.retain(|run| run.round != 9);
    assert!(!comparison.is_compared() && comparison.rss().is_none());
}

#[test]
fn a_site_belongs_to_the_line_of_its_category() {
    let site = |category: &str, line: Option<&str>, held: [i64; 2]| Site {
        category: category.into(),
        line: line.map(str::to_owned),
        held,
        ..Site::default()
    };
    let sites = vec![
        site("GC", Some("gc"), [0, 9]),
        site("Other", Some("direct-buffers"), [7, 2]),
        site("zlib", None, [0, 5]),
        site("Other", Some("direct-buffers"), [1, 4]),
    ];
    let comparison = Comparison { tracked: Some(Tracked { sites, ..Tracked::default() }), ..Comparison::default() };
    let held = |line: &str| comparison.site_of(line).map(|site| site.held);
    assert_eq!(held("direct-buffers"), Some([1, 4]));
    assert_eq!((held("gc"), held("glibc-live")), (Some([0, 9]), Some([0, 5])));
    assert_eq!(Comparison::default().site_of("gc"), None);
}

#[test]
fn blocks_are_not_named_for_a_line_of_mappings() {
    let site = |is_mapped, grown| Site { is_mapped, held: [0, grown], ..Site::default() };
    let sites = vec![site(true, 9), site(false, 5)];
    let mut comparison = Comparison { tracked: Some(Tracked { sites, ..Tracked::default() }), ..Comparison::default() };
    let held = |of: &Comparison, line: &str| of.site_of(line).map(|site| site.held[B]);
    let lines = ["glibc-live", "other-anonymous", "other-allocator", "vm-internal"];
    // Without glibc's malloc, the other allocator may be malloc.
    assert_eq!(lines.map(|line| held(&comparison, line)), [Some(5), Some(9), Some(9), Some(9)]);
    comparison.tracked.as_mut().expect("sites").sites.reverse();
    assert_eq!(lines.map(|line| held(&comparison, line)), [Some(5), Some(9), Some(5), Some(5)]);
    comparison.lines.insert((0, A), Lines::from([(Part::line("glibc-live"), 1)]));
    assert_eq!(lines.map(|line| held(&comparison, line)), [Some(5), Some(9), Some(9), Some(5)]);
    comparison.tracked.as_mut().expect("sites").sites.truncate(1);
    assert_eq!(lines.map(|line| held(&comparison, line)), [Some(5), None, None, Some(5)]);
}

/// Comparisons whose only line that grew is this one, by so many MiB.
fn grown_by(line: &str, mib: u64, sites: Vec<Site>) -> Comparison {
    let tracked = Some(Tracked { runs: [3, 3], sites, ..Tracked::default() });
    let mut comparison = Comparison { tracked, ..compared(0.0, 0.0) };
    for ((_, side), lines) in &mut comparison.lines {
        lines.insert(Part::line(line), if *side == B { mib << 20 } else { 0 });
    }
    comparison
}

fn held(category: &str, held: [i64; 2]) -> Site {
    let least = (held[B] - held[A]).abs();
    Site { category: category.into(), held, least, ..Site::default() }
}

/// No malloc fills the mappings of libraries, and a stack of 8 KiB doesn't own 50 MiB.
#[test]
fn a_stack_owns_a_growth_only_if_it_can_and_if_it_is_a_fair_part() {
    let owner = |line: &str, mib, sites: &[Site]| {
        let comparison = grown_by(line, mib, sites.to_vec());
        comparison.site_of(line).map(|site| site.held)
    };
    let large = held("zlib", [0, 5 << 20]);
    assert_eq!(owner("glibc-live", 40, from_ref(&large)), Some([0, 5 << 20]));
    assert_eq!(owner("glibc-live", 60, from_ref(&large)), None, "less than a tenth");
    for line in ["libraries", "code-cache", "image-heap", "thread-stacks", "mapped-files", "glibc-retained"] {
        assert_eq!(owner(line, 5, from_ref(&large)), None, "{line}");
    }
    let own = |bytes| Site { line: Some("gc".into()), ..held("GC", [0, bytes]) };
    assert_eq!((owner("gc", 5, &[own(5 << 20)]), owner("gc", 5, &[own(8192)])), (Some([0, 5 << 20]), None));
    // No ledger has the line gc: the VM's blocks are among those of malloc.
    assert_eq!(owner("glibc-live", 5, &[own(5 << 20)]), Some([0, 5 << 20]));
    let of_heap = Site { line: Some("java-heap".into()), ..large.clone() };
    assert_eq!(owner("glibc-live", 5, &[of_heap]), None);
    let stackless = Site { is_stackless: true, line: Some("gc".into()), ..large };
    assert_eq!(owner("gc", 5, &[stackless]), None);
}

/// Programs that end by themselves have no ledger.
#[test]
fn without_lines_the_largest_stack_owns_the_growth_of_rss() {
    let mut comparison = grown_by("glibc-live", 5, vec![held("zlib", [9, 3]), held("zlib", [1 << 20, 6 << 20])]);
    comparison.lines.clear();
    for run in &mut comparison.runs {
        let peak = if run.row == B { 25.0 * MIB } else { 20.0 * MIB };
        run.figures = BTreeMap::from([(Metric::Peak, peak)]);
    }
    assert_eq!(comparison.owner_of(RSS).map(|site| site.held), Some([1 << 20, 6 << 20]));
    comparison.tracked.as_mut().expect("sites").sites[1].held[B] = (1 << 20) + 8192;
    assert_eq!(comparison.owner_of(RSS), None);
}

/// `main → serve → load` with 100 MiB is called `serve2` in B; another stack grew by 3 MiB.
#[test]
fn a_stack_with_another_name_does_not_own_the_growth() {
    let mib = |of: [i64; 2]| held("zlib", of.map(|mib| mib << 20));
    let owner = |sites: &[Site]| grown_by("glibc-live", 3, sites.to_vec()).site_of("glibc-live").map(|site| site.held);
    let renamed = [mib([0, 100]), mib([100, 0]), mib([0, 3])];
    assert_eq!(owner(&renamed), Some([0, 3 << 20]));
    assert_eq!(owner(&renamed[..2]), None);
    // A's stack is another one, much smaller.
    assert_eq!(owner(&[mib([0, 2]), mib([1, 0])]), Some([0, 2 << 20]));
    // It grew as well.
    assert_eq!(owner(&[mib([0, 103]), mib([100, 0])]), Some([0, 103 << 20]));
    let other = Site { category: "other".into(), ..mib([100, 0]) };
    assert_eq!(owner(&[mib([0, 100]), other]), Some([0, 100 << 20]));
    let note = |sites: &[Site]| grown_by("glibc-live", 3, sites.to_vec()).renamed_note();
    assert!(note(&renamed).is_some_and(|note| note.contains("listed twice")));
    // Tiny ones aren't listed.
    assert_eq!((note(&[mib([0, 100]), mib([1, 0])]), note(&[mib([0, 3]), mib([1, 2])])), (None, None));
    assert_eq!(Comparison::default().renamed_note(), None);
}

#[test]
fn categories_differ_if_their_ranges_do_not_overlap() {
    let category = |a: &[u64], b: &[u64]| Category { name: String::new(), held: [a.to_vec(), b.to_vec()] };
    assert!(category(&[1, 2], &[3, 4]).differs() && category(&[5, 6], &[3, 4]).differs());
    assert!(!category(&[1, 3], &[3, 4]).differs() && !category(&[], &[3]).differs());
    assert_eq!(category(&[1, 2], &[4]).means(), [1.5, 4.0]);
}
