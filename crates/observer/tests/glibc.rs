//! Compares the walk of glibc's arenas with malloc_info(3) of the same idle process.

mod processes;
#[path = "../../../fixtures/roots.rs"]
mod roots;

use std::process::Command;

use plimsoll_facts::snapshot::{Arena, ArenaKind, Glibc};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::source::glibc::{WalkOptions, parse_malloc_info, read};
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::Target;
use processes::{Subject, compiled, vmas};

fn walk(subject: &Subject) -> Glibc {
    let target = Target::open(subject.pid(), Deadline::after(LOOK)).expect("runs");
    let (glibc, gaps) = read(&target, &vmas(subject.pid()), WalkOptions::default());
    assert_eq!(gaps, []);
    glibc.expect("a glibc program")
}

fn equals_malloc_info(arguments: &[&str]) -> Glibc {
    equals_what_it_says(Command::new(compiled("arenas", &[])).args(arguments))
}

fn equals_what_it_says(command: &mut Command) -> Glibc {
    let subject = Subject::start(command);
    let known = parse_malloc_info(&subject.printed).expect("a report");
    let glibc = walk(&subject);
    assert_eq!(glibc.arenas.len(), known.arenas.len());
    for (arena, known) in glibc.arenas.iter().zip(&known.arenas) {
        assert_eq!((arena.fast_count, arena.fast), (known.fast_count, known.fast), "fastbins of {arena:?}");
        // malloc_info sums raw size fields, so each binned chunk includes its flags: always P, and N for some in a
        // thread arena (`chunksize_nomask` in __malloc_info). mallinfo2, below, has the sum without flags.
        let flags = known.rest - (arena.bins + arena.top);
        let most = if arena.kind == ArenaKind::Main { 1 } else { 5 };
        assert!(
            (arena.bins_count..=most * arena.bins_count).contains(&flags.0),
            "bins and top of {arena:?}: {known:?}"
        );
        assert_eq!(arena.bins_count + 1, known.rest_count, "bins and top of {arena:?}");
        assert_eq!(arena.live + arena.free() + arena.overhead, known.system, "all of {arena:?}");
        assert!(arena.whole);
        assert!(arena.trimmable <= arena.free_resident);
    }
    let words: Vec<&str> =
        subject.printed.lines().find(|line| line.starts_with("fordblks")).expect("printed").split(' ').collect();
    let printed = |index: usize| Bytes(words[index].parse().expect("a number"));
    let sum = |of: fn(&Arena) -> Bytes| glibc.arenas.iter().map(of).sum::<Bytes>();
    assert_eq!(sum(|arena| arena.bins + arena.fast + arena.top), printed(1), "free of all arenas");
    assert_eq!(sum(|arena| arena.fast), printed(3), "fastbins of all arenas");
    assert_eq!(sum(|arena| arena.live + arena.free() + arena.overhead), printed(5), "all arenas");
    assert_eq!((glibc.mmapped_count, glibc.mmapped_bytes), (known.mmapped_count, known.mmapped));
    assert_eq!(glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum::<Bytes>(), known.mmapped);
    glibc
}

#[test]
fn one_thread_equals_malloc_info_to_the_byte() {
    let glibc = equals_malloc_info(&["0", "20000", "1"]);
    assert_eq!(glibc.arenas.len(), 1);
    assert_eq!(glibc.arenas[0].kind, ArenaKind::Main);
    assert!(glibc.arenas[0].tcache > Bytes(0) && glibc.mmapped_count > 0);
}

#[test]
fn many_threads_equal_malloc_info_to_the_byte() {
    for seed in ["2", "3", "4"] {
        let glibc = equals_malloc_info(&["12", "4000", seed]);
        assert_eq!(glibc.arenas.len(), 13);
        assert!(glibc.arenas.iter().skip(1).all(|arena| arena.kind == ArenaKind::Thread && arena.tcache > Bytes(0)));
    }
}

/// Settings of users: the maximum number of blocks with a mapping of their own, and of arenas before the CPUs are
/// counted.
const SET: [[(&str, &str); 2]; 4] = [
    [("MALLOC_MMAP_MAX_", "1000000"), ("MALLOC_ARENA_MAX", "3")],
    [("MALLOC_MMAP_MAX_", "65537"), ("MALLOC_ARENA_MAX", "4")],
    [("MALLOC_MMAP_THRESHOLD_", "20000"), ("MALLOC_MMAP_MAX_", "0")],
    [("MALLOC_ARENA_TEST", "1"), ("MALLOC_ARENA_MAX", "3")],
];

fn equals_whatever_is_set(command: impl Fn() -> Command) {
    for set in SET {
        let glibc = equals_what_it_says(command().args(["6", "4000", "1"]).envs(set));
        let of = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        assert_eq!(glibc.mmapped_count > 0, of("MALLOC_MMAP_MAX_") != Some("0"), "{set:?}");
        let cap = of("MALLOC_ARENA_MAX").map(|cap| cap.parse::<u64>().expect("a number"));
        assert_eq!(glibc.arena_cap, cap, "{set:?}");
        assert_eq!(glibc.arenas.len() as u64, cap.unwrap_or(7), "{set:?}");
        let threshold = of("MALLOC_MMAP_THRESHOLD_").map(|bytes| Bytes(bytes.parse().expect("a number")));
        assert!(threshold.is_none() || glibc.mmap_threshold == threshold, "{set:?}: {:?}", glibc.mmap_threshold);
    }
}

#[test]
fn what_mallopt_sets_leaves_the_walk_equal_to_malloc_info() {
    let program = compiled("arenas", &[]);
    equals_whatever_is_set(|| Command::new(&program));
}

/// Other releases of glibc, in roots of their own.
mod each_release {
    use std::path::Path;

    use super::{Bytes, equals_what_it_says, equals_whatever_is_set, roots};

    #[test]
    #[ignore = "full: makes roots of four suites"]
    fn equals_its_malloc_info_to_the_byte() {
        let target = roots::target(env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/arenas.c");
        for (suite, release) in roots::SUITES {
            let Some(root) = roots::Root::of(suite, target) else { return };
            let Some(program) = root.compiled(&source, target) else { return };
            for arguments in [["0", "20000", "1"], ["12", "4000", "2"]] {
                println!("{suite}, glibc {release}: {arguments:?}");
                let glibc = equals_what_it_says(root.command(&program).args(arguments));
                assert!(glibc.mmapped_count > 0);
                assert!(glibc.arenas.iter().all(|arena| arena.tcache > Bytes(0)), "caches of {suite}");
            }
            equals_whatever_is_set(|| root.command(&program));
        }
    }
}
