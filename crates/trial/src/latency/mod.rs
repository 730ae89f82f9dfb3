//! Latency and throughput in the output of load generators: wrk, wrk2, hey, oha, k6, redis-benchmark.
//!
//! The output is foreign text: any bytes give a result or `None`, in time linear in their length. Figures that a tool
//! doesn't print are `None`; none is computed from others.

mod http;
mod k6;
mod redis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// wrk and wrk2.
    Wrk,
    /// hey and oha.
    Hey,
    K6,
    RedisBenchmark,
}

impl Tool {
    pub const fn name(self) -> &'static str {
        match self {
            Tool::Wrk => "wrk",
            Tool::Hey => "hey or oha",
            Tool::K6 => "k6",
            Tool::RedisBenchmark => "redis-benchmark",
        }
    }
}

/// What a load generator reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub tool: Tool,
    /// Milliseconds.
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    /// Requests per second.
    pub throughput: Option<f64>,
    /// Failed requests.
    pub errors: Option<u64>,
}

impl Load {
    const fn of(tool: Tool) -> Load {
        Load { tool, p50: None, p90: None, p99: None, throughput: None, errors: None }
    }

    fn has_figures(&self) -> bool {
        self.p50.or(self.p90).or(self.p99).or(self.throughput).is_some()
    }

    /// Keeps one of the percentiles that are reported here.
    fn set(&mut self, percentile: f64, milliseconds: f64) {
        let field = match percentile {
            50.0 => &mut self.p50,
            90.0 => &mut self.p90,
            99.0 => &mut self.p99,
            _ => return,
        };
        *field = Some(milliseconds);
    }

    fn add_errors(&mut self, number: u64) {
        self.errors = Some(self.errors.unwrap_or(0).saturating_add(number));
    }
}

/// Reads trimmed lines; `None`: another tool wrote them.
type Reader = fn(&mut dyn Iterator<Item = &str>) -> Option<Load>;

/// The figures of the tool whose output this is.
pub fn parse(output: &[u8]) -> Option<Load> {
    let text = String::from_utf8_lossy(output);
    // Progress lines end in a carriage return.
    let lines = || text.split(['\n', '\r']).map(str::trim);
    let readers: [Reader; 4] = [http::wrk, http::hey, k6::read, redis::read];
    readers.into_iter().find_map(|read| read(&mut lines()).filter(Load::has_figures))
}

