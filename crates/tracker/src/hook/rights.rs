//! chroot, setuid, seteuid, setreuid, setresuid, setfsuid, setns, for one reason: afterwards the directory of the segments may be
//! out of reach. A fork child makes its segment at its first block; one that calls these first makes it now. A process that has
//! its segment keeps it; but its children are counted as untracked from then on if they can't make theirs. A program that makes the
//! system call by itself (no libc) isn't seen.
//!
//! Groups aren't looked at: a directory of segments is for its owner alone.

use super::fork;
use super::loader::{Next, real};
use crate::account::segment::Segment;
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

/// What this process may reach will change.
#[cold]
pub(super) fn will_change() {
    let _ = Segment::current();
    fork::doubt_directory();
}
