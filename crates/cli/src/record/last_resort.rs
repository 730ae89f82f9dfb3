//! Ends a recording that was told to end and doesn't: the thread that records may be inside a read that its target's
//! owner delays (a page or a file that a FUSE server of theirs has to bring), where no signal is looked at.
//!
//! ```text
//! SIGTERM, SIGINT ─▶ pending? taken, but the recording goes on? ── GRACE ──▶ die of the signal
//! ```
//! The recording is whole to its last instant at any time, so nothing is lost that was written.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::sys::{self, Signals};

/// Between the signal and the end. Container runtimes wait 10 s before they kill.
const GRACE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(100);

/// To be said when the signal was taken: from then on the grace runs, whatever the recording does.
pub struct LastResort(Option<Arc<OwnedFd>>);

impl LastResort {
    /// The signals must be blocked already, in all threads. Without a thread or descriptors there is none, and all else works.
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
    let told = |timeout: Option<&Timespec>| {
        let mut fds = [PollFd::new(pending, PollFlags::IN), PollFd::new(taken, PollFlags::IN)];
        poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
    };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        if !told(None) {
            continue;
        }
        let since = Instant::now();
        // A signal that is passed on to a child is taken soon; one that ends the recording stays told.
        while told(Some(&now)) {
            if since.elapsed() >= GRACE {
                sys::die_of(libc::SIGTERM);
            }
            thread::sleep(PAUSE);
        }
    }
}
