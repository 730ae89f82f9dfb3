//! Compares two reports on one program: blocks that come and go are noise, a leak is growth, and the sums hold.
//!
//! The program is a simulation with known rates: each site's blocks arrive at random and stay for a random time.

#[path = "../../../fixtures/random.rs"]
mod random;
use plimsoll_profiles::profile::{ChangeKind, Entry, Frame, FrameOrigin, Labels, Profile, ProfileDiff, Value};
use plimsoll_tracked::sites::{self, Detail, Sites, comparable};
use random::Random;

/// A site: blocks of one size arrive at a rate and live for a mean time; and the blocks that it leaks.
struct Site {
    stack: [String; 3],
    size: u64,
    rate: f64,
    mean: f64,
    leaks: u64,
    /// When its live blocks are freed.
    ends: Vec<f64>,
    leaked: u64,
    cumulative: u64,
}

impl Site {
    fn until(&mut self, random: &mut Random, from: f64, to: f64) {
        let mut now = from;
        loop {
            now += -(1.0 - random.unit()).ln() / self.rate;
            if now >= to {
                break;
            }
            self.cumulative += 1;
            let stay = -(1.0 - random.unit()).ln() * self.mean;
            if now + stay > to {
                self.ends.push(now + stay);
            }
        }
        self.ends.retain(|end| *end > to);
        self.leaked += self.leaks;
        self.cumulative += self.leaks;
    }
}

/// `heap` is committed memory without a stack.
fn report(of: &[Site], title: &str, heap: u64) -> Sites {
    let mut profile = Profile::new(sites::columns());
    profile.title = title.into();
    let category = Some(profile.name("Java Heap"));
    let none = profile.stack(&[]);
    let mut values = vec![Value::default(); profile.columns.len()];
    (values[sites::HELD], values[sites::COMMITTED]) = (Value::exact(heap), Value::exact(heap));
    profile.add(none, Labels { category, ..Labels::default() }, &values);
    for site in of {
        let live = site.ends.len() as u64 + site.leaked;
        let frame =
            |name: &String| Frame { function: Some(name.clone()), kind: FrameOrigin::Native, ..Frame::default() };
        let frames: Vec<_> = site.stack.iter().map(|name| profile.frame(frame(name))).collect();
        let stack = profile.stack(&frames);
        let mut values = vec![Value::default(); profile.columns.len()];
        values[sites::LIVE] = Value::exact(live * site.size);
        values[sites::HELD] = values[sites::LIVE];
        values[sites::LIVE_COUNT] = Value::exact(live);
        values[sites::CUMULATIVE_COUNT] = Value::exact(site.cumulative);
        profile.add(stack, Labels::default(), &values);
    }
    Sites { profile, ..Sites::default() }
}

/// A program with busy sites, and as many rare ones that begin alike (a compiler's arenas). The first site leaks
/// `leaks` blocks between the reports.
fn program(random: &mut Random, leaks: u64, named: [&str; 2]) -> (Sites, Sites) {
    let site = |n: usize, random: &mut Random, is_busy: bool| Site {
        stack: match is_busy {
            true => [format!("work{n}"), "serve".into(), "main".into()],
            false => ["grow".into(), "Arena::grow".into(), format!("phase{n}")],
        },
        size: if is_busy { 16 << (random.below(12)) } else { 32 << 10 },
        rate: if is_busy { 1.0 + 300.0 * random.unit().powi(3) } else { 0.3 },
        mean: if is_busy { 0.001 + 5.0 * random.unit().powi(3) } else { 0.5 },
        leaks: 0,
        ends: Vec::new(),
        leaked: 0,
        cumulative: 0,
    };
    let mut sites: Vec<Site> = (0..200).map(|n| site(n, random, n.is_multiple_of(2))).collect();
    sites.iter_mut().for_each(|s| s.until(random, 0.0, 20.0));
    let before = report(&sites, named[0], 100 << 20);
    sites[0].leaks = leaks;
    sites.iter_mut().for_each(|s| s.until(random, 20.0, 30.0));
    (before, report(&sites, named[1], 108 << 20))
}

/// All changes that aren't noise, except memory without a stack.
fn changed(before: &Sites, after: &Sites) -> Vec<(ChangeKind, String)> {
    let (one, other) = comparable(before, after);
    let sum = |p: &Profile| p.total()[sites::HELD].amount;
    assert_eq!((sum(&one), sum(&other)), (sum(&before.profile), sum(&after.profile)), "nothing is lost");
    let d = ProfileDiff::new((&one, sites::HELD), (&other, sites::HELD));
    let name = |stack| d.profile.function_at(d.profile.function_of(d.profile.frames_of(stack)[0]));
    let heap: Vec<_> = d.sites.iter().filter(|s| name(s.stack).is_no_stack()).collect();
    assert!(heap.len() == 1 && heap[0].grown() == 8 << 20 && name(heap[0].stack).name == "[no stack: Java Heap]");
    let rest = d.sites.iter().filter(|s| !name(s.stack).is_no_stack());
    let rest = rest.filter(|s| !matches!(s.change, ChangeKind::Noise | ChangeKind::Same));
    rest.map(|s| (s.change, name(s.stack).name.clone())).collect()
}

