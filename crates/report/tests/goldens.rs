//! Each format of the same known books, to the byte. BLESS=1 rewrites the goldens.

use std::path::PathBuf;

use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_report::{diff as changes, hotspot, json, native_image, text};
use plimsoll_tracked::books::{Books, Caller};
use plimsoll_tracked::diff::diff;
use plimsoll_tracked::segment::{self, Life};

#[path = "../../tracked/tests/synthetic/mod.rs"]
mod synthetic;

fn server() -> Books {
    books(synthetic::server(4711), 1_010_000_000_000)
}

/// The same process a minute later: the worker has allocated, zlib has freed everything, a category is new.
fn later() -> Books {
    let mut s = synthetic::server(4711);
    let fresh = s.category("sqlite", 1) as u16;
    let caller = s.caller(fresh, &[0x40_5000]);
    let request = 4;
    s.row(synthetic::RowOf { caller: request, slot: 1, alloc: (31, 31 * 1_048_583, 31 * 1_048_573), free: (0, 0, 0) });
    s.row(synthetic::RowOf { caller: request - 1, slot: 1, alloc: (0, 0, 0), free: (50, 500_000, 495_000) });
    s.row(synthetic::RowOf { caller, slot: 2, alloc: (7, 7 * 8209, 7 * 8191), free: (0, 0, 0) });
    books(s, 1_070_000_000_000)
}

fn books(segment: synthetic::Synthetic, now: u64) -> Books {
    static NAME: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = NAME.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("plimsoll-golden-{}-{name}.seg", std::process::id()));
    std::fs::write(&path, segment.trimmed()).unwrap();
    let segment = segment::read(&path, Deadline::after(NAMES)).unwrap();
    std::fs::remove_file(path).unwrap();
    Books::new(&segment, Life::Killed, now)
}

fn golden(name: &str, text: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let want = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; BLESS=1 makes it", path.display()));
    let (want, text) = (String::from_utf8(want).unwrap(), String::from_utf8(text.to_vec()).unwrap());
    assert!(want == text, "{name} differs; BLESS=1 takes the new one:\n{text}");
}

