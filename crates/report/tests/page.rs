//! The page is well formed, allows only its own script and style, and no name of a target becomes markup.

use std::process::Command;

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_observer::recording::{History, Measure, Series};
use plimsoll_report::page::{self, Page};
use plimsoll_tracked::segment::Life;
use serde_json::Value as Json;

mod page_kit;
use page_kit::{NAMES, html};

/// The texts of these elements, and the document without them.
fn without<'h>(html: &'h str, open: &str, close: &str) -> (Vec<&'h str>, String) {
    let (mut texts, mut rest) = (Vec::new(), String::new());
    let mut parts = html.split(open);
    rest += parts.next().unwrap_or_default();
    for part in parts {
        let (text, after) = part.split_once(close).expect("the element ends");
        texts.push(text);
        rest += open;
        rest += close;
        rest += after;
    }
    (texts, rest)
}

/// Panics unless the page is well-formed XML of known elements without handlers, styles and addresses. Returns the HTML
/// and the data of the script.
fn check(page: &Page) -> (String, Json) {
    let html = html(page);
    let (styles, rest) = without(&html, "<style>", "</style>");
    let (scripts, rest) = without(&rest, "<script>", "</script>");
    let (data, rest) = without(&rest, r#"<script type="application/json" id="data">"#, "</script>");
    assert_eq!((styles.len(), scripts.len(), data.len()), (1, 1, 1));
    assert_eq!(rest.matches("<script").count(), 2);
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&rest, options).expect("well-formed XML");
    let known = "html head meta title style body a header h1 h2 h3 ul li nav main section p article span pre div details summary table \
                 caption thead tbody tr th td small b code dl dt dd figure figcaption svg rect line text path footer script noscript";
    let known: Vec<&str> = known.split_whitespace().collect();
    let mut ids = std::collections::BTreeSet::new();
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        assert!(known.contains(&name), "<{name}>");
        for attribute in node.attributes() {
            let (of, value) = (attribute.name(), attribute.value());
            assert!(!of.starts_with("on") && !["style", "src"].contains(&of), "<{name} {of}>");
            assert!(of != "href" || value.starts_with('#'), "<{name} {of}={value}>");
            assert!(of != "id" || ids.insert(value.to_owned()), "two elements have the id {value}");
        }
    }
    (html.clone(), serde_json::from_str(data[0]).expect("JSON"))
}

/// The test leaves the pages in target/tmp/page, to look at.
#[test]
fn no_name_becomes_markup() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder).expect("a directory");
    let pages = [("ledger", page_kit::ledger()), ("recording", page_kit::recording()), ("empty", Page::default())];
    for (name, page) in pages {
        let (html, _) = check(&page);
        std::fs::write(folder.join(format!("{name}.html")), &html).expect("written");
        assert!(!html.chars().any(|c| c.is_control() && c != '\n'), "a control character");
        assert!(!html.contains(['\u{202e}', '\u{2028}', '\u{2029}']));
    }
    let (html, _) = check(&page_kit::ledger());
    // The names are there, as text.
    for name in ["&lt;/script&gt;&lt;script&gt;", "&lt;img src=x onerror=", "&amp;lt;b&amp;gt;"] {
        assert!(html.contains(name), "{name}");
    }
    assert!(NAMES.iter().all(|name| name.len() < 3 || !html.contains(name) || !name.contains(['<', '"', '\''])));
}

