//! Whether every thread of the target has come out of the hooks that it was in at the detach.
//!
//! A thread that is interrupted between a block's key and its row's counter goes on there when it is next scheduled, however
//! long that takes. New books must not be begun before, or they would have one block too many or too few. In such a
//! place a thread uses less than a microsecond, and it sleeps there only for a lock of malloc's, whose holder runs or
//! waits to run. So all have come out once, at one moment, each thread sleeps or has used [`ENOUGH`] of the CPU.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_observer::source::proc::Target;

/// CPU time after which a thread is elsewhere: page faults that clear huge pages included.
const ENOUGH: Duration = Duration::from_millis(1);
/// Measured: of 200 threads that never rest, on 2 CPUs with other work besides, 93 had not run for a moment after 10 s, 46
/// after 47 s and 13 after 84 s (Linux 6.18). No longer wait would be sure; in this one most crowds get through.
const LONGEST: Duration = Duration::from_secs(30);
/// After this the wait is announced.
const QUIET: Duration = Duration::from_secs(2);

/// Waits, and has `say` told of it once if it takes long. The error is the number of threads that have not run.
pub fn wait(target: &Target, say: impl Fn(usize)) -> Result<(), usize> {
    let began = Instant::now();
    let longest = target.deadline().sooner(LONGEST);
    let mut said = false;
    let mut waiting: HashMap<u32, u64> =
        threads(target).into_iter().filter_map(|tid| Some((tid, cpu_ns(target, tid)?))).collect();
    loop {
        waiting.retain(|tid, then| cpu_ns(target, *tid).is_some_and(|now| now < *then + ENOUGH.as_nanos() as u64));
        // One moment for all of them: who has slept before may have been woken since.
        if !waiting.keys().any(|tid| may_run(target, *tid)) {
            return Ok(());
        }
        if longest.has_passed() {
            return Err(waiting.len());
        }
        if began.elapsed() > QUIET && !std::mem::replace(&mut said, true) {
            say(waiting.len());
        }
        sleep(Duration::from_millis(2));
    }
}

fn threads(target: &Target) -> Vec<u32> {
    target.numbers("task").unwrap_or_default()
}

/// Time on the CPU, ns (schedstat's first number; where the kernel has none, stat's ticks). `None`: the thread is gone.
fn cpu_ns(target: &Target, tid: u32) -> Option<u64> {
    let text =
        |name: &str| Some(String::from_utf8_lossy(&target.read(&format!("task/{tid}/{name}")).ok()?).into_owned());
    let scheduled = text("schedstat").and_then(|t| t.split(' ').next()?.parse().ok());
    scheduled.or_else(|| {
        let stat = text("stat")?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some((fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?) * 10_000_000)
    })
}

/// Whether the thread is anything but asleep.
fn may_run(target: &Target, tid: u32) -> bool {
    let Ok(stat) = target.read(&format!("task/{tid}/stat")) else { return false };
    let state = stat.iter().rposition(|b| *b == b')').and_then(|i| stat.get(i + 2));
    !matches!(state, Some(b'S' | b'Z' | b'X' | b'I'))
}
