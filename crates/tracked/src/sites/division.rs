//! A caller's figures, divided among its sites and the rest, and what its samples say about each site.

use super::Detail;
use super::builder::SitesBuilder;
use super::columns::{
    CUMULATIVE, CUMULATIVE_COUNT, HELD, LIVE, LIVE_COUNT, MAPPED, MAPPED_COUNT, NOTHING, PEAK, PEAK_COUNT, REQUESTED,
    SiteLine, TEMPORARY, of_figures,
};
use super::estimate::{SampleWeight, Times, divide};
use super::mappings::mapped_calls;
use super::peak::{BYTES, COUNTS, PeakDivision};
use super::rows_and_samples::{RowTotals, Sampled};
use crate::books::{Figures, Mode};
use plimsoll_profiles::profile::Value;

/// Maximum number of threads named for a site.
const THREADS: usize = 5;

impl SitesBuilder<'_> {
    /// A caller's figures: for each of its sites, and (`None`) the rest. They sum to the caller's.
    #[allow(clippy::type_complexity)]
    pub(super) fn divide(
        &self,
        caller: usize,
        figures: &Figures,
        sites: &[usize],
    ) -> Vec<(Option<usize>, SiteLine, Detail)> {
        let none = Sampled::default();
        let of = |site: &usize| self.sampled.get(&(*site as u32)).unwrap_or(&none);
        let mean = self.segment.head.sample_mean.max(self.segment.counter("sample_mean_highest")) as f64;
        let known = |sums: &RowTotals, column: usize| match column {
            LIVE => sums[1].saturating_sub(sums[4]),
            LIVE_COUNT => sums[0].saturating_sub(sums[3]),
            REQUESTED => sums[2].saturating_sub(sums[5]),
            CUMULATIVE => sums[1],
            _ => sums[0],
        };
        let all = of_figures(figures);
        let mut lines = vec![NOTHING; sites.len()];
        let mut rest = NOTHING;
        let mut division = vec![[0.0; 2]; sites.len()];
        let mean_block = figures.cumulative.0 as f64 / figures.cumulative_count.max(1) as f64;
        for column in [LIVE, LIVE_COUNT, REQUESTED, CUMULATIVE, CUMULATIVE_COUNT] {
            let (mut weights, mut booked, mut counted) = (Vec::with_capacity(sites.len()), Vec::new(), 0u64);
            for site in sites {
                let rows = known(&self.rows[*site], column);
                booked.push(rows);
                counted = counted.saturating_add(rows);
                weights.push(match column {
                    LIVE => of(site).bytes,
                    LIVE_COUNT => of(site).count,
                    REQUESTED => of(site).requested,
                    _ => self.cumulative(*site, column, rows),
                });
            }
            let whole = u64::try_from(all[column]).unwrap_or(0).saturating_sub(counted);
            let unseen =
                if matches!(column, LIVE_COUNT | CUMULATIVE_COUNT) { mean / mean_block.max(1.0) } else { mean };
            let (parts, left) = divide(whole, &weights, self.times, unseen);
            for (i, (booked, part)) in booked.into_iter().zip(parts).enumerate() {
                lines[i][column] = Value::estimated(booked.saturating_add(part.amount), part.variance);
                if let LIVE | LIVE_COUNT = column {
                    division[i][column] = part.division;
                }
            }
            rest[column] = Value::exact(left);
        }
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
                let part = s.temporary_bytes as f64 / (s.alloc_bytes.max(1)) as f64;
                line[TEMPORARY] = Value::exact((line[CUMULATIVE].amount as f64 * part.clamp(0.0, 1.0)) as u64);
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

    /// What the samples say about all blocks that a site ever allocated, beyond those in its rows.
    fn cumulative(&self, site: usize, column: usize, rows: u64) -> SampleWeight {
        let Some(s) = self.segment.callers[site].samples().and_then(|i| self.segment.site_samples.get(i)) else {
            return SampleWeight::default();
        };
        let e = if column == CUMULATIVE { s.cumulative_bytes() } else { s.cumulative_count() };
        SampleWeight { beyond: (e.value as f64 - rows as f64).max(0.0), variance: e.variance }
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
            let mut ages = s.ages.clone();
            ages.sort_unstable_by_key(|a| a.0);
            detail.oldest_ns = ages.last().map(|a| a.0);
            let half = ages.iter().map(|a| a.1).sum::<f64>() / 2.0;
            let mut run = 0.0;
            detail.median_age_ns = ages
                .iter()
                .find(|a| {
                    run += a.1;
                    run >= half
                })
                .map(|a| a.0);
            let mut threads: Vec<(String, f64)> =
                s.threads.iter().map(|((slot, g), w)| (self.thread_name(*slot, Some(*g)), *w)).collect();
            threads.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            threads.dedup_by(|a, b| a.0 == b.0);
            detail.threads = threads.into_iter().take(THREADS).map(|t| t.0).collect();
        }
        detail
    }
}
