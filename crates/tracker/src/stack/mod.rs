//! Call stacks, as seen from inside a hooked call.
//!
//! ```text
//!  module's .eh_frame ──cfi──▶ Rule (8 bytes for one pc) ──walk──▶ frames + the words they were concluded from
//! ```
//! Nothing here allocates, locks, or trusts what it reads: damaged unwind tables and damaged stacks end a walk early,
//! with a mark that says why.

pub mod arch;
pub mod callers;
pub mod cfi;
pub mod deep;
mod eh_frame;
mod expression;
pub mod frames;
pub mod generated_code;
mod instructions;
pub mod java;
pub mod module;
pub mod native_image;
pub mod read;
pub mod rule;
pub mod rule_table;
pub mod walk;

pub use read::{Image, Memory, Stack};
pub use rule::Rule;
pub use walk::{Entry, Read, Walk, WalkEnd, Walker};

/// The rule for `pc`, from the `.eh_frame_hdr` at that address of the module that holds it; `tables` is the segment
/// that holds this header and the `.eh_frame`.
///
/// For a return address pass `ra - 1`: the call may be the last instruction of its function, and then the instruction
/// at `ra` has another rule (DWARF 5, 6.4.4).
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn rule_for(tables: Image<'_>, eh_frame_hdr: u64, pc: u64) -> Rule {
    cfi::rule(tables, eh_frame_hdr, pc)
}

/// The AArch64 procedure call standard and every distribution's build flags keep a frame record, so the chain of frame
/// pointers is the rule. The kernel links its signal frames into that chain too.
#[cfg(target_arch = "aarch64")]
#[inline]
pub fn rule_for(_tables: Image<'_>, _eh_frame_hdr: u64, _pc: u64) -> Rule {
    Rule::FRAME_POINTER
}
