//! Limits the time of a run: a program that hangs must not stop `make bench` for good.
//!
//! The programs stay in this process's group, so that Ctrl-C ends them, too. At the limit, the program and its
//! descendants are killed. A process whose parent has ended isn't a descendant, and is left.

use crate::stage::Result;
use std::fmt::Debug;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The slowest runs take some minutes.
pub const ONE_RUN: Duration = Duration::from_secs(600);
/// For a command that makes many runs.
pub const MANY_RUNS: Duration = Duration::from_secs(3 * 3600);

/// `wait` ends when the process does, or when the process answers. If it takes longer than `most`, the process and its
/// descendants are killed, and the error has the name.
pub fn within<T>(most: Duration, pid: u32, name: impl Debug, wait: impl FnOnce() -> Result<T>) -> Result<T> {
    let (done, waited) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let is_late = waited.recv_timeout(most) == Err(RecvTimeoutError::Timeout);
        if is_late {
            kill(pid);
        }
        is_late
    });
    let value = wait();
    drop(done);
    match watch.join() {
        Ok(false) => value,
        _ => Err(format!("{name:?}: killed: it neither ended nor answered within {} s", most.as_secs()).into()),
    }
}

/// [`Command::output`] of one run.
pub fn output(command: &mut Command) -> Result<Output> {
    output_within(ONE_RUN, command)
}

pub fn output_within(most: Duration, command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| format!("{command:?}: {error} (run .ci/setup)"))?;
    within(most, child.id(), command, || Ok(child.wait_with_output()?))
}

/// Runs a command that must succeed, within [`ONE_RUN`]; returns its standard output.
pub fn must_within_limit(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn kill(pid: u32) {
    for pid in family(pid).into_iter().filter_map(|pid| libc::pid_t::try_from(pid).ok()) {
        // SAFETY: kill only sends a signal: to a child that was not waited for when the time was over, and its descendants.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// A process and its descendants.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        next += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_its_children() {
        let begin = Instant::now();
        // The sleeping child holds the pipe of the output.
        let hung = output_within(Duration::from_millis(300), &mut shell("sleep 600 & wait"));
        let error = hung.expect_err("it hangs").to_string();
        assert!(error.contains("sleep 600 & wait") && error.contains("neither ended nor answered"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(120));
    }

    #[test]
    fn a_command_that_ends_keeps_its_result() {
        assert_eq!(must_within_limit(&mut shell("echo done")).expect("it ends"), "done\n");
        let failed = must_within_limit(&mut shell("echo why >&2; exit 3")).expect_err("it fails").to_string();
        assert!(failed.contains("exit status: 3") && failed.ends_with("why\n"), "{failed}");
    }
}
