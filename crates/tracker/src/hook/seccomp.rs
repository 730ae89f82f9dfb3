//! prctl, for one of its uses, `PR_SET_SECCOMP`. In strict mode every system call of the thread but read, write, exit and
//! sigreturn is death: from that moment the tracker makes none in this thread; what would need one (a table that grows) is
//! counted as lost. Under a filter it does without what filters kill for.
//!
//! The tail jump leaves no place behind the call, so the thread is marked before it, unless the kernel would refuse: it may
//! have no seccomp, and a thread under a filter can't change to strict mode (seccomp(2), EINVAL). A program that enters it by a raw system call isn't seen.

use super::loader::{Next, real};
use crate::sys::cpu::{STRICT, tls_set};
use crate::sys::libc::Call;
use crate::sys::os;

const PR_SET_SECCOMP: i32 = 22;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_MODE_FILTER: usize = 2;

/// prctl(2).
pub extern "C" fn before_prctl(operation: i32, mode: usize) -> Next {
    match (operation, mode) {
        (PR_SET_SECCOMP, SECCOMP_MODE_STRICT) if os::seccomp_mode() == Some(0) => tls_set::<STRICT>(1),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER) => os::sandboxed(),
        _ => {}
    }
    Next::jump(real(Call::prctl))
}
