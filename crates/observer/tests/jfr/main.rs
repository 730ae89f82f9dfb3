//! The reader of flight recordings, held beside the JDK's own on recordings of JDKs and native images, and against files
//! of theirs that are cut or mutated.

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
