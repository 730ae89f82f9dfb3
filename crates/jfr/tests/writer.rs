//! Reads what the writer wrote, with this test's own decoder and with the crate's reader.

#[allow(dead_code, reason = "shared by several test programs")]
#[path = "chunks/decoder.rs"]
mod decoder;

#[path = "../../../fixtures/random.rs"]
mod random;

use std::io;
use std::panic::catch_unwind;

use decoder::{Read, Value, read};
use plimsoll_jfr::reader::{self, EventFilter, Limits};
use plimsoll_jfr::writer::kinds::{
    Address, Amount, Count, Flag, Moment, Nanoseconds, NmtType, NoThread, Number, Share, Text, Trace,
};
use plimsoll_jfr::writer::{self, Body, FieldKind, Frame, FrameType, Recording, Series, Stack, Store, Table, Type};
use random::Random;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_790_000_000 * SECOND + 123_456_789;

const NOW: &str = "when the test wants it";

enum Name {}
impl writer::Value for Name {
    const KIND: FieldKind = FieldKind { words: "name", of: 31, pooled: true, annotations: &[] };
    type Of<'a> = &'a str;
    fn put(value: &&str, body: &mut Body<'_>) {
        body.constant(31, value);
    }
}

plimsoll_jfr::events! {
    Tick 100 "test.Tick" "Tick" NOW ["Test"] "Its number, and noise" {
        size: Amount "size" "Size" "",
        peak: Amount "peak" "Peak" "",
    }
    Site 101 "test.Site" "Site" NOW ["Test", "Stacks"] "A stack" {
        stack_trace: Trace "stackTrace" "Stack Trace" "",
        category: Name "category" "Category" "",
        bytes: Amount "bytes" "Bytes" "",
        count: Count "count" "Count" "",
    }
    Everything 102 "test.Everything" "Everything" NOW ["Test"] experimental "A field of every kind" {
        amount: Amount "amount" "Amount" "",
        count: Count "count" "Count" "",
        number: Number "number" "Number" "",
        address: Address "address" "Address" "",
        moment: Moment "moment" "Moment" "",
        never: Moment "never" "Never" "",
        span: Nanoseconds "span" "Span" "",
        share: Share "share" "Share" "",
        flag: Flag "flag" "Flag" "",
        category: NmtType "type" "Type" "",
        name: Name "name" "Name" "",
        text: Text "text" "Text" "",
        stack: Trace "stackTrace" "Stack Trace" "",
        thread: NoThread "eventThread" "Thread" "",
    }
}
static TABLE: Table = Table::new(EVENTS, &[Type::of_names(31, "test.Name")]);

/// Each change of the file, one per system call.
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

/// An instant with one `Tick` and some sites. The tick's `size` is the instant's number, so that the test can identify
/// it.
fn instant<S: Store>(recording: &mut Recording<S>, index: u64, random: &mut Random, many: bool) {
    let sites = if many { random.below(300) } else { random.below(4) };
    recording
        .instant(START + index * 25 * SECOND, |batch| {
            Tick { size: index, peak: 1 << random.below(40) }.write(batch);
            for site in 0..sites {
                let stack = Stack {
                    frames: vec![
                        Frame {
                            class: "libz.so.1".into(),
                            function: format!("inflate{}", random.below(40)),
                            line: 0,
                            kind: FrameType::Native,
                        },
                        Frame {
                            class: "java.util.zip.Inflater".into(),
                            function: "inflate".into(),
                            line: 7,
                            kind: FrameType::Jit,
                        },
                    ],
                    truncated: site % 2 == 0,
                };
                Site {
                    stack_trace: Some(&stack),
                    category: ["zlib", "", "größer"][random.below(3) as usize],
                    bytes: u64::MAX >> random.below(64),
                    count: site,
                }
                .write(batch);
            }
        })
        .expect("the store takes all");
}

