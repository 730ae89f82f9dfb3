//! Table 3: how much more a start-up takes, by `plimsoll compare`: of a newer Quarkus on the JVM, and of a native image
//! that does more.

use serde_json::Value;

use super::{Session, Table, free_port, image, measured, quarkus};
use crate::bench::{java, words};
use crate::stage::{Result, any_jdk};

const ROUNDS: u32 = 10;
const OLD: &str = "3.15.1";
const NEW: &str = "3.20.0";
const FEW: u32 = 20;
const MANY: u32 = 2_000;
/// Maximum number of lines, and of sites, that are listed.
const MOST: usize = 8;

/// Two servers to compare.
struct Pair {
    introduction: String,
    a: String,
    b: String,
    port: u16,
}

pub fn table(session: &Session) -> Result<Table> {
    let mut table = Table::default();
    table.line(
        "`plimsoll compare` until the first request is answered: pairs of runs, then tracked runs for sites and mapping calls. All intervals of one comparison hold together with 99 %.",
    );
    let jvm = on_the_jvm()?.compare(session, &mut table)?;
    let native = match on_native_images() {
        Ok(pair) => pair.compare(session, &mut table)?,
        Err(error) => table.without_native_images(error),
    };
    table.summary = format!(
        "`compare` finds, of Quarkus {OLD} (A) and {NEW} (B) on the JVM: \"{jvm}\". Of a native image with {FEW} (A) and {MANY} (B) patterns of routes: \"{native}\"."
    );
    Ok(table)
}

fn on_the_jvm() -> Result<Pair> {
    let home = any_jdk()?;
    let port = free_port()?;
    let server = |version: &str| -> Result<String> {
        let jar = quarkus::server(version)?.display().to_string();
        let flags = words(&["-Xmx64m", "-XX:+UseSerialGC", &format!("-Dquarkus.http.port={port}"), "-jar", &jar]);
        Ok([vec![java(&home).display().to_string()], flags].concat().join(" "))
    };
    Ok(Pair {
        introduction: format!(
            "On the JVM: Quarkus {OLD} (A) and {NEW} (B), the same application, on HotSpot with `-Xmx64m -XX:+UseSerialGC`."
        ),
        a: server(OLD)?,
        b: server(NEW)?,
        port,
    })
}

fn on_native_images() -> Result<Pair> {
    let port = free_port()?;
    let image = image::server("")?.display().to_string();
    let server = |routes: u32| format!("{image} {port} {routes}");
    Ok(Pair {
        introduction: format!(
            "On a native image: bench/published/native/Blocks.java, which compiles {FEW} (A) or {MANY} (B) patterns of routes at its start."
        ),
        a: server(FEW),
        b: server(MANY),
        port,
    })
}

impl Pair {
    /// Returns the result in a sentence.
    fn compare(&self, session: &Session, table: &mut Table) -> Result<String> {
        let rounds = session.rounds(ROUNDS).to_string();
        let ready = format!("url:http://127.0.0.1:{}/blocks", self.port);
        let mut arguments = words(&["compare", "--runs", &rounds, "--ready-within", "180", "--ready", &ready]);
        arguments.extend(words(&["--a", &self.a, "--b", &self.b]));
        let (document, typed) = measured(&arguments)?;
        table.line(&format!("\n{} {rounds} pairs of runs.", self.introduction));
        table.head(&["figure", "A", "B", "B − A", "interval", "shown"]);
        if !document["rss"].is_null() {
            table.row(&change("RSS, MiB", &document["rss"], f64::from(1 << 20)));
        }
        for (id, name) in [("ready_seconds", "ready after, s"), ("cpu_seconds", "CPU, s")] {
            if document["figures"][id].is_object() {
                table.row(&change(name, &document["figures"][id], 1.0));
            }
        }
        let changed = document["lines"].as_array().into_iter().flatten().filter(|line| line["verdict"] != "same");
        for line in changed.take(MOST) {
            table.row(&change(
                &format!("{}, MiB", line["name"].as_str().unwrap_or_default()),
                line,
                f64::from(1 << 20),
            ));
        }
        let tracked = &document["tracked"];
        let counted = [("mapping_calls", "mapping calls"), ("slow_paths", "calls of slowPathNew*")];
        for (key, name) in counted {
            let side = |side: &str| tracked[format!("{key}_{side}")].as_f64().map(|count| format!("{count:.0}"));
            if let (Some(a), Some(b)) = (side("a"), side("b")) {
                table.row(&words(&[name, &a, &b, "", "", ""]));
            }
        }
        table.head(&["site that holds more (or less), outermost last", "A, KiB", "B, KiB"]);
        for site in tracked["sites"].as_array().into_iter().flatten().take(MOST) {
            let kib = |side: &str| format!("{:.0}", site[side].as_f64().unwrap_or(0.0) / 1024.0);
            let name = format!("{}: `{}`", site["category"].as_str().unwrap_or("-"), frames(site));
            table.row(&[name, kib("a"), kib("b")]);
        }
        let result = document["result"].as_str().unwrap_or_default().to_owned();
        table.line(&format!("\n{result}"));
        for note in document["notes"].as_array().into_iter().flatten() {
            table.line(&format!("\nNote: {}", note.as_str().unwrap_or_default()));
        }
        table.command(&typed);
        Ok(result)
    }
}

fn change(name: &str, change: &Value, unit: f64) -> Vec<String> {
    let of = |key: &str| change[key].as_f64().map(|value| value / unit);
    let plain = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let signed = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:+.2}"));
    let interval = format!("{} to {}", signed(of("low")), signed(of("high")));
    let shown = change["verdict"].as_str().unwrap_or_default().to_owned();
    vec![name.to_owned(), plain(of("a")), plain(of("b")), signed(of("mean")), interval, shown]
}

/// The innermost frames outside of the VM and the C library; if there are none, the innermost of all. In a native image
/// the VM is Java too, and a chunk is allocated below a function that is named `slowPathNew…`.
fn frames(site: &Value) -> String {
    let all: Vec<&str> = site["frames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let all = &all[all.iter().rposition(|frame| frame.contains("slowPathNew")).unwrap_or(0)..];
    let is_own =
        |frame: &&&str| !["(libjvm.so)", "(libc.so", "(ld-linux"].iter().any(|library| frame.contains(library));
    let own: Vec<&str> = all.iter().filter(is_own).take(4).copied().collect();
    let shown = if own.is_empty() { all.iter().take(4).copied().collect() } else { own };
    shown.join(" ← ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_named_by_the_programs_frames() {
        let site = |frames: &[&str]| serde_json::json!({ "frames": frames });
        let mixed = site(&["os::commit  (libjvm.so)", "Shop.load:7", "Shop.main:2"]);
        assert_eq!(frames(&mixed), "Shop.load:7 ← Shop.main:2");
        assert_eq!(frames(&site(&["os::commit  (libjvm.so)"])), "os::commit  (libjvm.so)");
        let image = site(&["Chunks.commit  (shop)", "ThreadLocal.slowPathNewArray  (shop)", "Shop.load  (shop)"]);
        assert_eq!(frames(&image), "ThreadLocal.slowPathNewArray  (shop) ← Shop.load  (shop)");
    }
}
