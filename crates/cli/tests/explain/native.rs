//! Native programs, one situation each.

use std::process::Command;

use crate::child::wait_until;
use crate::executable;
use crate::fixture::{Explained, Fixture, all_sleep, compiled, explain, fresh, is_root, run, scratch, skip};

const MIB: u64 = 1 << 20;

/// While tests run, a cgroup of the machine may be near its limit; that is not about the fixture.
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
    // The reservations of the eight arenas belong to them, even where nothing was touched.
    let reserved = |id: &str| explained.reserved(id);
    assert!(reserved("glibc-retained") + reserved("glibc-live") >= 8 * 64 * MIB, "{:#}", explained.0["lines"]);
    assert!(reserved("other-anonymous") < 64 * MIB, "{:#}", explained.0["lines"]);
    own_verdicts(&explained, &["arena-retention"]);
    let remedies = explained.verdict("arena-retention")["remedies"].to_string();
    assert!(remedies.contains("MALLOC_ARENA_MAX="), "{remedies}");
    explained.typed_and_saves("arena-retention", 0);
}

/// plimsoll reads the process through its other threads, and explains it like any other.
#[test]
fn a_process_whose_first_thread_has_left_is_explained() {
    let fixture = Fixture::c("first_thread_left", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-live", fixture.truth("live"));
    assert_eq!(explained.0["process"]["pid"], fixture.pid(), "{:#}", explained.0["process"]);
    assert!(explained.0["process"]["namespaced_pid"].is_null(), "{:#}", explained.0["process"]);
    let report = Command::new(crate::fixture::PLIMSOLL).args(["report", &fixture.pid().to_string()]).output().unwrap();
    let refused = String::from_utf8_lossy(&report.stderr).into_owned();
    assert!(refused.contains("is not tracked"), "{refused}");
}

/// A program may have more blocks of the size of a thread's cache than the walk would try one by one.
#[test]
fn a_cache_behind_many_blocks_of_its_size_is_found() {
    let fixture = Fixture::c("cache_behind", &[]);
    let explained = fixture.explained();
    let arenas = explained.0["arenas"].as_array().unwrap();
    let of_thread = arenas.iter().find(|arena| arena["kind"] == "thread").expect("the thread has an arena");
    let [live, retained] = ["live_bytes", "retained_bytes"].map(|key| of_thread[key].as_u64().unwrap());
    let cached = fixture.truth("cached");
    assert!(retained >= cached && live < cached / 10, "{live} live, {retained} free, {cached} of it in the cache");
    explained.line_is("glibc-live", fixture.truth("blocks"));
}

#[test]
fn a_fragmented_main_arena_gets_no_cap_of_arenas() {
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
    explained.typed_and_saves("allocator-retention", 0);
}

#[test]
fn a_pool_that_was_never_shut_down_is_named() {
    let fixture = Fixture::c("threads_many", &[]);
    let explained = fixture.explained();
    explained.line_is("thread-stacks", fixture.truth("stacks"));
    assert!(explained.verdicts().contains(&"thread-stacks"));
    let evidence = explained.verdict("thread-stacks")["evidence"].to_string();
    assert!(evidence.contains("the largest pool is leaky-pool-N: 300 threads"), "{evidence}");
    let printed = explained.typed("thread-stacks", 0);
    assert!(printed.contains(" leaky-pool-"), "{printed}");
}

/// OpenJ9 isn't taken for HotSpot: it gets no SIGQUIT, which would end the fixture before the second explanation.
#[test]
fn openj9_is_recognised_and_gets_no_signal() {
    let folder = fresh("openj9");
    let names = ["libjvm.so", "libj9vm29.so"].map(|name| folder.join(name));
    let paths = names.each_ref().map(|path| path.to_str().expect("a path"));
    paths.iter().for_each(|path| std::fs::write(path, [0; 4096]).expect("own folder"));
    let fixture = Fixture::c("openj9", &paths);
    for _ in 0..2 {
        let explained = fixture.explained();
        assert_eq!(explained.0["process"]["runtime"], "native");
        let gaps = explained.0["gaps"].as_array().expect("gaps");
        let gap = gaps.iter().find(|gap| gap["source"] == "hotspot").expect("a gap");
        assert!(gap["reason"].as_str().is_some_and(|reason| reason.contains("OpenJ9")), "{gap:#}");
    }
}

/// native-image writes such a library beside an image that uses AWT or JMX. A SIGQUIT would end the fixture.
#[test]
fn an_empty_libjvm_is_no_hotspot_and_gets_no_signal() {
    let shim = fresh("shim").join("libjvm.so");
    std::fs::write(&shim, [0; 4096]).expect("own folder");
    let fixture = Fixture::c("openj9", &[shim.to_str().expect("a path")]);
    for _ in 0..2 {
        let explained = fixture.explained();
        assert_eq!(explained.0["process"]["runtime"], "native");
        let gaps = explained.0["gaps"].as_array().expect("gaps");
        assert!(gaps.iter().all(|gap| gap["source"] != "hotspot"), "{gaps:#?}");
    }
}

#[test]
fn mapped_files_are_reclaimable_and_no_leak() {
    let file = scratch().join("mapped.data");
    let fixture = Fixture::c("mapped_file", &[file.to_str().unwrap()]);
    let explained = fixture.explained();
    explained.line_is("mapped-files", fixture.truth("mapped"));
    own_verdicts(&explained, &["mapped-file-growth", "healthy"]);
    let printed = explained.typed("mapped-file-growth", 0);
    let kib = printed.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("the kernel's count");
    let mapped: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(mapped << 10 >= fixture.truth("mapped"), "{printed}");
}

#[test]
fn a_deleted_file_that_is_still_mapped_is_marked_as_deleted() {
    let file = scratch().join("deleted.data");
    let fixture = Fixture::c("mapped_file", &[file.to_str().unwrap(), "delete"]);
    let explained = fixture.explained();
    explained.line_is("mapped-files", fixture.truth("mapped"));
    let evidence = explained.verdict("mapped-file-growth")["evidence"].to_string();
    assert!(evidence.contains("1 mapping of deleted files"), "{evidence}");
}

/// The ring looks like a file whose pages are clean.
#[test]
fn the_ring_of_a_socket_is_no_page_cache() {
    let fixture = Fixture::c("ring", &[]);
    let truth = fixture.truth("ring");
    if truth == 0 {
        return skip("the ring of a socket", "it needs CAP_NET_RAW");
    }
    let explained = fixture.explained();
    explained.line_is("mapped-files", truth);
    own_verdicts(&explained, &["healthy"]);
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    assert!(!text.contains("takes it back when it needs it"), "{text}");
}

#[test]
fn shared_memory_is_a_line_of_its_own() {
    let fixture = Fixture::c("shared", &[]);
    let explained = fixture.explained();
    explained.line_is("shared-memory", fixture.truth("shared"));
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn a_private_mapping_of_dev_zero_is_anonymous_and_a_shared_one_is_shared_memory() {
    let fixture = Fixture::c("dev_zero", &[]);
    let explained = fixture.explained();
    explained.line_is("shared-memory", fixture.truth("shared"));
    assert_eq!(explained.child("other-anonymous", "/dev/zero"), fixture.truth("private"));
}

#[test]
fn memory_that_is_mapped_three_times_counts_once_against_a_limit() {
    let fixture = Fixture::c("mapped_again", &[]);
    let explained = explain(fixture.pid(), &["--limit", "64m"]);
    let (resident, distinct) = (fixture.truth("resident"), fixture.truth("distinct"));
    explained.line_is("shared-memory", resident);
    let lines = explained.0["lines"].as_array().unwrap();
    let shared = lines.iter().find(|line| line["id"] == "shared-memory").unwrap();
    // The kernel may move a page (compaction) after one of its mappings was read and before another: then it looks like
    // two. That was seen once, on a busy machine. For PSS, the kernel rounds in each mapping; no other process maps it.
    let few_pages = 16 << 10;
    for name in ["distinct_bytes", "pss_bytes"] {
        assert!(shared[name].as_u64().unwrap().abs_diff(distinct) < few_pages, "{shared:#}");
    }
    let of = |name: &str| explained.0[name].as_u64().unwrap();
    let counted_again = of("rss_bytes") - of("distinct_bytes");
    assert!(counted_again.abs_diff(resident - distinct) < few_pages, "{counted_again}");
    // 72 MiB of RSS exceed the limit; the 40 MiB of the process's own do not.
    assert_eq!(explained.0["limit"]["working_set_bytes"], of("distinct_bytes"));
    assert!(!explained.verdicts().contains(&"limit-near"), "{:#}", explained.0["verdicts"]);
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    assert!(text.contains("40.0 MiB distinct, mapped several times"), "{text}");
}

#[test]
fn a_reservation_costs_nothing() {
    let fixture = Fixture::c("reserved", &[]);
    let explained = fixture.explained();
    explained.line_is("other-anonymous", fixture.truth("touched"));
    // The touched pages are the program's own mmap: from outside, no source names their owner.
    own_verdicts(&explained, &["unclear"]);
    let unclear = explained.verdict("unclear");
    assert!(unclear["summary"].as_str().unwrap().contains("other anonymous"), "{unclear:#}");
    assert!(unclear["remedies"][0]["how"].as_str().unwrap().starts_with("plimsoll attach"), "{unclear:#}");
}

/// glibc counts what another user took from brk in system_mem. No part of the arena is missing because of it.
#[test]
fn what_another_user_takes_from_brk_leaves_the_arena_whole() {
    let fixture = Fixture::c("foreign_brk", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-live", fixture.truth("live"));
    let (found, truth) = (explained.child("other-anonymous", "[heap]"), fixture.truth("foreign"));
    assert!(found.abs_diff(truth) * 100 <= truth * 3, "{found} {truth}\n{:#}", explained.0["lines"]);
    assert!(explained.gaps().iter().all(|gap| !gap.contains("glibc")), "{:?}", explained.gaps());
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains("its own brk or sbrk; to see the calls, start it with plimsoll run"), "{text}");
}

/// A static program loads no library, so `explain` doesn't propose `plimsoll run` to see its calls.
#[test]
fn no_tracker_is_promised_for_a_static_program() {
    let fixture = Fixture::run(&mut Command::new(compiled("reserved", &["-static"])));
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains("its own mmap; it is static, so no tracker can name the calls"), "{text}");
    assert!(!joined.contains("start it with plimsoll run"), "{text}");
}

/// The kernel joins .bss and the mapping behind it. Only the program headers tell where .bss ends.
#[test]
fn a_mapping_directly_behind_bss_is_not_the_programs_static_data() {
    let fixture = Fixture::c("behind_bss", &[]);
    let explained = fixture.explained();
    explained.line_is("other-anonymous", fixture.truth("behind"));
    let (found, truth) = (explained.child("libraries", "behind_bss"), fixture.truth("statics"));
    assert!(found.abs_diff(truth) < MIB, "{found} {truth}\n{:#}", explained.0["lines"]);
    own_verdicts(&explained, &["unclear"]);
}

/// The fixture lays its own program out in memory as a packer does, and reads the file into memory beside it. Only the
/// first copy is a program; the second is the fixture's own data.
#[test]
fn a_program_without_a_file_differs_from_a_file_that_was_read() {
    let fixture = Fixture::c("unpacked", &[]);
    let explained = fixture.explained();
    let truth = fixture.truth("unpacked");
    assert!(truth > 6 * MIB, "{truth}");
    let found = explained.child("libraries", "(unpacked in memory)");
    assert!(found.abs_diff(truth) * 100 <= truth * 3, "{found} {truth}\n{:#}", explained.0["lines"]);
    explained.line_is("other-anonymous", fixture.truth("read"));
    own_verdicts(&explained, &["unclear"]);
}

#[test]
fn touched_bytes_in_huge_pages_are_counted_as_the_kernel_counts_them() {
    let fixture = Fixture::c("huge", &[]);
    if fixture.truth("resident") < 120 * MIB {
        return skip("huge pages", "the machine gives none");
    }
    let explained = fixture.explained();
    explained.line_is("other-anonymous", fixture.truth("resident"));
    own_verdicts(&explained, &["huge-pages", "unclear"]);
}

#[test]
fn live_blocks_are_live_and_healthy() {
    let fixture = Fixture::c("healthy", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-live", fixture.truth("live"));
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn a_block_that_the_kernel_keeps_in_several_mappings_is_one_block() {
    let fixture = Fixture::c("split_blocks", &[]);
    let explained = fixture.explained();
    explained.line_is("glibc-live", fixture.truth("live"));
    assert!(explained.line("other-anonymous") < MIB, "{:#}", explained.0["lines"]);
    assert_eq!(explained.0["gaps"].as_array().unwrap().len(), 0, "{:#}", explained.0["gaps"]);
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn what_no_line_explains_is_at_most_two_percent() {
    for name in ["healthy", "split_blocks", "arena_threads", "main_fragmentation"] {
        let explained = Fixture::c(name, &[]).explained();
        let rss = explained.0["rss_bytes"].as_u64().unwrap();
        let unexplained = explained.0["remainder_bytes"].as_u64().unwrap()
            + explained.line("other-anonymous")
            + explained.line("glibc-unknown");
        assert!(unexplained * 50 <= rss, "{name}: {unexplained} of {rss}\n{:#}", explained.0["lines"]);
    }
}

#[test]
fn many_mappings_are_counted_against_the_kernels_limit() {
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
    let folder = scratch().join("chroot");
    std::fs::create_dir_all(&folder).unwrap();
    executable::copy(compiled("healthy", &["-static"]), folder.join("healthy"));
    let fixture = Fixture::run(
        Command::new("unshare")
            .args(["--pid", "--mount", "--kill-child", "--fork", "chroot"])
            .arg(&folder)
            .args(["/healthy", "32"]),
    );
    // unshare forks: the target is its child.
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", fixture.pid())).unwrap();
    let explained = explain(children.trim().parse().unwrap(), &[]);
    explained.line_is("glibc-live", fixture.truth("live"));
    own_verdicts(&explained, &["healthy"]);
}

#[test]
fn other_allocators_are_recognised_and_hold_what_the_program_requested() {
    let directory = std::path::Path::new("/usr/lib/x86_64-linux-gnu");
    for (library, name) in
        [("libjemalloc.so.2", "jemalloc"), ("libtcmalloc_minimal.so.4", "tcmalloc"), ("libmimalloc.so.2", "mimalloc")]
    {
        let path = directory.join(library);
        if !path.exists() {
            skip("other allocators", &format!("{library} is not installed"));
            continue;
        }
        let fixture = Fixture::run(Command::new(compiled("healthy", &[])).arg("160").env("LD_PRELOAD", &path));
        let explained = fixture.explained();
        // Size classes round 1000 bytes up to 1024; tcmalloc and mimalloc keep up to 6 MiB of spans in advance.
        let (found, truth) = (explained.line("other-allocator"), fixture.truth("live"));
        assert!(found >= truth && found <= truth * 107 / 100, "{name}: {found} {truth}");
        let line =
            explained.0["lines"].as_array().unwrap().iter().find(|line| line["id"] == "other-allocator").unwrap();
        assert!(line["children"].to_string().contains(name), "{line:#}");
        own_verdicts(&explained, &["unclear"]);
    }
}

/// A memory cgroup with a limit and one process in it; removed when dropped.
struct Group {
    path: std::path::PathBuf,
    files: [&'static str; 2],
}

impl Group {
    /// Where the memory controller can be used: version 1's hierarchy, or a root of version 2 that delegates it.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let v1 = std::path::Path::new("/sys/fs/cgroup/memory");
        let (root, files) = match v1.join("memory.limit_in_bytes").exists() {
            true => (v1, ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
            false => (std::path::Path::new("/sys/fs/cgroup"), ["memory.max", "memory.current"]),
        };
        let path = root.join(format!("plimsoll-{name}-{}", std::process::id()));
        // A killed test with this PID may have left it, with groups below. One that can't be removed is a failure, and
        // no reason to skip.
        for below in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(below.path());
        }
        let _ = std::fs::remove_dir(&path);
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                panic!("{}: {e}, with processes in it", path.display())
            }
            made => made.ok()?,
        }
        let group = Group { path, files };
        std::fs::write(group.path.join(files[0]), limit.to_string()).ok().map(|()| group)
    }

    fn charged(&self) -> u64 {
        std::fs::read_to_string(self.path.join(self.files[1])).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process leaves its group a moment after it has been reaped; until then the group is busy.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let is_busy = || {
            let removed = std::fs::remove_dir(&self.path);
            removed.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
        };
        while is_busy() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn the_parts_of_a_cgroup_sum_to_its_charge_below_its_limit() {
    let Some(group) = Group::new("limit", 128 * MIB) else {
        return skip("cgroup", "no memory cgroup can be made here");
    };
    // The shell joins the group, so that all the fixture's pages are charged to it.
    let enter = format!(
        "echo $$ > {}/cgroup.procs && exec \"{}\" 119",
        group.path.display(),
        compiled("healthy", &[]).display()
    );
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
    explained.verdicts_are(&["limit-near", "unclear"]);
    // The remedy as it is printed raises the limit of the running group.
    let raise = explained.verdict("limit-near")["remedies"].as_array().unwrap().last().unwrap()["how"].clone();
    let how = raise.as_str().unwrap();
    assert!(how.starts_with("echo ") && how.contains(group.path.to_str().unwrap()), "{how}");
    // Some machines for tests have no sudo.
    let typed = how.replace("sudo ", "");
    assert!(Command::new("sh").args(["-c", &typed]).status().unwrap().success(), "{typed}");
    let raised = fixture.explained().0["limit"]["bytes"].as_u64().unwrap();
    assert!(raised >= 128 * MIB / 10 * 11, "{raised}");
    drop(fixture);
}

/// 40 MiB of 150 in its own group; 190 of 200 in the group above, most of it by a group beside.
#[test]
fn a_fuller_group_above_is_found_in_a_real_hierarchy() {
    let Some(above) = Group::new("above", 200 * MIB) else {
        return skip("cgroup", "no memory cgroup can be made here");
    };
    // Version 2 gives a controller to the groups below only if it is requested here.
    let _ = std::fs::write(above.path.join("cgroup.subtree_control"), "+memory");
    let below = |name: &str, limit: u64| {
        let path = above.path.join(name);
        std::fs::create_dir(&path).ok()?;
        let group = Group { path, files: above.files };
        std::fs::write(group.path.join(group.files[0]), limit.to_string()).ok().map(|()| group)
    };
    let (Some(own), Some(beside)) = (below("own", 150 * MIB), below("beside", 1000 * MIB)) else {
        return skip("cgroup", "no memory cgroup can be made below another here");
    };
    let start = |group: &Group, mib: u32| {
        let program = compiled("healthy", &[]);
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"{}\" {mib}", group.path.display(), program.display());
        Fixture::run(Command::new("sh").args(["-c", &enter]))
    };
    let (other, fixture) = (start(&beside, 150), start(&own, 40));
    let explained = fixture.explained();
    let name = above.path.file_name().unwrap().to_str().unwrap().to_owned();
    let (limit, cgroup) = (&explained.0["limit"], &explained.0["cgroup"]);
    assert_eq!(limit["bytes"], 200 * MIB);
    assert_eq!(cgroup["limit_path"], format!("/{name}"));
    assert!(
        cgroup["further_limits"].as_array().unwrap().iter().any(|level| level["limit_bytes"] == 150 * MIB),
        "{cgroup:#}"
    );
    let near = explained.verdict("limit-near");
    let evidence = near["evidence"].to_string();
    assert!(near["summary"].as_str().unwrap().contains(&format!("of the limit of /{name}, a group above")), "{near:#}");
    assert!(
        evidence.contains(&format!("in groups beside this process's, with page cache: /{name}/beside 15")),
        "{evidence}"
    );
    // The groups below go first.
    drop((other, fixture));
    drop((own, beside));
}

/// Pages of a process that its page table has, including the shared zero page, which smaps does not count.
fn pages_present(pid: u32) -> usize {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut present = 0;
    for line in maps.lines().filter(|line| !line.contains("[v")) {
        let (start, rest) = line.split_once('-').unwrap();
        let [start, end] = [start, rest.split(' ').next().unwrap()].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        let mut words = vec![0; (end - start) / 4096 * 8];
        pagemap.read_exact_at(&mut words, (start / 4096 * 8) as u64).unwrap();
        present += words.chunks(8).filter(|word| word[7] & 0x80 != 0).count();
    }
    present
}

#[test]
fn no_page_of_the_target_is_touched() {
    for name in ["threads_many", "arena_threads", "reserved", "main_fragmentation"] {
        let fixture = Fixture::c(name, &[]);
        // The first pause of each thread may still make pages of code resident.
        wait_until("each thread sleeps", || all_sleep(fixture.pid()));
        let before = pages_present(fixture.pid());
        fixture.explained();
        run(fixture.pid(), &["--maps", "--arenas"]);
        assert_eq!(pages_present(fixture.pid()), before, "{name}");
    }
}

#[test]
fn small_objects_of_cpython_are_known_by_their_pools() {
    let fixture = Fixture::run(Command::new("python3").arg(crate::fixture::root().join("fixtures/explain/objects.py")));
    let explained = fixture.explained();
    let pools = fixture.truth("arenas") - fixture.truth("unused");
    assert!(pools > 30 * MIB, "{pools}");
    explained.line_is("other-allocator", pools);
    let rss = explained.0["rss_bytes"].as_u64().unwrap();
    let left = explained.0["remainder_bytes"].as_u64().unwrap() + explained.line("other-anonymous");
    assert!(left * 100 <= rss * 2, "{left} of {rss}: {:#}", explained.0["lines"]);
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    // The note may go on in the next line.
    let note = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (live, _) = note.split_once(" MiB live in pools").expect(&text);
    let mib: f64 = live.split(' ').next_back().unwrap().parse().unwrap();
    let truth = fixture.truth("live") as f64 / MIB as f64;
    assert!((mib - truth).abs() <= truth * 0.03, "{note} {truth}");
}

#[test]
fn the_frames_of_cpythons_threads_are_its_own() {
    const CHUNK: u64 = 16 << 10;
    let fixture = Fixture::run(Command::new("python3").arg(crate::fixture::root().join("fixtures/explain/frames.py")));
    let explained = fixture.explained();
    let (frames, chunks) = (explained.child("other-allocator", "CPython's frames"), fixture.truth("chunks"));
    assert!((chunks * 4096..=(chunks + 1) * CHUNK).contains(&frames), "{frames} in {chunks}");
    let anonymous = explained.line("other-anonymous");
    assert!(chunks == 0 || anonymous < chunks * 4096 / 4, "{anonymous}: {:#}", explained.0["lines"]);
}

/// Bytes of V8's heap in that part, touched or not: what V8 counts.
fn v8_part(explained: &Explained, part: &str) -> u64 {
    let lines = explained.0["lines"].as_array().unwrap().iter().filter(|line| line["id"] == "other-allocator");
    let children = lines.flat_map(|line| line["children"].as_array().unwrap());
    let of_part = children.filter(|child| child["name"] == format!("V8: {part}"));
    of_part.map(|child| child["reserved_bytes"].as_u64().unwrap()).sum()
}

/// With each isolate: the main thread's, and those of two workers.
#[test]
fn the_heap_of_v8_is_split_as_v8_counts_it_and_buffers_belong_to_malloc() {
    for workers in [0, 2] {
        let mut node = Command::new("node");
        // No thread of the runtime returns pages later, and no collection runs after an idle time: either would shrink
        // the heap meanwhile.
        node.args(["--expose-gc", "--max-semi-space-size=1", "--single-threaded-gc", "--no-memory-reducer"])
            .arg(crate::fixture::root().join("fixtures/explain/heap.js"))
            .arg(workers.to_string());
        let fixture = Fixture::run(&mut node);
        let explained = fixture.explained();
        explained.line_is("other-allocator", fixture.truth("heap"));
        let kinds = [("young objects", "young"), ("old objects", "old"), ("large objects", "large"), ("code", "code")];
        let live: u64 = kinds.iter().map(|(_, truth)| fixture.truth(truth)).sum();
        let mut found_live = 0;
        for (part, truth) in kinds {
            let (found, truth) = (v8_part(&explained, part), fixture.truth(truth));
            found_live += found;
            // Young objects of an isolate, 1 MiB at most, may have become old ones since.
            let error = truth * 3 / 100 + (1 + workers) * MIB;
            assert!(found.abs_diff(truth) <= error, "{part}: {found} {truth}: {:#}", explained.0["lines"]);
        }
        // An isolate may have made some more young objects since.
        let error = live * 3 / 100 + (1 + workers) * MIB;
        assert!(found_live.abs_diff(live) <= error, "{found_live} {live}: {:#}", explained.0["lines"]);
        let blocks = explained.child("glibc-live", "large blocks");
        let truth = fixture.truth("external");
        let buffers = explained.0["array_buffers"]["bytes"].as_u64().unwrap();
        assert!(buffers.abs_diff(truth) * 100 <= truth * 3, "{buffers} {truth}");
        assert!(truth >= 48 * MIB && blocks.abs_diff(truth) * 100 <= truth * 3, "{blocks} {truth}");
        own_verdicts(&explained, &["healthy"]);
    }
}

/// V8's lists have both kinds. The kernel shows the memory of WebAssembly as an anonymous mapping, or with V8's name.
#[test]
fn memory_of_webassembly_is_not_said_to_be_malloc_s() {
    let mut node = Command::new("node");
    node.arg(crate::fixture::root().join("fixtures/explain/wasm.js"));
    let fixture = Fixture::run(&mut node);
    let explained = fixture.explained();
    let mapped = &explained.0["mapped_array_buffers"];
    assert_eq!((mapped["count"].as_u64(), mapped["bytes"].as_u64()), (Some(4), Some(fixture.truth("mapped"))));
    let held = explained.0["array_buffers"]["bytes"].as_u64().unwrap();
    let truth = fixture.truth("held");
    assert!(held.abs_diff(truth) * 100 <= truth * 3, "{held} {truth}");
    let large = explained.child("glibc-live", "large blocks");
    assert!(large.abs_diff(truth) * 100 <= truth * 3, "{large} {truth}");
}

#[test]
fn the_trackers_own_memory_is_one_line() {
    let mut command = Command::new(crate::fixture::PLIMSOLL);
    command.args(["run", "--report", "none", "--"]).arg(compiled("healthy", &[]));
    // Without a report at the end, `run` execs the program.
    let fixture = Fixture::run(&mut command);
    let explained = fixture.explained();
    let tracker = explained.line("tracker");
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", fixture.pid())).unwrap();
    let mut truth = 0;
    let mut is_ours = false;
    for line in maps.lines() {
        if line.as_bytes()[0].is_ascii_digit() || line.as_bytes()[0].is_ascii_lowercase() {
            // Compares the file name only: the folder of the clone may be called plimsoll, too.
            let name = line.rsplit('/').next().unwrap_or_default();
            is_ours = name.starts_with("libplimsoll-") || name.ends_with(".seg") || name.ends_with(".rules");
        } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| is_ours) {
            truth += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
        }
    }
    assert!(truth > 0, "the tracker is not in the process");
    // On top come its private memory and the .bss of its library. Its own count is of what it handed out; only some
    // pages are touched.
    let report = Command::new(crate::fixture::PLIMSOLL)
        .args(["report", &fixture.pid().to_string(), "--format", "json"])
        .output()
        .expect("plimsoll runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let private = report["own"]["private_bytes"].as_u64().unwrap();
    assert!(private > 0);
    let beyond = tracker - truth;
    assert!(beyond > 0 && beyond <= private + (160 << 10), "{tracker} = {truth} + {beyond}, private {private}");
}

fn trimmable(arena: &serde_json::Value) -> u64 {
    arena["trimmable_bytes"].as_u64().unwrap()
}

#[test]
fn a_trim_saves_what_the_verdict_predicted() {
    // In the last case half of the memory lies at the ends of arenas: the interval is too wide for a figure.
    for (name, arguments, verdict, has_figure) in [
        ("main_fragmentation", &[][..], "allocator-retention", true),
        ("arena_threads", &[][..], "arena-retention", true),
        ("arena_threads", &["ends"][..], "arena-retention", false),
    ] {
        let fixture = Fixture::c(name, arguments);
        let explained = fixture.explained();
        let verdict = explained.verdict(verdict);
        let whole = |of: &Explained| of.0["arenas"].as_array().unwrap().iter().map(trimmable).sum::<u64>();
        let figures = ["saving_least_bytes", "saving_bytes"].map(|key| verdict[key].as_u64());
        assert_eq!(figures.map(|figure| figure.is_some()), [has_figure; 2], "{name}: {verdict:#}");
        let least = figures[0].unwrap_or(whole(&explained));
        let most = figures[1].unwrap_or(explained.line("glibc-retained"));
        let [before, after] = fixture.trims();
        let saved = before - after;
        assert!(saved * 100 >= least * 97 && saved * 100 <= most * 103, "{name}: {saved} of {least} to {most}");
        // The verdict promises nothing that is already gone, or that a trim cannot reach.
        let again = whole(&fixture.explained());
        assert!(again * 100 <= saved, "{name}: {again} more after {saved}");
    }
}
