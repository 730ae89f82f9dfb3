//! Reads the heap of the allocator that serves malloc instead of glibc, V8's and Go's. Opens the target's memory, reads
//! the data of the object that contains the allocator, and calls the walk for that kind. The target keeps running: it
//! is neither stopped nor signalled.

use super::heap_data::{Anonymous, data_of};
use super::{golang, jemalloc, mallocng, mimalloc, tcmalloc, v8};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{AllocatorKind, LoadedAllocator, OtherHeap, Sourced, Vma};
use plimsoll_facts::units::Avma;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::memory::{Live, Memory};
use plimsoll_process::proc::{Target, file_remedy, why_refused};

const ATTEMPTS: usize = 3;

/// The heap of a process whose malloc isn't glibc's, if there is a walk for its kind. A Rust program may use mimalloc
/// beside glibc's malloc, and if it is stripped, nothing names the allocator. In a static program with musl, nothing
/// names it either. So without a known allocator, both walks are tried on the program's own data.
pub(crate) fn read(
    target: &Target,
    allocators: &[LoadedAllocator],
    program: Option<&str>,
    vmas: &[Vma],
) -> Sourced<OtherHeap> {
    let has_walk = |kind: AllocatorKind| kind != AllocatorKind::Glibc && !kind.is_runtime();
    let serves = |known: &&LoadedAllocator| known.serves_malloc && has_walk(known.kind);
    let Some(found) = allocators.iter().find(serves) else {
        // If the memory can't be opened, other sources report it.
        let memory = program.zip(timely(target).ok());
        return memory.map(|(program, memory)| unnamed(&memory, program, vmas)).unwrap_or_default();
    };
    let kind = found.kind;
    let closed = |reason: String| {
        let effect = format!("{kind}'s live and free memory is not separated (line other-allocator)");
        Gap::new(Source::Allocator, format!("{kind} can't be walked: {reason}"), effect)
    };
    let memory = match timely(target) {
        Ok(memory) => memory,
        Err(error) => {
            let gap = closed(format!(
                "/proc/{pid}/mem can't be opened: {}",
                why_refused(target.pid(), &error),
                pid = target.pid()
            ));
            return (None, vec![gap.remedy(file_remedy(target.pid()))]);
        }
    };
    let anonymous = Anonymous::of(vmas);
    let walk = || {
        let data = || data_of(&memory, &found.path, vmas);
        match kind {
            AllocatorKind::Jemalloc => {
                jemalloc::walk(&memory, &data(), &anonymous).map(|heap| (heap, None)).map_err(|closed| closed.reason())
            }
            AllocatorKind::Mimalloc => {
                mimalloc::walk(&memory, data, &anonymous, &Anonymous::touched(vmas)).map_err(|closed| closed.reason())
            }
            AllocatorKind::Musl => {
                mallocng::walk(&memory, &data(), &anonymous).map(|heap| (heap, None)).map_err(|closed| closed.reason())
            }
            _ => tcmalloc::walk(&memory, &data(), &anonymous).map_err(|closed| closed.reason()),
        }
    };
    match repeated(walk) {
        Ok((heap, unread)) => {
            let unread = unread.map(|(reason, effect)| Gap::new(Source::Allocator, reason.to_owned(), effect));
            (Some(heap), unread.into_iter().collect())
        }
        Err(_) if memory.deadline.has_passed() => {
            (None, vec![closed("the command's time was over before the walk was".to_owned())])
        }
        Err(reason) => (None, vec![closed(reason.to_owned())]),
    }
}

/// Go's heap, which lies beside malloc's.
pub(crate) fn read_go(target: &Target, allocators: &[LoadedAllocator], vmas: &[Vma]) -> Sourced<OtherHeap> {
    let Some(found) = allocators.iter().find(|known| known.kind == AllocatorKind::Go) else {
        return (None, Vec::new());
    };
    // If the memory can't be opened, other sources report it.
    let Ok(memory) = Live::open(target) else { return (None, Vec::new()) };
    let memory = Timely { memory, deadline: target.deadline() };
    let is_named = |vma: &&Vma| vma.name.starts_with("[anon: Go: ") && !vma.name.contains("heap]");
    let mappings = golang::GoMappings {
        anonymous: Anonymous::of(vmas),
        writable: Anonymous::of_writable(vmas),
        named: vmas.iter().filter(is_named).map(|vma| vma.range).collect(),
    };
    let walk = || golang::walk(&memory, &data_of(&memory, &found.path, vmas), &mappings);
    match (1..ATTEMPTS).fold(walk(), |walked, _| walked.or_else(|_| walk())) {
        Ok(heap) => (Some(heap), Vec::new()),
        Err(error) => {
            let reason = match memory.deadline.has_passed() {
                true => "the command's time was over before the walk was",
                false => error.reason(),
            };
            let effect = "live, free and stack memory of Go are not separated (line other-allocator)";
            (None, vec![Gap::new(Source::Allocator, format!("Go's heap can't be walked: {reason}"), effect)])
        }
    }
}

