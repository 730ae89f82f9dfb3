//! Everything that a user's rights do not allow is reported with the right that it takes. It is never reported as
//! missing.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::child::Running;
use crate::commands::{libc_file, only_segment};
use crate::kit::{MALLORY, can, compiled, of_mallory, start, text};
use crate::rights::{LOOKER, PTRACE, Stage};

/// Maps each file that it gets, prints its PID and waits.
const MAPPER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *volatile kept;
int main(int c, char **v) {
    for (int i = 1; i < c; i++)
        if (mmap(0, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, open(v[i], O_RDONLY), 0) == MAP_FAILED) return 1;
    kept = malloc(1000);
    printf("%d\n", getpid()); fflush(stdout);
    for (;;) pause();
}"#;

/// Mallory's program, which no other user may read.
fn mapper(stage: &Stage) -> PathBuf {
    let program = compiled(&stage.scratch, "mapper", MAPPER, &[]);
    chown(&program, Some(MALLORY), Some(MALLORY)).expect("root may");
    fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).expect("root may");
    program
}

/// The gaps that `explain` reports: reasons and remedies.
fn gaps(stage: &Stage, column: (u32, &str), pid: &str) -> Vec<(String, String)> {
    let output = stage.run(column, &["explain", "--format", "json", pid]);
    assert!(output.status.success(), "{column:?}: {}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |gap: &Value, key: &str| gap[key].as_str().expect("text").to_owned();
    let gaps = report["gaps"].as_array().expect("gaps").iter();
    gaps.map(|gap| (text(gap, "reason"), text(gap, "remedy"))).collect()
}

#[test]
fn a_file_that_may_not_be_read_is_a_gap() {
    if !can("refused files") {
        return;
    }
    let stage = Stage::new();
    let folder = of_mallory(&stage.scratch, "hsperfdata_mallory");
    let files = [folder.join("libjvm.so"), folder.join("1")];
    for file in &files {
        fs::copy(libc_file(), file).expect("copied");
        chown(file, Some(MALLORY), Some(MALLORY)).expect("root may");
        fs::set_permissions(file, PermissionsExt::from_mode(0o600)).expect("root may");
    }
    let program = mapper(&stage);
    let (_target, pid) = start(Command::new(&program).args(&files));
    let [libjvm, counters] = files.each_ref().map(|file| file.to_str().expect("UTF-8"));
    let refused = gaps(&stage, (LOOKER, PTRACE), &pid);
    let memory = format!("/proc/{pid}/mem");
    for object in [libjvm, counters, program.to_str().expect("UTF-8"), &memory] {
        let gap = refused.iter().find(|(reason, _)| reason.contains(object) && reason.contains("ermission denied"));
        let (_, remedy) = gap.unwrap_or_else(|| panic!("no gap names {object}: {refused:#?}"));
        assert!(remedy.contains("CAP_DAC_READ_SEARCH"), "{object}: {remedy}");
    }
    let roots = gaps(&stage, (0, ""), &pid);
    assert!(!roots.iter().any(|(reason, _)| reason.contains("ermission denied")), "{roots:#?}");
}

/// A tracked program of mallory's, and its segment.
fn tracked(stage: &Stage) -> (Running, String, PathBuf) {
    let program = mapper(stage);
    let home = of_mallory(&stage.scratch, &format!("home-{MALLORY}"));
    let books = home.join("books");
    let mut command = Command::new(&stage.plimsoll);
    command.args(["run", "--"]).arg(&program).env("HOME", &home).env("PLIMSOLL_DIR", &books);
    let (process, pid) = start(command.env_remove("XDG_CACHE_HOME"));
    let segment = only_segment(&books);
    (process, pid, segment)
}

/// Gives the segment to another user, as if the process had given up root after its start.
fn hand_over(segment: &Path, to: u32) {
    chown(segment, Some(to), Some(to)).expect("root may");
    fs::set_permissions(segment, PermissionsExt::from_mode(0o600)).expect("root may");
}

#[test]
fn a_segment_that_may_not_be_read_is_not_taken_for_none() {
    if !can("a refused segment") {
        return;
    }
    let stage = Stage::new();
    let (_target, pid, segment) = tracked(&stage);
    hand_over(&segment, 0);
    let report = stage.run((MALLORY, ""), &["report", &pid]);
    let stderr = text(&report);
    assert_eq!(report.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains(&format!("process {pid} is tracked, but")) && stderr.contains("ermission denied"),
        "{stderr}"
    );
    let commands = ["sudo", "as root:"].map(|by| format!("Try: {by} plimsoll report {pid}"));
    assert!(commands.iter().any(|command| stderr.contains(command)), "{stderr}");
    let stderr = gaps(&stage, (MALLORY, ""), &pid);
    let segment = segment.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    assert!(stderr.iter().any(|(reason, _)| reason.contains(segment)), "{stderr:#?}");
    assert!(stage.run((0, ""), &["report", &pid]).status.success(), "root may");
}

#[test]
fn what_keeps_names_and_an_ending_from_a_user_is_reported() {
    if !can("refused names") {
        return;
    }
    let stage = Stage::new();
    let (target, _, segment) = tracked(&stage);
    drop(target);
    let copy = stage.scratch.path().join("copy.seg");
    fs::copy(&segment, &copy).expect("copied");
    hand_over(&copy, LOOKER);
    let words = ["report", copy.to_str().expect("UTF-8"), "--by", "caller"];
    let report = stage.run((LOOKER, ""), &words);
    let stderr = text(&report);
    assert!(report.status.success(), "{stderr}");
    let program = stage.scratch.path().join("mapper");
    assert!(stderr.contains(&format!("{} can't be read", program.display())), "{stderr}");
    let mut log = Command::new("setpriv");
    log.args(["--reuid", &LOOKER.to_string(), "--clear-groups", "head", "-c1", "/dev/kmsg"]);
    let log = text(&log.output().expect("setpriv"));
    let may_not = log.contains("ermission denied") || log.contains("not permitted");
    assert_eq!(stderr.contains("the kernel's log can't be read"), may_not, "{log}\n{stderr}");
    let roots = text(&stage.run((0, ""), &words));
    assert!(!roots.contains("can't be read: Permission denied"), "{roots}");
}

/// A program that gives up root keeps root's segment: the request for other sites goes through its memory.
#[test]
fn a_segment_of_root_gets_requests_through_the_memory_of_a_program_that_gave_up_root() {
    if !can("a segment of root's") {
        return;
    }
    const GIVES_UP: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int c, char **v) {
            if (setgid(atoi(v[1])) || setuid(atoi(v[1]))) return 1;
            printf("%d\n", getpid()); fflush(stdout);
            for (;;) { free(malloc(4096)); usleep(1000); }
        }"#;
    let stage = Stage::new();
    let program = compiled(&stage.scratch, "gives-up", GIVES_UP, &[]);
    let books = stage.scratch.path().join("books");
    let mut command = Command::new(&stage.plimsoll);
    command.args(["run", "--sites", "off", "--dir"]).arg(&books).arg("--").arg(program).arg(MALLORY.to_string());
    let (_target, pid) = Running::start(command.env("HOME", stage.scratch.path()));
    let segment = only_segment(&books);
    assert_eq!(fs::metadata(&segment).expect("a segment").uid(), 0);
    let control = || {
        let bytes = fs::read(&segment).expect("root may");
        let at = std::mem::offset_of!(plimsoll_segment::Header, control);
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    let before = control();
    let mut attach = Command::new(&stage.plimsoll);
    attach.args(["attach", &pid, "--sites", "exact", "--yes"]).env("PLIMSOLL_DIR", &books);
    let output = attach.env("HOME", stage.scratch.path()).output().expect("plimsoll");
    assert!(output.status.success(), "{}", text(&output));
    assert!(control() != before, "{}", text(&output));
}

/// A child that has become another user loads the library too, so the loader has nothing to say.
#[test]
fn a_follower_that_became_another_user_runs_undisturbed() {
    if !can("another user's child") {
        return;
    }
    let stage = Stage::new();
    let user = LOOKER.to_string();
    let words = ["run", "--follow", "--", "setpriv", "--reuid", &user, "--clear-groups", "sh", "-c", "echo it runs"];
    let follows = stage.run((0, ""), &words);
    assert!(follows.status.success() && follows.stdout == b"it runs\n", "{}", text(&follows));
    assert!(follows.stderr.is_empty(), "{}", text(&follows));
    let alone = [&words[..1], &words[2..]].concat();
    let alone = stage.run((0, ""), &alone);
    assert!(alone.status.success() && alone.stderr.is_empty(), "{}", text(&alone));
}

/// The entrypoint of a container starts as root and ends in `exec gosu redis redis-server`.
#[test]
fn the_report_of_a_program_that_gave_up_root_by_exec_has_its_books() {
    if !can("the books of a program that gave up root") {
        return;
    }
    let stage = Stage::new();
    let program = compiled(
        &stage.scratch,
        "keeper",
        "#include <stdlib.h>\n#include <string.h>\nint main(void) { memset(malloc(3 << 20), 1, 3 << 20); return 7; }",
        &["-fno-builtin"],
    );
    fs::set_permissions(stage.scratch.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let user = LOOKER.to_string();
    // The directory of a user's segments lies in /dev/shm: one of the test's own.
    let own_shm = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec \"$@\"";
    let run = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", own_shm, "sh"]).arg(&stage.plimsoll);
        command.args(["run", "--follow", "--report", "summary", "--report-to", "stdout", "--"]).args(words);
        command.env("HOME", stage.scratch.path().join("home-0")).env_remove("PLIMSOLL_DIR").stdin(Stdio::null());
        command.output().expect("unshare (.ci/setup installs it)")
    };
    let gives_up = ["setpriv", "--reuid", &user, "--clear-groups", program.to_str().expect("UTF-8")];
    let output = run(&gives_up);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = printed.lines().next().unwrap_or_default();
    assert!(first.contains("keeper") && first.contains("exited with status 7"), "{}", text(&output));
    assert!(printed.contains("3.00 MiB") && output.stderr.is_empty(), "{}", text(&output));
    // Both programs of the process, and what the last one allocated.
    let rows =
        printed.lines().skip_while(|line| !line.contains("processes of this run")).collect::<Vec<_>>().join("\n");
    assert!(rows.contains("setpriv") && rows.contains("keeper") && rows.contains("1 process"), "{printed}");
    // A child that ran as another user isn't the process that `run` waits for: nothing proves that it belongs to this
    // run.
    let printed = text(&run(&["sh", "-c", &format!("{}; exit 0", gives_up.join(" "))]));
    let expected = format!("report /dev/shm/plimsoll-{user}   # the newest");
    let row = printed.lines().find(|line| line.starts_with("Missing: 1 process of another user.")).expect(&printed);
    assert!(row.ends_with(&expected), "{row}");
    // The sum has one process, the shell: an exec has replaced setpriv.
    assert!(printed.lines().any(|line| line.contains(" sum ") && line.contains(" 1 process ")), "{printed}");
}

/// The segment of such a process doesn't show who started it.
#[test]
fn the_table_of_processes_tells_of_one_in_a_pid_namespace_of_its_own() {
    if !can("a process in a PID namespace of its own") {
        return;
    }
    let stage = Stage::new();
    let options = ["run", "--follow", "--report", "summary", "--report-to", "stdout", "--"];
    for (command, expected) in [(&["unshare", "-pf", "/bin/true"][..], 1), (&["unshare", "-m", "/bin/true"], 0)] {
        let printed = text(&stage.run((0, ""), &[&options[..], command].concat()));
        assert_eq!(printed.matches("was started from outside its PID namespace").count(), expected, "{printed}");
        // The second has one process, with a program that unshare's exec replaced.
        assert!(printed.contains("1 process (their"), "{printed}");
    }
}

/// Only the same user and root can shorten a live segment, which ends the process. Removing the file does no harm.
#[test]
fn a_segment_that_is_cut_short_ends_its_process_and_a_removed_one_does_not() {
    use std::os::unix::process::ExitStatusExt;
    let scratch = crate::commands::Scratch::new("cut");
    let start = |name: &str| {
        let books = scratch.join(name);
        let mut command = crate::commands::plimsoll(&scratch);
        command.args(["run", "--dir"]).arg(&books).args(["--", "sh", "-c", "echo up; read line; exec true"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("plimsoll");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        (child, only_segment(&books))
    };
    let (mut removed, segment) = start("removed");
    fs::remove_file(segment).expect("ours");
    drop(removed.stdin.take());
    assert!(removed.wait().expect("our child").success());
    let (mut cut, segment) = start("cut");
    fs::File::options().write(true).open(segment).expect("ours").set_len(0).expect("ours");
    drop(cut.stdin.take());
    assert_eq!(cut.wait().expect("our child").signal(), Some(libc::SIGBUS));
}
