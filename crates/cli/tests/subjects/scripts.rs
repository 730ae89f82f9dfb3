//! Interpreters and tools that run to their end: python3 with numpy, node, git.

use crate::launcher::{Evidence, Launcher, compare, evidence};
use crate::stage::{must, repository};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script(name: &str) -> PathBuf {
    repository().join("fixtures/scripts").join(name)
}

#[test]
fn python_with_numpy() {
    // Debian's python3, not the first one on the path: `.ci/setup` installs its numpy.
    let subject =
        |launcher: &Launcher, _: &Path| evidence(launcher.command("/usr/bin/python3").arg(script("matrices.py")));
    compare("python3-numpy", None, "off", subject);
    compare("python3-numpy-sampled", None, "sampled", subject);
}

#[test]
fn node() {
    let subject = |launcher: &Launcher, _: &Path| evidence(launcher.command("node").arg(script("orders.js")));
    compare("node", None, "off", subject);
    compare("node-sampled", None, "sampled", subject);
}

/// A history of 300 commits in the form of git fast-import, the same bytes at each run.
fn history() -> String {
    let mut text = String::new();
    for commit in 1..=300u64 {
        let time = 1_600_000_000 + commit * 60;
        text += &format!(
            "commit refs/heads/main\nauthor A <a@example.org> {time} +0000\ncommitter A <a@example.org> {time} +0000\n"
        );
        text += "data 2\nc\n";
        for file in 0..5u64 {
            let name = (commit * 7 + file * 13) % 60;
            let lines: Vec<String> =
                (0..80).map(|line| format!("{} {}", line, (commit * line * 2_654_435_761) % 1_000_003)).collect();
            let body = lines.join("\n");
            text += &format!("M 100644 inline d{}/f{name}\ndata {}\n{body}\n", name % 6, body.len());
        }
        text += "\n";
    }
    text + "done\n"
}

#[test]
fn git_clones_and_packs() {
    let subject = |launcher: &Launcher, folder: &Path| {
        let (origin, clone) = (folder.join("origin"), folder.join("clone"));
        must(Command::new("git").args(["init", "-q", "-b", "main"]).arg(&origin));
        fs::write(folder.join("history"), history()).expect("scratch can be written");
        let history = fs::File::open(folder.join("history")).expect("just written");
        let import = Command::new("git")
            .arg("-C")
            .arg(&origin)
            .args(["fast-import", "--quiet", "--done"])
            .stdin(history)
            .status();
        assert!(import.expect("git starts").success());
        // One thread: which deltas the packer finds would depend on timing.
        let git = |arguments: &[&str]| {
            let mut command = launcher.command("git");
            command.args(["-c", "pack.threads=1", "-c", "gc.autoDetach=false"]).args(arguments).current_dir(folder);
            evidence(&mut command)
        };
        let (origin, clone) = (origin.to_str().expect("UTF-8"), clone.to_str().expect("UTF-8"));
        let steps = [
            git(&["clone", "-q", "--no-local", origin, clone]),
            git(&["-C", clone, "gc", "-q", "--aggressive", "--prune=now"]),
            git(&["-C", clone, "fsck", "--full", "--no-progress"]),
            git(&["-C", clone, "log", "--stat", "-p", "--format=%H %s"]),
            git(&["-C", clone, "count-objects", "-v"]),
            git(&["-C", clone, "no-such-verb"]),
        ];
        let wall = steps.iter().map(|step| step.wall).sum();
        let status = steps.last().expect("six steps").status;
        let mut output: Vec<u8> =
            steps.iter().flat_map(|step| format!("{:?}\n", step.status.code()).into_bytes()).collect();
        output.extend(steps.into_iter().flat_map(|step| step.output));
        Evidence { output, status, wall }
    };
    compare("git", None, "off", subject);
}
