//! Table 1: NMT in Native Image's table: a request makes 1,000 blocks of 1 KiB with Unsafe. On the JVM, by a Quarkus
//! server, and on native images, by a server of the JDK, beside each VM's own NMT and JFR.

use serde_json::Value;

use super::bars::{self, Bar};
use super::{Session, Table, figure, free_port, image, measured, quarkus, ran};
use crate::bench::{java, setup, words};
use crate::stage::{Result, any_jdk, folder, plimsoll};

/// As in the article: 50 requests a second, at most 25 at once, for 5 s, 10 runs.
const ROUNDS: u32 = 10;
const LOAD: [&str; 6] = ["--rate", "50", "--connections", "25", "--for", "5"];
const VERSION: &str = "3.15.1";

const COLUMNS: [(&str, &str); 6] = [
    ("steady_bytes", "RSS, MiB"),
    ("ready_seconds", "start-up, ms"),
    ("mean_milliseconds", "mean, ms"),
    ("p50_milliseconds", "p50, ms"),
    ("p90_milliseconds", "p90, ms"),
    ("p99_milliseconds", "p99, ms"),
];

/// The most that each value of `--sites` may cost, as a ratio to plain.
const BARS: [(&str, f64); 3] = [("off", 1.02), ("sampled", 1.03), ("exact", 1.05)];
/// The most that each may cost while JFR or `record` records.
const RECORDED: f64 = 1.05;
const RECORD: &str = "Plimsoll, sites sampled, `record` each second";
const AGAIN: &str = "plain again";

/// The rows of one server.
struct Part {
    introduction: String,
    plain: Vec<String>,
    /// The name of a row, and its command.
    rows: Vec<(String, Vec<String>)>,
    vm: Vm,
    port: u16,
    warm_up: &'static str,
}

/// The rows of the VM's own ways with which Plimsoll's are compared.
#[derive(Clone, Copy)]
struct Vm {
    jfr: &'static str,
    nmt: &'static str,
    nmt_and_jfr: &'static str,
}

const JVM: Vm = Vm { jfr: "JFR", nmt: "HotSpot NMT summary", nmt_and_jfr: "HotSpot NMT summary, JFR" };
const IMAGE: Vm =
    Vm { jfr: "built with JFR, recording", nmt: "built with NMT", nmt_and_jfr: "built with NMT and JFR, recording" };

pub fn table(session: &Session) -> Result<Table> {
    let mut table = Table::default();
    table.line(
        "50 requests/s over 25 connections, 5 s measured after a warm-up, by `plimsoll try` with its built-in load (latencies count from the moment when a request was due). RSS after the load, of the server's processes; \
         a recorder is one of them. Start-up until the first answer. In brackets the ratio to plain, where the rounds show a difference.",
    );
    let jvm = on_the_jvm()?.measure(session, &mut table)?;
    let native = match on_native_images() {
        Ok(part) => part.measure(session, &mut table)?,
        Err(error) => table.without_native_images(error),
    };
    table.summary = summary(&jvm, &native);
    Ok(table)
}

/// What the README says. Other figures of a way, such as p90, may differ from plain.
fn summary(jvm: &str, native: &str) -> String {
    let what = "Mean and p99 of a request, compared with the plain server.";
    format!("{what} On the JVM, {jvm}. On a native image, {native}.")
}

