//! Starts the subjects of fixtures/java/incidents, and types remedies.

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

pub use crate::fixture::has;
use crate::fixture::{Explained, Fixture, PLIMSOLL};
use crate::stage::{Jdk, cache, cached, fetch, fetcher, in_short, installed, is_full, jdk, must, repository, vms};

pub const MIB: u64 = 1 << 20;

/// The heap is small and touched from the start, so that what grows is native.
pub const SMALL_HEAP: [&str; 3] = ["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"];
pub const WITH_NMT: &str = "-XX:NativeMemoryTracking=summary";

/// Each subject, and the jars that it needs, by the beginning of their names.
const SUBJECTS: [(&str, &[&str]); 9] = [
    ("Burst", &[]),
    ("Executors", &[]),
    ("Inflaters", &[]),
    ("Lettuce", &["lettuce", "netty", "reactor", "reactive"]),
    ("Lucene", &["lucene"]),
    ("Netty", &["netty"]),
    ("Peak", &[]),
    ("Rocks", &["rocksdbjni"]),
    ("Streams", &["zstd", "snappy", "lz4"]),
];

/// The VMs of a case: in `make test` the one that it names, in `make test-full` all.
pub fn on(major: u32) -> Vec<Jdk> {
    if is_full() {
        vms()
    } else {
        vec![jdk(major).expect("JDK 17 (run .ci/setup), and JDK 25 in /usr/lib/jvm or JAVA_HOME")]
    }
}

/// Jars and classes of all subjects.
fn folder() -> PathBuf {
    let source = repository().join("fixtures/java/incidents");
    let class = |name: &str| source.join(format!("{name}.java"));
    let classes = || SUBJECTS.iter().map(|(name, _)| class(name)).chain([class("Subject")]);
    // Made anew when the sources change; jars are fetched again only when the list of them does.
    let hash = |paths: Vec<PathBuf>| {
        let mut hash = DefaultHasher::new();
        for path in paths {
            std::fs::read(path).expect("a fixture").hash(&mut hash);
        }
        hash.finish()
    };
    let pom = source.join("pom.xml");
    let jars = cached(&format!("incidents-jars-{:016x}", hash(vec![pom.clone()])), |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "-U", "dependency:copy-dependencies", "-f"]).arg(&pom);
        maven.arg(format!("-DoutputDirectory={}", part.display()));
        fetch(maven.arg(format!("-Dmaven.repo.local={}", cache().join("m2").display())), part);
    });
    let made_of = classes().chain([pom.clone()]).collect();
    cached(&format!("incidents-{:016x}", hash(made_of)), |part| {
        let mut compiler = installed().first().expect("a JDK (run .ci/setup)").tool("javac");
        compiler.args(["-nowarn", "--release", "17", "-cp"]).arg(jars.join("*")).arg("-d").arg(part.join("classes"));
        must(compiler.args(classes()));
        std::os::unix::fs::symlink(&jars, part.join("jars")).expect("the cache can be written");
    })
}

/// The jars of a subject that begin with one of these.
pub fn jars(beginnings: &[&str]) -> Vec<PathBuf> {
    let mut jars: Vec<PathBuf> =
        std::fs::read_dir(folder().join("jars")).expect("jars").flatten().map(|entry| entry.path()).collect();
    jars.retain(|path| {
        let name = path.file_name().expect("a file").to_string_lossy();
        beginnings.iter().any(|beginning| name.starts_with(beginning))
    });
    jars.sort();
    jars
}

pub fn command(jdk: &Jdk, options: &[&str], class: &str, arguments: &[&str]) -> Command {
    let (_, needs) = SUBJECTS.iter().find(|(name, _)| *name == class).expect("a subject");
    let path = std::iter::once(folder().join("classes")).chain(jars(needs));
    let path: Vec<String> = path.map(|path| path.display().to_string()).collect();
    let mut command = jdk.tool("java");
    command.args(options).args(["-cp", &path.join(":"), class]).args(arguments);
    command
}

pub fn start_command(command: &mut Command) -> Fixture {
    Fixture::run(command.stdin(Stdio::piped()).stderr(Stdio::null()))
}

