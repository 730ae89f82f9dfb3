//! malloc and its relatives.

use crate::kit::situation;
use crate::situations;

situations! {
    mix over both => situation("mix").moments(6);
    realloc_zero over both => situation("realloc_zero").moments(4);
    realloc_null over both_musl_in_full => situation("realloc_null").moments(2);
    realloc_fail over both => situation("realloc_fail").moments(2);
    realloc_moves over both => situation("realloc_moves").moments(22);
    aligned over both => situation("aligned").moments(2);
    // pvalloc exists in glibc only; the second program calls it too.
    pvalloc over glibc => situation("pvalloc").moments(2);
    aligned_errors over glibc => situation("aligned_errors");
    reallocarray over both => situation("reallocarray").moments(3);
    libc_callers over both => situation("libc_callers").moments(4);
    malloc_zero over both => situation("malloc_zero").moments(2);
    malloc_enomem over both_musl_in_full => situation("malloc_enomem").moments(4);
    errno_kept over both => situation("errno_kept").moments(2);
    // musl has no feenableexcept.
    floating_point over glibc => situation("floating_point").flags(&["-lm"]);
    usable_size over both => situation("usable_size").moments(2);
    large_blocks over both => situation("large_blocks").moments(4);
    // C++: musl-gcc compiles C only.
    new_delete over glibc => situation("new_delete").moments(4);
    bad_alloc over glibc => situation("bad_alloc");
    new_handler over glibc => situation("new_handler").moments(3);
    exceptions over glibc => situation("exceptions").moments(2);
    #[cfg(target_arch = "x86_64")]
    misaligned over both_musl_in_full => situation("misaligned").moments(4);
}
