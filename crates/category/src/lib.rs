//! Lets a Rust program set the categories of its own memory in Plimsoll's books.
//!
//! ```
//! static CACHE: plimsoll_category::Category = plimsoll_category::Category::new(c"block cache");
//! let blocks = {
//!     let _of_the_cache = CACHE.enter();
//!     vec![0u8; 4096]
//! };
//! # drop(blocks);
//! ```
//!
//! Under `plimsoll run`, memory that the thread allocates during the guard's lifetime is booked under the category.
//! Otherwise, the guard does nothing: the tracker's functions are looked up once and not found.
//!
//! A guard applies only to the thread that made it. The C API is include/plimsoll.h.

#![warn(unreachable_pub)]

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A named category; make it a `static`.
pub struct Category {
    name: &'static CStr,
    /// Number + 1 after the first lookup; 0 before it.
    known: AtomicU32,
}

/// A guard: this thread's allocations belong to its category until the guard is dropped.
pub struct Entered {
    pushed: bool,
    _of_this_thread: PhantomData<*const ()>,
}

struct Tracker {
    category: unsafe extern "C" fn(*const c_char) -> u32,
    push: unsafe extern "C" fn(u32),
    pop: unsafe extern "C" fn(),
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

fn tracker() -> Option<&'static Tracker> {
    static FOUND: OnceLock<Option<Tracker>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            // SAFETY: on Linux, RTLD_DEFAULT is null; the names are C strings.
            let find = |name: &CStr| unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
            let (category, push, pop) =
                (find(c"plimsoll_category"), find(c"plimsoll_category_push"), find(c"plimsoll_category_pop"));
            if category.is_null() || push.is_null() || pop.is_null() {
                return None;
            }
            // SAFETY: these are the signatures in include/plimsoll.h.
            unsafe {
                Some(Tracker {
                    category: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> u32>(category),
                    push: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32)>(push),
                    pop: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(pop),
                })
            }
        })
        .as_ref()
}

impl Category {
    /// A category with this name. Equal names mean the same category.
    pub const fn new(name: &'static CStr) -> Category {
        Category { name, known: AtomicU32::new(0) }
    }

    /// From now on, until the guard is dropped, this thread allocates for the category.
    pub fn enter(&self) -> Entered {
        let pushed = tracker().is_some_and(|t| {
            let mut number = self.known.load(Relaxed);
            if number == 0 {
                // SAFETY: the name is a C string.
                number = unsafe { (t.category)(self.name.as_ptr()) } + 1;
                self.known.store(number, Relaxed);
            }
            // SAFETY: the tracker returned this number.
            unsafe { (t.push)(number - 1) };
            true
        });
        Entered { pushed, _of_this_thread: PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let (true, Some(t)) = (self.pushed, tracker()) {
            // SAFETY: pairs with the push on the same thread, because the guard isn't Send.
            unsafe { (t.pop)() }
        }
    }
}
