//! A JVM that is recorded from its first instruction, before the process has a VM.

use crate::reader::{self, Read, Value};
use crate::stage::{jdk, log_line, must, repository};
use crate::values::sums_hold;
use crate::{Running, Workspace, events, now_ns, wait_until};
use std::io::{BufRead, BufReader, Read as _};
use std::process::Stdio;

/// Whether an instant has what a query of the VM at a later time than this found.
fn has_queried(read: &Read, since_ns: u64) -> bool {
    let of_vm = events(read, "plimsoll.Target").any(|target| target.text("runtime") == "hotspot");
    let mut ledgers = events(read, "plimsoll.Ledger");
    of_vm && ledgers.any(|ledger| ledger.time_ns.saturating_sub(ledger.long("provenanceAge")) > since_ns)
}

#[test]
fn a_vm_that_came_up_later_has_its_heap_and_its_sites_have_their_methods() {
    let workspace = Workspace::new("java");
    let source = repository().join("fixtures/java/recording/Packers.java");
    must(jdk(17).expect("JDK 17 (run .ci/setup)").tool("javac").arg("-d").arg(workspace.path("")).arg(source));
    for major in [17, 25] {
        let java = jdk(major).expect("a JDK (run .ci/setup)").bin("java");
        let mut command = workspace.plimsoll(&["record", "-o", "j.jfr", "--"]);
        command.arg(java).args(["-Xmx128m", "-cp", ".", "Packers"]);
        let mut recorder =
            Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("plimsoll starts"));
        wait_until("the packers", || workspace.path("packed").exists());
        // The program ends once the VM has been queried since then.
        let packed_ns = now_ns();
        let bytes = || std::fs::read(workspace.path("j.jfr")).unwrap_or_default();
        wait_until("a query", || reader::read(&bytes()).is_ok_and(|read| has_queried(&read, packed_ns)));
        std::fs::write(workspace.path("go"), "").expect("a file");
        let mut errors = String::new();
        recorder.stderr.take().expect("piped").read_to_string(&mut errors).expect("UTF-8");
        assert!(recorder.wait().expect("our child").success(), "{errors}");
        let read = workspace.read("j.jfr");

        let target = events(&read, "plimsoll.Target").last().expect("a target");
        assert_eq!(target.text("runtime"), "hotspot", "JDK {major}");
        assert!(target.text("runtimeVersion").starts_with(&major.to_string()), "{target:?}");
        let end = events(&read, "plimsoll.Ledger").last().expect("a ledger");
        let line = |name: &str| {
            let lines = events(&read, "plimsoll.LedgerLine").filter(|line| line.time_ns == end.time_ns);
            lines.filter(|line| line.text("line") == name).map(|line| line.long("resident")).sum::<u64>()
        };
        assert!(line("java-heap") >= 48 << 20, "JDK {major}: {}", line("java-heap"));
        let unknown = line("other-anonymous") + line("remainder");
        assert!(unknown * 10 < end.long("rss"), "JDK {major}: {unknown} of {}", end.long("rss"));

        // The last books: deep stacks, innermost frame first.
        let last = events(&read, "plimsoll.Site").map(|site| site.time_ns).max().expect("sites");
        let total = events(&read, "plimsoll.Total").find(|total| total.time_ns == last).expect("books of that moment");
        let mut packed = (0, 0);
        for site in events(&read, "plimsoll.Site").filter(|site| site.time_ns == last) {
            let stack = methods(&site.fields["stackTrace"]);
            let at = |wanted: &str| stack.iter().position(|name| *name == wanted);
            if let (Some(init), Some(leak), Some(main)) = (at("init"), at("leak"), at("main")) {
                assert!(init > 0 && init < leak && leak < main, "native frames, zip's, ours: {stack:?}");
                packed = (packed.0 + site.long("live"), packed.1 + site.long("error"));
            }
        }
        let (live, error) = packed;
        log_line(&format!(
            "recorded sites, JDK {major}: {live} ± {error} bytes below Packers.leak of {} live",
            total.long("live")
        ));
        // 200 × 268,096 bytes of zlib (deflateInit2: four arrays and the state), sampled each 512 KiB on average.
        assert!(live.abs_diff(200 * 268_096) <= (2 * error).max(1 << 20), "JDK {major}: {live} ± {error}");
        assert!(live * 2 > total.long("live"));
        assert!(sums_hold(&read) > 20);
        // Our own reader finds the same stacks and the same sums.
        let ours =
            workspace.plimsoll(&["report", "j.jfr", "--by", "site", "--format", "folded"]).output().expect("starts");
        let lines = String::from_utf8(ours.stdout).expect("UTF-8");
        let amount = |line: &str| line.rsplit_once(' ').and_then(|(_, n)| n.parse::<u64>().ok()).expect("an amount");
        let leaked = lines.lines().filter(|line| line.contains(";Packers.leak;"));
        let leaked = leaked.filter(|line| line.contains("Packers.main") && line.contains("Deflater.init"));
        assert_eq!(leaked.map(amount).sum::<u64>(), live, "JDK {major}: {lines}");
        assert_eq!(lines.lines().map(amount).sum::<u64>(), total.long("live"), "JDK {major}");
        // Native blocks by the class that requested them.
        let ours = workspace.plimsoll(&["report", "j.jfr", "--by", "class"]).output().expect("starts");
        let classes = String::from_utf8(ours.stdout).expect("UTF-8");
        assert!(classes.lines().any(|line| line.ends_with("java.util.zip.Deflater")), "JDK {major}: {classes}");
        for name in ["j.jfr", "packed", "go"] {
            std::fs::remove_file(workspace.path(name)).expect("a file");
        }
    }
}

