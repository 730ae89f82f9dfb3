//! Names, links and mappings that lead to another file than the one that was checked.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_segment::Header;

use crate::commands::{LIMIT, MALLORY, Running, Scratch, as_mallory, ended, fifo, is_skipped, only_segment, plimsoll};

/// The segment of a program that has ended.
fn segment(scratch: &Scratch) -> std::path::PathBuf {
    let segments = scratch.join("segments");
    let run = ended(plimsoll(scratch).args(["run", "--dir"]).arg(&segments).args(["--", "/bin/true"]), LIMIT);
    assert_eq!(run.code(), Some(0), "{}", run.text);
    only_segment(&segments)
}

/// Attempts of the race: each hits another instant of the exchange.
const ATTEMPTS: usize = 200;

#[test]
fn attach_writes_into_no_file_that_the_target_can_only_read() {
    if is_skipped("attach_writes_into_no_file_that_the_target_can_only_read") {
        return;
    }
    let scratch = Scratch::new("flip");
    let attack = scratch.compiled("flip", "flip", &[]);
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
    // Only attempts that come as far as the write say anything about it.
    assert!(written > 0, "no attempt found the segment");
}

fn segment_of(scratch: &Scratch) -> std::path::PathBuf {
    only_segment(&scratch.join("segments"))
}

/// A directory of segments that several users share, as a volume of several containers is.
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
    // Later than any process.
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
    assert!(refused.text.contains("is not tracked: start it"), "{}", refused.text);
    // The same file of root's own is found: it was refused for its owner.
    chown(&forged, Some(0), Some(0)).expect("chown");
    assert!(!report().text.contains("is not tracked: start it"), "{}", report().text);
}

/// A target in a mount namespace of its own can put anything in the place of its cgroup's files.
#[test]
fn files_mounted_over_a_targets_cgroup_are_not_read() {
    if is_skipped("files_mounted_over_a_targets_cgroup_are_not_read") {
        return;
    }
    let scratch = Scratch::new("cgroup");
    let script = "mount -t tmpfs none /sys/fs/cgroup && cd /sys/fs/cgroup && mkfifo memory.max memory.current memory.stat \
                  memory.limit_in_bytes memory.usage_in_bytes && echo ready && exec sleep 600";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]);
    let (target, line) = Running::start(&mut command);
    if line != "ready" {
        eprintln!("skipped: files_mounted_over_a_targets_cgroup_are_not_read: no mount namespaces here");
        return;
    }
    let explained = ended(plimsoll(&scratch).args(["explain", &target.pid().to_string()]), LIMIT);
    assert_eq!(explained.code(), Some(0), "{}", explained.text);
    assert!(Path::new("/sys/fs/cgroup").exists());
}