fn bytes(write: impl Fn(&mut dyn std::io::Write) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

/// A tick of the tracker's clock is 4 ms: a program that ended in its first tick didn't run 0 ms.
#[test]
fn a_program_shorter_than_the_clocks_tick_has_no_duration() {
    let head = |lived_ns: u64| {
        let mut books = server();
        books.ended_after(lived_ns);
        let printed = String::from_utf8(bytes(|out| text::write(out, &books, text::LinesBy::Category, false))).unwrap();
        (printed.lines().next().unwrap().to_owned(), books.process.up_ns)
    };
    let (ran, up) = head(4_000_000);
    assert!(ran.contains("ran 4 ms") && up == Some(4_000_000), "{ran}");
    for lived_ns in [0, 218_939, 3_999_999] {
        let (ran, up) = head(lived_ns);
        assert!(!ran.contains("ran ") && up.is_none(), "{ran}");
    }
}

#[test]
fn the_smallest_categories_share_a_line() {
    let mut s = synthetic::server(4711);
    for index in 0..6u32 {
        let small = s.category(&format!("small-{index}"), 1) as u16;
        let caller = s.caller(small, &[0x40_6000 + u64::from(index)]);
        s.row(synthetic::RowOf { caller, slot: 1, alloc: (2, 64, 60), free: (0, 0, 0) });
    }
    let books = books(s, 1_010_000_000_000);
    let text = String::from_utf8(bytes(|out| text::write(out, &books, text::LinesBy::Category, false))).expect("UTF-8");
    let line = text.lines().find(|line| line.contains(" small categories")).expect("a line for all of them");
    let number: usize = line.split(' ').next().unwrap().parse().unwrap();
    assert!(number >= 6 && !text.contains("small-3"), "{text}");
    let lines =
        text.lines().skip_while(|line| !line.starts_with("category")).take_while(|line| !line.is_empty()).count();
    let json = String::from_utf8(bytes(|out| json::write(out, &books, None, json::Frames::InSites))).expect("UTF-8");
    assert!(json.contains("small-3"), "JSON has all of them");
    let shown =
        books.categories.iter().filter(|c| c.figures.size() + c.figures.reserved + c.figures.peak > Bytes(0)).count();
    // Beside the categories with their own line, the table has a head, the total and the line of the small ones.
    assert_eq!(lines - 3 + number, shown, "{text}");
}

#[test]
fn the_text_by_each_grouping_is_the_golden_one() {
    let books = server();
    for (by, name) in [
        (text::LinesBy::Category, "report.txt"),
        (text::LinesBy::Caller, "report-by-caller.txt"),
        (text::LinesBy::Module, "report-by-module.txt"),
        (text::LinesBy::Thread, "report-by-thread.txt"),
    ] {
        golden(name, &bytes(|out| text::write(out, &books, by, false)));
    }
}

/// 40 categories with one caller each, which hold 10 bytes: far less than a thousandth of all.
fn with_small_ones(blocks: u64) -> Books {
    let mut s = synthetic::server(4711);
    for i in 0..40 {
        let category = s.category(&format!("tiny{i:02}"), 1) as u16;
        let caller = s.caller(category, &[0x40_5000 + 16 * i]);
        let alloc = (blocks, blocks * 10, blocks * 10);
        s.row(synthetic::RowOf { caller, slot: 2, alloc, free: (0, 0, 0) });
    }
    books(s, 1_010_000_000_000)
}

#[test]
fn all_gives_each_small_line_its_own() {
    let (before, after) = (with_small_ones(1), with_small_ones(2));
    let changed = diff(&before, &after);
    for (by, others) in [(text::LinesBy::Category, " small categories"), (text::LinesBy::Caller, " more callers")] {
        let [most, all] =
            [false, true].map(|all| String::from_utf8(bytes(|out| text::write(out, &before, by, all))).expect("UTF-8"));
        let [most_changes, all_changes] = [false, true].map(|all| {
            String::from_utf8(bytes(|out| changes::text(out, &before, &after, &changed, by, all))).expect("UTF-8")
        });
        let tiny = |page: &str| page.lines().filter(|line| line.contains("tiny")).count();
        assert!(most.contains(others) && tiny(&most) < 40, "{most}");
        assert!(!all.contains(others) && tiny(&all) == 40, "{all}");
        assert!(most_changes.contains("lines between") && tiny(&most_changes) == 30, "{most_changes}");
        assert!(!all_changes.contains("lines between") && tiny(&all_changes) == 40, "{all_changes}");
    }
}

#[test]
fn a_saved_report_reads_as_what_was_written() {
    let books = server();
    let written = bytes(|out| json::write(out, &books, None, json::Frames::InSites));
    golden("report.json", &written);
    for layout in [json::Frames::InSites, json::Frames::InTable] {
        let saved = bytes(|out| json::write(out, &books, None, layout));
        let read = json::parse(&saved).unwrap().0;
        let again = bytes(|out| json::write(out, &read, None, json::Frames::InSites));
        assert!(written == again, "what was read writes other JSON: {layout:?}");
    }
}

/// The golden is a file as the first release of the schema wrote it, indented and with every field.
#[test]
fn json_of_the_first_release_is_still_read() {
    let saved = include_bytes!("../../../goldens/report-schema-1.json");
    let (books, _) = json::parse(saved).expect("it is still read");
    let written = |books| bytes(|out| json::write(out, books, None, json::Frames::InSites));
    let value = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).expect("JSON");
    let (read, mut today) = (value(&written(&books)), value(&written(&server())));
    // What the old version did not know is absent in its file, and 0 when read.
    assert!(value(saved)["own"].get("heap_growth_bytes").is_none());
    assert_eq!(read["own"]["heap_growth_bytes"], serde_json::json!([0, 0]));
    assert_ne!(today["own"]["heap_growth_bytes"], serde_json::json!([0, 0]));
    today["own"]["heap_growth_bytes"] = serde_json::json!([0, 0]);
    today["own"]["bytes_a_block"] = serde_json::json!([0.0, 0.0]);
    assert_eq!((&read["sample_mean_bytes"], today["sample_mean_bytes"].as_u64()), (&0.into(), Some(256)));
    today["sample_mean_bytes"] = 0.into();
    const SINCE: [&str; 4] = ["sample_mean_highest", "stacks_unwalked", "methods_compared", "drift_unreported"];
    let counters = today["counters"].as_array_mut().expect("counters");
    counters.retain(|counter| !SINCE.iter().any(|name| counter["name"] == *name));
    assert!(read == today, "{read:#}");
    let table = bytes(|out| json::write(out, &books, None, json::Frames::InTable));
    let text = String::from_utf8(table).expect("UTF-8").replacen("\"stack\":[0", "\"stack\":[4294967295", 1);
    let error = json::parse(text.as_bytes()).expect_err("an index that isn't in the table");
    assert_eq!(error, "it is a damaged report: there is no frame 4294967295");
}

#[test]
fn reports_in_the_form_of_other_tools_are_the_golden_ones() {
    let books = server();
    golden("native-image.txt", &bytes(|out| native_image::write(out, &books)));
    golden("native-image-23.txt", &bytes(|out| native_image::write_23(out, &books)));
    golden("hotspot-summary.txt", &bytes(|out| hotspot::summary(out, &books)));
    golden("hotspot-detail.txt", &bytes(|out| hotspot::detail(out, &books)));
}

