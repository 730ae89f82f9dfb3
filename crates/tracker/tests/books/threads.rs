//! account/thread.rs: a slot belongs to one thread at a time, and passes to the next thread.

use crate::segment::counter;
use crate::{alone, books, fresh, touched};
use plimsoll_segment::{Counter, Purpose, Section};
use plimsoll_tracker::account::rows;
use plimsoll_tracker::account::thread::{self, StackBounds, ThreadState};
use plimsoll_tracker::hook::mapping;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::sys::{cpu, os};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

#[path = "../../../../fixtures/shares_memory.rs"]
mod shares_memory;

fn attach(segment: Segment) -> &'static mut ThreadState {
    thread::attach(segment, Some(StackBounds { low: 4096, high: 8192, guard: 0, kind: 0 })).expect("a slot")
}

#[test]
fn no_slot_is_given_twice() {
    alone(|| {
        let segment = fresh();
        const SLOTS: usize = 64;
        let taken: Vec<AtomicBool> = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        let given: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for t in 0..8usize {
                let (taken, given) = (&taken, &given);
                scope.spawn(move || {
                    for i in 0..4000 {
                        // Sometimes two at a time, so that free slots return in another order.
                        let some: Vec<_> = (0..1 + (i + t) % 3).map(|_| attach(segment)).collect();
                        for s in &some {
                            assert!(!taken[s.slot as usize].swap(true, AcqRel), "slot {} given twice", s.slot);
                            given[s.slot as usize].fetch_add(1, Relaxed);
                            assert_eq!(s.slot_mark, s.slot + 1);
                            assert_eq!(segment.thread(s.slot).state.load(Relaxed), 1);
                        }
                        if i % 2 == 0 {
                            std::thread::yield_now();
                        }
                        for s in some {
                            taken[s.slot as usize].store(false, Release);
                            thread::detach(segment, s.slot);
                        }
                    }
                });
            }
        });
        let used = segment.used(Section::Threads);
        assert!(used <= 1 + 8 * 3, "at most 24 slots were held at once, {used} were made");
        let mut total = 0;
        for slot in 1..used {
            let (generation, given) = (segment.thread(slot as u32).generation.load(Relaxed), given[slot].load(Relaxed));
            assert_eq!(generation, given, "slot {slot}");
            assert_eq!(segment.thread(slot as u32).state.load(Relaxed), 2);
            total += given;
        }
        assert_eq!(counter(segment, Counter::threads_started), total);
        println!("exercised: {total} threads in {} slots", used - 1);
        assert!(total > 60_000);
    });
}

/// No destructor runs for a thread that ends by exit(2), so a later thread finds that it is gone.
#[test]
fn slots_of_threads_that_ended_without_notice_are_used_again() {
    alone(|| {
        static SEGMENT: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn ends(_: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: the test's segment, never unmapped; then the end of this thread alone.
            unsafe {
                attach(Segment::at(SEGMENT.load(Relaxed)));
                libc::syscall(libc::SYS_exit, 0);
            }
            core::ptr::null_mut()
        }
        let segment = fresh();
        segment.header().pid.store(os::getpid(), Relaxed);
        SEGMENT.store(segment.base(), Relaxed);
        let alive: Vec<u32> = (0..40).map(|_| attach(segment).slot).collect();
        const THREADS: usize = 2000;
        for _ in 0..THREADS {
            let mut thread = 0;
            // SAFETY: a thread of default attributes, joined before the next one starts.
            unsafe {
                assert_eq!(libc::pthread_create(&mut thread, core::ptr::null(), ends, core::ptr::null_mut()), 0);
                assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
            }
        }
        let used = segment.used(Section::Threads);
        println!("exercised: {THREADS} threads in {used} slots");
        assert!(used <= 2 * (1 + alive.len() + 32), "{used} slots");
        for slot in alive {
            let r = segment.thread(slot);
            assert_eq!((r.state.load(Relaxed), r.generation.load(Relaxed)), (1, 1), "slot {slot} is this thread's");
        }
        let in_use = (1..used as u32).filter(|slot| segment.thread(*slot).state.load(Relaxed) == 1).count();
        assert!(in_use <= 40 + 2 * 32, "{in_use} slots in use");
    });
}

