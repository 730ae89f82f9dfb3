//! The text and the JSON of a ledger with every kind of line, compared to the byte with goldens/explain.*.
//! `BLESS=1 cargo test -p plimsoll-report` rewrites them: read the difference.

use std::path::PathBuf;

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{
    AllocatorKind, Arena, ArenaKind, Backing, Cgroup, CodeCacheSegment, Glibc, HeapPart, HotSpot, JavaHeap, JavaThread,
    NmtCategory, OtherHeap, Reading, Snapshot, Thread, VmRegion, VmTag, Vma,
};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::{Severity, VerdictId, judge};
use plimsoll_report::ledger_text::{Explanation, Style};
use plimsoll_report::{ledger_json, ledger_tables, ledger_text};

fn mib(number: u64) -> Bytes {
    Bytes::mib(number)
}

/// A snapshot, and the address for its next mapping.
struct Builder {
    snapshot: Snapshot,
    at: Avma,
}

impl Builder {
    fn map(&mut self, rss: Bytes, size: Bytes, vma: Vma) -> AddressRange {
        let range = AddressRange::sized(self.at, size);
        self.at = Avma(range.end.0 + (1 << 20));
        let private_dirty = rss - vma.shared_clean;
        let vma = Vma { range, readable: true, writable: true, rss, pss: rss, private_dirty, ..vma };
        self.snapshot.vmas.push(vma);
        range
    }
}

/// A server in a container on a large host: 24 thread arenas that keep what their threads freed.
fn shop() -> Explanation {
    let snapshot = Snapshot { time: 1_795_211_234.5, ..Snapshot::default() };
    let mut builder = Builder { snapshot, at: Avma(0x7f00_0000_0000) };
    java_process(&mut builder.snapshot);
    let regions = vm_regions(&mut builder);
    glibc_arenas(&mut builder);
    thread_stacks(&mut builder);
    files(&mut builder);
    builder.map(mib(2), mib(30), Vma::default());
    let mut snapshot = builder.snapshot;
    snapshot.hotspot = Some(hotspot(regions));
    snapshot.cgroup = Some(container());
    gap_and_readings(&mut snapshot);
    let ledger = Ledger::of(&snapshot);
    let verdicts = judge(&snapshot, &ledger);
    Explanation { snapshot, ledger, verdicts }
}

fn java_process(snapshot: &mut Snapshot) {
    let process = &mut snapshot.process;
    (process.pid, process.namespaced_pid, process.name) = (4711, Some(7), "java".to_owned());
    process.command = ["java", "-jar", "shop.jar", "\x1b]0;pwned\x07"].map(str::to_owned).to_vec();
    (process.uptime, process.thread_count) = (Some(273_600.0), 212);
    (snapshot.host.page, snapshot.host.cpus_online, snapshot.host.max_map_count) = (Bytes(4096), 40, Some(65_530));
}

fn vm_regions(builder: &mut Builder) -> Vec<VmRegion> {
    let regions = [
        (VmTag::JavaHeap, mib(1044), mib(3072)),
        (VmTag::Class, mib(184), mib(1200)),
        (VmTag::Code, mib(118), mib(240)),
        (VmTag::Gc, mib(61), mib(80)),
    ];
    let regions = regions.map(|(tag, rss, size)| {
        let range = builder.map(rss, size, Vma::default());
        VmRegion { range, tag, committed: vec![range] }
    });
    regions.to_vec()
}

