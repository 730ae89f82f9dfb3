//! The VM's malloc'ed blocks lie in the allocator's pages. NMT reports their bytes by category. These bytes move from
//! the allocator's line to the VM's lines, so that the VM's subtotal equals what the VM reports.
//!
//! If the walk found a category's blocks by their headers, their residency is known (`malloc_resident`). Otherwise it
//! is assumed to be that of live memory as a whole:
//!
//!   moved = malloc × resident live / live,   |error| ≤ the part of live that isn't resident, and ≤ malloc
//!
//! With NMT, the chunk of a block also has NMT's header and the rounding of malloc. Where the walk found the block by
//! its header, the whole chunk is the VM's: these bytes move to `vm-internal`, with NMT itself. Elsewhere, the headers
//! that NMT reports move, and the rounding of each block is an error.
//!
//! The VM reports twice, before and after the mappings are read. A category's change between the reports is added to
//! the error.
//!
//! But java.nio zeroes what it allocates (ByteBuffer.allocateDirect). So buffers count as resident up to the live
//! bytes, and the other categories share the rest. In a series, the count of direct buffers is current, but the walk is
//! older. New buffers lie in memory that came after the walk and is still unclassified.

use std::ops::RangeInclusive;

use super::attribute::apportion;
use super::other_heaps::child;
use super::ownership::LARGE_BLOCKS;
use super::{Grade, LineSums};
use plimsoll_facts::gap::Source;
use plimsoll_facts::lines::LineId;
use plimsoll_facts::snapshot::{DirectBuffers, Glibc, HeapPart, NmtCategory, Snapshot};
use plimsoll_facts::units::Bytes;

const DETAIL: &str = "malloc'ed";
/// The part of `vm-internal` with NMT's headers.
const HEADERS: &str = "headers and rounding of malloc'ed blocks";
/// NMT's header in bytes (source/glibc/nmt_headers.rs).
const HEADER: u64 = 16;
/// Upper bound of a chunk's bytes besides the block and NMT's header: NMT's footer (2), malloc's size field (8), and
/// the rounding (15).
const ROUNDING: u64 = 25;

