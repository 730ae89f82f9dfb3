//! account/sampling.rs against exact numbers, account/samples.rs against a twin that keeps every sample.

use crate::segment::counter;
use crate::{Random, alone, fresh};
use plimsoll_segment::sites::Estimate;
use plimsoll_segment::{Counter, SAMPLE_DOUBLINGS, SAMPLE_MEAN, Section, SiteSamplesFacts};
use plimsoll_tracker::account::classify;
use plimsoll_tracker::account::rows::Amount;
use plimsoll_tracker::account::samples::{self, Drawn};
use plimsoll_tracker::account::sampling::{self, Pace};
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::stack::frames::Frame;
use plimsoll_tracker::stack::{callers, frames};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;

/// A site of its own for each number.
pub fn site(segment: Segment, number: u64) -> u32 {
    let caller = classify::caller(segment, &[0x1000], 0, 1);
    let frame = Frame { value: 0x10_0000 + number, kind: plimsoll_segment::FrameKind::Native, flags: 0 };
    let stack = frames::stack(segment, 0, 0, &[frame], &mut [0]).expect("room for a frame");
    callers::site(segment, caller, stack, 0)
}

/// The estimates of a site, through the bytes that a reader has.
fn estimates(segment: Segment, site: u32) -> SiteSamplesFacts {
    let i = segment.caller(site).frames[0].load(Relaxed) as usize;
    assert!(i != 0, "the site was sampled");
    let at = segment.base() + Section::SiteSamples.offset() + i * Section::SiteSamples.entry_bytes();
    // SAFETY: an entry in use.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, Section::SiteSamples.entry_bytes()) };
    SiteSamplesFacts::decode(bytes).expect("whole")
}

#[test]
fn logarithm_and_probability_are_the_exact_ones() {
    let mut random = Random(7);
    for _ in 0..100_000 {
        let x = f64::from_bits((1 + random.below(2046)) << 52 | random.next() >> 12);
        let (got, want) = (sampling::ln(x), x.ln());
        assert!((got - want).abs() <= 4e-16 * want.abs().max(1.0), "ln {x:e}: {got:e}, not {want:e}");
        let y = (random.below(1 << 50) as f64 / (1u64 << 40) as f64) * 10f64.powi(-(random.below(12) as i32));
        let (got, want) = (sampling::one_minus_exp(y), -(-y).exp_m1());
        assert!((got - want).abs() <= 1e-14 * want, "1 - exp(-{y:e}): {got:e}, not {want:e}");
    }
    assert_eq!(sampling::one_minus_exp(1e300), 1.0);
    println!("exercised: 200000 values");
}

/// 200 programs that differ only in their seed, with three sites each: small, medium and large blocks, some of them
/// freed. Unbiased: the mean of the estimates is the truth, within three of its standard errors. Right intervals: the
/// 95 % intervals contain the truth in 93 to 97 % of all cases.
#[test]
fn estimates_are_unbiased_and_their_intervals_honest() {
    const SEEDS: u64 = 200;
    const MEAN: u64 = 64 << 10;
    const SITES: [(u64, u64); 3] = [(56, 120_000), (1000, 30_000), (100_000, 1500)];
    alone(|| {
        let segment = fresh();
        // Figures: live and cumulative bytes, live and cumulative count, of each site.
        let mut errors = [[[0.0f64; 2]; 4]; 3];
        let (mut covered, mut cases, mut taken) = (0u32, 0u32, 0u64);
        for seed in 0..SEEDS {
            let mut random = sampling::Random::new(seed);
            let mut program = Random(seed + 1);
            let of = SITES.map(|(size, _)| site(segment, seed << 20 | size));
            let mut left = SITES.map(|(_, blocks)| blocks);
            let mut truth = [[0u64; 4]; 3];
            let mut countdown = random.countdown(MEAN) as i64;
            let (mut address, mut live) = (0x7000_0000_0000 + (seed << 32), Vec::new());
            while left.iter().any(|n| *n > 0) {
                let which = program.below(3) as usize;
                if left[which] == 0 {
                    continue;
                }
                left[which] -= 1;
                let requested = SITES[which].0;
                let usable = requested + 8;
                address += 1 << 17;
                truth[which][1] += usable;
                truth[which][3] += 1;
                let is_freed = program.below(10) < 6;
                truth[which][0] += if is_freed { 0 } else { usable };
                truth[which][2] += u64::from(!is_freed);
                countdown -= (requested as usize + sampling::EXTRA) as i64;
                if countdown >= 0 {
                    continue;
                }
                let drawn = Drawn { site: of[which], slot: 0, weight: sampling::weight(requested, MEAN) };
                countdown = random.countdown(MEAN) as i64;
                assert!(samples::insert(segment, address as *mut u8, drawn, Amount { usable, requested }));
                taken += 1;
                if is_freed {
                    samples::end(segment, samples::take(segment, address as *mut u8).expect("just entered"));
                } else {
                    live.push(address);
                }
            }
            for (which, truth) in truth.iter().enumerate() {
                let e = estimates(segment, of[which]);
                let figures: [Estimate; 4] =
                    [e.live_bytes(), e.cumulative_bytes(), e.live_count(), e.cumulative_count()];
                for (k, (figure, truth)) in figures.iter().zip(truth).enumerate() {
                    let error = figure.value as f64 - *truth as f64;
                    errors[which][k][0] += error;
                    errors[which][k][1] += error * error;
                    if k == 0 || k == 1 {
                        cases += 1;
                        covered += u32::from(error.abs() <= figure.error() as f64);
                    }
                }
            }
            for address in live {
                samples::end(segment, samples::take(segment, address as *mut u8).expect("still there"));
            }
        }
        for (which, figures) in errors.iter().enumerate() {
            for (k, [sum, squares]) in figures.iter().enumerate() {
                let n = SEEDS as f64;
                let (mean, variance) = (sum / n, squares / n);
                let bound = 3.0 * (variance / n).sqrt() + 1.0;
                assert!(
                    mean.abs() <= bound,
                    "site {which}, figure {k}: off by {mean:.1} on average, {bound:.1} allowed"
                );
            }
        }
        let share = f64::from(covered) / f64::from(cases);
        println!("exercised: {taken} samples; {covered} of {cases} intervals hold the truth, {:.1} %", 100.0 * share);
        assert!((0.93..=0.97).contains(&share), "{covered} of {cases}");
        assert_eq!(counter(segment, Counter::samples), taken);
    });
}

