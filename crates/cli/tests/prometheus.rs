//! Metrics of a tracked program, checked by Prometheus's own tool; `serve`, scraped by Prometheus; the alert rules and
//! the dashboard in contrib/.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "only the limit is needed here")]
#[path = "subjects/cgroup.rs"]
mod cgroup;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[path = "harness/metrics.rs"]
mod metrics;

use child::{Running, wait_for};
use metrics::samples;

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// An empty folder for one test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("prometheus-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Fails if promtool has anything to say about the text, which the file gets.
fn accepts(text: &str, file: &Path) {
    std::fs::write(file, text).expect("a file");
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(file).expect("a file"))
        .output()
        .expect("promtool: .ci/setup installs it");
    assert!(checked.status.success() && checked.stdout.is_empty() && checked.stderr.is_empty(), "{checked:?}\n{text}");
}

/// A tracked shell, whose own name and whose name in the metrics try to break out of the format.
#[test]
fn promtool_accepts_the_metrics_of_a_tracked_process() {
    let folder = scratch("metrics");
    let mut child = Command::new(PLIMSOLL)
        .args(["run", "--dir"])
        .arg(folder.join("segments"))
        .args(["--", "sh", "-c", "echo up; read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("plimsoll");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n");
    let file = folder.join("shop.prom");
    let hostile = "sh\"op\\\n# TYPE forged counter\nforged 1";
    let pid = child.id().to_string();
    let output = Command::new(PLIMSOLL)
        .args(["explain", &pid, "--format", "prometheus", "--target", hostile, "--limit", "1g", "-o"])
        .arg(&file)
        .output()
        .expect("plimsoll");
    assert!(output.status.success(), "{output:?}");
    child.stdin.take().expect("a pipe").write_all(b"end\n").expect("the shell waits");
    child.wait().expect("a child");

    let text = std::fs::read_to_string(&file).expect("a file");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
    accepts(&text, &file);
    let resident = samples(&text, "plimsoll_resident_bytes");
    assert!(resident.len() > 3 && resident.values().sum::<f64>() > 100_000.0, "{text}");
    assert_eq!(samples(&text, "plimsoll_limit_bytes").into_values().collect::<Vec<_>>(), [(1u64 << 30) as f64]);
    assert!(samples(&text, "plimsoll_native_live_bytes").values().sum::<f64>() > 0.0, "{text}");
    let verdicts = samples(&text, "plimsoll_verdict");
    assert!(verdicts.values().filter(|value| **value == 1.0).count() >= 1, "{text}");
    assert!(verdicts.iter().all(|(labels, value)| labels.ends_with("severity=\"none\"") == (*value == 0.0)), "{text}");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 80, "{series} series\n{text}");
    // A restart continues the same series: the PID is in one line.
    let with_pid = text.lines().filter(|line| line.contains(&format!("pid=\"{pid}\""))).count();
    assert_eq!(with_pid, 1);
    assert_eq!(text.matches("pid=").count(), 1);
}

#[test]
fn the_alerts_fire_for_a_leak_and_not_for_a_healthy_process() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus");
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "test.yml"]] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(&rules)
            .output()
            .expect("promtool: .ci/setup installs it");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    // Each metric that a rule names is one that plimsoll writes.
    let writer = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/src/metrics.rs"));
    let writer = writer.expect("the table of metrics");
    let text = std::fs::read_to_string(rules.join("rules.yml")).expect("rules");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let named: Vec<&str> = words.filter(|word| word.starts_with("plimsoll_")).collect();
    assert!(named.len() >= 5, "{named:?}");
    assert!(named.iter().all(|name| writer.contains(&format!("\"{name}\""))), "{named:?}");
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// The queries of all panels, with their variables replaced.
fn queries_of_the_dashboard() -> Vec<(String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana/plimsoll.json");
    let text = std::fs::read_to_string(file).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries = panels.iter().flat_map(|panel| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().expect("targets").iter();
        targets.map(move |target| (title.clone(), target["expr"].as_str().expect("a query").to_owned()))
    });
    queries.map(|(title, query)| (title, query.replace("$instance", ".*").replace("$target", ".*"))).collect()
}

