//! A value that one thread makes and all threads then read. No thread waits: while one makes the value, the others
//! continue without it.
//!
//! ```text
//! EMPTY ── claim ──▶ BUSY ── fill ──▶ READY, for good
//!    ◀── dropped ─────┘
//! ```

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering::*};

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;

pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the only claim writes the value, before READY. From then on all threads only read it.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

/// The right to make the value; dropped, another thread may try.
pub struct Claim<'a, T>(&'a Once<T>);

impl<T> Once<T> {
    pub const fn empty() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Whether the value was made.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.state.load(Relaxed) == READY
    }

    #[inline(always)]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: READY was stored after the value was written, and nobody writes it again.
        (self.state.load(Acquire) == READY).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// `None`: another thread is making the value, or has made it.
    pub fn claim(&self) -> Option<Claim<'_, T>> {
        self.state.compare_exchange(EMPTY, BUSY, Acquire, Relaxed).ok().map(|_| Claim(self))
    }
}

impl<'a, T> Claim<'a, T> {
    pub fn fill(self, value: T) -> &'a T {
        let once = self.0;
        core::mem::forget(self);
        // SAFETY: BUSY is this claim's, so nobody else reads or writes; read only from here on.
        let value = unsafe { (*once.value.get()).write(value) };
        once.state.store(READY, Release);
        value
    }
}

impl<T> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        self.0.state.store(EMPTY, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A thread that found no value may claim it only after another has filled it: the readers' value must stay.
    #[test]
    fn a_value_is_made_once() {
        let once = Once::empty();
        drop(once.claim().expect("free"));
        let claim = once.claim().expect("free again");
        assert!(once.claim().is_none() && once.get().is_none());
        assert_eq!(claim.fill(7), &7);
        assert!(once.claim().is_none() && once.get() == Some(&7));
    }

    #[test]
    fn one_of_many_threads_makes_the_value() {
        for _ in 0..2000 {
            let (once, made) = (Once::empty(), AtomicUsize::new(0));
            let look = || once.get().copied().or_else(|| Some(*once.claim()?.fill(made.fetch_add(1, Relaxed))));
            std::thread::scope(|s| {
                (0..4).for_each(|_| drop(s.spawn(|| assert!(look().is_none_or(|found| found == 0)))));
            });
            assert_eq!(made.load(Relaxed), 1);
        }
    }
}
