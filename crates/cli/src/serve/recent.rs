//! The last hours of a target, for the curves of its page: RSS, the limit and each line, in KiB. Pure.
//!
//! ```text
//! at first          every reading, at most one in 10 s
//! when it is full   of two neighbours the one with the larger RSS; later readings half as often, by the same rule
//! after hours       a reading for each minute; the oldest goes
//! always            the newest reading
//! ```
//! A target has `MOST` readings of about 100 bytes from its start, and never more, so 256 targets need 6 MB.

use std::collections::VecDeque;

use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::LineId;
use plimsoll_observer::recording::{History, Measure};

/// Readings: an hour at 15 s, four hours at a minute.
const MOST: usize = 240;
/// Least time that a kept reading stands for, so that frequent scrapes don't shorten the history.
const LEAST_NS: i64 = 10_000_000_000;
/// Longest such time. Readings come late by a little: with a full minute, a reading would often stand for one interval
/// more.
const LONGEST_NS: i64 = 52_000_000_000;
/// While the readings cover less time than this, a full buffer is thinned out; later, its oldest reading goes.
const HOURS_NS: i64 = 3 * 3600 * 1_000_000_000;
const LINES: usize = LineId::ALL.len();

#[derive(Clone, Copy)]
struct Reading {
    time_ns: i64,
    rss: u32,
    /// 0: no limit.
    limit: u32,
    java_heap: u32,
    lines: [u32; LINES],
}

pub struct Recent {
    /// Never more than its first capacity.
    readings: VecDeque<Reading>,
    /// The time that a reading stands for, and when that of the last one began.
    step_ns: i64,
    begin_ns: i64,
    /// Always kept; `readings` may lack it.
    newest: Option<Reading>,
}

