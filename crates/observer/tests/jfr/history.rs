//! Curves and verdicts from a recording with known readings: one hour, one reading per second.

use plimsoll_observer::recording::{History, Measure, Range};
use plimsoll_profiles::jfr::RecordingFiles;

use crate::chunk::{Out, chunk_of};

const MIB: i64 = 1 << 20;
const S: i64 = 1_000_000_000;
const START: i64 = 1_795_000_000 * S;

/// MiB at a time in seconds.
type Curve = fn(i64) -> i64;

/// How the process behaves.
struct Story {
    rss: Curve,
    categories: &'static [(&'static str, Curve)],
}

fn recording(story: &Story, seconds: i64, verdicts: bool) -> Vec<u8> {
    let types: &[(&str, &[&str])] = &[
        ("jdk.NativeMemoryUsage", &["$type", "reserved", "committed"]),
        ("jdk.NativeMemoryUsageTotal", &["reserved", "committed"]),
        ("jdk.ResidentSetSize", &["size", "peak"]),
        ("plimsoll.Verdict", &["$verdict", "$severity", "bytes", "$summary", "$remedy"]),
    ];
    chunk_of(types, START as u64, (START + seconds * S) as u64, |out| {
        for s in 0..seconds {
            // A saw tooth of 4 MiB and 7 s: growth must be detected in spite of it.
            let wobble = s % 7 * MIB * 4 / 7;
            let mut total = 0;
            for (name, value) in story.categories {
                let value = value(s) * MIB;
                total += value;
                out.event(50, |out| {
                    out.long(s * S);
                    out.utf8(name);
                    [2 * value, value].iter().for_each(|value| out.long(*value));
                });
            }
            out.event(51, |out| [s * S, 2 * total, total].iter().for_each(|value| out.long(*value)));
            let rss = (story.rss)(s) * MIB + wobble;
            out.event(52, |out| [s * S, rss, rss + MIB].iter().for_each(|value| out.long(*value)));
            if verdicts && s % 600 == 0 {
                verdict(out, s, 100 + s / 60);
            }
        }
    })
}

fn verdict(out: &mut Out, s: i64, mib: i64) {
    out.event(53, |out| {
        out.long(s * S);
        out.utf8("arena-retention");
        out.utf8(if s < 1200 { "warning" } else { "critical" });
        out.long(mib * MIB);
        out.utf8(&format!("{mib} MiB are free inside glibc"));
        out.utf8("MALLOC_ARENA_MAX=4");
    });
}

fn read(bytes: Vec<u8>, range: Range) -> History {
    History::read(&RecordingFiles::of_bytes(bytes), range).expect("a recording")
}

/// RSS grows by 360 MiB an hour outside the VM's memory; classes by 72.
const LEAK: Story = Story { rss: |s| 1000 + s / 10, categories: &[("Java Heap", |_| 512), ("Class", |s| 40 + s / 50)] };

#[test]
fn figures_and_growth_of_each_curve() {
    let history = read(recording(&LEAK, 3600, false), Range::default());
    assert_eq!((history.begin_ns, history.end_ns), (START, START + 3600 * S));
    let class = history.of(Measure::Committed).find(|(name, _)| *name == "Class").expect("it").1;
    let figures = class.figures().expect("readings");
    let mib = |n: i64| (n * MIB) as u64;
    assert_eq!((figures.readings, figures.first, figures.last), (3600, mib(40), mib(111)));
    let growth = figures.growth.expect("an hour");
    assert!((growth.per_hour / MIB as f64 - 72.0).abs() < 1.0 && growth.is_up(), "{growth:?}");
    let rss = history.rss().expect("it").figures().expect("readings");
    let growth = rss.growth.expect("an hour");
    assert!((growth.per_hour / MIB as f64 - 360.0).abs() < 2.0, "{growth:?}");
    assert!(growth.least < growth.per_hour && growth.per_hour < growth.most && growth.is_up());
    assert_eq!(rss.peak, rss.max + mib(1), "the peak that the kernel remembers");
    assert_eq!(history.java_heap().and_then(|heap| heap.figures()).map(|f| (f.min, f.max)), Some((mib(512), mib(512))));
}

#[test]
fn a_range_is_cut_out() {
    let bytes = recording(&LEAK, 600, false);
    let range = |from: &str, to: &str| Range { from: from.parse().ok(), to: to.parse().ok() };
    for (from, to, first, count) in
        [("+60s", "+2m", 60, 61), ("-30s", "", 570, 30), ("", "+9s", 0, 10), ("2026-11-18T11:06:50Z", "-589s", 10, 2)]
    {
        let rss = read(bytes.clone(), range(from, to)).rss().expect("it").figures().expect("readings");
        let expected = ((LEAK.rss)(first) * MIB + first % 7 * MIB * 4 / 7) as u64;
        assert_eq!((rss.first, rss.readings), (expected, count), "{from} to {to}");
    }
    let late = History::read(&RecordingFiles::of_bytes(bytes), range("+1h", ""));
    assert!(late.is_err_and(|reason| reason.contains("later than the end")));
}

