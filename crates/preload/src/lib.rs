//! The thin shared object around the tracker: the exported entries, the constructor, the panic handler.
#![no_std]

mod memory;

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use plimsoll_tracker::sys::libc::{self, Exports};
use plimsoll_tracker::{
    agent, boot, entry_then_tail_jump, entry_with_caller, entry_with_caller_on_stack, hooked_calls,
};

/// The entries, in a module of their own: each is `#[no_mangle]` and carries libc's name.
pub mod entry {
    use super::*;
    use plimsoll_tracker as tracker;
    use plimsoll_tracker::hook::{calls, operator};
    macro_rules! entries {
        ($(($name:ident, $kind:ident, $n:tt, $($target:ident)::+))*) => {
            $(entries!(@ $name, $kind, $n, tracker::hook::$($target)::+);)*
        };
        (@ $name:ident, caller, $n:tt, $target:path) => { entry_with_caller!($name, $n, $target); };
        (@ $name:ident, straight, $n:tt, $target:path) => { plimsoll_tracker::entry_straight!($name, $target); };
        (@ $name:ident, stacked, $n:tt, $target:path) => { entry_with_caller_on_stack!($name, $target); };
        (@ $name:ident, before, $n:tt, $target:path) => { entry_then_tail_jump!($name, $target); };
        (@ $name:ident, numbered, $n:tt, $target:path) => {
            plimsoll_tracker::entry_numbered!(
                $name, $target, numbers: calls::NUMBERS, caught: calls::CAUGHT, booked: calls::BOOKED,
                book: calls::booked, others: calls::PASS_THROUGH);
        };
        (@ $name:ident, around, $n:tt, $target:path) => {
            plimsoll_tracker::entry_around!($name, $target, tracker::hook::loader::after_dlopen);
        };
        (@ $name:ident, through, $n:tt, $target:path) => { plimsoll_tracker::entry_through!($name, $target); };
        (@ $name:ident, variadic, $n:tt, $target:path) => { plimsoll_tracker::entry_variadic!($name, $target); };
        (@ $name:ident, plain, $n:tt, $target:path) => { plimsoll_tracker::entry_plain!($name, $target); };
    }
    hooked_calls!(entries);
    macro_rules! operators {
        ($(($name:ident, $kind:ident))*) => { operators!(@ 0, $(($name, $kind))*); };
        (@ $i:expr, ) => {};
        (@ $i:expr, ($name:ident, new) $($rest:tt)*) => {
            plimsoll_tracker::entry_operator_new!($name, $i, operator::real_operator, operator::after_new);
            operators!(@ $i + 1, $($rest)*);
        };
        (@ $i:expr, ($name:ident, delete) $($rest:tt)*) => {
            plimsoll_tracker::entry_operator_delete!($name, $i, operator::before_delete);
            operators!(@ $i + 1, $($rest)*);
        };
    }
    plimsoll_tracker::hooked_operators!(operators);
    plimsoll_tracker::entry_plain!(plimsoll_category, tracker::hook::c_api::category);
    plimsoll_tracker::entry_plain!(plimsoll_category_push, tracker::hook::c_api::category_push);
    plimsoll_tracker::entry_plain!(plimsoll_category_pop, tracker::hook::c_api::category_pop);
}

macro_rules! exports {
    ($(($name:ident, $kind:ident, $n:tt, $target:path))*) => {
        fn exports() -> &'static Exports {
            static TABLE: Exports = [const { AtomicUsize::new(0) }; libc::HOOKED];
            // Later calls keep the first value.
            for (to, entry) in TABLE.iter().zip([$(entry::$name as *const () as usize,)*]) {
                to.store(entry, Relaxed);
            }
            &TABLE
        }
    };
}
hooked_calls!(exports);

/// HotSpot calls this function each time that `plimsoll attach` makes it load the library (jvmti.h). The result is a
/// `plimsoll_segment::agent::Answer`.
///
/// # Safety
/// Called by the VM, with a C string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Agent_OnAttach(_vm: *mut c_void, options: *const c_char, _: *mut c_void) -> i32 {
    // SAFETY: the VM passes a C string or null, and the table is this library's.
    unsafe { agent::called(options, exports()) }
}

/// HotSpot calls this function at its start: `-agentpath:…/libplimsoll.so`.
///
/// # Safety
/// Called by the VM, with a C string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Agent_OnLoad(_vm: *mut c_void, options: *const c_char, _: *mut c_void) -> i32 {
    // The result is always 0: any other value would end the VM. A failed tracker leaves the VM untracked instead.
    // SAFETY: the VM passes a C string or null, and the table is this library's.
    unsafe { agent::called(options, exports()) };
    0
}

/// Called when the VM ends. The process may continue, and the tracker continues to count.
#[unsafe(no_mangle)]
pub extern "C" fn Agent_OnUnload(_vm: *mut c_void) {}

extern "C" fn constructor(argc: i32, argv: *const *const c_char, environment: *mut *const c_char) {
    // SAFETY: glibc's loader calls constructors with main's arguments, and each once (elf/dl-init.c). If another C
    // library is loaded, `start` reads none of them.
    unsafe { boot::start(argc, argv, environment, exports()) }
}

extern "C" fn destructor() {
    boot::finish();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(i32, *const *const c_char, *mut *const c_char) = constructor;
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

// `cargo clippy --all-targets` compiles this crate as a test, too, and the test harness brings std's handler.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Only bounds checks can panic here, and none is expected to. The thread cannot return: there is no unwinder
    // (no_std, no personality), and the frames up to the program's call hold registers that only they restore. A way
    // back at each entry would cost every call of every program. So the thread stops here and the process continues:
    // `faults` in the segment counts it, the books end at this moment, and the calls of all other threads pass through.
    // A lock of the tracker that this thread holds stays held: other threads wait for it for a bounded time only.
    boot::fault();
    loop {
        plimsoll_tracker::sys::os::pause();
    }
}
