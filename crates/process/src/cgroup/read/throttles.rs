//! Levels with a `memory.high`, above which the kernel slows the group's processes down.

use std::path::PathBuf;

use super::group_files::Reader;
use super::hierarchy::{Hierarchy, NEAR, ancestor};
use crate::cgroup::parse::{parse_bytes, parse_limit, parse_memory_stat, parse_pressure, parse_throttled};
use plimsoll_facts::snapshot::{CgroupVersion, Pressure, Throttle};

/// Version 1 has no `memory.high`.
pub(super) fn throttles(reader: &Reader, hierarchy: &Hierarchy) -> Vec<Throttle> {
    let Hierarchy { version: CgroupVersion::V2, chain, path, .. } = hierarchy else { return Vec::new() };
    let of = |(level, group): (usize, &PathBuf)| {
        let high = reader.read(group, "memory.high").and_then(|text| parse_limit(&text))?;
        let charged = reader.read(group, "memory.current").and_then(|text| parse_bytes(&text))?;
        let stat = Some(group).filter(|_| charged.percent_of(high) >= NEAR);
        let stat = stat.and_then(|group| reader.read(group, "memory.stat"));
        let pressure = reader.read(&chain[0], "memory.pressure").and_then(|text| parse_pressure(&text));
        Some(Throttle {
            path: ancestor(path, level),
            directory: group.clone(),
            high,
            charged,
            stat: stat.map(|text| parse_memory_stat(&text)).unwrap_or_default(),
            times: reader.read(group, "memory.events").map(|text| parse_throttled(&text)).unwrap_or(0),
            pressure: pressure.map(|pressure| Pressure { of_cgroup: true, ..pressure }),
        })
    };
    chain.iter().enumerate().filter_map(of).collect()
}
