//! Finds thread stacks by the thread library's own record. glibc puts `struct pthread` at the top of each stack that it
//! maps (nptl/allocatestack.c). On x86-64 it begins with the TCB:
//!
//! ```text
//!   stackblock ┌────────────┐
//!              │ guard      │
//!              │ stack      │ grows down
//!              │ static TLS │
//!   pthread p  │ +0   tcb  = p          sysdeps/x86_64/nptl/tls.h, tcbhead_t
//!              │ +16  self = p
//!              │ …    tid (0 once the thread has ended), stackblock, stackblock_size
//!              └────────────┘ stackblock + stackblock_size
//! ```
//!
//! The offsets of the later fields differ between versions, so they are searched for. The stack is the only pair of
//! page-aligned words (b, s) after p with b < p < b + s whose end lies in the pages just above p (`WITHIN`). The tid is
//! a word that is one of the process's thread ids.

use std::collections::HashMap;

use crate::proc::memory::{Memory, PAGE, PageStates, word_at};
use plimsoll_facts::snapshot::{Backing, Thread, Vma};
use plimsoll_facts::units::{AddressRange, Avma};

/// The record is searched for within this distance below the end of a mapping: struct pthread is about 2.3 KiB,
/// 64-aligned.
const WITHIN: u64 = 16 << 10;
/// Bytes of struct pthread that are searched for its fields.
const RECORD: usize = 2304;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PthreadRecord {
    /// The stack, guard included.
    stack: AddressRange,
    /// 0 if no thread runs on it.
    tid: u32,
}

/// Fills in the threads' stacks, and returns the stacks that are kept without a thread.
pub fn find_stacks(memory: &impl Memory, vmas: &[Vma], threads: &mut [Thread]) -> Vec<AddressRange> {
    let by_tid: HashMap<u32, usize> =
        threads.iter().enumerate().map(|(index, thread)| (thread.namespaced_tid, index)).collect();
    let mut idle = Vec::new();
    let mut pages = PageStates::new(memory);
    for (index, vma) in vmas.iter().enumerate() {
        let candidate = vma.backing == Backing::Anonymous && vma.writable && !vma.shared && vma.rss.0 > 0;
        if !candidate || !above_guard(vmas, index) {
            continue;
        }
        let Some(record) = record_at_top(&mut pages, vma.range, &by_tid) else { continue };
        match by_tid.get(&record.tid) {
            Some(index) => threads[*index].stack = Some(record.stack),
            None => idle.push(record.stack),
        }
    }
    // If the kernel merged a mapping with its upper neighbour, the search at its end misses the record. So search
    // upwards from the stack pointer.
    for thread in threads.iter_mut().filter(|thread| thread.stack.is_none()) {
        let found = thread.stack_pointer.and_then(|pointer| {
            let after = vmas.partition_point(|vma| vma.range.start <= pointer);
            let vma = vmas[..after].last().filter(|vma| vma.range.contains(pointer))?;
            (vma.backing == Backing::Anonymous).then(|| record_above(&mut pages, pointer, vma.range, &by_tid))?
        });
        if let Some(record) = found
            && record.tid == thread.namespaced_tid
        {
            thread.stack = Some(record.stack);
        }
    }
    idle
}

/// Stacks are mapped inaccessible and then opened above their guard. glibc 2.42 and later guard by madvise, so that the
/// mapping begins with the guard itself.
fn above_guard(vmas: &[Vma], index: usize) -> bool {
    let below = index.checked_sub(1).map(|below| &vmas[below]);
    below.is_none_or(|below| below.inaccessible() || below.range.end < vmas[index].range.start)
}

fn record_at_top<M: Memory>(
    pages: &mut PageStates<'_, M>,
    range: AddressRange,
    tids: &HashMap<u32, usize>,
) -> Option<PthreadRecord> {
    let from = range.start.0.max(range.end.0.saturating_sub(WITHIN));
    search(pages, AddressRange::new(Avma(from), range.end), tids)
}

