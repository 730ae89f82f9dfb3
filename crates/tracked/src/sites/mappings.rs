//! The mappings of each caller and site, and what malloc's mappings hold beyond its blocks.

use std::collections::{BTreeMap, HashMap};

use plimsoll_segment::CallerFacts;
use plimsoll_segment::vmap::VmaMap;

use super::columns::{COMMITTED, FILES, HELD, RESERVED, RESIDENT};
use crate::books::{Books, Category, outside_stacks};
use crate::segment::Segment;
use plimsoll_facts::units::Bytes;

/// The columns of mappings.
pub(super) const OF_MAPPINGS: [usize; 5] = [RESERVED, COMMITTED, HELD, RESIDENT, FILES];
pub(super) type Extent = [u64; OF_MAPPINGS.len()];

/// Mapped bytes by entry of `callers` and by category. A mapping's category may differ from its caller's (parts of a
/// native image, whose heap one function maps piece by piece).
pub(super) fn mapped(segment: &Segment, books: &Books) -> HashMap<u32, BTreeMap<usize, Extent>> {
    let mut by: HashMap<u32, BTreeMap<usize, Extent>> = HashMap::new();
    let Ok(map) = VmaMap::new(&segment.vmap) else { return by };
    let mut beyond_blocks = BeyondBlocks::of(books);
    // The books have one mapping for each of these entries of the map.
    for (vma, mapping) in map.entries().filter(outside_stacks(segment)).zip(&books.mappings) {
        let attributes = vma.attributes();
        let known = |index: u32| (index != 0 && (index as usize) < segment.callers.len()).then_some(index);
        let resident = mapping.resident.unwrap_or_default();
        let held = beyond_blocks.held(mapping.category, mapping.held());
        let Some(by_whom) = known(attributes.commit_caller()).or_else(|| known(attributes.reserve_caller())) else {
            continue;
        };
        let bytes = vma.end.saturating_sub(vma.start);
        let category = usize::from(attributes.category());
        // As in the books: a mapping with a missing category counts in the first category.
        let category = if category < segment.categories.len() { category } else { 0 };
        let of = by.entry(by_whom).or_default().entry(category).or_default();
        let committed = if mapping.committed { bytes } else { 0 };
        let parts = [bytes, committed, held.0, resident.0, mapping.committed_files().0];
        for (sum, part) in of.iter_mut().zip(parts) {
            *sum = sum.saturating_add(part);
        }
    }
    by
}

/// The blocks lie in the mappings that malloc made. So these mappings hold only what is beyond the blocks. Each mapping
/// has a share of it, in proportion to its resident bytes. Running sums are rounded, so that the shares add up.
struct BeyondBlocks {
    /// Category of malloc's mappings.
    category: Option<usize>,
    resident: Bytes,
    beyond: Bytes,
    run: Bytes,
    given: Bytes,
}

impl BeyondBlocks {
    fn of(books: &Books) -> BeyondBlocks {
        let its = books.mappings_of_malloc();
        let is_its = |category: &Category| its.is_some_and(|its| std::ptr::eq(its, category));
        let resident = its.map(|its| its.figures.resident.unwrap_or_default() - its.figures.resident_files);
        let beyond = its.map(|its| books.held_by(its) - its.figures.live);
        BeyondBlocks {
            category: books.categories.iter().position(is_its),
            resident: resident.unwrap_or_default(),
            beyond: beyond.unwrap_or_default(),
            run: Bytes::ZERO,
            given: Bytes::ZERO,
        }
    }

    /// What a mapping holds. Every mapping must be passed once.
    fn held(&mut self, category: usize, resident: Bytes) -> Bytes {
        if self.category != Some(category) {
            return resident;
        }
        self.run += resident;
        let until = self.beyond.scaled(self.run.0, self.resident.0);
        let part = until - self.given;
        self.given = until;
        part
    }
}

/// Number of calls of the mmap family and their bytes, in a site's entry.
pub(super) fn mapped_calls(facts: &CallerFacts) -> (u64, u64) {
    if facts.is_site() { (facts.frames[1], facts.frames[2]) } else { (0, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::Figures;

    /// jemalloc mapped 64 resident MiB in four pieces; 60 MiB of live blocks lie in them.
    #[test]
    fn the_mappings_of_malloc_hold_what_is_beyond_its_blocks() {
        let mapped = Figures { reserved: Bytes::mib(80), committed: Bytes::mib(80), ..Figures::default() };
        let figures = Figures { resident: Some(Bytes::mib(64)), ..mapped };
        let its = Category { name: "jemalloc".into(), figures, ..Category::default() };
        let mut books = Books { categories: vec![Category::default(), its], ..Books::default() };
        (books.process.allocator, books.total.live) = ("jemalloc", Bytes::mib(60));
        let pieces = [Bytes(1), Bytes::mib(32), Bytes::mib(8), Bytes(24 * (1 << 20) - 1)];
        let mut beyond = BeyondBlocks::of(&books);
        let held = pieces.map(|piece| beyond.held(1, piece));
        assert_eq!(held.into_iter().sum::<Bytes>(), Bytes::mib(4), "{held:?}");
        assert_eq!((held[0], held[1]), (Bytes(0), Bytes::mib(2)));
        assert_eq!(beyond.held(0, Bytes::mib(5)), Bytes::mib(5), "a mapping of the program");
        // More blocks than resident pages: the mappings hold nothing besides.
        books.total.live = Bytes::mib(70);
        let mut beyond = BeyondBlocks::of(&books);
        assert_eq!(pieces.map(|piece| beyond.held(1, piece)), [Bytes::ZERO; 4]);
    }
}
