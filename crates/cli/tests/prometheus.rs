//! Metrics of a tracked program, checked by Prometheus's own tool, and the alert rules in contrib/prometheus.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("prometheus-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The samples of a family, by their labels.
fn samples<'t>(text: &'t str, family: &str) -> BTreeMap<&'t str, f64> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
    lines
        .filter_map(|line| line.rsplit_once("} "))
        .map(|(labels, value)| (labels, value.parse().expect("a number")))
        .collect()
}

/// A tracked shell, whose own name and whose name in the metrics try to break out of the format.
#[test]
fn promtool_accepts_the_metrics_of_a_tracked_process() {
    let folder = folder("metrics");
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
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(&file).expect("a file"))
        .output()
        .expect("promtool: .ci/setup installs it");
    assert!(checked.status.success() && checked.stdout.is_empty() && checked.stderr.is_empty(), "{checked:?}\n{text}");
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
    let writer = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/src/prometheus.rs"));
    let writer = writer.expect("the writer");
    let text = std::fs::read_to_string(rules.join("rules.yml")).expect("rules");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let named: Vec<&str> = words.filter(|word| word.starts_with("plimsoll_")).collect();
    assert!(named.len() >= 5, "{named:?}");
    assert!(named.iter().all(|name| writer.contains(&format!("\"{name}\""))), "{named:?}");
}
