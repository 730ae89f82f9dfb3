//! Where the program's calls come in: assembly for each CPU that keeps the arguments, notes the caller, and goes on to the hook.
//!
//! On x86-64 the `malloc` and `free` that run are `x86_64_pair.rs`, as long as nothing unusual happens. `hook::malloc` has the same steps
//! in Rust: it runs on other CPUs, and is what to read first.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod cpu;
#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod cpu;

#[cfg(target_arch = "x86_64")]
#[path = "x86_64_pair.rs"]
pub mod pair;

pub use cpu::{first_syscall, free_entry, thread_trampoline};
