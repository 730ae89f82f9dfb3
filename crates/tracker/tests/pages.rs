//! Pages of a file become safe to write, or the kernel's refusal is an error: with MADV_POPULATE_WRITE, and with the
//! call that replaces it before Linux 5.14.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use plimsoll_tracker::sys::os::{make_page_writable, populate};

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
