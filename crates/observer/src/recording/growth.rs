//! How fast a curve grows, and how certain that is.
//!
//! Memory moves in steps and saw teeth, so one reading largely predicts the next. Least squares over all readings
//! assumes independence and gives a narrow interval around noise. So the range is cut into equal slices of time, and
//! the line is fitted to their means. The interval is Student's for slices - 2 degrees of freedom, 95 %, widened by
//! √((1 + r)/(1 - r)) for the remaining correlation r of neighbouring residuals.

use super::point::Point;

const SLICES: i64 = 24;
const LEAST_SLICES: usize = 6;
/// Below this range, a rate per hour would extrapolate the start-up.
pub const LEAST_RANGE_NS: i64 = 60_000_000_000;
const HOUR_NS: f64 = 3.6e12;

/// Growth per hour, in bytes or in the unit of the series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub per_hour: f64,
    /// Bounds of the 95 % interval.
    pub least: f64,
    pub most: f64,
}

impl Growth {
    pub fn is_up(&self) -> bool {
        self.least > 0.0
    }

    /// Whether it grows, and the interval's lower bound is at least half of the rate.
    pub fn is_tight(&self) -> bool {
        self.per_hour > 0.0 && self.least >= self.per_hour / 2.0
    }
}

/// For points in the order of time; None if there are too few, or if the time is too short.
pub fn growth(points: &[Point]) -> Option<Growth> {
    let (begin, end) = (points.first()?.begin_ns, points.last()?.end_ns);
    let range = end.checked_sub(begin).filter(|range| *range >= LEAST_RANGE_NS)?;
    // (Σ time × n, Σ value, n) of each slice. Time is in hours from the beginning, so that no digits are lost.
    let mut slices = [(0.0, 0.0, 0.0); SLICES as usize];
    for point in points {
        let middle = point.begin_ns / 2 + point.end_ns / 2 - begin;
        let slot = (i128::from(middle) * i128::from(SLICES) / (i128::from(range) + 1)).clamp(0, i128::from(SLICES) - 1);
        let slice = &mut slices[slot as usize];
        let weight = point.count as f64;
        slice.0 += middle as f64 / HOUR_NS * weight;
        slice.1 += point.sum;
        slice.2 += weight;
    }
    let means: Vec<(f64, f64)> =
        slices.iter().filter(|slice| slice.2 > 0.0).map(|(time, sum, n)| (time / n, sum / n)).collect();
    (means.len() >= LEAST_SLICES).then(|| fit(&means))
}

fn fit(means: &[(f64, f64)]) -> Growth {
    let n = means.len() as f64;
    let (mx, my) = (means.iter().map(|(x, _)| x).sum::<f64>() / n, means.iter().map(|(_, y)| y).sum::<f64>() / n);
    let sxx: f64 = means.iter().map(|(x, _)| (x - mx) * (x - mx)).sum();
    let sxy: f64 = means.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    let slope = if sxx > 0.0 { sxy / sxx } else { 0.0 };
    let residuals: Vec<f64> = means.iter().map(|(x, y)| y - my - slope * (x - mx)).collect();
    let sse: f64 = residuals.iter().map(|e| e * e).sum();
    let neighbours: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let r = if sse > 0.0 { (neighbours / sse).clamp(0.0, 0.9) } else { 0.0 };
    let error = (sse / (n - 2.0) / sxx).sqrt() * ((1.0 + r) / (1.0 - r)).sqrt();
    let half = if error.is_finite() { student_975(n - 2.0) * error } else { 0.0 };
    Growth { per_hour: slope, least: slope - half, most: slope + half }
}

/// The 97.5 % quantile of Student's t for ν ≥ 3: Cornish and Fisher's expansion around the normal quantile
/// (Abramowitz and Stegun 26.7.5), within 0.02 at ν = 4.
fn student_975(v: f64) -> f64 {
    let z: f64 = 1.959_963_985;
    z + (z.powi(3) + z) / (4.0 * v)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * v * v)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * v * v * v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn curve(seconds: i64, mut value: impl FnMut(f64) -> f64) -> Vec<Point> {
        (0..seconds).map(|s| Point::one(s * 1_000_000_000, value(s as f64 / 3600.0).max(0.0) as u64)).collect()
    }

    #[test]
    fn a_straight_line_is_found_exactly() {
        let growth = growth(&curve(3600, |h| 1e9 + 3e8 * h)).expect("an hour");
        assert!((growth.per_hour - 3e8).abs() < 10.0 && growth.most - growth.least < 100.0, "{growth:?}");
        assert!(growth.is_up());
    }

    /// The interval contains the true value about as often as stated. This holds for noise without memory and for noise
    /// with memory (AR(1), 0.95: half of a disturbance remains after 13 s). The textbook interval over all readings
    /// fails for the second kind.
    #[test]
    fn intervals_hold_the_truth() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for (memory, at_least) in [(0.0, 0.92), (0.95, 0.90)] {
            let (rounds, mut held, mut up) = (400, 0, 0);
            for round in 0..rounds {
                let truth = if round % 2 == 0 { 0.0 } else { 4e7 };
                let mut noise = 0.0;
                let points = curve(1800, |h| {
                    noise = memory * noise + random.normal() * 2e6;
                    1e9 + truth * h + noise
                });
                let growth = growth(&points).expect("long enough");
                held += u32::from(growth.least <= truth && truth <= growth.most);
                up += u32::from(truth > 0.0 && growth.is_up());
            }
            let share = f64::from(held) / f64::from(rounds);
            assert!(share >= at_least && share < 1.0, "memory {memory}: {share}");
            assert!(up > rounds / 4, "memory {memory}: {up} found to grow");
        }
    }

    #[test]
    fn too_short_curves_give_no_growth() {
        assert_eq!(growth(&curve(59, |h| 1e9 * h)), None);
        assert_eq!(growth(&[]), None);
        let few: Vec<Point> = (0..5).map(|i| Point::one(i * 60_000_000_000, 5)).collect();
        assert_eq!(growth(&few), None);
        let flat = growth(&curve(100, |_| 5.0)).expect("100 s");
        assert_eq!((flat.per_hour, flat.least, flat.most), (0.0, 0.0, 0.0));
        assert!(!flat.is_up());
    }

    #[test]
    fn students_quantiles_equal_the_tables() {
        for (degrees, table) in [(4.0, 2.776), (6.0, 2.447), (10.0, 2.228), (22.0, 2.074), (1e9, 1.960)] {
            assert!((student_975(degrees) - table).abs() < 0.02, "{degrees}: {}", student_975(degrees));
        }
    }
}
