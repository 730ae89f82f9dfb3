//! A run that is killed leaves the file systems that its tests had mounted below target/. Before it starts, the next
//! run unmounts these file systems, and no others. While another run uses the same target/, they stay: they may be that
//! run's.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

/// What tests give mount(8) as the device (`crates/cli/tests/situations/environment.rs`).
const DEVICE: &str = "plimsoll-test";

/// Every run holds a shared lock of this file until the value is dropped. `alone` is called if no other run has it.
pub fn share(lock: &Path, alone: impl FnOnce()) -> std::io::Result<File> {
    let file = File::create(lock)?;
    // SAFETY: flock(2) of our own file.
    let flock = |how| unsafe { libc::flock(file.as_raw_fd(), how) };
    if flock(libc::LOCK_EX | libc::LOCK_NB) == 0 {
        alone();
    }
    // A run that has just found itself alone keeps us waiting here until it has the shared lock, too.
    match flock(libc::LOCK_SH) {
        0 => Ok(file),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Unmounts what tests have mounted below the folder, the innermost first.
pub fn clear(folder: &Path) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for at in of_tests(&table, folder) {
        println!("unmounts {at}, which an earlier run left");
        // -l: a process that the killed run left may still use it.
        let _ = Command::new("umount").arg("-l").arg(at).status();
    }
}

/// proc_pid_mountinfo(5): `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`. A path with
/// a space or a tab is escaped there and not found.
fn of_tests<'a>(table: &'a str, folder: &Path) -> Vec<&'a str> {
    let mounted = |line: &'a str| {
        let (mount, device) = line.split_once(" - ")?;
        let at = mount.split(' ').nth(4)?;
        (device.split(' ').nth(1)? == DEVICE && Path::new(at).starts_with(folder)).then_some(at)
    };
    table.lines().rev().filter_map(mounted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::child::wait_until;

    /// flock(2) treats a separate open descriptor like another process.
    #[test]
    fn only_a_run_that_is_alone_unmounts() {
        let lock = crate::stage::folder("test-of-mounts").expect("a folder").join("lock");
        let run = || {
            let mut is_alone = false;
            let held = share(&lock, || is_alone = true).expect("a lock");
            (held, is_alone)
        };
        let (first, is_first_alone) = run();
        let (second, is_second_alone) = run();
        drop(first);
        let (third, is_third_alone) = run();
        assert_eq!([is_first_alone, is_second_alone, is_third_alone], [true, false, false]);
        drop((second, third));
        // A child that another test forks has copies of the descriptors until its exec, so it holds the lock, too.
        wait_until("the others to have ended", || run().1);
    }

    #[test]
    fn only_what_tests_mounted_below_the_folder_is_found() {
        let table = "\
22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
90 22 0:40 / /w/target/tmp/situations/mounts/one rw shared:9 - tmpfs plimsoll-test rw,size=1024k
91 90 0:41 / /w/target/tmp/situations/mounts/one/two rw - tmpfs plimsoll-test rw
92 22 0:42 / /w/target/tmp/other rw - tmpfs tmpfs rw
93 22 0:43 / /v/target/tmp/situations/mounts/one rw - tmpfs plimsoll-test rw
94 22 0:44 / /w/target/tmp-two rw - tmpfs plimsoll-test rw
";
        let one = "/w/target/tmp/situations/mounts/one";
        assert_eq!(of_tests(table, Path::new("/w/target/tmp")), [&format!("{one}/two"), one]);
    }
}
