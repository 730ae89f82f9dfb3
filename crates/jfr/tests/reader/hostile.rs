//! Mutated and hostile files: whatever they contain, reading ends, stays within its limits, and never panics.

use std::cell::Cell;
use std::ops::ControlFlow;

use plimsoll_jfr::reader::{EventFilter, Input, Limits, ReadAt, Reader, read};

use crate::chunk::{EVENTS, Out, chunk, chunk_of};
use crate::damage::{Outcomes, Random, look_at};

#[test]
fn twenty_thousand_mutations_of_a_small_recording_are_read_to_their_end() {
    mutations_of_a_small_recording(20_000);
}

#[test]
#[ignore = "full: 200,000 mutations; make test has 20,000 of them"]
fn two_hundred_thousand_mutations_of_a_small_recording_are_read_to_their_end() {
    mutations_of_a_small_recording(200_000);
}

fn mutations_of_a_small_recording(files: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut outcomes = Outcomes::default();
    for compressed in [true, false] {
        let whole = [chunk(compressed), chunk(compressed)].concat();
        for _ in 0..files / 2 {
            let mut bytes = whole.clone();
            let length = bytes.len();
            // Hit the header in one of eight rounds, because all other reading depends on it.
            let range = if random.index(8) == 0 { 0..68 } else { 0..length };
            random.mutate(&mut bytes, range);
            look_at(&bytes, &mut outcomes);
        }
    }
    eprintln!("{outcomes:?}");
    // The random numbers are the same in each run, so these counts don't vary.
    assert!(outcomes.files == files && outcomes.with_flaws > files / 5, "{outcomes:?}");
    assert!(outcomes.events > files * 5 / 2 && outcomes.values > files * 10, "{outcomes:?}");
    assert!(outcomes.unfinished > files / 200 && outcomes.without_events > files / 2000, "{outcomes:?}");
}

