//! What `serve` sends to an OpenTelemetry Collector and to Pyroscope. A receiver of the test keeps the requests, and
//! the protocol's own definitions read them (fixtures/scripts/otlp.py); the real Collector takes them in
//! `make test-full`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::child::{Running, wait_for};
use crate::kit::{LONG, PLIMSOLL, Server, Subject, scratch};
use crate::metrics::samples;
use crate::rights::{sockets, status};

/// The path with its query, the type of the content, and the body of a request.
type Request = (String, String, Vec<u8>);

/// Answers each request with a status, and keeps it.
struct Receiver {
    port: u16,
    kept: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    fn new(status: &'static str) -> Receiver {
        Receiver::at(TcpListener::bind("127.0.0.1:0").expect("a port"), status)
    }

    fn at(listener: TcpListener, status: &'static str) -> Receiver {
        let port = listener.local_addr().expect("an address").port();
        let kept: Arc<Mutex<Vec<Request>>> = Arc::default();
        let theirs = kept.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(request) = received(stream, status) {
                    theirs.lock().expect("whole").push(request);
                }
            }
        });
        Receiver { port, kept }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The first request whose path begins with `path`.
    fn wait_for(&self, path: &str) -> Request {
        let found = || self.kept.lock().expect("whole").iter().find(|(of, ..)| of.starts_with(path)).cloned();
        wait_for(path, found)
    }
}

