//! The segment of a tracked process: who asked for which memory, live and after death.

pub mod find;
pub mod parse;
pub mod read;

pub use find::{Life, find_by_pid, life_of, list, search_directories, start_time_ns};
pub use parse::{Head, Raw, RowSums, Segment};
/// Size of a segment's sparse file.
pub use plimsoll_segment::FILE_BYTES;
/// Segments of dead processes that a directory keeps by default.
pub use plimsoll_segment::RETAINED;
pub use read::{ReadError, head as head_of, read};
