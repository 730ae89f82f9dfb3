//! account/pending.rs: how a native image without headers leaves the slow path, and what becomes of the notes of
//! threads that are gone.

use crate::segment::counter;
use crate::{alone, books, fresh};
use plimsoll_segment::{Allocator, Counter};
use plimsoll_tracker::account::blocks::{self, Key};
use plimsoll_tracker::account::thread::{self, StackBounds, ThreadState};
use plimsoll_tracker::account::{classify, image, keys, pending, rows};
use plimsoll_tracker::segment::{Segment, slots};
use std::sync::atomic::Ordering::*;

fn attach(segment: Segment) -> &'static mut ThreadState {
    thread::attach(segment, Some(StackBounds { low: 4096, high: 8192, guard: 0, kind: 0 })).expect("a slot")
}

/// A block of glibc's that isn't in the books.
fn block() -> *mut u8 {
    Box::into_raw(Box::new([0u64; 8])).cast()
}

/// Runs in a native image of which no header was seen. A test that waits for ever fails by a signal.
fn in_image(test: impl FnOnce(Segment)) {
    alone(|| {
        blocks::init(Allocator::Glibc);
        assert!(image::change_headers(image::NONE, image::UNKNOWN));
        // SAFETY: no handler: the signal ends this process.
        unsafe { libc::alarm(300) };
        test(fresh());
    });
}

/// Sets the word as another thread finds it while `settle` reads the block.
fn claim(t: &ThreadState) {
    assert_eq!(t.shared().pending.fetch_or(1, AcqRel) & 1, 0);
}

fn noted(t: &ThreadState) -> usize {
    t.shared().pending.load(Acquire)
}

#[test]
fn a_claimed_block_keeps_the_slow_path_until_it_is_settled() {
    in_image(|segment| {
        let (claimer, noter, own) = (attach(segment), attach(segment), attach(segment));
        pending::note(claimer, block());
        claim(claimer);
        pending::note(noter, block());
        assert!(!pending::settle(books(segment), own), "no header is expected, but that isn't known yet");
        assert!(image::change_headers(image::UNKNOWN, image::ENDING));
        assert!(!pending::settle(books(segment), own));
        assert_ne!(noted(claimer), 0);
        claimer.shared().pending.store(0, Release);
        pending::note(own, block());
        assert_eq!(noted(own), 0, "no block is noted any more");
        assert!(pending::settle(books(segment), own));
        assert_eq!((noted(noter), image::headers()), (0, image::NONE));
        assert!(!pending::settle(books(segment), own), "true once");
        pending::note(own, block());
        assert_eq!(noted(own), 0);
    });
}

#[test]
fn a_header_while_ending_proves_nmt() {
    in_image(|segment| {
        let (claimer, own) = (attach(segment), attach(segment));
        pending::note(claimer, block());
        claim(claimer);
        assert!(image::change_headers(image::UNKNOWN, image::ENDING));
        assert!(!pending::settle(books(segment), own));
        // The claimer finds a header.
        assert!(image::change_headers(image::ENDING, image::WRITTEN));
        claimer.shared().pending.store(0, Release);
        assert!(!pending::settle(books(segment), own));
        let p = block();
        pending::note(own, p);
        assert_eq!((noted(own), image::headers()), (p as usize, image::WRITTEN));
        // SAFETY: a live block.
        unsafe { pending::forget(segment, p) };
        assert_eq!(noted(own), 0);
    });
}

/// A thread that frees a block looks at the word of the thread that made it, however many threads there are.
#[test]
fn a_block_is_forgotten_where_its_key_says() {
    in_image(|segment| {
        let (other, maker) = (attach(segment), attach(segment));
        let caller = classify::caller(segment, &[0x1000], 0, 1);
        for shared in [false, true] {
            let row = match shared {
                true => rows::shared_row(books(segment), caller),
                false => rows::row_for(books(segment), Some(&mut *maker), caller),
            };
            // The key lies in a trailer, and in the side table.
            for requested in [40, 70] {
                let p = block();
                // SAFETY: a live block of at least this many bytes.
                assert!(unsafe { keys::set_key(p, Key { row, requested, sampled: false }) }.is_some());
                pending::note(maker, p);
                // No thread notes another one's block: this only shows where `forget` looks.
                pending::note(other, if shared { block() } else { p });
                let before = noted(other);
                // SAFETY: a live block.
                unsafe { pending::forget(segment, p) };
                assert_eq!((noted(maker), noted(other)), (0, before), "shared: {shared}, {requested} bytes");
            }
        }
    });
}

/// The claimer has left its call by a jump, or its handler waits for this thread.
#[test]
fn no_thread_waits_for_ever_for_a_claimer() {
    in_image(|segment| {
        let (claimer, _own) = (attach(segment), attach(segment));
        let p = block();
        pending::note(claimer, p);
        claim(claimer);
        // SAFETY: a live block.
        unsafe { pending::forget(segment, p) };
        assert_eq!((noted(claimer), counter(segment, Counter::faults)), (0, 1));
    });
}

