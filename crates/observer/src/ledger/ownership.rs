//! Which source claims which address range for which owner. Claims of the same rank should not overlap. Where sources
//! contradict each other, the first claim wins, and later claims get the parts that it leaves free.

use std::collections::BTreeMap;

use super::pools::{ThreadPools, thread_names};
use super::{Grade, Owner, tracker_mappings};
use plimsoll_facts::gap::Source;
use plimsoll_facts::lines::LineId;
use plimsoll_facts::snapshot::{AllocatorKind, ArenaKind, Backing, OtherHeap, Snapshot, VmTag, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, without};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub range: AddressRange,
    pub owner: Owner,
    pub grade: Grade,
    pub source: Source,
}

/// Disjoint claims by start address. An earlier claim is never replaced.
#[derive(Default)]
pub(crate) struct Claims {
    by_start: BTreeMap<Avma, Claim>,
    /// The memory of all claims: the end of each run without a gap, by its start. In a hostile process, each of 65,000
    /// claims may lie over all others.
    runs: BTreeMap<Avma, Avma>,
}

impl Claims {
    /// Adds the parts of the claim's range that are still free.
    pub(crate) fn add(&mut self, claim: Claim) {
        if claim.range.is_empty() {
            return;
        }
        let mut run = claim.range;
        let mut from = run.start;
        for taken in self.touching(claim.range) {
            self.runs.remove(&taken.start);
            self.insert(&claim, AddressRange::new(from, taken.start));
            from = from.max(taken.end);
            run = AddressRange::new(run.start.min(taken.start), run.end.max(taken.end));
        }
        self.insert(&claim, AddressRange::new(from, claim.range.end));
        self.runs.insert(run.start, run.end);
    }

    /// The runs that overlap or touch `range`. Adding a claim joins them into one run, so all claims together meet each
    /// run once.
    fn touching(&self, range: AddressRange) -> Vec<AddressRange> {
        let before = self.runs.range(..range.start).next_back().filter(|(_, end)| **end >= range.start);
        let runs = before.into_iter().chain(self.runs.range(range.start..=range.end));
        runs.map(|(start, end)| AddressRange::new(*start, *end)).collect()
    }

    fn insert(&mut self, claim: &Claim, range: AddressRange) {
        if !range.is_empty() {
            self.by_start.insert(range.start, Claim { range, ..claim.clone() });
        }
    }

    fn other_heap(&mut self, heap: &OtherHeap) {
        let owner = Owner::OtherHeap(heap.kind);
        for range in &heap.ranges {
            self.add(Claim { range: *range, owner: owner.clone(), grade: Grade::Exact, source: Source::Allocator });
        }
    }

    /// Claims that overlap `range`, in address order.
    pub(crate) fn overlapping(&self, range: AddressRange) -> impl Iterator<Item = &Claim> {
        let first = match self.by_start.range(..=range.start).next_back() {
            Some((start, claim)) if claim.range.end > range.start => *start,
            _ => range.start,
        };
        self.by_start.range(first..range.end.max(first)).map(|(_, claim)| claim)
    }
}

pub const GO_HEAP: &str = "Go's heap";
pub(crate) const PYTHON_POOLS: &str = "CPython's pools of small objects";
pub(crate) const PYTHON_FRAMES: &str = "CPython's frames";

/// All claims of a snapshot. The most reliable source comes first.
pub(crate) fn of(snapshot: &Snapshot) -> Claims {
    let mut claims = Claims::default();
    glibc(snapshot, &mut claims);
    malloc_heap(snapshot, &mut claims);
    native_image(snapshot, &mut claims);
    unpacked(snapshot, &mut claims);
    go_heap(snapshot, &mut claims);
    threads(snapshot, &mut claims);
    hotspot(snapshot, &mut claims);
    names(snapshot, &mut claims);
    for (range, grade, source) in tracker_mappings::of(snapshot).accepted {
        claims.add(Claim { range, owner: Owner::line(LineId::Tracker, ""), grade, source });
    }
    runtimes(snapshot, &mut claims);
    if snapshot.glibc.is_none() {
        glibc_by_shape(snapshot, &mut claims);
    }
    bss(snapshot, &mut claims);
    beside_heaps(snapshot, &mut claims);
    claims
}