impl Default for Recent {
    /// Writes all of its memory: otherwise each page would become resident when the first reading reaches it, and the
    /// server would grow for an hour.
    fn default() -> Recent {
        let written = Reading { time_ns: i64::MIN, rss: 0, limit: 0, java_heap: 0, lines: [1; LINES] };
        let mut readings = VecDeque::from(vec![written; MOST]);
        readings.clear();
        Recent { readings, step_ns: LEAST_NS, begin_ns: 0, newest: None }
    }
}

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
        // The times of a series rise.
        if self.newest.is_some_and(|newest| time_ns <= newest.time_ns) {
            return;
        }
        let mut lines = [0; LINES];
        LineId::ALL.iter().zip(&mut lines).for_each(|(id, line)| *line = kib(of(*id).0));
        let reading = Reading {
            time_ns,
            rss: kib(rss),
            limit: limit.map_or(0, kib),
            java_heap: kib(of(LineId::JavaHeap).1),
            lines,
        };
        self.newest = Some(reading);
        match self.readings.back_mut() {
            Some(last) if time_ns.saturating_sub(self.begin_ns) < self.step_ns => *last = bigger(*last, reading),
            _ => {
                self.make_space();
                self.begin_ns = time_ns;
                self.readings.push_back(reading);
            }
        }
    }

    /// Leaves space for a reading.
    fn make_space(&mut self) {
        let (Some(first), Some(last)) = (self.readings.front(), self.readings.back()) else { return };
        let range = last.time_ns.saturating_sub(first.time_ns);
        if self.readings.len() < MOST {
            return;
        }
        if range >= HOURS_NS {
            self.readings.pop_front();
            return;
        }
        for at in 0..MOST / 2 {
            self.readings[at] = bigger(self.readings[2 * at], self.readings[2 * at + 1]);
        }
        self.readings.truncate(MOST / 2);
        // Twice the mean distance so far, less an eighth for readings that come late.
        self.step_ns = (range / MOST as i64 * 7 / 4).clamp(LEAST_NS, LONGEST_NS);
    }

    /// The readings in the form of a recording. None: a curve needs two readings.
    pub fn history(&self) -> Option<History> {
        let (first, newest) = (self.readings.front()?.time_ns, self.newest?);
        if first >= newest.time_ns {
            return None;
        }
        let mut history = History::default();
        (history.begin_ns, history.end_ns) = (first, newest.time_ns);
        (history.from_ns, history.to_ns) = (first, newest.time_ns);
        let is_missing = self.readings.back().is_some_and(|last| last.time_ns < newest.time_ns);
        for reading in self.readings.iter().chain(is_missing.then_some(&newest)) {
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

/// Of two readings the one with the larger RSS, so that a peak isn't lost.
fn bigger(one: Reading, other: Reading) -> Reading {
    if other.rss > one.rss { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    fn nothing(_: LineId) -> (Bytes, Bytes) {
        (Bytes(0), Bytes(0))
    }

    #[test]
    fn the_last_readings_are_curves() {
        let mut recent = Recent::default();
        let of = |id| if id == LineId::GlibcLive { (mib(1), mib(2)) } else { nothing(id) };
        recent.push(SECOND, mib(1), None, of);
        assert!(recent.history().is_none(), "one reading");
        for n in 2..=MOST as u64 {
            recent.push(n * 15 * SECOND, mib(n), (n > 100).then_some(Bytes(4 << 30)), of);
        }
        let history = recent.history().expect("curves");
        let rss = history.rss().and_then(|series| series.figures()).expect("RSS");
        assert_eq!((rss.readings, rss.first, rss.last), (MOST as u64, 1 << 20, (MOST as u64) << 20));
        assert_eq!(history.one(Measure::Limit).and_then(|of| of.figures()).map(|of| of.last), Some(4 << 30));
        assert_eq!(history.of(Measure::Line).map(|(name, _)| name).collect::<Vec<_>>(), [LineId::GlibcLive.id()]);
    }

    /// Readings each second to each minute, for a day: the memory is that of the start, hours are there, and a peak of
    /// one reading stays.
    #[test]
    fn hours_take_no_more_memory_than_the_start() {
        for interval in [1, 7, 15, 60] {
            let mut recent = Recent::default();
            let capacity = recent.readings.capacity();
            let (mut peak, mut shortest) = (0, u64::MAX);
            for n in 1..=24 * 3600 / interval {
                let now = n * interval;
                // A peak of one reading in each three hours, higher each time.
                let is_peak = n % (3 * 3600 / interval) == 0;
                peak = if is_peak { 1000 + n } else { peak };
                recent.push(now * SECOND, if is_peak { mib(peak) } else { mib(10 + n % 5) }, None, nothing);
                assert_eq!(recent.readings.capacity(), capacity);
                let history = (n % 1000 == 0).then(|| recent.history().expect("curves"));
                let Some(rss) = history.as_ref().and_then(|of| of.rss()) else { continue };
                let (first, last) = (rss.points().first().expect("one"), rss.points().last().expect("one"));
                assert_eq!(last.begin_ns, (now * SECOND) as i64, "the newest reading is the end");
                if now < 3 * 3600 {
                    assert!(first.begin_ns <= (2 * 60 * SECOND) as i64, "the curve begins with the target");
                } else {
                    shortest = shortest.min((last.begin_ns - first.begin_ns) as u64 / SECOND);
                    let most = rss.points().iter().map(|point| point.max).max();
                    assert_eq!(most, Some(peak << 20), "{interval} s: the peak at {now} s is lost");
                }
                assert!(rss.points().is_sorted_by(|one, other| one.begin_ns < other.begin_ns));
            }
            assert!(shortest >= 3 * 3600 - 120, "{interval} s: {shortest} s are kept");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_adds_nothing() {
        let mut recent = Recent::default();
        [100, 50, 120].into_iter().for_each(|second| recent.push(second * SECOND, mib(second), None, nothing));
        let history = recent.history().expect("curves");
        let times: Vec<i64> = history.rss().expect("RSS").points().iter().map(|point| point.begin_ns).collect();
        assert_eq!(times, [100, 120].map(|second| second * SECOND as i64));
    }
}
