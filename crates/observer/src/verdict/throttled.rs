//! `memory.high`: above it the kernel doesn't kill. It takes pages back and makes the group's threads wait for that, so
//! the program becomes slow, and no count of kills shows why.

use super::case::Case;
use super::higher_limit::{self, NEAR, gain};
use super::{Effort, Severity, Verdict, VerdictId};
use plimsoll_facts::snapshot::Throttle;
use plimsoll_facts::units::{self, Bytes};

/// If threads waited in this share of the last 10 s or more, they count as waiting now.
const WAITS: f32 = 0.01;
/// From this share on, they count as waiting even where most of the charge is page cache.
const WAITS_LONG: f32 = 0.1;
/// The kernel throttles above `memory.high`, and takes pages back until less is charged. So a group that it throttles
/// now has about this share of it, in percent.
const AT_HIGH: f64 = 98.0;

/// The level whose `memory.high` is near; of several, the one with the fewest bytes left.
fn near(case: Case<'_>) -> Option<&Throttle> {
    let cgroup = case.snapshot.cgroup.as_ref().filter(|_| case.snapshot.limit_requested.is_none())?;
    cgroup.throttles.iter().filter(|throttle| is_near(throttle)).min_by_key(|throttle| left(throttle))
}

fn is_near(throttle: &Throttle) -> bool {
    let percent = |bytes: Bytes| bytes.percent_of(throttle.high) >= NEAR;
    let certain = throttle.working_set() - throttle.stat.reclaimable_in_use();
    throttle.times > 0
        && percent(throttle.charged)
        && (percent(certain) || throttle.pressure.is_some_and(|pressure| pressure.some >= WAITS_LONG))
}

fn left(throttle: &Throttle) -> Bytes {
    throttle.high - throttle.working_set()
}

/// Whether it throttles now. The kernel's count is of all time and of all groups below, and threads also wait for other
/// reasons, so neither alone shows that.
fn throttles_now(throttle: &Throttle) -> bool {
    throttle.charged.percent_of(throttle.high) >= AT_HIGH
        && throttle.pressure.is_some_and(|pressure| pressure.some >= WAITS)
}

fn facts(throttle: &Throttle) -> String {
    let Throttle { path, high, charged, times, pressure, .. } = throttle;
    let waited = match pressure {
        Some(pressure) => {
            format!("; in the last 10 s threads waited for memory {:.0} % of the time", pressure.some * 100.0)
        }
        None => String::new(),
    };
    let times = units::counted(*times, "time");
    format!("{charged} charged in {path}, memory.high is {high}; throttled {times} since the group was made{waited}")
}

/// A line for the verdict on a limit.
pub(crate) fn evidence(case: Case<'_>) -> Option<String> {
    let of = |throttle: &Throttle| match throttles_now(throttle) {
        true => format!("the kernel also slows the program down: {}", facts(throttle)),
        false => format!("memory.high is near, too: {}", facts(throttle)),
    };
    near(case).map(of)
}

pub(crate) fn verdict(case: Case<'_>, cause: Option<&Verdict>) -> Option<Verdict> {
    let throttle = near(case)?;
    let (high, counted) = (throttle.high, throttle.working_set());
    let mut evidence = vec![facts(throttle)];
    if let Some(cause) = cause {
        let (id, summary) = (cause.id.id(), &cause.summary);
        evidence.push(format!("{id}: {summary}. While that grows, a higher memory.high only delays the throttling"));
    }
    let finds = |cause: &Verdict| cause.remedies.iter().find(|remedy| remedy.effort < Effort::Code).cloned();
    let mut remedies: Vec<_> = cause.and_then(finds).into_iter().collect();
    let mib = throttle.charged.max(high).scaled(110, 100).0.div_ceil(1 << 20);
    let gains = gain(case, cause, Bytes::mib(mib) - high);
    remedies.extend(higher_limit::raise_high(case, throttle, "raise memory.high by a tenth", mib, &gains));
    let of = match &case.snapshot.cgroup {
        Some(cgroup) if cgroup.path != throttle.path => {
            format!("memory.high of {}, a group above this process's,", throttle.path)
        }
        _ => "memory.high".to_owned(),
    };
    let (severity, summary) = match throttles_now(throttle) {
        true => (Severity::Warning, format!("{of} throttles the program: {} of {high} are charged", throttle.charged)),
        false => {
            let (charged, times) = (throttle.charged, units::counted(throttle.times, "time"));
            let past = format!("the kernel has throttled that group {times} since it was made");
            (Severity::Note, format!("{of} is near: {charged} of {high} are charged; {past}"))
        }
    };
    Some(Verdict { id: VerdictId::LimitNear, severity, bytes: counted, summary, evidence, remedies })
}
