//! Libraries that a native program loads after the attach: their calls must come to the hooks.

use std::process::Command;

use crate::category;
use crate::kit::{Java as Program, fixtures, once, scratch};
use crate::native::{compiled_from, own, start};
use crate::stage::must;

/// Another thread calls dlsym after a dlopen has begun and before it maps anything. The library is still patched: a
/// library opened by its path when dlopen returns, a library opened by its name at the next call of the loader.
#[test]
fn a_library_whose_loading_overlaps_another_is_patched() {
    let file = compiled_from("attach_overlap", &["-rdynamic"]);
    let slow = compiled_from("attach_overlap", &["-shared", "-fPIC", "-DSLOW"]);
    let [by_path, by_name] =
        ["-DPLUGIN=1", "-DPLUGIN=2"].map(|flag| compiled_from("attach_overlap", &["-shared", "-fPIC", flag]));
    let mut command = Command::new(&file);
    command.arg(&slow).env("LD_LIBRARY_PATH", scratch("native"));
    let mut program = Program::start(command, "loading-overlap");
    program.done(&["attach", &program.pid()]);
    for (library, opened) in [(&by_path, by_path.display().to_string()), (&by_name, own(&by_name))] {
        assert_eq!(program.send(&opened), "loaded");
        let report = program.report();
        assert_eq!(category(&report, &own(library)), (1000, 100_000), "{opened}");
        let (left, _) = category(&report, &own(&file));
        assert!(left < 1000, "the library has freed them: {left}");
    }
    assert_eq!(program.stderr(), "");
}

/// The library has called malloc of the library that it was linked with, but not yet free. A library that was opened
/// without RTLD_DEEPBIND, and has called the program's malloc, gets the hook of free.
#[test]
fn a_slot_that_leads_to_another_allocator_gets_no_hook() {
    let file = compiled_from("attach_deep", &[]);
    let allocator = compiled_from("attach_deep", &["-shared", "-fPIC", "-DALLOCATOR"]);
    let plain = compiled_from("attach_deep", &["-shared", "-fPIC", "-Wl,-z,lazy", "-DLIBRARY"]);
    let deep = scratch("native").join(format!("attach_deep-linked-{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu17", "-O1", "-fno-builtin", "-shared", "-fPIC", "-Wl,-z,lazy", "-DLIBRARY"]);
    gcc.arg(fixtures().join("c/attach_deep.c")).arg("-Wl,--no-as-needed").arg(&allocator).arg("-o").arg(&deep);
    once(&deep, || drop(must(&mut gcc)));
    let [deep, plain] = [deep, plain].map(|library| library.to_str().expect("a path").to_owned());
    let mut program = start("loading-deep", &file, &[&deep, &plain]);
    program.done(&["attach", &program.pid()]);
    assert_eq!(program.send("drop"), "dropped");
    let (left, _) = category(&program.report(), &own(&file));
    assert!(left < 1000, "the other library has freed them: {left}");
    assert_eq!(program.stderr(), "");
}
