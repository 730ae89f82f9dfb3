//! The books of mappings with holders that stop, end or are interrupted. The calls are real, and the books must equal
//! the kernel's own list afterwards.

use super::*;
use crate::account::blocks;
use crate::segment::categories;
use crate::stack::java::memory::ONE_TEST;
use crate::sys::{cpu, os};
use core::sync::atomic::AtomicU32;
use plimsoll_segment::vmap::MappingKind;
use plimsoll_segment::{CALLER_EARLY, Counter, FILE_BYTES, Purpose};
use std::sync::{Barrier, MutexGuard, mpsc};
use std::{fs, thread, vec::Vec};

#[path = "../../../../../../fixtures/shares_memory.rs"]
mod shares_memory;

const PAGE: usize = 4096;
const ROOM: usize = 1 << 20;

/// A process has one map, so the tests run one at a time.
fn alone(room: usize) -> (MutexGuard<'static, ()>, Segment) {
    static BASE_OF_ALL: AtomicUsize = AtomicUsize::new(0);
    let guard = ONE_TEST.lock().unwrap_or_else(|e| e.into_inner());
    if BASE_OF_ALL.load(Relaxed) == 0 {
        let base = os::table(FILE_BYTES, Purpose::Data).expect("address space") as usize;
        // SAFETY: a zeroed writable mapping of that size, never unmapped.
        let segment = unsafe { Segment::at(base) };
        segment.header().composition.store(2, Relaxed);
        segment.header().pid.store(os::getpid(), Relaxed);
        assert!(segment.populate_start() && categories::init(segment) && blocks::publish(segment));
        BASE_OF_ALL.store(base, Relaxed);
    }
    // SAFETY: as above.
    let segment = unsafe { Segment::at(BASE_OF_ALL.load(Relaxed)) };
    assert!(segment.grow(Section::Vmap, room));
    segment.header().values.iter().for_each(|v| v.store(0, Relaxed));
    assert_eq!(LOCK.word() as u32, 0, "an earlier test left the lock taken");
    assert!(LOCK.is_empty(), "an earlier test left tickets");
    // SAFETY: the region is the segment's, and no test uses the map meanwhile.
    unsafe { *BOOK.0.get() = Book::create(region(segment), room, grow) };
    (guard, segment)
}

fn counted(segment: Segment, c: Counter) -> u64 {
    segment.header().values[c as usize].load(Relaxed)
}

fn attributes() -> Attributes {
    Attributes::new(0, categories::EARLY, MappingKind::Anonymous, 3, 0)
}

/// Marks the mappings of these tests in the kernel's list: libc and other tests may map something at a freed address.
const READ_AND_EXECUTE: i32 = 5;

#[inline(never)]
fn map(segment: Segment, pages: usize) -> usize {
    let here = 0usize;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(core::ptr::null_mut(), pages * PAGE, READ_AND_EXECUTE, 0x22, -1, 0) } as usize;
    assert_ne!(p, usize::MAX);
    let sp = &raw const here as usize;
    if !at_once::mapped(segment, sp, p, pages * PAGE, attributes()) {
        let (start, bytes, placement) = (p, pages * PAGE, Placement::Chosen);
        locked(
            segment,
            sp,
            false,
            || (),
            |()| Some(Operation::Map { start, bytes, attributes: attributes(), placement }),
        );
    }
    p
}

#[inline(never)]
fn unmap(segment: Segment, at: usize, pages: usize, before: impl FnOnce(), after: impl FnOnce()) {
    let here = 0usize;
    let (sp, bytes) = (&raw const here as usize, pages * PAGE);
    let mut real = Some(|| {
        before();
        // SAFETY: a mapping of this test's own.
        let r = unsafe { libc::munmap(at as *mut _, bytes) };
        after();
        r
    });
    if at_once::unmapping(segment, sp, at, bytes, || real.take().expect("once")()).is_none() {
        let real = real.take().expect("not called");
        locked(segment, sp, true, real, |r| (*r == 0).then_some(Operation::Unmap { start: at, bytes }));
    }
}

