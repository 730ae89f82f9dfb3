//! redis-server (in Debian over jemalloc) under redis-benchmark.

use crate::launcher::{Evidence, Launcher, Running, compare, wait_end, wait_for};
use crate::stage::must;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

fn subject(launcher: &Launcher, folder: &Path) -> Evidence {
    let begin = Instant::now();
    let socket = folder.join("redis.sock");
    let mut command = launcher.command("redis-server");
    command.args(["--port", "0", "--save", "", "--enable-debug-command", "yes", "--daemonize", "no", "--unixsocket"]);
    command.arg(&socket).arg("--dir").arg(folder).arg("--logfile").arg(folder.join("log"));
    let mut child = Running::start(&mut command, Stdio::null());
    let client = || client(&socket);
    wait_until_up(&mut child, &socket);

    // Without -r the benchmark uses fixed keys, so the final data depends on the counts only.
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.arg("-s").arg(&socket).args(["-q", "-c", "20", "-n", "20000", "-d", "256", "-P", "8"]);
    must(benchmark.args(["-t", "set,get,incr,lpush,rpop,sadd,hset"]));
    must(client().args(["eval", "for i=1,20000 do redis.call('set', 'key:'..i, string.rep('v', i % 700)) end", "0"]));
    let digest = must(client().args(["debug", "digest"]));
    let size = must(client().arg("dbsize"));
    held_beside_its_own_count(launcher, &child, || must(client().args(["info", "memory"])));
    must(client().args(["eval", "for i=1,20000,2 do redis.call('del', 'key:'..i) end", "0"]));
    let _ = client().args(["shutdown", "nosave"]).output();
    let status = wait_end("redis-server", &mut child);
    Evidence { output: [digest, size].concat(), status, wall: begin.elapsed() }
}

fn client(socket: &Path) -> Command {
    let mut command = Command::new("redis-cli");
    command.arg("-s").arg(socket);
    command
}

/// Waits until redis answers: the socket's name exists a moment before redis listens.
pub fn wait_until_up(child: &mut Child, socket: &Path) {
    let is_up = || client(socket).arg("ping").output().is_ok_and(|output| output.stdout == b"PONG\n");
    wait_for("redis answers", child, is_up);
}

/// `used_memory` is the sum of malloc_usable_size over what redis itself allocated: a second count of the same blocks.
/// Redis rehashes meanwhile, and frees a table of 128 KiB or more at the end: so `used_memory` is read before and
/// after.
fn held_beside_its_own_count(launcher: &Launcher, child: &Child, info: impl Fn() -> Vec<u8>) {
    let used = || -> i128 {
        let info = String::from_utf8_lossy(&info()).into_owned();
        let used = info.lines().find_map(|line| line.trim_end().strip_prefix("used_memory:")).expect("used_memory");
        used.parse().expect("a number")
    };
    let before = used();
    let Some(books) = launcher.live_books(child, "redis, loaded") else { return };
    let (after, ours) = (used(), books.total.get("live_bytes"));
    // Ours is more: Lua, the C library, and what redis allocated for these clients, 1 MiB at most.
    assert!(
        (before.min(after) - (64 << 10)..before.max(after) + (1 << 20)).contains(&ours),
        "redis counts {before} and {after} B in use, we {ours} B between\n{books}"
    );
}

#[test]
fn redis_under_redis_benchmark() {
    let books = compare("redis", None, "off", subject);
    let log = books.iter().map(|b| b.total.get("cumulative_count")).sum::<i128>();
    assert!(log > 20_000, "a server that stored 20,000 values allocated {log} blocks");
}

#[test]
fn redis_survives_kill_9() {
    let scratch = crate::stage::Scratch::new("redis-kill");
    let launcher = Launcher::tracked(scratch.path(), "off");
    let socket = scratch.path().join("redis.sock");
    let mut command = launcher.command("redis-server");
    command
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .arg("--logfile")
        .arg(scratch.path().join("log"));
    let mut child = Running::start(&mut command, Stdio::null());
    let client = || client(&socket);
    wait_until_up(&mut child, &socket);
    must(client().args(["eval", "for i=1,5000 do redis.call('set', 'k'..i, string.rep('v', 997)) end", "0"]));
    let before = launcher.live_books(&child, "before kill -9").expect("the subject is tracked");
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");
    let dead = launcher.balanced_books("redis after kill -9").pop().expect("a segment");
    assert_eq!(dead.state, "dead");
    let (before, after) = (before.total.get("live_bytes"), dead.total.get("live_bytes"));
    assert!(after >= 5000 * 997, "5,000 values of 997 B were stored, the books say {after} B");
    // Between the report and the signal redis only served its timer.
    assert!((before - after).abs() < 256 << 10, "{before} B before, {after} B after the kill");
}
