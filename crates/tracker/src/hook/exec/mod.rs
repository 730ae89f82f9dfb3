//! execve, execv, execvp, execvpe, fexecve, execveat, execl, execlp, execle, posix_spawn, posix_spawnp. Without
//! `--follow` the tracker removes itself from the environment when a process starts, so the programs that the process
//! starts run untracked. But a program that takes the place of this one, under the same PID (a start script that ends in
//! `exec java`, env, nice), is tracked: it gets the tracker's variables. It doesn't get them if its file is static,
//! set-user-ID or unreadable, or if the library can't be read (after chroot, or as another user). The segment notes that
//! another program has replaced this one. A program that needs a sanitizer's runtime (ASan, HWASan, LSan, TSan) never
//! gets them: it ends if another library comes before that runtime. With `--follow` the variables stay in the
//! environment, also in that of programs that posix_spawn starts, and are left out only for such a program. The system
//! call by number isn't hooked.
//!
//! A child of fork() or vfork() has another PID, so its exec only passes through. An exec that the tracker's variables
//! make too large (E2BIG) is tried again without them.

mod environment;
mod executable;

use super::loader::real;
use crate::segment::Segment;
use crate::sys::clock;
use crate::sys::cpu::ARGUMENT_REGISTERS;
use crate::sys::errno;
use crate::sys::libc::{self, Call, calls};
use crate::sys::os::{self, Program};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::*;
use environment::Extended;
pub use environment::keep;
use executable::Loads;
use plimsoll_segment::{ENDED_BY_EXEC, ended_at};

/// A NULL-terminated array of C strings, as the program gave it. The kernel refuses what isn't readable.
type Strings = *const *const c_char;

/// execve(2).
///
/// # Safety
/// As execve(2): the arguments are the program's own. The same holds for the functions below.
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, given: Strings) -> c_int {
    real(Call::execve);
    // SAFETY: the caller's contract.
    replace(|| opened(path), given, |environment| unsafe { calls::execve(path, arguments, environment) })
}

/// execv(3).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { execve(path, arguments, libc::environment()) }
}

/// execvpe(3).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, given: Strings) -> c_int {
    real(Call::execvpe);
    // SAFETY: the caller's contract.
    replace(|| found(file), given, |environment| unsafe { calls::execvpe(file, arguments, environment) })
}

/// execvp(3).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { execvpe(file, arguments, libc::environment()) }
}

/// fexecve(3).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, given: Strings) -> c_int {
    real(Call::fexecve);
    // SAFETY: the caller's contract.
    replace(
        || executable::of_descriptor(fd),
        given,
        |environment| unsafe { calls::fexecve(fd, arguments, environment) },
    )
}

/// execveat(2).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    given: Strings,
    flags: c_int,
) -> c_int {
    if real(Call::execveat) == 0 {
        // glibc has the function from 2.34 on, musl doesn't: fail as a kernel without the call does.
        libc::set_errno(errno::ENOSYS);
        return -1;
    }
    let open = || match path_of(path)? {
        path if path.is_empty() => executable::of_descriptor(directory),
        path => Program::open(directory, path),
    };
    // SAFETY: the caller's contract.
    replace(open, given, |environment| unsafe { calls::execveat(directory, path, arguments, environment, flags) })
}

/// execl(3): the stub has stored the argument registers and knows where the other arguments are.
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn execl(registers: *const usize, stack: *const usize) -> c_int {
    // SAFETY: the stub's arguments; a caller of execl ends its list with NULL.
    unsafe { with_list(registers, stack, |path, list, _| execve(path, list, libc::environment())) }
}

/// execlp(3).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn execlp(registers: *const usize, stack: *const usize) -> c_int {
    // SAFETY: as above.
    unsafe { with_list(registers, stack, |file, list, _| execvpe(file, list, libc::environment())) }
}

/// execle(3): the environment comes behind the NULL.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn execle(registers: *const usize, stack: *const usize) -> c_int {
    // SAFETY: as above.
    unsafe { with_list(registers, stack, |path, list, given| execve(path, list, given as Strings)) }
}

/// posix_spawn(3). Its child has another PID, so only a sanitizer's program matters. The parent reads the file: a
/// relative path that follows a change of the directory (posix_spawn_file_actions_addchdir_np(3)) may be another one.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    given: Strings,
) -> c_int {
    real(Call::posix_spawn);
    let open = || opened(path);
    // SAFETY: the caller's contract.
    spawn(open, given, |environment| unsafe {
        calls::posix_spawn(pid, path, actions, attributes, arguments, environment)
    })
}