/// GraalVM 25's own categories come first and in its order, whether they hold something or not.
#[test]
fn a_native_image_has_all_lines_of_its_own_report() {
    let mut books = server();
    books.process.runtime = plimsoll_tracked::books::Runtime::NativeImage;
    let text = String::from_utf8(bytes(|out| native_image::write(out, &books))).unwrap();
    let names: Vec<&str> = text.lines().skip(2).filter(|l| !l.starts_with(' ')).collect();
    assert_eq!(names[..4], ["Total", "Compiler", "Code", "GC"]);
    assert_eq!(names.iter().filter(|n| **n == "Java Heap").count(), 1);
    assert!(names.contains(&"zlib") && names.len() == 1 + 17 + books.categories.len() - 1);
    // The tracker keeps no peaks of the mappings of these three.
    let without_peak = |name: &&str| {
        let (_, block) = text.split_once(&format!("\n{name}\n")).expect("a block");
        !block.lines().take(5).take_while(|line| line.starts_with(" ")).any(|line| line.starts_with("    (mmap: peak "))
    };
    let unknown: Vec<&str> = names.iter().copied().filter(without_peak).collect();
    assert_eq!(unknown, ["Plimsoll", "Thread Stack", "Loaded Libraries"]);
    assert_eq!(text.lines().count(), 2 + names.len() * 6 - unknown.len());
}

#[test]
fn differences_are_the_golden_ones_and_sum_to_the_total() {
    let (before, after) = (server(), later());
    let d = diff(&before, &after);
    let sum: i128 = d.categories.iter().map(|(_, c)| c.growth(d.known)).sum();
    assert_eq!(sum, d.total.growth(d.known), "Σ categories = total in a diff too");
    for (by, name) in [
        (text::LinesBy::Category, "diff.txt"),
        (text::LinesBy::Caller, "diff-by-caller.txt"),
        (text::LinesBy::Module, "diff-by-module.txt"),
    ] {
        golden(name, &bytes(|out| changes::text(out, &before, &after, &d, by, false)));
    }
    golden("diff.json", &bytes(|out| changes::json(out, &before, &after, &d)));
    golden("hotspot-diff.txt", &bytes(|out| changes::hotspot(out, &before, &after)));
    assert!(diff(&before, &before).categories.iter().all(|(_, c)| c.is_none(d.known)));
}

#[test]
fn a_file_that_is_not_a_report_is_refused_in_one_sentence() {
    for (bytes, message) in [
        (&b"{}"[..], "it isn't a report"),
        (b"{\"schema\":\"plimsoll.ledger/1\"}", "it was written by explain; make a report with: plimsoll report PID"),
        (
            b"{\"schema\":\"plimsoll.report/9\"}",
            "its schema is 'plimsoll.report/9', this plimsoll reads 'plimsoll.report/1' and 'plimsoll.report/2'",
        ),
        (b"{\"schema\":\"plimsoll.report/1\"}", "it is a damaged report"),
        (b"\xff\xfe", "it isn't a report"),
    ] {
        let error = json::parse(bytes).unwrap_err();
        assert!(error.starts_with(message) && !error.contains('\n'), "{error}");
    }
}

/// If more was freed than was allocated, the live bytes are unknown: the reports print neither 0 nor another number.
#[test]
fn a_fault_has_no_figure() {
    let mut s = synthetic::server(4711);
    let zlib = 3;
    s.row(synthetic::RowOf { caller: zlib, slot: 1, alloc: (0, 0, 0), free: (51, 500_001, 495_000) });
    let books = books(s, 1_010_000_000_000);
    let page = |by| String::from_utf8(bytes(|out| text::write(out, &books, by, false))).expect("UTF-8");
    let category = page(text::LinesBy::Category);
    let line = |page: &str, name: &str| page.lines().find(|l| l.contains(name)).map(str::to_string).expect("a line");
    assert!(line(&category, "  live ").ends_with("unknown: a fault, see below"), "{category}");
    for name in ["zlib", "total"] {
        let line = line(&category, name);
        assert_eq!(line.split_whitespace().nth(1), Some("fault"), "{line}");
    }
    assert!(category.contains("fault: 1 caller has more freed than allocated, by 1 block,"), "{category}");
    assert!(page(text::LinesBy::Caller).lines().any(|l| l.trim_start().starts_with("fault")));
    let written = bytes(|out| json::write(out, &books, None, json::Frames::InSites));
    let (saved, _) = json::parse(&written).expect("our own");
    assert!(saved.total.fault && saved.categories.iter().any(|c| c.name == "zlib" && c.figures.fault));
}

/// The report was edited by hand.
#[test]
fn a_caller_whose_category_is_not_listed_keeps_it() {
    let golden = include_bytes!("../../../goldens/report.json");
    let mut saved: serde_json::Value = serde_json::from_slice(golden).expect("JSON");
    // Without callers of its own, a report has those of its sites.
    let sites = saved["sites"].as_array().expect("sites").iter();
    let named: Vec<String> = sites.map(|site| site["category"].as_str().expect("a name").to_owned()).collect();
    assert!(named.iter().any(|name| *name != named[0]), "{named:?}");
    let first = saved["categories"][0].clone();
    for listed in [serde_json::json!([]), serde_json::json!([first])] {
        saved["categories"] = listed;
        let (books, _) = json::parse(&serde_json::to_vec(&saved).expect("JSON")).expect("a report");
        let name = |caller: &Caller| books.categories[caller.category].name.clone();
        assert_eq!(books.callers.iter().map(name).collect::<Vec<_>>(), named);
    }
}