/// A process and its clock.
struct Process {
    pace: Pace,
    now_ns: u64,
}

impl Process {
    fn new() -> Process {
        Process { pace: Pace::new(), now_ns: 1 << 40 }
    }

    fn mean(&self, is_sample: bool) -> u64 {
        // As coarse as the kernel's clock at 250 Hz.
        self.pace.mean(SAMPLE_MEAN, is_sample, || (self.now_ns / 4_000_000 * 4) as u32)
    }
}

/// A thread: the mean that its distance was drawn with.
struct Paced {
    random: sampling::Random,
    mean: u64,
    countdown: i64,
}

impl Paced {
    fn new(seed: u64, of: &Process) -> Paced {
        let mut random = sampling::Random::new(seed);
        let mean = of.mean(false);
        let countdown = random.countdown(mean) as i64;
        Paced { random, mean, countdown }
    }

    /// A block, while the process allocates this many bytes in a millisecond. 1/p, if it is a sample.
    fn block(&mut self, of: &mut Process, requested: u64, rate: u64) -> Option<f64> {
        of.now_ns += requested * 1_000_000 / rate;
        self.countdown -= (requested as usize + sampling::EXTRA) as i64;
        if self.countdown >= 0 {
            return None;
        }
        let weight = sampling::weight(requested, self.mean);
        self.mean = of.mean(true);
        self.countdown = self.random.countdown(self.mean) as i64;
        Some(weight)
    }
}

#[test]
fn a_fast_thread_is_sampled_more_rarely_and_a_slow_one_as_usual() {
    const MOST: u64 = SAMPLE_MEAN << SAMPLE_DOUBLINGS;
    const BLOCK: u64 = 50_000;
    // Bytes a millisecond, and the means that may be in force after two seconds of it.
    let cases = [
        (50 << 10, SAMPLE_MEAN, SAMPLE_MEAN),
        (250 << 10, SAMPLE_MEAN, SAMPLE_MEAN),
        (1200 << 10, 2 * SAMPLE_MEAN, 4 * SAMPLE_MEAN),
        (2500 << 10, 4 * SAMPLE_MEAN, MOST),
        (40 << 20, MOST, MOST),
    ];
    for (rate, least, most) in cases {
        let mut process = Process::new();
        let mut thread = Paced::new(rate, &process);
        let run = |thread: &mut Paced, process: &mut Process, rate: u64, ms: u64| {
            (0..rate * ms / BLOCK).filter(|_| thread.block(process, BLOCK, rate).is_some()).count() as u64
        };
        run(&mut thread, &mut process, rate, 2000);
        assert!((least..=most).contains(&thread.mean), "{rate} bytes/ms: a mean of {}", thread.mean);
        let samples = run(&mut thread, &mut process, rate, 2000);
        println!("exercised: {rate} bytes/ms: {samples} samples in 2 s");
        assert!(samples <= 2500.max(rate * 2000 / MOST * 11 / 10), "{rate} bytes/ms: {samples} samples in 2 s");
        // It slows down: the first mark that it meets gives it the usual mean back.
        process.now_ns += 10_000_000_000;
        while thread.block(&mut process, BLOCK, 1 << 10).is_none() {}
        assert_eq!(thread.mean, SAMPLE_MEAN);
    }
    assert_eq!(Pace::new().mean(4096, true, || unreachable!("a mean that was set doesn't change")), 4096);
    // The start of a thread isn't a sample, and also notices that the process has become slow.
    let pace = Pace::new();
    for _ in 0..2 * 64 {
        pace.mean(SAMPLE_MEAN, true, || 1000);
    }
    assert!((0..10_000).all(|_| pace.mean(SAMPLE_MEAN, false, || 1000) == 2 * SAMPLE_MEAN));
    assert_eq!(pace.mean(SAMPLE_MEAN, false, || 5000), SAMPLE_MEAN);
}

