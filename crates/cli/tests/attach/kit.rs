//! Running JVMs to attach to: every JDK of the machine from 17 on, and a JRE 21 from a Python package.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;

use crate::stage;

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attach").join(name);
    std::fs::create_dir_all(&dir).expect("scratch directory");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).expect("private directory");
    dir
}

pub struct Jdk {
    vm: stage::Jdk,
    /// A JRE has no compiler and no headers: those of another JDK are used.
    kit: PathBuf,
}

impl std::ops::Deref for Jdk {
    type Target = stage::Jdk;
    fn deref(&self) -> &stage::Jdk {
        &self.vm
    }
}

/// The JVMs that these tests attach to, oldest first.
pub fn jdks() -> &'static [Jdk] {
    static JDKS: OnceLock<Vec<Jdk>> = OnceLock::new();
    JDKS.get_or_init(|| {
        let oldest = stage::installed().swap_remove(0);
        let with_kit = |vm: stage::Jdk| {
            let own = vm.bin("javac").exists();
            assert!(own || oldest.major < vm.major, "no JDK that compiles for {}", vm.major);
            Jdk { kit: if own { vm.home.clone() } else { oldest.home.clone() }, vm }
        };
        stage::vms().into_iter().map(with_kit).collect()
    })
}

/// Built once in this process: a VM of a concurrent test may be loading the file, and a rebuild would show it a
/// half-written one.
pub fn once(what: &Path, make: impl FnOnce()) {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !made.contains(what) {
        make();
        made.insert(what.to_owned());
    }
}

impl Jdk {
    /// The fixture's classes.
    pub fn classes(&self) -> PathBuf {
        let sources = fixtures().join("java/attach");
        let classes = scratch(&format!("classes-{}-{}", self.major, std::process::id()));
        once(&classes, || {
            let mut javac = Command::new(self.kit.join("bin/javac"));
            javac.args(["-nowarn", "-g", "-d"]).arg(&classes);
            javac.args(["Rounds.java", "Orders.java"].map(|name| sources.join(name)));
            if self.has_foreign_functions() {
                javac.arg(sources.join("Pointers.java"));
            }
            stage::must(&mut javac);
        });
        classes
    }

    /// A fixture's JNI library. Not in the folder of the classes, because tests copy that folder.
    pub fn native(&self, name: &str) -> PathBuf {
        let to = scratch(&format!("libraries-{}-{}", self.major, std::process::id())).join(format!("lib{name}.so"));
        once(&to, || {
            let include = self.kit.join("include");
            let mut gcc = Command::new("gcc");
            gcc.args(["-O1", "-g", "-shared", "-fPIC", "-I"]).arg(&include).arg("-I").arg(include.join("linux"));
            stage::must(gcc.arg(fixtures().join(format!("java/attach/{name}.c"))).arg("-o").arg(&to));
        });
        to
    }

    pub fn java(&self, flags: &[&str], main: &[&str]) -> Command {
        let mut java = Command::new(self.home.join("bin/java"));
        java.args(["-XX:NativeMemoryTracking=off", "-Xmx64m"]).args(flags);
        if self.has_foreign_functions() {
            java.args(["--enable-native-access=ALL-UNNAMED"]);
        }
        java.arg("-cp").arg(self.classes()).args(main);
        java
    }

    pub fn start(&self, name: &str, flags: &[&str]) -> Java {
        Java::start(self.java(flags, &["Rounds"]), &format!("{name}-{}", self.major))
    }

    /// A service that leaks in a JNI library.
    pub fn leaks(&self) -> Java {
        let library = self.native("orders");
        let java = self.java(&[], &["Orders", library.to_str().expect("a path")]);
        Java::start(java, &format!("orders-{}", self.major))
    }
}

/// A running fixture: commands go in, one line comes back for each. Killed when dropped.
pub struct Java {
    pub child: Child,
    /// The PID of the JVM, which may be a child of `child`.
    id: u32,
    input: ChildStdin,
    lines: Receiver<String>,
    pub errors: PathBuf,
}

impl Java {
    pub fn start(mut java: Command, name: &str) -> Java {
        java.env("PLIMSOLL_DIR", scratch(&format!("segments-{name}"))).env("XDG_CACHE_HOME", scratch("cache"));
        // A killed command leaves its request in the VM's working directory. That must not be the source tree, nor the
        // directory of the VM that gets the same PID in another test.
        java.current_dir(scratch(&format!("runs-{name}")));
        Java::start_as_it_is(java, name)
    }

    /// Starts the JVM with the environment that the command has.
    pub fn start_as_it_is(mut java: Command, name: &str) -> Java {
        let errors = scratch("errors").join(name);
        let errors_file = fs::File::create(&errors).expect("a file");
        let started = java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors_file).spawn();
        let mut child = started.unwrap_or_else(|e| panic!("{java:?}: {e}"));
        let (to, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let input = child.stdin.take().expect("piped");
        let mut java = Java { id: child.id(), child, input, lines, errors };
        assert_eq!(java.answer(), "ready", "{name}");
        java.id = innermost(java.id);
        java
    }

