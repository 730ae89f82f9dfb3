//! What the program itself calls (include/plimsoll.h): its own categories.

use crate::account::thread::CATEGORY_DEPTH;
use crate::guard::{Entered, enter};
use crate::segment::Segment;
use crate::segment::categories;
use core::ffi::{CStr, c_char};
use plimsoll_segment::CategoryKind;

/// `uint32_t plimsoll_category(const char *name)`: the number of a category, registered if new; 0 = not tracked.
///
/// # Safety
/// `name` is a C string.
pub unsafe extern "C" fn category(name: *const c_char) -> u32 {
    let Some(segment) = Segment::current().filter(|_| !name.is_null()) else { return 0 };
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    categories::register(segment, name.to_bytes(), CategoryKind::Program) as u32 + 1
}

/// `void plimsoll_category_push(uint32_t category)`: what this thread allocates from here on belongs to it. Beyond
/// [`CATEGORY_DEPTH`], pushes are only counted.
pub extern "C" fn category_push(category: u32) {
    if let Entered::Thread(mut inside) = enter() {
        let segment = inside.segment();
        let t = inside.state();
        let depth = t.pushed as usize;
        t.pushed += 1;
        if depth < CATEGORY_DEPTH {
            t.categories[depth] = t.category();
            let known = category <= segment.used(plimsoll_segment::Section::Categories) as u32;
            t.category_tag = if known { (category as u64) << 48 } else { 0 };
        }
    }
}

/// `void plimsoll_category_pop(void)`: restores the category from before the last push.
pub extern "C" fn category_pop() {
    if let Entered::Thread(mut inside) = enter() {
        let t = inside.state();
        if t.pushed > 0 {
            t.pushed -= 1;
            let below = t.categories.get(t.pushed as usize).copied();
            if let Some(c) = below {
                t.category_tag = (c as u64) << 48;
            }
        }
    }
}
