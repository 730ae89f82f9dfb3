//! A caller's figures, divided among its sites and the rest, and what its samples say about each site.

use super::Detail;
use super::builder::SitesBuilder;
use super::columns::{
    CUMULATIVE, CUMULATIVE_COUNT, HELD, LIVE, LIVE_COUNT, MAPPED, MAPPED_COUNT, NOTHING, PEAK, PEAK_COUNT, REQUESTED,
    SiteLine, TEMPORARY, of_figures,
};
use super::estimate::{SampleWeight, Times, Unseen, fitted};
use super::mappings::mapped_calls;
use super::peak::{BYTES, COUNTS, PeakDivision};
use crate::books::{Figures, Mode};
use plimsoll_profiles::profile::Value;
use weights::{Booked, SiteWeights, shares};

mod weights;

impl SitesBuilder<'_> {
    /// A caller's figures: for each of its sites, and (`None`) the rest. They sum to the caller's.
    #[allow(clippy::type_complexity, reason = "a line and its detail, for one caller of this function")]
    pub(super) fn divide(
        &self,
        caller: usize,
        figures: &Figures,
        sites: &[usize],
    ) -> Vec<(Option<usize>, SiteLine, Detail)> {
        let all = of_figures(figures);
        let mut lines = vec![NOTHING; sites.len()];
        let mut rest = NOTHING;
        let mut division = vec![[0.0; 2]; sites.len()];
        let total = |column: usize| u64::try_from(all[column]).unwrap_or(0);
        let mean = self.segment.head.sample_mean.max(self.segment.counter("sample_mean_highest")) as f64;
        let mean_block = figures.cumulative.0 as f64 / figures.cumulative_count.max(1) as f64;
        let samples: Vec<SiteWeights> = sites.iter().map(|site| self.weights(*site)).collect();
        // Live and freed blocks are divided, and their sum is cumulative: so no site has more live than it allocated.
        for (live, cumulative) in [(LIVE, CUMULATIVE), (LIVE_COUNT, CUMULATIVE_COUNT)] {
            let unseen = if live == LIVE { Unseen::Bytes(mean) } else { Unseen::Blocks(mean / mean_block.max(1.0)) };
            let of =
                |of: fn(&SiteWeights) -> &[Booked; 2]| samples.iter().map(move |s| of(s)[usize::from(live != LIVE)]);
            let freed = total(cumulative).saturating_sub(total(live));
            let (live_parts, live_left) = shares(total(live), of(|s| &s.live), self.times, unseen);
            let (freed_parts, _) = shares(freed, of(|s| &s.freed), self.times, unseen);
            let mut left = total(cumulative);
            for (i, (is, was)) in live_parts.into_iter().zip(freed_parts).enumerate() {
                // A damaged segment may have more live, or freed, than was ever allocated.
                let amount = is.amount.saturating_add(was.amount).min(left);
                lines[i][live] = Value::estimated(is.amount, is.variance);
                lines[i][cumulative] = Value::estimated(amount, is.variance + was.variance);
                division[i][live] = is.division;
                left -= amount;
            }
            rest[live] = Value::exact(live_left);
            rest[cumulative] = Value::exact(left);
        }
        let whole = [total(LIVE), total(REQUESTED)];
        requested(whole, &samples, (self.times, Unseen::Bytes(mean)), &mut lines, &mut rest);
        let exact = self.books.mode == Mode::Exact && self.times == Times::Whole;
        let bytes_at_peak = PeakDivision::of(figures.peak.0, BYTES, &all, lines.iter().chain([&rest]));
        let count_at_peak = PeakDivision::of(figures.count_at_peak, COUNTS, &all, lines.iter().chain([&rest]));
        for (line, site) in lines.iter_mut().zip(sites) {
            let facts = &self.segment.callers[*site];
            let (bytes, count) = match exact && facts.peak_bytes > 0 {
                true => (facts.peak_bytes, facts.count_at_peak),
                false => (bytes_at_peak.part(line), count_at_peak.part(line)),
            };
            let (live, live_count) = (line[LIVE].amount, line[LIVE_COUNT].amount);
            line[PEAK] = Value::exact(bytes.max(live as u64));
            line[PEAK_COUNT] = Value::exact(if bytes > live as u64 { count } else { live_count as u64 });
            if let Some(s) = facts.samples().and_then(|i| self.segment.site_samples.get(i)) {
                let part = s.temporary_bytes as f64 / (s.free_bytes.max(1)) as f64;
                let freed = line[CUMULATIVE].amount.saturating_sub(line[LIVE].amount);
                line[TEMPORARY] = Value::exact((freed as f64 * part.clamp(0.0, 1.0)) as u64);
            }
            self.mappings(*site, line);
        }
        if sites.is_empty() {
            rest[PEAK] = Value::exact(figures.peak.0);
            rest[PEAK_COUNT] = Value::exact(figures.count_at_peak);
        } else {
            rest[PEAK] = match exact {
                true => rest[LIVE],
                false => Value::exact(bytes_at_peak.part(&rest)),
            };
            rest[PEAK_COUNT] = match exact {
                true => rest[LIVE_COUNT],
                false => Value::exact(count_at_peak.part(&rest)),
            };
        }
        self.mappings(caller, &mut rest);
        let of_site = |((site, line), division): ((&usize, SiteLine), [f64; 2])| {
            (Some(*site), line, Detail { division, ..self.detail(*site) })
        };
        let mut out: Vec<_> = sites.iter().zip(lines).zip(division).map(of_site).collect();
        out.push((None, rest, Detail { unsampled: self.books.mode == Mode::Sampled, ..Detail::default() }));
        out
    }

    fn mappings(&self, raw: usize, line: &mut SiteLine) {
        let (calls, bytes) = self.segment.callers.get(raw).map(mapped_calls).unwrap_or_default();
        line[MAPPED] = Value::exact(bytes);
        line[MAPPED_COUNT] = Value::exact(calls);
        line[HELD] = line[LIVE];
    }

    fn detail(&self, site: usize) -> Detail {
        let mut detail = Detail::default();
        if let Some(s) = self.segment.callers[site].samples().and_then(|i| self.segment.site_samples.get(i)) {
            detail.samples = s.alloc_samples;
            detail.sizes = s.sizes_256.map(|n| n / 256);
        }
        if let Some(s) = self.sampled.get(&(site as u32)) {
            detail.live_samples = s.live;
            detail.oldest_ns = s.ages.iter().map(|(age, _)| *age).max();
            detail.ages = s.ages.clone();
            let mut threads: Vec<_> = s.threads.iter().collect();
            threads.sort_unstable_by_key(|(thread, _)| **thread);
            for ((slot, generation), bytes) in threads {
                detail.add_thread(&self.thread_name(*slot, Some(*generation)), *bytes);
            }
        }
        detail
    }
}

