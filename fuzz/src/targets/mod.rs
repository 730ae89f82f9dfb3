//! One file for each target. `lib.rs` has the table.

pub mod arguments;
pub mod attach;
pub mod cgroup;
pub mod debug_info;
pub mod eh_frame;
pub mod hotspot_memory;
pub mod hsperfdata;
pub mod image_memory;
pub mod import_tables;
pub mod jfr;
pub mod jitdump;
pub mod load_report;
pub mod malloc_memory;
pub mod nmt;
pub mod perf_map;
pub mod rules_blob;
pub mod rules_text;
pub mod saved_baseline;
pub mod saved_report;
pub mod segment;
pub mod smaps;
pub mod status;
pub mod symbol_cache;
pub mod syscall_filter;
pub mod vm_info;
pub mod vma_map;
