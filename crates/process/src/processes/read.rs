//! Reads the list of processes. If the kernel refuses a process's other files, the entry has only the contents of its
//! status.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::parse::{Identity, ProcessKind, parse_container, parse_kind};
use super::proc_view::{ProcTexts, ProcView, parse_proc_view};
use crate::foreign::{Absent, Deadline, Target, says_ended};
use crate::proc::status::{parse_command, parse_start_ticks, parse_status};
use plimsoll_facts::snapshot::ProcessState;
use plimsoll_facts::units::Bytes;

#[derive(Clone, Debug)]
pub struct Listed {
    pub identity: Identity,
    pub uid: u32,
    /// The kernel's name of it (comm): at most 15 bytes.
    pub name: String,
    pub command: Vec<String>,
    pub rss: Bytes,
    pub kind: ProcessKind,
}

/// Kinds of processes that were listed before.
#[derive(Default)]
pub struct KnownKinds(HashMap<Identity, (ProcessKind, Instant)>);

/// A process loads the VM and its tracker soon after its start.
const SETTLED: Duration = Duration::from_secs(10);
/// Number of settled processes that each listing examines again, because an attach may come at any time. The process
/// that was examined longest ago comes first.
const AGAIN: usize = 1;

/// The processes that have memory, biggest first.
pub struct Listing {
    pub all: Vec<Listed>,
    /// False: /proc or some of its processes could not be read, or not before the deadline, and are missing.
    pub is_whole: bool,
}

pub fn list(known: &mut KnownKinds, deadline: Deadline) -> Listing {
    let mut is_whole = true;
    let mut pids: Vec<u32> = Vec::new();
    match fs::read_dir("/proc") {
        Ok(names) => {
            for entry in names {
                match entry {
                    Ok(entry) => pids.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())),
                    Err(_) => is_whole = false,
                }
            }
        }
        Err(_) => is_whole = false,
    }
    let mut due: Vec<(Instant, Identity)> = known.0.iter().map(|(identity, (_, at))| (*at, *identity)).collect();
    due.sort_unstable();
    let due: Vec<Identity> = due.into_iter().take(AGAIN).map(|(_, identity)| identity).collect();
    let mut found: Vec<Listed> = Vec::new();
    for pid in pids {
        if deadline.has_passed() {
            is_whole = false;
            break;
        }
        match one(pid, known, &due, deadline) {
            Ok(listed) => found.extend(listed),
            // The process has ended, or its files are closed to us.
            Err(error) if says_ended(&error) || error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(_) => is_whole = false,
        }
    }
    let alive: HashSet<Identity> = found.iter().map(|listed| listed.identity).collect();
    known.0.retain(|identity, _| !is_whole || alive.contains(identity));
    found.sort_by_key(|listed| (std::cmp::Reverse(listed.rss), listed.identity));
    Listing { all: found, is_whole }
}

/// None: the process has no memory, or has ended.
fn one(pid: u32, known: &mut KnownKinds, due: &[Identity], deadline: Deadline) -> io::Result<Option<Listed>> {
    let target = match Target::open(pid, deadline) {
        Ok(target) => target,
        Err(Absent::Unread(error)) => return Err(error.into()),
        Err(Absent::NoSuchProcess | Absent::NoProc) => return Ok(None),
    };
    let status = parse_status(&target.read("status")?);
    if matches!(status.state, ProcessState::Zombie | ProcessState::Kernel) {
        return Ok(None);
    }
    let Some(start) = parse_start_ticks(&target.read("stat")?) else { return Ok(None) };
    let identity = Identity { pid, start };
    let now = Instant::now();
    let before = known.0.get(&identity).copied();
    let is_young = || age(start).is_none_or(|age| age < SETTLED);
    let kind = match before {
        Some((kind, _)) if !due.contains(&identity) && !is_young() => kind,
        _ => {
            let mut kind = target.read("maps").map(|maps| parse_kind(&maps)).unwrap_or_default();
            // The kernel refuses us another user's maps, but not the process's name.
            kind.is_jvm |= status.name == "java";
            known.0.insert(identity, (kind, now));
            kind
        }
    };
    let command = target.read("cmdline").map(|text| parse_command(&text)).unwrap_or_default();
    Ok(Some(Listed { identity, uid: status.uid, name: status.name, command, rss: status.rss.total(), kind }))
}

fn age(start_ticks: u64) -> Option<Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let up = text.split(' ').next()?.parse::<f64>().ok()?;
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    Duration::try_from_secs_f64(up - start_ticks as f64 / ticks).ok()
}

impl ProcView {
    pub fn now() -> ProcView {
        let text = |name: &str| {
            let bytes = fs::read(format!("/proc/self/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let namespace =
            fs::read_link("/proc/self/ns/pid").map_or(String::new(), |of| of.to_string_lossy().into_owned());
        parse_proc_view(ProcTexts {
            mountinfo: &text("mountinfo"),
            own_status: &text("status"),
            own_user_map: &text("uid_map"),
            namespace: &namespace,
        })
    }
}

/// The id of the container that a process runs in, by the name of its cgroup.
pub fn container_of(pid: u32, deadline: Deadline) -> Option<String> {
    let target = Target::open(pid, deadline).ok()?;
    parse_container(&target.read("cgroup").ok()?)
}

/// The program that a process runs, as the kernel shows its path.
pub fn executable_of(pid: u32, deadline: Deadline) -> Option<PathBuf> {
    let target = Target::open(pid, deadline).ok()?;
    Some(PathBuf::from(OsString::from_vec(target.link("exe").ok()?)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::foreign::LOOK;

    #[test]
    fn a_listing_that_ends_at_the_deadline_is_not_whole() {
        let listing = list(&mut KnownKinds::default(), Deadline::after(LOOK));
        let own = std::process::id();
        assert!(listing.is_whole && listing.all.iter().any(|of| of.identity.pid == own));
        let late = list(&mut KnownKinds::default(), Deadline::after(Duration::ZERO));
        assert!(!late.is_whole && late.all.is_empty());
    }
}