fn record_above<M: Memory>(
    pages: &mut PageStates<'_, M>,
    pointer: Avma,
    range: AddressRange,
    tids: &HashMap<u32, usize>,
) -> Option<PthreadRecord> {
    const LONGEST_SEARCH: u64 = 8 << 20;
    const STEP: u64 = 64 << 10;
    let mut from = pointer.0 & !63;
    let end = range.end.0.min(from.saturating_add(LONGEST_SEARCH));
    while from < end {
        // The windows overlap by one record.
        let to = (from + STEP + RECORD as u64).min(range.end.0);
        if let Some(record) = search(pages, AddressRange::new(Avma(from), Avma(to)), tids) {
            return Some(record);
        }
        from += STEP;
    }
    None
}

fn search<M: Memory>(
    pages: &mut PageStates<'_, M>,
    within: AddressRange,
    tids: &HashMap<u32, usize>,
) -> Option<PthreadRecord> {
    let bytes = pages.read(within)?;
    (0..bytes.len()).step_by(64).find_map(|at| {
        let pthread = within.start.0 + at as u64;
        let is_self = word_at(&bytes, at)? == pthread && word_at(&bytes, at + 16)? == pthread;
        if !is_self {
            return None;
        }
        fields(&bytes[at..bytes.len().min(at + RECORD)], pthread, tids)
    })
}

fn fields(record: &[u8], pthread: u64, tids: &HashMap<u32, usize>) -> Option<PthreadRecord> {
    let words = || (0..record.len() / 8).map(|index| word_at(record, index * 8).unwrap_or_default());
    let stack = words().zip(words().skip(1)).find_map(|(base, size)| {
        let end = base.checked_add(size)?;
        let aligned = base % PAGE == 0 && size % PAGE == 0 && base != 0 && size != 0;
        // The record lies in the last pages of the block.
        (aligned && base < pthread && pthread < end && end - pthread <= WITHIN)
            .then(|| AddressRange::new(Avma(base), Avma(end)))
    })?;
    // tid is an int in the first kilobyte (0x2d0 in 2.2x to 2.4x). The id of a live thread is unlikely to occur by
    // chance.
    let tid = record[..record.len().min(1024)]
        .chunks_exact(4)
        .map(|half| u32::from_le_bytes(half.try_into().unwrap_or_default()))
        .find(|half| *half != 0 && tids.contains_key(half))
        .unwrap_or(0);
    Some(PthreadRecord { stack, tid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Deadline, LOOK};
    use crate::proc::memory::Live;
    use crate::proc::{Target, read_mappings, read_threads};

    #[test]
    fn stacks_of_own_threads_are_the_ones_that_pthread_states() {
        use std::sync::mpsc::channel;
        let (sender, receiver) = channel();
        let (release, wait) = channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        for _ in 0..4 {
            let (sender, wait) = (sender.clone(), wait.clone());
            std::thread::spawn(move || {
                let local = 0u8;
                sender.send((rustix::thread::gettid().as_raw_nonzero().get() as u32, &raw const local as u64)).unwrap();
                let _ = wait.lock().map(|wait| wait.recv());
            });
        }
        let on_stack: Vec<(u32, u64)> = receiver.iter().take(4).collect();
        let target = Target::open(std::process::id(), Deadline::after(LOOK)).unwrap();
        let mut gaps = Vec::new();
        // Wait until all four sleep. A stack directly below an arena's heap is merged with it into one mapping and
        // found only by its stack pointer, which only a waiting thread has.
        let is_asleep = |thread: &Thread| thread.stack_pointer.is_some();
        let mut threads = read_threads(&target, false, &mut gaps);
        while on_stack.iter().any(|(tid, _)| !threads.iter().any(|thread| thread.tid == *tid && is_asleep(thread))) {
            std::thread::sleep(std::time::Duration::from_millis(1));
            threads = read_threads(&target, false, &mut gaps);
        }
        let vmas = read_mappings(&target, &mut gaps).vmas;
        find_stacks(&Live::open(&target).unwrap(), &vmas, &mut threads);
        for (tid, local) in on_stack {
            let thread = threads.iter().find(|thread| thread.tid == tid).unwrap();
            let stack = thread.stack.expect("a thread of glibc's carries its record");
            assert!(stack.contains(Avma(local)), "{stack:?} {local:x}");
        }
        drop(release);
    }
}
