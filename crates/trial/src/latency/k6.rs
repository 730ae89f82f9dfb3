//! k6's summary: `http_req_duration......: avg=… med=… p(90)=…`. Other percentiles need `--summary-trend-stats`.
//!
//! ```text
//! █ TOTAL RESULTS        the only part that is read
//! █ GROUP: name          --summary-mode=full: the same metrics of a group or a scenario alone
//! █ SCENARIO: name
//! ```
//! Before k6 1.0, `█ name` is a group, whose checks precede the metrics of the whole run.

use super::{Load, Tool, milliseconds, number};

pub(super) fn read(lines: &mut dyn Iterator<Item = &str>) -> Option<Load> {
    let mut load = Load::of(Tool::K6);
    let mut is_k6 = false;
    let (mut has_total, mut is_part) = (false, false);
    for line in lines {
        if let Some(section) = line.strip_prefix('█').map(str::trim) {
            has_total |= section == "TOTAL RESULTS";
            let is_part_name = section.starts_with("GROUP: ") || section.starts_with("SCENARIO: ");
            is_part = has_total && (is_part_name || (is_part && section != "TOTAL RESULTS"));
        }
        if is_part {
            continue;
        }
        let Some((name, values)) = line.split_once(':') else { continue };
        // The name has dots up to the colon. A status mark (a threshold's) may precede the name.
        let name = name.trim_start_matches(['✓', '✗', ' ']).trim_end_matches('.');
        match name {
            "http_req_duration" => {
                is_k6 = true;
                for (key, value) in values.split_whitespace().filter_map(|word| word.split_once('=')) {
                    let percentile = match key {
                        "med" | "p(50)" => 50.0,
                        "p(90)" => 90.0,
                        "p(99)" => 99.0,
                        _ => continue,
                    };
                    if let Some(value) = milliseconds(value) {
                        load.set(percentile, value);
                    }
                }
            }
            "http_reqs" => {
                load.throughput = values.split_whitespace().nth(1).and_then(|rate| number(rate.strip_suffix("/s")?))
            }
            // `1.67% ✓ 3 ✗ 177` or `4.44% 2 out of 45`: the first count is that of failed requests.
            "http_req_failed" => {
                let failed = values.split_whitespace().skip(1).find_map(|word| word.parse::<u64>().ok());
                load.errors = failed.or(load.errors);
            }
            _ => {}
        }
    }
    is_k6.then_some(load)
}
