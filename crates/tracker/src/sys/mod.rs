//! The fence: all system calls, assembly and thread-local words of the tracker. Nothing above this folder issues a
//! system call or knows a register.
//!
//! # Contract
//!
//! - Nothing here allocates, takes a lock or touches errno: system calls are made directly and answer `Result<usize, i32>`.
//! - Addresses and lengths given to [`os`] are page-aligned where the kernel wants it; lengths are > 0.
//! - After [`crate::boot`] has finished, only `os::back`, `os::private`, clocks and `os::readable` are called, and none
//!   opens a file. The exceptions are the ones DESIGN names: a fork child's segment and the summary on a signal.
//! - In a thread that is in seccomp's strict mode ([`cpu::STRICT`]) there are none at all: each answers EPERM.
//! - Nor is there any that a filter which the program has set wouldn't let pass ([`filter`]).

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
pub mod cpu;
#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
pub mod cpu;

pub mod clock;
pub mod elf;
pub mod errno;
pub mod filter;
pub mod filter_copy;
mod hooked_calls;
pub mod libc;
pub mod os;

/// What threads write often lies on cache lines of its own: every other thread would wait for what shares them. Two lines,
/// since CPUs fetch them in pairs.
#[repr(C, align(128))]
pub struct CachePadded<T>(pub T);