/// The VM of this process is queried when its age has doubled, and later about once a minute. The end is between two
/// queries.
#[test]
fn the_last_instant_has_the_owners_of_its_moment() {
    let workspace = Workspace::new("last-owners");
    let java = jdk(25).expect("JDK 25 in /usr/lib/jvm or JAVA_HOME");
    let sources = ["Crowd", "Truth"].map(|name| repository().join(format!("fixtures/java/explain/{name}.java")));
    must(java.tool("javac").arg("-d").arg(workspace.path("")).args(sources));
    let mut command = java.tool("java");
    command
        .args(["-XX:NativeMemoryTracking=summary", "-Xmx64m", "-cp"])
        .arg(workspace.path(""))
        .args(["Crowd", "4", "10"]);
    let mut target = Running(command.stdout(Stdio::piped()).spawn().expect("java"));
    let mut lines = BufReader::new(target.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "it ended before it was ready");
    let recorder = workspace.plimsoll(&["record", &target.pid(), "-o", "o.jfr"]).spawn();
    let mut recorder = Running(recorder.expect("plimsoll starts"));
    let ages_of = |read: &Read| -> Vec<u64> {
        events(read, "plimsoll.Ledger").map(|ledger| ledger.long("provenanceAge")).collect()
    };
    wait_until("instants between two queries", || {
        let written = std::fs::read(workspace.path("o.jfr")).unwrap_or_default();
        reader::read(&written).is_ok_and(|read| {
            let ages = ages_of(&read);
            ages.len() >= 3 && ages.last().is_some_and(|age| *age > 0)
        })
    });
    recorder.signal("INT");
    recorder.0.wait().expect("plimsoll ends");
    let read = workspace.read("o.jfr");
    let ages = ages_of(&read);
    // A query that is a second old at most isn't repeated.
    assert!(ages.last().is_some_and(|age| *age <= 1_000_000_000), "{ages:?}");
    let of_vm = events(&read, "jdk.NativeMemoryUsage").filter(|of| of.text("type").contains("Java Heap"));
    assert!(of_vm.last().is_some(), "the VM answered");
}

/// The method names of a stack.
fn methods(stack: &Value) -> Vec<&str> {
    let Value::Struct(trace) = stack else { return Vec::new() };
    let Value::Array(frames) = &trace["frames"] else { panic!("{trace:?}") };
    frames.iter().map(|frame| frame["method"]["name"].text()).collect()
}
