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
    cache: symbols::cache;
    cgroup: source::cgroup::parse;
    chunks: source::native_image::chunks;
    access: source::proc::access;
    direct: source::hotspot::direct;
    functions: symbols::functions;
    golang: source::golang;
    heap: source::hotspot::heap;
    heap_data: source::heap_data;
    jemalloc: source::jemalloc;
    jitdump: symbols::jitdump;
    kernel_log: source::kernel_log;
    mimalloc: source::mimalloc;
    names: source::hotspot::names;
    native_objects: source::native_objects;
    object: symbols::object;
    objects: source::hotspot::objects;
    perf_map: symbols::perf_map;
    printed: source::hotspot::printed;
    pymalloc: source::pymalloc;
    status: source::proc::status;
    tcmalloc: source::tcmalloc;
    unpacked: source::native_image::unpacked;
    v8: source::v8;
}
