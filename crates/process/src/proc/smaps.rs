//! Parses `/proc/PID/smaps`: for each mapping, a header line as in maps, then lines `Key:   n kB` and `VmFlags:`
//! (proc(5)).
//!
//! ```text
//! 7f12a0000000-7f12a0021000 rw-p 00000000 00:00 0          [anon:name]
//! Size:                132 kB
//! Rss:                  20 kB
//! …
//! VmFlags: rd wr mr mw me sd
//! ```
//!
//! Keys differ between kernels: unknown ones are skipped, missing ones stay 0. In a path, the kernel escapes only a
//! newline, as `\012`.

use memchr::memchr;
use plimsoll_facts::snapshot::{Backing, Rollup, Vma, VmaFlags};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

/// The mappings in the text, and the number of invalid lines, for which the caller reports a gap.
#[derive(Clone, Debug, Default)]
pub struct Smaps {
    pub vmas: Vec<Vma>,
    pub bad_lines: usize,
}

/// `tmpfs` lists the devices of tmpfs mounts, from mountinfo. Their files are shared memory.
pub fn parse_smaps(text: &[u8], tmpfs: &[(u32, u32)]) -> Smaps {
    let mut smaps = Smaps { vmas: Vec::with_capacity(text.len() / 700), bad_lines: 0 };
    let mut rest = text;
    while !rest.is_empty() {
        let line;
        (line, rest) = match memchr(b'\n', rest) {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &[][..]),
        };
        if line.is_empty() {
            continue;
        }
        // A header begins with a lower-case hex digit, a key with a capital.
        if line[0].is_ascii_digit() || line[0].is_ascii_lowercase() {
            match header(line, tmpfs) {
                Some(vma) => smaps.vmas.push(vma),
                None => smaps.bad_lines += 1,
            }
        } else if !smaps.vmas.last_mut().is_some_and(|vma| field(vma, line)) {
            smaps.bad_lines += 1;
        }
    }
    // Between two buffers, the kernel releases the address space and continues at an address. A mapping that has grown
    // over that address meanwhile, alone or by merging, is listed again. The last entry counts.
    let mut last: Vec<Vma> = Vec::with_capacity(smaps.vmas.len());
    for vma in smaps.vmas.drain(..) {
        while last.last().is_some_and(|old| vma.range.start <= old.range.start && old.range.end <= vma.range.end) {
            last.pop();
        }
        last.push(vma);
    }
    smaps.vmas = last;
    // The kernel writes the mappings in order; a damaged or hostile text may not.
    let before = smaps.vmas.len();
    smaps.vmas.sort_by_key(|vma| vma.range);
    let mut end = Avma(0);
    smaps.vmas.retain(|vma| {
        let keep = vma.range.start >= end;
        end = end.max(vma.range.end);
        keep
    });
    smaps.bad_lines += before - smaps.vmas.len();
    smaps
}

/// `/proc/PID/maps` has only the header lines.
pub fn parse_maps(text: &[u8], tmpfs: &[(u32, u32)]) -> Smaps {
    parse_smaps(text, tmpfs)
}

/// Adds to the mappings of maps what smaps reported `before`: everything if the mapping is the same, only its flags if
/// it grew or shrank. Both lists are in address order.
pub(super) fn carried(mut now: Vec<Vma>, before: &[Vma]) -> Vec<Vma> {
    let mut at = 0;
    for vma in &mut now {
        while before.get(at).is_some_and(|old| old.range.end <= vma.range.start) {
            at += 1;
        }
        let Some(old) = before.get(at).filter(|old| old.range.start < vma.range.end && is_same(old, vma)) else {
            continue;
        };
        if old.range == vma.range {
            *vma = old.clone();
        } else {
            (vma.flags, vma.backing) = (old.flags, old.backing.clone());
        }
    }
    now
}

/// Equal in everything except start and end.
fn is_same(one: &Vma, other: &Vma) -> bool {
    let what = |vma: &Vma| (vma.readable, vma.writable, vma.executable, vma.shared, vma.device, vma.inode, vma.deleted);
    what(one) == what(other) && one.name == other.name
}

