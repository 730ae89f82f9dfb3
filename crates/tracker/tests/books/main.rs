//! The tracker's books in this process: each module drives one file of account/ with random operations beside a dumb
//! twin, and counts what it exercised.

mod alone;
mod callers;
mod categories;
mod fork;
mod guesses;
mod index;
#[cfg(target_arch = "x86_64")]
mod malloc_twins;
#[path = "../stack/random.rs"]
mod random;
mod rows;
mod samples;
mod segment;
mod sites;
mod table;
mod threads;
mod trailers;

pub use alone::alone;
pub use random::Random;
pub use segment::{books, fresh, touched};
