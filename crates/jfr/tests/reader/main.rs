//! The reader on a chunk that has everything, and on files that are mutated or made to harm.

#[allow(dead_code, reason = "shared by several test programs")]
#[path = "../support/chunk.rs"]
mod chunk;
#[path = "../support/damage.rs"]
mod damage;
mod hostile;
mod small;
