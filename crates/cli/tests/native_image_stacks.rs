//! Stacks through native images that nobody rebuilt: the stripped, the symbolised and the frame-pointer build of one
//! program give the same. Stacks are complete through images of 21.0 to 25, an unpacked one, a library and Oracle's
//! compiler.

#[path = "subjects/stage.rs"]
#[allow(dead_code, reason = "shared with other test programs")]
mod stage;

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_segment::{CallerFacts, FrameKind, sites, text};
use plimsoll_tracked::segment::parse::Segment;
use plimsoll_tracked::segment::read;
use stage::{Scratch, cached, fetch, fetcher, log_line, must, native_image, npm, repository};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A site: its stack as (file, offset), innermost first, whether it reaches the outermost frame, and its live blocks.
struct Site {
    frames: Vec<(String, u64)>,
    whole: bool,
    count: u64,
    requested: u64,
}

fn sites_of(segment: &Segment) -> Vec<Site> {
    let mut sums: BTreeMap<usize, (i64, i64)> = BTreeMap::new();
    for row in &segment.rows {
        let sum = sums.entry(row.caller as usize).or_default();
        // Another thread may free a block, in a row of its own.
        sum.0 += row.alloc_count as i64 - row.free_count as i64;
        sum.1 += row.alloc_requested as i64 - row.free_requested as i64;
    }
    let file = |address: u64| {
        let module = segment.modules.iter().rev().find(|m| (m.start..m.end).contains(&address));
        module.map_or((String::new(), address), |m| {
            let path = String::from_utf8_lossy(text(&m.path)).into_owned();
            (path.rsplit('/').next().unwrap_or_default().to_owned(), address - m.bias)
        })
    };
    let entries = segment.callers.iter().enumerate().filter(|(_, c)| c.is_site());
    let read = |(index, site): (usize, &CallerFacts)| {
        let nodes: Vec<_> = sites::stack(&segment.frames, site.stack).collect();
        let (count, requested) = sums.get(&index).copied().unwrap_or_default();
        Site {
            whole: nodes.iter().all(|n| n.kind() != FrameKind::Cut),
            frames: nodes.iter().filter(|n| n.kind() == FrameKind::Native).map(|n| file(n.value)).collect(),
            count: u64::try_from(count).expect("never negative"),
            requested: u64::try_from(requested).expect("never negative"),
        }
    };
    entries.map(read).collect()
}

/// Runs a command under the tracker with exact sites; returns the contents of its segment.
fn run(name: &str, command: &[&str], folder: Option<&Path>) -> Segment {
    let scratch = Scratch::new(name);
    let segments = scratch.path().join("segments");
    must(Command::new("mkdir").args(["-m", "700"]).arg(&segments));
    let mut run = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    run.args(["run", "--sites", "exact", "--report", "none", "--dir"]).arg(&segments).arg("--").args(command);
    let output = run.current_dir(folder.unwrap_or(scratch.path())).stdin(Stdio::null()).output().expect("starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let file = fs::read_dir(&segments).expect("listed").flatten().next().expect("a segment").path();
    read::read(&file, Deadline::after(5 * NAMES)).expect("a segment")
}

/// Names of a program's functions by address, from nm.
struct Names(Vec<(u64, String)>);

impl Names {
    fn of(program: &Path) -> Names {
        let text = must(Command::new("nm").args(["-n", "--defined-only"]).arg(program));
        let mut names = Vec::new();
        for line in String::from_utf8_lossy(&text).lines() {
            let mut words = line.split(' ');
            if let (Some(at), Some("t" | "T"), Some(name)) = (words.next(), words.next(), words.next()) {
                names.push((u64::from_str_radix(at, 16).expect("an address"), name.to_owned()));
            }
        }
        Names(names)
    }

    /// `App.main` of `App_main_…` (22 characters) and of `_ZN3App4mainEJv…`.
    fn method(&self, return_address: u64) -> String {
        let after = self.0.partition_point(|(at, _)| *at < return_address);
        let Some((_, name)) = after.checked_sub(1).and_then(|i| self.0.get(i)) else { return String::new() };
        if let Some(rest) = name.strip_prefix("_ZN") {
            let mut parts = Vec::new();
            let mut rest = rest;
            while let Some(digits) = rest.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0) {
                let n: usize = rest[..digits].parse().unwrap_or(0);
                let Some(part) = rest.get(digits..digits + n) else { break };
                parts.push(part.rsplit('.').next().unwrap_or(part).to_owned());
                rest = &rest[digits + n..];
            }
            return parts.join(".");
        }
        match name.rsplit_once('_') {
            Some((front, hash)) if hash.len() == 22 => front.replacen('_', ".", 1),
            _ => name.clone(),
        }
    }
}