/// A child of clone(2) with CLONE_VM has the books too, and its thread is no thread of this process.
#[test]
fn the_slot_of_a_process_that_shares_the_memory_is_kept_while_that_lives() {
    alone(|| {
        static SEGMENT: AtomicUsize = AtomicUsize::new(0);
        static SLOT: AtomicU32 = AtomicU32::new(0);
        static GO_ON: AtomicBool = AtomicBool::new(false);
        extern "C" fn body(_: *mut libc::c_void) -> i32 {
            // SAFETY: the test's segment, never unmapped.
            SLOT.store(attach(unsafe { Segment::at(SEGMENT.load(Relaxed)) }).slot, Release);
            while !GO_ON.load(Acquire) {
                os::sleep_ms(1);
            }
            0
        }
        let segment = fresh();
        segment.header().pid.store(os::getpid(), Relaxed);
        SEGMENT.store(segment.base(), Relaxed);
        let child = shares_memory::SharesMemory::start(cpu::thread_pointer, || os::sleep_ms(1), body);
        while SLOT.load(Acquire) == 0 {
            std::thread::yield_now();
        }
        let slot = SLOT.load(Relaxed);
        let life = || [segment.thread(slot).state.load(Relaxed), segment.thread(slot).generation.load(Relaxed) as u32];
        // So many that some of them look for slots of ended threads.
        let some = || (0..100).filter(|_| attach(segment).slot == slot).count();
        assert_eq!((some(), life()), (0, [1, 1]), "the child lives");
        GO_ON.store(true, Release);
        assert_eq!(child.wait(), 0);
        assert_eq!((some(), life()), (1, [1, 2]), "the child has ended");
        println!("exercised: slot {slot} of a process");
    });
}

/// A slot's next thread keeps the rows and the index of the last one, and nothing that was remembered of its stack.
#[test]
fn the_next_thread_of_a_slot_remembers_no_stack() {
    alone(|| {
        let segment = fresh();
        let first = attach(segment);
        let (slot, state) = (first.slot, first as *const ThreadState);
        let other = attach(segment);
        assert_ne!(other.slot, slot);
        first.category_tag = 7 << 48;
        first.pushed = 3;
        thread::detach(segment, first.slot);
        let next = attach(segment);
        assert_eq!((next.slot, next as *const ThreadState), (slot, state), "the newest free slot is taken first");
        assert_eq!((next.category(), next.pushed, next.end_rounds), (0, 0, 3));
        assert_ne!(next.memo(), next.own_memo, "the empty memo is in force");
        assert_eq!(segment.thread(slot).generation.load(Relaxed), 2);
        let more = attach(segment);
        assert!(more.slot != slot && more.slot != other.slot);
        println!("exercised: adoption of slot {slot}");
    });
}

/// In mode exact a thread keeps its work space from its 64th deep walk on, and the next thread of its slot doesn't.
#[test]
fn a_thread_keeps_its_work_space_once_it_has_walked_often() {
    alone(|| {
        let segment = fresh();
        let walk = |t: &mut ThreadState, exact: bool| {
            let at = t.scratch(exact).expect("memory") as usize;
            t.return_scratch(segment);
            at
        };
        let (often, seldom, late) = (attach(segment), attach(segment), attach(segment));
        let shared = walk(often, true);
        for walks in 1..64 {
            assert_eq!(walk(seldom, true), shared, "one has walked {walks} times, the other {}", walks - 1);
            assert_eq!(walk(often, true), shared, "as it was given back");
        }
        let other = walk(late, true);
        assert_ne!(other, shared, "64 walks: it is kept");
        for _ in 0..100 {
            assert_eq!((walk(often, true), walk(late, false)), (shared, other));
        }
        assert_eq!(walk(seldom, false), other, "in mode sampled all is shared");
        thread::detach(segment, often.slot);
        let next = attach(segment);
        assert_eq!(walk(next, true), shared, "what the last thread of the slot has left");
        let (one, two) = (attach(segment), attach(segment));
        let mut taken = [one.scratch(true), two.scratch(true)].map(|at| at.expect("memory") as usize);
        let mut all = [shared, other];
        taken.sort_unstable();
        all.sort_unstable();
        assert_eq!(taken, all, "the next thread of the slot has given it back");
        println!("exercised: two work spaces for six threads");
    });
}