fn received(mut stream: TcpStream, status: &str) -> Option<Request> {
    stream.set_read_timeout(Some(LONG)).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut head, mut line) = (Vec::new(), String::new());
    while reader.read_line(&mut line).ok()? > 2 {
        head.push(std::mem::take(&mut line).trim_end().to_owned());
    }
    let field = |name: &str| {
        let found = head.iter().filter_map(|line| line.split_once(": ")).find(|(of, _)| of.eq_ignore_ascii_case(name));
        Some(found?.1.to_owned())
    };
    let mut body = vec![0; field("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).ok()?;
    let path = head.first()?.strip_prefix("POST ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    Some((path, field("content-type")?, body))
}

/// A tracked program, one function of which holds 64 blocks of 100,000 bytes.
fn tracked(folder: &Path) -> Subject {
    let source = folder.join("holder.c");
    let text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                __attribute__((noinline)) void *hold_on(size_t n) { char *p = malloc(n); memset(p, 1, n); return p; }\n\
                int main(void) { char *volatile p[64]; for (int i = 0; i < 64; i++) p[i] = hold_on(100000);\n\
                puts(\"up\"); fflush(stdout); getchar(); return p[0] == NULL; }\n";
    std::fs::write(&source, text).expect("a file");
    let program = folder.join("holder");
    let built = Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&program).arg(&source).status().expect("gcc");
    assert!(built.success());
    let mut run = Command::new(PLIMSOLL);
    run.args(["run", "--report", "none", "--sites", "exact", "--dir"]).arg(folder.join("segments")).arg("--");
    run.arg(program);
    Subject::of(run)
}

/// Python's packages with the definitions of OTLP, fetched once.
fn definitions() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("otlp-1.45.2");
    if !directory.exists() {
        let part = directory.with_extension(std::process::id().to_string());
        let mut fetch = Command::new("python3");
        fetch.args(["-m", "pip", "install", "-q", "--target"]).arg(&part);
        fetch.args(["opentelemetry-proto==1.45.2", "protobuf==7.36.2"]);
        let fetched = fetch.output().expect("python3");
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
        // Another test may have been faster.
        let _ = std::fs::rename(&part, &directory);
    }
    directory
}

fn read(kind: &str, body: &[u8], folder: &Path) -> Vec<Value> {
    let file = folder.join(kind);
    std::fs::write(&file, body).expect("a file");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/scripts/otlp.py");
    let output = Command::new("python3").arg(script).arg(definitions()).arg(kind).arg(&file).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn metrics_and_call_stacks_arrive_as_their_protocols_have_them() {
    let folder = scratch("exports");
    let subject = tracked(&folder);
    let receiver = Receiver::new("200 OK");
    let base = format!("{}/base/", receiver.url());
    let server = Server::of(&subject, &["--otlp", &base, "--otlp-profiles", "--pyroscope", &receiver.url()]);

    // The first may be sent before the first round has ended.
    let (content, points) = wait_for("the target's figures", || {
        let is_of_metrics = |request: &&Request| request.0.starts_with("/base/v1/metrics");
        let last = receiver.kept.lock().expect("whole").iter().rev().find(is_of_metrics).cloned();
        let (_, content, body) = last?;
        let points = read("metrics", &body, &folder);
        points.iter().any(|point| point["name"] == "plimsoll_resident_bytes").then_some((content, points))
    });
    assert_eq!(content, "application/x-protobuf");
    let of = |name: &str| points.iter().filter(|point| point["name"] == name).cloned().collect::<Vec<_>>();
    // The ledger sums to RSS, as in a scrape; the program's own blocks are in it.
    let sum: u64 = of("plimsoll_resident_bytes").iter().map(|point| point["value"].as_u64().expect("whole")).sum();
    let scraped = server.get("/metrics").body;
    let lines = samples(&scraped, "plimsoll_resident_bytes");
    let rss: f64 = lines.values().sum();
    assert!(sum > 6_400_000 && (sum as f64 - rss).abs() < rss / 10.0, "{sum} {rss}");
    assert_eq!(of("plimsoll_resident_bytes").len(), lines.len());
    let first = &of("plimsoll_resident_bytes")[0];
    assert_eq!(first["resource"]["service.name"], "holder");
    assert_eq!(first["resource"]["process.pid"].as_u64(), Some(u64::from(subject.child.id())));
    assert_eq!(
        (&first["attributes"]["target"], &first["unit"], &first["kind"]),
        (&"holder".into(), &"By".into(), &"gauge".into())
    );
    let allocated = &of("plimsoll_native_allocated_bytes_total")[0];
    assert_eq!((allocated["monotonic"].as_bool(), allocated["temporality"].as_u64()), (Some(true), Some(2)));
    assert!(allocated["start"].as_u64() > Some(0) && allocated["start"].as_u64() <= allocated["time"].as_u64());
    assert_eq!(of("plimsoll_targets")[0]["resource"]["service.name"], "plimsoll");

    let (_, _, body) = receiver.wait_for("/base/v1development/profiles");
    let held = read("profiles", &body, &folder);
    let is_ours = |row: &&Value| row["frames"].to_string().contains("\"hold_on\"");
    let of = |kind: &str| {
        let rows = held.iter().filter(|row| row["type"] == kind).filter(is_ours);
        rows.map(|row| row["value"][0].as_u64().expect("whole")).sum::<u64>()
    };
    // The program requested 64 × 100,000 bytes; malloc gives up to 24 more each.
    assert!((6_400_000..6_402_000).contains(&of("live_space")), "{held:?}");
    assert_eq!((of("live_objects"), of("alloc_calls")), (64, 64));
    let ours = held.iter().find(is_ours).expect("a stack");
    assert_eq!(ours["resource"]["service.name"], "holder");
    assert!(ours["frames"][0]["file"].as_str().is_some_and(|file| file.ends_with("/holder")), "{ours}");

    let (path, _, body) = receiver.wait_for("/ingest");
    assert!(path.starts_with("/ingest?name=holder%7Bhost%3D") && path.contains("&format=pprof"), "{path}");
    let file = folder.join("stacks.pb.gz");
    std::fs::write(&file, body).expect("a file");
    let top = Command::new("go").args(["tool", "pprof", "-sample_index=live_objects", "-top"]).arg(&file).output();
    let top = String::from_utf8(top.expect("go").stdout).expect("UTF-8");
    assert!(top.lines().any(|line| line.contains("hold_on") && line.contains(" 64 ")), "{top}");
    assert!(server.get("/metrics").body.contains("\nplimsoll_serve_failed_exports_total 0\n"));
}

#[test]
fn the_sender_has_no_right_but_to_connect() {
    let subject = Subject::named("shop");
    let receiver = Receiver::new("200 OK");
    let server = Server::of(&subject, &["--otlp", &receiver.url()]);
    let pid = sender(&server);
    assert_eq!(status(pid, "Uid"), "65534\t65534\t65534\t65534");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!((status(pid, "NoNewPrivs"), status(pid, "Seccomp")), ("1".into(), "2".into()));
    receiver.wait_for("/v1/metrics");
    // Between two exports the sender has only its pipe open, and the reader has no connection at all.
    wait_for("one socket", || (sockets(pid).len() == 1).then_some(()));
    let tcp = std::fs::read_to_string("/proc/net/tcp").expect("sockets");
    assert!(sockets(server.child.id()).iter().all(|of| !tcp.contains(&format!(" {} ", &of[8..of.len() - 1]))));
}

fn sender(server: &Server) -> u32 {
    let reader = server.child.id();
    let text = std::fs::read_to_string(format!("/proc/{reader}/task/{reader}/children")).expect("children");
    let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.into_iter().find(|pid| *pid != server.listener).expect("the sender")
}

#[test]
fn a_receiver_that_is_away_is_one_sentence_and_one_that_is_back_another() {
    let subject = Subject::named("shop");
    let refusing = Receiver::new("503 Busy");
    let mut server = Server::of(&subject, &["--interval", "1s", "--otlp", &refusing.url()]);
    let mut lines = Vec::new();
    let mut next = |server: &mut Server, word: &str| loop {
        let mut line = String::new();
        assert!(server.stderr.read_line(&mut line).expect("a line") > 0, "it ended: {lines:?}");
        lines.push(line.clone());
        if line.contains(word) {
            return line;
        }
    };
    let stderr = next(&mut server, "did not arrive");
    assert!(
        stderr.contains(&format!("metrics did not arrive at {}: ", refusing.url())) && stderr.contains("503"),
        "{stderr}"
    );
    wait_for("more failures", || {
        let body = server.get("/metrics").body;
        let failed = body.lines().find_map(|line| line.strip_prefix("plimsoll_serve_failed_exports_total "));
        (failed?.parse::<u32>().ok()? > 2).then_some(())
    });
    // A port that nobody listens at, until somebody does. At an address of this process's own: at 127.0.0.1, a server
    // or any of the hundreds of clients of the other tests may get the port meanwhile.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let free = TcpListener::bind((Ipv4Addr::new(127, a + 1, b, c), 0)).expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let mut server = Server::of(&subject, &["--interval", "1s", "--otlp", &format!("http://{address}")]);
    assert!(next(&mut server, "did not arrive").contains("Connection refused"));
    let back = Receiver::at(TcpListener::bind(address).expect("the same port"), "200 OK");
    assert!(next(&mut server, "again").contains("metrics arrive at"));
    back.wait_for("/v1/metrics");
    assert_eq!(lines.iter().filter(|line| line.contains("did not arrive")).count(), 2, "{lines:?}");
    server.kill(sender(&server), "-KILL");
    let (status, stderr) = server.ended();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the sending process was killed by signal 9: plimsoll serve ends"), "{stderr}");
}

/// The real Collector, built from its own modules.
#[test]
#[ignore = "full: builds the OpenTelemetry Collector, which needs Go 1.26"]
fn the_collector_takes_metrics_and_profiles() {
    let folder = scratch("collector");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/go/collector");
    for file in ["main.go", "go.mod"] {
        std::fs::copy(sources.join(file), folder.join(file)).expect("a file");
    }
    let go = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(arguments).current_dir(&folder).env("GOFLAGS", "-mod=mod -buildvcs=false").env("CGO_ENABLED", "0");
        let output = go.output().expect("go");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    go(&["mod", "tidy"]);
    go(&["build", "-o", "collector", "."]);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let config = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: '{free}'}}}}}}}}\nexporters: {{debug: {{verbosity: \
         detailed}}}}\nservice:\n  telemetry: {{metrics: {{level: none}}}}\n  pipelines:\n    metrics: {{receivers: \
         [otlp], exporters: [debug]}}\n    profiles: {{receivers: [otlp], exporters: [debug]}}\n"
    );
    std::fs::write(folder.join("config.yaml"), config).expect("a file");
    let (log, path) = (std::fs::File::create(folder.join("log")).expect("a file"), folder.join("log"));
    let mut collector = Command::new(folder.join("collector"));
    collector.args(["--config", "file:config.yaml", "--feature-gates=service.profilesSupport"]);
    let _collector =
        Running(collector.current_dir(&folder).stdout(Stdio::null()).stderr(log).spawn().expect("the Collector"));
    let logged = |what: &str| std::fs::read_to_string(&path).unwrap_or_default().contains(what).then_some(());
    wait_for("the Collector", || logged("Everything is ready"));
    let subject = tracked(&folder);
    let mut server =
        Server::of(&subject, &["--interval", "1s", "--otlp", &format!("http://{free}"), "--otlp-profiles"]);
    for expected in ["service.name: Str(holder)", "Name: plimsoll_resident_bytes", "IsMonotonic: true"] {
        wait_for(expected, || logged(expected));
    }
    wait_for("profiles", || logged("ResourceProfiles #0").and(logged("hold_on")));
    server.kill(server.child.id(), "-TERM");
    let mut stderr = String::new();
    server.stderr.read_to_string(&mut stderr).expect("text");
    assert!(!stderr.contains("did not arrive"), "{stderr}");
}
