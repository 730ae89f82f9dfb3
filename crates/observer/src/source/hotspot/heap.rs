//! Reads the addresses of the Java heap and its card table from the VM's memory through `gHotSpotVMStructs`
//! (`structs`). Among the commands, only VM.info reports the card table, and it makes the VM keep libjvm's symbols.
//!
//! ```text
//! Universe::_collectedHeap ─▶ CollectedHeap::_reserved                   MemRegion: start, length in words
//! BarrierSet::_barrier_set ─▶ CardTableBarrierSet::_card_table ─▶ CardTable::_whole_heap, _byte_map, _byte_map_size
//!
//! JDK 8
//! Universe::_collectedHeap ─▶ CollectedHeap::_barrier_set ─▶ CardTableModRefBS::_whole_heap, _byte_map, _byte_map_size
//! CodeCache::_heap ─▶ CodeHeap::_memory                                  VirtualSpace: bounds, also of its committed part
//! ```
//!
//! JDK 8 has no command that prints its code cache. Later versions have one, which prints the figures of each segment.
//!
//! A collector without card marking has another barrier set, with other data at that offset. So a card table counts
//! only if it covers this heap. ZGC has no `_reserved`.

use super::field_table::FieldTable;
use plimsoll_facts::snapshot::{VmRegion, VmTag};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, word_at};

const WORD: u64 = 8;
/// A card has at least 128 bytes (`GCCardSizeInBytes`); the default is 512.
const SMALLEST_CARD: u64 = 128;
const LARGEST_CARD: u64 = 1024;

/// Offsets of fields and addresses of static fields, from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapFields {
    pub heap: u64,
    pub reserved: u64,
    pub cards: CardTable,
    pub whole_heap: u64,
    pub byte_map: u64,
    pub byte_map_size: u64,
}

/// Where the pointer to the card table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardTable {
    /// A static pointer to the barrier set, and the pointer in that.
    OfBarriers { barrier_set: u64, card_table: u64 },
    /// JDK 8: at this offset of the heap. The barrier set is the card table.
    OfHeap(u64),
}

/// JDK 8: the only code heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeFields {
    pub heap: u64,
    pub memory: u64,
    pub low_boundary: u64,
    pub high_boundary: u64,
    pub low: u64,
    pub high: u64,
}

impl CodeFields {
    /// None if the table lacks one: later versions have several code heaps.
    pub fn of(fields: &FieldTable) -> Option<CodeFields> {
        Some(CodeFields {
            heap: fields.address("CodeCache", "_heap")?,
            memory: fields.offset("CodeHeap", "_memory")?,
            low_boundary: fields.offset("VirtualSpace", "_low_boundary")?,
            high_boundary: fields.offset("VirtualSpace", "_high_boundary")?,
            low: fields.offset("VirtualSpace", "_low")?,
            high: fields.offset("VirtualSpace", "_high")?,
        })
    }
}

/// The region of the code cache.
pub fn code(memory: &impl Memory, fields: &CodeFields) -> Option<VmRegion> {
    let space = memory.word(Avma(fields.heap))?.checked_add(fields.memory)?;
    let bound = |offset: u64| memory.word(Avma(space.checked_add(offset)?)).filter(|bound| *bound < 1 << 56).map(Avma);
    let range = AddressRange::new(bound(fields.low_boundary)?, bound(fields.high_boundary)?);
    let committed = AddressRange::new(bound(fields.low)?, bound(fields.high)?);
    let is_sound = range.start != Avma(0) && !committed.is_empty() && range.covers(committed);
    is_sound.then(|| VmRegion { range, tag: VmTag::Code, committed: vec![committed] })
}

impl HeapFields {
    /// None if the table lacks one.
    pub fn of(fields: &FieldTable) -> Option<HeapFields> {
        let (cards, of) = match fields.offset("CollectedHeap", "_barrier_set") {
            Some(at) => (CardTable::OfHeap(at), "CardTableModRefBS"),
            None => {
                let barrier_set = fields.address("BarrierSet", "_barrier_set")?;
                let card_table = fields.offset("CardTableBarrierSet", "_card_table")?;
                (CardTable::OfBarriers { barrier_set, card_table }, "CardTable")
            }
        };
        Some(HeapFields {
            heap: fields.address("Universe", "_collectedHeap")?,
            reserved: fields.offset("CollectedHeap", "_reserved")?,
            cards,
            whole_heap: fields.offset(of, "_whole_heap")?,
            byte_map: fields.offset(of, "_byte_map")?,
            byte_map_size: fields.offset(of, "_byte_map_size")?,
        })
    }
}

/// The regions of the heap and the card table, as far as they are known.
pub fn regions(memory: &impl Memory, fields: &HeapFields) -> Vec<VmRegion> {
    let Some(heap) = heap(memory, fields) else { return Vec::new() };
    let region = |tag, range| VmRegion { range, tag, committed: Vec::new() };
    let cards = card_table(memory, fields, heap).map(|cards| region(VmTag::Gc, cards));
    [Some(region(VmTag::JavaHeap, heap)), cards].into_iter().flatten().collect()
}

fn heap(memory: &impl Memory, fields: &HeapFields) -> Option<AddressRange> {
    mem_region(memory, memory.word(Avma(fields.heap))?.checked_add(fields.reserved)?)
}

