//! sigaltstack(2): from now on a walk on a stack that isn't the thread's own asks the kernel whether it is a signal
//! handler's, and where that ends. Without such a call the tracker makes no query: a filter of system calls that it
//! doesn't know of may kill the program for it. Calls from before an attach, or without libc, aren't seen.

use super::loader::{Next, real};
use crate::sys::libc::Call;
use crate::sys::os;

/// sigaltstack(2).
pub extern "C" fn before_sigaltstack() -> Next {
    os::alternate_stacks_exist();
    Next::jump(real(Call::sigaltstack))
}
