//! How far an mprotect that failed got.
//!
//! The kernel changes one mapping after the other, in the order of the addresses (mm/mprotect.c, `do_mprotect_pkey`).
//! It stops at a hole (ENOMEM), at a limit (RLIMIT_DATA, overcommit or max_map_count: ENOMEM), or at a mapping that
//! doesn't permit this access (EACCES). Everything before that point has changed. So only the end of the change is
//! unknown. The memory itself shows the end where the call makes readable memory unreadable, or unreadable memory
//! readable.

use super::holder::Held;
use crate::sys::{errno, os};

const PAGE: usize = 4096;

/// Whether memory of this protection can be read; `None`: that depends on the processor. Memory that can be written
/// can be read, on all processors that the tracker runs on.
fn is_readable(prot: u16) -> Option<bool> {
    match prot & 7 {
        0 => Some(false),
        4 => None,
        _ => Some(true),
    }
}

/// Whether the page can be read. `None`: a filter refuses the query.
fn shows_readable(page: usize) -> Option<bool> {
    match os::probe(page) {
        Err(errno::EINVAL) => Some(true),
        Err(errno::EFAULT) => Some(false),
        _ => None,
    }
}

impl Held {
    /// The bytes from `start` on that a failed call has given this protection.
    #[cold]
    #[inline(never)]
    pub(super) fn protected_bytes(&mut self, start: usize, bytes: usize, prot: u16) -> usize {
        let end = start.saturating_add(bytes).next_multiple_of(PAGE);
        // `changed`: up to here the memory shows that it was changed. `at`: up to here nothing contradicts a change.
        let (mut changed, mut at) = (start, start);
        while at < end
            && let Some(vma) = self.map().and_then(|b| b.lookup(at as u64))
        {
            let upto = end.min(vma.end as usize);
            match (is_readable(vma.attributes().prot()), is_readable(prot)) {
                (Some(old), Some(new)) if old != new => match change_ends(at, upto, new) {
                    Some(here) if here < upto => return if here > at { here - start } else { changed - start },
                    Some(_) => changed = upto,
                    None => {}
                },
                _ => {}
            }
            at = upto;
        }
        // At a hole, everything before the hole has changed. Without a hole, the kernel stopped at a mapping that shows
        // nothing.
        if at < end { at - start } else { changed - start }
    }
}

/// Where the pages whose readability equals `new` end in a range. `None`: a filter refuses the query.
fn change_ends(from: usize, upto: usize, new: bool) -> Option<usize> {
    let (mut low, mut high) = (from / PAGE, upto / PAGE);
    while low < high {
        let middle = low + (high - low) / 2;
        if shows_readable(middle * PAGE)? == new {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Some(low * PAGE)
}