#[test]
fn recorded_and_derived_verdicts() {
    let ids = |history: &History| {
        history.verdicts.iter().map(|v| (v.id.clone(), v.is_derived)).collect::<Vec<(String, bool)>>()
    };
    let leak = read(recording(&LEAK, 3600, false), Range::default());
    assert_eq!(ids(&leak), [("class-growth".into(), true), ("native-leak".into(), true)]);
    assert!(leak.verdicts[1].summary.contains("an hour"), "{:?}", leak.verdicts);
    // In a container the VM writes a PID that is another process's outside.
    let command = "jcmd PID VM.classloader_stats   # PID: that of the recorded process";
    assert_eq!(leak.verdicts[0].remedy, command);

    // RSS below the VM's commitment: the VM's own pages are touched one after the other.
    let touched = Story { rss: |s| 300 + s / 20, categories: &[("Java Heap", |_| 512), ("Class", |_| 40)] };
    assert_eq!(ids(&read(recording(&touched, 3600, false), Range::default())), []);
    // Growth of what the VM commits isn't a leak outside the VM.
    let inside = Story { rss: |s| 600 + s / 10, categories: &[("Java Heap", |_| 512), ("Other", |s| 100 + s / 10)] };
    assert_eq!(ids(&read(recording(&inside, 3600, false), Range::default())), [("direct-buffer-growth".into(), true)]);
    // A process that grows in its first minutes and then stays.
    let flat = Story { rss: |s| 1000 + s.min(100), categories: &[("Java Heap", |_| 512), ("Class", |_| 40)] };
    let settled = Range { from: "+5m".parse().ok(), to: None };
    assert_eq!(ids(&read(recording(&flat, 3600, false), settled)), []);

    let recorded = read(recording(&LEAK, 3600, true), Range::default());
    assert_eq!(ids(&recorded), [("arena-retention".into(), false)]);
    let span = &recorded.verdicts[0];
    assert_eq!((span.first_bytes.0, span.last_bytes.0), (100 << 20, 150 << 20));
    // Nothing else was recorded afterwards, so it applies until the end.
    assert_eq!((span.first_ns, span.last_ns), (START, START + 3600 * S));
    assert_eq!((span.severity.as_str(), span.remedy.as_str()), ("critical", "MALLOC_ARENA_MAX=4"));
}

/// One hour of our own recording: lines in MiB at a second, a limit of 512 MiB, and `healthy` at each moment.
fn ledger_of_an_hour(lines: &'static [(&'static str, Curve)]) -> History {
    with_verdict(lines, ["healthy", "note", "nothing stands out", ""])
}

/// The verdict's id, severity, summary and remedy.
fn with_verdict(lines: &'static [(&'static str, Curve)], verdict: [&'static str; 4]) -> History {
    with_limit(lines, verdict, |_| 512)
}

/// `limit`: of each second, in MiB.
fn with_limit(lines: &'static [(&'static str, Curve)], verdict: [&'static str; 4], limit: Curve) -> History {
    with_callers(lines, verdict, limit, "")
}

/// `callers`: the command that names them; empty as in an older recording.
fn with_callers(
    lines: &'static [(&'static str, Curve)],
    verdict: [&'static str; 4],
    limit: Curve,
    callers: &str,
) -> History {
    let types: &[(&str, &[&str])] = &[
        ("plimsoll.Ledger", &["rss"]),
        ("plimsoll.LedgerLine", &["$line", "resident", "committed"]),
        ("plimsoll.Verdict", &["$verdict", "$severity", "bytes", "$summary", "$remedy"]),
        ("plimsoll.Cgroup", &["charged", "peak", "limit"]),
        ("plimsoll.Target", &["pid", "$callers"]),
    ];
    let bytes = chunk_of(types, START as u64, (START + 3600 * S) as u64, |out| {
        out.event(54, |out| {
            [0, 4711].iter().for_each(|value| out.long(*value));
            out.utf8(callers);
        });
        for s in 0..3600 {
            let wobble = s % 7 * MIB / 7;
            let rss = lines.iter().map(|(_, value)| value(s) * MIB).sum::<i64>() + wobble;
            out.event(50, |out| [s * S, rss].iter().for_each(|value| out.long(*value)));
            for (line, value) in lines {
                out.event(51, |out| {
                    out.long(s * S);
                    out.utf8(line);
                    [value(s) * MIB, value(s) * MIB].iter().for_each(|value| out.long(*value));
                });
            }
            out.event(53, |out| [s * S, rss, rss, limit(s) * MIB].iter().for_each(|value| out.long(*value)));
        }
        out.event(52, |out| {
            out.long(0);
            out.utf8(verdict[0]);
            out.utf8(verdict[1]);
            out.long(MIB);
            out.utf8(verdict[2]);
            out.utf8(verdict[3]);
        });
    });
    read(bytes, Range::default())
}

