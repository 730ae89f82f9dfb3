//! JDK Flight Recorder files (`.jfr`, format 2.x): a reader for any of them, and a writer whose file is valid at every
//! moment.
//!
//! A recording is a sequence of chunks. Each chunk declares the types of its own events, so the chunk alone is enough
//! to read it:
//!
//! ```text
//! file       = chunk*
//! chunk      = header event*
//!
//! header, 68 bytes, big-endian
//!    0 "FLR\0"                         32 start, ns since 1970 UTC
//!    4 major u16 (2)   6 minor u16     40 duration, ns
//!    8 size of the chunk, bytes        48 start, ticks
//!   16 offset of the last checkpoint   56 ticks a second
//!   24 offset of the metadata          64 state u8: 0 finished, 255 being written, else the number of a flush
//!      both from the chunk's start     66 flags u16: 1 integers are compressed, 2 last chunk
//!
//! event      = size type start field*                        size counts itself; the fields are those that the type declares
//! metadata   = size 0 start duration id strings tree         the types, their fields and annotations
//! checkpoint = size 1 start duration delta kind count pool*  constants. delta leads back to the checkpoint before, 0 ends the chain
//! pool       = type count (key value)*                       a field may hold the key of a constant in place of the value
//!
//! integer    compressed: 7 bits a byte, lowest first, the high bit says that more follow; the ninth byte has all 8 bits.
//!            Else big-endian at full width. float and double are big-endian in both forms.
//! string     0 null | 1 empty | 2 key in the String pool | 3 length, UTF-8 | 4 length, UTF-16 units | 5 length, Latin-1
//! ```
//! Sources: jdk.jfr.internal.consumer (ChunkHeader, ChunkParser, MetadataReader) and HotSpot's share/jfr/recorder of
//! JDK 17 and 25, and org.openjdk.jmc.flightrecorder's parser.
//!
//! [`reader`] reads bytes by offset and trusts none of them. [`writer`] writes to a [`writer::Store`]. Neither opens a
//! file: the caller does. The caller also declares the events.
//!
//! ```
//! use plimsoll_jfr::reader::{EventFilter, Limits, read};
//! use plimsoll_jfr::writer::kinds::{Amount, Text};
//! use plimsoll_jfr::writer::{Recording, Table};
//!
//! const ALWAYS: &str = "each second";
//! plimsoll_jfr::events! {
//!     Cache 100 "example.Cache" "Cache" ALWAYS ["Example"] "What a cache holds" {
//!         name: Text "name" "Name" "Of the cache",
//!         size: Amount "size" "Size" "Live bytes",
//!     }
//! }
//! static TABLE: Table = Table::new(EVENTS, &[]);
//!
//! # fn main() -> std::io::Result<()> {
//! let mut recording = Recording::new(Vec::new(), &TABLE);
//! recording.instant(1_790_000_000_000_000_000, |batch| Cache { name: "pages", size: 4096 }.write(batch))?;
//! let file = recording.finish()?;
//!
//! let mut seen = vec![];
//! let summary = read(&file, Limits::default(), &EventFilter::named(&["example.Cache"]), |event| {
//!     seen.push((event.time(), event.string("name").unwrap_or_default().into_owned(), event.u64("size")));
//! });
//! assert_eq!(seen, [(Some(1_790_000_000_000_000_000), "pages".to_owned(), Some(4096))]);
//! assert!(summary.flaws.is_empty());
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
#![warn(unreachable_pub)]

mod format;
pub mod reader;
pub mod writer;
