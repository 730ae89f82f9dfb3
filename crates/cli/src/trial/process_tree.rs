//! The processes below a process, and what the kernel counts of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plimsoll_process::foreign::{Deadline, Target};
use plimsoll_process::proc;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// Time limit for reads of /proc, which wait for no other process.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// All descendants, parents first.
pub fn below(pid: u32) -> Vec<u32> {
    if has_lists() {
        return descendants(pid, listed);
    }
    let all = by_parent();
    descendants(pid, |one| all.get(&one).cloned().unwrap_or_default())
}

pub fn children(pid: u32) -> Vec<u32> {
    if has_lists() { listed(pid) } else { by_parent().remove(&pid).unwrap_or_default() }
}

fn descendants(pid: u32, children: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let (mut found, mut seen, mut next) = (Vec::new(), BTreeSet::from([pid]), 0);
    let mut parent = Some(pid);
    while let Some(one) = parent {
        for child in children(one) {
            if seen.insert(child) {
                found.push(child);
            }
        }
        parent = found.get(next).copied();
        next += 1;
    }
    found
}

fn open(pid: u32) -> Option<Target> {
    Target::open(pid, Deadline::after(PATIENCE)).ok()
}

/// Whether the kernel lists children. It doesn't without CONFIG_PROC_CHILDREN.
fn has_lists() -> bool {
    Path::new(&format!("/proc/self/task/{}/children", std::process::id())).exists()
}

/// The children that the kernel lists (`/proc/PID/task/TID/children`, proc(5)).
fn listed(pid: u32) -> Vec<u32> {
    let Some(target) = open(pid) else { return Vec::new() };
    let threads = target.numbers("task").unwrap_or_default();
    let lists = threads.into_iter().filter_map(|tid| target.read(&format!("task/{tid}/children")).ok());
    let numbers = |list: Vec<u8>| {
        let text = String::from_utf8_lossy(&list).into_owned();
        text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<u32>>()
    };
    lists.flat_map(numbers).collect()
}

/// The children of every process, by their parent. This reads a file of each process of the machine.
fn by_parent() -> BTreeMap<u32, Vec<u32>> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut all = BTreeMap::<u32, Vec<u32>>::new();
    for (parent, pid) in pids.filter_map(|pid| Some((parent(pid)?, pid))) {
        all.entry(parent).or_default().push(pid);
    }
    all
}

fn parent(pid: u32) -> Option<u32> {
    let stat = open(pid)?.read("stat").ok()?;
    // After the name follow the state and the parent.
    let (_, after) = stat.split_at(stat.iter().rposition(|byte| *byte == b')')?);
    std::str::from_utf8(after).ok()?.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Sends a signal to processes that were listed below `root`. A process may have ended since, and its number may be
/// another's, of any user. So each is held by a descriptor, where the kernel and the sandbox allow that, and then its
/// parent must be `root` or one of the list. Returns those that this user may not signal: they are another user's.
pub fn send(listed: &[u32], root: u32, signal: Signal) -> Vec<u32> {
    let mut refused = Vec::new();
    let parents: BTreeSet<u32> = listed.iter().copied().chain([root]).collect();
    for (pid, number) in listed.iter().filter_map(|pid| Some((*pid, Pid::from_raw(i32::try_from(*pid).ok()?)?))) {
        let held = pidfd_open(number, PidfdFlags::empty());
        if held.as_ref().is_err_and(|error| *error == Errno::SRCH)
            || !parent(pid).is_some_and(|parent| parents.contains(&parent))
        {
            continue;
        }
        // ENOSYS before Linux 5.3, EPERM under a filter that doesn't know the call.
        let sent = held.and_then(|held| pidfd_send_signal(held, signal));
        if sent.is_err_and(|error| error != Errno::SRCH) && kill_process(number, signal) == Err(Errno::PERM) {
            refused.push(pid);
        }
    }
    refused
}

/// Resident anonymous memory of a process, in bytes.
pub fn anonymous(pid: u32) -> Option<u64> {
    let status = open(pid)?.read("status").ok()?;
    Some(proc::parse_status(&status).rss.anonymous.0)
}

/// What is measured of all processes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    pub processes: usize,
    /// RSS of the only process, or the sum of PSS, in which a page that several processes share counts once.
    pub resident: u64,
    /// The sum of PSS, also of an only process; `None`: that of the only process can't be read.
    pub pss: Option<u64>,
    /// VmHWM of the only process.
    pub peak: Option<u64>,
    /// The process with the largest RSS.
    pub largest: Option<u32>,
    /// Number of processes whose RSS is part of the sum, because their PSS can't be read.
    pub by_rss: usize,
}

impl Moment {
    /// Adds one of several processes. One that has ended meanwhile holds nothing.
    fn add(&mut self, pss: Option<u64>, resident: impl FnOnce() -> Option<u64>) {
        let by_rss = || resident().filter(|rss| *rss > 0).inspect(|_| self.by_rss += 1);
        self.resident += pss.or_else(by_rss).unwrap_or(0);
    }

