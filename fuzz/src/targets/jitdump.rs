//! `jit-PID.dump`: generated code in perf's own format. The process writes it.

use plimsoll_tracked::parsers::jitdump::parse;

pub fn run(bytes: &[u8]) {
    if let Some(map) = parse(bytes) {
        for address in [0, 1, 0x1000, 0x7f00_0000_0000, u64::MAX] {
            map.at(address);
        }
    }
}
