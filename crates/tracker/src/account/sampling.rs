//! Decides which blocks are sampled, and what a sample stands for.
//!
//! Marks form a Poisson process on the line of all requested bytes of a thread. Each block counts eight bytes more, so
//! that an empty block can have a mark. A block is sampled if a mark lies in it. The distance to the next mark is
//! exponential with the given mean. It has no memory, so it may be drawn again at any moment that does not depend on
//! it.
//!
//! ```text
//! p(n) = 1 − exp(−(n + 8) / mean)            a block of n requested bytes is sampled, independently of other blocks
//! Σ 1/p                                      estimates how many blocks there are, Σ x/p the sum of any x over them
//! Σ x² (1 − p) / p²                          estimates the variance of that      (Horvitz and Thompson, 1952)
//! ```
//! The countdown is the distance rounded down to whole bytes: blocks have whole bytes, so this changes no decision.
//!
//! The mean belongs to a distance, not to the process: while the process is sampled often, its threads draw with a
//! larger mean ([`Pace`]), which each keeps until its mark. Only marks that were met, by any thread, determine the
//! mean, never a distance that is still open. So each block's p is known, and the sums stay unbiased.
//!
//! All floating-point arithmetic of the tracker is here and in [`super::samples`], inside of
//! [`cpu::with_usual_floats`]: malloc leaves the program's floating-point environment alone.

use crate::sys::{CachePadded, cpu};
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::{SAMPLE_DOUBLINGS, SAMPLE_MEAN};

/// Bytes that count in addition to the requested ones.
pub const EXTRA: usize = 8;

/// A thread's source of random numbers: xorshift64* (Vigna, 2016). Never 0.
#[derive(Clone, Copy)]
pub struct Random(pub u64);

impl Random {
    /// Any seed is valid.
    pub fn new(seed: u64) -> Random {
        // The finaliser of splitmix64: neighbouring seeds make unlike sequences.
        let x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((x ^ (x >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Bytes to the next mark.
    pub fn countdown(&mut self, mean: u64) -> u64 {
        cpu::with_usual_floats((self.next() >> 11, mean), |(bits, mean)| {
            // In (0, 1]: 53 random bits, plus 1.
            let u = (bits + 1) as f64 * (1.0 / (1u64 << 53) as f64);
            (-ln(u) * mean as f64) as u64
        })
    }
}

/// How fast a process is sampled, and so the mean of its threads. The default mean is doubled while they take more than
/// 1,000 samples a second together, and halved below 250. A mean that the user has set stays.
///
/// A server hands its requests to many threads in turn, each of which takes few samples: what they cost a request
/// depends on their sum. A sample of a JVM's deep stack costs some 6,500 instructions (docs/decisions/java-frames.md).
///
/// One word, since all threads write it: a `Window`. It changes at samples, and rarely at a thread's start.
pub struct Pace(AtomicU64);

/// The pace of this process.
pub static PACE: CachePadded<Pace> = CachePadded(Pace::new());

impl Pace {
    const SAMPLES: u8 = 64;
    const FAST_MS: u32 = 64;
    const SLOW_MS: u32 = 256;

    /// No samples yet.
    pub const fn new() -> Pace {
        Pace(AtomicU64::new(0))
    }

    /// In a fork child, which doesn't allocate as its parent did.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }

    /// The mean of a thread's next distance, at a sample or at the thread's start, which isn't counted. `clock_ms` may
    /// be coarse, and is called at few samples.
    pub fn mean(&self, usual: u64, is_sample: bool, clock_ms: impl Fn() -> u32) -> u64 {
        if usual != SAMPLE_MEAN {
            return usual;
        }
        // Acquire: the clock is read after the window that another thread has begun by that clock.
        let mut known = self.0.load(Acquire);
        loop {
            let mut window = Window::of(known);
            window.count(is_sample, &clock_ms);
            match self.0.compare_exchange_weak(known, window.word(), AcqRel, Acquire) {
                Ok(_) => return usual << window.doublings,
                Err(other) => known = other,
            }
        }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new()
    }
}

/// The samples of a while. A word: doublings 8 │ samples 8 │ since_ms 32.
#[derive(Clone, Copy)]
struct Window {
    /// When the samples began to be counted; it wraps.
    since_ms: u32,
    samples: u8,
    doublings: u8,
}

impl Window {
    fn of(word: u64) -> Window {
        Window { since_ms: word as u32, samples: (word >> 32) as u8, doublings: (word >> 40) as u8 }
    }

    fn word(self) -> u64 {
        u64::from(self.doublings) << 40 | u64::from(self.samples) << 32 | u64::from(self.since_ms)
    }

    fn count(&mut self, is_sample: bool, clock_ms: impl FnOnce() -> u32) {
        self.samples += u8::from(is_sample);
        let is_full = self.samples == Pace::SAMPLES;
        // A process that has become slow is noticed at any sample, not only after a full count of samples.
        if !is_full && self.doublings == 0 {
            return;
        }
        let now_ms = clock_ms();
        let past_ms = now_ms.wrapping_sub(self.since_ms);
        if past_ms > Pace::SLOW_MS {
            let samples = u32::from(self.samples.max(1));
            let times_too_slow = past_ms / Pace::SLOW_MS * u32::from(Pace::SAMPLES) / samples;
            self.doublings = self.doublings.saturating_sub(1 + times_too_slow.ilog2() as u8);
        } else if is_full && past_ms < Pace::FAST_MS && self.doublings < SAMPLE_DOUBLINGS {
            self.doublings += 1;
        }
        if is_full || past_ms > Pace::SLOW_MS {
            (self.since_ms, self.samples) = (now_ms, 0);
        }
    }
}

/// 1/p of a block of `requested` bytes.
pub fn weight(requested: u64, mean: u64) -> f64 {
    let bytes = requested.saturating_add(EXTRA as u64);
    cpu::with_usual_floats((bytes, mean), |(bytes, mean)| 1.0 / one_minus_exp(bytes as f64 / mean as f64))
}

/// Natural logarithm of a positive normal number: 2 artanh((m − 1) / (m + 1)) of the mantissa, √½ ≤ m < √2.
pub fn ln(x: f64) -> f64 {
    const SQRT_HALF: f64 = core::f64::consts::FRAC_1_SQRT_2;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1022;
    let mut m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1022 << 52);
    if m < SQRT_HALF {
        m *= 2.0;
        exponent -= 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let (square, mut sum, mut k) = (s * s, 0.0, 23);
    while k > 0 {
        sum = sum * square + 1.0 / k as f64;
        k -= 2;
    }
    2.0 * s * sum + exponent as f64 * core::f64::consts::LN_2
}

/// 1 − exp(−y) for y ≥ 0, without loss where y is small.
pub fn one_minus_exp(y: f64) -> f64 {
    // The difference from 1 is less than half a unit in the last place.
    if y > 40.0 {
        return 1.0;
    }
    // exp(−y) = 2^−k · exp(−r), 0 ≤ r ≤ ln 2; 1 − exp(−r) = r − r²/2 + r³/6 …
    let k = (y * core::f64::consts::LOG2_E) as u64;
    let r = y - k as f64 * core::f64::consts::LN_2;
    let (mut sum, mut n) = (1.0, 20);
    while n > 1 {
        sum = 1.0 - r * sum / n as f64;
        n -= 1;
    }
    let small = r * sum;
    if k == 0 { small } else { 1.0 - (1.0 - small) * f64::from_bits((1023 - k.min(1022)) << 52) }
}
