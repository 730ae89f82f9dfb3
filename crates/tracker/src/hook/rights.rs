//! chroot, setuid, seteuid, setreuid, setresuid, setfsuid, setns: after such a call the process may have no access to
//! the directory of the segments. A fork child usually makes its segment at its first block. If it calls one of these
//! first, it makes the segment before the call. A process that has a segment keeps it. If its later children can't make
//! theirs, they are counted as untracked. A program that makes the system call itself (without libc) isn't seen.
//!
//! Calls that change groups aren't hooked: only its owner may enter a directory of segments.

use super::loader::{Next, real};
use crate::account::segment_file;
use crate::segment::Segment;
use crate::sys::libc::Call;

macro_rules! before {
    ($($(#[doc = $d:literal])* $name:ident $call:ident;)*) => {$(
        $(#[doc = $d])*
        pub extern "C" fn $name() -> Next {
            will_change();
            Next::jump(real(Call::$call))
        }
    )*};
}
before! {
    /// chroot(2).
    before_chroot chroot;
    /// setuid(2).
    before_setuid setuid;
    /// seteuid(3).
    before_seteuid seteuid;
    /// setreuid(2).
    before_setreuid setreuid;
    /// setresuid(2).
    before_setresuid setresuid;
    /// setfsuid(2).
    before_setfsuid setfsuid;
    /// setns(2): another mount namespace.
    before_setns setns;
}

/// Called before a call that may change which files this process can reach.
#[cold]
pub(super) fn will_change() {
    let _ = Segment::current();
    segment_file::distrust_directory();
}
