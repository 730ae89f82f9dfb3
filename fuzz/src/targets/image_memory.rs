//! Native images and packed programs, searched for in the memory of a process that may be neither.

use plimsoll_facts::snapshot::NativeImage;
use plimsoll_observer::parsers::{chunks, unpacked};
use plimsoll_observer::source::native_image::{ImageFile, find_image, parse_image_nmt};
use plimsoll_process::proc::find_unpacked;

use crate::image::Image;

pub fn run(bytes: &[u8]) {
    let image = Image::parse(bytes);
    let (vmas, inside) =
        (&image.vmas, |at: u64| image.vmas.iter().any(|vma| vma.range.start.0 <= at && at <= vma.range.end.0));
    let number =
        |at: usize| bytes.get(at..at + 4).map_or(0, |b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    let file = ImageFile {
        path: "/app/image".into(),
        heap_offset: number(0),
        heap_length: number(4),
        heap_address: number(8) << 12,
        text_offset: number(12),
        text_address: number(16) << 12,
        version: String::new(),
    };
    for mut found in [find_image(&file, vmas), NativeImage::default()] {
        let _ = chunks::find(&image, &mut found, vmas, None);
        assert!(found.heap_chunks.iter().all(|chunk| inside(chunk.start.0)), "a chunk outside of all mappings");
    }
    if let Some(program) = find_unpacked(&image, vmas)
        && let Some(mut found) = unpacked::find(&image, &program, vmas)
    {
        let _ = chunks::find(&image, &mut found, vmas, None);
    }
    parse_image_nmt(&String::from_utf8_lossy(bytes));
}
