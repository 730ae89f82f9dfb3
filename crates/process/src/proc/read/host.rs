//! The machine: its memory, CPUs and settings, and the limits of a scan that follow from its memory.

use std::fs;
use std::sync::OnceLock;

use super::access::has_sudo;
use crate::foreign::Deadline;
use crate::proc::scan::Limits;
use crate::proc::smaps::kilobytes;
use crate::proc::status::cpu_count;
use plimsoll_facts::snapshot::{Host, Root, Thp};
use plimsoll_facts::units::Bytes;

pub fn read_host() -> Host {
    let thp = match fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(text) if text.contains("[always]") => Thp::Always,
        Ok(text) if text.contains("[madvise]") => Thp::Madvise,
        Ok(text) if text.contains("[never]") => Thp::Never,
        _ => Thp::Unknown,
    };
    Host {
        page: Bytes(rustix::param::page_size() as u64),
        cpus_online: fs::read_to_string("/sys/devices/system/cpu/online").map(|text| cpu_count(&text)).unwrap_or(0),
        memory: total_memory(),
        max_map_count: number("/proc/sys/vm/max_map_count"),
        thp,
        can_enter: cfg!(target_arch = "x86_64"),
        root: match rustix::process::geteuid().is_root() {
            true => Root::Already,
            false if has_sudo() => Root::Sudo,
            false => Root::Elsewhere,
        },
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
}

/// Zero if the kernel doesn't report it.
fn total_memory() -> Bytes {
    memory_info("MemTotal:").unwrap_or_default()
}

/// 0 without swap.
pub(crate) fn free_swap() -> Option<Bytes> {
    memory_info("SwapFree:")
}

/// How readily the kernel swaps; 0 has a meaning of its own (`cgroup/read/swap.rs`).
pub(crate) fn swappiness() -> Option<u64> {
    number("/proc/sys/vm/swappiness")
}

fn memory_info(key: &str) -> Option<Bytes> {
    let text = fs::read("/proc/meminfo").ok()?;
    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key.as_bytes())).and_then(kilobytes)
}

/// Limits of a scan of this machine's processes.
pub(super) fn limits(deadline: Deadline) -> Limits {
    static MEMORY: OnceLock<Bytes> = OnceLock::new();
    Limits::until(deadline, *MEMORY.get_or_init(total_memory))
}
