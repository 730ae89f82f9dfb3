//! Reserved and committed bytes by category, from the virtual memory map, so that they belong to one moment. If the map
//! can't be read, the categories' own central figures are used.

use plimsoll_segment::ThreadFacts;
use plimsoll_segment::vmap::{InFlight, MappingKind, Unreadable, Vma, VmaMap};

use super::{Books, Figures};
use crate::segment::Segment;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};

/// PROT_WRITE.
const WRITE: u16 = 2;

/// A mapping that the program made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: Avma,
    pub end: Avma,
    /// Accessible in some way; otherwise only reserved.
    pub committed: bool,
    pub writable: bool,
    pub kind: MappingKind,
    pub category: usize,
    /// The part that maps files, without the pages of it that are known to be copies.
    pub files: Bytes,
    /// Resident bytes, if the kernel reported them; the part of them that maps files, and the part in glibc's arenas.
    pub resident: Option<Bytes>,
    pub resident_files: Bytes,
    pub resident_arenas: Bytes,
    /// Index of the caller; `None` if unknown.
    pub reserved_by: Option<usize>,
    pub committed_by: Option<usize>,
}

impl Mapping {
    pub fn bytes(&self) -> Bytes {
        Bytes(self.end.0.saturating_sub(self.start.0))
    }

    pub(crate) fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// The part of the committed bytes that maps files.
    pub(crate) fn committed_files(&self) -> Bytes {
        if self.committed { self.files } else { Bytes::ZERO }
    }

    /// The bytes that the mapping is known to hold by itself.
    pub(crate) fn held(&self) -> Bytes {
        self.resident.unwrap_or_default() - self.resident_files - self.resident_arenas
    }

    /// Anonymous memory of category 0.
    #[cfg(test)]
    pub(super) fn of_test(range: AddressRange) -> Mapping {
        Mapping {
            start: range.start,
            end: range.end,
            committed: true,
            writable: true,
            kind: MappingKind::Anonymous,
            category: 0,
            files: Bytes::ZERO,
            resident: None,
            resident_files: Bytes::ZERO,
            resident_arenas: Bytes::ZERO,
            reserved_by: None,
            committed_by: None,
        }
    }

    /// The caller that the mapping counts under.
    pub(super) fn by_whom(&self) -> Option<usize> {
        self.committed_by.or(self.reserved_by)
    }
}

pub(super) fn book(books: &mut Books, segment: &Segment) {
    let map = match VmaMap::new(&segment.vmap) {
        Ok(map) => map,
        // Every program has mappings before main, but a tracker may run without the map. Then its figures are all 0.
        Err(Unreadable::Short | Unreadable::Magic) => return,
    };
    for category in &mut books.categories {
        (category.figures.reserved, category.figures.committed) = (Bytes(0), Bytes(0));
    }
    let (categories, callers) = (books.categories.len(), books.callers.len());
    let caller = |index: u32| Some(segment.caller_of(index as usize)).filter(|i| (1..callers).contains(i));
    let mut strays = 0u64;
    let mut entries = map.entries();
    let is_outside = outside_stacks(segment);
    for vma in entries.by_ref() {
        let attributes = vma.attributes();
        if !is_outside(&vma) {
            books.stack_guards += if attributes.committed() { Bytes::ZERO } else { Bytes(vma.bytes()) };
            continue;
        }
        let category = usize::from(attributes.category());
        strays += u64::from(category >= categories);
        let bytes = Bytes(vma.bytes());
        let mapping = Mapping {
            start: Avma(vma.start),
            end: Avma(vma.end),
            committed: attributes.committed(),
            writable: attributes.prot() & WRITE != 0,
            kind: attributes.kind(),
            category: if category < categories { category } else { 0 },
            files: if is_file(attributes.kind(), attributes.prot()) { bytes } else { Bytes::ZERO },
            resident: None,
            resident_files: Bytes::ZERO,
            resident_arenas: Bytes::ZERO,
            reserved_by: caller(attributes.reserve_caller()),
            committed_by: caller(attributes.commit_caller()),
        };
        let figures = &mut books.categories[mapping.category].figures;
        add(figures, &mapping);
        if let Some(caller) = mapping.by_whom() {
            let caller = &mut books.callers[caller];
            add(&mut caller.figures, &mapping);
            if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                add(&mut books.modules[module].figures, &mapping);
            }
        }
        books.mappings.push(mapping);
    }
    let damaged = entries.damaged();
    let mut gap = |reason: String, effect: &str| books.gaps.push(Gap::new(Source::Segment, reason, effect));
    if strays > 0 {
        gap(
            format!("{strays} mappings name a category that the segment doesn't have"),
            "they are in the first category",
        );
    }
    if damaged > 0 {
        gap(format!("the virtual memory map is damaged at {damaged} places"), "reserved and committed are too low");
    }
    if map.lost_ops() > 0 {
        let lost = Bytes(map.lost_bytes());
        gap(
            format!("{} mapping operations found no space in the map", map.lost_ops()),
            &format!("{lost} may be in a wrong state"),
        );
    }
    if let Some(InFlight { bytes, .. }) = map.in_flight() {
        gap(
            "a mapping operation was under way".into(),
            &format!("{} may be in their old or their new state", Bytes(bytes)),
        );
    }
}

/// Whether an entry of the map lies outside the stacks that the thread table has. HotSpot makes the guard zone at the
/// end of a thread's stack by mmap over it. The stack has these addresses already.
pub(crate) fn outside_stacks(segment: &Segment) -> impl Fn(&Vma) -> bool + use<> {
    let is_libcs = |thread: &&ThreadFacts| thread.state == 1 && thread.stack_kind == 0;
    let stacks = segment.threads.iter().filter(is_libcs);
    let stacks = merged(stacks.map(|t| AddressRange::new(Avma(t.stack_low), Avma(t.stack_high))).collect());
    move |vma| {
        let after = stacks.partition_point(|stack| stack.start.0 <= vma.start);
        after.checked_sub(1).is_none_or(|at| vma.end > stacks[at].end.0)
    }
}

/// A shared mapping without write access is probably a file, a writable one probably shared memory: the segment doesn't
/// distinguish them. The kernel does while the process runs (`resident.rs`).
fn is_file(kind: MappingKind, prot: u16) -> bool {
    kind == MappingKind::File || (kind == MappingKind::Shared && prot & WRITE == 0)
}

fn add(figures: &mut Figures, mapping: &Mapping) {
    figures.reserved += mapping.bytes();
    if mapping.committed {
        figures.committed += mapping.bytes();
        figures.files += mapping.files;
    }
}
