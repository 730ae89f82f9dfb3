//! setrlimit, setrlimit64, prlimit, prlimit64. For a limit on address space (`RLIMIT_AS`), the tracker first unmaps its unused
//! memory, and from then on maps only memory that it uses. So a program that limits itself gets nearly as much memory as
//! without the tracker. A limit that another process sets (`prlimit --pid`) isn't seen. Before a limit on files
//! (`RLIMIT_FSIZE`, `RLIMIT_NOFILE`), a fork child without a segment makes its segment.

use super::loader::{Next, real};
use super::rights;
use super::seccomp::is_child_of_vfork;
use crate::account::segment::Segment;
use crate::boot;
use crate::sys::libc::Call;
use crate::sys::os;

macro_rules! before {
    ($($(#[doc = $d:literal])* $name:ident($($pid:ident)?) $call:ident;)*) => {$(
        $(#[doc = $d])*
        pub extern "C" fn $name($($pid: i32,)? resource: u32, limit: usize) -> Next {
            if HAS_LOOK & 1 << (resource & 31) != 0 $(&& ($pid == 0 || $pid as u32 == os::getpid()))? {
                look(resource as usize, limit);
            }
            Next::jump(real(Call::$call))
        }
    )*};
}
before! {
    /// setrlimit(2).
    before_setrlimit() setrlimit;
    /// The same; on 64 bits one struct.
    before_setrlimit64() setrlimit64;
    /// prlimit(2).
    before_prlimit(pid) prlimit;
    /// The same.
    before_prlimit64(pid) prlimit64;
}

/// A bit for each of the limits that [`look`] knows.
const HAS_LOOK: u32 = 1 << os::RLIMIT_AS | 1 << os::RLIMIT_FSIZE | 1 << os::RLIMIT_NOFILE;

#[cold]
fn look(resource: usize, limit: usize) {
    match resource {
        os::RLIMIT_AS => limited(limit),
        os::RLIMIT_FSIZE | os::RLIMIT_NOFILE if limit != 0 => rights::will_change(),
        _ => {}
    }
}

/// `given` points to `struct rlimit`, the soft limit first, or nowhere: then only the old one is asked for.
fn limited(given: usize) {
    // Such a child has the parent's memory, and limits of its own.
    if given == 0 || !os::readable(given) || is_child_of_vfork() {
        return;
    }
    // A fork child that has no segment yet has memory in the place of its parent's: it makes its own first.
    let _ = Segment::current();
    // SAFETY: eight bytes are readable.
    boot::limit_address_space(unsafe { (given as *const u64).read_unaligned() });
}
