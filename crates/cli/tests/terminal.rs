//! What a person sees on a terminal, drawn by tmux: the choice among several processes, the line of progress, the
//! pager.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[path = "harness/executable.rs"]
mod executable;
#[path = "harness/tmux.rs"]
mod tmux;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use child::{Running, wait_for, wait_until};
use tmux::Terminal;

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// Runs a bash script in 80 columns; `$plimsoll` is the program. At the end the screen shows `left-STATUS`.
fn start(terminal: &Terminal, rows: u16, script: &str) {
    let (folder, file) = (terminal.folder().display(), terminal.folder().join("script"));
    let environment =
        format!("export PLIMSOLL_DIR='{folder}/segments' XDG_CACHE_HOME='{folder}/cache'; unset PAGER LESS");
    fs::write(
        &file,
        format!("cd '{folder}'; plimsoll='{PLIMSOLL}'; {environment}\n{script}\necho left-$?\nsleep 1000\n"),
    )
    .expect("the script");
    terminal.run((80, rows), &format!("bash '{}'", file.display()));
}

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("/proc").uid() == 0
}

#[test]
fn one_of_several_processes_is_chosen() {
    let terminal = Terminal::new("choice");
    let program = terminal.folder().join(format!("c{}", std::process::id()));
    executable::copy("/bin/sleep", &program);
    let running = || Running(Command::new(&program).arg("1000").stdin(Stdio::null()).spawn().expect("it starts"));
    let both = [running(), running()];
    start(&terminal, 60, &format!("$plimsoll explain '{}'", program.display()));
    let screen = terminal.shows(&["PID of one of them, Enter for the first:"]);
    let [_, second] = both.each_ref().map(|one| one.0.id().to_string());
    assert!(both.iter().all(|one| screen.contains(&one.0.id().to_string())), "{screen}");
    terminal.press(&[&second, "Enter"]);
    let screen = terminal.shows(&["left-0"]);
    assert!(screen.contains(&format!("pid {second} ")), "{screen}");
}

/// A report that waits for a pipe, until there is a file `go`. Its line of progress shows the second second or a later
/// one.
fn waits_with_a_line(name: &str) -> Terminal {
    let terminal = Terminal::new(name);
    let saved = "$plimsoll run --report none -- true; $plimsoll report --format json segments >saved";
    let wait = "until [ -e go ]; do sleep 0.05; done; cat saved";
    start(&terminal, 40, &format!("{saved}; clear; ({wait}) | $plimsoll report /dev/stdin"));
    let screen = terminal.shows(&["reading '/dev/stdin' … "]);
    assert!(!screen.contains("… 0 s") && !screen.contains("category"), "{screen}");
    // Each number stands there for a second: a test that gets no processor time may miss any of them.
    let seconds = |screen: &str| screen.split_once("… ")?.1.split_once(" s")?.0.parse::<u64>().ok();
    terminal.shows_what("a later second", |screen| seconds(screen) > Some(1));
    terminal
}

/// The report waits for a pipe, so that the line of progress stays until the test has seen it.
#[test]
fn what_takes_longer_than_a_second_shows_a_line_that_goes_away() {
    let terminal = waits_with_a_line("progress");
    fs::write(terminal.folder().join("go"), "").expect("a file");
    let screen = terminal.shows(&["left-0"]);
    assert!(screen.contains("category") && !screen.contains("reading"), "{screen}");
}

#[test]
fn a_file_gets_no_line_of_progress() {
    let terminal = Terminal::new("silent");
    let saved = "$plimsoll run --report none -- true; $plimsoll report --format json segments >saved";
    let report = "(echo $BASHPID >pid; exec $plimsoll report /dev/stdin 2>errors)";
    start(&terminal, 40, &format!("{saved}; clear; (until [ -e go ]; do sleep 0.05; done; cat saved) | {report}"));
    let file = |name: &str| fs::read_to_string(terminal.folder().join(name));
    let pid = wait_for("its PID", || file("pid").ok()?.trim().parse::<u32>().ok());
    wait_until("plimsoll waits for its input", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains("(plimsoll) S"))
    });
    // A report that began later shows a line meanwhile.
    let _later = waits_with_a_line("beside-silent");
    fs::write(terminal.folder().join("go"), "").expect("a file");
    let screen = terminal.shows(&["left-0"]);
    assert!(screen.contains("category") && !screen.contains("reading"), "{screen}");
    assert_eq!(file("errors").expect("a file"), "");
}

