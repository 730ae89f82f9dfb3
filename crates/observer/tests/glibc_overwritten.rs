//! Walks glibc's malloc in a copy of a real process's memory in which malloc's own data was overwritten at random. A
//! bug in a program does that, and a running process may look like it. In all cases, the walk ends after a bounded
//! number of reads, and its sums don't exceed the heaps.

mod processes;

#[path = "../../../fixtures/random.rs"]
mod random;

use random::Random;
use std::cell::Cell;
use std::process::Command;

use plimsoll_facts::snapshot::{Backing, Glibc, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_observer::source::glibc::{LibcData, WalkOptions, survey};
use plimsoll_process::proc::memory::{Memory, PAGE};
use processes::{Subject, compiled, vmas};

/// A copy of the process's writable memory; `present` has a flag per page.
struct Image {
    parts: Vec<Part>,
    reads: Cell<u64>,
}

struct Part {
    start: u64,
    bytes: Vec<u8>,
    present: Vec<bool>,
}

impl Image {
    fn of(pid: u32, vmas: &[Vma]) -> Image {
        use std::os::unix::fs::FileExt;
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("own child");
        let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap")).expect("own child");
        let mut parts: Vec<Part> = Vec::new();
        for vma in vmas.iter().filter(|vma| vma.readable && vma.writable && vma.backing != Backing::Kernel) {
            let mut bytes = vec![0; vma.range.length().0 as usize];
            let mut words = vec![0; bytes.len() / PAGE as usize * 8];
            memory.read_exact_at(&mut bytes, vma.range.start.0).expect("readable");
            pagemap.read_exact_at(&mut words, vma.range.start.0 / PAGE * 8).expect("readable");
            let present = words.chunks(8).map(|word| word[7] & 0x80 != 0);
            match parts.last_mut() {
                Some(last) if last.start + last.bytes.len() as u64 == vma.range.start.0 => {
                    last.bytes.extend_from_slice(&bytes);
                    last.present.extend(present);
                }
                _ => parts.push(Part { start: vma.range.start.0, bytes, present: present.collect() }),
            }
        }
        Image { parts, reads: Cell::new(0) }
    }

    fn part(&self, at: u64) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.start <= at);
        self.parts[..after].last().filter(|part| at - part.start < part.bytes.len() as u64)
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        assert!(self.read(Avma(at), &mut word));
        u64::from_le_bytes(word)
    }

    fn put(&mut self, at: u64, word: u64) {
        let part =
            self.parts.iter_mut().find(|part| (part.start..part.start + part.bytes.len() as u64 - 7).contains(&at));
        let part = part.expect("inside");
        let from = (at - part.start) as usize;
        part.bytes[from..from + 8].copy_from_slice(&word.to_le_bytes());
    }
}

impl Memory for Image {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1 + into.len() as u64 / PAGE);
        let Some(part) = self.part(at.0) else { return false };
        let from = (at.0 - part.start) as usize;
        let Some(bytes) = part.bytes.get(from..from + into.len()) else { return false };
        into.copy_from_slice(bytes);
        true
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        self.reads.set(self.reads.get() + 1);
        for (page, word) in (first..).zip(into.iter_mut()) {
            let present = page.checked_mul(PAGE).and_then(|at| {
                let part = self.part(at)?;
                part.present.get(((at - part.start) / PAGE) as usize).copied()
            });
            *word = u64::from(present == Some(true)) << 63;
        }
        true
    }
}

/// libc's .data and the anonymous mapping directly after it.
fn libc_data(vmas: &[Vma]) -> AddressRange {
    let index = vmas.iter().position(|vma| vma.name.ends_with("/libc.so.6") && vma.writable).expect("libc's data");
    let tail = vmas.get(index + 1).filter(|next| next.range.start == vmas[index].range.end && next.name.is_empty());
    AddressRange::new(vmas[index].range.start, tail.map_or(vmas[index].range.end, |tail| tail.range.end))
}

fn walk(image: &Image, data: AddressRange, vmas: &[Vma]) -> (Option<Glibc>, usize) {
    let mut bytes = vec![0; data.length().0 as usize];
    assert!(image.read(data.start, &mut bytes));
    image.reads.set(0);
    let (glibc, gaps) = survey(image, &[LibcData { base: data.start, bytes }], vmas, WalkOptions::default());
    (glibc, gaps.len())
}

