//! The core programs over other allocators, preloaded and linked.

use crate::build::{Program, compiled};
use crate::kit::{Figures, Observed, Situation, fresh_dir, situation, tidy};
use std::path::Path;
use std::process::Stdio;

/// Debian's name of the shared library, and its path.
#[derive(Clone, Copy)]
struct Allocator {
    name: &'static str,
    file: &'static str,
}

const JEMALLOC: Allocator = Allocator { name: "jemalloc", file: "libjemalloc.so.2" };
const TCMALLOC: Allocator = Allocator { name: "tcmalloc", file: "libtcmalloc_minimal.so.4" };
const MIMALLOC: Allocator = Allocator { name: "mimalloc", file: "libmimalloc.so.2" };

impl Allocator {
    fn path(self) -> Option<String> {
        let triple = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        [triple.as_str(), "/usr/lib64", "/usr/lib"]
            .iter()
            .map(|d| format!("{d}/{}", self.file))
            .find(|p| Path::new(p).exists())
    }
}

fn core() -> Vec<Situation> {
    vec![
        situation("mix").moments(6),
        situation("realloc_zero").moments(4),
        situation("realloc_moves").moments(22),
        situation("realloc_fail").moments(2),
        situation("reallocarray").moments(3),
        situation("aligned").moments(2),
        situation("malloc_zero").moments(2),
        situation("usable_size").moments(2),
        situation("large_blocks").moments(4),
        situation("libc_callers").moments(4),
        situation("new_delete").moments(4),
        situation("bad_alloc"),
        situation("exceptions").moments(2),
        situation("orphans").moments(4),
        situation("producer_consumer"),
        situation("key_destructors"),
        situation("fork").moments(7),
        situation("endings").exits(47),
        // The mmap of gperftools is its own, made of syscall(2).
        situation("map_basic").moments(3),
        situation("map_raw").moments(5),
    ]
}

/// All core programs over one allocator; each is reported by itself, and all run before the test fails.
fn over(allocator: Allocator, preloaded: bool) {
    let loading = if preloaded { "preloaded" } else { "linked" };
    let Some(path) = allocator.path() else {
        panic!("{} {loading}: the library is not installed; .ci/setup does that", allocator.name);
    };
    let mut failed = vec![];
    for row in core() {
        // mimalloc built as C ends the program where new would throw.
        if row.program == Program::of("bad_alloc") && allocator.name == "mimalloc" {
            continue;
        }
        let name = format!("{}_{}_{loading}", row.name, allocator.name);
        let row = row.named(&name);
        let row = if preloaded { row.env("LD_PRELOAD", &path) } else { row.links(&[allocator.file]) };
        if std::thread::spawn(move || row.run()).join().is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join(" "));
}

#[test]
fn jemalloc_preloaded() {
    over(JEMALLOC, true);
}
#[test]
fn jemalloc_linked() {
    over(JEMALLOC, false);
}
#[test]
#[ignore = "full: a second way to the same allocator"]
fn tcmalloc_preloaded() {
    over(TCMALLOC, true);
}
#[test]
fn tcmalloc_linked() {
    over(TCMALLOC, false);
}
#[test]
#[ignore = "full: a second way to the same allocator"]
fn mimalloc_preloaded() {
    over(MIMALLOC, true);
}
#[test]
fn mimalloc_linked() {
    over(MIMALLOC, false);
}

/// The key of the block before is still there.
#[test]
fn an_address_whose_release_was_not_seen() {
    situation("unseen_release").links(&[JEMALLOC.file]).moments(2).run();
}

/// The program releases blocks by functions that only the allocator has; it finds them by dlsym.
#[test]
fn releases_by_an_allocators_own_names() {
    for allocator in [JEMALLOC, TCMALLOC, MIMALLOC] {
        let row = situation("own_release").named(&format!("own_release_{}", allocator.name));
        row.links(&[allocator.file]).moments(2).run();
    }
}

/// An allocator that calls its own exported names, so that each call passes the hooks twice.
#[test]
fn naive_allocator_linked() {
    situation("mix").named("mix_naive").links(&["libnaive"]).moments(6).run();
    situation("realloc_zero").named("realloc_zero_naive").links(&["libnaive"]).moments(4).run();
    situation("reallocarray").named("reallocarray_naive").links(&["libnaive"]).moments(3).run();
}

/// Blocks that libc gives because the allocator lacks the function.
#[test]
fn aligned_forms_that_the_allocator_lacks() {
    let row = situation("aligned_of_libc");
    row.clone().named("aligned_of_libc_naive").links(&["libnaive"]).moments(2).run();
    row.clone().named("pvalloc_of_libc_jemalloc").flags(&["-DPAGES"]).links(&[JEMALLOC.file]).moments(2).run();
    let row = row.links(&["libnaive"]);
    let dir = fresh_dir("aligned_of_libc_counted");
    let seen = Observed::watch(row.command(&compiled(&row.program), Some("off"), &dir), Some(&dir));
    let last = seen.moments.last().expect("a moment");
    let figures = Figures::of_process(&dir, last.pid).expect("a report");
    tidy(&dir);
    let counted = ["unbooked_blocks", "unbooked_bytes", "unknown_frees", "faults"].map(|name| figures.counter(name));
    assert_eq!(counted, [5, 5000 + 640 + 640 + 10 + 5000, 0, 0]);
}

/// A debugging allocator that can't report its blocks' sizes.
#[test]
fn allocator_without_sizes() {
    let row =
        |name: &str| situation(name).named(&format!("{name}_serial")).flags(&["-DNO_SIZES"]).links(&["libserial"]);
    row("mix").moments(6).run();
    row("realloc_zero").moments(4).run();
    row("producer_consumer").run();
    row("fork").moments(7).run();
}

/// gperftools reports no sizes before its constructor has run.
#[test]
fn blocks_from_before_the_constructor_of_tcmalloc() {
    let row = situation("early_blocks").named("early_blocks_tcmalloc").flags(&["-DSINCE_MAIN"]);
    row.links(&[TCMALLOC.file, "libearly"]).moments(2).run();
}

/// The key of a block from before the constructor must be found, although later keys have another place.
#[test]
fn blocks_from_before_the_constructor_of_jemalloc() {
    let row = situation("early_blocks").named("early_blocks_jemalloc").flags(&["-DSINCE_MAIN"]);
    row.links(&[JEMALLOC.file, "libearly"]).moments(2).run();
}

/// gperftools' blocks end with their pages.
#[test]
fn pvalloc_over_tcmalloc() {
    let row = situation("pvalloc").named("pvalloc_tcmalloc").flags(&["-DWHOLE_PAGES"]);
    row.links(&[TCMALLOC.file]).moments(2).run();
}

/// gperftools has its own mmap, made of syscall(2): the program's call passes both hooks and counts once.
#[test]
fn a_mapping_is_counted_once_over_tcmalloc() {
    let row = situation("map_basic");
    let counts = [None, TCMALLOC.path()].map(|path| {
        let dir = fresh_dir("counted_once");
        let mut command = row.command(&compiled(&row.program), Some("sampled"), &dir);
        command.envs(path.map(|path| ("LD_PRELOAD", path))).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("plimsoll");
        let pid = i64::from(child.id());
        assert!(child.wait().expect("our child").success());
        let figures = Figures::of_process(&dir, pid).expect("a report");
        let sites = figures.json["sites"].as_array().expect("sites").clone();
        sites.iter().filter_map(|site| site["mapped_count"].as_i64()).sum::<i64>()
    });
    tidy(&fresh_dir("counted_once"));
    assert_eq!(counts, [4, 4]);
}
