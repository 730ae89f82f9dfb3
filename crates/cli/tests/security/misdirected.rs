//! Names, links and mappings that lead to another file than the checked one.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::process::{Command, Stdio};

use plimsoll_segment::Header;

use crate::child::Running;
use crate::commands::{LIMIT, Scratch, as_mallory, ended, fifo, is_skipped, only_segment, plimsoll};
use crate::kit::{MALLORY, PLIMSOLL};
use crate::stage::log_line;

/// The segment of a program that has ended.
fn segment(scratch: &Scratch) -> std::path::PathBuf {
    let segments = scratch.join("segments");
    let run = ended(plimsoll(scratch).args(["run", "--dir"]).arg(&segments).args(["--", "/bin/true"]), LIMIT);
    assert_eq!(run.code(), Some(0), "{}", run.text);
    only_segment(&segments)
}

/// Attempts of the race: each hits another moment of the exchange.
const ATTEMPTS: usize = 200;

#[test]
fn attach_writes_into_no_file_that_the_target_can_only_read() {
    if is_skipped("attach_writes_into_no_file_that_the_target_can_only_read") {
        return;
    }
    let scratch = Scratch::new("flip");
    // A static program can't be attached to. Else an attempt that finds no segment would attach the tracker, and every
    // later one would find that real segment.
    let attack = scratch.compiled("flip", "flip", &["-static"]);
    let (page, victim) = (scratch.join("page"), scratch.join("victim"));
    let mut header = vec![0; 4096];
    fs::File::open(segment(&scratch)).expect("segment").read_exact(&mut header).expect("page");
    fs::write(&page, &header).expect("page");
    let content: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
    fs::write(&victim, &content).expect("victim");
    let own = scratch.of_mallory("own").join("own.seg");
    let offsets = [offset_of!(Header, pid), offset_of!(Header, start_boottime_ns), offset_of!(Header, state)];
    let size = fs::metadata(segment_of(&scratch)).expect("segment").len();
    let words = offsets.map(|offset| OsString::from(offset.to_string()));
    let mut command = as_mallory(&attack);
    command.arg(&page).arg(&victim).arg(&own).args(words).arg(size.to_string());
    let (target, _) = Running::start(&mut command);
    let pid = target.pid().to_string();
    let mut written = 0;
    for attempt in 0..ATTEMPTS {
        let attach = ended(plimsoll(&scratch).args(["attach", &pid, "--yes"]), LIMIT);
        written += usize::from(attach.text.contains("is tracked already"));
        assert!(fs::read(&victim).expect("victim") == content, "attempt {attempt} wrote into it: {}", attach.text);
    }
    // Only attempts that reach the write count.
    assert!(written > 0, "no attempt found the segment");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    assert!(!maps.contains("/libplimsoll"), "an attempt attached the tracker: {maps}");
}

fn segment_of(scratch: &Scratch) -> std::path::PathBuf {
    only_segment(&scratch.join("segments"))
}

