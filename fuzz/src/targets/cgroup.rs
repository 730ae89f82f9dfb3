//! Files of a cgroup, and /proc/PID/cgroup and mountinfo; a container's user writes parts of them.

use plimsoll_process::parsers::cgroup::*;

pub fn run(bytes: &[u8]) {
    parse_paths(bytes);
    parse_mounts(bytes);
    parse_memory_stat(bytes);
    parse_oom_events(bytes);
    parse_limit(bytes);
    parse_bytes(bytes);
    if let Some(cpus) = parse_cpu_max(bytes) {
        assert!(cpus.is_finite() && cpus >= 0.0, "{cpus} CPUs");
    }
    parse_pressure(bytes);
}
