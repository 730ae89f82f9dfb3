//! `plimsoll watch` on a real terminal: tmux draws it, and the tests read the screen as a person would.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[path = "harness/tmux.rs"]
mod tmux;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use child::wait_until;
use tmux::Terminal;

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

impl Terminal {
    /// Runs `plimsoll watch` in a terminal of that size. When it has ended, the terminal shows its status and whether
    /// the terminal's own modes are back.
    fn start(name: &str, size: (u16, u16), arguments: &str) -> Terminal {
        Terminal::with("", name, size, arguments)
    }

    /// `variables`: of the environment, `NAME=value`.
    fn with(variables: &str, name: &str, size: (u16, u16), arguments: &str) -> Terminal {
        let terminal = Terminal::new(&format!("watch-{name}"));
        let script = format!(
            "cd '{}'; {variables} '{PLIMSOLL}' watch {arguments}; echo left-$?; stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e echo; sleep 1000",
            terminal.folder().display()
        );
        terminal.run(size, &script);
        terminal
    }

    fn has_left(&self, status: u8) {
        let screen = self.shows(&[&format!("left-{status}"), "icanon", "echo"]);
        assert!(!screen.contains("q quit"), "the screen before watch is back:\n{screen}");
    }
}

/// A program that takes 1 MiB ten times a second, up to 600 MiB. Killed when dropped.
struct Leak(Child);

