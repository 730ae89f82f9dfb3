//! `plimsoll compare`: known differences with their line and site, budgets, failures, and nothing left behind.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::harness;
use crate::kit::Trial;

/// A program that takes at its start the MiB of malloc and the MiB of mmap that its arguments name.
struct Pair {
    trial: Trial,
    program: String,
}

impl Pair {
    fn new(name: &str) -> Pair {
        let trial = Trial::new(name);
        let program = harness::compiled("startup", &trial.folder.join("startup"), &[]);
        Pair { trial, program }
    }

    fn compare(&self, options: &[&str], [a, b]: [&str; 2]) -> Output {
        let [a, b] = [a, b].map(|arguments| format!("{} {arguments}", self.program));
        let output =
            self.trial.verb("compare", &[options, &["--a", &a, "--b", &b]].concat()).output().expect("plimsoll");
        self.trial.assert_nothing_left();
        output
    }

    fn json(&self, options: &[&str], of: [&str; 2]) -> (Option<i32>, Value) {
        let output = self.compare(&[options, &["--format", "json"]].concat(), of);
        let error = String::from_utf8_lossy(&output.stderr);
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {error}"));
        (output.status.code(), document)
    }

    fn budget(&self, text: &str) -> String {
        let file = self.trial.path("budget");
        fs::write(&file, text).expect("budget");
        file
    }
}

const READY: [&str; 2] = ["--ready", "log:ready"];

fn mib(change: &Value) -> f64 {
    change["mean"].as_f64().unwrap_or_else(|| panic!("no mean: {change:#}")) / f64::from(1 << 20)
}

fn line<'v>(document: &'v Value, id: &str) -> &'v Value {
    let lines = document["lines"].as_array().expect("lines");
    lines.iter().find(|line| line["id"] == id).unwrap_or_else(|| panic!("no line {id}: {document:#}"))
}

