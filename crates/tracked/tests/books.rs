//! Known answers, balanced sums, and hostile input. Over 800 lines: the tests change one synthetic segment, and check it
//! with the same functions.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[path = "../../../fixtures/random.rs"]
mod random;

use child::Running;
use random::Random;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_segment::vmap::VmaMap;
use plimsoll_segment::{ALL_SECTIONS, Counter, Header, SECTIONS, Section, sites};
use plimsoll_tracked::books::{Books, Figures};
use plimsoll_tracked::segment::{self, Life, parse};
use plimsoll_tracked::sites::Sites;
use plimsoll_tracked::symbols::{self, Symbols};

mod synthetic;
use synthetic::{RowOf, Synthetic, server};

/// Reads through a file, like the program.
fn books_of(bytes: &[u8], name: &str) -> Result<Books, String> {
    let path = std::env::temp_dir().join(format!("plimsoll-test-{}-{name}.seg", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let segment = segment::read(&path, Deadline::after(NAMES));
    std::fs::remove_file(&path).unwrap();
    Ok(Books::new(&segment.map_err(|e| e.to_string())?, Life::Killed, 1_010_000_000_000))
}

/// PIDs are reused: the process that has this one now may be tracked, too.
#[test]
fn the_segment_of_an_ended_process_is_not_that_of_its_successor() {
    let script = "import mmap, sys\nfile = open(sys.stdin.readline().strip(), 'rb')\n\
                  held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n\
                  print('up', flush=True)\nsys.stdin.read()";
    let mut python = Command::new("python3");
    let mut successor =
        Running(python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3"));
    let pid = successor.id();
    let folder = std::env::temp_dir().join(format!("plimsoll-test-{}-successor", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let started_ns = segment::start_time_ns(pid).expect("it lives");
    let made = |start_ns: u64| {
        let mut segment = Synthetic::new(pid);
        segment.u64(offset_of!(Header, start_boottime_ns), start_ns);
        let path = folder.join(format!("{pid}-{start_ns}.seg"));
        std::fs::write(&path, segment.trimmed()).expect("a file");
        path
    };
    let [ended, lives] = [1, started_ns + 1_000_000_000].map(made);
    let mut stdin = successor.stdin.take().expect("piped");
    writeln!(stdin, "{}", lives.display()).expect("it reads");
    let mut line = String::new();
    BufReader::new(successor.stdout.take().expect("piped")).read_line(&mut line).expect("it maps the file");
    assert_eq!(line, "up\n");
    let deadline = Deadline::after(NAMES);
    let of = |found: Option<(PathBuf, segment::Head, Life)>| found.map(|(path, _, life)| (path, life));
    let found = segment::find_by_pid_in(pid, Some(&folder), deadline);
    assert_eq!(of(found), Some((lives, Life::Live)));
    assert_eq!(of(segment::find_ended_in(pid, Some(&folder), deadline)), Some((ended, Life::Killed)));
    let _ = std::fs::remove_dir_all(&folder);
}

fn named<'a>(books: &'a Books, name: &str) -> &'a Figures {
    &books.categories.iter().find(|c| c.name == name).unwrap().figures
}

fn balanced(books: &Books) {
    let sum = |figure: fn(&Figures) -> u64| books.categories.iter().map(|c| figure(&c.figures)).sum::<u64>();
    let total = &books.total;
    assert_eq!(sum(|f| f.live.0), total.live.0);
    assert_eq!(sum(|f| f.live_count), total.live_count);
    assert_eq!(sum(|f| f.requested.0), total.requested.0);
    assert_eq!(sum(|f| f.cumulative.0), total.cumulative.0);
    assert_eq!(sum(|f| f.cumulative_count), total.cumulative_count);
    assert_eq!(sum(|f| f.reserved.0), total.reserved.0);
    assert_eq!(sum(|f| f.committed.0), total.committed.0);
    assert_eq!(sum(|f| f.at_peak.0), total.at_peak.0);
    assert_eq!(sum(|f| f.at_peak_count), total.at_peak_count);
    for f in books.categories.iter().map(|c| &c.figures).chain([total]) {
        assert!(f.peak >= f.live, "a peak below the current value");
    }
}

/// A later attach starts new books in the same segment. Their start and a change of the mode are counted from there.
#[test]
fn books_begin_with_the_last_attach() {
    const START: u64 = 1_000_000_000_000;
    const SECOND: u64 = 1_000_000_000;
    let of = |attached: u64, in_force: u64| {
        let mut s = server(4711);
        s.counter(Counter::attached_ns, attached);
        s.u64(std::mem::offset_of!(plimsoll_segment::Header, in_force_ns), in_force);
        let books = books_of(&s.bytes, &format!("began-{attached}-{in_force}")).unwrap();
        let start = books.process.start_ns;
        (books.process.since_ns - start, books.mode_since_ns.map(|at| at - start))
    };
    assert_eq!(of(0, START), (0, None), "run");
    assert_eq!(of(0, START + 5 * SECOND), (0, Some(5 * SECOND)), "run, other sites later");
    assert_eq!(of(START + 7 * SECOND, START + 7 * SECOND), (7 * SECOND, None), "attached again");
    assert_eq!(of(START + 7 * SECOND, START + 9 * SECOND), (7 * SECOND, Some(9 * SECOND)), "and other sites later");
}

#[test]
fn the_synthetic_server_gives_the_known_answers() {
    let books = books_of(&server(4711).bytes, "known").unwrap();
    balanced(&books);
    assert_eq!(books.gaps, []);
    let zlib = named(&books, "zlib");
    assert_eq!((zlib.live, zlib.live_count, zlib.requested), (Bytes(500_000), 50, Bytes(495_000)));
    assert_eq!((zlib.peak, zlib.count_at_peak), (Bytes(1_000_000), 100));
    assert_eq!((zlib.at_peak, zlib.at_peak_count), (Bytes(900_000), 90));
    let own = named(&books, "server");
    assert_eq!((own.live, own.live_count), (Bytes(19 * 64 + 1_999_993), 20));
    // The segment has no central peak: the live bytes are the peak, and both figures of the pair are current.
    assert_eq!((own.peak, own.count_at_peak, own.peak_time_ns), (own.live, 20, None));
    assert_eq!(named(&books, "Java Heap").reserved, Bytes(256 << 20));
    assert_eq!(named(&books, "Thread Stack").reserved, Bytes(0x8_0000 + 0x80_0000 + 4096));
    assert_eq!(named(&books, "Loaded Libraries").committed, Bytes(0x10_0000 + 0x10_0000));
    assert_eq!(books.total.peak, Bytes(3_100_000));
    assert_eq!(books.total.peak_time_ns, Some(1_795_211_234_000_000_000 + 6_000_000_000));
    // Of the five rows, one allocated 300 bytes and one nothing.
    assert_eq!(books.peak_error, Bytes(300 + 4096 + 4096 + 4096));
    assert_eq!(books.process.arguments.join(" "), "server --port 80");
    assert_eq!(books.threads[2].freed_count, 40 + 7900);
    let libz = books.modules.iter().find(|m| m.name() == "libz.so.1").unwrap();
    assert_eq!(libz.figures.live_count, 50);
}

#[test]
fn reserved_and_committed_come_from_the_map() {
    let mut s = server(4711);
    let heap = s.used(Section::Categories) as u16 - 2;
    let caller = s.caller(heap, &[0x40_4000]);
    // Two committed parts of one reservation, and a mapping with a missing category.
    let entries = [
        (0x10_0000, 0x14_0000, heap, caller, 3),
        (0x14_0000, 0x30_0000, heap, caller, 0),
        (0x30_0000, 0x30_1000, heap, caller, 1),
        (0x50_0000, 0x50_2000, 900, caller, 3),
    ];
    s.vmap(2, &entries);
    let books = books_of(&s.bytes, "vmap").unwrap();
    balanced(&books);
    let heap = named(&books, "Java Heap");
    assert_eq!((heap.reserved, heap.committed), (Bytes(0x20_1000), Bytes(0x4_1000)), "not the header's 256 MiB");
    assert_eq!(named(&books, "other").committed, Bytes(0x2000));
    assert_eq!(books.callers[caller as usize].figures.committed, Bytes(0x4_3000));
    assert_eq!(books.mappings.len(), 4);
    let reasons: Vec<&str> = books.gaps.iter().map(|g| g.reason.as_str()).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons[0].starts_with("1 mappings name a category") && reasons[1].starts_with("3 mapping operations"));
    // Killed during an update: the map is still complete, and the gap says so.
    s.vmap(3, &entries);
    let books = books_of(&s.bytes, "vmap-odd").unwrap();
    assert_eq!(named(&books, "Java Heap").reserved, Bytes(0x20_1000));
    assert!(books.gaps.iter().any(|g| g.reason == "a mapping operation was under way"), "{:?}", books.gaps);
}

/// One thread frees what another allocated: the row that frees has fewer blocks than were allocated, but all remaining
/// ones are live.
#[test]
fn heap_growth_counts_blocks_that_another_thread_frees() {
    let mut s = Synthetic::new(4711);
    let caller = s.caller(0, &[0x40_2000]);
    let (grown, same) = ((24, 32), (32, 32));
    let of = |count: u64, (requested, usable): (u64, u64)| (count, count * usable, count * requested);
    s.row(RowOf { caller, slot: 1, alloc: of(10, grown), free: of(5, same) });
    s.row(RowOf { caller, slot: 2, alloc: of(5, same), free: (0, 0, 0) });
    assert_eq!(books_of(&s.bytes, "grown").unwrap().own.growth, (Bytes(0), Bytes(10 * 16)));
    s.u32(std::mem::offset_of!(plimsoll_segment::Header, allocator), plimsoll_segment::Allocator::Jemalloc as u32);
    assert_eq!(books_of(&s.bytes, "grown-other").unwrap().own.growth, (Bytes(0), Bytes(0)));
    s.u32(std::mem::offset_of!(plimsoll_segment::Header, allocator), plimsoll_segment::Allocator::Mimalloc as u32);
    assert_eq!(books_of(&s.bytes, "grown-mi").unwrap().own.growth, (Bytes(0), Bytes(10 * (8 + 8))));
}

#[test]
fn the_parts_of_plimsolls_own_cost_add_up() {
    let books = books_of(&server(4711).bytes, "own").unwrap();
    let live: u64 = books.callers.iter().map(|c| c.figures.live_count).sum();
    assert_eq!(books.own.bytes(), Bytes(65_536 + 131_072));
    assert_eq!(books.own.trailers, live);
    // Blocks in the side table have no trailer. They are counted in the threads' slots; blocks of threads without a
    // slot are counted in a header counter.
    let mut s = server(4711);
    let (of_slots, elsewhere) = ([(50u64, 20u64), (5, 10)], (7u64, 1u64));
    for (put, taken) in of_slots {
        let slot = s.thread(0, 2, 0, 0, 0) as usize;
        let at = Section::Threads.offset() + slot * Section::Threads.entry_bytes();
        s.u64(at + std::mem::offset_of!(plimsoll_segment::Thread, table_inserts), put);
        s.u64(at + std::mem::offset_of!(plimsoll_segment::Thread, table_removes), taken);
    }
    s.counter(Counter::table_inserts, elsewhere.0);
    s.counter(Counter::table_removes, elsewhere.1);
    let some = books_of(&s.bytes, "tabled").unwrap();
    assert_eq!(some.own.trailers, live - (50 + 5 + 7 - 20 - 10 - 1));
    // The trailers lie inside the blocks; the category has the rest.
    assert_eq!(named(&books, "Plimsoll").committed, Bytes(65_536 + 131_072));
}

#[test]
fn a_frame_belongs_to_the_module_loaded_at_that_time() {
    let mut s = Synthetic::new(1);
    let old = s.module("/old.so", 0x1000, 0x2000, 0x1000);
    let new = s.module("/new.so", 0x1000, 0x2000, 0x1000);
    s.module_times(old, 10, 20);
    s.module_times(new, 30, 0);
    let early = s.caller(0, &[0x1500]);
    let late = s.caller(0, &[0x1500]);
    let first_ns = std::mem::offset_of!(plimsoll_segment::Caller, first_ns);
    s.u64(Section::Callers.offset() + early as usize * 128 + first_ns, 15);
    s.u64(Section::Callers.offset() + late as usize * 128 + first_ns, 35);
    let books = books_of(&s.bytes, "modules").unwrap();
    assert_eq!(books.callers[early as usize].frames[0].module, Some(old));
    assert_eq!(books.callers[late as usize].frames[0].module, Some(new));
    assert_eq!(books.callers[late as usize].frames[0].offset, 0x500);
}

/// Three libraries were loaded at one address, and the third found no space in the segment.
#[test]
fn a_frame_is_in_no_module_that_was_unloaded_before() {
    let mut s = Synthetic::new(1);
    let first = s.module("/first.so", 0x1000, 0x2000, 0x1000);
    let second = s.module("/second.so", 0x1000, 0x2000, 0x1000);
    s.module_times(first, 10, 20);
    s.module_times(second, 20, 30);
    // The tracker may note a library a moment after its first caller.
    for (seen_ns, module) in [(5, Some(first)), (15, Some(first)), (25, Some(second)), (35, None)] {
        let caller = s.caller(0, &[0x1500]) as usize;
        let first_ns = std::mem::offset_of!(plimsoll_segment::Caller, first_ns);
        s.u64(Section::Callers.offset() + caller * 128 + first_ns, seen_ns);
        let books = books_of(&s.bytes, "unloaded").unwrap();
        assert_eq!(books.callers[caller].frames[0].module, module, "seen at {seen_ns}");
    }
}

/// HotSpot maps the guard pages of a JavaThread over the end of its stack.
#[test]
fn a_mapping_inside_a_stack_counts_with_the_stack() {
    let mut s = server(4711);
    let (low, high) = (0x6000_0000, 0x6080_0000);
    let caller = s.caller(0, &[0x40_4000]);
    let entries = [
        (low - 0x1000, low, 0, caller, 3),
        (low, low + 0x4000, 0, caller, 0),
        (high - 0x1000, high + 0x1000, 0, caller, 3),
    ];
    s.vmap(2, &entries);
    let books = books_of(&s.bytes, "guard").unwrap();
    balanced(&books);
    let starts: Vec<u64> = books.mappings.iter().map(|mapping| mapping.start.0).collect();
    assert_eq!(starts, [low - 0x1000, high - 0x1000]);
    assert_eq!(books.stack_guards, Bytes(0x4000));
    assert_eq!(named(&books, "other").reserved, Bytes(0x3000));
    // A stack in the program's own memory counts with that memory.
    let kind = std::mem::offset_of!(plimsoll_segment::Thread, stack_kind);
    s.u64(Section::Threads.offset() + 2 * Section::Threads.entry_bytes() + kind, 1);
    assert_eq!(books_of(&s.bytes, "guard-own").unwrap().mappings.len(), 3);
}

/// Threads that end by exit(2), past libc, keep their slots. libc gives their stacks to later threads.
#[test]
fn a_stack_counts_once_though_many_ended_threads_had_it() {
    let mut s = server(4711);
    let before = books_of(&s.bytes, "stacks-before").unwrap();
    for tid in 5000..5100 {
        s.thread(tid, 1, 0x5000_0000, 0x5080_0000, 4096);
    }
    let mut books = books_of(&s.bytes, "stacks").unwrap();
    balanced(&books);
    let stack = |books: &Books| {
        let f = named(books, "Thread Stack");
        (f.reserved.0, f.committed.0)
    };
    let (reserved, committed) = stack(&before);
    assert_eq!(stack(&books), (reserved + (8 << 20) + 4096, committed + (8 << 20)));
    assert_eq!(books.process.threads, before.process.threads + 1);
    // The kernel has one thread of the two that were there at first.
    books.keep_threads(|tid| tid == 4711);
    balanced(&books);
    assert_eq!(stack(&books), (0x8_0000, 0x8_0000));
    assert_eq!(books.process.threads, 1);
}

/// The gap counts the blocks that found no space, as the overflow caller has them, and not the calls.
#[test]
fn the_gap_of_full_tables_has_the_blocks_that_lost_their_caller() {
    let mut s = server(4711);
    s.counter(Counter::callers_merged, 45_785);
    s.row(RowOf { caller: 2, slot: 0, alloc: (9000, 9000 << 10, 9000 << 10), free: (1000, 1000 << 10, 1000 << 10) });
    for counter in [
        Counter::sites_merged,
        Counter::frames_cut,
        Counter::methods_lost,
        Counter::samples_dropped,
        Counter::nested_entries,
        Counter::faults,
    ] {
        s.counter(counter, 7);
    }
    s.counter(Counter::samples_dropped_bytes, 3 << 20);
    let books = books_of(&s.bytes, "full").unwrap();
    let gaps: Vec<String> = books.gaps.iter().map(|gap| format!("{}; {}", gap.reason, gap.effect)).collect();
    let of_callers = "the table of callers is full: 9,000 blocks ever allocated, 7.81 MiB of them live, found no space; \
                      they have no caller, and are under 'other'";
    assert!(gaps.iter().any(|gap| gap == of_callers), "{gaps:?}");
    let of_samples = "7 sampled blocks could not be kept: the stack was not walked, or the samples were full; estimates \
                      of sites are up to 3.00 MiB too low";
    assert!(gaps.iter().any(|gap| gap == of_samples), "{gaps:?}");
    assert_eq!(gaps.iter().filter(|gap| gap.starts_with("7 ")).count(), 6, "{gaps:?}");
}

/// Blocks from before an attach are freed as a rule. Without an attach, every free should find its block.
#[test]
fn frees_of_unknown_blocks_are_a_gap_unless_they_may_be_from_before_an_attach() {
    for (attaches, frees, expected) in [(0, 1, Some("1 block (4.88 KiB)")), (0, 0, None), (1, 1, None)] {
        let mut s = server(4711);
        s.counter(Counter::unknown_frees, frees);
        s.counter(Counter::unknown_free_bytes, frees * 5000);
        s.counter(Counter::attaches, attaches);
        let books = books_of(&s.bytes, "unknown").unwrap();
        let gap = books.gaps.iter().find(|gap| gap.reason.contains("that the books don't have"));
        let starts =
            |start: &str| gap.is_some_and(|g| g.reason.starts_with(&format!("the program freed {start} that")));
        assert!(expected.map_or(gap.is_none(), starts), "{attaches} {frees}: {:?}", books.gaps);
    }
}

#[test]
fn references_to_nothing_are_gaps_and_the_books_still_balance() {
    let mut s = server(4711);
    let stray = s.caller(700, &[0x40_0001]);
    s.row(RowOf { caller: 60_000, slot: 1, alloc: (1, 1009, 1000), free: (0, 0, 0) });
    s.row(RowOf { caller: stray, slot: 30_000, alloc: (1, 2003, 2000), free: (0, 0, 0) });
    s.row(RowOf { caller: 2, slot: 1, alloc: (1, 10, 10), free: (2, 20, 20) });
    let books = books_of(&s.bytes, "stray").unwrap();
    balanced(&books);
    assert_eq!(named(&books, "other").live, Bytes(300 + 1009 + 2003));
    assert_eq!(books.gaps.len(), 4, "{:?}", books.gaps);
}

#[test]
fn frees_come_from_the_first_reading_and_allocations_from_the_second() {
    let before = server(4711);
    let mut after = server(4711);
    // Between the readings, the worker freed 10 more blocks and allocated 3.
    let at = Section::Rows.offset() + 3 * 64;
    after.u64(at + 16, 7922);
    after.u64(at + 40, 7910);
    let rows = |s: &Synthetic| s.bytes[Section::Rows.offset()..Section::Rows.offset() + 5 * 64].to_vec();
    let section = |s: Section, n: usize| before.bytes[s.offset()..s.offset() + n * s.entry_bytes()].to_vec();
    let raw = parse::Raw {
        header: before.bytes[..4096].to_vec(),
        schema: section(Section::Schema, 4096),
        rows_first: rows(&before),
        rows_second: rows(&after),
        callers: section(Section::Callers, 6),
        categories: section(Section::Categories, before.used(Section::Categories)),
        ..parse::Raw::default()
    };
    let books = Books::new(&parse::segment(&raw).unwrap(), Life::Live, 0);
    assert_eq!(named(&books, "server").live_count, 7922 - 7900 + 1);
}

/// A row added after the first reading holds blocks that an old row has freed since: it counts, and there is no gap.
#[test]
fn rows_added_between_the_readings_count() {
    let (before, mut after) = (server(4711), server(4711));
    after.row(RowOf { caller: 2, slot: 3, alloc: (1000, 1_000_000, 900_000), free: (7, 7000, 6300) });
    let rows = |s: &Synthetic, n: usize| s.bytes[Section::Rows.offset()..Section::Rows.offset() + n * 64].to_vec();
    let section = |s: Section, n: usize| after.bytes[s.offset()..s.offset() + n * s.entry_bytes()].to_vec();
    let used = after.used(Section::Rows);
    let raw = parse::Raw {
        header: after.bytes[..4096].to_vec(),
        schema: section(Section::Schema, 4096),
        rows_first: rows(&before, used - 1),
        rows_second: rows(&after, used),
        callers: section(Section::Callers, 6),
        categories: section(Section::Categories, after.used(Section::Categories)),
        ..parse::Raw::default()
    };
    let segment = parse::segment(&raw).unwrap();
    let newest = segment.rows.last().unwrap();
    assert_eq!((newest.alloc_count, newest.alloc_bytes, newest.free_count, newest.free_bytes), (1000, 1_000_000, 0, 0));
    assert!(segment.gaps.is_empty(), "{:?}", segment.gaps);
}

/// The program continues while it is read. Between any two reads it adds a category, methods, frames, a caller with a
/// site, a row, a sample and a mapping. Each of these refers to the newest of the others. No entry that was read may
/// refer to a missing one.
#[test]
fn nothing_refers_to_what_was_read_too_early() {
    let mut s = server(4711);
    let mut grown = 0;
    let reading = |offset: u64, bytes: u64| {
        let part = s.bytes.get(offset as usize..).unwrap_or_default();
        let part = part[..part.len().min(bytes as usize)].to_vec();
        grown += 1;
        let method = s.method("a/B", "c", "()V", "B.java", &[(0, 1)]);
        let stack = s.stack(&[(u64::from(method) << 16, 1), (0x40_1000, 0)]);
        let category = s.category(&format!("category {grown}"), 1) as u16;
        let caller = s.caller(category, &[0x40_1000]);
        let site = s.site(caller, category, 2, stack);
        let slot = s.thread(5000 + grown, 1, 0, 0, 0);
        s.row(RowOf { caller: site, slot, alloc: (1, 100, 90), free: (0, 0, 0) });
        s.sample(site, slot, 1000, 2.0);
        s.vmap(2 * u64::from(grown), &[(0x10_0000, 0x20_0000, category, site, 3)]);
        Ok(part)
    };
    let raw = segment::read_parts(std::path::Path::new("growing"), segment::Extent::All, reading).unwrap();
    assert!(raw.vmap_moved, "the map changes at each read");
    let of = parse::segment(&raw).unwrap();
    assert!(grown > 20 && of.rows.len() > 5 && of.samples.len() > 1, "{grown}");
    let known = |index: u32| of.callers.get(index as usize).is_some_and(|c| c.hash != 0);
    assert!(of.rows.iter().all(|row| known(row.caller) && of.threads.len() > row.slot as usize));
    assert!(of.samples.iter().all(|sample| known(sample.site)));
    let map = VmaMap::new(&of.vmap).unwrap();
    assert_eq!(map.entries().filter(|vma| known(vma.attributes().commit_caller())).count(), 1);
    let last = map.entries().next().unwrap().attributes();
    assert!(usize::from(last.category()) < of.categories.len());
    for caller in &of.callers {
        assert!(!of.categories[usize::from(caller.category)].name.starts_with(&[0]), "{caller:?}");
        assert!(caller.samples().is_none_or(|i| of.site_samples.get(i).is_some_and(|of| of.site != 0)), "{caller:?}");
        let stack: Vec<_> = sites::stack(&of.frames, caller.stack).collect();
        assert!(!caller.is_site() || stack.len() == 2, "{caller:?}");
        for (method, _) in stack.iter().filter_map(|frame| frame.method()) {
            assert_eq!(of.methods[method].names(&of.names).source, b"B.java");
        }
    }
    let books = Books::new(&of, Life::Live, 1_010_000_000_000);
    assert!(books.gaps.iter().all(|g| !g.reason.contains("name a")), "{:?}", books.gaps);
}

/// A long update of the map: `seq` stays the same while the map changes, so a copy is inconsistent. A map that doesn't
/// change is consistent.
#[test]
fn a_map_that_changes_during_an_update_is_read_again() {
    for (reads_in_update, moved) in [(9, false), (1000, true)] {
        let mut s = server(4711);
        let mut reads = 0;
        let reading = |offset: u64, bytes: u64| {
            if offset == Section::Vmap.offset() as u64 {
                reads += 1;
                let ends = |n: u64| 0x20_0000 + 0x1000 * n;
                let seq = if reads < reads_in_update { 3 } else { 4 };
                s.vmap(seq, &[(0x10_0000, ends(reads.min(reads_in_update)), 0, 1, 3)]);
            }
            let part = s.bytes.get(offset as usize..).unwrap_or_default();
            Ok(part[..part.len().min(bytes as usize)].to_vec())
        };
        let raw = segment::read_parts(std::path::Path::new("updating"), segment::Extent::All, reading).unwrap();
        assert_eq!((raw.vmap_moved, VmaMap::new(&raw.vmap).unwrap().seq()), (moved, if moved { 3 } else { 4 }));
    }
}

/// A thread allocates and frees 1 MiB all the time, and at most 1 MiB is live. The reader loses its CPU between its two
/// readings of the rows: once, or each time.
#[test]
fn rows_that_changed_much_between_the_readings_are_read_again() {
    const MIB: u64 = 1 << 20;
    for loses in [1, u64::MAX] {
        let mut s = Synthetic::new(1);
        let (caller, slot) = (s.caller(0, &[0x40_2000]), s.thread(1, 1, 0, 0, 0));
        s.row(RowOf { caller, slot, alloc: (1, MIB, MIB), free: (0, 0, 0) });
        s.peak(MIB, 1, 1_006_000_000_000);
        let at = Section::Rows.offset();
        let (mut reads, mut turns) = (0, 0);
        let reading = |offset: u64, bytes: u64| {
            if offset == at as u64 {
                turns += if (1..=loses).contains(&reads) { 30 } else { 0 };
                reads += 1;
                for (field, n) in [(16, turns + 1), (40, turns)] {
                    s.u64(at + field, n);
                    s.u64(at + field + 8, n * MIB);
                    s.u64(at + field + 16, n * MIB);
                }
            }
            let part = s.bytes.get(offset as usize..).unwrap_or_default();
            Ok(part[..part.len().min(bytes as usize)].to_vec())
        };
        let raw = segment::read_parts(std::path::Path::new("busy"), segment::Extent::All, reading).unwrap();
        let books = Books::new(&parse::segment(&raw).unwrap(), Life::Live, 0);
        let reasons: Vec<&str> = books.gaps.iter().map(|gap| gap.reason.as_str()).collect();
        if loses == 1 {
            assert_eq!((books.total.live, reasons.len()), (Bytes(MIB), 0), "{reasons:?}");
        } else {
            let expected = "the program allocated and freed 30.0 MiB or more while the rows were read";
            assert_eq!((books.total.live, &reasons[..]), (Bytes(31 * MIB), &[expected][..]));
        }
        assert_eq!((books.total.peak, books.total.count_at_peak), (Bytes(MIB), 1), "{loses}");
    }
}

/// If a process ends after its header was read but before the process is looked up, its final header decides how it
/// ended.
#[test]
fn an_end_after_the_header_was_read_is_found_in_the_final_header() {
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let mut s = server(gone.id());
    let path = std::env::temp_dir().join(format!("plimsoll-test-{}-end.seg", std::process::id()));
    std::fs::write(&path, &s.bytes).unwrap();
    let head = segment::head_of(&path, Deadline::after(NAMES)).unwrap();
    assert_eq!(segment::life_of(&head, &path, Deadline::after(NAMES)), Life::Killed);
    s.u32(std::mem::offset_of!(plimsoll_segment::Header, state), plimsoll_segment::State::Exited as u32);
    std::fs::write(&path, &s.bytes).unwrap();
    assert_eq!(segment::life_of(&head, &path, Deadline::after(NAMES)), Life::Exited);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn bad_headers_are_one_clear_sentence() {
    let good = server(1).trimmed();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        books_of(&bytes, "header").unwrap_err()
    };
    let starting = "holds no books: its process was killed while starting, or is starting now";
    assert!(books_of(b"", "empty").unwrap_err().ends_with(starting));
    assert!(books_of(&[&[0; 8], &good[8..]].concat(), "zeros").unwrap_err().ends_with(starting));
    assert!(books_of(&good[..100], "short").unwrap_err().ends_with("is not a segment: it is shorter than a header"));
    assert!(with(0, 1).contains("is not a segment: it doesn't begin with a segment's mark"));
    assert!(with(8, 2).contains("is a segment of version 0; this plimsoll reads version 2"));
    assert!(with(216 + 32 + 4, 1).contains("contradicts itself at 'command'"));
    assert!(
        segment::read(std::path::Path::new("/dev/null"), Deadline::after(NAMES))
            .unwrap_err()
            .to_string()
            .ends_with("is not a regular file")
    );
    assert!(
        segment::read(std::path::Path::new("/nowhere/1-2.seg"), Deadline::after(NAMES))
            .unwrap_err()
            .to_string()
            .contains("can't be read")
    );
}

#[test]
fn a_truncated_file_is_a_gap_at_every_length() {
    let good = server(1).trimmed();
    let mut seen = HashMap::new();
    // Cut around each section's start and end, and at a stride that isn't a multiple of any record.
    let edges = [4096, Section::Categories.offset(), Section::Callers.offset(), Section::Rows.offset(), good.len()];
    let near = edges.iter().flat_map(|&e| (e.saturating_sub(70)..e + 70).step_by(3));
    for length in near.chain((0..good.len()).step_by(40_009)).filter(|&l| l < good.len()) {
        let outcome = match books_of(&good[..length], "cut") {
            Ok(books) => {
                balanced(&books);
                assert!(!books.gaps.is_empty(), "{length} bytes of {} passed for whole", good.len());
                let reasons: HashSet<_> = books.gaps.iter().map(|gap| &gap.reason).collect();
                assert_eq!(reasons.len(), books.gaps.len(), "a section is named twice: {:?}", books.gaps);
                let lacks_rows = reasons.iter().any(|reason| reason.ends_with("of its section 'rows'"));
                assert_eq!(books.total.fault, lacks_rows, "{length}: {reasons:?}");
                "gap"
            }
            Err(_) => "error",
        };
        *seen.entry(outcome).or_insert(0) += 1;
    }
    assert!(seen["gap"] > 50 && seen["error"] > 10, "{seen:?}");
}

/// The server with a site under its caller in libz, in exact mode and with one sample.
fn with_sites() -> Synthetic {
    let mut s = server(1);
    let init = s.method("java/util/zip/Inflater", "init", "(Z)J", "Inflater.java", &[(0, 120), (4, 122), (9, 130)]);
    let stack = s.stack(&[(0x7000_1234, 0), (0x40_1000, 0), (u64::from(init) << 16 | 5, 1), (0, 3)]);
    let site = s.site(3, 7, 4, stack);
    s.row(RowOf { caller: site, slot: 1, alloc: (10, 1000, 900), free: (3, 300, 270) });
    s.sample(site, 1, 92, 4.0);
    s
}

/// The profile of the sites must equal the books, whatever the file holds; figures saturate near the end of i64.
fn profiled(segment: &parse::Segment, books: &Books, by_thread: bool) -> (Sites, bool) {
    let mut symbols =
        Symbols::new(&symbols::SymbolOptions { without: true, ..Default::default() }, books, Deadline::after(NAMES));
    let of = Sites::new(segment, books, &mut symbols, 1_010_000_000_000, by_thread);
    let total = of.profile.total();
    let expected = [
        (plimsoll_tracked::sites::LIVE, books.total.live.0),
        (plimsoll_tracked::sites::LIVE_COUNT, books.total.live_count),
        (plimsoll_tracked::sites::REQUESTED, books.total.requested.0),
        (plimsoll_tracked::sites::CUMULATIVE, books.total.cumulative.0),
        (plimsoll_tracked::sites::CUMULATIVE_COUNT, books.total.cumulative_count),
        (plimsoll_tracked::sites::RESERVED, books.total.reserved.0),
        (plimsoll_tracked::sites::COMMITTED, books.total.committed.0),
    ];
    let in_range = expected.iter().all(|(_, n)| *n < 1 << 58);
    if in_range {
        for (column, n) in expected {
            assert_eq!(total[column].amount, n as i64, "column {column}");
        }
    }
    (of, in_range)
}

#[test]
fn sites_are_a_profile_that_adds_up() {
    let s = with_sites();
    let path = std::env::temp_dir().join(format!("plimsoll-profile-{}.seg", std::process::id()));
    std::fs::write(&path, &s.bytes).unwrap();
    let segment = segment::read(&path, Deadline::after(NAMES)).unwrap();
    std::fs::remove_file(&path).unwrap();
    let books = Books::new(&segment, Life::Killed, 1_010_000_000_000);
    for by_thread in [false, true] {
        assert!(profiled(&segment, &books, by_thread).1);
    }
    let (of, _) = profiled(&segment, &books, false);
    let names = |stack| -> Vec<String> {
        let frames = of.profile.frames_of(stack).iter();
        frames.map(|f| of.profile.function_at(of.profile.function_of(*f)).name.clone()).collect()
    };
    let deep = of.profile.entries().find(|(e, _)| names(e.stack).len() == 4).expect("the site");
    assert_eq!(
        names(deep.0.stack),
        ["libz.so.1+0x1234", "server+0x401000", "java.util.zip.Inflater.init", "[truncated]"]
    );
    assert_eq!(of.profile.name_at(deep.0.labels.category.unwrap()), "zlib");
    let java = of.profile.frame_at(of.profile.frames_of(deep.0.stack)[2]);
    assert_eq!((java.file.as_deref(), java.line), (Some("Inflater.java"), Some(122)));
}

/// Visits everything that a reader of sites reads.
fn walk_sites(segment: &parse::Segment) {
    for (i, caller) in segment.callers.iter().enumerate() {
        assert_eq!(segment.caller_of(segment.caller_of(i)), segment.caller_of(i), "a caller's caller is itself");
        if !caller.is_site() {
            continue;
        }
        for node in sites::stack(&segment.frames, caller.stack) {
            if let Some((method, bci)) = node.method()
                && let Some(method) = segment.methods.get(method)
            {
                method.names(&segment.names).line(bci.unwrap_or(0));
            }
        }
        if let Some(samples) = caller.samples().and_then(|i| segment.site_samples.get(i)) {
            assert!(samples.live_bytes().variance >= 0.0 && samples.cumulative_count().variance >= 0.0);
            samples.live_count().error();
        }
    }
}

#[test]
fn a_site_counts_for_its_caller() {
    let before = books_of(&server(1).bytes, "without-sites").unwrap();
    let s = with_sites();
    let books = books_of(&s.bytes, "sites").unwrap();
    balanced(&books);
    assert_eq!(books.gaps, before.gaps);
    let (was, is) = (before.callers[3].figures, books.callers[3].figures);
    assert_eq!((is.live.0, is.live_count), (was.live.0 + 700, was.live_count + 7));
    assert_eq!(is.cumulative.0, was.cumulative.0 + 1000);
    assert_eq!(named(&books, "zlib").live.0, named(&before, "zlib").live.0 + 700);
    let site = books.callers.last().unwrap();
    assert!(site.figures.is_empty() && site.frames.is_empty(), "a site isn't a line of its own here");

    let dir = std::env::temp_dir().join(format!("plimsoll-sites-{}.seg", std::process::id()));
    std::fs::write(&dir, &s.bytes).unwrap();
    let segment = segment::read(&dir, Deadline::after(NAMES)).unwrap();
    std::fs::remove_file(&dir).unwrap();
    let site = segment.callers.last().unwrap();
    assert!(site.is_site() && site.parent == 3);
    let stack: Vec<_> = sites::stack(&segment.frames, site.stack).collect();
    assert_eq!(stack.iter().map(|n| n.value).collect::<Vec<_>>(), [0x7000_1234, 0x40_1000, 5, 0]);
    let (method, bci) = stack[2].method().unwrap();
    let names = segment.methods[method].names(&segment.names);
    assert_eq!(
        (names.class, names.name, names.source),
        (&b"java/util/zip/Inflater"[..], &b"init"[..], &b"Inflater.java"[..])
    );
    assert_eq!(names.line(bci.unwrap()), Some(122));
    let samples = &segment.site_samples[site.samples().unwrap()];
    assert_eq!((samples.live_bytes().value, samples.live_count().value), (400, 4));
    // 100² · 4 · 3 = 120,000; 1.96 · √120,000 = 678.9
    assert_eq!(samples.live_bytes().error(), 678);
    assert_eq!(segment.samples.len(), 1);
    walk_sites(&segment);
}

/// A recorder reads the books each second, and the sites seldom.
#[test]
fn the_books_are_read_without_the_sites() {
    let mut s = with_sites();
    let path = std::env::temp_dir().join(format!("plimsoll-books-{}.seg", std::process::id()));
    let deadline = || Deadline::after(NAMES);
    for attaches in [0, 2] {
        s.counter(Counter::attaches, attaches);
        std::fs::write(&path, &s.bytes).unwrap();
        let all = segment::read(&path, deadline()).unwrap();
        let part = segment::read_books(&path, deadline()).unwrap();
        let books = |of: &parse::Segment| Books::new(of, Life::Live, 1_010_000_000_000);
        assert_eq!(books(&part), books(&all));
        let sums = Books::without_frames(&part, Life::Live, 1_010_000_000_000);
        assert!(sums.callers.iter().all(|caller| caller.frames.is_empty()));
        let figures =
            |of: &Books| of.callers.iter().map(|caller| (caller.category, caller.figures)).collect::<Vec<_>>();
        assert_eq!(figures(&sums), figures(&books(&all)));
        let rest = |of: Books| Books { callers: Vec::new(), modules: Vec::new(), ..of };
        assert_eq!(rest(sums), rest(books(&all)), "categories, totals, threads, mappings and gaps");
        assert_eq!(segment::was_attached(&path, deadline()).unwrap(), attaches > 0);
        let sites = |of: &parse::Segment| {
            let estimates = (of.samples.len(), of.site_samples.len());
            (estimates, of.frames.len(), of.methods.len(), of.names.len())
        };
        assert_eq!(sites(&part), ((0, 0), 0, 0, 0));
        assert!(all.samples.len() == 1 && all.frames.len() > 2 && !all.methods.is_empty() && !all.names.is_empty());
    }
    std::fs::remove_file(&path).unwrap();
    assert!(segment::was_attached(&path, deadline()).is_err(), "a file that is gone");
}

/// The bytes of a segment, part by part.
#[derive(Clone)]
struct Parts {
    header: Vec<u8>,
    sections: Vec<Vec<u8>>,
    /// The rows as they are read the second time.
    second: Vec<u8>,
}

impl Parts {
    /// The header, and the records in use.
    fn of(good: &Synthetic) -> Parts {
        let used = [4096, 90].into_iter().chain(ALL_SECTIONS[2..].iter().map(|s| good.used(*s)));
        let records = |(s, n): (&Section, usize)| {
            good.bytes.get(s.offset()..s.offset() + n * s.entry_bytes()).unwrap_or_default().to_vec()
        };
        let sections: Vec<Vec<u8>> = ALL_SECTIONS.iter().zip(used).map(records).collect();
        let second = sections[Section::Rows as usize].clone();
        Parts { header: good.bytes[..4096].to_vec(), sections, second }
    }

    /// Damages a random part at a random place. `hit` counts by section; the last one: the second rows or the header.
    fn damage(&mut self, random: &mut Random, hit: &mut [u32; SECTIONS + 1]) {
        let which = random.index(SECTIONS + 2);
        let part = match which {
            n if n < SECTIONS => &mut self.sections[n],
            n if n == SECTIONS => &mut self.second,
            _ => &mut self.header,
        };
        hit[which.min(SECTIONS)] += 1;
        // The header's interesting part is its first 1000 bytes.
        let length = if which > SECTIONS { 1000 } else { part.len() };
        if length == 0 {
            return;
        }
        let at = random.index(length);
        match random.index(4) {
            0 => part[at] ^= 1 << random.index(8),
            1 => part[at] = random.next() as u8,
            2 => {
                let word = [0, 1, u64::MAX, i64::MAX as u64, random.next()][random.index(5)].to_ne_bytes();
                let end = (at + 8).min(part.len());
                part[at..end].copy_from_slice(&word[..end - at]);
            }
            _ if which <= SECTIONS => part.truncate(at),
            _ => part[at] = 0,
        }
    }

    fn into_raw(self) -> parse::Raw {
        let [
            schema,
            command,
            categories,
            modules,
            threads,
            callers,
            rows_first,
            vmap,
            frames,
            methods,
            names,
            samples,
            site_samples_first,
            own,
        ] = self.sections.try_into().unwrap();
        parse::Raw {
            header: self.header,
            schema,
            command,
            categories,
            modules,
            threads,
            callers,
            rows_first,
            rows_second: self.second,
            vmap,
            frames,
            methods,
            names,
            samples,
            own,
            site_samples_second: site_samples_first.clone(),
            site_samples_first,
            rows_skew: 0,
            vmap_moved: false,
            cut: Vec::new(),
        }
    }
}

/// 100,000 segments with random damage in the most sensitive parts: header, section table, records in use.
#[test]
fn mutated_segments_never_break_the_reader() {
    let good = Parts::of(&with_sites());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut refused, mut gaps, mut clean, mut summed) = (0u32, 0u32, 0u32, 0u32);
    let mut hit = [0u32; SECTIONS + 1];
    for _ in 0..100_000 {
        let mut parts = good.clone();
        for _ in 0..1 + random.index(8) {
            parts.damage(&mut random, &mut hit);
        }
        let Ok(segment) = parse::segment(&parts.into_raw()) else {
            refused += 1;
            continue;
        };
        let books = Books::new(&segment, Life::Killed, random.next());
        let sum: u128 = books.categories.iter().map(|c| u128::from(c.figures.live.0)).sum();
        assert_eq!(u64::try_from(sum).unwrap_or(u64::MAX), books.total.live.0);
        assert!(books.total.peak >= books.total.live);
        walk_sites(&segment);
        // A profile costs more than all the rest, so only every tenth segment gets one.
        if (gaps + clean) % 10 == 0 {
            summed += u32::from(profiled(&segment, &books, refused % 2 == 0).1);
        }
        if books.gaps.is_empty() { clean += 1 } else { gaps += 1 }
    }
    assert!(summed > 1_000, "{summed} profiles had sums to compare");
    assert!(refused > 1000 && gaps > 1000 && clean > 1000, "refused {refused}, gaps {gaps}, clean {clean}");
    assert!(hit.iter().all(|&n| n > 1000), "{hit:?}");
}

/// If more was freed than allocated, every line that contains it reports a fault, and never that nothing is live.
#[test]
fn more_freed_than_allocated_is_a_fault() {
    let clean = books_of(&server(4711).bytes, "no-fault").unwrap();
    assert!(!clean.total.fault && clean.callers.iter().all(|c| !c.figures.fault));
    let caller = clean.callers.iter().position(|c| c.figures.live_count > 0).unwrap();
    let of = clean.callers[caller].figures;
    let mut exercised = 0;
    for (count, bytes, requested) in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (7, 4000, 3999), (1 << 40, 1 << 60, 1 << 60)] {
        let mut s = server(4711);
        let free = (of.live_count + count, of.live.0 + bytes, of.requested.0 + requested);
        s.row(RowOf { caller: caller as u32, slot: 1, alloc: (0, 0, 0), free });
        let books = books_of(&s.bytes, &format!("fault-{count}-{bytes}-{requested}")).unwrap();
        assert!(books.callers[caller].figures.fault && books.total.fault);
        assert!(books.categories[books.callers[caller].category].figures.fault);
        assert_eq!(books.callers.iter().filter(|c| c.figures.fault).count(), 1);
        let gaps: Vec<_> =
            books.gaps.iter().filter(|g| g.reason.starts_with("fault: 1 caller has more freed")).collect();
        assert_eq!(gaps.len(), 1, "{:?}", books.gaps);
        let blocks = if count == 1 { " 1 block ".to_owned() } else { format!(" {count} blocks ") };
        assert!(gaps[0].reason.replace(',', "").contains(&blocks), "{}", gaps[0].reason);
        exercised += 1;
    }
    assert_eq!(exercised, 5);
}
