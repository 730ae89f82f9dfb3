//! Every parser of untrusted bytes by name, for the fuzz targets (`fuzz/`). No other crate uses this module.

macro_rules! parsers {
    ($($name:ident: $($path:ident)::+;)*) => {
        $(pub mod $name {
            pub use crate::$($path)::+::*;
        })*
    };
}

parsers! {
    cache: symbols::cache;
    functions: symbols::functions;
    jitdump: symbols::jitdump;
    object: symbols::object;
    perf_map: symbols::perf_map;
}
