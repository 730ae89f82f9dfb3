//! Lists of percentiles: wrk's `90%   13.18ms`, hey's and oha's `90% in 0.0041 secs`.

use super::{Load, Tool, milliseconds, number};

pub(super) fn wrk(lines: &mut dyn Iterator<Item = &str>) -> Option<Load> {
    let mut load = Load::of(Tool::Wrk);
    let (mut is_wrk, mut is_uncorrected) = (false, false);
    for line in lines {
        if line.starts_with("Thread Stats") {
            (is_wrk, is_uncorrected, load.errors) = (true, false, Some(0));
        }
        // The second list of wrk2 --u_latency. Its latencies count from when a request was sent, not from when it was
        // due. So a stall of the server counts once (coordinated omission). Only the first list is used.
        is_uncorrected |= line.starts_with("Latency Distribution") && line.contains("Uncorrected Latency");
        if !is_wrk {
            continue;
        }
        if let Some(number) = line.strip_prefix("Non-2xx or 3xx responses:") {
            load.add_errors(number.trim().parse().unwrap_or(0));
        } else if let Some(list) = line.strip_prefix("Socket errors:") {
            let numbers = list.split(',').filter_map(|one| one.split_whitespace().nth(1)?.parse::<u64>().ok());
            numbers.for_each(|number| load.add_errors(number));
        } else if let Some(rate) = line.strip_prefix("Requests/sec:") {
            load.throughput = number(rate.trim());
        } else if let Some((percentile, time)) = line.split_once('%').filter(|_| !is_uncorrected) {
            // The lines above the distribution have a percentage at their end.
            if let (Some(percentile), Some(time)) = (number(percentile), milliseconds(time)) {
                load.set(percentile, time);
            }
        }
    }
    is_wrk.then_some(load)
}

/// oha's message of a request that it cut off itself, at the end of `-z`. The server had no time to answer it.
const CUT_OFF: &str = "aborted due to deadline";

pub(super) fn hey(lines: &mut dyn Iterator<Item = &str>) -> Option<Load> {
    /// Lists of `N% in TIME`, of `[status] count` and of `[count] message`.
    #[derive(PartialEq)]
    enum List {
        Other,
        Percentiles,
        Statuses,
        Errors,
    }
    let mut load = Load::of(Tool::Hey);
    let (mut is_hey, mut list) = (false, List::Other);
    for line in lines {
        match line {
            // Of several runs in one load, the last one counts.
            "Summary:" => (list, load) = (List::Other, Load::of(Tool::Hey)),
            "Latency distribution:" | "Response time distribution:" => (list, is_hey) = (List::Percentiles, true),
            "Status code distribution:" => (list, load.errors) = (List::Statuses, Some(load.errors.unwrap_or(0))),
            "Error distribution:" => (list, load.errors) = (List::Errors, Some(load.errors.unwrap_or(0))),
            // `oha --stats-success-breakdown` prints two more lists of percentiles, each for a part of the answers.
            line if line.ends_with(':') && !line.starts_with('[') => list = List::Other,
            _ => {}
        }
        if let Some(rate) = line.strip_prefix("Requests/sec:") {
            load.throughput = number(rate.trim());
        } else if let Some((percentile, time)) = line.split_once("% in ").filter(|_| list == List::Percentiles) {
            // hey 0.1.5 prints `50%% in 0.0020 secs`.
            let percentile = number(percentile.trim_end_matches('%'));
            if let (Some(percentile), Some(time)) = (percentile, milliseconds(time)) {
                load.set(percentile, time);
            }
        } else if let Some((inner, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            let first = inner.parse::<u64>().ok();
            let count = rest.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            match list {
                List::Statuses if first.is_some_and(|status| status >= 400) => load.add_errors(count.unwrap_or(0)),
                List::Errors if rest.trim() != CUT_OFF => load.add_errors(first.unwrap_or(0)),
                _ => {}
            }
        }
    }
    is_hey.then_some(load)
}
