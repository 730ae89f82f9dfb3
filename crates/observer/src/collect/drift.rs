//! In a series, the VM's categories and the walks of the allocators are older than the mappings. Their error follows
//! from how fast they changed between the last two queries:
//!
//!   error = change while they were read + |now − before| / time between the two queries × age
//!
//! Until the second query, the rate is unknown, and the error is that of the first reading.

use std::collections::HashMap;
use std::hash::Hash;

use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, Snapshot};
use plimsoll_facts::units::{Avma, Bytes};

#[derive(Clone, PartialEq, Eq, Hash)]
enum Figure {
    Category(String),
    Arena(Avma),
    Part(AllocatorKind, HeapPart),
}

/// A figure's error when it was read, and how many bytes it changes in a second.
struct Rate {
    read: Bytes,
    per_second: f64,
}

/// How the figures of one query change.
pub(crate) struct Drift {
    /// Time of the query, seconds since 1970.
    time: f64,
    rates: HashMap<Figure, Rate>,
}

impl Drift {
    /// `earlier` is the previous query, with a snapshot that has its figures. The snapshot itself may be of a later
    /// time.
    pub(crate) fn between(earlier: Option<(&Drift, &Snapshot)>, now: &Snapshot) -> Drift {
        let seconds = earlier.map_or(0.0, |(earlier, _)| now.time - earlier.time);
        let mut before = HashMap::new();
        if let Some((_, earlier)) = earlier {
            figures(earlier, |figure, bytes, _| {
                before.insert(figure, bytes);
            });
        }
        let mut rates = HashMap::new();
        figures(now, |figure, bytes, read| {
            let then = before.get(&figure).filter(|_| seconds > 0.0);
            let per_second = then.map_or(0.0, |then| bytes.abs_diff(*then).0 as f64 / seconds);
            rates.insert(figure, Rate { read, per_second });
        });
        Drift { time: now.time, rates }
    }

    /// Sets the errors in `snapshot`, which has the figures of this query and the mappings of a later moment.
    pub(crate) fn apply(&self, snapshot: &mut Snapshot) {
        let age = (snapshot.time - self.time).max(0.0);
        let moved = |figure: Figure| {
            self.rates.get(&figure).map_or(Bytes(0), |rate| rate.read + Bytes((rate.per_second * age) as u64))
        };
        let of_vm = snapshot.hotspot.iter_mut().flat_map(|vm| &mut vm.categories);
        let of_image = snapshot.native_image.iter_mut().flat_map(|image| &mut image.nmt);
        for category in of_vm.chain(of_image) {
            category.moved = moved(Figure::Category(category.name.clone()));
        }
        for arena in snapshot.glibc.iter_mut().flat_map(|glibc| &mut glibc.arenas) {
            arena.moved = moved(Figure::Arena(arena.address));
        }
        for heap in snapshot.malloc_heap.iter_mut().chain(&mut snapshot.v8).chain(&mut snapshot.go) {
            for (part, bytes) in &mut heap.parts {
                bytes.moved = moved(Figure::Part(heap.kind, *part));
            }
        }
    }
}

/// Calls `each` with every figure that only a query updates, and with the figure's error at the time of that query.
fn figures(snapshot: &Snapshot, mut each: impl FnMut(Figure, Bytes, Bytes)) {
    for category in snapshot.vm_categories() {
        each(Figure::Category(category.name.clone()), category.malloc + category.arena, category.moved);
    }
    for arena in snapshot.glibc.iter().flat_map(|glibc| &glibc.arenas) {
        each(Figure::Arena(arena.address), arena.live_resident, arena.moved);
    }
    for heap in snapshot.other_heaps() {
        for (part, bytes) in &heap.parts {
            each(Figure::Part(heap.kind, *part), bytes.resident, bytes.moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::{HotSpot, NmtCategory};

    fn queried(time: f64, symbols: u64, moved: u64) -> Snapshot {
        let category = NmtCategory {
            name: "Symbol".into(),
            malloc: Bytes(symbols),
            moved: Bytes(moved),
            ..NmtCategory::default()
        };
        Snapshot {
            time,
            hotspot: Some(HotSpot { categories: vec![category], ..HotSpot::default() }),
            ..Snapshot::default()
        }
    }

    fn error(snapshot: &Snapshot) -> u64 {
        snapshot.hotspot.as_ref().map_or(0, |vm| vm.categories[0].moved.0)
    }

    #[test]
    fn a_figure_that_grew_between_two_queries_is_the_less_certain_the_older_it_is() {
        let mut later = queried(100.0, 5000, 7);
        let earlier = queried(90.0, 4000, 0);
        let before = Drift::between(None, &earlier);
        let drift = Drift::between(Some((&before, &earlier)), &later);
        for (time, expected) in [(100.0, 7), (101.0, 107), (109.5, 957)] {
            later.time = time;
            drift.apply(&mut later);
            assert_eq!(error(&later), expected, "{time}");
        }
        // One query, or two at the same moment, give no rate.
        for earlier in [None, Some(queried(100.0, 1, 0))] {
            let mut later = queried(100.0, 5000, 7);
            let before = earlier.as_ref().map(|earlier| Drift::between(None, earlier));
            let drift = Drift::between(before.as_ref().zip(earlier.as_ref()), &later);
            later.time = 105.0;
            drift.apply(&mut later);
            assert_eq!(error(&later), 7);
        }
    }
}
