//! A HotSpot VM, asked about itself: NMT's categories, where its regions lie, heap, metaspace, code cache, threads, flags.
//!
//! In order of cost to the target: hsperfdata (a file, costs nothing), then diagnostic commands over the attach socket. What
//! is asked depends on what the VM can say:
//!
//! | NMT | JDK | where the regions lie |
//! | --- | --- | --- |
//! | detail | 17 to 24 | VM.native_memory detail: the VM loads libjvm's symbols to print stacks, 5 MB that stay |
//! | summary, detail | 25 | System.map |
//! | any other | all | VM.info and VM.metaspace vslist: heap, class space, CDS, code, card table, mark bits |

mod attach;
mod direct;
mod nmt;
mod perfdata;
mod printed;
mod read;
mod structs;
mod survey;
mod system_map;
mod tags;
mod threads;

pub use nmt::{NmtReport, parse_nmt};
pub use perfdata::PerfData;
pub use printed::{Printed, parse_flags, parse_printed, parse_version};
pub use read::{Mute, Vm};
pub use survey::{is_hotspot, read};
pub use system_map::parse_system_map;
pub use tags::match_tags;
pub use threads::parse_threads;