/// Blocks that glibc mapped one by one.
pub(super) const LARGE_BLOCKS: &str = "large blocks, each in a mapping of its own";
/// Large blocks that the program freed during the reading.
pub(super) const FREED_BLOCKS: &str = "large blocks, freed right after smaps was read";

fn glibc(snapshot: &Snapshot, claims: &mut Claims) {
    let Some(glibc) = &snapshot.glibc else { return };
    for (index, arena) in glibc.arenas.iter().enumerate() {
        for range in &arena.heaps {
            claims.add(Claim { range: *range, owner: Owner::Arena(index), grade: Grade::Exact, source: Source::Glibc });
        }
    }
    untouched_tails(snapshot, claims);
    for chunk in &glibc.mmapped {
        let (detail, grade) = match glibc.gone.binary_search(&chunk.range) {
            Ok(_) => (FREED_BLOCKS, Grade::Estimated),
            Err(_) => (LARGE_BLOCKS, Grade::Exact),
        };
        let owner = Owner::line(LineId::GlibcLive, detail);
        claims.add(Claim { range: chunk.range, owner, grade, source: Source::Glibc });
    }
}

fn malloc_heap(snapshot: &Snapshot, claims: &mut Claims) {
    if let Some(heap) = &snapshot.malloc_heap {
        claims.other_heap(heap);
    }
}

/// The parts of a thread arena's reservations beyond the heaps' ends: address space without resident pages.
fn untouched_tails(snapshot: &Snapshot, claims: &mut Claims) {
    let arenas = snapshot.glibc.iter().flat_map(|glibc| &glibc.arenas);
    for arena in arenas.filter(|arena| arena.kind == ArenaKind::Thread && !arena.heaps.is_empty()) {
        let reservation = Bytes(arena.reserved.0 / arena.heaps.len() as u64);
        for heap in &arena.heaps {
            let tail = AddressRange::new(heap.end, heap.start.offset(reservation).max(heap.end));
            let first = snapshot.vmas.partition_point(|vma| vma.range.end <= tail.start);
            let within = snapshot.vmas[first..].iter().take_while(|vma| vma.range.start < tail.end);
            for vma in within.filter(|vma| vma.backing == Backing::Anonymous && vma.rss == Bytes(0)) {
                let range = vma.range.intersection(tail);
                let owner = Owner::line(LineId::GlibcRetained, "thread arenas");
                claims.add(Claim { range, owner, grade: Grade::Exact, source: Source::Glibc });
            }
        }
    }
}

fn native_image(snapshot: &Snapshot, claims: &mut Claims) {
    let Some(image) = &snapshot.native_image else { return };
    let mut claim = |range: AddressRange, detail: &str| {
        claims.add(Claim {
            range,
            owner: Owner::line(LineId::ImageHeap, detail),
            grade: Grade::Exact,
            source: Source::NativeImage,
        });
    };
    for heap in &image.image_heap {
        claim(heap.range, if heap.view { "image heap, the isolate's view" } else { "image heap, as linked" });
    }
    for chunk in &image.heap_chunks {
        claim(*chunk, "heap chunks");
    }
    for isolate in &image.isolates {
        claim(isolate.reservation, "isolate reservation");
    }
}

/// The segments of an unpacked program, whatever kind of memory its packer mapped for them.
fn unpacked(snapshot: &Snapshot, claims: &mut Claims) {
    let segments = snapshot.unpacked.as_ref().map(|program| program.segments.as_slice()).unwrap_or_default();
    let name = snapshot.process.executable.as_deref().unwrap_or("the program");
    for segment in segments {
        let owner = Owner::line(LineId::Libraries, &format!("{name} (unpacked in memory)"));
        claims.add(Claim { range: segment.range, owner, grade: Grade::Exact, source: Source::Proc });
    }
}

