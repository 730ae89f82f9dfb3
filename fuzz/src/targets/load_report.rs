//! Output of load generators, and texts of remedies.

use plimsoll_trial::remedy::{Start, words};
use plimsoll_trial::{Remedy, latency};

pub fn run(bytes: &[u8]) {
    if let Some(load) = latency::parse(bytes) {
        let all = [load.p50, load.p90, load.p99, load.throughput];
        assert!(
            all.iter().any(Option::is_some) && all.iter().flatten().all(|figure| figure.is_finite() && *figure >= 0.0)
        );
    }
    let text = String::from_utf8_lossy(bytes);
    let _ = words(&text);
    let plain = Start { command: vec!["java".into(), "Main".into()], ..Start::default() };
    for remedy in Remedy::parse(&text).into_iter().flatten().chain(Remedy::from_advice(&text)) {
        let _ = remedy.apply(&plain, |one| Some(one.name().into()));
    }
}
