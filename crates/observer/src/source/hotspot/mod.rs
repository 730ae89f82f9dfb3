//! A HotSpot VM, asked about itself: NMT's categories, where its regions lie, heap, metaspace, code cache, threads, flags.
//!
//! In order of cost to the target: hsperfdata (a file, costs nothing), fields of the VM by its vmStructs (heap, card table, direct
//! buffers, names of threads), then diagnostic commands over the attach socket. What it could say beyond `read` has a price (200 threads, 2,600 mappings;
//! JDK 24 on without streaming, see `attach`):
//!
//! | NMT | JDK | command | the VM's time | what stays in the VM |
//! | --- | --- | --- | --- | --- |
//! | any | 17, 25 | VM.metaspace vslist, at a safepoint | 1 ms | |
//! | any | 17, 25 | Thread.print, at a safepoint, where names can't be read | 2 ms; 0.15 a thread 60 frames deep | |
//! | any | 17, 25 | all others of `read` together | 1 ms | |
//! | any | 17, 25 | VM.info | 8, 6 ms | libjvm's symbols: 4.2, 4.9 MiB |
//! | summary, detail | 24 on | System.map | 25 ms | 0.2 MiB |
//! | detail | 17 to 23 | VM.native_memory detail | 920 ms | the same symbols |
//!
//! What the dearer ones add is 0.0 to 0.4 % of RSS (1.5 % under Shenandoah, whose mark bits VM.info does not name), so they
//! are asked only where more than 2 % is left unexplained.

pub(crate) mod attach;
pub(crate) mod direct;
pub(crate) mod heap;
pub(crate) mod names;
mod nmt;
pub(crate) mod objects;
mod peer;
mod perfdata;
pub(crate) mod printed;
mod read;
pub(crate) mod rows;
pub(crate) mod structs;
mod survey;
mod system_map;
mod tags;
mod threads;

pub use nmt::{NmtReport, parse_nmt};
pub use perfdata::PerfData;
pub use printed::{Printed, parse_flags, parse_printed, parse_version};
pub use read::{Mute, Patience, Vm, perfdata};
pub use structs::Direct;
pub use survey::{can_locate, is_hotspot, locate, next_with_symbols, read};
pub use system_map::parse_system_map;
pub use tags::match_tags;
pub use threads::parse_threads;
