//! The cost of a fork: CPU time of a program that does little else, and of its children.

use super::measure::{children, turns, with_children};
use super::postgres::Data;
use super::results::Results;
use super::setup::{Setup, segments, watched};
use super::stats::{Ratio, median, paired};
use super::time_limit::must_within_limit;
use super::{Bench, words};
use crate::stage::{Result, plimsoll};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const FORKS: usize = 2_000;
const CONNECTIONS: usize = 400;

/// A directory for segments on a disk, removed when dropped. It lies where PostgreSQL's user can enter: the checkout
/// may lie in a directory that only the present user may enter.
struct Disk(PathBuf);

impl Disk {
    fn create() -> Result<Disk> {
        let disk = Disk(Path::new("/var/tmp").join(format!("plimsoll-bench-{}", std::process::id())));
        fs::create_dir_all(&disk.0)?;
        fs::set_permissions(&disk.0, fs::Permissions::from_mode(0o700))?;
        let kind = must_within_limit(Command::new("stat").args(["-f", "-c", "%T"]).arg(&disk.0))?;
        match kind.trim() {
            "tmpfs" | "ramfs" => Err("/var/tmp is in memory, so a disk can't be measured".into()),
            _ => Ok(disk),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn cost(bench: &Bench, results: &mut Results) -> Result<()> {
    let connection_rounds = bench.rounds.div_ceil(2).max(3);
    results.group(
        "Forks",
        &format!(
            "bench/forks.c, shell scripts of 2,000 forks, and connections to PostgreSQL (pgbench -C; time of the server alone): processor \
             time of parent and children for one fork, median of runs in turn ({} rounds; PostgreSQL {connection_rounds}), and the ratio \
             to plain with its 95 % bound, round by round. The segments lie on tmpfs (/dev/shm) or on the disk of /var/tmp.",
            bench.rounds
        ),
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
    let (memory, disk) = (segments()?, Disk::create()?);
    let disk = disk.0.as_path();
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
            Ok(spent(&program, &arguments, directory(setup, &memory, disk))? / FORKS as f64)
        })?;
        row(results, name, &values, has_bar);
    }
    let data = Data::create()?;
    let values = turns(connection_rounds, &setups, |setup| connections(&data, directory(setup, &memory, disk)))?;
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

/// Microseconds of a PostgreSQL server for one connection, from its fork to its end, with one query.
fn connections(data: &Data, segments: Option<&Path>) -> Result<f64> {
    let server = match segments {
        Some(directory) => watched(directory, "a server of PostgreSQL", || data.serve(Some(("sampled", directory))))?,
        None => data.serve(None)?,
    };
    let query = data.script("query.sql", "SELECT 1;\n")?;
    let connect = |n: usize| -> Result<String> {
        must_within_limit(
            data.client("pgbench")?
                .args(["-n", "-C", "-c", "1", "-t", &n.to_string(), "-f"])
                .arg(&query)
                .arg("postgres"),
        )
    };
    // The start of the server and these first connections warm the caches.
    connect(10)?;
    let before = with_children(server.pid())?;
    connect(CONNECTIONS)?;
    Ok((with_children(server.pid())? - before) / CONNECTIONS as f64 * 1e6)
}

/// Microseconds of CPU time.
fn spent(program: &Path, arguments: &[String], directory: Option<&Path>) -> Result<f64> {
    let before = children()?;
    match directory {
        Some(directory) => {
            let mut command = Command::new(plimsoll()?);
            command.args(["run", "--report", "none", "--dir"]).arg(directory).arg("--").arg(program);
            watched(directory, &program.display().to_string(), || must_within_limit(command.args(arguments)))?
        }
        None => must_within_limit(Command::new(program).args(arguments))?,
    };
    let after = children()?;
    Ok((after.iter().sum::<f64>() - before.iter().sum::<f64>()) * 1e6)
}