#[test]
fn text_higher_than_the_screen_is_paged_and_other_text_is_not() {
    let terminal = Terminal::new("height");
    start(&terminal, 10, "$plimsoll why arena-retention; echo between-$?; $plimsoll --no-pager why arena-retention");
    let screen = terminal.shows(&["# arena-retention"]);
    assert!(!screen.contains("between") && !screen.contains("left"), "{screen}");
    terminal.press(&["q"]);
    let screen = terminal.shows(&["left-0"]);
    assert!(!screen.contains("# arena-retention"), "without a pager the screen shows the end:\n{screen}");
    let low = Terminal::new("low");
    start(&low, 40, "$plimsoll why");
    let screen = low.shows(&["left-0"]);
    assert!(screen.contains("arena-retention") && screen.contains("unclear"), "{screen}");
}

/// Ctrl-C is the pager's: plimsoll doesn't end below it.
#[test]
fn an_interrupt_does_not_end_plimsoll_below_its_pager() {
    let terminal = Terminal::new("interrupt");
    start(&terminal, 10, "$plimsoll why arena-retention");
    terminal.shows(&["# arena-retention"]);
    terminal.press(&["C-c"]);
    // At an interrupt less drops earlier keys, so the test presses again until the last page shows.
    terminal.shows_what("the last page", |screen| {
        terminal.press(&["G"]);
        screen.contains("(END)")
    });
    terminal.press(&["q"]);
    terminal.shows(&["left-0"]);
}

#[test]
fn the_pager_of_root_is_less_without_its_commands_whatever_the_environment_says() {
    if !is_root() {
        eprintln!("the pager of root: skipped, only root can run it");
        return;
    }
    let terminal = Terminal::new("root");
    // less would run LESSOPEN's program at its start.
    let evil = "export PAGER='touch evil1; cat' LESSOPEN='|touch evil2' LESS='+!touch evil3' LESSSECURE=0";
    start(&terminal, 10, &format!("{evil}; $plimsoll why arena-retention"));
    terminal.shows(&["# arena-retention"]);
    // A shell, an editor, another file, a pipe.
    for key in ["!", "v", "E", "|"] {
        terminal.press(&[key]);
        terminal.shows(&["not available"]);
        terminal.press(&["Enter"]);
        terminal.shows_what("the prompt", |screen| !screen.contains("not available"));
    }
    terminal.press(&["q"]);
    terminal.shows(&["left-0"]);
    for n in 1..=3 {
        assert!(!terminal.folder().join(format!("evil{n}")).exists(), "evil{n}");
    }
}

#[test]
fn the_pager_of_an_ordinary_user_is_run() {
    let terminal = Terminal::new("user");
    let copy = terminal.folder().join("plimsoll");
    executable::copy(PLIMSOLL, &copy);
    for path in [terminal.folder(), &copy] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("our own");
    }
    let user = if is_root() { "setpriv --reuid=65534 --regid=65534 --clear-groups" } else { "" };
    let run = format!("{user} '{}' why arena-retention", copy.display());
    let number = "awk '{ n++ } END { print \"paged \" n \" lines\" }'";
    start(&terminal, 10, &format!("export PAGER=\"{}\"; {run}", number.replace('"', "\\\"").replace('$', "\\$")));
    let screen = terminal.shows(&["left-0"]);
    assert!(screen.contains("paged ") && !screen.contains("arena"), "{screen}");
    for (name, pager) in [("empty", ""), ("cat", "cat"), ("missing", "/nowhere/pager 2>/dev/null")] {
        let other = Terminal::new(name);
        start(&other, 10, &format!("export PAGER='{pager}'; {run}"));
        let screen = other.shows(&["left-0"]);
        assert!(!screen.contains("paged") && screen.lines().count() > 5, "{name}: {screen}");
    }
    assert!(Path::new(&copy).exists());
}

