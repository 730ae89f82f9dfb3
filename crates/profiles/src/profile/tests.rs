//! Random profiles compared with naive twins: lists of (function names, labels, values) that are filtered and added
//! directly.

use crate::random::Random;
use std::collections::BTreeMap;

use super::diff::{AFTER, BEFORE};
use super::*;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::units::Avma;

/// An entry of the twin, innermost frame first.
#[derive(Clone, Debug)]
struct Plain {
    frames: Vec<usize>,
    thread: Option<usize>,
    bytes: i64,
    count: i64,
    variance: f64,
}

const FUNCTIONS: usize = 14;
const THREADS: [&str; 3] = ["main", "worker", "GC Thread#0"];

/// Frames with and without names; Java frames of the platform, of an application, and without package.
fn frame(profile: &mut Profile, function: usize, line: u32) -> FrameId {
    let lib = profile.module(Module { path: "/usr/lib/libdemo.so".into(), ..Module::default() });
    let app = profile.module(Module { path: "/opt/app".into(), ..Module::default() });
    let offset = 0x100 * function as u64;
    let java = |name: &str| Frame {
        function: Some(name.into()),
        kind: FrameOrigin::Java,
        line: Some(line),
        ..Frame::default()
    };
    let native = |module, name: Option<&str>| Frame {
        function: name.map(str::to_string),
        module: Some(module),
        offset: offset + if name.is_some() { u64::from(line) } else { 0 },
        kind: FrameOrigin::Native,
        line: name.map(|_| line),
        ..Frame::default()
    };
    let frame = match function {
        0 => native(lib, Some("demo_open")),
        1 => native(lib, Some("demo_read")),
        2 => native(lib, None),
        3 => native(app, Some("main")),
        4 => native(app, Some("recurse")),
        5 => native(app, None),
        6 => java("java.util.zip.Inflater.init"),
        7 => java("java.nio.Bits.reserveMemory"),
        8 => java("org.acme.Shop.order"),
        9 => java("org.acme.Shop$Item.<init>"),
        10 => java("org.other.Job.run"),
        11 => java("Main.main"),
        12 => Frame { address: Avma(0x7000), kind: FrameOrigin::Jit, ..Frame::default() },
        _ => Frame::truncated(),
    };
    profile.frame(frame)
}

fn names() -> Vec<String> {
    let mut profile = Profile::new(vec![]);
    (0..FUNCTIONS)
        .map(|f| {
            let id = frame(&mut profile, f, 0);
            profile.function_at(profile.function_of(id)).name.clone()
        })
        .collect()
}

fn random(random: &mut Random, entries: u64) -> (Profile, Vec<Plain>) {
    let mut profile = Profile::new(vec![Column::bytes("live"), Column::count("live", "block")]);
    let mut plain = vec![];
    for _ in 0..entries {
        let depth = random.below(7);
        let frames: Vec<usize> = (0..depth).map(|_| random.below(FUNCTIONS as u64) as usize).collect();
        let thread = random.below(4).checked_sub(1).map(|t| t as usize);
        // Round values too, so that some sites are equal in both profiles.
        let unit = [1, 5000][random.below(2) as usize];
        let (bytes, count) = ((random.below(10_000 / unit) * unit) as i64, random.below(5) as i64);
        let variance = if random.below(3) == 0 { random.below(1_000_000) as f64 } else { 0.0 };
        let ids: Vec<FrameId> = frames.iter().map(|f| frame(&mut profile, *f, 1 + random.below(3) as u32)).collect();
        let stack = profile.stack(&ids);
        let labels = Labels { thread: thread.map(|t| profile.name(THREADS[t])), ..Labels::default() };
        profile.add(stack, labels, &[Value::estimated(bytes as u64, variance), Value::exact(count as u64)]);
        plain.push(Plain { frames, thread, bytes, count, variance });
    }
    (profile, plain)
}

fn sums(values: &[Value]) -> (i64, i64) {
    (values[0].amount, values[1].amount)
}

fn plain_sum<'a>(plain: impl IntoIterator<Item = &'a Plain>) -> (i64, i64) {
    plain.into_iter().fold((0, 0), |(bytes, count), p| (bytes + p.bytes, count + p.count))
}

