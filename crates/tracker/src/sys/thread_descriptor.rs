//! Finds the calling thread's stack in glibc's descriptor of the thread (`struct pthread`, nptl/descr.h).
//!
//! ```text
//! +0    control block, list of threads, the thread's number, robust mutexes: not searched
//! +800  searched: specific (32 pointers), a byte each for specific_used, report_events and user_stack
//!       …         stackblock, stackblock_size, guardsize: three words in a row
//! ```
//! Offsets behind the control block differ between versions, so these words are known by their values.
//!
//! `crates/cli/src/attach/native/own_stack.rs` is the second reader of the descriptor at a known address: the program
//! can't import the tracker.

use super::{cpu, libc, os};

/// What a thread of glibc has as its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackBlock {
    /// Low end, of the guard if there is one.
    pub start: usize,
    /// One past the last address; the thread's descriptor and its variables lie below.
    pub end: usize,
    /// Bytes of the guard.
    pub guard: usize,
    /// The program has provided it (pthread_attr_setstack(3)).
    pub is_programs: bool,
}

/// Bytes of a thread's descriptor (`struct pthread`, nptl/descr.h) that are searched.
const DESCRIPTOR: usize = 2304;
/// The first word that is searched. In front lie the control block (704 bytes), the list of threads, the thread's number
/// and its robust mutexes: addresses close to the descriptor, which could pass for lengths and ends.
const SEARCHED_FROM: usize = 100;

/// The calling thread's stack as its descriptor has it, to which the thread pointer points on x86-64. `None`: the
/// process's first thread, another C library or another CPU.
pub fn stack_of_glibc() -> Option<StackBlock> {
    if !cfg!(target_arch = "x86_64") || !libc::is_glibc() {
        return None;
    }
    let at = cpu::thread_pointer();
    // An older glibc's descriptor may be shorter, and end with its page.
    let is_whole = os::readable(at + DESCRIPTOR - 8);
    let bytes = if is_whole { DESCRIPTOR } else { at.next_multiple_of(4096) - at };
    // SAFETY: the calling thread's descriptor, of which only the last page wasn't known to be there.
    let word = |i: usize| unsafe { (at as *const usize).add(i).read_volatile() };
    // In place: the stack may be small.
    stack_block(word, at, bytes / 8)
}

