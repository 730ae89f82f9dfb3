//! operator new and delete of libstdc++ over glibc: they continue on the fast paths of malloc and free, without
//! libstdc++'s code in between.
//!
//! ```text
//! new(n)           malloc(n), malloc(1) for n = 0; if that fails: the new_handler, then again, or bad_alloc
//! new[](n)         new(n)
//! delete(p)        free(p)
//! delete(p, n)     delete(p)
//! delete[](p)      delete(p)
//! delete[](p, n)   delete[](p)
//! ```
//! These are the steps of libsupc++ (new_op.cc, del_op.cc and the files beside them), the same in GCC 3, 10 and 12.
//! Where malloc returns NULL, the call goes on in libstdc++'s own new, which tries again and then does the rest:
//! handler and exception are libstdc++'s.
//!
//! A program or a library may replace any of these functions, also malloc alone, and libstdc++ then calls the
//! replacement. So the way is shortened only where the loader's list proves that each call would come to this library
//! and then to libstdc++ ([`libstdcxx`]). The forms with an alignment and with `nothrow` stay libstdc++'s. So do all
//! forms of an object that was loaded after the start, and of any other C++ library.
//!
//! The block's caller is then the caller of the operator: a stack begins there, as over jemalloc, whose operators are
//! booked themselves.

use crate::account::blocks;
use crate::hook::malloc::FREE;
use crate::sys::{elf, libc};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use plimsoll_segment::Allocator;

/// libstdc++'s operator new, for requests that malloc refuses.
pub static REAL_NEW: AtomicUsize = AtomicUsize::new(0);

const NEW: [&CStr; 2] = [c"_Znwm", c"_Znam"];
const DELETE: [&CStr; 4] = [c"_ZdlPv", c"_ZdaPv", c"_ZdlPvm", c"_ZdaPvm"];

// The functions off the path return to this code, not to the program, since they may return NULL. Each gets the stack
// pointer at the entry as an argument.
crate::over_glibc! {
    /// operator new and new[] without further arguments.
    operator_new,
    first: ["cmp rdi, 1", "adc rdi, 0"],
    beyond: "jae 20f",
    null: "je 32f",
    exits: [
        "push rdi\n.cfi_adjust_cfa_offset 8\ncall {slow}\njmp 31f\n.cfi_adjust_cfa_offset -8",
        "push rdi\n.cfi_adjust_cfa_offset 8\ncall {sampled}\njmp 31f\n.cfi_adjust_cfa_offset -8",
        "push rdi\n.cfi_adjust_cfa_offset 8\ncall {walk}"
    ],
    last: [
        "31: pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "je 30f",
        "ret",
        // Gives the state back, as malloc does.
        "32: mov r8, qword ptr [rip + plimsoll_tls@GOTTPOFF]",
        "mov qword ptr fs:[r8], r9",
        "30: jmp qword ptr [rip + {new}]"
    ],
    new = sym REAL_NEW
}

/// operator delete and delete[], with and without a size: free(3) in the version in force.
///
/// # Safety
/// As free(3).
#[unsafe(naked)]
pub unsafe extern "C" fn operator_delete(p: *mut u8) {
    core::arch::naked_asm!(".cfi_startproc", "jmp qword ptr [rip + {free}]", ".cfi_endproc", free = sym FREE);
}

/// From the next call on, the entries of libstdc++'s operators jump to the functions of this module, if [`libstdcxx`]
/// finds that they may. Looks once: the order of the objects that the program started with doesn't change.
pub fn shorten() {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if LOOKED.load(Relaxed) || LOOKED.swap(true, Relaxed) {
        return;
    }
    let Some(library) = libstdcxx() else { return };
    let Some(new) = library.symbol(NEW[0]) else { return };
    REAL_NEW.store(new, Relaxed);
    let both: [(&[&CStr], _); 2] = [(&NEW[..], operator_new as *const ()), (&DELETE[..], operator_delete as *const ())];
    for (names, to) in both {
        // Older versions have no delete with a size. Then another object's is the real one.
        for &name in names {
            if library.symbol(name).is_some() {
                libc::set_operator(name, to as usize);
            }
        }
    }
}

/// libstdc++, if each of its operators, when called through the entry, would end in the tracker's own malloc or free:
///
/// - malloc is glibc's, and no object in front of this one defines malloc or free. So libstdc++'s references to them
///   lead here.
/// - No object in front defines one of the operators, and the first object behind that does is libstdc++. So its
///   references from one operator to the other lead here too, and from here to itself.
///
/// Only objects that the program started with count.
fn libstdcxx() -> Option<elf::Object> {
    if blocks::allocator() != Allocator::Glibc as u32 || elf::is_late() {
        return None;
    }
    let operators = || NEW.into_iter().chain(DELETE);
    let mut is_behind = false;
    for o in elf::objects_checked_after(libc::at_start(), |_| false) {
        if o.is_self() {
            is_behind = true;
            continue;
        }
        let defines = |name: &CStr| o.symbol(name).is_some();
        if is_behind && operators().any(defines) {
            return o.is_named(c"libstdc++.so.6").then_some(o);
        }
        if !is_behind && operators().chain([c"malloc", c"free"]).any(defines) {
            return None;
        }
    }
    None
}
