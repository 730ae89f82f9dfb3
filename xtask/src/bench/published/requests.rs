//! Table 1: NMT in Native Image's table, on the JVM: a request makes 1,000 blocks of 1 KiB with Unsafe.

use serde_json::Value;

use super::{Session, Table, figure, free_port, measured, quarkus};
use crate::bench::{java, setup, words};
use crate::stage::{Result, jdk, plimsoll};

/// As in the article: 50 requests a second, at most 25 at once, for 5 s, 10 runs.
const ROUNDS: u32 = 10;
const LOAD: [&str; 8] = ["--rate", "50", "--connections", "25", "--warm-up", "10", "--for", "5"];
const VERSION: &str = "3.15.1";

const COLUMNS: [(&str, &str); 6] = [
    ("steady_bytes", "RSS, MiB"),
    ("ready_seconds", "start-up, ms"),
    ("mean_milliseconds", "mean, ms"),
    ("p50_milliseconds", "p50, ms"),
    ("p90_milliseconds", "p90, ms"),
    ("p99_milliseconds", "p99, ms"),
];

pub fn table(session: &Session) -> Result<Table> {
    let home = jdk(25).or_else(|| jdk(17)).ok_or("a JDK is needed")?;
    let jar = quarkus::server(VERSION)?;
    let port = free_port()?;
    let profiler = setup::async_profiler()?;
    let program = java(&home).display().to_string();
    let server = |flags: &[&str]| {
        let port = format!("-Dquarkus.http.port={port}");
        let own = ["-Xmx256m", &port, "-jar"].map(str::to_owned);
        [vec![program.clone()], words(flags), own.to_vec(), vec![jar.display().to_string()]].concat()
    };
    let tracked = |sites: &str| {
        let run = ["run", "--report", "none", "--sites", sites, "--"].map(str::to_owned);
        Ok::<_, Box<dyn std::error::Error>>(
            [vec![plimsoll()?.display().to_string()], run.to_vec(), server(&[])].concat(),
        )
    };
    let recording = "-XX:StartFlightRecording:settings=default";
    let agent = format!("-agentpath:{}=start,nativemem,file=/dev/null", profiler.display());
    // The second plain row is the noise.
    let rows: Vec<(&str, Vec<String>)> = vec![
        ("plain again", server(&[])),
        ("HotSpot NMT summary", server(&["-XX:NativeMemoryTracking=summary"])),
        ("HotSpot NMT detail", server(&["-XX:NativeMemoryTracking=detail"])),
        ("Plimsoll, sites off", tracked("off")?),
        ("Plimsoll, sites sampled", tracked("sampled")?),
        ("Plimsoll, sites exact", tracked("exact")?),
        ("async-profiler nativemem", server(&[&agent])),
        ("JFR", server(&[recording])),
        ("HotSpot NMT summary and JFR", server(&["-XX:NativeMemoryTracking=summary", recording])),
    ];
    let url = format!("http://127.0.0.1:{port}/blocks");
    let mut arguments = words(&[
        "try",
        "--rounds",
        &session.rounds(ROUNDS).to_string(),
        "--ready-within",
        "180",
        "--ready",
        &format!("url:{url}"),
        "--url",
        &url,
    ]);
    arguments.extend(words(&LOAD));
    arguments.extend(words(&["--idle", "0.1"]));
    for (_, command) in &rows {
        arguments.extend(["--with".to_owned(), format!("cmd:{}", command.join(" "))]);
    }
    arguments.push("--".into());
    arguments.extend(server(&[]));
    let (document, typed) = measured(&arguments)?;
    let mut table = Table::default();
    table.line(&format!(
        "Quarkus {VERSION} (bench/published/quarkus) on HotSpot, `-Xmx256m`: 50 requests/s over 25 connections, 10 s of warm-up, 5 s measured, {} alternating rounds by `plimsoll try` with its built-in load \
         (latencies count from the moment when a request was due). RSS after the load. Start-up until the first answer. In brackets the ratio to plain, where the rounds show a difference. \
         Not run: native images (no builder here), and Plimsoll's own recording.",
        document["rounds"]
    ));
    let heads: Vec<&str> = std::iter::once("way").chain(COLUMNS.iter().map(|(_, head)| *head)).chain(["ran"]).collect();
    table.head(&heads);
    let names = std::iter::once(("plain", "plain".to_owned()))
        .chain(rows.iter().map(|(name, command)| (*name, command.join(" "))));
    for (name, row) in names {
        let ran = document["rows"].as_array().and_then(|rows| rows.iter().find(|one| one["name"] == row.as_str()));
        let ran = ran.map_or("not run".to_owned(), |one| {
            format!("{} of {}", one["runs"].as_u64().unwrap_or(0) - one["failed"].as_u64().unwrap_or(0), one["runs"])
        });
        let cells =
            COLUMNS.map(|(id, _)| figure(&document, &row, id).map_or("-".to_owned(), |figure| cell(id, figure)));
        table.row(&[&[name.to_owned()], cells.as_slice(), &[ran]].concat());
    }
    table.command(&typed);
    let ratio = |sites: &str, id: &str| {
        let row = tracked(sites).map(|command| command.join(" ")).unwrap_or_default();
        let of = |row: &str| figure(&document, row, id).and_then(|figure| figure["median"].as_f64());
        Some(format!("{:.2}", of(&row)? / of("plain")?))
    };
    let both = |sites: &str| {
        let one = |id: &str| ratio(sites, id).unwrap_or_else(|| "-".into());
        format!("{sites} {} / {}", one("mean_milliseconds"), one("p99_milliseconds"))
    };
    table.summary = format!("mean / p99 against plain: {}, {}, {}", both("off"), both("sampled"), both("exact"));
    Ok(table)
}

/// The median, and its ratio to plain if the rounds show a difference.
fn cell(id: &str, figure: &Value) -> String {
    let Some(median) = figure["median"].as_f64() else { return "-".into() };
    let scaled = match id {
        "steady_bytes" => format!("{:.1}", median / f64::from(1 << 20)),
        "ready_seconds" => format!("{:.0}", median * 1000.0),
        _ => format!("{median:.2}"),
    };
    let difference = &figure["difference"];
    match (difference["significant"].as_bool(), difference["percent"].as_f64()) {
        (Some(true), Some(percent)) => format!("{scaled} ({:.2})", 1.0 + percent / 100.0),
        _ => scaled,
    }
}
