//! dlopen, dlmopen and dlclose begin a new generation of the code map. dlsym and dlvsym return the hooks.
//!
//! All are tail jumps, since the loader looks at its caller's address to find the namespace, the run path, or the
//! object that RTLD_NEXT counts from. The one exception: where import tables are patched, the entry calls dlopen of a
//! path, and then patches the new objects before the program calls them. A path needs no run path, and what the object
//! needs isn't searched for in its opener's either: glibc forgets the caller first (_dl_map_object in elf/dl-load.c,
//! __RTLD_CALLMAP). Objects that are loaded another way are patched at the next of these calls. Import tables are
//! patched after an attach, and for RTLD_DEEPBIND: then the loader binds the new objects to libc itself, past this
//! library.

use crate::hook::resolve::resolve;
use crate::patch;
use crate::phase::{self, Phase, resolved};
use crate::segment::Segment;
use crate::segment::slots::{self, GENERATION};
use crate::sys::libc::{self, Call};
use crate::sys::{elf, os};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::*;
use plimsoll_segment::Counter;

/// How long dlopen waits for another thread that walks the loader's list: a walk takes a few milliseconds, and longer
/// if the kernel has preempted that thread. Without the wait, the program would use its new objects unpatched.
const LOADED_MS: u64 = 1000;

/// What an entry does next: it jumps to `jump`, or, if `answer` isn't 0, returns `answer` to the program.
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
    if patch::may_be_pending() {
        patch::patch_new_objects(0);
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

/// Like [`real`], for a function that glibc before 2.34 has in libdl: the object that calls it has brought libdl,
/// perhaps long after the program's start.
fn of_loader(call: Call) -> usize {
    real(call);
    match libc::real_or_later(call) {
        0 => nothing as *const () as usize,
        found => found,
    }
}

/// Stands in for a function that the process lacks.
extern "C" fn nothing() -> usize {
    0
}

/// dlopen(3). Here an `answer` other than 0 means: call dlopen, and then `after_dlopen`.
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlopen(name: *const c_char, flags: c_int) -> Next {
    next_generation();
    let jump = of_loader(Call::dlopen);
    if flags & RTLD_DEEPBIND != 0 && patch::is_active() {
        patch::note_deep();
    }
    if name.is_null() || !(patch::is_active() || flags & RTLD_DEEPBIND != 0 && patch::is_for_deep()) {
        return Next::jump(jump);
    }
    // SAFETY: the program's C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    // $ORIGIN is the caller's folder.
    let calls = name.contains(&b'/') && !name.contains(&b'$');
    if !calls || patch::is_active() {
        patch::mark_pending();
    }
    Next { jump, answer: calls as usize }
}

/// After dlopen(3), with its result.
pub extern "C" fn after_dlopen(handle: *mut c_void) {
    if patch::is_active() {
        // A call of another thread may have cleared the mark of `before_dlopen` before these objects were in the list.
        patch::mark_pending();
        patch::patch_new_objects(LOADED_MS);
    } else if !handle.is_null() {
        // SAFETY: a handle is the loader's node, and the caller of dlopen has not returned it yet.
        patch::patch_deep(unsafe { elf::dynamic_of(handle.cast()) });
    }
}

/// dlmopen(3).
pub extern "C" fn before_dlmopen() -> Next {
    next_generation();
    if patch::is_active() {
        patch::mark_pending();
    }
    Next::jump(of_loader(Call::dlmopen))
}

/// dlclose(3). Until the object is unmapped, threads may remember stacks that go through it. The next dlopen makes
/// these void, and without a dlopen no other code can take the object's place.
pub extern "C" fn before_dlclose() -> Next {
    next_generation();
    Next::jump(of_loader(Call::dlclose))
}

const RTLD_NEXT: usize = usize::MAX;
/// Of glibc (bits/dlfcn.h); musl has none.
const RTLD_DEEPBIND: c_int = 8;

/// dlsym(3): continues in the real function. If that would return a function below a hook, returns the hook.
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlsym(handle: *mut c_void, name: *const c_char, _: usize, ra: usize) -> Next {
    let dlsym = of_loader(Call::dlsym);
    if patch::may_be_pending() {
        patch::patch_new_objects(0);
    }
    // SAFETY: the name is null or the program's C string.
    unsafe {
        if name.is_null() || phase::is(Phase::Passing) || libc::real(Call::dlsym) == 0 {
            return Next::jump(dlsym);
        }
        let name_is = CStr::from_ptr(name);
        let Some(i) = libc::hooked(name_is) else { return Next::jump(dlsym) };
        let found = if handle as usize == RTLD_NEXT {
            next_definition(ra, name_is, libc::real_by_number(i))
        } else {
            libc::calls::dlsym(handle, name) as usize
        };
        Next { jump: dlsym, answer: if found != 0 && found == libc::real_by_number(i) { libc::export(i) } else { 0 } }
    }
}

/// What RTLD_NEXT finds for the object that holds `ra`: the first definition behind that object. The real dlsym can't
/// be called for it, since it would count from this object. So a wrapper that looks for the function behind itself gets
/// the function that it would get without the tracker, or the hook of that function.
///
/// An object that dlopen has loaded has a scope of its own, of its dependencies, which lie before it in the list. If,
/// besides that object and the tracker, only the object of `below` has the function, the result is `below`.
fn next_definition(ra: usize, name: &CStr, below: usize) -> usize {
    let holds = |o: &elf::Object| o.extent(os::readable).is_some_and(|(start, end, _)| (start..end).contains(&ra));
    let objects = || elf::objects_checked(os::readable);
    if let Some(found) = objects().skip_while(|o| !holds(o)).skip(1).find_map(|o| o.symbol(name)) {
        return found;
    }
    let is_here = objects().any(|o| holds(&o));
    let mut others = objects().filter(|o| !o.is_self() && !holds(o)).filter_map(|o| o.symbol(name));
    if is_here && others.next() == Some(below) && others.next().is_none() { below } else { 0 }
}

/// dlvsym(3), handled like dlsym(3).
///
/// # Safety
/// Called by the entry stub with the program's arguments.
pub unsafe extern "C" fn before_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Next {
    let dlvsym = of_loader(Call::dlvsym);
    // SAFETY: as above.
    unsafe {
        let is_lacking = libc::real(Call::dlvsym) == 0;
        if handle as usize == RTLD_NEXT || name.is_null() || phase::is(Phase::Passing) || is_lacking {
            return Next::jump(dlvsym);
        }
        let Some(i) = libc::hooked(CStr::from_ptr(name)) else { return Next::jump(dlvsym) };
        let found = libc::calls::dlvsym(handle, name, version) as usize;
        Next { jump: dlvsym, answer: if found != 0 && found == libc::real_by_number(i) { libc::export(i) } else { 0 } }
    }
}
