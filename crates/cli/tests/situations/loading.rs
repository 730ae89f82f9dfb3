//! Libraries, constructors, and other ways to malloc than a call through the PLT.

use crate::build::{Program, compiled, library_dir};
use crate::kit::{Situation, situation};
use crate::situations;

situations! {
    // musl's dlclose unloads nothing.
    load_unload over glibc => {
        compiled(&Program::library("libplugin"));
        situation("load_unload").args(&[library_dir().to_str().expect("path")])
    };
    // musl has no RTLD_DEEPBIND.
    deepbind over glibc => {
        compiled(&Program::library("libdeep"));
        let libraries = library_dir();
        let libraries = libraries.to_str().expect("path");
        situation("deepbind").args(&[libraries]).env("LD_LIBRARY_PATH", libraries)
    };
    constructors over both_musl_in_full => situation("constructors").moments(2);
    // C++: musl-gcc compiles C only.
    tls_constructor over glibc => situation("tls_constructor");
    early_blocks over both => situation("early_blocks").links(&["libearly"]).moments(2);
    dlsym_next_loaded over glibc => {
        compiled(&Program::library("libnext"));
        situation("dlsym_next_loaded").args(&[library_dir().to_str().expect("path")]).moments(3)
    };
    // A preloaded library of its own is compiled for glibc.
    early_blocks_preloaded over glibc => {
        compiled(&Program::library("libearly"));
        let library = library_dir().join("libearly.so");
        situation("early_blocks").named("early_blocks_preloaded").links(&["libearly"])
            .env("LD_PRELOAD", library.to_str().expect("path")).moments(2)
    };
    // musl has no dlvsym.
    dlsym_callers over glibc => situation("dlsym_callers").moments(3);
    dlsym_next over both_musl_in_full => situation("dlsym_next").links(&["libnext"]).moments(4);
    // A preloaded library of its own is compiled for glibc.
    wrapper_preloaded over glibc => wrapped("mix", 6);
    wrapper_preloaded_new_delete over glibc => wrapped("new_delete", 4);
    operators_of_program over glibc => situation("own_operators").named("operators_of_program").flags(&["-DOWN"])
        .moments(2);
    operators_preloaded over glibc => {
        compiled(&Program::library("liboperators"));
        let library = library_dir().join("liboperators.so");
        situation("own_operators").named("operators_preloaded")
            .env("LD_PRELOAD", library.to_str().expect("path")).moments(2)
    };
    weak_functions over both => situation("weak_functions");
    missing_names over both => situation("missing_names");
    odd_callers over both => situation("odd_callers").moments(2);
    pointer_table over both_musl_in_full => situation("pointer_table").moments(3);
}

/// With another interposer below the tracker, which has no malloc_usable_size.
fn wrapped(source: &str, moments: usize) -> Situation {
    compiled(&Program::library("libwrapper"));
    let library = library_dir().join("libwrapper.so");
    let row = situation(source).named(&format!("{source}_wrapped")).flags(&["-DNO_SIZES"]).moments(moments);
    row.env("LD_PRELOAD", library.to_str().expect("path"))
}
