//! Libraries, constructors, and other ways to malloc than a call through the PLT.

use crate::build::{Program, compiled, library_dir};
use crate::harness::{Situation, situation};
use crate::situations;

situations! {
    load_unload => {
        compiled(&Program::library("libplugin"));
        situation("load_unload").args(&[library_dir().to_str().expect("path")])
    };
    constructors => situation("constructors").moments(2);
    tls_constructor => situation("tls_constructor");
    early_blocks => situation("early_blocks").links(&["libearly"]).moments(2);
    early_blocks_preloaded => {
        compiled(&Program::library("libearly"));
        let library = library_dir().join("libearly.so");
        situation("early_blocks").named("early_blocks_preloaded").links(&["libearly"])
            .env("LD_PRELOAD", library.to_str().expect("path")).moments(2)
    };
    dlsym_callers => situation("dlsym_callers").moments(3);
    dlsym_next => situation("dlsym_next").links(&["libnext"]).moments(4);
    wrapper_preloaded => wrapped("mix", 6);
    wrapper_preloaded_new_delete => wrapped("new_delete", 4);
    weak_functions => situation("weak_functions");
    missing_names => situation("missing_names");
    odd_callers => situation("odd_callers").moments(2);
    pointer_table => situation("pointer_table").moments(3);
}

/// With another interposer below the tracker.
fn wrapped(source: &str, moments: usize) -> Situation {
    compiled(&Program::library("libwrapper"));
    let library = library_dir().join("libwrapper.so");
    let row = situation(source).named(&format!("{source}_wrapped")).moments(moments);
    row.env("LD_PRELOAD", library.to_str().expect("path"))
}