#[test]
fn every_view_sums_to_the_total() {
    let mut dice = Random(0x9e37_79b9);
    let mut merged = 0;
    for _ in 0..200 {
        let many = dice.below(300);
        let (profile, plain) = random(&mut dice, many);
        let total = plain_sum(&plain);
        assert_eq!(sums(&profile.total()), total);
        let variance: f64 = plain.iter().map(|p| p.variance).sum();
        assert!((profile.total()[0].variance - variance).abs() <= variance * 1e-9);
        merged += plain.len() - profile.entries().len();
        for by in GroupBy::ALL {
            let groups = profile.group(by, 0);
            let of_groups = groups.iter().map(|g| sums(&g.values)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            assert_eq!(of_groups, total, "by {}", by.name());
            assert!(groups.is_sorted_by_key(|g| -g.values[0].amount), "by {}", by.name());
            assert_eq!(groups.iter().map(|g| g.entries).sum::<u64>(), profile.entries().len() as u64);
        }
        for column in 0..2 {
            let tree = Tree::of_column(&profile, column);
            let (of, other) = (tree.values(0)[0].amount, tree.values(0)[1].amount);
            assert_eq!(if column == 0 { (of, other) } else { (other, of) }, total);
            assert_eq!(tree.nodes[0].weight, of);
            for (at, node) in tree.nodes.iter().enumerate() {
                let children: i64 = node.children.iter().map(|c| tree.values(*c)[0].amount).sum();
                assert_eq!(tree.values(at)[0].amount, children + tree.own(at)[0].amount);
                assert!(node.children.iter().all(|c| *c > at && tree.nodes[*c].parent == at));
                assert!(node.children.is_sorted_by_key(|c| -tree.nodes[*c].weight));
            }
        }
    }
    assert!(merged > 0, "no stack came twice");
}

/// The line that is shown of a site is that of most of its memory, not of the first block.
#[test]
fn the_biggest_stack_of_a_site_stands_for_it() {
    let mut profile = Profile::new(vec![Column::bytes("live"), Column::count("live", "block")]);
    let stacks = [24, 25, 28].map(|line| {
        let id = frame(&mut profile, 3, line);
        profile.stack(&[id])
    });
    // Line 25 is bigger in two threads together.
    for (at, thread, bytes, count) in [(0, 0, 3, 9), (1, 0, 300, 1), (1, 1, 300, 1), (2, 0, 500, 1)] {
        let labels = Labels { thread: Some(profile.name(THREADS[thread])), ..Labels::default() };
        profile.add(stacks[at], labels, &[Value::exact(bytes), Value::exact(count)]);
    }
    for (column, order) in [(0, [1, 2, 0]), (1, [0, 1, 2])] {
        let groups = profile.group(GroupBy::Site, column);
        let [group] = groups.as_slice() else { panic!("{groups:?}") };
        assert_eq!((group.stack, group.entries), (Some(stacks[order[0]]), 4));
        assert_eq!(group.other_stacks, [stacks[order[1]], stacks[order[2]]]);
    }
    for (column, biggest) in [(0, 28), (1, 24)] {
        let diff = ProfileDiff::new((&profile, column), (&profile, column));
        let [site] = diff.sites.as_slice() else { panic!("{:?}", diff.sites) };
        assert_eq!(diff.profile.frame_at(diff.profile.frames_of(site.stack)[0]).line, Some(biggest));
    }
    assert!(profile.group(GroupBy::Caller, 0).iter().all(|g| g.stack.is_none() && g.other_stacks.is_empty()));
}

#[test]
fn groups_equal_a_naive_sum() {
    let names = names();
    let module = |f: usize| ["libdemo.so", "libdemo.so", "libdemo.so", "app", "app", "app"].get(f).copied();
    let package = |f: usize| match f {
        6 => Some("java.util.zip"),
        7 => Some("java.nio"),
        8 | 9 => Some("org.acme"),
        10 => Some("org.other"),
        11 => Some("(default package)"),
        _ => None,
    };
    let mut dice = Random(77);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..100 {
        let (profile, plain) = random(&mut dice, 200);
        for by in [GroupBy::Site, GroupBy::Caller, GroupBy::Module, GroupBy::Thread, GroupBy::Package] {
            let mut twin: BTreeMap<String, (i64, i64)> = BTreeMap::new();
            for p in &plain {
                let first = |of: &dyn Fn(usize) -> Option<&'static str>| p.frames.iter().find_map(|f| of(*f));
                let none = "(none)".to_string();
                let key = match by {
                    GroupBy::Site => p.frames.iter().map(|f| names[*f].clone()).collect::<Vec<_>>().join(";"),
                    GroupBy::Caller => p.frames.first().map_or(none, |f| names[*f].clone()),
                    GroupBy::Module => first(&module).map_or(none, str::to_string),
                    GroupBy::Thread => p.thread.map_or(none, |t| THREADS[t].to_string()),
                    _ => first(&|f| package(f).filter(|_| f >= 8))
                        .or_else(|| first(&package))
                        .or_else(|| first(&module))
                        .map_or(none, str::to_string),
                };
                let sum = twin.entry(key).or_default();
                *sum = (sum.0 + p.bytes, sum.1 + p.count);
            }
            let mut found: BTreeMap<String, (i64, i64)> = BTreeMap::new();
            for group in profile.group(by, 0) {
                let key = match group.stack {
                    Some(stack) => {
                        let text = |f: &FrameId| profile.function_at(profile.function_of(*f)).name.clone();
                        profile.frames_of(stack).iter().map(text).collect::<Vec<_>>().join(";")
                    }
                    None => group.name.clone(),
                };
                *seen.entry(format!("{} {}", by.name(), if by == GroupBy::Site { "x" } else { &key })).or_default() +=
                    1;
                assert!(found.insert(key.clone(), sums(&group.values)).is_none(), "{key} twice by {}", by.name());
            }
            assert_eq!(found, twin, "by {}", by.name());
        }
    }
    for line in [
        "package org.acme",
        "package (default package)",
        "package java.nio",
        "package app",
        "module (none)",
        "thread (none)",
        "caller 0x7000",
        "caller libdemo.so+0x200",
        "caller [truncated]",
    ] {
        assert!(seen.contains_key(line), "never: {line} of {seen:?}");
    }
}

/// Two callers whose totals are counted, divided among sites; and a caller that is divided in two categories.
#[test]
fn what_was_counted_has_no_error_in_a_group() {
    let mut profile = Profile::new(vec![Column::bytes("live"), Column::count("live", "block")]);
    let names = ["zlib", "http", "order"].map(|name| profile.name(name));
    let wholes = [(); 3].map(|()| profile.whole());
    // The first caller has both sites in one category; the second has one site; the third's are in two categories.
    for (whole, inner, outer, category) in [
        (0, "deflate", "page", 0),
        (0, "deflate", "image", 0),
        (1, "send", "page", 1),
        (2, "copy", "page", 1),
        (2, "copy", "image", 2),
    ] {
        let frames = [inner, outer].map(|name| {
            profile.frame(Frame { function: Some(name.into()), kind: FrameOrigin::Native, ..Frame::default() })
        });
        let stack = profile.stack(&frames);
        let labels = Labels { category: Some(names[category]), ..Labels::default() };
        let values = [Value::estimated(100, 25.0), Value::estimated(10, 4.0)];
        profile.add_part(wholes[whole], stack, labels, &values);
    }
    let none = profile.stack(&[]);
    let errors = |profile: &Profile, by| {
        let of = profile.group(by, 0).into_iter().map(|group| (group.name, group.values[0].variance));
        of.collect::<BTreeMap<String, f64>>()
    };
    let expected = |of: &[(&str, f64)]| of.iter().map(|(name, variance)| (name.to_string(), *variance)).collect();
    let by_category: BTreeMap<String, f64> = expected(&[("http", 25.0), ("order", 25.0), ("zlib", 0.0)]);
    assert_eq!(errors(&profile, GroupBy::Category), by_category);
    assert_eq!(errors(&profile, GroupBy::Caller), expected(&[("copy", 0.0), ("deflate", 0.0), ("send", 0.0)]));
    // A caller may have sites that no sample hit. So even the only site of a caller has an error.
    assert_eq!(profile.group(GroupBy::Site, 0)[0].values[0].variance, 25.0);
    // Without the innermost frame, the sites of several callers are one stack. Their callers stay complete elsewhere.
    let (trimmed, _) = profile.trimmed(|_| 1);
    assert_eq!(errors(&trimmed, GroupBy::Category)["zlib"], 0.0);
    assert_eq!(errors(&trimmed, GroupBy::Caller), expected(&[("image", 50.0), ("page", 75.0)]));
    // Inside a focus, it is unknown how much a caller's sites without samples have.
    let focused = profile.focus(&Focus::new("deflate").expect("valid")).profile;
    assert_eq!(errors(&focused, GroupBy::Category), expected(&[("zlib", 50.0)]));
    // The total is counted if the maker of the profile states it.
    assert_eq!(profile.total()[0].variance, 125.0);
    profile.sums_are_counted(|at, _| at == 0);
    assert_eq!((profile.total()[0].variance, profile.total()[1].variance), (0.0, 20.0));
    assert_eq!(Tree::of_column(&profile, 0).values(0)[0], Value { amount: 500, variance: 0.0 });
    // An entry that isn't a part of anything keeps its error.
    profile.add(none, Labels::default(), &[Value::estimated(1, 9.0)]);
    assert_eq!((profile.total()[0].variance, errors(&profile, GroupBy::Category)["(none)"]), (134.0, 9.0));
}

#[test]
fn focus_keeps_what_lies_below_and_counts_the_rest() {
    let names = names();
    let mut dice = Random(4711);
    let (mut kept_some, mut cut, mut recursive) = (0, 0, 0);
    for pattern in ["recurse", "^main$", "org\\.acme", "libdemo", "0x", "nothing at all", "."] {
        let focus = Focus::new(pattern).expect("a pattern");
        let in_module = |f: usize| ["libdemo.so", "libdemo.so", "libdemo.so", "app", "app", "app"].get(f).copied();
        for _ in 0..50 {
            let (profile, plain) = random(&mut dice, 100);
            let root = |p: &Plain| {
                let matches = |f: &usize| focus.matches(&names[*f]) || in_module(*f).is_some_and(|m| focus.matches(m));
                recursive += usize::from(p.frames.iter().filter(|f| matches(f)).count() > 1);
                p.frames.iter().rposition(matches)
            };
            let roots: Vec<Option<usize>> = plain.iter().map(root).collect();
            let Focused { profile: below, left_out } = profile.focus(&focus);
            let kept = plain.iter().zip(&roots).filter(|(_, r)| r.is_some()).map(|(p, _)| p);
            let left = plain.iter().zip(&roots).filter(|(_, r)| r.is_none()).map(|(p, _)| p);
            assert_eq!(sums(&below.total()), plain_sum(kept), "{pattern}");
            assert_eq!(sums(&left_out), plain_sum(left), "{pattern}");
            kept_some += roots.iter().flatten().count();
            cut += plain.iter().zip(&roots).filter(|(p, r)| r.is_some_and(|r| r + 1 < p.frames.len())).count();
            for (entry, _) in below.entries() {
                let outermost = *below.frames_of(entry.stack).last().expect("the root");
                let function = below.function_at(below.function_of(outermost));
                assert!(focus.matches(&function.name) || focus.matches(&function.module), "{function:?}");
            }
        }
    }
    assert!(kept_some > 100 && cut > 100 && recursive > 100, "{kept_some} {cut} {recursive}");
}

/// A stripped program of which the loader knows one name, a library with names but for one function, and Java.
#[test]
fn a_module_most_of_whose_functions_have_no_name_is_nameless() {
    let mut profile = Profile::new(vec![Column::bytes("live")]);
    let mut frames = Vec::new();
    for (module, names) in
        [("/opt/hello", [Some("main"), None, None]), ("/usr/lib/libc.so.6", [Some("malloc"), Some("brk"), None])]
    {
        let module = profile.module(Module { path: module.into(), ..Module::default() });
        for (number, name) in names.into_iter().enumerate() {
            let (function, offset) = (name.map(str::to_string), 0x100 * (1 + number as u64));
            let kind = FrameOrigin::Native;
            frames.push(profile.frame(Frame { function, module: Some(module), offset, kind, ..Frame::default() }));
        }
    }
    let java = Frame { function: Some("A.a".into()), kind: FrameOrigin::Java, ..Frame::default() };
    frames.push(profile.frame(java));
    assert!(profile.nameless_modules().is_empty(), "no stack has them");
    let stack = profile.stack(&frames);
    profile.add(stack, Labels::default(), &[Value { amount: 1, variance: 0.0 }]);
    assert_eq!(profile.nameless_modules(), ["hello"]);
}

#[test]
fn invalid_patterns_give_one_sentence() {
    for bad in ["(", "a{99999999}", "[z-a]", "(a{1000}){1000}"] {
        let refused = Focus::new(bad).expect_err(bad);
        assert!(!refused.contains('\n') && refused.len() > 10, "{refused}");
    }
}

#[test]
fn a_difference_equals_a_naive_one() {
    let names = names();
    let mut dice = Random(31);
    let mut seen: BTreeMap<ChangeKind, u64> = BTreeMap::new();
    for _ in 0..150 {
        let (many, more) = (dice.below(60), dice.below(60));
        let ((before, plain_before), (after, plain_after)) = (random(&mut dice, many), random(&mut dice, more));
        let mut twin: BTreeMap<String, [(i64, f64, bool); 2]> = BTreeMap::new();
        for (plain, at) in [(&plain_before, BEFORE), (&plain_after, AFTER)] {
            for p in plain {
                let key = p.frames.iter().map(|f| names[*f].clone()).collect::<Vec<_>>().join(";");
                let (bytes, variance, known) = &mut twin.entry(key).or_default()[at];
                (*bytes, *variance, *known) = (*bytes + p.bytes, *variance + p.variance, true);
            }
        }
        let diff = ProfileDiff::new((&before, 0), (&after, 0));
        assert_eq!(diff.sites.len(), twin.len());
        let z = (2.0 * (40.0 * twin.len().max(1) as f64).ln()).sqrt();
        for site in &diff.sites {
            let text = |f: &FrameId| diff.profile.function_at(diff.profile.function_of(*f)).name.clone();
            let key = diff.profile.frames_of(site.stack).iter().map(text).collect::<Vec<_>>().join(";");
            let [b, a] = twin[&key];
            assert_eq!((site.before.amount, site.after.amount), (b.0, a.0), "{key}");
            // A ten-thousandth of the larger sum, at most 64 KiB.
            let whole = before.total()[0].amount.max(after.total()[0].amount);
            let bound = (z * (a.1 + b.1).sqrt()).max((whole / 10_000).min(65_536) as f64);
            let change = match a.0 - b.0 {
                0 => ChangeKind::Same,
                n if (n.abs() as f64) <= bound => ChangeKind::Noise,
                _ if !b.2 => ChangeKind::New,
                _ if !a.2 => ChangeKind::Gone,
                n if n > 0 => ChangeKind::Grew,
                _ => ChangeKind::Shrank,
            };
            // The bound is rounded up to whole bytes.
            assert!(
                site.change == change || (site.grown().unsigned_abs() as f64 - bound).abs() <= 1.0,
                "{key}: {site:?}"
            );
            *seen.entry(site.change).or_default() += 1;
        }
        let (total_before, total_after) = diff.total();
        assert_eq!((total_before.amount, total_after.amount), (before.total()[0].amount, after.total()[0].amount));
        assert!(diff.sites.is_sorted_by_key(|s| (s.change, -(s.grown().abs()))));
    }
    assert!(ChangeKind::ALL.iter().all(|c| seen.contains_key(c)), "{seen:?}");
}

/// The functions got their names after the first report, and one shows what was inlined: the code is the same site.
#[test]
fn a_site_under_another_name_is_found_by_its_code() {
    let report = |build_id: &[u8], names: [Option<&str>; 2], is_inlined: bool, amount: u64| {
        let mut profile = Profile::new(vec![Column::bytes("live")]);
        let module = Module { path: "/opt/app".into(), build_id: build_id.to_vec(), ..Module::default() };
        let module = Some(profile.module(module));
        let at = |offset: u64, name: Option<&str>| Frame {
            function: name.map(str::to_owned),
            module,
            offset,
            kind: FrameOrigin::Native,
            ..Frame::default()
        };
        let mut frames = vec![at(0x10, names[0]), at(0x20, names[1])];
        if is_inlined {
            frames.insert(0, Frame { inlined: true, ..at(0x10, Some("inner")) });
        }
        let ids: Vec<FrameId> = frames.into_iter().map(|frame| profile.frame(frame)).collect();
        let stack = profile.stack(&ids);
        profile.add(stack, Labels::default(), &[Value::exact(amount)]);
        profile
    };
    let changes = |before: &Profile, after: &Profile| {
        let diff = ProfileDiff::new((before, 0), (after, 0));
        diff.sites.iter().map(|site| (site.change, site.grown())).collect::<Vec<_>>()
    };
    let named = report(b"one", [Some("f"), Some("main")], true, 5);
    assert_eq!(changes(&report(b"one", [None, None], false, 3), &named), [(ChangeKind::Grew, 2)]);
    // In another build, these offsets are other code. Without a build id, the build is unknown.
    for build_id in [&b"two"[..], &b""[..]] {
        let found = changes(&report(build_id, [None, None], false, 3), &named);
        assert_eq!(found, [(ChangeKind::New, 5), (ChangeKind::Gone, -3)]);
    }
    let other = report(b"one", [Some("f"), None], false, 3);
    assert_eq!(changes(&other, &named), [(ChangeKind::Grew, 2)], "one name suffices to differ");
}

/// Only a name shows that a frame is the allocator's own, so names are taken over before such frames are dropped.
#[test]
fn names_come_from_a_profile_of_the_same_build() {
    let report = |build_id: &[u8], names: [Option<&str>; 2], amount: u64| {
        let mut profile = Profile::new(vec![Column::bytes("live")]);
        let module = Module { path: "/opt/app".into(), build_id: build_id.to_vec(), ..Module::default() };
        let module = Some(profile.module(module));
        let frames = [(0x10, names[0]), (0x20, names[1])].map(|(offset, name)| {
            let function = name.map(str::to_owned);
            profile.frame(Frame { function, module, offset, kind: FrameOrigin::Native, ..Frame::default() })
        });
        let stack = profile.stack(&frames);
        profile.add(stack, Labels::default(), &[Value::exact(amount)]);
        profile
    };
    let functions = |of: &Profile| -> Vec<Option<String>> {
        let (entry, _) = of.entries().next().expect("an entry");
        of.frames_of(entry.stack).iter().map(|frame| of.frame_at(*frame).function.clone()).collect()
    };
    let named = report(b"one", [Some("malloc"), Some("main")], 5);
    let unnamed = report(b"one", [None, Some("own")], 3);
    let (found, to) = unnamed.named_by(&named).expect("a name");
    assert_eq!(functions(&found), [Some("malloc".into()), Some("own".into())], "a name of its own stays");
    assert_eq!((found.total()[0].amount, to.len()), (3, 1));
    assert!(named.named_by(&unnamed).is_none(), "nothing is missing");
    // Other builds have other code at this offset. Without a build id, the build is unknown.
    for build_id in [&b"two"[..], &b""[..]] {
        assert!(report(build_id, [None, None], 3).named_by(&named).is_none());
    }
}

/// Two estimates of the same amounts, many sites, many runs: the share of runs with any reported change stays below the
/// promised 5 %.
#[test]
fn unchanged_sites_are_reported_as_noise() {
    let mut dice = Random(5);
    let (mut alarms, mut noise) = (0, 0);
    const RUNS: u64 = 200;
    for _ in 0..RUNS {
        let mut sides = [0, 1].map(|_| Profile::new(vec![Column::bytes("live")]));
        for profile in &mut sides {
            for site in 0..200 {
                // Irwin–Hall: twelve dice of variance 1/12 each are nearly normal with variance 1.
                let normal = (0..12).map(|_| dice.below(1 << 20) as f64 / (1u64 << 20) as f64).sum::<f64>() - 6.0;
                let frame = profile.frame(Frame { address: Avma(0x1000 + site), ..Frame::default() });
                let stack = profile.stack(&[frame]);
                let value = Value::estimated((1_000_000.0 + 1000.0 * normal) as u64, 1_000_000.0);
                profile.add(stack, Labels::default(), &[value]);
            }
        }
        let diff = ProfileDiff::new((&sides[0], 0), (&sides[1], 0));
        noise += diff.sites.iter().filter(|s| s.change == ChangeKind::Noise).count();
        alarms += u64::from(diff.sites.iter().any(|s| !matches!(s.change, ChangeKind::Noise | ChangeKind::Same)));
    }
    assert!(noise > 30_000, "{noise}");
    assert!(alarms * 20 <= RUNS, "{alarms} of {RUNS} runs");
}

/// Three runs of each program. A change counts if every run of one program has more than every run of the other;
/// otherwise it is noise.
#[test]
fn a_change_between_runs_counts_if_their_ranges_do_not_overlap() {
    const MIB: u64 = 1 << 20;
    let run = |amounts: [u64; 4]| {
        let mut profile = Profile::new(vec![Column::bytes("held")]);
        let category = Some(profile.name("zlib"));
        for (site, amount) in amounts.into_iter().enumerate().filter(|(_, amount)| *amount > 0) {
            let function = Some(format!("f{site}"));
            let frame =
                profile.frame(Frame { function, address: Avma(0x1000 + site as u64 + amount), ..Frame::default() });
            let stack = profile.stack(&[frame]);
            profile.add(stack, Labels { category, ..Labels::default() }, &[Value::exact(amount)]);
        }
        profile
    };
    // Grown by 2 at least, noise, equal, new in each run.
    let before = [[4, 1, 7, 0], [5, 9, 7, 0], [6, 5, 7, 0]].map(|of| run(of.map(|mib| mib * MIB)));
    let after = [[8, 8, 7, 1], [9, 2, 7, 2], [10, 6, 7, 3]].map(|of| run(of.map(|mib| mib * MIB)));
    let [before, after] = [&before, &after].map(|side| side.iter().map(|run| (run, 0)).collect::<Vec<_>>());
    let diff = ProfileDiff::of_runs(&before, &after);
    let name = |site: &SiteChange| {
        let frame = diff.profile.frames_of(site.stack)[0];
        diff.profile.function_at(diff.profile.function_of(frame)).name.clone()
    };
    let found: Vec<_> =
        diff.sites.iter().map(|site| (name(site), site.change, site.grown() / MIB as i64, site.bound / MIB)).collect();
    let named = |name: &str, change, grown, bound| (name.to_owned(), change, grown, bound);
    assert_eq!(
        found,
        [
            named("f3", ChangeKind::New, 2, 1),
            named("f0", ChangeKind::Grew, 4, 2),
            named("f1", ChangeKind::Noise, 0, 7),
            named("f2", ChangeKind::Same, 0, 0)
        ]
    );
    assert_eq!((diff.category(diff.sites[0].stack), diff.runs), (Some("zlib"), Some([3, 3])));
    let (from, to) = diff.total();
    assert_eq!((from.amount, to.amount), (17 * MIB as i64, 23 * MIB as i64 + (MIB / 3) as i64));
}

/// A run whose table of stacks was full has stacks that moved to another site by chance.
#[test]
fn the_gaps_of_each_run_are_those_of_the_comparison() {
    let run = |gaps: &[(&str, &str)]| {
        let gaps = gaps.iter().map(|(reason, effect)| Gap::new(Source::Segment, *reason, *effect)).collect();
        Profile { gaps, ..Profile::new(vec![Column::bytes("held")]) }
    };
    let before = [run(&[("1,204 blocks had no row", "they are one site")]), run(&[])];
    let after = [run(&[("97 blocks had no row", "they are one site"), ("no symbols of a.so", "no names")])];
    let [before, after] = [&before[..], &after[..]].map(|side| side.iter().map(|run| (run, 0)).collect::<Vec<_>>());
    let gaps = ProfileDiff::of_runs(&before, &after).profile.gaps;
    let reasons: Vec<&str> = gaps.iter().map(|gap| gap.reason.as_str()).collect();
    assert_eq!(reasons, ["1,204 blocks had no row", "no symbols of a.so"]);
}

#[test]
fn deep_stacks_and_huge_figures_cause_no_panic() {
    let mut profile = Profile::new(vec![Column::bytes("live")]);
    let frames: Vec<FrameId> =
        (0..100_000u64).map(|i| profile.frame(Frame { address: Avma(1 + i % 7), ..Frame::default() })).collect();
    let stack = profile.stack(&frames);
    for _ in 0..3 {
        profile.add(stack, Labels::default(), &[Value::estimated(u64::MAX, f64::NAN)]);
    }
    profile.add(stack, Labels::default(), &[]);
    let tree = Tree::of_column(&profile, 0);
    assert_eq!((tree.nodes.len(), tree.nodes[0].weight), (100_001, i64::MAX));
    assert_eq!(profile.total(), [Value::exact(u64::MAX)]);
    let diff = ProfileDiff::new((&profile, 0), (&Profile::default(), 3));
    assert_eq!(diff.sites[0].change, ChangeKind::Gone);
}

/// Symbols of a default native image have simple names of classes; with debug information they have packages.
#[test]
fn a_package_that_the_symbols_lack_is_not_the_default_package() {
    let mut profile = Profile::new(vec![Column::bytes("live")]);
    let [image, debug] =
        ["/app", "/app-g"].map(|path| profile.module(Module { path: path.into(), ..Module::default() }));
    let mut add = |function: &str, module| {
        let kind = FrameOrigin::Java;
        let frame = profile.frame(Frame { function: Some(function.into()), module, kind, ..Frame::default() });
        let stack = profile.stack(&[frame]);
        profile.add(stack, Labels::default(), &[Value::exact(1)]);
    };
    add("Deflater.deflate", Some(image));
    add("App.main", Some(image));
    add("App.main", Some(debug));
    add("org.acme.Shop.sell", Some(debug));
    add("App.main", None);
    let groups = profile.group(GroupBy::Package, 0);
    let lines: Vec<(&str, u64)> = groups.iter().map(|group| (&*group.name, group.entries)).collect();
    assert_eq!(lines, [("(default package)", 2), ("(package not in the symbols)", 2), ("org.acme", 1)]);
}

#[test]
fn packages_of_hidden_and_nested_classes() {
    for (name, package) in [
        ("org.acme.Shop.order", "org.acme"),
        ("org.acme.Shop.order(int, java.lang.String)", "org.acme"),
        ("org.acme.Shop$Item.<init>", "org.acme"),
        ("org.acme.Shop$$Lambda/0x0000713f8c0015e8.run", "org.acme"),
        ("org.acme.Shop$$Lambda.0x713f8c.run", "org.acme"),
        ("org.acme.Shop$$Lambda$14/0x0000000800c03000.run", "org.acme"),
        ("Main.main", ""),
        ("main", ""),
    ] {
        let function = Function { name: name.into(), kind: FrameOrigin::Java, named: true, ..Function::default() };
        assert_eq!(function.package(), Some(package), "{name}");
    }
}

#[test]
fn hidden_classes_of_two_runs_are_the_same_function() {
    for (name, stable) in [
        ("Allocates$$Lambda$106+0x00007f50e1007a08.1976870338.run", "Allocates$$Lambda.run"),
        ("org.acme.Shop$$Lambda/0x0000713f8c0015e8.run", "org.acme.Shop$$Lambda.run"),
        ("org.acme.Shop$$Lambda.0xb1b2eafa9bd0d966624415bae688b5f60.run", "org.acme.Shop$$Lambda.run"),
        ("java.lang.invoke.LambdaForm$DMH+0x00007f.12.invokeStatic", "java.lang.invoke.LambdaForm$DMH.invokeStatic"),
        (
            "jdk.internal.reflect.GeneratedMethodAccessor12.invoke",
            "jdk.internal.reflect.GeneratedMethodAccessor.invoke",
        ),
        ("org.acme.Shop$Item.<init>", "org.acme.Shop$Item.<init>"),
        ("org.acme.Shop.lambda$main$0", "org.acme.Shop.lambda$main$0"),
        ("main", "main"),
    ] {
        let mut profile = Profile::new(vec![]);
        let frame = Frame { function: Some(name.into()), kind: FrameOrigin::Java, ..Frame::default() };
        let frame = profile.frame(frame);
        assert_eq!(profile.function_at(profile.function_of(frame)).name, stable);
        assert_eq!(profile.frame_at(frame).function.as_deref(), Some(name));
    }
}

/// A recording may have a name of megabytes, or a short one, in any number of lines, each of which is a frame.
#[test]
fn the_texts_of_all_frames_are_bounded() {
    for (text, most) in [(FRAME_BYTES / 5, 4), (9, FRAME_BYTES / (size_of::<Frame>() + 9))] {
        let mut profile = Profile::new(vec![Column::bytes("live")]);
        let frame = |line| Frame { function: Some("x".repeat(text)), line: Some(line), ..Frame::default() };
        let all: Vec<FrameId> = (0..2 * most as u32).map(|line| profile.frame(frame(line))).collect();
        let beyond = profile.frame(Frame::beyond());
        assert_eq!(all.iter().filter(|id| **id != beyond).count(), most);
        // Frames from before the limit keep their names.
        assert_eq!((profile.frame(frame(3)), all[2 * most - 1]), (all[3], beyond));
    }
}

/// A file from elsewhere may name one deep stack in each of its events.
#[test]
fn the_frames_that_views_visit_are_limited() {
    let mut profile = Profile::new(vec![Column::bytes("live")]);
    let frames: Vec<FrameId> =
        (0..100).map(|n| profile.frame(Frame { function: Some(format!("f{n}")), ..Frame::default() })).collect();
    let stack = profile.stack(&frames);
    let labels = |profile: &mut Profile, number: usize| {
        let thread = Some(profile.name(&format!("thread {number}")));
        Labels { thread, ..Labels::default() }
    };
    let mut added = 0;
    let one = [Value::exact(1)];
    loop {
        let labels = labels(&mut profile, added);
        if !profile.add_within(300_000, stack, labels, &one) {
            break;
        }
        // The same stack again: no entry, no visit.
        assert!(profile.add_within(300_000, stack, labels, &one));
        added += 1;
    }
    assert_eq!(added, FRAMES.div_ceil(100));
    // Entries of a full profile go on growing, also if the limit is that of the entries.
    let (first, new) = (labels(&mut profile, 0), labels(&mut profile, added));
    assert!(profile.add_within(300_000, stack, first, &one) && profile.add_within(1, stack, first, &one));
    assert!(!profile.add_within(300_000, stack, new, &one));
    let amounts: Vec<i64> = profile.entries().map(|(_, values)| values[0].amount).collect();
    assert_eq!((amounts.len(), amounts[0], amounts[1]), (added, 4, 2));
    assert!(profile.emptied().entries().len() == 0 && !profile.emptied().is_full(1));
    let mut shallow = Profile::new(vec![Column::bytes("live")]);
    let stack = shallow.stack(&[]);
    shallow.add(stack, Labels::default(), &[Value::exact(1)]);
    assert!(shallow.is_full(1) && !shallow.is_full(2));
}
