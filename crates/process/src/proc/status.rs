//! Parses the small files of /proc/PID: status, stat, limits, cmdline, environ, mountinfo, a thread's syscall. Formats:
//! proc(5).

use super::smaps::{decimal, kilobytes};
use super::stat;
use plimsoll_facts::snapshot::{Limits, ProcessState, Rss};
use plimsoll_facts::units::{Avma, Bytes};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub name: String,
    pub state: ProcessState,
    pub uid: u32,
    /// From the outermost namespace that /proc shows to the innermost.
    pub namespaced_pids: Vec<u32>,
    pub threads: u64,
    pub cpus_allowed: Option<u64>,
    pub peak_rss: Option<Bytes>,
    pub page_tables: Option<Bytes>,
    pub swap: Bytes,
    pub rss: Rss,
    /// `Seccomp: 1`: SECCOMP_MODE_STRICT.
    pub is_strict: bool,
    /// Whether there is a `VmSize` line: kernel threads and zombies have no address space.
    pub has_memory: bool,
}

pub fn parse_status(text: &[u8]) -> Status {
    let mut status = Status::default();
    for line in lines(text) {
        let Some((key, value)) = key_value(line) else { continue };
        match key {
            b"Name" => status.name = unescaped(value),
            b"State" => {
                status.state = match value.first() {
                    Some(b'Z' | b'X') => ProcessState::Zombie,
                    Some(b'T' | b't') => ProcessState::Stopped,
                    _ => ProcessState::Alive,
                }
            }
            b"Uid" => status.uid = numbers(value).next().unwrap_or_default(),
            b"NSpid" => status.namespaced_pids = numbers(value).collect(),
            b"Threads" => status.threads = decimal(value).unwrap_or_default(),
            b"Cpus_allowed_list" => status.cpus_allowed = Some(cpu_count(&String::from_utf8_lossy(value))),
            b"VmHWM" => status.peak_rss = kilobytes(value),
            b"VmPTE" => status.page_tables = kilobytes(value),
            b"VmSwap" => status.swap = kilobytes(value).unwrap_or_default(),
            b"RssAnon" => status.rss.anonymous = kilobytes(value).unwrap_or_default(),
            b"RssFile" => status.rss.file = kilobytes(value).unwrap_or_default(),
            b"RssShmem" => status.rss.shmem = kilobytes(value).unwrap_or_default(),
            b"Seccomp" => status.is_strict = decimal(value) == Some(1),
            b"VmSize" => status.has_memory = true,
            _ => {}
        }
    }
    if !status.has_memory && status.state != ProcessState::Zombie {
        status.state = ProcessState::Kernel;
    }
    status
}

/// The value of one line of /proc/PID/status; `key` is such as `CapEff:`.
pub fn status_field<'s>(status: &'s str, key: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// Whether the process has capabilities that its user doesn't have. `status` is /proc/PID/status.
pub fn has_more_rights_than_its_user(status: &str) -> bool {
    let is_root = status_field(status, "Uid:").is_some_and(|ids| ids.split_whitespace().all(|id| id == "0"));
    let has_capabilities = status_field(status, "CapPrm:").is_some_and(|set| set.contains(|digit| digit != '0'));
    !is_root && has_capabilities
}

/// `0-3,8,10-11` → 7
pub fn cpu_count(list: &str) -> u64 {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
            Some(last.checked_sub(first)?.saturating_add(1))
        })
        .fold(0, u64::saturating_add)
}

/// Whether PF_EXITING is set in the flags, field 9 of stat (include/linux/sched.h). Then the process is being torn down,
/// and its cgroup of version 1 reads as the root.
pub fn parse_exiting(stat: &[u8]) -> bool {
    stat::number(stat, 9).is_some_and(|flags| flags & 4 != 0)
}

/// Start time in clock ticks since boot.
pub fn parse_start_ticks(stat: &[u8]) -> Option<u64> {
    stat::number(stat, 22)
}

/// `startstack`; 0 if we may not see it.
pub fn parse_start_stack(stat: &[u8]) -> Option<Avma> {
    stat::number(stat, 28).filter(|address| *address > 0).map(Avma)
}

/// Parses `Max stack size             8388608              unlimited            bytes`.
pub fn parse_limits(text: &[u8]) -> Limits {
    let soft = |name: &str| {
        let rest = lines(text).find_map(|line| line.strip_prefix(name.as_bytes()))?;
        decimal(rest.split(|byte| *byte == b' ').find(|word| !word.is_empty())?).map(Bytes)
    };
    Limits { stack: soft("Max stack size"), locked: soft("Max locked memory") }
}

