//! `plimsoll doctor`: what works on this machine, where segments lie, what is tracked now, and what to type to get the
//! rest.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use plimsoll_observer::foreign::{Deadline, LOOK};
use plimsoll_observer::source::segment::{self, Life};
use plimsoll_observer::units::Bytes;
use plimsoll_report::words::{cut, printable};

use crate::output::to_output;
use crate::{Failure, sys, target, tracker};

#[derive(clap::Args)]
pub struct Args {}

/// The tracker needs MADV_POPULATE_WRITE (madvise(2)), which this kernel introduced, to grow its segment.
const KERNEL: (u32, u32) = (5, 14);
/// The oldest glibc whose symbols the tracker imports.
const GLIBC: (u32, u32) = (2, 17);

pub fn run(_: Args) -> Result<ExitCode, Failure> {
    let deadline = Deadline::after(LOOK);
    to_output(None, |out| {
        kernel(out)?;
        libc(out)?;
        ptrace(out)?;
        names(out)?;
        segments(out)?;
        preload(out, deadline)?;
        tracked(out, deadline)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn line(out: &mut dyn Write, what: &str, good: bool, text: &str) -> io::Result<()> {
    writeln!(out, "{} {what:<10} {text}", if good { " " } else { "!" })
}

fn kernel(out: &mut dyn Write) -> io::Result<()> {
    let Some((major, minor, release)) = sys::kernel() else {
        return line(out, "kernel", false, "/proc/sys/kernel/osrelease can't be read: is /proc mounted?");
    };
    let good = (major, minor) >= KERNEL;
    let (a, b) = KERNEL;
    let text = if good {
        format!("{release} ({a}.{b} or later is needed)")
    } else {
        format!(
            "{release}: older than {a}.{b}, which has MADV_POPULATE_WRITE; a full file system may then end a tracked program"
        )
    };
    line(out, "kernel", good, &printable(&text))
}

fn libc(out: &mut dyn Write) -> io::Result<()> {
    let Some(version) = sys::glibc_version() else {
        return line(out, "C library", false, "not glibc: programs of this system can be explained, not tracked");
    };
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    let good = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= GLIBC;
    line(out, "C library", good, &format!("glibc {version}{}", if good { "" } else { ": older than 2.17" }))
}

fn ptrace(out: &mut dyn Write) -> io::Result<()> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope = scope.and_then(|s| s.trim().parse::<u32>().ok()).unwrap_or(0);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let (good, text) = match (scope, sys::uid()) {
        (_, 0) if scope < 3 && may_trace(&status) => (true, "root: resident sizes of every process can be read".to_string()),
        (_, 0) if scope < 3 => (
            false,
            "root without CAP_SYS_PTRACE: other users' processes and those with more capabilities can't be read; from inside a\n               container: --cap-add SYS_PTRACE (Kubernetes: securityContext: {capabilities: {add: [SYS_PTRACE]}})".to_string(),
        ),
        (0, _) => (true, "resident sizes of your own processes can be read; others: sudo plimsoll …".to_string()),
        (1, _) => (
            false,
            "yama allows ancestors only: reports work, but resident sizes of a running process need\n               sudo plimsoll report PID, or: sudo sysctl kernel.yama.ptrace_scope=0".to_string(),
        ),
        (n, _) => (false, format!("kernel.yama.ptrace_scope = {n}: resident sizes need root (sudo plimsoll report PID)")),
    };
    line(out, "ptrace", good, &text)
}

/// Reads from /proc/self/status whether this process may read the memory of any other (capabilities(7)). Root in a
/// container may lack that right.
fn may_trace(status: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|set| set >> CAP_SYS_PTRACE & 1 == 1)
}

/// Which sources give code its names, and how to enable more.
fn names(out: &mut dyn Write) -> io::Result<()> {
    let debug = Path::new("/usr/lib/debug/.build-id").is_dir();
    let more = if debug {
        "separate debug files in /usr/lib/debug"
    } else {
        "no debug files in /usr/lib/debug: system libraries show exported functions only (Debian: packages -dbg, -dbgsym)"
    };
    line(out, "names", true, &format!("symbol tables and DWARF of programs and libraries; {more}"))?;
    let also = [
        "Java in HotSpot: named without any option; HotSpot's own functions by the symbols of libjvm.so",
        "native images: -H:-DeleteLocalSymbols at the build gives methods names, -g packages and lines too; a stripped",
        "  image shows image+offset, and --symbols FILE of the same build names it later",
        "JITs: a /tmp/perf-PID.map or jitdump; their code is walked by its frame pointers",
        "node: --perf-basic-prof --interpreted-frames-native-stack names JavaScript functions; without them, only V8's builtins have names",
        "stripped programs: gcc -g, then objcopy --only-keep-debug; report --symbols FILE|DIR",
    ];
    also.iter().try_for_each(|text| writeln!(out, "{:13}{text}", ""))
}

fn segments(out: &mut dyn Write) -> io::Result<()> {
    let dir = tracker::default_directory();
    let shown = printable(&dir.display().to_string());
    let in_memory = mount_type(&dir).is_some_and(|t| t == "tmpfs");
    let kind = match mount_type(&dir) {
        Some(t) if in_memory => format!("{t}: in memory, charged to the cgroup of the tracked process"),
        Some(t) => format!("{}: on disk, outlives the container if it is a volume", printable(&t)),
        None => "unknown file system".into(),
    };
    let bound = Bytes(segment::FILE_BYTES as u64);
    line(out, "segments", true, &format!("{shown} ({kind}); at most {bound} each, usually a few hundred KiB"))?;
    match tracker::private_directory(&dir) {
        Ok(()) => Ok(()),
        Err(reason) => {
            line(out, "", false, &format!("{shown} {reason}: choose another one with --dir or PLIMSOLL_DIR"))
        }
    }
}

/// File system type of the mount that holds `path` (the longest mount point above it, proc(5) mountinfo).
fn mount_type(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let above = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        path.starts_with(point).then(|| (point.len(), right.split(' ').next().unwrap_or("").to_string()))
    });
    // Of mounts on the same point the last one is on top; max_by_key returns the last of equal elements.
    above.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

