//! The I/O on /proc/PID, one file for each subject. Whatever can be refused (another user's process, yama, hidepid)
//! becomes a gap.

mod access;
mod allocators;
mod clock;
mod host;
mod mappings;
mod page_map;
mod process;
mod scanned_pages;
mod threads;

pub use access::{as_root, as_user, file_remedy, permission_remedy, why_closed, why_refused};
pub use allocators::read_allocators;
pub use clock::{now_ns, seconds_since_epoch, timed};
pub use host::read_host;
pub(crate) use host::{free_swap, swappiness};
pub use mappings::{Mappings, is_of_mappings, read_mappings, read_maps, read_ranges, read_smaps};
pub use page_map::{can_scan, is_too_much, read_residency, scan_residency};
pub use process::{is_exiting, open_jars, read_process, refusal, start_of};
pub use scanned_pages::{KnownMappings, ScannedPages, read_pages};
pub use threads::{read_these_threads, read_threads};