/// posix_spawnp(3).
///
/// # Safety
/// As above.
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    given: Strings,
) -> c_int {
    real(Call::posix_spawnp);
    let open = || found(file);
    // SAFETY: the caller's contract.
    spawn(open, given, |environment| unsafe {
        calls::posix_spawnp(pid, file, actions, attributes, arguments, environment)
    })
}

/// Makes an array of a variadic call's list, and calls `exec` with the first argument, that array, and the word behind
/// its NULL.
///
/// # Safety
/// `registers` has [`ARGUMENT_REGISTERS`] words, `stack` the others; a NULL ends the list.
unsafe fn with_list(
    registers: *const usize,
    stack: *const usize,
    exec: impl Fn(*const c_char, Strings, usize) -> c_int,
) -> c_int {
    const SHORT: usize = 64;
    // SAFETY: the caller's contract, up to the word behind the NULL, which is either an argument or a word of the
    // caller's frame.
    let word = |i: usize| unsafe {
        if i < ARGUMENT_REGISTERS { registers.add(i).read() } else { stack.add(i - ARGUMENT_REGISTERS).read() }
    };
    let mut n = 0;
    while word(1 + n) != 0 {
        n += 1;
    }
    let mut short = [0usize; SHORT];
    let long = if n < SHORT { None } else { os::map_private((n + 1) * 8, 4096) };
    let list = match long {
        Some(p) => p.cast::<usize>(),
        None if n < SHORT => short.as_mut_ptr(),
        None => {
            libc::set_errno(errno::ENOMEM);
            return -1;
        }
    };
    for i in 0..n {
        // SAFETY: n + 1 words, zeroed.
        unsafe { list.add(i).write(word(1 + i)) };
    }
    let result = exec(word(0) as *const c_char, list as Strings, word(2 + n));
    if let Some(p) = long {
        // SAFETY: mapped above; the exec failed, and nobody else knows of it.
        unsafe { os::unmap(p, (n + 1) * 8) };
    }
    result
}

/// Calls `exec`, which puts another program in this one's place. Returns only if that fails.
fn replace(open: impl FnOnce() -> Option<Program>, given: Strings, exec: impl Fn(Strings) -> c_int) -> c_int {
    let pid = os::getpid();
    let noted = note(pid);
    let (wants, stays) = (environment::is_kept_for(pid), environment::stays());
    let loads = if wants || stays { open().map_or(Loads::Nothing, executable::loads) } else { Loads::Nothing };
    let extended = if wants && loads == Loads::Tracker { Extended::new(given) } else { None };
    let result = match extended {
        None if stays => within(loads, given, &exec),
        None => exec(given),
        Some(extended) => {
            let result = exec(extended.strings());
            drop(extended);
            if libc::errno() == errno::E2BIG { exec(given) } else { result }
        }
    };
    if let Some(segment) = noted {
        segment.header().ended.store(0, Relaxed);
    }
    result
}

/// Calls `start`, which starts a program beside this one.
fn spawn(open: impl FnOnce() -> Option<Program>, given: Strings, start: impl Fn(Strings) -> c_int) -> c_int {
    match environment::stays() {
        true => within(open().map_or(Loads::Nothing, executable::loads), given, &start),
        false => start(given),
    }
}

/// Starts a program in whose environment the tracker stays, unless it loads a sanitizer's runtime.
fn within(loads: Loads, given: Strings, start: &dyn Fn(Strings) -> c_int) -> c_int {
    let always = loads == Loads::Sanitizer;
    match environment::without_tracker(given, always) {
        Some(change) => change.apply(start),
        None => start(given),
    }
}

/// Notes the exec in this process's segment, if it has one.
fn note(pid: u32) -> Option<Segment> {
    let segment = Segment::published().filter(|_| pid != 0 && super::fork::process_id() == Some(pid))?;
    let at = ended_at(segment.header().start_boottime_ns.load(Relaxed), clock::now_ns());
    segment.header().ended.store(ENDED_BY_EXEC | at, Relaxed);
    Some(segment)
}

fn path_of<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: readable at its start; a string of the program's.
    (!path.is_null() && os::readable(path as usize)).then(|| unsafe { CStr::from_ptr(path) })
}

fn opened(path: *const c_char) -> Option<Program> {
    Program::open(os::WORKING_DIRECTORY, path_of(path)?)
}

/// The file that execvp(3) finds: in the directories of PATH, if the name has no slash.
fn found(file: *const c_char) -> Option<Program> {
    let file = path_of(file)?;
    if file.to_bytes().contains(&b'/') {
        return Program::open(os::WORKING_DIRECTORY, file);
    }
    let list = environment::variable(b"PATH=").unwrap_or(b"/bin:/usr/bin");
    list.split(|b| *b == b':').find_map(|directory| executable::in_directory(directory, file.to_bytes()))
}