/// 6 MiB of heap, 8 direct buffers of 1 MiB, 4 blocks of 1 MiB and 400 of 64 B by Unsafe, 3 threads.
const ARGUMENTS: [&str; 5] = ["6", "8", "4", "3", "0"];

/// Blocks that App's own methods requested, by the innermost App method, and their requested bytes less the headers of
/// 16 B that the image's own NMT adds.
fn by_app(sites: &[Site], names: &Names, image: &str) -> BTreeMap<String, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for site in sites.iter().filter(|s| s.count > 0) {
        let methods = site.frames.iter().filter(|(file, _)| file == image).map(|(_, at)| names.method(*at));
        let methods: Vec<String> = methods.collect();
        let unsafe_or_direct =
            methods.iter().any(|m| m.contains("Unsafe.allocateMemory") || m.contains("Unsafe_allocateMemory"));
        if let Some(own) = methods.iter().find(|m| m.starts_with("App.")).filter(|_| unsafe_or_direct) {
            let sum: &mut (u64, u64) = sums.entry(own.clone()).or_default();
            sum.0 += site.count;
            sum.1 += site.requested - 16 * site.count;
        }
    }
    sums
}

#[test]
fn stacks_of_a_stripped_image_are_whole_and_the_same() {
    let (Some(app), Some(appfp)) = (native_image("app"), native_image("appfp")) else { return };
    let scratch = Scratch::new("stripped");
    // The same file name, so that the stacks can be compared directly.
    let stripped = scratch.path().join("app");
    must(Command::new("strip").arg("-o").arg(&stripped).arg(&app));

    let of = |name: &str, program: &Path| {
        let mut command = vec![program.to_str().expect("a path")];
        command.extend(ARGUMENTS);
        sites_of(&run(name, &command, None))
    };
    let (with, without, fp) = (of("image-names", &app), of("image-stripped", &stripped), of("image-fp", &appfp));
    let names = Names::of(&app);

    // All stacks through App, except those that depend on timing: whether a thread has to wait, and how the heap then
    // grows.
    let of_app = |sites: &[Site]| -> BTreeSet<Vec<(String, u64)>> {
        let methods = |s: &Site| s.frames.iter().filter(|(f, _)| f == "app").map(|(_, at)| names.method(*at)).collect();
        let is_repeatable = |s: &&Site| {
            let methods: Vec<String> = methods(s);
            let of_the_moment = |m: &String| m.ends_with(".park") || m.starts_with("HeapChunkProvider.");
            methods.iter().any(|m| m.starts_with("App.")) && !methods.iter().any(of_the_moment)
        };
        sites.iter().filter(is_repeatable).map(|s| s.frames.clone()).collect()
    };
    let (a, b) = (of_app(&with), of_app(&without));
    assert!(a.len() >= 8, "{} stacks through App", a.len());
    assert_eq!(a, b, "the same to the last offset");

    for (what, sites, image) in
        [("symbolised", &with, "app"), ("stripped", &without, "app"), ("frame pointers", &fp, "appfp")]
    {
        let through: Vec<_> = sites.iter().filter(|s| s.frames.iter().any(|(f, _)| f == image)).collect();
        let cut = through.iter().filter(|s| !s.whole).count();
        assert!(through.len() > 30 && cut == 0, "{what}: {cut} of {} stacks end early", through.len());
        let names = if image == "app" { &names } else { &Names::of(&appfp) };
        let sums = by_app(sites, names, image);
        let (count, bytes) = sums.values().fold((0, 0), |sum, s| (sum.0 + s.0, sum.1 + s.1));
        log_line(&format!("{what}: {} stacks through the image, all whole; of App: {sums:?}", through.len()));
        // 8 direct buffers, 4 + 400 blocks by Unsafe; a direct buffer requests a page or nothing more.
        assert_eq!(count, 8 + 4 + 400, "{what}: {sums:?}");
        let least = (8 + 4) * (1 << 20) + 400 * 64;
        assert!((least..=least + 8 * 8192).contains(&bytes), "{what}: {bytes} B, {sums:?}");
    }
}

