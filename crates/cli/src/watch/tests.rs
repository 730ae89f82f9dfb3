//! Draws the screen from made-up readings and compares it with the goldens in `goldens/watch/`; tests what keys change.
//! `BLESS=1` writes the goldens anew.

use std::collections::BTreeSet;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::LineId;
use plimsoll_observer::verdict::{Effort, Form, Remedy, Severity, Verdict, VerdictId};
use plimsoll_process::processes::{Identity, Listed, ProcessKind};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::{Ink, draw};
use super::facts::{ArenaRow, Facts, Limit, Lines, PoolRow, SiteRow};
use super::keys::{Effect, press};
use super::plain;
use super::state::{Page, Sort, State};

const SECOND: u64 = 1_000_000_000;
/// 2026-11-23T17:00:00Z
const START: u64 = 1_795_453_200 * SECOND;
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (40, 10)];

fn verdict(id: VerdictId, severity: Severity, summary: &str, how: &str) -> Verdict {
    let remedy = Remedy {
        what: "cap the arenas".into(),
        how: how.into(),
        form: Form::of(Effort::Restart, how),
        effort: Effort::Restart,
        trade_off: "contention where many threads allocate at once".into(),
        effect: Default::default(),
    };
    Verdict {
        id,
        severity,
        bytes: Bytes::mib(1240),
        summary: summary.into(),
        evidence: vec!["71 arenas, at most 320".into()],
        remedies: vec![remedy],
    }
}

/// A JVM whose malloc'ed memory grows by 1 MiB a second, with a hostile name.
fn reading(second: u64) -> Facts {
    let mib = Bytes::mib;
    let live = 276 + second;
    let lines = vec![
        (LineId::GlibcRetained, mib(1240), Bytes(0)),
        (LineId::JavaHeap, mib(1044 + second % 3), Bytes(0)),
        (LineId::GlibcLive, mib(live), Bytes(0)),
        (LineId::Class, mib(184), Bytes(0)),
        (LineId::CodeCache, mib(118), Bytes(0)),
        (LineId::DirectBuffers, mib(96), Bytes(0)),
        (LineId::ThreadStacks, mib(61), mib(2)),
        (LineId::Libraries, mib(38), Bytes(0)),
        (LineId::Symbols, mib(22), Bytes(0)),
        (LineId::MappedFiles, Bytes::kib(712), Bytes(0)),
    ];
    let remainder = Bytes::kib(1300);
    let rss = lines.iter().map(|(_, bytes, _)| *bytes).sum::<Bytes>() + remainder;
    let site = |category: &str, frames: &[&str], live| SiteRow {
        category: category.into(),
        frames: frames.iter().map(|frame| (*frame).to_owned()).collect(),
        live,
        error: Bytes::kib(700),
    };
    let arena = |name: &str, kept, live, threads| ArenaRow { name: name.into(), kept, live, trim: kept, threads };
    let pool = |name: &str, threads, stacks| PoolRow { name: name.into(), threads, stacks: Some(stacks) };
    Facts {
        time_ns: START + second * SECOND,
        title: "shop.jar 8080   (/usr/bin/java -Xmx1g -jar)".into(),
        pid: 4711,
        runtime: "HotSpot 25.0.3".into(),
        uptime: Some(273_700.0 + second as f64),
        threads: 212 + second / 60,
        is_stopped: false,
        is_tracked: true,
        lacking: BTreeSet::new(),
        rss,
        limit: Some(Limit { bytes: mib(4096), counted: rss - mib(20), is_of_now: true, source: "memory.max" }),
        ledger: Some(Lines {
            lines,
            allocators: None,
            remainder,
            verdicts: vec![
                verdict(
                    VerdictId::ArenaRetention,
                    Severity::Warning,
                    "1.21 GiB is free inside glibc but resident: 71 arenas keep it",
                    "MALLOC_ARENA_MAX=4",
                ),
                verdict(VerdictId::Growth, Severity::Warning, "glibc, live grew", "plimsoll record 4711"),
            ],
        }),
        sites: second.is_multiple_of(20).then(|| {
            vec![
                site(
                    "zlib",
                    &["inflateInit2_", "Java_java_util_zip_Inflater_init", "Inflater.<init>"],
                    mib(40 + second),
                ),
                site("other", &["\u{1b}[2Jbad\nname", "main"], mib(9 + second / 10)),
                site("nio", &["Unsafe.allocateMemory0", "DirectByteBuffer.<init>"], mib(96)),
            ]
        }),
        arenas: vec![arena("0x7f4e8c000030", mib(31), mib(4), 3), arena("main", mib(9), mib(30), 1)],
        pools: vec![pool("http-nio-8080-exec", 120 + second / 60, mib(31)), pool("\u{9b}2Jpool-N-thread", 41, mib(12))],
        age: 12.0,
        gap: None,
    }
}

