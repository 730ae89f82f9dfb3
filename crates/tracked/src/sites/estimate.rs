//! How a caller's blocks are divided among its sites. Pure arithmetic.
//!
//! ```text
//! caller, exact    L = U + Σ R(s)      R: blocks booked in the site's own rows (exact mode: all; sampled: the samples)
//! sample i         of x bytes, with probability p: it stands for itself, which is in R, and for u = x(1 − p)/p in U
//! site             Ê(s) = R(s) + U · u(s)/Σu          so that Σ Ê = L, by construction
//! ```
//! The caller's total is known, so only the division is estimated (a ratio estimator). With r = u(s)/Σu and v(s) = Σ
//! x²(1 − p)/p², its variance is (U/Σu)² · [(1 − r)² v(s) + r² (Σv − v(s))]. A site without samples isn't seen. With
//! 95 % probability it has less than 3 means of bytes, by which the other sites are then too high. This is added to the
//! variance, and so is the variance of one more sample, because with few samples the estimated variance is often too
//! low.
//!
//! How many blocks these bytes are depends on their size, which nobody knows: a site of 20,000 blocks of 16 bytes often
//! has no sample. The blocks that the samples leave over, |U − Σu|, show how many there may be. So the larger of the
//! two numbers is the bound.
//!
//! If the mode was switched, or samples were lost, U also has blocks that no sample could represent. Then u(s) itself is
//! the estimate, with variance v(s), and the caller keeps the rest.

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
    /// `division`, plus the effect of sites without samples.
    pub variance: f64,
}

/// What sites without samples may have: one mean of the sampling, in the unit of the division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unseen {
    Bytes(f64),
    /// Blocks of the caller's average size. An unseen site may have smaller ones.
    Blocks(f64),
}

/// Whether the samples cover all blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Times {
    /// Every block could be sampled: all of `U` is divided.
    Whole,
    /// Samples were taken only part of the time, or some were lost.
    Parts,
}

