//! Answers from the map which memory is readable, so that the kernel need not be queried about each page of the VM's.
//!
//! An entry proves that its memory is readable if hooks saw the memory mapped or made accessible, and no change since.
//! That excludes memory from before an attach: the loader and libc unmap their own memory past the hooks. A call that
//! unmaps memory, or makes it unreadable, holds the lock or has a ticket until it is booked. So nothing is concluded
//! unless this thread gets the lock at once and no ticket is out; nor if a booking was ever lost.

use super::books::{Held, at_once};
use crate::segment::Segment;
use crate::stack::java::memory::{self, Mapped};
use core::sync::atomic::Ordering::Relaxed;
use plimsoll_segment::vmap::MappingKind;
use plimsoll_segment::{CALLER_EARLY, Counter};

/// From now on the readers of the VM's memory consult the map.
pub fn init() {
    memory::consult(entry);
}

pub(super) fn entry(address: u64) -> Option<Mapped> {
    let segment = Segment::published()?;
    // The lock counts as held while the word at `sp` is the same (`books::has_left`). The word is an address of code,
    // because such an address rarely stays behind on a stack by chance.
    let here = entry as fn(u64) -> Option<Mapped> as usize;
    let sp = &raw const here as usize;
    let mut held = at_once::take_at_once(segment, sp, true)?;
    let found = known(&mut held, segment, address);
    held.finish_late(sp, None);
    found
}

fn known(held: &mut Held, segment: Segment, address: u64) -> Option<Mapped> {
    const READ: u16 = 1;
    let book = held.map()?;
    if book.lost_ops() != 0 || segment.header().values[Counter::vmap_lost as usize].load(Relaxed) != 0 {
        return None;
    }
    let vma = book.lookup(address)?;
    let attributes = vma.attributes();
    let is_seen = ![attributes.reserve_caller(), attributes.commit_caller()].contains(&CALLER_EARLY);
    let is_private = attributes.kind() != MappingKind::Shared;
    (is_seen && is_private && attributes.prot() & READ != 0)
        .then(|| Mapped { range: vma.start..vma.end, is_file: attributes.kind() == MappingKind::File })
}