/// A finite number that isn't negative. No tool prints a thousands separator.
fn number(text: &str) -> Option<f64> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    if text.is_empty() || !text.chars().all(is_digit) {
        return None;
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// `250.00us`, `5.80ms`, `1.2s`, `1m2.5s`, also with a blank before the unit: milliseconds.
fn milliseconds(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value = number(&rest[..digits])?;
        let after = rest[digits..].trim_start();
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let factor = match after[..end].trim_end() {
            "ns" => 1e-6,
            "us" | "µs" | "μs" => 1e-3,
            "ms" => 1.0,
            "s" | "sec" | "secs" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            _ => return None,
        };
        sum = Some(sum.unwrap_or(0.0) + value * factor);
        rest = &after[end..];
    }
    sum.filter(|sum: &f64| sum.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Load {
        parse(text.as_bytes()).unwrap_or_else(|| panic!("no figures: {text}"))
    }

    fn figures(load: Load) -> [Option<f64>; 4] {
        // Factors such as 1e-3 leave an error in the last place.
        [load.p50, load.p90, load.p99, load.throughput].map(|one| one.map(|value| (value * 1e6).round() / 1e6))
    }

    /// wrk 4.1.0 (Debian 12), `wrk --latency`.
    #[test]
    fn the_output_of_wrk_is_parsed() {
        let load = of(include_str!("../../captured/wrk.txt"));
        assert_eq!((load.tool, load.errors), (Tool::Wrk, Some(0)));
        assert_eq!(figures(load), [Some(3.19), Some(13.18), Some(36.74), Some(983.21)]);
        let load = of(include_str!("../../captured/wrk-errors.txt"));
        assert_eq!(load.errors, Some(1394));
        let wrk2 = "  Thread Stats   Avg\n  Latency Distribution (HdrHistogram - Recorded Latency)\n 50.000%  250.00us\n 90.000%    1.21ms\n \
                    99.000%    5.80ms\n100.000%    1.00s\n  Socket errors: connect 1, read 2, write 0, timeout 3\nRequests/sec:   2000.5\n";
        assert_eq!(figures(of(wrk2)), [Some(0.25), Some(1.21), Some(5.8), Some(2000.5)]);
        assert_eq!(of(wrk2).errors, Some(6));
    }

    /// `wrk2 --latency --u_latency`: two lists, of which only the first counts stalls for every request. Of two runs in
    /// one load, the second counts.
    #[test]
    fn the_uncorrected_latencies_of_wrk2_are_not_used() {
        let recorded = "  Latency Distribution (HdrHistogram - Recorded Latency)\n 50.000%    8.65s\n 90.000%   17.11s\n 99.000%   19.29s\n";
        let uncorrected = "  Latency Distribution (HdrHistogram - Uncorrected Latency (measured without taking delayed starts into account))\n \
                           50.000%    4.08ms\n 90.000%    5.53ms\n 99.000%   11.69ms\n";
        let end = "  Non-2xx or 3xx responses: 7\nRequests/sec:    100.00\n";
        let both = format!("  Thread Stats   Avg\n{recorded}-----\n\n{uncorrected}-----\n{end}");
        assert_eq!(figures(of(&both)), [Some(8650.0), Some(17110.0), Some(19290.0), Some(100.0)]);
        assert_eq!(of(&both).errors, Some(7));
        let only = format!("  Thread Stats   Avg\n{uncorrected}{end}");
        assert_eq!(figures(of(&only)), [None, None, None, Some(100.0)]);
        let again = recorded.replace("19.29s", "20.00s");
        let twice = format!("{both}  Thread Stats   Avg\n{again}{end}");
        assert_eq!((of(&twice).p99, of(&twice).errors), (Some(20_000.0), Some(7)));
    }

    /// `k6 run --summary-mode=full`: after the whole run follow its groups and scenarios with the same metrics.
    #[test]
    fn the_parts_of_a_k6_run_are_not_taken_for_the_whole() {
        let part = |median: &str, failed: &str, rate: &str| {
            format!(
                "\n    HTTP\n    http_req_duration..................: avg=9ms min=1µs med={median} max=2m p(90)=1s p(99)=2s\n    \
                 http_req_failed....................: 4.44%  {failed} out of 45\n    http_reqs..........................: 45     {rate}/s\n\n"
            )
        };
        let total = |median: &str| format!("  █ TOTAL RESULTS \n{}", part(median, "2", "6.5"));
        let full = format!(
            "  █ THRESHOLDS \n\n    http_req_duration\n    ✓ 'p(95)<200' p(95)=120ms\n\n{}  █ GROUP: my group\n{}  █ SCENARIO: quick\n{}",
            total("300ms"),
            part("200ms", "1", "3.0"),
            part("1ms", "0", "0.5")
        );
        assert_eq!(figures(of(&full)), [Some(300.0), Some(1000.0), Some(2000.0), Some(6.5)]);
        assert_eq!(of(&full).errors, Some(2));
        let twice = format!("{full}{}", total("400ms"));
        assert_eq!((of(&twice).p50, of(&twice).throughput), (Some(400.0), Some(6.5)));
        // Before 1.0, groups come first, and their names are free.
        let old = format!("     █ GROUP: login\n       ✓ status is 200\n{}", part("5ms", "0", "7.0"));
        assert_eq!((of(&old).p50, of(&old).throughput), (Some(5.0), Some(7.0)));
    }

    /// hey 0.1.4 (Debian 12); oha in the form of its documentation.
    #[test]
    fn the_outputs_of_hey_and_oha_are_parsed() {
        let load = of(include_str!("../../captured/hey.txt"));
        assert_eq!((load.tool, load.errors), (Tool::Hey, Some(0)));
        assert_eq!(figures(load), [Some(2.0), Some(4.1), Some(7.2), Some(1671.4898)]);
        let load = of(include_str!("../../captured/hey-errors.txt"));
        assert_eq!((load.p50, load.errors), (None, Some(20)));
        let oha = "Summary:\n  Success rate:\t100.00%\n  Requests/sec:\t12345.6789\n\nResponse time distribution:\n  50.00% in 0.1421 ms\n  \
                   90.00% in 0.0021 sec\n  99.00% in 0.0042 secs\n\nStatus code distribution:\n  [200] 190 responses\n  [503] 10 responses\n";
        assert_eq!(figures(of(oha)), [Some(0.1421), Some(2.1), Some(4.2), Some(12345.6789)]);
        assert_eq!(of(oha).errors, Some(10));
    }

    /// As in rakyll/hey#337: `hey version 0.1.5` prints the percent sign twice.
    #[test]
    fn the_percentiles_of_hey_are_read_in_both_forms() {
        let before = include_str!("../../captured/hey.txt");
        let twice = before.replace("% in ", "%% in ");
        assert_ne!(twice, before);
        assert_eq!(of(&twice), of(before));
    }

    /// `oha --stats-success-breakdown -z 10s`: the first list is that of all answers, and no request failed.
    #[test]
    fn the_answers_of_oha_are_taken_together() {
        let list = |heading: &str, times: [&str; 3]| {
            let [p50, p90, p99] = times;
            format!("{heading}\n  50.00% in {p50} sec\n  90.00% in {p90} sec\n  99.00% in {p99} sec\n\n")
        };
        let oha = [
            "Summary:\n  Success rate:\t100.00%\n  Requests/sec:\t5000.5\n\n",
            "Response time histogram:\n  0.001 [9] |\n\n",
            &list("Response time distribution:", ["0.0020", "0.0030", "0.0090"]),
            &list("Response time distribution (2xx only):", ["0.0021", "0.0031", "0.0091"]),
            &list("Response time distribution (4xx + 5xx only):", ["0.0001", "0.0001", "0.0001"]),
            "Details (average, fastest, slowest):\n  DNS+dialup:\t0.0001 sec, 0.0001 sec, 0.0002 sec\n\n",
            "Status code distribution:\n  [200] 50000 responses\n\n",
            "Error distribution:\n  [50] aborted due to deadline\n",
        ]
        .concat();
        assert_eq!(figures(of(&oha)), [Some(2.0), Some(3.0), Some(9.0), Some(5000.5)]);
        assert_eq!(of(&oha).errors, Some(0));
        assert_eq!(of(&format!("{oha}  [3] connection error: connection reset\n")).errors, Some(3));
    }

    /// A warm-up and a measurement in one load.
    #[test]
    fn of_two_runs_of_hey_the_second_counts() {
        let [good, bad] = [include_str!("../../captured/hey.txt"), include_str!("../../captured/hey-errors.txt")];
        assert_eq!(of(&format!("{bad}{good}")), of(good));
        assert_eq!(of(&format!("{good}{bad}")), of(bad));
    }

    /// k6 in the forms of its documentation, before and after 1.0.
    #[test]
    fn the_output_of_k6_is_parsed() {
        let old = "     http_req_duration..............: avg=144.56ms min=104.11ms med=110.47ms max=1.14s p(90)=203.54ms p(95)=215.95ms\n       \
                   { expected_response:true }...: avg=1ms med=1ms p(90)=1ms\n     http_req_failed................: 1.67% ✓ 3 ✗ 177\n     \
                   http_reqs......................: 180 4.36938/s\n";
        assert_eq!(figures(of(old)), [Some(110.47), Some(203.54), None, Some(4.36938)]);
        assert_eq!((of(old).tool, of(old).errors), (Tool::K6, Some(3)));
        let new = "    HTTP\n    http_req_duration..................: avg=1m2.5s min=1µs med=900µs max=2m p(90)=1m2.5s p(99)=1.5s\n    \
                   http_req_failed....................: 4.44%  2 out of 45\n    http_reqs..........................: 45     6.5610/s\n";
        assert_eq!(figures(of(new)), [Some(0.9), Some(62500.0), Some(1500.0), Some(6.561)]);
        assert_eq!(of(new).errors, Some(2));
    }

    /// redis-benchmark 7.0 (Debian 12): SET and GET. The slower of the two counts.
    #[test]
    fn the_output_of_redis_benchmark_is_parsed() {
        let load = of(include_str!("../../captured/redis-benchmark.txt"));
        assert_eq!(load.tool, Tool::RedisBenchmark);
        assert_eq!(figures(load), REDIS_FULL);
        let load = of(include_str!("../../captured/redis-benchmark-csv.txt"));
        assert_eq!(figures(load), [Some(0.591), None, Some(14.807), Some(29985.01)]);
        let load = of(include_str!("../../captured/redis-benchmark-quiet.txt"));
        assert_eq!((load.p99, load.p50.is_some(), load.throughput.is_some()), (None, true, true));
    }

    const REDIS_FULL: [Option<f64>; 4] = [Some(0.551), None, Some(14.223), Some(45662.1)];

    #[test]
    fn other_text_has_no_figures() {
        for text in
            ["", "hello\nworld\n", "50% done\nRequests/sec: many", "99% in time", "\"test\",\"rps\"\n\"SET\",\"x\""]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(&[0xff, b'\n', 0x80]), None);
    }

    #[test]
    fn durations_are_parsed_in_each_unit() {
        let all = ["1.5us", "2ms", "0.5 s", "1m0.5s", "3 secs", "7", "x", "1..2s", "", "9999999999h"];
        let expected = [Some(0.0015), Some(2.0), Some(500.0), Some(60500.0), Some(3000.0), None, None, None, None];
        let found = all.map(|text| milliseconds(text).map(|value| (value * 1e6).round() / 1e6));
        assert_eq!(found[..9], expected);
        assert!(found[9].is_some_and(f64::is_finite));
    }
}