fn preload(out: &mut dyn Write, deadline: Deadline) -> io::Result<()> {
    match try_preload(deadline) {
        Ok(library) => {
            line(out, "tracker", true, &format!("works; unpacked at {}", printable(&library.display().to_string())))
        }
        Err(reason) => line(out, "tracker", false, &printable(&reason)),
    }
}

/// Runs true(1) with the tracker and looks for its segment.
fn try_preload(deadline: Deadline) -> Result<PathBuf, String> {
    let library = tracker::unpack().map_err(|Failure(reason)| reason)?.library;
    let dir = tracker::default_directory().join(format!("doctor-{}", std::process::id()));
    tracker::private_directory(&dir).map_err(|e| format!("{} {e}", dir.display()))?;
    let child = Command::new("true")
        .env("LD_PRELOAD", &library)
        .env(segment::DIRECTORY_VARIABLE, &dir)
        .stdin(Stdio::null())
        .output();
    let found = segment::list(&dir, deadline);
    let _ = fs::remove_dir_all(&dir);
    let child = child.map_err(|e| format!("cannot start true(1): {e}"))?;
    if !child.status.success() {
        return Err(format!("a program with the tracker ended with {}", child.status));
    }
    if found.is_empty() {
        let said = String::from_utf8_lossy(&child.stderr);
        return Err(format!("a program with the tracker left no segment; it wrote: '{}'", said.trim()));
    }
    Ok(library)
}

/// The segments in our own directories, oldest first, then those of living processes elsewhere: `--dir`, another
/// user's, a container's. Each with the process's PID as this process sees it.
fn segments_of_all(deadline: Deadline) -> Vec<(u32, PathBuf, Life)> {
    let own = segment::search_directories(None, deadline);
    let mut found: Vec<_> = own
        .iter()
        .flat_map(|dir| segment::list_own(dir, deadline))
        .map(|(path, head)| {
            let life = segment::life_of(&head, &path, deadline);
            (head.pid, path, life)
        })
        .collect();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let file = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let known: Vec<_> = found.iter().map(|(_, path, _)| file(path)).collect();
    for pid in pids {
        if let Some((path, _, life @ Life::Live)) = segment::find_by_pid(pid, deadline)
            && !known.contains(&file(&path))
        {
            found.push((pid, path, life));
        }
    }
    found
}

fn tracked(out: &mut dyn Write, deadline: Deadline) -> io::Result<()> {
    let found = segments_of_all(deadline);
    if deadline.has_passed() {
        line(
            out,
            "tracked",
            false,
            "not all directories and processes were reached in time: some may be missing here",
        )?;
    }
    if found.is_empty() {
        return writeln!(out, "\nNothing is tracked. Start a program with:  plimsoll run -- COMMAND");
    }
    writeln!(out, "\n{:>9} {:<7} {:>10} {:>10}  command", "pid", "state", "live", "committed")?;
    for (pid, path, life) in found {
        let state = match life {
            Life::Live => "live",
            Life::Exited => "exited",
            Life::Killed => "killed",
            Life::Detached => "detached",
        };
        match target::books(&path, life, deadline) {
            Ok(books) => {
                let (live, committed) = (books.total.live.to_string(), books.total.committed.to_string());
                let command = cut(&books.process.arguments.join(" "), 60);
                writeln!(out, "{pid:>9} {state:<7} {live:>10} {committed:>10}  {command}")?;
                if life != Life::Live {
                    writeln!(out, "{:>41}{}", "", printable(&path.display().to_string()))?;
                }
            }
            Err(Failure(reason)) => writeln!(out, "{pid:>9} {state:<7} {reason}")?,
        }
    }
    writeln!(out, "\nplimsoll report PID │ SEGMENT")
}

#[cfg(test)]
mod tests {
    use super::may_trace;

    #[test]
    fn a_container_s_root_may_not_trace() {
        assert!(may_trace("Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"));
        // The capabilities of a container without --cap-add.
        assert!(!may_trace("CapEff:\t00000000a80425fb\n"));
        assert!(!may_trace(""));
    }
}
