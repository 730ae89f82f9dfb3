//! Walks all arenas of a process, given its memory and its mappings. Pure except for `Memory`.

use super::layout::{CHUNK_HEADER, find_arenas};
use super::mmapped;
use super::native_objects::Objects;
use super::nmt_headers::{NmtHeaders, Tagged};
use super::parameters::find_parameters;
use super::sizes::Sizes;
use crate::source::known_files::KnownFiles;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Arena, Backing, Glibc, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Limited, Memory, PageStates, Paged, Untouched};

mod arena;
mod brk_heap;
mod finds;
mod free_lists;
mod pieces;

use arena::survey_arena;
use finds::Finds;
use free_lists::take_out_listed;

/// Limit of reads in the search for arenas, which takes a few for each arena. But all of a hostile program's data may
/// look like arenas that are linked through all of it.
const MOST_READS: u32 = 1 << 20;

/// The writable data of one libc in the target. There may be several with dlmopen, or if a static program loads one.
pub struct LibcData {
    pub base: Avma,
    pub bytes: Vec<u8>,
}

/// What the walk knows from a VM in the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalkOptions<'w> {
    /// Classify blocks with NMT's headers.
    pub tagged: Option<NmtHeaders>,
    /// Ranges without malloc's blocks.
    pub elsewhere: &'w [AddressRange],
    /// Count blocks that begin with an address in these ranges (sorted, disjoint).
    pub pointing_at: &'w [AddressRange],
    /// Files of an earlier reading.
    pub files: Option<&'w KnownFiles>,
}

/// None if `libcs` has no malloc. `wanted` says what to search for, and which ranges to leave out.
pub fn survey<M: Memory>(
    memory: &M,
    libcs: &[LibcData],
    vmas: &[Vma],
    wanted: WalkOptions<'_>,
) -> (Option<Glibc>, Vec<Gap>) {
    let brk = brk_range(vmas);
    let mut pages = PageStates::new(memory);
    let untouched = Untouched::new(memory);
    let by_page = Paged::new(&untouched);
    let search = Limited::new(&by_page, MOST_READS);
    let mut glibc = Glibc::default();
    let mut gaps = Vec::new();
    let mut finds = Finds {
        tagged: wanted.tagged.map(Tagged::new),
        objects: (!wanted.pointing_at.is_empty()).then(|| Objects::new(wanted.pointing_at)),
        ..Finds::default()
    };
    let mut layouts = Vec::new();
    let mut sizes = Sizes::default();
    let mut known = false;
    for libc in libcs {
        let Some(arenas) = find_arenas(&search, libc.base, &libc.bytes) else { continue };
        known = true;
        let parameters = find_parameters(libc.base, &libc.bytes, brk.map(|range| (range.start, range.end)));
        if parameters.is_none() {
            gaps.push(Gap::new(
                Source::Glibc,
                "mp_ was not recognised in libc's data",
                "blocks above the mmap threshold may be missing from glibc-live, and the cap of arenas isn't known",
            ));
        }
        let parameters = parameters.unwrap_or_default();
        glibc.mmapped_count += parameters.mmapped_count;
        glibc.mmapped_bytes += parameters.mmapped;
        if parameters.arena_max > 0 {
            glibc.arena_cap = Some(parameters.arena_max);
            glibc.arena_cap_set = true;
        }
        if parameters.mmap_threshold > Bytes(0) {
            glibc.mmap_threshold = glibc.mmap_threshold.max(Some(parameters.mmap_threshold));
        }
        for (index, address) in arenas.addresses.iter().enumerate() {
            let main = index == 0;
            let (arena, found) =
                survey_arena(memory, &mut pages, *address, arenas.layout, main, vmas, brk, parameters, &mut finds);
            sizes.merge(&found);
            glibc.arenas.push(arena);
            layouts.push(arenas.layout);
        }
    }
    if !known {
        return (None, gaps);
    }
    gaps.extend(read_in_part(&glibc.arenas));
    take_out_listed(memory, &mut pages, &mut glibc.arenas, &mut sizes, &layouts, &finds.caches);
    glibc.peaks = sizes.peaks();
    glibc.zlib = sizes.zlib();

    let mut heaps: Vec<AddressRange> = glibc.arenas.iter().flat_map(|arena| arena.heaps.iter().copied()).collect();
    heaps.extend_from_slice(wanted.elsewhere);
    glibc.mmapped = mmapped::find(memory, &mut pages, vmas, &heaps, glibc.mmapped_bytes);
    let found: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum();
    if finds.wants_first_bytes() {
        for range in glibc.mmapped.iter().map(|chunk| chunk.range) {
            let mut bytes = [0; 16];
            if memory.read(range.start.offset(Bytes(CHUNK_HEADER)), &mut bytes) {
                finds.add(&bytes, range, true, &mut pages);
            }
        }
        glibc.tagged = finds.tagged.map(Tagged::into_sums).unwrap_or_default();
        glibc.objects = finds.objects.map(Objects::into_blocks).unwrap_or_default();
    }
    gaps.extend(missing_blocks(found, glibc.mmapped_bytes));
    if !pages.readable {
        gaps.push(Gap::new(
            Source::Pagemap,
            "the page map (pagemap) can't be read",
            "free bytes of arenas count as resident, so glibc-retained is an upper bound",
        ));
    }
    (Some(glibc), gaps)
}

