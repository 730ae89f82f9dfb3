//! OpenJDK 17 and 25 with a Spring Boot server under load, with reports while it works.

use crate::books::BooksReport;
use crate::http::Connection;
use crate::launcher::{Evidence, Launcher, Running, compare, plimsoll, wait_end, wait_for};
use crate::native_image::ticks_and_rest;
use crate::nmt;
use crate::stage::{Jdk, Scratch, jdk, log_line, must, shop};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const CONNECTIONS: u64 = 4;
const REQUESTS: u64 = 600;

struct Server {
    child: Running,
    port: u16,
}

fn start(launcher: &Launcher, jdk: &Jdk, folder: &Path, flags: &[&str]) -> Server {
    let port_file = folder.join("port");
    let mut command = launcher.command(jdk.bin("java"));
    command.args(["-Xmx160m", "-Xms160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]).args(flags);
    command.arg("-cp").arg(shop(&jdk.bin("javac"))).arg("shop.Shop").arg(&port_file);
    let output = fs::File::create(folder.join("stdout")).expect("a file for the output");
    let errors = fs::File::create(folder.join("stderr")).expect("a file for the errors");
    let mut child = Running::start_with_errors(command.stdout(output).stderr(errors));
    wait_for("the server listens", &mut child, || port_file.exists());
    let port = fs::read_to_string(port_file).expect("a port").trim().parse().expect("a number");
    Server { child, port }
}

/// The answers to a fixed set of requests, in the order of the requests, in whatever order the server answered.
fn load(port: u16) -> Vec<u8> {
    let one = |connection: u64| {
        let mut http = Connection::open(port).expect("a connection");
        let mut answers = Vec::new();
        for i in 0..REQUESTS {
            let (status, body) = http.get(&format!("/orders/{}", connection * 1_000_003 + i)).expect("an answer");
            assert_eq!(status, 200);
            answers.extend(body);
            answers.push(b'\n');
        }
        answers
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS).map(|connection| scope.spawn(move || one(connection))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn stop(mut server: Server, folder: &Path, start: Instant, answers: Vec<u8>) -> Evidence {
    let _ = Connection::open(server.port).and_then(|mut http| http.get("/stop"));
    let status = wait_end("the server", &mut server.child);
    let mut output = answers;
    output.extend(fs::read(folder.join("stdout")).expect("the output"));
    output.extend(fs::read(folder.join("stderr")).expect("the errors"));
    Evidence { output, status, wall: start.elapsed() }
}

fn server(major: u32) {
    let Some(jdk) = jdk(major) else {
        log_line(&format!("subject jdk{major}: skipped, no JDK {major} in JAVA_HOME or /usr/lib/jvm"));
        return;
    };
    let subject = |launcher: &Launcher, folder: &Path| {
        let begin = Instant::now();
        let server = start(launcher, &jdk, folder, &[]);
        let mut answers = load(server.port);
        let mut before = at_rest(launcher, &server);
        let mut http = Connection::open(server.port).expect("a connection");
        answers.extend(http.get("/basket/4194304").expect("an answer").1);
        for round in 1.. {
            let after = launcher.live_books(&server.child, "after a direct buffer of 4 MiB");
            let (Some(b), Some(a)) = (&before, &after) else { break };
            assert_eq!((b.state.as_str(), a.state.as_str()), ("live", "live"));
            if grew_by_a_buffer(b, a, 4 << 20, round == ROUNDS) {
                break;
            }
            before = at_rest(launcher, &server);
            http.get("/basket/4194304").expect("an answer");
        }
        // Reports while the load goes on: balanced at any moment.
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| load(server.port));
            let mut reports = 0;
            while !busy.is_finished() || reports < 3 {
                launcher.live_books(&server.child, "under load");
                reports += 1;
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            answers.extend(busy.join().expect("no panic"));
        });
        drop(http);
        stop(server, folder, begin, answers)
    };
    compare(&format!("jdk{major}-spring-boot"), None, "off", subject);
}

/// The books once two readings in a row agree, and all threads sleep and have used no time in between: after a load the
/// compiler works on for a while, and on a busy machine it may just not run. If the server doesn't come to rest, the
/// last reading.
fn at_rest(launcher: &Launcher, server: &Server) -> Option<BooksReport> {
    let books = || launcher.live_books(&server.child, "after some load");
    let look = || ticks_and_rest(server.child.id()).expect("the server runs");
    let (mut last, mut last_ticks) = (books()?, look().0);
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = books()?;
        let (ticks, is_asleep) = look();
        let rests = is_asleep && ticks == last_ticks;
        if rests && now.total.get("cumulative_bytes") == last.total.get("cumulative_bytes") {
            return Some(now);
        }
        (last, last_ticks) = (now, ticks);
    }
    Some(last)
}

/// Attempts. A compiler that begins or finishes a large method between two reports takes or gives back megabytes; then
/// the test allocates another buffer.
const ROUNDS: u32 = 8;

/// A direct buffer is one malloc of the VM. The server takes or gives back little else between the two reports.
fn grew_by_a_buffer(before: &BooksReport, after: &BooksReport, bytes: i128, last: bool) -> bool {
    let grown = after.total.get("requested_bytes") - before.total.get("requested_bytes");
    let holds = (bytes..bytes + (1 << 20)).contains(&grown);
    assert!(holds || !last, "a direct buffer of {bytes}: grew by {grown}\n{before}{after}");
    holds
}

#[test]
fn jdk_17_serves_spring_boot() {
    server(17);
}

#[test]
fn jdk_25_serves_spring_boot() {
    server(25);
}

/// Compares what HotSpot's NMT counts with the books, of one process at one moment.
fn beside_nmt(major: u32) {
    let Some(jdk) = jdk(major) else {
        return log_line(&format!("subject nmt{major}: skipped, no JDK {major} in JAVA_HOME or /usr/lib/jvm"));
    };
    let scratch = Scratch::new(&format!("nmt{major}"));
    let launcher = Launcher::tracked(scratch.path(), "sampled");
    let server = start(&launcher, &jdk, scratch.path(), &["-XX:NativeMemoryTracking=summary"]);
    load(server.port);
    let ours = launcher.live_books(&server.child, "before NMT").expect("the subject is tracked");
    let stacks = || {
        let segment = launcher.segment_of(&server.child, "beside NMT").expect("the subject is tracked");
        let text = must(Command::new(plimsoll()).args(["report", &segment, "--style", "hotspot"]));
        nmt::hotspot(&String::from_utf8_lossy(&text))["Thread"].stacks
    };
    let stacks_before = stacks();
    let mut jcmd = jdk.tool("jcmd");
    let text =
        must(jcmd.arg(server.child.id().to_string()).args(["VM.native_memory", "summary"]).stderr(Stdio::null()));
    let theirs = nmt::hotspot(&String::from_utf8_lossy(&text));
    let stacks_after = stacks();
    let after = launcher.live_books(&server.child, "after NMT").expect("the subject is tracked");
    stop(server, scratch.path(), Instant::now(), Vec::new());
    assert!(theirs.len() > 10, "a report of NMT\n{}", String::from_utf8_lossy(&text));

    // A stack is resident by whole pages, and one that is in use grows between the readings. NMT has no line for the
    // stack of the process's first thread.
    let (thread, page) = (&theirs["Thread"], 4096);
    let (least, most) = (stacks_before.min(stacks_after), stacks_before.max(stacks_after));
    let slack = page * thread.threads;
    log_line(&format!(
        "JDK {major}, stacks of {} threads: NMT {}, ours {least} to {most}",
        thread.threads, thread.stacks
    ));
    assert!(thread.threads > 10 && thread.stacks > 0, "NMT has stacks");
    assert!((least.saturating_sub(slack)..=most + slack).contains(&thread.stacks), "NMT's stacks: {}", thread.stacks);

    // NMT's header of 16 B and its footer of 2 are part of what the VM requests from malloc, so our figure includes
    // them.
    let blocks = |their: &nmt::Category| their.malloc + their.arena + 18 * their.count;
    let mut table =
        format!("JDK {major}, KiB{:>28} {:>12} {:>12} {:>12}\n", "NMT blocks", "ours", "NMT mapped", "ours");
    let mut names: Vec<&str> = theirs.keys().map(String::as_str).collect();
    names.extend(ours.categories.keys().map(String::as_str).filter(|name| !theirs.contains_key(*name)));
    for name in names {
        let their = theirs.get(name).copied().unwrap_or_default();
        let our = if name == "Total" { Some(&ours.total) } else { ours.categories.get(name) };
        let figure = |figure: &str| our.map_or(0, |figures| figures.get(figure) >> 10);
        let (malloc, mapped) = (figure("requested_bytes"), figure("committed_bytes"));
        let (blocks, mappings) = (blocks(&their) >> 10, their.mapped >> 10);
        if blocks + mappings > 0 || malloc + mapped > 0 {
            table += &format!("  {name:26} {blocks:>12} {malloc:>12} {mappings:>12} {mapped:>12}\n");
        }
    }
    log_line(&table);
    hold_beside([&ours, &after], &theirs, blocks);
}

/// Compares the categories within a stated tolerance. Ours are read before and after NMT's report.
///
/// Mappings: 256 KiB beyond our two reports, because the code cache grows meanwhile. The Java heap can't grow here and
/// must be equal to the byte. Blocks: 10 % and 512 KiB, because our rules go by the caller's name, and NMT by the tag
/// that the caller passes.
///
/// Not compared: Compiler and Arena Chunk, whose arenas move from one to the other at each compilation, and Internal,
/// in which the report itself allocates megabytes of output. A freed chunk returns to a pool, which hands it to other
/// owners. NMT renames it each time; in our books it stays with the caller of malloc. So a category of ours may exceed
/// the tolerance by the chunks that are in NMT's pool at that moment. The VM empties the pool every 5 s.
fn hold_beside([ours, after]: [&BooksReport; 2], theirs: &nmt::Report, blocks: impl Fn(&nmt::Category) -> u64) {
    let figure =
        |books: &BooksReport, name: &str, figure: &str| books.categories.get(name).map_or(0, |f| f.get(figure));
    let requested = |books: &BooksReport, name: &str| figure(books, name, "requested_bytes");
    let our = |names: &[&str]| {
        [ours, after].map(|books| names.iter().map(|name| figure(books, name, "committed_bytes")).sum::<i128>())
    };
    let mapped = |name: &str| i128::from(theirs.get(name).map_or(0, |category| category.mapped));
    let near = |name: &str, ours: [i128; 2], theirs: i128, tolerance: i128| {
        let between = ours[0].min(ours[1]) - tolerance..=ours[0].max(ours[1]) + tolerance;
        assert!(between.contains(&theirs), "{name}: NMT {theirs} B, ours {ours:?} B, tolerance {tolerance} B");
    };
    near("Java Heap, mapped", our(&["Java Heap"]), mapped("Java Heap"), 0);
    for name in ["Code", "GC", "Metaspace", "Internal", "Safepoint"] {
        near(&format!("{name}, mapped"), our(&[name]), mapped(name), 256 << 10);
    }
    // The same code of the VM maps the archive of shared classes and class space.
    let classes = ["Class", "Shared class space"];
    near("Class, mapped", our(&classes), classes.map(mapped).iter().sum(), 256 << 10);
    let pooled = theirs.get("Arena Chunk").map_or(0, |pool| i128::from(blocks(pool)));
    let mut compared = 0;
    for name in ["Symbol", "Class", "Code", "GC", "Metaspace", "Module", "Thread", "Synchronization", "Object Monitors"]
    {
        let Some(category) = theirs.get(name) else { continue };
        let their = i128::from(blocks(category));
        let (slack, excess) = (their / 10 + (512 << 10), [ours, after].map(|books| requested(books, name) - their));
        assert!(
            excess[0].max(excess[1]) >= -slack && excess[0].min(excess[1]) <= slack + pooled,
            "{name}, blocks: NMT {their} B and {pooled} B in the pool, ours more by {excess:?} B, tolerance {slack} B"
        );
        compared += their;
    }
    assert!(compared > 4 << 20, "most of what the VM allocated was compared: {compared} B");
}

#[test]
fn jdk_17_beside_nmt() {
    beside_nmt(17);
}

#[test]
fn jdk_25_beside_nmt() {
    beside_nmt(25);
}