/// Of the stacks that begin in or pass through `module`: how many there are, how many end early, and the frames of the
/// deepest.
fn through(segment: &Segment, module: &str) -> (usize, usize, usize) {
    let sites = sites_of(segment);
    let of: Vec<_> = sites.iter().filter(|s| s.frames.iter().any(|(f, _)| f == module)).collect();
    let deepest = of.iter().map(|s| s.frames.len()).max().unwrap_or(0);
    (of.len(), of.iter().filter(|s| !s.whole).count(), deepest)
}

fn whole(what: &str, segment: &Segment, module: &str, least: usize) {
    let (all, cut, deepest) = through(segment, module);
    log_line(&format!("{what}: {all} stacks through {module}, {cut} end early, the deepest has {deepest} frames"));
    assert!(all >= least, "{what}: {all} stacks");
    assert_eq!(cut, 0, "{what}: of {all}");
    assert!(deepest >= 12, "{what}: {deepest} frames at most");
}

#[test]
fn stacks_of_vendor_images_are_whole() {
    for (version, least) in [("20210406.0.0", 20), ("20250407.0.0", 20)] {
        let compiler = npm("google-closure-compiler-linux", version, "package/compiler");
        let scratch = Scratch::new("closure");
        fs::write(scratch.path().join("in.js"), "function f(a) { return a + 1; } console.log(f(2));").expect("written");
        let command = [compiler.to_str().expect("a path"), "--js", "in.js", "--js_output_file", "out.js"];
        let segment = run("closure-stacks", &command, Some(scratch.path()));
        whole(&format!("closure-compiler {version}"), &segment, "compiler", least);
    }
}

/// A C program that loads an image as a library, makes an isolate and lets it allocate.
fn host(folder: &Path) -> PathBuf {
    let program = folder.join("isolate");
    let source = repository().join("fixtures/c/isolate.c");
    must(Command::new("gcc").args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source));
    program
}

#[test]
fn stacks_of_a_library_and_of_oracles_compiler_are_whole() {
    let scratch = Scratch::new("isolate");
    let host = host(scratch.path());
    let host = host.to_str().expect("a path");
    if let Some(library) = native_image("libdemo.so") {
        let segment = run("libdemo", &[host, library.to_str().expect("a path")], None);
        whole("libdemo.so", &segment, "libdemo.so", 10);
    }
    // Oracle GraalVM has another prologue. A download for the test; only the cache keeps it.
    let isolate = cached("js-isolate-24.1.2", |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "-U", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack"]);
        maven.arg("-Dartifact=org.graalvm.js:js-isolate-linux-amd64:24.1.2:jar");
        maven.arg(format!("-DoutputDirectory={}", part.display()));
        maven.arg(format!("-Dmaven.repo.local={}", stage::cache().join("m2").display()));
        // Without a project it leaves its markers in its working directory.
        fetch(maven.current_dir(part), part);
    });
    let library = isolate.join("META-INF/resources/engine/js-isolate-linux-amd64/libvm/libjsvm.so");
    let segment = run("libjsvm", &[host, library.to_str().expect("a path")], None);
    whole("libjsvm.so of Oracle GraalVM 24.1", &segment, "libjsvm.so", 15);
}
