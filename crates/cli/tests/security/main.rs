//! Attacks of an ordinary user on root's `plimsoll`, all of which must fail (docs/security.md).

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
#[path = "../harness/executable.rs"]
mod executable;
#[path = "../subjects/stage.rs"]
#[allow(dead_code, reason = "shared with other test programs")]
mod stage;

mod believed;
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