#[inline(never)]
fn remap(segment: Segment, at: usize, pages: usize, to_pages: usize) -> usize {
    let here = 0usize;
    locked(
        segment,
        &raw const here as usize,
        true,
        // SAFETY: a mapping of this test's own; MREMAP_MAYMOVE.
        || unsafe { libc::mremap(at as *mut _, pages * PAGE, to_pages * PAGE, 1) } as usize,
        |new| {
            let remap = Remap {
                old: at as u64,
                old_bytes: (pages * PAGE) as u64,
                new: *new as u64,
                new_bytes: (to_pages * PAGE) as u64,
                keeps_old: false,
            };
            (*new != usize::MAX).then_some(Operation::Remap { remap })
        },
    )
}

/// Maps, moves and unmaps; adds every range that it had for a time to `touched`.
fn churn(segment: Segment, seed: usize, rounds: usize, touched: &mut Vec<(usize, usize)>) {
    let mut kept = [(0, 0); 8];
    let mut random = seed as u64 * 2 + 1;
    for _ in 0..rounds {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let slot = (random >> 40) as usize % kept.len();
        let pages = 1 + (random >> 50) as usize % 5;
        let (at, had) = kept[slot];
        kept[slot] = if at == 0 {
            (map(segment, pages), pages)
        } else if random >> 33 & 3 == 0 {
            (remap(segment, at, had, pages), pages)
        } else {
            unmap(segment, at, had, || (), || ());
            (0, 0)
        };
        if kept[slot].0 != 0 && touched.len() < touched.capacity() {
            touched.push(kept[slot]);
        }
    }
}

/// Every page that a thread had for a time is in the map if and only if the kernel has it.
fn assert_equals_kernel(touched: &[Vec<(usize, usize)>], text: &[u8]) {
    let text = core::str::from_utf8(text).expect("text");
    let kernel: Vec<(usize, usize)> = text
        .lines()
        .filter_map(|line| line.trim_end().strip_suffix(" r-xp 00000000 00:00 0")?.split_once('-'))
        .map(|(a, b)| [a, b].map(|n| usize::from_str_radix(n, 16).expect("hex")))
        .map(|[a, b]| (a, b))
        .collect();
    // SAFETY: all threads are done with the map.
    let book = unsafe { (*BOOK.0.get()).as_ref() }.expect("the map");
    let mut pages = 0;
    for page in touched.iter().flatten().flat_map(|(at, n)| (0..*n).map(move |i| at + i * PAGE)) {
        let is_there = kernel.iter().any(|(a, b)| (*a..*b).contains(&page));
        assert_eq!(book.lookup(page as u64).is_some(), is_there, "page {page:#x} (true: in the map)");
        pages += 1;
    }
    assert!(pages > 100);
}

/// Reads /proc/self/maps into memory that was allocated before.
fn maps(into: &mut [u8]) -> usize {
    use std::io::Read;
    let mut file = fs::File::open("/proc/self/maps").expect("maps");
    let mut n = 0;
    loop {
        match file.read(&mut into[n..]).expect("maps") {
            0 => return n,
            more => n += more,
        }
    }
}

const OTHERS: usize = 4;

