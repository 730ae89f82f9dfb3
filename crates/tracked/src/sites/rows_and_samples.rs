//! What the segment has about each caller and site: the sums of its rows, and its live samples.

use std::collections::HashMap;

use super::estimate::{SampleWeight, Times};
use crate::segment::Segment;

/// The samples of one site.
#[derive(Clone, Default)]
pub(super) struct Sampled {
    pub(super) bytes: SampleWeight,
    pub(super) requested: SampleWeight,
    pub(super) count: SampleWeight,
    /// Samples in these sums, and their bytes and requested bytes.
    pub(super) stored: [f64; 3],
    /// For live samples: (age, blocks), and bytes by thread.
    pub(super) ages: Vec<(u64, f64)>,
    pub(super) threads: HashMap<(u32, u64), f64>,
    pub(super) live: u64,
}

/// Sums of rows: count, bytes and requested bytes, each of allocations and of frees.
pub(super) type RowTotals = [u64; 6];

pub(super) fn rows(segment: &Segment) -> Vec<RowTotals> {
    let mut sums = vec![RowTotals::default(); segment.callers.len()];
    for row in &segment.rows {
        let Some(sum) = sums.get_mut(row.caller as usize) else { continue };
        let figures =
            [row.alloc_count, row.alloc_bytes, row.alloc_requested, row.free_count, row.free_bytes, row.free_requested];
        sum.iter_mut().zip(figures).for_each(|(s, f)| *s = s.saturating_add(f));
    }
    sums
}

pub(super) fn rows_by_slot(segment: &Segment) -> HashMap<u32, Vec<(u32, f64)>> {
    let mut by: HashMap<u32, Vec<(u32, f64)>> = HashMap::new();
    for row in segment.rows.iter().filter(|row| row.alloc_count > 0) {
        by.entry(row.caller).or_default().push((row.slot, row.alloc_bytes.max(1) as f64));
    }
    by
}

pub(super) fn sampled(segment: &Segment, now_ns: u64) -> HashMap<u32, Sampled> {
    let mut by: HashMap<u32, Sampled> = HashMap::new();
    for sample in &segment.samples {
        let of = by.entry(sample.site).or_default();
        let weight = f64::from_bits(sample.weight);
        let weight = if weight.is_finite() { weight.clamp(1.0, 1e12) } else { 1.0 };
        // In exact mode, the site's own rows contain the blocks for which this sample stands.
        if !(segment.head.mode == 2 && sample.time_ns >= segment.head.in_force_ns) {
            of.bytes.add(sample.usable as f64, weight);
            of.requested.add(sample.requested as f64, weight);
            of.count.add(1.0, weight);
            let amounts = [1.0, sample.usable as f64, sample.requested as f64];
            of.stored.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
        }
        of.live += 1;
        of.ages.push((now_ns.saturating_sub(sample.time_ns), weight));
        *of.threads.entry((sample.slot, sample.generation)).or_default() += sample.usable as f64 * weight;
    }
    by
}

/// Whether every block since the books began could be sampled.
pub(super) fn times(segment: &Segment) -> Times {
    let is_whole = segment.head.mode != 0 && segment.mode_changed_ns().is_none();
    if is_whole && !are_lost(segment) { Times::Whole } else { Times::Parts }
}

/// Whether blocks were to be sampled for which the section of samples had no space. In exact mode no figure needs them.
fn are_lost(segment: &Segment) -> bool {
    segment.head.mode == 1 && segment.counter("samples_dropped") > 0
}

/// Whether the rows of a site have its lost samples, too, and nothing else.
pub(super) fn rows_have_lost(segment: &Segment) -> bool {
    are_lost(segment) && segment.mode_changed_ns().is_none()
}

/// What the lost samples of a site represent: its rows minus the samples that were stored. They count as blocks of the
/// site's average size. So they have the average weight of the stored samples, or, if none was stored, the weight of
/// that size.
pub(super) struct Lost {
    weight: f64,
}

impl Lost {
    pub(super) fn of(segment: &Segment, site: usize, rows: &RowTotals) -> Lost {
        let stored = segment.callers[site].samples().and_then(|i| segment.site_samples.get(i));
        let weight = match stored.filter(|s| s.alloc_samples > 0) {
            Some(s) => s.alloc_count_256 as f64 / 256.0 / s.alloc_samples as f64,
            None => {
                let requested = rows[2] as f64 / rows[0].max(1) as f64;
                let exponent = (requested + OVERHEAD) / segment.head.sample_mean.max(1) as f64;
                1.0 / -(-exponent).exp_m1()
            }
        };
        Lost { weight }
    }

    /// Adds `count` lost samples of `amount` together, in bytes or blocks.
    pub(super) fn add(&self, to: &mut SampleWeight, count: f64, amount: f64) {
        if count >= 1.0 && amount > 0.0 {
            let mut one = SampleWeight::default();
            one.add(amount / count, self.weight);
            to.beyond += count * one.beyond;
            to.variance += count * one.variance;
        }
    }
}

/// A block of n requested bytes is sampled with probability 1 − exp(−(n + 8) / mean) (`plimsoll_segment::Sample`).
const OVERHEAD: f64 = 8.0;
