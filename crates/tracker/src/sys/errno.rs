//! The values of errno that the tracker distinguishes (errno(3)).
#![allow(missing_docs, reason = "the names are those of errno(3)")]

pub const EPERM: i32 = 1;
pub const ESRCH: i32 = 3;
pub const EINTR: i32 = 4;
pub const E2BIG: i32 = 7;
pub const EAGAIN: i32 = 11;
pub const EINVAL: i32 = 22;
pub const EACCES: i32 = 13;
pub const EFAULT: i32 = 14;
pub const ENOMEM: i32 = 12;
pub const ENOSYS: i32 = 38;