/// The real Prometheus scrapes `plimsoll serve` with a token, and answers every query of the dashboard.
#[test]
fn prometheus_scrapes_serve_and_answers_the_dashboard() {
    let folder = scratch("scrape");
    let mut tracked = Command::new(PLIMSOLL);
    tracked.args(["run", "--dir"]).arg(folder.join("segments")).args(["--", "sh", "-c", "echo up; read end"]);
    let mut tracked = Running(tracked.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("plimsoll"));
    let mut line = String::new();
    BufReader::new(tracked.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n");
    let token = folder.join("token");
    std::fs::write(&token, "correct-horse-battery\n").expect("a file");
    let serve = Command::new(PLIMSOLL)
        .args(["serve", "--listen", "127.0.0.1:0", "--token-file"])
        .arg(&token)
        .arg(tracked.0.id().to_string())
        .stderr(Stdio::piped())
        .spawn()
        .expect("plimsoll");
    let mut serve = Running(serve);
    let mut printed = String::new();
    // The pipe stays open, or the server could not write to its stderr any more.
    let mut stderr = BufReader::new(serve.0.stderr.take().expect("a pipe"));
    stderr.read_line(&mut printed).expect("a line");
    let address =
        printed.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();

    // What it serves is what promtool accepts, its own figures included.
    let metrics = wait_for("the first reading", || {
        let mut stream = TcpStream::connect(&address).ok()?;
        let request = "GET /metrics HTTP/1.0\r\nAuthorization: Bearer correct-horse-battery\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        body.contains("plimsoll_target_info{").then(|| body.to_owned())
    });
    assert!(metrics.contains("plimsoll_serve_round_seconds ") && metrics.contains("plimsoll_reading_age_seconds{"));
    accepts(&metrics, &folder.join("served.prom"));

    let config = folder.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: plimsoll\n  authorization: {{credentials_file: {}}}\n  \
         static_configs: [{{targets: ['{address}']}}]\n",
        token.display()
    );
    std::fs::write(&config, text).expect("a file");
    let own = format!("127.0.0.1:{}", free_port());
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={own}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus: .ci/setup full installs it");
    let _prometheus = Running(prometheus);
    let server = format!("http://{own}");
    let evaluate = |query: &str| {
        let output = Command::new("promtool").args(["query", "instant", &server, query]).output().expect("promtool");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned(), output.stderr)
    };
    wait_for("a scrape", || evaluate("up{job=\"plimsoll\"}").1.contains("=> 1 @").then_some(()));
    // Two scrapes have the same sum as the ledger: all series of a target arrive.
    wait_for("the lines", || {
        evaluate("sum(plimsoll_resident_bytes{target=\"sh\"}) > 100000").1.contains("=>").then_some(())
    });
    let queries = queries_of_the_dashboard();
    assert!(queries.len() >= 10, "{queries:?}");
    for (title, query) in queries {
        // A healthy process without a limit has no verdict, no growth and no limit.
        let may_be_empty = ["Verdicts that stand", "Growth in an hour", "Of the limit"].contains(&title.as_str());
        wait_for(&format!("{title}: {query}"), || {
            let (is_fine, answer, error) = evaluate(&query);
            // Prometheus has answered queries above, so an error here is this query's own.
            assert!(is_fine, "{title}: {query}: {}", String::from_utf8_lossy(&error));
            (may_be_empty || answer.contains("=>")).then_some(())
        });
    }
    tracked.0.stdin.take().expect("a pipe").write_all(b"end\n").expect("the shell waits");
    tracked.0.wait().expect("a child");
    // A target that has ended is dropped: its series go stale, and the server's own stay.
    wait_for("the end of the series", || {
        (evaluate("plimsoll_target_info").1.trim().is_empty() && evaluate("plimsoll_targets").1.contains("=> 0 @"))
            .then_some(())
    });
}

