//! Queries a HotSpot VM: NMT's categories, addresses of its regions, heap, metaspace, code cache, threads, flags.
//!
//! The sources by cost for the target: hsperfdata (a file, free), fields of the VM by its vmStructs (heap, card table,
//! direct buffers, thread names), then diagnostic commands over the attach socket. VM.info, System.map and
//! VM.native_memory detail are the most expensive commands, and the VM keeps memory that they allocate. So they are
//! sent only if more than 2 % of RSS stays unexplained. docs/decisions/asking-a-vm.md has the cost of each command.
//!
//! A series of readings keeps what can't have changed (`KnownVm`).

pub(crate) mod attach;
pub(crate) mod direct_buffers;
mod disjoint;
pub(crate) mod field_table;
pub(crate) mod heap;
pub(crate) mod names;
mod nmt;
pub(crate) mod objects;
mod peer;
mod perfdata;
pub(crate) mod printed;
mod read;
pub(crate) mod structs;
mod survey;
mod system_map;
mod tags;
mod threads;

pub use nmt::{NmtReport, parse_nmt};
pub use perfdata::PerfData;
pub use printed::{Printed, parse_flags, parse_manageable, parse_printed, parse_version};
pub(crate) use read::class_counts;
pub use read::{Mute, Patience, RefusedCommand, Vm, perfdata};
pub use structs::KnownVm;
pub(crate) use survey::{can_locate, compare, join_named, next_with_symbols, read_again, remedy_of};
pub use survey::{is_hotspot, locate, read};
pub use system_map::parse_system_map;
pub use tags::match_tags;
pub use threads::parse_threads;
