//! The last hours of a target, for the curves of its page: RSS, the limit and each line, in KiB. Pure.
//!
//! A reading takes about 100 bytes, and `MOST` are kept, so 256 targets need some 25 MB however long the server runs.

use std::collections::VecDeque;

use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::LineId;
use plimsoll_observer::recording::{History, Measure};

/// Readings: four hours at 15 s.
const MOST: usize = 960;
/// Least time between two kept readings, so that frequent scrapes don't shorten the history.
const LEAST_NS: i64 = 10_000_000_000;
const LINES: usize = LineId::ALL.len();

struct Reading {
    time_ns: i64,
    rss: u32,
    /// 0: no limit.
    limit: u32,
    java_heap: u32,
    lines: [u32; LINES],
}

#[derive(Default)]
pub struct Recent(VecDeque<Reading>);

fn kib(bytes: Bytes) -> u32 {
    u32::try_from(bytes.0 >> 10).unwrap_or(u32::MAX)
}

fn bytes(kib: u32) -> u64 {
    u64::from(kib) << 10
}

impl Recent {
    /// `of`: resident and committed bytes of a line.
    pub fn push(&mut self, time_ns: u64, rss: Bytes, limit: Option<Bytes>, of: impl Fn(LineId) -> (Bytes, Bytes)) {
        let time_ns = i64::try_from(time_ns).unwrap_or(i64::MAX);
        if self.0.back().is_some_and(|last| time_ns.saturating_sub(last.time_ns) < LEAST_NS) {
            return;
        }
        let mut lines = [0; LINES];
        LineId::ALL.iter().zip(&mut lines).for_each(|(id, line)| *line = kib(of(*id).0));
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(Reading {
            time_ns,
            rss: kib(rss),
            limit: limit.map_or(0, kib),
            java_heap: kib(of(LineId::JavaHeap).1),
            lines,
        });
    }

    /// The readings in the form of a recording. None: a curve needs two readings.
    pub fn history(&self) -> Option<History> {
        let (first, last) = (self.0.front()?.time_ns, self.0.back()?.time_ns);
        if first >= last {
            return None;
        }
        let mut history = History::default();
        (history.begin_ns, history.end_ns, history.from_ns, history.to_ns) = (first, last, first, last);
        for reading in &self.0 {
            let mut add = |measure, name: &str, kib: u32, is_always: bool| {
                let key = (measure, name.to_owned());
                // A line that never had memory has no curve; a line that had some and has none now is 0.
                if is_always || kib > 0 || history.series.contains_key(&key) {
                    history.series.entry(key).or_default().push(reading.time_ns, bytes(kib));
                }
            };
            add(Measure::Rss, "", reading.rss, true);
            add(Measure::Limit, "", reading.limit, false);
            add(Measure::LineCommitted, LineId::JavaHeap.id(), reading.java_heap, false);
            LineId::ALL.iter().zip(reading.lines).for_each(|(id, kib)| add(Measure::Line, id.id(), kib, false));
        }
        Some(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_readings_are_curves_in_bounded_memory() {
        let mut recent = Recent::default();
        let mib = |n: u64| Bytes(n << 20);
        let of = |id| if id == LineId::GlibcLive { (mib(1), mib(2)) } else { (Bytes(0), Bytes(0)) };
        recent.push(0, mib(1), None, of);
        assert!(recent.history().is_none(), "one reading");
        for n in 1..2 * MOST as u64 {
            recent.push(n * 15_000_000_000, mib(n), (n > 100).then_some(Bytes(4 << 30)), of);
        }
        assert_eq!(recent.0.len(), MOST);
        let history = recent.history().expect("curves");
        let rss = history.rss().and_then(|series| series.figures()).expect("RSS");
        assert_eq!(
            (rss.readings, rss.first, rss.last),
            (MOST as u64, (MOST as u64) << 20, (2 * MOST as u64 - 1) << 20)
        );
        assert_eq!(history.one(Measure::Limit).and_then(|of| of.figures()).map(|of| of.last), Some(4 << 30));
        assert_eq!(history.of(Measure::Line).map(|(name, _)| name).collect::<Vec<_>>(), [LineId::GlibcLive.id()]);
    }
}
