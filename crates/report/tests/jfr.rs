//! The state of a process as events of a recording, read by a decoder that shares nothing with the reader and the
//! writer.

#[allow(dead_code, reason = "shared by several test programs")]
#[path = "../../jfr/tests/chunks/decoder.rs"]
mod decoder;
#[path = "../../../fixtures/random.rs"]
mod random;

use decoder::read;
use plimsoll_facts::snapshot::{Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_jfr::writer::{Batch, Frame, FrameType, Recording, Stack};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::{Severity, Verdict, VerdictId};
use plimsoll_report::jfr::events as e;
use plimsoll_report::jfr::{ChunkContents, DescribedTarget, Instant, Site, TABLE};
use plimsoll_tracked::books::{Books, Category, Figures};
use random::Random;
use std::collections::BTreeMap;
use std::fs;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_790_000_000 * SECOND + 123_456_789;

#[test]
fn addresses_bytes_and_words_are_written_as_they_are() {
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let write = |batch: &mut Batch<'_>| {
        e::NativeLibrary { name: "libc.so.6", base: Avma(0x7fff_ffff_f000), top: Avma(u64::MAX) }.write(batch);
        e::NativeMemoryUsage { category: "zlib", reserved: Bytes(u64::MAX), committed: Bytes(127) }.write(batch);
    };
    recording.instant(START, write).expect("memory takes all");
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let [library, usage] = &seen.events[..] else { panic!("{:?}", seen.events) };
    assert_eq!((library.text("name"), library.long("baseAddress")), ("libc.so.6", 0x7fff_ffff_f000));
    assert_eq!(library.long("topAddress"), u64::MAX);
    assert_eq!((usage.text("type"), usage.long("reserved"), usage.long("committed")), ("zlib", u64::MAX, 127));
}

