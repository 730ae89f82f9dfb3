//! Finds the process that an argument of the command line means.
//!
//! ```text
//! 4711                    the PID
//! java, redis-server      name of the program, or the kernel's name of the process
//! Shop, shop.jar          of a JVM: its main class or jar
//! ./shop, /opt/shop       the program that this file is
//! 3f2a9c04b1de            a container: its id, or at least the first 12 digits of it
//! ```
//! If several processes match, the user chooses one on a terminal; without a terminal the error lists them. An argument
//! TARGET may also be a file: it is read as a PID first, then as a file, then as a name.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::count;
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::processes::{self, KnownKinds, Listed, Listing};
use plimsoll_report::process_title::java_first;
use plimsoll_report::words::{cut, printable};

use crate::Failure;
use crate::suggestion::nearest;

/// Most rows of the list from which the user chooses.
const SHOWN: usize = 20;
/// Extensions of the files that `report` and `diff` read.
const FILES: [&str; 3] = [".jfr", ".json", ".seg"];
/// Digits of a container's id that container tools show.
const SHORT_ID: usize = 12;

/// The one process that a command is about.
#[derive(clap::Args)]
pub struct ProcessArgument {
    /// PID or name of the process
    #[arg(value_name = "PID|NAME", required_unless_present = "process", conflicts_with = "process")]
    which: Option<OsString>,
    /// Choose a process whose name looks like an option, or by the id of its container
    #[arg(short = 'p', long = "process", value_name = "PID|NAME|CONTAINER", allow_hyphen_values = true)]
    process: Option<OsString>,
}

impl ProcessArgument {
    pub fn pid(&self, verb: &str) -> Result<u32, Failure> {
        pid_of(self.which.as_deref().or(self.process.as_deref()).unwrap_or_default(), verb)
    }
}

/// The PID of the process that `word` means. `verb` is the name of the command, for messages.
pub fn pid_of(word: &OsStr, verb: &str) -> Result<u32, Failure> {
    find(word, verb, |_| true)
}

/// Like `pid_of`, but if at least one matching process is tracked, those that aren't are ignored.
pub fn tracked_pid_of(word: &OsStr, verb: &str) -> Result<u32, Failure> {
    find(word, verb, |of| of.kind.is_tracked)
}

/// Replaces the name of a process by its PID in a TARGET, which may also be a PID or a file.
pub fn target(word: PathBuf, verb: &str) -> Result<PathBuf, Failure> {
    let text = word.to_string_lossy();
    let is_pid = text.parse::<u32>().is_ok();
    let is_file = is_path(&text) || FILES.iter().any(|end| text.ends_with(end)) || word.symlink_metadata().is_ok();
    if is_pid || is_file {
        return Ok(word);
    }
    Ok(PathBuf::from(tracked_pid_of(word.as_os_str(), verb)?.to_string()))
}

/// Like `pid_of`, but if at least one matching process is `preferred`, the others are ignored.
fn find(word: &OsStr, verb: &str, preferred: impl Fn(&Listed) -> bool) -> Result<u32, Failure> {
    if let Some(pid) = word.to_str().and_then(|text| text.parse().ok()) {
        return Ok(pid);
    }
    let text = word.to_string_lossy();
    let shown = printable(&text);
    if text.is_empty() {
        return Err(format!("give a PID or a name: plimsoll {verb} PID").into());
    }
    if is_number(&text) && !is_container(&text) {
        return Err(format!("no process {shown}").into());
    }
    let deadline = Deadline::after(LOOK);
    let Listing { mut all, is_whole } = processes::list(&mut KnownKinds::default(), deadline);
    all.retain(|of| of.identity.pid != std::process::id());
    let mut found = matching(word, &text, &all, deadline);
    if found.iter().any(|of| preferred(of)) {
        found.retain(|of| preferred(of));
    }
    match found.as_slice() {
        [] | [_] if !is_whole => {
            Err(format!("cannot tell which process is '{shown}': not all could be read. Name its PID").into())
        }
        [] => Err(absent(&text, &all, verb)),
        [one] => Ok(one.identity.pid),
        several => choose(several, &shown, verb),
    }
}

fn matching<'l>(word: &OsStr, text: &str, all: &'l [Listed], deadline: Deadline) -> Vec<&'l Listed> {
    if is_path(text) {
        let path = Path::new(word).canonicalize().ok();
        let runs_it = |of: &&Listed| path.is_some() && processes::executable_of(of.identity.pid, deadline) == path;
        return all.iter().filter(runs_it).collect();
    }
    if is_container(text) {
        let id = text.to_ascii_lowercase();
        let is_in =
            |of: &&Listed| processes::container_of(of.identity.pid, deadline).is_some_and(|own| own.starts_with(&id));
        let inside: Vec<&Listed> = all.iter().filter(is_in).collect();
        if !inside.is_empty() {
            return inside;
        }
    }
    all.iter().filter(|of| names(of).iter().any(|name| *name == text)).collect()
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_path(text: &str) -> bool {
    text.contains('/')
}

