//! Starts a subject, plain or under the tracker, and compares the two: same output, same end, balanced books.

use crate::books::BooksReport;
pub use crate::child::Running;
use crate::stage::{Scratch, log_line};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Limit for a fact on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The program under test. A copy of this one file suffices.
pub fn plimsoll() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_plimsoll"))
}

/// A user that a subject runs as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// From /etc/passwd (`name:x:uid:gid:…`).
    pub fn named(name: &str) -> Option<User> {
        let users = fs::read_to_string("/etc/passwd").ok()?;
        let line = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let mut fields = line.split(':').skip(1);
        Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    }
}

/// Starts subjects: plain, or tracked with segments in a folder.
pub struct Launcher {
    pub segments: Option<PathBuf>,
    sites: &'static str,
    user: Option<User>,
    program: PathBuf,
}

impl Launcher {
    pub fn plain() -> Launcher {
        Launcher { segments: None, sites: "off", user: None, program: plimsoll().to_path_buf() }
    }

    /// `folder` is where segments, the unpacked tracker and a copy of the program go.
    pub fn tracked(folder: &Path, sites: &'static str) -> Launcher {
        let segments = folder.join("segments");
        fs::create_dir_all(&segments).expect("a folder for segments");
        fs::set_permissions(&segments, fs::Permissions::from_mode(0o700)).expect("the owner may");
        Launcher { segments: Some(segments), sites, user: None, program: plimsoll().to_path_buf() }
    }

    /// The same launcher for another user, who owns the folder of segments.
    pub fn for_user(mut self, user: Option<User>, folder: &Path) -> Launcher {
        let Some(user) = user else { return self };
        self.user = Some(user);
        if let Some(segments) = &self.segments {
            chown(segments, Some(user.uid), Some(user.gid)).expect("root may");
            // The build folder is often closed to others.
            self.program = folder.join("plimsoll");
            // cp copies, not this process: a child that another test forks would keep our file open for writing until
            // its exec, and execve(2) would refuse to run it (ETXTBSY).
            let copied = Command::new("cp").arg(plimsoll()).arg(&self.program).status();
            assert!(copied.is_ok_and(|status| status.success()), "the program can be copied");
        }
        self
    }

    /// The command that starts a subject.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match &self.segments {
            None => Command::new(program),
            Some(segments) => {
                let mut command = Command::new(&self.program);
                command
                    .args(["run", "--sites", self.sites, "--follow", "--report", "none", "--retain", "400", "--dir"])
                    .arg(segments);
                command.arg("--").arg(program);
                command
            }
        };
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        if let Some(segments) = &self.segments {
            command.env("XDG_CACHE_HOME", segments.join("cache"));
        }
        command.stdin(Stdio::null());
        command
    }

    /// All segments in the folder.
    pub fn segment_files(&self) -> Vec<PathBuf> {
        let Some(segments) = &self.segments else { return Vec::new() };
        let entries = fs::read_dir(segments).expect("the folder of segments").flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = entries.filter(|path| path.extension() == Some(OsStr::new("seg"))).collect();
        files.sort();
        files
    }

    /// Books of every process that left a segment, each checked.
    pub fn balanced_books(&self, whose: &str) -> Vec<BooksReport> {
        let read = |file: &PathBuf| {
            let books = BooksReport::read(plimsoll(), file.to_str().expect("a UTF-8 path"));
            let whose = format!("{whose}, {}", file.display());
            books.assert_balanced(&whose);
            books.assert_complete(&whose);
            books
        };
        self.segment_files().iter().map(read).collect()
    }

    /// Books of a running subject, through the segment's folder or by PID alone.
    pub fn live_books(&self, child: &Child, whose: &str) -> Option<BooksReport> {
        let books = BooksReport::read(plimsoll(), &self.segment_of(child, whose)?);
        books.assert_balanced(whose);
        Some(books)
    }

    /// The path of the child's segment; None without the tracker.
    pub fn segment_of(&self, child: &Child, whose: &str) -> Option<String> {
        let segments = self.segments.as_ref()?;
        let prefix = format!("{}-", child.id());
        let is_its = |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
        let files = self.segment_files();
        let file = files.iter().find(is_its);
        let file = file.unwrap_or_else(|| panic!("{whose}: no segment of {prefix}… in {}", segments.display()));
        Some(file.to_str().expect("a UTF-8 path").to_owned())
    }
}

impl Running {
    /// The subject inherits none of the test's own output, which a forgotten server would keep open.
    pub fn start(command: &mut Command, output: Stdio) -> Running {
        command.stdout(output).stderr(Stdio::null());
        Running::start_with_errors(command)
    }

