//! dlopen, dlmopen and dlclose begin a new generation of the code map. dlsym and dlvsym return the hooks.
//!
//! All are tail jumps: the loader looks at its caller's address to find the namespace, the run path, or the object that
//! RTLD_NEXT counts from. But where import tables are patched, dlopen of a path (which needs no run path) is called, so that
//! what it loads can be patched before anybody calls it; what comes another way is found at the next of these calls.

use crate::hook::resolve::resolve;
use crate::patch;
use crate::phase::{self, Phase, resolved};
use crate::segment::Segment;
use crate::segment::slots::{self, GENERATION};
use crate::sys::libc::{self, Call};
use crate::sys::{elf, os};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering::*;
use plimsoll_segment::Counter;

/// Where an entry goes on: to `jump`, or, if `answer` isn't 0, back to the program with that.
#[repr(C)]
pub struct Next {
    jump: usize,
    answer: usize,
}

impl Next {
    pub(super) fn jump(to: usize) -> Next {
        Next { jump: to, answer: 0 }
    }
}

fn next_generation() {
    if patch::is_pending() {
        patch::look_again();
    }
    match Segment::current() {
        Some(s) => {
            slots::forget_stacks(s);
            s.count(Counter::code_generations, 1);
        }
        None => {
            GENERATION.fetch_add(1, AcqRel);
        }
    }
}

/// The real function, also before boot has looked for it.
pub(super) fn real(call: Call) -> usize {
    if !resolved() {
        resolve();
    }
    libc::real(call)
}

/// dlopen(3). An answer here means: call it, and then `after_dlopen`.
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlopen(name: *const c_char) -> Next {
    next_generation();
    let jump = real(Call::dlopen);
    if !patch::is_wanted() || name.is_null() {
        return Next::jump(jump);
    }
    patch::expect_more();
    // SAFETY: the program's C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    // $ORIGIN is the caller's folder.
    Next { jump, answer: (name.contains(&b'/') && !name.contains(&b'$')) as usize }
}

/// Behind dlopen(3), whatever it answered.
pub extern "C" fn after_dlopen() {
    patch::look_again();
}

/// dlmopen(3).
pub extern "C" fn before_dlmopen() -> Next {
    next_generation();
    patch::expect_more();
    Next::jump(real(Call::dlmopen))
}

/// dlclose(3). What was remembered of the object between this moment and its unmapping is made void by the next dlopen,
/// without which no other code can come to lie there.
pub extern "C" fn before_dlclose() -> Next {
    next_generation();
    Next::jump(real(Call::dlclose))
}

const RTLD_NEXT: usize = usize::MAX;

/// For dlsym(handle, name): on to the real one, or, if that would hand out a function below a hook, the hook as answer.
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlsym(handle: *mut c_void, name: *const c_char, _: usize, ra: usize) -> Next {
    let dlsym = real(Call::dlsym);
    if patch::is_pending() {
        patch::look_again();
    }
    // SAFETY: the name is the program's C string, if it is one.
    unsafe {
        if name.is_null() || phase::is(Phase::Passing) {
            return Next::jump(dlsym);
        }
        let name_is = CStr::from_ptr(name);
        let Some(i) = libc::hooked(name_is) else { return Next::jump(dlsym) };
        let found =
            if handle as usize == RTLD_NEXT { behind(ra, name_is) } else { libc::calls::dlsym(handle, name) as usize };
        Next { jump: dlsym, answer: if found != 0 && found == libc::real_by_number(i) { libc::export(i) } else { 0 } }
    }
}

/// What RTLD_NEXT finds for the object that holds `ra`: the first definition behind it. The real dlsym would count from
/// us, were it called from here. A wrapper that asks for what is behind itself so gets what it would get; if that is what
/// our hook stands for, it gets the hook.
fn behind(ra: usize, name: &CStr) -> usize {
    let holds = |o: &elf::Object| o.extent(os::readable).is_some_and(|(start, end, _)| (start..end).contains(&ra));
    elf::objects_checked(os::readable).skip_while(|o| !holds(o)).skip(1).find_map(|o| o.symbol(name)).unwrap_or(0)
}

/// The same for dlvsym(handle, name, version).
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Next {
    let dlvsym = real(Call::dlvsym);
    // SAFETY: as above.
    unsafe {
        if handle as usize == RTLD_NEXT || name.is_null() || phase::is(Phase::Passing) {
            return Next::jump(dlvsym);
        }
        let Some(i) = libc::hooked(CStr::from_ptr(name)) else { return Next::jump(dlvsym) };
        let found = libc::calls::dlvsym(handle, name, version) as usize;
        Next { jump: dlvsym, answer: if found != 0 && found == libc::real_by_number(i) { libc::export(i) } else { 0 } }
    }
}
