//! The cost of a fork: CPU time of a program that does little else, and of its children.

use super::measure::{children, turns, with_children};
use super::results::Results;
use super::setup::{Setup, segments};
use super::stats::{Ratio, median, paired};
use super::{Bench, words};
use crate::stage::{Result, folder, must, plimsoll};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FORKS: usize = 2_000;
const CONNECTIONS: usize = 400;

pub fn cost(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Forks",
        "bench/forks.c, shell scripts of 2,000 forks, and connections to PostgreSQL (pgbench -C; time of the server alone): processor \
         time of parent and children for one fork, median of alternating runs, and the ratio to plain with its 95 % bound, round by \
         round. The segments lie on tmpfs or on the disk of target/.",
    );
    results.head(&["program", "plain, us", "tmpfs, us", "ratio", "bar", "disk, us", "ratio", "bar"]);
    let program = bench.program("forks")?;
    let n = FORKS.to_string();
    let script = format!("i=0; while [ $i -lt {n} ]; do (:); i=$((i+1)); done");
    let rows = [
        ("child exits at once", program.clone(), words(&[&n, "exit"]), true),
        ("child execs at once", program.clone(), words(&[&n, "exec"]), true),
        ("child allocates first", program, words(&[&n, "block"]), false),
        ("subshells of dash", PathBuf::from("/bin/dash"), words(&["-c", &script]), false),
        ("subshells of bash", PathBuf::from("/bin/bash"), words(&["-c", &script]), false),
    ];
    let (memory, disk) = (segments()?, folder("bench/segments")?);
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o700))?;
    let setups = [Setup::Plain("plain"), Setup::Plain("tmpfs"), Setup::Plain("disk")];
    fn directory<'a>(setup: &Setup, memory: &'a Path, disk: &'a Path) -> Option<&'a Path> {
        match setup.name().as_str() {
            "tmpfs" => Some(memory),
            "disk" => Some(disk),
            _ => None,
        }
    }
    for (name, program, arguments, has_bar) in rows {
        let values = turns(bench.rounds, &setups, |setup| {
            Ok(spent(&program, &arguments, directory(setup, &memory, &disk))? / FORKS as f64)
        })?;
        row(results, name, &values, has_bar);
    }
    let values =
        turns(bench.rounds.div_ceil(2).max(3), &setups, |setup| connections(directory(setup, &memory, &disk)))?;
    row(results, "PostgreSQL, a connection", &values, false);
    Ok(())
}

fn row(results: &mut Results, name: &str, values: &[Vec<f64>], has_bar: bool) {
    let [plain, memory, disk] = [0, 1, 2].map(|i| median(&values[i]));
    let [on_memory, on_disk] = [1, 2].map(|i| paired(&values[0], &values[i]));
    let bar = |limit: f64, r: &Ratio| match has_bar {
        true => format!("≤ {limit}: {}", r.verdict(limit)),
        false => String::new(),
    };
    let of = |r: &Ratio| format!("{:.2} ({:.2} to {:.2})", r.value, r.low, r.high);
    results.row(&[
        name.into(),
        format!("{plain:.0}"),
        format!("{memory:.0}"),
        of(&on_memory),
        bar(1.3, &on_memory),
        format!("{disk:.0}"),
        of(&on_disk),
        bar(2.0, &on_disk),
    ]);
}

fn command(program: &Path, directory: Option<&Path>) -> Result<Command> {
    let Some(directory) = directory else { return Ok(Command::new(program)) };
    let mut command = Command::new(plimsoll()?);
    command.args(["run", "--report", "none", "--dir"]).arg(directory).arg("--").arg(program);
    Ok(command)
}

/// Microseconds of CPU time.
fn spent(program: &Path, arguments: &[String], directory: Option<&Path>) -> Result<f64> {
    let before = children()?;
    must(command(program, directory)?.args(arguments))?;
    let after = children()?;
    Ok((after.iter().sum::<f64>() - before.iter().sum::<f64>()) * 1e6)
}

