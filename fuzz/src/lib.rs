//! One fuzz target for each parser of foreign data: files, memory, replies, arguments.
//!
//! A target takes bytes, runs its parser and everything that prints the result, and asserts what must hold for any
//! input. `FuzzTarget::check` adds two limits: CPU time, and memory in proportion to the input. `tests/replay.rs` runs
//! the corpus and the inputs of past findings without libFuzzer; `src/main.rs` is the program that searches for new
//! ones.

mod cost;
pub mod image;
pub mod targets;
pub mod views;

pub use cost::{CPU_LIMIT, LEAST_MEMORY, MEMORY_TIMES};

/// A parser under test.
pub struct FuzzTarget {
    /// Also the folder of its corpus.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

impl FuzzTarget {
    /// Runs the target once, within the limits.
    pub fn check(&self, bytes: &[u8]) {
        cost::bounded(bytes.len(), || (self.run)(bytes));
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// Every target, by name.
        pub const TARGETS: &[FuzzTarget] = &[$(FuzzTarget { name: stringify!($name), run: targets::$name::run }),*];
    };
}

targets! {
    arguments
    attach
    cgroup
    debug_info
    eh_frame
    filter
    hotspot_memory
    hsperfdata
    image_memory
    import_tables
    jfr
    jitdump
    load_report
    malloc_memory
    nmt
    perf_map
    rules_blob
    rules_text
    saved_baseline
    saved_report
    segment
    smaps
    status
    symbol_cache
    syscall_filter
    unwind
    vm_info
    vma_map
}