fn hotspot(snapshot: &Snapshot, claims: &mut Claims) {
    let Some(vm) = &snapshot.hotspot else { return };
    for region in &vm.regions {
        let (line, detail) = match &region.tag {
            VmTag::JavaHeap => (LineId::JavaHeap, ""),
            VmTag::Class => (LineId::Class, "metaspace and class space"),
            VmTag::SharedClassSpace => (LineId::Class, "CDS archive"),
            VmTag::Code => (LineId::CodeCache, "code"),
            VmTag::Gc => (LineId::Gc, "mapped"),
            VmTag::Compiler => (LineId::Compiler, "mapped"),
            VmTag::Symbol => (LineId::Symbols, "mapped"),
            VmTag::ThreadStack => (LineId::ThreadStacks, ""),
            VmTag::Other(tag) if tag == "Other" => (LineId::DirectBuffers, "mapped"),
            VmTag::Other(tag) => (LineId::VmInternal, tag.as_str()),
        };
        let owner = Owner::line(line, detail);
        claims.add(Claim { range: region.range, owner, grade: Grade::Exact, source: Source::HotSpot });
    }
}

/// Finds each thread's stack: by the thread library's own record, else by the mapping that the stack pointer points
/// into, else by shape. The shape is a small inaccessible guard directly below a writable anonymous mapping.
fn threads(snapshot: &Snapshot, claims: &mut Claims) {
    let names = thread_names(snapshot);
    let pools = ThreadPools::of(names.iter().copied());
    for (thread, name) in snapshot.threads.iter().zip(names) {
        let detail = pools.pool(name);
        let by_pointer = || {
            let vma = vma_at(&snapshot.vmas, thread.stack_pointer?)?;
            let plausible = vma.writable && !vma.shared && vma.inode == 0 && vma.backing != Backing::Brk;
            plausible.then(|| AddressRange::new(with_guard(&snapshot.vmas, vma).start, vma.range.end))
        };
        let (range, grade) = match thread.stack {
            Some(range) => (range, Grade::Exact),
            None => match by_pointer() {
                Some(range) => (range, Grade::Derived),
                None => continue,
            },
        };
        claims.add(Claim { range, owner: Owner::line(LineId::ThreadStacks, &detail), grade, source: Source::Proc });
    }
    for range in &snapshot.idle_stacks {
        let owner = Owner::line(LineId::ThreadStacks, "kept for threads to come");
        claims.add(Claim { range: *range, owner, grade: Grade::Exact, source: Source::Proc });
    }
    for vma in snapshot.vmas.iter().filter(|vma| vma.backing == Backing::MainStack) {
        let owner = Owner::line(LineId::ThreadStacks, "main");
        claims.add(Claim { range: vma.range, owner, grade: Grade::Exact, source: Source::Proc });
    }
}

/// Claims by the mapping's own name. glibc names its mappings from 2.39 on, with glibc.mem.decorate_maps=1; jemalloc does
/// from 5.3.1 on, and tcmalloc does too.
fn names(snapshot: &Snapshot, claims: &mut Claims) {
    for vma in snapshot.vmas.iter().filter(|vma| !vma.name.is_empty()) {
        let (line, detail) = match vma.name.as_str() {
            name if name.starts_with("[anon: glibc: pthread stack") => (LineId::ThreadStacks, "named by glibc"),
            // `bss` claims it.
            _ if vma.named_bss().is_some() => continue,
            name if name.starts_with("[anon: glibc: ") => (LineId::GlibcUnknown, "named by glibc"),
            name if name.starts_with("[anon:jemalloc") => (LineId::OtherAllocator, "jemalloc"),
            name if name.starts_with("[anon:tcmalloc") => (LineId::OtherAllocator, "tcmalloc"),
            name if name.starts_with("[anon: Go: ") => (LineId::OtherAllocator, "Go's runtime"),
            name if name.starts_with("[anon:mimalloc") || name.starts_with("[anon:mi-") => {
                (LineId::OtherAllocator, "mimalloc")
            }
            "/memfd:java_heap" => (LineId::JavaHeap, ""),
            _ => continue,
        };
        let owner = Owner::line(line, detail);
        claims.add(Claim { range: vma.range, owner, grade: Grade::Exact, source: Source::Proc });
    }
}

