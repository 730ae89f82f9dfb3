//! Recordings on disk: whole after kill -9, continued by the next server, written by one server at a time.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use crate::child::wait_for;
use crate::kit::{PLIMSOLL, Server, Subject, scratch};

fn report(of: &Path) -> Value {
    let output = Command::new(PLIMSOLL).arg("report").arg(of).args(["--format", "json"]).output().expect("plimsoll");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// More targets than descriptors: with `--all`, every name that ever ran has a directory.
#[test]
fn old_recordings_go_however_many_targets_there_were() {
    let subject = Subject::named("shop");
    let directory = scratch("history-many").join("recordings");
    let more = ["--interval", "1s", "--keep", "1h", "--history", directory.to_str().expect("UTF-8")];
    let server = Server::of(&subject, &more);
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    prlimit(Pid::from_raw(server.child.id() as i32), Resource::Nofile, limit).expect("a limit");
    let two_hours_ago = SystemTime::now() - Duration::from_secs(7200);
    let made = scratch("history-many-made");
    for number in 0..200 {
        let of_one = made.join(format!("target-{number}"));
        std::fs::create_dir_all(&of_one).expect("a directory");
        let file = std::fs::File::create(of_one.join("20261123-180000.000.jfr")).expect("a file");
        file.set_modified(two_hours_ago).expect("a time");
        std::fs::rename(&of_one, directory.join(format!("target-{number}"))).expect("a directory");
    }
    let names = || {
        let names = std::fs::read_dir(&directory).expect("a directory").flatten().map(|entry| entry.file_name());
        names.collect::<Vec<_>>()
    };
    wait_for("the deletion", || (names() == ["shop"]).then_some(()));
    server.kill(server.child.id(), "-TERM");
    let (_, printed) = server.ended();
    assert!(!printed.contains("--keep"), "{printed}");
}

/// A server that can open no more files reads nothing. That must not count as the end of the processes that it serves.
#[test]
fn a_server_without_descriptors_ends_no_recording() {
    let subject = Subject::named("shop");
    let directory = scratch("history-files").join("recordings");
    let more = ["--interval", "1s", "--history", directory.to_str().expect("UTF-8")];
    let server = Server::of(&subject, &more);
    let pid = Pid::from_raw(server.child.id() as i32);
    let none = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let usual = prlimit(pid, Resource::Nofile, none).expect("a limit");
    // 256 targets need more than the usual 1,024.
    let most = usual.maximum.map_or(4096, |most| most.min(4096));
    assert!(usual.current.is_none_or(|files| files >= most), "{usual:?}");
    // Each scrape waits for a round, if the last one is old.
    let age = || {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find(|line| line.starts_with("plimsoll_reading_age_seconds{"));
        let age = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        age.unwrap_or_else(|| panic!("the target is gone: {metrics}"))
    };
    wait_for("rounds without a reading", || (age() > 5.0).then_some(()));
    prlimit(pid, Resource::Nofile, usual).expect("a limit");
    wait_for("a reading", || (age() < 3.0).then_some(()));
    server.kill(server.child.id(), "-TERM");
    let (_, printed) = server.ended();
    assert!(!printed.contains("has ended"), "{printed}");
    assert!(report(&directory.join("shop"))["ended"].is_null());
}

#[test]
fn recordings_are_whole_after_a_kill_and_go_on() {
    let subject = Subject::named("shop");
    let directory = scratch("history").join("recordings");
    let more = ["--interval", "1s", "--history", directory.to_str().expect("UTF-8")];
    let files = || std::fs::read_dir(directory.join("shop")).into_iter().flatten().flatten().count();
    for round in 1..=2 {
        let server = Server::of(&subject, &more);
        wait_for("a recording", || (files() == round && server.get("/api/shop/recording").code == 200).then_some(()));
        let history: Value = serde_json::from_str(&server.get("/api/shop/recording").body).expect("JSON");
        assert_eq!(history["schema"], "plimsoll.recording/1");
        let pid = subject.pid();
        let second = Command::new(PLIMSOLL).args(["serve", &pid, "--listen", "127.0.0.1:0"]).args(more).output();
        let stderr = String::from_utf8_lossy(&second.expect("plimsoll").stderr).into_owned();
        assert!(stderr.contains("another plimsoll serve writes there"), "{stderr}");
        server.kill(server.child.id(), "-KILL");
        server.ended();
        let history = report(&directory.join("shop"));
        assert_eq!(history["schema"], "plimsoll.recording/1");
        // Only the reading that was being written may be missing.
        let rss = history["series"].as_array().expect("series").iter().find(|of| of["measure"] == "rss");
        let readings = rss.and_then(|rss| rss["readings"].as_u64()).expect("RSS");
        assert!(readings >= round as u64, "{history:#}");
    }
}