fn frames(site: &Value) -> String {
    let frames = site["frames"].as_array().expect("frames").iter().map(|frame| frame.as_str().expect("text"));
    frames.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_growth_has_its_line_its_site_and_its_mapping_calls() {
    let pair = Pair::new("compare-growth");
    let budget = pair.budget("rss 4m\nother-anonymous 1m\nglibc-live 20m\n");
    let stacks = pair.trial.path("stacks");
    let options = [&READY[..], &["--runs", "3", "--tracked", "2", "--budget", &budget, "--stacks", &stacks]].concat();
    let (status, found) = pair.json(&options, ["4 8", "12 16"]);
    assert_eq!((status, &found["schema"]), (Some(1), &"plimsoll.comparison/1".into()));
    assert!((mib(&found["rss"]) - 16.0).abs() < 1.0, "{found:#}");
    for id in ["glibc-live", "other-anonymous"] {
        let change = line(&found, id);
        assert!((mib(change) - 8.0).abs() < 0.5 && change["verdict"] == "grew", "{change:#}");
    }
    let sites = found["tracked"]["sites"].as_array().expect("sites");
    assert_eq!((&found["tracked"]["runs_a"], sites.len()), (&2.into(), 2), "{sites:#?}");
    for (function, blocks) in [("load_index", (65536 - 64) * 16 * 8), ("map_cache", 8 << 20)] {
        let site = sites.iter().find(|site| frames(site).starts_with(function)).expect(function);
        let change = site["change"].as_i64().expect("bytes");
        assert!((blocks..blocks + (128 * 32)).contains(&change), "{function}: {change}");
    }
    // The mapping calls: one for each MiB of the cache.
    let calls = |site: &&Value| frames(site).starts_with("map_cache");
    let mapped = found["tracked"]["mapping_sites"].as_array().expect("sites").iter().find(calls).expect("map_cache");
    assert_eq!((&mapped["a"], &mapped["b"]), (&8.into(), &16.into()));
    // The gate names both lines beyond their budget, with a site; glibc-live is within its own.
    let over = found["over_budget"].as_array().expect("a list");
    assert_eq!(over.iter().map(|of| of["line"].as_str().expect("id")).collect::<Vec<_>>(), ["rss", "other-anonymous"]);
    for of in over {
        let text = of["text"].as_str().expect("text");
        assert!(text.contains("; site: map_cache") || text.contains("; site: load_index"), "{text}");
    }
    let folded = fs::read_to_string(format!("{stacks}/mapping-calls.folded")).expect("folded stacks");
    assert!(folded.lines().any(|line| line.ends_with("main;map_cache 8 16")), "{folded}");
    for (name, function) in [("bytes", "load_index"), ("mapping-calls", "map_cache")] {
        let svg = fs::read_to_string(format!("{stacks}/{name}.svg")).expect("flame graph");
        assert!(svg.contains("Difference: ") && svg.contains(function), "{name}");
    }
}

#[test]
fn what_is_within_its_budget_passes_and_the_text_says_so() {
    let pair = Pair::new("compare-within");
    let budget = pair.budget("rss 20%\n* 2m\n");
    let options = [&READY[..], &["--runs", "3", "--tracked", "0", "--budget", &budget]].concat();
    let output = pair.compare(&options, ["20 4", "20 4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.ends_with("No line is beyond its budget.\n") && text.contains("3 pairs of runs"), "{text}");
    let short = [&READY[..], &["--runs", "2", "--tracked", "0", "--format", "markdown"]].concat();
    let output = pair.compare(&short, ["20 4", "20 4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("| | A | B | B − A | all intervals hold with 99 % |"), "{text}");
}

/// Without --ready, each runs until it ends: the peaks are compared, and the stacks come from what the runs left.
#[test]
fn programs_that_end_are_compared_by_their_peaks() {
    let pair = Pair::new("compare-ends");
    let budget = pair.budget("rss 1m\n");
    let options = ["--runs", "3", "--tracked", "1", "--budget", &budget];
    let (status, found) = pair.json(&options, ["4 0 end", "24 0 end"]);
    assert_eq!(status, Some(1));
    assert!((mib(&found["rss"]) - 20.0).abs() < 1.0 && found["figures"]["took_seconds"].is_object(), "{found:#}");
    assert!(frames(&found["tracked"]["sites"][0]).starts_with("load_index"), "{found:#}");
    // No run has a ledger, but the growth still has its site.
    assert!(found["lines"].as_array().is_some_and(Vec::is_empty), "{found:#}");
    let over = found["over_budget"][0]["text"].as_str().expect("a sentence");
    assert!(over.starts_with("rss: ") && over.contains("; site: load_index"), "{over}");
}

/// B holds 1 MiB more, and has a second process. RSS counts the C library in full, which PSS doesn't.
#[test]
fn one_process_and_several_are_compared_by_pss() {
    let pair = Pair::new("compare-forks");
    let budget = pair.budget("rss 0\n");
    let options = [&READY[..], &["--runs", "3", "--tracked", "0", "--budget", &budget]].concat();
    let (status, found) = pair.json(&options, ["4 0", "4 1 fork"]);
    assert_eq!((status, &found["rss"]["verdict"]), (Some(1), &"grew".into()), "{found:#}");
    assert!((mib(&found["rss"]) - 1.0).abs() < 0.3, "{found:#}");
    let run = found["runs"].as_array().expect("runs").iter().find(|run| run["side"] == "A").expect("A");
    assert!(run["pss"]["steady_bytes"].as_f64() < run["figures"]["steady_bytes"].as_f64(), "{run:#}");
    let notes = found["notes"].as_array().expect("notes");
    assert!(notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains("PSS is compared"))), "{notes:?}");
}

#[test]
fn what_cannot_be_compared_is_a_sentence_and_status_2() {
    let pair = Pair::new("compare-fails");
    let output = pair.compare(&[&READY[..], &["--runs", "5", "--ready-within", "100"]].concat(), ["1 1", ""]);
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{text}{error}");
    assert!(text.contains("B: 2 of 2 runs failed; the program ended early with exit status 2"), "{text}");
    assert!(text.contains("given up in pair 2 of 5"), "{text}");
    assert!(text.ends_with("Nothing was compared: an interval needs two pairs in which both programs completed\n"));
    assert_eq!(error.lines().count(), 2, "{error}");
    let refused = |arguments: &[&str], sentence: &str| {
        let output = pair.trial.verb("compare", arguments).output().expect("plimsoll");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(sentence) && error.lines().count() == 1, "{arguments:?}: {error}");
        assert_eq!(output.status.code(), Some(2));
    };
    let budget = pair.budget("rss 1m\nheap 1m\n");
    refused(&["--a", "true", "--b", "true", "--budget", &budget], "line 2: 'heap' isn't a line of the ledger");
    // Without --ready there is no ledger: a gate on its lines would always pass.
    for (text, name) in [("rss 1m\nglibc-live 0\n", "glibc-live"), ("* 0\n", "*")] {
        let budget = pair.budget(text);
        refused(&["--a", "true", "--b", "true", "--budget", &budget], &format!("'{name}' needs --ready: "));
    }
    let budget = pair.budget("rss 0\n");
    refused(&["--a", "true", "--b", "plimsoll-no-such-program"], "cannot start 'plimsoll-no-such-program'");
    refused(&["--a", "true"], "--b");
    refused(&["--a", "true", "--b", "true", "--tracked", "0", "--stacks", "x"], "--stacks needs tracked runs");
    refused(&[&budget, &budget], "isn't a flight recording. For saved reports: plimsoll diff");
    refused(&[], "give two programs");
}

/// Two recordings: their curves, then the stacks.
#[test]
fn recordings_are_compared_by_their_curves_and_stacks() {
    let pair = Pair::new("compare-recordings");
    for (name, mib) in [("a.jfr", "4"), ("b.jfr", "12")] {
        let arguments = ["-o", name, "--sites", "exact", "--", &pair.program, mib, "0", "end"];
        assert!(pair.trial.verb("record", &arguments).output().expect("plimsoll").status.success());
    }
    let output = pair.trial.verb("compare", &["a.jfr", "b.jfr"]).output().expect("plimsoll");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("A  ") && text.contains("\nB  "), "{text}");
    let (_, stacks) = text.split_once("\nlive: ").expect("stacks after the curves");
    assert!(stacks.contains("load_index  (startup)"), "{text}");
    for by in ["caller", "module"] {
        let output = pair.trial.verb("diff", &["a.jfr", "b.jfr", "--by", by]).output().expect("plimsoll");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("compared stack by stack: use --by site"), "{by}: {error}");
    }
    let output = pair.trial.verb("compare", &["a.jfr", "b.jfr", "--format", "json"]).output().expect("plimsoll");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["schema"], "plimsoll.recording-diff/1");
    // The stacks of the text.
    let sites = &found["sites"];
    assert_eq!((&sites["schema"], &found["no_sites"]), (&"plimsoll.profile-diff/2".into(), &Value::Null));
    let frames = sites["frames"].as_array().expect("frames");
    let is_named = |site: &Value| {
        let stack = site["stack"].as_array().expect("a stack").iter();
        let mut of = stack.map(|index| &frames[index.as_u64().expect("an index") as usize]["function"]);
        of.any(|function| function == "load_index")
    };
    assert!(sites["sites"].as_array().expect("sites").iter().any(is_named), "{sites:#}");
}
