//! The segment of a tracked process, while it lives and after its death. docs/segment.md has the format.
//!
//! | file | what it does |
//! | --- | --- |
//! | `find` | finds the segment of a process, and whether the process still lives |
//! | `read` | reads the file, also while the tracker writes it |
//! | `parse` | bytes → facts |
//! | `row_sums` | rows after both readings; blocks that the tracker booked twice |
//! | `control` | writes the mode that the tracker shall use, and how the process ended |
//! | `names` | the names by which the tracker's files are known in a process's mappings |

mod control;
pub mod find;
pub mod names;
pub mod parse;
pub mod read;
mod row_sums;

pub use control::{set_control, set_ended};
pub use find::{
    DIRECTORIES, DIRECTORY_VARIABLE, Life, directories_of_others, directories_of_user, ending_of, find_by_pid,
    find_by_pid_in, find_ended_in, gap_of_ending, is_of, kernel_says_killed, leader_of, life_as, life_of, list,
    list_owned, named_directory, process_of, refused, search_directories, start_time_ns,
};
pub use parse::{Head, Raw, Segment};
/// Messages between `attach` and the agent in the target.
pub use plimsoll_segment::agent;
/// Limits of a segment, the default number of dead processes' segments in a directory, and the mean of the sampling.
pub use plimsoll_segment::{FILE_BYTES, LEAST_ADDRESS_SPACE, LEAST_DATA, RETAINED, SAMPLE_MEAN};
pub use read::{Extent, ReadError, head as head_of, own_mappings, read, read_books, read_parts, was_attached};
pub use row_sums::RowSums;
