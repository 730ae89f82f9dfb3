//! The one table that names every hooked call: the exported entries, the pointers to the real functions, `doctor` and
//! docs/hooks.md come from it.

/// Calls `$m! { (name, kind, arguments, entry) … }`. The entry is a path below `hook/`: this table only names it.
///
/// | kind | what the exported entry does |
/// | --- | --- |
/// | `caller` | adds the stack and frame pointer to the arguments, and continues in the hook |
/// | `straight` | as `caller`, for a hook that runs at any alignment of the stack |
/// | `plain` | continues in the hook with unchanged arguments |
/// | `stacked` | keeps up to six arguments; the stack and frame pointer follow on the stack |
/// | `before` | calls the hook, then jumps to the real function |
/// | `numbered` | syscall(2): calls a hook for some numbers, does as `before` for others, and jumps for the rest |
/// | `around` | as `before`, or calls the real function and then a second hook |
/// | `through` | jumps through a pointer that boot sets |
/// | `variadic` | gives the hook the addresses of the arguments |
#[macro_export]
macro_rules! hooked_calls {
    ($m:ident) => {
        $m! {
            (malloc, straight, 1, malloc::malloc)
            (calloc, caller, 2, malloc::calloc)
            (realloc, caller, 2, malloc::realloc)
            (reallocarray, caller, 3, malloc::reallocarray)
            (free, through, 1, malloc::FREE)
            (cfree, through, 1, malloc::FREE)
            (free_sized, plain, 2, malloc::free_sized)
            (free_aligned_sized, plain, 3, malloc::free_aligned_sized)
            (posix_memalign, caller, 3, aligned::posix_memalign)
            (aligned_alloc, caller, 2, aligned::aligned_alloc)
            (memalign, caller, 2, aligned::memalign)
            (valloc, caller, 1, aligned::valloc)
            (pvalloc, caller, 1, aligned::pvalloc)
            (dallocx, before, 2, release::before_dallocx)
            (sdallocx, before, 3, release::before_sdallocx)
            (tc_free, before, 1, release::before_tc_free)
            (tc_free_sized, before, 2, release::before_tc_free_sized)
            (mi_free, before, 1, release::before_mi_free)
            (mi_free_size, before, 2, release::before_mi_free_size)
            (malloc_usable_size, plain, 1, malloc::malloc_usable_size)
            (mmap, stacked, 6, mapping::mmap)
            (mmap64, stacked, 6, mapping::mmap)
            (munmap, caller, 2, mapping::munmap)
            (mremap, stacked, 5, mapping::mremap)
            (mprotect, caller, 3, mapping::mprotect)
            (pkey_mprotect, stacked, 4, mapping::pkey_mprotect)
            (madvise, stacked, 3, mapping::madvise)
            (brk, stacked, 1, mapping::brk)
            (sbrk, stacked, 1, mapping::sbrk)
            (shmat, stacked, 3, mapping::shmat)
            (shmdt, stacked, 1, mapping::shmdt)
            (pthread_create, stacked, 4, thread::pthread_create)
            (sigaltstack, before, 2, signals::before_sigaltstack)
            (prctl, before, 5, seccomp::before_prctl)
            (syscall, numbered, 7, calls::before_any_call)
            (setrlimit, before, 2, limits::before_setrlimit)
            (setrlimit64, before, 2, limits::before_setrlimit64)
            (prlimit, before, 4, limits::before_prlimit)
            (prlimit64, before, 4, limits::before_prlimit64)
            (mlockall, plain, 1, locked::mlockall)
            (chroot, before, 1, rights::before_chroot)
            (setuid, before, 1, rights::before_setuid)
            (seteuid, before, 1, rights::before_seteuid)
            (setreuid, before, 2, rights::before_setreuid)
            (setresuid, before, 3, rights::before_setresuid)
            (setfsuid, before, 1, rights::before_setfsuid)
            (setns, before, 2, rights::before_setns)
            (execve, plain, 3, exec::execve)
            (execv, plain, 2, exec::execv)
            (execvp, plain, 2, exec::execvp)
            (execvpe, plain, 3, exec::execvpe)
            (fexecve, plain, 3, exec::fexecve)
            (execveat, plain, 5, exec::execveat)
            (execl, variadic, 2, exec::execl)
            (execlp, variadic, 2, exec::execlp)
            (execle, variadic, 3, exec::execle)
            (posix_spawn, plain, 6, exec::posix_spawn)
            (posix_spawnp, plain, 6, exec::posix_spawnp)
            (dlopen, around, 2, loader::before_dlopen)
            (dlmopen, before, 3, loader::before_dlmopen)
            (dlclose, before, 1, loader::before_dlclose)
            (dlsym, before, 2, loader::before_dlsym)
            (dlvsym, before, 3, loader::before_dlvsym)
        }
    };
}

/// The replaceable operators of C++, hooked only where the allocator in use brings its own that don't go through malloc
/// (jemalloc, tcmalloc, mimalloc). Elsewhere the entry jumps to the real operator, and the walk finds the caller above
/// it; or, for libstdc++'s usual forms over glibc, to malloc's or free's own path. Calls `$m! { (symbol, kind) … }`: `new`
/// (bytes first) or `delete` (pointer first).
#[macro_export]
macro_rules! hooked_operators {
    ($m:ident) => {
        $m! {
            (_Znwm, new) (_Znam, new)
            (_ZnwmRKSt9nothrow_t, new) (_ZnamRKSt9nothrow_t, new)
            (_ZnwmSt11align_val_t, new) (_ZnamSt11align_val_t, new)
            (_ZnwmSt11align_val_tRKSt9nothrow_t, new) (_ZnamSt11align_val_tRKSt9nothrow_t, new)
            (_ZdlPv, delete) (_ZdaPv, delete) (_ZdlPvm, delete) (_ZdaPvm, delete)
            (_ZdlPvRKSt9nothrow_t, delete) (_ZdaPvRKSt9nothrow_t, delete)
            (_ZdlPvSt11align_val_t, delete) (_ZdaPvSt11align_val_t, delete)
            (_ZdlPvmSt11align_val_t, delete) (_ZdaPvmSt11align_val_t, delete)
            (_ZdlPvSt11align_val_tRKSt9nothrow_t, delete) (_ZdaPvSt11align_val_tRKSt9nothrow_t, delete)
        }
    };
}