#[test]
fn a_line_that_certainly_grows_is_a_verdict_and_the_state_is_not_healthy() {
    let ids = |history: &History| history.verdicts.iter().map(|v| v.id.clone()).collect::<Vec<String>>();
    // 72 MiB an hour beside a heap of 200 MiB that fills: 240 MiB left, of which the heap takes 36 an hour.
    let leak =
        ledger_of_an_hour(&[("java-heap", |s| 164 + s / 100), ("glibc-live", |s| s / 50), ("libraries", |_| 36)]);
    assert_eq!(ids(&leak), ["growth"]);
    let summary = &leak.verdicts[0].summary;
    assert!(summary.starts_with("glibc, live grows by 72.0 MiB an hour"), "{summary}");
    // (512 − 307 MiB) / 108 MiB an hour
    assert!(summary.ends_with("the limit is reached in 114 min"), "{summary}");
    assert_eq!(leak.verdicts[0].last_bytes.0 >> 20, 71);
    let command = "plimsoll attach 4711 && sleep 60 && plimsoll report 4711 --by site";
    assert_eq!(leak.verdicts[0].remedy, command);
    // `record` knows whether the program can be attached to, and whether it is tracked already.
    let healthy = ["healthy", "note", "", ""];
    let command = "plimsoll run -- ./PID   # linked dynamically";
    let of = |lines| with_callers(lines, healthy, |_| 512, command).verdicts[0].remedy.clone();
    assert_eq!(of(&[("glibc-live", |s| s / 50), ("libraries", |_| 36)]), command);
    let asked = of(&[("other-allocator", |s| s / 50), ("libraries", |_| 36)]);
    assert!(asked.starts_with("plimsoll explain 4711 --format json"), "{asked}");
    assert_eq!(of(&[("glibc-retained", |s| s / 50), ("libraries", |_| 36)]), "plimsoll explain 4711");
    // Another group's limit was nearer for a while, so the charge is that of two groups.
    let lines: &[(&str, Curve)] = &[("glibc-live", |s| s / 50), ("libraries", |_| 36)];
    let changed = with_limit(lines, ["healthy", "note", "", ""], |s| if s < 600 { 4096 } else { 512 });
    assert!(!changed.verdicts[0].summary.contains("the limit is reached"), "{:?}", changed.verdicts);
    // Calls of malloc don't lead to threads and classes.
    let threads = ledger_of_an_hour(&[("thread-stacks", |s| 64 + s / 50)]);
    assert_eq!(threads.verdicts[0].remedy, "ps -T -p 4711 -o comm= | sort | uniq -c | sort -rn | head");
    let classes = ledger_of_an_hour(&[("class", |s| 64 + s / 50)]);
    assert_eq!(classes.verdicts[0].remedy, "jcmd 4711 VM.classloader_stats");

    // A heap that fills, and a line that grew in its first minutes: neither is lasting growth.
    for lines in [
        &[("java-heap", (|s| 64 + s / 20) as Curve), ("glibc-live", |_| 40)][..],
        &[("java-heap", |_| 64), ("glibc-live", |s| 40 + s.min(100) / 2)],
    ] {
        assert_eq!(ids(&ledger_of_an_hour(lines)), ["healthy"]);
    }
}

/// Blocks that are taken from the memory that malloc keeps free, and memory that a second allocator takes.
#[test]
fn blocks_that_move_between_mallocs_lines_are_not_growth() {
    let refill: &[(&str, Curve)] =
        &[("glibc-live", |s| 2 + s / 50), ("glibc-retained", |s| 382 - s / 50), ("libraries", |_| 4)];
    assert_eq!(ledger_of_an_hour(refill).verdicts[0].id, "healthy");
    // Half of the blocks are new memory.
    let half = ledger_of_an_hour(&[("glibc-live", |s| 2 + s / 50), ("glibc-retained", |s| 99 - s / 100)]);
    let growth = &half.verdicts[0];
    assert_eq!((growth.id.as_str(), growth.last_bytes.0 >> 20), ("growth", 36));
    assert!(growth.summary.starts_with("glibc, live grows by 36.0 MiB an hour"), "{growth:?}");
    // Two lines grow, and both together by no more than one of them.
    let lines: &[(&str, Curve)] =
        &[("other-allocator", |s| s / 50), ("glibc-live", |s| 2 + s / 60), ("glibc-retained", |s| 99 - s / 60)];
    let growth = &ledger_of_an_hour(lines).verdicts[0];
    assert!(growth.summary.starts_with("other allocator grows by 72.0 MiB an hour"), "{growth:?}");
    assert_eq!((growth.id.as_str(), growth.last_bytes.0 >> 20), ("growth", 71));

    // The owners are queried once a minute.
    let often: Vec<i64> = (0..600).step_by(60).collect();
    let queried = |taken: Curve| {
        instants(600, &often, true, "native", &|_, queried| {
            let s = queried.unwrap_or(0);
            vec![("glibc-live", 2 + s / 3), ("glibc-retained", 300 - taken(s))]
        })
    };
    assert_eq!(queried(|s| s / 3).verdicts, []);
    assert!(queried(|_| 0).verdicts[0].summary.starts_with("glibc, live grows by 1.17 GiB an hour"));
}