/// The main arena, and 24 of threads.
fn glibc_arenas(builder: &mut Builder) {
    let mut arenas = Vec::new();
    for index in 0..25u64 {
        let (live, free) = if index == 0 { (mib(40), mib(3)) } else { (mib(14), mib(50)) };
        let heap = builder.map(live + free, live + free, Vma::default());
        arenas.push(Arena {
            address: heap.start,
            kind: if index == 0 { ArenaKind::Main } else { ArenaKind::Thread },
            heaps: vec![heap],
            reserved: if index == 0 { heap.length() } else { mib(64) },
            live,
            live_count: 9000,
            bins: free - mib(1),
            top: mib(1),
            live_resident: live,
            free_resident: free,
            trimmable: free - Bytes::kib(700) - if index == 0 { Bytes(0) } else { mib(1) },
            at_end: if index == 0 { Bytes(0) } else { mib(1) },
            attached_threads: index % 3,
            whole: true,
            ..Arena::default()
        });
    }
    builder.snapshot.glibc = Some(Glibc { version: "2.36".into(), arenas, arena_cap: Some(320), ..Glibc::default() });
}

fn event_loop(tid: u32) -> String {
    format!("lettuce-nioEventLoop-{}-{}", tid / 16, tid % 16)
}

fn thread_stacks(builder: &mut Builder) {
    for tid in 1..=212u32 {
        let stack = builder.map(Bytes::kib(180), mib(1), Vma::default());
        let name = if tid <= 192 { event_loop(tid) } else { format!("exec-{tid}") };
        let name = name[..name.len().min(15)].to_owned();
        let thread = Thread { tid, namespaced_tid: tid, name, stack: Some(stack), ..Thread::default() };
        builder.snapshot.threads.push(thread);
    }
}

/// A library, and a deleted file with an escape sequence in its name.
fn files(builder: &mut Builder) {
    let file = |name: &str, executable| Vma {
        name: name.into(),
        inode: 9,
        executable,
        backing: Backing::File,
        ..Vma::default()
    };
    builder.map(mib(15), mib(20), file("/usr/lib/jvm/lib/server/libjvm.so", true));
    let index = Vma { inode: 10, deleted: true, shared_clean: mib(30), ..file("/data/\x1b[31mindex\n.cfs", false) };
    builder.map(mib(30), mib(400), index);
}

fn hotspot(regions: Vec<VmRegion>) -> HotSpot {
    let category = |name: &str, malloc| NmtCategory { name: name.into(), malloc, ..NmtCategory::default() };
    let code = regions.iter().find(|region| region.tag == VmTag::Code).expect("code").range;
    HotSpot {
        version: "25.0.3+9-LTS".into(),
        regions,
        categories: vec![category("Other", mib(96)), category("Compiler", mib(9)), category("Internal", mib(4))],
        java_heap: Some(JavaHeap {
            reserved: mib(3072),
            committed: mib(1400),
            occupied: mib(900),
            live_after_gc: Some(mib(610)),
            max: Some(mib(2800)),
        }),
        code_cache: vec![CodeCacheSegment {
            name: "profiled nmethods".into(),
            range: code,
            committed: mib(118),
            occupied: mib(110),
            reserved: mib(240),
        }],
        threads: (1..=192).map(|tid| JavaThread { name: event_loop(tid), tid }).collect(),
        ..HotSpot::default()
    }
}

fn container() -> Cgroup {
    let mut cgroup = Cgroup {
        path: "/kubepods/pod7".into(),
        limit_path: "/kubepods/pod7".into(),
        limit: Some(mib(4096)),
        charged: mib(3600),
        cpu_quota: Some(2.0),
        ..Cgroup::default()
    };
    (cgroup.stat.anon, cgroup.stat.file, cgroup.stat.inactive_file) = (mib(3300), mib(220), mib(100));
    (cgroup.stat.kernel, cgroup.stat.sock) = (mib(60), mib(18));
    cgroup
}

/// What could not be read, and how long the rest took.
fn gap_and_readings(snapshot: &mut Snapshot) {
    let reason = "no permission to read \x1b[2Jsomething";
    snapshot.gaps.push(Gap::new(Source::Segment, reason, "no call sites").remedy("plimsoll run -- java -jar shop.jar"));
    let reading = |source, took| Reading {
        source,
        began: std::time::Duration::ZERO,
        took: std::time::Duration::from_micros(took),
    };
    snapshot.readings =
        vec![reading(Source::HotSpot, 21_000), reading(Source::Proc, 11_300), reading(Source::Glibc, 64_000)];
}