/// After an exec, or with new books, the earlier categories are written once with zeros, then no more.
#[test]
fn a_category_that_is_gone_is_written_once_with_zeros() {
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
    let (mut recording, mut written, mut target) =
        (Recording::new(Vec::new(), &TABLE), ChunkContents::default(), DescribedTarget::default());
    // The last instant is in the next chunk, which repeats everything.
    for (second, books) in [(0, &shell), (1, &shell), (2, &program), (3, &program), (1000, &program)] {
        target.executable = if second < 2 { "/bin/sh" } else { "/bin/program" }.into();
        let instant = Instant { books: Some(books), ..Instant::default() };
        let write = |batch: &mut Batch<'_>| instant.write(batch, &mut written, &target);
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

/// dlclose of one library and dlopen of another leave the number of mappings as it was.
#[test]
fn a_library_that_replaced_another_is_written() {
    let library = |name: &str, inode: u64| Vma {
        name: name.into(),
        inode,
        executable: true,
        range: AddressRange { start: Avma(0x7000_0000), end: Avma(0x7000_1000) },
        ..Vma::default()
    };
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let (mut written, mut target) = (ChunkContents::default(), DescribedTarget::default());
    for (second, name) in [(0, "/liba.so"), (1, "/liba.so"), (2, "/libb.so"), (3, "/libb.so"), (4, "/libb.so")] {
        // An exec of another program with the same library at the same address.
        target.executable = if second < 4 { "/bin/one" } else { "/bin/other" }.into();
        let snapshot = Snapshot { vmas: vec![library(name, if second < 2 { 7 } else { 8 })], ..Snapshot::default() };
        let ledger = Ledger::of(&snapshot);
        let instant = Instant { ledger: Some((&snapshot, &ledger)), ..Instant::default() };
        let write = |batch: &mut Batch<'_>| instant.write(batch, &mut written, &target);
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let libraries = seen.events.iter().filter(|event| event.name == "jdk.NativeLibrary");
    let found: Vec<_> = libraries.map(|one| ((one.time_ns + SECOND / 2 - START) / SECOND, one.text("name"))).collect();
    assert_eq!(found, [(0, "/liba.so"), (2, "/libb.so"), (4, "/libb.so")]);
}

/// A site that only maps memory has no figures of blocks.
#[test]
fn a_site_that_only_maps_memory_has_no_event() {
    let site = |live: u64, reserved: u64| Site {
        stack: Stack { frames: vec![Frame { function: format!("f{live}"), ..Frame::default() }], truncated: false },
        category: "zlib".into(),
        figures: Figures {
            live: Bytes(live),
            cumulative: Bytes(live),
            reserved: Bytes(reserved),
            committed: Bytes(reserved),
            ..Figures::default()
        },
        error: Bytes(0),
    };
    let sites = [site(0, 4096), site(70, 0), site(0, 8192), site(30, 4096)];
    let total = Figures { live: Bytes(100), cumulative: Bytes(100), reserved: Bytes(16384), ..Figures::default() };
    let books = Books { total, ..Books::default() };
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let instant = Instant { books: Some(&books), sites: &sites, full: true, ..Instant::default() };
    let (mut written, target) = (ChunkContents::default(), DescribedTarget::default());
    recording.instant(START, |batch| instant.write(batch, &mut written, &target)).expect("memory takes all");
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let live = seen.events.iter().filter(|event| event.name == "plimsoll.Site").map(|event| event.long("live"));
    assert_eq!(live.collect::<Vec<_>>(), [70, 30]);
}

/// 100 threads run between two readings of few threads. The tracker keeps no peak of stacks, so the recording has the
/// highest that it read; books of another program start again.
#[test]
fn a_peak_without_the_trackers_help_is_the_highest_reading() {
    let books = |stacks: u64, since_ns: u64| {
        let bytes = Bytes::mib(stacks);
        let figures = Figures {
            reserved: bytes,
            committed: bytes,
            peak_reserved: bytes,
            peak_committed: bytes,
            ..Figures::default()
        };
        let categories = vec![Category { name: "Thread Stack".into(), figures, ..Category::default() }];
        let mut books = Books { categories, total: figures, ..Books::default() };
        books.process.since_ns = since_ns;
        books
    };
    let (mut recording, mut written, target) =
        (Recording::new(Vec::new(), &TABLE), ChunkContents::default(), DescribedTarget::default());
    // Between 2 and 1000 a new chunk begins.
    for (second, stacks, since, full) in
        [(0, 8, 1, true), (1, 800, 1, false), (2, 8, 1, true), (1000, 16, 1, true), (1001, 24, 2, true)]
    {
        let books = books(stacks, since);
        let instant = Instant { books: Some(&books), full, ..Instant::default() };
        let write = |batch: &mut Batch<'_>| instant.write(batch, &mut written, &target);
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    for event in ["jdk.NativeMemoryUsagePeak", "jdk.NativeMemoryUsageTotalPeak"] {
        let events = seen.events.iter().filter(|one| one.name == event);
        let peaks: Vec<u64> = events.map(|one| one.long("peakCommitted") >> 20).collect();
        assert_eq!(peaks, [8, 800, 800, 24], "{event}");
    }
}

/// A verdict that still holds is written again in a full instant, if its bytes moved by more than a sixteenth.
#[test]
fn a_verdict_whose_bytes_moved_is_written_again_in_a_full_instant() {
    let (snapshot, mut written) = (Snapshot::default(), ChunkContents::default());
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
        let write = |batch: &mut Batch<'_>| instant.write(batch, &mut written, &DescribedTarget::default());
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let seen = read(&recording.finish().expect("memory takes all")).expect("a whole file");
    let verdicts = seen.events.iter().filter(|event| event.name == "plimsoll.Verdict");
    assert_eq!(verdicts.map(|event| event.long("bytes") >> 20).collect::<Vec<_>>(), [100, 150, 160]);
}

/// A simulated server: sizes that move.
struct Server {
    random: Random,
    /// The sizes of 30 lines, then of 20 categories, then of 200 sites.
    sizes: Vec<u64>,
    names: Vec<String>,
    /// One stack for each site.
    stacks: Vec<Stack>,
}

impl Server {
    fn new() -> Server {
        let mut random = Random(11);
        let sizes = (0..250).map(|_| 1 << (12 + random.below(18))).collect();
        let names = (0..50).map(|index| format!("name-{index}-of-a-line")).collect();
        let frame = |site: u64, depth: u64| Frame {
            class: format!("lib{}.so", (site + depth) % 17),
            function: format!("a_function_of_some_length_{}", (site * 7 + depth * 13) % 900),
            line: 0,
            kind: FrameType::Native,
        };
        let stack = |site| Stack { frames: (0..20).map(|depth| frame(site, depth)).collect(), truncated: false };
        Server { random, sizes, names, stacks: (0..200).map(stack).collect() }
    }

    /// Four of five sizes move, by up to 6 %.
    fn move_sizes(&mut self) {
        for size in &mut self.sizes {
            if self.random.below(5) > 0 {
                let step = *size / 16 + 1;
                *size = *size - step + self.random.below(2 * step + 2);
            }
        }
    }

    fn lines(&self) -> &[u64] {
        &self.sizes[..30]
    }

    /// Names and sizes.
    fn categories(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names[30..].iter().map(String::as_str).zip(self.sizes[30..50].iter().copied())
    }

    fn write(&self, batch: &mut Batch<'_>, second: u64, full: bool) {
        self.write_lines(batch, second);
        for (category, size) in self.categories() {
            write_category(batch, category, size, second);
            if full {
                write_peak(batch, category, size);
            }
        }
        let live = Bytes(self.categories().map(|(_, size)| size).sum());
        e::NativeMemoryUsageTotal { reserved: live, committed: live }.write(batch);
        if full {
            self.write_sites(batch, second);
        }
    }

    fn write_lines(&self, batch: &mut Batch<'_>, second: u64) {
        let rss = Bytes(self.lines().iter().sum());
        let (remainder, swap) = (Bytes(4096), Bytes(0));
        e::Ledger { rss, remainder, swap, mappings: 2000, threads: 200, provenance_age: second }.write(batch);
        e::ResidentSetSize { size: rss, peak: rss }.write(batch);
        for (line, name) in self.lines().iter().zip(&self.names) {
            let (resident, reserved) = (Bytes(line & !4095), Bytes(line * 2));
            let (error, grade) = (Bytes(line / 50), "derived");
            e::LedgerLine { line: name, resident, reserved, committed: resident, error, grade }.write(batch);
        }
    }

    fn write_sites(&self, batch: &mut Batch<'_>, second: u64) {
        let sites = &self.sizes[50..];
        for ((site, stack), category) in sites.iter().zip(&self.stacks).zip(self.names[30..].iter().cycle()) {
            let cumulative = Bytes(site * (second + 1));
            e::Site {
                stack_trace: Some(stack),
                category,
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
}

fn write_category(batch: &mut Batch<'_>, category: &str, size: u64, second: u64) {
    let (bytes, cumulative) = (Bytes(size), Bytes(size * (second + 1)));
    e::Category {
        category,
        origin: "module",
        live: bytes,
        live_count: size / 100,
        requested: bytes,
        peak: bytes,
        count_at_peak: size / 100,
        cumulative,
        cumulative_count: cumulative.0 / 100,
        reserved: bytes,
        committed: bytes,
    }
    .write(batch);
    e::NativeMemoryUsage { category, reserved: bytes, committed: bytes }.write(batch);
}

fn write_peak(batch: &mut Batch<'_>, category: &str, size: u64) {
    e::NativeMemoryUsagePeak {
        duration: 0,
        event_thread: (),
        stack_trace: None,
        category,
        peak_reserved: Bytes(size),
        peak_committed: Bytes(size),
        count_at_peak: 9,
    }
    .write(batch);
}

/// A simulated hour at 1 s: 30 lines, 20 categories and 200 sites that move as those of a server do, with sites and
/// peaks every 20 s.
#[test]
fn an_hour_is_smaller_than_8_mib() {
    let mut server = Server::new();
    let mut recording = Recording::new(Vec::new(), &TABLE);
    for second in 0..3600u64 {
        server.move_sizes();
        let full = second.is_multiple_of(20);
        let write = |batch: &mut Batch<'_>| server.write(batch, second, full);
        recording.instant(START + second * SECOND, write).expect("memory takes all");
    }
    let bytes = recording.finish().expect("memory takes all");
    println!("an hour: {:.2} MiB", bytes.len() as f64 / (1 << 20) as f64);
    assert!(bytes.len() <= 8 << 20, "{} bytes", bytes.len());
}

/// HotSpot 25's and Native Image's fields, as `jfr metadata` of their recordings shows them.
#[test]
fn jdk_events_have_the_fields_of_the_jdk() {
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
    // Every event has a label, a description and a category.
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
            "docs/jfr-events.md differs from the table: BLESS=1 cargo test -p plimsoll-report --test jfr"
        );
    }
}