/// A recording of a JVM with one instant each second. `other` grows, but until the next query of the VM, what malloc got
/// for it is in glibc-live. `queries`: the seconds of the queries.
fn seldom_queried(seconds: i64, other: Curve, queries: &[i64], has_age: bool) -> History {
    instants(seconds, queries, has_age, "hotspot", &|s, queried| {
        let known = queried.map_or(0, other);
        vec![("java-heap", 20), ("direct-buffers", known), ("glibc-live", 1 + other(s) - known)]
    })
}

/// A recording with one instant each second. `lines`: in MiB at a second, after the last query.
fn instants(
    seconds: i64,
    queries: &[i64],
    has_age: bool,
    runtime: &str,
    lines: &dyn Fn(i64, Option<i64>) -> Vec<(&'static str, i64)>,
) -> History {
    let age: &[&str] = if has_age { &["rss", "provenanceAge"] } else { &["rss"] };
    let types: &[(&str, &[&str])] = &[
        ("plimsoll.Ledger", age),
        ("plimsoll.LedgerLine", &["$line", "resident"]),
        ("plimsoll.Target", &["pid", "$runtime"]),
    ];
    let bytes = chunk_of(types, START as u64, (START + seconds * S) as u64, |out| {
        out.event(52, |out| {
            [0, 4711].iter().for_each(|value| out.long(*value));
            out.utf8(runtime);
        });
        for s in 0..seconds {
            let queried = queries.iter().copied().filter(|query| *query <= s).max();
            let lines = lines(s, queried);
            let rss: i64 = lines.iter().map(|(_, mib)| mib).sum();
            out.event(50, |out| {
                [s * S, rss * MIB].iter().for_each(|value| out.long(*value));
                has_age.then(|| out.long((s - queried.unwrap_or(-60)) * S));
            });
            for (line, mib) in lines {
                out.event(51, |out| {
                    out.long(s * S);
                    out.utf8(line);
                    out.long(mib * MIB);
                });
            }
        }
    });
    read(bytes, Range::default())
}

#[test]
fn a_line_that_only_grew_between_two_queries_is_not_named() {
    let summaries = |history: &History| history.verdicts.iter().map(|v| v.summary.clone()).collect::<Vec<String>>();
    let leak: Curve = |s| 10 + s / 3;
    // Without the age of the owners, an older recording can't show that its lines are old.
    let old = summaries(&seldom_queried(75, leak, &[0], false));
    assert!(old[0].starts_with("glibc, live grows by"), "{old:?}");

    let once = seldom_queried(75, leak, &[0], true);
    let said = summaries(&once);
    assert!(said[0].starts_with("memory of the VM and of malloc grows by 1.1"), "{said:?}");
    assert!(said[0].contains("which line grows isn't known (one query of the owners in this time)"), "{said:?}");
    assert!(!said[0].contains("glibc, live"), "{said:?}");
    let never = summaries(&seldom_queried(75, leak, &[], true));
    assert!(never[0].contains("isn't known (no query of the owners"), "{never:?}");
    // Two queries show which line grew, but no rate of it.
    let twice = seldom_queried(75, leak, &[0, 74], true);
    let said = summaries(&twice);
    let end = "from the first of 2 queries to the last (74 s): direct buffers 24.0 MiB more";
    assert!(said[0].starts_with("memory of the VM and of malloc grows") && said[0].ends_with(end), "{said:?}");
    assert_eq!(twice.verdicts[0].id, "growth");
    let growth_of = |history: &History, line: &str| {
        let all = history.of(Measure::Line).find(|(name, _)| *name == line).expect("it").1;
        let readings = history.readings_of_growth(Measure::Line, line, all);
        readings.map(|readings| readings.figures().and_then(|figures| figures.growth).is_some())
    };
    assert_eq!(growth_of(&twice, "glibc-live"), None);
    assert_eq!(growth_of(&twice, "java-heap"), Some(true));

    // Enough queries: the line of the owner is named with its rate, and the other one isn't.
    let often: Vec<i64> = (0..600).step_by(60).collect();
    let enough = seldom_queried(600, leak, &often, true);
    let said = summaries(&enough);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("direct buffers grows by 1.17 GiB an hour"), "{said:?}");
    assert!(!said[0].contains("glibc") && !said[0].contains("isn't known"), "{said:?}");
    assert_eq!(growth_of(&enough, "glibc-live"), Some(true));
    // Nothing grows.
    assert_eq!(summaries(&seldom_queried(75, |_| 10, &[0], true)), Vec::<String>::new());
}

