//! The target's cgroup at this moment: its limit and charge in the snapshot, and its OOM kills.

use std::time::{Duration, Instant};

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Cgroup, MemoryStat, Snapshot};
use plimsoll_process::cgroup;
use plimsoll_process::foreign::Deadline;

use super::Sampler;

/// A killed process stays visible for a while, so an instant before its end may already have counted its kill.
const DYING: Duration = Duration::from_secs(2);

impl Sampler {
    pub(super) fn kills(&self, deadline: Deadline) -> Option<u64> {
        cgroup::oom_kills(self.group.as_deref()?, deadline)
    }

    pub(super) fn count_kills(&mut self, now: Instant) {
        if let Some(kills) = self.kills(self.target.deadline()) {
            self.oom_kills.push_back((now, kills));
        }
        while self.oom_kills.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) > DYING) {
            self.oom_kills.pop_front();
        }
    }
}

/// Replaces the limit, and the gaps about it, by those of this moment. A group that can't be read now must not look as
/// if it were still charged with what it was before.
pub(super) fn set_group(snapshot: &mut Snapshot, group: Option<Cgroup>, gaps: Vec<Gap>) {
    let known = snapshot.cgroup.take();
    let is_same = known.as_ref().zip(group.as_ref()).is_some_and(|(known, now)| known.directory == now.directory);
    // Each instant reads the group anew, except what other processes and groups hold.
    let stays = |gap: &Gap| gap.source != Source::Cgroup || is_same && cgroup::is_about_others(gap);
    snapshot.gaps.retain(stays);
    snapshot.gaps.extend(gaps);
    snapshot.cgroup = group.map(|group| with_known(group, known));
}

/// Adds to the group of this moment what only the last query read: what other processes and groups hold, and the
/// statistics of outer levels that are far from their limits.
fn with_known(now: Cgroup, known: Option<Cgroup>) -> Cgroup {
    let Some(known) = known.filter(|known| known.directory == now.directory) else { return now };
    let of = |mut level: Cgroup| {
        if let Some(same) = known.levels().find(|known| known.limit_path == level.limit_path) {
            level.siblings.clone_from(&same.siblings);
            if level.stat == MemoryStat::default() {
                level.stat.clone_from(&same.stat);
            }
        }
        level
    };
    let further = now.further.iter().cloned().map(of).collect();
    Cgroup { further, others: known.others.clone(), ..of(now) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::Throttle;
    use plimsoll_facts::units::Bytes;

    #[test]
    fn what_throttles_is_of_this_moment_and_what_others_hold_of_the_last_query() {
        let group = |directory: &str, times: u64| {
            let throttles = vec![Throttle { times, ..Throttle::default() }];
            Cgroup { directory: directory.into(), others: vec![(7, Bytes(times))], throttles, ..Cgroup::default() }
        };
        let now = |directory: &str| Cgroup { others: Vec::new(), ..group(directory, 2) };
        let same = with_known(now("/a"), Some(group("/a", 1)));
        assert_eq!((same.throttles[0].times, same.others), (2, vec![(7, Bytes(1))]));
        // After a move to another group, the old one's processes aren't beside it.
        let moved = with_known(now("/b"), Some(group("/a", 1)));
        assert_eq!((moved.throttles[0].times, moved.others.len()), (2, 0));
    }

    /// A refusal later in a recording is a gap, and the charge of before isn't judged as if it were that of now.
    #[test]
    fn a_group_that_can_no_longer_be_read_is_a_gap() {
        let gap = |effect: &str| Gap::new(Source::Cgroup, "refused", effect);
        let of = |directory: &str, charged: u64| Cgroup {
            directory: directory.into(),
            charged: Bytes(charged),
            others: vec![(7, Bytes(1))],
            ..Cgroup::default()
        };
        let mut snapshot = Snapshot { cgroup: Some(of("/a", 1)), ..Snapshot::default() };
        snapshot.gaps = vec![gap("old"), gap(cgroup::OTHERS_UNKNOWN), Gap::new(Source::Proc, "refused", "other")];
        let effects = |snapshot: &Snapshot| snapshot.gaps.iter().map(|gap| gap.effect.clone()).collect::<Vec<_>>();
        set_group(&mut snapshot, Some(of("/a", 2)), Vec::new());
        assert_eq!(snapshot.cgroup.as_ref().map(|group| group.charged), Some(Bytes(2)));
        assert_eq!(effects(&snapshot), [cgroup::OTHERS_UNKNOWN, "other"]);
        set_group(&mut snapshot, None, vec![gap("now")]);
        assert!(snapshot.cgroup.is_none());
        assert_eq!(effects(&snapshot), ["other", "now"]);
        set_group(&mut snapshot, Some(of("/b", 3)), Vec::new());
        assert_eq!(effects(&snapshot), ["other"]);
    }
}
