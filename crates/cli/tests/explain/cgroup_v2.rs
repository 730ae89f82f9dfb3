//! Control groups of version 2, also on a machine whose memory controller is bound to version 1. The hierarchy, the
//! group, its process and the mounts are real; a bind mount lays files of the controller over the group's directory.

use std::path::PathBuf;
use std::process::Command;

use crate::fixture::{Explained, Fixture, PLIMSOLL, compiled, fresh, is_root, skip};

const MIB: u64 = 1 << 20;

/// `memory.stat` of kernel 6.1, without the counters that are not bytes.
fn stat(anon: u64, file: u64, inactive: u64, shmem: u64, kernel: u64, sock: u64) -> String {
    format!(
        "anon {anon}\nfile {file}\nkernel {kernel}\nkernel_stack 65536\npagetables 393216\nsec_pagetables 0\npercpu 1200\n\
         sock {sock}\nvmalloc 0\nshmem {shmem}\nzswap 0\nzswapped 0\nfile_mapped 1048576\nfile_dirty 0\nfile_writeback 0\n\
         swapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon {anon}\nactive_anon 0\ninactive_file {inactive}\n\
         active_file {}\nunevictable 0\nslab_reclaimable 200000\nslab_unreclaimable 100000\nslab 300000\npgfault 21000\n",
        file - shmem - inactive
    )
}

/// A fixture in the group `outer/inner` of a cgroup hierarchy of its own mount namespace, where the test's files are
/// mounted over those of both groups.
struct Contained {
    fixture: Option<Fixture>,
    directory: PathBuf,
    group: String,
}

/// Whether the process has its own cgroup namespace, as in a container: it sees `inner` as the root.
#[derive(Clone, Copy, PartialEq)]
enum Namespace {
    Shared,
    Own,
}

/// The limits of the two groups.
#[derive(Clone, Copy, PartialEq)]
enum Groups {
    /// `outer` has the lower limit, and is fuller.
    Lower,
    /// `outer` has the higher limit, and a group beside `inner` uses it up.
    Siblings,
    /// No limit; `outer` has a `memory.high`.
    High,
}