/// A chunk with events that the test writes itself.
fn around(events: impl FnOnce(&mut Out) -> (u64, u64)) -> Vec<u8> {
    let mut bytes = chunk(true);
    bytes.truncate(68);
    let mut out = Out { bytes, compressed: true };
    let (metadata, checkpoint) = events(&mut out);
    let size = out.bytes.len() as u64;
    for (at, value) in [(8, size), (16, checkpoint), (24, metadata)] {
        out.bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    out.bytes
}

fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

fn element(out: &mut Out, name: i64, attributes: &[i64], children: i64) {
    out.int(name);
    out.int(attributes.len() as i64 / 2);
    attributes.iter().for_each(|index| out.int(*index));
    out.int(children);
}

/// Known attacks, each within a stated amount of memory: sizes and counts above what the file has, circular chains,
/// types that contain themselves.
#[test]
fn hostile_files_stay_within_the_limit_of_memory() {
    if !is_alone("hostile::hostile_files_stay_within_the_limit_of_memory") {
        return;
    }
    let before = peak_rss();
    let mut outcomes = Outcomes::default();
    huge_counts(&mut outcomes);
    unlimited_nesting(&mut outcomes);
    types_within_types(&mut outcomes);
    long_names(&mut outcomes);
    wrong_chains_of_checkpoints(&mut outcomes);
    damaged_headers(&mut outcomes);
    // The largest file has 9 MiB and is in memory once.
    let more = peak_rss() - before;
    eprintln!("{outcomes:?}, {} MiB", more >> 20);
    assert!(outcomes.files == 25 && outcomes.with_flaws >= 19, "{outcomes:?}");
    assert!(more < 256 << 20, "{} MiB", more >> 20);
}

/// Whether this process runs only this test. If not, starts a process that does: memory is measured per process.
fn is_alone(name: &str) -> bool {
    const ALONE: &str = "PLIMSOLL_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let test = std::env::current_exe().expect("a path");
    let mut command = std::process::Command::new(test);
    command.args(["--exact", name, "--nocapture"]).env(ALONE, "1");
    let output = command.output().expect("this program again");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// A count of 2³¹ - 1: of strings, of attributes, of children, and each time of pools.
fn huge_counts(outcomes: &mut Outcomes) {
    for position in 0..4 {
        let bytes = around(|out| {
            let metadata = out.event(0, |out| {
                (0..3).for_each(|value| out.long(value));
                out.int(if position == 0 { i64::from(i32::MAX) } else { 1 });
                out.bytes.extend([3, 4]);
                out.bytes.extend(b"root");
                out.int(0);
                out.int(if position == 1 { i64::from(i32::MAX) } else { 0 });
                out.int(if position == 2 { i64::from(i32::MAX) } else { 0 });
            });
            let checkpoint = out.event(1, |out| {
                [0, 0, 0].iter().for_each(|value| out.long(*value));
                out.bytes.push(0);
                out.int(i64::from(i32::MAX));
            });
            (metadata, checkpoint)
        });
        look_at(&bytes, outcomes);
    }
}

/// Elements of the metadata, 100,000 deep.
fn unlimited_nesting(outcomes: &mut Outcomes) {
    let bytes = around(|out| {
        let metadata = out.event(0, |out| {
            (0..3).for_each(|value| out.long(value));
            out.int(1);
            out.bytes.extend([3, 1, b'x']);
            (0..100_000).for_each(|_| element(out, 0, &[], 1));
        });
        (metadata, 0)
    });
    look_at(&bytes, outcomes);
}

/// 40 types, each with 10 fields of the next: 10⁴⁰ values of size zero. In the second round, the last type contains
/// the first.
fn types_within_types(outcomes: &mut Outcomes) {
    for cyclic in [false, true] {
        let strings: Vec<String> =
            ["root", "metadata", "class", "field", "id", "name", "superType", "jdk.jfr.Event", "class"]
                .iter()
                .map(|text| text.to_string())
                .chain((0..41).map(|id| (100 + id).to_string()))
                .collect();
        let id = |number: i64| 9 + number;
        let bytes = around(|out| {
            let metadata = out.event(0, |out| {
                (0..3).for_each(|value| out.long(value));
                out.int(strings.len() as i64);
                for text in &strings {
                    out.bytes.push(3);
                    out.int(text.len() as i64);
                    out.bytes.extend(text.as_bytes());
                }
                element(out, 0, &[], 1);
                element(out, 1, &[], 40);
                for number in 0..40 {
                    let next = if number < 39 { Some(number + 1) } else { cyclic.then_some(0) };
                    element(out, 2, &[4, id(number), 5, id(number), 6, 7], if next.is_some() { 10 } else { 0 });
                    for _ in 0..next.map_or(0, |_| 10) {
                        element(out, 3, &[5, id(40), 8, id(next.unwrap_or(0))], 0);
                    }
                }
            });
            (0..40).for_each(|number| {
                out.event(100 + number, |out| out.bytes.extend([0; 64]));
            });
            (metadata, 0)
        });
        look_at(&bytes, outcomes);
    }
}

/// One text of 8 MiB. In the first round, it names 60,000 types; in the second round, it names one type, of which there
/// are 60,000 annotations.
fn long_names(outcomes: &mut Outcomes) {
    for of_annotations in [false, true] {
        let bytes = around(|out| {
            let metadata = out.event(0, |out| {
                (0..3).for_each(|value| out.long(value));
                let strings = ["root", "metadata", "class", "id", "7", "name", "annotation"];
                out.int(strings.len() as i64 + 1);
                strings.iter().for_each(|text| out.utf8(text));
                out.utf8(&"x".repeat(8 << 20));
                element(out, 0, &[], 1);
                let (classes, annotations) = if of_annotations { (1, 60_000) } else { (60_000, 0) };
                element(out, 1, &[], classes);
                for _ in 0..classes {
                    element(out, 2, &[3, 4, 5, 7], annotations);
                    (0..annotations).for_each(|_| element(out, 6, &[2, 4], 0));
                }
            });
            (metadata, 0)
        });
        look_at(&bytes, outcomes);
    }
}

/// Circular, forwards, or out of the chunk.
fn wrong_chains_of_checkpoints(outcomes: &mut Outcomes) {
    for delta in [i64::from(i32::MIN), -1, 1, 100, i64::MIN, i64::MAX] {
        let whole = chunk(true);
        let checkpoint = u64::from_be_bytes(whole[16..24].try_into().expect("8 bytes")) as usize;
        let mut out = Out { bytes: whole[..checkpoint].to_vec(), compressed: true };
        out.event(1, |out| {
            [0, 0, delta].iter().for_each(|value| out.long(*value));
            out.bytes.push(0);
            out.int(0);
        });
        let size = out.bytes.len() as u64;
        out.bytes[8..16].copy_from_slice(&size.to_be_bytes());
        look_at(&out.bytes, outcomes);
    }
}

/// Zeros and ones after a header that says it is unfinished; headers directly after each other; and other versions.
fn damaged_headers(outcomes: &mut Outcomes) {
    for filler in [0u8, 0xff, 1, 2] {
        let mut bytes = chunk(true);
        bytes[8..16].fill(0);
        bytes.resize(4 << 20, filler);
        look_at(&bytes, outcomes);
    }
    look_at(&chunk(true)[..68].repeat(10_000), outcomes);
    look_at(&b"FLR\0".repeat(1 << 18), outcomes);
    for (major, minor) in [(0, 9), (1, 0), (3, 0), (2, 9)] {
        let mut bytes = chunk(true);
        bytes[4..8].copy_from_slice(&[0, major, 0, minor]);
        look_at(&bytes, outcomes);
    }
}

/// Counts the bytes that are read.
struct Counted<'b>(&'b [u8], Cell<u64>);

impl ReadAt for Counted<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let count = self.0.read_at(buffer, offset)?;
        self.1.set(self.1.get() + count as u64);
        Ok(count)
    }
}

