//! Medians, and differences of paired rounds with their interval.
//!
//! A round runs each row once. The difference of a row against the plain row is taken within each round, dᵢ; its
//! estimate is the mean of the dᵢ, and its 95 % interval is mean ± t(0.975, n − 1) · s / √n (Student's t on paired
//! differences). With 5 rounds a rank test cannot reach 95 % (1 of 2⁵ sign patterns is 3 %, both tails 6 %), and a
//! bootstrap of 5 values is too narrow. With heavy tails the t interval is too wide rather than too narrow.

/// `None` without values, or if one isn't finite.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.to_vec();
    if sorted.is_empty() || sorted.iter().any(|value| !value.is_finite()) {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { sorted[middle - 1] / 2.0 + sorted[middle] / 2.0 })
}

/// Smallest and largest value.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().fold(least, f64::max)))
}

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl Interval {
    /// Of the differences; `None` with fewer than two. `resolution` is the least half width.
    pub fn of(differences: &[f64], resolution: f64) -> Option<Interval> {
        let n = differences.len();
        if n < 2 || differences.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mean = differences.iter().map(|value| value / n as f64).sum::<f64>();
        let variance = differences.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let half = (student_t(n - 1) * (variance / n as f64).sqrt()).max(resolution);
        (mean.is_finite() && half.is_finite()).then_some(Interval {
            mean,
            low: mean - half,
            high: mean + half,
            pairs: n,
        })
    }

    /// Whether the rounds show no difference.
    pub fn contains_zero(self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }
}

/// The 97.5 % quantile of Student's t (NIST/SEMATECH e-Handbook, 1.3.6.7.2). Between the entries: the next smaller
/// number of degrees, whose quantile is larger.
pub fn student_t(degrees: usize) -> f64 {
    const TO_30: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TO_30[degrees - 1],
        31..60 => TO_30[29],
        60..100 => 2.000,
        _ => 1.984,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((median(&[]), median(&[f64::NAN])), (None, None));
        assert_eq!(range(&[3.0, 1.0, 2.0]), Some((1.0, 3.0)));
    }

    /// R: t.test(c(-54, -58, -56, -60, -52)) gives -59.9265 … -52.0735.
    #[test]
    fn the_interval_is_that_of_a_paired_t_test() {
        let found = Interval::of(&[-54.0, -58.0, -56.0, -60.0, -52.0], 0.0).expect("an interval");
        assert!((found.mean + 56.0).abs() < 1e-9);
        assert!((found.low + 59.9265).abs() < 1e-3 && (found.high + 52.0735).abs() < 1e-3, "{found:?}");
        assert!(!found.contains_zero());
        assert_eq!(Interval::of(&[1.0], 0.0), None);
        // Equal differences have no variance, but no measurement is finer than its resolution.
        assert!(Interval::of(&[4096.0; 5], 65536.0).expect("an interval").contains_zero());
    }

    /// Of equal programs, 95 % of the intervals contain 0. Normal noise from a fixed seed, so the count never changes.
    #[test]
    fn of_equal_rows_one_interval_in_twenty_misses_zero() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        for rounds in [3, 5, 10] {
            let trials = 4000;
            let contain = (0..trials)
                .filter(|_| {
                    let differences: Vec<f64> = (0..rounds).map(|_| normal() - normal()).collect();
                    Interval::of(&differences, 0.0).expect("an interval").contains_zero()
                })
                .count();
            let share = contain as f64 / f64::from(trials);
            assert!((0.94..0.96).contains(&share), "{rounds} rounds: {share}");
        }
    }
}
