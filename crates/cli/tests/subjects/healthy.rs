//! Healthy servers from their start on, under load: `explain` never warns. A warning here is a false alarm.

use crate::http::Connection;
use crate::launcher::{Launcher, Running, wait_end, wait_for};
use crate::postgres;
use crate::redis;
use crate::stage::{Jdk, Scratch, jdk, kiosk, log_line, must, shop};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};

/// Snapshots of each server in the whole test: six servers make 72.
const SNAPSHOTS: usize = 12;

/// The snapshots of one server so far.
struct Watch {
    name: &'static str,
    seen: usize,
    unclear: usize,
}

impl Watch {
    fn new(name: &'static str) -> Watch {
        Watch { name, seen: 0, unclear: 0 }
    }

    /// Takes at least `snapshots` of them, each while `load` runs, or right after it if it ends sooner. A process that
    /// ends meanwhile doesn't count.
    fn under(&mut self, snapshots: usize, pids: impl Fn() -> Vec<u32>, load: impl Fn() + Sync) {
        while self.seen < snapshots {
            std::thread::scope(|scope| {
                let busy = scope.spawn(&load);
                for pid in pids() {
                    self.look(pid);
                }
                busy.join().expect("the load is served");
            });
            assert!(self.seen > 0, "{}: nothing was seen", self.name);
        }
        log_line(&format!(
            "healthy {}: {} snapshots, no warning, {} of them unclear",
            self.name, self.seen, self.unclear
        ));
    }

    fn look(&mut self, pid: u32) {
        let mut explain = Command::new(crate::launcher::plimsoll());
        let output = explain.args(["explain", &pid.to_string(), "--format", "json"]).output().expect("plimsoll runs");
        if !output.status.success() && !Path::new(&format!("/proc/{pid}/exe")).exists() {
            return;
        }
        let explained: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{}: {e}: {}", self.name, String::from_utf8_lossy(&output.stderr)));
        let verdicts = explained["verdicts"].as_array().expect("a list");
        let is = |verdict: &&Value, id: &str| verdict["id"] == id;
        // The machine's own cgroup may be near its limit: the server is not the cause.
        let warns = |verdict: &&Value| verdict["severity"] != "note" && !is(verdict, "limit-near");
        let warnings: Vec<&Value> = verdicts.iter().filter(warns).collect();
        assert!(warnings.is_empty(), "{}, snapshot {}: {warnings:#?}\n{:#}", self.name, self.seen, explained["lines"]);
        self.unclear += usize::from(verdicts.iter().any(|verdict| is(&verdict, "unclear")));
        self.seen += 1;
    }
}

