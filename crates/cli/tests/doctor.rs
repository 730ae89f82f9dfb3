//! `plimsoll doctor`: what works here, and which processes are tracked.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use child::wait_for;
use stage::Scratch;

/// The folder of one test.
struct Workspace(Scratch);

impl Workspace {
    fn new(name: &str) -> Workspace {
        Workspace(Scratch::new(&format!("doctor-{name}")))
    }

    fn plimsoll(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .env("PLIMSOLL_DIR", self.0.path().join("segments"));
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A segment elsewhere (--dir) is found from the living process.
#[test]
fn doctor_lists_processes_of_other_directories() {
    let workspace = Workspace::new("dir");
    let (ready, elsewhere) = (workspace.0.path().join("ready"), workspace.0.path().join("elsewhere"));
    let script = format!("echo > {}; while :; do sleep 0.05; done", ready.display());
    let arguments = ["run", "--dir", elsewhere.to_str().unwrap(), "--", "sh", "-c", &script];
    let mut child = workspace.plimsoll(&arguments).spawn().unwrap();
    wait_for("the shell", || ready.exists().then_some(()));
    let out = workspace.plimsoll(&["doctor"]).output().unwrap();
    let json = workspace.plimsoll(&["doctor", "--format", "json"]).output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let found: Vec<_> = found["tracked"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|of| of["pid"] == child.id() && of["state"] == "live")
        .collect();
    let [of] = found.as_slice() else { panic!("{found:?}") };
    assert!(of["command"].as_str().unwrap().starts_with("sh -c echo > ") && of["live_bytes"].is_u64(), "{of}");
    assert!(of["segment"].as_str().unwrap().starts_with(elsewhere.to_str().unwrap()), "{of}");
    let line = text(&out.stdout).lines().filter(|l| l.contains(&format!(" {} live ", child.id()))).count();
    assert_eq!(line, 1, "{}", text(&out.stdout));
}

/// As in the tracker, an empty PLIMSOLL_DIR means the default directory.
#[test]
fn an_empty_directory_variable_means_the_default_directory() {
    let workspace = Workspace::new("no-name");
    let mut run = workspace.plimsoll(&["run", "--report", "summary", "--", "true"]);
    let out = run.env("PLIMSOLL_DIR", "").output().unwrap();
    assert!(out.status.success() && text(&out.stderr).contains("exited with status 0"), "{}", text(&out.stderr));
    let out = workspace.plimsoll(&["doctor"]).env("PLIMSOLL_DIR", "").output().unwrap();
    assert!(text(&out.stdout).contains("tracker    works"), "{}", text(&out.stdout));
}

#[test]
fn doctor_finds_the_tracker_working() {
    let workspace = Workspace::new("works");
    let out = workspace.plimsoll(&["doctor"]).output().unwrap();
    assert!(out.status.success() && text(&out.stdout).contains("tracker    works"), "{}", text(&out.stdout));
}

/// A script reads the checks from JSON: each has an id, and what does not work a remedy.
#[test]
fn doctors_json_says_what_works() {
    let workspace = Workspace::new("json");
    let doctor = |before: &[&str]| {
        let plimsoll = workspace.plimsoll(&["doctor", "--format", "json"]);
        let mut command = Command::new("setpriv");
        command.args(before).arg(plimsoll.get_program()).args(plimsoll.get_args());
        command.envs(plimsoll.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    let check = |found: &serde_json::Value, id: &str| {
        found["checks"].as_array().unwrap().iter().find(|check| check["id"] == id).unwrap().clone()
    };
    let found = doctor(&["--no-new-privs"]);
    assert_eq!((&found["schema"], &found["complete"]), (&"plimsoll.doctor/1".into(), &true.into()));
    let ids: Vec<&str> =
        found["checks"].as_array().unwrap().iter().map(|check| check["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["kernel", "c-library", "ptrace", "processes", "names", "segments", "tracker"]);
    assert!(["c-library", "tracker"].iter().all(|id| check(&found, id)["ok"] == true), "{found}");
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        let found = check(&doctor(&["--bounding-set=-sys_ptrace", "--inh-caps=-all"]), "ptrace");
        assert_eq!(found["ok"], false);
        assert!(found["remedy"].as_str().unwrap().contains("--cap-add SYS_PTRACE"), "{found}");
    }
}