/// The recorder judges single moments, which can't show growth.
#[test]
fn a_higher_limit_is_no_remedy_in_a_recording_that_grows() {
    let near = |lines: &'static [(&'static str, Curve)]| {
        let history = with_verdict(lines, ["limit-near", "warning", "95 % of the limit is in use", "a higher limit"]);
        let near = history.verdicts.iter().find(|span| span.id == "limit-near").expect("recorded").clone();
        (near.summary, near.remedy)
    };
    let (summary, remedy) = near(&[("glibc-live", |s| 64 + s / 50)]);
    assert_eq!(summary, "95 % of the limit is in use; memory grows, so a higher limit only delays the kill");
    assert!(remedy.starts_with("plimsoll attach 4711"), "{remedy}");
    let (summary, remedy) = near(&[("glibc-live", |_| 64)]);
    assert_eq!((summary.as_str(), remedy.as_str()), ("95 % of the limit is in use", "a higher limit"));
}

/// A recorder writes verdicts only when they change, and omits ledger lines that are zero.
#[test]
fn a_verdict_or_line_that_is_not_recorded_again_has_ended() {
    let types: &[(&str, &[&str])] = &[
        ("plimsoll.Ledger", &["rss"]),
        ("plimsoll.LedgerLine", &["$line", "resident", "committed"]),
        ("plimsoll.Verdict", &["$verdict", "$severity", "bytes", "$summary", "$remedy"]),
    ];
    let bytes = chunk_of(types, START as u64, (START + 10 * S) as u64, |out| {
        for s in 0..10 {
            out.event(50, |out| [s * S, 20 * MIB].iter().for_each(|value| out.long(*value)));
            let lines = [("glibc-live", 13, true), ("glibc-unknown", 7, matches!(s, 2 | 3 | 6))];
            for (line, mib, _) in lines.into_iter().filter(|(.., is_there)| *is_there) {
                out.event(51, |out| {
                    out.long(s * S);
                    out.utf8(line);
                    [mib * MIB, mib * MIB].iter().for_each(|value| out.long(*value));
                });
            }
            if let Some(verdict) = match s {
                1 => Some("healthy"),
                4 => Some("native-leak"),
                _ => None,
            } {
                out.event(52, |out| {
                    out.long(s * S);
                    out.utf8(verdict);
                    out.utf8("note");
                    out.long(MIB);
                    ["so", ""].iter().for_each(|text| out.utf8(text));
                });
            }
        }
    });
    let history = read(bytes.clone(), Range::default());
    for measure in [Measure::Line, Measure::LineCommitted] {
        let of = |line: &str| history.of(measure).find(|(name, _)| *name == line).expect("it").1;
        let values = |line: &str| of(line).points().iter().map(|point| point.last / MIB as u64).collect::<Vec<_>>();
        assert_eq!(values("glibc-live"), [13; 10]);
        assert_eq!(values("glibc-unknown"), [0, 0, 7, 7, 0, 0, 7, 0, 0, 0]);
        assert_eq!(of("glibc-unknown").figures().map(|figures| figures.last), Some(0));
    }
    let spans: Vec<_> =
        history.verdicts.iter().map(|v| (v.id.as_str(), v.first_ns - START, v.last_ns - START)).collect();
    assert_eq!(spans, [("healthy", S, 4 * S), ("native-leak", 4 * S, 10 * S)]);

    // A verdict recorded before a cut still applies inside it.
    for (from, to, expected) in [
        ("+2s", "+9s", &[("healthy", 2, 4), ("native-leak", 4, 9)][..]),
        ("+4s", "+9s", &[("native-leak", 4, 9)]),
        ("+7s", "+9s", &[("native-leak", 7, 9)]),
        ("+2s", "+3s", &[("healthy", 2, 3)]),
        ("+0s", "+0s", &[]),
    ] {
        let history = read(bytes.clone(), Range { from: from.parse().ok(), to: to.parse().ok() });
        let mut spans: Vec<_> = history.verdicts.iter().map(|v| (v.id.as_str(), v.first_ns, v.last_ns)).collect();
        spans.sort_unstable();
        let expected: Vec<_> = expected.iter().map(|(id, a, b)| (*id, START + a * S, START + b * S)).collect();
        assert_eq!(spans, expected, "{from} to {to}");
    }
}

