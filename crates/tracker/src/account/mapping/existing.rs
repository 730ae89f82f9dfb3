//! Mappings from before an attach, and what an earlier attach left in the map.

use super::attachments;
use super::books::{NO_FRAME, Operation, take, time};
use super::own_memory::each_part_of_program;
use crate::account::vmas::Placement;
use crate::phase::{self};
use crate::segment::Segment;
use crate::segment::categories::EARLY;
use crate::stack::generated_code;
use crate::stack::java::memory;
use crate::stack::module;
use crate::sys::{cpu, os};
use core::ops::Range;
use plimsoll_segment::vmap::{ADDRESS_END, Attributes, Vma};
use plimsoll_segment::{CALLER_EARLY, Counter};

/// Empties the map, for a new attach.
pub fn empty_map(segment: Segment) {
    let Some(mut held) = take(segment, NO_FRAME) else {
        return segment.count(Counter::faults, 1);
    };
    // With five-level page tables, a program can map memory above 2^47
    // (Documentation/arch/x86/x86_64/5level-paging.rst).
    held.book(Operation::Unmap { start: 0, bytes: ADDRESS_END as usize });
    // While the tracker was detached, no hook saw what was unmapped.
    memory::forget(0..usize::MAX);
    if let Some(b) = held.map() {
        b.forget_losses();
    }
    held.release();
}

/// Books the mappings from before the attach, from /proc/self/maps: all except loaded objects, which the caller has
/// noted, the break, the main stack and the tracker's own. Bookings of other threads wait for the lock meanwhile. But
/// the kernel's list changes while it is read. So two kinds of calls make the books differ from it, until the same
/// addresses are mapped or unmapped again:
///
/// - An mmap entered the kernel before the segment was published, and takes effect after its addresses were read: its
///   mapping is missing.
/// - A munmap is booked (or entered the kernel before), and takes effect after its addresses were read: its mapping
///   stays.
///
/// A reader finds nothing resident at addresses that are gone, and `explain` begins with smaps.
pub fn book_existing(segment: Segment) {
    let Some(mut held) = take(segment, NO_FRAME) else {
        return segment.count(Counter::faults, 1);
    };
    let attributes = |kind, prot| {
        let (caller, category) = (CALLER_EARLY, EARLY);
        Attributes::new(caller, category, kind, prot, time(segment))
    };
    let mut attachment = 0..0;
    os::each_line(os::OwnFile::MAPS, |line| {
        let Some(m) = maps::parse(line) else { return };
        // shmat(2); its parts have lines of their own if the program has changed their protection.
        if m.name.starts_with(b"/SYSV") {
            let begins = m.offset == 0 || m.start != attachment.end;
            attachment = if begins { m.start..m.end } else { attachment.start..m.end };
            attachments::attached(attachment.start, attachment.len());
        }
        // A pool that is being made isn't listed yet.
        if m.is_kernels() || m.name == b"[anon:plimsoll]" {
            return;
        }
        each_part_of_program(m.start..m.end, &mut |mut part: Range<usize>| {
            while let Some(end) = module::end_of_loaded(part.start).filter(|_| !part.is_empty()) {
                part.start = end;
            }
            if part.is_empty() {
                return;
            }
            if m.prot & 4 != 0 {
                generated_code::note(part.start, part.len());
            }
            let op = Operation::Map {
                start: part.start,
                bytes: part.len(),
                attributes: attributes(m.kind, m.prot),
                placement: Placement::Chosen,
            };
            held.book(op);
        });
    });
    held.release();
}

/// The guard's low end and the ends of a stack.
type Stack = (usize, usize, usize);

/// Removes the stack of a thread that existed before the attach from the map, if the map has the address `here` of it.
/// `stack`: finds it from the entry of the map that holds `here`, and from the low end of an inaccessible entry below.
pub fn remove_stack(here: usize, stack: impl FnOnce(Range<usize>, Option<usize>) -> Option<Stack>) -> Option<Stack> {
    let segment = Segment::current().filter(|_| phase::is_late())?;
    let own = cpu::thread_pointer();
    let mut held = take(segment, &raw const own as usize)?;
    let found = held.map().and_then(|b| {
        let early = |v: &Vma| v.attributes().category() == EARLY;
        let vma = b.lookup(here as u64).filter(|v| early(v) && v.attributes().committed())?;
        let guard = b.lookup(vma.start - 1).filter(|g| early(g) && !g.attributes().committed());
        stack(vma.start as usize..vma.end as usize, guard.map(|g| g.start as usize))
    });
    if let Some((guard, _, high)) = found {
        held.book(Operation::Unmap { start: guard, bytes: high - guard });
    }
    held.release();
    found
}

