//! What rows and samples say about each of a caller's sites, before the caller's figures are divided by these weights.

use super::super::builder::SitesBuilder;
use super::super::estimate::{Part, SampleWeight, Times, Unseen, divide};
use super::super::rows_and_samples::{Lost, rows_have_lost};

/// What a site's rows have of a figure, and what its samples say about the blocks beyond them.
#[derive(Clone, Copy, Default)]
pub(super) struct Booked {
    pub(super) booked: u64,
    pub(super) weight: SampleWeight,
}

impl Booked {
    fn of(booked: u64) -> Booked {
        Booked { booked, ..Booked::default() }
    }
}

/// A site's figures; the arrays have bytes and blocks.
pub(super) struct SiteWeights {
    pub(super) live: [Booked; 2],
    pub(super) freed: [Booked; 2],
    pub(super) requested: Booked,
}

/// Each site's share of a caller's figure with its booked part, and what is left for the caller.
pub(super) fn shares(total: u64, of: impl Iterator<Item = Booked>, times: Times, unseen: Unseen) -> (Vec<Part>, u64) {
    let (booked, weights): (Vec<u64>, Vec<SampleWeight>) = of.map(|of| (of.booked, of.weight)).unzip();
    let counted = booked.iter().fold(0u64, |sum, booked| sum.saturating_add(*booked));
    let (mut parts, left) = divide(total.saturating_sub(counted), &weights, times, unseen);
    for (part, booked) in parts.iter_mut().zip(booked) {
        part.amount = part.amount.saturating_add(booked);
    }
    (parts, left)
}

impl SitesBuilder<'_> {
    /// What rows and samples say about a site.
    pub(super) fn weights(&self, site: usize) -> SiteWeights {
        let rows = &self.rows[site];
        let [count, bytes, requested, freed_count, freed_bytes, freed_requested] = *rows;
        let live = |allocated: u64, freed: u64| allocated.saturating_sub(freed);
        let mut of = SiteWeights {
            live: [Booked::of(live(bytes, freed_bytes)), Booked::of(live(count, freed_count))],
            freed: [Booked::of(freed_bytes.min(bytes)), Booked::of(freed_count.min(count))],
            requested: Booked::of(live(requested, freed_requested)),
        };
        let mut stored = [0.0; 3];
        if let Some(s) = self.sampled.get(&(site as u32)) {
            (of.live[0].weight, of.live[1].weight, of.requested.weight) = (s.bytes, s.count, s.requested);
            stored = s.stored;
        }
        let samples = self.segment.callers[site].samples().and_then(|i| self.segment.site_samples.get(i));
        let has_lost = rows_have_lost(self.segment);
        let lost = Lost::of(self.segment, site, rows);
        let count = freed_count as f64 - samples.map_or(0.0, |s| s.free_samples as f64);
        // The samples have no sum of the bytes themselves, so the lost samples get a share in proportion to their
        // number.
        let share = if has_lost { (count / freed_count.max(1) as f64).clamp(0.0, 1.0) } else { 0.0 };
        for (of, e) in of.freed.iter_mut().zip(samples.map(|s| [s.freed_bytes(), s.freed_count()]).unwrap_or_default())
        {
            let of_lost = of.booked as f64 * share;
            let beyond = e.value as f64 - (of.booked as f64 - of_lost);
            of.weight = SampleWeight { beyond: beyond.max(0.0), variance: e.variance };
            lost.add(&mut of.weight, freed_count as f64 * share, of_lost);
        }
        if has_lost {
            let count = of.live[1].booked as f64 - stored[0];
            let amounts = [of.live[0].booked as f64 - stored[1], count, of.requested.booked as f64 - stored[2]];
            let [of_bytes, of_count] = &mut of.live;
            for (of, amount) in [of_bytes, of_count, &mut of.requested].into_iter().zip(amounts) {
                lost.add(&mut of.weight, count, amount);
            }
        }
        of
    }
}
