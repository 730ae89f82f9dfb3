//! Requests at a constant rate: where they go, when each is due, and what their latencies are.
//!
//! ```text
//! due        │1   │2   │3   │4   │5       request k is due at k / rate, whatever the server does
//! sent       │1          │2 │3 │4│5       the server stalls: the following requests are sent late
//! latency    ├─1────────┤
//!                 ├─2────────┤            counted from the moment when the request was due
//! ```
//! A client that waits for each answer before it sends again doesn't send while the server stalls, and so hardly sees
//! the stall (coordinated omission). Here the latency of each request counts from the moment when it was due.

use std::collections::BTreeMap;
use std::time::Duration;

/// An address of HTTP without encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    pub port: u16,
    /// Path and query, from the slash on.
    pub path: String,
    text: String,
}

impl Url {
    /// `http://HOST[:PORT][/PATH]`.
    pub fn parse(text: &str) -> Result<Url, String> {
        const EXPECTED: &str = "expected http://HOST:PORT/PATH";
        if text.starts_with("https:") {
            return Err("https isn't supported: give the address without encryption, or a load command".into());
        }
        let rest = text.strip_prefix("http://").ok_or(EXPECTED)?;
        // A blank or a control character would end the line of the request.
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(EXPECTED.into());
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or(EXPECTED)?)),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let is_bad = |byte: u8| matches!(byte, b'@' | b'[' | b']');
        if host.is_empty() || host.bytes().any(is_bad) {
            return Err(EXPECTED.into());
        }
        let port = match port {
            None => 80,
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().ok().filter(|port| *port > 0).ok_or("expected a port from 1 to 65535")?
            }
            Some(_) => return Err(EXPECTED.into()),
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Url { host: host.to_owned(), port, path, text: text.to_owned() })
    }

    /// The value of the header Host.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{host}:{}", self.port)
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// A load at a constant rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Requests per second.
    pub rate: u32,
    pub lasts: Duration,
}

impl Schedule {
    /// Number of requests.
    pub fn requests(&self) -> u64 {
        (self.lasts.as_secs_f64() * f64::from(self.rate)).ceil() as u64
    }

    /// When this request, counted from 0, is due after the start.
    pub fn due(&self, request: u64) -> Duration {
        Duration::from_secs_f64(request as f64 / f64::from(self.rate.max(1)))
    }
}

/// Latencies, and how often each occurred: exact up to 65,536 different ones, then rounded down by less than 0.1 %. So
/// a load of a day takes no more memory than one of a minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    /// By nanoseconds.
    counts: BTreeMap<u64, u64>,
    is_rounded: bool,
    number: u64,
    /// Exact, in nanoseconds.
    sum: u128,
}

/// Limit of different latencies: a few MiB.
const MOST: usize = 1 << 16;
/// Binary digits of a rounded latency: 56,320 numbers below 2^64 have no more.
const DIGITS: u32 = 11;

impl Latencies {
    /// Adds a latency that occurred `number` times.
    pub fn add(&mut self, latency: Duration, number: u64) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.sum += u128::from(nanoseconds) * u128::from(number);
        self.number += number;
        self.count(nanoseconds, number);
        if self.counts.len() > MOST {
            self.is_rounded = true;
            for (nanoseconds, number) in std::mem::take(&mut self.counts) {
                self.count(nanoseconds, number);
            }
        }
    }

    fn count(&mut self, nanoseconds: u64, number: u64) {
        let lost = if self.is_rounded { (64 - DIGITS).saturating_sub(nanoseconds.leading_zeros()) } else { 0 };
        *self.counts.entry(nanoseconds >> lost << lost).or_default() += number;
    }

    pub fn len(&self) -> u64 {
        self.number
    }

    pub fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// How many are at least this long.
    pub fn at_least(&self, latency: Duration) -> u64 {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts.range(nanoseconds..).map(|(_, number)| number).sum()
    }
}

/// What a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(u16),
    /// Nothing in time.
    Late,
    /// No connection, or an answer that isn't one.
    Broken,
}

