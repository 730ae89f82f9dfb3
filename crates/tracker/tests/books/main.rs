//! The tracker's books in this process: each module runs random operations on one file of account/ and on a simple
//! twin, and counts the cases that occurred.

mod alone;
mod booking;
mod callers;
mod categories;
mod classes;
mod fork;
mod growth;
mod guesses;
mod index;
#[cfg(target_arch = "x86_64")]
mod malloc_twins;
mod methods;
#[cfg(target_arch = "x86_64")]
mod opening;
mod page_keys;
mod pending;
#[path = "../../../../fixtures/random.rs"]
mod random;
mod remote_free;
mod rows;
mod samples;
mod segment;
mod side_table;
mod sites;
mod stacks;
mod threads;
mod trailers;

pub use alone::alone;
pub use random::Random;
pub use segment::{books, fresh, touched};
