//! How the same program runs: plain, under Plimsoll, under a peer.

use super::time_limit::must_within_limit;
use crate::stage::{Result, any_jdk, folder, plimsoll};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of async-profiler.
pub const ASYNC_PROFILER: &str = "4.5";

#[derive(Clone, Debug)]
pub enum Setup {
    /// Two of these in one session give the A/A ratio.
    Plain(&'static str),
    /// Under Plimsoll with this value of `--sites`.
    Tracked(&'static str),
    /// Another allocator, preloaded.
    Allocator(&'static str, PathBuf),
    /// The tracker over another allocator.
    TrackedOver(&'static str, PathBuf),
    Heaptrack,
    /// jemalloc with its own sampling profiler, at its default mean (512 KiB).
    JemallocProfiler(PathBuf),
    /// async-profiler's nativemem with these additional options.
    AsyncProfiler(&'static str),
    /// A HotSpot with -XX:NativeMemoryTracking.
    Nmt(&'static str),
}

impl Setup {
    pub fn name(&self) -> String {
        match self {
            Setup::Plain(name) => name.to_string(),
            Setup::Tracked(sites) => format!("Plimsoll, sites {sites}"),
            Setup::Allocator(name, _) => name.to_string(),
            Setup::TrackedOver(name, _) => format!("Plimsoll over {name}, against it"),
            Setup::Heaptrack => "heaptrack".into(),
            Setup::JemallocProfiler(_) => "jemalloc with its profiler, against jemalloc".into(),
            Setup::AsyncProfiler(options) => format!("async-profiler nativemem{options}"),
            Setup::Nmt(level) => format!("HotSpot NMT {level}"),
        }
    }

    /// The setup to which its ratio refers: over another allocator, that allocator alone; otherwise the first setup.
    pub fn base(&self, setups: &[Setup]) -> usize {
        let name = match self {
            Setup::TrackedOver(name, _) => *name,
            Setup::JemallocProfiler(_) => "jemalloc",
            _ => return 0,
        };
        setups.iter().position(|setup| matches!(setup, Setup::Allocator(alone, _) if *alone == name)).unwrap_or(0)
    }

    /// A tool of others: if it can't run, the rows of Plimsoll still count.
    pub fn is_peer(&self) -> bool {
        !matches!(self, Setup::Plain(_) | Setup::Tracked(_) | Setup::TrackedOver(..))
    }

    /// Its rough slowdown: runs of slow peers are made shorter.
    pub fn slowness(&self) -> u64 {
        match self {
            Setup::Heaptrack | Setup::AsyncProfiler(_) => 10,
            _ => 1,
        }
    }

    pub fn command(&self, program: &Path, arguments: &[String]) -> Result<Command> {
        let out = folder("bench/out")?;
        let mut command = match self {
            Setup::Tracked(sites) | Setup::TrackedOver(sites, _) => {
                let sites = if let Setup::TrackedOver(..) = self { "sampled" } else { sites };
                let mut command = Command::new(plimsoll()?);
                command.args(["run", "--sites", sites, "--report", "none", "--dir"]).arg(segments()?);
                command.arg("--").arg(program);
                command
            }
            Setup::Heaptrack => {
                let mut command = Command::new("heaptrack");
                command.arg("-r").arg("-o").arg(out.join("heaptrack")).arg(program);
                command
            }
            _ => Command::new(program),
        };
        let is_java = program.ends_with("java");
        match self {
            Setup::Allocator(_, library) | Setup::TrackedOver(_, library) => {
                command.env("LD_PRELOAD", library);
            }
            Setup::JemallocProfiler(library) => {
                command.env("LD_PRELOAD", library).env("MALLOC_CONF", "prof:true,lg_prof_sample:19");
            }
            Setup::AsyncProfiler(options) => {
                let library = async_profiler()?;
                let start = format!("start,nativemem{options},file={}", out.join("async-profiler.jfr").display());
                if is_java {
                    command.arg(format!("-agentpath:{}={start}", library.display()));
                } else {
                    command.env("LD_PRELOAD", library).env("ASPROF_COMMAND", start);
                }
            }
            Setup::Nmt(level) => {
                command.arg(format!("-XX:NativeMemoryTracking={level}"));
            }
            _ => (),
        }
        command.args(arguments);
        Ok(command)
    }

    /// A run in this setup. Where `plimsoll run` can't track a program, it says so and starts it untracked, and the
    /// figure would be that of a plain run. So a tracked run must leave a new segment.
    pub fn watched<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        match self {
            Setup::Tracked(_) | Setup::TrackedOver(..) => watched(&segments()?, &self.name(), run),
            _ => run(),
        }
    }

    /// The environment that makes a program tracked, for tools that start it themselves (valgrind, strace).
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let sites = match self {
            Setup::Plain(_) => return Ok(Vec::new()),
            Setup::Tracked(sites) => sites,
            other => return Err(format!("{}: not under valgrind or strace", other.name()).into()),
        };
        let mut command = Command::new(plimsoll()?);
        command.args(["run", "--follow", "--sites", sites, "--report", "none", "--dir"]).arg(segments()?);
        tracking(&must_within_limit(command.args(["--", "env"]))?)
    }
}

/// The variables that make a program tracked, of those that `env` prints.
fn tracking(text: &str) -> Result<Vec<(String, String)>> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let ours = pairs.filter(|(name, _)| *name == "LD_PRELOAD" || name.starts_with("PLIMSOLL_"));
    let ours: Vec<_> = ours.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    match ours.iter().any(|(name, _)| name == "LD_PRELOAD") {
        true => Ok(ours),
        false => Err("plimsoll run set no LD_PRELOAD: `env` ran untracked".into()),
    }
}

/// A run that must leave a new segment in this directory, or in a directory in it.
pub fn watched<T>(folder: &Path, name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = segments_in(folder)?;
    let done = run()?;
    match segments_in(folder)?.is_subset(&before) {
        true => Err(format!("{name}: it ran untracked, there is no new segment in {}", folder.display()).into()),
        false => Ok(done),
    }
}

/// Segments have the extension `.seg`.
fn segments_in(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(segments_in(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "seg") {
            found.insert(path);
        }
    }
    Ok(found)
}

/// The least that /dev/shm must have free: a segment of exact sites takes tens of MiB, and those of ended processes
/// stay for a while.
const SPACE: u64 = 1 << 30;

/// Without space for its segment, a program runs untracked.
pub fn has_space() -> Result<()> {
    let folder = Path::new("/dev/shm");
    match free(folder)? {
        free if free < SPACE => Err(format!(
            "{} has {} MiB free, and the bench needs {} (mount -o remount,size=2g /dev/shm; docker run --shm-size=2g)",
            folder.display(),
            free >> 20,
            SPACE >> 20
        )
        .into()),
        _ => Ok(()),
    }
}

/// Free bytes of a file system.
fn free(folder: &Path) -> Result<u64> {
    let text = must_within_limit(Command::new("df").args(["-B1", "--output=avail"]).arg(folder))?;
    let bytes = text.split_whitespace().find_map(|word| word.parse().ok());
    bytes.ok_or_else(|| format!("df printed {text}").into())
}

/// The folder of the segments, on tmpfs as by default in `run`. `forks` also measures a disk.
pub fn segments() -> Result<PathBuf> {
    let path = Path::new("/dev/shm").join(format!("plimsoll-bench-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(path)
}

/// Removes the directories of sessions that were killed.
pub fn remove_leftovers() {
    for folder in [Path::new("/dev/shm"), Path::new("/var/tmp"), &std::env::temp_dir()] {
        remove_leftovers_in(folder);
    }
}

fn remove_leftovers_in(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let session = session_of(&entry.file_name().to_string_lossy());
        if session.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The PID of the session that made a directory of this name: `plimsoll-bench-77`, `plimsoll-bench-postgres-77`.
fn session_of(name: &str) -> Option<u32> {
    let (kind, pid) = name.rsplit_once('-')?;
    if kind.starts_with("plimsoll-bench") { pid.parse().ok() } else { None }
}

pub fn remove_segments() {
    if let Ok(path) = segments() {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// The allocators to run over: name, library, and `None` for one that isn't installed.
pub fn allocators() -> [(&'static str, Option<PathBuf>); 3] {
    [("jemalloc", "libjemalloc.so."), ("tcmalloc", "libtcmalloc_minimal.so."), ("mimalloc", "libmimalloc.so.")]
        .map(|(name, file)| (name, library(file)))
}

/// An allocator from Debian, by the beginning of the name of its library: each release has another version.
pub fn library(begins: &str) -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let files = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    files.filter(|file| file.file_name().to_string_lossy().starts_with(begins)).map(|file| file.path()).min()
}

/// Whether this jemalloc was built with its profiler: with `stats_print`, it prints that at its end.
pub fn has_profiler(jemalloc: &Path) -> bool {
    let mut command = Command::new("/bin/true");
    command.env("LD_PRELOAD", jemalloc).env("MALLOC_CONF", "stats_print:true");
    let output = command.output().map(|output| output.stderr).unwrap_or_default();
    String::from_utf8_lossy(&output).contains("config.prof: true")
}

/// From Maven Central: the native library inside the jar.
pub fn async_profiler() -> Result<PathBuf> {
    let folder = folder("bench")?.join(format!("async-profiler-{ASYNC_PROFILER}"));
    let member = if cfg!(target_arch = "aarch64") { "linux-arm64" } else { "linux-x64" };
    let library = folder.join(member).join("libasyncProfiler.so");
    if !library.exists() {
        std::fs::create_dir_all(&folder)?;
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "dependency:copy"]);
        maven.arg(format!("-Dartifact=tools.profiler:async-profiler:{ASYNC_PROFILER}"));
        must_within_limit(maven.arg(format!("-DoutputDirectory={}", folder.display())))?;
        let home = any_jdk()?;
        let jar = format!("async-profiler-{ASYNC_PROFILER}.jar");
        must_within_limit(Command::new(home.join("bin/jar")).arg("xf").arg(jar).current_dir(&folder))?;
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_new_segment_is_an_error() {
        let folder = folder("test-watched").expect("a folder");
        let (old, new) = (folder.join("1-1.seg"), folder.join("postgres/2-2.seg"));
        let _ = std::fs::remove_dir_all(folder.join("postgres"));
        std::fs::write(&old, "").expect("a file");
        std::fs::create_dir_all(folder.join("postgres")).expect("a folder");
        let untracked = watched(&folder, "sites off", || Ok(1.0));
        assert!(untracked.expect_err("no segment").to_string().contains("sites off: it ran untracked"));
        // A segment from before the run, and other files, don't count.
        let other = || -> Result<()> { Ok(std::fs::write(&old, "1").and(std::fs::write(folder.join(".pruned"), ""))?) };
        assert!(watched(&folder, "sites off", other).is_err());
        assert!(watched(&folder, "sites off", || Ok(std::fs::write(&new, "")?)).is_ok());
    }

    #[test]
    fn only_folders_of_sessions_that_ended_are_removed() {
        let folder = folder("test-leftovers").expect("a folder");
        let mut ended = Command::new("true").spawn().expect("a process");
        ended.wait().expect("it ends");
        let (dead, own) = (ended.id(), std::process::id());
        let names = [
            format!("plimsoll-bench-{dead}"),
            format!("plimsoll-bench-postgres-{dead}"),
            format!("plimsoll-bench-{own}"),
            "plimsoll-bench-many".into(),
            format!("plimsoll-{dead}"),
        ];
        for name in &names {
            std::fs::create_dir_all(folder.join(name).join("sub")).expect("a folder");
        }
        remove_leftovers_in(&folder);
        assert_eq!(names.map(|name| folder.join(name).exists()), [false, false, true, true, true]);
        std::fs::remove_dir_all(folder).expect("it is removed");
    }

    #[test]
    fn an_environment_that_tracks_nothing_is_an_error() {
        let tracked = tracking("HOME=/root\nLD_PRELOAD=/a/b.so\nPLIMSOLL_SITES=off\n").expect("tracked");
        assert_eq!(tracked.len(), 2);
        assert!(tracking("HOME=/root\nPLIMSOLL_SITES=off\n").is_err());
        assert!(Setup::TrackedOver("jemalloc", PathBuf::new()).environment().is_err());
        assert!(Setup::Heaptrack.environment().is_err());
        assert!(Setup::Plain("plain").environment().expect("plain").is_empty());
    }
}