/// No memory for a thread's state: the slot waits for the next thread.
#[test]
fn without_memory_no_slot_is_lost() {
    alone(|| {
        let segment = fresh();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both write or read the local.
        let set = |to: &libc::rlimit| assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, to) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) }, 0);
        set(&libc::rlimit { rlim_cur: 4096, ..limit });
        // First uses up the memory that the tracker has already reserved.
        for bytes in (6..21).rev().map(|shift| 1 << shift) {
            while os::private(bytes).is_some() {}
        }
        let refused: Vec<bool> = (0..3).map(|_| thread::attach(segment, None).is_none()).collect();
        set(&limit);
        assert_eq!(refused, [true; 3]);
        assert_eq!(counter(segment, Counter::threads_shared), 3);
        let (first, next) = (attach(segment).slot, attach(segment).slot);
        assert_eq!((first, next), (1, 2), "slot 1 was given back");
        println!("exercised: 3 threads without memory");
    });
}

/// mprotect(2) of a page of the test's own, as the entry stub calls the hook with this stack pointer.
fn protect(sp: usize) {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    if PAGE.load(Relaxed) == 0 {
        // SAFETY: a fresh mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, 1, 0x22, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        PAGE.store(page as usize, Relaxed);
    }
    // SAFETY: that page; a word lies at the stack pointer.
    assert_eq!(unsafe { mapping::mprotect(PAGE.load(Relaxed), 4096, 1, sp, 0) }, 0);
}

/// A handler's mapping call leaves the mark of the call that it has interrupted: if the handler then jumps out of that
/// call, the state is taken back all the same.
#[test]
fn a_handlers_mapping_call_leaves_the_mark_of_the_call_below() {
    use plimsoll_tracker::guard::{self, Entered};
    use plimsoll_tracker::sys::cpu::{CURRENT, tls_set};

    alone(|| {
        let segment = fresh();
        assert!(segment.publish(1, 0, 0));
        let words = [0usize; 128];
        let (inner, frame) = (&raw const words[0] as usize & !15, &raw const words[120] as usize & !15);
        let inner = inner + 16;
        let (low, high) = (frame - (1 << 20), frame + (1 << 20));
        let state = thread::attach(segment, Some(StackBounds { low, high, guard: 0, kind: 0 })).expect("a slot");
        state.shared().memo.store(state.own_memo.cast(), Relaxed);
        tls_set::<CURRENT>(state as *mut ThreadState as usize);
        let inside = guard::enter_call(frame);
        assert!(matches!(inside, Entered::Thread(_)));
        std::mem::forget(inside);
        protect(inner);
        assert_eq!(counter(segment, Counter::nested_entries), 1, "the handler's call has no state");
        assert!(matches!(guard::enter_at(frame), Entered::Thread(_)), "the call was left");
        println!("exercised: a call in a call");
    });
}

