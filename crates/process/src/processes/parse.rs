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

/// HotSpot's code alone takes several MiB. native-image writes an empty `libjvm.so` of a few pages beside an image with
/// JDK libraries that need the name (JNIRegistrationSupport.makeShimLibrary).
const LEAST_LIBJVM: u64 = 1 << 20;

/// Which VM's library is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JvmLibrary {
    HotSpot,
    /// Its libjvm.so only loads the VM's own library, libj9vm29.so; the number is the VM's version.
    OpenJ9,
}

/// From the path and the length of each mapping.
pub fn jvm_library<'m>(mappings: impl Iterator<Item = (&'m [u8], u64)>) -> Option<JvmLibrary> {
    let mut libjvm = 0u64;
    for (path, length) in mappings {
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libj9vm") {
            return Some(JvmLibrary::OpenJ9);
        }
        if path.ends_with(b"/libjvm.so") {
            libjvm = libjvm.saturating_add(length);
        }
    }
    (libjvm >= LEAST_LIBJVM).then_some(JvmLibrary::HotSpot)
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
    let libraries = lines().map(|line| (line, mapped_length(line).unwrap_or(0)));
    ProcessKind { is_jvm: jvm_library(libraries).is_some(), is_tracked: lines().any(is_of_a_segment) }
}

/// From the addresses at the beginning of a line: `7f00-7f01 r-xp …`
fn mapped_length(line: &[u8]) -> Option<u64> {
    let range = line.split(|byte| *byte == b' ').next()?;
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    address(end)?.checked_sub(address(start)?)
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
        let maps = b"7f000000-7f100000 r-xp 0 8:1 7 /usr/lib/jvm/lib/server/libjvm.so\n\
            7f200000-7f210000 rw-s 0 0:1 9 /dev/shm/p/12-3.seg\n";
        assert_eq!(parse_kind(maps), ProcessKind { is_jvm: true, is_tracked: true });
        assert_eq!(parse_kind(b"7f000000-7f100000 r-xp 0 8:1 7 /tmp/libjvm.so.old\n"), ProcessKind::default());
        assert_eq!(parse_kind(b""), ProcessKind::default());
        let pruned = b"7f02-7f03 rw-s 0 0:1 9 /dev/shm/p/12-3.seg (deleted)\n";
        assert!(parse_kind(pruned).is_tracked);
        assert_eq!(parse_kind(b"7f02-7f03 rw-s 0 0:1 9 /data/index/_1.seg\n"), ProcessKind::default());
    }

    /// A linker makes five mappings of an empty library.
    #[test]
    fn the_empty_libjvm_of_a_native_image_is_no_jvm() {
        let shim = |number: u64| {
            let start = 0x7f00_0000 + (number << 12);
            format!("{start:x}-{:x} r--p 0 8:1 7 /app/libjvm.so\n", start + 4096)
        };
        let shims: String = (0..5).map(shim).collect();
        assert_eq!(parse_kind(shims.as_bytes()), ProcessKind::default());
        // Several mappings of a VM's library together.
        let pieces = "7f000000-7f080000 r--p 0 8:1 7 /jdk/libjvm.so\n7f080000-7f100000 r-xp 0 8:1 7 /jdk/libjvm.so\n";
        assert!(parse_kind(pieces.as_bytes()).is_jvm);
        let openj9 = format!("{shims}7f200000-7f201000 r-xp 0 8:1 7 /jdk/lib/default/libj9vm29.so\n");
        assert!(parse_kind(openj9.as_bytes()).is_jvm);
        let mappings = |length| [(b"/app/libjvm.so".as_slice(), length), (b"/lib/libj9vm29.so".as_slice(), 1)];
        assert_eq!(jvm_library(mappings(1 << 20).into_iter()), Some(JvmLibrary::OpenJ9));
        assert_eq!(jvm_library(mappings(1 << 20).into_iter().take(1)), Some(JvmLibrary::HotSpot));
        assert_eq!(jvm_library(mappings((1 << 20) - 1).into_iter().take(1)), None);
        assert_eq!(mapped_length(b"7f01-7f00 r-xp"), None);
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
