//! Which threads of the target to try, in which order.

use plimsoll_process::proc::{Target, status_field};

/// Signal 33 in a mask: SIGSETXID, by which glibc has each thread change its user (setuid(2)).
const CHANGE_OF_USER: u64 = 1 << 32;
/// Waits that the kernel restarts by itself, and where programs spend their time.
const RESTARTED: [libc::c_long; 12] = [
    libc::SYS_futex,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pause,
    libc::SYS_read,
];

/// Lists threads in such a wait first, then threads in other calls, then those that run. Threads with a real-time
/// policy follow in the same order, because the new thread inherits that policy. Last come those that can't start a
/// thread (SCHED_DEADLINE, sched(7)). A thread that is stopped, traced, ended or in an uninterruptible wait isn't
/// listed. `check` may refuse a thread by its status.
pub fn in_order<E>(target: &Target, mut check: impl FnMut(u32, &[u8]) -> Result<(), E>) -> Result<Vec<u32>, E> {
    let mut ranked = Vec::new();
    for tid in target.numbers("task").unwrap_or_default() {
        let Ok(status) = target.read(&format!("task/{tid}/status")) else { continue };
        let text = String::from_utf8_lossy(&status);
        if !is_ending_by(&text) {
            check(tid, &status)?;
        }
        ranked.extend(rank(target, tid, &text).map(|rank| (rank, tid)));
    }
    ranked.sort_unstable();
    Ok(ranked.into_iter().map(|(_, tid)| tid).collect())
}

/// Whether another process traces it: perhaps another plimsoll, for a moment.
pub fn is_traced(target: &Target, tid: u32) -> bool {
    let status = target.read(&format!("task/{tid}/status")).unwrap_or_default();
    status_field(&String::from_utf8_lossy(&status), "TracerPid:").is_some_and(|tracer| tracer != "0")
}

fn rank(target: &Target, tid: u32, status: &str) -> Option<u8> {
    if !matches!(status_field(status, "State:")?.chars().next(), Some('R' | 'S')) {
        return None;
    }
    let call = target.read(&format!("task/{tid}/syscall")).ok();
    let call = call.map(|call| String::from_utf8_lossy(&call).into_owned());
    // "running", or the number of the call (proc(5)).
    let call: Option<libc::c_long> = call.and_then(|text| text.split(' ').next()?.trim().parse().ok());
    let stat = target.read(&format!("task/{tid}/stat")).unwrap_or_default();
    Some(place(call, policy(&stat)))
}

/// Lower places are tried first.
fn place(call: Option<libc::c_long>, policy: Option<i32>) -> u8 {
    let by_call = match call {
        Some(call) if RESTARTED.contains(&call) => 0,
        Some(_) => 1,
        None => 2,
    };
    let by_policy = match policy {
        Some(libc::SCHED_FIFO | libc::SCHED_RR) => 3,
        Some(libc::SCHED_DEADLINE) => 6,
        _ => 0,
    };
    by_call + by_policy
}

/// Field 41 of /proc/PID/task/TID/stat (proc(5)). The name in field 2 may contain anything.
fn policy(stat: &[u8]) -> Option<i32> {
    let stat = String::from_utf8_lossy(stat);
    stat.rsplit_once(") ")?.1.split(' ').nth(41 - 3)?.parse().ok()
}

/// Whether a thread has ended, or has given its memory back already.
pub fn is_ending(target: &Target, tid: u32) -> bool {
    let Ok(status) = target.read(&format!("task/{tid}/status")) else { return true };
    is_ending_by(&String::from_utf8_lossy(&status))
}

/// The kernel omits the lines about memory once a thread has none.
fn is_ending_by(status: &str) -> bool {
    status_field(status, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
        || status_field(status, "VmSize:").is_none()
}

/// Whether a signal waits for a thread, which would take it when it runs on. `status`: its /proc/PID/task/TID/status.
/// `blocked`: its mask.
pub fn has_signal(status: &[u8], blocked: u64) -> bool {
    let status = String::from_utf8_lossy(status);
    let set = |key| status_field(&status, key).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    (set("SigPnd:") | set("ShdPnd:")) & !blocked & !set("SigIgn:") != 0
}

/// Whether a thread may be in glibc's handler for a change of its user, in which that signal is blocked. The caller of
/// setuid(2) waits for that thread, and holds the lock of stacks. Elsewhere glibc leaves the signal unblocked. Before
/// the first thread starts, there may be no handler, and the signal may be blocked as the parent left it.
pub fn may_change_user(status: &[u8], blocked: u64) -> bool {
    let status = String::from_utf8_lossy(status);
    let caught = status_field(&status, "SigCgt:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    blocked & caught & CHANGE_OF_USER != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_handles_a_change_of_user_has_its_signal_blocked() {
        let of = |caught: u64, blocked| may_change_user(format!("SigCgt:\t{caught:016x}\n").as_bytes(), blocked);
        assert!(of(0x1_8000_0000, 0x1_0000_0000) && of(u64::MAX, u64::MAX));
        assert!(!of(0x1_8000_0000, 0xffff_ffff) && !of(0x8000_0000, u64::MAX) && !may_change_user(b"", u64::MAX));
    }

    #[test]
    fn a_signal_waits_if_it_is_neither_blocked_nor_ignored() {
        let of = |pending, shared, ignored, blocked| {
            let status = format!("SigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigIgn:\t{ignored:016x}\n");
            has_signal(status.as_bytes(), blocked)
        };
        assert!(of(2, 0, 0, 0) && of(0, 2, 0, 4) && !of(0, 0, 0, 0));
        assert!(!of(2, 2, 2, 0) && !of(2, 2, 0, 2) && !has_signal(b"", 0));
    }

    #[test]
    fn threads_with_a_real_time_policy_come_last() {
        let stat = |policy: u32| format!("7 (a) R 0) S 1{} {policy} 0 0", " 0".repeat(36)).into_bytes();
        assert_eq!((policy(&stat(2)), policy(b"7 (a) S 1"), policy(b"")), (Some(2), None, None));
        let of = |call: Option<libc::c_long>, number: u32| place(call, policy(&stat(number)));
        let (wait, other) = (Some(libc::SYS_futex), Some(libc::SYS_epoll_wait));
        assert_eq!([of(wait, 0), of(other, 3), of(None, 5)], [0, 1, 2]);
        assert_eq!([of(wait, 1), of(other, 2), of(None, 1), of(wait, 6)], [3, 4, 5, 6]);
    }

    #[test]
    fn a_thread_without_memory_is_ending() {
        let status = "State:\tS (sleeping)\nVmSize:\t12 kB\n";
        assert!(!is_ending_by(status));
        assert!(is_ending_by(&status.replace("VmSize", "Threads")) && is_ending_by(&status.replace('S', "Z")));
        assert!(is_ending_by(&status.replace("S (sleeping)", "X (dead)")) && is_ending_by(""));
    }
}