fn card_table(memory: &impl Memory, fields: &HeapFields, heap: AddressRange) -> Option<AddressRange> {
    let (base, offset) = match fields.cards {
        CardTable::OfBarriers { barrier_set, card_table } => (barrier_set, card_table),
        CardTable::OfHeap(offset) => (fields.heap, offset),
    };
    let table = memory.word(Avma(memory.word(Avma(base))?.checked_add(offset)?))?;
    let at = |offset: u64| table.checked_add(offset);
    let of_this_heap = mem_region(memory, at(fields.whole_heap)?)? == heap;
    let (map, size) = (memory.word(Avma(at(fields.byte_map)?))?, memory.word(Avma(at(fields.byte_map_size)?))?);
    let cards = heap.length().0;
    // Rounded up to whole pages, plus a guard at the end.
    let fits = size >= cards / LARGEST_CARD && size <= (cards / SMALLEST_CARD).checked_add(1 << 21)?;
    let end = map.checked_add(size)?;
    (of_this_heap && fits && map != 0).then(|| AddressRange::new(Avma(map), Avma(end)))
}

/// A MemRegion that isn't empty.
fn mem_region(memory: &impl Memory, at: u64) -> Option<AddressRange> {
    let mut bytes = [0; 16];
    memory.read(Avma(at), &mut bytes).then_some(())?;
    let (start, words) = (word_at(&bytes, 0)?, word_at(&bytes, 8)?);
    let length = words.checked_mul(WORD)?;
    let sound = start != 0 && length != 0 && start.checked_add(length)? < 1 << 56;
    sound.then(|| AddressRange::sized(Avma(start), Bytes(length)))
}

#[cfg(test)]
mod tests {
    use super::super::objects::image::{BASE, Image};
    use super::*;
    use crate::mutated::mutated;

    const HEAP: AddressRange = AddressRange { start: Avma(0xfc00_0000), end: Avma(0x1_0000_0000) };
    const FIELDS: HeapFields = HeapFields {
        heap: BASE,
        reserved: 48,
        cards: CardTable::OfBarriers { barrier_set: BASE + 8, card_table: 72 },
        whole_heap: 8,
        byte_map: 40,
        byte_map_size: 32,
    };

    /// The two static fields, a heap at 256, its barrier set at 512, and a card table at 768 that covers `covered`.
    fn image(covered: AddressRange, cards: u64) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        let mut put = |at: u64, word: u64| bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        put(0, BASE + 256);
        put(8, BASE + 512);
        put(256 + 48, HEAP.start.0);
        put(256 + 56, HEAP.length().0 / 8);
        put(512 + 72, BASE + 768);
        put(768 + 8, covered.start.0);
        put(768 + 16, covered.length().0 / 8);
        put(768 + 32, cards);
        put(768 + 40, 0x7fc6_e4e0_6000);
        bytes
    }

    fn found(bytes: Vec<u8>) -> Vec<(VmTag, AddressRange)> {
        regions(&Image(bytes), &FIELDS).into_iter().map(|region| (region.tag, region.range)).collect()
    }

    #[test]
    fn heap_and_the_card_table_of_this_heap() {
        let cards = AddressRange::sized(Avma(0x7fc6_e4e0_6000), Bytes(0x20000));
        assert_eq!(found(image(HEAP, 0x20000)), [(VmTag::JavaHeap, HEAP), (VmTag::Gc, cards)]);
        let another = AddressRange::new(HEAP.start, Avma(HEAP.end.0 - 8));
        for none in [image(another, 0x20000), image(HEAP, 0x20), image(HEAP, 1 << 40), image(HEAP, u64::MAX)] {
            assert_eq!(found(none), [(VmTag::JavaHeap, HEAP)]);
        }
        assert_eq!(found(vec![0; 1024]), []);
        assert_eq!(found(Vec::new()), []);
    }

    /// The heap of JDK 8 has the pointer to its barrier set at 72, and there the card table begins.
    #[test]
    fn the_card_table_of_jdk_8() {
        let mut bytes = image(HEAP, 0x20000);
        bytes[256 + 72..][..8].copy_from_slice(&(BASE + 768).to_le_bytes());
        let fields = HeapFields { cards: CardTable::OfHeap(72), ..FIELDS };
        let cards = AddressRange::sized(Avma(0x7fc6_e4e0_6000), Bytes(0x20000));
        let found = regions(&Image(bytes), &fields);
        assert_eq!(found.iter().map(|region| region.range).collect::<Vec<_>>(), [HEAP, cards]);
    }

    const CODE: CodeFields = CodeFields { heap: BASE, memory: 8, low_boundary: 0, high_boundary: 8, low: 16, high: 24 };

    #[test]
    fn the_code_cache_of_jdk_8() {
        let [start, committed, end] = [0x7fc5_3500_0000, 0x7fc5_3527_0000, 0x7fc5_4400_0000];
        let of = |bounds: [u64; 4]| {
            let words = [BASE + 64, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(bounds);
            code(&Image(words.flat_map(u64::to_le_bytes).collect()), &CODE)
        };
        let region = of([start, end, start, committed]).expect("a code cache");
        assert_eq!((region.tag, region.range), (VmTag::Code, AddressRange::new(Avma(start), Avma(end))));
        assert_eq!(region.committed, [AddressRange::new(Avma(start), Avma(committed))]);
        for none in
            [[0; 4], [start, end, start, end + 4096], [end, start, end, start], [start, 1 << 60, start, committed]]
        {
            assert_eq!(of(none), None, "{none:x?}");
        }
        assert_eq!(code(&Image(Vec::new()), &CODE), None);
    }

    #[test]
    fn mutated_memory_never_panics() {
        let mut counts = [0; 3];
        for bytes in mutated(&image(HEAP, 0x20000), 20_000) {
            counts[found(bytes).len()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 100), "none, heap, both: {counts:?}");
    }
}