/// A signal handler that allocates at a thread's start gets a state for the thread. The start may come before it, after
/// it, or be interrupted by it: the thread has one slot, and its own stack.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_handler_at_the_start_of_a_thread_makes_no_second_slot() {
    use plimsoll_tracker::guard;
    use plimsoll_tracker::sys::cpu::{DEPTH, tls_get_half};
    use std::arch::asm;

    static PROTECTED: AtomicU64 = AtomicU64::new(0);
    static STEP: AtomicU64 = AtomicU64::new(0);
    static DUE: AtomicU64 = AtomicU64::new(0);

    extern "C" fn allocates(_: i32, _: *const libc::siginfo_t, context: *mut libc::ucontext_t) {
        if STEP.fetch_add(1, Relaxed) == DUE.load(Relaxed) {
            if tls_get_half::<DEPTH>() != 0 {
                // A mapping call is no reason to make a state for a thread whose state is being made.
                let here = 0usize;
                protect(&raw const here as usize);
                PROTECTED.fetch_add(1, Relaxed);
            }
            drop(guard::enter());
            // SAFETY: the kernel's record of the interrupted code. The rest of it runs at full speed.
            unsafe { (*context).uc_mcontext.gregs[libc::REG_EFL as usize] &= !0x100 };
        }
    }

    const STACK: StackBounds = StackBounds { low: 4096, high: 8192, guard: 4096, kind: 0 };
    // Returns the number of instructions.
    let start = |segment: Segment, due: u64| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                DUE.store(due, Relaxed);
                STEP.store(0, Relaxed);
                // SAFETY: sets the trap flag for one call; the handler is in place.
                unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
                let slot = guard::begin(segment, STACK);
                // SAFETY: clears it.
                unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
                let r = segment.thread(slot.expect("a slot"));
                let stack = [&r.stack_low, &r.stack_high, &r.guard_bytes].map(|cell| cell.load(Relaxed) as usize);
                assert_eq!((slot, stack), (Some(1), [STACK.low, STACK.high, STACK.guard]), "instruction {due}");
                assert_eq!(segment.used(Section::Threads), 2, "instruction {due}: a slot that the thread doesn't know");
                let guard::Entered::Thread(mut inside) = guard::enter() else { panic!("instruction {due}: no state") };
                assert_eq!(inside.state().slot, 1, "instruction {due}");
                drop(inside);
                thread::detach(segment, 1);
            });
            thread.join().expect("its assertions");
        });
        STEP.load(Relaxed)
    };
    alone(|| {
        let segment = fresh();
        assert!(segment.publish(1, 0, 0));
        plimsoll_tracker::hook::resolve::resolve();
        // SAFETY: the handler makes no call that a handler may not make.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = allocates as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
        }
        let all = start(segment, u64::MAX);
        // In the first of these cases the handler comes first, and in the last one never.
        let some: Vec<u64> = (0..40).chain((40..all).step_by(997)).chain(all.saturating_sub(24)..all + 2).collect();
        for due in &some {
            start(segment, *due);
        }
        println!("exercised: {} of {all} instructions", some.len());
        assert!(PROTECTED.load(Relaxed) > 20, "{PROTECTED:?} mapping calls while a state was made");
        assert!(some.len() > 66);
    });
}

/// A handler that jumps out of a mapping call leaves the state taken. A later call from the same depth takes the state
/// back. A handler doesn't: neither on the stack of the call, nor on a stack that the program has made in a frame above
/// it.
#[test]
fn a_state_whose_taker_was_left_is_taken_back() {
    use plimsoll_tracker::guard::{self, Entered};
    use plimsoll_tracker::segment::slots;
    use plimsoll_tracker::sys::cpu::{CURRENT, OWN, tls_get, tls_set};

    static TAKEN: AtomicUsize = AtomicUsize::new(9);
    extern "C" fn handler(_: i32) {
        TAKEN.store(usize::from(matches!(guard::enter(), Entered::Thread(_))), Relaxed);
    }
    alone(|| {
        let segment = fresh();
        assert!(segment.publish(1, 0, 0));
        let mut alternate = [0u8; 64 << 10];
        let frame = alternate.as_mut_ptr() as usize & !15;
        let frame = frame - 4096;
        let (low, high) = (frame - (1 << 20), frame + (1 << 20));
        let state = thread::attach(segment, Some(StackBounds { low, high, guard: 0, kind: 0 })).expect("a slot");
        state.shared().memo.store(state.own_memo.cast(), Relaxed);
        tls_set::<CURRENT>(state as *mut ThreadState as usize);
        // SAFETY: this thread's state, to which nothing else refers at that moment.
        let state_of_thread = || unsafe { &mut *(tls_get::<OWN>() as *mut ThreadState) };
        let is_taken_at = |sp: usize| matches!(guard::enter_at(sp), Entered::Thread(_));
        let nested = || counter(segment, Counter::nested_entries);
        let leave = |is_mapping: bool| {
            let inside = if is_mapping { guard::enter_call(frame) } else { guard::enter_at(frame) };
            assert!(matches!(inside, Entered::Thread(_)));
            std::mem::forget(inside);
        };
        leave(true);
        assert!(!is_taken_at(frame - 512), "a handler on the stack of the call");
        // SAFETY: the handler makes no call that a handler may not make, and the array outlives it.
        unsafe {
            let stack = libc::stack_t { ss_sp: alternate.as_mut_ptr().cast(), ss_flags: 0, ss_size: alternate.len() };
            os::alternate_stacks_exist();
            assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
            libc::raise(libc::SIGUSR1);
        }
        assert_eq!((TAKEN.load(Relaxed), nested()), (0, 2), "a handler on an alternate stack");
        assert!(is_taken_at(frame), "the call was left");
        assert_eq!(tls_get::<CURRENT>(), tls_get::<OWN>(), "it is given back");
        assert_eq!(slots::own().expect("a state").memo.load(Relaxed), slots::empty(), "no remembered stack is used");
        assert!(is_taken_at(frame - 512));
        // The state as malloc's fast path takes it, after a call that was left when it had given the state back.
        let inside = guard::enter_call(frame);
        drop(inside);
        tls_set::<CURRENT>(0);
        state_of_thread().countdown -= 24;
        assert!(!is_taken_at(frame + 512), "the mark is not malloc's");
        tls_set::<CURRENT>(tls_get::<OWN>());
        leave(false);
        assert!(!is_taken_at(frame + 512), "out of malloc no program may jump");
        assert_eq!(nested(), 4);
        println!("exercised: {} entries", nested());
    });
}

