//! A program that loads the runtime of a sanitizer runs as it does without plimsoll, however it is started: the runtime
//! must come before any other library, so the tracker stays out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use child::{Running, wait_until};
use stage::{Scratch, log_line};

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static void *held[100];
int main(int n, char **words) {
    (void)words;
    for (int i = 0; i < 100; i++) held[i] = malloc(1000);
    puts("runs");
    fflush(stdout);
    if (n > 1) getchar();
    return 5;
}
"#;

/// Starts the second argument in the way that the first one names, and ends with its status.
const STARTER: &str = r#"
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
int main(int n, char **words) {
    char *path = words[2], *list[] = {path, 0}, *how = words[1];
    int status = -1;
    pid_t pid = -1;
    (void)n;
    if (!strcmp(how, "exec")) execv(path, list);
    else if (!strcmp(how, "spawn")) posix_spawn(&pid, path, 0, 0, list, environ);
    else if (!strcmp(how, "spawnp")) posix_spawnp(&pid, path, 0, 0, list, environ);
    else if (!strcmp(how, "fork")) pid = fork();
    else pid = vfork();
    if (pid == 0) { execve(path, list, environ); _exit(127); }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
"#;

struct Workspace(Scratch);

impl Workspace {
    fn new(name: &str) -> Workspace {
        Workspace(Scratch::new(&format!("sanitizers-{name}")))
    }

    fn program(&self, name: &str, source: &str, arguments: &[&str]) -> Option<PathBuf> {
        let (file, program) = (self.0.path().join(format!("{name}.c")), self.0.path().join(name));
        std::fs::write(&file, source).expect("source");
        let cc = Command::new("cc").args(["-w", "-o"]).args([&program, &file]).args(arguments).output().expect("cc");
        cc.status.success().then_some(program)
    }

    /// The program with the shared runtime. None: it doesn't run here, and a line says so.
    fn sanitized(&self, kind: &str) -> Option<(PathBuf, Output)> {
        let program = self.program(kind, PROGRAM, &[&format!("-fsanitize={kind}")]);
        let Some(program) = program else {
            log_line(&format!("{kind}: skipped, cc has no runtime of it"));
            return None;
        };
        let plain = self.alone(&program);
        // TSan refuses a machine with more random bits of addresses than it knows.
        if !String::from_utf8_lossy(&plain.stdout).starts_with("runs\n") {
            log_line(&format!("{kind}: skipped, its programs don't run on this machine"));
            return None;
        }
        Some((program, plain))
    }

    fn alone(&self, program: &Path) -> Output {
        self.command(program).output().expect("it runs")
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("XDG_CACHE_HOME", self.0.path().join("cache")).env("PLIMSOLL_DIR", self.0.path().join("segments"));
        // LSan needs ptrace: under a debugger, or in a container that forbids ptrace, it would fail for that reason.
        command.env("ASAN_OPTIONS", "detect_leaks=0").env_remove("LD_PRELOAD").stdin(Stdio::null());
        command
    }

    fn plimsoll(&self, arguments: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).output().expect("plimsoll")
    }
}

