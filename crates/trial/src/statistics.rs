//! Medians, and differences of paired rounds with their interval.
//!
//! A round runs each row once. The difference of a row against the plain row is taken within each round, dᵢ. Its
//! estimate is the mean of the dᵢ. Its 95 % interval is mean ± t(0.975, n − 1) · s / √n (Student's t on paired
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

/// Probability that an interval misses the truth.
const OUTSIDE: f64 = 0.05;

/// A mean with its interval: 95 % from `of`, another probability from `among` and `outside`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl Interval {
    /// The interval of the differences; `None` with fewer than two, or if one isn't finite. `resolution` is the least
    /// half width, in the unit of the differences.
    pub fn of(differences: &[f64], resolution: f64) -> Option<Interval> {
        Interval::among(differences, resolution, 1)
    }

    /// The interval, widened so that the intervals of all `comparisons` hold at once with 95 % (Bonferroni).
    pub fn among(differences: &[f64], resolution: f64, comparisons: usize) -> Option<Interval> {
        Interval::outside(differences, resolution, OUTSIDE / comparisons.max(1) as f64)
    }

    /// The interval that misses the truth with the probability `outside`.
    pub fn outside(differences: &[f64], resolution: f64, outside: f64) -> Option<Interval> {
        let n = differences.len();
        if n < 2 || differences.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mean = differences.iter().map(|value| value / n as f64).sum::<f64>();
        let variance = differences.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let half = (student_t(n - 1, outside) * (variance / n as f64).sqrt()).max(resolution);
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

/// The t that |T| exceeds with the probability `outside`: 0.05 for 95 % intervals.
pub(crate) fn student_t(degrees: usize, outside: f64) -> f64 {
    let nu = degrees as f64;
    // P(|T| > t) = I(ν / (ν + t²); ν/2, 1/2) falls with t (Abramowitz and Stegun, 26.7.1 and 26.5.27).
    let exceeds = |t: f64| incomplete_beta(nu / 2.0, 0.5, nu / (nu + t * t));
    let (mut low, mut high) = (0.0, 1e6);
    if degrees == 0 {
        return f64::INFINITY;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if exceeds(middle) > outside { low = middle } else { high = middle }
    }
    high
}

/// The regularized incomplete beta function, by its continued fraction (Lentz's method; DLMF 8.17.22).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast below the mean; above it, the symmetry I(x; a, b) = 1 − I(1 − x; b, a) holds.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let not_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..300 {
        let m = f64::from(m);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / not_zero(1.0 + term * d);
            c = not_zero(1.0 + term / c);
            fraction *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * fraction
}

/// Stirling's series (DLMF 5.11.1), with the argument raised to where it is exact to 1e-12.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut below) = (x, 0.0);
    while x < 12.0 {
        below += x.ln();
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    (x - 0.5) * x.ln() - x + (2.0 * std::f64::consts::PI).ln() / 2.0 + series - below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn medians_and_ranges_are_those_of_the_sorted_values() {
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

    /// Tables of NIST/SEMATECH, e-Handbook, 1.3.6.7.2.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table = [
            (1, 0.05, 12.706),
            (2, 0.05, 4.303),
            (4, 0.05, 2.776),
            (9, 0.05, 2.262),
            (30, 0.05, 2.042),
            (100, 0.05, 1.984),
            (4, 0.01, 4.604),
            (4, 0.002, 7.173),
            (10, 0.002, 4.144),
        ];
        for (degrees, outside, expected) in table {
            let found = student_t(degrees, outside);
            assert!((found - expected).abs() < 0.001, "{degrees}, {outside}: {found}");
        }
        assert_eq!(student_t(0, 0.05), f64::INFINITY);
    }

    /// For equal programs, 95 % of the intervals contain 0. Normal noise from a fixed seed, so the count never changes.
    #[test]
    fn of_equal_rows_one_interval_in_twenty_misses_zero() {
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        for rounds in [3, 5, 10] {
            let trials = 4000;
            let contain = (0..trials)
                .filter(|_| {
                    let differences: Vec<f64> = (0..rounds).map(|_| random.normal() - random.normal()).collect();
                    Interval::of(&differences, 0.0).expect("an interval").contains_zero()
                })
                .count();
            let share = contain as f64 / f64::from(trials);
            assert!((0.94..0.96).contains(&share), "{rounds} rounds: {share}");
        }
    }
}