/// Waits until a recording has grown twice since its first instant.
fn grows(file: &Path) {
    let mut sizes = BTreeSet::new();
    wait_until("three sizes of the recording", || {
        sizes.extend(fs::metadata(file).ok().map(|recording| recording.len()).filter(|size| *size > 0));
        sizes.len() >= 3
    });
}

#[test]
fn a_terminal_that_takes_nothing_stops_no_recording() {
    let terminal = Terminal::new("stopped");
    let target = Running(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep"));
    let wait = "stty ixon; echo started; until [ -e go ]; do sleep 0.05; done";
    start(&terminal, 24, &format!("{wait}; $plimsoll record {} --interval 10ms -o it.jfr", target.id()));
    terminal.shows(&["started"]);
    terminal.press(&["C-s"]);
    fs::write(terminal.folder().join("go"), "").expect("a file");
    grows(&terminal.folder().join("it.jfr"));
}

#[test]
fn a_recording_in_the_background_writes_no_line_of_progress() {
    let terminal = Terminal::new("background");
    let target = Running(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep"));
    // With job control, each job has a process group of its own.
    let record = format!("$plimsoll record {} --interval 10ms -o it.jfr", target.id());
    start(&terminal, 24, &format!("set -m; {record} & until [ -e go ]; do sleep 0.05; done"));
    grows(&terminal.folder().join("it.jfr"));
    fs::write(terminal.folder().join("go"), "").expect("a file");
    let screen = terminal.shows(&["left-0"]);
    assert!(!screen.contains("RSS"), "{screen}");
}

/// In raw mode the terminal stops no process. The shell waits until its whole job has stopped, here a script that runs
/// plimsoll.
#[test]
fn ctrl_z_stops_the_whole_job_and_fg_continues_it() {
    let terminal = Terminal::new("job");
    let target = Running(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep"));
    let job = format!("sh -c \"'$plimsoll' watch {}; :\"", target.id());
    start(&terminal, 24, &format!("set -m; {job}; echo stopped-$?; until [ -e go ]; do sleep 0.05; done; fg"));
    terminal.shows(&["sum = RSS"]);
    terminal.press(&["C-z"]);
    // 128 + SIGTSTP.
    terminal.shows(&["stopped-148"]);
    fs::write(terminal.folder().join("go"), "").expect("a file");
    terminal.shows(&["sum = RSS"]);
    terminal.press(&["q"]);
    terminal.shows(&["left-0"]);
}

/// Whoever closes the window of a command that leads its session (`ssh -t HOST plimsoll run …`, a container's process
/// 1 with a terminal) ends the command. Only the leader gets the SIGHUP, and the leader is plimsoll.
#[test]
fn a_hangup_of_the_terminal_ends_the_program() {
    for (name, launch) in [("run", "run --report summary --report-to /dev/null"), ("record", "record -o it.jfr")] {
        let terminal = Terminal::new(&format!("hangup-{name}"));
        let folder = terminal.folder().display();
        let variables = format!("PLIMSOLL_DIR='{folder}/segments' XDG_CACHE_HOME='{folder}/cache'");
        let program = "echo $$ >pid.tmp; mv pid.tmp pid; exec sleep 1000";
        let command = format!("exec env {variables} '{PLIMSOLL}' {launch} -- sh -c '{program}'");
        terminal.run((80, 24), &format!("cd '{folder}'; {command}"));
        let file = terminal.folder().join("pid");
        let program = wait_for("its PID", || fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok());
        let leader = terminal.tmux(&["list-panes", "-t", "it", "-F", "#{pane_pid}"]);
        let leader: u32 = leader.trim().parse().expect("a PID");
        let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let session = stat(leader).and_then(|stat| stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok());
        assert_eq!(session, Some(leader), "{name}: it leads its session");
        assert!(stat(leader).is_some_and(|stat| stat.contains("(plimsoll)")), "{name}");
        terminal.tmux(&["kill-session", "-t", "it"]);
        // The process that inherits them may not reap them, so a zombie counts as ended, too.
        let has_ended = |pid| stat(pid).is_none_or(|stat| stat.contains(") Z ") || stat.contains(") X "));
        wait_until("the end of both", || has_ended(program) && has_ended(leader));
    }
}
