//! Real idle servers, plain and tracked: their lines differ only in `tracker`.
//!
//! The compiler of a JVM is not under test. C2 compiles as many methods at a time as the clock allows, so two plain
//! servers differ by megabytes of arenas that it returned. C1 alone leaves the same each time.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::child::{Running, wait_until};
use crate::fixture::{Explained, PLIMSOLL, all_sleep, explain, fresh, skip};
use crate::stage;

/// A subject: its options and class, and what it prints once it listens.
struct Subject {
    name: &'static str,
    arguments: Vec<String>,
    ready: &'static str,
}

fn spring_boot(jdk: &Path, folder: &Path) -> Subject {
    let class_path = stage::shop(&jdk.join("bin/javac"));
    let port_file = folder.join("port").display().to_string();
    let arguments = ["-Xms160m", "-Xmx160m", "-cp", &class_path, "shop.Shop", &port_file];
    Subject { name: "Spring Boot", arguments: arguments.map(String::from).into(), ready: "shop is open" }
}

fn quarkus(_: &Path, _: &Path) -> Subject {
    let jar = stage::kiosk().display().to_string();
    let http = ["-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0"];
    let arguments = ["-Xms96m", "-Xmx96m", http[0], http[1], "-jar", &jar];
    Subject { name: "Quarkus", arguments: arguments.map(String::from).into(), ready: "Listening on" }
}

/// The lines of `explain` for an idle server, and an upper bound of what trailers add to its heap.
fn at_rest(jdk: &Path, subject: &Subject, mode: Option<&str>, folder: &Path) -> (Explained, u64) {
    let java = jdk.join("bin/java");
    let mut command = Command::new(mode.map_or(java.as_path(), |_| Path::new(PLIMSOLL)));
    if let Some(mode) = mode {
        let segments = folder.join("segments");
        fs::create_dir_all(&segments).expect("scratch");
        command.args(["run", "--report", "none", "--sites", mode, "--dir"]).arg(segments).arg("--").arg(&java);
    }
    command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]).args(&subject.arguments).stdin(Stdio::null());
    let log = folder.join("log");
    let output = File::create(&log).expect("a log");
    command.stdout(output.try_clone().expect("a descriptor")).stderr(output);
    let mut server = Running(command.spawn().expect("java runs"));
    let pid = server.0.id();
    let printed = || fs::read_to_string(&log).expect("a log");
    wait_until("the server listens", || {
        let is_ready = printed().contains(subject.ready);
        assert!(is_ready || server.0.try_wait().expect("a child").is_none(), "{}: {}", subject.name, printed());
        is_ready
    });
    // The compiler goes on for a while: wait until three readings in a row agree. Readings while a thread waits for the
    // CPU don't count.
    let rss = || fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs").split(' ').nth(1).map(String::from);
    let (mut last, mut same) = (None, 0);
    wait_until("the server rests", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = rss();
        same = if now == last && all_sleep(pid) { same + 1 } else { 0 };
        last = now;
        same == 2
    });
    let explained = explain(pid, &[]);
    let growth = mode.map_or(0, |_| {
        let mut report = Command::new(PLIMSOLL);
        let output = report.args(["report", &pid.to_string(), "--format", "json"]).output().expect("plimsoll");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["own"]["heap_growth_bytes"][1].as_u64().expect("a number")
    });
    (explained, growth)
}

fn rest_of(explained: &Explained) -> u64 {
    explained.0["rss_bytes"].as_u64().unwrap() - explained.line("tracker")
}

/// Unwind tables of libjvm and libc, which the program itself never reads: clean pages of files.
const UNWIND_TABLES: u64 = 1536 << 10;

fn differs_in_the_tracker_only(name: &str, subject: fn(&Path, &Path) -> Subject, modes: &[&str]) {
    let Some(stage::Jdk { home: jdk, .. }) = stage::jdk(25) else {
        return skip(name, "no JDK 25 in JAVA_HOME or /usr/lib/jvm");
    };
    let folder = fresh(name);
    let subject = subject(&jdk, &folder);
    let plain = [(); 2].map(|()| at_rest(&jdk, &subject, None, &folder).0);
    let [least, most] = [rest_of(&plain[0]).min(rest_of(&plain[1])), rest_of(&plain[0]).max(rest_of(&plain[1]))];
    for mode in modes {
        let (tracked, growth) = at_rest(&jdk, &subject, Some(mode), &folder);
        let rest = rest_of(&tracked);
        let lines = format!("{} {mode}\n{:#}\nplain\n{:#}", subject.name, tracked.0["lines"], plain[0].0["lines"]);
        stage::log_line(&format!(
            "{} {mode}: RSS {} KiB, tracker {}, rest {}, trailers up to {}; plain {} and {}",
            subject.name,
            tracked.0["rss_bytes"].as_u64().unwrap() >> 10,
            tracked.line("tracker") >> 10,
            rest >> 10,
            growth >> 10,
            least >> 10,
            most >> 10
        ));
        assert!(tracked.line("tracker") > 1 << 20, "{lines}");
        assert!(rest >= least - least / 50 && rest <= most + most / 50 + growth, "{rest}, {least} to {most}: {lines}");
        let [other, libraries] = ["other-anonymous", "libraries"].map(|line| {
            let plain = plain.each_ref().map(|explained| explained.line(line));
            (tracked.line(line), plain[0].max(plain[1]))
        });
        assert!(other.0 <= other.1 + (256 << 10), "{other:?}: {lines}");
        assert!(libraries.0 <= libraries.1 + UNWIND_TABLES, "{libraries:?}: {lines}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn spring_boot_differs_in_the_tracker_only() {
    differs_in_the_tracker_only("rest-spring", spring_boot, &["sampled"]);
}

#[test]
#[ignore = "full: six starts of a server, and Quarkus is built by Maven"]
fn quarkus_differs_in_the_tracker_only() {
    differs_in_the_tracker_only("rest-quarkus", quarkus, &["off", "sampled", "exact"]);
}

#[test]
#[ignore = "full: four starts of a server"]
fn spring_boot_differs_in_the_tracker_only_in_the_other_modes() {
    differs_in_the_tracker_only("rest-spring-modes", spring_boot, &["off", "exact"]);
}