fn on_the_jvm() -> Result<Part> {
    let home = any_jdk()?;
    let jar = quarkus::server(VERSION)?.display().to_string();
    let port = free_port()?;
    let program = java(&home).display().to_string();
    let server = |flags: &[&str]| {
        let own = words(&["-Xmx256m", &format!("-Dquarkus.http.port={port}"), "-jar", &jar]);
        [vec![program.clone()], words(flags), own].concat()
    };
    let profiler = setup::async_profiler()?.display().to_string();
    let [agent, sampling] =
        ["", "=512k"].map(|mean| format!("-agentpath:{profiler}=start,nativemem{mean},file=/dev/null"));
    let (recording, summary, detail) = (
        "-XX:StartFlightRecording:settings=default",
        "-XX:NativeMemoryTracking=summary",
        "-XX:NativeMemoryTracking=detail",
    );
    let own = [
        (JVM.nmt, server(&[summary])),
        ("HotSpot NMT detail", server(&[detail])),
        ("async-profiler nativemem", server(&[&agent])),
        ("async-profiler nativemem=512k", server(&[&sampling])),
        (JVM.jfr, server(&[recording])),
        (JVM.nmt_and_jfr, server(&[summary, recording])),
        ("HotSpot NMT detail, JFR", server(&[detail, recording])),
        ("async-profiler nativemem, JFR", server(&[&agent, recording])),
    ];
    Ok(Part {
        introduction: format!(
            "On the JVM: Quarkus {VERSION} (bench/published/quarkus) on HotSpot, `-Xmx256m`, 10 s of warm-up."
        ),
        plain: server(&[]),
        rows: rows(&own, server(&[]), server(&[recording]))?,
        vm: JVM,
        port,
        warm_up: "10",
    })
}

fn on_native_images() -> Result<Part> {
    let port = free_port()?;
    let server = |features: &str, flags: &[&str]| {
        let program = image::server(features)?.display().to_string();
        Ok::<_, Box<dyn std::error::Error>>([vec![program], words(flags), words(&[&port.to_string(), "20"])].concat())
    };
    let recording = format!("-XX:StartFlightRecording=filename={}", folder("bench/out")?.join("image.jfr").display());
    let own = [
        (IMAGE.nmt, server("nmt", &[])?),
        (IMAGE.jfr, server("jfr", &[&recording])?),
        (IMAGE.nmt_and_jfr, server("nmt,jfr", &[&recording])?),
    ];
    let (plain, recorded) = (server("", &[])?, server("jfr", &[&recording])?);
    Ok(Part {
        introduction: "On native images of the builder 25.0.2: the JDK's HTTP server (bench/published/native/Blocks.java), 2 s of warm-up. An image has \
             NMT if it was built with it; Plimsoll's rows are the plain image, and the one built with JFR."
            .into(),
        rows: rows(&own, plain.clone(), recorded)?,
        vm: IMAGE,
        plain,
        port,
        warm_up: "2",
    })
}

/// The VM's own ways, then Plimsoll's. `recorded`: the server with JFR.
fn rows(own: &[(&str, Vec<String>)], plain: Vec<String>, recorded: Vec<String>) -> Result<Vec<(String, Vec<String>)>> {
    let program = plimsoll()?.display().to_string();
    let file = folder("bench/out")?.join("requests-%t.jfr").display().to_string();
    Ok(rows_of([&program, &file], own, plain, recorded))
}

/// `program` is plimsoll, `file` the recording.
fn rows_of(
    [program, file]: [&str; 2],
    own: &[(&str, Vec<String>)],
    plain: Vec<String>,
    recorded: Vec<String>,
) -> Vec<(String, Vec<String>)> {
    let under = |options: &[&str], server: &[String]| {
        [words(&[program]), words(options), words(&["--"]), server.to_vec()].concat()
    };
    let run = |sites: &str, server: &[String]| under(&["run", "--report", "none", "--sites", sites], server);
    // The second plain row is the noise.
    let mut all = vec![(AGAIN.to_owned(), plain.clone())];
    all.extend(own.iter().map(|(name, command)| ((*name).to_owned(), command.clone())));
    for (is_recorded, server) in [(false, &plain), (true, &recorded)] {
        all.extend(BARS.map(|(sites, _)| (named(sites, is_recorded), run(sites, server))));
    }
    all.push((RECORD.into(), under(&["record", "-o", file], &plain)));
    all
}

