//! The table of `plimsoll try --pid`: text, JSON, Markdown and HTML of one known trial.

mod text_of;

use plimsoll_report::{live_json, live_pages, live_text};
use plimsoll_trial::live::{LiveTrial, Setting, Tried};
use text_of::text_of;

fn trial() -> LiveTrial {
    let step = |label: &str, before: u64, after: u64, idle: u64| Tried {
        label: label.into(),
        before: Some(before << 20),
        after: Some(after << 20),
        idle: Some(idle << 20),
        ..Tried::default()
    };
    LiveTrial {
        pid: 4711,
        command: "java -jar shop.jar".into(),
        restart: "cd /srv && plimsoll try -- /usr/bin/java -jar shop.jar".into(),
        idle_seconds: 12.0,
        steps: vec![
            step("nothing", 500, 500, 501),
            Tried {
                commands: vec!["jcmd 4711 System.trim_native_heap".into()],
                predicted: Some((240 << 20, 260 << 20)),
                lines: vec![("glibc-retained".into(), "glibc, free but kept".into(), -249 << 20)],
                ..step("trim", 501, 250, 252)
            },
            Tried {
                set_back: vec![Setting { name: "MaxHeapFreeRatio".into(), value: "70".into() }],
                ..step("MaxHeapFreeRatio=30, gc", 252, 240, 241)
            },
            Tried { label: "A\x1b[2J|<b>".into(), missing: Some("it isn't a JVM".into()), ..Tried::default() },
        ],
        notes: vec!["a sentence".into()],
        ..LiveTrial::default()
    }
}

#[test]
fn a_person_reads_what_each_step_did() {
    let found = text_of(|out| live_text::write(out, &trial()));
    let expected = "\
java -jar shop.jar
process 4711   RSS 12 s after each step

step                                   RSS before      at once after idling   difference  expected
nothing                                   500 MiB      500 MiB      501 MiB    +1.00 MiB
trim                                      501 MiB      250 MiB      252 MiB     −249 MiB  −240 MiB to −260 MiB
  glibc, free but kept −249 MiB
MaxHeapFreeRatio=30, gc                   252 MiB      240 MiB      241 MiB    −11.0 MiB
  set back: MaxHeapFreeRatio=70
A\\u{1b}[2J|<b>
  not done: it isn't a JVM
note: a sentence

most: trim: 249 MiB (50 % of RSS). While nothing was done, RSS moved by +1.00 MiB. RSS may grow again, because the step was done once. A lasting saving needs a restart: cd /srv && plimsoll try -- /usr/bin/java -jar shop.jar
";
    assert_eq!(found, expected, "\n{found}");
}

#[test]
fn scripts_read_the_same() {
    let found: serde_json::Value = serde_json::from_str(&text_of(|out| live_json::write(out, &trial()))).expect("JSON");
    let trim = &found["steps"][1];
    assert_eq!(
        (&found["schema"], &trim["difference_bytes"]),
        (&"plimsoll.live-trial/1".into(), &(-249i64 << 20).into())
    );
    assert_eq!(trim["predicted_saving"]["least_bytes"], 240 << 20);
    assert_eq!(
        trim["lines"][0],
        serde_json::json!({"id": "glibc-retained", "name": "glibc, free but kept", "change_bytes": -249i64 << 20})
    );
    assert_eq!(found["steps"][2]["set_back"][0]["value"], "70");
    assert_eq!(
        (&found["steps"][3]["missing"], &found["steps"][3]["idle_bytes"]),
        (&"it isn't a JVM".into(), &serde_json::Value::Null)
    );
    assert_eq!((&found["most"]["kind"], &found["most"]["step"]), (&"saves".into(), &"trim".into()));
}

#[test]
fn a_ticket_gets_the_table_without_markup_of_others() {
    let found = text_of(|out| live_pages::markdown(out, &trial()));
    assert!(
        found.contains(
            "| trim | 501 MiB | 250 MiB | 252 MiB | −249 MiB | −240 MiB to −260 MiB | glibc, free but kept −249 MiB |"
        ),
        "{found}"
    );
    assert!(found.contains("| A\\\\u{1b}\\[2J\\|\\<b\\> | - | - | - | - |  | not done: it isn't a JVM |"), "{found}");
    let found = text_of(|out| live_pages::html(out, &trial()));
    let (_, xml) = found.split_once("<!DOCTYPE html>\n").expect("a type");
    let parsed = roxmltree::Document::parse(xml).unwrap_or_else(|error| panic!("{error}\n{found}"));
    let named = |name: &'static str| {
        parsed.descendants().filter(move |node| node.has_tag_name(("http://www.w3.org/1999/xhtml", name)))
    };
    assert_eq!((named("tr").count(), named("script").count(), named("b").count()), (5, 0, 0));
    assert!(!found.contains('\u{1b}'));
}

/// Without a step that saves more than RSS moved by itself, and after an interrupt.
#[test]
fn nothing_is_claimed_for_a_step_that_shows_nothing() {
    let mut trial = trial();
    trial.interrupted = true;
    trial.steps.remove(1);
    trial.steps[0].idle = Some(460 << 20);
    let found = text_of(|out| live_text::write(out, &trial));
    assert!(found.contains("process 4711   RSS 12 s after each step   interrupted\n"), "{found}");
    assert!(found.ends_with("no step saved more than 1 % of RSS and more than RSS moved by itself. While nothing was done, RSS moved by −40.0 MiB.\n"), "{found}");
    assert!(text_of(|out| live_text::write(out, &LiveTrial::default())).ends_with("\nno step was done\n"));
}
