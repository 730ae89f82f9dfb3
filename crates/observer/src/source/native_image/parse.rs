//! Finds a native image's heap from the sections of its file and the list of mappings. Pure.
//!
//! ```text
//! the file:     … .text … .data  .svm_heap                                offset o, length n
//! in memory:    ELF segments, .svm_heap among them                         "as linked"
//!               ┌ reservation of an isolate, 32 GiB by default ─────────────────────────────────┐
//!               │ ---p │ o … o+n mapped again, parts of it private copies │ chunk │ ---p │ chunk │ ---p … │
//!               └ heap base                    "view"                       └ rw, anonymous
//! ```
//!
//! Chunks are committed and released by MAP_FIXED mmaps over the reservation, and the kernel merges adjacent mappings.
//! So writable anonymous memory after the view consists of chunks; one VMA may hold several.

use std::collections::BTreeSet;

use plimsoll_facts::snapshot::{Backing, ImageHeapRange, Isolate, NativeImage, NmtCategory, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

/// The facts of the image's file that determine where its heap is mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFile {
    /// Path as in the mappings.
    pub path: String,
    /// `.svm_heap`: file offset, length, stated address.
    pub heap_offset: u64,
    pub heap_length: u64,
    pub heap_address: u64,
    /// File offset and stated address of an executable segment.
    pub text_offset: u64,
    pub text_address: u64,
    pub version: String,
}

pub(super) const VERSION: &[u8] = b"com.oracle.svm.core.VM=";
const LONGEST_VERSION: usize = 128;

/// The C string after `VERSION`, with which `data` begins.
pub(super) fn version(data: &[u8]) -> String {
    let text: Vec<u8> =
        data.iter().skip(VERSION.len()).copied().take(LONGEST_VERSION).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&text).into_owned()
}

/// The tail of a reservation is larger than any other mapping beside it.
pub(super) const LARGE: u64 = 1 << 30;

pub fn find_image(file: &ImageFile, vmas: &[Vma]) -> NativeImage {
    let mut image = NativeImage { version: file.version.clone(), ..NativeImage::default() };
    let own = |vma: &&Vma| vma.name == file.path && vma.backing == Backing::File;
    let heap_end = file.heap_offset.saturating_add(file.heap_length);
    let linked = vmas
        .iter()
        .filter(own)
        .find(|vma| vma.executable && (vma.offset..vma.offset + vma.range.length().0).contains(&file.text_offset))
        .map(|text| {
            let bias = text
                .range
                .start
                .0
                .wrapping_sub(text.offset)
                .wrapping_add(file.text_offset)
                .wrapping_sub(file.text_address);
            AddressRange::sized(Avma(bias.wrapping_add(file.heap_address)), Bytes(file.heap_length))
        });
    let mapped = linked.filter(|range| vmas.iter().filter(own).any(|vma| vma.range.overlaps(*range)));
    if let Some(range) = mapped {
        image.image_heap.push(ImageHeapRange { range, view: false });
    }
    // Starts of the views, which have one length. A hostile process may have mapped the file at 65,000 addresses.
    let mut views = BTreeSet::new();
    for vma in vmas.iter().filter(own) {
        let in_heap = vma.offset >= file.heap_offset && vma.offset < heap_end;
        let outside = linked.is_none_or(|linked| !linked.overlaps(vma.range));
        let start = vma.range.start.0.checked_sub(vma.offset.saturating_sub(file.heap_offset));
        let (true, true, Some(start)) = (in_heap, outside, start) else { continue };
        let range = AddressRange::sized(Avma(start), Bytes(file.heap_length));
        let near = start.saturating_sub(file.heap_length - 1)..start.saturating_add(file.heap_length);
        if mapped.is_none_or(|mapped| !mapped.overlaps(range)) && views.range(near).next().is_none() {
            views.insert(start);
            image.image_heap.push(ImageHeapRange { range, view: true });
            add_isolate(&mut image, range, vmas);
        }
    }
    image.heap_chunks.sort_unstable();
    image.isolates.sort_by_key(|isolate| isolate.heap_base);
    image
}

/// Default address space of an isolate (`AddressSpaceSize` of com.oracle.svm.core, with compressed references).
const ADDRESS_SPACE: u64 = 32 << 30;

