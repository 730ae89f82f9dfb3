//! Table 2: the arena table, made by `plimsoll try` itself: Lettuce with twelve sets of event loops, Netty, the
//! OpenTelemetry agent, under a memory cgroup.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Session, Table, figure, free_port, measured, predictions, ran};
use crate::bench::{java, words};
use crate::stage::{Result, any_jdk, folder, jars, must, repository};

const ROUNDS: u32 = 5;
const ROWS: [&str; 7] = ["arenas=4", "arenas=2", "jemalloc", "jemalloc,background", "tcmalloc", "mimalloc", "trim"];
/// Sets of event loops.
const SETS: &str = "12";

const COLUMNS: [(&str, &str); 7] = [
    ("peak_bytes", "RSS peak, MiB"),
    ("steady_bytes", "under load, MiB"),
    ("idle_bytes", "after idling, MiB"),
    ("p50_milliseconds", "p50, ms"),
    ("p99_milliseconds", "p99, ms"),
    ("throughput_per_second", "requests/s"),
    ("cpu_seconds", "CPU, s"),
];

/// A Redis server of this table alone, which ends with it.
struct Redis(Child, u16);

impl Redis {
    fn start() -> Result<Redis> {
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).stdout(Stdio::null());
        let redis = Redis(command.spawn()?, port);
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if begin.elapsed() > Duration::from_secs(30) {
                return Err("redis-server doesn't answer".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn table(session: &Session) -> Result<Table> {
    let home = any_jdk()?;
    let (redis, port) = (Redis::start()?, free_port()?);
    let class_path = classes(&home)?;
    let agent = agent()?;
    let service = |sets: &str| {
        let all = [&agent, "-Dotel.traces.exporter=none", "-Dotel.metrics.exporter=none", "-Dotel.logs.exporter=none"];
        let rest = ["-Xmx256m", "-cp", &class_path, "Service", &port.to_string(), &redis.1.to_string(), sets];
        [vec![java(&home).display().to_string()], words(&all), words(&rest)].concat()
    };
    let url = format!("http://127.0.0.1:{port}/work");
    let rounds = session.rounds(ROUNDS).to_string();
    let mut arguments = words(&[
        "try",
        "--rounds",
        &rounds,
        "--limit",
        "1g",
        "--ready-within",
        "180",
        "--ready",
        &format!("url:{url}"),
        "--url",
        &url,
    ]);
    arguments.extend(words(&["--rate", "100", "--connections", "16", "--warm-up", "5", "--for", "15", "--idle", "12"]));
    let shared = service("1").join(" ");
    for row in ROWS {
        arguments.extend(words(&["--with", row]));
    }
    arguments.extend(["--with".to_owned(), format!("cmd:{shared}"), "--".to_owned()]);
    arguments.extend(service(SETS));
    let (document, typed) = measured(&arguments)?;
    let mut table = Table::default();
    table.line(&format!(
        "bench/published/service/Service.java on HotSpot, `-Xmx256m`: an HTTP server that writes and reads values of 100 KB in Redis by {SETS} Lettuce clients with a ClientResources each, under the OpenTelemetry agent, in a cgroup of 1 GiB. \
         100 requests/s over 16 connections, 5 s of warm-up, 15 s measured, then 12 s without load; {rounds} alternating rounds. The difference is that after idling, with its 95 % interval; expected is what `explain` predicted in the first plain run."
    ));
    let heads = std::iter::once("row").chain(COLUMNS.iter().map(|(_, head)| *head));
    let heads: Vec<&str> = heads.chain(["difference, MiB", "expected, MiB", "ran"]).collect();
    table.head(&heads);
    for row in document["rows"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default();
        let shown = if name == shared { "one ClientResources" } else { name };
        if let Some(reason) = row["missing"].as_str() {
            table.row(&[vec![shown.to_owned(), format!("not run: {reason}")], vec![String::new(); 9]].concat());
            continue;
        }
        let cells =
            COLUMNS.map(|(id, _)| figure(&document, name, id).map_or("-".to_owned(), |figure| cell(id, figure)));
        let difference =
            figure(&document, name, "idle_bytes").map_or(String::new(), |figure| difference(&figure["difference"]));
        let last = [difference, expected(row), ran(&document, name)];
        table.row(&[&[shown.to_owned()], cells.as_slice(), &last].concat());
    }
    if let Some(sentence) = predictions::sentence(&document) {
        table.line(&format!("\n{sentence}"));
    }
    table.line(&format!(
        "\n{}",
        document["best"]["text"].as_str().unwrap_or_default().replace(&shared, "one ClientResources")
    ));
    table.command(&typed);
    table.summary = summary(&document, &shared);
    Ok(table)
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

fn cell(id: &str, figure: &Value) -> String {
    let median = figure["median"].as_f64().unwrap_or(f64::NAN);
    if id.ends_with("_bytes") { format!("{:.0}", mib(median)) } else { format!("{median:.1}") }
}

fn difference(difference: &Value) -> String {
    let of = |key: &str| difference[key].as_f64().map(|bytes| format!("{:+.0}", mib(bytes)));
    match (of("mean"), of("low"), of("high")) {
        (Some(mean), Some(low), Some(high)) => format!("{mean} ({low} to {high})"),
        _ => String::new(),
    }
}

fn expected(row: &Value) -> String {
    let of = |key: &str| row["predicted_saving"][key].as_f64().map(|bytes| format!("{:.0}", -mib(bytes)));
    match (of("least_bytes"), of("most_bytes")) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => String::new(),
    }
}

fn summary(document: &Value, shared: &str) -> String {
    let plain = figure(document, "plain", "idle_bytes").and_then(|figure| figure["median"].as_f64());
    let plain = plain.map_or("not measured".to_owned(), |bytes| format!("{:.0} MiB", mib(bytes)));
    let (mut changes, mut same, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let named = ROWS.iter().map(|row| (*row, format!("`{row}`")));
    for (row, shown) in named.chain([(shared, "one ClientResources".to_owned())]) {
        let difference = figure(document, row, "idle_bytes").map(|figure| &figure["difference"]);
        let bound = |key: &str| difference.and_then(|of| of[key].as_f64()).map(mib);
        match (bound("mean"), bound("low"), bound("high")) {
            (Some(mean), Some(low), Some(high)) if difference.is_some_and(|of| of["significant"] == true) => {
                changes.push(match mean < 0.0 {
                    true => format!("{shown} saves {:.0} MiB ({:.0} to {:.0})", -mean, -high, -low),
                    false => format!("{shown} takes {mean:.0} MiB more ({low:.0} to {high:.0})"),
                });
            }
            (Some(_), ..) => same.push(shown),
            _ => missing.push(shown),
        }
    }
    let mut all = vec![format!("RSS of plain after idling: {plain}; {} rounds", document["rounds"])];
    all.extend((!changes.is_empty()).then(|| changes.join(", ")));
    all.extend((!same.is_empty()).then(|| format!("No difference shows for {}", same.join(", "))));
    all.extend((!missing.is_empty()).then(|| format!("Not compared: {}", missing.join(", "))));
    all.join(". ") + "."
}

/// The jars of the incidents' subjects, of which the service needs a part.
fn subjects() -> Result<String> {
    let target = folder("bench/published")?.join("subjects");
    jars(&repository().join("fixtures/java/incidents/pom.xml"), &target)?;
    Ok(format!("{}/*", target.display()))
}

fn classes(home: &Path) -> Result<String> {
    let (jars, classes) = (subjects()?, folder("bench/published/service")?);
    let mut compiler = Command::new(home.join("bin/javac"));
    compiler.args(["-nowarn", "--release", "17", "-cp", &jars, "-d"]).arg(&classes);
    must(compiler.arg(repository().join("bench/published/service/Service.java")))?;
    Ok(format!("{}:{jars}", classes.display()))
}

fn agent() -> Result<String> {
    let folder = subjects()?;
    let folder = folder.trim_end_matches("/*");
    let mut files = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let agent = files.find(|path| path.to_string_lossy().contains("opentelemetry-javaagent"));
    Ok(format!("-javaagent:{}", agent.ok_or("no OpenTelemetry agent among the jars")?.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_missing_is_not_zero() {
        let row = |name: &str, figures: Value| serde_json::json!({ "name": name, "figures": figures });
        let of = |rows: Vec<Value>| summary(&serde_json::json!({ "rows": rows, "rounds": 3 }), "shared");
        let idle = |mean: i64, low: i64, high: i64, significant: bool| {
            let of = |mib: i64| mib << 20;
            let difference = serde_json::json!({
                "mean": of(mean), "low": of(low), "high": of(high), "significant": significant
            });
            serde_json::json!({ "idle_bytes": { "median": 300 << 20, "difference": difference } })
        };
        let all = of(vec![
            row("plain", serde_json::json!({ "idle_bytes": { "median": 300 << 20 } })),
            row("trim", idle(-5, -8, -2, true)),
            row("tcmalloc", idle(13, 8, 18, true)),
            row("jemalloc,background", idle(-9, -42, 24, false)),
        ]);
        assert_eq!(
            all,
            "RSS of plain after idling: 300 MiB; 3 rounds. `tcmalloc` takes 13 MiB more (8 to 18), `trim` saves 5 MiB (2 to 8). \
             No difference shows for `jemalloc,background`. Not compared: `arenas=4`, `arenas=2`, `jemalloc`, `mimalloc`, one ClientResources."
        );
        let none = of(vec![row("plain", serde_json::json!({}))]);
        assert!(
            none.starts_with("RSS of plain after idling: not measured; 3 rounds. Not compared: `arenas=4`, "),
            "{none}"
        );
    }
}
