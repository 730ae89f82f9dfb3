//! Finds the tracker's own mappings: by the list in the segment, by the mapping's name, by the file's name.
//!
//! The target can forge all three. So each is checked against the kernel's map, and their sum is bounded: a process
//! can't hide unlimited memory as the tracker's. Memory beyond the bound stays in its usual line.

use plimsoll_segment::{FILE_BYTES, Purpose};

use super::Grade;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};
use plimsoll_tracked::segment::names::{is_library_or_rules, is_segment};

/// Upper bound of a tracker's resident private memory: the tables that all threads share, and the states of some
/// thousand ended threads.
const SHARED_MOST: Bytes = Bytes::mib(64);
/// Upper bound per live thread.
const THREAD_MOST: Bytes = Bytes::mib(1);
/// Upper bound of the files' resident pages: the segment, the library, compiled rules.
const FILES_MOST: Bytes = Bytes(FILE_BYTES as u64 + (64 << 20));

/// The tracker's mappings, and the bytes that the target declared as the tracker's but that were refused.
#[derive(Default)]
pub struct TrackerMappings {
    pub accepted: Vec<(AddressRange, Grade, Source)>,
    pub refused: Bytes,
}

impl TrackerMappings {
    /// The gap that reports refused bytes.
    pub fn gap(&self) -> Option<Gap> {
        let reason = format!("the process declares {} more as the tracker's than a tracker can use", self.refused);
        (self.refused > Bytes(0)).then(|| Gap::new(Source::Segment, reason, "that memory stays in its usual lines"))
    }

    /// Accepts a range with at most `resident` bytes if they fit into the rest of the bound.
    fn accept(&mut self, left: &mut Bytes, range: AddressRange, resident: Bytes, grade: Grade, source: Source) {
        if resident <= *left {
            *left -= resident;
            self.accepted.push((range, grade, source));
        } else {
            self.refused += resident;
        }
    }
}

pub fn of(snapshot: &Snapshot) -> TrackerMappings {
    let mut own = TrackerMappings::default();
    let listed: Vec<(AddressRange, Bytes, bool)> = listed(snapshot).collect();
    let anonymous: Bytes = snapshot.vmas.iter().filter(|vma| is_own_kind(vma)).map(|vma| vma.rss).sum();
    let others = anonymous - listed.iter().map(|(_, resident, _)| *resident).sum();
    let mut private = SHARED_MOST + Bytes(THREAD_MOST.0.saturating_mul(snapshot.process.thread_count));
    // Each key in the side table belongs to a block that lies elsewhere. So the table has a bound of its own.
    let mut tables = others;
    for (range, resident, is_side_table) in listed {
        let left = if is_side_table { &mut tables } else { &mut private };
        own.accept(left, range, resident, Grade::Exact, Source::Segment);
    }
    let mut files = FILES_MOST;
    for vma in snapshot.vmas.iter().filter(|vma| is_tracker(&vma.name)) {
        if vma.name == NAMED_BY_THE_TRACKER {
            let is_listed = own.accepted.iter().any(|(range, ..)| range.overlaps(vma.range));
            if is_own_kind(vma) && !is_listed {
                own.accept(&mut private, vma.range, vma.rss, Grade::Exact, Source::Proc);
            }
        } else {
            own.accept(&mut files, vma.range, vma.rss, Grade::Exact, Source::Proc);
        }
    }
    own
}

/// The listed ranges, cut to mappings of the tracker's kind: the range, its resident bytes at most, and whether it
/// belongs to the side table.
fn listed(snapshot: &Snapshot) -> impl Iterator<Item = (AddressRange, Bytes, bool)> {
    let mut ranges = snapshot.own_mappings.clone();
    ranges.sort_by_key(|own| own.range);
    let mut end = plimsoll_facts::units::Avma(0);
    // A range that is listed twice, or that overlaps another, counts once.
    ranges.retain(|own| {
        let is_new = own.range.start >= end;
        end = end.max(own.range.end);
        is_new
    });
    ranges.into_iter().flat_map(|own| {
        let first = snapshot.vmas.partition_point(|vma| vma.range.end <= own.range.start);
        let within = snapshot.vmas[first..].iter().take_while(move |vma| vma.range.start < own.range.end);
        within.filter(|vma| is_own_kind(vma)).map(move |vma| {
            let part = vma.range.intersection(own.range);
            (part, vma.rss.min(part.length()), own.purpose == Purpose::SideTable as u32)
        })
    })
}

const NAMED_BY_THE_TRACKER: &str = "[anon:plimsoll]";

/// Whether the tracker could have made this mapping: private, writable, not executable, without a file.
fn is_own_kind(vma: &Vma) -> bool {
    let unnamed = vma.name.is_empty() || vma.name == NAMED_BY_THE_TRACKER;
    vma.backing == Backing::Anonymous && vma.readable && vma.writable && !vma.executable && !vma.shared && unnamed
}

