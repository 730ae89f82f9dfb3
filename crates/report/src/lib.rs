//! Books and ledgers as text, JSON and the formats of others. One file per format; no I/O but the writer that is given.

pub mod json;
pub mod ledger_json;
pub mod ledger_tables;
pub mod ledger_text;
pub mod text;
pub mod words;