/// Requests go to the threads in turn, as in a server: each thread takes few samples, all of them take many.
#[test]
fn threads_that_allocate_in_turn_are_sampled_as_one() {
    const MOST: u64 = SAMPLE_MEAN << SAMPLE_DOUBLINGS;
    // Blocks of 50,000 bytes at 4 GB/s: two seconds to reach the mean, then two that are counted.
    const RATE: u64 = 4 << 20;
    const BLOCK: u64 = 50_000;
    for threads in [1u64, 10, 100] {
        let mut process = Process::new();
        let mut all: Vec<Paced> = (0..threads).map(|seed| Paced::new(seed, &process)).collect();
        let mut run = |all: &mut [Paced]| {
            let takes = |i: &u64| all[(*i % threads) as usize].block(&mut process, BLOCK, RATE).is_some();
            (0..RATE * 2000 / BLOCK).filter(takes).count() as u64
        };
        run(&mut all);
        let samples = run(&mut all);
        println!("exercised: {threads} threads: {samples} samples in 2 s");
        let most = RATE * 2000 / MOST * 5 / 4;
        assert!(samples <= most, "{threads} threads: {samples} samples in 2 s, {most} allowed");
    }
}

/// Real threads count in one word: no sample is lost, and the mean rises as for one thread.
#[test]
fn samples_of_threads_at_once_are_all_counted() {
    const THREADS: u32 = 4;
    // 63 samples change nothing; the 64th, in the same millisecond, doubles the mean.
    let pace = Pace::new();
    // The first window began long ago: it only sets the time.
    (0..64).for_each(|_| assert_eq!(pace.mean(SAMPLE_MEAN, true, || 1000), SAMPLE_MEAN));
    for doublings in 1..=SAMPLE_DOUBLINGS {
        let means: Vec<u64> = std::thread::scope(|scope| {
            let take = || (0..64 / THREADS).map(|_| pace.mean(SAMPLE_MEAN, true, || 1000)).collect::<Vec<u64>>();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
        });
        let raised = means.iter().filter(|mean| **mean == SAMPLE_MEAN << doublings).count();
        assert_eq!((means.len(), raised), (64, 1), "{means:?}");
    }
}

/// 400 threads that allocate in bursts for one site and slowly for another. The estimates are unbiased, and their
/// variances equal the variance of the 400 results.
#[test]
fn a_mean_that_follows_the_rate_keeps_estimates_unbiased() {
    const THREADS: u32 = 400;
    const SITES: [(u64, u64, u64); 2] = [(30_000, 40 << 20, 20_000), (3000, 200 << 10, 10_000)];
    let (mut errors, mut squares, mut variances, mut raised) = ([0.0; 2], [0.0; 2], [0.0; 2], 0);
    for seed in 0..THREADS {
        let mut process = Process::new();
        let mut thread = Paced::new(u64::from(seed), &process);
        let (mut estimates, mut truth) = ([0.0; 2], [0.0; 2]);
        for _ in 0..3 {
            for (of, (requested, rate, blocks)) in SITES.into_iter().enumerate() {
                for _ in 0..blocks {
                    truth[of] += requested as f64;
                    if let Some(weight) = thread.block(&mut process, requested, rate) {
                        estimates[of] += requested as f64 * weight;
                        variances[of] += (requested * requested) as f64 * weight * (weight - 1.0);
                    }
                }
                raised += u32::from(of == 0 && thread.mean > SAMPLE_MEAN);
            }
        }
        for of in 0..2 {
            let error: f64 = estimates[of] - truth[of];
            errors[of] += error;
            squares[of] += error * error;
        }
    }
    println!("exercised: the mean was raised in {raised} of {} bursts", 3 * THREADS);
    assert!(raised > 2 * THREADS, "{raised}");
    for of in 0..2 {
        let n = f64::from(THREADS);
        let bound = 3.0 * (squares[of] / n / n).sqrt();
        assert!((errors[of] / n).abs() <= bound, "site {of}: off by {}, {bound} allowed", errors[of] / n);
        let ratio = variances[of] / squares[of];
        assert!((0.8..=1.25).contains(&ratio), "site {of}: estimated variance {ratio} times the true one");
    }
}