/// A process that leaks towards its limit and one that works in constant memory, each in a cgroup of its own, as a
/// service has one. Alerts about the first fire in a live Prometheus, with three minutes for each hour of the rules; no
/// alert about the second ever fires, nor about its start.
#[test]
#[ignore = "full: three minutes until growth is certain"]
fn alerts_fire_on_a_leaking_process_and_not_on_a_healthy_one() {
    let folder = scratch("alerts");
    let groups = ["leaking", "healthy"].map(|name| {
        let group = cgroup::Cgroup::make(&format!("alerts-{name}"));
        group.inspect(|group| group.limit(2 << 30))
    });
    let [Ok(leaking), Ok(healthy)] = &groups else {
        return println!("prometheus alerts: skipped, no cgroup can be made");
    };
    let source = folder.join("worker.c");
    let text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                int main(int argc, char **argv) { int leaks = !strcmp(argv[1], \"leaks\"); static char *kept[64];\n\
                puts(\"up\"); fflush(stdout);\n\
                for (unsigned i = 0;; i++) { char *p = malloc(100000); memset(p, 1, 100000);\n\
                if (!leaks) free(kept[i % 64]); kept[i % 64] = p; usleep(50000); } }\n";
    std::fs::write(&source, text).expect("a file");
    let worker = |group: &cgroup::Cgroup, name: &str| {
        let program = folder.join(name);
        let built = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status().expect("gcc");
        assert!(built.success());
        let mut run = Command::new(PLIMSOLL);
        run.args(["run", "--report", "none", "--dir"]).arg(folder.join("segments")).arg("--").arg(program);
        let mut run = group.wrap(run.arg(if name == "leaking" { "leaks" } else { "works" }));
        let mut child = run.stdout(Stdio::piped()).spawn().expect("plimsoll");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        Running(child)
    };
    let workers = [worker(leaking, "leaking"), worker(healthy, "healthy")];
    let pids = workers.each_ref().map(|of| of.0.id().to_string());
    let serve = Command::new(PLIMSOLL)
        .args(["serve", "--listen", "127.0.0.1:0", "--interval", "2s"])
        .args(&pids)
        .stderr(Stdio::piped())
        .spawn();
    let mut serve = Running(serve.expect("plimsoll"));
    let mut stderr = BufReader::new(serve.0.stderr.take().expect("a pipe"));
    let mut printed = String::new();
    stderr.read_line(&mut printed).expect("a line");
    let address =
        printed.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));

    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus/rules.yml");
    let rules = std::fs::read_to_string(contrib).expect("rules");
    // Three minutes for an hour: a busy machine reads a process every few seconds.
    let mut short = rules;
    for (long, seconds) in [("[1h]", "[180s]"), ("[15m]", "[45s]"), ("for: 30m", "for: 90s"), ("for: 15m", "for: 45s")]
    {
        assert!(short.contains(long), "{short}");
        short = short.replace(long, seconds);
    }
    short = short.replace("for: 1h", "for: 180s");
    std::fs::write(folder.join("rules.yml"), short).expect("a file");
    let config = folder.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 2s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs:\n\
         - job_name: plimsoll\n  static_configs: [{{targets: ['{address}']}}]\n"
    );
    std::fs::write(&config, text).expect("a file");
    let own = format!("127.0.0.1:{}", free_port());
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={own}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus: .ci/setup full installs it");
    let _prometheus = Running(prometheus);
    let server = format!("http://{own}");
    let evaluate = |query: &str| {
        let output = Command::new("promtool").args(["query", "instant", &server, query]).output().expect("promtool");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let firing =
        |target: &str, more: &str| evaluate(&format!("ALERTS{{alertstate=\"firing\",target=\"{target}\"{more}}}"));
    let fires = |more: &str| firing("leaking", more).contains("=> 1 @").then_some(());
    wait_for("the limit is near at this growth", || fires(",alertname=\"PlimsollOomSoon\""));
    wait_for("the verdict growth", || fires(",alertname=\"PlimsollVerdict\",id=\"growth\""));
    // plimsoll has read the other process for as long, and its figures are there.
    let seen = evaluate("count_over_time(plimsoll_working_set_bytes{target=\"healthy\"}[10m]) > 20");
    assert!(seen.contains("=>"), "{seen}");
    let never = evaluate("count_over_time(ALERTS{target=\"healthy\",alertstate=\"firing\"}[10m])");
    assert!(never.trim().is_empty(), "{never}");
}