impl Contained {
    fn new(namespace: Namespace, groups: Groups) -> Option<Contained> {
        let name = match (namespace, groups) {
            (Namespace::Own, _) => "own",
            (_, Groups::Lower) => "shared",
            (_, Groups::Siblings) => "siblings",
            (_, Groups::High) => "high",
        };
        let group = format!("plimsoll-{name}-{}", std::process::id());
        let directory = fresh(&format!("cgroup-v2-{name}"));
        // `outer` needs a folder `inner`: once it is mounted over the group, `inner` is mounted over that folder.
        std::fs::create_dir_all(directory.join("outer/inner")).unwrap();
        std::fs::create_dir_all(directory.join("inner")).unwrap();
        std::fs::create_dir_all(directory.join("hierarchy")).unwrap();
        let write = |folder: &str, files: &[(&str, String)]| {
            for (file, text) in files {
                std::fs::write(directory.join(folder).join(file), text).unwrap();
            }
        };
        write(
            "outer",
            &[
                ("memory.max", format!("{}\n", 100 * MIB)),
                ("memory.current", format!("{}\n", 98 * MIB)),
                ("memory.peak", format!("{}\n", 100 * MIB)),
                ("memory.stat", stat(70 * MIB, 20 * MIB, 2 * MIB, 2 * MIB, 6 * MIB, MIB)),
                ("memory.events", "low 0\nhigh 0\nmax 41\noom 5\noom_kill 9\noom_group_kill 0\n".into()),
                ("memory.events.local", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\noom_group_kill 0\n".into()),
                ("cpu.max", "50000 100000\n".into()),
            ],
        );
        write(
            "inner",
            &[
                ("memory.max", format!("{}\n", 256 * MIB)),
                ("memory.current", format!("{}\n", 75 * MIB)),
                ("memory.stat", stat(66 * MIB, 6 * MIB, 4 * MIB, 0, 2 * MIB, 0)),
                ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 3\noom_group_kill 0\n".into()),
                ("cpu.max", "max 100000\n".into()),
                ("cgroup.procs", String::new()),
            ],
        );
        let set = |folder: &str, file: &str, text: String| write(folder, &[(file, text)]);
        match groups {
            Groups::Lower => {}
            Groups::Siblings => {
                std::fs::create_dir_all(directory.join("outer/beside")).unwrap();
                set("outer", "memory.max", format!("{}\n", 1000 * MIB));
                set("outer", "memory.current", format!("{}\n", 990 * MIB));
                set("outer/beside", "memory.current", format!("{}\n", 910 * MIB));
                set("outer", "memory.stat", stat(970 * MIB, 20 * MIB, 2 * MIB, 2 * MIB, 6 * MIB, MIB));
            }
            Groups::High => {
                set("outer", "memory.max", "max\n".into());
                set("inner", "memory.max", "max\n".into());
                set("outer", "memory.high", format!("{}\n", 100 * MIB));
                set("outer", "memory.events", "low 0\nhigh 41\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n".into());
                let pressure = "some avg10=12.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=40\n";
                set("inner", "memory.pressure", pressure.into());
            }
        }
        let [outside, inside] = match namespace {
            Namespace::Shared => [
                String::new(),
                format!("mount --bind outer hierarchy/{group}; mount --bind inner hierarchy/{group}/inner"),
            ],
            Namespace::Own => {
                ["--cgroup".into(), "mkdir -p own; mount -t cgroup2 none own; mount --bind inner own".into()]
            }
        };
        // The hierarchies of version 1 are hidden: a machine that runs version 2 has none.
        let script = format!(
            "set -e; cd \"{directory}\"; mount -t cgroup2 none hierarchy; mkdir -p hierarchy/{group}/inner; \
             echo $$ >hierarchy/{group}/inner/cgroup.procs; umount -l /sys/fs/cgroup || true; \
             exec unshare --mount {outside} sh -c 'set -e; {inside}; exec \"{program}\" 64'",
            directory = directory.display(),
            program = compiled("healthy", &[]).display(),
        );
        let mut contained = Contained { fixture: None, directory, group };
        let probe = Command::new("unshare")
            .args(["--mount", "mount", "-t", "cgroup2", "none"])
            .arg(contained.directory.join("hierarchy"))
            .output();
        if !is_root() || !probe.is_ok_and(|output| output.status.success()) {
            skip("cgroup v2", "needs root that may mount");
            return None;
        }
        contained.fixture = Some(Fixture::run(Command::new("unshare").args(["--mount", "sh", "-c", &script])));
        Some(contained)
    }

    /// Runs a plimsoll inside the namespaces of the process.
    fn explained(&self) -> Explained {
        let pid = self.fixture.as_ref().expect("runs").pid().to_string();
        let output = Command::new("nsenter")
            .args(["--mount", "--cgroup", "--target", &pid, PLIMSOLL, "explain", &pid, "--format", "json"])
            .output()
            .expect("nsenter");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let explained = Explained(serde_json::from_slice(&output.stdout).expect("JSON"));
        explained.adds_up();
        explained.line_is("glibc-live", self.fixture.as_ref().expect("runs").truth("live"));
        explained
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.fixture = None;
        // A group can be removed once its last process has been reaped.
        let script = format!(
            "mount -t cgroup2 none hierarchy; for i in 1 2 3 4 5 6 7 8 9 10; do \
             rmdir hierarchy/{0}/inner hierarchy/{0} && break; sleep 0.1; done",
            self.group
        );
        let _ = Command::new("unshare").args(["--mount", "sh", "-c", &script]).current_dir(&self.directory).output();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn the_lowest_limit_on_the_way_up_is_the_one_that_kills() {
    let Some(contained) = Contained::new(Namespace::Shared, Groups::Lower) else { return };
    let explained = contained.explained();
    let (limit, cgroup) = (&explained.0["limit"], &explained.0["cgroup"]);
    assert_eq!((limit["source"].as_str(), limit["bytes"].as_u64()), (Some("memory.max"), Some(100 * MIB)));
    assert_eq!(limit["charged_bytes"], 98 * MIB);
    // The kubelet's formula: charged − inactive_file.
    assert_eq!(limit["working_set_bytes"], 96 * MIB);
    assert_eq!((cgroup["version"].as_u64(), cgroup["oom_kills"].as_u64()), (Some(2), Some(3)));
    assert_eq!(cgroup["path"], format!("/{}/inner", contained.group));
    assert_eq!(cgroup["cpu_quota"], 0.5);
    let sum: i64 = cgroup["lines"].as_array().unwrap().iter().map(|line| line["bytes"].as_i64().unwrap()).sum();
    assert_eq!((sum, cgroup["rest_bytes"].as_i64()), (97 * MIB as i64, Some(MIB as i64)), "{cgroup:#}");
    explained.verdicts_are(&["limit-near", "unclear"]);
    let evidence = explained.verdict("limit-near")["evidence"].to_string();
    assert!(evidence.contains("96.0 MiB of 100 MiB"), "{evidence}");
    assert!(evidence.contains("that limit itself was reached 2 times with nothing left to take back"), "{evidence}");
    assert!(evidence.contains("this process's own group has had 3 OOM kills"), "{evidence}");
}

/// The lower limit has 185 MiB left, the higher one 12.
#[test]
fn a_group_above_with_a_higher_limit_kills_first_if_its_other_groups_use_it_up() {
    let Some(contained) = Contained::new(Namespace::Shared, Groups::Siblings) else { return };
    let explained = contained.explained();
    let (limit, cgroup) = (&explained.0["limit"], &explained.0["cgroup"]);
    assert_eq!((limit["bytes"].as_u64(), limit["working_set_bytes"].as_u64()), (Some(1000 * MIB), Some(988 * MIB)));
    assert_eq!(cgroup["limit_path"], format!("/{}", contained.group));
    let further = &cgroup["further_limits"][0];
    assert_eq!(
        (further["limit_bytes"].as_u64(), further["working_set_bytes"].as_u64()),
        (Some(256 * MIB), Some(71 * MIB))
    );
    assert_eq!(further["path"], format!("/{}/inner", contained.group));
    explained.verdicts_are(&["limit-near", "unclear"]);
    let near = explained.verdict("limit-near");
    let summary = format!(
        "99 % of the limit of /{}, a group above this process's, is in use: 12.0 MiB are left",
        contained.group
    );
    assert_eq!(near["summary"], summary);
    let evidence = near["evidence"].to_string();
    assert!(
        evidence.contains(&format!(
            "charged in groups beside this process's, with page cache: /{}/beside 910 MiB",
            contained.group
        )),
        "{evidence}"
    );
    // This hierarchy isn't mounted below /sys, so no file of it is proposed.
    let raise = near["remedies"].as_array().unwrap().last().unwrap()["how"].as_str().unwrap();
    assert!(raise.contains("{memory: 1100Mi}"), "{raise}");
}

#[test]
fn a_group_above_that_throttles_is_named_with_its_counts() {
    let Some(contained) = Contained::new(Namespace::Shared, Groups::High) else { return };
    let explained = contained.explained();
    let cgroup = &explained.0["cgroup"];
    assert_eq!((explained.0["limit"].is_null(), cgroup["further_limits"].as_array().unwrap().len()), (true, 0));
    assert_eq!(
        (cgroup["throttles"][0]["high_bytes"].as_u64(), cgroup["throttles"][0]["times"].as_u64()),
        (Some(100 * MIB), Some(41))
    );
    explained.verdicts_are(&["limit-near", "unclear"]);
    let near = explained.verdict("limit-near");
    let group = &contained.group;
    assert_eq!(near["severity"], "warning");
    assert_eq!(
        near["summary"],
        format!(
            "memory.high of /{group}, a group above this process's, throttles the program: 98.0 MiB of 100 MiB are charged"
        )
    );
    let facts =
        "throttled 41 times since the group was made; in the last 10 s threads waited for memory 12 % of the time";
    assert!(near["evidence"].to_string().contains(facts), "{near:#}");
    // This hierarchy isn't mounted below /sys.
    assert_eq!(near["remedies"].as_array().unwrap().len(), 0, "{near:#}");
}

#[test]
fn in_a_namespace_of_its_own_a_group_is_the_root_and_its_limit_is_seen() {
    let Some(contained) = Contained::new(Namespace::Own, Groups::Lower) else { return };
    let explained = contained.explained();
    let (limit, cgroup) = (&explained.0["limit"], &explained.0["cgroup"]);
    assert_eq!((limit["bytes"].as_u64(), limit["charged_bytes"].as_u64()), (Some(256 * MIB), Some(75 * MIB)));
    assert_eq!((cgroup["path"].as_str(), cgroup["oom_kills"].as_u64()), (Some("/"), Some(3)));
    explained.verdicts_are(&["unclear"]);
}
