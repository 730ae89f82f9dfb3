//! Acts on a signal that the recording thread does not take. The owner of the target may delay a read of that thread (a
//! page or a file of a FUSE server); meanwhile the thread does not look at signals.
//!
//! ```text
//! of a child:  any signal ──▶ pending? ── PATIENCE ──▶ passed on to the child, whose end ends the recording
//! otherwise:   SIGTERM, SIGINT ─▶ pending? taken, but the recording goes on? ── GRACE ──▶ die of SIGTERM
//! of watch:    what ends it ────▶ pending, since a write blocks? ── BLOCKED ──▶ die of SIGTERM
//! ```
//! The file is complete up to its last instant at any time, so nothing that was written is lost. While a child lives,
//! plimsoll never dies here: the kernel would kill the child, which hadn't seen the signal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::sys::{self, Child, ChildHandle, Signals};

/// Time from the signal to the end. Container runtimes wait 10 s before they kill.
const GRACE: Duration = Duration::from_secs(8);
/// What the last instants of all targets may take of it.
pub const LAST_INSTANT: Duration = Duration::from_secs(6);
/// The same for a thread that only draws and prints. `watch` waits 2 s for its readings at the end, and a second signal
/// may come meanwhile.
const BLOCKED: Duration = Duration::from_secs(5);
/// Time from the signal until it is passed on. The child needs the rest of the 10 s for its own end.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// The recording calls `taken` when it takes the signal: from then on the grace period runs.
pub struct LastResort(Option<Arc<OwnedFd>>);

impl LastResort {
    /// All threads must have blocked the signals. The recording keeps the signals in `kept` for itself. If no thread or
    /// descriptor can be created, there is no last resort, and all else works.
    pub fn watch(child: Option<&Child>, kept: &[i32]) -> LastResort {
        let start = || {
            let stops = Signals::of(Some(&[libc::SIGINT, libc::SIGTERM])).ok()?;
            let of_child = match child {
                Some(child) => Some((child.handle()?, Signals::of(Some(&all_but(kept))).ok()?)),
                None => None,
            };
            let taken = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
            let theirs = taken.clone();
            let watch = move || {
                if let Some((child, pending)) = of_child {
                    pass_on(&pending, &child);
                }
                end(&[stops.as_fd(), theirs.as_fd()], GRACE, || {});
            };
            thread::Builder::new().name("last-resort".into()).spawn(watch).ok()?;
            Some(taken)
        };
        LastResort(start())
    }

    pub fn taken(&self) {
        if let Some(taken) = &self.0 {
            let _ = rustix::io::write(taken, &1u64.to_ne_bytes());
        }
    }
}

/// Ends this process if one of the signals stays pending: the thread that takes them may be blocked by a write to a
/// terminal or a pipe that is full. All threads must have blocked the signals. `leave` runs before the end, and must
/// not write.
pub fn end_if_blocked(numbers: &[i32], leave: fn()) {
    let Ok(stops) = Signals::of(Some(numbers)) else { return };
    // If the thread can't start, there is no last resort; everything else works.
    let _ = thread::Builder::new().name("last-resort".into()).spawn(move || end(&[stops.as_fd()], BLOCKED, leave));
}

/// Only the recording thread knows the status of the child that SIGCHLD announces.
fn all_but(kept: &[i32]) -> Vec<i32> {
    (1..=libc::SIGRTMAX()).filter(|number| *number != libc::SIGCHLD && !kept.contains(number)).collect()
}

fn is_readable(fds: &[BorrowedFd<'_>], timeout: Option<&Timespec>) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Returns when the child has ended.
fn pass_on(pending: &Signals, child: &ChildHandle) {
    let has_ended = || is_readable(&[child.as_fd()], Some(&NOW));
    while !has_ended() {
        if !is_readable(&[pending.as_fd(), child.as_fd()], None) {
            continue;
        }
        let since = Instant::now();
        while !has_ended() && is_readable(&[pending.as_fd()], Some(&NOW)) {
            if since.elapsed() >= PATIENCE
                && let Some(signal) = pending.next()
            {
                child.pass_on(signal);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Dies if one of the descriptors stays readable for `grace`.
fn end(fds: &[BorrowedFd<'_>], grace: Duration, leave: fn()) {
    loop {
        if !is_readable(fds, None) {
            continue;
        }
        let since = Instant::now();
        // A signal that the recording takes keeps its descriptor readable.
        while is_readable(fds, Some(&NOW)) {
            if since.elapsed() >= grace {
                leave();
                sys::die_of(libc::SIGTERM);
            }
            thread::sleep(PAUSE);
        }
    }
}