/// A directory of segments that several users share, as containers share a volume.
#[test]
fn another_users_segment_does_not_answer_for_a_process() {
    if is_skipped("another_users_segment_does_not_answer_for_a_process") {
        return;
    }
    let scratch = Scratch::new("shared");
    let original = segment(&scratch);
    let shared = scratch.join("shared");
    fs::create_dir(&shared).expect("folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("mode");
    let sleeper = Running(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep"));
    let pid = sleeper.pid();
    let forged = shared.join(format!("{pid}-1.seg"));
    fs::copy(original, &forged).expect("segment");
    let file = fs::File::options().write(true).open(&forged).expect("segment");
    file.write_all_at(&pid.to_ne_bytes(), offset_of!(Header, pid) as u64).expect("written");
    // Later than the start of any process.
    let start = offset_of!(Header, start_boottime_ns) as u64;
    file.write_all_at(&(u64::MAX >> 2).to_ne_bytes(), start).expect("written");
    chown(&forged, Some(MALLORY), Some(MALLORY)).expect("chown");
    fifo(&shared.join(format!("{pid}-2.seg")));
    let report = || {
        let mut command = plimsoll(&scratch);
        ended(command.env("PLIMSOLL_DIR", &shared).args(["report", &pid.to_string()]), LIMIT)
    };
    let refused = report();
    assert_eq!(refused.code(), Some(2), "{}", refused.text);
    assert!(refused.text.contains("is not tracked. Use"), "{}", refused.text);
    // The same file, owned by root, is found: so it was refused because of its owner.
    chown(&forged, Some(0), Some(0)).expect("chown");
    assert!(!report().text.contains("is not tracked. Use"), "{}", report().text);
}

/// Lays other files over the group's, in every mount of the kernel's that the target has, for the group and all above
/// it.
const FORGE: &str = r#"
forge() {
  for name in memory.limit_in_bytes memory.max; do echo 123456512 > "$1/$name"; done
  for name in memory.usage_in_bytes memory.current; do echo 4096 > "$1/$name"; done
  : > "$1/memory.stat"
}
points=$(awk '{ for (i = 7; i < NF; i++) if ($i == "-") print $(i + 1), $5, $(i + 3) }' /proc/self/mountinfo |
  awk '$1 == "cgroup2" || ($1 == "cgroup" && $3 ~ /memory/) { print $2 }')
for point in $points; do
  mount -t tmpfs none "$point" && forge "$point" || exit 1
  for path in $(cut -d: -f3 /proc/self/cgroup | sort -u); do
    below=$point
    for part in $(echo "$path" | tr / ' '); do below=$below/$part; mkdir -p "$below" && forge "$below"; done
  done
done
echo ready; exec sleep 600"#;

/// A target in its own mount namespace can replace the files of its cgroup. The observer reads them only if it has no
/// mount of the hierarchy itself.
#[test]
fn files_mounted_over_a_targets_cgroup_are_not_believed() {
    const NAME: &str = "files_mounted_over_a_targets_cgroup_are_not_believed";
    if is_skipped(NAME) {
        return;
    }
    let scratch = Scratch::new("cgroup");
    let target = |script: &str| Running::start(Command::new("unshare").args(["-m", "sh", "-c", script]));
    let explained = |pid: u32| {
        let words = ["-m", "sh", "-c", "umount -R /sys/fs/cgroup && exec \"$0\" explain --format json \"$1\""];
        let mut command = Command::new("unshare");
        command.args(words).arg(PLIMSOLL).arg(pid.to_string());
        command.env("XDG_CACHE_HOME", scratch.join("cache")).env_remove("PLIMSOLL_DIR");
        let explained = ended(&mut command, LIMIT);
        assert_eq!(explained.code(), Some(0), "{}", explained.text);
        let report: serde_json::Value = serde_json::from_str(&explained.text).expect("JSON");
        (report["cgroup"].clone(), explained.text)
    };
    let (honest, ready) = target("echo ready; exec sleep 600");
    let (forger, forged) = target(FORGE);
    if (&*ready, &*forged) != ("ready", "ready") {
        log_line(&format!("{NAME}: skipped, no mount namespaces here"));
        return;
    }
    let (cgroup, text) = explained(honest.pid());
    if cgroup.is_null() {
        log_line(&format!("{NAME}: skipped, this process has no memory cgroup that is mounted: {text}"));
        return;
    }
    let (cgroup, text) = explained(forger.pid());
    assert!(cgroup.is_null(), "a forged cgroup was used: {cgroup}");
    assert!(text.contains("can't be read in /proc/"), "no gap reports the covered file: {text}");
    // Only the limit's file is covered: then the limit is unknown, which is not "no limit".
    let hide = "for f in $(find /sys/fs/cgroup \\( -name memory.limit_in_bytes -o -name memory.max \\)); do \
                mount --bind /etc/hostname $f || exit 1; done; echo ready; exec sleep 600";
    let (hider, hidden) = target(hide);
    assert_eq!(hidden, "ready");
    let (_, text) = explained(hider.pid());
    assert!(text.contains("something is mounted over it"), "{text}");
}
