//! `plimsoll doctor`: what works on this machine, where segments lie, what is tracked now, and what to type to get the
//! rest.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::ValueEnum;
use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::Bytes;
use plimsoll_observer::source::glibc;
use plimsoll_process::foreign::{Deadline, FileKind, LOOK, Requirements, open};
use plimsoll_process::proc;
use plimsoll_process::processes::{Lacking, ProcView};
use plimsoll_report::doctor::{self as findings, BooksFound, Check, Findings, Tracked};
use plimsoll_tracked::segment::{self, Life};

use crate::output::{require_stdout, to_output};
use crate::{Failure, progress, sys, target, tracker};

#[derive(clap::Args)]
pub struct Args {
    /// Print text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The oldest kernel that the tests run on (docs/kernels.md).
const KERNEL: (u32, u32) = (5, 10);
/// The oldest glibc whose symbols the tracker imports.
const GLIBC: (u32, u32) = (2, 17);

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    require_stdout()?;
    progress::begin("checking this machine");
    let deadline = Deadline::after(LOOK);
    let checks = vec![kernel(), libc(deadline), ptrace(), visible(), names(), segments(), preload(deadline)];
    let tracked = segments_of_all(deadline).into_iter().map(|found| tracked(found, deadline)).collect();
    let found = Findings { checks, complete: !deadline.has_passed(), tracked };
    to_output(None, |out| match args.format {
        Format::Text => findings::text(out, &found),
        Format::Json => findings::json(out, &found, env!("PLIMSOLL_VERSION")),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn kernel() -> Check {
    let Some((major, minor, release)) = sys::kernel() else {
        return Check::new("kernel", false, "/proc/sys/kernel/osrelease can't be read: is /proc mounted?");
    };
    let good = (major, minor) >= KERNEL;
    let (a, b) = KERNEL;
    let text = if good { release } else { format!("{release}: plimsoll is tested on {a}.{b} and later only") };
    Check::new("kernel", good, text)
}

/// The glibc of this system's programs. `plimsoll` itself may be static.
fn glibc_version(deadline: Deadline) -> Option<String> {
    const FOLDERS: &[&str] =
        &["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
    let files = FOLDERS.iter().map(|folder| Path::new(folder).join("libc.so.6"));
    let of_file = |path: PathBuf| {
        let library = open(&path, Requirements::of(FileKind::Object), deadline).ok()?;
        glibc::parse_version(&library.read().ok()?)
    };
    sys::own_glibc().or_else(|| files.filter_map(of_file).next())
}

fn libc(deadline: Deadline) -> Check {
    const REMEDY: &str = "what runs here can be explained: plimsoll explain PID";
    let Some(version) = glibc_version(deadline) else {
        if has_musl() {
            return Check::new("C library", true, "musl: plimsoll run works; plimsoll attach needs glibc");
        }
        let text = "neither glibc nor musl: programs of this system can't be tracked";
        return Check::new("C library", false, text).with_remedy(REMEDY);
    };
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    let good = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= GLIBC;
    match good {
        true => Check::new("C library", true, format!("glibc {version}")),
        false => Check::new("C library", false, format!("glibc {version}: older than 2.17")).with_remedy(REMEDY),
    }
}

/// Whether this system's programs use musl: its loader, which is also the library, has this path in each of them.
fn has_musl() -> bool {
    Path::new(&format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH)).exists()
}

fn ptrace() -> Check {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope = scope.and_then(|s| s.trim().parse::<u32>().ok()).unwrap_or(0);
    let found = |good, text: &str| Check::new("ptrace", good, text);
    match (scope, sys::uid()) {
        (3.., _) => found(
            false,
            "kernel.yama.ptrace_scope = 3 until the next boot: explain reads no heap of a running process, and attach is refused",
        )
        .with_remedy("start programs with: plimsoll run -- COMMAND"),
        (_, 0) if sys::may_trace() => found(true, "root: resident sizes of every process can be read"),
        (_, 0) => found(
            false,
            "root without CAP_SYS_PTRACE: other users' processes and those with more capabilities can't be read",
        )
        .with_remedy(
            "from inside a container: --cap-add SYS_PTRACE (Kubernetes: securityContext: {capabilities: {add: [SYS_PTRACE]}})",
        ),
        (0, _) => {
            let root = proc::as_root("plimsoll explain PID");
            found(
                true,
                &format!("resident sizes of your own processes can be read; only root can read those of others ({root})"),
            )
        }
        (n, _) => found(
            false,
            &format!(
                "kernel.yama.ptrace_scope = {n}: explain reads no heap of a running process, and attach is refused; run and report work"
            ),
        )
        .with_remedy(format!(
            "{}, or: {}",
            proc::as_root("plimsoll explain"),
            proc::as_root("sysctl kernel.yama.ptrace_scope=0")
        )),
    }
}

/// Which processes /proc shows.
fn visible() -> Check {
    match ProcView::now().lacking() {
        Some(Lacking { what, remedy, within }) => Check::new("processes", !within, what).with_remedy(remedy),
        None => Check::new("processes", true, "every process of this machine is visible"),
    }
}

/// Which sources give code its names, and how to enable more.
fn names() -> Check {
    const ALSO: &[&str] = &[
        "Java methods in HotSpot: always named; HotSpot's own functions: by the symbols of libjvm.so",
        "native images: build with -H:-DeleteLocalSymbols to name methods, and with -g to name packages and lines; a stripped",
        "  image shows image+offset until report gets --symbols FILE of the same build",
        "generated code (JITs): by /tmp/perf-PID.map or a jitdump; stacks lead through it by frame pointers",
        "node: start it with --perf-basic-prof --interpreted-frames-native-stack to name JavaScript functions, not only V8's builtins",
        "stripped programs: build with gcc -g, keep the symbols by objcopy --only-keep-debug, then report --symbols FILE|DIR",
    ];
    let more = if Path::new("/usr/lib/debug/.build-id").is_dir() {
        "separate debug files in /usr/lib/debug"
    } else {
        "no debug files in /usr/lib/debug: system libraries show exported functions only (Debian: packages -dbg, -dbgsym)"
    };
    let text = format!("of functions, by symbol tables and DWARF of programs and libraries; {more}");
    Check { notes: ALSO, ..Check::new("names", true, text) }
}

fn segments() -> Check {
    let dir = tracker::default_directory();
    let shown = dir.display();
    if let Err(reason) = tracker::private_directory(&dir) {
        return Check::new("segments", false, format!("{shown} {reason}"))
            .with_remedy("choose another one with --dir or PLIMSOLL_DIR");
    }
    let kind = match mount_type(&dir) {
        Some(kind) if kind == "tmpfs" => "tmpfs: in memory, charged to the cgroup of the tracked process".into(),
        Some(kind) => format!("{kind}: on disk, outlives the container if it is a volume"),
        None => "unknown file system".into(),
    };
    let bound = Bytes(segment::FILE_BYTES as u64);
    Check::new("segments", true, format!("{shown} ({kind}); at most {bound} each, usually a few hundred KiB"))
}

/// File system type of the mount that holds `path` (the longest mount point above it, proc(5) mountinfo).
fn mount_type(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let above = proc::mount_lines(&mounts)
        .filter(|mount| path.starts_with(&mount.point))
        .map(|mount| (mount.point.len(), mount.file_system.to_owned()));
    // Of mounts on the same point the last one is on top; max_by_key returns the last of equal elements.
    above.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

fn preload(deadline: Deadline) -> Check {
    match try_preload(deadline) {
        Ok(library) => Check::new("tracker", true, format!("works; unpacked at {}", library.display())),
        Err(reason) => Check::new("tracker", false, reason),
    }
}

/// Runs true(1) with the tracker and looks for its segment.
fn try_preload(deadline: Deadline) -> Result<PathBuf, String> {
    let library = tracker::unpack(deadline).map_err(|Failure(reason)| reason)?.library;
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
        let stderr = String::from_utf8_lossy(&child.stderr);
        return Err(format!("a program with the tracker left no segment; it wrote: '{}'", stderr.trim()));
    }
    Ok(library)
}

/// The segments in our own directories, oldest first, then those of living processes elsewhere: `--dir`, another
/// user's, a container's. Each with the process's PID as this process sees it.
fn segments_of_all(deadline: Deadline) -> Vec<(u32, PathBuf, Life)> {
    let own = segment::search_directories(None, deadline);
    let mut found: Vec<_> = own
        .iter()
        .flat_map(|dir| segment::list_owned(dir, None, deadline))
        .map(|(path, head)| {
            let (life, pid) = segment::process_of(&head, &path, deadline);
            (pid.unwrap_or(head.pid), path, life)
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

fn tracked((pid, path, life): (u32, PathBuf, Life), deadline: Deadline) -> Tracked {
    let state = match life {
        Life::Live => "live",
        Life::Exited => "exited",
        Life::Killed => "killed",
        Life::Detached => "detached",
    };
    let books = match target::books(&path, life, deadline) {
        Ok(books) => BooksFound::Read {
            live_bytes: books.total.live.0,
            committed_bytes: books.total.committed.0,
            command: one_line(&books.process.arguments),
        },
        Err(Failure(error)) => BooksFound::Refused { error },
    };
    Tracked { pid, state, segment: path.display().to_string(), books }
}
