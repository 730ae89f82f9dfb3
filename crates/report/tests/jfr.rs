//! Recordings, read by a reader of this test's own, written from the description of the format and not from the writer.

#[path = "jfr/reader.rs"]
mod reader;

use plimsoll_jfr::writer::{Batch, Frame, FrameKind, Recording, Stack, Store};
use plimsoll_observer::books::{Books, Category, Figures};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::snapshot::Snapshot;
use plimsoll_observer::units::{Avma, Bytes};
use plimsoll_observer::verdict::{Severity, Verdict, VerdictId};
use plimsoll_report::jfr::events as e;
use plimsoll_report::jfr::{Instant, TABLE, Target, Told};
use reader::{Read, Value, read};
use std::collections::BTreeMap;
use std::{fs, io};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_790_000_000 * SECOND + 123_456_789;

/// Each change of the file, as the system calls make it.
#[derive(Default)]
struct Steps(Vec<Step>);

enum Step {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

impl Store for Steps {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.push(Step::Write(offset, bytes.to_vec()));
        Ok(())
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.push(Step::Truncate(length));
        Ok(())
    }
}

fn number(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) % below
}

/// An instant of some lines and sites; the line `ticket` carries its number, so that a reader knows which it has.
fn instant<S: Store>(recording: &mut Recording<S>, index: u64, seed: &mut u64, many: bool) {
    let sites = if many { number(seed, 300) } else { number(seed, 4) };
    recording
        .instant(START + index * 25 * SECOND, |batch| {
            e::ResidentSetSize { size: Bytes(index), peak: Bytes(1 << number(seed, 40)) }.write(batch);
            for site in 0..sites {
                let stack = Stack {
                    frames: vec![
                        Frame {
                            class: "libz.so.1".into(),
                            function: format!("inflate{}", number(seed, 40)),
                            line: 0,
                            kind: FrameKind::Native,
                        },
                        Frame {
                            class: "java.util.zip.Inflater".into(),
                            function: "inflate".into(),
                            line: 7,
                            kind: FrameKind::Jit,
                        },
                    ],
                    truncated: site % 2 == 0,
                };
                e::Site {
                    stack_trace: Some(&stack),
                    category: ["zlib", "", "größer"][number(seed, 3) as usize],
                    live: Bytes(index),
                    live_count: site,
                    requested: Bytes(1),
                    peak: Bytes(u64::MAX >> number(seed, 64)),
                    count_at_peak: 0,
                    cumulative: Bytes(site),
                    cumulative_count: sites,
                    error: Bytes(0),
                }
                .write(batch);
            }
        })
        .expect("the store takes all");
}

/// The file after each step, and after each page of a step: a kill can come between any two of them.
fn each_state(steps: &[Step], mut look: impl FnMut(&[u8], bool)) {
    let mut file: Vec<u8> = Vec::new();
    for step in steps {
        match step {
            Step::Write(offset, bytes) => {
                let mut at = 0;
                while at < bytes.len() {
                    let place = *offset as usize + at;
                    let piece = (4096 - place % 4096).min(bytes.len() - at);
                    file.resize(file.len().max(place + piece), 0);
                    file[place..place + piece].copy_from_slice(&bytes[at..at + piece]);
                    at += piece;
                    look(&file, at == bytes.len());
                }
            }
            Step::Truncate(length) => {
                file.truncate(*length as usize);
                look(&file, true);
            }
        }
    }
}

fn instants(read: &Read) -> Vec<u64> {
    read.events.iter().filter(|event| event.name == "jdk.ResidentSetSize").map(|event| event.long("size")).collect()
}