/// All slots in use: the thread gets none, and is counted.
#[test]
fn a_thread_without_a_free_slot_gets_none_and_is_counted() {
    alone(|| {
        let segment = fresh();
        let room = Section::Threads.capacity() - 1;
        for _ in 0..room {
            attach(segment);
        }
        assert!(thread::attach(segment, None).is_none());
        assert_eq!(counter(segment, Counter::threads_shared), 1);
        println!("exercised: {room} slots");
    });
}

/// A larger memo has entries of the smaller one. If the code map changes just before it comes into force, none of them
/// may be found.
#[test]
fn a_memo_that_grows_beside_a_change_of_the_code_map_is_not_in_force() {
    use plimsoll_tracker::segment::slots;

    alone(|| {
        let segment = fresh();
        let t = attach(segment);
        t.shared().memo.store(t.own_memo.cast(), Relaxed);
        let grow = |t: &mut ThreadState| {
            let smaller = t.own_memo;
            t.misses = u32::MAX;
            t.grow_memo(segment);
            assert_ne!(t.own_memo, smaller);
        };
        grow(t);
        assert_eq!(t.memo(), t.own_memo);
        slots::forget_stacks(segment);
        grow(t);
        assert_eq!(t.memo().cast::<u8>(), slots::empty());
        println!("exercised: memos of {} entries", t.memo_mask + 1);
    });
}

#[test]
fn outgrown_tables_go_back_to_the_kernel() {
    alone(|| {
        let segment = fresh();
        let pools = || {
            let mut bytes = 0;
            os::each_mapping(|mapping| bytes += if mapping.purpose == Purpose::Pool { touched(mapping) } else { 0 });
            bytes
        };
        let t = attach(segment);
        let before = pools();
        for caller in 3..40_000 {
            rows::find(books(segment), t, caller).expect("room for a row");
        }
        // Entries of 8 bytes at the caller's number.
        let index = pools() - before;
        assert!((40_000 * 8..40_000 * 8 + (48 << 10)).contains(&index), "{index}");
        // `grow_memo` reads the whole index, which maps pages of zeros.
        t.misses = 0;
        t.grow_memo(segment);
        let before = pools();
        for _ in 0..5 {
            let mut room = 0;
            while t.tail(segment, 4096).is_some_and(|tail| {
                // SAFETY: the space that was just given.
                unsafe { tail.write_bytes(1, 4096) };
                true
            }) {
                room += 4096;
            }
            t.misses = u32::MAX;
            t.grow_memo(segment);
            assert_eq!(t.tails_used(), 0);
            let tails = pools() - before;
            assert!(tails <= room + (48 << 10), "{tails} for {room}");
            println!("exercised: {room} bytes of tails");
        }
    });
}
