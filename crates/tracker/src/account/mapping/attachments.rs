//! Where shared memory is attached (shmat), and how many bytes: shmdt has only the address, and the map of mappings
//! joins equal neighbours into one entry.

use crate::sys::os;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The kernel's default for the number of shared memory segments (SHMMNI, shmget(2)). One segment may be attached more
/// often.
const MOST: usize = 4096;

/// First address, 0: no attachment; and bytes. Pages of the table are touched as far as it is used.
static ATTACHED: [[AtomicUsize; 2]; MOST] = [const { [const { AtomicUsize::new(0) }; 2] }; MOST];
/// Entries that were ever in use: the first ones.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Notes an attachment.
pub fn attached(at: usize, bytes: usize) {
    let used = USED.load(Acquire);
    let known = ATTACHED[..used].iter().position(|e| e[0].load(Relaxed) == at);
    let free = || ATTACHED.iter().position(|e| e[0].compare_exchange(0, at, AcqRel, Relaxed).is_ok());
    if let Some(i) = known.or_else(free) {
        ATTACHED[i][1].store(bytes, Relaxed);
        USED.fetch_max(i + 1, Release);
    }
}

/// Takes out the attachment at this address, and returns its bytes. `None`: it isn't known.
pub fn detached(at: usize) -> Option<usize> {
    let e = ATTACHED[..USED.load(Acquire)].iter().find(|e| e[0].load(Relaxed) == at)?;
    let bytes = e[1].load(Relaxed);
    e[0].store(0, Release);
    Some(bytes)
}

/// The end of an unknown attachment that was just detached, in a range of readable attachments that begins with that
/// attachment: the first page that is still attached. The search reads a few pages of the program's memory.
pub(super) fn end_of_detached(range: Range<usize>) -> usize {
    const PAGE: usize = 4096;
    let (mut gone, mut end) = (range.start / PAGE, range.end / PAGE);
    if gone >= end || !os::readable((end - 1) * PAGE) {
        return range.end;
    }
    end -= 1;
    while end - gone > 1 {
        let middle = gone + (end - gone) / 2;
        *(if os::readable(middle * PAGE) { &mut end } else { &mut gone }) = middle;
    }
    end * PAGE
}