    /// What is wrong with the sum.
    pub fn note(&self) -> Option<String> {
        let processes = if self.by_rss == 1 { "process" } else { "processes" };
        let by_rss = self.by_rss;
        (by_rss > 0).then(|| {
            format!("the PSS of {by_rss} {processes} can't be read, so pages that they share count more than once")
        })
    }
}

/// Zombies and processes that end meanwhile don't count.
pub fn moment(keeper: u32) -> Moment {
    let deadline = Deadline::after(PATIENCE);
    let mut found = Moment::default();
    let mut all = Vec::new();
    for pid in below(keeper) {
        let Ok(target) = Target::open(pid, deadline) else { continue };
        let Some(status) = target.read("status").ok().map(|text| proc::parse_status(&text)) else { continue };
        let resident = status.rss.total().0;
        if resident > 0 {
            all.push((target, resident, status.peak_rss));
        }
    }
    found.processes = all.len();
    found.largest = all.iter().max_by_key(|(_, resident, _)| *resident).map(|(target, ..)| target.pid());
    // smaps_rollup is exact; the counters in status lag by some pages for each thread.
    let rollup = |target: &Target| target.read("smaps_rollup").ok().and_then(|text| proc::parse_rollup(&text));
    match all.as_slice() {
        [(target, resident, peak)] => {
            let rollup = rollup(target);
            found.resident = rollup.as_ref().map_or(*resident, |rollup| rollup.rss.0);
            found.pss = rollup.map(|rollup| rollup.pss.0).filter(|pss| *pss > 0);
            found.peak = peak.map(|peak| peak.0.max(found.resident));
        }
        several => {
            for (target, ..) in several {
                let resident = || Some(proc::parse_status(&target.read("status").ok()?).rss.total().0);
                found.add(rollup(target).map(|sum| sum.pss.0), resident);
            }
            found.pss = Some(found.resident);
        }
    }
    found
}

/// Processor time of all processes below the keeper, in seconds, with the children that they and the keeper have
/// reaped (proc(5), `stat`: utime, stime, cutime, cstime).
pub fn cpu_seconds(keeper: u32) -> Option<f64> {
    let deadline = Deadline::after(PATIENCE);
    let times = |pid: u32| -> Option<[u64; 4]> {
        let stat = Target::open(pid, deadline).ok()?.read("stat").ok()?;
        let [user, system, of_children, system_of_children] =
            [14, 15, 16, 17].map(|field| proc::stat::number(&stat, field));
        Some([user?, system?, of_children?, system_of_children?])
    };
    let reaped: u64 = times(keeper)?[2..].iter().sum();
    let ticks: u64 = below(keeper).into_iter().filter_map(times).flatten().sum::<u64>() + reaped;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// The shell prints the PIDs of its children.
    #[test]
    #[expect(clippy::print_stdout, reason = "a skipped test names its reason")]
    fn children_are_found_with_and_without_the_kernels_lists() {
        let script = "sleep 600 & echo $!; sleep 600 & echo $!; wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("sh");
        let lines = BufReader::new(shell.stdout.take().expect("a pipe")).lines().take(2);
        let mut expected: Vec<u32> = lines.map(|line| line.expect("a line").parse().expect("a PID")).collect();
        expected.sort_unstable();
        let sorted = |mut pids: Vec<u32>| {
            pids.sort_unstable();
            pids
        };
        let (own, pid) = (std::process::id(), shell.id());
        let all = by_parent();
        assert!(all.get(&own).is_some_and(|children| children.contains(&pid)), "{all:?}");
        let through_stat = |one: u32| all.get(&one).cloned().unwrap_or_default();
        assert_eq!(sorted(descendants(pid, through_stat)), expected);
        for found in [below(pid), children(pid)] {
            assert_eq!(sorted(found), expected);
        }
        if has_lists() {
            assert_eq!(sorted(descendants(pid, listed)), expected);
        } else {
            println!("the kernel's lists: skipped, it has no CONFIG_PROC_CHILDREN");
        }
        // The shell may end by itself when its children have ended.
        send(&[&expected[..], &[pid]].concat(), own, Signal::KILL);
        shell.wait().expect("its end");
    }

    #[test]
    fn a_process_without_pss_is_noted() {
        let mut moment = Moment::default();
        moment.add(Some(10), || panic!("it has PSS"));
        moment.add(None, || None);
        moment.add(None, || Some(0));
        assert_eq!((moment.resident, moment.note()), (10, None));
        moment.add(None, || Some(5));
        assert_eq!(moment.resident, 15);
        assert!(moment.note().is_some_and(|note| note.starts_with("the PSS of 1 process can't be read")));
    }

    #[test]
    fn a_signal_reaches_only_what_is_still_below() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let (own, pid) = (std::process::id(), child.id());
        assert_eq!(parent(pid), Some(own));
        assert!(below(own).contains(&pid));
        // As if the listed process had ended, and another user's had its number now.
        send(&[pid], 1, Signal::KILL);
        assert!(child.try_wait().expect("its state").is_none());
        send(&[pid], own, Signal::TERM);
        assert_eq!(child.wait().expect("its end").signal(), Some(15));
    }
}
