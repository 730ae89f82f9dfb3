//! Attach to programs of other languages than C: C++, Rust, Go with cgo, and native images. Each but the image counts
//! its own blocks (fixtures/attach/).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::{Running, wait_until};
use crate::kit::{Java as Program, fixtures, scratch};
use crate::native::{books, done, own, start};
use crate::stage::{must, native_image};
use crate::{category, counter};

fn built(name: &str, command: &mut Command) -> PathBuf {
    let to = scratch("languages").join(format!("{name}-{}", std::process::id()));
    must(command.arg("-o").arg(&to).arg(fixtures().join("attach").join(name)));
    to
}

fn held(program: &mut Program) -> (u64, u64) {
    let line = program.send("more");
    let mut numbers = line.split(' ').skip(1).map(|n| n.parse().expect("a number"));
    (numbers.next().expect(&line), numbers.next().expect(&line))
}

/// The books have exactly what the program has allocated since the attach.
fn books_are_exact(name: &str, file: &Path) {
    let mut program = start(name, file, &[]);
    for sites in ["exact", "sampled", "exact"] {
        let before = held(&mut program);
        program.done(&["attach", &program.pid(), "--sites", sites]);
        held(&mut program);
        let now = held(&mut program);
        let report = program.report();
        let since = (now.0 - before.0, now.1 - before.1);
        assert_eq!(since.0, 400, "two lines of input");
        assert_eq!(category(&report, &own(file)), since, "{name}: {}", crate::dump(&report));
        assert_eq!(counter(&report, "faults"), 0, "{name}");
        program.done(&["detach", &program.pid()]);
    }
    held(&mut program);
    assert_eq!(program.stderr(), "", "{name}");
}

#[test]
#[ignore = "full: other languages; make test has C, Redis, Python and Node"]
fn books_of_a_cpp_program_are_exact() {
    books_are_exact("languages-cpp", &built("blocks.cc", Command::new("g++").args(["-O1", "-g"])));
}

#[test]
#[ignore = "full: other languages; make test has C, Redis, Python and Node"]
fn books_of_a_rust_program_are_exact() {
    books_are_exact("languages-rust", &built("blocks.rs", Command::new("rustc").args(["--edition=2024", "-g", "-O"])));
}

#[test]
#[ignore = "full: other languages; make test has C, Redis, Python and Node"]
fn books_of_a_go_program_are_exact() {
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"].into_iter().find(|go| Path::new(go).exists());
    let mut go = Command::new(go.expect("go (.ci/setup)"));
    go.env("GOCACHE", scratch("languages").join("go")).env("CGO_ENABLED", "1").env("GOFLAGS", "-mod=mod");
    books_are_exact("languages-go", &built("blocks.go", go.arg("build")));
}

/// The image makes all its blocks before the attach, so the test checks only that it goes on.
#[test]
#[ignore = "full: other languages; make test has C, Redis, Python and Node"]
fn a_native_image_is_entered() {
    let Some(image) = native_image("app") else { return };
    let mut command = Command::new(image);
    // MiB of heap, direct buffers, Unsafe; threads; seconds.
    command.args(["16", "8", "4", "4", "3600"]).env("PLIMSOLL_DIR", scratch("segments-image"));
    let image = Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts"));
    let pid = image.id().to_string();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").count();
    let waits = || {
        let names = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        names.map(name).filter(|name| name.starts_with("worker-")).count() == 4
    };
    wait_until("its threads", waits);
    let before = threads();
    for sites in ["exact", "sampled"] {
        done(&["attach", &pid, "--sites", sites]);
        let report = books(&pid);
        assert!(counter(&report, "import_words") > 5 && counter(&report, "faults") == 0);
        assert_eq!(report["process"]["runtime"], "native-image");
        done(&["detach", &pid]);
    }
    wait_until("the end of the injected thread", || threads() == before);
}
