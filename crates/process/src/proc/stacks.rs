//! Finds thread stacks by the thread library's own record. glibc puts `struct pthread` at the top of each stack that it
//! maps (nptl/allocatestack.c). On x86-64 it begins with the TCB:
//!
//! ```text
//!   stackblock ┌────────────┐
//!              │ guard      │
//!              │ stack      │ grows down
//!              │ static TLS │
//!   pthread p  │ +0     tcb  = p        sysdeps/x86_64/nptl/tls.h, tcbhead_t
//!              │ +16    self = p
//!              │ +0x2d0 tid (0 once the thread has ended)
//!              │ …      stackblock, stackblock_size
//!              └────────────┘ stackblock + stackblock_size
//! ```
//!
//! The tid has lain there in all versions (`_thread_db_pthread_tid` states its offset for debuggers,
//! nptl_db/structs.def). It can't be searched for. `multiple_threads` before it is 1, which is a tid in a container.
//! The upper halves of addresses are numbers such as 0x55d2 and 0x7f31, which are tids elsewhere.
//!
//! The offsets of the later fields differ between versions. The stack is the only pair of page-aligned words (b, s)
//! after p whose end b + s lies in the pages just above p (`WITHIN`), with b below p.

use std::collections::HashMap;

use crate::foreign::Deadline;
use crate::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, Thread, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, counted};

/// The record is searched for within this distance below the end of a mapping: struct pthread is about 2.3 KiB,
/// 64-aligned.
const WITHIN: u64 = 16 << 10;
/// Bytes of struct pthread that are searched for the stack.
const RECORD: usize = 2304;
const TID: usize = 0x2d0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PthreadRecord {
    /// The stack, guard included.
    stack: AddressRange,
    /// 0 if no thread runs on it.
    tid: u32,
}

/// Fills in the threads' stacks, and returns the stacks that are kept without a thread.
pub fn find_stacks(
    memory: &impl Memory,
    vmas: &[Vma],
    threads: &mut [Thread],
    deadline: Deadline,
    gaps: &mut Vec<Gap>,
) -> Vec<AddressRange> {
    let by_tid: HashMap<u32, usize> =
        threads.iter().enumerate().map(|(index, thread)| (thread.namespaced_tid, index)).collect();
    let mut idle = Vec::new();
    let mut pages = PageStates::new(memory);
    for (index, vma) in vmas.iter().enumerate() {
        let candidate = vma.backing == Backing::Anonymous && vma.writable && !vma.shared && vma.rss.0 > 0;
        if !candidate || !above_guard(vmas, index) {
            continue;
        }
        let Some(record) = record_at_top(&mut pages, vma.range) else { continue };
        match by_tid.get(&record.tid) {
            Some(index) => threads[*index].stack = Some(record.stack),
            None => idle.push(record.stack),
        }
    }
    // If the kernel merged a mapping with its upper neighbour, the search at its end misses the record. So search
    // upwards from the stack pointer.
    let mut pointers: Vec<(Avma, usize)> = Vec::new();
    for (index, thread) in threads.iter().enumerate().filter(|(_, thread)| thread.stack.is_none()) {
        pointers.extend(thread.stack_pointer.map(|pointer| (pointer, index)));
    }
    pointers.sort_unstable();
    let mut above = Above { pages, searched: 0, found: None };
    let mut late = 0;
    for (pointer, index) in pointers {
        let after = vmas.partition_point(|vma| vma.range.start <= pointer);
        let around = vmas[..after].last().filter(|vma| vma.range.contains(pointer));
        let Some(vma) = around.filter(|vma| vma.backing == Backing::Anonymous) else { continue };
        if deadline.has_passed() {
            late += 1;
        } else if let Some(record) = above.record(pointer, vma.range)
            && record.tid == threads[index].namespaced_tid
        {
            threads[index].stack = Some(record.stack);
        }
    }
    if late > 0 {
        let reason = format!("the stacks of {} were not searched for in time", counted(late, "thread"));
        gaps.push(Gap::new(Source::Proc, reason, "they are recognised only by the shape of their mappings"));
    }
    idle
}