/// 400 processes of eight threads with one pace: seven that allocate for one site, in bursts, and a slow one that
/// allocates for another. The estimates of both sites are unbiased, and so are their variances.
#[test]
fn a_mean_that_follows_all_threads_keeps_estimates_unbiased() {
    const PROCESSES: u64 = 400;
    const FAST: u64 = 7;
    let (mut errors, mut squares, mut variances, mut raised) = ([0.0; 2], [0.0; 2], [0.0; 2], 0u64);
    for process_seed in 0..PROCESSES {
        let mut process = Process::new();
        let mut threads: Vec<Paced> = (0..=FAST).map(|i| Paced::new(process_seed * 100 + i, &process)).collect();
        let (mut estimates, mut truth) = ([0.0; 2], [0.0; 2]);
        for step in 0..60_000u64 {
            // Bursts at 40 GB/s; between them the slow thread alone, at 200 MB/s.
            let is_burst = step / 10_000 % 2 == 0;
            let (of, requested) = if is_burst && step % 10 != 0 { (0, 30_000) } else { (1, 3000) };
            let rate = if is_burst { 40 << 20 } else { 200 << 10 };
            let by = if of == 0 { step % FAST } else { FAST };
            let thread = &mut threads[by as usize];
            // The slow thread meets most of its marks with a mean that the fast ones have raised.
            let mean = thread.mean;
            truth[of] += requested as f64;
            if let Some(weight) = thread.block(&mut process, requested, rate) {
                estimates[of] += requested as f64 * weight;
                variances[of] += (requested * requested) as f64 * weight * (weight - 1.0);
                raised += u64::from(of == 1 && mean > SAMPLE_MEAN);
            }
        }
        for of in 0..2 {
            let error: f64 = estimates[of] - truth[of];
            errors[of] += error;
            squares[of] += error * error;
        }
    }
    println!("exercised: the slow thread met {raised} marks with a raised mean in {PROCESSES} processes");
    assert!(raised > PROCESSES, "{raised}");
    for of in 0..2 {
        let n = PROCESSES as f64;
        let bound = 3.0 * (squares[of] / n / n).sqrt();
        assert!((errors[of] / n).abs() <= bound, "site {of}: off by {}, {bound} allowed", errors[of] / n);
        let ratio = variances[of] / squares[of];
        assert!((0.8..=1.25).contains(&ratio), "site {of}: estimated variance {ratio} times the true one");
    }
}

