//! mmap and its kin.

use crate::account::segment::Segment;
use crate::boot;
use crate::sys::libc::calls;
use core::ffi::c_int;

pub fn init(_: Segment) -> bool {
    true
}
pub fn lock_for_fork() {}
pub fn unlock_after_fork() {}
pub fn reset_after_fork() {}

macro_rules! pass {
    ($($name:ident($($a:ident: $t:ty),*; $($rest:ident),*) -> $r:ty;)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($a: $t,)* $($rest: usize,)* _sp: usize, _fp: usize) -> $r {
            if !boot::resolved() { boot::resolve(); }
            unsafe { calls::$name($($a),*) }
        }
    )*};
}
pass! {
    mmap(a: usize, n: usize, prot: c_int, flags: c_int, fd: c_int, off: i64;) -> usize;
    munmap(a: usize, n: usize; _2, _3, _4, _5) -> c_int;
    mremap(a: usize, old: usize, new: usize, flags: c_int, to: usize; _5) -> usize;
    mprotect(a: usize, n: usize, prot: c_int; _3, _4, _5) -> c_int;
    madvise(a: usize, n: usize, advice: c_int; _3, _4, _5) -> c_int;
    brk(a: usize; _1, _2, _3, _4, _5) -> c_int;
    sbrk(n: isize; _1, _2, _3, _4, _5) -> usize;
    shmat(id: c_int, a: usize, flags: c_int; _3, _4, _5) -> usize;
    shmdt(a: usize; _1, _2, _3, _4, _5) -> c_int;
}
