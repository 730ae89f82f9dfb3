//! The table of `plimsoll try`: text and JSON of one known trial.

mod text_of;

use std::collections::BTreeMap;

use plimsoll_report::{trial_json, trial_pages, trial_text};
use plimsoll_trial::{Metric, Row, Run, RunEnd, Trial};
use text_of::text_of;

const MIB: f64 = 1048576.0;

/// Three rounds: plain, a cap that saves, an allocator that isn't here, and a hostile name.
fn trial() -> Trial {
    let row = |label: &str| Row { label: label.into(), ..Row::default() };
    let mut trial = Trial {
        command: "java -jar shop.jar".into(),
        ready: Some("port:8080".into()),
        load: Some("wrk --latency http://localhost:8080/".into()),
        rounds: 3,
        rows: vec![
            row("plain"),
            Row {
                predicted: Some((60 << 20, 90 << 20)),
                changes: vec!["MALLOC_ARENA_MAX=2".into()],
                ..row("arenas=2")
            },
            Row { missing: Some("libmimalloc.so.3 is not on this machine".into()), ..row("mimalloc") },
            row("A=\x1b[2J<b>&"),
        ],
        ..Trial::default()
    };
    for round in 0..3 {
        let drift = round as f64;
        for (number, (idle, p99)) in [(500.0, 10.0), (425.0, 10.1), (501.0, 10.1)].into_iter().enumerate() {
            let figures = BTreeMap::from([(Metric::Idle, (idle + drift) * MIB), (Metric::P99, p99 + drift / 10.0)]);
            let (row, is_bad) = (if number == 2 { 3 } else { number }, number == 2 && round == 1);
            let end = if is_bad { RunEnd::Signal(11) } else { RunEnd::Stopped };
            let detail = is_bad.then(|| "boom \x1b[31m".to_owned());
            trial.runs.push(Run {
                round,
                row,
                end,
                detail,
                figures,
                pss: BTreeMap::new(),
                processes: 1,
                load_errors: Some(0),
            });
        }
    }
    trial
}

fn text(trial: &Trial) -> String {
    text_of(|out| trial_text::write(out, trial))
}

