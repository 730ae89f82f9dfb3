//! A day of a service, played in minutes: is the tracker's own memory bounded, and flat after the warm-up?

use super::Bench;
use super::measure::Waiting;
use super::results::Results;
use super::setup::Setup;
use super::time_limit::must_within_limit;
use crate::stage::{Result, plimsoll};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Readings of a day, one for each quarter of an hour.
const READINGS: u32 = 96;
/// The first eighth of a day: from noon, its busiest hour, to three. All stacks are met then.
const WARM: usize = 12;
/// The most that own memory may rise above the highest reading of the warm-up.
const MOST: f64 = 1.02;
/// If more of the 8 × 1,440 minutes of a worker ended late, the processors were too slow for a day in this time.
const LATE: u64 = 8 * 1440 / 20;

pub fn played(bench: &Bench, results: &mut Results) -> Result<()> {
    let minutes = match std::env::var("PLIMSOLL_DAY_MINUTES") {
        Ok(text) => text.parse::<f64>().map_err(|_| format!("PLIMSOLL_DAY_MINUTES={text}: expected a number"))?,
        Err(_) if bench.quick => 1.0,
        Err(_) => 5.0,
    };
    let day = Duration::try_from_secs_f64(minutes * 60.0)?;
    results.group(
        "A day of a service",
        &format!(
            "bench/day.c: 24 h of requests, sessions, threads, buffers, children and a library, from noon to noon, played by the clock in \
             {minutes} min (PLIMSOLL_DAY_MINUTES=60 for an hour). Own memory: the line `tracker` of explain, {} readings. The bar compares \
             the highest reading after the first three hours with the highest of these. Late: minutes of a worker that took longer than \
             the clock allows. Both ways run side by side.",
            READINGS - 1
        ),
    );
    results.head(&["way", "requests", "late", "three hours, KiB", "later, KiB", "last, KiB", "ratio", "bar", ""]);
    let program = bench.program("day")?;
    let seconds = [day.as_secs_f64().to_string()];
    let begin = Instant::now();
    let mut ways: Vec<(Setup, Waiting, Vec<u64>)> = Vec::new();
    for setup in [Setup::Tracked("sampled"), Setup::Tracked("exact")] {
        let waiting = Waiting::start(setup.command(&program, &seconds)?)?;
        ways.push((setup, waiting, Vec::new()));
    }
    for reading in 1..READINGS {
        std::thread::sleep((day * reading / READINGS).saturating_sub(begin.elapsed()));
        for (_, waiting, readings) in &mut ways {
            readings.push(own_memory(waiting.pid())?);
        }
    }
    for (setup, mut waiting, readings) in ways {
        let line = waiting.line()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [requests, late] = words[..] else { return Err(format!("bench/day.c printed '{line}'").into()) };
        let [warm, later] = highest(&readings);
        let ratio = later as f64 / warm as f64;
        let kib = |bytes: u64| (bytes >> 10).to_string();
        results.row(&[
            setup.name(),
            requests.to_owned(),
            late.to_owned(),
            kib(warm),
            kib(later),
            kib(readings.last().copied().unwrap_or(0)),
            format!("{ratio:.3}"),
            format!("≤ {MOST}"),
            verdict(ratio, late.parse()?).into(),
        ]);
    }
    Ok(())
}

/// The highest reading of the warm-up, and the highest after it.
fn highest(readings: &[u64]) -> [u64; 2] {
    let (warm, later) = readings.split_at(WARM.min(readings.len()));
    [warm, later].map(|readings| readings.iter().copied().max().unwrap_or(0))
}

fn verdict(ratio: f64, late: u64) -> &'static str {
    match ratio <= MOST {
        // The run was shorter than a day.
        true if late > LATE => "open: too late",
        true => "holds",
        false => "fails",
    }
}

/// Bytes that are resident in a process because of the tracker.
fn own_memory(pid: u32) -> Result<u64> {
    let text = must_within_limit(Command::new(plimsoll()?).args(["explain", "--format", "json", &pid.to_string()]))?;
    let document: Value = serde_json::from_str(&text)?;
    let lines = document["lines"].as_array().into_iter().flatten().filter(|line| line["id"] == "tracker");
    match lines.filter_map(|line| line["resident_bytes"].as_u64()).sum::<u64>() {
        0 => Err("explain printed no line of the tracker".into()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_rises_after_the_warm_up_fails() {
        let judged = |reading: fn(u64) -> u64| {
            let readings: Vec<u64> = (1..u64::from(READINGS)).map(reading).collect();
            let [warm, later] = highest(&readings);
            verdict(later as f64 / warm as f64, 0)
        };
        assert_eq!(judged(|_| 5 << 20), "holds");
        assert_eq!(judged(|n| (5 << 20) + (n.min(10) << 16)), "holds");
        // 16 KiB in each quarter of an hour are 1.3 MiB in a day. A step late in the day counts as growth, too.
        assert_eq!(judged(|n| (5 << 20) + (n << 14)), "fails");
        assert_eq!(judged(|n| (5 << 20) + (n / 90) * (1 << 20)), "fails");
    }

    #[test]
    fn a_day_that_was_not_played_does_not_hold() {
        assert_eq!(verdict(1.0, LATE), "holds");
        assert_eq!(verdict(1.0, LATE + 1), "open: too late");
        assert_eq!(verdict(1.5, LATE + 1), "fails");
    }
}
