//! The ledger: facts of one moment in, lines out. It is pure and never fails.
//!
//!   Σ lines + remainder = Rss of the smaps reading, to the byte
//!   Σ children = their line, for every line with children
//!
//! 1. `ownership`: which source claims which range; the most reliable source first.
//! 2. `attribute`: mappings × claims → pieces, each with its resident bytes.
//!    `distinct`: of these bytes, those that the process maps more than once, and those shared with other processes.
//! 3. `arenas`: pieces of glibc's heaps → live, retained, unknown, by the walk.
//! 4. `other_heaps`: pieces of another allocator's heap → its live blocks and free pages, likewise.
//! 5. `before_attach`: glibc's live blocks → from before an attach, and since.
//! 6. `vm_blocks`: blocks that the VM malloc'ed move from the allocator's line to the VM's lines.
//! 7. Lines, biggest first. The rest is the remainder, which is always printed.

mod arenas;
mod attribute;
mod baseline;
mod before_attach;
mod cgroup;
mod distinct;
mod label;
mod other_heaps;
mod ownership;
mod pools;
mod tracker_mappings;
mod vm_blocks;

use std::collections::BTreeMap;

pub use arenas::child_of as child_of_arenas;
pub use cgroup::CgroupSum;
pub use distinct::mapped_again;
pub use label::label_of;
pub use other_heaps::child as child_of_heap;
pub use ownership::GO_HEAP;
pub(crate) use ownership::{PYTHON_FRAMES, PYTHON_POOLS, is_unnamed_memory, vma_at};
pub use plimsoll_facts::lines::{Group, LineId};
pub use plimsoll_facts::snapshot::Baseline;
pub use pools::{ThreadPools, thread_names};
pub(crate) use tracker_mappings::is_tracker;
pub use tracker_mappings::of as own_mappings;
pub(crate) use vm_blocks::{large_buffers, rounding_unknown};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap, Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};

/// How a figure was obtained, from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// Counted directly.
    #[default]
    Exact,
    /// Computed from counted figures.
    Derived,
    /// Sampled or divided by an assumption: true within the error bound.
    Estimated,
}

impl Grade {
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Exact => "exact",
            Grade::Derived => "derived",
            Grade::Estimated => "estimated",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A line, and the name of its child ("" if it has none).
    Line(LineId, String),
    /// A heap of the arena with this index. Its bytes go to three lines.
    Arena(usize),
    /// A heap that is not glibc's and that a walk has divided, by kind. Its bytes go to the children of one line.
    OtherHeap(AllocatorKind),
}

impl Owner {
    pub fn line(line: LineId, detail: &str) -> Owner {
        Owner::Line(line, detail.to_owned())
    }
}

/// A part of one mapping with one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub range: AddressRange,
    /// Index into the snapshot's mappings.
    pub vma: usize,
    pub owner: Owner,
    pub grade: Grade,
    pub source: Source,
    pub resident: Bytes,
    /// Part of `resident` that another mapping of the process also has, and that counts there.
    pub(crate) repeated: Bytes,
    pub error: Bytes,
    /// Bound for the errors of all pieces of the mapping with the same owner together.
    pub(crate) together: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub id: LineId,
    /// Name of the line or of the child.
    pub name: String,
    pub resident: Bytes,
    /// Address space; 0 for memory without addresses of its own (the VM's malloc'ed blocks).
    pub reserved: Bytes,
    /// The part of `reserved` that may be touched.
    pub committed: Bytes,
    pub grade: Grade,
    pub error: Bytes,
    pub sources: Vec<Source>,
    /// `resident`, but a page that the process maps several times counts once.
    pub distinct: Bytes,
    /// Share of PSS: a page that other processes also map is divided among all its mappings.
    pub pss: Bytes,
    /// Biggest first. If there are any, they sum to the line.
    pub children: Vec<Line>,
}

