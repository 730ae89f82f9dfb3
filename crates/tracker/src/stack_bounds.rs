//! Where a thread's stack lies. The walker must know what it may read.

use crate::account::mapping::existing::{self, maps};
use crate::account::thread::StackBounds;
use crate::sys::{cpu, libc, os, thread_descriptor};
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// High end of the main thread's stack, and the thread pointer of the main thread.
static MAIN_HIGH: AtomicUsize = AtomicUsize::new(0);
static MAIN_POINTER: AtomicUsize = AtomicUsize::new(0);
/// End of the mapping below the main thread's stack at the first attach; 0: not known, or the tracker was there from
/// the start.
static MAIN_FLOOR: AtomicUsize = AtomicUsize::new(0);
/// Stack bytes of threads without attributes.
static DEFAULT_BYTES: AtomicUsize = AtomicUsize::new(0);

const UNLIMITED_MAIN: usize = 8 << 20;
/// glibc's ARCH_STACK_DEFAULT_SIZE for an unlimited RLIMIT_STACK.
const UNLIMITED_THREAD: usize = 2 << 20;

/// Notes the main thread. `top` is an address in its outermost frame or above: the environment's strings.
pub fn init(top: usize) {
    MAIN_HIGH.store((top & !4095) + 4096, Relaxed);
    MAIN_POINTER.store(cpu::thread_pointer(), Relaxed);
    let limit = os::stack_limit();
    let bytes = if limit > 1 << 40 { UNLIMITED_THREAD } else { (limit as usize).max(16 << 10) & !4095 };
    DEFAULT_BYTES.store(bytes, Relaxed);
}

/// In a process that runs already, the kernel reports the main thread's stack (startstack in /proc/self/stat, proc(5)).
pub fn init_late() {
    let mut buffer = [0u8; 1024];
    let stat = os::read_file(os::OwnFile::STAT, &mut buffer);
    // The command in parentheses may hold anything: fields are counted behind the last one. startstack is the 28th.
    let rest = stat.iter().rposition(|&b| b == b')').map_or(&[][..], |i| &stat[i + 1..]);
    let field = rest.split(|&b| b == b' ').filter(|f| !f.is_empty()).nth(25).unwrap_or_default();
    let top = field.iter().take_while(|b| b.is_ascii_digit()).fold(0usize, |n, d| n * 10 + (d - b'0') as usize);
    init(top);
    MAIN_POINTER.store(0, Relaxed);
    let mut below = 0;
    os::each_line(os::OwnFile::MAPS, |line| {
        let Some(m) = maps::parse(line).filter(|m| m.start <= top) else { return };
        if m.end > top {
            MAIN_FLOOR.store(below, Relaxed);
        }
        below = m.end;
    });
}

/// Whether the calling thread is the process's first.
fn is_main() -> bool {
    match MAIN_POINTER.load(Relaxed) {
        0 if os::getpid() != 0 && os::gettid() == os::getpid() => {
            MAIN_POINTER.store(cpu::thread_pointer(), Relaxed);
            true
        }
        known => cpu::thread_pointer() == known,
    }
}

/// The main thread's stack. It may grow down to its limit; all from the stack pointer to its high end is mapped. When
/// the program was started, the kernel left space for the limit of that time (`mmap_base` in arch/x86/mm/mmap.c). A
/// program may have set a higher one since, which reaches into its other mappings; the stack ends above these.
pub fn main() -> StackBounds {
    let limit = os::stack_limit();
    let bytes = if limit > 1 << 40 { UNLIMITED_MAIN } else { (limit as usize).max(64 << 10) };
    let high = MAIN_HIGH.load(Relaxed);
    let low = (high.saturating_sub(bytes) & !4095).max(MAIN_FLOOR.load(Relaxed));
    StackBounds { low, high, guard: 0, kind: 2 }
}

/// The stack of a thread made by pthread_create. glibc puts the thread's descriptor, to which the thread pointer
/// points, at the high end, and the guard below the given bytes (before 2.27 inside them, bug 22637). musl puts the
/// descriptor near the high end, and adds it to the given bytes. A stack that the program provides is used whole.
pub fn of_new(own_low: usize, bytes: usize, guard: usize) -> StackBounds {
    let bytes = if bytes == 0 { DEFAULT_BYTES.load(Relaxed) } else { bytes };
    if own_low != 0 {
        return StackBounds { low: own_low, high: own_low + bytes, guard: 0, kind: 1 };
    }
    let high = (cpu::thread_pointer() + 4095) & !4095;
    if libc::is_musl()
        && let Some((low, guard)) = libc::stack_of_musl()
    {
        return StackBounds { low, high, guard, kind: 0 };
    }
    StackBounds { low: (high - bytes) & !4095, high, guard, kind: 0 }
}

/// The stack of a thread whose start we did not see: made by C11's thrd_create or inside libc. Libc isn't queried: its
/// pthread_getattr_np allocates under the thread's own lock, and would wait for itself if that block is the thread's
/// first. `None`: the thread runs on another stack now.
pub fn unseen() -> Option<StackBounds> {
    if is_main() {
        return Some(main());
    }
    let mut stack = of_new(0, 0, 4096);
    let here = &raw const stack as usize;
    // The map has no thread's stack, except those that the program has provided. So the stack of a thread from before
    // an attach is removed.
    if let Some(block) = thread_descriptor::stack_of_glibc() {
        let (low, high) = (block.start + block.guard, block.end);
        stack = StackBounds { low, high, guard: block.guard, kind: u64::from(block.is_programs) };
        if !block.is_programs && (low..high).contains(&here) {
            existing::remove_stack(here, |_, _| Some((block.start, low, high)));
        }
    } else if let Some((guard, low, high)) = existing::remove_stack(here, existing::stack_at(cpu::thread_pointer())) {
        stack = StackBounds { low, high, guard: low - guard, kind: 0 };
    }
    (stack.low..stack.high).contains(&here).then_some(stack)
}
