//! Native programs, one situation each.

use std::process::Command;

use crate::fixture::{Explained, Fixture, compiled, explain, is_root, scratch, skip};

const MIB: u64 = 1 << 20;

/// A cgroup of the machine may be near its limit while tests run; that is not the fixture's doing.
fn own_verdicts(explained: &Explained, expected: &[&str]) {
    let found: Vec<&str> = explained.verdicts().into_iter().filter(|id| *id != "limit-near").collect();
    let mut expected = expected.to_vec();
    let mut sorted = found.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected, "{:#}", explained.0["verdicts"]);
}

#[test]
fn many_arenas_keep_what_their_threads_freed() {
    let fixture = Fixture::c("arena_threads", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-retained", fixture.truth("retained"));
    own_verdicts(&explained, &["arena-retention"]);
    let remedies = explained.verdict("arena-retention")["remedies"].to_string();
    assert!(remedies.contains("MALLOC_ARENA_MAX="), "{remedies}");
}

#[test]
fn a_fragmented_main_arena_is_not_told_to_cap_its_arenas() {
    let fixture = Fixture::c("main_fragmentation", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-retained", fixture.truth("retained"));
    own_verdicts(&explained, &["allocator-retention"]);
    let verdict = explained.verdict("allocator-retention");
    assert!(!verdict["remedies"].to_string().contains("MALLOC_ARENA_MAX"), "{verdict:#}");
    assert!(verdict["evidence"].to_string().contains("MALLOC_ARENA_MAX would change nothing"), "{verdict:#}");
    let truth = fixture.truth("trimmable");
    let saving = verdict["saving_bytes"].as_u64().unwrap();
    assert!(saving.abs_diff(truth) * 100 <= truth * 3, "{saving} {truth}");
}

#[test]
fn a_pool_that_was_never_shut_down_is_named() {
    let fixture = Fixture::c("threads_many", &[]);
    let explained = fixture.explained();
    explained.line_is("thread-stacks", fixture.truth("stacks"));
    assert!(explained.verdicts().contains(&"thread-stacks"));
    let evidence = explained.verdict("thread-stacks")["evidence"].to_string();
    assert!(evidence.contains("300 × leaky-pool"), "{evidence}");
}

#[test]
fn mapped_files_are_reclaimable_and_no_leak() {
    let file = scratch().join("mapped.data");
    let fixture = Fixture::c("mapped_file", &[file.to_str().unwrap()]);
    let explained = fixture.explained();
    explained.line_is("mapped-files", fixture.truth("mapped"));
    own_verdicts(&explained, &["mapped-file-growth", "healthy"]);
}

#[test]
fn a_deleted_file_that_is_still_mapped_is_said_to_be_deleted() {
    let file = scratch().join("deleted.data");
    let fixture = Fixture::c("mapped_file", &[file.to_str().unwrap(), "delete"]);
    let explained = fixture.explained();
    explained.line_is("mapped-files", fixture.truth("mapped"));
    let evidence = explained.verdict("mapped-file-growth")["evidence"].to_string();
    assert!(evidence.contains("1 mappings") && evidence.contains("deleted files"), "{evidence}");
}

#[test]
fn shared_memory_is_a_line_of_its_own() {
    let fixture = Fixture::c("shared", &[]);
    let explained = fixture.explained();
    explained.line_is("shared-memory", fixture.truth("shared"));
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn a_reservation_costs_nothing() {
    let fixture = Fixture::c("reserved", &[]);
    let explained = fixture.explained();
    explained.line_is("other-anonymous", fixture.truth("touched"));
    own_verdicts(&explained, &["healthy"]);
    assert!(explained.verdict("healthy")["evidence"].to_string().contains("costs nothing"));
}

#[test]
fn touched_bytes_in_huge_pages_are_counted_as_the_kernel_counts_them() {
    let fixture = Fixture::c("huge", &[]);
    if fixture.truth("resident") < 120 * MIB {
        return skip("huge pages", "the machine gives none");
    }
    let explained = fixture.explained();
    explained.line_is("other-anonymous", fixture.truth("resident"));
    own_verdicts(&explained, &["huge-pages", "healthy"]);
}

#[test]
fn live_blocks_are_live_and_healthy() {
    let fixture = Fixture::c("healthy", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-live", fixture.truth("live"));
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn what_no_line_explains_is_at_most_two_percent() {
    for name in ["healthy", "arena_threads", "main_fragmentation"] {
        let explained = Fixture::c(name, &[]).explained();
        let rss = explained.0["rss_bytes"].as_u64().unwrap();
        let unexplained = explained.0["remainder_bytes"].as_u64().unwrap()
            + explained.line("other-anonymous")
            + explained.line("glibc-unknown");
        assert!(unexplained * 50 <= rss, "{name}: {unexplained} of {rss}\n{:#}", explained.0["lines"]);
    }
}

#[test]
fn many_mappings_are_counted_against_the_kernel_s_limit() {
    let limit: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 300_000 {
        return skip("map count", "vm.max_map_count is raised so far that the fixture would take minutes");
    }
    let fixture = Fixture::c("map_count", &[&(limit * 8 / 10).to_string()]);
    own_verdicts(&fixture.explained(), &["map-count"]);
}

#[test]
fn the_target_of_a_chroot_in_other_namespaces_is_explained() {
    if !is_root() {
        return skip("namespaces", "needs root");
    }
    let place = scratch().join("chroot");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(compiled("healthy", &["-static"]), place.join("healthy")).unwrap();
    let fixture = Fixture::run(
        Command::new("unshare")
            .args(["--pid", "--mount", "--kill-child", "--fork", "chroot"])
            .arg(&place)
            .args(["/healthy", "32"]),
    );
    // unshare forks: the target is its child.
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", fixture.pid())).unwrap();
    let explained = explain(children.trim().parse().unwrap(), &[]);
    explained.line_is("glibc-live", fixture.truth("live"));
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn other_allocators_are_recognised_and_hold_what_the_program_asked_for() {
    let directory = std::path::Path::new("/usr/lib/x86_64-linux-gnu");
    for (library, name) in
        [("libjemalloc.so.2", "jemalloc"), ("libtcmalloc_minimal.so.4", "tcmalloc"), ("libmimalloc.so.2", "mimalloc")]
    {
        let path = directory.join(library);
        if !path.exists() {
            skip("other allocators", &format!("{library} is not installed"));
            continue;
        }
        let fixture = Fixture::run(Command::new(compiled("healthy", &[])).arg("64").env("LD_PRELOAD", &path));
        let explained = fixture.explained();
        // Size classes round 1000 bytes up to 1024; tcmalloc and mimalloc keep spans ahead.
        let (found, truth) = (explained.line("other-allocator"), fixture.truth("live"));
        assert!(found >= truth && found <= truth * 107 / 100, "{name}: {found} {truth}");
        let line =
            explained.0["lines"].as_array().unwrap().iter().find(|line| line["id"] == "other-allocator").unwrap();
        assert!(line["children"].to_string().contains(name), "{line:#}");
        own_verdicts(&explained, &["healthy"]);
    }
}

/// A memory cgroup with a limit and one process in it; removed when dropped.
struct Group {
    path: std::path::PathBuf,
    files: [&'static str; 2],
}

impl Group {
    /// Where the memory controller may be used: version 1's hierarchy, or version 2's root that passes it on.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let v1 = std::path::Path::new("/sys/fs/cgroup/memory");
        let (root, files) = match v1.join("memory.limit_in_bytes").exists() {
            true => (v1, ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
            false => (std::path::Path::new("/sys/fs/cgroup"), ["memory.max", "memory.current"]),
        };
        let path = root.join(format!("plimsoll-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Group { path, files };
        std::fs::write(group.path.join(files[0]), limit.to_string()).ok().map(|()| group)
    }

    fn charged(&self) -> u64 {
        std::fs::read_to_string(self.path.join(self.files[1])).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn invariant_4_conservation_of_a_cgroup_and_its_limit() {
    let Some(group) = Group::new("limit", 128 * MIB) else {
        return skip("cgroup", "no memory cgroup can be made here");
    };
    // The shell joins the group, so that all the fixture's pages are charged to it.
    let enter =
        format!("echo $$ > {}/cgroup.procs && exec {} 119", group.path.display(), compiled("healthy", &[]).display());
    let fixture = Fixture::run(Command::new("sh").args(["-c", &enter]));
    let explained = fixture.explained();
    let limit = &explained.0["limit"];
    assert_eq!(limit["bytes"], 128 * MIB);
    let charged = explained.0["cgroup"]["charged_bytes"].as_u64().unwrap();
    assert!(charged.abs_diff(group.charged()) <= MIB, "{charged} {}", group.charged());
    let lines = explained.0["cgroup"]["lines"].as_array().unwrap();
    let sum: i64 = lines.iter().map(|line| line["bytes"].as_i64().unwrap()).sum();
    let rest = explained.0["cgroup"]["rest_bytes"].as_i64().unwrap();
    assert_eq!(sum + rest, charged as i64);
    // The kernel charges ahead by up to 64 pages for each CPU.
    assert!(rest.unsigned_abs() <= 4 * MIB, "{rest}: {lines:?}");
    explained.verdicts_are(&["limit-near"]);
    drop(fixture);
    // The group is empty once its process has been reaped.
    std::thread::sleep(std::time::Duration::from_millis(100));
}

#[test]
fn invariant_7_own_cost_is_a_line() {
    let mut command = Command::new(crate::fixture::PLIMSOLL);
    command.args(["run", "--report", "none", "--"]).arg(compiled("healthy", &[]));
    // Without a report at the end, run execs the program in its own place.
    let fixture = Fixture::run(&mut command);
    let explained = fixture.explained();
    let tracker = explained.line("tracker");
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", fixture.pid())).unwrap();
    let mut truth = 0;
    let mut is_ours = false;
    for line in maps.lines() {
        if line.as_bytes()[0].is_ascii_digit() || line.as_bytes()[0].is_ascii_lowercase() {
            is_ours = line.contains("plimsoll") && [".seg", ".rules", ".so"].iter().any(|end| line.ends_with(end));
        } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| is_ours) {
            truth += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
        }
    }
    assert!(truth > 0, "the tracker is not in the process");
    assert!(tracker.abs_diff(truth) <= 64 << 10, "{tracker} {truth}");
}

#[test]
fn a_trim_saves_what_the_verdict_said() {
    for (name, verdict) in [("main_fragmentation", "allocator-retention"), ("arena_threads", "arena-retention")] {
        let fixture = Fixture::c(name, &[]);
        let resident = || {
            let statm = std::fs::read_to_string(format!("/proc/{}/statm", fixture.pid())).unwrap();
            statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let explained = fixture.explained();
        let verdict = explained.verdict(verdict);
        let [least, most] = ["saving_least_bytes", "saving_bytes"].map(|key| verdict[key].as_u64().unwrap());
        let before = resident();
        assert!(Command::new("kill").args(["-USR1", &fixture.pid().to_string()]).status().unwrap().success());
        let mut after = before;
        for _ in 0..100 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = resident();
            if now == after && now < before {
                break;
            }
            after = now;
        }
        let saved = before.saturating_sub(after);
        assert!(
            saved * 100 >= least * 97 && saved * 100 <= most * 103,
            "{name}: saved {saved}, said {least} to {most}"
        );
    }
}