pub(crate) fn move_to_vm(snapshot: &Snapshot, books: &mut LineSums) {
    let source = match (&snapshot.hotspot, &snapshot.native_image) {
        (Some(_), _) => Source::HotSpot,
        (None, Some(image)) if !image.nmt.is_empty() => Source::NativeImage,
        (None, _) => return,
    };
    // Java zeroes a new direct buffer, so all its pages are resident.
    let direct = snapshot.hotspot.as_ref().and_then(|vm| vm.direct_buffers.clone()).unwrap_or_default();
    let mut of_buffers = direct.at_walk;
    let mut categories = snapshot.vm_categories().to_vec();
    // NMT counts direct buffers in Other, and up to JDK 10 in Internal, among other blocks. A native image's NMT counts
    // them in Unsafe.
    if !categories.iter().any(|category| line_of(category) == Some(LineId::DirectBuffers))
        && let Some(internal) = categories.iter_mut().find(|category| category.name == "Internal")
    {
        of_buffers = of_buffers.min(internal.malloc);
        internal.malloc -= of_buffers;
        internal.malloc_resident = internal.malloc_resident.map(|resident| resident - of_buffers);
    }
    let mut wanted: Vec<LineTransfer> = categories.iter().filter_map(transfer_of).collect();
    if !wanted.iter().any(|wanted| wanted.line == LineId::DirectBuffers) {
        let (bytes, moved) = (of_buffers, direct.moved);
        wanted.push(LineTransfer { line: LineId::DirectBuffers, part: DETAIL, bytes, found: Some(bytes), moved });
    }
    wanted.extend(headers(&categories));
    let (new, gone) = (direct.capacity - direct.at_walk, direct.at_walk - direct.capacity);
    let unread = if snapshot.glibc.is_some() { books.resident(LineId::GlibcUnknown) } else { Bytes(0) };
    let moved_unread = new.min(unread);
    if let Some(LineTransfer { bytes, found, .. }) =
        wanted.iter_mut().find(|wanted| wanted.line == LineId::DirectBuffers)
    {
        let now = |then: Bytes| then + (new - moved_unread) - gone;
        (*bytes, *found) = (now(*bytes), found.map(now));
    }
    let of_others = take(books, LineId::GlibcUnknown, |_| true, moved_unread, source);
    let entry = books.entry(LineId::DirectBuffers, DETAIL);
    entry.add(moved_unread, Bytes(0), Bytes(0), Grade::Derived, Bytes(0), source);
    entry.of_others += of_others;
    wanted.retain(|wanted| wanted.bytes > Bytes(0));
    let requested: Bytes = wanted.iter().map(|wanted| wanted.bytes).sum();
    let Some(from) = line_of_malloc(snapshot, books) else { return };
    // In another allocator's heap, only the live part can hold these blocks.
    let heap = snapshot.malloc_heap.as_ref().filter(|_| from == LineId::OtherAllocator);
    let only = heap.map(|heap| child(heap.kind, HeapPart::Live));
    let is_holder = |detail: &str| only.as_deref().is_none_or(|only| detail == only);
    let resident: Bytes = books.of(from).filter(|(detail, _)| is_holder(detail)).map(|(_, entry)| entry.resident).sum();
    let live = match (&snapshot.glibc, from) {
        _ if heap.is_some() => heap.map(|heap| heap.part(HeapPart::Live).length).unwrap_or_default(),
        (Some(glibc), LineId::GlibcLive) => {
            glibc.arenas.iter().map(|arena| arena.live).sum::<Bytes>()
                + glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum::<Bytes>()
        }
        // Not walked: all of it may be live.
        _ => resident.max(requested),
    };
    // The walk found fewer live bytes than NMT reports, so the two sources contradict each other.
    books.overclaimed += requested - live.max(resident);
    let untouched = live - resident;
    wanted.sort_by_key(|wanted| (wanted.found.is_none(), wanted.line != LineId::DirectBuffers));
    let (mut moved_in_all, mut moved_direct, mut left, mut unsure) = (Bytes(0), Bytes(0), live, Bytes(0));
    let mut received: Vec<(LineId, &str, Bytes)> = Vec::new();
    for LineTransfer { line, part, bytes, found, moved: change } in wanted {
        let still_resident = resident - moved_in_all;
        let scaled = match line {
            LineId::DirectBuffers => bytes,
            _ => bytes.scaled(still_resident.0.min(left.0), left.0),
        };
        let moved = found.unwrap_or(scaled).min(still_resident);
        left -= bytes;
        let (least, most) = if found.is_some() { (moved, moved) } else { (bytes - untouched, bytes.min(resident)) };
        let error = (moved - least).max(most - moved) + change;
        unsure += change;
        moved_in_all += moved;
        if line == LineId::DirectBuffers {
            moved_direct = moved;
        }
        received.push((line, part, moved));
        let grade = if error == Bytes(0) { Grade::Derived } else { Grade::Estimated };
        books.entry(line, part).add(moved, Bytes(0), Bytes(0), grade, error, source);
    }
    let from_large = match &snapshot.glibc {
        Some(glibc) if from == LineId::GlibcLive => {
            let large: Bytes = books.of(from).filter(|(of, _)| *of == LARGE_BLOCKS).map(|(_, sum)| sum.resident).sum();
            let found = large_buffers(&direct, glibc, snapshot.host.page);
            // If all buffers have this size, so have those that came or went since the walk.
            let most = found.map(|found| if Some(found.number) == direct.count { moved_direct } else { found.bytes });
            moved_direct.min(large).min(most.unwrap_or_default())
        }
        _ => Bytes(0),
    };
    if from_large > Bytes(0) {
        let of_others = take(books, from, |detail| detail == LARGE_BLOCKS, from_large, source);
        books.entry(LineId::DirectBuffers, DETAIL).of_others += of_others;
        if let Some((_, _, moved)) = received.iter_mut().rfind(|(line, ..)| *line == LineId::DirectBuffers) {
            *moved -= from_large;
        }
    }
    let of_others = take(books, from, is_holder, moved_in_all - from_large, source);
    share(books, &received, of_others);
    // The rest of the allocator's line may be wrong by as much as the VM allocated or freed meanwhile.
    let largest = books.of_mut(from, is_holder).max_by_key(|entry| entry.resident);
    if let Some(entry) = largest {
        entry.error += unsure;
    }
}

