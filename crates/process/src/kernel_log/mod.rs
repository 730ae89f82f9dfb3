//! Finds OOM kills in the kernel's log (mm/oom_kill.c, `__oom_kill_process`):
//!
//! ```text
//! 3,1234,3404078278,-;Memory cgroup out of memory: Killed process 13898 (java) total-vm:4185252kB, anon-rss:…
//! ```
//! Where memory.oom.group is set, each process of the group has such a line of its own; the line before them, `Tasks in
//! GROUP are going to be killed due to memory.oom.group set`, names none.
//!
//! Before the `;`: priority and facility, number, µs since boot, flags (Documentation/ABI/testing/dev-kmsg). On most
//! hosts only root may read it. Its numbers are the host's, so a container's PID can't be compared with them.

mod read;

pub use read::{OnKill, has_our_numbers, oom_kills, refusal, says_killed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// The process's first thread, or, if that has ended before, another one's TID (`find_lock_task_mm`).
    pub tid: u32,
    /// The thread's comm: at most 15 bytes, chosen by the process.
    pub name: Vec<u8>,
    /// CLOCK_MONOTONIC, approximately.
    pub time_us: u64,
}

/// Parses one record of /dev/kmsg.
pub fn parse(record: &[u8]) -> Option<OomKill> {
    let semicolon = record.iter().position(|&b| b == b';')?;
    let time_us = std::str::from_utf8(record.get(..semicolon)?).ok()?.split(',').nth(2)?.parse().ok()?;
    let message = record.get(semicolon + 1..)?;
    let line = message.split(|&b| b == b'\n').next()?;
    // A process may have any name, but the name comes after these words.
    let causes: [&[u8]; 3] =
        [b"Memory cgroup out of memory", b"Out of memory", b"Out of memory (oom_kill_allocating_task)"];
    let after = |cause: &&[u8]| line.strip_prefix(*cause)?.strip_prefix(b": Killed process ");
    let rest = causes.iter().find_map(after)?;
    let space = rest.iter().position(|&b| b == b' ')?;
    let tid = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let name = rest.get(space + 1..)?.strip_prefix(b"(")?;
    let end = name.windows(11).position(|window| window == b") total-vm:")?;
    Some(OomKill { tid, name: name[..end].to_vec(), time_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_oom_kills_are_found() {
        let of = |text: &str| parse(text.as_bytes());
        let kill = |tid, name: &str, time_us| Some(OomKill { tid, name: name.into(), time_us });
        let cgroup = "3,77,3404078278,-;Memory cgroup out of memory: Killed process 13898 (java) total-vm:4185252kB, anon-rss:1kB\n SUBSYSTEM=x\n";
        assert_eq!(of(cgroup), kill(13898, "java", 3_404_078_278));
        let global = "3,78,5,-;Out of memory: Killed process 7 (a) total-vm:1) total-vm:4kB, anon-rss:1kB";
        assert_eq!(of(global), kill(7, "a", 5));
        // vm.oom_kill_allocating_task.
        let allocating = "3,79,6,-;Out of memory (oom_kill_allocating_task): Killed process 8 (b) total-vm:4kB";
        assert_eq!(of(allocating), kill(8, "b", 6));
        for text in [
            "",
            ";",
            "3,77,x,-;Out of memory: Killed process 7 (a) total-vm:",
            "6,1,2,-;systemd[1]: Memory cgroup out of memory: Killed process 7 (a) total-vm:4kB",
            "3,1,2,-;Out of memory: Killed process -7 (a) total-vm:4kB",
            "3,1,2,-;Out of memory: Killed process 7 (a",
            "6,1,2,-;Tasks in /shop are going to be killed due to memory.oom.group set",
            "6,1,2,-;Out of memory: OOM victim 7 (a) is already exiting. Skip killing the task",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        // A truncated record gives no result, or the same.
        for end in 0..cgroup.len() {
            let cut = of(&cgroup[..end]);
            assert!(cut.is_none() || cut == of(cgroup), "{end}");
        }
    }
}