/// The row of this value of `--sites`.
fn named(sites: &str, is_recorded: bool) -> String {
    format!("Plimsoll, sites {sites}{}", if is_recorded { ", JFR" } else { "" })
}

/// By row: its name, what it is compared with, and the most that it may cost.
fn bars_of(vm: Vm) -> Vec<(String, [&'static str; 2], f64)> {
    let mut bars = Vec::new();
    for (is_recorded, beside) in [(false, ["plain", vm.nmt]), (true, [vm.jfr, vm.nmt_and_jfr])] {
        let most = |alone: f64| if is_recorded { RECORDED } else { alone };
        bars.extend(BARS.map(|(sites, alone)| (named(sites, is_recorded), beside, most(alone))));
    }
    bars.push((RECORD.to_owned(), ["plain", vm.nmt], RECORDED));
    bars
}

impl Part {
    /// Returns what the README says about this server.
    fn measure(&self, session: &Session, table: &mut Table) -> Result<String> {
        let url = format!("http://127.0.0.1:{}/blocks", self.port);
        let rounds = session.rounds(ROUNDS).to_string();
        let ready = format!("url:{url}");
        let mut arguments =
            words(&["try", "--rounds", &rounds, "--ready-within", "180", "--ready", &ready, "--url", &url]);
        arguments.extend(words(&LOAD));
        arguments.extend(words(&["--warm-up", self.warm_up, "--idle", "0.1"]));
        for (_, command) in &self.rows {
            arguments.extend(["--with".to_owned(), format!("cmd:{}", command.join(" "))]);
        }
        arguments.push("--".into());
        arguments.extend(self.plain.clone());
        let (document, typed) = measured(&arguments)?;
        table.line(&format!("\n{} {} alternating rounds.", self.introduction, document["rounds"]));
        let heads = std::iter::once("way").chain(COLUMNS.iter().map(|(_, head)| *head)).chain(["ran"]);
        table.head(&heads.collect::<Vec<_>>());
        let plain = ("plain".to_owned(), "plain".to_owned());
        let rows = self.rows.iter().map(|(name, command)| (name.clone(), command.join(" ")));
        for (name, row) in std::iter::once(plain).chain(rows) {
            let cells =
                COLUMNS.map(|(id, _)| figure(&document, &row, id).map_or("-".to_owned(), |figure| cell(id, figure)));
            table.row(&[&[name], cells.as_slice(), &[ran(&document, &row)]].concat());
        }
        let document_row = |name: &str| {
            let row = self.rows.iter().find(|(own, _)| own == name);
            row.map_or("plain".to_owned(), |(_, command)| command.join(" "))
        };
        let judged = bars_of(self.vm).into_iter().map(|(name, beside, most)| {
            let (way, [base, nmt]) = (document_row(&name), beside.map(document_row));
            Bar { name, way, base, nmt, most }
        });
        bars::table(table, &document, &document_row(AGAIN), &judged.collect::<Vec<_>>());
        table.command(&typed);
        let ways = [AGAIN, "Plimsoll, sites off", "Plimsoll, sites sampled", "Plimsoll, sites exact"];
        Ok(sentence(&ways.map(|name| {
            let row = self.rows.iter().find(|(own, _)| own == name).map(|(_, command)| command.join(" "));
            let of = |id: &str| row.as_ref().and_then(|row| figure(&document, row, id)).map(ratio);
            (name.trim_start_matches("Plimsoll, "), [of("mean_milliseconds"), of("p99_milliseconds")])
        })))
    }
}

/// Which ways differ from plain, and by which factor, the mean and the p99 of each. The inner `None`: the rounds show no
/// difference; the outer: not measured.
fn sentence(ways: &[(&str, [Option<Option<f64>>; 2])]) -> String {
    let factor = |what: &str, ratio: &Option<Option<f64>>| match ratio {
        Some(Some(ratio)) => Some(format!("{what} × {ratio:.2}")),
        Some(None) => None,
        None => Some(format!("{what} not measured")),
    };
    let parts = |[mean, p99]: &[Option<Option<f64>>; 2]| [factor("mean", mean), factor("p99", p99)];
    let (same, other): (Vec<_>, Vec<_>) = ways.iter().partition(|(_, ratios)| parts(ratios) == [None, None]);
    let differs = |(name, ratios): &(&str, _)| {
        format!("{name} has {}", parts(ratios).into_iter().flatten().collect::<Vec<_>>().join(" and "))
    };
    let mut all: Vec<String> = other.into_iter().map(differs).collect();
    if !same.is_empty() {
        let names: Vec<&str> = same.iter().map(|(name, _)| *name).collect();
        all.push(format!("no difference shows for {}", names.join(", ")));
    }
    all.join("; ")
}

/// The ratio of a figure to plain's, if the rounds show a difference.
fn ratio(figure: &Value) -> Option<f64> {
    let difference = &figure["difference"];
    let percent = difference["percent"].as_f64().filter(|_| difference["significant"] == true)?;
    Some(1.0 + percent / 100.0)
}

/// The median, and its ratio to plain if the rounds show a difference.
fn cell(id: &str, figure: &Value) -> String {
    let Some(median) = figure["median"].as_f64() else { return "-".into() };
    let scaled = match id {
        "steady_bytes" => format!("{:.1}", median / f64::from(1 << 20)),
        "ready_seconds" => format!("{:.0}", median * 1000.0),
        _ => format!("{median:.2}"),
    };
    ratio(figure).map_or(scaled.clone(), |ratio| format!("{scaled} ({ratio:.2})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_says_which_figures_show_no_difference() {
        // The p90 of a way may differ: no sentence is about it.
        let ways = [("sites off", [Some(None), Some(None)])];
        let expected = "Mean and p99 of a request, compared with the plain server. On the JVM, no difference shows for sites \
            off. On a native image, not run.";
        assert_eq!(summary(&sentence(&ways), "not run"), expected);
    }

    #[test]
    fn each_way_of_plimsoll_has_a_bar_and_a_row_beside_it() {
        for vm in [JVM, IMAGE] {
            let own = [vm.jfr, vm.nmt, vm.nmt_and_jfr].map(|name| (name, words(&[name])));
            let rows = rows_of(["plimsoll", "file"], &own, words(&["server"]), words(&["recorded"]));
            let has = |name: &str| name == "plain" || rows.iter().any(|(own, _)| own == name);
            let bars = bars_of(vm);
            for (name, beside, _) in &bars {
                assert!(has(name) && beside.iter().all(|name| has(name)), "{name} {beside:?}");
            }
            let ways = rows.iter().filter(|(name, _)| name.starts_with("Plimsoll")).count();
            assert_eq!(bars.len(), ways);
        }
    }

    #[test]
    fn a_row_with_a_recording_has_the_bar_of_recordings() {
        let mosts: Vec<f64> = bars_of(JVM).iter().map(|(.., most)| *most).collect();
        assert_eq!(mosts, [1.02, 1.03, 1.05, RECORDED, RECORDED, RECORDED, RECORDED]);
        let bases: Vec<&str> = bars_of(JVM).iter().map(|(_, [base, _], _)| *base).collect();
        assert_eq!(bases, ["plain", "plain", "plain", JVM.jfr, JVM.jfr, JVM.jfr, "plain"]);
    }

    #[test]
    fn only_ways_that_differ_have_a_factor() {
        let ways = [
            ("plain again", [Some(None), Some(None)]),
            ("sites off", [Some(None), None]),
            ("sites exact", [Some(Some(1.381)), Some(Some(1.2))]),
        ];
        let expected = "sites off has p99 not measured; sites exact has mean × 1.38 and p99 × 1.20; no difference shows for plain again";
        assert_eq!(sentence(&ways), expected);
        assert_eq!(sentence(&ways[1..2]), "sites off has p99 not measured");
    }
}