/// The line that has the blocks of the VM's malloc. A library may use glibc's malloc beside another one that serves the
/// program (RTLD_DEEPBIND), so of two walked allocators the VM's is the one with more live memory, as in
/// `Case::live_blocks`.
fn line_of_malloc(snapshot: &Snapshot, books: &LineSums) -> Option<LineId> {
    if let Some(heap) = &snapshot.malloc_heap {
        let name = child(heap.kind, HeapPart::Live);
        let live: Bytes =
            books.of(LineId::OtherAllocator).filter(|(of, _)| *of == name).map(|(_, sum)| sum.resident).sum();
        if live > Bytes(0) && live >= books.resident(LineId::GlibcLive) {
            return Some(LineId::OtherAllocator);
        }
    }
    let lines = [LineId::GlibcLive, LineId::GlibcUnknown, LineId::OtherAllocator];
    lines.into_iter().find(|line| books.resident(*line) > Bytes(0))
}

/// Buffers of java.nio that are blocks with a mapping of their own.
pub(crate) struct LargeBuffers {
    pub number: u64,
    /// Bytes of memory that java.nio counts for them, at most.
    pub bytes: Bytes,
    /// The mappings have these lengths.
    pub lengths: RangeInclusive<Bytes>,
}

/// Finds the large blocks of one size that hold nearly all of the memory that java.nio counts. There may be smaller
/// buffers besides, such as the copy that a read of a file needs. Buffers of several large sizes are not found.
pub(crate) fn large_buffers(direct: &DirectBuffers, glibc: &Glibc, page: Bytes) -> Option<LargeBuffers> {
    // The block also has a chunk header and, with -XX:+PageAlignDirectMemory, another page. The mapping is rounded up
    // to whole pages.
    const BESIDE: u64 = 16;
    const NEARLY_ALL: f64 = 90.0;
    let (count, in_all) = (direct.count.filter(|count| *count > 0)?, direct.at_walk);
    let mut lengths: Vec<u64> = glibc.mmapped.iter().map(|chunk| chunk.range.length().0).collect();
    lengths.sort_unstable();
    let of_length = |at: usize| {
        let (least, most) = (lengths[at], lengths[at] + 2 * page.0);
        let alike = lengths.partition_point(|length| *length <= most) - at;
        let number = count.min(alike as u64);
        let holds = |length: u64| Bytes(number.saturating_mul(length.saturating_sub(BESIDE)));
        let (bytes, enough) = (holds(least).min(in_all), number < count || holds(most) >= in_all);
        let is_found = holds(least.saturating_sub(2 * page.0)) <= in_all && enough;
        let bytes = if number == count { in_all } else { bytes };
        let found = LargeBuffers { number, bytes, lengths: Bytes(least)..=Bytes(most) };
        (is_found && bytes.percent_of(in_all) >= NEARLY_ALL).then_some(found)
    };
    let firsts = (0..lengths.len()).filter(|at| *at == 0 || lengths[at - 1] < lengths[*at]);
    firsts.filter_map(of_length).max_by_key(|found| (found.bytes, found.number))
}

/// What moves to one line.
struct LineTransfer {
    line: LineId,
    /// Name of the line's child.
    part: &'static str,
    bytes: Bytes,
    /// Resident bytes, if the blocks were found.
    found: Option<Bytes>,
    /// How much `bytes` changed while the sources were read.
    moved: Bytes,
}

