//! Types with units: a page count can't be added to bytes, and an address can't be printed as a size.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of bytes. Subtraction saturates, because figures of two sources may disagree and no line may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// An address in the running process ("actual virtual memory address").
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Avma(pub u64);

/// An address as linked into an object file ("stated virtual memory address").
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Svma(pub u64);

/// Half-open. `AddressRange::new` swaps nothing: a range whose end is before its start is empty.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    pub start: Avma,
    pub end: Avma,
}

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);

    pub const fn kib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 10))
    }
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 20))
    }
    pub fn abs_diff(self, other: Bytes) -> Bytes {
        Bytes(self.0.abs_diff(other.0))
    }
    /// `self × numerator / denominator` without overflow; 0 if the denominator is 0.
    pub fn scaled(self, numerator: u64, denominator: u64) -> Bytes {
        match denominator {
            0 => Bytes(0),
            d => Bytes(u64::try_from(u128::from(self.0) * u128::from(numerator) / u128::from(d)).unwrap_or(u64::MAX)),
        }
    }
    pub fn percent_of(self, whole: Bytes) -> f64 {
        if whole.0 == 0 { 0.0 } else { self.0 as f64 * 100.0 / whole.0 as f64 }
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}
impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}
impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}
impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        *self = *self - other;
    }
}
impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(bytes: I) -> Bytes {
        bytes.fold(Bytes(0), Add::add)
    }
}

/// Binary units, three significant digits: `3.21 GiB`, `118 MiB`, `96 KiB`, `512 B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // 999.5 would print as 1000: use the next unit if rounding gives four digits.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        f.pad(&format!("{value:.decimals$} {}", UNITS[unit]))
    }
}

impl Avma {
    pub fn offset(self, by: Bytes) -> Avma {
        Avma(self.0.saturating_add(by.0))
    }
}
impl fmt::Debug for Avma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::LowerHex for Avma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
impl fmt::Debug for Svma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "svma {:#x}", self.0)
    }
}

impl AddressRange {
    pub fn new(start: Avma, end: Avma) -> AddressRange {
        AddressRange { start, end: end.max(start) }
    }
    pub fn sized(start: Avma, length: Bytes) -> AddressRange {
        AddressRange { start, end: start.offset(length) }
    }
    pub fn length(self) -> Bytes {
        Bytes(self.end.0.saturating_sub(self.start.0))
    }
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }
    pub fn contains(self, address: Avma) -> bool {
        self.start <= address && address < self.end
    }
    pub fn covers(self, other: AddressRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }
    /// The common part; empty (at `start`) if there is none.
    pub fn intersection(self, other: AddressRange) -> AddressRange {
        AddressRange::new(self.start.max(other.start), self.end.min(other.end))
    }
    pub fn overlaps(self, other: AddressRange) -> bool {
        !self.intersection(other).is_empty()
    }
}
impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.start, self.end)
    }
}

/// `1234567` → `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 thread`, `2,000 threads`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// The parts of `ranges` that are outside `taken`; both are sorted, and `ranges` is disjoint.
pub fn without(ranges: &[AddressRange], taken: &[AddressRange]) -> Vec<AddressRange> {
    let mut left = Vec::new();
    for range in ranges {
        let mut start = range.start;
        let first = taken.partition_point(|taken| taken.end <= range.start);
        for taken in taken[first..].iter().take_while(|taken| taken.start < range.end) {
            if start < taken.start {
                left.push(AddressRange::new(start, taken.start));
            }
            start = start.max(taken.end);
        }
        if start < range.end {
            left.push(AddressRange::new(start, range.end));
        }
    }
    left
}

/// Sorts the ranges and merges those that overlap or touch.
pub fn merged(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable();
    let mut merged: Vec<AddressRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_three_significant_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_023_488, "0.98 MiB"),
            (3_446_711_091, "3.21 GiB"),
            (123_731_968, "118 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_empty() {
        let range = AddressRange::new(Avma(10), Avma(5));
        assert!(range.is_empty());
        assert_eq!(range.length(), Bytes(0));
        assert!(!range.overlaps(AddressRange::new(Avma(0), Avma(100))));
    }
}
