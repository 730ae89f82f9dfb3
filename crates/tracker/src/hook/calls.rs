//! syscall(2), for a few numbers. Calls for memory by number are booked like libc's functions (tcmalloc, abseil and
//! sandboxes make such calls). Calls for seccomp, limits, roots and users are handled like libc's functions. Any other
//! number costs five instructions. `SYS_brk`, `SYS_shmat` and `SYS_shmdt` by number aren't booked.

use super::loader::{Next, real};
use super::resolve::resolve;
use super::{limits, locked, mapping, real_mmap, rights, seccomp};
use crate::phase::resolved;
use crate::stack::read::return_address;
use crate::sys::cpu::nr;
use crate::sys::libc::{Call, calls};
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The entry looks up numbers below this one.
pub const NUMBERS: usize = 448;
const MEMORY: [usize; 7] =
    [nr::MMAP, nr::MUNMAP, nr::MREMAP, nr::MPROTECT, nr::PKEY_MPROTECT, nr::MADVISE, nr::MLOCKALL];
const HANDLED: [usize; 4] = [nr::SECCOMP, nr::PRCTL, nr::SETRLIMIT, nr::PRLIMIT64];
/// After these a fork child may be unable to make its segment. Landlock has no function in libc.
const RIGHTS: [usize; 8] = [
    nr::CHROOT,
    nr::PIVOT_ROOT,
    nr::SETUID,
    nr::SETREUID,
    nr::SETRESUID,
    nr::SETFSUID,
    nr::SETNS,
    nr::LANDLOCK_RESTRICT_SELF,
];

const fn bits<const N: usize>(mut all: [u64; NUMBERS / 64], numbers: [usize; N]) -> [u64; NUMBERS / 64] {
    let mut i = 0;
    while i < N {
        all[numbers[i] / 64] |= 1 << (numbers[i] % 64);
        i += 1;
    }
    all
}

/// A bit for each number of [`booked`].
pub static BOOKED: [u64; NUMBERS / 64] = bits([0; NUMBERS / 64], MEMORY);
/// A bit for each number that isn't passed on at once.
pub static CAUGHT: [u64; NUMBERS / 64] = bits(bits(BOOKED, HANDLED), RIGHTS);

/// The target of the entry for a number without a bit in [`CAUGHT`]: at first a stub that finds the real function, from
/// then on that function.
pub static PASS_THROUGH: AtomicPtr<()> = AtomicPtr::new(first_syscall as *mut ());

crate::first_syscall!(first_syscall, before_first_call);

/// The first syscall(2) with a number without a bit in `CAUGHT`.
extern "C" fn before_first_call() -> Next {
    let real = real(Call::syscall);
    if real != 0 {
        PASS_THROUGH.store(real as *mut (), Relaxed);
    }
    Next::jump(real)
}

/// syscall(2) with a number in `HANDLED` or `RIGHTS`.
pub extern "C" fn before_any_call(number: i32, a: usize, b: usize, _ra: usize, c: usize) -> Next {
    match number as usize {
        nr::SECCOMP => seccomp::before_seccomp(a as u32, b as u32, c),
        nr::PRCTL => {
            seccomp::before_prctl(a as i32, b, c);
        }
        nr::SETRLIMIT => {
            limits::before_setrlimit(a as u32, b);
        }
        nr::PRLIMIT64 => {
            limits::before_prlimit64(a as i32, b as u32, c);
        }
        number if RIGHTS.contains(&number) => rights::will_change(),
        _ => {}
    }
    Next::jump(real(Call::syscall))
}

/// syscall(2) with a number in `MEMORY`.
///
/// # Safety
/// Called by the entry stub: the program's arguments, the stack pointer at its entry, the caller's frame pointer.
pub unsafe extern "C" fn booked(number: usize, arguments: &[usize; 6], sp: usize, fp: usize) -> usize {
    if !resolved() {
        resolve();
    }
    let [a, b, c, d, e, f] = *arguments;
    // SAFETY: the program's own call, unchanged.
    let real = move || unsafe { calls::by_number(number, [a, b, c, d, e, f]) };
    let answer = move || real() as c_int;
    // SAFETY: the return address lies at the stack pointer.
    let from = unsafe { return_address(sp) } as usize;
    // The mmap of gperftools makes this call: the mmap hook has booked it.
    if real_mmap::is_of_real_mmap(from) {
        return real();
    }
    // SAFETY: the caller's contract.
    let done = unsafe {
        match number as u32 as usize {
            nr::MMAP => return mapping::mapped(a, b, c as c_int, d as c_int, f as i64, sp, fp, real),
            nr::MREMAP => return mapping::remapped(a, b, c, d as c_int, e, sp, real),
            nr::MUNMAP => mapping::unmapped(a, b, sp, answer),
            nr::PKEY_MPROTECT => {
                mapping::keyed(d as c_int);
                mapping::protected(a, b, c as c_int, sp, fp, answer)
            }
            nr::MPROTECT => mapping::protected(a, b, c as c_int, sp, fp, answer),
            nr::MADVISE => mapping::advised(a, b, c as c_int, answer),
            nr::MLOCKALL => locked::locked(a as c_int, answer),
            _ => return real(),
        }
    };
    done as isize as usize
}