pub(crate) fn is_unnamed_memory(vma: &Vma) -> bool {
    vma.backing == Backing::Anonymous && vma.readable && vma.writable && !vma.shared && vma.name.is_empty()
}

/// Go's heap consists of arenas: 64 MiB, aligned to 64 MiB, reserved as a whole and made writable from within
/// (runtime/malloc.go, `heapArenaBytes`, `sysReserve`). The first one lies at 0x00c0 << 32 up to Go 1.25, and anywhere
/// in later versions. This must run before the claims of stacks. Without a C library, Go's threads run on stacks inside
/// this heap, and the stack pointer alone would claim them.
fn go_heap(snapshot: &Snapshot, claims: &mut Claims) {
    const ARENA: u64 = 64 << 20;
    if !snapshot.allocators.iter().any(|known| known.kind == AllocatorKind::Go) {
        return;
    }
    // Go's own records are the best source. In a series, memory that came after the walk is recognised by its shape.
    let then = match &snapshot.go {
        None => &[][..],
        Some(heap) => {
            claims.other_heap(heap);
            let Some(then) = &heap.mapped_then else { return };
            then
        }
    };
    // A glibc arena has the same shape. A walked arena is claimed already; an arena that wasn't walked is most likely
    // smaller than Go's heap.
    let mut claim = |range: AddressRange, grade: Grade| {
        let owner = Owner::line(LineId::OtherAllocator, GO_HEAP);
        claims.add(Claim { range, owner, grade, source: Source::Allocator });
    };
    // From 1.25 on Go names its heap, if the kernel supports names (runtime/set_vma_name_linux.go).
    for vma in snapshot.vmas.iter().filter(|vma| vma.name == "[anon: Go: heap]") {
        claim(vma.range, Grade::Exact);
    }
    let reserved = |vma: &Vma| is_unnamed_memory(vma) || (vma.backing == Backing::Anonymous && vma.inaccessible());
    let runs = snapshot.vmas.chunk_by(|one, next| one.range.end == next.range.start && reserved(one) && reserved(next));
    for run in runs {
        let [Some(first), Some(last)] = [run.first(), run.last()] else { continue };
        let aligned = first.range.start.0.is_multiple_of(ARENA) && last.range.end.0.is_multiple_of(ARENA);
        let writable = run.iter().filter(|vma| aligned && vma.writable).flat_map(|vma| without(&[vma.range], then));
        writable.for_each(|range| claim(range, Grade::Derived));
    }
}

/// Heaps of languages that allocate objects without malloc: CPython's pools and V8's pages, found by their headers.
fn runtimes(snapshot: &Snapshot, claims: &mut Claims) {
    if let Some(python) = &snapshot.pymalloc {
        let parts = [(PYTHON_POOLS, &python.pools), (PYTHON_FRAMES, &python.frames)];
        for (name, range) in parts.into_iter().flat_map(|(name, ranges)| ranges.iter().map(move |range| (name, *range)))
        {
            let owner = Owner::line(LineId::OtherAllocator, name);
            claims.add(Claim { range, owner, grade: Grade::Exact, source: Source::Allocator });
        }
    }
    if let Some(heap) = &snapshot.v8 {
        claims.other_heap(heap);
    }
}

/// Without a walk: claims the brk heap, and finds heaps of thread arenas by their shape (malloc/arena.c: HEAP_MAX_SIZE
/// is 64 MiB on 64-bit; aligned to itself, writable up to the heap's end, inaccessible above).
fn glibc_by_shape(snapshot: &Snapshot, claims: &mut Claims) {
    const HEAP_MAX: u64 = 64 << 20;
    let glibc_serves =
        snapshot.allocators.iter().any(|known| known.kind == AllocatorKind::Glibc && known.serves_malloc);
    let other = other_allocator(snapshot);
    for vma in &snapshot.vmas {
        let arena = vma.backing == Backing::Anonymous
            && vma.writable
            && !vma.shared
            && vma.range.start.0 % HEAP_MAX == 0
            && vma.range.length().0 <= HEAP_MAX
            && reaches_heap_end(&snapshot.vmas, vma, HEAP_MAX);
        let (line, detail) = match (&vma.backing, other) {
            (Backing::Brk, Some(kind)) => (LineId::OtherAllocator, kind.to_string()),
            (Backing::Brk, None) => (LineId::GlibcUnknown, "main arena".to_owned()),
            (_, None) if arena && glibc_serves => (LineId::GlibcUnknown, "thread arenas".to_owned()),
            _ => continue,
        };
        let owner = Owner::line(line, &detail);
        claims.add(Claim { range: vma.range, owner, grade: Grade::Derived, source: Source::Proc });
    }
}

