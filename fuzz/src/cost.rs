//! The cost of one input. An allocator counts the live bytes of each thread. The kernel counts the thread's CPU time,
//! which other programs do not change.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Limit of the CPU time of one input. Unoptimised builds (`cargo test`) are ten times slower.
pub const CPU_LIMIT: Duration = Duration::from_secs(if cfg!(feature = "libfuzzer") { 1 } else { 10 });
/// Limit of the live bytes of one input: `LEAST_MEMORY`, plus `MEMORY_TIMES` for each byte of the input.
pub const LEAST_MEMORY: usize = 32 << 20;
/// See `LEAST_MEMORY`.
pub const MEMORY_TIMES: usize = 256;

thread_local! {
    /// Live bytes since `bounded` began, and their peak.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed to the system's allocator unchanged. The counters are plain thread-local cells, which
// need no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps alloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps alloc_zeroed's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps dealloc's contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist for a moment, but they hold the same bytes: only the growth counts.
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps realloc's contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Runs `work` on an input of `input` bytes; panics if it exceeds a limit.
pub fn bounded(input: usize, work: impl FnOnce()) {
    let (before, began) = (LIVE.get(), cpu_time());
    PEAK.set(before);
    work();
    let (memory, time) = (PEAK.get() - before, cpu_time() - began);
    let most = LEAST_MEMORY + MEMORY_TIMES * input;
    assert!(memory <= most as isize, "{memory} bytes of memory for an input of {input} bytes; {most} are allowed");
    assert!(time <= CPU_LIMIT, "{time:?} of CPU time for an input of {input} bytes; {CPU_LIMIT:?} are allowed");
}
