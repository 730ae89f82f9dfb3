//! A memory cgroup for one run, where `limit_place` has found that one can be made.
//!
//! ```text
//! parent ── plimsoll-try-PID-N   memory.limit_in_bytes / memory.max; made before the run, removed after it
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use plimsoll_facts::snapshot::CgroupVersion;
use plimsoll_process::cgroup;
use plimsoll_process::foreign::Deadline;

/// The kernel needs a moment after the last process before it removes a cgroup.
const REMOVALS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// The limit of each run, and where its group is made.
pub struct RunLimit {
    pub bytes: u64,
    pub version: CgroupVersion,
    pub parent: PathBuf,
    /// The group in which plimsoll and its keepers are between two visits.
    pub home: PathBuf,
}

pub struct Group {
    directory: PathBuf,
    /// The group of plimsoll and of the keeper.
    home: PathBuf,
}

/// Our process is in the group while this lives.
pub struct Visit<'g>(&'g Group);

impl Group {
    /// A group with a limit that swap doesn't widen.
    pub fn make(number: usize, place: &RunLimit) -> Result<Group, String> {
        let group = Group::without_limit(place, &number.to_string())?;
        match group.set_limit(place) {
            Ok(()) => Ok(group),
            Err(reason) => {
                group.remove();
                Err(reason)
            }
        }
    }

    pub fn without_limit(place: &RunLimit, name: &str) -> Result<Group, String> {
        let directory = place.parent.join(format!("plimsoll-try-{}-{name}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        Ok(Group { directory, home: place.home.clone() })
    }

    pub fn set_limit(&self, place: &RunLimit) -> Result<(), String> {
        let limited = self.limit(place.version, place.bytes);
        limited.map_err(|error| format!("{} has no memory limit of its own: {error}", self.directory.display()))
    }

    /// Sets the limit of memory, then that of swap: version 1 counts memory and swap together, and the limit of both
    /// can't be below that of memory; version 2 counts swap separately. A kernel without swap accounting lacks the file
    /// of swap.
    fn limit(&self, version: CgroupVersion, bytes: u64) -> io::Result<()> {
        let (memory, swap_bytes) = match version {
            CgroupVersion::V1 => ("memory.limit_in_bytes", bytes),
            CgroupVersion::V2 => ("memory.max", 0),
        };
        self.set(memory, bytes)?;
        if self.counts_swap(version) { self.set(swap_file(version), swap_bytes) } else { Ok(()) }
    }

    /// Whether the kernel limits swap, too.
    pub fn counts_swap(&self, version: CgroupVersion) -> bool {
        self.directory.join(swap_file(version)).exists()
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        fs::write(self.directory.join(file), value.to_string())
    }

    /// A group that plimsoll has made for its keeper.
    pub fn existing(directory: PathBuf, home: PathBuf) -> Group {
        Group { directory, home }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Moves this process into the group.
    pub fn visit(&self) -> io::Result<Visit<'_>> {
        enter(&self.directory)?;
        Ok(Visit(self))
    }

    pub fn was_killed(&self, deadline: Deadline) -> bool {
        cgroup::oom_kills(&self.directory, deadline).is_some_and(|kills| kills > 0)
    }

    /// Removes the group, with those that the program has made in it. Its processes must have ended.
    pub fn remove(&self) {
        remove_with_those_below(&self.directory);
    }
}

const fn swap_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "memory.memsw.limit_in_bytes",
        CgroupVersion::V2 => "memory.swap.max",
    }
}

pub fn remove_with_those_below(directory: &Path) {
    for _ in 0..REMOVALS {
        match remove(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => return,
        }
    }
}

/// A cgroup's files go with it; a cgroup in it has to go first.
fn remove(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => remove(&entry.path()),
            _ => Ok(()),
        };
        // The keeper and plimsoll both remove.
        removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    }
    fs::remove_dir(directory)
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let _ = enter(&self.0.home);
    }
}

pub fn enter(directory: &Path) -> io::Result<()> {
    fs::write(directory.join("cgroup.procs"), std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that is a container's engine makes cgroups below its own.
    #[test]
    fn a_group_goes_with_those_in_it() {
        let directory = std::env::temp_dir().join(format!("plimsoll-group-below-{}", std::process::id()));
        // A killed test with this PID may have left it.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("a/b")).expect("new directories");
        fs::create_dir(directory.join("c")).expect("a new directory");
        Group::existing(directory.clone(), PathBuf::new()).remove();
        assert!(!directory.exists());
    }

    /// Files of a cgroup as the kernel shows them: swap can't widen the limit, with either version.
    #[test]
    fn the_limit_of_each_version() {
        const V1: [&str; 2] = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
        const V2: [&str; 2] = ["memory.max", "memory.swap.max"];
        let cases = [
            (CgroupVersion::V1, &V1[..], &["4096", "4096"][..]),
            (CgroupVersion::V2, &V2[..], &["4096", "0"][..]),
            // Without swap accounting.
            (CgroupVersion::V1, &V1[..1], &["4096"][..]),
            (CgroupVersion::V2, &V2[..1], &["4096"][..]),
        ];
        for (number, (version, files, expected)) in cases.into_iter().enumerate() {
            let directory = std::env::temp_dir().join(format!("plimsoll-group-{}-{number}", std::process::id()));
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir(&directory).expect("a new directory");
            files.iter().for_each(|file| fs::write(directory.join(file), "max").expect("a file"));
            let group = Group::existing(directory.clone(), PathBuf::new());
            group.limit(version, 4096).expect("files that can be written");
            assert_eq!(group.counts_swap(version), files.len() == 2, "{version:?}");
            let is = files.iter().map(|file| fs::read_to_string(directory.join(file)).expect("a file"));
            assert_eq!(is.collect::<Vec<_>>(), expected, "{version:?}");
            let made = fs::read_dir(&directory).expect("the directory").count();
            assert_eq!(made, files.len(), "no other file is written");
            fs::remove_dir_all(&directory).expect("it can be removed");
        }
    }
}
