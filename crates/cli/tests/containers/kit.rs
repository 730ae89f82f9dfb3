//! A container made of namespaces, and what plimsoll printed in it.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{PLIMSOLL, compiled};
use crate::stage::{Scratch, log_line, must};

/// Before a command: as a user without rights.
pub const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// Begins a script: only the folder `volume` can be written to, as in a container with a read-only root and one volume.
pub const READ_ONLY: &str = "mkdir -p volume; mount -t tmpfs -o mode=0755 none volume; \
    for place in / /dev/shm /tmp; do mountpoint -q $place && mount -o remount,bind,ro $place; done;";

pub struct Container {
    scratch: Scratch,
}

/// What a script printed, on both outputs.
pub struct ScriptOutput {
    pub code: Option<i32>,
    pub text: String,
}

impl ScriptOutput {
    #[track_caller]
    pub fn is_one_line(&self, words: &[&str]) {
        assert!(self.code == Some(2) && self.text.trim_end().lines().count() == 1, "{:?} {}", self.code, self.text);
        assert!(words.iter().all(|word| self.text.contains(word)), "{words:?}: {}", self.text);
    }

    #[track_caller]
    pub fn json(&self) -> Explained {
        let json = serde_json::from_str(&self.text);
        Explained(json.unwrap_or_else(|e| panic!("no JSON: {e}\n{}", self.text)))
    }
}

/// `explain --format json`.
pub struct Explained(pub Value);

impl Explained {
    pub fn resident(&self, id: &str) -> Option<u64> {
        fn find<'v>(lines: &'v Value, id: &str) -> Option<&'v Value> {
            lines.as_array()?.iter().find_map(|line| {
                if line["id"] == id { Some(&line["resident_bytes"]) } else { find(&line["children"], id) }
            })
        }
        find(&self.0["lines"], id)?.as_u64()
    }

    /// Each gap as `reason / remedy`.
    pub fn gaps(&self) -> Vec<String> {
        let all = self.0["gaps"].as_array().expect("a list").iter();
        all.map(|gap| format!("{} / {}", gap["reason"].as_str().unwrap_or(""), gap["remedy"].as_str().unwrap_or("")))
            .collect()
    }
}

impl Container {
    /// `None` where the machine allows no namespaces: the case is counted as skipped.
    pub fn new(case: &str) -> Option<Container> {
        let probe = ["-mpf", "--mount-proc", "mount", "-t", "tmpfs", "none", "/mnt"];
        let can = Command::new("unshare").args(probe).stdin(Stdio::null()).output();
        if !can.is_ok_and(|output| output.status.success()) {
            log_line(&format!("{case}: skipped, it needs root and namespaces of its own"));
            return None;
        }
        let container = Container { scratch: Scratch::new("container") };
        // The folder of the build may be closed to other users.
        must(Command::new("cp").args([PLIMSOLL, "plimsoll"]).current_dir(container.folder()));
        must(Command::new("chmod").args(["755", "plimsoll"]).current_dir(container.folder()));
        Some(container)
    }

    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Compiles the program `healthy`, which holds 8 MiB, in the folder. It prints its live bytes.
    pub fn with_target(self) -> Container {
        compiled(
            "../explain/healthy",
            &self.folder().join("healthy"),
            &["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/explain")],
        );
        self
    }

    /// Runs a shell script in PID and mount namespaces of their own. `plimsoll` in it is the program.
    pub fn run(&self, script: &str) -> ScriptOutput {
        // bash execs a last command, which would then be process 1.
        let script = &format!("{script}\nexit $?");
        let mut command = Command::new("timeout");
        command.args([
            "--kill-after=5",
            "600",
            "unshare",
            "-mpf",
            "--mount-proc",
            "--kill-child",
            "bash",
            "-c",
            script,
        ]);
        let path = format!("{}:{}", self.folder().display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("HOME", "/nowhere").env("XDG_CACHE_HOME", self.folder().join("cache"));
        let output = command.current_dir(self.folder()).stdin(Stdio::null()).output().expect("unshare");
        let text = [output.stdout, output.stderr].concat();
        ScriptOutput { code: output.status.code(), text: String::from_utf8_lossy(&text).into_owned() }
    }

    /// Starts the target with `before` in front of its command line. Once it holds its memory, explains it with
    /// `observer` in front. Returns what the target holds, and the report.
    pub fn explain(&self, before: &str, observer: &str) -> (u64, Explained) {
        let script = format!(
            "rm -f truth; {before} ./healthy 8 >truth & \
             until grep -q ready truth 2>/dev/null; do sleep 0.01; done; \
             {observer} plimsoll explain $! --format json"
        );
        let printed = self.run(&script);
        let truth = std::fs::read_to_string(self.folder().join("truth")).expect("the target's output");
        let live = truth.lines().find_map(|line| line.strip_prefix("live ")).expect("a line `live`");
        (live.parse().expect("bytes"), printed.json())
    }
}
