//! Pages of a file become safe to write, or the kernel's refusal is an error: with MADV_POPULATE_WRITE, and with the
//! call that replaces it before Linux 5.14. Clean pages of a file are given back, unless a debugger may have changed
//! them.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use plimsoll_tracker::sys::os::{give_back, is_traced, make_page_writable, populate};

const PAGE: usize = 4096;

fn touch_all(p: usize, bytes: usize) -> bool {
    (p..p + bytes).step_by(PAGE).all(make_page_writable)
}

/// Maps four pages of a file that has three: one with content, then two that are a hole.
#[test]
fn a_hole_gets_blocks_and_what_lies_behind_the_end_is_refused() {
    for (number, allocate) in [populate, touch_all].into_iter().enumerate() {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pages-{}-{number}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("own folder");
        std::fs::remove_file(&path).expect("ours");
        file.write_all_at(&[7; PAGE], 0).expect("a page");
        file.set_len(3 * PAGE as u64).expect("a hole");
        // SAFETY: a new mapping of our own file.
        let mapped = |protection| unsafe {
            libc::mmap(std::ptr::null_mut(), 4 * PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) as usize
        };
        let at = mapped(libc::PROT_READ | libc::PROT_WRITE);
        let blocks = || file.metadata().expect("open").blocks();
        let before = blocks();
        assert!(allocate(at, PAGE) && blocks() == before, "a page that exists needs no block");
        assert!(allocate(at, 2 * PAGE));
        file.sync_all().expect("written");
        assert!(blocks() > before, "the hole got no blocks");
        assert!(!allocate(at, 4 * PAGE), "there is no page behind the end");
        let mut content = [0; 3 * PAGE];
        file.read_exact_at(&mut content, 0).expect("three pages");
        assert!(content[..PAGE].iter().all(|byte| *byte == 7) && content[PAGE..].iter().all(|byte| *byte == 0));
        assert!(!allocate(mapped(libc::PROT_READ), PAGE), "a page that is only readable can't be written");
    }
}

/// Resident bytes of the mapping that begins at this address.
fn resident(at: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{at:x}-")));
    let kib = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the mapping").trim().trim_end_matches(" kB");
    kib.parse::<usize>().expect("a number") << 10
}

/// Only whole pages, and their contents come back.
#[test]
fn clean_pages_of_a_file_are_given_back_and_read_again() {
    const BYTES: usize = 16 * PAGE;
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pages-{}-clean", std::process::id()));
    let content: Vec<u8> = (0..BYTES).map(|i| (i / PAGE + i) as u8).collect();
    std::fs::write(&path, &content).expect("own folder");
    let file = File::open(&path).expect("just written");
    std::fs::remove_file(&path).expect("ours");
    // SAFETY: a new mapping of our own file, never unmapped.
    let mapped = unsafe {
        let p = libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        assert_ne!(p, libc::MAP_FAILED);
        std::slice::from_raw_parts(p.cast::<u8>(), BYTES)
    };
    let at = mapped.as_ptr() as usize;
    assert!(mapped == content);
    assert_eq!(resident(at), BYTES);
    // SAFETY: a private mapping of a file, which nobody writes.
    unsafe { give_back(at + 1..at + BYTES - 1) };
    assert_eq!(resident(at), 2 * PAGE);
    assert!(mapped == content);
}

#[test]
fn a_debugger_is_noticed() {
    // SAFETY: the child makes a few system calls and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = is_traced();
        // SAFETY: this test traces the child, which no signal stops; then the child ends.
        unsafe {
            let is_refused = libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0;
            libc::_exit(i32::from(before) | i32::from(is_refused) << 1 | i32::from(is_traced()) << 2);
        }
    }
    let mut status = 0;
    // SAFETY: our own child; writes the local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    match libc::WEXITSTATUS(status) {
        refused if refused & 2 != 0 => println!("a_debugger_is_noticed: skipped, ptrace is refused here"),
        found => assert_eq!(found, 1 << 2, "first not traced, then traced"),
    }
}
