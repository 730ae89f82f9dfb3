//! Books and ledgers as text, JSON and the formats of others. One file per format; no I/O but the writer that is given.

pub mod allocation;
pub mod diff;
mod figures_json;
mod frame_table;
pub mod hotspot;
pub mod jfr;
pub mod json;
pub mod ledger_json;
pub mod ledger_tables;
pub mod ledger_text;
mod lines;
pub mod native_image;
pub mod profile;
pub mod recording;
pub mod recording_chart;
pub mod recording_diff;
pub mod recording_json;
mod sites_json;
pub mod sites_text;
pub mod text;
pub mod words;