/// One gap for all arenas that could only be read in part.
fn read_in_part(arenas: &[Arena]) -> Option<Gap> {
    let broken = || arenas.iter().filter(|arena| !arena.whole);
    let first = broken().next()?.address.0;
    let (reason, of) = match broken().count() {
        1 => (format!("the arena at {first:#x} could only be read in part"), "it"),
        count => (format!("{count} arenas could only be read in part, the first at {first:#x}"), "them"),
    };
    let unknown: Bytes = broken().map(|arena| arena.unknown_resident).sum();
    let lack = "is unclassified (glibc-unknown); glibc-live and glibc-retained lack their parts of that";
    Some(Gap::new(Source::Glibc, reason, format!("{unknown} of {of} {lack}")))
}

/// The gap if fewer bytes were found than libc counts. Both may print as the same figure, so it names the difference.
fn missing_blocks(found: Bytes, counted: Bytes) -> Option<Gap> {
    (found != counted).then(|| {
        Gap::new(
            Source::Glibc,
            format!("{found} of mmapped blocks were found, libc counts {counted}"),
            format!("the difference, {}, is in other-anonymous", (counted - found).max(found - counted)),
        )
    })
}

fn brk_range(vmas: &[Vma]) -> Option<AddressRange> {
    let mut parts = vmas.iter().filter(|vma| vma.backing == Backing::Brk).map(|vma| vma.range);
    let first = parts.next()?;
    Some(parts.fold(first, |all, part| AddressRange::new(all.start.min(part.start), all.end.max(part.end))))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BASE: u64 = 0x5000_0000_0000;
    const LENGTH: u64 = 4 << 20;

    /// Data in which each pair of words looks like an empty bin, and each word like the address of the next arena.
    #[derive(Default)]
    struct Bins(Cell<u32>);

    impl Bins {
        fn word(at: u64) -> u64 {
            at / 16 * 16 - 16
        }
    }

    impl Memory for Bins {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.0.set(self.0.get() + 1);
            let is_inside = at.0 >= BASE && at.0 + into.len() as u64 <= BASE + LENGTH;
            for (at, word) in (at.0..).step_by(8).zip(into.as_chunks_mut().0) {
                *word = Bins::word(at).to_le_bytes();
            }
            is_inside
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    #[test]
    fn the_gap_of_missing_blocks_names_their_size() {
        assert!(missing_blocks(Bytes::mib(5), Bytes::mib(5)).is_none());
        let gap = missing_blocks(Bytes::mib(5) - Bytes::kib(4), Bytes::mib(5)).expect("a gap");
        assert_eq!(gap.reason, "5.00 MiB of mmapped blocks were found, libc counts 5.00 MiB");
        assert_eq!(gap.effect, "the difference, 4.00 KiB, is in other-anonymous");
    }

    #[test]
    fn arenas_that_were_read_in_part_have_one_gap() {
        let arena = |address, whole, unknown_resident| Arena {
            address: Avma(address),
            whole,
            unknown_resident,
            ..Arena::default()
        };
        let all = [(0x1000, true, 0), (0x2000, false, 4), (0x3000, false, 8)];
        let all = all.map(|(address, whole, kib)| arena(address, whole, Bytes::kib(kib)));
        assert!(read_in_part(&all[..1]).is_none());
        let [one, two] = [2, 3].map(|count| read_in_part(&all[..count]).expect("a gap"));
        assert_eq!(one.reason, "the arena at 0x2000 could only be read in part");
        assert_eq!(two.reason, "2 arenas could only be read in part, the first at 0x2000");
        assert!(two.effect.starts_with("12.0 KiB of them is unclassified"), "{}", two.effect);
    }

    #[test]
    fn a_search_in_data_full_of_arenas_ends() {
        let bytes = (BASE..BASE + LENGTH).step_by(8).flat_map(|at| Bins::word(at).to_le_bytes()).collect();
        let memory = Bins::default();
        let (glibc, gaps) = survey(&memory, &[LibcData { base: Avma(BASE), bytes }], &[], WalkOptions::default());
        assert!(glibc.is_none() && gaps.is_empty());
        assert!((MOST_READS / 2..=MOST_READS).contains(&memory.0.get()), "{} reads", memory.0.get());
    }
}