fn redis_server(snapshots: usize) {
    let scratch = Scratch::new("healthy-redis");
    let socket = scratch.path().join("redis.sock");
    let mut command = Launcher::plain().command("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).arg("--dir").arg(scratch.path());
    let mut child = Running::start(&mut command, Stdio::null());
    redis::wait_until_up(&mut child, &socket);
    let pid = child.id();
    Watch::new("Redis").under(
        snapshots,
        || vec![pid],
        || {
            let mut benchmark = Command::new("redis-benchmark");
            benchmark
                .arg("-s")
                .arg(&socket)
                .args(["-q", "-c", "20", "-n", "5000", "-r", "20000", "-d", "256", "-P", "8"]);
            must(benchmark.args(["-t", "set,get,incr,lpush,rpop,sadd,hset"]));
        },
    );
}

#[test]
fn redis_is_never_warned_of() {
    redis_server(5);
}

#[test]
#[ignore = "full: twelve rounds of a load"]
fn redis_is_never_warned_of_for_long() {
    redis_server(SNAPSHOTS);
}

/// The postmaster, its writers and its backends.
#[test]
#[ignore = "full: twelve rounds of a load"]
fn postgres_is_never_warned_of() {
    let scratch = Scratch::new("healthy-postgres");
    if let Some(user) = postgres::user() {
        chown(scratch.path(), Some(user.uid), Some(user.gid)).expect("root may");
    }
    let data = scratch.path().join("data");
    let mut make = postgres::as_user("initdb");
    postgres::initdb(&mut make, &data);
    must(&mut make);
    let mut command = postgres::as_user("postgres");
    command.arg("-D").arg(&data).arg("-k").arg(scratch.path()).args(["-c", "listen_addresses=", "-c", "fsync=off"]);
    let mut child = Running::start(command.args(["-c", "shared_buffers=64MB"]), Stdio::null());
    let client = |name: &str| {
        let mut command = postgres::as_user(name);
        command.arg("-h").arg(scratch.path()).args(["-U", "postgres"]);
        command
    };
    let is_up = || client("pg_isready").output().is_ok_and(|output| output.status.success());
    wait_for("postgres accepts connections", &mut child, is_up);
    must(client("pgbench").args(["-i", "-q", "-s", "2", "postgres"]));
    let pid = child.id();
    Watch::new("PostgreSQL").under(
        SNAPSHOTS,
        || with_children(pid),
        || {
            must(client("pgbench").args(["-c", "4", "-j", "2", "-t", "300", "postgres"]));
        },
    );
    must(Command::new("kill").args(["-INT", &pid.to_string()]));
    wait_end("postgres", &mut child);
}

/// Master and workers, with pages small and large.
#[test]
fn nginx_is_never_warned_of() {
    let scratch = Scratch::new("healthy-nginx");
    let file = |name: &str| scratch.path().join(name);
    fs::create_dir(file("pages")).expect("scratch can be written");
    for (name, size) in [("small", 4096), ("large", 1 << 20)] {
        fs::write(file("pages").join(name), "a line of a page\n".repeat(size / 17)).expect("scratch can be written");
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {};\n", file(kind).display()))
        .collect();
    let configuration = format!(
        "daemon off; worker_processes 2; error_log stderr; pid {};\nevents {{}}\nhttp {{\naccess_log off;\n\
         {temporary}server {{ listen unix:{}; root {}; keepalive_requests 1000000; }}\n}}\n",
        file("pid").display(),
        file("socket").display(),
        file("pages").display()
    );
    fs::write(file("nginx.conf"), configuration).expect("scratch can be written");
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-p").arg(scratch.path()).arg("-c").arg(file("nginx.conf"));
    let mut child = Running::start(&mut command, Stdio::null());
    wait_for("nginx listens", &mut child, || Connection::local(&file("socket")).is_ok());
    let pid = child.id();
    let path = |number: u64| if number.is_multiple_of(16) { "/large".to_owned() } else { "/small".to_owned() };
    Watch::new("nginx").under(
        SNAPSHOTS,
        || with_children(pid),
        || on_connections(|| Connection::local(&file("socket")), path),
    );
    must(Command::new("kill").args(["-QUIT", &pid.to_string()]));
    wait_end("nginx", &mut child);
}

/// The process and its present children.
fn with_children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    std::iter::once(pid).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
}

fn requests(port: u16, path: impl Fn(u64) -> String + Sync) {
    on_connections(|| Connection::open(port), path);
}

/// GET requests on four connections at once.
fn on_connections<S: Read + Write>(
    open: impl Fn() -> std::io::Result<Connection<S>> + Sync,
    path: impl Fn(u64) -> String + Sync,
) {
    std::thread::scope(|scope| {
        for connection in 0..4 {
            let (open, path) = (&open, &path);
            scope.spawn(move || {
                let mut http = open().expect("a connection");
                for number in 0..400 {
                    let (status, _) = http.get(&path(connection * 1000 + number)).expect("an answer");
                    assert_eq!(status, 200);
                }
            });
        }
    });
}

#[test]
#[ignore = "full: twelve rounds of a load"]
fn node_is_never_warned_of() {
    const SERVER: &str = "const kept = new Map();
        require('http').createServer((request, response) => {
            const body = Buffer.alloc(4096, request.url);
            kept.set(request.url, body);
            if (kept.size > 2000) kept.delete(kept.keys().next().value);
            response.end(body);
        }).listen(0, '127.0.0.1', function () { require('fs').writeFileSync(process.argv[1] + '.part', '' + this.address().port);
            require('fs').renameSync(process.argv[1] + '.part', process.argv[1]); });";
    let scratch = Scratch::new("healthy-node");
    let port_file = scratch.path().join("port");
    let mut command = Command::new("node");
    let mut child = Running::start(command.args(["-e", SERVER, "--"]).arg(&port_file), Stdio::null());
    wait_for("the server listens", &mut child, || port_file.exists());
    let port = fs::read_to_string(&port_file).expect("a port").trim().parse().expect("a number");
    let pid = child.id();
    Watch::new("node").under(SNAPSHOTS, || vec![pid], || requests(port, |number| format!("/orders/{number}")));
}

/// A server on a VM without any flag of ours.
fn on_a_jvm(name: &'static str, start: impl Fn(&Jdk, &Path) -> (Running, u16)) {
    let Some(jdk) = jdk(25).or_else(|| jdk(17)) else {
        return log_line(&format!("subject healthy {name}: skipped, no JDK in JAVA_HOME or /usr/lib/jvm"));
    };
    let scratch = Scratch::new("healthy-jvm");
    let (child, port) = start(&jdk, scratch.path());
    let pid = child.id();
    Watch::new(name).under(SNAPSHOTS, || vec![pid], || requests(port, |number| format!("/orders/{number}")));
}

#[test]
#[ignore = "full: twelve rounds of a load"]
fn spring_boot_is_never_warned_of() {
    on_a_jvm("Spring Boot", |jdk, folder| {
        let port_file = folder.join("port");
        let mut command = Command::new(jdk.bin("java"));
        command.arg("-cp").arg(shop(&jdk.bin("javac"))).arg("shop.Shop").arg(&port_file);
        let mut child = Running::start(&mut command, Stdio::null());
        wait_for("the server listens", &mut child, || port_file.exists());
        (child, fs::read_to_string(&port_file).expect("a port").trim().parse().expect("a number"))
    });
}

#[test]
#[ignore = "full: twelve rounds of a load, and Quarkus is built by Maven"]
fn quarkus_is_never_warned_of() {
    on_a_jvm("Quarkus", |jdk, folder| {
        let log = folder.join("log");
        let mut command = Command::new(jdk.bin("java"));
        command.args(["-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0", "-jar"]).arg(kiosk());
        let mut child = Running::start(&mut command, Stdio::from(fs::File::create(&log).expect("a log")));
        let port = || {
            let text = fs::read_to_string(&log).expect("a log");
            let rest = text.split_once("Listening on: http://127.0.0.1:")?.1;
            // The number is complete once a character follows it.
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().filter(|digits| digits.len() < rest.len())?;
            digits.parse::<u16>().ok()
        };
        wait_for("the server listens", &mut child, || port().is_some());
        (child, port().expect("it was there"))
    });
}
