//! What an ordinary user may try against root's `plimsoll`, and that it fails (docs/security.md).

#[path = "../subjects/stage.rs"]
#[allow(dead_code)]
mod stage;

mod blocked;
mod caches;
mod commands;
mod deadline;
mod kit;
mod misdirected;
mod oversized;
mod refusals;
mod rights;
mod writing;
