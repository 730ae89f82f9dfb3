//! Compares the reader of flight recordings with the JDK's own reader on recordings of JDKs and native images, and
//! reads truncated and mutated files.

#[allow(dead_code, reason = "shared by several test programs")]
#[path = "../../../jfr/tests/chunks/chunk.rs"]
mod chunk;
#[path = "../../../jfr/tests/chunks/damage.rs"]
mod damage;
mod damaged;
mod foreign;
mod history;
mod killed;
#[path = "../processes/mod.rs"]
mod processes;
mod twin;
