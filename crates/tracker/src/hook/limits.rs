//! setrlimit, setrlimit64, prlimit, prlimit64. Before a limit on address space (`RLIMIT_AS`) or on writable private
//! memory (`RLIMIT_DATA`) the tracker unmaps its unused memory, and from then on maps only memory that it uses. So a
//! program that limits itself gets nearly as much memory as without the tracker. A limit that another process sets
//! (`prlimit --pid`) isn't seen. Before a limit on files (`RLIMIT_FSIZE`, `RLIMIT_NOFILE`) a fork child without a
//! segment makes its segment.

use super::loader::{Next, real};
use super::seccomp::is_child_of_vfork;
use super::{malloc, rights};
use crate::account::own_mappings;
use crate::segment::Segment;
use crate::sys::libc::Call;
use crate::sys::os;
use core::sync::atomic::Ordering::*;

macro_rules! before {
    ($($(#[doc = $d:literal])* $name:ident($($pid:ident)?) $call:ident;)*) => {$(
        $(#[doc = $d])*
        pub extern "C" fn $name($($pid: i32,)? resource: u32, limit: usize) -> Next {
            if HANDLED & 1 << (resource & 31) != 0 $(&& ($pid == 0 || $pid as u32 == os::getpid()))? {
                handle(resource as usize, limit);
            }
            Next::jump(real(Call::$call))
        }
    )*};
}
before! {
    /// setrlimit(2).
    before_setrlimit() setrlimit;
    /// As setrlimit(2): on 64-bit systems both take the same struct.
    before_setrlimit64() setrlimit64;
    /// prlimit(2).
    before_prlimit(pid) prlimit;
    /// As prlimit(2).
    before_prlimit64(pid) prlimit64;
}

/// A bit for each of the limits that [`handle`] knows.
const HANDLED: u32 = 1 << os::RLIMIT_AS | 1 << os::RLIMIT_DATA | 1 << os::RLIMIT_FSIZE | 1 << os::RLIMIT_NOFILE;

#[cold]
fn handle(resource: usize, limit: usize) {
    match resource {
        os::RLIMIT_AS | os::RLIMIT_DATA => memory_limited(limit),
        os::RLIMIT_FSIZE | os::RLIMIT_NOFILE if limit != 0 => rights::will_change(),
        _ => {}
    }
}

/// The program sets a limit on memory. `given` points to `struct rlimit`, the soft limit first. Null: it only
/// reads the old limit.
fn memory_limited(given: usize) {
    // A child of vfork has the parent's memory, and limits of its own.
    if given == 0 || !os::readable(given) || is_child_of_vfork() {
        return;
    }
    // In a fork child without a segment, other memory lies where its parent's segment was: it makes its own segment
    // first.
    let _ = Segment::current();
    // SAFETY: eight bytes are readable.
    if os::note_limit(unsafe { (given as *const u64).read_unaligned() }) {
        unmap_unused();
    }
}

/// Unmaps memory that the tracker doesn't use, after [`os::note_limit`]. From now on it maps no more than it uses.
#[cold]
pub fn unmap_unused() {
    if let Some(segment) = Segment::mapped() {
        // Before the windows are cut, since only this free checks where they end.
        for (whole, windows) in [
            (malloc::free_glibc as *mut (), malloc::free_glibc_in_windows as *mut ()),
            (malloc::free_other as *mut (), malloc::free_other_in_windows as *mut ()),
        ] {
            let _ = malloc::FREE.compare_exchange(whole, windows, AcqRel, Relaxed);
        }
        segment.cut();
    }
    os::cut_pool(own_mappings::shorten);
}
