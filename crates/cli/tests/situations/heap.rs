//! malloc and its relatives.

use crate::harness::situation;
use crate::situations;

situations! {
    mix => situation("mix").moments(6);
    realloc_zero => situation("realloc_zero").moments(4);
    realloc_null => situation("realloc_null").moments(2);
    realloc_fail => situation("realloc_fail").moments(2);
    realloc_moves => situation("realloc_moves").moments(22);
    aligned => situation("aligned").moments(2);
    pvalloc => situation("pvalloc").moments(2);
    aligned_errors => situation("aligned_errors");
    reallocarray => situation("reallocarray").moments(3);
    libc_callers => situation("libc_callers").moments(4);
    malloc_zero => situation("malloc_zero").moments(2);
    malloc_enomem => situation("malloc_enomem").moments(4);
    errno_kept => situation("errno_kept").moments(2);
    usable_size => situation("usable_size").moments(2);
    large_blocks => situation("large_blocks").moments(4);
    new_delete => situation("new_delete").moments(4);
    bad_alloc => situation("bad_alloc");
    exceptions => situation("exceptions").moments(2);
    #[cfg(target_arch = "x86_64")]
    misaligned => situation("misaligned").moments(4);
}
