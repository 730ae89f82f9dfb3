//! A JVM whose cgroup holds more than the JVM: what the flags need then, and whether the remedies for it hold. Needs
//! root, for the group.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cgroup::Cgroup;
use crate::fixture::{Explained, Fixture, skip};
use crate::java::classes;
use crate::jdks::jdks;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 300;

/// A file in the tmpfs /dev/shm. Removed when dropped.
struct InMemory(PathBuf);

impl InMemory {
    fn new(group: &Cgroup, mib: u64) -> InMemory {
        let file = InMemory(Path::new("/dev/shm").join(format!("plimsoll-beside-{}", std::process::id())));
        let mut dd = Command::new("dd");
        dd.arg("if=/dev/zero").arg(format!("of={}", file.0.display())).arg("bs=1M").arg(format!("count={mib}"));
        assert!(group.wrap(&dd).stderr(Stdio::null()).status().expect("dd").success());
        file
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn vm(group: &Cgroup, max: &str, fills: u64) -> Fixture {
    let jdk = jdks().last().expect("a JDK");
    let mut java = jdk.tool("java");
    java.args(["-XX:-UsePerfData", "-XX:+UseSerialGC", max, "-cp"]).arg(classes());
    java.arg("FillsHeap").arg(fills.to_string());
    Fixture::run(group.wrap(&java).stdin(Stdio::piped()))
}

fn limit_near(explained: &Explained) -> serde_json::Value {
    let verdicts = explained.0["verdicts"].as_array().expect("verdicts");
    let near = verdicts.iter().find(|verdict| verdict["id"] == "limit-near");
    near.unwrap_or_else(|| panic!("no limit-near: {verdicts:#?}")).clone()
}

/// 300 MiB for a heap of at most 220 and 120 MiB of a tmpfs: healthy only as long as the heap is empty.
#[test]
fn the_remedies_leave_what_a_tmpfs_takes() {
    let name = "the_remedies_leave_what_a_tmpfs_takes";
    let group = match Cgroup::make("explain-tmpfs") {
        Ok(group) => group,
        Err(reason) => return skip(name, &reason),
    };
    group.limit(LIMIT * MIB);
    let _tmpfs = InMemory::new(&group, 120);
    let near = {
        let idle = vm(&group, "-Xmx220m", 1);
        limit_near(&idle.explained())
    };
    assert!(near["evidence"].to_string().contains(" MiB of it is in tmpfs files (shared memory)"), "{near:#}");
    let remedies: Vec<&str> =
        near["remedies"].as_array().expect("remedies").iter().filter_map(|remedy| remedy["how"].as_str()).collect();
    let cap = remedies.iter().find(|how| how.starts_with("-Xmx")).unwrap_or_else(|| panic!("{near:#}"));
    let max: u64 = cap.trim_start_matches("-Xmx").trim_end_matches('m').parse().expect("MiB");
    // Less than the old generation (two thirds), so any JDK can keep it; the young one is touched on the way.
    let kills = group.oom_kills();
    vm(&group, cap, max * 3 / 5).serves();
    let raise = remedies.iter().find(|how| how.starts_with("echo ")).unwrap_or_else(|| panic!("{near:#}"));
    // The test may be root without having sudo.
    let typed = Command::new("sh").arg("-c").arg(raise.replace("sudo ", "")).stdout(Stdio::null()).status();
    assert!(typed.expect("a shell").success(), "{raise}");
    vm(&group, "-Xmx220m", 220 * 3 / 5).serves();
    assert_eq!(group.oom_kills(), kills);
}

/// Each alone fits into 300 MiB, but not one full beside the other.
#[test]
fn another_vm_of_the_group_counts() {
    let name = "another_vm_of_the_group_counts";
    let group = match Cgroup::make("explain-two-vms") {
        Ok(group) => group,
        Err(reason) => return skip(name, &reason),
    };
    group.limit(LIMIT * MIB);
    let mut other = vm(&group, "-Xmx220m", 100);
    other.serves();
    let idle = vm(&group, "-Xmx220m", 1);
    let near = limit_near(&idle.explained());
    let largest = format!(": PID {}", other.pid());
    assert!(near["evidence"].to_string().contains(&largest), "{near:#}");
    let lines = idle.explained().0["cgroup"]["lines"].clone();
    let line = lines.as_array().expect("lines").iter().find(|line| line["id"] == "other-processes").expect("the line");
    assert!(line["bytes"].as_u64() >= Some(100 * MIB), "{lines:#}");
}
