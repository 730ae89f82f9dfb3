//! Every parser of untrusted bytes by name, for the fuzz targets (`fuzz/`). No other crate uses this module.

macro_rules! parsers {
    ($($name:ident: $($path:ident)::+;)*) => {
        $(pub mod $name {
            pub use crate::$($path)::+::*;
        })*
    };
}

parsers! {
    access: proc::access;
    cgroup: cgroup::parse;
    kernel_log: kernel_log;
    proc_view: processes::proc_view;
    sockets: proc::sockets;
    start: proc::start;
    status: proc::status;
}
