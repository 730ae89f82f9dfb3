//! The reader on a chunk that uses the whole format, and on mutated and hostile files.

#[allow(dead_code, reason = "shared by several test programs")]
#[path = "../chunks/chunk.rs"]
mod chunk;
#[path = "../chunks/damage.rs"]
mod damage;
mod hostile;
mod small;
