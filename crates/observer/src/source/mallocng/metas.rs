//! The records of groups, from all areas.
//!
//! ```text
//! area   0 secret   8 next   16 slots   24 meta, meta, …
//! meta   0 prev   8 next   16 group   24 free slots   28 freed slots   32 last slot: 5 bits, freeable: 1, class: 6, pages: 52
//! ```

use std::collections::BTreeSet;

use super::context::{Context, WalkError};
use crate::source::heap_data::{Anonymous, records, words};
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, PAGE};

const HEAD: usize = 24;
const META: usize = 40;
/// Records of 64 Mi groups.
const MOST_AREAS: usize = 1 << 20;
/// Bytes before a group's first slot; also the unit of slot sizes.
pub(super) const UNIT: u64 = 16;

/// Slot sizes in units, by class (src/malloc/mallocng/malloc.c, `size_classes`).
const UNITS: [u64; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204, 255, 292,
    340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) start: u64,
    /// Bytes of its own mapping; 0 if it lies in a slot of another group.
    pub(super) mapped: u64,
    pub(super) stride: u64,
    pub(super) slots: u32,
    /// A bit for each slot that holds a block, or another group.
    pub(super) taken: u32,
}

impl Group {
    /// `meta` has 40 bytes. None if the record isn't in use, or isn't mallocng's.
    fn of(meta: &[u8]) -> Option<Group> {
        let mut fields = words(meta).skip(2);
        let (start, masks, bits) = (fields.next()?, fields.next()?, fields.next()?);
        let (last, class, pages) = (bits as u32 & 31, (bits >> 6) as usize & 63, bits >> 12);
        let mapped = pages.checked_mul(PAGE)?;
        // A block with a mapping of its own extends to the end of the mapping.
        let stride = match last {
            0 if pages > 0 => mapped - UNIT,
            _ => UNIT * UNITS.get(class)?,
        };
        let all = u32::MAX >> (31 - last);
        let group =
            Group { start, mapped, stride, slots: last + 1, taken: all & !(masks as u32 | (masks >> 32) as u32) };
        let is_whole = start != 0 && start.is_multiple_of(UNIT) && (mapped == 0 || group.length() <= mapped);
        (is_whole && (mapped == 0 || start.is_multiple_of(PAGE))).then_some(group)
    }

    /// Length up to the end of its last slot.
    pub(super) fn length(&self) -> u64 {
        UNIT.saturating_add(u64::from(self.slots).saturating_mul(self.stride))
    }

    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.length())
    }

    /// The slot that contains this address.
    pub(super) fn slot_with(&self, at: u64) -> Option<u32> {
        let number = at.checked_sub(self.start + UNIT)? / self.stride;
        u32::try_from(number).ok().filter(|number| *number < self.slots)
    }

    pub(super) fn slot(&self, number: u32) -> u64 {
        self.start + UNIT + u64::from(number) * self.stride
    }

    pub(super) fn is_taken(&self, number: u32) -> bool {
        self.taken >> number & 1 == 1
    }
}

/// Groups in anonymous memory, sorted; and the pages of their records.
pub(super) struct Metas {
    pub(super) groups: Vec<Group>,
    pub(super) areas: BTreeSet<u64>,
}

pub(super) fn read<M: Memory>(memory: &M, context: &Context, anonymous: &Anonymous) -> Result<Metas, WalkError> {
    let mut areas = BTreeSet::new();
    let mut claimed = Vec::new();
    let mut at = context.first_area;
    while at != 0 {
        let mut area = [0; PAGE as usize];
        let is_new = areas.len() < MOST_AREAS && areas.insert(at);
        if !is_new || !at.is_multiple_of(PAGE) || !anonymous.holds(at, PAGE) || !memory.read(Avma(at), &mut area) {
            return Err(WalkError::Broken);
        }
        let mut head = words(&area[..HEAD]);
        let (secret, next) = (head.next(), head.next());
        if secret != Some(context.secret) {
            return Err(WalkError::Broken);
        }
        for (number, meta) in area[HEAD..].chunks_exact(META).enumerate() {
            let group = Group::of(meta).filter(|group| anonymous.holds(group.start, group.length().max(group.mapped)));
            claimed.extend(group.map(|group| (group.start, (at + (HEAD + number * META) as u64, group))));
        }
        at = next.unwrap_or_default();
    }
    let mut groups = Vec::new();
    records(memory, claimed, 8, |_, (meta, group), word| {
        if words(word).next() == Some(*meta) {
            groups.push(*group);
        }
    });
    groups.sort_unstable();
    Ok(Metas { groups, areas })
}