/// What the requests of a load took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// From the moment when the request was due to the end of its answer, of the answers without an error.
    pub latencies: Latencies,
    /// A broken answer, or a status of 400 and above.
    pub failed: u64,
    /// Requests that were due and got no answer, also those that were never sent, with the time that they had waited:
    /// their latency would be larger.
    pub unanswered: Latencies,
}

/// The figures of a load, in milliseconds and requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub throughput: f64,
    pub errors: u64,
}

impl Answers {
    /// Counts a request that ended so long after it was due. True: it got a good answer.
    pub fn count(&mut self, reply: Reply, after: Duration) -> bool {
        match reply {
            Reply::Status(status) if status < 400 => {
                self.latencies.add(after, 1);
                return true;
            }
            Reply::Late => self.unanswered.add(after, 1),
            Reply::Status(_) | Reply::Broken => self.failed += 1,
        }
        false
    }

    /// `None` if no request got a good answer. `took` is the time that the load lasted, including the time in which all
    /// requests failed.
    pub fn figures(&self, took: Duration) -> Option<Figures> {
        if self.latencies.is_empty() {
            return None;
        }
        let mut counts = self.latencies.counts.clone();
        for (nanoseconds, number) in &self.unanswered.counts {
            *counts.entry(*nanoseconds).or_default() += number;
        }
        let all = self.latencies.number + self.unanswered.number;
        // The smallest latency that at least this part of the requests doesn't exceed.
        let percentile = |part: f64| {
            let wanted = ((part * all as f64).ceil() as u64).clamp(1, all);
            let mut passed = 0;
            let found = counts.iter().find(|(_, number)| {
                passed += **number;
                passed >= wanted
            });
            Duration::from_nanos(found.map_or(0, |(nanoseconds, _)| *nanoseconds)).as_secs_f64() * 1000.0
        };
        Some(Figures {
            mean: (self.latencies.sum + self.unanswered.sum) as f64 / all as f64 / 1e6,
            p50: percentile(0.5),
            p90: percentile(0.9),
            p99: percentile(0.99),
            throughput: self.latencies.number as f64 / took.as_secs_f64().max(1e-9),
            errors: self.failed + self.unanswered.number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn addresses_are_those_of_http() {
        let parsed = |text: &str| Url::parse(text).map(|url| (url.authority(), url.path));
        let of = |authority: &str, path: &str| Ok((authority.to_owned(), path.to_owned()));
        assert_eq!(parsed("http://localhost:8080/a?b=c#d"), of("localhost:8080", "/a?b=c"));
        assert_eq!(parsed("http://localhost"), of("localhost:80", "/"));
        assert_eq!(parsed("http://h?q"), of("h:80", "/?q"));
        assert_eq!(parsed("http://[::1]:9/x"), of("[::1]:9", "/x"));
        assert_eq!(parsed("http://[::1]"), of("[::1]:80", "/"));
        assert_eq!(Url::parse("http://h:1/p").expect("an address").to_string(), "http://h:1/p");
        for bad in
            ["", "h", "http://", "http://:80", "http://h:0", "http://h:x", "http://h:99999", "http://h:", "http://u@h"]
        {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
        assert!(Url::parse("http://h/ x\r\nEvil: 1").is_err() && Url::parse("http://[::1]x").is_err());
        assert!(Url::parse("https://h").expect_err("https").starts_with("https isn't supported"));
    }

    #[test]
    fn requests_are_due_at_equal_distances() {
        let schedule = Schedule { rate: 200, lasts: Duration::from_millis(1010) };
        assert_eq!((schedule.requests(), schedule.due(0)), (202, Duration::ZERO));
        assert_eq!(schedule.due(201), Duration::from_millis(1005));
    }

    /// A stall of 1 s in 10 s at 100 requests/s: 10 % of the requests were due meanwhile.
    #[test]
    fn a_stall_counts_for_all_requests_that_were_due() {
        let mut answers = Answers::default();
        for request in 0..1000u64 {
            let due = Duration::from_millis(request * 10);
            let stalled = (5000..6000).contains(&(request * 10));
            let answered = if stalled { Duration::from_millis(6000) } else { due + Duration::from_millis(1) };
            answers.latencies.add(answered - due, 1);
        }
        let figures = answers.figures(Duration::from_secs(10)).expect("figures");
        assert_eq!((figures.p50, figures.p90, figures.throughput), (1.0, 1.0, 100.0));
        assert!((900.0..=1000.0).contains(&figures.p99), "{figures:?}");
        // 900 of 1 ms, and 1000, 990, …, 10 ms.
        assert!((figures.mean - (900.0 + 50_500.0) / 1000.0).abs() < 1e-9, "{figures:?}");
        // What was never sent counts with the time that it had waited.
        answers.unanswered.add(Duration::from_secs(3), 1000);
        answers.failed = 2;
        let figures = answers.figures(Duration::from_secs(10)).expect("figures");
        assert_eq!((figures.p90, figures.errors), (3000.0, 1002));
        assert_eq!(Answers { failed: 3, ..Answers::default() }.figures(Duration::from_secs(1)), None);
    }

    /// The figures are those of the sorted list of all latencies.
    #[test]
    fn latencies_are_exact_up_to_a_number_of_different_ones_and_then_rounded_down() {
        let mut random = Random(59);
        for (number, most_error) in [(1, 0.0), (1000, 0.0), (MOST, 0.0), (3 * MOST, 0.001)] {
            // From a nanosecond to two years.
            let mut one = || {
                let most = 1 << (1 + random.below(55));
                Duration::from_nanos(1 + random.below(most))
            };
            let mut list: Vec<Duration> = (0..number).map(|_| one()).collect();
            let mut answers = Answers::default();
            list.iter().for_each(|latency| answers.latencies.add(*latency, 1));
            assert!(answers.latencies.counts.len() <= MOST && answers.latencies.len() == number as u64);
            assert_eq!(answers.latencies.is_rounded, most_error > 0.0);
            let figures = answers.figures(Duration::from_secs(1)).expect("figures");
            list.sort_unstable();
            for (percent, found) in [(50, figures.p50), (90, figures.p90), (99, figures.p99)] {
                let exact = list[(number * percent).div_ceil(100) - 1].as_secs_f64() * 1000.0;
                assert!(
                    found <= exact && found >= exact * (1.0 - most_error),
                    "{number}: {percent} %: {found}, {exact}"
                );
            }
            let mean = list.iter().map(Duration::as_secs_f64).sum::<f64>() / number as f64 * 1000.0;
            assert!((figures.mean - mean).abs() <= mean * 1e-9, "{number}: {}, {mean}", figures.mean);
            let half = list[number / 2];
            let longer = list.iter().filter(|latency| **latency >= half).count() as u64;
            assert!(most_error > 0.0 || answers.latencies.at_least(half) == longer);
        }
    }

    /// 3 % of the requests got no answer within 10 s: without them the 99th percentile would be that of the others.
    #[test]
    fn requests_without_an_answer_count_as_far_as_they_waited() {
        let mut answers = Answers::default();
        (0..97).for_each(|_| assert!(answers.count(Reply::Status(200), Duration::from_millis(1))));
        (0..3).for_each(|_| assert!(!answers.count(Reply::Late, Duration::from_secs(10))));
        let figures = answers.figures(Duration::from_secs(1)).expect("figures");
        assert_eq!((figures.p50, figures.p99, figures.errors), (1.0, 10_000.0, 3));
        // An error that came at once isn't a fast answer.
        [Reply::Status(503), Reply::Broken].iter().for_each(|reply| assert!(!answers.count(*reply, Duration::ZERO)));
        let with_errors = answers.figures(Duration::from_secs(1)).expect("figures");
        assert_eq!((with_errors.mean, with_errors.errors), (figures.mean, 5));
    }
}