#[test]
fn a_person_reads_what_each_row_saves() {
    let found = text(&trial());
    let expected = "\
java -jar shop.jar
3 rounds of 4 rows   ready port:8080   load: wrk --latency http://localhost:8080/

median of the rounds         after idling          p99       ran
plain                             501 MiB      10.1 ms    3 of 3
                               ± 1.00 MiB    ± 0.10 ms
arenas=2                          426 MiB      10.2 ms    3 of 3
                               ± 1.00 MiB    ± 0.10 ms
A=\\u{1b}[2J<b>&                   502 MiB      10.2 ms    2 of 3
                               ± 1.00 MiB    ± 0.10 ms

arenas=2
  after idling  −75.0 MiB (−15.0 %), 95 % interval −75.1 MiB to −74.9 MiB
  p99           +0.10 ms (+1.0 %), 95 % interval +0.099 ms to +0.10 ms
  explain expected a saving of 60.0 MiB to 90.0 MiB

mimalloc
  not tried: libmimalloc.so.3 is not on this machine

A=\\u{1b}[2J<b>&
  after idling  +1.00 MiB (+0.2 %), 95 % interval +960 KiB to +1.06 MiB
  p99           +0.10 ms (+1.0 %), 95 % interval +0.099 ms to +0.10 ms

A=\\u{1b}[2J<b>&: 1 of 3 runs failed
  the program died of signal 11: boom \\u{1b}[31m

best: arenas=2: after idling −75.0 MiB (−15.0 %), 95 % interval −75.1 MiB to −74.9 MiB. p99: +0.10 ms (+1.0 %), 95 % interval +0.099 ms to +0.10 ms
";
    assert_eq!(found, expected, "\n{found}");
}

/// Why the best row has no latency: there was no load, or its output isn't read, or too few runs have it.
#[test]
fn a_latency_that_is_missing_has_its_reason() {
    let best = |load: Option<&str>, without: fn(&Run) -> bool| {
        let mut trial = Trial { load: load.map(str::to_owned), ..trial() };
        for run in trial.runs.iter_mut().filter(|run| without(run)) {
            run.figures.remove(&Metric::P99);
        }
        let text = text(&trial);
        text.lines().last().and_then(|line| line.split_once(". Latency was ")).expect("no latency").1.to_owned()
    };
    assert_eq!(best(None, |_| true), "not measured: give a load (--load)");
    let unread = "not measured: the output of the load isn't that of wrk, hey, oha, k6 or redis-benchmark";
    assert_eq!(best(Some("ab -n 1000 http://localhost:8080/"), |_| true), unread);
    let few = "not compared: fewer than two rounds have it both here and in the plain program";
    assert_eq!(best(Some("hey http://localhost:8080/"), |run| run.row == 1), few);
}

/// Two options after the same -XX:+UnlockExperimentalVMOptions. Cut at one column, their names would be equal.
#[test]
fn rows_whose_names_begin_alike_have_different_names() {
    let mut trial = trial();
    let [one, other] = ["A", "B"].map(|name| format!("-XX:+UnlockExperimentalVMOptions -XX:{name}=60000"));
    (trial.rows[1].label, trial.rows[3].label) = (one, other);
    let found = text(&trial);
    for name in ["A", "B"] {
        let row = format!("\n…mentalVMOptions -XX:{name}=60000 ");
        assert!(found.contains(&row), "{name}: {found}");
    }
}

#[test]
fn scripts_read_the_same() {
    let mut out = Vec::new();
    trial_json::write(&mut out, &trial()).expect("a vector takes all");
    let found: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(found["schema"], "plimsoll.trial/1");
    let cap = &found["rows"][1];
    assert_eq!((&cap["name"], &cap["runs"], &cap["failed"]), (&"arenas=2".into(), &3.into(), &0.into()));
    let idle = &cap["figures"]["idle_bytes"];
    assert_eq!(idle["median"], 426.0 * MIB);
    assert_eq!(idle["difference"]["mean"], -75.0 * MIB);
    assert_eq!((&idle["difference"]["significant"], &idle["difference"]["pairs"]), (&true.into(), &3.into()));
    assert_eq!(cap["predicted_saving"]["most_bytes"], 90 << 20);
    assert_eq!(found["rows"][0]["figures"]["idle_bytes"]["difference"], serde_json::Value::Null);
    assert_eq!(found["rows"][2]["missing"], "libmimalloc.so.3 is not on this machine");
    assert_eq!((&found["best"]["kind"], &found["best"]["row"]), (&"saves".into(), &"arenas=2".into()));
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(9));
    let bad = &found["runs"][5];
    assert_eq!((&bad["end"], &bad["round"]), (&"signal".into(), &2.into()));
    assert!(!out.contains(&0x1b));
}

#[test]
fn an_interrupted_trial_says_how_far_it_came() {
    let mut trial = trial();
    trial.interrupted = true;
    trial.runs.truncate(2);
    let found = text(&trial);
    assert!(found.contains("interrupted in round 1 of 3"), "{found}");
    assert!(found.ends_with("too few complete rounds to compare: an interval needs two (--rounds 5)\n"), "{found}");
    assert!(text(&Trial::default()).contains("too few complete rounds"));
}

/// Equal rows: three rounds show that none saves, two don't.
#[test]
fn two_rounds_do_not_decide() {
    let mut trial = trial();
    trial.runs.retain(|run| run.row == 0);
    trial.runs.extend(trial.runs.clone().into_iter().map(|run| Run { row: 1, ..run }));
    assert!(text(&trial).contains("\nbest: plain. "), "{}", text(&trial));
    trial.runs.retain(|run| run.round < 2);
    let found = text(&trial);
    assert!(found.ends_with("\nnot decided: 2 rounds are too few, use --rounds 5\n"), "{found}");
}

/// A trial in which the plain program ends like this in these rounds. With `others`, so do all runs of the other rows.
fn ended(end: &RunEnd, others: bool, rounds: &[usize]) -> Trial {
    let mut trial = trial();
    for run in &mut trial.runs {
        let is_meant = if run.row == 0 { rounds.contains(&run.round) } else { others };
        if is_meant {
            run.end = end.clone();
            run.figures.clear();
        }
    }
    trial
}

/// A program that was killed isn't best because nothing else is, and more rounds don't help it.
#[test]
fn what_was_killed_or_failed_is_not_best() {
    let last = |trial: &Trial| text(trial).lines().last().unwrap_or_default().to_owned();
    let none = "best: none. The plain program was killed at its limit in";
    let all = ended(&RunEnd::OutOfMemory, true, &[0, 1, 2]);
    assert_eq!(last(&all), format!("{none} 3 of 3 runs, and no other row completed in every round"));
    let once = ended(&RunEnd::OutOfMemory, true, &[1]);
    assert_eq!(last(&once), format!("{none} 1 of 3 runs, and no other row completed in every round"));
    let survived = last(&ended(&RunEnd::OutOfMemory, false, &[0, 1, 2]));
    assert!(survived.starts_with("best: arenas=2: every run completed (after idling "), "{survived}");
    assert!(survived.ends_with("; the plain program was killed at its limit in 3 of 3 runs"), "{survived}");
    let may_be_chance = last(&ended(&RunEnd::OutOfMemory, false, &[0, 2]));
    let open = "not decided: the plain program was killed at its limit in 2 of 3 runs, which may be chance: use more rounds (--rounds)";
    assert_eq!(may_be_chance, open);
    let mut once = ended(&RunEnd::OutOfMemory, false, &[0, 1, 2]);
    once.rows[1].once = true;
    assert_eq!(last(&once), format!("{none} 3 of 3 runs, and no row whose effect lasts completed in every round"));
    let broken = ended(&RunEnd::Exited(1), true, &[0, 1, 2]);
    assert_eq!(last(&broken), "nothing was compared: no run of the plain program completed");
}

#[test]
fn a_ticket_gets_the_table() {
    let found = text_of(|out| trial_pages::markdown(out, &trial()));
    let rows: Vec<&str> = found.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(rows[0], "| | after idling | p99 | ran | expected saving |");
    assert_eq!(rows[2], "| plain | 501 MiB ± 1.00 MiB | 10.1 ms ± 0.10 ms | 3 of 3 |  |");
    let cap = "| arenas=2 | 426 MiB ± 1.00 MiB; **−75.0 MiB (−15.0 %)** | 10.2 ms ± 0.10 ms; **+0.10 ms (+1.0 %)** | 3 of 3 | 60.0 MiB to 90.0 MiB |";
    assert_eq!(rows[3], cap);
    assert_eq!(rows[4], "| mimalloc | | | not tried: libmimalloc.so.3 is not on this machine |  |");
    // A name from a command line isn't markup, in the table or below it.
    assert!(rows[5].starts_with("| A=\\\\u{1b}\\[2J\\<b\\>\\& |"), "{}", rows[5]);
    assert!(found.contains("**best: arenas=2") && found.contains("died of signal 11"), "{found}");
}

#[test]
fn the_page_is_whole_and_escapes_names() {
    let found = text_of(|out| trial_pages::html(out, &trial()));
    let (_, xml) = found.split_once("<!DOCTYPE html>\n").expect("a type");
    let parsed = roxmltree::Document::parse(xml).unwrap_or_else(|error| panic!("{error}\n{found}"));
    let named = |name: &'static str| {
        parsed.descendants().filter(move |node| node.has_tag_name(("http://www.w3.org/1999/xhtml", name)))
    };
    assert_eq!((named("tr").count(), named("script").count(), named("b").count()), (5, 0, 4));
    let cells: Vec<_> = named("td").filter_map(|cell| cell.first_child()?.text()).collect();
    // Copied without the styles, the median, its spread and the difference are still apart.
    let row = named("tr").nth(2).expect("arenas=2");
    let texts: String = row.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect();
    assert!(texts.contains("426 MiB ± 1.00 MiB −75.0 MiB (−15.0 %) "), "{texts}");
    assert!(found.contains("td b { display: block; }"), "without a spread, the difference has a line of its own");
    let cells: Vec<_> = cells.iter().map(|cell| cell.trim()).collect();
    assert!(cells.contains(&"426 MiB") && cells.contains(&"60.0 MiB to 90.0 MiB"), "{cells:?}");
    assert!(!found.contains("http://localhost:8080/\"") && !found.contains('\u{1b}'), "{found}");
}

#[test]
fn failed_requests_are_reported() {
    let mut trial = trial();
    trial.runs[1].load_errors = Some(1234);
    assert!(text(&trial).contains("\nfailed requests, all rounds: arenas=2 1,234\n"), "{}", text(&trial));
    let last = text(&trial).lines().last().unwrap_or_default().to_owned();
    let reason = "Not considered, because more requests failed than in the plain program: arenas=2";
    assert!(last.starts_with("best: plain. ") && last.ends_with(reason), "{last}");
}
