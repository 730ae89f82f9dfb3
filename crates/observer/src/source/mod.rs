//! Where facts come from. Each source has its I/O in `read` and its formats in `parse` (bytes in, facts out). It
//! returns `Sourced<Facts>`: what it found, and a gap for what it could not find.
//! `collect` decides in which order they are read.

pub mod cgroup;
pub mod glibc;
pub(crate) mod golang;
pub(crate) mod heap_data;
pub mod hotspot;
pub(crate) mod jemalloc;
pub mod jfr;
pub mod kernel_log;
pub mod memory;
pub(crate) mod mimalloc;
pub mod native_image;
pub(crate) mod native_objects;
pub(crate) mod opened;
pub mod proc;
pub mod processes;
pub(crate) mod pymalloc;
pub mod segment;
pub(crate) mod tcmalloc;
pub(crate) mod v8;

#[cfg(test)]
pub(crate) mod made_image;
#[cfg(test)]
use crate::random::Random;

/// Copies of `seed` with a few bytes changed, cut, repeated, or replaced by text that parsers tend to mishandle.
/// Deterministic.
#[cfg(test)]
pub(crate) fn mutated(seed: &[u8], rounds: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    const NASTY: [&[u8]; 10] =
        [b"\n", b"\0", b":", b"-", b"18446744073709551615", b"ffffffffffffffff", b"\xff\xfe", b" ", b"\x1b[2J", b"0"];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut next = move |below: usize| random.index(below);
    (0..rounds).map(move |_| {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + next(4) {
            let at = next(bytes.len() + 1).min(bytes.len());
            match next(5) {
                0 if at < bytes.len() => bytes[at] = next(256) as u8,
                1 => {
                    let end = (at + next(40)).min(bytes.len());
                    bytes.drain(at..end);
                }
                2 => {
                    bytes.splice(at..at, NASTY[next(NASTY.len())].iter().copied());
                }
                3 => bytes.truncate(at),
                _ => {
                    let end = (at + next(200)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
        }
        bytes
    })
}
