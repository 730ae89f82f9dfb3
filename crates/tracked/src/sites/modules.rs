//! Finds the module at an address at a given time. A site report has 10⁵ addresses, so a linear search would be too
//! slow.

use crate::books::Module;
use plimsoll_facts::units::Avma;

/// Modules by start address. Ranges may overlap, because dlclose makes addresses available again.
pub(crate) struct ModuleIndex<'a> {
    modules: &'a [Module],
    /// (start, index), ascending, and the highest end up to each of them.
    starts: Vec<(u64, usize)>,
    ends: Vec<u64>,
}

impl<'a> ModuleIndex<'a> {
    pub(crate) fn new(modules: &'a [Module]) -> ModuleIndex<'a> {
        let mut starts: Vec<_> = modules.iter().enumerate().map(|(i, m)| (m.range.0.0, i)).collect();
        starts.sort_unstable();
        let mut highest = 0;
        let ends = starts.iter().map(|(_, i)| {
            highest = highest.max(modules[*i].range.1.0);
            highest
        });
        let ends = ends.collect();
        ModuleIndex { modules, starts, ends }
    }

    /// The module that contained `address` when it was seen, else any that ever contained it. Of several, the first in
    /// the segment's order.
    pub(crate) fn at(&self, address: Avma, seen_ns: u64) -> Option<usize> {
        let after = self.starts.partition_point(|(start, _)| *start <= address.0);
        let (mut then, mut ever) = (None::<usize>, None::<usize>);
        for n in (0..after).rev() {
            if self.ends[n] <= address.0 {
                break;
            }
            let index = self.starts[n].1;
            let module = &self.modules[index];
            if module.range.1 <= address {
                continue;
            }
            ever = Some(ever.map_or(index, |other| other.min(index)));
            if module.loaded_ns <= seen_ns && (module.unloaded_ns == 0 || seen_ns <= module.unloaded_ns) {
                then = Some(then.map_or(index, |other| other.min(index)));
            }
        }
        then.or(ever)
    }
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
        for _ in 0..300 {
            let modules: Vec<Module> = (0..1 + random.below(8))
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
                    let twin = modules.iter().position(|m| at(m) && then(m)).or_else(|| modules.iter().position(at));
                    found += usize::from(twin.is_some());
                    reused += usize::from(modules.iter().filter(|m| at(m)).count() > 1);
                    assert_eq!(index.at(address, seen), twin, "{modules:?} {address:?} {seen}");
                }
            }
        }
        assert!(found > 10_000 && reused > 10_000, "{found} {reused}");
    }
}
