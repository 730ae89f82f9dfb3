//! The note beside a line of `plimsoll explain`: the answer to the reader's next question about that line.

use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, NmtMode, OtherHeap, Snapshot};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{GO_HEAP, Grade, Line, LineId, Owner, child_of_heap, mapped_again};
use plimsoll_observer::verdict::{Case, file_pages, returned_by_trim};

use crate::words::{counted, cut, signed};

/// Percent of RSS from which other anonymous memory gets a note on how to find its callers.
const LARGE: f64 = 10.0;
/// Percent of RSS from which a note says that RSS counts pages more than once.
pub(crate) const REPEATED: f64 = 1.0;
/// A note says how much of a line other processes share, from this percentage and from `WORTH_SHARED` on.
pub(crate) const SHARED: f64 = 10.0;
const WORTH_SHARED: Bytes = Bytes::mib(4);
/// Percent of the line from which a note has the private copies of files' pages.
const WORTH_COPIED: f64 = 1.0;

pub(crate) fn note(case: Case<'_>, line: &Line) -> String {
    let snapshot = case.snapshot;
    let mut notes = Vec::new();
    if let Some(baseline) = &snapshot.baseline {
        let change = case.ledger.change_since(baseline, line.id);
        if Bytes(change.unsigned_abs()) >= Bytes::kib(64) {
            notes.push(format!("{} since", signed(change)));
        }
    }
    if snapshot.smaps_refused
        && let [kind] = line.children.as_slice()
    {
        return kind.name.clone();
    }
    notes.extend(shared(snapshot, line));
    match line.id {
        LineId::JavaHeap => notes.extend(java_heap(snapshot)),
        LineId::DirectBuffers => notes.extend(direct_buffers(snapshot)),
        LineId::GlibcRetained => notes.extend(trimmable(case)),
        LineId::GlibcLive => notes.extend(live_blocks(snapshot)),
        LineId::ThreadStacks | LineId::OtherAnonymous | LineId::ImageHeap => notes.extend(reservation(case, line)),
        LineId::MappedFiles => notes.extend(droppable(case)),
        LineId::OtherAllocator => {
            notes.extend(other_allocator(case, line));
            return notes.join(", ");
        }
        _ => {}
    }
    let is_rough = line.grade == Grade::Estimated || line.error.percent_of(line.resident) >= 1.0;
    match line.error {
        Bytes(0) if is_rough => notes.push("estimated".to_owned()),
        // The error of the line's own figure. The notes that follow have figures of their own.
        error if is_rough => notes.insert(0, format!("± {error}")),
        _ => {}
    }
    notes.join(", ")
}

/// The note for a line whose RSS counts pages that the process maps several times, or shares with others. Only the page
/// map distinguishes the two.
fn shared(snapshot: &Snapshot, line: &Line) -> Option<String> {
    if (line.resident - line.distinct).percent_of(line.resident) >= REPEATED {
        return Some(format!("{} distinct, mapped several times", line.distinct));
    }
    let of_others = line.distinct - line.pss;
    let is_worth = of_others >= WORTH_SHARED && of_others.percent_of(line.distinct) >= SHARED;
    let is_divided = snapshot.residency.is_some() || mapped_again(snapshot).next().is_none();
    let how = if is_divided { "shared with other processes" } else { "mapped several times, or shared with others" };
    is_worth.then(|| format!("{how}, PSS {}", line.pss))
}

fn java_heap(snapshot: &Snapshot) -> Vec<String> {
    let Some(heap) = snapshot.hotspot.as_ref().and_then(|vm| vm.java_heap.as_ref()) else { return Vec::new() };
    let live = match heap.live_after_gc {
        Some(live) => format!("at most {live} live after the last GC"),
        None => format!("occupied {}", heap.occupied),
    };
    vec![format!("committed {}", heap.committed), live]
}

fn direct_buffers(snapshot: &Snapshot) -> Option<String> {
    let vm = snapshot.hotspot.as_ref()?;
    let direct = vm.direct_buffers.as_ref().filter(|of| of.by_netty > Bytes(0))?;
    let where_to = match vm.categories.is_empty() {
        true => "is in glibc-live: NMT is off",
        false => "is included",
    };
    Some(format!(
        "java.nio counts {}; another {} that Netty counts (allocated with Unsafe) {where_to}",
        direct.capacity, direct.by_netty
    ))
}