pub fn parse_rollup(text: &[u8]) -> Option<Rollup> {
    let smaps = |key: &str| {
        text.split(|byte| *byte == b'\n').find_map(|line| {
            let value = line.strip_prefix(key.as_bytes())?.strip_prefix(b":")?;
            kilobytes(value)
        })
    };
    Some(Rollup {
        rss: smaps("Rss")?,
        pss: smaps("Pss").unwrap_or_default(),
        private: smaps("Private_Clean").unwrap_or_default() + smaps("Private_Dirty").unwrap_or_default(),
        anonymous: smaps("Anonymous").unwrap_or_default(),
        anon_huge: smaps("AnonHugePages").unwrap_or_default(),
        swap: smaps("Swap").unwrap_or_default(),
    })
}

fn header(line: &[u8], tmpfs: &[(u32, u32)]) -> Option<Vma> {
    let (range, rest) = word(line);
    let (permissions, rest) = word(rest);
    let (offset, rest) = word(rest);
    let (device, rest) = word(rest);
    let (inode, rest) = word(rest);
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    if end <= start || permissions.len() < 4 {
        return None;
    }
    let colon = device.iter().position(|byte| *byte == b':')?;
    let device = (u32::try_from(hex(&device[..colon])?).ok()?, u32::try_from(hex(&device[colon + 1..])?).ok()?);
    let inode = decimal(inode)?;
    let raw = rest.trim_ascii_start();
    let (raw, deleted) = match raw.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (raw, false),
    };
    let name = String::from_utf8_lossy(raw);
    let name = if memchr(b'\\', raw).is_some() { name.replace("\\012", "\n") } else { name.into_owned() };
    let shared = permissions[3] == b's';
    let backing = match name.as_str() {
        // drivers/char/mem.c, mmap_zero: a private mapping is anonymous memory, a shared one tmpfs's.
        "/dev/zero" if !shared => Backing::Anonymous,
        _ => backing(&name, device, inode, tmpfs),
    };
    Some(Vma {
        range: AddressRange::new(Avma(start), Avma(end)),
        readable: permissions[0] == b'r',
        writable: permissions[1] == b'w',
        executable: permissions[2] == b'x',
        shared,
        offset: hex(offset)?,
        device,
        inode,
        backing,
        name,
        deleted,
        ..Vma::default()
    })
}

fn backing(name: &str, device: (u32, u32), inode: u64, tmpfs: &[(u32, u32)]) -> Backing {
    match name {
        "[heap]" => return Backing::Brk,
        "[stack]" => return Backing::MainStack,
        _ if inode == 0 && name.starts_with("[anon") => return Backing::Anonymous,
        // Kernels before 4.5 named the stack of every thread.
        _ if inode == 0 && name.starts_with("[stack:") => return Backing::Anonymous,
        _ if inode == 0 && name.starts_with('[') => return Backing::Kernel,
        _ if inode == 0 && name.is_empty() => return Backing::Anonymous,
        _ => {}
    }
    if name.starts_with("/anon_hugepage") {
        return Backing::Hugetlbfs;
    }
    // memfd_secret(2): its pages have no disk either, and the kernel swaps none of them.
    let shmem =
        ["/memfd:", "/SYSV", "/dev/shm/", "/dev/zero", "/secretmem"].iter().any(|prefix| name.starts_with(prefix));
    if shmem || tmpfs.contains(&device) || name.starts_with("[anon_shmem") {
        return Backing::Shmem;
    }
    if name.starts_with("/dev/") || name.starts_with("anon_inode:") || name.starts_with("/[") {
        return Backing::Device;
    }
    Backing::File
}

/// False if the line isn't `Key: value`. Unknown keys are accepted.
fn field(vma: &mut Vma, line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
    let (key, value) = (&line[..colon], &line[colon + 1..]);
    if key == b"VmFlags" {
        vma.flags = flags(value);
        if vma.flags.hugetlb {
            vma.backing = Backing::Hugetlbfs;
        }
        return true;
    }
    let slot = match key {
        b"Rss" => &mut vma.rss,
        b"Pss" => &mut vma.pss,
        b"Shared_Clean" => &mut vma.shared_clean,
        b"Shared_Dirty" => &mut vma.shared_dirty,
        b"Private_Clean" => &mut vma.private_clean,
        b"Private_Dirty" => &mut vma.private_dirty,
        b"Anonymous" => &mut vma.anonymous,
        b"AnonHugePages" => &mut vma.anon_huge,
        b"LazyFree" => &mut vma.lazy_free,
        b"Private_Hugetlb" | b"Shared_Hugetlb" => {
            return kilobytes(value).map(|bytes| vma.hugetlb += bytes).is_some();
        }
        b"Swap" => &mut vma.swap,
        b"Locked" => &mut vma.locked,
        _ => return true,
    };
    kilobytes(value).map(|bytes| *slot = bytes).is_some()
}