fn compare(name: &str, found: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, found).expect("goldens can be written");
    }
    let expected = std::fs::read(&path).unwrap_or_default();
    assert!(expected == found, "{name} differs; read it, then BLESS=1\n{}", String::from_utf8_lossy(found));
}

#[test]
fn the_text_is_the_golden_one() {
    let mut out = Vec::new();
    ledger_text::write(&mut out, &shop(), Style { colour: false, width: 120 }).unwrap();
    compare("explain.txt", &out);
}

fn text_of(explanation: &Explanation, width: usize) -> String {
    let mut out = Vec::new();
    ledger_text::write(&mut out, explanation, Style { colour: false, width }).unwrap();
    String::from_utf8(out).unwrap()
}

/// 3,300 MiB of anonymous memory, of which the process itself has less; the others hold 400 MiB.
#[test]
fn the_sum_of_a_cgroup_names_its_other_processes() {
    let sum = |others: &[(u32, u64)]| {
        let mut shop = shop();
        let cgroup = shop.snapshot.cgroup.as_mut().expect("a container");
        cgroup.others = others.iter().map(|(pid, of)| (*pid, mib(*of))).collect();
        // The shop's own, so that the others' share is known.
        let own: Bytes = shop.snapshot.vmas.iter().map(|vma| vma.anonymous).sum();
        cgroup.stat.anon = own + mib(500);
        shop.ledger = Ledger::of(&shop.snapshot);
        let text = text_of(&shop, 400);
        text.lines().find(|line| line.contains("counted against the limit")).expect("the sum").to_owned()
    };
    assert!(!sum(&[]).contains("other"), "{}", sum(&[]));
    let one = sum(&[(12, 400)]);
    assert!(one.contains(" (of it 1 other, PID 12: 400 MiB)"), "{one}");
    let several = sum(&[(12, 10), (13, 380), (14, 10)]);
    assert!(several.contains(" (of it 3 others: 400 MiB, the largest PID 13)"), "{several}");
}

#[test]
fn the_sentence_of_a_verdict_stands_once() {
    let mut explanation = shop();
    let mut note = explanation.verdicts[0].clone();
    (note.id, note.severity, note.summary) = (VerdictId::HugePages, Severity::Note, "a note's sentence".to_owned());
    explanation.verdicts.push(note.clone());
    let text = text_of(&explanation, 400);
    for verdict in &explanation.verdicts {
        assert_eq!(text.matches(verdict.summary.as_str()).count(), 1, "{}: {text}", verdict.summary);
    }
    assert!(text.contains("\n! arena-retention  warning\n") && text.contains("\n· huge-pages  a note's sentence\n"));
    // Without a warning, the state comes first.
    note.id = VerdictId::Healthy;
    explanation.verdicts = vec![note];
    let text = text_of(&explanation, 400);
    assert!(text.contains("\n· a note's sentence\n    basis  ") && text.contains("\n· healthy\n"), "{text}");
}

/// The sentences at the top and the verdicts below are in one order today; the id says which belongs to which.
#[test]
fn several_headlines_have_ids() {
    let mut explanation = shop();
    let warnings = || explanation.verdicts.iter().filter(|verdict| verdict.severity == Severity::Warning);
    assert!(warnings().count() > 1);
    let text = text_of(&explanation, 400);
    for verdict in warnings() {
        let id = verdict.id.id();
        assert!(text.contains(&format!("\n! {id}: {}\n", verdict.summary)), "{id}: {text}");
        assert!(text.contains(&format!("\n! {id}  warning\n")), "{id}: {text}");
    }
    explanation.verdicts.truncate(1);
    let (text, first) = (text_of(&explanation, 400), explanation.verdicts[0].summary.clone());
    assert!(text.contains(&format!("\n! {first}\n")), "{text}");
    explanation.verdicts[0].severity = Severity::Critical;
    let text = text_of(&explanation, 400);
    assert!(text.contains(&format!("\n!! {first}\n")), "{text}");
    let (narrow, rows) =
        (text_of(&explanation, 60), |text: &str| text.lines().take(20).map(str::to_owned).collect::<Vec<_>>());
    let at = rows(&narrow).iter().position(|row| row.starts_with("!! ")).unwrap_or_else(|| panic!("{narrow}"));
    assert!(rows(&narrow)[at + 1].starts_with("   ") && rows(&narrow)[at].chars().count() <= 60, "{narrow}");
}

