//! What a fork costs: processor time of a program that does little else, and of its children.

use super::measure::{children, turns};
use super::results::Results;
use super::stats::{median, ratio};
use super::way::{Way, segments};
use super::{Bench, words};
use crate::stage::{Result, folder, must, plimsoll};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const FORKS: usize = 2_000;

pub fn cost(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Forks",
        "bench/forks.c and a shell script: processor time of parent and children for one fork, median of alternating runs, and the \
         ratio to plain with its 95 % bound. The segments lie on tmpfs or on the disk of target/.",
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
    let (memory, disk) = (segments()?, folder("bench/forks")?);
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o700))?;
    let ways = [Way::Plain("plain"), Way::Plain("tmpfs"), Way::Plain("disk")];
    for (name, program, arguments, has_bar) in rows {
        let values = turns(bench.rounds, &ways, |way| {
            let directory = match way.name().as_str() {
                "tmpfs" => Some(&memory),
                "disk" => Some(&disk),
                _ => None,
            };
            spent(&program, &arguments, directory.map(PathBuf::as_path))
        })?;
        let [plain, memory, disk] = [0, 1, 2].map(|i| median(&values[i]) / FORKS as f64);
        let [on_memory, on_disk] = [1, 2].map(|i| ratio(&values[0], &values[i]));
        let bar = |limit: f64, r: &super::stats::Ratio| match has_bar {
            true => format!("≤ {limit}: {}", r.verdict(limit)),
            false => String::new(),
        };
        let of = |r: &super::stats::Ratio| format!("{:.2} ({:.2} to {:.2})", r.value, r.low, r.high);
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
    Ok(())
}

/// Microseconds of processor time.
fn spent(program: &Path, arguments: &[String], directory: Option<&Path>) -> Result<f64> {
    let mut command = match directory {
        Some(directory) => {
            let mut command = Command::new(plimsoll()?);
            command.args(["run", "--report", "none", "--dir"]).arg(directory).arg("--").arg(program);
            command
        }
        None => Command::new(program),
    };
    let before = children()?;
    must(command.args(arguments))?;
    let after = children()?;
    Ok((after.iter().sum::<f64>() - before.iter().sum::<f64>()) * 1e6)
}
