//! Why a process can't be looked into, and what to type. The kernel's own files show which rights are missing, and the
//! search path shows whether sudo is there.

use std::fs;
use std::io;

use crate::proc::access::{Access, AccessTexts, Closed, by_root, by_user, parse_closed};
use rustix::thread::CapabilitySet;

/// Why the kernel refuses access to a process; `refused` is the command that was refused.
pub fn why_closed(pid: u32, refused: &str, access: Access) -> Closed {
    // A status contains the process's name, which may be any 15 bytes.
    let text =
        |path: &str| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let texts = AccessTexts {
        own_status: &text("/proc/self/status"),
        its_status: &text(&format!("/proc/{pid}/status")),
        own_user_map: &text("/proc/self/uid_map"),
        yama: &match access {
            Access::Read => String::new(),
            Access::Attach => text("/proc/sys/kernel/yama/ptrace_scope"),
        },
        has_sudo: has_sudo(),
    };
    parse_closed(texts, refused)
}

pub(super) fn explain(pid: u32) -> String {
    format!("plimsoll explain {pid}")
}

pub fn permission_remedy(pid: u32) -> String {
    why_closed(pid, &explain(pid), Access::Read).remedy
}

/// Whether a file's mode refuses access: /proc/PID/mem belongs to the process's user, and so may other files.
fn is_refused_by_mode() -> bool {
    let effective = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    effective.contains(CapabilitySet::SYS_PTRACE) && !effective.contains(CapabilitySet::DAC_READ_SEARCH)
}

/// The remedy for a file that needs the right to attach.
pub fn file_remedy(pid: u32) -> String {
    match is_refused_by_mode() {
        true => by_root(has_sudo(), &explain(pid), "with CAP_DAC_READ_SEARCH"),
        false => why_closed(pid, &explain(pid), Access::Attach).remedy,
    }
}

/// Why such a file can't be opened.
pub fn why_refused(pid: u32, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if !is_refused_by_mode() => {
            format!("process {pid} {}", why_closed(pid, &explain(pid), Access::Attach).reason)
        }
        _ => error.to_string(),
    }
}

pub(super) fn has_sudo() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("sudo").is_file())
}

/// A command that needs root, as it can be typed here: containers seldom have sudo.
pub fn as_root(command: &str) -> String {
    if has_sudo() { format!("sudo {command}") } else { format!("as root: {command}") }
}

/// A command for root that runs as another user. `gid`: its group, where that matters.
pub fn as_user(uid: u64, gid: Option<u32>, command: &str) -> String {
    by_user(has_sudo(), uid, gid, command)
}