fn trimmable(case: Case<'_>) -> Option<String> {
    let arenas = case.snapshot.glibc.as_ref()?.arenas.len();
    let plural = if arenas == 1 { "" } else { "s" };
    let (least, most) = returned_by_trim(case);
    let returned = match least {
        _ if most <= least => least.to_string(),
        Bytes(0) => format!("at most {most}"),
        _ => format!("at least {least}"),
    };
    Some(format!("{arenas} arena{plural}; a trim would give back {returned}"))
}

fn live_blocks(snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(glibc) = &snapshot.glibc {
        let blocks: u64 = glibc.arenas.iter().map(|arena| arena.live_count).sum();
        notes.push(counted(blocks + glibc.mmapped.len() as u64, "block"));
    }
    if snapshot.hotspot.as_ref().is_some_and(|vm| vm.nmt == NmtMode::Off) {
        notes.push("including the VM's own (NMT is off)".to_owned());
    }
    notes.extend(array_buffers(snapshot).filter(|_| snapshot.malloc_heap.is_none()));
    notes
}

/// How much more address space the line has than resident memory, and how to find who maps it.
fn reservation(case: Case<'_>, line: &Line) -> Vec<String> {
    let snapshot = case.snapshot;
    let mut notes = Vec::new();
    if line.reserved > line.resident {
        notes.push(format!("of {} reserved", line.reserved));
    }
    let is_large = line.resident.percent_of(case.ledger.rss) >= LARGE;
    if line.id == LineId::OtherAnonymous && is_large && !snapshot.vmas.is_empty() {
        let vm_is_mute = snapshot.hotspot.is_some() && case.ledger.resident(LineId::JavaHeap) == Bytes(0);
        let pid = snapshot.process.pid;
        let of_brk: Bytes = line.children.iter().filter(|part| part.name == "[heap]").map(|part| part.resident).sum();
        let from = if case.may_hide_blocks() {
            "no source claims it"
        } else if of_brk > line.resident - of_brk {
            "its own brk or sbrk"
        } else {
            "its own mmap"
        };
        notes.push(match (vm_is_mute, case.is_tracked()) {
            (true, _) => "includes the Java heap: the VM did not answer".to_owned(),
            _ if case.is_go() => "its own mmap, which Go calls past libc".to_owned(),
            (false, true) => format!("{from}; to see the calls: plimsoll report {pid} --by site"),
            // malloc's gap has the remedy.
            (false, false) if case.may_hide_blocks() => from.to_owned(),
            (false, false) => match case.barrier() {
                Some(barrier) => format!("{from}; it {}, so no tracker can name the calls", barrier.property()),
                None => format!("{from}; to see the calls, start it with plimsoll run"),
            },
        });
    }
    if line.id == LineId::ImageHeap && snapshot.unpacked.is_some() {
        notes.push("a packed program: copies, not pages of its file".to_owned());
    }
    notes
}

/// Pages that equal their file, which the kernel can drop; and copies, which it can't.
fn droppable(case: Case<'_>) -> Vec<String> {
    let pages = file_pages(case);
    let (clean, copied) = (pages.cache - pages.unwritten, pages.copied);
    let clean = (clean > Bytes(0)).then(|| format!("{clean} clean: the kernel takes it back when it needs it"));
    let copied = (copied.percent_of(case.resident(LineId::MappedFiles)) >= WORTH_COPIED)
        .then(|| format!("{copied} written: private copies, which the kernel can't drop"));
    clean.into_iter().chain(copied).collect()
}