#[test]
fn a_recorder_that_is_killed_anywhere_leaves_a_whole_file_with_all_but_the_last_instant() {
    let mut seed = 3;
    // 25 s apart: 900 s make a chunk. Some instants are larger than the reserve.
    for (count, many) in [(1, false), (100, false), (8, true)] {
        let mut recording = Recording::new(Steps::default(), &TABLE);
        // What a killed recorder must have left: the instants whose call had returned after so many steps.
        let mut done = Vec::new();
        for index in 0..count {
            instant(&mut recording, index, &mut seed, many);
            done.push((recording.store().0.len(), index));
        }
        let steps = recording.finish().expect("the store takes all").0;
        let (mut states, mut chunks, mut whole) = (0, 0, 0);
        let mut step = 0;
        each_state(&steps, |file, complete| {
            states += 1;
            let seen = read(file).unwrap_or_else(|error| panic!("{error} in step {step} of {}", steps.len()));
            step += usize::from(complete);
            let written = done.iter().filter(|(at, _)| *at <= step).count() as u64;
            let instants = instants(&seen);
            assert_eq!(instants, (0..instants.len() as u64).collect::<Vec<_>>(), "in order, none left out");
            assert!(
                (written..=written + 1).contains(&(instants.len() as u64)),
                "{written} were written, {instants:?} seen"
            );
            chunks = chunks.max(seen.chunks.iter().filter(|chunk| chunk.types > 0).count());
            whole += usize::from(instants.len() as u64 == written);
        });
        assert!(whole > count as usize);
        if count == 100 {
            assert!(chunks >= 3 && states > 400, "{chunks} chunks, {states} states");
        }
    }
}

#[test]
fn what_is_written_is_read_back() {
    let stack = Stack {
        frames: vec![
            Frame { class: "libc.so.6".into(), function: "malloc".into(), line: 0, kind: FrameKind::Native },
            Frame { class: "a.B".into(), function: "c".into(), line: 9, kind: FrameKind::Interpreted },
        ],
        truncated: true,
    };
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let mut write = |time: u64| {
        recording
            .instant(time, |batch| {
                e::Site {
                    stack_trace: Some(&stack),
                    category: "zlib",
                    live: Bytes(1 << 40),
                    live_count: 127,
                    requested: Bytes(128),
                    peak: Bytes(u64::MAX),
                    count_at_peak: 0,
                    cumulative: Bytes(16_383),
                    cumulative_count: 16_384,
                    error: Bytes(5),
                }
                .write(batch);
                e::Arena {
                    address: Avma(0x7fff_ffff_f000),
                    kind: "main",
                    reserved: Bytes(1),
                    live: Bytes(2),
                    live_count: 3,
                    retained: Bytes(4),
                    live_resident: Bytes(5),
                    retained_resident: Bytes(6),
                    trimmable: Bytes(7),
                    threads: 8,
                }
                .write(batch);
                e::TargetEnd {
                    state: "killed", how: "ö", exit_code: -1, signal: 9, oom_killed: true, last_sign: None
                }
                .write(batch);
                e::Pressure { scope: "system", some: 0.25, full: 1.0, some_total: 3, full_total: 4 }.write(batch);
                e::NativeMemoryUsagePeak {
                    duration: 0,
                    event_thread: (),
                    stack_trace: None,
                    category: "zlib",
                    peak_reserved: Bytes(1),
                    peak_committed: Bytes(2),
                    count_at_peak: 3,
                }
                .write(batch);
            })
            .expect("memory takes all");
    };
    write(START);
    write(START + 1_000_000);
    // A clock that was set back, and a chunk later.
    write(START - SECOND);
    write(START + 1000 * SECOND);
    let bytes = recording.finish().expect("memory takes all");
    let seen = read(&bytes).expect("a whole file");
    assert_eq!(seen.chunks.len(), 2);
    assert_eq!(bytes.len() % 4096, 0);
    let sites: Vec<_> = seen.events.iter().filter(|event| event.name == "plimsoll.Site").collect();
    let ms = |time: u64| time / 1_000_000 * 1_000_000;
    assert_eq!(
        sites.iter().map(|site| site.time_ns).collect::<Vec<_>>(),
        [ms(START), ms(START) + 1_000_000, ms(START) + 1_000_000, ms(START + 1000 * SECOND)]
    );
    for site in &sites {
        assert_eq!(site.text("category"), "zlib");
        let figures =
            ["live", "liveCount", "requested", "peak", "countAtPeak", "cumulative", "cumulativeCount", "error"];
        assert_eq!(figures.map(|name| site.long(name)), [1 << 40, 127, 128, u64::MAX, 0, 16_383, 16_384, 5]);
        let Value::Struct(trace) = &site.fields["stackTrace"] else { panic!("{:?}", site.fields) };
        let Value::Array(frames) = &trace["frames"] else { panic!("{trace:?}") };
        assert_eq!(trace["truncated"], Value::Long(1));
        let flat = frames.iter().map(|frame| {
            let (method, class) = (&frame["method"], &frame["method"]["type"]["name"]);
            format!(
                "{} {} {} {}",
                class.text(),
                method["name"].text(),
                frame["lineNumber"].long() as i32,
                frame["type"].text()
            )
        });
        assert_eq!(flat.collect::<Vec<_>>(), ["libc.so.6 malloc -1 Native", "a/B c 9 Interpreted"]);
    }
    let of = |name: &str| seen.events.iter().find(|event| event.name == name).expect("written");
    let end = of("plimsoll.TargetEnd");
    assert_eq!((end.text("how"), end.long("exitCode") as i32, end.long("signal")), ("ö", -1, 9));
    assert_eq!((end.long("oomKilled"), end.long("lastSign") as i64), (1, i64::MIN));
    assert_eq!(of("plimsoll.Arena").long("address"), 0x7fff_ffff_f000);
    assert_eq!(of("plimsoll.MemoryPressure").fields["some"], Value::Float(0.25));
    assert_eq!(of("jdk.NativeMemoryUsagePeak").fields["stackTrace"], Value::Null);
}