fn flags(words: &[u8]) -> VmaFlags {
    let mut flags = VmaFlags::default();
    for word in words.split(|byte| *byte == b' ') {
        match word {
            b"gd" => flags.grows_down = true,
            b"hg" => flags.huge_advised = true,
            b"nh" => flags.no_huge = true,
            b"ht" => flags.hugetlb = true,
            b"nr" => flags.no_reserve = true,
            b"lo" => flags.locked = true,
            _ => {}
        }
    }
    flags
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    text.split_at(end)
}

fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| Some(value << 4 | u64::from((*digit as char).to_digit(16)?)))
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    let digits = digits.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits
        .iter()
        .try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from((*digit as char).to_digit(10)?)))
}

/// Parses `      132 kB`.
pub(super) fn kilobytes(value: &[u8]) -> Option<Bytes> {
    // Most figures of most mappings are 0.
    if value.strip_suffix(b" 0 kB").is_some_and(|before| before.iter().all(|byte| *byte == b' ')) {
        return Some(Bytes(0));
    }
    let digits = value.trim_ascii().strip_suffix(b"kB").unwrap_or(value);
    decimal(digits)?.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    const TEXT: &[u8] = b"\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                  20 kB
Pss:                  20 kB
Private_Dirty:        20 kB
Anonymous:            20 kB
AnonHugePages:         0 kB
Swap:                  4 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
Size:                  4 kB
Rss:                   0 kB
VmFlags: mr mw me nr sd
7f0000001000-7f0000801000 rw-s 00000000 00:01 1026                       /memfd:a\\012b c (deleted)
Rss:                8192 kB
FutureKey:             1 kB
VmFlags: rd wr sh mr mw me ms sd
7f0000900000-7f0000a00000 r--p 00001000 fe:00 247026                     /srv/in dex.db
Rss:                 512 kB
Private_Clean:       512 kB
VmFlags: rd mr mw me
7f0000b00000-7f0000c00000 rw-p 00000000 00:21 7                          /run/cache
VmFlags: rd wr
7f0000d00000-7f0000e00000 rw-p 00000000 00:21 4                          /dev/zero
VmFlags: rd wr mr mw me ac
7f0000f00000-7f0001000000 rw-s 00000000 00:01 1027                       /dev/zero (deleted)
VmFlags: rd wr sh mr mw me ms
7f0001100000-7f0001200000 rw-s 00000000 00:10 1028                       /secretmem (deleted)
VmFlags: rd wr sh mr mw me ms lo
";

    #[test]
    fn every_kind_of_header_is_recognised() {
        let smaps = parse_smaps(TEXT, &[(0, 0x21)]);
        assert_eq!(smaps.bad_lines, 0);
        let kinds: Vec<_> = smaps.vmas.iter().map(|vma| vma.backing.clone()).collect();
        let [brk, anonymous, shmem, file] = [Backing::Brk, Backing::Anonymous, Backing::Shmem, Backing::File];
        let all = [&brk, &anonymous, &shmem, &file, &shmem, &anonymous, &shmem, &shmem];
        assert_eq!(kinds.iter().collect::<Vec<_>>(), all);
        let memfd = &smaps.vmas[2];
        assert_eq!(
            (memfd.name.as_str(), memfd.deleted, memfd.shared, memfd.rss),
            ("/memfd:a\nb c", true, true, Bytes::mib(8))
        );
        assert_eq!(smaps.vmas[0].swap, Bytes::kib(4));
        assert!(smaps.vmas[1].inaccessible() && smaps.vmas[1].flags.no_reserve);
        assert_eq!(smaps.vmas[3].name, "/srv/in dex.db");
    }

    /// redis-server at rest, Linux 6.18; both files from the same moment.
    const REDIS: &[u8] = include_bytes!("../../goldens/smaps-redis.txt");
    const REDIS_ROLLUP: &[u8] = include_bytes!("../../goldens/smaps-rollup-redis.txt");

    #[test]
    fn a_captured_file_sums_to_the_kernels_own_sum() {
        let smaps = parse_smaps(REDIS, &[]);
        let rollup = parse_rollup(REDIS_ROLLUP).expect("a sum");
        assert_eq!((smaps.vmas.len(), smaps.bad_lines), (116, 0));
        let sum = |of: fn(&Vma) -> Bytes| smaps.vmas.iter().map(of).sum::<Bytes>();
        assert_eq!(sum(|vma| vma.rss), rollup.rss);
        assert_eq!(sum(|vma| vma.private_clean + vma.private_dirty), rollup.private);
        assert_eq!(sum(|vma| vma.anonymous), rollup.anonymous);
        // The shares of the mappings are each rounded down to KiB, the sum only once.
        let lost = rollup.pss - sum(|vma| vma.pss);
        assert!(lost < Bytes::kib(116), "{lost}");
        let of = |backing: Backing| smaps.vmas.iter().filter(|vma| vma.backing == backing).count();
        assert_eq!((of(Backing::Brk), of(Backing::MainStack)), (0, 1), "jemalloc takes nothing by brk");
        assert!(smaps.vmas.iter().any(|vma| vma.executable && vma.name.ends_with("/libcrypto.so.3")));
    }

    #[test]
    fn a_captured_file_with_changes_neither_panics_nor_grows() {
        let whole: Bytes = parse_smaps(REDIS, &[]).vmas.iter().map(|vma| vma.rss).sum();
        let mut fewer = 0;
        for text in mutated(REDIS, 1500) {
            let smaps = parse_smaps(&text, &[]);
            let sum: Bytes = smaps.vmas.iter().map(|vma| vma.rss).sum();
            fewer += usize::from(sum < whole);
            assert!(smaps.vmas.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        }
        assert!(fewer > 100, "{fewer}");
    }

    /// An arena's heap grows by mprotect, and neighbours merge, while the text is read.
    #[test]
    fn a_mapping_that_grew_while_it_was_read_counts_once() {
        let line = |range: &str, rss: u64| format!("{range} rw-p 00000000 00:00 0 \nRss: {rss} kB\n");
        let text = [
            line("1000-2000", 4),
            line("5000-8000", 12),
            line("8000-9000", 4),
            line("5000-a000", 20),
            line("a000-b000", 4),
            line("f000-10000", 0),
        ];
        let smaps = parse_smaps(text.concat().as_bytes(), &[]);
        let found: Vec<_> =
            smaps.vmas.iter().map(|vma| (vma.range.start.0, vma.range.end.0, vma.rss.0 >> 10)).collect();
        assert_eq!(found, [(0x1000, 0x2000, 4), (0x5000, 0xa000, 20), (0xa000, 0xb000, 4), (0xf000, 0x1_0000, 0)]);
        assert_eq!(smaps.bad_lines, 0);
    }

    #[test]
    fn mutated_text_neither_panics_nor_breaks_the_order() {
        let mut changed = 0;
        for text in mutated(TEXT, 20_000) {
            let smaps = parse_smaps(&text, &[]);
            changed += usize::from(smaps.bad_lines > 0);
            for pair in smaps.vmas.windows(2) {
                assert!(pair[0].range.end <= pair[1].range.start);
            }
            let _ = parse_rollup(&text);
        }
        assert!(changed > 1000, "{changed}");
    }

    /// Uses a child at rest. This process's own files change while they are read, because other tests' threads allocate
    /// memory.
    #[test]
    fn smaps_of_a_process_at_rest_sums_to_its_rollup() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
        let file = |name: &str| std::fs::read(format!("/proc/{}/{name}", child.id())).expect("own child");
        let still = (0..600).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let (before, text) = (file("smaps_rollup"), file("smaps"));
            (before == file("smaps_rollup")).then_some((text, before))
        });
        child.kill().and_then(|()| child.wait()).expect("it slept");
        let (text, rollup) = still.expect("it comes to rest");
        let (smaps, rollup) = (parse_smaps(&text, &[]), parse_rollup(&rollup).expect("a sum"));
        assert_eq!(smaps.bad_lines, 0);
        let sum: Bytes = smaps.vmas.iter().map(|vma| vma.rss).sum();
        assert!(sum == rollup.rss && sum > Bytes(0), "{sum} {}", rollup.rss);
    }
}
