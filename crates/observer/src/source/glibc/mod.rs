//! glibc's malloc, walked from outside: what each arena holds live, free in bins, in caches, in top, and which of the
//! free bytes are resident. The target runs on: it is neither stopped nor signalled.
//!
//! ```text
//! libc's .data ── main_arena ─ next ─▶ arena ─ next ─▶ …          (layout)
//!                    │ top               │ top: its heap_info, and prev ▶ the older heaps     (heaps)
//!                    ▼                   ▼
//!                 brk heap            64 MiB-aligned heaps: chunk, chunk, …, top              (walk)
//!                    └── fastbins, tcaches: free, though they look in use                     (lists)
//!                    └── what a trim leaves of a thread arena: its end                        (ends)
//! ```
//!
//! A running target changes under the walk. A chain that breaks is walked anew, three times; what can't be walked is
//! handed back as unknown, with its bytes. On a quiescent target the sums equal malloc_info's to the byte.

mod ends;
mod heaps;
mod layout;
mod lists;
mod malloc_info;
mod mmapped;
mod read;
mod sizes;
mod survey;
mod tagged;
mod walk;

pub use malloc_info::{MallocInfo, MallocInfoArena, parse as parse_malloc_info};
pub(crate) use mmapped::{reach, stretches};
pub use read::read;
pub use survey::{LibcData, Wanted, survey};