fn after(seconds: u64) -> State {
    let mut state = State::default();
    for second in 0..=seconds {
        state.add(reading(second));
    }
    state
}

fn picture(state: &State, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(|frame| draw(state, Ink::new(true), frame.area(), frame.buffer_mut())).expect("drawn");
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..height).map(row).collect()
}

#[allow(clippy::disallowed_methods, reason = "a test writes its golden by its path")]
fn golden(name: &str, picture: &str) {
    let file = format!("{}/../../goldens/watch/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, picture).expect("written");
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(known == picture, "{name}: expected\n{known}\nfound\n{picture}\n(BLESS=1 accepts it)");
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

#[test]
fn the_screen_equals_its_goldens() {
    let young = after(5);
    let old = after(130);
    for size in SIZES {
        let (width, height) = size;
        golden(&format!("first-{width}x{height}"), &picture(&young, size));
        golden(&format!("growing-{width}x{height}"), &picture(&old, size));
    }
    let mut page = old.clone();
    assert_eq!(press(&mut page, key(KeyCode::Char('v'))), None);
    golden("verdicts-80x24", &picture(&page, (80, 24)));
    let mut ended = old.clone();
    ended.end("killed by signal 9 (SIGKILL)".into());
    golden("ended-80x24", &picture(&ended, (80, 24)));
    assert_eq!(press(&mut ended, key(KeyCode::Char('r'))), None, "an ended process is not recorded");
}

/// One reading can't show growth, and a few seconds show little: the panel says over which time it compares.
#[test]
fn sites_that_did_not_grow_are_said_so_after_a_second_reading() {
    let mut state = State::default();
    let shows = |state: &State, text: &str| picture(state, (120, 40)).contains(text);
    for second in 0..=19 {
        state.add(reading(second));
    }
    assert!(shows(&state, "read once since the baseline: growth shows from the next reading on"));
    state.add(Facts { sites: reading(0).sites, ..reading(20) });
    assert!(shows(&state, "none has grown beyond its sampling error in 20.0 s"));
    state.add(reading(40));
    assert!(!shows(&state, "none has grown"));
}

fn listed(pid: u32, name: &str, command: &[&str], rss: Bytes, is_jvm: bool, is_tracked: bool) -> Listed {
    Listed {
        identity: Identity { pid, start: 7 },
        uid: 0,
        name: name.into(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        rss,
        kind: ProcessKind { is_jvm, is_tracked },
    }
}

#[test]
fn the_list_equals_its_golden() {
    let mut state = State { has_list: true, ..State::default() };
    for second in 0..90 {
        let rows = vec![
            listed(812, "postgres", &["postgres: writer"], Bytes::mib(900), false, false),
            listed(4711, "java", &["/usr/bin/java", "-jar", "/srv/shop.jar"], Bytes::mib(700 + second), true, true),
            listed(99, "\u{1b}[2J", &["/bin/\u{1b}]0;title\u{7}"], Bytes::mib(4), false, false),
        ];
        state.shown.list.add(START + second * SECOND, rows);
    }
    golden("list-80x24", &picture(&state, (80, 24)));
    golden("list-40x10", &picture(&state, (40, 10)));
    assert_eq!(press(&mut state, key(KeyCode::Enter)), Some(Effect::Open(4711)), "JVMs come first");
    press(&mut state, key(KeyCode::Down));
    assert_eq!(press(&mut state, key(KeyCode::Enter)), Some(Effect::Open(812)));
    // A process that vanishes leaves the cursor on the first row.
    state.shown.list.add(START + 91 * SECOND, Vec::new());
    assert_eq!(press(&mut state, key(KeyCode::Enter)), None);
}

/// The cursor moves in the picture that the user sees, and Enter opens the process under it.
#[test]
fn a_paused_list_is_walked_and_opened_as_it_is_seen() {
    let mut state = State { has_list: true, ..State::default() };
    let [big, small] = [1, 2].map(|pid| listed(pid, "sleep", &["sleep"], Bytes::mib(9 / u64::from(pid)), false, false));
    state.shown.list.add(START, vec![big.clone(), small]);
    press(&mut state, key(KeyCode::Char('p')));
    // Behind the picture, the second process ends and another one becomes the biggest.
    state.shown.list.add(START + SECOND, vec![listed(3, "new", &["new"], Bytes::mib(99), false, false), big]);
    let frozen = picture(&state, (80, 24));
    press(&mut state, key(KeyCode::Down));
    assert_eq!(picture(&state, (80, 24)), frozen, "colours alone show the cursor");
    assert_eq!(press(&mut state, key(KeyCode::Enter)), Some(Effect::Open(2)));
    assert!(state.paused.is_none(), "the opened process is not hidden behind the paused list");
}

#[test]
fn a_list_is_ordered_by_growth_only_if_the_user_asks() {
    let mut state = State { has_list: true, ..State::default() };
    for second in 0..120 {
        let rows = vec![
            listed(1, "a", &["a"], Bytes::mib(500), false, false),
            listed(2, "b", &["b"], Bytes::mib(10 + second), false, false),
            listed(3, "c", &["c"], Bytes::mib(10 + 2 * second), false, false),
        ];
        state.shown.list.add(START + second * SECOND, rows);
    }
    let order = |sort| state.shown.list.rows(sort).iter().map(|(of, _)| of.identity.pid).collect::<Vec<_>>();
    assert_eq!(order(Sort::Size), [1, 3, 2]);
    assert_eq!(order(Sort::Growth), [3, 2, 1]);
    assert_eq!(order(Sort::Change), [3, 2, 1]);
    assert_eq!(order(Sort::Name), [1, 2, 3]);
}

#[test]
fn every_size_is_drawn() {
    let mut states = vec![State::default(), after(0), after(70)];
    let mut page = after(70);
    page.page = Page::Verdicts;
    page.scroll.set(1000);
    states.push(page);
    for state in &states {
        for width in (0..60).chain([200, 500]) {
            for height in [0, 1, 2, 3, 5, 9, 17, 60] {
                if width > 0 && height > 0 {
                    picture(state, (width, height));
                }
            }
        }
    }
}

/// Keys beyond the last row are not counted: the next one up moves at once.
#[test]
fn the_verdicts_scroll_to_their_end_and_back() {
    let size = (80, 6);
    let mut state = after(70);
    press(&mut state, key(KeyCode::Char('v')));
    let top = picture(&state, size);
    let mut page = |code| {
        press(&mut state, key(code));
        picture(&state, size)
    };
    let pages: Vec<String> = (0..20).map(|_| page(KeyCode::PageDown)).collect();
    assert_eq!(pages[18], pages[19], "the end");
    assert_ne!(pages[19], top);
    assert_ne!(page(KeyCode::Up), pages[19]);
    (0..20).for_each(|_| drop(page(KeyCode::PageUp)));
    assert_eq!(page(KeyCode::Up), top);
}

#[test]
fn no_name_of_a_target_reaches_the_terminal_raw() {
    let state = after(40);
    for size in SIZES {
        assert!(!picture(&state, size).chars().any(|c| c != '\n' && c.is_control()));
    }
    assert!(!plain::line_of(state.shown.one.as_ref().expect("read")).chars().any(char::is_control));
}

#[test]
fn everything_is_compared_with_the_mark() {
    let mut state = after(40);
    let change = |state: &State| state.shown.one.as_ref().expect("read").rows(Sort::Change)[0].change;
    assert_eq!(change(&state), 40 << 20);
    let Some(Effect::Baseline(Some(baseline))) = press(&mut state, key(KeyCode::Char('b'))) else {
        panic!("no baseline")
    };
    assert_eq!(baseline.resident(LineId::GlibcLive), Bytes::mib(316));
    assert_eq!(change(&state), 0);
    for second in 41..=60 {
        state.add(reading(second));
    }
    assert_eq!(change(&state), 20 << 20);
    let one = state.shown.one.as_ref().expect("read");
    let sites = one.growing_sites();
    assert_eq!((sites.len(), sites[0].1, sites[0].2), (2, Bytes::mib(20), Bytes::kib(1400)));
    assert_eq!(one.pool_change("http-nio-8080-exec", 121), 1);
}

#[test]
fn growth_is_claimed_with_an_interval_only() {
    let ids = |state: &State| {
        let one = state.shown.one.as_ref().expect("read");
        one.standing().map(|verdict| verdict.id).collect::<Vec<_>>()
    };
    // Two readings made the verdict; until there is an interval, it does not stand.
    assert_eq!(ids(&after(30)), [VerdictId::ArenaRetention]);
    assert_eq!(ids(&after(130)), [VerdictId::ArenaRetention, VerdictId::Growth]);
    assert!(after(30).shown.one.expect("read").time_left().is_none());
    let (soonest, latest) = after(130).shown.one.expect("read").time_left().expect("it grows");
    // 1 MiB a second.
    let left = (4096 - 3079 - 130 - 2 + 20) as f64;
    assert!(soonest <= latest && (soonest - left).abs() < 60.0, "{soonest} to {latest}, about {left}");
    // Another group's limit is nearer from now on.
    let mut changed = after(130);
    let mut next = reading(131);
    let counted = Bytes::mib(8000);
    next.limit = Some(Limit { bytes: Bytes::mib(8192), counted, is_of_now: true, source: "memory.max" });
    changed.add(next);
    assert!(changed.shown.one.expect("read").time_left().is_none());
    // Before there is an interval, a calm process isn't called healthy.
    let mut early = after(30);
    let mut calm = reading(31);
    let healthy = verdict(VerdictId::Healthy, Severity::Note, "nothing stands out", "");
    calm.ledger.as_mut().expect("read").verdicts = vec![healthy];
    early.add(calm);
    let line = plain::line_of(early.shown.one.as_ref().expect("read"));
    assert!(line.ends_with("[no verdict yet]"), "{line}");
}

/// `--limit` counts each page once, RSS as often as it is mapped: ZGC maps its heap three times.
#[test]
fn a_reading_without_mappings_keeps_what_counts_against_the_limit() {
    let mut state = after(130);
    let shown = |state: &State| {
        let one = state.shown.one.as_ref().expect("read");
        (one.facts.limit.expect("a limit").counted, one.time_left())
    };
    let before = shown(&state);
    assert!(before.1.is_some(), "it grows");
    let mut next = reading(131);
    let limit = next.limit.expect("a limit");
    next.limit = Some(Limit { counted: Bytes(3 * limit.counted.0), is_of_now: false, ..limit });
    next.ledger = None;
    state.add(next);
    assert_eq!(shown(&state), before);
    state.add(reading(132));
    assert_eq!(Some(shown(&state).0), reading(132).limit.map(|limit| limit.counted));
}

#[test]
fn a_pause_freezes_the_picture_and_not_the_history() {
    let mut state = after(10);
    press(&mut state, key(KeyCode::Char('p')));
    let frozen = picture(&state, (80, 24));
    state.add(reading(11));
    assert_eq!(picture(&state, (80, 24)), frozen);
    press(&mut state, key(KeyCode::Char('p')));
    assert_ne!(picture(&state, (80, 24)), frozen);
    assert_eq!(state.shown.one.as_ref().expect("read").rss.change(), 13 << 20);
}

#[test]
fn keys_do_what_their_help_says() {
    let mut state = State { has_list: true, ..after(3) };
    assert_eq!(press(&mut state, key(KeyCode::Char('r'))), Some(Effect::Record));
    state.is_recording = true;
    assert_eq!(press(&mut state, key(KeyCode::Char('r'))), Some(Effect::StopRecording));
    press(&mut state, key(KeyCode::Enter));
    assert_eq!(state.page, Page::Verdicts);
    assert_eq!(press(&mut state, key(KeyCode::Esc)), None);
    assert_eq!(state.page, Page::Overview);
    for expected in [Sort::Change, Sort::Growth, Sort::Name, Sort::Size] {
        press(&mut state, key(KeyCode::Char('s')));
        assert_eq!(state.sort, expected);
    }
    assert_eq!(press(&mut state, key(KeyCode::Esc)), Some(Effect::Close));
    assert!(state.shown.one.is_none());
    state.add(reading(99));
    assert!(state.shown.one.is_none(), "a reading that had begun before Esc opens nothing");
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(press(&mut state, control), Some(Effect::Quit));
    assert_eq!(press(&mut state, key(KeyCode::Char('q'))), Some(Effect::Quit));
}