/// A category is recorded only when it changes. In a cut, it has its last value from before.
#[test]
fn a_category_that_stays_is_there_from_the_beginning_of_a_cut() {
    let types: &[(&str, &[&str])] =
        &[("plimsoll.Total", &["live"]), ("plimsoll.Category", &["$category", "live", "liveCount"])];
    let bytes = chunk_of(types, START as u64, (START + 10 * S) as u64, |out| {
        for s in 0..10 {
            let category = |out: &mut Out, name: &str, mib: i64| {
                out.event(51, |out| {
                    out.long(s * S);
                    out.utf8(name);
                    [mib * MIB, mib].iter().for_each(|value| out.long(*value));
                });
            };
            out.event(50, |out| [s * S, 9 * MIB].iter().for_each(|value| out.long(*value)));
            match s {
                0 => category(out, "Class", 9),
                5 => category(out, "Class", 4),
                6 => category(out, "zlib", 5),
                _ => {}
            }
        }
    });
    let of = |from: &str, measure: Measure, name: &str| {
        let history = read(bytes.clone(), Range { from: from.parse().ok(), to: None });
        let points = history.of(measure).find(|(of, _)| *of == name).map(|(_, series)| series.points().to_vec());
        let point = |p: &plimsoll_observer::recording::Point| ((p.begin_ns - START) / S, p.last);
        points.unwrap_or_default().iter().map(point).collect::<Vec<_>>()
    };
    assert_eq!(of("+2s", Measure::LiveCount, "Class"), [(2, 9), (5, 4)]);
    assert_eq!(of("+5s", Measure::LiveCount, "Class"), [(5, 4)]);
    assert_eq!(of("+8s", Measure::Live, "Class"), [(8, 4 << 20)]);
    assert_eq!(of("+4s", Measure::LiveCount, "zlib"), [(4, 0), (5, 0), (6, 5)]);
    assert_eq!(of("+8s", Measure::LiveCount, "zlib"), [(8, 5)]);
}

/// A verdict that comes and goes: its span runs from its first time to its last, and states for how long it applied.
#[test]
fn a_verdict_that_comes_and_goes_states_how_long_it_applied() {
    let types: &[(&str, &[&str])] = &[("plimsoll.Verdict", &["$verdict", "$severity", "bytes", "$summary", "$remedy"])];
    let bytes = chunk_of(types, START as u64, (START + 100 * S) as u64, |out| {
        for (s, id) in [(0, "healthy"), (10, "native-leak"), (15, "healthy"), (60, "native-leak")] {
            out.event(50, |out| {
                out.long(s * S);
                [id, "note"].iter().for_each(|text| out.utf8(text));
                out.long((s + 1) * MIB);
                ["so", ""].iter().for_each(|text| out.utf8(text));
            });
        }
    });
    let spans = |history: &History| {
        let span = |v: &plimsoll_observer::recording::VerdictSpan| {
            (v.id.clone(), [v.first_ns - START, v.last_ns - START, v.held_ns].map(|ns| ns / S), v.first_bytes.0 >> 20)
        };
        let mut spans: Vec<_> = history.verdicts.iter().map(span).collect();
        spans.sort_unstable();
        spans
    };
    let whole = read(bytes.clone(), Range::default());
    assert_eq!(spans(&whole), [("healthy".into(), [0, 60, 55], 1), ("native-leak".into(), [10, 100, 45], 11)]);
    // It has applied for 10 s when the cut begins.
    let cut = read(bytes, Range { from: "+12s".parse().ok(), to: None });
    assert_eq!(spans(&cut), [("healthy".into(), [15, 60, 45], 16), ("native-leak".into(), [12, 100, 43], 11)]);
}

/// Files of several processes in one directory are read as one recording, with a gap.
#[test]
fn recordings_of_several_processes_are_a_gap() {
    let types: &[(&str, &[&str])] =
        &[("plimsoll.Target", &["pid", "$command"]), ("jdk.ResidentSetSize", &["size", "peak"])];
    let of = |pid: i64| {
        chunk_of(types, START as u64, (START + S) as u64, |out| {
            out.event(50, |out| {
                [0, pid].iter().for_each(|value| out.long(*value));
                out.utf8("program");
            });
            out.event(51, |out| [0, MIB, MIB].iter().for_each(|value| out.long(*value)));
        })
    };
    let gaps = |bytes: Vec<u8>| {
        let gaps = read(bytes, Range::default()).gaps;
        gaps.into_iter().map(|gap| gap.reason).filter(|reason| reason.contains("processes")).collect::<Vec<_>>()
    };
    assert_eq!(gaps([of(7), of(7)].concat()), [""; 0]);
    assert_eq!(gaps([of(7), of(8), of(7)].concat()), ["these are recordings of several processes: 7, 8"]);
}

