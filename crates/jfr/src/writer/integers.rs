//! Encodes compressed integers and strings.
//!
//! An integer is written in groups of 7 bits, lowest first; a set high bit means that more follow. A ninth byte carries
//! 8 bits, so a long takes at most 9 bytes.

use crate::format::text::{EMPTY, NULL, UTF8};

pub(super) fn long(out: &mut Vec<u8>, mut value: u64) {
    for _ in 0..8 {
        if value < 0x80 {
            return out.push(value as u8);
        }
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Number of bytes that `long` writes.
pub(super) fn length(value: u64) -> usize {
    match 64 - value.leading_zeros() as usize {
        0 => 1,
        bits => bits.div_ceil(7).min(9),
    }
}

/// Encodes 28 bits in exactly 4 bytes, so that the value can be changed in place.
pub(super) const fn padded(value: u32) -> [u8; 4] {
    [value as u8 | 0x80, (value >> 7) as u8 | 0x80, (value >> 14) as u8 | 0x80, (value >> 21) as u8 & 0x7f]
}

pub(super) fn string(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => out.push(NULL),
        Some("") => out.push(EMPTY),
        Some(text) => {
            out.push(UTF8);
            long(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// Appends an event with this body. The size of an event includes the bytes of the size itself.
pub(super) fn event(out: &mut Vec<u8>, body: &[u8]) {
    let mut size = body.len() as u64 + 1;
    while length(size) + body.len() != size as usize {
        size += 1;
    }
    long(out, size);
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decoder as in the JDK's RecordingInput.readLong, written from the description above.
    fn read(bytes: &[u8]) -> (u64, usize) {
        let mut value = 0u64;
        for (index, byte) in bytes.iter().enumerate() {
            if index == 8 {
                return (value | u64::from(*byte) << 56, 9);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return (value, index + 1);
            }
        }
        panic!("the integer has no end");
    }

    #[test]
    fn integers_are_read_back() {
        let mut lengths = [0; 10];
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift, (1 << shift) | 0x2545_f491] {
                let mut out = Vec::new();
                long(&mut out, value);
                assert_eq!(read(&out), (value, out.len()));
                assert_eq!(length(value), out.len(), "{value}");
                lengths[out.len()] += 1;
            }
        }
        assert!(lengths[1..].iter().all(|count| *count > 0), "{lengths:?}");
        for value in [0, 127, 128, 4096, (1 << 28) - 1] {
            assert_eq!(read(&padded(value)), (u64::from(value), 4));
        }
    }

    #[test]
    fn the_size_of_an_event_counts_itself() {
        for body in [1, 100, 126, 127, 128, 16_380, 16_381, 16_382, 16_383] {
            let mut out = Vec::new();
            event(&mut out, &vec![0; body]);
            assert_eq!(read(&out).0 as usize, out.len(), "{body}");
        }
    }
}
