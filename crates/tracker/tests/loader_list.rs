//! segment_file: the search for a VM in the loader's list, while another thread changes the list.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use plimsoll_tracker::account::segment_file;
use plimsoll_tracker::sys::libc;

/// Limit for a fact on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

struct Holder {
    /// The address of a node's name.
    name: usize,
    held: Sender<()>,
    release: Receiver<()>,
}

/// A callback of dl_iterate_phdr(3), so it holds the loader's lock, as a thread does that unloads an object. Meanwhile
/// the name of a node leads nowhere, as that of a freed node may.
unsafe extern "C" fn hold(_: *mut ::libc::dl_phdr_info, _: usize, holder: *mut c_void) -> c_int {
    // SAFETY: the caller's holder, which lives until this call has ended, and the node of an object that stays loaded.
    unsafe {
        let holder = &*(holder as *const Holder);
        let name = holder.name as *mut usize;
        let kept = name.read_volatile();
        name.write_volatile(8);
        let _ = holder.held.send(());
        let _ = holder.release.recv();
        name.write_volatile(kept);
    }
    1
}

#[test]
fn a_late_search_for_a_vm_waits_for_the_loaders_lock() {
    static SEARCHER: AtomicI32 = AtomicI32::new(0);
    libc::resolve();
    // SAFETY: a C string; a library of glibc's that nothing else loads here.
    let library = unsafe { ::libc::dlopen(c"libresolv.so.2".as_ptr(), ::libc::RTLD_NOW) };
    assert!(!library.is_null());
    let (held, is_held) = channel();
    let (release, released) = channel();
    // A handle is the loader's node (struct link_map, link.h): the name is its second word.
    let holder = Holder { name: library as usize + 8, held, release: released };
    let holds = std::thread::spawn(move || {
        // SAFETY: a callback of this type, and its argument.
        unsafe { ::libc::dl_iterate_phdr(Some(hold), (&raw const holder).cast_mut().cast()) }
    });
    is_held.recv().expect("the lock is held");
    let searches = std::thread::spawn(|| {
        // SAFETY: the call takes no arguments.
        SEARCHER.store(unsafe { ::libc::gettid() }, SeqCst);
        segment_file::has_hotspot(true)
    });
    let waits = || {
        let call = std::fs::read_to_string(format!("/proc/self/task/{}/syscall", SEARCHER.load(SeqCst)));
        call.is_ok_and(|call| call.starts_with(&format!("{} ", ::libc::SYS_futex)))
    };
    let began = Instant::now();
    while !waits() {
        assert!(!searches.is_finished(), "it has read a list that another thread changes");
        assert!(began.elapsed() < LIMIT, "it neither waits nor ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    release.send(()).expect("the lock is held");
    assert_eq!((holds.join().expect("no panic"), searches.join().expect("no panic")), (1, false));
}