/// Arguments, separated by NULs. Some programs overwrite them with a single string, or with NULs: then there are none.
pub fn parse_command(text: &[u8]) -> Vec<String> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.iter().all(|byte| *byte == 0) {
        return Vec::new();
    }
    text.split(|byte| *byte == 0).take(4096).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Variables that affect memory. The rest of the environment may hold secrets and isn't kept.
pub fn parse_environment(text: &[u8]) -> Vec<(String, String)> {
    const PREFIXES: [&str; 4] = ["MALLOC_", "TCMALLOC_", "MIMALLOC_", "PLIMSOLL_"];
    const NAMES: [&str; 9] = [
        "GLIBC_TUNABLES",
        "GODEBUG",
        "GOGC",
        "LD_PRELOAD",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "JE_MALLOC_CONF",
        "NODE_OPTIONS",
        "_RJEM_MALLOC_CONF",
    ];
    let is_kept = |name: &str| NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    text.split(|byte| *byte == 0)
        .filter_map(|entry| {
            let entry = String::from_utf8_lossy(entry);
            let (name, value) = entry.split_once('=')?;
            is_kept(name).then(|| (name.to_owned(), value.to_owned()))
        })
        .collect()
}

/// Devices of tmpfs mounts, from `36 35 0:21 / /run rw,nosuid shared:7 - tmpfs tmpfs rw,size=…`.
pub fn parse_tmpfs_devices(mountinfo: &[u8]) -> Vec<(u32, u32)> {
    let mut devices: Vec<(u32, u32)> = lines(mountinfo)
        .filter_map(|line| {
            let line = String::from_utf8_lossy(line);
            let (mount, filesystem) = line.split_once(" - ")?;
            if !matches!(filesystem.split(' ').next()?, "tmpfs" | "devtmpfs" | "ramfs") {
                return None;
            }
            let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Stack pointer in a sleeping thread's `syscall` file: `202 0x7f… 0x189 … 0xSP 0xPC` or `-1 0xSP 0xPC`. None for
/// `running`.
pub fn parse_stack_pointer(syscall: &[u8]) -> Option<Avma> {
    let text = std::str::from_utf8(syscall).ok()?;
    let mut words = text.split_ascii_whitespace().rev();
    let _program_counter = words.next()?.strip_prefix("0x")?;
    let pointer = words.next()?.strip_prefix("0x")?;
    u64::from_str_radix(pointer, 16).ok().filter(|pointer| *pointer != 0).map(Avma)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

fn key_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

fn numbers(value: &[u8]) -> impl Iterator<Item = u32> + '_ {
    value.split(u8::is_ascii_whitespace).filter_map(|word| u32::try_from(decimal(word)?).ok())
}

/// In a name, the kernel writes `\n` and `\\` for a newline and a backslash (fs/proc/array.c, `proc_task_name`).
fn unescaped(name: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let (byte, behind) = match (first, after) {
            (b'\\', [b'n', behind @ ..]) => (b'\n', behind),
            (b'\\', [b'\\', behind @ ..]) => (b'\\', behind),
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = behind;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel writes the names `a<newline>b`, `a\nb` and `a\<newline>b`.
    #[test]
    fn each_escape_of_a_name_is_read_once() {
        for (written, name) in [(r"a\nb", "a\nb"), (r"a\\nb", r"a\nb"), (r"a\\\nb", "a\\\nb"), (r"a\", r"a\")] {
            assert_eq!(parse_status(format!("Name:\t{written}\n").as_bytes()).name, name, "{written}");
        }
        assert_eq!(parse_status(b"Name:\tcaf\xc3\n").name, "caf\u{fffd}");
    }

    #[test]
    fn an_exiting_process_is_recognised_by_its_flags() {
        assert!(!parse_exiting(b"12 (a) b) R 1 12 12 0 -1 4194304 100"));
        assert!(parse_exiting(b"12 (a) b) R 1 12 12 0 -1 4194308 100"));
        assert!(!parse_exiting(b"12 (a"));
        assert!(!parse_exiting(b""));
    }
    use crate::mutated::mutated;

    const STATUS: &[u8] = b"Name:\tla\\nzy\nUmask:\t0022\nState:\tT (stopped)\nTgid:\t77\nUid:\t1000\t1000\t1000\t1000\n\
        NSpid:\t77\t3\nVmHWM:\t    2048 kB\nVmSize:\t  9999 kB\nVmPTE:\t      60 kB\nVmSwap:\t       8 kB\nThreads:\t12\n";

    #[test]
    fn status_is_read_with_its_namespaces() {
        let status = parse_status(STATUS);
        assert_eq!((status.name.as_str(), status.state, status.uid), ("la\nzy", ProcessState::Stopped, 1000));
        assert_eq!((status.namespaced_pids, status.threads, status.swap), (vec![77, 3], 12, Bytes::kib(8)));
        assert_eq!(parse_status(b"Name:\tkthreadd\nState:\tS (sleeping)\n").state, ProcessState::Kernel);
        assert_eq!(parse_status(b"Name:\tgone\nState:\tZ (zombie)\n").state, ProcessState::Zombie);
        let is_strict =
            |mode: &str| parse_status(format!("Seccomp:\t{mode}\nSeccomp_filters:\t1\n").as_bytes()).is_strict;
        assert_eq!(["0", "1", "2", "11", ""].map(is_strict), [false, true, false, false, false]);
    }

    #[test]
    fn capabilities_count_unless_the_user_is_root() {
        let of = |uid: &str, set: &str| has_more_rights_than_its_user(&format!("Uid:\t{uid}\nCapPrm:\t{set}\n"));
        assert!(of("5\t5\t5\t5", "0000000000000400") && of("0\t5\t0\t0", "000001ffffffffff"));
        assert!(!of("0\t0\t0\t0", "000001ffffffffff") && !of("5\t5\t5\t5", "0000000000000000"));
    }

    #[test]
    fn a_name_full_of_parentheses_does_not_shift_stat() {
        let stat = b"77 (a) b) c) S 1 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 12 0 987654 1 2";
        assert_eq!(parse_start_ticks(stat), Some(987_654));
    }

    #[test]
    fn the_stack_pointer_is_the_last_but_one_word() {
        assert_eq!(
            parse_stack_pointer(b"202 0x1 0x189 0x0 0x0 0x0 0xffffffff 0x7f3b0d9fe100 0x7f3b0e0a0f16\n"),
            Some(Avma(0x7f3b_0d9f_e100))
        );
        assert_eq!(parse_stack_pointer(b"-1 0x7ffc0000 0x7f00\n"), Some(Avma(0x7ffc_0000)));
        assert_eq!(parse_stack_pointer(b"running\n"), None);
    }

    #[test]
    fn secrets_of_the_environment_are_not_kept() {
        let environment = parse_environment(b"PATH=/bin\0TOKEN=x\0MALLOC_ARENA_MAX=2\0LD_PRELOAD=/a.so\0");
        assert_eq!(environment, [("MALLOC_ARENA_MAX".into(), "2".into()), ("LD_PRELOAD".into(), "/a.so".into())]);
    }

    #[test]
    fn tmpfs_mounts_are_found_by_device() {
        let mounts = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n36 22 0:33 / /run rw,nosuid shared:7 - tmpfs tmpfs rw\n";
        assert_eq!(parse_tmpfs_devices(mounts), [(0, 33)]);
    }

    #[test]
    fn limits_read_the_soft_column() {
        let limits = parse_limits(b"Limit  Soft Limit  Hard Limit  Units\nMax stack size            8388608              unlimited            bytes\nMax locked memory         unlimited            unlimited            bytes\n");
        assert_eq!((limits.stack, limits.locked), (Some(Bytes::mib(8)), None));
    }

    #[test]
    fn arguments_that_the_program_has_erased_are_none() {
        let none: [&[u8]; 4] = [b"", b"\0", b"\0\0", b"\0\0\0\0\0\0"];
        assert!(none.iter().all(|text| parse_command(text).is_empty()));
        assert_eq!(parse_command(b"a\0\0b c\0"), ["a", "", "b c"]);
    }

    #[test]
    fn mutated_small_files_never_panic() {
        let mut kernel = 0;
        for text in mutated(STATUS, 20_000) {
            kernel += usize::from(parse_status(&text).state == ProcessState::Kernel);
            let _ = (parse_start_ticks(&text), parse_limits(&text), parse_stack_pointer(&text));
            let _ = (parse_command(&text), parse_environment(&text), parse_tmpfs_devices(&text));
        }
        assert!(kernel > 0);
    }

    #[test]
    fn cpu_lists_count_ranges() {
        assert_eq!(cpu_count("0-3,8,10-11\n"), 7);
        assert_eq!(cpu_count("0"), 1);
        assert_eq!(cpu_count("9-2,x"), 0);
    }
}
