//! The table of rights in docs/security.md: each cell is compared with what happens.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::child::Running;
use crate::commands::only_segment;
use crate::executable;
use crate::kit::{MALLORY, PLIMSOLL, can, clear_socket, of_mallory, start, text};
use crate::stage::Scratch;
use crate::writing::idle;

/// The user who looks at mallory's processes.
pub const LOOKER: u32 = 54_322;
pub const PTRACE: &str = "+sys_ptrace";
const BOTH: &str = "+sys_ptrace,+dac_read_search";
/// The columns: user and capabilities.
const COLUMNS: [(u32, &str); 4] = [(MALLORY, ""), (0, ""), (LOOKER, PTRACE), (LOOKER, BOTH)];

pub struct Stage {
    pub scratch: Scratch,
    pub plimsoll: PathBuf,
}

impl Stage {
    pub fn new() -> Stage {
        let scratch = Scratch::new("rights");
        // In a folder where every user may run it.
        let plimsoll = scratch.path().join("plimsoll");
        executable::copy(PLIMSOLL, &plimsoll);
        fs::set_permissions(&plimsoll, PermissionsExt::from_mode(0o755)).expect("ours");
        Stage { scratch, plimsoll }
    }

    /// Runs plimsoll as a user with exactly these capabilities; root has all.
    pub fn run(&self, (user, capabilities): (u32, &str), words: &[&str]) -> Output {
        let home = self.scratch.path().join(format!("home-{user}"));
        fs::create_dir_all(&home).expect("a folder");
        chown(&home, Some(user), Some(user)).expect("root may");
        let mut command = Command::new("setpriv");
        if user != 0 {
            let id = user.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        }
        if !capabilities.is_empty() {
            command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities]);
        }
        command.args(["timeout", "-s", "KILL", "120"]).arg(&self.plimsoll).args(words).stdin(Stdio::null());
        command.env("HOME", &home).env_remove("XDG_CACHE_HOME").env("PLIMSOLL_DIR", home.join("books"));
        command.output().expect("setpriv (.ci/setup installs it)")
    }

    /// A JVM of mallory's whose attach listener has not started.
    fn jvm(&self) -> (Running, String) {
        let home = of_mallory(&self.scratch, "target");
        let mut command = Command::new("sh");
        command.args(["-c", &idle(&self.scratch)]).env("HOME", &home).env("PLIMSOLL_DIR", home.join("books"));
        let (process, pid) = start(command.env_remove("XDG_CACHE_HOME"));
        clear_socket(&pid);
        (process, pid)
    }

    fn explained(&self, column: (u32, &str), pid: &str) -> &'static str {
        let output = self.run(column, &["explain", "--format", "json", pid]);
        assert!(output.status.success(), "{column:?}: {}", text(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let gaps = report["gaps"].as_array().expect("gaps").iter();
        let gaps: Vec<String> = gaps.map(|g| format!("{}: {}", g["source"], g["reason"])).collect();
        let has = |what: &str| gaps.iter().any(|gap| gap.contains(what));
        let missing =
            ["smaps can't be read", "VM can't be queried", "stack pointers can't be read", "/mem can't be opened"];
        match missing.map(has) {
            [false, false, false, false] => "yes",
            [false, true, false, false] => "all but a VM's answers",
            [false, true, true, true] => {
                "mappings only: no answers of a VM, no walk of malloc's arenas, no stack pointers"
            }
            [true, _, true, _] => "RSS and no mappings",
            other => panic!("{column:?}: the table has no words for {other:?}: {gaps:?}"),
        }
    }

    fn recorded(&self, column: (u32, &str), pid: &str) {
        let file = self.scratch.path().join(format!("home-{}/recording-{pid}.jfr", column.0));
        let words = ["record", pid, "--duration", "1s", "-o", file.to_str().expect("a path")];
        let output = self.run(column, &words);
        assert!(output.status.success() && file.metadata().is_ok_and(|m| m.len() > 0), "{column:?}: {}", text(&output));
    }

    /// Attaches and detaches. Returns the message of a refusal, after which nothing has changed.
    fn attached(&self, column: (u32, &str), pid: &str) -> Result<(), String> {
        let output = self.run(column, &["attach", pid, "--yes"]);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("root may");
        if output.status.success() {
            let detached = self.run(column, &["detach", pid]);
            assert!(detached.status.success(), "{column:?}: {}", text(&detached));
            return Ok(());
        }
        assert_eq!(output.status.code(), Some(2), "{column:?}: {}", text(&output));
        assert!(!maps.contains("libplimsoll"), "{column:?}: refused, and loaded all the same: {}", text(&output));
        Err(text(&output))
    }

    fn reported(&self, column: (u32, &str), file: &Path) -> bool {
        let file = file.to_str().expect("a path");
        let done = [&["report", file][..], &["diff", file, file]].map(|words| self.run(column, words));
        let [report, diff] = done.each_ref().map(|output| output.status.success());
        assert_eq!(report, diff, "{column:?}: {} {}", text(&done[0]), text(&done[1]));
        report
    }
}

