//! PostgreSQL, initdb and pgbench: many processes by fork, shared memory, another user.

use crate::launcher::{Evidence, Launcher, Running, User, compare, evidence, wait_end, wait_for};
use crate::stage::must;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A program of the newest installed version: Debian installs several side by side.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is there (run .ci/setup)").flatten();
    let newest = versions.max_by_key(|entry| entry.file_name().to_string_lossy().parse::<u32>().unwrap_or(0));
    newest.expect("a version").path().join("bin").join(name)
}

/// PostgreSQL refuses to run as root.
pub fn user() -> Option<User> {
    let is_root = fs::read_to_string("/proc/self/status").expect("proc").contains("\nUid:\t0\t0");
    is_root.then(|| User::named("postgres").expect("Debian's package makes the user postgres"))
}

pub fn as_user(name: &str) -> Command {
    let mut command = Command::new(program(name));
    if let Some(user) = user() {
        command.uid(user.uid).gid(user.gid);
    }
    command.current_dir("/");
    command
}

pub fn initdb(command: &mut Command, data: &Path) {
    command.args(["--no-sync", "--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8", "-D"]);
    command.arg(data).current_dir("/");
}

#[test]
fn initdb_makes_the_same_cluster() {
    let subject = |launcher: &Launcher, folder: &Path| {
        let data = folder.join("data");
        let mut command = launcher.command(program("initdb"));
        initdb(&mut command, &data);
        let mut seen = evidence(&mut command);
        // The cluster's system identifier is a time; everything else in this file is a property of the cluster.
        seen.output.extend(fs::read(data.join("PG_VERSION")).expect("a cluster was made"));
        seen
    };
    let books = compare("initdb", user(), "off", subject);
    assert!(books.len() > 2, "initdb runs postgres by the shell: {} segments", books.len());
}

#[test]
fn postgres_under_pgbench() {
    let subject = |launcher: &Launcher, folder: &Path| {
        let data = folder.join("data");
        let mut make = as_user("initdb");
        initdb(&mut make, &data);
        must(&mut make);
        let begin = Instant::now();
        let mut command = launcher.command(program("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(folder).args(["-c", "listen_addresses=", "-c", "fsync=off"]);
        command.args(["-c", "autovacuum=off", "-c", "shared_buffers=32MB", "-c", "logging_collector=off"]);
        let log = fs::File::create(folder.join("log")).expect("a file for the log");
        let mut child = Running::start_with_errors(command.current_dir("/").stdout(Stdio::null()).stderr(log));
        let client = |name: &str| {
            let mut command = as_user(name);
            command.arg("-h").arg(folder).args(["-U", "postgres"]);
            command
        };
        let is_up = || client("pg_isready").output().is_ok_and(|output| output.status.success());
        wait_for("postgres accepts connections", &mut child, is_up);
        must(client("pgbench").args(["-i", "-q", "-s", "1", "postgres"]));
        must(client("pgbench").args(["-c", "4", "-j", "2", "-t", "400", "--random-seed=42", "postgres"]));
        launcher.live_books(&child, "the postmaster");
        let sums = "SELECT sum(abalance) FROM pgbench_accounts; SELECT sum(bbalance) FROM pgbench_branches; \
            SELECT sum(tbalance) FROM pgbench_tellers; SELECT count(*), sum(delta), md5(string_agg(aid || ':' || delta, ',' \
            ORDER BY aid, delta)) FROM pgbench_history; SELECT sum(length(repeat(i::text, 50))) FROM generate_series(1, 20000) i";
        let output = must(client("psql").args(["-X", "-A", "-t", "-c", sums, "postgres"]));
        // SIGINT to the postmaster alone is the fast shutdown.
        must(Command::new("kill").args(["-INT", &child.id().to_string()]));
        let status = wait_end("postgres", &mut child);
        let log = fs::read_to_string(folder.join("log")).expect("the log");
        for bad in ["PANIC", "was terminated by signal", "invalid"] {
            assert!(!log.contains(bad), "the server's log:\n{log}");
        }
        Evidence { output, status, wall: begin.elapsed() }
    };
    let books = compare("postgres", user(), "off", subject);
    // Postmaster, checkpointer, writers, statistics and the backends: each forked child has books of its own.
    assert!(books.len() >= 6, "{} segments", books.len());
}
