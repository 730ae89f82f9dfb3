//! The interval timers of this process (setitimer(2), alarm(2)). exec keeps them and fork drops them, so `run` hands
//! them to its child: whoever sets an alarm and then executes plimsoll wants the alarm for the program.

/// ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF (<sys/time.h>).
const ALL: [libc::c_int; 3] = [0, 1, 2];

pub(super) struct Timers([libc::itimerval; 3]);

impl Timers {
    /// Stops the timers of this process, and keeps what is left of them.
    pub(super) fn take() -> Timers {
        Timers(ALL.map(|which| {
            // SAFETY: both structs are plain numbers and ours: one is read, the other written.
            unsafe {
                let (none, mut left): (libc::itimerval, libc::itimerval) = (std::mem::zeroed(), std::mem::zeroed());
                libc::setitimer(which, &none, &mut left);
                left
            }
        }))
    }

    /// Starts the stopped timers in this process. Makes system calls only, because a child calls it between fork and
    /// exec.
    pub(super) fn resume(&self) {
        for (which, left) in ALL.into_iter().zip(&self.0) {
            // SAFETY: the struct is valid for reading, and nothing is written.
            unsafe { libc::setitimer(which, left, std::ptr::null_mut()) };
        }
    }
}
