//! Ends a recording that does not react to its signal. The recording thread may be inside a read that the owner of the
//! target delays (a page or a file of a FUSE server), where it does not look at signals.
//!
//! ```text
//! SIGTERM, SIGINT ─▶ pending? taken, but the recording goes on? ── GRACE ──▶ die of SIGTERM
//! ```
//! The file is complete up to its last instant at any time, so nothing that was written is lost.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::sys::{self, Signals};

/// Time from the signal to the end. Container runtimes wait 10 s before they kill.
const GRACE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(100);

/// The recording calls `taken` when it takes the signal: from then on the grace period runs.
pub struct LastResort(Option<Arc<OwnedFd>>);

impl LastResort {
    /// All threads must have blocked the signals. If no thread or descriptor can be created, there is no last resort,
    /// and all else works.
    pub fn watch() -> LastResort {
        let start = || {
            let pending = Signals::of(Some(&[libc::SIGINT, libc::SIGTERM])).ok()?;
            let taken = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
            let theirs = taken.clone();
            let name = thread::Builder::new().name("last-resort".into());
            name.spawn(move || wait(&pending, &theirs)).ok()?;
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

fn wait(pending: &Signals, taken: &OwnedFd) {
    let is_readable = |timeout: Option<&Timespec>| {
        let mut fds = [PollFd::new(pending, PollFlags::IN), PollFd::new(taken, PollFlags::IN)];
        poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
    };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        if !is_readable(None) {
            continue;
        }
        let since = Instant::now();
        // A signal that is passed on to a child is soon consumed; one that ends the recording keeps its descriptor
        // readable.
        while is_readable(Some(&now)) {
            if since.elapsed() >= GRACE {
                sys::die_of(libc::SIGTERM);
            }
            thread::sleep(PAUSE);
        }
    }
}
