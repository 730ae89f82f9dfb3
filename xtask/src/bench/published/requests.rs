//! Table 1: NMT in Native Image's table: a request makes 1,000 blocks of 1 KiB with Unsafe. On the JVM, by a Quarkus
//! server, and on native images, by a server of the JDK, beside each VM's own NMT and JFR.

use serde_json::Value;

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

/// The rows of one server.
struct Part {
    introduction: String,
    plain: Vec<String>,
    /// The name of a row, and its command.
    rows: Vec<(String, Vec<String>)>,
    port: u16,
    warm_up: &'static str,
}

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
    table.summary = format!(
        "Latencies of a request, compared with the plain server. On the JVM, {jvm}. On a native image, {native}."
    );
    Ok(table)
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
    let agent = format!("-agentpath:{}=start,nativemem,file=/dev/null", setup::async_profiler()?.display());
    let (recording, summary, detail) = (
        "-XX:StartFlightRecording:settings=default",
        "-XX:NativeMemoryTracking=summary",
        "-XX:NativeMemoryTracking=detail",
    );
    let own = [
        ("HotSpot NMT summary", server(&[summary])),
        ("HotSpot NMT detail", server(&[detail])),
        ("async-profiler nativemem", server(&[&agent])),
        ("JFR", server(&[recording])),
        ("HotSpot NMT summary, JFR", server(&[summary, recording])),
        ("HotSpot NMT detail, JFR", server(&[detail, recording])),
        ("async-profiler nativemem, JFR", server(&[&agent, recording])),
    ];
    Ok(Part {
        introduction: format!(
            "On the JVM: Quarkus {VERSION} (bench/published/quarkus) on HotSpot, `-Xmx256m`, 10 s of warm-up."
        ),
        plain: server(&[]),
        rows: rows(&own, server(&[]), server(&[recording]))?,
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
        ("built with NMT", server("nmt", &[])?),
        ("built with JFR, recording", server("jfr", &[&recording])?),
        ("built with NMT and JFR, recording", server("nmt,jfr", &[&recording])?),
    ];
    let (plain, recorded) = (server("", &[])?, server("jfr", &[&recording])?);
    Ok(Part {
        introduction: "On native images of the builder 25.0.2: the JDK's HTTP server (bench/published/native/Blocks.java), 2 s of warm-up. An image has \
             NMT if it was built with it; Plimsoll's rows are the plain image, and the one built with JFR."
            .into(),
        rows: rows(&own, plain.clone(), recorded)?,
        plain,
        port,
        warm_up: "2",
    })
}

/// The VM's own ways, then Plimsoll's. `recorded`: the server with JFR.
fn rows(own: &[(&str, Vec<String>)], plain: Vec<String>, recorded: Vec<String>) -> Result<Vec<(String, Vec<String>)>> {
    let program = plimsoll()?.display().to_string();
    let under = |options: &[&str], server: &[String]| {
        [vec![program.clone()], words(options), vec!["--".into()], server.to_vec()].concat()
    };
    let run = |sites: &str, server: &[String]| under(&["run", "--report", "none", "--sites", sites], server);
    let file = folder("bench/out")?.join("requests-%t.jfr").display().to_string();
    // The second plain row is the noise.
    let mut all = vec![("plain again".to_owned(), plain.clone())];
    all.extend(own.iter().map(|(name, command)| ((*name).to_owned(), command.clone())));
    for sites in ["off", "sampled", "exact"] {
        all.push((format!("Plimsoll, sites {sites}"), run(sites, &plain)));
    }
    all.push(("Plimsoll, sites sampled, JFR".into(), run("sampled", &recorded)));
    all.push(("Plimsoll, sites sampled, `record` each second".into(), under(&["record", "-o", &file], &plain)));
    Ok(all)
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
        table.command(&typed);
        let ways = ["plain again", "Plimsoll, sites off", "Plimsoll, sites sampled", "Plimsoll, sites exact"];
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