#[derive(Clone, Debug)]
pub struct Ledger {
    /// Rss of the smaps reading.
    pub rss: Bytes,
    /// Rss, but a page that the process maps several times counts once: the most that a cgroup can charge for it.
    pub distinct: Bytes,
    /// Pss of the smaps reading, or of the kernel's own sum.
    pub pss: Bytes,
    /// Biggest first; only lines with resident bytes or address space.
    pub lines: Vec<Line>,
    pub remainder: Bytes,
    /// Bytes that sources claimed beyond the resident bytes in smaps. These claims were not granted: memory moved
    /// between two readings, or Plimsoll has a fault.
    pub overclaimed: Bytes,
    pub pieces: Vec<Piece>,
    pub cgroup: Option<CgroupSum>,
    /// |Rss of smaps − Rss of the kernel's rollup|: how much changed between two readings.
    pub skew: Option<Bytes>,
}

impl Ledger {
    pub fn of(snapshot: &Snapshot) -> Ledger {
        let mut books = LineSums::default();
        let mut pieces = Vec::new();
        let mut repeated = Bytes(0);
        if snapshot.smaps_refused {
            by_kind(snapshot, &mut books);
        } else {
            let claims = ownership::of(snapshot);
            pieces = attribute::pieces(snapshot, &claims);
            for (again, piece) in distinct::repeated(snapshot, &pieces).into_iter().zip(&mut pieces) {
                piece.repeated = again;
            }
            repeated = pieces.iter().map(|piece| piece.repeated).sum();
            let errors = attribute::errors(&pieces);
            for (piece, error) in pieces.iter().zip(&errors) {
                if let Owner::Line(line, detail) = &piece.owner {
                    let vma = &snapshot.vmas[piece.vma];
                    let committed = if vma.inaccessible() { Bytes(0) } else { piece.range.length() };
                    let entry = books.entry(*line, detail);
                    entry.add(piece.resident, piece.range.length(), committed, piece.grade, *error, piece.source);
                    entry.repeated += piece.repeated;
                    entry.of_others += piece.resident - distinct::proportional(vma, piece);
                }
            }
            arenas::split(snapshot, &pieces, &errors, &mut books);
            other_heaps::split(snapshot, &pieces, &errors, &mut books);
            before_attach::split(snapshot, &mut books);
            vm_blocks::move_to_vm(snapshot, &mut books);
        }
        let rss = snapshot.rss();
        let overclaimed = books.overclaimed;
        let lines = books.lines();
        let known: Bytes = lines.iter().map(|line| line.resident).sum();
        Ledger {
            rss,
            distinct: rss - repeated,
            pss: pss(snapshot, rss),
            remainder: rss - known,
            // By construction, no line exceeds smaps. If one did, this sum would show it.
            overclaimed: overclaimed + (known - rss),
            lines,
            pieces,
            cgroup: snapshot.cgroup.as_ref().map(|cgroup| cgroup::sum(cgroup, anonymous(snapshot))),
            skew: snapshot.rollup.map(|rollup| rollup.rss.abs_diff(rss)),
        }
    }

    pub fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.iter().find(|line| line.id == id)
    }

    pub fn resident(&self, id: LineId) -> Bytes {
        self.line(id).map(|line| line.resident).unwrap_or_default()
    }

    /// Memory without an owner: the remainder, and the parts of lines that are unclassified. Largest first; the lines
    /// contain these parts too.
    pub fn unexplained(&self, snapshot: &Snapshot) -> Vec<(String, Bytes)> {
        let mut parts = vec![("remainder".to_owned(), self.remainder)];
        for line in &self.lines {
            match line.id {
                LineId::OtherAnonymous | LineId::GlibcUnknown => parts.push((line.name.clone(), line.resident)),
                LineId::OtherAllocator => {
                    let children = if line.children.is_empty() { std::slice::from_ref(line) } else { &line.children };
                    let opaque = children.iter().filter(|child| !is_classified(snapshot, &child.name));
                    parts.extend(opaque.map(|child| (child.name.clone(), child.resident)));
                }
                _ => {}
            }
        }
        parts.retain(|(_, bytes)| *bytes > Bytes(0));
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts
    }

    pub fn distinct(&self, id: LineId) -> Bytes {
        self.line(id).map(|line| line.distinct).unwrap_or_default()
    }

    pub fn group(&self, group: Group) -> Bytes {
        let lines: Bytes = self.lines.iter().filter(|line| line.id.group() == group).map(|line| line.resident).sum();
        if group == Group::Other { lines + self.remainder } else { lines }
    }
}

