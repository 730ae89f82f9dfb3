//! The fence: the tracker's system calls, thread-local words and assembly. Nothing above this folder issues a system
//! call. Only the exported entries (`hook/entry`) and the fast path of malloc and free (`hook/malloc/x86_64`) have
//! assembly too.
//!
//! # Contract
//!
//! - Nothing here allocates or has a lock. System calls are made directly: they return `Result<usize, i32>`, and leave
//!   errno alone.
//! - Addresses and lengths given to [`os`] are page-aligned where the kernel requires it; lengths are > 0.
//! - After [`crate::boot`] or [`crate::agent`] has finished, a file is opened for three purposes only: a fork child's
//!   segment, the summary on a signal, and the program that an exec is about to run.
//! - In a thread that is in seccomp's strict mode ([`cpu::STRICT`]) no system call is made: each returns EPERM.
//! - A system call that one of the program's filters would refuse isn't made either ([`filter`]).

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
pub mod program;
pub mod thread_descriptor;

/// A value that threads write often, on cache lines of its own: otherwise each write would slow down the threads that
/// use its neighbours. Two lines, since CPUs fetch them in pairs.
#[repr(C, align(128))]
pub struct CachePadded<T>(pub T);
