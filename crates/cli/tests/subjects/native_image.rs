//! GraalVM native images. The images with their own NMT lie beside the checkout (`../shared/subjects`), or are built by
//! `make native-images`; Google's Closure Compiler comes from npm in three linkages.

use crate::launcher::{Evidence, Launcher, Running, compare, evidence, wait_end, wait_for};
use crate::nmt;
use crate::stage::{jdk, log_line, must, native_image, npm};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Replaces the image's PID, the only part of its output that differs from run to run.
fn without_pid(output: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8_lossy(&output).into_owned();
    let Some((before, after)) = text.split_once("pid=") else { return output };
    format!("{before}pid=N{}", after.trim_start_matches(|c: char| c.is_ascii_digit())).into_bytes()
}

#[test]
fn a_stripped_image_says_hello() {
    let Some(image) = native_image("hello") else { return };
    compare("native-image-hello", None, "off", |launcher, _| {
        let mut seen = evidence(launcher.command(&image).args(["16", "0"]));
        seen.output = without_pid(seen.output);
        seen
    });
}

#[test]
fn an_image_with_nmt_is_held_beside_its_own_report() {
    let Some(image) = native_image("gap") else { return };
    compare("native-image-gap", None, "sampled", |launcher, folder| gap(launcher, &image, folder));
}

/// 200 deflaters, 16 MiB of direct buffers, 16 MiB by Unsafe, 16 MiB of mapped file, 20 threads. It then sleeps until
/// SIGTERM.
fn gap(launcher: &Launcher, image: &Path, folder: &Path) -> Evidence {
    let begin = Instant::now();
    let output = folder.join("stdout");
    let mut command = launcher.command(image);
    command.args(["-XX:+PrintNMTStatistics", "200", "16", "16", "16", "20", "600"]);
    let mut child = Running::start(&mut command, fs::File::create(&output).expect("a file").into());
    let text = || fs::read_to_string(&output).unwrap_or_default();
    wait_for("the image is ready", &mut child, || text().contains("ready"));

    // While it sleeps: its own report through jcmd, and ours on both sides of it.
    let before = launcher.live_books(&child, "native image, idle");
    if let (Some(ours), Some(jdk)) = (before, jdk(25).or_else(|| jdk(17))) {
        let mut jcmd = jdk.tool("jcmd");
        jcmd.arg(child.id().to_string()).arg("VM.native_memory").stderr(Stdio::null());
        let theirs = nmt::native_image(&String::from_utf8_lossy(&must(&mut jcmd)));
        let mut table =
            format!("native image gap, KiB{:>20} {:>8} {:>12} {:>8}\n", "NMT malloc", "count", "ours", "count");
        let mut names: Vec<&String> = theirs.keys().collect();
        names.extend(ours.categories.keys().filter(|name| !theirs.contains_key(*name)));
        for name in names {
            let their = theirs.get(name).copied().unwrap_or_default();
            let our = if name == "Total" { Some(&ours.total) } else { ours.categories.get(name) };
            let (bytes, count) = our.map_or((0, 0), |our| (our.get("requested_bytes") >> 10, our.get("live_count")));
            table += &format!("  {name:30} {:>8} {:>8} {bytes:>12} {count:>8}\n", their.malloc >> 10, their.count);
        }
        log_line(&table);
        let total = theirs.get("Total").expect("a total");
        assert!(total.malloc > 30 << 20, "NMT must count 32 MiB of direct buffers and Unsafe");
        // NMT rounds down to KiB, so our exact figure of the same memory is never less.
        assert!(ours.total.get("requested_bytes") >= i128::from(total.malloc), "every byte it sees we see");
        assert!(ours.total.get("live_count") >= i128::from(total.count), "every block it sees we see");
        assert!(ours.total.get("committed_bytes") >= i128::from(total.mapped), "every mapping it sees we see");
        // Category by category, by the VM's own header of each block. The counts are equal. The bytes differ by these
        // headers (16 B each, which NMT books under another name) and by NMT's rounding to KiB.
        for name in ["Unsafe", "GC", "JNI"] {
            let (their, our) = (&theirs[name], &ours.categories[name]);
            assert_eq!(our.get("live_count"), i128::from(their.count), "{name}: blocks\n{table}");
            let bytes = our.get("requested_bytes") - 16 * i128::from(their.count);
            assert!((bytes - i128::from(their.malloc)).abs() <= 1024, "{name}: {bytes} B without headers\n{table}");
        }
        // The isolate maps the whole section .svm_heap, and puts anonymous memory over the pages that it relocates.
        let heap = i128::from(section_length(image, ".svm_heap"));
        assert_eq!(ours.categories["Image Heap"].get("committed_bytes"), heap, "the image heap\n{table}");
        // 200 deflaters at level 9 take some 260 KiB each from zlib, which NMT does not see at all.
        let more = ours.total.get("requested_bytes") - i128::from(total.malloc);
        assert!(more > 40 << 20, "zlib's {more} B are in our books alone");
    }
    must(Command::new("kill").args(["-TERM", &child.id().to_string()]));
    let status = wait_end("the image", &mut child);
    // The image's report at its end proves that it works. Its figures depend on timing and are not compared.
    let text = text();
    let (stderr, statistics) = text.split_once("Native memory tracking").expect("-XX:+PrintNMTStatistics prints");
    assert!(nmt::native_image(statistics).contains_key("Total"), "{statistics}");
    Evidence { output: without_pid(stderr.as_bytes().to_vec()), status, wall: begin.elapsed() }
}

