//! Pages whose every name tries to become markup or script.

use plimsoll_observer::recording::{History, Measure, Series, SitesOverTime};
use plimsoll_profiles::profile::{Column, Frame, FrameOrigin, Labels, Profile, Value};
use plimsoll_report::ledger_json;
use plimsoll_report::page::{self, Page};
use serde_json::Value as Json;

/// Each sets `pwned` if a browser runs it.
pub const NAMES: [&str; 12] = [
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "\"><svg onload=window.pwned=1>",
    "' onmouseover='window.pwned = 1",
    "javascript:window.pwned = 1",
    "</style><style>* { display: none }</style>",
    "\u{2028}window.pwned = 1//\u{2029}",
    "\u{202e}gnp.exe",
    "&lt;b&gt; &amp; <b>",
    "]]><!-- <!DOCTYPE",
    "\0\u{1b}]0;pwned\u{7}\u{fffe}",
    "x\" style=\"position:fixed\" x=\"",
];

pub fn html(page: &Page) -> String {
    let mut out = Vec::new();
    page::write(&mut out, page).expect("memory takes everything");
    String::from_utf8(out).expect("UTF-8")
}

/// The golden ledger, with hostile names in place of all texts that a target chooses or influences.
pub fn ledger() -> Page {
    let golden = include_str!("../../../../goldens/explain.json");
    let mut json: Json = serde_json::from_str(golden).expect("JSON");
    let mut at = 0;
    poison(&mut json, "", &mut at);
    assert!(at > 3 * NAMES.len(), "only {at} names were replaced");
    let saved = serde_json::to_vec(&json).expect("JSON");
    page::of_ledger(&ledger_json::parse(&saved).expect("a ledger"))
}

fn poison(json: &mut Json, key: &str, at: &mut usize) {
    match json {
        Json::Object(map) => map.iter_mut().for_each(|(key, value)| poison(value, key, at)),
        Json::Array(list) => list.iter_mut().for_each(|value| poison(value, key, at)),
        Json::String(text) if !["schema", "id", "severity", "grade"].contains(&key) => {
            *text = NAMES[*at % NAMES.len()].to_owned();
            *at += 1;
        }
        _ => {}
    }
}

pub const DAY: i64 = 86_400;
const SECOND: i64 = 1_000_000_000;
const START: i64 = 1_795_200_000 * SECOND;

/// A day with a reading each second, 25 lines and as many categories, that leaks; and call sites of 48 moments.
pub fn recording() -> Page {
    let mut history = History::default();
    (history.begin_ns, history.from_ns) = (START, START);
    (history.end_ns, history.to_ns) = (START + DAY * SECOND, START + DAY * SECOND);
    (history.process.command, history.process.pid) = (NAMES[0].to_owned(), Some(4711));
    let mut add = |measure: Measure, name: String, value: &dyn Fn(u64) -> u64| {
        let mut series = Series::default();
        (0..DAY).for_each(|second| series.push(START + second * SECOND, value(second as u64)));
        series.settle();
        history.series.insert((measure, name), series);
    };
    // A noise that repeats after 7,919 readings.
    let noise = |second: u64| second.wrapping_mul(7919) % 65_536;
    add(Measure::Rss, String::new(), &|second| (800 << 20) + second * 20_000 + noise(second));
    add(Measure::Limit, String::new(), &|_| 4 << 30);
    add(Measure::Charged, String::new(), &|second| (900 << 20) + second * 20_000);
    add(Measure::LineCommitted, "java-heap".into(), &|second| (512 << 20) + (second / 3600) * (8 << 20));
    for number in 0..25u64 {
        let name = format!("{} {number}", NAMES[number as usize % NAMES.len()]);
        add(Measure::Line, name.clone(), &|second| (number << 20) + second * 10 * number + noise(second + number));
        add(Measure::Live, name, &|second| (number << 19) + noise(second * number));
    }
    let mut page = page::of_recording(&history);
    let times_ns: Vec<i64> = (0..48).map(|n| START + n * 1800 * SECOND).collect();
    page::add_sites(&mut page, SitesOverTime { profile: stacks(48), times_ns, recorded: 4320 });
    page
}

/// A recording of so many milliseconds, whose curves have readings at these. Ten lines: two more than a stack shows.
#[allow(dead_code, reason = "page.rs has the page of a day")]
pub fn short(milliseconds: i64, readings: &[i64]) -> Page {
    let mut history = History::default();
    (history.begin_ns, history.from_ns) = (START, START);
    (history.end_ns, history.to_ns) = (START + milliseconds * 1_000_000, START + milliseconds * 1_000_000);
    let mut add = |measure: Measure, name: String, mib: u64| {
        let mut series = Series::default();
        for (number, at) in readings.iter().enumerate() {
            series.push(START + at * 1_000_000, (mib + 100 * number as u64) << 20);
        }
        history.series.insert((measure, name), series);
    };
    add(Measure::Rss, String::new(), 778);
    add(Measure::LineCommitted, "java-heap".into(), 64);
    (0..9).for_each(|number| add(Measure::Line, format!("line {number}"), 90 - number));
    page::of_recording(&history)
}

/// 200 sites; each tenth grows.
fn stacks(columns: usize) -> Profile {
    let mut profile = Profile::new(vec![Column::bytes("live"); columns]);
    for site in 0..200u64 {
        let frames: Vec<_> = (0..20u64)
            .map(|depth| {
                let name = match (depth, site % 7) {
                    (19, _) => "main".to_owned(),
                    (10.., way) => format!("{} way {way}", NAMES[depth as usize % NAMES.len()]),
                    _ => format!("allocate_{site}_{depth}"),
                };
                let kind = if depth < 10 { FrameOrigin::Native } else { FrameOrigin::Java };
                profile.frame(Frame { function: Some(name), kind, ..Frame::default() })
            })
            .collect();
        let stack = profile.stack(&frames);
        let category = profile.name(NAMES[site as usize % NAMES.len()]);
        let live = |column: u64| if site % 10 == 0 { ((site + 1) * (column + 1)) << 14 } else { (site + 1) << 12 };
        let values: Vec<Value> = (0..columns as u64).map(|column| Value::exact(live(column))).collect();
        profile.add(stack, Labels { category: Some(category), ..Labels::default() }, &values);
    }
    profile
}