fn anonymous(snapshot: &Snapshot) -> Bytes {
    match snapshot.smaps_refused {
        true => snapshot.rss_by_kind.anonymous,
        false => snapshot.vmas.iter().map(|vma| vma.anonymous).sum(),
    }
}

/// smaps rounds each mapping's PSS down to KiB, so with many small mappings their sum is too low. The kernel's own sum
/// has the fractions. It is another reading, and counts only if nothing has changed between the two.
fn pss(snapshot: &Snapshot, rss: Bytes) -> Bytes {
    let of_kernel = snapshot.rollup.filter(|sum| sum.rss == rss && sum.pss > Bytes(0)).map(|sum| sum.pss.min(rss));
    match snapshot.smaps_refused {
        true => rss,
        false => of_kernel.unwrap_or_else(|| snapshot.vmas.iter().map(|vma| vma.pss.min(vma.rss)).sum()),
    }
}

/// Resident mappings that several owners share. Their page map is needed to divide them.
pub(crate) fn mappings_with_several_owners(snapshot: &Snapshot) -> impl Iterator<Item = &Vma> {
    let pieces =
        if snapshot.smaps_refused { Vec::new() } else { attribute::pieces(snapshot, &ownership::of(snapshot)) };
    let mut cut: Vec<usize> =
        pieces.windows(2).filter(|pair| pair[0].vma == pair[1].vma).map(|pair| pair[0].vma).collect();
    cut.dedup();
    cut.into_iter().map(|index| &snapshot.vmas[index]).filter(|vma| vma.rss > Bytes(0))
}

/// Whether a reader can classify the memory behind this child (an allocator's heap).
pub(crate) fn is_classified(snapshot: &Snapshot, child: &str) -> bool {
    let is_part = |heap: &OtherHeap| {
        let mut classified = HeapPart::ALL.into_iter().filter(|part| *part != HeapPart::Unknown);
        classified.any(|part| child == other_heaps::child(heap.kind, part))
    };
    ([PYTHON_POOLS, PYTHON_FRAMES].contains(&child) && snapshot.pymalloc.is_some())
        || snapshot.other_heaps().any(is_part)
}

/// Without smaps: the kernel's totals by kind, without owners.
fn by_kind(snapshot: &Snapshot, books: &mut LineSums) {
    let kinds = snapshot.rss_by_kind;
    for (line, detail, bytes) in [
        (LineId::OtherAnonymous, "all anonymous memory, whoever owns it", kinds.anonymous),
        (LineId::MappedFiles, "all files, libraries too", kinds.file),
        (LineId::SharedMemory, "all shared memory", kinds.shmem),
    ] {
        books.entry(line, detail).add(bytes, Bytes(0), Bytes(0), Grade::Derived, Bytes(0), Source::Proc);
    }
}

/// Sums by line and child, while the ledger is computed.
#[derive(Default)]
struct LineSums {
    entries: BTreeMap<LineId, BTreeMap<String, LineSum>>,
    overclaimed: Bytes,
}

#[derive(Clone, Debug, Default)]
struct LineSum {
    resident: Bytes,
    reserved: Bytes,
    committed: Bytes,
    grade: Grade,
    error: Bytes,
    /// Error of the division of the line into its children, which the line's own figure doesn't have.
    divided: Bytes,
    sources: Vec<Source>,
    /// Part of `resident` that another mapping of the process also has.
    repeated: Bytes,
    /// Part of `resident` that PSS attributes to other processes.
    of_others: Bytes,
}