/// Properties that hold for any memory contents.
fn check(glibc: &Glibc, vmas: &[Vma], image: &Image, how: &str) {
    let mut heaps: Vec<AddressRange> = glibc.arenas.iter().flat_map(|arena| arena.heaps.iter().copied()).collect();
    heaps.extend(glibc.mmapped.iter().map(|chunk| chunk.range));
    heaps.sort_unstable();
    for heap in &heaps {
        assert!(heap.start <= heap.end, "{how}: {heap:?}");
    }
    let found: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum();
    assert!(found <= glibc.mmapped_bytes, "{how}: {found} of {}", glibc.mmapped_bytes);
    for chunk in &glibc.mmapped {
        assert!(mapped(vmas, chunk.range), "{how}: a block with a hole in it, or in a file's mapping");
    }
    for arena in &glibc.arenas {
        let length: Bytes = arena.heaps.iter().map(|heap| heap.length()).sum();
        let resident: Bytes = arena.heaps.iter().map(|heap| resident(image, *heap)).sum();
        let walked = arena.live + arena.free() + arena.overhead;
        assert!(walked <= length, "{how}: {walked} of {length} {arena:?}");
        if arena.whole {
            assert_eq!(walked, length, "{how}: a whole arena is walked to the byte");
        }
        let sum = arena.live_resident + arena.free_resident + arena.unknown_resident;
        assert!(sum <= resident && (!arena.whole || sum == resident), "{how}: {sum} of {resident} {arena:?}");
        assert!(arena.trimmable <= arena.free_resident, "{how}: {arena:?}");
    }
}

/// Whether private anonymous mappings cover `range` without a hole. There may be several mappings. The kernel splits a
/// block if a part of it is advised or protected. With address randomisation, two different mappings may be adjacent.
fn mapped(vmas: &[Vma], range: AddressRange) -> bool {
    let mut from = range.start;
    for vma in vmas.iter().filter(|vma| vma.backing == Backing::Anonymous && !vma.shared) {
        from = if vma.range.contains(from) { vma.range.end } else { from };
    }
    from >= range.end
}

fn resident(image: &Image, range: AddressRange) -> Bytes {
    let mut sum = 0;
    let mut at = range.start.0;
    while at < range.end.0 {
        let next = ((at / PAGE + 1) * PAGE).min(range.end.0);
        let mut word = [0];
        image.pagemap(at / PAGE, &mut word);
        sum += if word[0] != 0 { next - at } else { 0 };
        at = next;
    }
    Bytes(sum)
}

/// A random address of malloc's own data, with its kind.
fn damage(random: &mut Random, quiet: &Glibc, image: &Image, data: AddressRange) -> (u64, &'static str) {
    let arena = &quiet.arenas[random.below(quiet.arenas.len() as u64) as usize];
    let heap = arena.heaps[random.below(arena.heaps.len() as u64) as usize];
    match random.below(6) {
        0 => (arena.address.0 + 8 * random.below(275), "malloc_state"),
        1 => (heap.start.0 + 8 * random.below(6), "heap_info"),
        2 => (data.start.0 + 8 * random.below(data.length().0 / 8 - 1), "libc's data"),
        3 => {
            // A thread's cache: the first chunk of that size near the heap's start.
            let chunk = (heap.start.0..heap.end.0 - 0x300)
                .step_by(16)
                .take(4096)
                .find(|at| matches!(image.word(at + 8) & !7, 0x290 | 0x250 | 0x300));
            (chunk.map_or(heap.start.0, |chunk| chunk + 16 + 8 * random.below(80)), "tcache")
        }
        4 if !quiet.mmapped.is_empty() => {
            let chunk = quiet.mmapped[random.below(quiet.mmapped.len() as u64) as usize].range;
            (chunk.start.0 + 8 * random.below(2), "a large block's header")
        }
        _ => (heap.start.0 + 8 * random.below(heap.length().0 / 8 - 1), "a heap"),
    }
}

fn value(random: &mut Random, quiet: &Glibc, at: u64, before: u64) -> u64 {
    let arena = &quiet.arenas[random.below(quiet.arenas.len() as u64) as usize];
    let heap = arena.heaps[random.below(arena.heaps.len() as u64) as usize];
    let inside = heap.start.0 + 16 * random.below(heap.length().0 / 16);
    match random.below(9) {
        0 => 0,
        1 => u64::MAX - random.below(64),
        2 => random.below(1 << 20),
        // Makes a ring: the address of the word itself.
        3 => at,
        4 => at.wrapping_sub(16),
        5 => inside ^ (at >> 12),
        6 => inside,
        7 => before ^ (1 << random.below(64)),
        _ => before.wrapping_add(16 * random.below(64)).wrapping_sub(512),
    }
}

