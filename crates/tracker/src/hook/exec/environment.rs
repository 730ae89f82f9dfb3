//! The tracker's variables, kept when the process began; an environment that has them again, and one without them.
//!
//! The tracker keeps a copy, because programs overwrite the memory of their first environment (setproctitle(3)).

use super::Strings;
use crate::phase::{self, Phase};
use crate::sys::{libc, os};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::rules::is_sanitizer;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: &[u8] = b"PLIMSOLL_";
/// Stays for a `plimsoll report` that the program starts.
const DIRECTORY: &[u8] = b"PLIMSOLL_DIR=";
/// `plimsoll run` sets six variables, three of them paths. If they don't fit, nothing is kept.
const CAPACITY: usize = 4096;

/// C strings, one after the other: `LD_PRELOAD=` and the library, then the options.
struct Kept {
    bytes: UnsafeCell<[u8; CAPACITY]>,
    used: AtomicUsize,
    /// The process that they are kept for.
    pid: AtomicU32,
    /// `--follow`: they stay in the environment, also in that of children.
    stays: AtomicBool,
}
// SAFETY: `keep` writes the bytes once, in the constructor; `pid` or `stays` publishes them, and from then on they are
// only read.
unsafe impl Sync for Kept {}
static KEPT: Kept = Kept {
    bytes: UnsafeCell::new([0; CAPACITY]),
    used: AtomicUsize::new(0),
    pid: AtomicU32::new(0),
    stays: AtomicBool::new(false),
};

/// Keeps the variables of this process for the program that takes its place. `library` is the tracker's own path;
/// `stays`: the variables stay in the environment.
///
/// # Safety
/// Called once, in the constructor; `environment` is a NULL-terminated array of C strings.
pub unsafe fn keep(environment: Strings, library: &[u8], stays: bool) {
    // SAFETY: no thread reads the bytes before `pid` or `stays` is stored.
    let bytes = unsafe { &mut *KEPT.bytes.get() };
    let mut used = 0;
    let mut push = |pieces: [&[u8]; 2]| {
        for piece in pieces.into_iter().chain([&b"\0"[..]]) {
            let Some(room) = bytes.get_mut(used..used + piece.len()) else { return false };
            room.copy_from_slice(piece);
            used += piece.len();
        }
        true
    };
    let mut fits = !library.is_empty() && push([PRELOAD, library]);
    let mut at = environment;
    // SAFETY: the caller's contract.
    while let Some(entry) = unsafe { at.read().as_ref() } {
        // SAFETY: as above.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if entry.starts_with(OURS) && !stays {
            fits = fits && push([entry, b""]);
        }
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
    if fits {
        KEPT.used.store(used, Relaxed);
        match stays {
            true => KEPT.stays.store(true, Release),
            false => KEPT.pid.store(os::getpid(), Release),
        }
    }
}

/// Whether the variables stay in the environment, so that each program that is started loads the tracker.
pub(super) fn stays() -> bool {
    KEPT.stays.load(Acquire)
}

/// Whether there is something for a program that takes the place of the process `pid`.
pub(super) fn is_kept_for(pid: u32) -> bool {
    pid != 0 && KEPT.pid.load(Acquire) == pid && phase::is(Phase::On)
}

fn kept() -> &'static [u8] {
    // SAFETY: written before `is_kept_for` or `stays` returns true, and never again.
    unsafe { &(&*KEPT.bytes.get())[..KEPT.used.load(Relaxed)] }
}