const KINDS: [&str; 3] = ["address", "leak", "thread"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_with_a_sanitizer_runs_as_without_plimsoll() {
    let workspace = Workspace::new("run");
    let starter = workspace.program("starter", STARTER, &[]).expect("cc");
    let starter = starter.to_str().expect("UTF-8");
    for kind in KINDS {
        let Some((program, plain)) = workspace.sanitized(kind) else { continue };
        let program = program.to_str().expect("UTF-8");
        let recording = workspace.0.path().join(format!("{kind}.jfr"));
        let recording = recording.to_str().expect("UTF-8");
        let ways: [&[&str]; 9] = [
            &["run", "--", program],
            &["run", "--report", "summary", "--", program],
            &["record", "-o", recording, "--", program],
            &["run", "--", starter, "exec", program],
            &["run", "--follow", "--", starter, "exec", program],
            &["run", "--follow", "--", starter, "fork", program],
            &["run", "--follow", "--", starter, "vfork", program],
            &["run", "--follow", "--", starter, "spawn", program],
            &["run", "--follow", "--", starter, "spawnp", program],
        ];
        for way in ways {
            let out = workspace.plimsoll(way);
            let error = text(&out.stderr);
            assert_eq!(
                (text(&out.stdout), out.status.code()),
                ("runs\n".into(), plain.status.code()),
                "{way:?}: {error}"
            );
            let is_started_by_us = way.last() == Some(&program) && !way.contains(&starter);
            assert_eq!(error.contains("loads a sanitizer (lib"), is_started_by_us, "{way:?}: {error}");
            // LSan prints its report on the same stream.
            let leaks = |error: &str| error.contains("LeakSanitizer: 100000 byte(s) leaked");
            assert_eq!(leaks(&error), leaks(&text(&plain.stderr)), "{way:?}: {error}");
        }
    }
}

#[test]
fn a_preloaded_sanitizer_keeps_the_tracker_out() {
    let workspace = Workspace::new("preloaded");
    let plain = workspace.program("plain", PROGRAM, &[]).expect("cc");
    let plain = plain.to_str().expect("UTF-8");
    for kind in KINDS {
        let Some((program, _)) = workspace.sanitized(kind) else { continue };
        let needed = Command::new("ldd").arg(&program).output().expect("ldd").stdout;
        let needed = text(&needed);
        let runtime = needed.lines().find_map(|line| line.trim().strip_prefix("lib")?.split(" =>").next());
        let runtime = format!("lib{}", runtime.filter(|name| name.contains("san")).expect("its runtime"));
        let alone = workspace.command(plain).env("LD_PRELOAD", &runtime).output().expect("it runs");
        let exec = format!("LD_PRELOAD={runtime} exec {plain}");
        let before = format!("LD_PRELOAD={runtime}:$LD_PRELOAD {plain}");
        let behind = format!("LD_PRELOAD=$LD_PRELOAD:{runtime} {plain}");
        for script in [&exec, &before, &behind] {
            let out = workspace.plimsoll(&["run", "--follow", "--", "sh", "-c", script]);
            let found = (text(&out.stdout), out.status.code());
            assert_eq!(found, (text(&alone.stdout), alone.status.code()), "{script}: {}", text(&out.stderr));
        }
        let out = workspace.plimsoll(&["run", "--", "sh", "-c", &exec]);
        assert_eq!((text(&out.stdout), out.status.code()), (text(&alone.stdout), alone.status.code()), "{exec}");
        // In a program that handles signals before main, LSan's runtime calls the real sigaction before it has looked
        // that function up.
        let preloaded = |arguments: &[&str]| {
            let mut command = workspace.command(env!("CARGO_BIN_EXE_plimsoll"));
            command.args(arguments).env("LD_PRELOAD", &runtime).output().expect("plimsoll")
        };
        // So plimsoll itself can't start with that runtime.
        if preloaded(&["--version"]).status.code().is_none() {
            assert_eq!(kind, "leak", "{runtime}");
            continue;
        }
        let out = preloaded(&["run", "--", plain]);
        let error = text(&out.stderr);
        assert_eq!((text(&out.stdout), out.status.code()), (text(&alone.stdout), alone.status.code()), "{error}");
        assert!(error.contains(&format!("loads a sanitizer ({runtime})")), "{error}");
    }
}

#[test]
fn nobody_is_sent_to_a_tracker_that_would_end_the_program() {
    let workspace = Workspace::new("attach");
    for kind in KINDS {
        let Some((program, _)) = workspace.sanitized(kind) else { continue };
        let mut command = workspace.command(&program);
        let out = workspace.0.path().join(format!("{kind}.out"));
        let stdout = std::fs::File::create(&out).expect("its output");
        let child = Running(command.arg("wait").stdin(Stdio::piped()).stdout(stdout).spawn().expect("it runs"));
        wait_until("its line", || std::fs::read(&out).is_ok_and(|text| text == b"runs\n"));
        let pid = child.id().to_string();
        for arguments in [["attach", &pid], ["report", &pid]] {
            let out = workspace.plimsoll(&arguments);
            let error = text(&out.stderr);
            assert_eq!((out.status.code(), error.lines().count()), (Some(2), 1), "{error}");
            assert!(error.contains("it has a sanitizer in it") && !error.contains("plimsoll run"), "{error}");
        }
        let ledger = text(&workspace.plimsoll(&["explain", &pid]).stdout);
        assert!(ledger.contains("sum") && !ledger.contains("plimsoll attach"), "{ledger}");
        let commands: Vec<&str> = ledger.lines().filter(|line| line.contains("plimsoll run")).collect();
        let is_possible = |line: &&str| line.contains("built without the sanitizer");
        assert!(!commands.is_empty() && commands.iter().all(is_possible), "{ledger}");
    }
}