/// End of the reservation that begins at `base`, if it has at least the default size. Then anonymous private mappings
/// follow the view without a hole at least that far. From 24.1 on, a large inaccessible part lies between the view and
/// the chunks. A larger reservation (-Xmx, ReservedAddressSpaceSize) ends with the last large inaccessible mapping that
/// follows without a hole. What begins where the default ends, or merges with the end by a guard page, is a neighbour.
fn known_end(base: Avma, view: AddressRange, vmas: &[Vma]) -> Option<Avma> {
    let default = Avma(base.0.checked_add(ADDRESS_SPACE)?);
    let mut covered = view.end;
    let mut longer = None;
    for vma in from(vmas, view.end) {
        let (start, end) = (vma.range.start, vma.range.end);
        if start != covered || start == default || vma.shared || vma.backing != Backing::Anonymous {
            break;
        }
        covered = end;
        let is_large = end.0.saturating_sub(start.max(default).0) >= LARGE;
        match vma.inaccessible() {
            true if is_large => longer = Some(end),
            true if start < default && end > default => break,
            _ => {}
        }
    }
    longer.or((covered >= default).then_some(default))
}

/// The mappings that begin at `start` or behind it.
fn from(vmas: &[Vma], start: Avma) -> &[Vma] {
    &vmas[vmas.partition_point(|vma| vma.range.start < start)..]
}

/// Adds the reservation around a view: the inaccessible mapping directly before it, and what follows without a hole.
/// The end is `known_end`, or else that of the first large inaccessible mapping.
pub(super) fn add_isolate(image: &mut NativeImage, view: AddressRange, vmas: &[Vma]) {
    let inaccessible = |vma: &Vma| vma.backing == Backing::Anonymous && vma.inaccessible();
    let before = vmas[..vmas.len() - from(vmas, view.start).len()].last();
    let before = before.filter(|vma| vma.range.end == view.start && inaccessible(vma));
    let heap_base = before.map_or(view.start, |vma| vma.range.start);
    let known_end = known_end(heap_base, view, vmas);
    let mut end = view.end;
    for vma in from(vmas, view.end) {
        if vma.range.start != end || vma.shared || vma.backing != Backing::Anonymous || known_end == Some(end) {
            break;
        }
        end = known_end.map_or(vma.range.end, |known| vma.range.end.min(known));
        if vma.writable {
            image.heap_chunks.push(AddressRange::new(vma.range.start, end));
        } else if known_end.is_none() && inaccessible(vma) && vma.range.length().0 >= LARGE {
            break;
        }
    }
    image.isolates.push(Isolate { heap_base, reservation: AddressRange::new(heap_base, end) });
}

