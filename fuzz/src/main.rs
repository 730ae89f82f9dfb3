//! libFuzzer's `main` around the target that PLIMSOLL_FUZZ names. `make fuzz` builds and runs it.

#![no_main]

use std::sync::OnceLock;

use plimsoll_fuzz::{FuzzTarget, TARGETS};

fn target() -> &'static FuzzTarget {
    static CHOSEN: OnceLock<&FuzzTarget> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("PLIMSOLL_FUZZ").unwrap_or_default();
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| panic!("PLIMSOLL_FUZZ names no target: {}", known.join(" ")))
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target().check(bytes));