pub(crate) fn is_tracker(name: &str) -> bool {
    name == NAMED_BY_THE_TRACKER || is_segment(name) || is_library_or_rules(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::OwnMapping;
    use plimsoll_facts::units::Avma;

    const MIB: u64 = 1 << 20;

    fn memory(start_mib: u64, mib: u64) -> Vma {
        Vma {
            range: AddressRange::sized(Avma(start_mib * MIB), Bytes(mib * MIB)),
            readable: true,
            writable: true,
            rss: Bytes(mib * MIB),
            ..Vma::default()
        }
    }

    fn listed_as(purpose: Purpose, start_mib: u64, mib: u64) -> OwnMapping {
        OwnMapping { range: AddressRange::sized(Avma(start_mib * MIB), Bytes(mib * MIB)), purpose: purpose as u32 }
    }

    fn accepted(snapshot: &Snapshot) -> (u64, u64) {
        let own = of(snapshot);
        let bytes: Bytes = own.accepted.iter().map(|(range, ..)| range.length()).sum();
        assert_eq!(own.gap().is_some(), own.refused > Bytes(0));
        (bytes.0 / MIB, own.refused.0 / MIB)
    }

    #[test]
    fn a_listed_range_is_cut_out_of_a_mapping_that_the_kernel_merged() {
        let snapshot = Snapshot {
            vmas: vec![memory(100, 40)],
            own_mappings: vec![listed_as(Purpose::Pool, 108, 8), listed_as(Purpose::FrameIndex, 116, 8)],
            ..Snapshot::default()
        };
        assert_eq!(accepted(&snapshot), (16, 0));
    }

    #[test]
    fn claims_of_other_kinds_of_memory_are_not_taken() {
        let kinds: [fn(&mut Vma); 6] = [
            |vma| vma.executable = true,
            |vma| vma.writable = false,
            |vma| vma.shared = true,
            |vma| vma.name = "[anon:jemalloc_pages]".to_owned(),
            |vma| vma.backing = Backing::Brk,
            |vma| vma.backing = Backing::File,
        ];
        for change in kinds {
            let mut vma = memory(100, 8);
            change(&mut vma);
            let own_mappings = vec![listed_as(Purpose::Pool, 100, 8)];
            assert_eq!(accepted(&Snapshot { vmas: vec![vma], own_mappings, ..Snapshot::default() }), (0, 0));
        }
    }

    #[test]
    fn a_hostile_process_hides_no_more_than_the_bound() {
        let mut snapshot = Snapshot { vmas: vec![memory(1000, 8192)], ..Snapshot::default() };
        snapshot.process.thread_count = 10;
        // 1,000 pools in a process with ten threads.
        snapshot.own_mappings = (0..1024).map(|i| listed_as(Purpose::Pool, 1000 + 8 * i, 8)).collect();
        let (taken, refused) = accepted(&snapshot);
        assert_eq!((taken, refused), (72, 8192 - 72), "of 64 MiB and 1 MiB for each thread");
        // One range listed many times.
        snapshot.own_mappings = vec![listed_as(Purpose::Pool, 1000, 8); 50];
        assert_eq!(accepted(&snapshot), (8, 0));
        // The side table has keys of blocks that lie elsewhere, so it can't be most of the memory.
        snapshot.own_mappings = vec![listed_as(Purpose::SideTable, 1000, 8000)];
        assert_eq!(accepted(&snapshot), (0, 8000));
        snapshot.own_mappings = vec![listed_as(Purpose::SideTable, 1000, 2000)];
        assert_eq!(accepted(&snapshot), (2000, 0));
        // The process also controls the names that the kernel shows.
        snapshot.own_mappings = Vec::new();
        snapshot.vmas[0].name = NAMED_BY_THE_TRACKER.to_owned();
        assert_eq!(accepted(&snapshot), (0, 8192));
        snapshot.vmas[0].name = "/tmp/7-9.seg".to_owned();
        snapshot.vmas[0].backing = Backing::File;
        assert_eq!(accepted(&snapshot), (0, 8192));
    }

    #[test]
    fn the_tracker_is_recognised_by_its_full_name() {
        let hash = "6c".repeat(32);
        let unpacked = format!("/root/.cache/plimsoll/libplimsoll-{hash}.so");
        let ours = [
            &unpacked,
            "/opt/libplimsoll.so",
            "/dev/shm/plimsoll-0/7-9.seg",
            "/tmp/elsewhere/7-9.seg",
            "/x/plimsoll/ab.rules",
            "[anon:plimsoll]",
        ];
        assert_eq!(ours.map(is_tracker), [true; 6]);
        let others = [
            "/src/target/debug/deps/libplimsoll_segment-69.rmeta",
            "/usr/lib/libplimsollier.so",
            "/tmp/libplimsoll-1.so",
            "/data/index-12.seg",
            "/data/_1.seg",
        ];
        assert_eq!(others.map(is_tracker), [false; 5]);
    }
}
