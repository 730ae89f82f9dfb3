//! Divisions of segments with known blocks.

use std::time::Duration;

use plimsoll_process::foreign::Deadline;
use plimsoll_segment::{
    CALLER_SITE, Caller, CallerFacts, FrameNode, FrameNodeFacts, Sample, SampleFacts, SiteSamples, SiteSamplesFacts,
};

use super::super::Sites;
use super::*;
use crate::books::Books;
use crate::random::Random;
use crate::segment::parse::CounterFacts;
use crate::segment::{Life, RowSums, Segment};
use crate::symbols::{SymbolOptions, Symbols};

/// A site's blocks: how many are live and how many were freed, requested and usable bytes of each.
type Blocks = (u64, u64, u64, u64);

/// What a tracker writes for these sites of one caller, when its section of samples has space for `space` of them.
fn tracked(sites: &[Blocks], mean: u64, space: usize, random: &mut Random) -> Segment {
    let caller = CallerFacts::decode(&[0; size_of::<Caller>()]).expect("zeros decode");
    let node = FrameNodeFacts::decode(&[0; size_of::<FrameNode>()]).expect("zeros decode");
    let sample = SampleFacts::decode(&[0; size_of::<Sample>()]).expect("zeros decode");
    let none = SiteSamplesFacts::decode(&[0; size_of::<SiteSamples>()]).expect("zeros decode");
    let row = |caller: usize| RowSums { caller: caller as u32, ..RowSums::default() };
    let short = [0x9000, 0xa000, 0, 0, 0, 0, 0, 0];
    let mut segment = Segment {
        callers: vec![CallerFacts { depth: 2, frames: short, ..caller.clone() }],
        rows: (0..=sites.len()).map(row).collect(),
        site_samples: vec![none.clone()],
        ..Segment::default()
    };
    (segment.head.mode, segment.head.sample_mean) = (1, mean);
    // The stack of site n has n + 2 frames.
    let chain = |n: usize| FrameNodeFacts { parent: n as u32 - 1, value: (n as u64) << 12, ..node.clone() };
    segment.frames = [node.clone()].into_iter().chain((1..sites.len() + 3).map(chain)).collect();
    let mut dropped = 0;
    for (at, (live, freed, requested, usable)) in sites.iter().enumerate() {
        let site = at + 1;
        let frames = [site as u64, 0, 0, 0, 0, 0, 0, 0];
        segment.callers.push(CallerFacts { flags: CALLER_SITE, stack: site as u32 + 2, frames, ..caller.clone() });
        let p = -(-((requested + 8) as f64) / mean as f64).exp_m1();
        let weight = 1.0 / p;
        let mut of = SiteSamplesFacts { site: site as u32, ..none.clone() };
        let mut variances = [0.0; 2];
        for block in 0..live + freed {
            let is_freed = block >= *live;
            let is_drawn = random.unit() < p;
            let row = &mut segment.rows[if is_drawn { site } else { 0 }];
            (row.alloc_count, row.free_count) = (row.alloc_count + 1, row.free_count + u64::from(is_freed));
            for (alloc, free, bytes) in [
                (&mut row.alloc_bytes, &mut row.free_bytes, usable),
                (&mut row.alloc_requested, &mut row.free_requested, requested),
            ] {
                (*alloc, *free) = (*alloc + bytes, *free + if is_freed { *bytes } else { 0 });
            }
            if !is_drawn {
                continue;
            }
            if !is_freed && segment.samples.len() == space {
                dropped += 1;
                continue;
            }
            let (bytes, count) = ((*usable as f64 * weight + 0.5) as u64, (256.0 * weight + 0.5) as u64);
            (of.alloc_samples, of.alloc_bytes) = (of.alloc_samples + 1, of.alloc_bytes + bytes);
            of.alloc_count_256 += count;
            if is_freed {
                (of.free_samples, of.free_bytes) = (of.free_samples + 1, of.free_bytes + bytes);
                of.free_count_256 += count;
                variances[0] += (usable * usable) as f64 * weight * (weight - 1.0);
                variances[1] += weight * (weight - 1.0);
            } else {
                let (usable, requested) = (*usable, *requested);
                let weight = weight.to_bits();
                let site = site as u32;
                segment.samples.push(SampleFacts { address: 1, usable, requested, weight, site, ..sample.clone() });
            }
        }
        (of.free_bytes_variance, of.free_count_variance) = (variances[0].to_bits(), variances[1].to_bits());
        segment.site_samples.push(of);
    }
    let unit = "count".into();
    segment.counters.push(CounterFacts { name: "samples_dropped".into(), unit, value: dropped });
    segment
}

/// The values of each site, by its number; 0 has the caller's rest.
fn divided(segment: &Segment, sites: usize) -> Vec<SiteLine> {
    let books = Books::new(segment, Life::Exited, 1);
    let without = SymbolOptions { without: true, ..SymbolOptions::default() };
    let mut symbols = Symbols::new(&without, &books, Deadline::after(Duration::from_secs(60)));
    let of = Sites::new(segment, &books, &mut symbols, 1, false);
    let mut lines = vec![NOTHING; sites + 1];
    for (entry, values) in of.profile.entries() {
        let frames = of.profile.frames_of(entry.stack).len();
        lines[frames.saturating_sub(2)].copy_from_slice(values);
    }
    lines
}

