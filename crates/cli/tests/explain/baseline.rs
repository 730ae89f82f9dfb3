//! `--baseline`: two readings show what one cannot.

use std::path::Path;
use std::process::Command;

use crate::child::wait_until;
use crate::fixture::{Fixture, PLIMSOLL, compiled, explain, fresh, run, skip};

const MIB: u64 = 1 << 20;

fn saved(fixture: &Fixture, file: &Path) {
    let output = run(fixture.pid(), &["--format", "json"]);
    assert!(output.status.success());
    std::fs::write(file, output.stdout).unwrap();
}

#[test]
fn growth_since_an_earlier_reading_is_reported_line_by_line() {
    let folder = fresh("grows");
    let [go, done, before] = ["go", "done", "before.json"].map(|name| folder.join(name));
    let fixture = Fixture::c("grows", &[go.to_str().unwrap(), done.to_str().unwrap()]);
    saved(&fixture, &before);
    std::fs::write(&go, "").unwrap();
    wait_until("the growth", || done.exists());
    let arguments = ["--baseline", before.to_str().unwrap()];
    let explained = explain(fixture.pid(), &arguments);
    let baseline = &explained.0["baseline"];
    let truth = fixture.truth("growth");
    let live = baseline["lines"].as_array().unwrap().iter().find(|line| line["id"] == "glibc-live").unwrap();
    for grown in [&live["change_bytes"], &baseline["rss_change_bytes"]] {
        let grown = u64::try_from(grown.as_i64().unwrap()).unwrap();
        assert!(grown.abs_diff(truth) * 100 <= truth * 3, "{grown} {truth}: {baseline:#}");
    }
    // Two readings make the verdict: it names the least growth.
    let verdict = explained.verdict("growth");
    let claimed = verdict["bytes"].as_u64().unwrap();
    assert!(claimed <= truth * 103 / 100 && claimed * 100 >= truth * 97, "{claimed} {truth}: {verdict:#}");
    assert!(verdict["summary"].as_str().unwrap().starts_with("glibc, live grew by"), "{verdict:#}");
    assert!(!explained.verdicts().contains(&"healthy"));
    let text = String::from_utf8(run(fixture.pid(), &arguments).stdout).unwrap();
    let line = text.lines().find(|line| line.trim_start().starts_with("glibc, live")).unwrap();
    let (_, change) = line.split_once('+').expect(line);
    let mib: f64 = change.split(' ').next().unwrap().parse().unwrap();
    assert!((mib * MIB as f64 - truth as f64).abs() <= truth as f64 * 0.03, "{text}");
    assert!(text.lines().any(|line| line.contains("RSS since the baseline")), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Without malloc's records, the same memory was on another line: that isn't growth.
#[test]
fn a_reading_that_lacked_a_source_is_no_baseline() {
    let fixture = Fixture::c("healthy", &["32"]);
    let folder = fresh("lacking");
    let [whole, lacking] = ["whole", "lacking"].map(|name| folder.join(name));
    saved(&fixture, &whole);
    let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(&whole).unwrap()).unwrap();
    let lines = document["lines"].as_array_mut().unwrap();
    let live = lines.iter_mut().find(|line| line["id"] == "glibc-live").expect("32 MiB of blocks");
    live["id"] = "other-anonymous".into();
    for (gaps, is_compared) in [
        (serde_json::json!([]), true),
        (serde_json::json!([{ "source": "symbols" }]), true),
        (serde_json::json!([{ "source": "glibc" }]), false),
    ] {
        document["gaps"] = gaps;
        std::fs::write(&lacking, document.to_string()).unwrap();
        let explained = explain(fixture.pid(), &["--baseline", lacking.to_str().unwrap()]);
        assert_eq!(explained.0["baseline"].is_object(), is_compared, "{:#}", explained.0);
        assert_eq!(explained.verdicts().contains(&"growth"), is_compared, "{:#}", explained.0["verdicts"]);
        let gaps = explained.0["gaps"].to_string();
        assert_eq!(gaps.contains("can't be compared: glibc was not read in full then"), !is_compared, "{gaps}");
        // This reading itself lacks nothing: it may be a baseline.
        let sources: Vec<_> = explained.0["gaps"].as_array().unwrap().iter().map(|gap| &gap["source"]).collect();
        assert!(
            is_compared || (sources.contains(&&"baseline".into()) && !sources.contains(&&"glibc".into())),
            "{gaps}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_unclear_prints_for_live_blocks_names_the_call_that_grows() {
    what_unclear_prints_names_the_call_that_grows("glibc", None);
}

#[test]
#[ignore = "full: the same over other allocators"]
#[cfg(target_arch = "x86_64")]
fn what_unclear_prints_names_the_call_that_grows_over_each_allocator() {
    for (library, allocator) in
        [("libjemalloc.so.2", "jemalloc"), ("libtcmalloc.so.4", "tcmalloc"), ("libmimalloc.so.2.0", "mimalloc")]
    {
        let path = Path::new("/usr/lib/x86_64-linux-gnu").join(library);
        match path.exists() {
            true => what_unclear_prints_names_the_call_that_grows(allocator, Some(&path)),
            false => skip("what unclear prints", &format!("{library} is not installed")),
        }
    }
}

/// The commands that `unclear` prints, step by step: the program grows where they say to wait.
#[cfg(target_arch = "x86_64")]
fn what_unclear_prints_names_the_call_that_grows(allocator: &str, preloaded: Option<&Path>) {
    let folder = fresh(&format!("settles-{allocator}"));
    let [go, done] = ["go", "done"].map(|name| folder.join(name));
    let mut grows = Command::new(compiled("grows", &[]));
    grows.envs(preloaded.map(|library| ("LD_PRELOAD", library)));
    let fixture = Fixture::run(grows.args([&go, &done]).arg("64"));
    let explained = explain(fixture.pid(), &[]);
    let unclear = explained.verdict("unclear");
    assert!(!explained.verdicts().contains(&"healthy"));
    let named = format!("is live blocks of {allocator}'s malloc");
    assert!(unclear["summary"].as_str().unwrap().ends_with(&named), "{unclear:#}");
    let programs = Path::new(PLIMSOLL).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut printed = String::new();
    let how = unclear["remedies"][0]["how"].as_str().unwrap();
    assert_eq!(how.matches("sleep 600").count(), 1, "{how}");
    for step in how.split(" && ") {
        if step == "sleep 600" {
            std::fs::write(&go, "").unwrap();
            wait_until("the growth", || done.exists());
            continue;
        }
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", step]).env("PATH", &path).current_dir(&folder).output().unwrap();
        assert!(output.status.success(), "{step}: {}", String::from_utf8_lossy(&output.stderr));
        printed = String::from_utf8(output.stdout).unwrap();
    }
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with('+'));
    let grown = lines.next().expect("a site grew").trim_start().trim_start_matches('+');
    let mib: f64 = grown.split(' ').next().unwrap().parse().expect(&printed);
    let truth = fixture.truth("growth") as f64 / MIB as f64;
    assert!(grown.contains(" MiB") && (mib - truth).abs() <= truth * 0.1, "{printed}");
    assert!(lines.next().is_some_and(|frame| frame.trim_start().starts_with("take")), "{printed}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn only_an_earlier_reading_of_this_process_is_a_baseline() {
    let [one, other] = [Fixture::c("healthy", &["8"]), Fixture::c("healthy", &["8"])];
    let folder = fresh("baselines");
    let [good, foreign, old, none] = ["good", "foreign", "old", "none"].map(|name| folder.join(name));
    let [stepped, unmarked, older, container, exec] =
        ["stepped", "unmarked", "older", "container", "exec"].map(|name| folder.join(name));
    let titled = folder.join("titled");
    saved(&one, &good);
    saved(&other, &foreign);
    let text = std::fs::read_to_string(&good).unwrap();
    let changed = |file: &Path, change: &dyn Fn(&mut serde_json::Value)| {
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        change(&mut document);
        std::fs::write(file, document.to_string()).unwrap();
    };
    // As an earlier version wrote it.
    let unmark = |document: &mut serde_json::Value| {
        let process = document["process"].as_object_mut().unwrap();
        assert!(process.remove("start_ticks").is_some() && process.remove("boot_id").is_some(), "{process:?}");
    };
    const LONG_AGO: &str = "2020-02-29T00:00:00.000Z";
    changed(&old, &|document| {
        unmark(document);
        document["process"].as_object_mut().unwrap().remove("uptime_seconds").unwrap();
        document["time"] = LONG_AGO.into();
    });
    changed(&stepped, &|document| document["time"] = LONG_AGO.into());
    changed(&unmarked, &unmark);
    changed(&older, &|document| {
        unmark(document);
        document["time"] = LONG_AGO.into();
    });
    // PID 1 of a container that started ten seconds later.
    changed(&container, &|document| {
        let ticks = &mut document["process"]["start_ticks"];
        *ticks = (ticks.as_u64().unwrap() + 1000).into();
    });
    changed(&exec, &|document| {
        (document["process"]["executable"], document["process"]["command"]) =
            ("/bin/sh".into(), "sh -c healthy".into());
    });
    let unreadable = folder.join("missing");
    std::fs::write(&none, "{\"schema\":\"plimsoll.report/1\"}").unwrap();
    changed(&titled, &|document| document["process"]["command"] = "healthy: idle".into());
    for file in [&good, &stepped, &unmarked, &titled] {
        let output = run(one.pid(), &["--baseline", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}: {output:?}", file.display());
        let text = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("RSS since the baseline"), "{text}");
        assert_eq!(text.contains("the command line was another one at the baseline"), file == &titled, "{text}");
    }
    for (file, words) in [
        (&foreign, "describes another process"),
        (&old, "describes another process"),
        (&older, "or the machine's clock was set"),
        (&container, "describes another process ("),
        (&exec, "while it ran another program (sh -c healthy)"),
        (&none, "explain"),
        (&unreadable, "can't be read"),
    ] {
        let output = run(one.pid(), &["--baseline", file.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{}: {error}", file.display());
        assert!(error.contains(words) && error.trim_end().lines().count() == 1, "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