/// 200 processes for ten minutes, scraped every 15 s: at most 2 % of a core in the second half, and memory that stays.
#[test]
#[ignore = "full: ten minutes"]
fn two_hundred_targets_cost_little() {
    const TARGETS: usize = 200;
    let targets: Vec<Running> = (0..TARGETS)
        .map(|_| {
            Running(Command::new("python3").args(["-c", "import time; time.sleep(3600)"]).spawn().expect("python3"))
        })
        .collect();
    let pids: Vec<String> = targets.iter().map(|of| of.0.id().to_string()).collect();
    // Each is python by now, also where `python3` is a script that starts it.
    wait_for("200 Pythons", || {
        let name = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        pids.iter().all(|pid| name(pid).starts_with("python")).then_some(())
    });
    let mut serve = Running(
        Command::new(PLIMSOLL)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(&pids)
            .stderr(Stdio::piped())
            .spawn()
            .expect("plimsoll"),
    );
    let mut stderr = BufReader::new(serve.0.stderr.take().expect("a pipe"));
    let mut printed = String::new();
    stderr.read_line(&mut printed).expect("a line");
    let address =
        printed.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    let scrape = || {
        let mut stream = TcpStream::connect(&address).expect("a connection");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        text
    };
    let figure = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name}: {text:.2000}"))
    };
    let of =
        |text: &str| (figure(text, "plimsoll_serve_cpu_seconds_total"), figure(text, "plimsoll_serve_resident_bytes"));
    wait_for("all targets", || (figure(&scrape(), "plimsoll_targets") == TARGETS as f64).then_some(()));
    let began = Instant::now();
    let (mut half, mut age) = (None, 0.0f64);
    let first = of(&scrape());
    let last = loop {
        std::thread::sleep(Duration::from_secs(15));
        let text = scrape();
        let known = of(&text);
        let ages = samples(&text, "plimsoll_reading_age_seconds");
        assert_eq!(ages.len(), TARGETS);
        age = ages.into_values().fold(age, f64::max);
        if began.elapsed() >= Duration::from_secs(300) && half.is_none() {
            half = Some((Instant::now(), known));
        }
        if began.elapsed() >= Duration::from_secs(600) {
            break known;
        }
    };
    let (at, half) = half.expect("five minutes");
    let percent = |cpu: f64, seconds: f64| cpu * 100.0 / seconds;
    let all = percent(last.0 - first.0, began.elapsed().as_secs_f64());
    let second = percent(last.0 - half.0, at.elapsed().as_secs_f64());
    println!(
        "{TARGETS} targets: {all:.2} % of a core in ten minutes, {second:.2} % in the last five; RSS {:.1}, {:.1}, {:.1} MiB; \
         figures at most {age:.0} s old",
        first.1 / 1048576.0,
        half.1 / 1048576.0,
        last.1 / 1048576.0
    );
    // The bar is that of an optimised program; a debug build takes up to three times as long.
    let most = if cfg!(debug_assertions) { 6.0 } else { 2.0 };
    assert!(second <= most, "{second} % of a core");
    assert!(last.1 <= half.1 + 1048576.0, "RSS grows: {} then {}", half.1, last.1);
}
