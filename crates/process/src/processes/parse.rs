//! Parses what a list shows of a process. Its mappings show whether it is a JVM and whether it is tracked. Its cgroup
//! shows the id of its container.

/// What a list of processes shows about each, before anybody examines it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessKind {
    pub is_jvm: bool,
    /// The tracker's segment is mapped.
    pub is_tracked: bool,
}

/// Identifies a process for ever: a later process with the same PID has another start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start: u64,
}

/// From the text of /proc/PID/maps.
pub(crate) fn parse_kind(maps: &[u8]) -> ProcessKind {
    let lines = || maps.split(|byte| *byte == b'\n');
    let is_of_a_segment = |line: &[u8]| {
        // A segment may be removed while its process runs.
        let path = line.strip_suffix(b" (deleted)").unwrap_or(line);
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        std::str::from_utf8(file).is_ok_and(is_segment)
    };
    ProcessKind { is_jvm: lines().any(|line| line.ends_with(b"/libjvm.so")), is_tracked: lines().any(is_of_a_segment) }
}

/// Whether a path is that of a segment in any directory: `PID-BOOTTIME_NS.seg` (docs/segment.md). The target controls
/// it.
pub fn is_segment(path: &str) -> bool {
    // Almost no mapping is a segment, so the end of the name is checked first.
    let Some(stem) = path.strip_suffix(".seg") else { return false };
    let parts = stem.rsplit('/').next().and_then(|stem| stem.split_once('-'));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.is_some_and(|(pid, start)| is_number(pid) && is_number(start))
}

/// The container's id in the text of /proc/PID/cgroup: container runtimes name the group after it, with 64 hexadecimal
/// digits (`docker-ID.scope`, `cri-containerd-ID.scope`, `/docker/ID`).
pub(crate) fn parse_container(cgroup: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(cgroup);
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric()).rev();
    let is_id = |word: &&str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    // A container in a container: the innermost group is the last word.
    words.find(is_id).map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_needs_the_end_of_a_line() {
        let maps =
            b"7f00-7f01 r-xp 0 8:1 7 /usr/lib/jvm/lib/server/libjvm.so\n7f02-7f03 rw-s 0 0:1 9 /dev/shm/p/12-3.seg\n";
        assert_eq!(parse_kind(maps), ProcessKind { is_jvm: true, is_tracked: true });
        assert_eq!(parse_kind(b"7f00-7f01 r-xp 0 8:1 7 /tmp/libjvm.so.old\n"), ProcessKind::default());
        assert_eq!(parse_kind(b""), ProcessKind::default());
        let pruned = b"7f02-7f03 rw-s 0 0:1 9 /dev/shm/p/12-3.seg (deleted)\n";
        assert!(parse_kind(pruned).is_tracked);
        assert_eq!(parse_kind(b"7f02-7f03 rw-s 0 0:1 9 /data/index/_1.seg\n"), ProcessKind::default());
    }

    #[test]
    fn containers_are_named_in_their_group() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/kubepods/pod1/cri-containerd-{id}.scope"),
        ] {
            assert_eq!(parse_container(format!("0::{path}\n").as_bytes()), Some(id.clone()), "{path}");
        }
        assert_eq!(parse_container(b"0::/user.slice/session-3.scope\n"), None);
        let inner = "f".repeat(64);
        assert_eq!(parse_container(format!("0::/docker/{id}/docker/{inner}\n").as_bytes()), Some(inner));
    }
}
