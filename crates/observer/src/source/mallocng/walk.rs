//! Sums over all groups, slot by slot. A slot that holds a smaller group is counted by that group's slots.

use super::context::{self, WalkError};
use super::metas::{self, Group, Metas};
use crate::source::heap_data::{Anonymous, Data, joined};
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates};

pub fn walk<M: Memory>(memory: &M, data: &[Data], anonymous: &Anonymous) -> Result<OtherHeap, WalkError> {
    let context = context::find(memory, data, anonymous).ok_or(WalkError::NoContext)?;
    let metas = metas::read(memory, &context, anonymous)?;
    let mut pages = PageStates::new(memory);
    let heap = heap_of(&metas, &mut pages);
    if pages.readable { Ok(heap) } else { Err(WalkError::Unreadable) }
}

fn heap_of<M: Memory>(metas: &Metas, pages: &mut PageStates<'_, M>) -> OtherHeap {
    let mut heap = OtherHeap::new(AllocatorKind::Musl);
    let mut ranges: Vec<AddressRange> = Vec::new();
    for area in &metas.areas {
        let range = AddressRange::sized(Avma(*area), Bytes(PAGE));
        heap.add(HeapPart::Records, range.length(), pages.resident(range));
        ranges.push(range);
    }
    let mut rest = metas.groups.as_slice();
    while let Some((first, behind)) = rest.split_first() {
        let range = AddressRange::sized(Avma(first.start), Bytes(first.mapped));
        let inner = behind.partition_point(|group| group.start < range.end.0);
        // A group outside of every mapping was released after its record was read. So was a mapping that now has pages
        // of records. No two mappings overlap here: groups that begin in one are left out below.
        let has_records = || metas.areas.range(range.start.0..range.end.0).next().is_some();
        let is_stale = first.mapped == 0 || has_records();
        rest = if first.mapped == 0 { behind } else { &behind[inner..] };
        if !is_stale {
            let live = live(first, &behind[..inner], pages);
            let resident = pages.resident(range);
            heap.add(HeapPart::Live, live.0, live.1);
            heap.add(HeapPart::Beside, range.length() - live.0, resident - live.1);
            ranges.push(range);
        }
    }
    ranges.sort_unstable();
    heap.ranges = joined(ranges);
    heap
}

/// Live and resident live bytes of a mapping: slots that hold a block. `inner`: groups that begin in it, sorted.
fn live<M: Memory>(outer: &Group, inner: &[Group], pages: &mut PageStates<'_, M>) -> (Bytes, Bytes) {
    let mut groups = vec![*outer];
    // The groups that contain each other, as numbers in `groups`: each lies in a slot of the one before.
    let mut around = vec![0];
    for group in inner.iter().filter(|group| group.mapped == 0) {
        while around.len() > 1 && around.last().is_some_and(|top: &usize| groups[*top].end() <= group.start) {
            around.pop();
        }
        let parent = &mut groups[*around.last().unwrap_or(&0)];
        let slot = parent.slot_with(group.start).filter(|slot| parent.is_taken(*slot));
        // Otherwise the record is older than the present contents of the slot.
        if let Some(slot) = slot
            && group.end() <= parent.slot(slot).saturating_add(parent.stride)
        {
            parent.taken &= !(1 << slot);
            around.push(groups.len());
            groups.push(*group);
        }
    }
    let taken = groups.iter().flat_map(|group| {
        let slots = (0..group.slots).filter(|slot| group.is_taken(*slot));
        slots.map(|slot| AddressRange::sized(Avma(group.slot(slot)), Bytes(group.stride)))
    });
    taken.fold((Bytes(0), Bytes(0)), |sum, slot| (sum.0 + slot.length(), sum.1 + pages.resident(slot)))
}
