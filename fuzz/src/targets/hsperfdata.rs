//! A VM's performance counters: a file in /tmp that any user can write.

use plimsoll_observer::source::hotspot::PerfData;

pub fn run(bytes: &[u8]) {
    let Some(data) = PerfData::parse(bytes) else { return };
    for name in ["sun.gc.metaspace.capacity", "java.rt.vmFlags", "sun.rt.jvmCapabilities", "a", ""] {
        data.number(name);
        data.text(name);
        data.bytes(name);
    }
    data.attachable();
    data.heap_sum("capacity");
}
