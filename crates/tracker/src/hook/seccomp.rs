//! prctl, for one of its uses: `PR_SET_SECCOMP` to strict mode, from which on every system call of the thread but read,
//! write, exit and sigreturn is death. From that moment the tracker makes none in this thread: what would need one (a table
//! that grows) is counted as lost.
//!
//! The tail jump leaves no place behind the call, so the thread is marked before it, unless the kernel would refuse: a thread
//! under a filter can't change to strict mode (seccomp(2), EINVAL). A program that enters it by a raw system call isn't seen.

use super::loader::{Next, real};
use crate::sys::cpu::{STRICT, tls_set};
use crate::sys::libc::Call;
use crate::sys::os;

const PR_SET_SECCOMP: i32 = 22;
const SECCOMP_MODE_STRICT: usize = 1;

/// prctl(2).
pub extern "C" fn before_prctl(operation: i32, mode: usize) -> Next {
    if operation == PR_SET_SECCOMP && mode == SECCOMP_MODE_STRICT && os::seccomp_mode() == 0 {
        tls_set::<STRICT>(1);
    }
    Next::jump(real(Call::prctl))
}
