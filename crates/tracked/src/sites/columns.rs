//! The columns of a profile of sites, and an entry's values as figures of the books, and back.

use crate::books::Figures;
use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{Column, Value};

pub const LIVE: usize = 0;
pub const LIVE_COUNT: usize = 1;
pub const CUMULATIVE: usize = 2;
pub const CUMULATIVE_COUNT: usize = 3;
pub const REQUESTED: usize = 4;
pub const PEAK: usize = 5;
pub const PEAK_COUNT: usize = 6;
pub const TEMPORARY: usize = 7;
pub const RESERVED: usize = 8;
pub const COMMITTED: usize = 9;
pub const MAPPED: usize = 10;
pub const MAPPED_COUNT: usize = 11;
/// Live blocks, and resident mappings without files. Where the resident part isn't known: live blocks.
pub const HELD: usize = 12;
/// Resident part of the mappings; 0 where it isn't known.
pub const RESIDENT: usize = 13;
/// Part of `COMMITTED` that maps files.
pub const FILES: usize = 14;
pub(super) const COLUMNS: usize = 15;

/// The columns in the order of these constants.
pub fn columns() -> Vec<Column> {
    vec![
        Column::bytes("live").means("blocks not freed"),
        Column::count("live", "block").means("number of live blocks"),
        Column::bytes("cumulative").means("all blocks allocated since the tracker counts"),
        Column::count("cumulative", "call").means("calls that allocated"),
        Column::bytes("requested").means("what the program requested for the live blocks"),
        Column::bytes("peak").of_many_moments().means("the most that was live"),
        Column::count("peak", "block").of_many_moments().means("number of live blocks at the peak"),
        Column::bytes("temporary").means("blocks freed within 0.1 s"),
        Column::bytes("reserved").means("mapped addresses"),
        Column::bytes("committed").means("mapped and accessible"),
        Column::bytes("mapped").means("by all calls of mmap"),
        Column::count("mapped", "call").means("calls of mmap"),
        Column::bytes("held").means("live blocks, and resident mappings without files"),
        Column::bytes("resident").means("mappings in memory, files too"),
        Column::bytes("mapped_file").means("the part of committed that maps files, without written copies"),
    ]
}

/// The figures of an entry with all of [`columns`], without resident bytes: a value of 0 may mean that they are
/// unknown. Negative differences, which only two segments can have, are 0.
pub fn figures(values: &[Value]) -> Figures {
    let n = |column: usize| u64::try_from(values[column].amount).unwrap_or(0);
    Figures {
        live: Bytes(n(LIVE)),
        live_count: n(LIVE_COUNT),
        requested: Bytes(n(REQUESTED)),
        peak: Bytes(n(PEAK)),
        count_at_peak: n(PEAK_COUNT),
        cumulative: Bytes(n(CUMULATIVE)),
        cumulative_count: n(CUMULATIVE_COUNT),
        reserved: Bytes(n(RESERVED)),
        committed: Bytes(n(COMMITTED)),
        files: Bytes(n(FILES)),
        ..Figures::default()
    }
}

pub(super) type SiteLine = [Value; COLUMNS];
pub(super) const NOTHING: SiteLine = [Value { amount: 0, variance: 0.0 }; COLUMNS];

pub(super) fn of_figures(f: &Figures) -> [i64; COLUMNS] {
    let i = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let b = |n: Bytes| i(n.0);
    let mut out = [0; COLUMNS];
    out[LIVE] = b(f.live);
    out[LIVE_COUNT] = i(f.live_count);
    out[CUMULATIVE] = b(f.cumulative);
    out[CUMULATIVE_COUNT] = i(f.cumulative_count);
    out[REQUESTED] = b(f.requested);
    out[RESERVED] = b(f.reserved);
    out[COMMITTED] = b(f.committed);
    out[HELD] = b(f.held());
    out[RESIDENT] = b(f.resident.unwrap_or_default());
    out[FILES] = b(f.files);
    out
}