fn overwritten(arguments: &[&str], seed: u64, rounds: usize) {
    let subject = Subject::start(Command::new(compiled("arenas", &[])).args(arguments));
    let vmas = vmas(subject.pid());
    let data = libc_data(&vmas);
    let mut image = Image::of(subject.pid(), &vmas);
    let (quiet, gaps) = walk(&image, data, &vmas);
    let (quiet, reads) = (quiet.expect("glibc"), image.reads.get());
    assert_eq!(gaps, 0);
    check(&quiet, &vmas, &image, "as it was");
    let heaps: u64 = quiet.arenas.iter().flat_map(|arena| &arena.heaps).map(|heap| heap.length().0).sum();
    // Each arena may be walked 25 times, and each mapping's pages be checked once; a list may contain each chunk of the
    // heap.
    let pages: u64 = vmas.iter().filter(|vma| vma.writable).map(|vma| vma.rss.0 / PAGE).sum();
    let bound = 30 * reads + 4 * pages + 3 * heaps / 32;

    let mut random = Random(seed);
    let (mut gone, mut printed, mut differ, mut most) = (0, 0, 0, 0);
    for round in 0..rounds {
        let mut undo = Vec::new();
        let mut how = format!("seed {seed} round {round}:");
        for _ in 0..1 + random.below(6) {
            let (at, what) = damage(&mut random, &quiet, &image, data);
            let before = image.word(at);
            let value = value(&mut random, &quiet, at, before);
            how += &format!(" {what} {at:#x} {before:#x} → {value:#x}");
            undo.push((at, before));
            image.put(at, value);
        }
        let (glibc, gaps) = walk(&image, data, &vmas);
        let reads = image.reads.get();
        most = most.max(reads);
        assert!(reads <= bound, "{how}: {reads} reads, bound {bound}");
        match glibc {
            Some(glibc) => {
                check(&glibc, &vmas, &image, &how);
                let live = |glibc: &Glibc| glibc.arenas.iter().map(|arena| arena.live).sum::<Bytes>();
                differ += usize::from(live(&glibc) != live(&quiet));
            }
            None => gone += 1,
        }
        printed += usize::from(gaps > 0);
        for (at, before) in undo.into_iter().rev() {
            image.put(at, before);
        }
    }
    eprintln!(
        "{rounds} rounds: {gone} without malloc, {printed} with gaps, {differ} with other sums, at most {most} reads of {bound}"
    );
    assert!(printed > rounds / 20 && differ > rounds / 20, "{printed} {differ}");
    let (again, _) = walk(&image, data, &vmas);
    assert_eq!(again.expect("glibc").mmapped, quiet.mmapped, "everything was put back");
}

#[test]
fn a_walk_of_one_overwritten_arena_stays_within_its_bounds() {
    overwritten(&["0", "3000", "1"], 11, 400);
}

#[test]
fn a_large_arena_is_not_searched_again_from_each_page() {
    overwritten(&["0", "2000", "3", "64000000"], 13, 60);
}

#[test]
fn a_walk_of_many_overwritten_arenas_stays_within_its_bounds() {
    overwritten(&["5", "1200", "2"], 12, 400);
}

/// Memory that many mappings may share is not walked as a heap.
#[test]
fn a_heap_in_a_mapped_file_is_not_walked() {
    let subject = Subject::start(Command::new(compiled("arenas", &[])).args(["5", "1200", "2"]));
    let vmas = vmas(subject.pid());
    let data = libc_data(&vmas);
    let image = Image::of(subject.pid(), &vmas);
    let own = walk(&image, data, &vmas).0.expect("glibc");
    let is_heap =
        |vma: &Vma| own.arenas[1..].iter().flat_map(|arena| &arena.heaps).any(|heap| heap.overlaps(vma.range));
    assert!(own.arenas.len() > 1 && vmas.iter().any(is_heap));
    for (backing, shared) in [(Backing::File, false), (Backing::Anonymous, true)] {
        let file = |vma: &Vma| Vma { backing: backing.clone(), shared, ..vma.clone() };
        let mapped: Vec<Vma> = vmas.iter().map(|vma| if is_heap(vma) { file(vma) } else { vma.clone() }).collect();
        let (found, gaps) = walk(&image, data, &mapped);
        let found = found.expect("glibc");
        // One gap for all of them.
        assert_eq!((found.arenas.len(), gaps), (own.arenas.len(), 1));
        let main = |glibc: &Glibc| (glibc.arenas[0].heaps.clone(), glibc.arenas[0].bins, glibc.arenas[0].top);
        assert_eq!(main(&found), main(&own));
        assert!(found.arenas[1..].iter().all(|arena| !arena.whole && arena.heaps.is_empty() && arena.live.0 == 0));
    }
}
