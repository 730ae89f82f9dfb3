//! The reader of flight recordings, held beside the JDK's own on recordings of JDKs and native images, and against files
//! that are cut, mutated or made to harm.

mod foreign;
mod history;
mod hostile;
mod killed;
mod small;
#[path = "../support/mod.rs"]
mod support;
mod twin;