/// Runs `holder` in a thread that calls its argument when it holds the lock, and then waits until the others are done.
/// Returns the counters.
fn others_go_on_beside(
    rounds: usize,
    holder: impl FnOnce(Segment, &dyn Fn()) -> Vec<(usize, usize)> + Send,
) -> [u64; 3] {
    let (_one, segment) = alone(ROOM);
    let (entered, inside) = mpsc::channel();
    let (resume, wait) = mpsc::channel::<()>();
    let mut text = std::vec![0u8; 4 << 20];
    let mut touched: Vec<Vec<(usize, usize)>> = (0..OTHERS).map(|_| Vec::with_capacity(rounds)).collect();
    // Mappings that libc and std make for a thread are not booked, so all threads exist before the first address is
    // freed.
    let [ready, start, done, leave] = [(); 4].map(|()| Barrier::new(OTHERS + 1));
    let all = thread::scope(|scope| {
        let others: Vec<_> = touched
            .drain(..)
            .enumerate()
            .map(|(i, mut touched)| {
                let (ready, start, done, leave) = (&ready, &start, &done, &leave);
                scope.spawn(move || {
                    ready.wait();
                    start.wait();
                    churn(segment, i + 1, rounds, &mut touched);
                    done.wait();
                    leave.wait();
                    touched
                })
            })
            .collect();
        ready.wait();
        let stopped = scope.spawn(move || {
            holder(segment, &|| {
                entered.send(()).expect("the test");
                wait.recv().expect("the test");
            })
        });
        inside.recv().expect("the holder");
        start.wait();
        // The threads get here while the holder still has the lock.
        done.wait();
        assert_ne!(LOCK.word() as u32, 0, "the holder is inside");
        resume.send(()).expect("the holder");
        let held = stopped.join().expect("the holder");
        let n = maps(&mut text);
        leave.wait();
        let mut all: Vec<_> = others.into_iter().map(|o| o.join().expect("another")).collect();
        all.push(held);
        (all, n)
    });
    assert!(LOCK.is_empty() && LOCK.word() as u32 == 0, "something was left in the queue");
    let (touched, n) = all;
    assert_equals_kernel(&touched, &text[..n]);
    [Counter::vmap_lost, Counter::vmap_deferred, Counter::faults].map(|c| counted(segment, c))
}

#[test]
fn others_map_and_unmap_beside_a_holder_that_is_stopped_before_its_real_call() {
    let [lost, deferred, faults] = others_go_on_beside(500, |segment, stop| {
        let p = map(segment, 3);
        unmap(segment, p, 3, stop, || ());
        std::vec![(p, 3)]
    });
    assert_eq!((lost, faults), (0, 0));
    assert!(deferred >= 500);
}

/// Other threads get the addresses that the holder has freed, before the holder books that.
#[test]
fn others_map_and_unmap_beside_a_holder_that_is_stopped_after_its_real_call() {
    let [lost, deferred, faults] = others_go_on_beside(500, |segment, stop| {
        let p = map(segment, 5);
        unmap(segment, p, 5, || (), stop);
        std::vec![(p, 5)]
    });
    assert_eq!((lost, faults), (0, 0));
    assert!(deferred >= 500);
}

#[test]
fn an_operation_that_finds_the_queue_full_is_counted() {
    let (_one, segment) = alone(ROOM);
    const MORE: usize = 70;
    let p = map(segment, 1);
    let mut next = 1 << 32;
    // A signal handler inside the holder's call maps more than the queue can hold.
    unmap(
        segment,
        p,
        1,
        || {
            for _ in 0..QUEUE_SLOTS + MORE {
                next += 2 * PAGE;
                let at = next;
                locked(
                    segment,
                    &raw const at as usize,
                    false,
                    || at,
                    |at| {
                        let placement = Placement::Chosen;
                        Some(Operation::Map { start: *at, bytes: PAGE, attributes: attributes(), placement })
                    },
                );
            }
        },
        || (),
    );
    // SAFETY: nobody uses the map now.
    let in_map = unsafe { (*BOOK.0.get()).as_ref() }.expect("the map").lost_ops();
    assert_eq!(counted(segment, Counter::vmap_deferred), (QUEUE_SLOTS + MORE) as u64);
    assert_eq!(counted(segment, Counter::vmap_lost), MORE as u64 + in_map);
    assert_eq!(counted(segment, Counter::vmap_operations) + MORE as u64, (2 + QUEUE_SLOTS + MORE) as u64);
    assert!(LOCK.is_empty());

    super::super::existing::empty_map(segment);
    let mut held = take(segment, NO_FRAME).expect("the lock");
    assert_eq!(held.map().expect("the map").lost_ops(), 0);
    held.release();
}

