//! Each command takes the name of a process in place of its PID.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/cgroup.rs"]
mod cgroup;
#[path = "harness/executable.rs"]
mod executable;
mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::{PLIMSOLL, scratch};

/// A copy of sleep(1) under a name that no other process has.
struct Sleeper {
    folder: PathBuf,
    name: String,
    running: Vec<Child>,
}

impl Sleeper {
    fn new(test: &str) -> Sleeper {
        let folder = scratch("names", test);
        // The kernel's name of a process has 15 bytes.
        let name = format!("n{}{}", std::process::id(), &test[..3]);
        // The program lies in bin/: plimsoll runs in the folder, where a file of that name would be taken for a target.
        fs::create_dir(folder.join("bin")).expect("a folder");
        executable::copy("/bin/sleep", folder.join("bin").join(&name));
        Sleeper { folder, name, running: Vec::new() }
    }

    fn program(&self) -> PathBuf {
        self.folder.join("bin").join(&self.name)
    }

    /// Starts one, tracked or not, and returns its PID.
    fn start(&mut self, tracked: bool) -> u32 {
        let command = self.command(tracked);
        self.start_command(command)
    }

    fn command(&self, tracked: bool) -> Command {
        let mut command = match tracked {
            true => {
                let mut command = self.plimsoll(&["run", "--"]);
                command.arg(self.program());
                command
            }
            false => Command::new(self.program()),
        };
        command.arg("1000");
        command
    }

    fn start_command(&mut self, mut command: Command) -> u32 {
        let child = command.stdin(Stdio::null()).spawn().expect("the program starts");
        let (pid, began) = (child.id(), Instant::now());
        self.running.push(child);
        // plimsoll becomes the program by exec. The program is tracked once the loader has called the tracker, and then
        // it sleeps.
        let is_it = || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == self.program());
        let sleeps = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "));
        while !is_it() || !sleeps() {
            assert!(began.elapsed() < Duration::from_secs(120), "the program was not started");
            std::thread::sleep(Duration::from_millis(5));
        }
        pid
    }

    fn plimsoll(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PLIMSOLL);
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command.env("XDG_CACHE_HOME", self.folder.join("cache")).env("PLIMSOLL_DIR", self.folder.join("segments"));
        command
    }

    fn printed(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } = self.plimsoll(arguments).output().expect("plimsoll");
        (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn each_command_takes_a_name() {
    let mut sleeper = Sleeper::new("all");
    let pid = sleeper.start(true);
    let name = sleeper.name.clone();
    let pid_of = format!("pid {pid}");
    for (arguments, code, fact) in [
        (&["report", &name][..], 0, pid_of.as_str()),
        (&["report", "-p", &name], 0, &pid_of),
        (&["report", "--format", "html", &name], 0, &pid_of),
        (&["report", "-p", &format!("bin/{name}")], 0, &pid_of),
        (&["diff", &name, &name], 0, "total"),
        (&["explain", &name], 0, &pid_of),
        (&["explain", "-p", &name], 0, &pid_of),
        (&["watch", &name, "--duration", "100ms", "--interval", "50ms"], 0, "RSS"),
        (&["watch", "-p", &name, "--duration", "100ms", "--interval", "50ms"], 0, "RSS"),
        (
            &["record", &name, "-o", "x.jfr", "--duration", "100ms", "--interval", "50ms"],
            0,
            &format!("of process {pid} in"),
        ),
        (
            &["record", "-p", &name, &name, "-o", "y.jfr", "--duration", "100ms", "--interval", "50ms"],
            0,
            &format!("of process {pid} in"),
        ),
        (&["attach", &name, "--sites", "off"], 0, &format!("process {pid} is tracked already")),
        (&["attach", "-p", &name, "--sites", "off"], 0, &format!("process {pid} is tracked already")),
        // What was started with the tracker keeps it: the sentence names the process.
        (&["detach", &name], 0, &format!("process {pid} was started with the tracker")),
        (&["detach", "-p", &name], 0, &format!("process {pid} was started with the tracker")),
    ] {
        let (status, printed) = sleeper.printed(arguments);
        assert_eq!(status, Some(code), "{arguments:?}: {printed}");
        assert!(printed.contains(fact), "{arguments:?}: {fact}: {printed}");
    }
}

#[test]
fn explain_without_a_target_lists_the_processes_biggest_first() {
    let mut sleeper = Sleeper::new("list");
    let (plain, tracked) = (sleeper.start(false), sleeper.start(true));
    let mut big = Command::new("python3");
    big.args(["-c", "held = bytearray(100 << 20); print('up', flush=True); input()"]);
    let mut big = big.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut line = String::new();
    BufReader::new(big.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    sleeper.running.push(big);
    let big = sleeper.running[2].id();
    let (status, printed) = sleeper.printed(&["explain"]);
    assert_eq!(status, Some(0), "{printed}");
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (pid, number, unit) =
            (words.next()?.parse::<u32>().ok()?, words.next()?.parse::<f64>().ok()?, words.next()?);
        let power = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|known| *known == unit)?;
        Some((pid, number * 1024f64.powi(power as i32), words.collect::<Vec<_>>().join(" ")))
    };
    let rows: Vec<(u32, f64, String)> = printed.lines().filter_map(row).collect();
    assert!(rows.is_sorted_by(|one, other| one.1 >= other.1 * 0.99), "{printed}");
    let of = |pid| rows.iter().find(|row| row.0 == pid).unwrap_or_else(|| panic!("{pid}: {printed}"));
    assert!(of(big).1 > 100.0 * 1048576.0 && of(plain).1 < 10.0 * 1048576.0, "{printed}");
    assert!(of(tracked).2.starts_with("tracked ") && !of(plain).2.starts_with("tracked "), "{printed}");
}