/// Stacks are mapped inaccessible and then opened above their guard. glibc 2.42 and later guard by madvise, so that the
/// mapping begins with the guard itself.
fn above_guard(vmas: &[Vma], index: usize) -> bool {
    let below = index.checked_sub(1).map(|below| &vmas[below]);
    below.is_none_or(|below| below.inaccessible() || below.range.end < vmas[index].range.start)
}

fn record_at_top<M: Memory>(pages: &mut PageStates<'_, M>, range: AddressRange) -> Option<PthreadRecord> {
    let from = range.start.0.max(range.end.0.saturating_sub(WITHIN));
    search(pages, AddressRange::new(Avma(from), range.end), range.end).map(|(_, record)| record)
}

/// The first record above each of many stack pointers, which come in ascending order. No address is searched twice: a
/// hostile process may have 32,000 threads whose pointers lead into the same memory without a record.
struct Above<'a, M: Memory> {
    pages: PageStates<'a, M>,
    /// Where the search goes on.
    searched: u64,
    /// The record at which the search stopped, and its address.
    found: Option<(u64, PthreadRecord)>,
}

impl<M: Memory> Above<'_, M> {
    fn record(&mut self, pointer: Avma, range: AddressRange) -> Option<PthreadRecord> {
        const LONGEST_SEARCH: u64 = 8 << 20;
        const STEP: u64 = 64 << 10;
        let from = pointer.0 & !63;
        let end = range.end.0.min(from.saturating_add(LONGEST_SEARCH));
        if let Some((_, record)) = self.found.filter(|(at, _)| *at >= from) {
            return Some(record);
        }
        (self.found, self.searched) = (None, self.searched.max(from));
        while self.searched < end && self.found.is_none() {
            let part = AddressRange::new(Avma(self.searched), Avma(end.min(self.searched + STEP)));
            self.searched = part.end.0;
            // No record begins in an untouched page.
            let mut of_part = part.start.0 / PAGE..part.end.0.div_ceil(PAGE);
            if of_part.any(|page| self.pages.of(page) != PageState::Absent) {
                self.found = search(&mut self.pages, part, range.end);
            }
        }
        let (at, record) = self.found?;
        self.searched = at + 64;
        Some(record)
    }
}

/// The first record that begins in `begins`, with its address. It lies before `end`.
fn search<M: Memory>(pages: &mut PageStates<'_, M>, begins: AddressRange, end: Avma) -> Option<(u64, PthreadRecord)> {
    let bytes = pages.read(AddressRange::new(begins.start, begins.end.offset(Bytes(RECORD as u64)).min(end)))?;
    (0..begins.length().0 as usize).step_by(64).find_map(|at| {
        let pthread = begins.start.0 + at as u64;
        let is_self = word_at(&bytes, at)? == pthread && word_at(&bytes, at + 16)? == pthread;
        if !is_self {
            return None;
        }
        Some((pthread, fields(&bytes[at..bytes.len().min(at + RECORD)], pthread)?))
    })
}

