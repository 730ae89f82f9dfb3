//! How a caller's blocks are divided among its sites. Pure arithmetic.
//!
//! ```text
//! caller, exact    L = U + Σ R(s)      R: blocks booked in the site's own rows (exact mode: all; sampled: the samples)
//! sample i         of x bytes, with probability p: it stands for itself, which is in R, and for u = x(1 − p)/p in U
//! site             Ê(s) = R(s) + U · u(s)/Σu          so that Σ Ê = L, by construction
//! ```
//! The caller's total is known, so only the division is estimated (a ratio estimator). With r = u(s)/Σu and v(s) = Σ
//! x²(1 − p)/p², its variance is (U/Σu)² · [(1 − r)² v(s) + r² (Σv − v(s))]. A site without samples isn't seen. With
//! 95 % probability it has less than 3 means, by which the other sites are then too high. This is added to the
//! variance, and so is the variance of one more sample, because with few samples the estimated variance is often too
//! low.
//!
//! If the mode was switched, U also has blocks from times without samples. Then u(s) itself is the estimate, and the
//! caller keeps the rest.

/// What the samples of one site say, in one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SampleWeight {
    /// Σ x(1 − p)/p.
    pub beyond: f64,
    /// Σ x²(1 − p)/p².
    pub variance: f64,
}

impl SampleWeight {
    /// Adds a sample of amount `x` and weight 1/p. An invalid weight counts as 1.
    pub(crate) fn add(&mut self, x: f64, weight: f64) {
        let weight = if weight.is_finite() { weight.clamp(1.0, 1e12) } else { 1.0 };
        self.beyond += x * (weight - 1.0);
        self.variance += x * x * (weight * weight - weight);
    }
}

/// A site's share of `U`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Part {
    pub amount: u64,
    /// Variance of the division among the sites with samples.
    pub division: f64,
    /// The same, plus the effect of sites without samples.
    pub variance: f64,
}

/// Whether the samples cover the whole time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Times {
    /// Every block could be sampled: all of `U` is divided.
    Whole,
    /// Samples were taken only part of the time.
    Parts,
}

/// Divides `whole` by the weights. The second result is the caller's rest; Σ parts + rest = whole. `unseen` is one mean
/// of the sampling in the unit of `whole`, for sites without samples.
pub(crate) fn divide(whole: u64, weights: &[SampleWeight], times: Times, unseen: f64) -> (Vec<Part>, u64) {
    let sum: f64 = weights.iter().map(|w| w.beyond).sum();
    if whole == 0 || sum <= 0.0 || !sum.is_finite() {
        return (vec![Part::default(); weights.len()], whole);
    }
    let divided = match times {
        Times::Whole => whole,
        Times::Parts => whole.min(sum as u64),
    };
    let scale = divided as f64 / sum;
    let all: f64 = weights.iter().map(|w| w.variance).sum();
    // 1.96 standard deviations correspond to three means, or to all there is.
    let one_more = scale * scale * unseen * unseen;
    let unseen = (3.0 * unseen).min(divided as f64) / 1.96;
    let (mut run, mut given) = (0.0, 0u64);
    let parts = weights.iter().map(|w| {
        // Rounds the running sums, so that the next part gets what rounding takes from this one.
        run += w.beyond;
        let until = ((run * scale).round() as u64).min(divided);
        let amount = until.saturating_sub(given);
        given = given.max(until);
        let r = w.beyond / sum;
        let own = (1.0 - r) * (1.0 - r) * w.variance + r * r * (all - w.variance).max(0.0);
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        let division = scale * scale * own;
        Part {
            amount,
            division: finite(division),
            variance: finite(division + (1.0 - r) * one_more + (r * unseen) * (r * unseen)),
        }
    });
    let mut parts: Vec<Part> = parts.collect();
    // Float sums may end slightly below the total.
    if let Some(last) = parts.iter_mut().rev().find(|p| p.amount > 0) {
        last.amount += divided - given;
        given = divided;
    }
    (parts, whole - given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Three sites of one caller with known sums, sampled 400 times: the parts always sum to the caller's total, are
    /// right on average, and the 95 % interval contains the true value at least about that often.
    #[test]
    fn division_is_unbiased_and_its_bounds_hold() {
        let blocks = [(4000, 64.0), (800, 1024.0), (50, 40_000.0)];
        let mean = 32_768.0;
        let truth = blocks.map(|(n, x)| n as f64 * x);
        let mut random = Random(3);
        let (mut sums, mut held) = ([0.0; 3], [0; 3]);
        let rounds = 400;
        for _ in 0..rounds {
            let mut weights = [SampleWeight::default(); 3];
            let (mut rows, mut all) = ([0.0; 3], 0.0);
            for (s, (n, x)) in blocks.iter().enumerate() {
                let p = 1.0 - (-x / mean).exp();
                for _ in 0..*n {
                    all += x;
                    if random.unit() < p {
                        weights[s].add(*x, 1.0 / p);
                        rows[s] += x;
                    }
                }
            }
            let whole = (all - rows.iter().sum::<f64>()) as u64;
            let (parts, left) = divide(whole, &weights, Times::Whole, mean);
            assert_eq!(parts.iter().map(|p| p.amount).sum::<u64>() + left, whole);
            for s in 0..3 {
                let estimate = rows[s] + parts[s].amount as f64;
                sums[s] += estimate;
                held[s] += i32::from((estimate - truth[s]).abs() <= 1.96 * parts[s].variance.sqrt());
            }
        }
        for s in 0..3 {
            let (mean, truth) = (sums[s] / f64::from(rounds), truth[s]);
            assert!((mean / truth - 1.0).abs() < 0.05, "site {s}: {mean} instead of {truth}");
            let held = f64::from(held[s]) / f64::from(rounds);
            assert!((0.92..=1.0).contains(&held), "site {s}: the interval holds it in {held}");
        }
    }

    #[test]
    fn nothing_is_lost_whatever_the_weights() {
        let mut random = Random(9);
        for round in 0..5000 {
            let n = (random.unit() * 6.0) as usize;
            let weights: Vec<SampleWeight> = (0..n)
                .map(|_| {
                    let mut w = SampleWeight::default();
                    for _ in 0..(random.unit() * 4.0) as usize {
                        w.add((random.unit() * 1e6).floor(), 1.0 / (1.0 - random.unit()));
                    }
                    w
                })
                .collect();
            let whole = [0, 1, 7, u64::MAX / 2, (random.unit() * 1e9) as u64][round % 5];
            for times in [Times::Whole, Times::Parts] {
                let (parts, left) = divide(whole, &weights, times, 1e5);
                assert_eq!(parts.iter().map(|p| p.amount).sum::<u64>() + left, whole, "{weights:?}");
            }
        }
        let mut odd = SampleWeight::default();
        odd.add(1.0, f64::NAN);
        odd.add(1.0, -5.0);
        assert_eq!(odd, SampleWeight::default());
    }
}
