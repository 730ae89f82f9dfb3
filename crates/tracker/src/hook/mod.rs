//! What each intercepted call does, and in what order. The table is in `sys/hooked_calls.rs`.
//!
//! Order of booking: an allocation is booked after the real call has returned and before the program learns the
//! address. A release is booked before the real call, since from then on another thread may hold the address. `realloc`
//! takes the key out before the real call, and books the release only after it has succeeded; if it fails, the key is
//! put back.

pub mod aligned;
pub mod c_api;
pub mod calls;
pub mod entry;
pub mod exec;
pub mod fork;
pub mod limits;
pub mod loader;
pub mod locked;
pub mod malloc;
pub mod mapping;
pub mod operator;
pub mod real_mmap;
pub mod release;
pub mod resolve;
pub mod rights;
pub mod seccomp;
pub mod signals;
pub mod thread;
