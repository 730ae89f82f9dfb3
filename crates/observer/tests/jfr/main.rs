//! Compares the reader of flight recordings with the JDK's own reader on recordings of JDKs and native images, and
//! reads truncated and mutated files.

#[allow(dead_code, reason = "shared by several test programs")]
#[path = "../../../jfr/tests/support/chunk.rs"]
mod chunk;
#[path = "../../../jfr/tests/support/damage.rs"]
mod damage;
mod damaged;
mod foreign;
mod history;
mod killed;
#[path = "../support/mod.rs"]
mod support;
mod twin;