#[test]
fn each_cell_of_the_table_is_what_happens() {
    if !can("the table of rights") {
        return;
    }
    let stage = Stage::new();
    let looks = COLUMNS.map(|column| {
        let (_target, pid) = stage.jvm();
        let cell = stage.explained(column, &pid);
        stage.recorded(column, &pid);
        if column.0 == MALLORY && cell == "yes" { "yes, where Yama lets it" } else { cell }
    });
    let attaches = COLUMNS.map(|column| {
        let (_target, pid) = stage.jvm();
        match stage.attached(column, &pid) {
            Ok(()) if column.0 == MALLORY => "yes, where Yama lets it",
            Ok(()) => "yes",
            Err(refusal) => {
                assert!(refusal.contains("CAP_SETUID and CAP_SETGID are missing"), "{refusal}");
                let commands = ["sudo", "as root:"].map(|by| format!("Try: {by} plimsoll attach {pid}"));
                assert!(commands.iter().any(|command| refusal.contains(command)), "{refusal}");
                // Each missing capability is named, one at a time; with all of them the command works.
                let more = ["setuid", "setgid", "kill"];
                for missing in more {
                    let others: Vec<String> =
                        more.iter().filter(|c| **c != missing).map(|c| format!(",+{c}")).collect();
                    let refusal = stage.attached((column.0, &format!("{}{}", column.1, others.concat())), &pid);
                    let refusal = refusal.expect_err("not without it");
                    assert!(refusal.contains(&format!("CAP_{} is missing", missing.to_uppercase())), "{refusal}");
                }
                if column.1 != BOTH {
                    return "no";
                }
                let all = format!("{BOTH},+setuid,+setgid,+kill");
                stage.attached((column.0, &all), &pid).expect("with all of them");
                "with CAP_SETUID, CAP_SETGID and CAP_KILL too"
            }
        }
    });
    let ran = stage.run((LOOKER, ""), &["run", "--report", "summary", "--", "true"]);
    assert!(ran.status.success(), "{}", text(&ran));
    let segment = only_segment(&stage.scratch.path().join(format!("home-{LOOKER}/books")));
    let file = stage.scratch.path().join("mallory-s.seg");
    fs::copy(segment, &file).expect("copied");
    chown(&file, Some(MALLORY), Some(MALLORY)).expect("root may");
    let reports = COLUMNS.map(|column| {
        let with = |mode| {
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("root may");
            stage.reported(column, &file)
        };
        match [with(0o000), with(0o644)] {
            [true, true] => "yes",
            [false, true] => "if the file may be read",
            other => panic!("{column:?}: {other:?}"),
        }
    });
    let (target, _) = stage.jvm();
    assert_eq!(stage.explained((LOOKER, "+dac_read_search"), &target.0.id().to_string()), "RSS and no mappings");

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = fs::read_to_string(page).expect("the page");
    let table = page.split_once("## Rights\n").expect("the table").1;
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).take(4).collect();
    let row = |verbs: &str, cells: [&str; 4]| format!("| {verbs} | {} |", cells.join(" | "));
    let happened = [
        row("`explain`, `record`", looks),
        row("`attach`, `detach`", attaches),
        row("`run`", ["yes", "–", "–", "–"]),
        row("`report`, `diff` of a file", reports),
    ];
    assert_eq!(rows, happened, "docs/security.md, the table of rights, on the left");
}