/// Divides `whole` by the weights. The second result is the caller's rest; Σ parts + rest = whole.
pub(crate) fn divide(whole: u64, weights: &[SampleWeight], times: Times, unseen: Unseen) -> (Vec<Part>, u64) {
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
    let (Unseen::Bytes(mean) | Unseen::Blocks(mean)) = unseen;
    let one_more = scale * scale * mean * mean;
    // 1.96 standard deviations correspond to three means.
    let missed = match (times, unseen) {
        (Times::Parts, _) => 0.0,
        (Times::Whole, Unseen::Bytes(mean)) => 3.0 * mean / 1.96,
        (Times::Whole, Unseen::Blocks(mean)) => (3.0 * mean / 1.96).max((divided as f64 - sum).abs()),
    };
    // The estimate can't be wrong by more than all there is.
    let missed = missed.min(divided as f64);
    let (mut run, mut given) = (0.0, 0u64);
    let parts = weights.iter().map(|w| {
        // Rounds the running sums, so that the next part gets what rounding takes from this one.
        run += w.beyond;
        let until = ((run * scale).round() as u64).min(divided);
        let amount = until.saturating_sub(given);
        given = given.max(until);
        let r = w.beyond / sum;
        let own = match times {
            Times::Whole => (1.0 - r) * (1.0 - r) * w.variance + r * r * (all - w.variance).max(0.0),
            Times::Parts => w.variance,
        };
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        let division = scale * scale * own;
        Part {
            amount,
            division: finite(division),
            variance: finite(division + (1.0 - r) * one_more + (r * missed) * (r * missed)),
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

/// Changes `amounts` so that they sum to `whole` and none is above its limit. All get less in proportion to their
/// amounts, or more in proportion to the space up to their limits. The last amount gets what is beyond all limits. No
/// amount may be above its limit before the call.
pub(crate) fn fitted(whole: u64, amounts: &[u64], limits: &[u64]) -> Vec<u64> {
    let sum = |of: &[u64]| of.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    let has = sum(amounts);
    let space: Vec<u64> = amounts.iter().zip(limits).map(|(amount, limit)| limit.saturating_sub(*amount)).collect();
    let (parts, change) = if has > whole { (amounts, has - whole) } else { (&*space, whole - has) };
    let all = u128::from(sum(parts).max(1));
    let placed = u128::from(change).min(all);
    // Differences of rounded running sums: each is at most its part.
    let (mut run, mut given) = (0u128, 0u64);
    let mut out: Vec<u64> = parts
        .iter()
        .zip(amounts)
        .map(|(part, amount)| {
            run += u128::from(*part);
            let until = (run.min(all) * placed / all) as u64;
            let by = until.saturating_sub(given);
            given = given.max(until);
            if has > whole { amount.saturating_sub(by) } else { amount.saturating_add(by) }
        })
        .collect();
    if let Some(last) = out.last_mut().filter(|_| has < whole) {
        *last = last.saturating_add(change - given);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A caller's sites: number, requested and usable bytes of their blocks.
    type Shape = &'static [(f64, f64, f64)];

    /// Number of `n` blocks that are sampled, each with probability `p`, by the gaps between them.
    fn drawn(random: &mut Random, n: f64, p: f64) -> f64 {
        let (mut at, mut drawn) = (0.0, 0.0);
        loop {
            at += 1.0 + ((1.0 - random.unit()).ln() / (-p).ln_1p()).floor();
            if at > n {
                return drawn;
            }
            drawn += 1.0;
        }
    }

    /// Callers with known sums, sampled many times: the parts always sum to the caller's total. The 95 % interval of a
    /// site with samples contains the true value at least about that often. On average the bytes are right. The numbers
    /// of blocks aren't right where sizes differ: the blocks of a site without samples are counted among the others,
    /// and the others' interval shows that.
    #[test]
    fn division_is_unbiased_and_its_bounds_hold() {
        const MEAN: f64 = 524_288.0;
        const ROUNDS: u32 = 2000;
        let shapes: [(&str, Shape); 7] = [
            ("tiny blocks beside big ones", &[(20_000.0, 16.0, 24.0), (1000.0, 50_000.0, 50_008.0)]),
            ("tiny blocks of two sites", &[(5000.0, 32.0, 40.0), (5000.0, 32.0, 40.0), (100.0, 20_000.0, 20_008.0)]),
            (
                "mixed",
                &[
                    (60_000.0, 100.0, 112.0),
                    (20_000.0, 1000.0, 1008.0),
                    (300.0, 50_000.0, 50_000.0),
                    (15_000.0, 300.0, 304.0),
                    (100.0, 2000.0, 2000.0),
                ],
            ),
            ("alike", &[(10_000.0, 400.0, 408.0), (10_000.0, 400.0, 408.0)]),
            ("small", &[(1000.0, 100.0, 104.0); 40]),
            ("one large", &[(100_000.0, 1000.0, 1008.0), (1000.0, 64.0, 72.0), (200.0, 4000.0, 4008.0)]),
            (
                "all sizes",
                &[
                    (100_000.0, 16.0, 24.0),
                    (10_000.0, 256.0, 264.0),
                    (1000.0, 4096.0, 4104.0),
                    (100.0, 65_536.0, 65_536.0),
                    (10.0, 1_048_576.0, 1_048_576.0),
                ],
            ),
        ];
        let mut random = Random(3);
        for (name, sites) in shapes {
            let bytes: f64 = sites.iter().map(|(n, _, usable)| n * usable).sum();
            let blocks: f64 = sites.iter().map(|(n, ..)| n).sum();
            let unseen = [Unseen::Bytes(MEAN), Unseen::Blocks(MEAN / (bytes / blocks))];
            let mut sums = vec![0.0; sites.len()];
            let mut seen = vec![0u32; sites.len()];
            let mut held = vec![[0u32; 2]; sites.len()];
            for _ in 0..ROUNDS {
                let mut weights = [vec![], vec![]];
                let mut counts = vec![];
                for (n, requested, usable) in sites {
                    let p = 1.0 - (-(requested + 8.0) / MEAN).exp();
                    let drawn = drawn(&mut random, *n, p);
                    for (weights, amount) in weights.iter_mut().zip([*usable, 1.0]) {
                        let mut one = SampleWeight::default();
                        one.add(amount, 1.0 / p);
                        weights.push(SampleWeight { beyond: drawn * one.beyond, variance: drawn * one.variance });
                    }
                    counts.push(drawn);
                }
                for unit in 0..2 {
                    let amount = |site: usize| if unit == 0 { sites[site].2 } else { 1.0 };
                    let booked: f64 = counts.iter().enumerate().map(|(site, drawn)| drawn * amount(site)).sum();
                    let whole = ([bytes, blocks][unit] - booked) as u64;
                    let (parts, left) = divide(whole, &weights[unit], Times::Whole, unseen[unit]);
                    assert_eq!(parts.iter().map(|p| p.amount).sum::<u64>() + left, whole);
                    for (site, part) in parts.iter().enumerate() {
                        let truth = sites[site].0 * amount(site);
                        let estimate = counts[site] * amount(site) + part.amount as f64;
                        sums[site] += if unit == 0 { estimate / truth } else { 0.0 };
                        let holds = (estimate - truth).abs() <= 1.96 * part.variance.sqrt();
                        held[site][unit] += u32::from(holds && counts[site] > 0.0);
                        seen[site] += u32::from(unit == 0 && counts[site] > 0.0);
                    }
                }
            }
            for site in 0..sites.len() {
                let expected = f64::from(seen[site]) / f64::from(ROUNDS) * sites[site].0 * sites[site].1 / MEAN;
                let mean = sums[site] / f64::from(ROUNDS);
                // The mean of 2,000 rounds of `expected` samples each varies itself.
                let noise = 4.0 / (f64::from(ROUNDS) * expected.max(0.1)).sqrt();
                assert!((mean - 1.0).abs() < 0.05 + noise, "{name}, site {site}: {mean} of the truth");
                for (unit, words) in ["bytes", "blocks"].into_iter().enumerate() {
                    let held = f64::from(held[site][unit]) / f64::from(seen[site]);
                    assert!(held >= 0.94, "{name}, site {site}: the interval holds its {words} in {held}");
                }
            }
        }
    }

    #[test]
    fn amounts_fit_their_limits() {
        assert_eq!(fitted(100, &[10, 20, 0], &[30, 20, 100]), [21, 20, 59]);
        assert_eq!(fitted(10, &[10, 20, 0], &[30, 20, 100]), [4, 6, 0]);
        // More than all limits: the last amount gets the excess.
        assert_eq!(fitted(60, &[10, 20, 0], &[10, 20, 5]), [10, 20, 30]);
        assert_eq!(fitted(7, &[], &[]), [0u64; 0]);
        let mut random = Random(5);
        for _ in 0..5000 {
            let limits: Vec<u64> = (0..1 + random.index(6)).map(|_| random.below(1000)).collect();
            let amounts: Vec<u64> = limits.iter().map(|limit| random.below(limit + 1)).collect();
            let whole = random.below(limits.iter().sum::<u64>() + 1);
            let fitted = fitted(whole, &amounts, &limits);
            assert_eq!(fitted.iter().sum::<u64>(), whole, "{amounts:?} {limits:?}");
            assert!(fitted.iter().zip(&limits).all(|(amount, limit)| amount <= limit), "{fitted:?} {limits:?}");
        }
        let huge = [u64::MAX; 3];
        assert_eq!(fitted(u64::MAX, &huge, &huge).len(), 3);
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
                let (parts, left) = divide(whole, &weights, times, Unseen::Bytes(1e5));
                assert_eq!(parts.iter().map(|p| p.amount).sum::<u64>() + left, whole, "{weights:?}");
            }
        }
        let mut odd = SampleWeight::default();
        odd.add(1.0, f64::NAN);
        odd.add(1.0, -5.0);
        assert_eq!(odd, SampleWeight::default());
    }
}
