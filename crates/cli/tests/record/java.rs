//! A JVM that is recorded from its first instruction, before the process has a VM.

use crate::reader::Value;
use crate::stage::{jdk, log_line, must, repository};
use crate::values::sums_hold;
use crate::{Workspace, events};

#[test]
fn a_vm_that_came_up_later_has_its_heap_and_its_sites_have_their_methods() {
    let workspace = Workspace::new("java");
    let source = repository().join("fixtures/java/recording/Packers.java");
    must(jdk(17).expect("JDK 17 (run .ci/setup)").tool("javac").arg("-d").arg(workspace.path("")).arg(source));
    for major in [17, 25] {
        let java = jdk(major).expect("a JDK (run .ci/setup)").bin("java");
        let mut command = workspace.plimsoll(&["record", "-o", "j.jfr", "--"]);
        command.arg(java).args(["-Xmx128m", "-cp", ".", "Packers"]);
        let output = command.output().expect("plimsoll starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
        std::fs::remove_file(workspace.path("j.jfr")).expect("a recording");
    }
}

/// The method names of a stack.
fn methods(stack: &Value) -> Vec<&str> {
    let Value::Struct(trace) = stack else { return Vec::new() };
    let Value::Array(frames) = &trace["frames"] else { panic!("{trace:?}") };
    frames.iter().map(|frame| frame["method"]["name"].text()).collect()
}