#[test]
fn the_policy_allows_this_script_and_this_style_only() {
    let html = html(&page_kit::ledger());
    let policy = html.split(r#"Content-Security-Policy" content=""#).nth(1).and_then(|rest| rest.split('"').next());
    let policy = policy.expect("a policy");
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    for (element, directive) in [("style", "style-src"), ("script", "script-src")] {
        let (texts, _) = without(&html, &format!("<{element}>"), &format!("</{element}>"));
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{element}"));
        std::fs::write(&path, texts[0]).expect("written");
        let hash = Command::new("sha256sum").arg(&path).output().expect("sha256sum");
        let hash = String::from_utf8(hash.stdout).expect("UTF-8");
        let allowed = policy.split("; ").find_map(|part| part.strip_prefix(directive)).expect("a directive");
        assert_eq!(decoded(allowed.trim()), hash.split(' ').next().expect("a hash"), "{directive}");
    }
}

/// `'sha256-…'` → hexadecimal digits.
fn decoded(source: &str) -> String {
    let digits = source.trim_start_matches("'sha256-").trim_end_matches('\'').trim_end_matches('=');
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = digits.chars().flat_map(|c| {
        let value = alphabet.find(c).expect("base64");
        (0..6).rev().map(move |bit| (value >> bit & 1) as u8)
    });
    let bits: Vec<u8> = bits.collect();
    bits.chunks_exact(8).map(|byte| format!("{:02x}", byte.iter().fold(0u8, |byte, bit| byte << 1 | bit))).collect()
}

/// The verdict, its remedy, the lines and the tables are in the HTML: a browser without script shows them.
#[test]
fn the_first_screen_needs_no_script() {
    let golden = include_bytes!("../../../goldens/explain.json");
    let ledger = plimsoll_report::ledger_json::parse(golden).expect("a ledger");
    let (html, _) = check(&page::of_ledger(&ledger));
    let (_, body) = html.split_once("<body>").expect("a body");
    let texts = ["arena-retention", "MALLOC_ARENA_MAX=4", ">Java heap", ">glibc, free but kept", "Arenas of glibc"];
    let at: Vec<usize> = texts.map(|text| body.find(text).unwrap_or_else(|| panic!("no {text}"))).into();
    assert!(at.is_sorted(), "the verdict comes first, then its remedy, then the lines: {at:?}");
    assert!(body.find("Arenas of glibc") < body.find("application/json"));
}

/// A recording of `serve` may be broken in part.
#[test]
fn what_the_curves_of_a_live_page_lack_is_on_it() {
    let golden = include_bytes!("../../../goldens/explain.json");
    let ledger = plimsoll_report::ledger_json::parse(golden).expect("a ledger");
    let mut page = page::of_ledger(&ledger);
    let mut history = History::default();
    history.gaps.push(Gap::new(Source::Jfr, "one chunk is broken", "readings are missing"));
    page::add_curves(&mut page, &history, &ledger);
    assert!(html(&page).contains("one chunk is broken"));
}

/// The ledger knows which allocator it is, the recording has only the id of its line.
#[test]
fn a_live_page_names_a_line_alike_in_bars_and_curves() {
    let golden = include_str!("../../../goldens/explain.json");
    let mut json: Json = serde_json::from_str(golden).expect("JSON");
    let line = &mut json["lines"][0];
    line["id"] = "other-allocator".into();
    line["children"] = Json::Array(vec![]);
    let child = serde_json::json!({"children": [], "name": "jemalloc"});
    let mut of_allocator = line.clone();
    of_allocator.as_object_mut().expect("a line").extend(child.as_object().expect("fields").clone());
    line["children"] = Json::Array(vec![of_allocator]);
    let ledger = plimsoll_report::ledger_json::parse(&serde_json::to_vec(&json).expect("JSON")).expect("a ledger");
    let mut page = page::of_ledger(&ledger);
    let mut history = History::default();
    for (measure, name) in [(Measure::Rss, ""), (Measure::Line, "other-allocator")] {
        let mut series = Series::default();
        [0, 1_000_000_000].into_iter().for_each(|at| series.push(at, 1 << 20));
        history.series.insert((measure, name.to_owned()), series);
    }
    page::add_curves(&mut page, &history, &ledger);
    let stacked = &page.curves.expect("curves").sets[1].curves[0].name;
    let bars = page.bars.expect("bars");
    let names: Vec<&str> = bars.groups.iter().flat_map(|group| &group.bars).map(|bar| &*bar.name).collect();
    assert!(names.contains(&stacked.as_str()) && stacked.contains("jemalloc"), "{stacked}: {names:?}");
}

/// The sum is in the words of the bar, so the table's caption must not repeat it.
#[test]
fn the_sum_is_printed_once_above_the_bars() {
    let golden = include_bytes!("../../../goldens/explain.json");
    let ledger = plimsoll_report::ledger_json::parse(golden).expect("a ledger");
    let page = page::of_ledger(&ledger);
    let (html, sum) = (html(&page), page.bars.expect("bars").sum);
    let (_, section) = html.split_once("id=\"memory\"").expect("bars");
    let (above, _) = section.split_once("<tbody>").expect("rows");
    let sum = format!("RSS {}", plimsoll_facts::units::Bytes(sum));
    // Once for the eyes, once as the name of the picture.
    assert_eq!((above.matches(&sum).count(), above.matches(&format!(">{sum}")).count()), (2, 1), "{above}");
}

/// Earlier versions wrote every interval, however wide.
#[test]
fn an_earlier_file_with_a_wide_interval_gives_no_figure() {
    let golden = include_str!("../../../goldens/explain.json");
    let gives = "Gives back 1.13 GiB to 1.16 GiB.";
    let page = |least: &str| {
        let json = golden.replace("\"saving_least_bytes\": 1216778240", &format!("\"saving_least_bytes\": {least}"));
        check(&page::of_ledger(&plimsoll_report::ledger_json::parse(json.as_bytes()).expect("a ledger"))).0
    };
    assert!(page("1216778240").contains(gives));
    assert!(!page("121677824").contains("Gives back"));
}

/// A dead process wasn't read now, and no command can read it; of a living one the page has the command.
#[test]
fn the_page_of_a_dead_process_begins_with_its_end() {
    let golden = include_bytes!("../../../goldens/report.json");
    let (mut books, sites) = plimsoll_report::json::parse(golden).expect("a report");
    assert_eq!(books.life, Life::Killed);
    let dead = page::of_books(&books, sites.profile.clone());
    let end = "Ended: ended by _exit, killed, or replaced by exec (not known which), last seen 2026-11-20 21:47:24 UTC";
    assert_eq!(dead.ending.as_deref(), Some(end));
    assert_eq!(dead.facts, ["pid 4711", "glibc malloc", "2 threads", "ran at least 10.0 s", "sites sampled"]);
    let (html, _) = check(&dead);
    let (_, main) = html.split_once("<main id=\"main\">").expect("the page");
    let at = [end, "What it held", "id=\"categories\""].map(|text| main.find(text).expect(text));
    assert!(at.is_sorted() && !main.contains("explain 4711"), "{at:?}");
    (books.life, books.ending) = (Life::Live, None);
    let living = page::of_books(&books, sites.profile);
    assert_eq!((living.ending, &*living.facts[3]), (None, "up 10.0 s"));
    assert_eq!(living.facts.last().map(String::as_str), Some("read 2026-11-20 21:47:24 UTC"));
    assert!(living.notes[0].ends_with("plimsoll explain 4711 --format html"), "{:?}", living.notes);
}

/// 86,400 readings of 50 curves: 5 MB at most, and the page says what it left out.
#[test]
fn a_day_of_readings_stays_small_and_keeps_its_peaks() {
    let (html, data) = check(&page_kit::recording());
    assert!(html.len() < 5_000_000, "{} bytes", html.len());
    assert!(html.contains("86,400 readings are drawn as 1,440 intervals of 60 s"));
    let sets = data["curves"]["sets"].as_array().expect("sets");
    let names: Vec<&str> = sets.iter().map(|set| set["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["process", "resident by line", "committed by line", "live by category"]);
    let rss = &sets[0]["curves"][0];
    assert_eq!((rss["role"].as_str(), rss["first"].as_u64()), (Some("rss"), Some(0)));
    let stacks = &data["stacks"];
    assert_eq!(stacks["moments"].as_array().map(Vec::len), Some(48));
    assert_eq!(stacks["sites"].as_array().map(Vec::len), Some(200));
    let calls = stacks["parents"].as_array().expect("calls");
    assert!(calls.iter().enumerate().skip(1).all(|(call, parent)| parent.as_u64() < Some(call as u64)));
}
