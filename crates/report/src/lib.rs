//! Books and ledgers as text, JSON and the formats of others. One file per format; no I/O but the writer that is given.

pub mod diff;
pub mod hotspot;
pub mod json;
pub mod ledger_json;
pub mod ledger_tables;
pub mod ledger_text;
pub mod native_image;
pub mod text;
pub mod words;