/// No setting of a JVM would have added RSS to a recording of ours.
#[test]
fn the_gap_of_a_recording_without_rss_blames_who_it_is() {
    let types: &[(&str, &[&str])] = &[
        ("plimsoll.Target", &["pid", "$command"]),
        ("jdk.ResidentSetSize", &["size", "peak"]),
        ("plimsoll.TargetEnd", &["$state", "exitCode"]),
        ("jdk.JavaThreadStatistics", &["activeCount"]),
    ];
    let gaps = |events: &[i64], range: Range| {
        let bytes = chunk_of(types, START as u64, (START + 60 * S) as u64, |out| {
            for of in events {
                out.event(*of, |out| match of {
                    50 => {
                        [0, 7].iter().for_each(|value| out.long(*value));
                        out.utf8("program");
                    }
                    51 => [0, MIB, MIB].iter().for_each(|value| out.long(*value)),
                    52 => {
                        out.long(0);
                        out.utf8("exited");
                        out.long(0);
                    }
                    _ => [0, 3].iter().for_each(|value| out.long(*value)),
                });
            }
        });
        let gaps = read(bytes, range).gaps.into_iter();
        gaps.map(|gap| (gap.reason, gap.remedy.is_empty())).collect::<Vec<_>>()
    };
    let whole = Range::default;
    assert_eq!(gaps(&[50, 51], whole()), []);
    assert_eq!(gaps(&[50, 52], whole()), [("the program ended before the first reading of RSS".to_owned(), true)]);
    assert_eq!(gaps(&[50], whole()), [("the recording ended before the first reading of RSS".to_owned(), true)]);
    let late = Range { from: "+12s".parse().ok(), to: None };
    assert_eq!(gaps(&[50, 51], late), [("this part of the recording has no reading of RSS".to_owned(), true)]);
    let no_nmt = ("the recording has no jdk.NativeMemoryUsage".to_owned(), false);
    assert_eq!(gaps(&[53], whole()), [no_nmt, ("the recording has no jdk.ResidentSetSize".to_owned(), false)]);
}

/// Without NMT, there are only threads, metaspace, the heap at collections, and RSS.
#[test]
fn verdicts_of_a_vm_without_nmt() {
    let types: &[(&str, &[&str])] = &[
        ("jdk.ResidentSetSize", &["size", "peak"]),
        ("jdk.JavaThreadStatistics", &["activeCount"]),
        ("jdk.GCHeapSummary", &["heapUsed"]),
        ("plimsoll.LedgerLine", &["$line", "resident", "committed"]),
    ];
    let ids_of = |rss: Curve, threads: Curve, heap: Curve, occupied: Curve| {
        let bytes = chunk_of(types, START as u64, (START + 1800 * S) as u64, |out| {
            for s in 0..1800 {
                out.event(50, |out| [s * S, rss(s) * MIB, rss(s) * MIB].iter().for_each(|value| out.long(*value)));
                out.event(51, |out| [s * S, threads(s) + s % 3].iter().for_each(|value| out.long(*value)));
                out.event(53, |out| {
                    out.long(s * S);
                    out.utf8("java-heap");
                    [heap(s) * MIB, heap(s) * MIB].iter().for_each(|value| out.long(*value));
                });
                if s % 100 == 0 {
                    out.event(52, |out| [s * S, occupied(s) * MIB].iter().for_each(|value| out.long(*value)));
                }
            }
        });
        let of: Vec<String> = read(bytes, Range::default()).verdicts.into_iter().map(|v| v.id).collect();
        of
    };
    let flat: Curve = |_| 512;
    let ids = |rss, threads, heap| ids_of(rss, threads, heap, |s| 300 + s / 100);
    assert_eq!(ids(|s| 700 + s / 10, |_| 30, flat), ["native-leak"]);
    // The heap takes the growth.
    assert_eq!(ids(|s| 700 + s / 10, |_| 30, |s| 512 + s / 10), [""; 0]);
    // Pages of the heap that are touched one after the other.
    assert_eq!(ids(|s| 200 + s / 10, |_| 30, flat), [""; 0]);
    assert_eq!(ids(|_| 700, |s| 30 + s / 20, flat), ["thread-stacks"]);
    assert_eq!(ids(|_| 700, |s| 30 + s.min(60) / 10, flat), [""; 0]);
    assert_eq!(ids_of(|_| 700, |_| 30, flat, |s| 100 + s / 100), ["heap-committed-unused"]);
    // Half of the heap was needed once.
    assert_eq!(ids_of(|_| 700, |_| 30, flat, |s| if s == 900 { 300 } else { 100 }), [""; 0]);
}