/// The value of a variable of the process; `name` ends with `=`.
pub(super) fn variable(name: &[u8]) -> Option<&'static [u8]> {
    let mut at = libc::environment();
    // SAFETY: libc's array. A program must not change it meanwhile, since execvp(3) reads it too.
    unsafe {
        while !at.is_null() && !at.read().is_null() {
            if let Some(value) = CStr::from_ptr(at.read()).to_bytes().strip_prefix(name) {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// An environment in memory of its own: the program's strings, and ours.
pub(super) struct Extended {
    base: *mut u8,
    bytes: usize,
}

impl Extended {
    /// `None` if the strings can't be read, if no memory is left, or if the next program couldn't read the library.
    /// Also `None` if the program's own LD_PRELOAD has the tracker already, or the runtime of a sanitizer, which must
    /// come first.
    pub(super) fn new(given: Strings) -> Option<Extended> {
        let preload = kept().split(|b| *b == 0).next()?;
        let library = preload.strip_prefix(PRELOAD)?;
        // `preload` is followed by its NUL.
        let path = CStr::from_bytes_until_nul(&kept()[PRELOAD.len()..]).ok()?;
        if !os::is_readable_after_exec(path) {
            return None;
        }
        let (mut count, mut listed) = (0, None);
        while let Some(string) = string_at(given, count)? {
            if begins_with(string, PRELOAD)? {
                // ld.so uses the last one.
                listed = Some((count, text(string)?));
            }
            count += 1;
        }
        let others = listed.map_or(&b""[..], |(_, entry)| &entry[PRELOAD.len()..]);
        if names(others).any(|other| other == library || is_sanitizer(other)) {
            return None;
        }
        let options = kept()[preload.len() + 1..].split_inclusive(|b| *b == 0);
        let words = (count + options.clone().count() + 2) * size_of::<usize>();
        let bytes = words + preload.len() + others.len() + 2;
        let extended = Extended { base: os::map_private(bytes, bytes.min(4096))?, bytes };
        let (array, list) = (extended.base.cast::<*const c_char>(), words);
        // SAFETY: the mapping has space for that many words and, behind them, for both lists, a colon and a NUL; it is
        // zeroed.
        unsafe {
            let mut to = extended.base.add(list);
            let separator: &[u8] = if others.is_empty() { b"" } else { b":" };
            for piece in [preload, separator, others] {
                piece.as_ptr().copy_to_nonoverlapping(to, piece.len());
                to = to.add(piece.len());
            }
            let mut n = 0;
            for i in 0..count {
                let is_list = listed.is_some_and(|(at, _)| at == i);
                array.add(n).write(if is_list { extended.base.add(list).cast() } else { given.add(i).read() });
                n += 1;
            }
            if listed.is_none() {
                array.add(n).write(extended.base.add(list).cast());
                n += 1;
            }
            for option in options {
                let name = option.split_inclusive(|b| *b == b'=').next().unwrap_or(option);
                // An option that the program sets itself stays as it is.
                let is_set = (0..count).any(|i| begins_with(given.add(i).read(), name) == Some(true));
                if !is_set {
                    array.add(n).write(option.as_ptr().cast());
                    n += 1;
                }
            }
        }
        Some(extended)
    }

    /// The array.
    pub(super) fn strings(&self) -> Strings {
        self.base as Strings
    }
}

impl Drop for Extended {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the exec that used it has failed.
        unsafe { os::unmap(self.base, self.bytes) };
    }
}

/// How the strings are changed for a program that doesn't get the tracker.
pub(super) struct Change<'a> {
    given: Strings,
    /// The number of strings.
    count: usize,
    /// The last LD_PRELOAD, which is the one that ld.so uses: its number, and its text.
    at: usize,
    entry: &'a [u8],
    library: &'static [u8],
}

/// The change for a program without the tracker: its library isn't in LD_PRELOAD, and only PLIMSOLL_DIR is left of its
/// options. `always`: not only if LD_PRELOAD names the runtime of a sanitizer, too. `None`: LD_PRELOAD doesn't name the
/// tracker, or the strings can't be read.
pub(super) fn without_tracker<'a>(given: Strings, always: bool) -> Option<Change<'a>> {
    let library = kept().split(|b| *b == 0).next()?.strip_prefix(PRELOAD)?;
    let (mut count, mut listed) = (0, None);
    while let Some(string) = string_at(given, count)? {
        if begins_with(string, PRELOAD)? {
            listed = Some((count, text(string)?));
        }
        count += 1;
    }
    let (at, entry) = listed?;
    let list = &entry[PRELOAD.len()..];
    if !names(list).any(|name| name == library) || !(always || names(list).any(is_sanitizer)) {
        return None;
    }
    Some(Change { given, count, at, entry, library })
}

impl Change<'_> {
    /// Calls `start` with the changed strings.
    ///
    /// A child of vfork() shares the memory of its parent and never returns from an exec, so the array is on the stack.
    /// The stack may be a signal handler's of 8 KiB, so the array has a frame of its own, and the smallest that fits.
    /// Only a long environment is mapped, and stays mapped in such a parent.
    pub(super) fn apply(&self, start: &dyn Fn(Strings) -> c_int) -> c_int {
        let words = self.count + 1 + (self.entry.len() + 1).div_ceil(size_of::<usize>());
        match words {
            0..=128 => self.on_stack::<128>(start),
            129..=1024 => self.on_stack::<1024>(start),
            _ => self.mapped(words * size_of::<usize>(), start),
        }
    }

    #[inline(never)]
    fn on_stack<const WORDS: usize>(&self, start: &dyn Fn(Strings) -> c_int) -> c_int {
        let mut words = [0usize; WORDS];
        // SAFETY: `apply` has counted the words.
        start(unsafe { self.write(words.as_mut_ptr().cast()) })
    }

    #[inline(never)]
    fn mapped(&self, bytes: usize, start: &dyn Fn(Strings) -> c_int) -> c_int {
        // Without memory, an exec with the program's own strings is the best that can be done.
        let Some(base) = os::map_private(bytes, bytes.min(4096)) else { return start(self.given) };
        // SAFETY: as above.
        let result = start(unsafe { self.write(base.cast()) });
        // SAFETY: mapped above, and not used any more.
        unsafe { os::unmap(base, bytes) };
        result
    }

    /// Writes the strings, a NULL, and the new list, which isn't longer than the given one.
    ///
    /// # Safety
    /// The array is zeroed, and has `count` + 1 words and, behind them, space for `entry` and a NUL.
    unsafe fn write(&self, array: *mut *const c_char) -> Strings {
        let list = &self.entry[PRELOAD.len()..];
        // SAFETY: the caller's contract.
        unsafe {
            let preload = array.add(self.count + 1).cast::<u8>();
            let mut to = preload;
            let mut push = |piece: &[u8]| {
                piece.as_ptr().copy_to_nonoverlapping(to, piece.len());
                to = to.add(piece.len());
            };
            push(PRELOAD);
            let mut others = names(list).filter(|name| !name.is_empty() && *name != self.library).peekable();
            let is_empty = others.peek().is_none();
            while let Some(other) = others.next() {
                push(other);
                push(if others.peek().is_some() { b":" } else { b"" });
            }
            let mut n = 0;
            for i in 0..self.count {
                let string = self.given.add(i).read();
                let is_option = begins_with(string, OURS) == Some(true) && begins_with(string, DIRECTORY) != Some(true);
                if is_option || (i == self.at && is_empty) {
                    continue;
                }
                array.add(n).write(if i == self.at { preload.cast() } else { string });
                n += 1;
            }
        }
        array.cast_const()
    }
}