/// The stack, by the words of the descriptor at `at`.
fn stack_block(word: impl Fn(usize) -> usize, at: usize, words: usize) -> Option<StackBlock> {
    const LEAST: usize = 16 << 10;
    const ABOVE: usize = 64 << 10;
    /// `specific_1stblock`: 32 keys of two words. `specific` follows: 32 pointers, whose first is that block's address.
    const KEYS: usize = 32 * 16;
    let is_specific = |i: &usize| word(*i) == (at + i * 8).wrapping_sub(KEYS);
    // specific_used, report_events, user_stack: a byte each.
    let specific = (SEARCHED_FROM..words.saturating_sub(32)).find(is_specific);
    let is_users = specific.is_some_and(|i| word(i + 32) >> 16 & 0xff != 0);
    (SEARCHED_FROM..words.saturating_sub(2)).find_map(|i| {
        let (start, length, guard) = (word(i), word(i + 1), word(i + 2));
        let end = start.checked_add(length)?;
        let is_stack = start != 0 && start < at && length >= LEAST && at < end && end - at <= ABOVE;
        let is_programs = is_users || !start.is_multiple_of(4096) || !length.is_multiple_of(4096);
        is_stack.then_some(StackBlock { start, end, guard: if guard < length { guard } else { 0 }, is_programs })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_known_by_the_fields_of_its_threads_descriptor() {
        const AT: usize = 0x7f00_0080_0640;
        let block = |words: [usize; 3], flags: usize| {
            let mut descriptor = [0; DESCRIPTOR / 8];
            // The thread before it in the list, its number, robust_prev and robust_head.
            descriptor[88..93].copy_from_slice(&[AT - 0x10_0000, AT - 0x10_0000, 0x10_0400, AT + 736, AT + 736]);
            // As glibc 2.36 has them.
            (descriptor[162], descriptor[194]) = (AT + 162 * 8 - 512, flags);
            descriptor[210..213].copy_from_slice(&words);
            let found = stack_block(|i| descriptor[i], AT, descriptor.len());
            found.map(|b| (b.start, b.end, b.guard, b.is_programs))
        };
        let (start, length) = (0x7f00_0000_0000, 0x80_1000);
        assert_eq!(block([start, length, 4096], 1), Some((start, start + length, 4096, false)));
        // pthread_attr_setguardsize(0); pthread_attr_setstack.
        assert_eq!(block([start, length, 0], 0), Some((start, start + length, 0, false)));
        assert_eq!(block([start, length, 0], 1 << 16), Some((start, start + length, 0, true)));
        assert_eq!(block([start + 64, length, 0], 0), Some((start + 64, start + 64 + length, 0, true)));
        // The first thread's; two addresses; an address and a flag.
        assert_eq!(block([0, 0x7ffc_0000_0000, 0], 0), None);
        assert_eq!(block([start, AT, 0], 0), None);
        assert_eq!(block([AT - 4, 8, 0], 0), None);
    }

    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    #[test]
    fn the_own_stack_is_what_libc_reports() {
        // A test may run in the first thread.
        std::thread::spawn(compare_with_libc).join().expect("equal");
    }

    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    fn compare_with_libc() {
        // SAFETY: pthread_getattr_np(3), pthread_attr_getstack(3), pthread_attr_destroy(3) on locals.
        let (low, bytes) = unsafe {
            let mut attributes = core::mem::zeroed::<::libc::pthread_attr_t>();
            let (mut low, mut bytes) = (core::ptr::null_mut(), 0);
            assert_eq!(::libc::pthread_getattr_np(::libc::pthread_self(), &mut attributes), 0);
            assert_eq!(::libc::pthread_attr_getstack(&attributes, &mut low, &mut bytes), 0);
            ::libc::pthread_attr_destroy(&mut attributes);
            (low as usize, bytes)
        };
        let block = stack_of_glibc().expect("a stack");
        assert!(block.guard > 0 && !block.is_programs, "{block:?}");
        assert_eq!((block.start + block.guard, block.end), (low, low + bytes));
    }

    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    #[test]
    fn a_stack_of_the_programs_is_known_as_such() {
        extern "C" fn body(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
            let block = stack_of_glibc();
            Box::into_raw(Box::new(block)).cast()
        }
        const BYTES: usize = 256 << 10;
        // SAFETY: the stack is mapped for this thread, which is joined; its result is the box that it has made.
        let (stack, block) = unsafe {
            let flags = ::libc::MAP_PRIVATE | ::libc::MAP_ANONYMOUS;
            let access = ::libc::PROT_READ | ::libc::PROT_WRITE;
            let stack = ::libc::mmap(core::ptr::null_mut(), BYTES, access, flags, -1, 0);
            assert_ne!(stack, ::libc::MAP_FAILED);
            let mut attributes = core::mem::zeroed::<::libc::pthread_attr_t>();
            assert_eq!(::libc::pthread_attr_init(&mut attributes), 0);
            assert_eq!(::libc::pthread_attr_setstack(&mut attributes, stack, BYTES), 0);
            let (mut thread, mut result) = (0, core::ptr::null_mut());
            assert_eq!(::libc::pthread_create(&mut thread, &attributes, body, core::ptr::null_mut()), 0);
            assert_eq!(::libc::pthread_join(thread, &mut result), 0);
            (stack as usize, *Box::from_raw(result.cast::<Option<StackBlock>>()))
        };
        let expected = StackBlock { start: stack, end: stack + BYTES, guard: 0, is_programs: true };
        assert_eq!(block, Some(expected));
    }
}