/// The length of a section as readelf(1) prints it: [NR] NAME TYPE ADDRESS OFFSET SIZE …
fn section_length(image: &Path, name: &str) -> u64 {
    let sections = must(Command::new("readelf").arg("-SW").arg(image));
    let sections = String::from_utf8_lossy(&sections);
    let size = sections.lines().find_map(|line| line.split_whitespace().skip_while(|word| *word != name).nth(4));
    u64::from_str_radix(size.expect("the section"), 16).expect("a size")
}

/// A script of some hundred kilobytes, the same at each run.
fn script(functions: u32) -> String {
    let function = |i: u32| {
        format!(
            "function f{i}(a, b) {{ var unused = {i}; var r = []; for (var k = 0; k < a; k++) {{ if (k % {} == 0) r.push(b + k * {i}); }} return r.length ? f{}(r.length, b) : b; }}\n",
            i % 7 + 2,
            i / 2
        )
    };
    (0..functions).map(function).collect::<String>() + "console.log(f1(10, 20));\n"
}

fn closure(version: &str, name: &str, functions: u32) {
    let compiler = npm("google-closure-compiler-linux", version, "package/compiler");
    compare(name, None, "off", |launcher, folder| {
        let (input, output) = (folder.join("in.js"), folder.join("out.js"));
        fs::write(&input, script(functions)).expect("scratch can be written");
        let mut seen =
            evidence(launcher.command(&compiler).arg("--js").arg(input).arg("--js_output_file").arg(&output));
        seen.output.extend(fs::read(output).expect("compiled"));
        seen
    });
}

#[test]
fn closure_compiler_dynamic() {
    closure("20210406.0.0", "closure-compiler-20210406-glibc", 1000);
}

#[test]
#[ignore = "full: a third native image"]
fn closure_compiler_packed_by_upx() {
    closure("20250407.0.0", "closure-compiler-20250407-upx", 400);
}

/// The tracker can't interpose in a static program: plimsoll says so in one sentence, and the program runs.
#[test]
fn closure_compiler_static() {
    let compiler = npm("google-closure-compiler-linux", "20261015.0.0", "package/compiler");
    let scratch = crate::stage::Scratch::new("static");
    let input = scratch.path().join("in.js");
    fs::write(&input, script(200)).expect("scratch can be written");
    let run = |command: &mut Command| command.arg("--js").arg(&input).output().expect("the compiler starts");
    let plain = run(&mut Command::new(&compiler));
    let tracked = run(&mut Launcher::tracked(scratch.path(), "off").command(&compiler));
    assert_eq!((plain.status, &plain.stdout), (tracked.status, &tracked.stdout));
    let stderr = String::from_utf8_lossy(&tracked.stderr).into_owned();
    let own =
        stderr.strip_suffix(String::from_utf8_lossy(&plain.stderr).as_ref()).expect("the compiler's own words follow");
    assert_eq!(own.trim_end().lines().count(), 1, "one sentence: {own}");
    assert!(own.contains("static"), "which says why: {own}");
    log_line(&format!("subject closure-compiler 20261015 (static): ran untracked, with: {}", own.trim_end()));
}

