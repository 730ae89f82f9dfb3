//! Real processes for the tests: built with the machine's compilers, ended with the test.
#![allow(dead_code, reason = "shared with other test programs")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use plimsoll_facts::snapshot::Vma;
use plimsoll_process::proc::parse_smaps;

#[path = "../../../../fixtures/jdks.rs"]
mod jdks;
#[allow(unused_imports, reason = "not every test program has a matrix")]
pub use jdks::{Jdk, is_full, jdk, jdks};

/// A child process that is killed after the test, and what it printed until it was ready.
pub struct Subject {
    pub child: Child,
    pub printed: String,
}

impl Subject {
    /// Starts the command and waits for a line with READY.
    pub fn start(command: &mut Command) -> Subject {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut printed = String::new();
        loop {
            let before = printed.len();
            if lines.read_line(&mut printed).expect("readable") == 0 {
                panic!("ended before READY: {printed}");
            }
            if printed[before..].trim_end().ends_with("READY") {
                break;
            }
        }
        // Keep the pipe open: a subject that continues to print must not die of SIGPIPE.
        child.stdout = Some(lines.into_inner());
        Subject { child, printed }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the file or directory at `path`, once per process. An existing one belongs to an earlier process with the same
/// PID and may be incomplete or old. Only one at a time: a program that another thread is still writing can't be
/// started (ETXTBSY).
fn made(path: PathBuf, make: impl FnOnce(&Path)) -> PathBuf {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if !made.contains(&path) {
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        make(&path);
        made.insert(path.clone());
    }
    path
}

/// Compiles tests/programs/NAME.c into the target directory.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let binary = format!("{name}-{}{}", std::process::id(), flags.concat().replace('/', "_"));
    made(Path::new(env!("CARGO_TARGET_TMPDIR")).join(binary), |binary| {
        let mut cc = Command::new("cc");
        let status = cc.args(["-O1", "-pthread", "-o"]).arg(binary).arg(source).args(flags).status().expect("cc");
        assert!(status.success());
    })
}

/// A native image built by `make native-images`, or from the kit beside the checkout: `app HEAP_MIB DIRECT_MIB
/// UNSAFE_MIB THREADS SECONDS` and `hello HEAP_MIB SECONDS`.
pub fn native_image(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = repository.join("target/native-images").join(name);
    if built.exists() {
        return built;
    }
    let packed = ["..", "../.."].map(|up| repository.join(up).join(format!("shared/subjects/native-image/{name}.xz")));
    let Some(packed) = packed.iter().find(|path| path.exists()) else {
        panic!(
            "no native image {name}: neither ../shared/subjects/native-image nor target/native-images (make native-images)"
        );
    };
    made(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id())), |image| {
        // A shell unpacks it. If this process opened the file for writing, children that other tests start at that
        // moment would have it open too, until they exec. Until then, the file can't be started (ETXTBSY).
        let unpack = "xz -dc \"$1\" >\"$2\" && chmod 755 \"$2\"";
        let mut shell = Command::new("sh");
        assert!(shell.args(["-c", unpack, "sh"]).arg(packed).arg(image).status().expect("sh").success());
    })
}

impl Jdk {
    /// Runs `java FLAGS -cp … NAME ARGUMENTS` for tests/programs/NAME.java, which is compiled first.
    pub fn program(&self, name: &str, flags: &[&str], arguments: &[&str]) -> Command {
        let mut java = self.tool("java");
        java.args(flags).arg("-cp").arg(self.compiled(name)).arg(name).args(arguments);
        java
    }

    pub fn compiled(&self, name: &str) -> PathBuf {
        let classes = format!("{name}-{}-{}", self.major, std::process::id());
        made(Path::new(env!("CARGO_TARGET_TMPDIR")).join(classes), |classes| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.java"));
            let status = self.tool("javac").arg("-d").arg(classes).arg(source).status().expect("javac");
            assert!(status.success());
        })
    }
}

/// The mappings as read by the proc source.
pub fn vmas(pid: u32) -> Vec<Vma> {
    let text = std::fs::read(format!("/proc/{pid}/smaps")).expect("smaps");
    parse_smaps(&text, &[]).vmas
}
