//! Limits, throttles and neighbours of a hierarchy that lies in a directory of the test.

use std::fs;
use std::path::PathBuf;

use super::group_files::Reader;
use super::hierarchy::Hierarchy;
use super::limit::{Stats, limit};
use super::neighbours::{MOST_SIBLINGS, OTHERS_UNKNOWN, is_about_others, others, siblings};
use super::swap::least;
use crate::foreign::Deadline;
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion};
use plimsoll_facts::units::Bytes;

const MIB: u64 = 1 << 20;

/// A hierarchy of version 2 in a directory, innermost level first.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, levels: &[&[(&str, String)]]) -> (Tree, Hierarchy) {
        let root = std::env::temp_dir().join(format!("plimsoll-cgroup-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let names = ["kubepods", "pod", "container"];
        let path: PathBuf = names.iter().take(levels.len()).collect();
        let chain: Vec<PathBuf> = path.ancestors().take(levels.len()).map(|group| root.join(group)).collect();
        fs::create_dir_all(&chain[0]).expect("a directory");
        for (group, files) in chain.iter().zip(levels) {
            for (file, text) in *files {
                fs::write(group.join(file), text).expect("a file");
            }
        }
        let path = format!("/{}", path.display());
        let hierarchy = Hierarchy { version: CgroupVersion::V2, chain, path, cpu_chain: None, hidden: None };
        (Tree(root), hierarchy)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn level(max: u64, current: u64, inactive: u64) -> [(&'static str, String); 3] {
    [
        ("memory.max", format!("{max}\n")),
        ("memory.current", format!("{current}\n")),
        ("memory.stat", format!("anon 1\ninactive_file {inactive}\n")),
    ]
}

fn read(name: &str, levels: &[&[(&str, String)]], stats: Stats) -> Cgroup {
    let (_tree, hierarchy) = Tree::new(name, levels);
    let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
    let (cgroup, gaps) = limit(hierarchy, Bytes(0), stats, &reader);
    assert!(gaps.is_empty() && reader.gap().is_none(), "{gaps:?}");
    cgroup.expect("a group").0
}

/// The pod of one container has its limit, and the pause process's charge as well.
#[test]
fn a_pod_with_the_limit_of_its_container_does_not_replace_it() {
    let container = level(256 * MIB, 200 * MIB, 0);
    let of = |name, pod_charged| {
        let pod = level(256 * MIB, pod_charged, 0);
        read(name, &[&container, &pod], Stats::All)
    };
    let near = of("pod-near", 200 * MIB + 600 * 1024);
    assert_eq!((near.limit_path.as_str(), near.is_above()), ("/kubepods/pod", false));
    assert_eq!(near.further[0].limit_path, "/kubepods");
    // A sidecar has clearly more.
    assert_eq!(of("pod-sidecar", 250 * MIB).limit_path, "/kubepods");
}

#[test]
fn outer_levels_far_from_their_limits_have_no_statistics_read() {
    let levels =
        || [level(100 * MIB, 60 * MIB, MIB), level(1000 * MIB, 500 * MIB, MIB), level(1000 * MIB, 950 * MIB, MIB)];
    let stats = |name, stats| {
        let [inner, middle, outer] = levels();
        let cgroup = read(name, &[&inner, &middle, &outer], stats);
        cgroup.levels().map(|level| (level.limit_path.clone(), level.stat.inactive_file.0 / MIB)).collect::<Vec<_>>()
    };
    let of = |middle| {
        [("/kubepods/pod/container", 1), ("/kubepods", 1), ("/kubepods/pod", middle)]
            .map(|(path, mib)| (path.to_owned(), mib))
    };
    assert_eq!(stats("stat-some", Stats::ThatMatter), of(0));
    assert_eq!(stats("stat-all", Stats::All), of(1));
}

/// The group above counts kills that the limits of others below it caused.
#[test]
fn kills_are_those_of_the_own_group_and_oom_that_of_the_limit() {
    let events = |oom: u64, kills: u64| format!("low 0\nhigh 0\nmax 4\noom {oom}\noom_kill {kills}\n");
    let own = [level(1000 * MIB, 10 * MIB, 0).to_vec(), vec![("memory.events", events(2, 1))]].concat();
    let local = ("memory.events.local", events(3, 0));
    let above = [level(100 * MIB, 95 * MIB, 0).to_vec(), vec![("memory.events", events(90, 80)), local]].concat();
    let cgroup = read("kills", &[&own, &above], Stats::All);
    assert_eq!((cgroup.limit_path.as_str(), cgroup.oom.oom, cgroup.oom.oom_kill), ("/kubepods", 3, 1));
    assert_eq!((cgroup.further[0].oom.oom, cgroup.further[0].oom.oom_kill), (2, 1));
}

#[test]
fn groups_beside_that_are_left_out_are_a_gap_if_the_limit_is_near() {
    let (tree, hierarchy) = Tree::new("siblings", &[&[], &[]]);
    let folder = hierarchy.chain[1].clone();
    let level = |charged| Cgroup {
        directory: hierarchy.chain[0].clone(),
        path: "/kubepods/pod".into(),
        limit: Some(Bytes(100)),
        limit_path: "/kubepods".into(),
        limit_directory: folder.clone(),
        charged: Bytes(charged),
        ..Cgroup::default()
    };
    let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
    for number in 0..=MOST_SIBLINGS {
        fs::create_dir(folder.join(format!("beside-{number}"))).expect("a directory");
    }
    fs::write(folder.join("beside-0/memory.current"), "7\n").expect("a file");
    let gap = siblings(&reader, &level(95)).1.expect("one is left out");
    assert!(gap.reason.ends_with("has more than 512 groups, and the rest was not read") && is_about_others(&gap));
    assert_eq!(siblings(&reader, &level(50)).1, None);
    fs::remove_dir(folder.join("beside-1")).expect("a directory");
    assert_eq!(siblings(&reader, &level(95)), (vec![("/kubepods/beside-0".to_owned(), Bytes(7))], None));
    let gone = Cgroup { limit_directory: folder.join("gone"), ..level(95) };
    assert!(siblings(&reader, &gone).1.is_some());
    drop(tree);
}

#[test]
fn other_processes_that_cannot_be_read_are_a_gap() {
    // A process of another PID namespace, our own, and two others. /proc hides one of these two.
    let (tree, hierarchy) = Tree::new("others", &[&[("cgroup.procs", "0\n7\n8\n9\n".to_owned())]]);
    let group = &hierarchy.chain[0];
    let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
    let resident = |pid: u32| (pid == 8).then_some(Bytes(4096));
    let (found, gap) = others(&reader, group, 7, resident);
    assert_eq!(found, [(8, Bytes(4096))]);
    let gap = gap.expect("two are unknown");
    assert_eq!(
        (gap.reason.as_str(), gap.effect.as_str()),
        ("the RSS of 2 other processes of the group can't be read", OTHERS_UNKNOWN)
    );
    // One of the processes has ended meanwhile.
    let ends = |pid: u32| {
        fs::write(group.join("cgroup.procs"), "7\n8\n").expect("a file");
        (pid == 8).then_some(Bytes(4096))
    };
    fs::write(group.join("cgroup.procs"), "7\n8\n9\n").expect("a file");
    assert_eq!(others(&reader, group, 7, ends), (vec![(8, Bytes(4096))], None));
    fs::remove_file(group.join("cgroup.procs")).expect("a file");
    let (found, gap) = others(&reader, group, 7, resident);
    assert!(found.is_empty() && gap.is_some_and(|gap| gap.reason.starts_with("cgroup.procs can't be read in ")));
    drop(tree);
}

#[test]
fn a_memory_high_that_cannot_be_read_is_a_gap() {
    let (tree, hierarchy) = Tree::new("refused", &[&level(100 * MIB, 60 * MIB, MIB)]);
    fs::create_dir(tree.0.join("kubepods/memory.high")).expect("a directory");
    let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
    assert!(limit(hierarchy, Bytes(0), Stats::ThatMatter, &reader).0.is_some());
    assert!(reader.gap().is_some_and(|gap| gap.reason.contains("memory.high")));
}

/// The group has no memory controller, so those above are charged.
#[test]
fn a_level_that_throttles_above_a_group_without_the_controller_is_found() {
    let pressure = "some avg10=12.00 avg60=0.00 avg300=0.00 total=2500\n".to_owned();
    let high = [
        ("memory.max", "max\n".to_owned()),
        ("memory.high", format!("{}\n", 100 * MIB)),
        ("memory.current", format!("{}\n", 95 * MIB)),
        ("memory.stat", format!("inactive_file {MIB}\n")),
        ("memory.events", "high 7\n".to_owned()),
    ];
    let cgroup = read("high", &[&[("memory.pressure", pressure)], &high], Stats::ThatMatter);
    assert_eq!((cgroup.limit, cgroup.charged), (None, Bytes::mib(95)));
    let throttle = &cgroup.throttles[0];
    assert_eq!((throttle.path.as_str(), throttle.times, throttle.working_set()), ("/kubepods", 7, Bytes::mib(94)));
    assert_eq!(throttle.pressure.map(|pressure| pressure.some), Some(0.12));
}

/// Version 2: each level has a limit of swap alone. The one with the least left counts, or the machine's free swap.
#[test]
fn the_group_with_the_least_swap_left_decides() {
    let swap = |max: &str, current: u64| {
        [("memory.swap.max", format!("{max}\n")), ("memory.swap.current", format!("{}\n", current * MIB))]
    };
    let of = |name, own: [(&'static str, String); 2], above: [(&'static str, String); 2], free| {
        let (_tree, hierarchy) = Tree::new(name, &[&own, &above]);
        let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
        least(&reader, CgroupVersion::V2, &hierarchy.chain, Bytes::mib(free))
    };
    let mib = |number: u64| (number * MIB).to_string();
    assert_eq!(of("swap-own", swap(&mib(200), 50), swap("max", 400), 8000), Bytes::mib(150));
    assert_eq!(of("swap-above", swap("max", 50), swap(&mib(500), 480), 8000), Bytes::mib(20));
    assert_eq!(of("swap-free", swap("max", 50), swap("max", 50), 7), Bytes::mib(7));
    assert_eq!(of("swap-no-machine", swap("max", 0), swap("max", 0), 0), Bytes(0));
    assert_eq!(of("swap-no-group", swap("0", 0), swap("max", 0), 8000), Bytes(0));
}

/// Version 1: of 1,000 MiB of memory 900 are charged. A limit of 1,500 for memory and swap leaves 500 for swap; 50 of
/// them are taken.
#[test]
fn what_memory_may_still_take_is_not_left_for_swap() {
    let of = |name, memory_and_swap: Option<u64>| {
        let mut group = vec![
            ("memory.limit_in_bytes", format!("{}\n", 1000 * MIB)),
            ("memory.usage_in_bytes", format!("{}\n", 900 * MIB)),
            ("memory.memsw.usage_in_bytes", format!("{}\n", 950 * MIB)),
        ];
        group.extend(memory_and_swap.map(|mib| ("memory.memsw.limit_in_bytes", format!("{}\n", mib * MIB))));
        let (_tree, hierarchy) = Tree::new(name, &[&group]);
        let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
        least(&reader, CgroupVersion::V1, &hierarchy.chain, Bytes::mib(8000))
    };
    assert_eq!(of("memsw", Some(1500)), Bytes::mib(450));
    assert_eq!(of("memsw-same", Some(1000)), Bytes(0));
    assert_eq!(of("memsw-none", None), Bytes::mib(8000));
}

/// Socket buffers of version 1 have a counter of their own: the charge doesn't contain them.
#[test]
fn the_charge_of_version_1_contains_no_socket_buffers() {
    let group = [
        ("memory.limit_in_bytes", format!("{}\n", 256 * MIB)),
        ("memory.usage_in_bytes", format!("{}\n", 100 * MIB)),
        ("memory.kmem.usage_in_bytes", format!("{}\n", 7 * MIB)),
        ("memory.kmem.tcp.usage_in_bytes", format!("{}\n", 30 * MIB)),
    ];
    let (_tree, hierarchy) = Tree::new("sockets", &[&group]);
    let reader = Reader::until(Deadline::after(std::time::Duration::from_secs(60)));
    let hierarchy = Hierarchy { version: CgroupVersion::V1, ..hierarchy };
    let (cgroup, _) = limit(hierarchy, Bytes(0), Stats::All, &reader);
    let (cgroup, _) = cgroup.expect("a group");
    assert_eq!((cgroup.charged, cgroup.stat.kernel, cgroup.stat.sock), (Bytes(100 * MIB), Bytes(7 * MIB), Bytes(0)));
}