/// The libraries in a value of LD_PRELOAD.
fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| matches!(b, b':' | b' '))
}

/// The string with this number. `Some(None)`: the array ends here. `None`: it can't be read.
fn string_at(array: Strings, i: usize) -> Option<Option<*const c_char>> {
    if array.is_null() {
        return Some(None);
    }
    let at = array.wrapping_add(i);
    // SAFETY: eight bytes are readable.
    os::readable(at as usize).then(|| unsafe { at.read_unaligned() }).map(|p| (!p.is_null()).then_some(p))
}

/// Whether a string begins with these bytes. `None`: it can't be read.
fn begins_with(string: *const c_char, with: &[u8]) -> Option<bool> {
    for (i, byte) in with.iter().enumerate() {
        let at = string.wrapping_add(i);
        if i % 8 == 0 && !os::readable(at as usize) {
            return None;
        }
        // SAFETY: eight bytes are readable from each eighth on.
        if unsafe { at.cast::<u8>().read() } != *byte {
            return Some(false);
        }
    }
    Some(true)
}

/// All of a string, without its NUL.
fn text<'a>(string: *const c_char) -> Option<&'a [u8]> {
    let mut n = 0;
    loop {
        let at = string.wrapping_add(n).cast::<u8>();
        if n % 8 == 0 && !os::readable(at as usize) {
            return None;
        }
        // SAFETY: as above; the slice is what was read byte by byte.
        unsafe {
            if at.read() == 0 {
                return Some(core::slice::from_raw_parts(string.cast::<u8>(), n));
            }
        }
        n += 1;
    }
}