fn reaches_heap_end(vmas: &[Vma], vma: &Vma, heap_max: u64) -> bool {
    let end = Avma(vma.range.start.0.saturating_add(heap_max));
    vma.range.end == end || vma_at(vmas, vma.range.end).is_some_and(|tail| tail.inaccessible() && tail.range.end >= end)
}

/// The .bss of each object: what its program headers say, or without them the whole anonymous mapping directly after
/// the object's last, writable part. Further, what glibc names so.
fn bss(snapshot: &Snapshot, claims: &mut Claims) {
    let objects = Objects::of(snapshot);
    for pair in snapshot.vmas.windows(2) {
        let (data, bss) = (&pair[0], &pair[1]);
        if bss.may_be_bss_of(data) && objects.contain(data) {
            let known = snapshot.bss.binary_search_by_key(&bss.range.start, |range| range.start);
            let range = known.map_or(bss.range, |index| snapshot.bss[index].intersection(bss.range));
            let owner = match tracker_mappings::is_tracker(&data.name) {
                true => Owner::line(LineId::Tracker, ""),
                false => Owner::line(LineId::Libraries, snapshot.process.shown_file(&data.name)),
            };
            claims.add(Claim { range, owner, grade: Grade::Derived, source: Source::Proc });
        }
    }
    // One that doesn't follow its object's data.
    for (vma, file) in snapshot.vmas.iter().filter_map(|vma| Some((vma, vma.named_bss()?))) {
        let owner = Owner::line(LineId::Libraries, file);
        claims.add(Claim { range: vma.range, owner, grade: Grade::Exact, source: Source::Proc });
    }
}

/// Files with an executable mapping: programs and libraries, as opposed to mapped data.
pub(crate) struct Objects {
    files: Vec<((u32, u32), u64)>,
}

impl Objects {
    pub(crate) fn of(snapshot: &Snapshot) -> Objects {
        let executable = |vma: &&Vma| vma.executable && vma.inode != 0;
        let mut files: Vec<_> = snapshot.vmas.iter().filter(executable).map(|vma| (vma.device, vma.inode)).collect();
        files.sort_unstable();
        files.dedup();
        Objects { files }
    }

    pub(crate) fn contain(&self, vma: &Vma) -> bool {
        vma.inode != 0 && self.files.binary_search(&(vma.device, vma.inode)).is_ok()
    }
}

/// The allocator that serves malloc instead of glibc or musl, or musl's own.
pub(crate) fn other_allocator(snapshot: &Snapshot) -> Option<AllocatorKind> {
    let serving =
        |known: &&plimsoll_facts::snapshot::LoadedAllocator| known.serves_malloc && known.kind != AllocatorKind::Glibc;
    snapshot.allocators.iter().find(serving).map(|known| known.kind)
}

/// Allocators that may have mapped memory without a name.
fn suspects(snapshot: &Snapshot) -> impl Iterator<Item = AllocatorKind> {
    let runtimes = snapshot.allocators.iter().map(|known| known.kind).filter(|kind| kind.is_runtime());
    other_allocator(snapshot).into_iter().chain(runtimes)
}

/// The walk that found all memory of the allocator. Of V8, the walk finds only the pages of objects.
fn whole_walk(snapshot: &Snapshot, kind: AllocatorKind) -> Option<&OtherHeap> {
    let mut walked = snapshot.malloc_heap.iter().chain(&snapshot.go);
    walked.find(|heap| heap.kind == kind && heap.has_records)
}