fn transfer_of(category: &NmtCategory) -> Option<LineTransfer> {
    let bytes = category.malloc + category.arena;
    let (line, found) = (line_of(category)?, category.malloc_resident);
    Some(LineTransfer { line, part: DETAIL, bytes, found, moved: category.moved })
}

/// What the chunks of the VM's blocks have besides the blocks: headers and rounding.
fn headers(categories: &[NmtCategory]) -> Option<LineTransfer> {
    let nmt = categories.iter().find(|category| category.headers > Bytes(0))?;
    let (line, part) = (LineId::VmInternal, HEADERS);
    let moved = rounding_unknown(categories);
    let Some(around) = nmt.around else {
        return Some(LineTransfer { line, part, bytes: nmt.headers, found: None, moved });
    };
    let bytes = around + Bytes(unfound(categories).saturating_mul(HEADER));
    Some(LineTransfer { line, part, bytes, found: Some(bytes), moved })
}

/// Blocks that NMT counts, and the walk didn't find by their headers.
fn unfound(categories: &[NmtCategory]) -> u64 {
    let unfound = categories.iter().filter(|category| category.malloc_resident.is_none());
    unfound.fold(0, |sum, category| sum.saturating_add(category.malloc_count))
}

/// Upper bound of the bytes that malloc and NMT added to the VM's blocks, and that no line of the VM has. 0 without
/// NMT's headers.
pub(crate) fn rounding_unknown(categories: &[NmtCategory]) -> Bytes {
    let has_headers = categories.iter().any(|category| category.headers > Bytes(0));
    Bytes(if has_headers { unfound(categories).saturating_mul(ROUNDING) } else { 0 })
}

/// Divides the bytes that PSS attributes to other processes among the lines that took these bytes.
fn share(books: &mut LineSums, received: &[(LineId, &str, Bytes)], of_others: Bytes) {
    let weights: Vec<u64> = received.iter().map(|(_, _, moved)| moved.0).collect();
    let shares = apportion(of_others.0, &weights, weights.iter().sum());
    for ((line, part, _), of_others) in received.iter().zip(shares) {
        books.entry(*line, part).of_others += Bytes(of_others);
    }
}

/// Moves `bytes` out of the matching children of `line` in proportion to their size, because it is unknown which of
/// them contain the blocks. Returns the part of them that PSS attributes to other processes.
#[must_use]
pub(super) fn take(
    books: &mut LineSums,
    line: LineId,
    is_holder: impl Fn(&str) -> bool,
    bytes: Bytes,
    from: Source,
) -> Bytes {
    let mut entries: Vec<&mut super::LineSum> = books.of_mut(line, is_holder).collect();
    let weights: Vec<u64> = entries.iter().map(|entry| entry.resident.0).collect();
    let sum: u64 = weights.iter().sum();
    let mut of_others = Bytes(0);
    for (entry, share) in entries.iter_mut().zip(apportion(bytes.0.min(sum), &weights, sum)) {
        // share ≤ ⌈bytes × weight / sum⌉ ≤ weight because bytes ≤ sum. So nothing saturates, and the sum holds.
        let left = entry.resident - Bytes(share);
        let stays = entry.of_others.scaled(left.0, entry.resident.0);
        of_others += entry.of_others - stays;
        entry.of_others = stays;
        entry.resident = left;
        entry.grade = entry.grade.max(Grade::Derived);
        if !entry.sources.contains(&from) {
            entry.sources.push(from);
        }
    }
    of_others
}

/// The Java heap, the image heap and the stacks are mapped, never malloc'ed.
fn line_of(category: &NmtCategory) -> Option<LineId> {
    match category.name.as_str() {
        "Java Heap" | "Image Heap" | "Thread Stack" | "Total" => None,
        "Unsafe" => Some(LineId::DirectBuffers),
        name => Some(LineId::of_vm_category(name).unwrap_or(LineId::VmInternal)),
    }
}