/// A server that is killed if the bench fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Microseconds of a PostgreSQL server for one connection, from its fork to its end, with one query.
fn connections(segments: Option<&Path>) -> Result<f64> {
    let folder = std::env::temp_dir().join(format!("plimsoll-bench-postgres-{}", std::process::id()));
    let segments = segments.map(|directory| directory.join("postgres"));
    let done = serve(&folder, segments.as_deref());
    for used in [Some(&folder), segments.as_ref()].into_iter().flatten() {
        let _ = fs::remove_dir_all(used);
    }
    done
}

fn serve(folder: &Path, segments: Option<&Path>) -> Result<f64> {
    let user = postgres_user()?;
    for made in [Some(folder), segments].into_iter().flatten() {
        fs::create_dir_all(made)?;
        fs::set_permissions(made, fs::Permissions::from_mode(0o700))?;
        if let Some((uid, gid)) = user {
            chown(made, Some(uid), Some(gid))?;
            // The server's user must pass the parent of the segments' folder, which belongs to us.
            let above = made.parent().filter(|_| Some(made) == segments);
            above.map_or(Ok(()), |above| fs::set_permissions(above, fs::Permissions::from_mode(0o711)))?;
        }
    }
    let as_user = |command: &mut Command| {
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid).env_remove("HOME").env_remove("XDG_CACHE_HOME");
        }
        command.current_dir("/");
    };
    let client = |name: &str| -> Result<Command> {
        let mut command = Command::new(postgres_program(name)?);
        as_user(&mut command);
        command.arg("-h").arg(folder).args(["-U", "postgres"]);
        Ok(command)
    };
    let data = folder.join("data");
    let mut initdb = Command::new(postgres_program("initdb")?);
    as_user(&mut initdb);
    must(initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "-D"]).arg(&data))?;
    let mut server = command(&postgres_program("postgres")?, segments)?;
    as_user(&mut server);
    server.arg("-D").arg(&data).arg("-k").arg(folder).args(["-c", "listen_addresses=", "-c", "fsync=off"]);
    server.args(["-c", "autovacuum=off"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server(server.spawn()?);
    let begin = Instant::now();
    while !client("pg_isready")?.output()?.status.success() {
        if begin.elapsed() > Duration::from_secs(120) || server.0.try_wait()?.is_some() {
            return Err("PostgreSQL accepts no connections".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let query = folder.join("query.sql");
    fs::write(&query, "SELECT 1;\n")?;
    fs::set_permissions(&query, fs::Permissions::from_mode(0o644))?;
    // The first connections, and the start of the server, have warmed the caches by then.
    let connect = |n: usize| -> Result<String> {
        must(client("pgbench")?.args(["-n", "-C", "-c", "1", "-t", &n.to_string(), "-f"]).arg(&query).arg("postgres"))
    };
    connect(10)?;
    let before = with_children(server.0.id())?;
    connect(CONNECTIONS)?;
    let spent = with_children(server.0.id())? - before;
    // SIGINT is PostgreSQL's fast shutdown.
    must(Command::new("kill").args(["-INT", &server.0.id().to_string()]))?;
    server.0.wait()?;
    Ok(spent / CONNECTIONS as f64 * 1e6)
}

/// The newest of the installed versions; Debian allows several.
fn postgres_program(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| "PostgreSQL is missing: run .ci/setup")?.flatten();
    let newest = versions.max_by_key(|entry| entry.file_name().to_string_lossy().parse::<u32>().unwrap_or(0));
    Ok(newest.ok_or("PostgreSQL has no version")?.path().join("bin").join(name))
}

/// PostgreSQL refuses to run as root. `None`: this process is not root.
fn postgres_user() -> Result<Option<(u32, u32)>> {
    if !fs::read_to_string("/proc/self/status")?.contains("\nUid:\t0\t0") {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find_map(|line| line.strip_prefix("postgres:x:")).ok_or("there is no user postgres")?;
    let mut ids = line.split(':').map(str::parse::<u32>);
    let mut id = || ids.next().ok_or("/etc/passwd is damaged");
    Ok(Some((id()??, id()??)))
}