/// Samples are added, removed, put back and moved to another site; also beyond the section's capacity.
#[test]
fn the_live_samples_are_those_of_a_twin() {
    alone(|| {
        let segment = fresh();
        let mut random = Random(23);
        let of: Vec<u32> = (0..50).map(|i| site(segment, i)).collect();
        let mut twin = HashMap::<u64, (u32, u64, u64)>::new();
        let mut addresses = Vec::<u64>::new();
        let mut sums = HashMap::<u32, [u64; 2]>::new();
        let share = |usable: u64, weight: u64| (usable as f64 * weight as f64 + 0.5) as u64;
        let (mut entered, mut dropped, mut left, mut stayed, mut moved) = (0u64, 0u64, 0u64, 0u64, 0u64);
        for step in 0..400_000u64 {
            let growing = step % 200_000 < 130_000;
            match random.below(100) {
                n if n < if growing { 78 } else { 20 } || addresses.is_empty() => {
                    let address = 0x5000_0000_0000 + random.below(1 << 36) * 16;
                    if twin.contains_key(&address) {
                        continue;
                    }
                    let (site, usable) = (of[random.below(50) as usize], 16 + random.below(5000));
                    let weight = 1 + random.below(1000);
                    let drawn = Drawn { site, slot: 0, weight: weight as f64 };
                    let amount = Amount { usable, requested: usable - 8 };
                    if samples::insert(segment, address as *mut u8, drawn, amount) {
                        twin.insert(address, (site, usable, weight));
                        addresses.push(address);
                        sums.entry(site).or_default()[0] += share(usable, weight);
                        entered += 1;
                    } else {
                        assert!(twin.len() >= Section::Samples.capacity() / 2, "dropped with {} live", twin.len());
                        dropped += 1;
                    }
                }
                n => {
                    let i = random.below(addresses.len() as u64) as usize;
                    let address = addresses[i];
                    let (site, usable, weight) = twin[&address];
                    let p = address as *mut u8;
                    match n % 4 {
                        0 => {
                            let taken = samples::take(segment, p).expect("a live sample");
                            assert_eq!(samples::take(segment, p), None, "out of reach meanwhile");
                            assert!(samples::put_back(segment, p, taken));
                            stayed += 1;
                        }
                        1 => {
                            let other = of[random.below(50) as usize];
                            assert!(samples::reassign(segment, p, other));
                            sums.entry(site).or_default()[1] += share(usable, weight);
                            sums.entry(other).or_default()[0] += share(usable, weight);
                            twin.insert(address, (other, usable, weight));
                            moved += 1;
                        }
                        _ => {
                            samples::end(segment, samples::take(segment, p).expect("a live sample"));
                            sums.entry(site).or_default()[1] += share(usable, weight);
                            twin.remove(&address);
                            addresses.swap_remove(i);
                            left += 1;
                        }
                    }
                }
            }
        }
        for (site, [alloc, free]) in &sums {
            let e = estimates(segment, *site);
            assert_eq!((e.alloc_bytes, e.free_bytes), (*alloc, *free), "site {site}");
            assert_eq!(e.sizes_256.iter().sum::<u64>(), e.alloc_count_256);
        }
        let live = (0..segment.used(Section::Samples) as u32)
            .map(|i| segment.sample(i).address.load(Relaxed))
            .filter(|address| *address > 1);
        let mut live: Vec<u64> = live.collect();
        live.sort();
        addresses.sort();
        assert_eq!(live, addresses);
        assert_eq!(counter(segment, Counter::samples_dropped), dropped);
        println!("exercised: {entered} entered, {dropped} dropped, {left} left, {stayed} stayed, {moved} moved");
        assert!(dropped > 100 && stayed > 1000 && moved > 1000);
    });
}

/// A native image's block moves to the site of the VM's category a moment after it was made: it wasn't freed.
#[test]
fn a_sample_that_moves_is_no_temporary_block() {
    alone(|| {
        let segment = fresh();
        let [old, new] = [0, 1].map(|i| site(segment, i));
        let p = 0x5000_0000_0000 as *mut u8;
        let drawn = Drawn { site: old, slot: 0, weight: 5.0 };
        assert!(samples::insert(segment, p, drawn, Amount { usable: 56, requested: 48 }));
        assert!(samples::reassign(segment, p, new));
        let [old, new] = [old, new].map(|of| estimates(segment, of));
        assert_eq!((old.alloc_bytes, old.free_bytes, old.temporary_bytes), (280, 280, 0));
        assert_eq!((new.alloc_bytes, new.free_bytes, new.temporary_bytes), (280, 0, 0));
        assert_eq!((old.temporary_count_256, new.temporary_count_256), (0, 0));
    });
}

#[test]
fn no_sample_of_four_threads_is_lost() {
    alone(|| {
        let segment = fresh();
        let of: Vec<u32> = (0..8).map(|i| site(segment, i)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let of = &of;
                scope.spawn(move || {
                    let mut random = Random(thread + 90);
                    let mut live = Vec::new();
                    for i in 0..60_000u64 {
                        if live.len() < 200 || random.below(2) == 0 {
                            let p = (0x6000_0000_0000 + (thread << 40) + i * 64) as *mut u8;
                            let drawn = Drawn { site: of[i as usize % 8], slot: 0, weight: 3.0 };
                            assert!(samples::insert(segment, p, drawn, Amount { usable: 100, requested: 92 }));
                            live.push(p as usize);
                        } else {
                            let p = live.swap_remove(random.below(live.len() as u64) as usize) as *mut u8;
                            samples::end(segment, samples::take(segment, p).expect("this thread's"));
                        }
                    }
                    for p in live {
                        samples::end(segment, samples::take(segment, p as *mut u8).expect("this thread's"));
                    }
                });
            }
        });
        let mut all = 0;
        for site in of {
            let e = estimates(segment, site);
            assert_eq!((e.alloc_samples, e.alloc_bytes), (e.free_samples, e.free_bytes));
            assert_eq!((e.live_bytes().value, e.live_bytes().error()), (0, 0));
            all += e.alloc_samples;
        }
        println!("exercised: {all} samples by four threads");
        assert_eq!(all, counter(segment, Counter::samples));
    });
}
