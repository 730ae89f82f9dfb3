//! A second user, folders, attackers compiled from C, and commands with a time limit.

use crate::child::Running;
use crate::kit::{MALLORY, PLIMSOLL};
use crate::stage::log_line;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// A command that takes longer hangs, even on a machine that runs other tests.
pub const LIMIT: Duration = Duration::from_secs(60);

/// True: this machine cannot run the test. It has been reported.
pub fn is_skipped(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        log_line(&format!("{test}: skipped, only root can run it, since a second user is needed"));
    }
    !is_root
}

/// A folder that all users can reach; removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("plimsoll-security-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("scratch folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        Scratch(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A folder inside it that belongs to the attacker.
    pub fn of_mallory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).expect("folder");
        chown(&path, Some(MALLORY), Some(MALLORY)).expect("chown");
        path
    }

    /// Compiles `attacks/NAME.c` into `to`.
    pub fn compiled(&self, name: &str, to: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security/attacks").join(format!("{name}.c"));
        let to = self.join(to);
        let status = Command::new("cc").args(["-O1", "-o"]).arg(&to).arg(source).args(flags).status();
        assert!(status.expect("cc").success(), "{name}.c");
        to
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Running {
    /// Starts it and waits for its first line.
    pub fn start(command: &mut Command) -> (Running, String) {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let line = first_line(child.stdout.take().expect("piped"));
        (Running(child), line)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

fn first_line(stdout: ChildStdout) -> String {
    use io::BufRead;
    let mut line = String::new();
    io::BufReader::new(stdout).read_line(&mut line).expect("a line");
    line.trim().to_string()
}

/// A program run as the attacker.
pub fn as_mallory(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(MALLORY).gid(MALLORY).env("HOME", "/nonexistent");
    command
}

pub struct Ended {
    pub status: ExitStatus,
    pub text: String,
    /// The highest resident bytes.
    pub peak: u64,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// plimsoll with a private cache in `scratch`.
pub fn plimsoll(scratch: &Scratch) -> Command {
    let mut command = Command::new(PLIMSOLL);
    command.env("XDG_CACHE_HOME", scratch.join("cache")).env_remove("PLIMSOLL_DIR");
    command
}

/// Runs a command to its end. A command that exceeds the limit is killed and fails the test.
pub fn ended(command: &mut Command, limit: Duration) -> Ended {
    let output = tempfile();
    let out = output.try_clone().expect("clone");
    let err = output.try_clone().expect("clone");
    let began = Instant::now();
    let mut child = Running(command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("it starts"));
    let mut peak = 0;
    loop {
        peak = peak.max(most_resident(child.pid()));
        if let Some(status) = child.0.try_wait().expect("wait") {
            return Ended { status, text: read_back(&output), peak };
        }
        let printed = || read_back(&output);
        assert!(began.elapsed() < limit, "{command:?} hangs: it was killed after {limit:?}; it printed: {}", printed());
        thread::sleep(Duration::from_millis(2));
    }
}

/// The peak of the process's current program. ru_maxrss is not enough: it starts with the parent's peak.
fn most_resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib * 1024)
}

/// A file without a name, because a pipe would fill up.
fn tempfile() -> fs::File {
    let name = c"output";
    rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("memfd").into()
}

fn read_back(file: &fs::File) -> String {
    use std::os::unix::fs::FileExt;
    let length = file.metadata().map_or(0, |meta| meta.len()) as usize;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).expect("memory");
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn fifo(path: &Path) {
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    );
    made.expect("mkfifo");
}

/// The C library of this program: an object that every machine has.
pub fn libc_file() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let name = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    name.map(PathBuf::from).find(|path| path.ends_with("libc.so.6")).expect("a C library")
}

/// The one segment in a folder.
pub fn only_segment(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).expect("segments").map(|entry| entry.expect("entry").path());
    let mut segments = entries.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    let found = segments.next().expect("a segment");
    assert_eq!(segments.next(), None);
    found
}
