//! A HotSpot VM, asked about itself: NMT's categories, where its regions lie, heap, metaspace, code cache, threads, flags.
//!
//! In order of cost to the target: hsperfdata (a file, costs nothing), then diagnostic commands over the attach socket.
//! Every VM says in VM.info and VM.metaspace vslist where heap, class space, CDS, code, card table and mark bits lie. With
//! NMT it could say more, at a price (200 threads, 2,000 mappings):
//!
//! | NMT | JDK | command | the VM's time |
//! | --- | --- | --- | --- |
//! | any | 17 | VM.info, VM.metaspace vslist | 10 ms |
//! | any | 25 | VM.info, VM.metaspace vslist | 55 ms |
//! | detail | 17 to 23 | VM.native_memory detail | 510 ms, and libjvm's symbols for its stacks: 5 MB that stay |
//! | summary, detail | 24 on | System.map | 115 ms |
//!
//! What the dearer ones add is 0.0 to 0.4 % of RSS (1.5 % under Shenandoah, whose mark bits VM.info does not name), so they
//! are asked only where more than that is left unexplained.

mod attach;
mod direct;
mod nmt;
mod peer;
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
pub use read::{Mute, Patience, Vm, perfdata};
pub use survey::{can_locate, is_hotspot, locate, read};
pub use system_map::parse_system_map;
pub use tags::match_tags;
pub use threads::parse_threads;