/// A VM doesn't start with an option that it doesn't know: the recording says which VM it was.
#[test]
fn an_unused_heap_gets_an_option_that_its_vm_has() {
    let types: &[(&str, &[&str])] = &[
        ("jdk.GCHeapSummary", &["heapUsed"]),
        ("plimsoll.LedgerLine", &["$line", "resident", "committed"]),
        ("jdk.JVMInformation", &["$jvmVersion"]),
        ("jdk.GCConfiguration", &["$oldCollector"]),
        ("jdk.GCHeapConfiguration", &["minSize", "initialSize", "maxSize"]),
    ];
    let remedy = |version: &str, collector: &str, first: i64| {
        let bytes = chunk_of(types, START as u64, (START + 1800 * S) as u64, |out| {
            for (event, text) in [(52, version), (53, collector)] {
                out.event(event, |out| {
                    out.long(0);
                    out.utf8(text);
                });
            }
            out.event(54, |out| [0, first * MIB, first * MIB, 1024 * MIB].iter().for_each(|value| out.long(*value)));
            for s in (0..1800).step_by(100) {
                out.event(50, |out| [s * S, 80 * MIB].iter().for_each(|value| out.long(*value)));
                out.event(51, |out| {
                    out.long(s * S);
                    out.utf8("java-heap");
                    [512 * MIB; 2].iter().for_each(|value| out.long(*value));
                });
            }
        });
        let verdicts = read(bytes, Range::default()).verdicts;
        let ids: Vec<&str> = verdicts.iter().map(|verdict| verdict.id.as_str()).collect();
        assert_eq!(ids, ["heap-committed-unused"]);
        verdicts[0].remedy.clone()
    };
    let version =
        |vm: &str, jre: &str| format!("OpenJDK 64-Bit Server VM ({vm}) for linux-amd64 JRE ({jre}), built on");
    let (jdk_25, jdk_8) = (version("25.0.1+8-LTS", "25.0.1+8-LTS"), version("25.402-b06", "1.8.0_402-b06"));
    const IDLE: &str = "-XX:G1PeriodicGCInterval=60000 -XX:MaxHeapFreeRatio=30 -XX:MinHeapFreeRatio=10";
    const STEPS: &str = "-XX:-ShrinkHeapInSteps -XX:MaxHeapFreeRatio=30 -XX:MinHeapFreeRatio=10";
    // 1.5 times the 80 MiB that were occupied.
    for (version, collector, first, expected) in [
        (jdk_25.as_str(), "G1Old", 8, IDLE.to_owned()),
        (&jdk_25, "G1Old", 512, format!("-Xms120m {IDLE}")),
        (&jdk_25, "ParallelOld", 8, format!("-XX:-UseParallelGC -XX:+UseG1GC {IDLE}")),
        (&jdk_25, "SerialOld", 8, STEPS.to_owned()),
        (&jdk_25, "SerialOld", 256, format!("-Xms120m {STEPS}")),
        (&jdk_25, "ZGC Major", 8, "-XX:ZUncommitDelay=60 -XX:SoftMaxHeapSize=120m".to_owned()),
        (&jdk_8, "G1Old", 8, String::new()),
        (&jdk_8, "ConcurrentMarkSweep", 512, "-Xms120m".to_owned()),
        ("", "", 8, String::new()),
    ] {
        assert_eq!(remedy(version, collector, first), expected, "{collector} {version} {first}");
    }
}

/// A native image has no command for them, and its Threading has no stacks.
#[test]
fn growing_categories_of_a_native_image_get_no_commands_of_hotspot() {
    let types: &[(&str, &[&str])] =
        &[("jdk.NativeMemoryUsage", &["$type", "reserved", "committed"]), ("jdk.JVMInformation", &["$jvmName"])];
    let verdicts = |vm: &str| {
        let bytes = chunk_of(types, START as u64, (START + 1800 * S) as u64, |out| {
            out.event(51, |out| {
                out.long(0);
                out.utf8(vm);
            });
            for s in 0..1800 {
                for name in ["Code", "Threading"] {
                    out.event(50, |out| {
                        out.long(s * S);
                        out.utf8(name);
                        [900 * MIB, (100 + s / 10) * MIB].iter().for_each(|value| out.long(*value));
                    });
                }
            }
        });
        let verdicts = read(bytes, Range::default()).verdicts.into_iter();
        verdicts.map(|verdict| (verdict.id, verdict.remedy)).collect::<Vec<_>>()
    };
    const WHOSE: &str = "   # PID: that of the recorded process";
    let expected = |command: &str| [("code-cache-growth".to_owned(), format!("{command}{WHOSE}"))];
    assert_eq!(verdicts("Substrate VM"), expected("plimsoll attach PID"));
    assert_eq!(verdicts("OpenJDK 64-Bit Server VM"), expected("jcmd PID Compiler.codecache"));
}

#[test]
fn a_file_that_invents_names_stays_within_bounds() {
    let types: &[(&str, &[&str])] = &[("jdk.NativeMemoryUsage", &["$type", "reserved", "committed"])];
    let bytes = chunk_of(types, START as u64, (START + S) as u64, |out| {
        for number in 0..5000 {
            out.event(50, |out| {
                out.long(number);
                out.utf8(&format!("{number} {}", "x".repeat(1000)));
                [2, 1].iter().for_each(|value| out.long(*value));
            });
        }
    });
    let history = read(bytes, Range::default());
    assert_eq!(history.series.len(), 512);
    assert!(history.series.keys().all(|(_, name)| name.len() <= 200));
    assert!(history.gaps.iter().any(|gap| gap.reason.contains("curves")), "{:?}", history.gaps);
}