#[test]
fn an_operation_that_finds_the_map_full_is_counted() {
    let (_one, segment) = alone(64 << 10);
    for i in 0..64 << 7 {
        let at = (1 << 32) + i * 2 * PAGE;
        let mut held = take(segment, NO_FRAME).expect("the lock");
        held.book(Operation::Map { start: at, bytes: PAGE, attributes: attributes(), placement: Placement::Chosen });
        held.release();
    }
    // SAFETY: nobody uses the map now.
    let in_map = unsafe { (*BOOK.0.get()).as_ref() }.expect("the map").lost_ops();
    assert!(in_map > 0, "so many mappings have no room");
    assert_eq!(counted(segment, Counter::vmap_lost), in_map);
}

/// A thread that ends in the middle of `munmap` by the bare system call, so that no code of libc runs.
fn ends_inside(segment: Segment, at: usize) {
    static JOB: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static ENDED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn body(_: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the test's segment.
        let segment = unsafe { Segment::at(JOB[0].load(Acquire)) };
        unmap(
            segment,
            JOB[1].load(Acquire),
            1,
            || (),
            || {
                ENDED.store(os::gettid(), Release);
                // SAFETY: ends this thread only.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            },
        );
        core::ptr::null_mut()
    }
    JOB[1].store(at, Release);
    JOB[0].store(segment.base(), Release);
    // SAFETY: a detached thread; what it leaves is never freed.
    unsafe {
        let mut id = core::mem::zeroed();
        assert_eq!(libc::pthread_create(&mut id, core::ptr::null(), body, core::ptr::null_mut()), 0);
        libc::pthread_detach(id);
    }
    // Until the thread doesn't exist any more.
    while ENDED.load(Acquire) == 0 || !os::is_thread_gone(ENDED.load(Acquire)) {
        thread::yield_now();
    }
    ENDED.store(0, Relaxed);
}

#[test]
fn only_the_lock_of_an_ended_thread_is_taken_over() {
    let (_one, segment) = alone(ROOM);
    let p = map(segment, 1);
    ends_inside(segment, p);
    assert_ne!(LOCK.word() as u32, 0, "its lock was left");
    let q = map(segment, 2);
    assert_eq!(counted(segment, Counter::faults), 1, "the map was read again once");
    let mut held = take(segment, NO_FRAME).expect("the lock");
    let book = held.map().expect("the map");
    assert!(book.lookup(q as u64).is_some(), "the books go on");
    assert!(book.lookup(p as u64).is_some(), "what it had not booked yet isn't booked");
    held.release();
    unmap(segment, q, 2, || (), || ());
    assert_eq!(counted(segment, Counter::faults), 1);
}

/// A child of clone(2) with CLONE_VM maps memory too. It is no thread of this process, and holds the lock as long as it
/// lives.
#[test]
fn the_lock_of_a_process_that_shares_the_memory_is_taken_over_only_when_that_has_ended() {
    static JOB: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static GO_ON: AtomicBool = AtomicBool::new(false);
    extern "C" fn body(_: *mut libc::c_void) -> i32 {
        // SAFETY: the test's segment.
        let segment = unsafe { Segment::at(JOB[0].load(Acquire)) };
        let wait = || {
            INSIDE.store(true, Release);
            while !GO_ON.load(Acquire) {
                os::sleep_ms(1);
            }
        };
        unmap(segment, JOB[1].load(Acquire), 1, wait, || ());
        0
    }
    let (_one, segment) = alone(ROOM);
    JOB[0].store(segment.base(), Release);
    let enter = || {
        let p = map(segment, 1);
        JOB[1].store(p, Release);
        INSIDE.store(false, Release);
        let child = shares_memory::SharesMemory::start(cpu::thread_pointer, || os::sleep_ms(1), body);
        while !INSIDE.load(Acquire) {
            thread::yield_now();
        }
        (p, child)
    };
    let is_mapped = |at: usize| {
        let mut held = take(segment, NO_FRAME).expect("the lock");
        let found = held.map().expect("the map").lookup(at as u64).is_some();
        held.release();
        found
    };
    let (p, child) = enter();
    let q = map(segment, 2);
    assert_eq!((counted(segment, Counter::faults), counted(segment, Counter::vmap_deferred)), (0, 1));
    GO_ON.store(true, Release);
    assert_eq!(child.wait(), 0);
    assert_eq!((is_mapped(p), is_mapped(q)), (false, true));

    GO_ON.store(false, Release);
    let (p, child) = enter();
    // SAFETY: this test's child.
    assert_eq!(unsafe { libc::kill(child.pid, libc::SIGKILL) }, 0);
    assert_eq!(child.wait(), libc::SIGKILL);
    let q = map(segment, 2);
    assert_eq!(counted(segment, Counter::faults), 1, "the map was read again once");
    assert_eq!((is_mapped(p), is_mapped(q)), (true, true));
    unmap(segment, p, 1, || (), || ());
    unmap(segment, q, 2, || (), || ());
}

/// A detach during the real call of an operation that queues. Its ticket must not block the queue of the next attach.
#[test]
fn a_ticket_is_filled_after_a_detach_too() {
    let (_one, segment) = alone(ROOM);
    let p = map(segment, 1);
    let held = take(segment, NO_FRAME).expect("the lock");
    thread::scope(|scope| {
        scope.spawn(|| unmap(segment, p, 1, || (), Segment::withdraw)).join().expect("it queues");
    });
    assert!(!LOCK.is_empty(), "it has a ticket");
    held.release();
    assert!(blocks::publish(segment));
    let held = take(segment, NO_FRAME).expect("the lock, and an empty queue");
    held.release();
    assert_eq!((counted(segment, Counter::vmap_lost), counted(segment, Counter::faults)), (0, 0));
}

/// If the header has another process's id (a child of vfork sees its parent's), every holder counts as alive.
#[test]
fn with_another_processs_id_in_the_header_no_lock_is_taken_over() {
    let (_one, segment) = alone(ROOM);
    let p = map(segment, 1);
    ends_inside(segment, p);
    segment.header().pid.store(1, Relaxed);
    let q = map(segment, 2);
    assert_eq!((counted(segment, Counter::faults), counted(segment, Counter::vmap_deferred)), (0, 1));
    segment.header().pid.store(os::getpid(), Relaxed);
    let r = map(segment, 2);
    assert_eq!(counted(segment, Counter::faults), 1);
    let mut held = take(segment, NO_FRAME).expect("the lock");
    let book = held.map().expect("the map");
    assert!(book.lookup(q as u64).is_some() && book.lookup(r as u64).is_some(), "what waited is booked");
    held.release();
}

/// A ticket whose thread has ended delays nobody for long.
#[test]
fn a_ticket_of_a_thread_that_is_gone_is_given_up() {
    let (_one, segment) = alone(ROOM);
    let p = map(segment, 1);
    let held = take(segment, NO_FRAME).expect("the lock");
    thread::scope(|scope| {
        scope.spawn(|| ends_inside(segment, p)).join().expect("it waits, queues, and ends in its real call");
    });
    held.release();
    assert!(!LOCK.is_empty());
    let mapped: Vec<usize> = (0..200).map(|_| map(segment, 1)).collect();
    assert!(LOCK.is_empty(), "all is booked");
    assert_eq!(counted(segment, Counter::vmap_lost), 1);
    let mut held = take(segment, NO_FRAME).expect("the lock");
    let book = held.map().expect("the map");
    assert!(mapped.iter().all(|p| book.lookup(*p as u64).is_some()));
    held.release();
}

/// Commits and uncommits parts of a reservation as a VM does, by mmap over them and by mprotect. In some rounds other
/// operations get into the queue meanwhile. Page by page, the map has the attributes that the rules of [`Attributes`]
/// give, and the figures are their sums.
#[test]
fn a_reservation_is_committed_page_by_page() {
    const PAGES: usize = 48;
    let (_one, segment) = alone(ROOM);
    let here = 0usize;
    let sp = &raw const here as usize;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), PAGES * PAGE, 0, 0x22, -1, 0) } as usize;
    assert_ne!(at, usize::MAX);
    // A thread without an id makes its first call step by step.
    assert_ne!(id_of_thread(), 0);
    let of = |prot, caller| Attributes::new(caller, categories::EARLY, MappingKind::Anonymous, prot, 0);
    let (k, h) = (segment.category(categories::EARLY), segment.header());
    let figures = || [&k.reserved_bytes, &k.committed_bytes, &h.reserved_bytes, &h.committed_bytes];
    let before = figures().map(|f| f.load(Relaxed));
    assert!(at_once::mapped(segment, sp, at, PAGES * PAGE, of(0, 1)));
    let mut pages = [of(0, 1); PAGES];
    let mut random = 1u64;
    for round in 0..3000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mut below = |n: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 40) as usize % n
        };
        let n = 1 + below(4);
        let first = below(PAGES - n + 1);
        let (prot, caller) = ([0, 0, 1, 3, 3, 5][below(6)], 1 + below(3) as u32);
        let (start, bytes) = (at + first * PAGE, n * PAGE);
        let meanwhile = || {
            if round % 7 == 0 {
                let other = map(segment, 1);
                unmap(segment, other, 1, || (), || ());
            }
        };
        if below(2) == 0 {
            let real = || {
                meanwhile();
                // SAFETY: a part of this test's own mapping.
                Some(unsafe { libc::mmap(start as *mut _, bytes, prot, 0x32, -1, 0) } as usize)
            };
            let done = at_once::mapping_over(segment, sp, bytes, real, || of(prot as u16, caller));
            assert_eq!(done, Some(Some(start)));
            pages[first..first + n].iter_mut().for_each(|page| *page = page.overlay(of(prot as u16, caller)));
        } else {
            let real = || {
                meanwhile();
                // SAFETY: as above.
                unsafe { libc::mprotect(start as *mut _, bytes, prot) }
            };
            let done = at_once::protecting(segment, sp, (start, bytes, prot as u16, caller), real, || None);
            assert_eq!(done, Some(0));
            pages[first..first + n].iter_mut().for_each(|page| *page = page.protect(prot as u16, caller, 0));
        }
        // SAFETY: nobody uses the map now.
        let book = unsafe { (*BOOK.0.get()).as_ref() }.expect("the map");
        for (i, page) in pages.iter().enumerate() {
            let found = book.lookup((at + i * PAGE) as u64).expect("it is mapped").attributes();
            assert!(found.alike(*page), "round {round}, page {i}: {found:?}, not {page:?}");
        }
        let committed = pages.iter().filter(|page| page.committed()).count();
        let more = [PAGES, committed, PAGES, committed].map(|n| (n * PAGE) as u64);
        for ((figure, before), more) in figures().into_iter().zip(before).zip(more) {
            assert_eq!(figure.load(Relaxed) - before, more, "round {round}");
        }
    }
    assert_eq!([Counter::vmap_lost, Counter::faults].map(|c| counted(segment, c)), [0, 0]);
    assert!(counted(segment, Counter::vmap_deferred) >= 2 * 3000 / 7);
    // A call that fails changes nothing.
    assert_eq!(at_once::mapping_over(segment, sp, PAGE, || None, || unreachable!()), Some(None));
    assert!(LOCK.is_empty() && LOCK.word() as u32 == 0);
    unmap(segment, at, PAGES, || (), || ());
}