/// An exec, or books that were begun anew: categories of before are nothing once, and not told again.
#[test]
fn a_category_that_is_no_more_is_nothing_once() {
    let category = |name: &str, live: u64| {
        let figures = Figures { live: Bytes(live), cumulative: Bytes(live), ..Figures::default() };
        Category { name: name.into(), figures, ..Category::default() }
    };
    let books = |categories: Vec<Category>| {
        let live = categories.iter().map(|category| category.figures.live).sum();
        Books { categories, total: Figures { live, ..Figures::default() }, ..Books::default() }
    };
    let shell = books(vec![category("sh", 5000), category("glibc", 700)]);
    let program = books(vec![category("glibc", 700), category("zlib", 90)]);
    let (mut recording, mut told, mut target) =
        (Recording::new(Vec::new(), &TABLE), Told::default(), Target::default());
    // The last is in the next chunk, where all is said again.
    for (second, books) in [(0, &shell), (1, &shell), (2, &program), (3, &program), (1000, &program)] {
        target.executable = if second < 2 { "/bin/sh" } else { "/bin/program" }.into();
        let instant = Instant { books: Some(books), ..Instant::default() };
        let write = |batch: &mut Batch<'_>| instant.write(batch, &mut told, &target);
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let second = |time: u64| (time + SECOND / 2 - START) / SECOND;
    let of = |event: &str, field: &str, name: &str, value: &str| -> Vec<(u64, u64)> {
        let events = seen.events.iter().filter(|one| one.name == event && one.text(field) == name);
        events.map(|one| (second(one.time_ns), one.long(value))).collect()
    };
    let live = |name: &str| of("plimsoll.Category", "category", name, "live");
    assert_eq!(live("sh"), [(0, 5000), (2, 0)]);
    assert_eq!(live("glibc"), [(0, 700), (2, 700), (1000, 700)], "of another program, and in another chunk");
    assert_eq!(live("zlib"), [(2, 90), (1000, 90)]);
    let committed = |name: &str| of("jdk.NativeMemoryUsage", "type", name, "committed");
    assert_eq!(committed("sh"), [(0, 5000), (1, 5000), (2, 0)]);
    assert_eq!(committed("glibc").len(), 5);
}

/// A verdict that holds is said again when its bytes have gone further, in full instants.
#[test]
fn how_the_bytes_of_a_verdict_go() {
    let (snapshot, mut told) = (Snapshot::default(), Told::default());
    let ledger = Ledger::of(&snapshot);
    let mut recording = Recording::new(Vec::new(), &TABLE);
    for (second, mib, full) in [(0, 100, true), (1, 150, false), (2, 150, true), (3, 155, true), (4, 160, true)] {
        let verdict = Verdict {
            id: VerdictId::NativeLeak,
            severity: Severity::Warning,
            bytes: Bytes::mib(mib),
            summary: format!("{mib} MiB"),
            evidence: vec![],
            remedies: vec![],
        };
        let verdicts = [verdict];
        let instant = Instant { ledger: Some((&snapshot, &ledger)), verdicts: &verdicts, full, ..Instant::default() };
        let write = |batch: &mut Batch<'_>| instant.write(batch, &mut told, &Target::default());
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let verdicts = seen.events.iter().filter(|event| event.name == "plimsoll.Verdict");
    assert_eq!(verdicts.map(|event| event.long("bytes") >> 20).collect::<Vec<_>>(), [100, 150, 160]);
}

/// By a clock of its own: an hour at 1 s of 30 lines, 20 categories and 200 sites that move like those of a server do, with
/// sites and peaks each 20 s.
#[test]
fn an_hour_is_smaller_than_8_mib() {
    let mut seed = 11;
    let mut figures = vec![0u64; 250];
    for figure in &mut figures {
        *figure = 1 << (12 + number(&mut seed, 18));
    }
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let names: Vec<String> = (0..50).map(|index| format!("name-{index}-of-a-line")).collect();
    let stacks: Vec<Stack> = (0..200)
        .map(|site| {
            let frame = |depth: u64| Frame {
                class: format!("lib{}.so", (site + depth) % 17),
                function: format!("a_function_of_some_length_{}", (site * 7 + depth * 13) % 900),
                line: 0,
                kind: FrameKind::Native,
            };
            Stack { frames: (0..20).map(frame).collect(), truncated: false }
        })
        .collect();
    for second in 0..3600u64 {
        for figure in &mut figures {
            // Four of five move, by up to 6 %.
            if number(&mut seed, 5) > 0 {
                let step = *figure / 16 + 1;
                *figure = *figure - step + number(&mut seed, 2 * step + 2);
            }
        }
        let (lines, rest) = figures.split_at(30);
        let (categories, sites) = rest.split_at(20);
        let full = second.is_multiple_of(20);
        let write = |batch: &mut Batch<'_>| {
            let sum = |of: &[u64]| Bytes(of.iter().sum());
            let (rss, live) = (sum(lines), sum(categories));
            e::Ledger {
                rss,
                remainder: Bytes(4096),
                swap: Bytes(0),
                mappings: 2000,
                threads: 200,
                provenance_age: second,
            }
            .write(batch);
            e::ResidentSetSize { size: rss, peak: rss }.write(batch);
            for (line, name) in lines.iter().zip(&names) {
                let (resident, reserved) = (Bytes(line & !4095), Bytes(line * 2));
                let (error, grade) = (Bytes(line / 50), "derived");
                e::LedgerLine { line: name, resident, reserved, committed: resident, error, grade }.write(batch);
            }
            for (category, name) in categories.iter().zip(&names[30..]) {
                let (bytes, cumulative) = (Bytes(*category), Bytes(category * (second + 1)));
                e::Category {
                    category: name,
                    origin: "module",
                    live: bytes,
                    live_count: category / 100,
                    requested: bytes,
                    peak: bytes,
                    count_at_peak: category / 100,
                    cumulative,
                    cumulative_count: cumulative.0 / 100,
                    reserved: bytes,
                    committed: bytes,
                }
                .write(batch);
                e::NativeMemoryUsage { category: name, reserved: bytes, committed: bytes }.write(batch);
                if full {
                    e::NativeMemoryUsagePeak {
                        duration: 0,
                        event_thread: (),
                        stack_trace: None,
                        category: name,
                        peak_reserved: bytes,
                        peak_committed: bytes,
                        count_at_peak: 9,
                    }
                    .write(batch);
                }
            }
            e::NativeMemoryUsageTotal { reserved: live, committed: live }.write(batch);
            if full {
                for ((site, stack), name) in sites.iter().zip(&stacks).zip(names[30..].iter().cycle()) {
                    let cumulative = Bytes(site * (second + 1));
                    e::Site {
                        stack_trace: Some(stack),
                        category: name,
                        live: Bytes(*site),
                        live_count: site / 100,
                        requested: Bytes(*site),
                        peak: Bytes(*site),
                        count_at_peak: site / 100,
                        cumulative,
                        cumulative_count: cumulative.0 / 100,
                        error: Bytes(site / 20),
                    }
                    .write(batch);
                }
            }
        };
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let bytes = recording.finish().expect("memory takes all");
    println!("an hour: {:.2} MiB", bytes.len() as f64 / (1 << 20) as f64);
    assert!(bytes.len() <= 8 << 20, "{} bytes", bytes.len());
}

/// HotSpot 25's and Native Image's fields, as `jfr metadata` of their recordings shows them.
#[test]
fn the_events_of_others_have_their_fields() {
    let mut recording = Recording::new(Vec::new(), &TABLE);
    recording.instant(START, |_| {}).expect("memory takes all");
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let amount = "long @Unsigned @DataAmount(BYTES)";
    let address = "long @Unsigned @MemoryAddress";
    let peak = [
        ("duration", "long @Timespan(NANOSECONDS)"),
        ("eventThread", "java.lang.Thread pool"),
        ("stackTrace", "jdk.types.StackTrace pool"),
    ];
    let peaks = [("peakReserved", amount), ("peakCommitted", amount), ("countAtPeak", "long @Unsigned")];
    let kind = [("type", "jdk.types.NMTType pool")];
    let usage = [("reserved", amount), ("committed", amount)];
    let expected = BTreeMap::from([
        ("jdk.NativeMemoryUsage", (false, [&kind[..], &usage].concat())),
        ("jdk.NativeMemoryUsageTotal", (false, usage.to_vec())),
        ("jdk.ResidentSetSize", (false, vec![("size", amount), ("peak", amount)])),
        (
            "jdk.NativeLibrary",
            (false, vec![("name", "java.lang.String"), ("baseAddress", address), ("topAddress", address)]),
        ),
        ("jdk.NativeMemoryUsagePeak", (true, [&peak[..], &kind, &peaks].concat())),
        ("jdk.NativeMemoryUsageTotalPeak", (true, [&peak[..], &peaks].concat())),
    ]);
    let mut compared = 0;
    for event in seen.event_types.iter().filter(|event| event.name.starts_with("jdk.")) {
        let (experimental, fields) = &expected[event.name.as_str()];
        assert_eq!(event.annotations.iter().any(|one| one == "@Experimental"), *experimental, "{}", event.name);
        let mut all = vec![("startTime".to_owned(), "long @Timestamp(TICKS)".to_owned())];
        all.extend(fields.iter().map(|(name, of)| ((*name).to_owned(), (*of).to_owned())));
        assert_eq!(event.fields, all, "{}", event.name);
        compared += 1;
    }
    assert_eq!(compared, expected.len());
    // Ours say what they are.
    for event in &seen.event_types {
        for wanted in ["@Label", "@Description", "@Category"] {
            assert!(event.annotations.iter().any(|one| one.starts_with(wanted)), "{} has no {wanted}", event.name);
        }
    }
}

#[test]
fn the_documentation_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/jfr-events.md");
    let text = fs::read_to_string(path).expect("docs/jfr-events.md");
    let (introduction, _) = text.split_once("\n## ").expect("events");
    let wanted = format!("{introduction}\n{}", TABLE.document().trim_start());
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, &wanted).expect("docs/jfr-events.md can be written");
    } else {
        assert!(
            text == wanted,
            "docs/jfr-events.md is not the table's: BLESS=1 cargo test -p plimsoll-report --test jfr"
        );
    }
}
