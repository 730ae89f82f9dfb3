//! Finds the native images among the mapped files.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};

use super::chunks::{self, ChunkLayout, HEADER, NotFound};
use super::parse::{ImageFile, LARGE, VERSION, find_image, version};
use super::unpacked;
use crate::source::glibc::overlapping;
use crate::source::known_files::KnownFiles;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, Isolate, NativeImage, Sourced, Vma};
use plimsoll_facts::units::{AddressRange, merged};
use plimsoll_process::foreign::{FileKind, Regular};
use plimsoll_process::proc::memory::{Live, Memory};
use plimsoll_process::proc::{self, Target, file_remedy, why_refused};

pub(super) const HEAP: &str = ".svm_heap";
const EXECUTABLE: u32 = 1;
/// Limit of images: each costs a search in all mappings. A program has one image, and perhaps one library for each of
/// several languages.
const MOST_IMAGES: usize = 8;

/// A mapped file that is an image.
struct Found {
    file: ImageFile,
    inode: u64,
    layout: Option<ChunkLayout>,
}

/// None without a gap: no mapped file is a native image. `vm` has the regions of a JVM that loaded the image as a
/// library; they are not searched. `files` knows files of an earlier reading.
pub fn read(target: &Target, vmas: &[Vma], vm: Option<&[AddressRange]>, files: &KnownFiles) -> Sourced<NativeImage> {
    let mut seen = HashSet::new();
    let unknown = executables(vmas).filter(|vma| seen.insert(vma.name.as_str()) && !files.is_no_image(vma));
    let images = unknown.filter_map(|vma| {
        let found = image_file(&opened(target, vma)?, vma);
        // After the deadline, it may be an image that could not be read.
        if found.is_none() && !target.deadline().has_passed() {
            files.add_no_image(vma);
        }
        found
    });
    let mut found: Vec<Found> = images.take(MOST_IMAGES + 1).collect();
    if found.is_empty() && vm.is_some() {
        return (None, Vec::new());
    }
    let memory = Live::open(target);
    let mut gaps = Vec::new();
    if found.is_empty() {
        // `collect` reports that the memory can't be opened.
        return (memory.ok().and_then(|memory| unpacked_image(&memory, vmas, &mut gaps)), gaps);
    }
    if found.len() > MOST_IMAGES {
        found.truncate(MOST_IMAGES);
        let reason = format!("the process has more than {MOST_IMAGES} native images, and only so many were read");
        let effect = "the heaps of the others are in other-anonymous and libraries";
        gaps.push(Gap::new(Source::NativeImage, reason, effect));
    }
    // The version is that of the program's own image, if it is one.
    let own = target.program().ok().map(|program| program.meta().ino());
    found.sort_by_key(|image| Some(image.inode) != own);
    let regions = merged(vm.unwrap_or_default().to_vec());
    let is_vm = |vma: &Vma| !overlapping(&regions, vma.range).is_empty();
    let searched: Vec<Vma> = vmas.iter().filter(|vma| !is_vm(vma)).cloned().collect();
    let mut images = Vec::new();
    for Found { file, layout, .. } in found {
        let mut image = find_image(&file, vmas);
        match &memory {
            Ok(memory) => add_chunks(memory, &mut image, &searched, layout, &mut gaps),
            Err(error) => gaps.extend(unopened(&image, target.pid(), error)),
        }
        if image.image_heap.is_empty() {
            gaps.push(Gap::new(
                Source::NativeImage,
                format!("{} is a native image, but no mapping of its heap was found", file.path),
                "the image heap and the Java heap are in other-anonymous and libraries",
            ));
        }
        images.push(image);
    }
    gaps.dedup();
    (Some(joined(images)), gaps)
}

/// The images of a process as one. The version is the first one's.
fn joined(images: Vec<NativeImage>) -> NativeImage {
    let mut images = images.into_iter();
    let mut all = images.next().unwrap_or_default();
    for one in images {
        all.image_heap.extend(one.image_heap);
        all.isolates.extend(one.isolates);
        all.isolates.sort_by_key(|isolate| isolate.heap_base);
        // The searches of two images may have found the same chunk.
        all.heap_chunks.extend(one.heap_chunks);
        all.heap_chunks = merged(all.heap_chunks);
    }
    all
}

/// An image that a packer unpacked. Its own NMT is never queried: there is no cheap way to know whether it would answer
/// or end.
fn unpacked_image(memory: &Live, vmas: &[Vma], gaps: &mut Vec<Gap>) -> Option<NativeImage> {
    let program = proc::find_unpacked(memory, vmas)?;
    let mut image = unpacked::find(memory, &program, vmas)?;
    add_chunks(memory, &mut image, vmas, None, gaps);
    Some(image)
}

pub(super) fn executables(vmas: &[Vma]) -> impl Iterator<Item = &Vma> {
    vmas.iter().filter(|vma| vma.executable && vma.backing == Backing::File)
}

/// Opens a mapped file. The program itself is opened also after its file was replaced or deleted, as by an update.
pub(super) fn opened(target: &Target, vma: &Vma) -> Option<Regular> {
    target.mapped(vma, FileKind::Object).ok().or_else(|| {
        let program = target.program().ok()?;
        (program.meta().ino() == vma.inode).then_some(program)
    })
}

/// The gap if the image's memory can't be opened. `collect` doesn't report the same reason again.
fn unopened(image: &NativeImage, pid: u32, error: &io::Error) -> Option<Gap> {
    let reason = format!("/proc/{pid}/mem can't be opened: {}", why_refused(pid, error));
    let effect = "heap chunks outside the image's reservations, and idle stacks, are in other-anonymous";
    has_chunks_elsewhere(image).then(|| Gap::new(Source::NativeImage, reason, effect).remedy(file_remedy(pid)))
}

