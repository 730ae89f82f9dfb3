//! patch: the import tables of this process, as the loader filled them, and as `insert_hooks` and `remove_hooks` leave
//! them.

use plimsoll_tracker::patch::relocation::{RelocationKind, Tables};
use plimsoll_tracker::sys::{elf, libc};
use std::collections::HashMap;

/// For each name: how many words of all objects hold libc's address of it, and how many hold another address.
fn bound(names: &[&str]) -> HashMap<String, (u32, u32)> {
    let mut found: HashMap<String, (u32, u32)> = HashMap::new();
    let mut objects = 0;
    assert!(libc::each_loaded(&mut |o| {
        objects += 1;
        let tables =
            Tables::find(o.dynamic(), o.bias as u64, |at, bytes| o.memory(at as usize, bytes.map(|n| n as usize)));
        for slot in tables.slots() {
            let Some(symbol) = tables.symbol(slot.symbol) else { continue };
            let name = String::from_utf8_lossy(symbol.name).into_owned();
            let at = o.bias + slot.at as usize;
            if !names.contains(&&*name) || !o.is_data(at) {
                continue;
            }
            // SAFETY: a word of a loaded object's data.
            let holds = unsafe { *(at as *const usize) };
            let c_name = std::ffi::CString::new(name.clone()).expect("a name");
            // SAFETY: a C string; the default scope.
            let real = unsafe { ::libc::dlsym(::libc::RTLD_DEFAULT, c_name.as_ptr()) } as usize;
            let entry = found.entry(name).or_default();
            // libgcc_s is bound lazily: until the first call, a slot points into the object's own procedure linkage
            // table.
            let waits = slot.kind == RelocationKind::Call && o.is_code(holds) && !symbol.is_own;
            if holds == real { entry.0 += 1 } else { entry.1 += u32::from(!waits) }
        }
    }));
    assert!(objects >= 3, "{objects} objects: the program, libc and its loader at least");
    found
}

/// Rust's calls of malloc and libc's own are found, and each word holds the address that dlsym returns (or isn't bound
/// yet).
#[test]
fn words_hold_what_the_loader_bound() {
    libc::resolve();
    let found = bound(&["malloc", "free", "realloc", "calloc", "mmap", "memcpy", "dlsym"]);
    for name in ["malloc", "free", "realloc", "calloc"] {
        let (bound, other) = found.get(name).copied().unwrap_or_default();
        assert!(bound >= 2, "{name}: {bound} words hold it, {other} don't");
        assert_eq!(other, 0, "{name}: {bound} words hold it");
    }
}

/// This test program has no exported hooks to put into the tables: nothing is written, and nothing breaks.
#[test]
fn without_hooks_no_word_changes() {
    libc::resolve();
    let names = ["malloc", "free", "realloc"];
    let before = bound(&names);
    let turn = plimsoll_tracker::patch::Turn::take().expect("nobody walks");
    let done = plimsoll_tracker::patch::insert_hooks(&turn).expect("a walk");
    assert_eq!(done.written, 0);
    plimsoll_tracker::patch::remove_hooks(&turn).expect("a walk");
    assert_eq!(bound(&names), before);
}

/// Every real function is also found late, in the objects that the program started with.
#[test]
fn the_scope_of_a_program_is_where_its_functions_are() {
    assert!(elf::startup_count() >= 3);
    for name in [c"malloc", c"pthread_create", c"dlsym", c"dl_iterate_phdr"] {
        let found = elf::objects().take(elf::startup_count()).find_map(|o| o.symbol(name));
        // SAFETY: a C string; the default scope.
        let expected = unsafe { ::libc::dlsym(::libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
        assert_eq!(found, Some(expected), "{name:?}");
    }
}