    pub fn pid(&self) -> String {
        self.id.to_string()
    }

    pub fn input(&mut self) -> &mut ChildStdin {
        &mut self.input
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    fn answer(&self) -> String {
        let answer = self.lines.recv_timeout(Duration::from_secs(300));
        answer.unwrap_or_else(|_| panic!("no answer; it says: {}", self.stderr()))
    }

    pub fn send(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").expect("the program reads");
        self.answer()
    }

    /// Blocks and bytes of each kind that the program holds, and how many operations it has performed.
    pub fn stop(&mut self) -> Log {
        let line = self.send("stop");
        let numbers: Vec<u64> = line.split(' ').skip(1).map(|n| n.parse().expect("a number")).collect();
        assert_eq!(numbers.len(), 9, "{line}");
        let of = |i: usize| (numbers[2 * i], numbers[2 * i + 1]);
        Log { unsafe_: of(0), pointers: of(1), inflaters: of(2).0, jni: of(3), operations: numbers[8] }
    }

    pub fn plimsoll(&self, arguments: &[&str]) -> Output {
        plimsoll(arguments)
    }

    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.plimsoll(arguments);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {out}{err}{}", self.stderr());
        out.into_owned()
    }

    pub fn report(&self) -> Value {
        serde_json::from_str(&self.done(&["report", &self.pid(), "--by", "caller", "--format", "json"])).expect("JSON")
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.pid()]).status().expect("kill").success());
    }

    /// Stops the VM and waits until all its threads have stopped: each one stops when it is next scheduled, perhaps the
    /// first thread last.
    pub fn halt(&self) {
        self.signal("-STOP");
        crate::wait_until("all threads to halt", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.id)).expect("threads").flatten();
            // A thread that ends meanwhile has no state.
            let mut states = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
            states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 'Z', 'X'])))
        });
    }

    pub fn mappings(&self) -> String {
        fs::read_to_string(format!("/proc/{}/maps", self.id)).expect("maps")
    }

    pub fn is_untouched(&self) -> bool {
        !self.mappings().lines().any(is_trackers)
    }
}

/// Whether a line of /proc/PID/maps belongs to the tracker: its library, a segment, or memory that it named. Only the
/// file name counts: a clone in a folder called plimsoll has that word in every path.
pub fn is_trackers(line: &str) -> bool {
    let name = line.rsplit('/').next().unwrap_or(line).trim_end_matches(" (deleted)");
    name.starts_with("libplimsoll-") || name.ends_with(".seg") || name.contains("[anon:plimsoll")
}

#[test]
fn the_trackers_mappings_are_known_by_their_own_names() {
    let is = |what: &str| is_trackers(&format!("7f00-7f01 r--p 00000000 00:1f 7   {what}"));
    let trackers = ["/a b/libplimsoll-0a1b.so", "/tmp/plimsoll-0/12-34.seg", "/tmp/x.seg (deleted)"];
    assert!(trackers.into_iter().all(is) && is("[anon:plimsoll]"));
    assert!(
        !["/src/plimsoll/target/jdk/lib/libjava.so", "/libplimsoll-1/librounds.so", "[heap]", ""].into_iter().any(is)
    );
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn plimsoll(arguments: &[&str]) -> Output {
    Command::new(PLIMSOLL)
        .args(arguments)
        .env("XDG_CACHE_HOME", scratch("cache"))
        .stdin(Stdio::null())
        .output()
        .expect("plimsoll")
}

/// The program that sets a filter and then runs another.
pub fn launcher() -> PathBuf {
    let to = scratch("native").join(format!("filtered-{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu17", "-O1"]).arg(fixtures().join("c/filtered.c")).arg("-o").arg(&to);
    once(&to, || drop(stage::must(&mut gcc)));
    to
}

/// Whether this process may read filters.
pub fn can_read_filters(case: &str) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
    let has_admin = u64::from_str_radix(capabilities.trim(), 16).expect("hexadecimal") >> 21 & 1 == 1;
    // The first user namespace, in which the kernel wants the capability, maps every number to itself.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let can = has_admin && is_first && status.contains("\nSeccomp:\t0\n");
    if !can {
        stage::log_line(&format!(
            "attach, {case}: skipped, reading a filter takes CAP_SYS_ADMIN in the first user namespace, and no filter"
        ));
    }
    can
}

/// What the program holds, as it reports itself.
#[derive(Debug)]
pub struct Log {
    pub unsafe_: (u64, u64),
    pub pointers: (u64, u64),
    pub inflaters: u64,
    pub jni: (u64, u64),
    pub operations: u64,
}

/// The last process of a chain of only children: the program that unshare, setpriv or the like started.
fn innermost(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    children.split_whitespace().next().map_or(pid, |child| innermost(child.parse().expect("a PID")))
}