/// A JVM that flushes each second writes thousands of checkpoints into a chunk, and a hostile file has millions.
#[test]
fn a_long_chain_of_checkpoints_is_not_read_over_and_over() {
    let mut out = Out { bytes: chunk(true), compressed: true };
    let mut last = u64::from_be_bytes(out.bytes[16..24].try_into().expect("8 bytes"));
    for _ in 0..20_000 {
        let delta = last as i64 - out.bytes.len() as i64;
        last = out.event(1, |out| {
            [0, 0, delta].iter().for_each(|value| out.long(*value));
            out.bytes.push(0);
            out.int(0);
        });
    }
    let size = out.bytes.len() as u64;
    out.bytes[8..16].copy_from_slice(&size.to_be_bytes());
    out.bytes[16..24].copy_from_slice(&last.to_be_bytes());
    let counted = Counted(&out.bytes, Cell::new(0));
    let mut reader = Reader::new(Limits::default());
    let mut names = 0;
    let _ = reader.read(Input { name: None, bytes: &counted, length: size }, &EventFilter::all(), &mut |event| {
        names += usize::from(event.thread().and_then(|thread| thread.name()).is_some());
        ControlFlow::Continue(())
    });
    let summary = reader.into_summary();
    assert!(summary.flaws.is_empty(), "{:?}", summary.flaws);
    assert_eq!((summary.counts["test.Small"], names), (EVENTS as u64, EVENTS));
    assert!(counted.1.get() < 20 * size, "{} bytes of {size}", counted.1.get());
}

#[test]
fn data_beyond_the_limits_is_a_flaw() {
    let limited = |limits: Limits| {
        let mut names = 0;
        let summary = read(&chunk(true), limits, &EventFilter::named(&["test.Small"]), |event| {
            names += usize::from(event.thread().and_then(|thread| thread.name()).is_some());
        });
        (summary.flaws.len(), summary.counts["test.Small"], names)
    };
    assert_eq!(limited(Limits::default()), (0, 3, 3));
    assert_eq!(limited(Limits { constants: 16, ..Limits::default() }), (1, 3, 0));
    assert_eq!(limited(Limits { constant_count: 0, ..Limits::default() }), (1, 3, 0));
    // Too large to be decoded: counted but not passed on.
    assert_eq!(limited(Limits { event: 64, ..Limits::default() }).1, 3);
    assert!(limited(Limits { event: 64, ..Limits::default() }).0 > 0);
}