/// In JSON, the line keeps its name.
#[test]
fn the_text_names_the_line_of_another_allocator_after_it() {
    let range = AddressRange::sized(Avma(1 << 30), mib(110));
    let mut heap = OtherHeap::new(AllocatorKind::Jemalloc);
    heap.ranges.push(range);
    heap.add(HeapPart::Live, mib(10), mib(10));
    heap.add(HeapPart::Dirty, mib(100), mib(100));
    let vma = Vma { range, readable: true, writable: true, rss: mib(110), pss: mib(110), ..Vma::default() };
    let mut snapshot = Snapshot { vmas: vec![vma], malloc_heap: Some(heap), ..Snapshot::default() };
    let row = |snapshot: &Snapshot| {
        let (snapshot, ledger) = (snapshot.clone(), Ledger::of(snapshot));
        let text = text_of(&Explanation { snapshot, ledger, verdicts: Vec::new() }, 160);
        text.lines().find(|row| row.starts_with("    jemalloc ")).unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(row(&snapshot).ends_with("█  10.0 MiB live, 100 MiB in free pages"), "{}", row(&snapshot));
    // What a VM counts of it is on other lines.
    let internal = NmtCategory { name: "Internal".into(), malloc: mib(7), ..NmtCategory::default() };
    snapshot.hotspot = Some(HotSpot { categories: vec![internal], ..HotSpot::default() });
    let beside = row(&snapshot);
    assert!(beside.ends_with("█  3.00 MiB live beside the VM's own, 100 MiB in free pages"), "{beside}");
    snapshot.hotspot = None;
    let ledger = Ledger::of(&snapshot);
    let explanation = Explanation { snapshot, ledger, verdicts: Vec::new() };
    let mut out = Vec::new();
    ledger_json::write(&mut out, &explanation).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(value["lines"][0]["name"], "other allocator");
}

#[test]
fn nothing_is_wider_than_the_terminal_but_what_is_to_be_pasted() {
    let explanation = shop();
    let pasted: Vec<&str> =
        explanation.verdicts.iter().flat_map(|v| &v.remedies).flat_map(|r| r.how.lines().chain([&*r.what])).collect();
    for width in [60, 80, 100, 132, 200] {
        let mut out = Vec::new();
        ledger_text::write(&mut out, &explanation, Style { colour: false, width }).unwrap();
        let text = String::from_utf8(out).unwrap();
        let figures = text.lines().take_while(|row| !row.starts_with('?'));
        let rest = text.lines().filter(|row| !pasted.iter().any(|how| row.ends_with(how)));
        for row in figures.chain(rest) {
            assert!(row.chars().count() <= width, "{width}: {row}");
            assert_eq!(row.trim_end(), row, "{width}");
        }
        assert!(text.contains("needs it") && text.contains("java -jar shop.jar"), "{text}");
    }
}

#[test]
fn the_json_is_the_golden_one() {
    let mut out = Vec::new();
    ledger_json::write(&mut out, &shop()).unwrap();
    let mut value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    // The long table of arenas shows nothing new after its first rows.
    value["arenas"].as_array_mut().expect("a table").truncate(2);
    compare("explain.json", format!("{value:#}\n").as_bytes());
}

#[test]
fn the_tables_have_their_columns_and_sums() {
    let explanation = shop();
    let mut out = Vec::new();
    ledger_tables::arenas(&mut out, &explanation).unwrap();
    compare("explain-arenas.txt", &out);
    let mut out = Vec::new();
    ledger_tables::maps(&mut out, &explanation, 60).unwrap();
    let text = String::from_utf8(out).expect("UTF-8");
    let rows: Vec<&str> = text.lines().collect();
    let column = |row: &str, index: usize| row.split_whitespace().nth(index).and_then(|word| word.parse::<u64>().ok());
    let rss: u64 = rows[1..rows.len() - 1].iter().filter_map(|row| column(row, 3)).sum();
    assert_eq!(rss, explanation.ledger.rss.0 / 1024);
    assert_eq!(rows.len() - 2, explanation.ledger.pieces.len());
    assert!(!text.contains('\x1b'));
}

/// Half of the mapping belongs to an arena, and all its resident pages are dirty.
#[test]
fn a_mapping_that_is_cut_shares_out_its_dirty_and_its_proportional_bytes() {
    let range = AddressRange::sized(Avma(1 << 30), mib(8));
    let (rss, pss, swap) = (mib(6), mib(4), mib(1));
    let vma = Vma { range, readable: true, writable: true, rss, pss, private_dirty: rss, swap, ..Vma::default() };
    let arena = Arena { heaps: vec![AddressRange::sized(range.start, mib(4))], ..Arena::default() };
    let glibc = Some(Glibc { arenas: vec![arena], ..Glibc::default() });
    let snapshot = Snapshot { vmas: vec![vma], glibc, ..Snapshot::default() };
    let ledger = Ledger::of(&snapshot);
    let mut out = Vec::new();
    ledger_tables::maps(&mut out, &Explanation { snapshot, ledger, verdicts: Vec::new() }, 60).unwrap();
    let text = String::from_utf8(out).expect("UTF-8");
    let columns = |row: &str| row.split_whitespace().skip(3).take(5).map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = text.lines().skip(1).map(columns).collect();
    assert_eq!(rows[..2], [["3072", "1024", "2048", "3072", "1024"], ["3072", "1024", "2048", "3072", "-"]], "{text}");
}

#[test]
fn a_terminal_gets_our_colours_and_none_of_the_targets() {
    let mut out = Vec::new();
    ledger_text::write(&mut out, &shop(), Style { colour: true, width: 100 }).unwrap();
    let text = String::from_utf8(out).expect("UTF-8");
    // Every escape is one of ours: ESC [ digits and semicolons m.
    for after in text.split('\x1b').skip(1) {
        let code = after.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(code, _)| code);
        assert!(code.is_some_and(|code| code.chars().all(|c| c.is_ascii_digit() || c == ';')), "{after:?}");
    }
    assert!(!text.contains("\x1b[2J") && !text.contains('\x07') && !text.contains("\x1b[31mindex"));
}

