//! `/tmp/perf-PID.map`: generated code by name. The process writes it.

use plimsoll_tracked::parsers::perf_map::Map;

pub fn run(bytes: &[u8]) {
    let map = Map::parse(bytes);
    for address in [0, 1, 0x1000, 0x7f00_0000_0000, u64::MAX] {
        map.at(address);
    }
    if map.is_empty() {
        assert_eq!(map.at(0x1000), None);
    }
}