/// If an isolate's reservation is much larger than its view, its chunks lie inside and are already known.
fn has_chunks_elsewhere(image: &NativeImage) -> bool {
    let roomy = |isolate: &Isolate| isolate.reservation.length().0 >= LARGE;
    !image.isolates.iter().any(roomy)
}

fn add_chunks(
    memory: &impl Memory,
    image: &mut NativeImage,
    vmas: &[Vma],
    layout: Option<ChunkLayout>,
    gaps: &mut Vec<Gap>,
) {
    if !has_chunks_elsewhere(image) {
        return;
    }
    let (reason, effect) = match chunks::find(memory, image, vmas, layout) {
        Ok(()) => return,
        Err(NotFound::TooMuch) => (
            "the search for heap chunks ended early: too much other memory",
            "heap chunks at high addresses are in other-anonymous",
        ),
        // Without an image heap there is no header. That has a gap of its own.
        Err(NotFound::Layout) if image.image_heap.is_empty() => return,
        Err(NotFound::Layout) => {
            ("how this image lays out its heap chunks was not recognised", "heap chunks are in other-anonymous")
        }
    };
    gaps.push(Gap::new(Source::NativeImage, reason, effect));
}

/// The facts of an image's file, and how its heap chunks are laid out. None for any other ELF file.
fn image_file(file: &Regular, vma: &Vma) -> Option<Found> {
    let pieces = file.pieces();
    let elf = ElfFile64::<object::Endianness, _>::parse(&pieces).ok()?;
    let heap = elf.section_by_name(HEAP)?;
    let (heap_offset, heap_length) = heap.file_range()?;
    let text = elf.segments().find(|segment| match segment.flags() {
        SegmentFlags::Elf { p_flags, .. } => p_flags.0 & EXECUTABLE != 0,
        _ => false,
    })?;
    let version = [".data", ".rodata"].iter().find_map(|name| {
        let data = elf.section_by_name(name)?.data().ok()?;
        memchr::memmem::find(data, VERSION).map(|at| version(&data[at..]))
    });
    let image = ImageFile {
        path: vma.name.clone(),
        heap_offset,
        heap_length,
        heap_address: heap.address(),
        text_offset: text.file_range().0,
        text_address: text.address(),
        version: version.unwrap_or_default(),
    };
    let mut header = [0; HEADER];
    let layout = file.at(heap_offset, &mut header).ok().and_then(|count| ChunkLayout::of(&header[..count]));
    Some(Found { file: image, inode: vma.inode, layout })
}

#[cfg(test)]
mod tests {
    use super::super::chunks::tests::{Image, memory};
    use super::*;
    use plimsoll_facts::snapshot::ImageHeapRange;
    use plimsoll_facts::units::{Avma, Bytes};

    const HEAP: u64 = 0x7f00_0000_0000;
    const VIEW: u64 = 0x7f10_0000_0000;

    /// An image with a view, and an isolate whose reservation has this length.
    fn image(reservation: u64) -> NativeImage {
        let range = AddressRange::sized(Avma(VIEW), Bytes(4 << 20));
        let reservation = AddressRange::sized(Avma(VIEW), Bytes(reservation));
        NativeImage {
            image_heap: vec![ImageHeapRange { range, view: true }],
            isolates: vec![Isolate { heap_base: Avma(VIEW), reservation }],
            ..NativeImage::default()
        }
    }

    #[test]
    fn images_of_one_process_are_joined() {
        let chunk = |at: u64| AddressRange::sized(Avma(at), Bytes(1 << 20));
        let at = |version: &str, by: u64, chunks: &[u64]| {
            let mut image = image(LARGE);
            image.version = version.to_owned();
            image.image_heap[0].range.start.0 += by;
            image.isolates[0].heap_base.0 += by;
            image.heap_chunks = chunks.iter().map(|at| chunk(*at)).collect();
            image
        };
        let upper = at("own", 1 << 40, &[HEAP, HEAP + (8 << 20)]);
        let lower = at("other", 0, &[HEAP - (8 << 20), HEAP]);
        assert_eq!(joined(vec![upper.clone()]).heap_chunks, upper.heap_chunks);
        let all = joined(vec![upper, lower]);
        assert_eq!((all.version.as_str(), all.image_heap.len()), ("own", 2));
        let bases: Vec<u64> = all.isolates.iter().map(|isolate| isolate.heap_base.0).collect();
        assert_eq!(bases, [VIEW, VIEW + (1 << 40)]);
        assert_eq!(all.heap_chunks, [chunk(HEAP - (8 << 20)), chunk(HEAP), chunk(HEAP + (8 << 20))]);
    }

    #[test]
    fn chunks_that_cannot_be_searched_for_are_a_gap() {
        let reasons = |image: &mut NativeImage| {
            let mut gaps = Vec::new();
            add_chunks(&Image::default(), image, &[memory(HEAP, HEAP + (1 << 20))], None, &mut gaps);
            gaps.into_iter().map(|gap| gap.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(&mut image(4 << 20)), ["how this image lays out its heap chunks was not recognised"]);
        assert!(reasons(&mut image(LARGE)).is_empty(), "they lie in the reservation");
        let refused = io::Error::from(io::ErrorKind::NotFound);
        let gap = unopened(&image(4 << 20), 7, &refused).expect("chunks are unknown");
        assert!(gap.reason.starts_with("/proc/7/mem can't be opened: ") && gap.effect.starts_with("heap chunks "));
        assert_eq!(unopened(&image(LARGE), 7, &refused), None);
    }
}