/// The most likely owner of an anonymous mapping without a name, if it isn't the program itself. What a walk of all its
/// memory did not find isn't the allocator's, unless it may have come after the walk.
pub(crate) fn likely_owner(snapshot: &Snapshot) -> Option<AllocatorKind> {
    suspects(snapshot).find(|kind| whole_walk(snapshot, *kind).is_none_or(|heap| heap.mapped_then.is_some()))
}

/// In a series: memory that no walk found in its heap, and that is older than the walks, is the program's own.
fn beside_heaps(snapshot: &Snapshot, claims: &mut Claims) {
    let walks: Option<Vec<&OtherHeap>> = suspects(snapshot).map(|kind| whole_walk(snapshot, kind)).collect();
    let Some(then) = walks.unwrap_or_default().first().and_then(|heap| heap.mapped_then.as_ref()) else { return };
    for vma in snapshot.vmas.iter().filter(|vma| is_unnamed_memory(vma)) {
        let first = then.partition_point(|range| range.end <= vma.range.start);
        for range in then[first..].iter().take_while(|range| range.start < vma.range.end) {
            let owner = Owner::line(LineId::OtherAnonymous, "");
            let range = range.intersection(vma.range);
            claims.add(Claim { range, owner, grade: Grade::Exact, source: Source::Proc });
        }
    }
}

pub(crate) fn vma_at(vmas: &[Vma], address: Avma) -> Option<&Vma> {
    let after = vmas.partition_point(|vma| vma.range.start <= address);
    vmas[..after].last().filter(|vma| vma.range.contains(address))
}

