//! Finds the module at an address at a given time. A report has 10⁵ addresses, so a linear search would be too slow.
//!
//! ```text
//! addresses ──────┬──────┬───────┬──────▶    for each part between two starts or ends: which modules contain it
//! times     ──┬───────┬──────┬──────────▶    for each part: which modules were loaded then
//! ```
//! Both are sets of one bit for each module, in the segment's order. The lowest bit in both is the module. So a lookup
//! costs two binary searches and 64 words, even if 4,096 modules overlap.

use super::types::Module;
use plimsoll_facts::units::Avma;

pub(crate) struct ModuleIndex {
    at: Parts,
    loaded: Parts,
    /// The times until each module was unloaded, including the time before it was loaded.
    until: Parts,
}

impl ModuleIndex {
    pub(crate) fn new(modules: &[Module]) -> ModuleIndex {
        let last = |module: &Module| if module.unloaded_ns == 0 { u64::MAX } else { module.unloaded_ns };
        // An address range excludes its end. An empty range contains no address.
        let range = |module: &Module| (module.range.0.0, module.range.1.0.checked_sub(1));
        let at = modules.iter().map(|module| match range(module) {
            (first, Some(last)) => (first, last),
            (_, None) => (1, 0),
        });
        let loaded = Parts::new(modules.iter().map(|module| (module.loaded_ns, last(module))));
        let until = Parts::new(modules.iter().map(|module| (0, last(module))));
        ModuleIndex { at: Parts::new(at), loaded, until }
    }

    /// The module that contained `address` when it was seen, else a module that was loaded there later: the tracker may
    /// note a module after its first caller. If there are several, the first in the segment's order. (Ranges may
    /// overlap, because dlclose makes addresses available again.) A module that was unloaded before doesn't count. At
    /// its addresses there may be another module, which found no space in the segment.
    pub(crate) fn at(&self, address: Avma, seen_ns: u64) -> Option<usize> {
        let ever = self.at.set(address.0);
        let both = |times: &Parts| {
            let times = times.set(seen_ns);
            lowest(ever.iter().zip(times).map(|(ever, then)| ever & then))
        };
        both(&self.loaded).or_else(|| both(&self.until))
    }
}

/// A line of numbers, divided where an interval begins or ends.
struct Parts {
    /// The first number of each part but the first, ascending.
    starts: Vec<u64>,
    /// For each part, a set of intervals.
    sets: Vec<u64>,
    /// Words of a set.
    width: usize,
}

impl Parts {
    /// The parts of these intervals, each given by its first and its last number. An interval that ends before it
    /// begins contains nothing.
    fn new(intervals: impl ExactSizeIterator<Item = (u64, u64)>) -> Parts {
        let width = intervals.len().div_ceil(64);
        let mut edges: Vec<(u64, usize)> = Vec::new();
        for (number, (first, last)) in intervals.enumerate().filter(|(_, (first, last))| first <= last) {
            edges.push((first, number));
            edges.extend(last.checked_add(1).map(|end| (end, number)));
        }
        edges.sort_unstable();
        let mut parts = Parts { starts: Vec::new(), sets: vec![0; width], width };
        for edges in edges.chunk_by(|one, other| one.0 == other.0) {
            let before = parts.sets.len() - width;
            parts.sets.extend_from_within(before..);
            // Each interval has two edges: the first one adds it, the second removes it.
            for (start, number) in edges {
                parts.sets[before + width + number / 64] ^= 1 << (number % 64);
                if parts.starts.last() != Some(start) {
                    parts.starts.push(*start);
                }
            }
        }
        parts
    }

    fn set(&self, number: u64) -> &[u64] {
        let part = self.starts.partition_point(|start| *start <= number);
        &self.sets[part * self.width..(part + 1) * self.width]
    }
}

fn lowest(set: impl Iterator<Item = u64>) -> Option<usize> {
    let (number, word) = set.enumerate().find(|(_, word)| *word != 0)?;
    Some(number * 64 + word.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Compared with a linear search.
    #[test]
    fn the_index_equals_a_naive_search() {
        let mut random = Random(5);
        let (mut found, mut reused) = (0, 0);
        for round in 0..300 {
            let most = if round % 30 == 0 { 200 } else { 8 };
            let modules: Vec<Module> = (0..random.below(1 + most))
                .map(|_| {
                    let (start, loaded) = (random.below(80), random.below(10));
                    let unloaded_ns = if random.below(2) == 0 { 0 } else { loaded + random.below(6) };
                    let range = (Avma(start), Avma(start + random.below(25)));
                    Module { range, loaded_ns: loaded, unloaded_ns, ..Module::default() }
                })
                .collect();
            let index = ModuleIndex::new(&modules);
            for address in (0..110).map(Avma) {
                for seen in 0..12 {
                    let at = |m: &Module| m.range.0 <= address && address < m.range.1;
                    let then = |m: &Module| m.loaded_ns <= seen && (m.unloaded_ns == 0 || seen <= m.unloaded_ns);
                    let later = |m: &Module| m.unloaded_ns == 0 || seen <= m.unloaded_ns;
                    let twin = modules.iter().position(|m| at(m) && then(m));
                    let twin = twin.or_else(|| modules.iter().position(|m| at(m) && later(m)));
                    found += usize::from(twin.is_some());
                    reused += usize::from(modules.iter().filter(|m| at(m)).count() > 1);
                    assert_eq!(index.at(address, seen), twin, "{modules:?} {address:?} {seen}");
                }
            }
        }
        assert!(found > 10_000 && reused > 10_000, "{found} {reused}");
    }
}
