//! Files that claim to be huge: their cost depends on their contents.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::child::Running;
use crate::commands::{LIMIT, Scratch, as_mallory, ended, is_skipped, only_segment, plimsoll};
use crate::stage::log_line;

const PEAK: u64 = 256 << 20;

/// A program with a library beside it; returns the program.
fn program(scratch: &Scratch, flags: &[&str]) -> std::path::PathBuf {
    let mut all = vec!["-shared", "-fPIC", "-DNAME=named"];
    all.extend(flags);
    scratch.compiled("library", "liboversized.so", &all);
    let folder = scratch.0.to_str().expect("UTF-8");
    let path = format!("-Wl,-rpath,{folder}");
    scratch.compiled("caller", "caller", &["-L", folder, "-loversized", &path])
}

fn extend(scratch: &Scratch, name: &str, length: u64) {
    let file = fs::OpenOptions::new().write(true).open(scratch.join(name)).expect("file");
    file.set_len(length).expect("sparse");
}

#[test]
fn a_sparse_library_costs_what_is_in_it() {
    let scratch = Scratch::new("sparse");
    let program = program(&scratch, &["-Wl,--build-id=0x5ab5e0000000000000000000000000000000b1d5"]);
    extend(&scratch, "liboversized.so", 3 << 30);
    let segments = scratch.join("segments");
    let run = ended(plimsoll(&scratch).args(["run", "--dir"]).arg(&segments).arg("--").arg(program), LIMIT);
    assert_eq!(run.code(), Some(0), "{}", run.text);
    assert!(run.peak < PEAK, "{} MiB", run.peak >> 20);
    let segment = only_segment(&segments);
    let report = ended(plimsoll(&scratch).arg("report").arg(segment).args(["--by", "site"]), LIMIT);
    assert_eq!(report.code(), Some(0), "{}", report.text);
    assert!(report.peak < PEAK && report.text.contains("named"), "{} MiB\n{}", report.peak >> 20, report.text);
}

/// Without a build id, a debug file is identified by the checksum of all its bytes.
#[test]
fn a_debug_file_of_a_terabyte_is_not_read() {
    let scratch = Scratch::new("debuglink");
    let program = program(&scratch, &["-Wl,--build-id=none"]);
    fs::write(scratch.join("names.debug"), "nothing yet").expect("file");
    let link = format!("--add-gnu-debuglink={}", scratch.join("names.debug").display());
    let linked = Command::new("objcopy").arg(link).arg(scratch.join("liboversized.so")).status();
    assert!(linked.expect("objcopy").success());
    extend(&scratch, "names.debug", 1 << 40);
    let segments = scratch.join("segments");
    let run = ended(plimsoll(&scratch).args(["run", "--dir"]).arg(&segments).arg("--").arg(program), LIMIT);
    assert_eq!(run.code(), Some(0), "{}", run.text);
    let segment = only_segment(&segments);
    let report = ended(plimsoll(&scratch).arg("report").arg(segment).args(["--by", "site"]), LIMIT);
    assert_eq!(report.code(), Some(0), "{}", report.text);
    assert!(report.peak < PEAK && report.text.contains("named"), "{} MiB\n{}", report.peak >> 20, report.text);
}

/// A process chooses which part of its memory /proc shows as its arguments and its environment. Every verb looks for
/// PLIMSOLL_DIR there, and `doctor` does so in all processes.
#[test]
fn arguments_and_an_environment_of_gigabytes_are_not_read() {
    const NAME: &str = "arguments_and_an_environment_of_gigabytes_are_not_read";
    const SHOWN: u64 = 2 << 30;
    if is_skipped(NAME) {
        return;
    }
    let scratch = Scratch::new("strings");
    let program = scratch.compiled("strings", "strings", &[]);
    let (target, line) = Running::start(as_mallory(&program).arg(SHOWN.to_string()));
    if line != "ready" {
        log_line(&format!("{NAME}: skipped, prctl(PR_SET_MM_MAP): {line}"));
        return;
    }
    let pid = target.pid().to_string();
    for name in ["cmdline", "environ"] {
        let shown = fs::File::open(format!("/proc/{pid}/{name}")).expect("root may");
        assert_eq!(shown.read_at(&mut [0], SHOWN - 1).expect("root may"), 1, "{name} is shorter");
    }
    let verbs: [&[&str]; 4] = [&["doctor"], &["report", &pid], &["explain"], &["explain", &pid]];
    for words in verbs {
        let done = ended(plimsoll(&scratch).args(words), LIMIT);
        assert!(done.peak < SHOWN / 4, "{words:?}: {} MiB\n{}", done.peak >> 20, done.text);
        assert!(words[0] != "report" || done.text.contains("is not tracked"), "{}", done.text);
    }
}
