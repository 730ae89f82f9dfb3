//! Medians of alternating runs, and how far to trust the ratio of two.

use crate::random::Random;

/// The median of the ratios of pairs, or of plain figures, with a 95 % bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    /// Compares the ratio with a bar: it holds or fails only if the whole interval does.
    pub fn verdict(&self, bar: f64) -> &'static str {
        match (self.high <= bar, self.low > bar) {
            (true, _) => "holds",
            (_, true) => "fails",
            _ => "open",
        }
    }

    /// The same with the ratio of plain to plain. If that ratio may be off by more than the bar allows, the runs could
    /// not have shown that the bar holds, so it doesn't hold. The bar fails only beyond the noise.
    pub fn verdict_beside(&self, bar: f64, again: &Ratio) -> String {
        if again.low >= 2.0 - bar && again.high <= bar {
            return self.verdict(bar).into();
        }
        let noise = (1.0 - again.low).max(again.high - 1.0);
        match (self.low > bar.max(again.high), noise.is_finite()) {
            (true, _) => "fails".into(),
            (_, true) => format!("open: A/A ± {:.0} %", 100.0 * noise),
            _ => "open: few rounds".into(),
        }
    }
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The median of b/a over rounds: a slow change of the machine's speed does not widen the interval.
pub fn paired(a: &[f64], b: &[f64]) -> Ratio {
    bootstrap(a.len().min(b.len()), |picks| median(&picks.iter().map(|pick| b[*pick] / a[*pick]).collect::<Vec<_>>()))
}

/// The median of figures that have no pair.
pub fn bounded(values: &[f64]) -> Ratio {
    bootstrap(values.len(), |picks| median(&picks.iter().map(|pick| values[*pick]).collect::<Vec<_>>()))
}

/// The figure of all rounds, and its 2.5th and 97.5th percentiles over 2,000 resamples with a fixed seed.
fn bootstrap(rounds: usize, figure: impl Fn(&[usize]) -> f64) -> Ratio {
    let value = figure(&(0..rounds).collect::<Vec<_>>());
    if rounds < 3 {
        return Ratio { value, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let mut ratios: Vec<f64> = (0..2000)
        .map(|_| {
            let picks: Vec<usize> = (0..rounds).map(|_| random.index(rounds)).collect();
            figure(&picks)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    Ratio { value, low: ratios[50], high: ratios[1949] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn beside_noise_a_bar_never_holds_and_fails_only_beyond_it() {
        let of = |low, high| Ratio { value: (low + high) / 2.0, low, high };
        // Figures of PostgreSQL's processor time, 2026-11-27.
        assert_eq!(of(0.893, 1.167).verdict_beside(1.03, &of(0.789, 1.197)), "open: A/A ± 21 %");
        assert_eq!(of(0.9, 1.02).verdict_beside(1.03, &of(0.96, 1.01)), "open: A/A ± 4 %");
        assert_eq!(of(1.04, 1.3).verdict_beside(1.03, &of(0.99, 1.05)), "open: A/A ± 5 %");
        assert_eq!(of(1.06, 1.3).verdict_beside(1.03, &of(0.99, 1.05)), "fails");
        let quiet = of(0.97, 1.03);
        let verdicts = [of(0.9, 1.02), of(1.02, 1.04), of(1.04, 1.1)].map(|own| own.verdict_beside(1.03, &quiet));
        assert_eq!(verdicts, ["holds", "open", "fails"]);
        let few = of(f64::NEG_INFINITY, f64::INFINITY);
        assert_eq!(quiet.verdict_beside(1.03, &few), "open: few rounds");
    }

    #[test]
    fn a_bound_holds_the_true_ratio_and_narrows() {
        // Each round is slower than the last by more than the two differ.
        let noise = |i: usize| ((i * 7919) % 101) as f64 / 1000.0;
        let a: Vec<f64> = (0..31).map(|i| (10.0 + noise(i)) * (1.0 + i as f64)).collect();
        let b: Vec<f64> = (0..31).map(|i| (12.0 + noise(i * 3 + 1)) * (1.0 + i as f64)).collect();
        let (wide, narrow) = (paired(&a[..5], &b[..5]), paired(&a, &b));
        assert!(narrow.low <= 1.2 && 1.2 <= narrow.high, "{narrow:?}");
        assert!(narrow.high - narrow.low < wide.high - wide.low, "{narrow:?} {wide:?}");
        assert_eq!((narrow.verdict(1.25), narrow.verdict(1.1)), ("holds", "fails"));
        assert_eq!(paired(&a[..2], &b[..2]).verdict(1.25), "open");
    }

    #[test]
    fn a_median_beside_its_bar_is_open() {
        let walls = [932.0, 940.0, 925.0, 1161.0, 930.0, 1040.0, 1100.0, 935.0, 1010.0];
        let bound = bounded(&walls);
        assert_eq!(bound.value, 940.0);
        assert_eq!((bound.verdict(1000.0), bound.verdict(1200.0), bound.verdict(900.0)), ("open", "holds", "fails"));
        assert_eq!(bounded(&walls[..2]).verdict(2000.0), "open");
    }
}