#[test]
fn a_part_that_is_not_resident_has_no_line() {
    let mut explanation = shop();
    let largest = explanation.ledger.lines.iter_mut().filter(|line| line.children.len() > 1);
    let line = largest.max_by_key(|line| line.resident).unwrap();
    let whole = line.resident;
    line.children.truncate(2);
    line.children[0].resident = whole;
    (line.children[1].name, line.children[1].resident) = ("only reserved".into(), Bytes(0));
    let mut out = Vec::new();
    ledger_text::write(&mut out, &explanation, Style { colour: false, width: 120 }).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        !text.contains("only reserved") && !text.lines().any(|line| line.trim_start().starts_with("0 B  ")),
        "{text}"
    );
}

/// Page tables take 8 bytes for each page: much where a program touches its memory here and there.
#[test]
fn page_tables_are_shown_from_one_percent_on() {
    let says = |tables: Bytes| {
        let mut explanation = shop();
        explanation.snapshot.process.page_tables = Some(tables);
        let mut out = Vec::new();
        ledger_text::write(&mut out, &explanation, Style { colour: false, width: 100 }).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(
        says(mib(300)).contains("\n  page tables of this process: 300 MiB (in kernel, above)\n"),
        "{}",
        says(mib(300))
    );
    assert!(!says(mib(10)).contains("page tables of"));
}