/// V8's heap, which lies beside malloc's.
pub(crate) fn read_v8(target: &Target, allocators: &[LoadedAllocator], vmas: &[Vma]) -> Sourced<OtherHeap> {
    if allocators.iter().all(|known| known.kind != AllocatorKind::V8) {
        return (None, Vec::new());
    }
    // If the memory can't be opened, other sources report it.
    let Ok(memory) = timely(target) else { return (None, Vec::new()) };
    match repeated(|| v8::walk(&memory, vmas)) {
        Ok(heap) => {
            let gap = || {
                let effect = "how much of malloc's live memory is Buffers is unknown";
                Gap::new(Source::Allocator, "V8's lists of array buffers were not found", effect)
            };
            let gaps = heap.buffers.is_none().then(gap).into_iter().collect();
            (Some(heap), gaps)
        }
        Err(error) => {
            let reason = match memory.deadline.has_passed() {
                true => "the command's time was over before the walk was",
                false => error.reason(),
            };
            let effect = "objects and free space of V8 are not separated (line other-allocator)";
            (None, vec![Gap::new(Source::Allocator, format!("V8's heap can't be walked: {reason}"), effect)])
        }
    }
}

/// The heap of an allocator that is linked into the program without its symbols: musl's in a static program, or
/// mimalloc's.
fn unnamed(memory: &Timely, program: &str, vmas: &[Vma]) -> Sourced<OtherHeap> {
    let (anonymous, touched) = (Anonymous::of(vmas), Anonymous::touched(vmas));
    if let Ok(heap) = repeated(|| mallocng::walk(memory, &data_of(memory, program, vmas), &anonymous)) {
        return (Some(heap), Vec::new());
    }
    let walk = || mimalloc::walk(memory, || data_of(memory, program, vmas), &anonymous, &touched);
    let first = walk();
    // Most programs have no such heap, so one attempt is enough.
    let walked = if first == Err(mimalloc::WalkError::NoSegments) { first } else { first.or_else(|_| repeated(walk)) };
    unnamed_mimalloc(walked)
}

/// Segments whose secret is in the program's data are mimalloc's. Any others only look like them.
fn unnamed_mimalloc(walked: Result<(OtherHeap, Option<mimalloc::Unread>), mimalloc::WalkError>) -> Sourced<OtherHeap> {
    let gap = |(reason, effect)| Gap::new(Source::Allocator, reason, effect);
    match walked {
        Ok((heap, unread)) => {
            let unread = unread.map(|(reason, effect)| gap((reason.to_owned(), effect)));
            (Some(heap), unread.into_iter().collect())
        }
        Err(mimalloc::WalkError::NoSegments | mimalloc::WalkError::NoSecret) => (None, Vec::new()),
        Err(error) => {
            let reason = format!("the mimalloc in the program can't be walked: {}", error.reason());
            (None, vec![gap((reason, "its live and free memory is in other-anonymous"))])
        }
    }
}

/// The target keeps running, so data that contradicts itself now may be consistent at the next attempt.
fn repeated<T, E>(walk: impl Fn() -> Result<T, E>) -> Result<T, E> {
    (1..ATTEMPTS).fold(walk(), |walked, _| walked.or_else(|_| walk()))
}

pub(crate) fn timely(target: &Target) -> std::io::Result<Timely> {
    Ok(Timely { memory: Live::open(target)?, deadline: target.deadline() })
}

/// Memory that can be read until the command's deadline.
pub(crate) struct Timely {
    memory: Live,
    deadline: Deadline,
}

impl Memory for Timely {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        !self.deadline.has_passed() && self.memory.read(at, into)
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        !self.deadline.has_passed() && self.memory.pagemap(first, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mimalloc::WalkError;

    /// Most programs have no mimalloc, and nothing to report about it.
    #[test]
    fn a_mimalloc_without_a_name_that_cannot_be_walked_is_a_gap() {
        for none in [WalkError::NoSegments, WalkError::NoSecret] {
            assert_eq!(unnamed_mimalloc(Err(none)).1, []);
        }
        for found in [WalkError::OtherSums, WalkError::Unreadable] {
            let (heap, gaps) = unnamed_mimalloc(Err(found));
            assert!(heap.is_none() && gaps.len() == 1 && gaps[0].reason.ends_with(found.reason()), "{gaps:?}");
        }
    }
}