impl Leak {
    fn start(name: &str) -> Leak {
        let script = "import time\nheld = []\nwhile len(held) < 600:\n    held.append(bytearray(1 << 20))\n    time.sleep(0.1)\ntime.sleep(1000)\n";
        // The first argument is the name in the list.
        let mut command = Command::new("python3");
        Leak(command.args(["-c", script, name]).stdin(Stdio::null()).spawn().expect("python3"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Leak {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_leak_is_seen_marked_recorded_and_its_end_stays() {
    let mut leak = Leak::start("leak");
    let pid = leak.pid();
    let terminal = Terminal::start("leak", (80, 24), &format!("{pid} --limit 2g"));
    let screen = terminal.shows(&["sum = RSS", "glibc, live", "limit 2.00 GiB", "growth known in", "q quit"]);
    assert_eq!(screen.lines().count(), 24, "{screen}");
    terminal.press(&["b"]);
    terminal.shows(&["baseline: everything is compared"]);
    terminal.press(&["r"]);
    terminal.shows(&[&format!("recording to plimsoll-{pid}-TIME.jfr")]);
    terminal.press(&["s"]);
    terminal.shows(&["line (by change)", "r stop recording"]);
    terminal.press(&["p"]);
    terminal.shows(&["PAUSED"]);
    terminal.press(&["p"]);
    terminal.press(&["Tab"]);
    terminal.shows(&["sites: the process is not tracked", "plimsoll attach"]);
    leak.kill();
    terminal.shows(&[&format!("process {pid}: ended"), "sum"]);
    terminal.press(&["q"]);
    terminal.has_left(0);
    let files = std::fs::read_dir(terminal.folder()).expect("the folder");
    let names: Vec<String> = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    let recordings: Vec<&String> = names.iter().filter(|name| name.ends_with(".jfr")).collect();
    assert_eq!(recordings.len(), 1, "{names:?}");
    let recording = terminal.folder().join(recordings[0]);
    let report = Command::new(PLIMSOLL).arg("report").arg(recording).output().expect("plimsoll");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
}

/// Numbers of the 256-colour palette and backgrounds in a screen that tmux prints with its attributes.
fn colours(screen: &str) -> (BTreeSet<u8>, bool) {
    let (mut colours, mut has_background) = (BTreeSet::new(), false);
    for sequence in screen.split("\u{1b}[").skip(1) {
        let codes = sequence.split('m').next().unwrap_or_default();
        let mut codes = codes.split(';').filter_map(|code| code.parse::<u8>().ok());
        while let Some(code) = codes.next() {
            match code {
                38 => {
                    assert_eq!(codes.next(), Some(5), "{screen}");
                    colours.extend(codes.next());
                }
                // The lower 16 are the user's own, and may be white on white.
                30..38 | 90..98 => panic!("colour {code} of the terminal: {screen}"),
                40..49 | 100..108 => has_background = true,
                _ => {}
            }
        }
    }
    (colours, has_background)
}

/// The colours are those of `palette.rs`, whose test computes their contrast to black and to white, on the terminal's
/// own background. Without colours only weight, underline and reverse are left.
#[test]
fn the_screen_has_the_colours_of_the_palette_or_none() {
    let leak = Leak::start("colours");
    let pid = leak.pid();
    for (variables, option, has_colours) in [("", "auto", true), ("NO_COLOR=1", "auto", false), ("", "never", false)] {
        let arguments = format!("{pid} --limit 2g --color {option}");
        let terminal = Terminal::with(variables, "colours", (120, 40), &arguments);
        terminal.shows(&["sum = RSS", "glibc, live", "limit 2.00 GiB", "q quit"]);
        let (found, has_background) = colours(&terminal.tmux(&["capture-pane", "-p", "-e", "-t", "it"]));
        assert!(found.is_subset(&BTreeSet::from([32, 130, 133, 30, 244, 160, 136, 28])), "{found:?}");
        assert!(!has_background);
        // The bars of at least two groups, and how full the limit is.
        assert_eq!(found.len() >= 3, has_colours, "{variables} --color {option}: {found:?}");
        assert_eq!(found.is_empty(), !has_colours, "{variables} --color {option}: {found:?}");
    }
}

#[test]
fn without_a_terminal_there_is_one_line_a_reading() {
    let leak = Leak::start("lines");
    let pid = leak.pid().to_string();
    let watched = |duration| {
        let arguments = ["watch", &pid, "--interval", "200ms", "--duration", duration];
        let output = Command::new(PLIMSOLL).args(arguments).output().expect("plimsoll");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // On a busy machine, the second reading may come after more than a second.
    let mut texts = ["1s", "60s"].into_iter().map(watched);
    let text = texts.find(|text| text.lines().count() >= 2).expect("two readings");
    assert!(text.lines().all(|line| line.contains("  RSS ")), "{text}");
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()), "{text}");
}

/// The interval is longer than the duration, so only the first and the last reading are shown.
#[test]
fn the_last_reading_is_at_the_end_of_the_duration() {
    let leak = Leak::start("last");
    let pid = leak.pid().to_string();
    let mut command = Command::new("timeout");
    let output = command.args(["120", PLIMSOLL, "watch", &pid, "--interval", "1h", "--duration", "500ms"]).output();
    let output = output.expect("timeout");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2, "{output:?}");
}

/// `timeout` ends a watch that waits for ever.
#[test]
fn without_a_terminal_the_end_of_the_process_ends_the_watch() {
    let mut leak = Leak::start("end");
    let pid = leak.pid().to_string();
    let mut command = Command::new("timeout");
    command.args(["120", PLIMSOLL, "watch", &pid, "--interval", "200ms"]);
    let mut watch = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("timeout");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines().map(|line| line.expect("UTF-8"));
    assert!(lines.next().expect("a reading").contains("  RSS "));
    leak.kill();
    let last = lines.last().expect("the end");
    assert!(last.contains(&format!("  process {pid}: ended")), "{last}");
    assert!(watch.wait().expect("it ends").success());
}

/// `plimsoll watch PID | less`: less takes no more than a page.
#[test]
fn a_signal_ends_a_watch_whose_output_is_full() {
    let leak = Leak::start("full");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let call = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    // write(2) to descriptor 1, on x86-64 and on aarch64. A thread that isn't blocked is `running`.
    let is_full = |pid| ["1 0x1 ", "64 0x1 "].iter().any(|write| call(pid).starts_with(write));
    if call(std::process::id()).is_empty() {
        eprintln!("a full output: skipped, the kernel has no /proc/PID/syscall");
        return;
    }
    let mut fill = Command::new("cat");
    fill.arg("/dev/zero").stdin(Stdio::null()).stdout(writer.try_clone().expect("the same pipe"));
    let mut fill = Leak(fill.spawn().expect("cat"));
    wait_until("a full pipe", || is_full(fill.pid()));
    fill.kill();
    let mut watch = Command::new(PLIMSOLL);
    watch.args(["watch", &leak.pid().to_string(), "--interval", "10ms"]).stdin(Stdio::null()).stdout(writer);
    let mut watch = Leak(watch.spawn().expect("plimsoll"));
    wait_until("a write that blocks", || is_full(watch.pid()));
    let pid = watch.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    wait_until("the end", || watch.0.try_wait().expect("our child").is_some());
    drop(reader);
}

#[test]
#[ignore = "full: waits for the end of the duration"]
fn the_duration_ends_the_watch_of_an_ended_process() {
    let mut leak = Leak::start("duration");
    let pid = leak.pid();
    let terminal = Terminal::start("duration", (80, 24), &format!("{pid} --duration 30s"));
    terminal.shows(&["sum = RSS"]);
    leak.kill();
    terminal.shows(&[&format!("process {pid}: ended"), "sum"]);
    terminal.has_left(0);
}

#[test]
#[ignore = "full: three sizes, and five ways to leave"]
fn every_size_and_every_exit_leaves_the_terminal_as_it_was() {
    let leak = Leak::start("sizes");
    let pid = leak.pid();
    for size in [(120, 40), (80, 24), (40, 10)] {
        let terminal = Terminal::start("sizes", size, &pid.to_string());
        let screen = terminal.shows(&["sum = RSS", "q quit"]);
        assert_eq!(screen.lines().count(), usize::from(size.1), "{screen}");
        terminal.tmux(&["resize-window", "-t", "it", "-x", "60", "-y", "12"]);
        terminal.shows(&["sum = RSS", "s sort"]);
        terminal.press(&["q"]);
        terminal.has_left(0);
    }
    for signal in ["TERM", "HUP", "INT", "QUIT"] {
        let terminal = Terminal::start("signals", (80, 24), &pid.to_string());
        terminal.shows(&["sum = RSS"]);
        let shell = terminal.tmux(&["list-panes", "-t", "it", "-F", "#{pane_pid}"]);
        let children = Command::new("pgrep").args(["-P", shell.trim()]).output().expect("pgrep");
        let child = String::from_utf8_lossy(&children.stdout).trim().to_owned();
        assert!(Command::new("kill").args([&format!("-{signal}"), &child]).status().expect("kill").success());
        terminal.has_left(0);
    }
}

#[test]
#[ignore = "full: a list of all processes, and names that attack the terminal"]
fn the_list_leads_to_a_process_and_shows_hostile_names_as_text() {
    let mut command = Command::new("sleep");
    let hostile = Leak(command.arg0("\u{1b}]0;owned\u{7}\u{1b}[2J").arg("1000").spawn().expect("sleep"));
    let pid = hostile.pid();
    let terminal = Terminal::start("list", (120, 40), "--all");
    terminal.shows(&["PID  process", "Enter look into"]);
    let own = Terminal::start("hostile", (120, 40), &pid.to_string());
    own.shows(&["sum = RSS", "\\u{1b}]0;owned\\u{7}"]);
    // The first of the list is a JVM, if there is one: that of another test, which may have ended.
    let polls = std::cell::Cell::new(0);
    terminal.shows_what("a process", |screen| {
        if polls.replace(polls.get() + 1) % 40 == 0 && screen.contains("Enter look into") {
            terminal.press(&["Enter"]);
        }
        screen.contains("sum") && screen.contains("Esc list")
    });
    terminal.press(&["Escape"]);
    terminal.shows(&["Enter look into"]);
    terminal.press(&["q"]);
    terminal.has_left(0);
}