/// The true values of a site in these columns.
fn truth((live, freed, requested, usable): Blocks) -> [(usize, u64); 5] {
    [
        (LIVE, live * usable),
        (LIVE_COUNT, live),
        (CUMULATIVE, (live + freed) * usable),
        (CUMULATIVE_COUNT, live + freed),
        (REQUESTED, live * requested),
    ]
}

/// Every report is possible: no site has more live than it allocated, or more requested than live, and all sites
/// together equal what was counted. On average the figures are right, and the intervals hold.
#[test]
fn a_sites_figures_agree_with_each_other() {
    const SITES: [Blocks; 4] =
        [(600, 100, 900, 1008), (100, 0, 6000, 6000), (0, 130, 3000, 3016), (180, 6, 2500, 2512)];
    const ROUNDS: u32 = 1000;
    let mut random = Random(11);
    let mut sums = [[0.0; 5]; SITES.len()];
    let (mut seen, mut held) = ([0u32; SITES.len()], [[0u32; 5]; SITES.len()]);
    let (mut more_live, mut more_requested) = (0, 0);
    for _ in 0..ROUNDS {
        let segment = tracked(&SITES, 32 << 10, usize::MAX, &mut random);
        let lines = divided(&segment, SITES.len());
        for column in 0..5 {
            let all: u64 = SITES.iter().map(|site| truth(*site)[column].1).sum();
            let at = truth(SITES[0])[column].0;
            assert_eq!(lines.iter().map(|line| line[at].amount).sum::<i64>() as u64, all, "column {at}");
        }
        for line in &lines {
            more_live += u32::from(line[LIVE].amount > line[CUMULATIVE].amount);
            more_live += u32::from(line[LIVE_COUNT].amount > line[CUMULATIVE_COUNT].amount);
            more_requested += u32::from(line[REQUESTED].amount > line[LIVE].amount);
            assert!(line[TEMPORARY].amount <= line[CUMULATIVE].amount - line[LIVE].amount);
        }
        for (site, line) in lines[1..].iter().enumerate() {
            let is_seen = segment.site_samples[site + 1].alloc_samples > 0;
            seen[site] += u32::from(is_seen);
            for (i, (column, truth)) in truth(SITES[site]).into_iter().enumerate() {
                sums[site][i] += line[column].amount as f64 / truth.max(1) as f64;
                let off = (line[column].amount as u64).abs_diff(truth);
                held[site][i] += u32::from(is_seen && off <= line[column].error());
            }
        }
    }
    assert_eq!((more_live, more_requested), (0, 0));
    for (site, blocks) in SITES.into_iter().enumerate() {
        for (i, (column, truth)) in truth(blocks).into_iter().enumerate() {
            let (mean, held) = (sums[site][i] / f64::from(ROUNDS), f64::from(held[site][i]) / f64::from(seen[site]));
            println!("site {site}, column {column}: {mean:.3} of the truth, held in {held:.3}");
            let is_bytes = !matches!(column, LIVE_COUNT | CUMULATIVE_COUNT);
            assert!(truth == 0 || !is_bytes || (mean - 1.0).abs() < 0.05, "site {site}, column {column}: {mean}");
            // The bound for 1,000 rounds: 0.95 minus three standard deviations. `estimate.rs` tests the bounds more
            // closely.
            assert!(held >= 0.93, "site {site}, column {column}: the interval holds in {held}");
        }
    }
}

/// The section of samples is full before the second site allocates. The rows have its samples.
#[test]
fn lost_samples_make_no_wrong_division() {
    const SITES: [Blocks; 3] = [(4000, 0, 400, 408), (4000, 1000, 400, 408), (50, 0, 3000, 3016)];
    let mut random = Random(7);
    let mut held = 0;
    for _ in 0..20 {
        let segment = tracked(&SITES, 1024, 1000, &mut random);
        assert!(segment.counter("samples_dropped") > 1000 && segment.samples.len() == 1000);
        let lines = divided(&segment, SITES.len());
        for column in 0..5 {
            let all: u64 = SITES.iter().map(|site| truth(*site)[column].1).sum();
            let at = truth(SITES[0])[column].0;
            assert_eq!(lines.iter().map(|line| line[at].amount).sum::<i64>() as u64, all, "column {at}");
        }
        for (line, site) in lines[1..].iter().zip(SITES) {
            for (column, truth) in truth(site) {
                let off = (line[column].amount as u64).abs_diff(truth);
                held += u32::from(off <= line[column].error());
                assert!(
                    off as f64 <= truth as f64 * 0.2,
                    "column {column}: {} instead of {truth}",
                    line[column].amount
                );
            }
        }
    }
    assert!(held >= 20 * 15 * 94 / 100, "{held} of {}", 20 * 15);
}
