//! Waits until every thread of the target has left the hook that it was in at the detach.
//!
//! A thread that is interrupted between writing a block's key and its row's counter continues there when it is next
//! scheduled. New books must begin after that; otherwise they have one block too many or too few. This part of a hook
//! takes less than a microsecond of CPU. A thread sleeps in it only for a lock of malloc, whose holder runs or is ready
//! to run. So all threads have left once, at one moment, each thread sleeps or has used [`ENOUGH`] of the CPU.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_process::proc::{Target, stat};

/// CPU time after which a thread has left its hook, including page faults that clear huge pages.
const ENOUGH: Duration = Duration::from_millis(1);
/// No limit is certain to suffice: docs/decisions/sandboxes.md has a measurement with 200 busy threads on 2 CPUs. With
/// this one, most targets get through.
const LONGEST: Duration = Duration::from_secs(30);
/// After this time the user gets a message.
const QUIET: Duration = Duration::from_secs(2);

/// Waits, and calls `print_message` once if it takes long. The error is the number of threads that have not run.
pub fn wait(target: &Target, print_message: impl Fn(usize)) -> Result<(), usize> {
    let began = Instant::now();
    let longest = target.deadline().sooner(LONGEST);
    let mut is_reported = false;
    let mut waiting: HashMap<u32, u64> =
        threads(target).into_iter().filter_map(|tid| Some((tid, cpu_ns(target, tid)?))).collect();
    loop {
        waiting.retain(|tid, then| cpu_ns(target, *tid).is_some_and(|now| now < *then + ENOUGH.as_nanos() as u64));
        // All threads must sleep at one moment: a thread that slept at an earlier look may have been woken since.
        if !waiting.keys().any(|tid| may_run(target, *tid)) {
            return Ok(());
        }
        if longest.has_passed() {
            return Err(waiting.len());
        }
        if began.elapsed() > QUIET && !std::mem::replace(&mut is_reported, true) {
            print_message(waiting.len());
        }
        sleep(Duration::from_millis(2));
    }
}

fn threads(target: &Target) -> Vec<u32> {
    target.numbers("task").unwrap_or_default()
}

/// CPU time, ns: the first number of schedstat, or the ticks of stat if the kernel has no schedstat. `None`: the thread
/// has ended.
fn cpu_ns(target: &Target, tid: u32) -> Option<u64> {
    let read = |name: &str| target.read(&format!("task/{tid}/{name}")).ok();
    let scheduled = || String::from_utf8_lossy(&read("schedstat")?).split(' ').next()?.parse().ok();
    scheduled().or_else(|| {
        let stat = read("stat")?;
        Some((stat::number(&stat, 14)? + stat::number(&stat, 15)?) * 10_000_000)
    })
}

/// Whether the thread is in any state other than interruptible sleep, idle or dead.
fn may_run(target: &Target, tid: u32) -> bool {
    let Ok(stat) = target.read(&format!("task/{tid}/stat")) else { return false };
    !matches!(stat::field(&stat, 3), Some(b"S" | b"Z" | b"X" | b"I"))
}
