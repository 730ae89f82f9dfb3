//! The thin shared object around the tracker: the exported entries, the constructor, the panic handler.
#![no_std]

use core::ffi::c_char;
use plimsoll_tracker::{boot, entry_then_tail_jump, entry_with_caller, entry_with_caller_on_stack, hooked_calls};

/// The entries, in a module of their own: each is `#[no_mangle]` and carries libc's name.
pub mod entry {
    use super::*;
    use plimsoll_tracker as tracker;
    macro_rules! entries {
        ($(($name:ident, $kind:ident, $n:tt, $crate_:ident::$($target:ident)::+))*) => {
            $(entries!(@ $name, $kind, $n, tracker::$($target)::+);)*
        };
        (@ $name:ident, caller, $n:tt, $target:path) => { entry_with_caller!($name, $n, $target); };
        (@ $name:ident, stacked, $n:tt, $target:path) => { entry_with_caller_on_stack!($name, $target); };
        (@ $name:ident, before, $n:tt, $target:path) => { entry_then_tail_jump!($name, $target); };
        (@ $name:ident, through, $n:tt, $target:path) => { plimsoll_tracker::entry_through!($name, $target); };
        (@ $name:ident, plain, $n:tt, $target:path) => { plimsoll_tracker::entry_plain!($name, $target); };
    }
    hooked_calls!(entries);
    macro_rules! operators {
        ($(($name:ident, $kind:ident))*) => { operators!(@ 0, $(($name, $kind))*); };
        (@ $i:expr, ) => {};
        (@ $i:expr, ($name:ident, makes) $($rest:tt)*) => {
            plimsoll_tracker::entry_makes!($name, $i);
            operators!(@ $i + 1, $($rest)*);
        };
        (@ $i:expr, ($name:ident, ends) $($rest:tt)*) => {
            plimsoll_tracker::entry_ends!($name, $i);
            operators!(@ $i + 1, $($rest)*);
        };
    }
    plimsoll_tracker::hooked_operators!(operators);
    plimsoll_tracker::entry_plain!(plimsoll_category, tracker::hook::program::category);
    plimsoll_tracker::entry_plain!(plimsoll_category_push, tracker::hook::program::category_push);
    plimsoll_tracker::entry_plain!(plimsoll_category_pop, tracker::hook::program::category_pop);
}

macro_rules! exports {
    ($(($name:ident, $kind:ident, $n:tt, $target:path))*) => {
        fn exports() -> &'static [usize] {
            static mut TABLE: [usize; [$(stringify!($name),)*].len()] = [0; [$(stringify!($name),)*].len()];
            // SAFETY: called once, by the constructor, while there is one thread.
            unsafe {
                (&raw mut TABLE).write([$(entry::$name as *const () as usize,)*]);
                &*(&raw const TABLE)
            }
        }
    };
}
hooked_calls!(exports);

extern "C" fn constructor(argc: i32, argv: *const *const c_char, environment: *mut *const c_char) {
    // SAFETY: glibc calls constructors with main's arguments (csu/init-first.c, elf/dl-init.c).
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

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Bounds checks are the only panics left in; none is expected to be reached. A thread that reached one can't go on
    // with a book in an unknown state: it stops here, visibly, and never takes the process down.
    loop {
        plimsoll_tracker::sys::os::pause();
    }
}