impl LineSums {
    fn entry(&mut self, line: LineId, detail: &str) -> &mut LineSum {
        self.entries.entry(line).or_default().entry(detail.to_owned()).or_default()
    }

    fn resident(&self, line: LineId) -> Bytes {
        self.of(line).map(|(_, entry)| entry.resident).sum()
    }

    fn of(&self, line: LineId) -> impl Iterator<Item = (&str, &LineSum)> {
        self.entries.get(&line).into_iter().flatten().map(|(detail, entry)| (detail.as_str(), entry))
    }

    /// The sums of `line` whose name matches.
    fn of_mut(&mut self, line: LineId, is_one: impl Fn(&str) -> bool) -> impl Iterator<Item = &mut LineSum> {
        let children = self.entries.get_mut(&line).into_iter().flatten();
        children.filter(move |(detail, _)| is_one(detail)).map(|(_, entry)| entry)
    }

    fn lines(self) -> Vec<Line> {
        let mut lines: BTreeMap<LineId, Line> = BTreeMap::new();
        let entries = self.entries.into_iter().flat_map(|(id, children)| {
            let whole: Bytes = children.values().map(|entry| entry.resident).sum();
            children.into_iter().map(move |of| (id, whole, of))
        });
        for (id, whole, (detail, entry)) in entries {
            if entry.resident == Bytes(0) && entry.reserved == Bytes(0) {
                continue;
            }
            let line = lines.entry(id).or_insert_with(|| Line {
                id,
                name: id.name().to_owned(),
                resident: Bytes(0),
                reserved: Bytes(0),
                committed: Bytes(0),
                grade: Grade::Exact,
                error: Bytes(0),
                sources: Vec::new(),
                distinct: Bytes(0),
                pss: Bytes(0),
                children: Vec::new(),
            });
            let (distinct, pss) = (entry.resident - entry.repeated, entry.resident - entry.of_others);
            line.distinct += distinct;
            line.pss += pss;
            line.resident += entry.resident;
            line.reserved += entry.reserved;
            line.committed += entry.committed;
            line.grade = line.grade.max(entry.grade);
            line.error += entry.error;
            for source in &entry.sources {
                if !line.sources.contains(source) {
                    line.sources.push(*source);
                }
            }
            let divided = entry.divided.min(entry.resident.max(whole - entry.resident));
            let name = if detail.is_empty() { "mapped".to_owned() } else { detail };
            line.children.push(Line {
                id,
                name,
                resident: entry.resident,
                reserved: entry.reserved,
                committed: entry.committed,
                grade: if divided > Bytes(0) { Grade::Estimated } else { entry.grade },
                error: entry.error + divided,
                sources: entry.sources,
                distinct,
                pss,
                children: Vec::new(),
            });
        }
        let mut lines: Vec<Line> = lines.into_values().collect();
        for line in &mut lines {
            line.error = line.error.min(line.resident.max(line.reserved - line.resident));
            line.children.sort_by(|one, other| other.resident.cmp(&one.resident).then(one.name.cmp(&other.name)));
            if let [only] = line.children.as_slice()
                && only.name == "mapped"
            {
                line.children.clear();
            }
        }
        lines.sort_by(|one, other| other.resident.cmp(&one.resident).then(one.id.cmp(&other.id)));
        lines
    }
}

impl LineSum {
    fn add(&mut self, resident: Bytes, reserved: Bytes, committed: Bytes, grade: Grade, error: Bytes, source: Source) {
        self.resident += resident;
        self.reserved += reserved;
        self.committed += committed;
        // An empty part doesn't lower the grade of the figure.
        if resident > Bytes(0) || error > Bytes(0) {
            self.grade = self.grade.max(grade);
        }
        self.error += error;
        if !self.sources.contains(&source) {
            self.sources.push(source);
        }
    }
}

#[cfg(test)]
mod tests;