/// Parses `VM.native_memory` of an image built with NMT, without its total.
///
/// ```text
/// JNI
///     (reserved=12KB, committed=12KB)
///     (malloc=12KB, count=1)
///     (peak malloc=99KB, count at peak=1)
///     (mmap: reserved=0KB, committed=0KB)
/// ```
pub fn parse_image_nmt(text: &str) -> Vec<NmtCategory> {
    let mut categories: Vec<NmtCategory> = Vec::new();
    for line in text.lines() {
        let Some(figures) = line.strip_prefix([' ', '\t']) else {
            categories.push(NmtCategory { name: line.trim().to_owned(), ..NmtCategory::default() });
            continue;
        };
        let (Some(category), Some(figures)) = (categories.last_mut(), figures.trim_start().strip_prefix('(')) else {
            continue;
        };
        let figures = figures.trim_end_matches(')');
        let of = |kind: &str| {
            let (one, two) = figures.strip_prefix(kind)?.split_once(", ")?;
            Some((one, two.split_once('=')?.1))
        };
        let kib = |text: &str| text.strip_suffix("KB").and_then(|size| size.parse().ok()).map(Bytes::kib);
        if let Some((malloc, count)) = of("malloc=") {
            category.malloc = kib(malloc).unwrap_or_default();
            category.malloc_count = count.parse().unwrap_or_default();
        } else if let Some((reserved, committed)) = of("mmap: reserved=") {
            category.mmap_reserved = kib(reserved).unwrap_or_default();
            category.mmap_committed = kib(committed).unwrap_or_default();
        } else if let Some((reserved, committed)) = of("reserved=") {
            category.reserved = kib(reserved).unwrap_or_default();
            category.committed = kib(committed).unwrap_or_default();
        }
    }
    let is_empty =
        |category: &NmtCategory| *category == NmtCategory { name: category.name.clone(), ..NmtCategory::default() };
    categories.retain(|category| !matches!(category.name.as_str(), "" | "Total") && !is_empty(category));
    categories
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;
    use plimsoll_process::proc::parse_maps;

    const MAPS: &str = include_str!("../../../goldens/native-image-maps.txt");

    fn file() -> ImageFile {
        ImageFile {
            path: "/subjects/app".into(),
            heap_offset: 0x950000,
            heap_length: 0xc10000,
            heap_address: 0x950000,
            text_offset: 0xc0000,
            text_address: 0xc0000,
            version: "GraalVM".into(),
        }
    }

    #[test]
    fn image_heap_reservation_and_chunks_are_found() {
        let vmas = parse_maps(MAPS.as_bytes(), &[]).vmas;
        let image = find_image(&file(), &vmas);
        let range = |start, end| AddressRange::new(Avma(start), Avma(end));
        assert_eq!(
            image.image_heap,
            [
                ImageHeapRange { range: range(0x560c_4757_0000, 0x560c_4818_0000), view: false },
                ImageHeapRange { range: range(0x7f0c_db58_0000, 0x7f0c_dc19_0000), view: true },
            ]
        );
        let reservation = range(0x7f0c_db50_0000, 0x7f14_db50_0000);
        assert_eq!(image.isolates, [Isolate { heap_base: Avma(0x7f0c_db50_0000), reservation }]);
        assert_eq!(image.isolates[0].reservation.length(), Bytes(32 << 30));
        assert_eq!(
            image.heap_chunks,
            [range(0x7f0c_dc20_0000, 0x7f0c_dd29_0000), range(0x7f0c_dd30_0000, 0x7f0c_dd40_0000)]
        );
    }

    /// From libjsvm.so 24.1.2. Its isolate has 2 GiB between the view and the first chunk, and another mapping directly
    /// follows the reservation.
    #[test]
    fn chunks_after_a_large_gap_belong_to_the_isolate_and_its_neighbour_does_not() {
        let maps = "\
7fdad1980000-7fdad1a00000 ---p 00000000 00:00 0
7fdad1a00000-7fdad7010000 r--p 04be0000 fe:00 7 /js/libjsvm.so
7fdad7010000-7fdb56e80000 ---p 00000000 00:00 0
7fdb56e80000-7fdb56f80000 rw-p 00000000 00:00 0
7fdb56f80000-7fe2d1981000 ---p 00000000 00:00 0
7fe2d1981000-7fe2d2181000 rw-p 00000000 00:00 0
";
        let file = ImageFile {
            path: "/js/libjsvm.so".into(),
            heap_offset: 0x4be0000,
            heap_length: 0x5610000,
            ..ImageFile::default()
        };
        let image = find_image(&file, &parse_maps(maps.as_bytes(), &[]).vmas);
        let range = |start, end| AddressRange::new(Avma(start), Avma(end));
        assert_eq!(image.isolates.len(), 1);
        assert_eq!(image.isolates[0].reservation, range(0x7fda_d198_0000, 0x7fe2_d198_0000));
        assert_eq!(image.heap_chunks, [range(0x7fdb_56e8_0000, 0x7fdb_56f8_0000)]);
    }

    /// 64 GiB, with chunks at 2 and at 40 GiB, and a neighbour directly behind.
    #[test]
    fn chunks_beyond_32_gib_belong_to_a_larger_reservation() {
        let maps = "\
700000000000-700000080000 ---p 00000000 00:00 0
700000080000-700000082000 r--p 00001000 fe:00 7 /app
700000082000-700080000000 ---p 00000000 00:00 0
700080000000-700080100000 rw-p 00000000 00:00 0
700080100000-700a00000000 ---p 00000000 00:00 0
700a00000000-700a00100000 rw-p 00000000 00:00 0
700a00100000-701000000000 ---p 00000000 00:00 0
701000000000-701000800000 rw-p 00000000 00:00 0
";
        let file = ImageFile { path: "/app".into(), heap_offset: 0x1000, heap_length: 0x2000, ..ImageFile::default() };
        let range = |start, end| AddressRange::new(Avma(start), Avma(end));
        let found = |maps: &str| {
            let image = find_image(&file, &parse_maps(maps.as_bytes(), &[]).vmas);
            assert_eq!(image.isolates.len(), 1);
            (image.isolates[0].reservation, image.heap_chunks)
        };
        let (first, last) = (range(0x7000_8000_0000, 0x7000_8010_0000), range(0x700a_0000_0000, 0x700a_0010_0000));
        let whole = range(0x7000_0000_0000, 0x7010_0000_0000);
        assert_eq!(found(maps), (whole, vec![first, last]));
        // A chunk lies on the default's end.
        let filled = maps.replace(
            "700080100000-700a00000000 ---p 00000000 00:00 0",
            "700080100000-7007fff00000 ---p 00000000 00:00 0\n\
             7007fff00000-700800100000 rw-p 00000000 00:00 0\n\
             700800100000-700a00000000 ---p 00000000 00:00 0",
        );
        let middle = range(0x7007_fff0_0000, 0x7008_0010_0000);
        assert_eq!(found(&filled), (whole, vec![first, middle, last]));
        // A reservation of the default size, and one of another program's directly behind it.
        let default =
            maps.replace("-700a00000000 ---p", "-700800000000 ---p").replace("700a00000000-", "700800000000-");
        assert_eq!(found(&default), (range(0x7000_0000_0000, 0x7008_0000_0000), vec![first]));
    }

    #[test]
    fn a_heap_that_is_mapped_at_many_places_has_a_view_at_each() {
        let file = ImageFile { path: "/app".into(), heap_offset: 0x1000, heap_length: 0x2000, ..ImageFile::default() };
        // The second of each three begins in the middle of the heap: it belongs to the first.
        let maps: String = (0..30_000u64)
            .map(|at| 0x7000_0000_0000 + at / 3 * 0x10_0000 + [0, 0x1000, 0x8000][at as usize % 3])
            .enumerate()
            .map(|(at, start)| {
                format!("{start:x}-{:x} r--p {:x} fe:00 7 /app\n", start + 0x1000, [1, 2, 1][at % 3] << 12)
            })
            .collect();
        let image = find_image(&file, &parse_maps(maps.as_bytes(), &[]).vmas);
        assert_eq!((image.image_heap.len(), image.isolates.len()), (20_000, 20_000));
    }

    #[test]
    fn mutated_mappings_never_panic() {
        let mut found = 0;
        for text in mutated(MAPS.as_bytes(), 2000) {
            let image = find_image(&file(), &parse_maps(&text, &[]).vmas);
            found += image.isolates.len();
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn an_images_own_report() {
        let text = "Native memory tracking\n\nTotal\n    (reserved=1KB, committed=2KB)\n    (malloc=12330KB, count=424)\n\
                    JNI\n    (reserved=12KB, committed=12KB)\n    (malloc=12KB, count=7)\n    (peak malloc=99KB, count at peak=1)\n    \
                    (mmap: reserved=0KB, committed=0KB)\n    (mmap: peak reserved=5KB, peak committed=5KB)\n\
                    PGO\n    (reserved=0KB, committed=0KB)\n    (malloc=0KB, count=0)\n\
                    Java Heap\n    (reserved=900KB, committed=70KB)\n    (mmap: reserved=900KB, committed=70KB)\n";
        let jni = NmtCategory {
            name: "JNI".into(),
            reserved: Bytes::kib(12),
            committed: Bytes::kib(12),
            malloc: Bytes::kib(12),
            malloc_count: 7,
            ..NmtCategory::default()
        };
        let heap = NmtCategory {
            name: "Java Heap".into(),
            reserved: Bytes::kib(900),
            committed: Bytes::kib(70),
            mmap_reserved: Bytes::kib(900),
            mmap_committed: Bytes::kib(70),
            ..NmtCategory::default()
        };
        assert_eq!(parse_image_nmt(text), [jni, heap]);
        for text in mutated(text.as_bytes(), 2000) {
            parse_image_nmt(&String::from_utf8_lossy(&text));
        }
    }
}
