//! The record of an extent. Its first three words have had the same order since 5.0; the bits of the first word have
//! moved:
//!
//! ```text
//!  0 bits   8 address   16 size (whole pages; the low bits number the record)
//!
//! bits     11…0 arena   12 run of small blocks   13… flags   state   size class (8 bits)   free blocks of the run (10 bits)   …
//! 5.0      state at 15 (2 bits), size class at 17
//! 5.1, 5.2 state at 16 (2 bits), size class at 18
//! 5.3      state at 17 (3 bits), size class at 20
//! ```
//!
//! The version isn't needed. The size class is at the bits that agree with the tree's word for the extent. The state is
//! the 2 or 3 bits before it, for which live extents have the length of their size class, and free ones don't.

use plimsoll_process::proc::memory::PAGE;

const SMALL: u32 = 12;
const CLASS_BITS: u32 = 8;
const FREE_BITS: u32 = 10;
/// Percentage of records that must agree on a layout.
const AGREE_AT_LEAST: usize = 95;
/// With fewer records, a layout would be a guess.
const FEWEST: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentRecord {
    pub bits: u64,
    pub start: u64,
    pub length: u64,
    /// The size class, as in the tree's word for the extent.
    pub class: u8,
    pub small: bool,
}

fn is_run(record: &ExtentRecord) -> bool {
    record.bits >> SMALL & 1 != 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentState {
    /// Bytes of the blocks in use.
    Live(u64),
    Dirty,
    Muzzy,
    Retained,
    /// Changing from one state to another.
    Moving,
}

/// Size classes (sc.h): four per doubling; the first ones are multiples of the quantum. If the quantum is 16, a class
/// of 8 bytes precedes them. The build chooses the quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Classes {
    quantum: u64,
    tiny: bool,
}

/// If several tables fit equally well, the last one is taken: the default of x86-64 and AArch64.
const CLASSES: [Classes; 3] =
    [Classes { quantum: 16, tiny: false }, Classes { quantum: 8, tiny: false }, Classes { quantum: 16, tiny: true }];

impl Classes {
    fn size(self, class: u8) -> Option<u64> {
        let mut number = u64::from(class);
        if self.tiny {
            match number.checked_sub(1) {
                Some(rest) => number = rest,
                None => return Some(8),
            }
        }
        match number.checked_sub(4) {
            None => Some(self.quantum * (number + 1)),
            // The largest of 232 classes is below 2^63.
            Some(number) if number / 4 < 55 => {
                let step = self.quantum << (number / 4);
                step.checked_mul(4 + number % 4 + 1)
            }
            Some(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentLayout {
    class: u32,
    state: u32,
    classes: Classes,
}

impl ExtentLayout {
    /// The layout that most of these records agree with, or None.
    pub(crate) fn of(sample: &[ExtentRecord]) -> Option<ExtentLayout> {
        if sample.len() < FEWEST {
            return None;
        }
        let enough = |count: usize| count * 100 >= sample.len() * AGREE_AT_LEAST;
        let class_at = |one: &ExtentRecord, shift: u32| (one.bits >> shift) as u8;
        let same_class = |shift: u32| sample.iter().filter(|one| class_at(one, shift) == one.class).count();
        let class = (SMALL + 3..SMALL + 17).max_by_key(|shift| same_class(*shift))?;
        // For a run that has just become free, the tree keeps the old value.
        let free = |one: &&ExtentRecord| CLASSES.iter().all(|classes| classes.size(class_at(one, class)).is_none());
        let stale = sample.iter().filter(|one| class_at(one, class) != one.class).filter(free).count();
        enough(same_class(class) + stale).then_some(())?;
        let layouts = [2, 3].into_iter().flat_map(|width| {
            CLASSES.into_iter().map(move |classes| ExtentLayout { class, state: class - width, classes })
        });
        let agreeing = |layout: &ExtentLayout| sample.iter().filter(|one| layout.state(one).is_some()).count();
        let proof = |layout: &ExtentLayout| sample.iter().filter(|one| layout.proves(one)).count();
        // Counted together: one record that changed while it was read must not outweigh the lengths of all runs.
        let best = layouts.max_by_key(|layout| agreeing(layout) + proof(layout))?;
        enough(agreeing(&best)).then_some(best)
    }

    /// Whether only few other layouts fit the record: it is live, and as long as extents of its class are. A run is
    /// the shortest one without waste (slab_size in sc.c), unless the option `slab_sizes` says otherwise. In older
    /// versions, a free extent may keep its former class, and proves nothing.
    fn proves(self, record: &ExtentRecord) -> bool {
        let is_live = matches!(self.state(record), Some(ExtentState::Live(_)));
        is_live && (!is_run(record) || self.run_length(record) == Some(record.length))
    }

    /// The least common multiple of the block's size and the page's.
    fn run_length(self, record: &ExtentRecord) -> Option<u64> {
        let size = self.classes.size((record.bits >> self.class) as u8)?;
        // A page is a power of two, and so is the greatest common divisor.
        size.checked_mul(PAGE / (1 << size.trailing_zeros().min(PAGE.trailing_zeros())))
    }

    /// The state of the extent, or None if the record contradicts itself.
    pub(crate) fn state(self, record: &ExtentRecord) -> Option<ExtentState> {
        let state = record.bits >> self.state & ((1 << (self.class - self.state)) - 1);
        // A free run may keep some of these bits, but never all.
        if state != 0 && is_run(record) && self.live_bytes(record).is_some() {
            return None;
        }
        match state {
            0 => self.live_bytes(record).map(ExtentState::Live),
            1 => Some(ExtentState::Dirty),
            2 => Some(ExtentState::Muzzy),
            3 => Some(ExtentState::Retained),
            4 | 5 => Some(ExtentState::Moving),
            _ => None,
        }
    }

    /// Bytes of live blocks by their size class, if length and class match. A large block may have one page more,
    /// because its start may be shifted (`cache_oblivious`).
    fn live_bytes(self, record: &ExtentRecord) -> Option<u64> {
        let class = (record.bits >> self.class) as u8;
        let size = self.classes.size(class)?;
        if !is_run(record) {
            return (record.length == size || record.length == size.checked_add(PAGE)?).then_some(size);
        }
        let free = record.bits >> (self.class + CLASS_BITS) & ((1 << FREE_BITS) - 1);
        // A run is the shortest one with little or no waste: the rest is less than one block.
        let blocks = record.length / size;
        (record.small && blocks > 0 && free <= blocks).then(|| (blocks - free) * size)
    }
}
