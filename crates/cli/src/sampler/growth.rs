//! Memory that the process has got since the owners were last queried, as far as only a query can classify it.

use plimsoll_facts::snapshot::Snapshot;
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{Ledger, LineId};

/// The owners are queried again, however young their answer is, when memory that only a query can classify has grown by
/// 1/8 of RSS and by 8 MiB. From 64 MiB to 1 GiB that is 24 times at most, so the cost is bounded by the growth and not
/// by the clock.
const GROWN: u64 = 8;
const GROWN_BY: Bytes = Bytes::mib(8);

/// How much memory the process has got since the last query of the owners, as far as only a query can classify it.
#[derive(Clone, Copy, Default)]
pub(super) struct Growth {
    /// Resident bytes at the last query.
    queried: Bytes,
    /// Bytes that need no query, at the last query and by the last ledger.
    known_then: Bytes,
    known: Bytes,
}

impl Growth {
    /// Begins again with a query.
    pub(super) fn begin(&mut self, rss: Bytes) {
        (self.queried, self.known_then) = (rss, self.known);
    }

    /// A ledger found bytes that need no query. `is_query`: it is that of the last query.
    pub(super) fn count(&mut self, known: Bytes, is_query: bool) {
        self.known = known;
        if is_query {
            self.known_then = known;
        }
    }

    /// Whether it is so much that the known owners explain too little.
    pub(super) fn is_much(&self, rss: Bytes) -> bool {
        let come = (rss - self.known) - (self.queried - self.known_then);
        come >= Bytes(self.queried.0 / GROWN).max(GROWN_BY)
    }
}

/// Resident bytes that no query needs to classify: their address alone shows who owns them. A Java heap that is larger
/// than what the VM had committed shows that the VM's figures are old, so the excess isn't included.
pub(super) fn needs_no_query(snapshot: &Snapshot, ledger: &Ledger) -> Bytes {
    const BY_ADDRESS: [LineId; 4] = [LineId::Libraries, LineId::MappedFiles, LineId::ThreadStacks, LineId::Tracker];
    let by_address: Bytes = BY_ADDRESS.iter().map(|line| ledger.resident(*line)).sum();
    let heap = snapshot.hotspot.as_ref().and_then(|vm| vm.java_heap.as_ref());
    by_address + ledger.resident(LineId::JavaHeap).min(heap.map(|heap| heap.committed).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::{HotSpot, JavaHeap};
    use plimsoll_observer::ledger::{Grade, Line};

    #[test]
    fn growth_from_64_mib_to_1_gib_is_queried_24_times() {
        let (mut growth, mut queries) = (Growth::default(), 0);
        growth.begin(Bytes::mib(64));
        for now in (64..=1024).map(Bytes::mib) {
            if growth.is_much(now) {
                growth.begin(now);
                queries += 1;
            }
        }
        assert!((20..=24).contains(&queries), "{queries}");
        assert!(!growth.is_much(Bytes::mib(60)) && !Growth::default().is_much(Bytes::mib(7)));
    }

    /// A JVM that touches its heap up to what it had committed needs no query. New memory of malloc needs one, and so
    /// does a part of the heap that was committed after the last query.
    #[test]
    fn growth_of_the_committed_java_heap_is_not_queried() {
        let mib = Bytes::mib;
        let line = |id: LineId, resident: Bytes| Line {
            id,
            name: String::new(),
            resident,
            reserved: resident,
            committed: resident,
            grade: Grade::Exact,
            error: Bytes(0),
            sources: Vec::new(),
            distinct: resident,
            pss: resident,
            children: Vec::new(),
        };
        let known = |heap: Bytes, malloc: Bytes| {
            let heap_facts = JavaHeap { committed: mib(400), ..JavaHeap::default() };
            let hotspot = HotSpot { java_heap: Some(heap_facts), ..HotSpot::default() };
            let snapshot = Snapshot { hotspot: Some(hotspot), ..Snapshot::default() };
            let ledger = Ledger {
                lines: vec![
                    line(LineId::JavaHeap, heap),
                    line(LineId::GlibcUnknown, malloc),
                    line(LineId::Tracker, mib(2)),
                ],
                ..Ledger::of(&Snapshot::default())
            };
            needs_no_query(&snapshot, &ledger)
        };
        let mut growth = Growth::default();
        growth.begin(mib(100));
        growth.count(known(mib(40), mib(30)), true);
        assert!(!growth.is_much(mib(110)));
        // The last ledger is older than this growth, so the memory could be malloc's.
        assert!(growth.is_much(mib(400)));
        growth.count(known(mib(340), mib(30)), false);
        assert!(!growth.is_much(mib(400)));
        growth.count(known(mib(330), mib(43)), false);
        assert!(growth.is_much(mib(403)));
        growth.count(known(mib(450), mib(30)), false);
        assert!(growth.is_much(mib(510)));
    }
}