#[test]
fn a_healthy_program_does_not_grow_and_a_leak_does() {
    let mut random = Random(0x5DEE_CE66_D1CE_4E5B);
    let (mut alarms, mut found, mut counted_changes) = (0, 0, 0);
    const PAIRS: usize = 40;
    for _ in 0..PAIRS {
        let (before, after) = program(&mut random, 0, ["p, pid 1"; 2]);
        alarms += usize::from(!changed(&before, &after).is_empty());
        // For two processes, the time in between is unknown, so changes of counted figures count.
        let (before, after) = program(&mut random, 0, ["p, pid 1", "p, pid 2"]);
        counted_changes += changed(&before, &after).len();
        let (before, after) = program(&mut random, 20_000, ["p, pid 1"; 2]);
        let changes = changed(&before, &after);
        found += usize::from(changes.iter().any(|(change, name)| *change == ChangeKind::Grew && name == "work0"));
    }
    // At a family-wise level of 5 %, 40 pairs give 2 alarms on average, and very rarely more than 8.
    assert!(alarms <= 8, "{alarms} alarms in {PAIRS} pairs");
    assert_eq!(found, PAIRS, "a leak that is found each time");
    assert!(counted_changes > PAIRS * 10, "the same changes without it: {counted_changes}");
}

/// Blocks that only arrive are growth, however few they are.
#[test]
fn blocks_that_never_go_are_growth() {
    let site = |live: u64| Site {
        stack: ["allocateDirect".into(), "cache".into(), "main".into()],
        size: 1 << 20,
        rate: 1.0,
        mean: 1.0,
        leaks: 0,
        ends: Vec::new(),
        leaked: live,
        cumulative: live,
    };
    let changes = changed(&report(&[site(8)], "p", 100 << 20), &report(&[site(10)], "p", 108 << 20));
    assert_eq!(changes, [(ChangeKind::Grew, "allocateDirect".to_string())]);
    let small = |live| Site { size: 100, ..site(live) };
    assert_eq!(changed(&report(&[small(8)], "p", 100 << 20), &report(&[small(10)], "p", 108 << 20)), []);
}

/// A caller's early blocks have no samples. Another caller with the same functions (two calls in one function) has
/// samples by now.
#[test]
fn a_caller_without_samples_in_both_reports_is_not_new() {
    let with = |sampled: u64, heap: u64| {
        let mut of = report(&[], "p", heap);
        let deep = ["leaks", "serve", "main", "_start"];
        for (names, bytes, unsampled) in [(&deep[..3], 1_500_000, true), (&deep[..], sampled, false)] {
            if bytes == 0 {
                continue;
            }
            let frame =
                |name: &&str| Frame { function: Some(name.to_string()), kind: FrameOrigin::Native, ..Frame::default() };
            let frames: Vec<_> = names.iter().map(|name| of.profile.frame(frame(name))).collect();
            let stack = of.profile.stack(&frames);
            let mut values = vec![Value::default(); of.profile.columns.len()];
            values[sites::LIVE] = Value::exact(bytes);
            values[sites::HELD] = values[sites::LIVE];
            of.profile.add(stack, Labels::default(), &values);
            let entry = Entry { stack, labels: Labels::default() };
            of.details.insert(entry, Detail { unsampled, ..Detail::default() });
        }
        of
    };
    for (before, after) in [0, 2_000_000].map(|early| (with(early, 100 << 20), with(14_000_000, 108 << 20))) {
        let changes = changed(&before, &after);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(matches!(changes[0].0, ChangeKind::Grew), "{changes:?}");
    }
}

/// The columns of a recording: those of the report as far as `TEMPORARY`.
fn recorded(stacks: &[(&[&str], u64)]) -> Profile {
    let mut columns = sites::columns();
    columns.truncate(sites::TEMPORARY);
    let mut profile = Profile::new(columns);
    for (names, bytes) in stacks {
        let frame =
            |name: &&str| Frame { function: Some(name.to_string()), kind: FrameOrigin::Native, ..Frame::default() };
        let frames: Vec<_> = names.iter().map(|name| profile.frame(frame(name))).collect();
        let stack = profile.stack(&frames);
        let mut values = vec![Value::default(); profile.columns.len()];
        values[sites::LIVE] = Value::exact(*bytes);
        profile.add(stack, Labels::default(), &values);
    }
    profile
}

/// It is chance whether a block was sampled and so has its deep stack: two recordings of one program differ in it.
#[test]
fn a_block_that_only_one_recording_sampled_is_no_change() {
    let deep: &[&str] = &["malloc", "table", "init", "create", "main"];
    let other: &[&str] = &["malloc", "table", "load", "main"];
    let changes = |before: &[(&[&str], u64)], after: &[(&[&str], u64)]| {
        let (one, other) = sites::comparable_recorded(&recorded(before), &recorded(after));
        for (of, with) in [(&one, before), (&other, after)] {
            let sum: u64 = with.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(of.total()[sites::LIVE].amount as u64, sum, "nothing is lost");
        }
        let diff = ProfileDiff::new((&one, sites::LIVE), (&other, sites::LIVE));
        let changed = diff.sites.iter().filter(|s| !matches!(s.change, ChangeKind::Noise | ChangeKind::Same));
        changed.map(|s| (s.change, s.grown())).collect::<Vec<_>>()
    };
    let (sampled, not) = ([(deep, 500_000), (other, 7)], [(&deep[..3], 500_000), (other, 7)]);
    assert_eq!(changes(&sampled, &not), []);
    assert_eq!(changes(&not, &sampled), []);
    // The rest of a caller whose other blocks were sampled.
    assert_eq!(changes(&[(deep, 300_000), (&deep[..3], 200_000)], &[(deep, 500_000)]), []);
    // A leak below a caller whose blocks no sample hit at first.
    assert_eq!(changes(&not, &[(deep, 900_000), (other, 7)]), [(ChangeKind::Grew, 400_000)]);
    // Two stacks that only begin alike are two stacks.
    let grown = [(ChangeKind::New, 500_000), (ChangeKind::Gone, -500_000)];
    assert_eq!(changes(&[(other, 500_000)], &[(deep, 500_000)]), grown);
}
