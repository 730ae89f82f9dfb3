//! The atomics and cells of [`super::combining_lock`]. The loom test of that file replaces these types with loom's.

pub(super) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// A cell that the protocol gives to one thread at a time.
pub(super) struct Cell<T>(core::cell::UnsafeCell<T>);

// SAFETY: the callers of `put` and `get` guarantee that no other thread accesses the cell.
unsafe impl<T: Copy + Send> Sync for Cell<T> {}

impl<T: Copy> Cell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// # Safety
    /// No other thread accesses the cell meanwhile.
    pub(super) unsafe fn put(&self, value: T) {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get() = value };
    }

    /// # Safety
    /// As for `put`, and a `put` happened before.
    pub(super) unsafe fn get(&self) -> T {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get() }
    }
}
