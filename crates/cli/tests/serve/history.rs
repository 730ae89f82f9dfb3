//! Recordings on disk: whole after kill -9, continued by the next server, written by one server at a time.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::child::wait_for;
use crate::kit::{PLIMSOLL, Server, Subject, scratch};

fn report(of: &Path) -> Value {
    let output = Command::new(PLIMSOLL).arg("report").arg(of).args(["--format", "json"]).output().expect("plimsoll");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
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
