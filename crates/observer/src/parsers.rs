//! Every parser of untrusted bytes by name, for the fuzz targets (`fuzz/`). No other crate uses this module.

macro_rules! parsers {
    ($($name:ident: $($path:ident)::+;)*) => {
        $(pub mod $name {
            pub use crate::$($path)::+::*;
        })*
    };
}

parsers! {
    attach: source::hotspot::attach;
    chunks: source::native_image::chunks;
    direct_buffers: source::hotspot::direct_buffers;
    golang: source::golang;
    heap: source::hotspot::heap;
    heap_data: source::heap_data;
    jemalloc: source::jemalloc;
    mallocng: source::mallocng;
    mimalloc: source::mimalloc;
    names: source::hotspot::names;
    native_objects: source::native_objects;
    objects: source::hotspot::objects;
    printed: source::hotspot::printed;
    pymalloc: source::pymalloc;
    tcmalloc: source::tcmalloc;
    unpacked: source::native_image::unpacked;
    v8: source::v8;
}
