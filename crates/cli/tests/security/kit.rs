//! An attacker, files of root, and programs to attack with.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use crate::child::Running;
use crate::stage::{Scratch, log_line};

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");
/// An ordinary user. The number suffices: nothing in the system needs its name.
pub const MALLORY: u32 = 54_321;

/// Whether this machine lets the test act as another user, in namespaces of its own.
pub fn can(case: &str) -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["-Urm", "true"]).uid(MALLORY).gid(MALLORY).stdin(Stdio::null());
    let can = rustix::process::geteuid().is_root() && probe.output().is_ok_and(|output| output.status.success());
    if !can {
        log_line(&format!("security, {case}: skipped, it takes root and user namespaces"));
    }
    can
}

/// A folder that belongs to mallory.
pub fn of_mallory(scratch: &Scratch, name: &str) -> PathBuf {
    let folder = scratch.path().join(name);
    fs::create_dir_all(&folder).expect("a folder");
    chown(&folder, Some(MALLORY), Some(MALLORY)).expect("root may");
    folder
}

/// A file of root that must stay unchanged.
pub struct Canary {
    pub path: PathBuf,
    inode: u64,
}

const SONG: &[u8] = b"sings";

impl Canary {
    pub fn new(folder: &Path) -> Canary {
        let path = folder.join("canary");
        fs::write(&path, SONG).expect("a file");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("root may");
        // The files are old, because young ones are not pruned.
        let then = SystemTime::now() - Duration::from_secs(3 * 24 * 60 * 60);
        let file = fs::File::options().write(true).open(&path).expect("root may");
        file.set_times(fs::FileTimes::new().set_modified(then).set_accessed(then)).expect("root may");
        let inode = file.metadata().expect("a file").ino();
        Canary { path, inode }
    }

    pub fn inode(&self) -> u64 {
        self.inode
    }

    #[track_caller]
    pub fn sings(&self) {
        let meta = fs::symlink_metadata(&self.path).expect("root's file is still there");
        assert_eq!((meta.ino(), meta.uid(), meta.gid(), meta.mode() & 0o7777), (self.inode, 0, 0, 0o600));
        assert_eq!(fs::read(&self.path).expect("root may"), SONG, "root's file was written to");
    }
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Compiles a C program in a folder where mallory may run it.
pub fn compiled(scratch: &Scratch, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
    let (file, program) = (scratch.path().join(format!("{name}.c")), scratch.path().join(name));
    fs::write(&file, source).expect("written");
    let output = Command::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(&file).args(arguments).output();
    let output = output.expect("cc (run .ci/setup)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("ours");
    program
}

/// Starts a process of mallory's and waits for its first line; without that line the attack is not in place.
pub fn start(command: &mut Command) -> (Running, String) {
    let child = command.uid(MALLORY).gid(MALLORY).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Running(child.spawn().expect("it starts"));
    let mut line = String::new();
    let out = process.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    (process, line.trim().to_owned())
}

/// A command of root, with its own cache and segments, and a time limit.
pub fn roots(scratch: &Scratch, arguments: &[&str]) -> Command {
    let own = scratch.path().join("root-s");
    fs::create_dir_all(own.join("home")).expect("a folder");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", PLIMSOLL]).args(arguments).stdin(Stdio::null());
    command.env("HOME", own.join("home")).env_remove("XDG_CACHE_HOME").env("PLIMSOLL_DIR", own.join("books"));
    command
}

/// A killed JVM of root's may have left its socket under this PID; it would be in the way of every later one.
pub fn clear_socket(pid: &str) {
    let path = format!("/tmp/.java_pid{pid}");
    if std::os::unix::net::UnixStream::connect(&path).is_err() {
        let _ = fs::remove_file(path);
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