/// With five-level page tables, memory may lie above 2^47, and a new attach begins with an empty map there, too.
#[test]
fn a_new_attach_begins_with_an_empty_map() {
    let (_one, segment) = alone(ROOM);
    let starts = [0, PAGE, 1 << 46, 1 << 47, 1 << 56, plimsoll_segment::vmap::ADDRESS_END as usize - PAGE];
    let mut held = take(segment, NO_FRAME).expect("the lock");
    for start in starts {
        held.book(Operation::Map { start, bytes: PAGE, attributes: attributes(), placement: Placement::Chosen });
    }
    let found = |held: &mut Held| {
        let book = held.map().expect("the map");
        starts.map(|start| book.lookup(start as u64).is_some())
    };
    assert_eq!(found(&mut held), [true; 6]);
    held.release();
    crate::account::mapping::existing::empty_map(segment);
    let mut held = take(segment, NO_FRAME).expect("the lock");
    assert_eq!(found(&mut held), [false; 6]);
    held.release();
}

/// Pages of the VM's are read without a query of the kernel where the map proves that they are readable. It must not
/// prove anything about memory that it may have lost sight of.
#[test]
fn the_map_proves_only_what_hooks_saw_become_readable() {
    let (_one, segment) = alone(ROOM);
    let at = |address: usize| super::super::readable::entry(address as u64).map(|m| (m.range, m.is_file));
    let book = |op: Operation| {
        let mut held = take(segment, NO_FRAME).expect("the lock");
        held.book(op);
        held.release();
    };
    let (start, bytes) = (1 << 45, 4 * PAGE);
    let mapped = |caller, kind, prot| {
        let attributes = Attributes::new(caller, categories::EARLY, kind, prot, 0);
        book(Operation::Unmap { start, bytes });
        book(Operation::Map { start, bytes, attributes, placement: Placement::Chosen });
        at(start + PAGE)
    };
    let range = start as u64..(start + bytes) as u64;
    assert_eq!(mapped(5, MappingKind::Anonymous, 1), Some((range.clone(), false)));
    assert_eq!(mapped(5, MappingKind::File, 3), Some((range.clone(), true)));
    assert_eq!(mapped(5, MappingKind::Shared, 3), None, "another process may cut the file");
    assert_eq!(mapped(CALLER_EARLY, MappingKind::Anonymous, 3), None, "libc may unmap it past the hooks");
    assert_eq!(mapped(5, MappingKind::Anonymous, 0), None);
    assert_eq!(mapped(5, MappingKind::Anonymous, 2), None, "not readable by its protection");
    assert!(mapped(5, MappingKind::Anonymous, 3).is_some());
    book(Operation::Protect { start: start + PAGE, bytes: PAGE, prot: 0, caller: 5, failed: false });
    assert_eq!(at(start + PAGE), None);
    assert_eq!(at(start).map(|m| m.0.end), Some((start + PAGE) as u64));
    book(Operation::Unmap { start, bytes: PAGE });
    assert_eq!(at(start), None);
    let after = start + 2 * PAGE;
    let held = take(segment, NO_FRAME).expect("the lock");
    assert_eq!(at(after), None, "a call that may be unmapping it has the lock");
    held.release();
    let ticket = LOCK.reserve(id_of_thread()).expect("a ticket");
    assert_eq!(at(after), None, "a call that may be unmapping it has a ticket");
    // SAFETY: this thread's ticket.
    assert!(unsafe { LOCK.fill(ticket, id_of_thread(), Operation::Nothing) });
    book(Operation::Nothing);
    assert!(at(after).is_some() && LOCK.is_empty() && LOCK.word() as u32 == 0);
    segment.count(Counter::vmap_lost, 1);
    assert_eq!(at(after), None, "what is lost may be an unmapping of it");
    segment.set(Counter::vmap_lost, 0);
}