/// `options` are the VM's; `environment` is what a remedy sets.
pub fn start(jdk: &Jdk, options: &[&str], class: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Fixture {
    start_command(command(jdk, options, class, arguments).envs(environment.iter().copied()))
}

#[track_caller]
pub fn near(case: &str, what: &str, found: u64, truth: u64) {
    assert!(found.abs_diff(truth) * 100 <= truth * 3, "{case}: {what} is {found}, truth {truth}");
}

pub fn evidence(explained: &Explained, verdict: &str) -> String {
    let list = explained.verdict(verdict)["evidence"].as_array().expect("a list");
    list.iter().map(|line| line.as_str().expect("text")).collect::<Vec<_>>().join("\n")
}

pub fn remedy(explained: &Explained, verdict: &str, which: usize) -> Value {
    explained.verdict(verdict)["remedies"][which].clone()
}

/// The last remedy: a change of the program.
pub fn last<'e>(explained: &'e Explained, verdict: &str) -> &'e Value {
    explained.verdict(verdict)["remedies"].as_array().and_then(|remedies| remedies.last()).expect("a remedy")
}

pub fn how(remedy: &Value) -> &str {
    remedy["how"].as_str().expect("a command")
}

/// Types the remedy's commands into a shell, one after another. Where the remedy says to wait a minute, the program
/// gets load instead.
pub fn typed(fixture: &mut Fixture, remedy: &Value) -> String {
    let folder = |program: &std::path::Path| program.parent().expect("a folder").display().to_string();
    let tools = folder(&installed().first().expect("a JDK (run .ci/setup)").bin("jcmd"));
    let path = format!("{}:{tools}:{}", folder(PLIMSOLL.as_ref()), std::env::var("PATH").expect("a path"));
    let mut printed = Vec::new();
    for command in how(remedy).split(" && ") {
        if command.starts_with("sleep ") {
            (0..3).for_each(|_| fixture.serves());
            continue;
        }
        // Without a terminal `attach` doesn't ask.
        let command = in_short(command).replace("plimsoll attach", "plimsoll attach --yes");
        printed = must(Command::new("sh").args(["-c", &command]).env("PATH", &path));
    }
    String::from_utf8(printed).expect("UTF-8")
}

/// Resident bytes by the kernel's sum.
pub fn rss(fixture: &Fixture) -> u64 {
    rolled_up(fixture.pid(), "Rss:")
}

/// Resident bytes, of shared memory only the share of each mapping (PSS): ZGC of JDK 17 maps its heap three times.
pub fn resident(fixture: &Fixture) -> u64 {
    rolled_up(fixture.pid(), "Pss:")
}

pub fn rolled_up(pid: u32, sum: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let sum = text.lines().find_map(|line| line.strip_prefix(sum)).expect("a sum");
    sum.trim().trim_end_matches(" kB").parse::<u64>().expect("KiB") << 10
}

/// The least and the most bytes that a remedy promises to give back; None where it promises nothing. No promise is
/// wider than ± 30 %.
#[track_caller]
pub fn promised(remedy: &Value) -> Option<(u64, u64)> {
    let (least, most) = (remedy["saving_least_bytes"].as_u64()?, remedy["saving_bytes"].as_u64()?);
    assert!((most - least) * 10 <= (most + least) * 3, "{remedy:#}");
    Some((least, most))
}

/// What the VM's other threads may take or give back between the two readings of RSS. A remedy's interval doesn't
/// include it.
const OTHERS: i64 = MIB as i64;

/// Compares what was saved with what was predicted. If `make bench GROUP=savings` runs the test, writes a row instead:
/// the bench counts the savings outside their bounds, so such a saving must not end the case.
#[track_caller]
pub fn saved(case: &str, remedy: &Value, before: u64, after: u64) {
    let measured = before as i64 - after as i64;
    let promised = promised(remedy);
    if let Some(file) = std::env::var_os("PLIMSOLL_SAVINGS") {
        let mut rows = OpenOptions::new().append(true).create(true).open(file).expect("the file of savings");
        let bounds = promised.map_or("-\t-".to_owned(), |(least, most)| format!("{least}\t{most}"));
        let first_line = how(remedy).lines().next().expect("a line");
        writeln!(rows, "{case}\t{first_line}\t{bounds}\t{before}\t{measured}").expect("the file of savings");
        return;
    }
    if let Some((least, most)) = promised {
        let is_inside = measured >= least as i64 - OTHERS && measured <= most as i64 + OTHERS;
        assert!(is_inside, "{case}: saved {measured} of {before}, promised {least} to {most}: {remedy:#}");
    }
}