/// For [`remove_stack`], if the thread's descriptor can't be read
/// ([`crate::sys::thread_descriptor::stack_of_glibc`]).
pub fn stack_at(pointer: usize) -> impl FnOnce(Range<usize>, Option<usize>) -> Option<Stack> {
    move |mapping, guard| glibc_stack(mapping, guard, pointer)
}

/// The stack that ends with glibc's thread descriptor at `pointer`. Memory above it in the same entry of the map is a
/// neighbour, since the map joins equal mappings. A stack that the program provides may lie in any mapping: if more
/// memory follows, only a guard below proves that the stack begins here.
fn glibc_stack(mapping: Range<usize>, guard: Option<usize>, pointer: usize) -> Option<Stack> {
    if !mapping.contains(&pointer) {
        return None;
    }
    let high = if mapping.end - pointer < 64 << 10 { mapping.end } else { (pointer + 4095) & !4095 };
    (high == mapping.end || guard.is_some()).then_some((guard.unwrap_or(mapping.start), mapping.start, high))
}

#[cfg(test)]
#[test]
fn a_stack_ends_with_its_descriptor_also_where_the_map_joined_a_neighbour_to_it() {
    const MIB: usize = 1 << 20;
    let (low, guard, tls) = (8 * MIB, 8 * MIB - 4096, 9 * MIB - 0x940);
    assert_eq!(glibc_stack(low..9 * MIB, Some(guard), tls), Some((guard, low, 9 * MIB)));
    assert_eq!(glibc_stack(low..9 * MIB, None, tls), Some((low, low, 9 * MIB)));
    assert_eq!(glibc_stack(low..15 * MIB, Some(guard), tls), Some((guard, low, 9 * MIB)));
    assert_eq!(glibc_stack(low..15 * MIB, None, tls), None);
    assert_eq!(glibc_stack(low..9 * MIB, Some(guard), 9 * MIB), None);
}

/// Lines of /proc/PID/maps (proc(5)): `start-end perms offset dev inode   name`.
pub mod maps {
    use plimsoll_segment::vmap::MappingKind;

    pub struct MapsLine<'a> {
        pub start: usize,
        pub end: usize,
        pub prot: u16,
        pub kind: MappingKind,
        pub offset: usize,
        pub name: &'a [u8],
    }

    impl MapsLine<'_> {
        /// The break, the main stack, the vdso and similar mappings.
        pub(super) fn is_kernels(&self) -> bool {
            self.name.starts_with(b"[") && !self.name.starts_with(b"[anon")
        }
    }

    fn hex(text: &[u8]) -> Option<usize> {
        let digit = |n: usize, b: &u8| {
            let d = (*b as char).to_digit(16)?;
            Some(n << 4 | d as usize)
        };
        (!text.is_empty() && text.len() <= 16).then(|| text.iter().try_fold(0, digit))?
    }

    pub fn parse(line: &[u8]) -> Option<MapsLine<'_>> {
        let mut words = line.split(|b| *b == b' ');
        let range = words.next()?;
        let dash = range.iter().position(|b| *b == b'-')?;
        let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
        let perms: [u8; 4] = words.next()?.try_into().ok()?;
        let offset = hex(words.next()?)?;
        let inode = words.nth(1)?;
        let name = line.iter().position(|b| matches!(b, b'/' | b'[')).map_or(&[][..], |i| &line[i..]);
        let bit = |at: usize, letter: u8, value: u16| if perms[at] == letter { value } else { 0 };
        let kind = match (perms[3], inode) {
            (b's', _) => MappingKind::Shared,
            (_, b"0") => MappingKind::Anonymous,
            _ => MappingKind::File,
        };
        let prot = bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4);
        (start < end).then_some(MapsLine { start, end, prot, kind, offset, name })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_line_of_maps_is_parsed_or_refused() {
            let m = parse(b"7f00-8000 rw-s 0000f000 00:01 12 /dev/shm/a b").expect("a mapping");
            assert_eq!(
                (m.start, m.end, m.prot, m.kind, m.offset, m.name),
                (0x7f00, 0x8000, 3, MappingKind::Shared, 0xf000, &b"/dev/shm/a b"[..])
            );
            let m = parse(b"7f00-8000 ---p 00000000 00:00 0 ").expect("a mapping");
            assert_eq!((m.prot, m.kind, m.name.len(), m.is_kernels()), (0, MappingKind::Anonymous, 0, false));
            assert!(
                parse(b"7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0          [stack]").expect("it").is_kernels()
            );
            for bad in [&b""[..], b"-", b"8000-7f00 r--p 0 0:0 0", b"xyz-8000 r--p 0 0:0 0", b"1-2 r-- 0 0:0 0"] {
                assert!(parse(bad).is_none());
            }
        }
    }
}