fn fields(record: &[u8], pthread: u64) -> Option<PthreadRecord> {
    let words = || (0..record.len() / 8).map(|index| word_at(record, index * 8).unwrap_or_default());
    let stack = words().zip(words().skip(1)).find_map(|(base, size)| {
        let end = base.checked_add(size)?;
        let aligned = base % PAGE == 0 && size % PAGE == 0 && base != 0 && size != 0;
        // The record lies in the last pages of the block.
        (aligned && base < pthread && pthread < end && end - pthread <= WITHIN)
            .then(|| AddressRange::new(Avma(base), Avma(end)))
    })?;
    let tid = record.get(TID..TID + 4).and_then(|tid| tid.try_into().ok()).map(u32::from_le_bytes)?;
    Some(PthreadRecord { stack, tid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::LOOK;
    use crate::proc::memory::Live;
    use crate::proc::{Target, read_mappings, read_threads};
    use crate::random::Random;
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    const START: u64 = 0x7000_0000_0000;

    /// Memory from `START` on; pages of zeros were never touched. And the number of reads.
    struct Image {
        bytes: Vec<u8>,
        reads: Cell<usize>,
    }

    impl Image {
        fn new(length: usize) -> Image {
            Image { bytes: vec![0; length], reads: Cell::new(0) }
        }

        fn put(&mut self, at: usize, word: u64) {
            self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }

        /// glibc's record of a thread, with the stack from the page before it to the page after it.
        fn put_record(&mut self, at: usize, tid: u32) {
            let address = START + at as u64;
            let base = address / PAGE * PAGE - PAGE;
            for (offset, word) in [(0, address), (16, address), (720, tid.into()), (1680, base), (1688, 3 * PAGE)] {
                self.put(at + offset, word);
            }
        }

        fn vma(&self) -> Vma {
            let range = AddressRange::sized(Avma(START), Bytes(self.bytes.len() as u64));
            Vma { range, writable: true, readable: true, backing: Backing::Anonymous, ..Vma::default() }
        }
    }

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.reads.set(self.reads.get() + 1);
            let from = (at.0 - START) as usize;
            self.bytes.get(from..from + into.len()).map(|bytes| into.copy_from_slice(bytes)).is_some()
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            for (word, page) in into.iter_mut().zip(first..) {
                let page = page.checked_sub(START / PAGE).and_then(|page| self.bytes.chunks(4096).nth(page as usize));
                *word = u64::from(page.is_some_and(|page| page.iter().any(|byte| *byte != 0))) << 63;
            }
            true
        }
    }

    fn thread(tid: u32, pointer: u64) -> Thread {
        Thread { tid, namespaced_tid: tid, stack_pointer: Some(Avma(pointer)), ..Thread::default() }
    }

    fn later() -> Deadline {
        Deadline::after(LOOK)
    }

    #[test]
    fn the_record_above_a_stack_pointer_is_the_one_that_a_search_from_there_finds() {
        let mut random = Random(43);
        let (mut found, mut missing) = (0, 0);
        for (length, others) in [(300 << 10, 2), (300 << 10, 20), (300 << 10, 200), (9 << 20, 20)] {
            let mut image = Image::new(length);
            let mut threads = Vec::new();
            for tid in 1..=20 {
                let (pointer, distance) = (random.index(length), random.index(100 << 10));
                threads.push(thread(tid, START + pointer as u64));
                if random.one_in(2) {
                    image.put_record((8192 + pointer + distance).min(length - 2 * RECORD) / 64 * 64, tid);
                }
            }
            for _ in 0..others {
                let at = 8192 + random.index(length - 8192 - 2 * RECORD);
                image.put_record(at / 64 * 64, 1 + random.below(20) as u32);
            }
            let mut gaps = Vec::new();
            find_stacks(&image, &[image.vma()], &mut threads, later(), &mut gaps);
            assert!(gaps.is_empty());
            let record = |at: usize| {
                let is_self = [0, 16].iter().all(|to| word_at(&image.bytes, at + to) == Some(START + at as u64));
                let end = image.bytes.len().min(at + RECORD);
                is_self.then(|| fields(&image.bytes[at..end], START + at as u64))?
            };
            for thread in &threads {
                let from = (thread.stack_pointer.expect("given").0 - START) as usize / 64 * 64;
                let first = (from..length.min(from + (8 << 20))).step_by(64).find_map(record);
                let stack = first.filter(|record| record.tid == thread.tid).map(|record| record.stack);
                assert_eq!(thread.stack, stack, "{thread:?}");
                if stack.is_some() { found += 1 } else { missing += 1 }
            }
        }
        assert!(found > 10 && missing > 10, "{found} {missing}");
    }

    /// In a container the first thread's tid is 1, and `multiple_threads` is 1 in each record. Elsewhere a tid is the
    /// upper half of an address, such as the one of the thread's DTV.
    #[test]
    fn an_int_before_the_tid_that_is_another_threads_tid_is_not_taken_for_it() {
        const UPPER_HALF: u32 = 0x559f;
        let tids = [1, 7, UPPER_HALF];
        let mut image = Image::new(1 << 20);
        let mut threads = Vec::new();
        let at = |index: usize| (index + 1) * (256 << 10);
        for (index, tid) in tids.into_iter().enumerate() {
            image.put_record(at(index), tid);
            image.put(at(index) + 8, u64::from(UPPER_HALF) << 32 | 0x76c3_3000);
            image.put(at(index) + 24, 1);
            threads.push(thread(tid, START + at(index) as u64 - 512));
        }
        let idle = find_stacks(&image, &[image.vma()], &mut threads, later(), &mut Vec::new());
        for (index, thread) in threads.iter().enumerate() {
            let base = START + at(index) as u64 - PAGE;
            assert_eq!(thread.stack, Some(AddressRange::sized(Avma(base), Bytes(3 * PAGE))), "{thread:?}");
        }
        assert!(idle.is_empty());
    }

    #[test]
    fn memory_without_a_record_is_read_once_for_all_stack_pointers() {
        let mut image = Image::new(1 << 20);
        image.bytes.fill(1);
        let threads = || -> Vec<Thread> { (0..1000).map(|tid| thread(tid + 1, START + 8 * u64::from(tid))).collect() };
        find_stacks(&image, &[image.vma()], &mut threads(), later(), &mut Vec::new());
        assert_eq!(image.reads.get(), 16, "64 KiB at a time");
        // Untouched memory isn't read at all.
        image.bytes.fill(0);
        find_stacks(&image, &[image.vma()], &mut threads(), later(), &mut Vec::new());
        assert_eq!(image.reads.get(), 16);
        // What isn't done in time is a gap.
        image.bytes.fill(1);
        let mut gaps = Vec::new();
        find_stacks(&image, &[image.vma()], &mut threads(), Deadline::after(Duration::ZERO), &mut gaps);
        assert_eq!(image.reads.get(), 16);
        assert_eq!(gaps[0].reason, "the stacks of 1,000 threads were not searched for in time");
    }

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
        let mut gaps = Vec::new();
        // Wait until all four sleep. A stack directly below an arena's heap is merged with the heap into one mapping.
        // It is found only by its stack pointer, which only a waiting thread has.
        let is_asleep = |thread: &Thread| thread.stack_pointer.is_some();
        let began = Instant::now();
        let (target, mut threads) = loop {
            // After its deadline a target is not read any more.
            let target = Target::open(std::process::id(), Deadline::after(LOOK)).unwrap();
            let threads = read_threads(&target, false, &mut gaps);
            if on_stack.iter().all(|(tid, _)| threads.iter().any(|thread| thread.tid == *tid && is_asleep(thread))) {
                break (target, threads);
            }
            assert!(began.elapsed() < Duration::from_secs(120), "some of the four don't sleep: {threads:?}");
            std::thread::sleep(Duration::from_millis(1));
        };
        let vmas = read_mappings(&target, &mut gaps).vmas;
        find_stacks(&Live::open(&target).unwrap(), &vmas, &mut threads, target.deadline(), &mut gaps);
        for (tid, local) in on_stack {
            let thread = threads.iter().find(|thread| thread.tid == tid).unwrap();
            let stack = thread.stack.expect("a thread of glibc's carries its record");
            assert!(stack.contains(Avma(local)), "{stack:?} {local:x}");
        }
        drop(release);
    }
}