/// Container runtimes name the cgroup after the id. A process of the same name outside doesn't count.
#[test]
fn a_containers_id_names_its_process() {
    // It begins with a letter: digits alone would be a PID.
    let id = format!("{:08x}", 0xd000_0000 | std::process::id()).repeat(8);
    let group = match cgroup::Cgroup::make(&format!("docker-{id}")) {
        Ok(group) => group,
        Err(why) => return println!("names in a cgroup: skipped, {why}"),
    };
    let mut sleeper = Sleeper::new("box");
    let outside = sleeper.start(true);
    let inside = sleeper.start_command(group.wrap(&sleeper.command(true)));
    let pid_of = format!("pid {inside}");
    for word in [&id[..12], &id] {
        for (arguments, fact) in [
            (&["explain", word][..], pid_of.as_str()),
            (&["explain", "-p", word], &pid_of),
            (&["report", word], &pid_of),
            (&["report", "-p", word], &pid_of),
            (&["diff", word, &inside.to_string()], "total"),
            (&["watch", "-p", word, "--duration", "100ms", "--interval", "50ms"], "RSS"),
            (
                &["record", word, "-o", "x.jfr", "--duration", "100ms", "--interval", "50ms"],
                &format!("of process {inside} in"),
            ),
            (
                &["record", "-p", word, "-o", "y.jfr", "--duration", "100ms", "--interval", "50ms"],
                &format!("of process {inside} in"),
            ),
        ] {
            let (status, printed) = sleeper.printed(arguments);
            assert_eq!(status, Some(0), "{arguments:?}: {printed}");
            assert!(
                printed.contains(fact) && !printed.contains(&format!("pid {outside} ")),
                "{arguments:?}: {printed}"
            );
        }
    }
}

#[test]
fn of_several_processes_report_takes_the_tracked_one_and_others_are_a_list() {
    let mut sleeper = Sleeper::new("two");
    let (plain, tracked) = (sleeper.start(false), sleeper.start(true));
    let name = sleeper.name.clone();
    let (status, printed) = sleeper.printed(&["report", &name]);
    assert!(status == Some(0) && printed.contains(&format!("pid {tracked}")), "{printed}");
    for verb in ["explain", "record", "watch"] {
        let (status, printed) = sleeper.printed(&[verb, &name]);
        assert!(status == Some(2) && printed.contains(&format!("2 processes match '{name}'")), "{verb}: {printed}");
        let listed = |pid: u32| printed.lines().any(|line| line.trim_start().starts_with(&format!("{pid} ")));
        assert!(listed(plain) && listed(tracked), "{verb}: {printed}");
    }
}

#[test]
fn a_file_comes_before_a_name() {
    let mut sleeper = Sleeper::new("file");
    let pid = sleeper.start(true);
    let name = sleeper.name.clone();
    assert!(sleeper.printed(&["report", &name]).1.contains(&format!("pid {pid}")));
    fs::write(sleeper.folder.join(&name), "no segment").expect("a file");
    let (status, printed) = sleeper.printed(&["report", &name]);
    assert!(status == Some(2) && printed.contains(&name) && !printed.contains(&format!("pid {pid}")), "{printed}");
    let (_, printed) = sleeper.printed(&["report", "-p", &name]);
    assert!(printed.contains(&format!("pid {pid}")), "{printed}");
}

#[test]
fn a_name_that_nobody_has_is_one_sentence() {
    let sleeper = Sleeper::new("none");
    for (arguments, expected) in [
        (
            &["report", "no-such-name"][..],
            "no file and no process is named 'no-such-name'. List the tracked processes: plimsoll doctor",
        ),
        (
            &["diff", "no-such-name", "1"],
            "no file and no process is named 'no-such-name'. List the tracked processes: plimsoll doctor",
        ),
        (&["report", "no-such.jfr"], "'no-such.jfr' is neither a PID nor a file that can be read"),
        (
            &["record", "no-such-name"],
            "no process is named 'no-such-name'. To start a program: plimsoll record -- no-such-name",
        ),
        (&["attach", "no-such-name"], "no process is named 'no-such-name'. List the processes: plimsoll explain"),
        (&["detach", "-p", "-Xmx1g"], "no process is named '-Xmx1g'"),
        (&["explain", "-p", "-Xmx1g"], "no process is named '-Xmx1g'"),
        (&["attach"], "<PID|NAME> is missing. Usage: plimsoll attach"),
        (&["explain", "c0ffee123456"], "no container has the id 'c0ffee123456', and no process has that name"),
        (&["explain", "123456789012"], "no process 123456789012"),
    ] {
        let (status, printed) = sleeper.printed(arguments);
        assert_eq!((status, printed.lines().count()), (Some(2), 1), "{arguments:?}: {printed}");
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
}