/// Calls `look` with the file after each step, and after each page of a step: the recorder may be killed between any
/// two.
fn each_state(steps: &[Step], mut look: impl FnMut(&[u8], bool)) {
    let mut file: Vec<u8> = Vec::new();
    for step in steps {
        match step {
            Step::Write(offset, bytes) => {
                let mut at = 0;
                while at < bytes.len() {
                    let position = *offset as usize + at;
                    let piece = (4096 - position % 4096).min(bytes.len() - at);
                    file.resize(file.len().max(position + piece), 0);
                    file[position..position + piece].copy_from_slice(&bytes[at..at + piece]);
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
    read.events.iter().filter(|event| event.name == "test.Tick").map(|event| event.long("size")).collect()
}

#[test]
fn a_recorder_that_is_killed_anywhere_leaves_a_whole_file_with_all_but_the_last_instant() {
    let mut random = Random(3);
    // 25 s apart: 900 s make a chunk. Some instants are larger than the reserve.
    for (count, many) in [(1, false), (100, false), (8, true)] {
        let mut recording = Recording::new(Steps::default(), &TABLE);
        // The instants that a killed recorder must have left: those whose call had returned by that step.
        let mut done = Vec::new();
        for index in 0..count {
            instant(&mut recording, index, &mut random, many);
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

/// A file that may grow to `most` bytes (`ulimit -f`, a quota, a disk that is full): what fits of a write is written.
struct Bounded {
    file: Vec<u8>,
    most: usize,
}

impl Store for Bounded {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fits = self.most.saturating_sub(offset as usize).min(bytes.len());
        self.file.write_at(offset, &bytes[..fits])?;
        if fits < bytes.len() { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        Store::truncate(&mut self.file, length)
    }
}

#[test]
fn a_file_that_may_not_grow_ends_with_a_whole_page() {
    // The limits of most shells count 1,024 or 512 bytes.
    for most in [51_200, 512 * 99, 60_000] {
        let mut recording = Recording::new(Bounded { file: Vec::new(), most }, &TABLE);
        let mut count = 0;
        let mut next = |index: u64| {
            recording.instant(START + index * SECOND / 100, |batch| {
                Tick { size: index, peak: 1 }.write(batch);
            })
        };
        while next(count).is_ok() {
            count += 1;
        }
        let file = &recording.store().file;
        assert!(file.len().is_multiple_of(4096) && most - file.len() < 4 * 4096, "{} of {most} bytes", file.len());
        let seen = read(file).unwrap_or_else(|error| panic!("{error} at {most} bytes"));
        assert_eq!(instants(&seen), (0..count).collect::<Vec<_>>());
        let mut found = 0;
        let ticks = EventFilter::named(&["test.Tick"]);
        let summary = reader::read(&file[..], Limits::default(), &ticks, |_| found += 1);
        assert!(summary.flaws.is_empty() && found == count, "{found} of {count}: {:?}", summary.flaws);
    }
}

/// A copy may have been cut off: its chunk is longer than the file.
#[test]
fn a_recording_that_is_cut_off_is_read_up_to_the_cut() {
    let mut random = Random(5);
    let mut recording = Recording::new(Vec::new(), &TABLE);
    for index in 0..80 {
        instant(&mut recording, index, &mut random, false);
    }
    let file = recording.finish().expect("memory takes all");
    let events = |file: &[u8]| {
        let mut events = Vec::new();
        let summary = reader::read(file, Limits::default(), &EventFilter::all(), |event| {
            let names = event.stack().map(|stack| {
                stack.frames().map(|frame| frame.method().map(|name| name.into_owned())).collect::<Vec<_>>()
            });
            let category = event.string("category").map(|name| name.into_owned());
            let figures = ["size", "bytes", "count"].map(|field| event.u64(field));
            events.push((event.offset, (event.name().to_owned(), event.time(), figures, category, names)));
        });
        for flaw in &summary.flaws {
            assert!(!flaw.what.contains(" 1 bytes"), "{flaw}");
            let skips = |other: &&reader::Flaw| other.offset == flaw.offset && other.what.contains("skipped");
            assert!(summary.flaws.iter().filter(skips).count() <= 1, "{:?}", summary.flaws);
        }
        events
    };
    let all = events(&file);
    let ticks: Vec<usize> = (0..all.len()).filter(|index| all[*index].1.0 == "test.Tick").collect();
    let chunks = reader::chunks(&file, Limits::default());
    assert!(chunks.len() >= 3 && ticks.len() == 80, "{} chunks, {} ticks", chunks.len(), ticks.len());
    let mut cuts = 0;
    for cut in (0..file.len()).step_by(61) {
        let seen = events(&file[..cut]);
        // An instant's constants follow its events. So they are in the file once the next instant has begun.
        let begun = ticks.iter().rposition(|index| all[*index].0 < cut as u64);
        let whole = begun.map_or(0, |number| ticks[number]);
        assert!(seen.len() >= whole, "{} of {whole} events, cut at {cut}", seen.len());
        assert!(seen[..whole] == all[..whole], "cut at {cut}");
        assert!(seen.iter().zip(&all).all(|(of, all)| of.0 == all.0), "cut at {cut}");
        cuts += usize::from(whole > 0);
    }
    assert!(cuts > 300, "{cuts}");
    // One byte of an event is left.
    let cut = reader::read(&file[..file.len() - 1], Limits::default(), &EventFilter::all(), |_| {}).flaws;
    let at = cut.first().expect("the last event is cut off").offset as usize;
    let flaws = reader::read(&file[..at + 1], Limits::default(), &EventFilter::all(), |_| {}).flaws;
    let found: Vec<&str> = flaws.iter().map(|flaw| flaw.what.as_str()).collect();
    assert_eq!(found, ["the last event is cut off; 1 byte of an unfinished chunk is skipped"]);
}

#[test]
fn a_value_of_every_kind_is_read_back_by_both_readers() {
    let stack = Stack {
        frames: vec![
            Frame { class: "libc.so.6".into(), function: "malloc".into(), line: 0, kind: FrameType::Native },
            Frame { class: "a.B".into(), function: "c".into(), line: 9, kind: FrameType::Interpreted },
        ],
        truncated: true,
    };
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let mut write = |time: u64| {
        recording
            .instant(time, |batch| {
                Everything {
                    amount: u64::MAX,
                    count: 16_384,
                    number: -1,
                    address: 0x7fff_ffff_f000,
                    moment: Some(127),
                    never: None,
                    span: 128,
                    share: 0.25,
                    flag: true,
                    category: "Metaspace",
                    name: "zlib",
                    text: "größer",
                    stack: Some(&stack),
                    thread: (),
                }
                .write(batch);
            })
            .expect("memory takes all");
    };
    write(START);
    write(START + 1_000_000);
    // A clock that was set back, and an instant in a later chunk.
    write(START - SECOND);
    write(START + 1000 * SECOND);
    let bytes = recording.finish().expect("memory takes all");
    assert_eq!(bytes.len() % 4096, 0);
    let ms = |time: u64| time / 1_000_000 * 1_000_000;
    let times = [ms(START), ms(START) + 1_000_000, ms(START) + 1_000_000, ms(START + 1000 * SECOND)];

    let seen = read(&bytes).expect("a whole file");
    assert_eq!(seen.chunks.len(), 2);
    assert_eq!(seen.events.iter().map(|event| event.time_ns).collect::<Vec<_>>(), times);
    for event in &seen.events {
        let longs = ["amount", "count", "address", "moment", "span", "flag"].map(|name| event.long(name));
        assert_eq!(longs, [u64::MAX, 16_384, 0x7fff_ffff_f000, 127, 128, 1]);
        assert_eq!((event.long("number") as i32, event.long("never") as i64), (-1, i64::MIN));
        assert_eq!(["type", "name", "text"].map(|name| event.text(name)), ["Metaspace", "zlib", "größer"]);
        assert_eq!((&event.fields["share"], &event.fields["eventThread"]), (&Value::Float(0.25), &Value::Null));
        let Value::Struct(trace) = &event.fields["stackTrace"] else { panic!("{:?}", event.fields) };
        let Value::Array(frames) = &trace["frames"] else { panic!("{trace:?}") };
        assert_eq!(trace["truncated"], Value::Long(1));
        let flat = frames.iter().map(|frame| {
            let (method, class) = (&frame["method"], &frame["method"]["type"]["name"]);
            let (line, kind) = (frame["lineNumber"].long() as i32, frame["type"].text());
            format!("{} {} {line} {kind}", class.text(), method["name"].text())
        });
        assert_eq!(flat.collect::<Vec<_>>(), ["libc.so.6 malloc -1 Native", "a/B c 9 Interpreted"]);
    }

    let mut ours = vec![];
    let summary = reader::read(&bytes, Limits::default(), &EventFilter::named(&["test.Everything"]), |event| {
        ours.push(event.time().unwrap_or_default() as u64);
        let longs = ["amount", "count", "address", "moment", "span", "flag"].map(|name| event.u64(name));
        assert_eq!(longs, [u64::MAX, 16_384, 0x7fff_ffff_f000, 127, 128, 1].map(Some));
        assert_eq!((event.i64("number"), event.i64("never")), (Some(-1), Some(i64::MIN)));
        let texts = ["type", "name", "text"].map(|name| event.string(name).unwrap_or_default().into_owned());
        assert_eq!(texts, ["Metaspace", "zlib", "größer"]);
        assert_eq!((event.f64("share"), event.thread().is_none()), (Some(0.25), true));
        let stack = event.stack().expect("a stack");
        assert!(stack.is_truncated());
        let flat = stack.frames().map(|frame| {
            let [class, method, kind] = [frame.class(), frame.method(), frame.kind()].map(Option::unwrap_or_default);
            format!("{class} {method} {:?} {kind}", frame.line())
        });
        assert_eq!(flat.collect::<Vec<_>>(), ["libc.so.6 malloc None Native", "a.B c Some(9) Interpreted"]);
    });
    assert_eq!((ours.as_slice(), summary.flaws, summary.chunks.len()), (times.as_slice(), vec![], 2));
    assert!(summary.chunks.iter().all(|chunk| chunk.is_finished));
}

/// The JDK converts the ticks of all chunks with the first chunk's header. It may also resolve a constant with an
/// earlier chunk's value of the same number.
#[test]
fn all_chunks_of_a_series_have_one_clock_and_no_number_stands_for_two_values() {
    let mut series = Series::new(&TABLE);
    let mut joined = Vec::new();
    let mut expected = Vec::new();
    for file in 0..3 {
        let mut recording = Recording::of_series(Vec::new(), series);
        // The third instant opens a second chunk.
        for (index, second) in [0, 1, 1000].into_iter().enumerate() {
            let time = START + (file * 5000 + second) * SECOND;
            let text = format!("{index} of {file}");
            let write = |batch: &mut writer::Batch<'_>| {
                let frame = Frame { class: "lib.so".into(), function: text.clone(), ..Frame::default() };
                let stack = Stack { frames: vec![frame], truncated: false };
                Site { stack_trace: Some(&stack), category: &text, bytes: file, count: 1 }.write(batch);
            };
            recording.instant(time, write).expect("memory takes all");
            expected.push((time / 1_000_000, text.clone(), text));
        }
        let (bytes, rest) = recording.finish_file().expect("memory takes all");
        series = rest;
        assert_eq!(read(&bytes).expect("a file that is whole without the others").events.len(), 3);
        joined.extend(bytes);
    }
    let mut seen = Vec::new();
    let mut clocks = Vec::new();
    let mut numbers = std::collections::HashMap::new();
    for chunk in reader::chunks(&joined, Limits::default()) {
        let long = |at: usize| {
            let at = chunk.offset as usize + at;
            u64::from_be_bytes(joined[at..at + 8].try_into().expect("8 bytes"))
        };
        // ns, ticks, and ticks a second.
        clocks.push(long(32) - long(48) * (SECOND / long(56)));
    }
    reader::read(&joined, Limits::default(), &EventFilter::named(&["test.Site"]), |event| {
        let text = event.string("category").unwrap_or_default().into_owned();
        let stack = event.stack().expect("a stack");
        let function = stack.frames().next().and_then(|frame| Some(frame.method()?.into_owned())).unwrap_or_default();
        seen.push((event.time().unwrap_or_default() as u64 / 1_000_000, text.clone(), function));
        let number = event.key("category").expect("a number");
        assert_eq!(numbers.entry(number).or_insert(text.clone()), &text, "{number} stands for two names");
    });
    assert_eq!(seen, expected);
    assert_eq!(clocks, vec![START / 1_000_000 * 1_000_000; clocks.len()]);
    assert!(clocks.len() >= 6, "{}", clocks.len());
}

#[test]
fn a_table_refuses_ids_that_clash() {
    let refused = |ids: &[u64], names: &'static [Type]| {
        let event = |id: &u64| &*Box::leak(Box::new(writer::Event { id: *id, ..*Tick::EVENT }));
        let events = ids.iter().map(event).collect::<Vec<_>>().leak();
        catch_unwind(|| Table::new(events, names)).is_err()
    };
    assert!(!refused(&[200, 201], &[]));
    assert!(refused(&[200, 200], &[]));
    const NAMES: &[Type] = &[Type::of_names(201, "test.Name")];
    assert!(refused(&[200, 201], NAMES));
    assert!(refused(&[200, 4], &[]), "4 is boolean's");
    for of_the_format in [0, 1, 76] {
        assert!(refused(&[200, of_the_format], &[]), "{of_the_format}");
    }
}