    /// As above, but leaves standard output and error as the command has set them.
    pub fn start_with_errors(command: &mut Command) -> Running {
        Running(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e} (run .ci/setup)")))
    }
}

/// The result of a run, to be compared.
pub struct Evidence {
    pub output: Vec<u8>,
    pub status: ExitStatus,
    pub wall: Duration,
}

/// Runs a command to its end. Standard output and error are the evidence, in this order.
pub fn evidence(command: &mut Command) -> Evidence {
    let start = Instant::now();
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e} (run .ci/setup)"));
    let mut all = output.stdout;
    all.extend_from_slice(b"\n--- stderr ---\n");
    all.extend_from_slice(&output.stderr);
    Evidence { output: all, status: output.status, wall: start.elapsed() }
}

/// Waits for a fact about a running subject; fails if the subject ends first.
pub fn wait_for(what: &str, child: &mut Child, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            panic!("{what}: the subject ended before, {status}");
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of a child, with a limit.
pub fn wait_end(what: &str, child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("{what}: did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs the subject plain and tracked, and compares output and end. Returns the checked books.
pub fn compare(
    name: &str,
    user: Option<User>,
    sites: &'static str,
    subject: impl Fn(&Launcher, &Path) -> Evidence,
) -> Vec<BooksReport> {
    let scratch = Scratch::new(name);
    let folder = |which: &str| {
        let path = scratch.path().join(which);
        fs::create_dir(&path).expect("a new folder");
        if let Some(user) = user {
            chown(&path, Some(user.uid), Some(user.gid)).expect("root may");
        }
        path
    };
    let plain = subject(&Launcher::plain().for_user(user, scratch.path()), &folder("plain"));
    let launcher = Launcher::tracked(scratch.path(), sites).for_user(user, scratch.path());
    let tracked = subject(&launcher, &folder("tracked"));

    let ended = |status: ExitStatus| (status.code(), status.signal());
    assert_eq!(
        ended(plain.status),
        ended(tracked.status),
        "{name}: how it ended, plain and tracked\n{}",
        tail(&tracked.output)
    );
    // The two ran in folders of different names; nothing else may differ.
    let plain_output = neutral(&plain.output, scratch.path(), "plain");
    let tracked_output = neutral(&tracked.output, scratch.path(), "tracked");
    if plain_output != tracked_output {
        fs::write(scratch.path().join("plain.txt"), &plain_output).expect("scratch can be written");
        fs::write(scratch.path().join("tracked.txt"), &tracked_output).expect("scratch can be written");
        panic!("{name}: the output differs\n- plain:\n{}\n- tracked:\n{}", tail(&plain_output), tail(&tracked_output));
    }
    let books = launcher.balanced_books(name);
    assert!(!books.is_empty(), "{name}: no segment was left");
    log_line(&line(name, &plain, &tracked, &books));
    if let Some(segments) = &launcher.segments {
        let files = launcher.segment_files();
        let blocks: u64 = files.iter().filter_map(|file| fs::metadata(file).ok()).map(|m| m.blocks() * 512).sum();
        let mode = fs::metadata(segments).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "the folder of segments stays private");
        assert!(blocks <= files.len() as u64 * (64 << 20), "{name}: segments use {blocks} bytes");
    }
    books
}

/// One line with the key figures of all processes of a subject.
fn line(name: &str, plain: &Evidence, tracked: &Evidence, books: &[BooksReport]) -> String {
    let sum = |figure: &str| -> i128 { books.iter().map(|b| b.total.get(figure)).sum() };
    let mut categories: Vec<&str> = books.iter().flat_map(|b| b.categories.keys().map(String::as_str)).collect();
    categories.sort_unstable();
    categories.dedup();
    let operations: u64 = books.iter().map(|b| b.counter("vmap_operations")).sum();
    let seconds = tracked.wall.as_secs_f64();
    format!(
        "subject {name}: {} process(es), {:.2} s plain, {seconds:.2} s tracked, {} blocks allocated, {} mapping operations \
         ({:.0}/s), {} B live at the end, {} categories: {}",
        books.len(),
        plain.wall.as_secs_f64(),
        sum("cumulative_count"),
        operations,
        operations as f64 / seconds,
        sum("live_bytes"),
        categories.len(),
        categories.iter().take(12).copied().collect::<Vec<_>>().join(", "),
    )
}

fn neutral(output: &[u8], scratch: &Path, which: &str) -> Vec<u8> {
    let folder = scratch.join(which);
    let text = String::from_utf8_lossy(output);
    text.replace(folder.to_str().expect("a UTF-8 path"), "FOLDER").into_bytes()
}

fn tail(output: &[u8]) -> String {
    let from = output.len().saturating_sub(4000);
    String::from_utf8_lossy(&output[from..]).into_owned()
}
