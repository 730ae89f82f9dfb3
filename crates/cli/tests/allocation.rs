//! `report` and `diff` of recordings with allocation events, as a person types them.

mod harness;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use harness::{output_of, plimsoll, scratch};
use stage::{Jdk, jdks};
use std::path::Path;
use std::process::Command;

fn jdk() -> Jdk {
    jdks().pop().expect("a JDK")
}

const TLAB: [&str; 2] = ["jdk.ObjectAllocationInNewTLAB#enabled=true", "jdk.ObjectAllocationOutsideTLAB#enabled=true"];

/// Records `Allocates BOXES START MORE` with JFR's default settings and these. Returns the path of the recording.
fn recorded(name: &str, settings: &[&str], arguments: [&str; 3]) -> String {
    let dir = scratch("allocation", &format!("{name}-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../observer/tests/programs/Allocates.java");
    let run = |command: &mut Command| {
        let output = command.output().expect("starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (jfc, file, classes) = (dir.join(format!("{name}.jfc")), dir.join(format!("{name}.jfr")), dir.join(name));
    run(jdk().tool("javac").arg("-d").arg(&classes).arg(source));
    let mut options = format!("-XX:StartFlightRecording=filename={}", file.display());
    if !settings.is_empty() {
        run(jdk().tool("jfr").arg("configure").args(settings).arg("--output").arg(&jfc));
        options += &format!(",settings={}", jfc.display());
    }
    let mut java = jdk().tool("java");
    java.args(["-Xmx256m", "-XX:+UseSerialGC", "-Xlog:disable", &options, "-cp"]).arg(&classes).arg("Allocates");
    run(java.args(arguments));
    file.display().to_string()
}

#[test]
fn a_recording_is_shown_by_what_the_user_requests() {
    let (before, after) =
        (recorded("before", &TLAB, ["100000", "10", "0"]), recorded("after", &TLAB, ["100000", "10", "7"]));
    let start = "^Allocates\\.doStart$";
    let tree = output_of(&["report", &before, "--by", "site", "--focus", start, "--weight", "calls"]);
    assert!(tree.contains("        10  100.0 %  ████████  Allocates.doStart:"), "{tree}");
    assert!(tree.lines().any(|l| l.starts_with("        10 ") && l.ends_with("  main")), "{tree}");
    let classes = output_of(&["report", &before, "--by", "class", "--focus", start, "--weight", "calls"]);
    assert!(classes.lines().any(|l| l.starts_with("        10  100.0 %") && l.ends_with("  byte[]")), "{classes}");
    let threads = output_of(&["report", &after, "--by", "thread"]);
    assert!(threads.lines().any(|l| l.ends_with("box-maker")), "{threads}");
    let svg = output_of(&["report", &before, "--by", "site", "--format", "svg"]);
    assert!(svg.starts_with("<svg ") && svg.contains("<title>Allocates.doStart\n"), "{svg}");
    let folded = output_of(&["report", &before, "--focus", start, "--weight", "calls", "--format", "folded"]);
    assert_eq!(folded, "Allocates.doStart;Allocates.arrays 10\n");
    let json: serde_json::Value =
        serde_json::from_str(&output_of(&["report", &before, "--by", "site", "--format", "json"])).expect("JSON");
    assert_eq!((&json["schema"], &json["chunks"]), (&"plimsoll.allocations/2".into(), &serde_json::Value::Null));
    let pprof = Path::new(&before).with_extension("pb.gz");
    output_of(&["report", &before, "--by", "site", "--format", "pprof", "-o", &pprof.display().to_string()]);
    assert_eq!(std::fs::read(pprof).expect("written")[..2], [0x1f, 0x8b]);

    let diff = output_of(&["diff", &before, &after, "--by", "site", "--weight", "calls"]);
    let new = diff.find("\nnew: ").expect("new ones");
    let more = diff.find("Allocates.doMore").expect("the new stack");
    assert!(new < more && diff[..more].contains("+7 slow paths"), "{diff}");
    assert!(output_of(&["diff", &before, &after, "--by", "site", "--format", "svg"]).contains("Allocates.doMore"));
    // Without any of these options a recording is shown as curves.
    assert!(!output_of(&["report", &before]).contains("slow paths"));
    // A range that ends before the first allocation.
    assert!(!output_of(&["report", &before, "--by", "site", "--to", "+0s"]).contains("doStart"));
}

#[test]
fn what_cannot_be_shown_is_reported_in_one_sentence() {
    let plain = recorded("plain", &[], ["100000", "10", "0"]);
    let text = output_of(&["report", &plain, "--by", "site"]);
    assert!(text.contains("sampled: "), "{text}");
    assert!(text.contains("jfr configure jdk.ObjectAllocationInNewTLAB#enabled=true"), "{text}");
    // If nothing matches, all samples are elsewhere.
    let none = output_of(&["report", &plain, "--by", "site", "--focus", "NoSuchMethod"]);
    assert!(none.contains("sampled: 0 B in 0 samples"), "{none}");
    assert!(none.contains("below /NoSuchMethod/; ") && !none.contains("; 0 B are elsewhere"), "{none}");
    for (arguments, sentence) in [
        (&["report", &plain, "--by", "module"][..], "--by module: Java code has no modules here"),
        (&["report", &plain, "--by", "site", "--measure", "live"], "there is no 'live' in bytes here, only slow_path"),
        (
            &["report", &plain, "--by", "class", "--measure", "object"],
            "has no jdk.ObjectAllocationInNewTLAB and no jdk.ObjectAllocationOutsideTLAB",
        ),
        (&["report", &plain, "--focus", "("], "--focus (: it isn't a regular expression: unclosed group"),
        (&["report", "1", "--by", "class"], "--by class needs a flight recording"),
    ] {
        let output = plimsoll(arguments);
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && problem.contains(sentence), "{arguments:?}: {output:?}");
    }
}

/// A has slow paths only, as the settings of JDK 11 to 15; B has samples only, as the defaults since.
#[test]
fn recordings_without_a_common_event_are_not_compared() {
    let settings = [&TLAB[..], &["jdk.ObjectAllocationSample#enabled=false"]].concat();
    let slow = recorded("slow-only", &settings, ["100000", "10", "0"]);
    let samples = recorded("samples-only", &[], ["100000", "10", "0"]);
    let expected = format!("'{slow}' has no jdk.ObjectAllocationSample, but '{samples}' has: ");
    for [a, b] in [[&slow, &samples], [&samples, &slow]] {
        let output = plimsoll(&["diff", a, b, "--by", "site"]);
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && problem.contains(&expected), "{output:?}");
        let text = output_of(&["compare", a, b]);
        assert!(text.contains(&format!("\nno call stacks: {expected}")), "{text}");
    }
}

/// The flame graph of mmap calls at start-up, without perf, root or a rebuild: 24 arrays of 1 MiB are 24 slow paths of
/// main, each with a heap chunk of its own.
#[test]
fn slow_paths_of_a_native_image_are_seen_by_the_tracker() {
    let segments = scratch("allocation", &format!("segments-{}", std::process::id()));
    let dir = segments.display().to_string();
    let image = stage::native_image("app").expect("the image `app`").display().to_string();
    output_of(&["run", "--dir", &dir, "--report", "none", "--", &image, "24", "1", "1", "4", "0"]);
    let calls = ["--measure", "mapped", "--weight", "calls"];
    let folded = output_of(&[&["report", &dir, "--by", "site", "--format", "folded"], &calls[..]].concat());
    let count = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        let lines = folded.lines().filter_map(|l| l.rsplit_once(' ')).filter(|(stack, _)| wanted(stack));
        lines.map(|(_, n)| n.parse::<u64>().expect("calls")).sum()
    };
    let is_slow = |stack: &str| stack.contains("ThreadLocalAllocation.slowPathNew");
    let own = count(&|stack| is_slow(stack) && stack.contains("App.main") && stack.contains("allocateUnalignedChunk"));
    assert_eq!(own, 24, "{folded}");
    let slow_paths = count(&is_slow);
    assert!((25..40).contains(&slow_paths), "{slow_paths} of {folded}");
    let text = output_of(&[&["report", &dir, "--by", "site"], &calls[..]].concat());
    let line = format!("slow paths of the Java heap (slowPathNew*): {slow_paths} mapping calls: ");
    let bytes = text.lines().find_map(|l| l.strip_prefix(&line)).unwrap_or_else(|| panic!("{text}"));
    assert!(bytes.starts_with("2") && bytes.ends_with(" MiB of heap chunks"), "{bytes}");
    // The heap is booked as the Java heap, not as the image heap.
    let json: serde_json::Value =
        serde_json::from_str(&output_of(&["report", &dir, "--format", "json"])).expect("JSON");
    let committed = |name: &str| {
        let categories = json["categories"].as_array().expect("categories");
        let of = categories.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        of["committed_bytes"].as_u64().expect("bytes")
    };
    assert!(committed("Java Heap") >= 24 << 20 && committed("Image Heap") > 1 << 20);
    let _ = std::fs::remove_dir_all(segments);
}
