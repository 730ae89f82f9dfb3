//! Queries a HotSpot VM: NMT's categories, addresses of its regions, heap, metaspace, code cache, threads, flags.
//!
//! The sources by cost for the target: hsperfdata (a file, free), fields of the VM by its vmStructs (heap, card table,
//! direct buffers, thread names), then diagnostic commands over the attach socket. The costs of commands, measured with
//! 200 threads and 2,600 mappings (JDK 24 on without streaming, see `attach`):
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
//! The most expensive commands explain only 0.0 to 0.4 % more of RSS (1.5 % under Shenandoah, whose mark bits VM.info
//! does not name). So they are sent only if more than 2 % stays unexplained.

pub(crate) mod attach;
pub(crate) mod direct;
mod disjoint;
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
pub use printed::{Printed, parse_flags, parse_manageable, parse_printed, parse_version};
pub use read::{Mute, Patience, Vm, perfdata};
pub use structs::Direct;
pub(crate) use survey::{can_locate, next_with_symbols, read_again};
pub use survey::{is_hotspot, locate, read};
pub use system_map::parse_system_map;
pub use tags::match_tags;
pub use threads::parse_threads;
