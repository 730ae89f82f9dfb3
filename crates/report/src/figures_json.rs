//! The figures of a caller, category, module or site: written to JSON and read back.

use plimsoll_facts::units::Bytes;
use plimsoll_tracked::books::Figures;
use serde::{Deserialize, Serialize};

use crate::words::{moment, parse_moment};

fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub live_bytes: u64,
    pub live_count: u64,
    pub requested_bytes: u64,
    pub peak_bytes: u64,
    pub count_at_peak: u64,
    pub peak_time: Option<String>,
    pub cumulative_bytes: u64,
    pub cumulative_count: u64,
    pub reserved_bytes: u64,
    pub committed_bytes: u64,
    #[serde(default)]
    pub mapped_file_bytes: u64,
    #[serde(default)]
    pub peak_reserved_bytes: u64,
    #[serde(default)]
    pub peak_committed_bytes: u64,
    #[serde(default)]
    pub resident_bytes: Option<u64>,
    #[serde(default)]
    pub resident_file_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resident_arena_bytes: u64,
    #[serde(default)]
    pub at_total_peak_bytes: u64,
    #[serde(default)]
    pub at_total_peak_count: u64,
    /// More was freed than was allocated, so the live bytes are unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fault: bool,
}

pub(crate) fn line(f: &Figures) -> Line {
    Line {
        live_bytes: f.live.0,
        live_count: f.live_count,
        requested_bytes: f.requested.0,
        peak_bytes: f.peak.0,
        count_at_peak: f.count_at_peak,
        peak_time: f.peak_time_ns.map(moment),
        cumulative_bytes: f.cumulative.0,
        cumulative_count: f.cumulative_count,
        reserved_bytes: f.reserved.0,
        committed_bytes: f.committed.0,
        mapped_file_bytes: f.files.0,
        peak_reserved_bytes: f.peak_reserved.0,
        peak_committed_bytes: f.peak_committed.0,
        resident_bytes: f.resident.map(|b| b.0),
        resident_file_bytes: f.resident_files.0,
        resident_arena_bytes: f.resident_arenas.0,
        at_total_peak_bytes: f.at_peak.0,
        at_total_peak_count: f.at_peak_count,
        fault: f.fault,
    }
}

pub(crate) fn figures(l: &Line) -> Figures {
    Figures {
        live: Bytes(l.live_bytes),
        live_count: l.live_count,
        requested: Bytes(l.requested_bytes),
        peak: Bytes(l.peak_bytes),
        count_at_peak: l.count_at_peak,
        peak_time_ns: l.peak_time.as_deref().and_then(parse_moment),
        cumulative: Bytes(l.cumulative_bytes),
        cumulative_count: l.cumulative_count,
        reserved: Bytes(l.reserved_bytes),
        committed: Bytes(l.committed_bytes),
        files: Bytes(l.mapped_file_bytes),
        peak_reserved: Bytes(l.peak_reserved_bytes),
        peak_committed: Bytes(l.peak_committed_bytes),
        resident: l.resident_bytes.map(Bytes),
        resident_files: Bytes(l.resident_file_bytes),
        resident_arenas: Bytes(l.resident_arena_bytes),
        at_peak: Bytes(l.at_total_peak_bytes),
        at_peak_count: l.at_total_peak_count,
        fault: l.fault,
    }
}
