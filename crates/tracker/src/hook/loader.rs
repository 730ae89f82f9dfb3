//! dlopen, dlmopen, dlclose: a new generation of the code map. dlsym, dlvsym: hand out the hooks.
//!
//! All are tail jumps: the loader looks at its caller's address to find the namespace, the run path, or the object that
//! RTLD_NEXT counts from.

use crate::account::segment::Segment;
use crate::account::thread::{self, GENERATION};
use crate::boot;
use crate::sys::libc::{self, Call};
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
    fn jump(to: usize) -> Next {
        Next { jump: to, answer: 0 }
    }
}

fn next_generation() {
    match Segment::current() {
        Some(s) => {
            thread::forget_stacks(s);
            s.count(Counter::code_generations, 1);
        }
        None => {
            GENERATION.fetch_add(1, AcqRel);
        }
    }
}

fn real(call: Call) -> usize {
    if !boot::resolved() {
        boot::resolve();
    }
    libc::real(call)
}

/// dlopen(3).
pub extern "C" fn before_dlopen() -> Next {
    next_generation();
    Next::jump(real(Call::dlopen))
}

/// dlmopen(3).
pub extern "C" fn before_dlmopen() -> Next {
    next_generation();
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
pub unsafe extern "C" fn before_dlsym(handle: *mut c_void, name: *const c_char, _: usize) -> Next {
    let dlsym = real(Call::dlsym);
    // SAFETY: the name is the program's C string, if it is one.
    unsafe {
        if handle as usize == RTLD_NEXT || name.is_null() {
            return Next::jump(dlsym);
        }
        let Some(i) = libc::hooked(CStr::from_ptr(name)) else { return Next::jump(dlsym) };
        let found = libc::calls::dlsym(handle, name) as usize;
        Next { jump: dlsym, answer: if found != 0 && found == libc::real_by_number(i) { boot::export(i) } else { 0 } }
    }
}

/// The same for dlvsym(handle, name, version).
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Next {
    let dlvsym = real(Call::dlvsym);
    // SAFETY: as above.
    unsafe {
        if handle as usize == RTLD_NEXT || name.is_null() {
            return Next::jump(dlvsym);
        }
        let Some(i) = libc::hooked(CStr::from_ptr(name)) else { return Next::jump(dlvsym) };
        let found = libc::calls::dlvsym(handle, name, version) as usize;
        Next { jump: dlvsym, answer: if found != 0 && found == libc::real_by_number(i) { boot::export(i) } else { 0 } }
    }
}
