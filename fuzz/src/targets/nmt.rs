//! The reports of native memory tracking, of a VM and of a native image, and glibc's malloc_info.

use plimsoll_observer::source::glibc::parse_malloc_info;
use plimsoll_observer::source::hotspot::{match_tags, parse_nmt, parse_system_map};
use plimsoll_observer::source::native_image::parse_image_nmt;

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut report = parse_nmt(&text);
    match_tags(&mut report.categories, &[]);
    parse_system_map(&text);
    parse_image_nmt(&text);
    parse_malloc_info(&text);
}