/// The mapping, extended by an inaccessible mapping directly below it if that is small enough for a guard.
fn with_guard(vmas: &[Vma], vma: &Vma) -> AddressRange {
    const LARGEST_GUARD: Bytes = Bytes::mib(1);
    let index = vmas.partition_point(|other| other.range.start < vma.range.start);
    match index.checked_sub(1).map(|below| &vmas[below]) {
        Some(below)
            if below.inaccessible() && below.range.end == vma.range.start && below.range.length() <= LARGEST_GUARD =>
        {
            AddressRange::new(below.range.start, vma.range.end)
        }
        _ => vma.range,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Any mapping of the process may make the file an object.
    #[test]
    fn bss_equals_that_of_a_search_through_all_mappings() {
        let mut random = Random(9);
        let (mut found, mut data_only) = (0, 0);
        for _ in 0..2000 {
            let vmas: Vec<Vma> = (0..24)
                .map(|index| {
                    let range = AddressRange::sized(Avma(0x10000 * index), Bytes(0x10000 - 0x1000 * random.below(2)));
                    let writable = random.below(3) != 0;
                    match random.below(3) {
                        0 => Vma { range, writable, backing: Backing::Anonymous, ..Vma::default() },
                        _ => Vma {
                            range,
                            writable,
                            executable: random.below(4) == 0,
                            inode: random.below(5),
                            device: (8, random.below(2) as u32),
                            backing: Backing::File,
                            ..Vma::default()
                        },
                    }
                })
                .collect();
            let is_same = |one: &Vma, other: &Vma| (one.device, one.inode) == (other.device, other.inode);
            let mut expected = Vec::new();
            for pair in vmas.windows(2) {
                let (data, bss) = (&pair[0], &pair[1]);
                let is_data = data.inode != 0 && data.writable && data.range.end == bss.range.start;
                if is_data && bss.backing == Backing::Anonymous && bss.writable {
                    match vmas.iter().any(|vma| vma.executable && is_same(vma, data)) {
                        true => expected.push(bss.range),
                        false => data_only += 1,
                    }
                }
            }
            found += expected.len();
            let mut claims = Claims::default();
            bss(&Snapshot { vmas, ..Snapshot::default() }, &mut claims);
            assert_eq!(claims.by_start.values().map(|claim| claim.range).collect::<Vec<_>>(), expected);
        }
        assert!(found > 500 && data_only > 500, "{found} {data_only}");
    }

    /// glibc.mem.decorate_maps=1. The kernel cuts names at 80 bytes.
    #[test]
    fn a_bss_that_glibc_names_is_its_librarys() {
        const LIBRARY: &str = "/opt/shop/lib/libjemalloc.so.2";
        let vma = |at: u64, inode: u64, name: &str| Vma {
            range: AddressRange::new(Avma(at), Avma(at + 0x1000)),
            backing: if inode == 0 { Backing::Anonymous } else { Backing::File },
            readable: true,
            writable: true,
            executable: inode != 0,
            inode,
            name: name.into(),
            ..Vma::default()
        };
        let vmas = vec![
            vma(0x1000, 7, LIBRARY),
            vma(0x2000, 0, "[anon: glibc: .bss for /opt/shop/lib/libjemal]"),
            vma(0x8000, 0, "[anon: glibc: .bss for /opt/other.so]"),
            vma(0x9000, 0, "[anon: glibc: malloc arena]"),
        ];
        let claims = of(&Snapshot { vmas, ..Snapshot::default() });
        let owners: Vec<&Owner> = claims.by_start.values().map(|claim| &claim.owner).collect();
        let libraries = |file: &str| Owner::line(LineId::Libraries, file);
        let named = Owner::line(LineId::GlibcUnknown, "named by glibc");
        assert_eq!(owners, [&libraries(LIBRARY), &libraries("/opt/other.so"), &named]);
    }

    fn claim(start: u64, end: u64, detail: &str) -> Claim {
        Claim {
            range: AddressRange::new(Avma(start), Avma(end)),
            owner: Owner::line(LineId::OtherAnonymous, detail),
            grade: Grade::Exact,
            source: Source::Proc,
        }
    }

    /// Nested claims, from the inside out: each lies over all before it.
    #[test]
    fn a_claim_over_many_others_meets_one_run_of_memory() {
        let mut claims = Claims::default();
        let mut met = 0;
        for number in 1..1000 {
            let claim = claim(10_000 - 10 * number, 10_000 + 10 * number, "");
            met += claims.touching(claim.range).len();
            claims.add(claim);
        }
        assert_eq!((met, claims.by_start.len(), claims.runs.len()), (998, 1 + 2 * 998, 1));
        // Separate claims are one run each; a claim over all of them leaves one run.
        let mut claims = Claims::default();
        (0..1000).for_each(|number| claims.add(claim(10 * number, 10 * number + 5, "")));
        assert_eq!(claims.runs.len(), 1000);
        claims.add(claim(3, 9000, ""));
        assert_eq!((claims.by_start.len(), claims.runs.len()), (1900, 100));
        assert_eq!(claims.touching(claim(0, 9000, "").range).len(), 1);
    }

    #[test]
    fn claims_equal_a_naive_array_in_which_the_first_claim_wins() {
        let mut random = Random(88172645463325252);
        let mut next = |below| random.below(below);
        let (mut split, mut swallowed) = (0, 0);
        for _ in 0..500 {
            let mut twin = [usize::MAX; 100];
            let mut claims = Claims::default();
            for index in 0..20 {
                let start = next(100);
                let end = start + next(101 - start);
                let before = claims.by_start.len();
                claims.add(claim(start, end, &index.to_string()));
                match claims.by_start.len() - before {
                    0 => swallowed += 1,
                    1 => {}
                    _ => split += 1,
                }
                for slot in &mut twin[start as usize..end as usize] {
                    if *slot == usize::MAX {
                        *slot = index;
                    }
                }
            }
            let mut painted = [usize::MAX; 100];
            for claim in claims.by_start.values() {
                let Owner::Line(_, detail) = &claim.owner else { unreachable!() };
                painted[claim.range.start.0 as usize..claim.range.end.0 as usize].fill(detail.parse().unwrap());
            }
            assert_eq!(painted, twin);
            for _ in 0..20 {
                let start = next(100);
                let range = AddressRange::new(Avma(start), Avma(start + next(101 - start)));
                let expected = claims.by_start.values().filter(|claim| claim.range.overlaps(range)).count();
                assert_eq!(claims.overlapping(range).filter(|claim| claim.range.overlaps(range)).count(), expected);
            }
        }
        assert!(split > 100 && swallowed > 100, "{split} {swallowed}");
    }
}
