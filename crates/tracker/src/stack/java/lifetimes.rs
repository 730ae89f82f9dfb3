//! Whether the VM can have freed a method: two of its counters that only grow.
//!
//! ```text
//! PerfMemory::_start ─▶ 0 magic CAFEC0C0   24 offset of the first entry   28 entries
//!                 entry 0 length   4 offset of the name   16 offset of the value; the name ends with a NUL
//! ```
//! (hotspot, share/runtime/perfMemory.hpp, perfData.hpp.)
//!
//! A method is freed with its class, or after a redefinition. `java.cls.unloadedClasses` counts a class before its
//! memory goes (ClassLoadingService::notify_class_unloaded, called by InstanceKlass::unload_class). Methods that a
//! redefinition has replaced are freed at safepoints, which `sun.rt.safepoints` counts as they begin. Neither frees a
//! method that has a frame at that moment. So a method that was seen under a frame is still the same under a later one
//! if the sum of both, read before each check, is unchanged.
//!
//! The two checks may be on different threads. A thread that runs another method at the same address has synchronised
//! with the loading of its class, which follows the change of a counter. And if the other thread's check came after the
//! second reading of the counters, both checks saw the method of this thread's own frame.
//!
//! With -XX:-UsePerfData there are no counters. Then nothing is known.

use super::code_cache::Vm;
use super::memory::{c_string, load};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The counters' names.
const NAMES: [&[u8]; 2] = [b"java.cls.unloadedClasses", b"sun.rt.safepoints"];
/// Where their values lie; 0 = not found yet.
static AT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// How often the counters were looked for. A VM makes them while it starts.
static TRIES: AtomicU32 = AtomicU32::new(0);
const MOST_TRIES: u32 = 64;
/// A VM has about 200 entries.
const MOST_ENTRIES: u32 = 1_000;
/// As bytes lie in memory.
const MAGIC: u32 = u32::from_le_bytes([0xca, 0xfe, 0xc0, 0xc0]);

/// A number that changes before the VM frees a method, never 0. `None`: it isn't known.
#[inline]
pub fn changes(vm: &Vm) -> Option<u64> {
    let at = AT.each_ref().map(|at| at.load(Relaxed));
    if at.contains(&0) {
        return look_for_counters(vm);
    }
    sum(at)
}

#[inline]
fn sum([unloaded, safepoints]: [u64; 2]) -> Option<u64> {
    Some(load::<u64>(unloaded)?.wrapping_add(load(safepoints)?).wrapping_add(1).max(1))
}

#[cold]
#[inline(never)]
fn look_for_counters(vm: &Vm) -> Option<u64> {
    if vm.layout.perf_memory == 0 || TRIES.load(Relaxed) >= MOST_TRIES {
        return None;
    }
    TRIES.fetch_add(1, Relaxed);
    let found = counters(load(vm.layout.perf_memory)?)?;
    AT.iter().zip(found).for_each(|(at, found)| at.store(found, Relaxed));
    sum(found)
}

/// Where the values of both counters lie, in a memory of counters that begins at `start`.
pub fn counters(start: u64) -> Option<[u64; 2]> {
    if load::<u32>(start)? != MAGIC {
        return None;
    }
    let mut entry = start.wrapping_add(load::<u32>(start.wrapping_add(24))? as u64);
    let mut found = [0; 2];
    for _ in 0..load::<u32>(start.wrapping_add(28))?.min(MOST_ENTRIES) {
        let half = |offset: u64| load::<u32>(entry.wrapping_add(offset)).map(u64::from);
        let (length, name, value) = (half(0)?, half(4)?, half(16)?);
        let name = c_string(entry.wrapping_add(name))?;
        if let Some(wanted) = NAMES.iter().position(|wanted| *name == **wanted) {
            // The VM writes an entry's offset of the value last.
            if value < 20 || value + 8 > length {
                return None;
            }
            found[wanted] = entry.wrapping_add(value);
            if !found.contains(&0) {
                return Some(found);
            }
        }
        entry = entry.wrapping_add(length);
    }
    None
}
