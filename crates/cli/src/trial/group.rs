//! A memory cgroup for one run, below our own cgroup.
//!
//! ```text
//! our cgroup ── plimsoll-try-PID-N   memory.limit_in_bytes / memory.max; made before the run, removed after it
//! ```
//! Nothing outside of our own cgroup is created or changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use plimsoll_facts::snapshot::CgroupVersion;
use plimsoll_process::cgroup;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc;

/// The kernel needs a moment after the last process before it removes a cgroup.
const REMOVALS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

pub struct Group {
    directory: PathBuf,
}

/// Our process is in the group while this lives.
pub struct Visit<'g>(&'g Group);

impl Group {
    /// A group with a limit that swap doesn't widen. The error says why this machine has none.
    pub fn make(number: usize, limit: u64, deadline: Deadline) -> Result<Group, String> {
        let own = proc::Target::open(std::process::id(), deadline).map_err(|_| "/proc is not mounted".to_owned())?;
        let (found, _) = cgroup::read_limit(&own, proc::read_host().memory);
        let (parent, _) = found.ok_or("no memory cgroup is mounted")?;
        let directory = parent.directory.join(format!("plimsoll-try-{}-{number}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        let group = Group { directory };
        let done = match parent.version {
            CgroupVersion::V1 => group.limit_by("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit),
            CgroupVersion::V2 => {
                group.limit_by("memory.max", "memory.swap.max", 0).and_then(|()| group.set("memory.max", limit))
            }
        };
        match done {
            Ok(()) => Ok(group),
            Err(error) => {
                let text = format!("{} has no memory limit of its own: {error}", group.directory.display());
                group.remove();
                Err(text)
            }
        }
    }

    /// Version 1: sets the limit, then that of memory and swap together. Version 2: only forbids swap; the caller sets
    /// memory.max. A kernel without swap accounting lacks the file of swap.
    fn limit_by(&self, memory: &str, swap: &str, bytes: u64) -> io::Result<()> {
        if memory == "memory.max" {
            // Version 2 counts swap separately from memory.
            return if self.directory.join(swap).exists() { self.set(swap, 0) } else { Ok(()) };
        }
        self.set(memory, bytes)?;
        if self.directory.join(swap).exists() { self.set(swap, bytes) } else { Ok(()) }
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        fs::write(self.directory.join(file), value.to_string())
    }

    /// A group that plimsoll has made for its keeper.
    pub fn existing(directory: PathBuf) -> Group {
        Group { directory }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Moves this process into the group.
    pub fn visit(&self) -> io::Result<Visit<'_>> {
        enter(&self.directory)?;
        Ok(Visit(self))
    }

    pub fn was_killed(&self, deadline: Deadline) -> bool {
        cgroup::oom_kills(&self.directory, deadline).is_some_and(|kills| kills > 0)
    }

    /// Removes the group. Its processes must have ended.
    pub fn remove(&self) {
        for _ in 0..REMOVALS {
            match fs::remove_dir(&self.directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
                _ => return,
            }
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(parent) = self.0.directory.parent() {
            let _ = enter(parent);
        }
    }
}

fn enter(directory: &Path) -> io::Result<()> {
    fs::write(directory.join("cgroup.procs"), std::process::id().to_string())
}
