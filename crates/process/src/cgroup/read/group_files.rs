//! The names of a group's files in both versions, and their reader, which records what the kernel refused.

use std::cell::RefCell;
use std::io;
use std::path::Path;

use crate::foreign::{self, Deadline, FileKind, Requirements, Why};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::CgroupVersion;

/// The error for a feature that is switched off (EOPNOTSUPP).
const OPNOTSUPP: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();
/// Maximum number of refused files that a gap names.
const MOST_REFUSED: usize = 4;

/// Reads the groups' files, all with one deadline, and records refusals: a file that isn't read must not look like a
/// missing one.
pub(super) struct Reader {
    pub(super) deadline: Deadline,
    refused: RefCell<Vec<String>>,
}

impl Reader {
    pub(super) fn until(deadline: Deadline) -> Reader {
        Reader { deadline, refused: RefCell::new(Vec::new()) }
    }

    /// A target with its own mounts can mount anything over its view of the hierarchy, so there only the kernel's files
    /// count. The administrator of this machine or container mounted our own view.
    pub(super) fn read(&self, group: &Path, name: &str) -> Option<Vec<u8>> {
        let path = group.join(name);
        let why = match foreign::open(&path, Requirements::of(FileKind::Text), self.deadline) {
            // A file of the kernel may have no contents (memory.pressure: EOPNOTSUPP).
            Ok(file) if file.is_of_cgroups() || !group.starts_with("/proc") => match file.read() {
                Ok(text) => return Some(text),
                Err(Why::Io(error)) if error.raw_os_error() == Some(OPNOTSUPP) => return None,
                Err(why) => why.to_string(),
            },
            Ok(_) => "is not a file of the kernel: something is mounted over it".to_owned(),
            Err(Why::Io(error)) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(why) => why.to_string(),
        };
        let mut refused = self.refused.borrow_mut();
        if refused.len() < MOST_REFUSED {
            refused.push(format!("{} {why}", path.display()));
        }
        None
    }

    pub(super) fn gap(&self) -> Option<Gap> {
        let refused = self.refused.borrow();
        (!refused.is_empty()).then(|| {
            let effect = "a limit or a figure of the cgroup may be missing here although it exists";
            Gap::new(Source::Cgroup, refused.join("; "), effect)
        })
    }
}

pub(super) struct Files {
    pub(super) limit: &'static str,
    pub(super) charged: &'static str,
    pub(super) peak: &'static str,
    pub(super) events: &'static str,
    pub(super) swap: &'static str,
    pub(super) swap_limit: &'static str,
}

impl Files {
    pub(super) fn of(version: CgroupVersion) -> Files {
        match version {
            CgroupVersion::V1 => Files {
                limit: "memory.limit_in_bytes",
                charged: "memory.usage_in_bytes",
                peak: "memory.max_usage_in_bytes",
                events: "memory.oom_control",
                swap: "memory.memsw.usage_in_bytes",
                swap_limit: "memory.memsw.limit_in_bytes",
            },
            CgroupVersion::V2 => Files {
                limit: "memory.max",
                charged: "memory.current",
                peak: "memory.peak",
                events: "memory.events",
                swap: "memory.swap.current",
                swap_limit: "memory.swap.max",
            },
        }
    }
}
