//! The groups whose limits a recording has. In each reading the limit and the charge are those of one group, the one
//! whose limit is reached first. So after a change of the group their curves have a step that is no growth.

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_jfr::reader::Event;

/// A group, and when its limit was nearer than that of any other group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitGroup {
    pub path: String,
    /// ns since 1970.
    pub first_ns: i64,
    pub last_ns: i64,
    pub readings: u64,
    /// The limit at the last reading.
    pub limit: u64,
}

/// Limits of groups and of characters of a path, because the file chooses both. The end of a path distinguishes a
/// container from its pod.
const MOST: usize = 64;
const LONGEST_PATH: usize = 300;

/// The kernel counts a group's peak from the group's creation on, so the peak may be an earlier program's. Only a rise
/// above the peak of the first instant belongs to the recorded time.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupPeak {
    first: Option<(String, u64)>,
}

impl GroupPeak {
    /// The peak of a `plimsoll.Cgroup`, if it rose.
    pub(super) fn risen(&mut self, event: &Event<'_>, peak: Option<u64>) -> Option<u64> {
        self.above_first(&event.string("path").unwrap_or_default(), peak?)
    }

    /// After each change of the group, the first peak is the new base.
    fn above_first(&mut self, path: &str, peak: u64) -> Option<u64> {
        let surplus = path.chars().count().saturating_sub(LONGEST_PATH);
        let path: String = path.chars().skip(surplus).collect();
        match &self.first {
            Some((of, first)) if *of == path => Some(peak).filter(|peak| peak > first),
            _ => {
                self.first = Some((path, peak));
                None
            }
        }
    }
}

#[derive(Default)]
pub(super) struct LimitGroups {
    all: Vec<LimitGroup>,
    left_out: u64,
}

impl LimitGroups {
    /// Enters a `plimsoll.Cgroup`. A limit of 0 means no limit.
    pub(crate) fn enter(&mut self, event: &Event<'_>, time: i64) {
        let path = event.string("path").unwrap_or_default();
        if let Some(limit) = event.u64("limit").filter(|limit| *limit > 0) {
            self.add(&path, time, limit);
        }
    }

    fn add(&mut self, path: &str, time: i64, limit: u64) {
        let surplus = path.chars().count().saturating_sub(LONGEST_PATH);
        let path: String = path.chars().skip(surplus).collect();
        let is_full = self.all.len() >= MOST;
        match self.all.iter_mut().find(|group| group.path == path) {
            Some(group) => {
                group.readings += 1;
                group.first_ns = group.first_ns.min(time);
                if time >= group.last_ns {
                    (group.last_ns, group.limit) = (time, limit);
                }
            }
            None if is_full => self.left_out += 1,
            None => self.all.push(LimitGroup { path, first_ns: time, last_ns: time, readings: 1, limit }),
        }
    }

    /// The groups, by their first reading.
    pub(crate) fn finish(mut self) -> (Vec<LimitGroup>, Option<Gap>) {
        self.all.sort_by_key(|group| group.first_ns);
        let gap = || {
            let reason =
                format!("more than {MOST} groups have the limit in turn: {} readings are left out", self.left_out);
            Gap::new(Source::Jfr, reason, "groups are missing from those of the memory limit")
        };
        let gap = (self.left_out > 0).then(gap);
        (self.all, gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier program of the group used 200 bytes; the recorded one 20, and later 250.
    #[test]
    fn a_peak_of_before_the_recording_is_not_the_recorded_programs() {
        let mut peak = GroupPeak::default();
        let read = [("/a", 200), ("/a", 200), ("/a", 250), ("/b", 900), ("/b", 900), ("/b", 901), ("/a", 250)];
        let risen: Vec<_> = read.map(|(path, bytes)| peak.above_first(path, bytes)).into();
        assert_eq!(risen, [None, None, Some(250), None, None, Some(901), None]);
    }

    #[test]
    fn each_group_has_its_readings_in_the_order_of_the_first() {
        let mut groups = LimitGroups::default();
        // Two chunks in the wrong order.
        for (path, time, limit) in [("/a", 30, 7), ("/a/b", 40, 5), ("/a/b", 10, 4), ("/a", 20, 6), ("/a/b", 41, 5)] {
            groups.add(path, time, limit);
        }
        let (groups, gap) = groups.finish();
        let of = |path: &str, first_ns, last_ns, readings, limit| LimitGroup {
            path: path.into(),
            first_ns,
            last_ns,
            readings,
            limit,
        };
        assert_eq!(groups, [of("/a/b", 10, 41, 3, 5), of("/a", 20, 30, 2, 7)]);
        assert_eq!(gap, None);
    }

    #[test]
    fn groups_and_paths_are_limited_and_a_gap_says_so() {
        let mut groups = LimitGroups::default();
        for number in 0..MOST + 2 {
            groups.add(&format!("{}/{number}", "/long".repeat(LONGEST_PATH)), 0, 1);
        }
        let (groups, gap) = groups.finish();
        assert_eq!(groups.len(), MOST);
        assert!(groups.iter().all(|group| group.path.chars().count() == LONGEST_PATH));
        assert!(gap.is_some_and(|gap| gap.reason.ends_with("in turn: 2 readings are left out")));
    }
}
