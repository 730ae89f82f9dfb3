//! Reads how much more of a group's memory the kernel may swap out before it kills.
//!
//!   version 2: the least of SwapFree and, of each group from the target's up, memory.swap.max − memory.swap.current
//!   version 1: instead of the latter, what the limit of memory and swap leaves beyond the limit of memory
//!
//! With a swappiness of 0, the kernel swaps nothing for the sake of a group's limit (mm/vmscan.c, get_scan_count).

use std::path::PathBuf;

use super::group_files::{Files, Reader};
use crate::cgroup::parse::{parse_bytes, parse_limit};
use crate::proc::{free_swap, swappiness};
use plimsoll_facts::snapshot::CgroupVersion;
use plimsoll_facts::units::Bytes;

/// `chain`: the target's group and those above, innermost first. None: the kernel doesn't report how much swap is free.
pub(super) fn swap_left(reader: &Reader, version: CgroupVersion, chain: &[PathBuf]) -> Option<Bytes> {
    let swappiness = match version {
        CgroupVersion::V1 => own_swappiness(reader, chain),
        CgroupVersion::V2 => swappiness(),
    };
    match swappiness {
        Some(0) => Some(Bytes(0)),
        _ => free_swap().map(|free| least(reader, version, chain, free)),
    }
}

/// In version 1, each group has its own.
fn own_swappiness(reader: &Reader, chain: &[PathBuf]) -> Option<u64> {
    reader.read(chain.first()?, "memory.swappiness").and_then(|text| parse_bytes(&text)).map(|bytes| bytes.0)
}

/// `free`: the machine's free swap.
pub(super) fn least(reader: &Reader, version: CgroupVersion, chain: &[PathBuf], free: Bytes) -> Bytes {
    let files = Files::of(version);
    let left = |group: &PathBuf, limit: &str, charged: &str| {
        let limit = reader.read(group, limit).and_then(|text| parse_limit(&text))?;
        Some(limit - reader.read(group, charged).and_then(|text| parse_bytes(&text)).unwrap_or_default())
    };
    let of_level = |group: &PathBuf| {
        let of_swap = left(group, files.swap_limit, files.swap)?;
        Some(match version {
            CgroupVersion::V1 => of_swap - left(group, files.limit, files.charged).unwrap_or_default(),
            CgroupVersion::V2 => of_swap,
        })
    };
    chain.iter().filter_map(of_level).fold(free, Bytes::min)
}
