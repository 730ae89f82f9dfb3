//! What [`super::turns`] is built on; its loom test has another.

pub use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// A place that the protocol gives to one thread at a time.
pub struct Cell<T>(core::cell::UnsafeCell<T>);

// SAFETY: `put` and `get` demand that nobody else accesses the place.
unsafe impl<T: Copy + Send> Sync for Cell<T> {}

impl<T: Copy> Cell<T> {
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// # Safety
    /// Nobody else accesses the place meanwhile.
    pub unsafe fn put(&self, value: T) {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get() = value };
    }

    /// # Safety
    /// As for `put`; what was put before happened before.
    pub unsafe fn get(&self) -> T {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get() }
    }
}