/// Requested bytes are the live bytes minus the bytes that the allocator added. The added bytes are divided like the
/// live bytes, so no site has more requested than live.
fn requested(
    whole: [u64; 2],
    samples: &[SiteWeights],
    (times, unseen): (Times, Unseen),
    lines: &mut [SiteLine],
    rest: &mut SiteLine,
) {
    let [live, requested] = whole;
    let added = samples.iter().map(|of| Booked {
        booked: of.live[0].booked.saturating_sub(of.requested.booked),
        weight: SampleWeight {
            beyond: (of.live[0].weight.beyond - of.requested.weight.beyond).max(0.0),
            variance: of.live[0].weight.variance,
        },
    });
    let whole = live.saturating_sub(requested);
    let (parts, left) = shares(whole, added, times, unseen);
    let limit = |line: &SiteLine| u64::try_from(line[LIVE].amount).unwrap_or(0);
    let limits: Vec<u64> = lines.iter().chain([&*rest]).map(limit).collect();
    let parts = parts.into_iter().map(|part| part.amount).chain([left]);
    let parts: Vec<u64> = parts.zip(&limits).map(|(part, limit)| part.min(*limit)).collect();
    for ((line, added), live) in lines.iter_mut().chain([&mut *rest]).zip(fitted(whole, &parts, &limits)).zip(&limits) {
        // The part that was added is small, and so is its error.
        line[REQUESTED] = Value::estimated(live.saturating_sub(added), line[LIVE].variance);
    }
    // Only books that were read while they changed have more requested than live.
    let beyond = i64::try_from(requested.saturating_sub(live)).unwrap_or(i64::MAX);
    rest[REQUESTED].amount = rest[REQUESTED].amount.saturating_add(beyond);
}

#[cfg(test)]
mod tests;
