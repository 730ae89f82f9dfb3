//! Writes books and ledgers as text, as JSON and in the formats of other tools: one file for each format. The only I/O
//! is to the writer that the caller passes.

#![warn(unreachable_pub)]

pub mod allocation;
pub mod comparison_json;
pub mod comparison_pages;
pub mod comparison_text;
pub mod diff;
pub mod doctor;
mod figures_json;
mod frame_table;
pub mod hotspot;
pub mod jfr;
pub mod json;
mod json_lines;
pub mod ledger_json;
mod ledger_notes;
pub mod ledger_tables;
pub mod ledger_text;
pub mod live_json;
pub mod live_pages;
pub mod live_text;
pub mod metrics;
pub mod native_image;
pub mod otlp;
pub mod page;
pub mod palette;
pub mod process_title;
pub mod profile;
pub mod prometheus;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod recording;
pub mod recording_chart;
pub mod recording_diff;
pub mod recording_json;
pub mod recording_text;
pub mod serve_list;
mod sites_json;
pub mod sites_text;
pub mod text;
mod ticket;
pub mod trial_json;
pub mod trial_pages;
pub mod trial_text;
pub mod words;