fn is_container(text: &str) -> bool {
    (SHORT_ID..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// All names by which an argument can mean the process `of`.
pub fn names(of: &Listed) -> Vec<String> {
    let mut names = vec![of.name.clone()];
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    // A process can overwrite its command line (setproctitle): `nginx: worker process`, `postgres: writer`.
    let first = of.command.first().map(|first| first.split([' ', ':']).next().unwrap_or(first));
    names.extend(first.map(base));
    if of.kind.is_jvm {
        let what = java_first(&of.name, &of.command);
        // `java_first` begins with a main class, MODULE/CLASS, or a jar.
        if let Some(main) = what.split(' ').next() {
            names.push(main.to_owned());
            names.push(base(main));
            names.push(base(main).trim_end_matches(".jar").trim_end_matches(".java").to_owned());
            names.extend(main.rsplit(['.', '/']).next().filter(|_| !main.ends_with(".jar")).map(str::to_owned));
        }
    }
    names.retain(|name| !name.is_empty());
    names.dedup();
    names
}

/// The error if no process matches: proposes the process with the most similar name.
fn absent(text: &str, all: &[Listed], verb: &str) -> Failure {
    let shown = printable(text);
    // These commands also read files, and their processes should be tracked.
    let of_files = matches!(verb, "report" | "diff");
    let list = match verb {
        "watch" => "List the processes: plimsoll watch",
        _ if of_files => "List the tracked processes: plimsoll doctor",
        _ => "List the processes: plimsoll explain",
    };
    if is_path(text) {
        return format!("no process runs '{shown}'. {list}").into();
    }
    if is_number(text) {
        return format!("no process {shown}").into();
    }
    if is_container(text) {
        return format!("no container has the id '{shown}', and no process has that name").into();
    }
    let none = format!("{} is named '{shown}'", if of_files { "no file and no process" } else { "no process" });
    let alike = all.iter().flat_map(|of| names(of).into_iter().map(move |name| (of, name)));
    match nearest(text, alike, |(_, name)| name) {
        Some((of, name)) => format!("{none}. Did you mean '{}' ({})?", printable(&name), of.identity.pid).into(),
        None if verb == "record" => format!("{none}. To start a program: plimsoll record -- {shown}").into(),
        None => format!("{none}. {list}").into(),
    }
}

/// One row of a list: PID, RSS, kind and command.
pub fn row(of: &Listed, columns: usize) -> String {
    let kind = match (of.kind.is_jvm, of.kind.is_tracked) {
        (true, true) => "JVM, tracked  ",
        (true, false) => "JVM  ",
        (false, true) => "tracked  ",
        (false, false) => "",
    };
    let command = match (of.command.is_empty(), of.kind.is_jvm) {
        (true, _) => format!("({})", of.name),
        (false, true) => java_first(&of.name, &of.command),
        (false, false) => one_line(&of.command),
    };
    let head = format!("{:>8}  {:>9}  {kind}", of.identity.pid, of.rss.to_string());
    format!("{head}{}", cut(&command, columns.saturating_sub(head.chars().count()).max(20)))
}

fn choose(several: &[&Listed], shown: &str, verb: &str) -> Result<u32, Failure> {
    let number = format!("{} processes", count(several.len() as u64));
    let rows: Vec<String> = several.iter().take(SHOWN).map(|of| row(of, 100)).collect();
    let more = several.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("\n          and {more} smaller ones") } else { String::new() };
    let list = format!("{}{more}", rows.join("\n"));
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(format!("{number} match '{shown}'. Give the PID of one: plimsoll {verb} PID\n{list}").into());
    }
    let mut stderr = io::stderr();
    let _ = writeln!(stderr, "{number} match '{shown}':\n{list}");
    let _ = write!(stderr, "PID of one of them, Enter for the first: ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer).unwrap_or(0);
    let answer = answer.trim();
    match several.iter().find(|of| of.identity.pid.to_string() == answer) {
        Some(of) => Ok(of.identity.pid),
        None if answer.is_empty() && read > 0 => Ok(several[0].identity.pid),
        None => Err(format!("'{}' isn't one of these PIDs", printable(answer)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::units::Bytes;
    use plimsoll_process::processes::{Identity, ProcessKind};

    fn listed(name: &str, command: &[&str], is_jvm: bool) -> Listed {
        Listed {
            identity: Identity { pid: 1, start: 1 },
            uid: 0,
            name: name.into(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            rss: Bytes(1),
            kind: ProcessKind { is_jvm, is_tracked: false },
        }
    }

    #[test]
    fn a_process_is_found_by_its_program_and_a_jvm_by_its_main_class_or_jar() {
        let has = |of: &Listed, name: &str| names(of).iter().any(|known| known == name);
        let redis = listed("redis-server", &["/usr/bin/redis-server 127.0.0.1:6379"], false);
        assert!(has(&redis, "redis-server") && !has(&redis, "redis"));
        let jar = listed("java", &["/usr/bin/java", "-Xmx1g", "-jar", "/srv/shop.jar", "8080"], true);
        assert!(["java", "shop.jar", "shop", "/srv/shop.jar"].iter().all(|name| has(&jar, name)), "{:?}", names(&jar));
        let main = listed("java", &["java", "-cp", "x", "org.example.Shop", "8080"], true);
        assert!(has(&main, "Shop") && has(&main, "org.example.Shop"), "{:?}", names(&main));
        assert!(has(&listed("nginx", &["nginx: worker process"], false), "nginx"));
        assert!(has(&listed("kworker", &[], false), "kworker"));
    }

    #[test]
    fn only_a_similar_name_is_proposed() {
        let all = [listed("redis-server", &[], false)];
        assert!(absent("postgres", &all, "explain").0.contains("List the processes: plimsoll explain"));
        assert!(absent("redsi-server", &all, "explain").0.contains("Did you mean 'redis-server' (1)?"));
        assert!(!absent("\x1b[2J", &all, "explain").0.contains('\x1b'));
    }
}