/// A block of a library's code that begins with its capacity and its length, as a header begins with size and category.
#[test]
fn only_blocks_of_the_image_itself_have_headers() {
    in_image(|segment| {
        let t = attach(segment);
        let caller = classify::caller(segment, &[0x1000], 0, 1);
        let row = rows::row_for(books(segment), Some(&mut *t), caller);
        let p = block();
        // SAFETY: a live block of 64 bytes, with space for a trailer.
        unsafe {
            p.cast::<u64>().write(64 - image::HEADER as u64);
            assert!(image::category(segment, p, 64).is_some(), "it looks like a header");
            assert!(keys::set_key(p, Key { row, requested: 64, sampled: false }).is_some());
        }
        pending::note(t, p);
        assert!(!pending::settle(books(segment), t));
        // SAFETY: as above.
        let key = unsafe { keys::take_key(p) }.expect("its key").0;
        assert_eq!((key.row, image::headers()), (row, image::UNKNOWN));
    });
}

/// The last block of a thread is noted when the thread ends, or claimed if the thread was cancelled meanwhile.
#[test]
fn a_thread_that_is_gone_holds_no_block() {
    in_image(|segment| {
        for is_claimed in [false, true] {
            let (own, ended) = (attach(segment), attach(segment));
            let p = block();
            pending::note(ended, p);
            if is_claimed {
                claim(ended);
            }
            let slot = ended.slot;
            thread::detach(segment, slot);
            assert_eq!(slots::state(slot).expect("a state").pending.load(Acquire), 0);
            let next = attach(segment);
            assert_eq!((next.slot, noted(next)), (slot, 0));
            pending::note(next, p);
            thread::detach(segment, slot);
            assert!(image::change_headers(image::UNKNOWN, image::ENDING));
            assert!(pending::settle(books(segment), own));
            assert!(image::change_headers(image::NONE, image::UNKNOWN));
        }
    });
}

/// The parent's threads had noted and claimed blocks at the fork: in the child nobody gives them back.
#[test]
fn a_fork_child_does_not_wait_for_its_parents_threads() {
    in_image(|segment| {
        let (claimer, noter, own) = (attach(segment), attach(segment), attach(segment));
        let [claimed, other, mine] = [(); 3].map(|()| block());
        pending::note(claimer, claimed);
        claim(claimer);
        pending::note(noter, other);
        pending::note(own, mine);
        slots::reset_after_fork(segment, own.slot);
        assert_eq!([noted(claimer), noted(noter), noted(own)], [0, 0, mine as usize]);
        assert!(image::change_headers(image::UNKNOWN, image::ENDING));
        assert!(pending::settle(books(segment), own));
    });
}

/// The enum of categories got new members at other places than the end.
#[test]
fn ordinals_have_names_only_in_versions_whose_list_is_known() {
    let names = |java: u32, vm: &str| image::names(java, image::release(format!("VM={vm}\0").as_bytes()));
    let of_25 = names(25, "GraalVM CE 25.0.2+10.1").expect("a list");
    assert_eq!((of_25.len(), of_25[15]), (17, "Unsafe"));
    for vm in ["Oracle GraalVM 25+37.1", "Mandrel-25.0.2.0-Final", "no number"] {
        assert_eq!(names(25, vm), Some(of_25), "{vm}");
    }
    let of_23 = names(23, "GraalVM CE 23.0.2+7.1").expect("a list");
    assert_eq!((of_23.len(), of_23[10]), (12, "Unsafe"));
    for (java, vm) in [(24, "GraalVM CE 24.0.2+11.1"), (25, "GraalVM CE 25.1.0+1.1"), (26, "GraalVM CE 26-dev+5.1")] {
        assert_eq!(names(java, vm), None, "{vm}");
    }
    assert_eq!(image::release(b"\x01"), None);
    assert_eq!(image::release(b"VM=99999999999999999999.7"), Some((9999, 7)));
}

/// The C code of an image's static libraries doesn't prove that its Java code writes no headers. The test uses
/// functions of a library that is a native image: a function with an unwind table, and one without, like Java code.
#[cfg(target_arch = "x86_64")]
#[test]
fn only_code_without_a_table_is_java_code_of_an_image() {
    use plimsoll_tracker::stack::{module, rule_table};

    const SOURCE: &str = "const int __svm_version_info = 1;
        int in_c(int n) { return n + 1; }
        __asm__(\".text\\n.globl in_java\\nin_java: nop\\nnop\\nret\");";
    alone(|| {
        let folder = std::env::temp_dir().join(format!("plimsoll-pending-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (source, library) = (folder.join("image.c"), folder.join("image.so"));
        std::fs::write(&source, SOURCE).expect("a file");
        let mut gcc = std::process::Command::new("gcc");
        let made = gcc.args(["-O1", "-shared", "-fPIC"]).arg(&source).arg("-o").arg(&library).status().expect("gcc");
        assert!(made.success());
        let path = std::ffi::CString::new(library.into_os_string().into_encoded_bytes()).expect("a path");
        // SAFETY: C strings; the library's initialisers do nothing.
        let at = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            [c"in_c", c"in_java"].map(|name| libc::dlsym(handle, name.as_ptr()) as u64)
        };
        std::fs::remove_dir_all(folder).expect("removed");
        assert!(!at.contains(&0));
        plimsoll_tracker::hook::resolve::resolve();
        let segment = fresh();
        plimsoll_tracker::rules::init(None);
        assert!(module::init());
        let libc_code = libc::getpid as *const () as u64;
        let is_java = |code: u64| {
            assert!(module::find(segment, code as usize).is_some());
            rule_table::in_java_of_image(segment, code + 1)
        };
        assert_eq!([at[0], at[1], libc_code].map(is_java), [false, true, false]);
        assert!(!rule_table::in_java_of_image(segment, 0) && module::in_image(segment, at[0] + 1));
    });
}
