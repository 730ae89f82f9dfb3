//! Counts the savings that `explain` predicted for rows of a trial, and those of them that the trial confirms.

use serde_json::Value;

/// Bytes that the program's other threads may take or give back meanwhile. A prediction doesn't include them.
const OTHERS: f64 = 1048576.0;
/// The least share of predictions that must hold.
const SHARE: f64 = 0.9;
/// The most by which a prediction's bounds may differ from its middle, as a part of it.
const WIDTH: f64 = 0.3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Saving {
    Inside,
    /// The mean lies outside, but the interval of the measured difference meets the prediction.
    Open,
    Outside,
}

/// `None`: no row has a prediction.
pub fn sentence(document: &Value) -> Option<String> {
    let rows = document["rows"].as_array()?;
    let (savings, widths): (Vec<Saving>, Vec<f64>) = rows.iter().filter_map(judged).unzip();
    let count = |saving: Saving| savings.iter().filter(|one| **one == saving).count();
    let [inside, open, outside] = [Saving::Inside, Saving::Open, Saving::Outside].map(count);
    let widest = widths.iter().copied().fold(0.0, f64::max);
    let all = savings.len() as f64;
    let verdict = match (inside as f64 >= SHARE * all, outside as f64 > (1.0 - SHARE) * all) {
        _ if widest > WIDTH => "fails",
        (true, _) => "holds",
        (_, true) => "fails",
        _ => "open",
    };
    (!savings.is_empty()).then(|| {
        format!(
            "Predicted savings: {inside} of {} inside (by 1 MiB at most beside it), {outside} outside, {open} of which the measured \
             interval meets the prediction; the widest prediction is ± {:.0} %. Bar: {:.0} % inside, none wider than ± {:.0} %: {verdict}.",
            savings.len(),
            100.0 * widest,
            100.0 * SHARE,
            100.0 * WIDTH
        )
    })
}

/// A row with a prediction, and how wide that is.
fn judged(row: &Value) -> Option<(Saving, f64)> {
    let predicted = |key: &str| row["predicted_saving"][key].as_f64();
    let (least, most) = (predicted("least_bytes")?, predicted("most_bytes")?);
    let difference = |key: &str| row["figures"]["idle_bytes"]["difference"][key].as_f64();
    let saving = match (difference("mean"), difference("low"), difference("high")) {
        // A saving is a negative difference.
        (Some(mean), ..) if -mean >= least - OTHERS && -mean <= most + OTHERS => Saving::Inside,
        (Some(_), Some(low), Some(high)) if -low < least || -high > most => Saving::Outside,
        _ => Saving::Open,
    };
    Some((saving, (most - least) / (most + least).max(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// MiB: the prediction; the mean, the least and the most saved.
    fn row(predicted: [i64; 2], saved: [i64; 3]) -> Value {
        let [least, most] = predicted.map(|mib| mib << 20);
        let [mean, low, high] = saved.map(|mib| -mib << 20);
        let difference = json!({"mean": mean, "low": high, "high": low});
        json!({
            "predicted_saving": {"least_bytes": least, "most_bytes": most},
            "figures": {"idle_bytes": {"difference": difference}},
        })
    }

    fn judged_by(rows: &[Value]) -> Option<String> {
        sentence(&json!({"rows": rows}))
    }

    #[test]
    fn a_saving_is_inside_outside_or_open() {
        let of = |predicted, saved| judged(&row(predicted, saved)).map(|(saving, _)| saving);
        assert_eq!(of([29, 31], [30, 10, 50]), Some(Saving::Inside));
        assert_eq!(of([29, 31], [28, 27, 29]), Some(Saving::Inside));
        // Table 2 of 2026-11.
        assert_eq!(of([29, 31], [22, 6, 39]), Some(Saving::Open));
        assert_eq!(of([29, 31], [22, 20, 24]), Some(Saving::Outside));
        assert_eq!(of([29, 31], [40, 38, 42]), Some(Saving::Outside));
        assert_eq!(judged(&json!({"predicted_saving": null})), None);
    }

    #[test]
    fn nine_of_ten_must_be_inside_and_none_too_wide() {
        let (inside, outside) = (row([29, 31], [30, 29, 31]), row([29, 31], [3, 2, 4]));
        let of = |outside_rows: usize, rows: usize| {
            let rows: Vec<Value> =
                (0..rows).map(|at| if at < outside_rows { outside.clone() } else { inside.clone() }).collect();
            judged_by(&rows).expect("a sentence")
        };
        assert!(of(1, 10).ends_with(": holds."), "{}", of(1, 10));
        assert!(of(2, 10).ends_with(": fails."), "{}", of(2, 10));
        let open = judged_by(&[row([29, 31], [22, 6, 39])]).expect("a sentence");
        assert!(open.starts_with("Predicted savings: 0 of 1 inside") && open.ends_with(": open."), "{open}");
        let wide = judged_by(&[row([10, 30], [20, 19, 21])]).expect("a sentence");
        assert!(wide.contains("± 50 %. Bar: 90 % inside, none wider than ± 30 %: fails."), "{wide}");
        assert_eq!(judged_by(&[json!({"predicted_saving": null})]), None);
    }
}
