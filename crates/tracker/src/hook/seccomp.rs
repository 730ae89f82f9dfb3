//! prctl, and seccomp(2) by syscall, for `PR_SET_SECCOMP` with a mode or a filter. In strict mode the kernel kills a
//! thread for every system call except read, write, exit and sigreturn. From then on the tracker makes no system call
//! in this thread; an entry that needs one (because a table must grow) is counted as lost. A filter is copied and
//! evaluated before each system call of the tracker; a call that the filter would refuse isn't made. If no table could
//! grow under the filter, the tracker reserves memory before the filter is in force. `PR_SET_NO_NEW_PRIVS` announces a
//! filter, so a fork child without a segment makes its segment then.
//!
//! The hook jumps to the real function, so it can't act on the result: it marks the thread before the call. It doesn't
//! mark the thread if the kernel would refuse strict mode: there may be no seccomp, and a thread under a filter can't
//! change to strict mode (seccomp(2), EINVAL). A filter that the kernel then refuses is evaluated all the same. A
//! program that makes the system call itself (without libc) isn't seen.

use super::loader::{Next, real};
use crate::account::mapping::books;
use crate::segment::Segment;
use crate::stack::java::{self, method};
use crate::stack::{callers, frames};
use crate::sys::cpu::{STRICT, tls_set_half};
use crate::sys::filter_copy::filter_at;
use crate::sys::libc::Call;
use crate::sys::os;

const PR_SET_SECCOMP: i32 = 22;
const PR_SET_NO_NEW_PRIVS: i32 = 38;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_MODE_FILTER: usize = 2;
const SECCOMP_SET_MODE_STRICT: u32 = 0;
const SECCOMP_SET_MODE_FILTER: u32 = 1;

/// prctl(2).
pub extern "C" fn before_prctl(operation: i32, mode: usize, filter: usize) -> Next {
    match (operation, mode) {
        (PR_SET_SECCOMP, SECCOMP_MODE_STRICT) => strict(),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER) => filtered(filter),
        // The program may install the filter itself without libc.
        (PR_SET_NO_NEW_PRIVS, 1) => drop(Segment::current()),
        _ => {}
    }
    Next::jump(real(Call::prctl))
}

/// seccomp(2), which libseccomp calls.
pub fn before_seccomp(operation: u32, flags: u32, given: usize) {
    match (operation, flags) {
        (SECCOMP_SET_MODE_STRICT, 0) if given == 0 => strict(),
        (SECCOMP_SET_MODE_FILTER, _) => filtered(given),
        _ => {}
    }
}

fn strict() {
    if os::seccomp_mode() == Some(0) {
        // A fork child that has no file yet can't make one afterwards.
        let _ = Segment::current();
        // Afterwards the thread can't ask the kernel for its id.
        books::id_of_thread();
        tls_set_half::<STRICT>(1);
    }
}

fn filtered(given: usize) {
    if is_child_of_vfork() {
        return;
    }
    let Some(filter) = filter_at(given) else { return };
    // In a fork child without a file, `Segment::current` makes the file.
    if let (Some(segment), false) = (Segment::current(), os::grows_under(filter)) {
        callers::reserve();
        frames::reserve();
        if java::is_found() {
            method::reserve();
        }
        segment.grow_ahead();
    }
    filter.add();
}

/// Whether this is a child of vfork. It has the parent's memory, but its filter doesn't apply to the parent. The memory
/// that it allocates before its exec makes no table grow.
pub(super) fn is_child_of_vfork() -> bool {
    let pid = os::getpid();
    pid != 0 && super::fork::process_id().is_some_and(|own| own != pid)
}