/// Each event refers to one text of 64 KiB by two bytes. The reader decodes as much as the bytes of the file allow, and
/// reports that it left out the rest. Numbers and times of the later events are still read.
#[test]
fn a_long_text_that_many_events_refer_to_is_decoded_a_limited_number_of_times() {
    const TEXT: usize = 64 << 10;
    const POOLED: u8 = 2;
    let named = |events: u64| {
        let mut bytes = chunk_of(&[("test.Named", &["$name", "weight"])], 0, 1000, |out| {
            for number in 0..events {
                out.event(50, |out| {
                    out.long(number as i64);
                    out.bytes.push(POOLED);
                    out.long(1);
                    out.long(7);
                });
            }
        });
        let mut out = Out { bytes: std::mem::take(&mut bytes), compressed: true };
        let checkpoint = out.event(1, |out| {
            [0, 0, 0].iter().for_each(|value| out.long(*value));
            out.bytes.push(0);
            out.int(1);
            out.long(12);
            out.int(1);
            out.long(1);
            out.utf8(&"n".repeat(TEXT));
        });
        let size = out.bytes.len() as u64;
        out.bytes[8..16].copy_from_slice(&size.to_be_bytes());
        out.bytes[16..24].copy_from_slice(&checkpoint.to_be_bytes());
        let (mut decoded, mut seen) = (0, 0);
        let limits = Limits { decoding: 1 << 20, ..Limits::default() };
        let summary = read(&out.bytes, limits, &EventFilter::named(&["test.Named"]), |event| {
            assert_eq!((event.time(), event.u64("weight")), (Some(seen as i64), Some(7)));
            seen += 1;
            decoded += event.string("name").map_or(0, |name| name.len());
        });
        assert_eq!(seen, events);
        (decoded, size as usize, summary.flaws)
    };
    let (decoded, _, flaws) = named(20);
    assert_eq!((decoded, flaws), (20 * TEXT, vec![]));
    let (decoded, size, flaws) = named(10_000);
    assert!(decoded > 1 << 20 && decoded <= (1 << 20) + 64 * size + TEXT, "{decoded} of {size}");
    assert!(flaws.iter().any(|flaw| flaw.what.contains("decoding its texts")), "{flaws:?}");
}

/// A type has 1,000 fields without a size, and each of its events has a few bytes. The reader reads as many of them as
/// the bytes of the file allow, and skips the others. Events of another type are all read.
#[test]
fn events_with_more_fields_than_the_limit_allows_are_skipped() {
    const FIELDS: i64 = 1000;
    const EVENTS: u64 = 10_000;
    let texts = [
        "root",
        "metadata",
        "class",
        "id",
        "name",
        "superType",
        "jdk.jfr.Event",
        "field",
        "100",
        "101",
        "102",
        "9",
        "test.Wide",
        "test.Empty",
        "test.Small",
        "long",
    ];
    let text = |wanted: &str| texts.iter().position(|text| *text == wanted).expect("one of the texts") as i64;
    let bytes = around(|out| {
        let metadata = out.event(0, |out| {
            (0..3).for_each(|value| out.long(value));
            out.int(texts.len() as i64);
            texts.iter().for_each(|text| out.utf8(text));
            element(out, text("root"), &[], 1);
            element(out, text("metadata"), &[], 4);
            let [class, id, name, field] = ["class", "id", "name", "field"].map(text);
            let event = |number, own| [id, text(number), name, text(own), text("superType"), text("jdk.jfr.Event")];
            element(out, class, &event("100", "test.Wide"), FIELDS);
            (0..FIELDS).for_each(|_| element(out, field, &[name, text("name"), class, text("101")], 0));
            element(out, class, &[id, text("101"), name, text("test.Empty")], 0);
            element(out, class, &event("102", "test.Small"), 1);
            element(out, field, &[name, text("id"), class, text("9")], 0);
            element(out, class, &[id, text("9"), name, text("long")], 0);
        });
        for number in 0..EVENTS {
            out.event(100, |_| {});
            out.event(102, |out| out.long(number as i64));
        }
        (metadata, 0)
    });
    let limits = Limits { decoding: 1 << 20, ..Limits::default() };
    let (mut wide, mut small) = (0, 0);
    let summary = read(&bytes, limits, &EventFilter::all(), |event| {
        if event.name() == "test.Wide" {
            wide += 1;
        } else {
            assert_eq!(event.u64("id"), Some(small));
            small += 1;
        }
    });
    assert_eq!((small, summary.counts["test.Wide"]), (EVENTS, EVENTS));
    assert!(wide > 100 && wide < EVENTS / 2, "{wide}");
    let what = format!("{} of {EVENTS} events test.Wide have more fields", EVENTS - wide);
    assert!(summary.flaws.iter().any(|flaw| flaw.what.starts_with(&what)), "{:?}", summary.flaws);
}
