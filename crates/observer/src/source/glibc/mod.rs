//! Walks glibc's malloc from outside: for each arena, what is live, free in bins, in caches and in top, and which free
//! bytes are resident. The target keeps running: it is neither stopped nor signalled.
//!
//! ```text
//! libc's .data ── main_arena ─ next ─▶ arena ─ next ─▶ …          (layout, parameters)
//!                    │ top               │ top: its heap_info, and prev ▶ the older heaps     (heaps)
//!                    ▼                   ▼
//!                 brk heap            64 MiB-aligned heaps: chunk, chunk, …, top              (walk)
//!                    └── fastbins, tcaches: free, but they look in use                        (lists)
//!                    └── the end of a thread arena, which a trim can't release                (arena_ends)
//! ```
//!
//! A running target changes during the walk. A broken chain is walked again; parts that can't be walked are reported as
//! unknown, with their bytes. On an idle target, the sums equal malloc_info's to the byte.

mod arena_ends;
mod heaps;
mod layout;
mod lists;
mod malloc_info;
mod mmapped;
mod native_objects;
mod nmt_headers;
mod parameters;
mod read;
mod sizes;
mod survey;
mod walk;

pub use malloc_info::{MallocInfo, MallocInfoArena, parse as parse_malloc_info};
pub(crate) use mmapped::{overlapping, reach, stretches};
pub use nmt_headers::NmtHeaders;
pub use read::{parse_version, read};
pub use survey::{LibcData, WalkOptions, survey};
