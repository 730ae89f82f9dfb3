//! The system calls that the standard library lacks. Other unsafe code of this program is in `confine` and
//! `attach::native` only (the layering test lists the files).
//!
//! Contract: nothing here allocates between fork and exec.

mod child;
mod files;
mod host_names;
mod image;
mod inherited;
mod machine;
mod own_process;
mod signals;
mod timers;

pub use child::{Child, ChildEnd, ChildHandle, by_fork, last_name, last_other_user, spawn};
pub use files::{allocate, has_capabilities, is_executable, open, read_start};
pub use host_names::addresses_of;
pub use image::Image;
pub use inherited::{handing_down, has_stdout};
pub use machine::{boottime_ns, kernel, own_glibc};
pub use own_process::{
    address_space_limit, allow_open_files, children_usage, data_limit, disable_huge_pages, file_size_limit, gid,
    is_in_foreground, is_secure, may_trace, uid,
};
pub use signals::{Signals, die_of, ignoring_interrupts, stop, stop_group, unblock, unless_nohup};
