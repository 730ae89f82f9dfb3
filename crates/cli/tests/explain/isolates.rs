//! Isolates of a native image that is a library: of GraalJS (`js-isolate`, from Maven Central), in a C program and in a
//! JVM. Truth: the address of the fixture's isolate, and what the kernel counts there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{Fixture, root, skip};
use crate::jdks::jdks;
use crate::stage::{cached, fetch, fetcher, must};

const VERSION: &str = "24.1.2";
const CREATE: &str = "truffle_isolate_create_isolate";
const RESERVATION: u64 = 32 << 30;

fn library() -> PathBuf {
    let name = "js-isolate-linux-amd64";
    let folder = cached(&format!("{name}-{VERSION}"), |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "dependency:copy", &format!("-Dartifact=org.graalvm.js:{name}:{VERSION}")]);
        maven.arg(format!("-DoutputDirectory={}", part.display()));
        fetch(&mut maven, part);
        let jar = part.join(format!("{name}-{VERSION}.jar"));
        must(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&jar).arg(part));
        std::fs::remove_file(jar).expect("the jar was there");
    });
    folder.join(format!("META-INF/resources/engine/{name}/libvm/libjsvm.so"))
}

/// Rss of the anonymous writable mappings inside the isolate that follow the image's view.
fn chunks(pid: u32, isolate: u64, library: &Path) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let (mut after_view, mut counts, mut sum) = (false, false, 0);
    for line in text.lines() {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| Some((hex(start)?, hex(end)?))) {
            let within = start >= isolate && end <= isolate + RESERVATION;
            let large = end - start >= 1 << 30;
            after_view |= within && large && line.contains("---p");
            let is_library = line.ends_with(&*library.to_string_lossy());
            counts = within && after_view && !is_library && line.contains(" rw-p ");
        } else if let (Some(kib), true) = (line.strip_prefix("Rss:"), counts) {
            sum += kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
        }
    }
    sum
}

fn is_in_the_line(fixture: &Fixture, library: &Path) {
    let isolate = fixture.truth("isolate");
    let truth = chunks(fixture.pid(), isolate, library);
    assert!(truth > 0, "an isolate has a chunk");
    let explained = fixture.explained();
    assert_eq!(explained.child("image-heap", "heap chunks"), truth, "{:#}", explained.0["lines"]);
    assert!(explained.reserved("image-heap") >= RESERVATION);
    assert!(explained.reserved("other-anonymous") < 1 << 30, "{:#}", explained.0["lines"]);
}

/// The C program that loads libraries and makes an isolate of each.
fn host(folder: &Path) -> PathBuf {
    let host = folder.join("host");
    let source = root().join("fixtures/isolates/host.c");
    must(Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&host).arg(source).arg("-ldl"));
    host
}

/// A polyglot program has a library for each language. Here the second is a copy of the first.
#[test]
fn isolates_of_two_libraries_are_in_the_line_of_images() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip("isolates of two libraries", "the library is for x86-64");
    }
    let folder = crate::fixture::fresh("isolates-of-two");
    let (library, copy) = (library(), folder.join("libother.so"));
    std::fs::copy(&library, &copy).expect("copied");
    let mut command = Command::new(host(&folder));
    let fixture = Fixture::run(command.arg(&library).arg(CREATE).arg(&copy).arg(CREATE));
    let of = |isolate: &str, library: &Path| chunks(fixture.pid(), fixture.truth(isolate), library);
    let truth = [of("isolate", &library), of("second", &copy)];
    assert!(truth.iter().all(|bytes| *bytes > 0), "{truth:?}");
    let explained = fixture.explained();
    let lines = &explained.0["lines"];
    assert_eq!(explained.child("image-heap", "heap chunks"), truth.iter().sum::<u64>(), "{truth:?}: {lines:#}");
    assert!(explained.reserved("image-heap") >= 2 * RESERVATION, "{lines:#}");
    assert!(explained.reserved("other-anonymous") < 1 << 30, "{lines:#}");
    drop(fixture);
    std::fs::remove_dir_all(folder).expect("the folder is there");
}

#[test]
fn an_isolate_in_a_c_program_is_in_the_line_of_images() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip("isolates of libjsvm.so", "the library is for x86-64");
    }
    let folder = crate::fixture::fresh("isolate-host");
    let library = library();
    let fixture = Fixture::run(Command::new(host(&folder)).arg(&library).arg(CREATE));
    is_in_the_line(&fixture, &library);
    drop(fixture);
    std::fs::remove_dir_all(folder).expect("the folder is there");
}

#[test]
fn an_isolate_in_a_jvm_is_in_the_line_of_images() {
    let Some(jdk) = jdks().iter().find(|jdk| jdk.has_foreign_functions() && cfg!(target_arch = "x86_64")) else {
        return skip("isolates in a JVM", "needs x86-64 and a JDK of 22 or later, which calls libraries from Java");
    };
    let library = library();
    let mut java = jdk.tool("java");
    java.args(["-XX:+UseSerialGC", "-Xmx64m", "-XX:-UsePerfData", "--enable-native-access=ALL-UNNAMED"]);
    let fixture = Fixture::run(java.arg(root().join("fixtures/isolates/Host.java")).arg(&library).arg(CREATE));
    is_in_the_line(&fixture, &library);
}
