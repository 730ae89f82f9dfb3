//! Output of load generators, texts of remedies, argument files of java, addresses of a load, budgets of a comparison.

use plimsoll_trial::budget::Budget;
use plimsoll_trial::live::Step;
use plimsoll_trial::rate::Url;
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
    if let Ok(url) = Url::parse(&text) {
        // It becomes a line of a request.
        assert!(url.path.starts_with('/') && url.port > 0 && !url.authority().contains(['\r', '\n', ' ']));
        assert!(!url.path.contains(['\r', '\n', ' ']));
    }
    let _ = Budget::parse(&text, &["java-heap", "direct-buffers"], |_| None);
    for step in Step::parse(&text).into_iter().chain(Step::from_advice(&text)) {
        // Each becomes one command of a shell or a VM.
        assert!(step.commands(7).iter().all(|command| !command.contains(['\n', '\0', ';', '&', '\''])), "{step:?}");
    }
    let plain = Start { command: vec!["java".into(), "Main".into()], ..Start::default() };
    for remedy in Remedy::parse(&text).into_iter().flatten().chain(Remedy::from_advice(&text)) {
        let _ = remedy.apply(&plain, |one| Some(one.name().into()), |_| None);
    }
    let plain = Start { command: vec!["java".into(), "@file".into(), "Main".into()], ..Start::default() };
    let options = Remedy::parse("flag:-XX:+A").expect("a row").remove(0);
    let start = options.apply(&plain, |_| None, |_| Some(bytes.to_vec())).expect("options");
    assert!(start.command.iter().any(|word| word == "-XX:+A"), "{:?}", start.command);
}