fn other_allocator(case: Case<'_>, line: &Line) -> Vec<String> {
    let snapshot = case.snapshot;
    let mut notes = Vec::new();
    let heaps = || snapshot.other_heaps();
    // Live blocks of the VM moved from the heap's child to the VM's lines.
    let of_vm = |heap: &OtherHeap| {
        let may_move = snapshot.hotspot.is_some() || snapshot.native_image.is_some();
        let name = child_of_heap(heap.kind, HeapPart::Live);
        let left: Bytes = line.children.iter().filter(|child| child.name == name).map(|child| child.resident).sum();
        if may_move { heap.resident(HeapPart::Live) - left } else { Bytes(0) }
    };
    let is_other = |child: &&Line| heaps().all(|heap| !is_part_of(heap, &child.name));
    let others = line.children.iter().filter(is_other).take(2).map(|child| {
        let is_beside = heaps().any(|heap| heap.kind.to_string() == child.name);
        if is_beside { format!("other memory of {}", child.name) } else { cut(&child.name, 32) }
    });
    let kinds = heaps().map(|heap| other_heap(heap, of_vm(heap))).chain(others).collect::<Vec<String>>().join(", ");
    // The label names the only allocator already.
    let label = line.label();
    let kinds = kinds.strip_prefix(&format!("{label}: ")).unwrap_or(&kinds);
    let unsure = (line.grade == Grade::Estimated).then_some("may include the program's own mmap");
    let kinds = Some(kinds).filter(|kinds| !kinds.is_empty() && *kinds != label);
    let kinds: Vec<&str> = kinds.into_iter().chain(unsure).collect();
    notes.extend((!kinds.is_empty()).then(|| kinds.join("; ")));
    if let Some(python) = &snapshot.pymalloc {
        notes.push(format!("{} live in pools", python.live));
    }
    notes.extend(array_buffers(snapshot).filter(|_| snapshot.malloc_heap.is_some()));
    let mapped = snapshot.mapped_array_buffers();
    if mapped.count > 0 {
        notes.push(format!("array buffers that V8 maps (WebAssembly's memory) take {}", mapped.bytes));
    }
    let given_back = given_back(case, line.id);
    if given_back.percent_of(line.resident) >= 1.0 {
        notes.push(format!("{given_back} given back: the kernel takes it when it needs it"));
    }
    notes
}

/// The note on V8's array buffers. It belongs to the line that holds malloc's live blocks.
fn array_buffers(snapshot: &Snapshot) -> Option<String> {
    let buffers = snapshot.array_buffers().filter(|buffers| buffers.count > 0)?;
    Some(format!("array buffers of V8 (Node's Buffer) take {}", buffers.bytes))
}

/// Bytes released with MADV_FREE: resident until the kernel needs them. Counts only mappings that belong to the line as
/// a whole.
fn given_back(case: Case<'_>, id: LineId) -> Bytes {
    let pieces = case.ledger.pieces.iter().filter(|piece| matches!(&piece.owner, Owner::Line(line, _) if *line == id));
    let vmas = pieces.filter_map(|piece| case.snapshot.vmas.get(piece.vma).filter(|vma| vma.range == piece.range));
    vmas.map(|vma| vma.lazy_free).sum()
}

/// `jemalloc: 10.4 MiB live, 99.5 MiB in free pages`,
/// `V8: 41.2 MiB live, 20.3 MiB free for young objects, 2.1 MiB free in old pages`
fn other_heap(heap: &OtherHeap, of_vm: Bytes) -> String {
    let kind = heap.kind;
    let beside = if of_vm > Bytes(0) { " beside the VM's own" } else { "" };
    let live = heap.live() - of_vm;
    if kind == AllocatorKind::V8 {
        let [young, old] = [HeapPart::FreeYoung, HeapPart::FreeOld];
        let part = |part: HeapPart| format!("{} {}", heap.resident(part), part.name());
        return format!("{kind}: {live} live, {}, {}", part(young), part(old));
    }
    let free = heap.purgeable();
    if kind == AllocatorKind::Go {
        return format!("{GO_HEAP}: {live} live, {free} in free pages, {} of stacks", heap.resident(HeapPart::Stacks));
    }
    format!("{kind}: {live} live{beside}, {free} in free pages")
}

fn is_part_of(heap: &OtherHeap, child: &str) -> bool {
    HeapPart::ALL.into_iter().any(|part| child == child_of_heap(heap.kind, part))
}
