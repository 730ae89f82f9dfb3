//! What a VM prints: VM.info, flags, version, class loaders, threads.

use plimsoll_observer::parsers::printed::{
    figure, parse_flags, parse_loaders, parse_manageable, parse_printed, parse_version,
};
use plimsoll_observer::source::hotspot::parse_threads;

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    parse_printed(&text);
    parse_version(&text);
    parse_loaders(&text);
    parse_flags(&text, &["MaxHeapSize", "NativeMemoryTracking", "UseZGC"]);
    parse_manageable(&text);
    parse_threads(&text);
    figure(&text, "committed");
}