/// How many clock ticks the process's threads have used, and whether all of them sleep. None if it has ended.
pub fn ticks_and_rest(pid: u32) -> Option<(u64, bool)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let (mut ticks, mut at_rest) = (0, true);
    for task in tasks.flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        at_rest &= fields[0] == "S";
        ticks += fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
    }
    Some((ticks, at_rest))
}

/// Explains an image once it waits for its input: all of its threads sleep, and have used no time since the look
/// before. Unchanged memory would prove nothing: on a busy machine the image may just not have run.
fn explained(name: &str, image: &Path, arguments: &[&str]) -> serde_json::Value {
    let mut child = Command::new(image)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the image starts");
    let resident = |json: &serde_json::Value| json["rss_bytes"].as_u64().expect("bytes");
    let (mut last, mut last_ticks) = (None, None);
    let mut settled = None;
    for _ in 0..240 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let seen = ticks_and_rest(child.id());
        let rests = seen.is_some_and(|(ticks, at_rest)| at_rest && last_ticks == Some(ticks));
        last_ticks = seen.map(|(ticks, _)| ticks);
        if !rests {
            continue;
        }
        let mut explain = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        explain.arg("explain").arg(child.id().to_string()).args(["--format", "json"]);
        let now: serde_json::Value = serde_json::from_slice(&must(&mut explain)).expect("JSON");
        if now["process"]["runtime"] == "native-image" {
            settled = Some(now);
            break;
        }
        last = Some(now);
    }
    let _ = child.kill();
    let _ = child.wait();
    let explained = settled.unwrap_or_else(|| panic!("{name} comes to rest as a native image: {last:#?}"));
    let bytes = |id: &str| {
        let lines = explained["lines"].as_array().expect("lines").iter().filter(|line| line["id"] == id);
        lines.map(|line| line["resident_bytes"].as_u64().expect("bytes")).sum::<u64>()
    };
    let left =
        explained["remainder_bytes"].as_u64().expect("bytes") + bytes("other-anonymous") + bytes("glibc-unknown");
    let percent = left as f64 * 100.0 / resident(&explained) as f64;
    log_line(&format!("explain {name}: {percent:.3} % of {} MiB unexplained", resident(&explained) >> 20));
    assert!(percent <= 2.0, "{name}: {explained:#}");
    explained
}

fn child_of(explained: &serde_json::Value, line: &str, part: &str) -> u64 {
    let lines = explained["lines"].as_array().expect("lines").iter().filter(|found| found["id"] == line);
    let children = lines.flat_map(|line| line["children"].as_array().expect("children"));
    let named = children.filter(|child| child["name"].as_str().is_some_and(|name| name.contains(part)));
    named.map(|child| child["resident_bytes"].as_u64().expect("bytes")).sum()
}

/// The compiler reads its own libraries of some 10 MiB into the Java heap before it waits for input.
#[test]
fn heap_chunks_of_an_image_without_a_reservation_are_explained() {
    let compiler = npm("google-closure-compiler-linux", "20210406.0.0", "package/compiler");
    let seen = explained("closure-compiler 20210406 (GraalVM 21.0)", &compiler, &[]);
    assert!(child_of(&seen, "image-heap", "heap chunks") > 4 << 20, "{seen:#}");
}

#[test]
fn an_image_packed_by_upx_is_explained() {
    let compiler = npm("google-closure-compiler-linux", "20250407.0.0", "package/compiler");
    let seen = explained("closure-compiler 20250407 (UPX)", &compiler, &[]);
    assert!(seen["process"]["runtime_version"].as_str().is_some_and(|version| version.contains("21.0.2")), "{seen:#}");
    // Unpacking has touched every page of the heap as linked, copying every page of the view.
    let (linked, view) = (child_of(&seen, "image-heap", "as linked"), child_of(&seen, "image-heap", "view"));
    assert!(linked > 200 << 20 && view.abs_diff(linked) <= linked / 50, "{linked} {view}");
    assert!(child_of(&seen, "image-heap", "heap chunks") > 4 << 20, "{seen:#}");
    assert!(child_of(&seen, "libraries", "unpacked in memory") > 5 << 20, "{seen:#}");
}
