//! The exported entries: assembly for each CPU that keeps the arguments, passes the caller's stack pointer, and
//! continues in the hook.
//!
//! On x86-64 `malloc` and `free` have no entry here: [`super::malloc`] says what runs instead.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod cpu;
#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod cpu;
