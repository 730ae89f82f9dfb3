//! Libraries that a native program loads after the attach: their calls must come to the hooks.

use std::process::Command;

use crate::category;
use crate::kit::{Java as Program, scratch};
use crate::native::{compiled_from, own};

/// Another thread calls dlsym after a dlopen has begun and before it maps anything. The library is patched all the
/// same: one that is opened by its path when dlopen returns, one by its name at the next call of the loader.
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
