//! The corpus, bounded mutations of it, and the inputs of past findings, without libFuzzer: run by each `cargo test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plimsoll_fuzz::{FuzzTarget, TARGETS};

#[path = "../../fixtures/random.rs"]
mod random;
use random::Random;

/// Far above any target's own CPU limit: only an endless loop takes that long.
const ENDLESS: Duration = Duration::from_secs(300);
/// Mutated inputs for each target.
const MUTATIONS: usize = 120;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn inputs(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.expect("entry").path())
        .map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), fs::read(&path).expect("input")))
        .collect();
    inputs.sort();
    inputs
}

/// Runs on a thread of its own, so that an endless loop fails the test.
fn check(target: &'static FuzzTarget, name: String, bytes: Vec<u8>) {
    let (done, ended) = mpsc::channel();
    let printed = format!("{}: {name}", target.name);
    let worker = thread::Builder::new().name(printed.clone()).spawn(move || {
        target.check(&bytes);
        let _ = done.send(());
    });
    worker.expect("a thread");
    if let Err(error) = ended.recv_timeout(ENDLESS) {
        panic!("{printed}: {error}");
    }
}

fn target(name: &str) -> &'static FuzzTarget {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("there is no target {name}"))
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.index(bytes.len());
        match random.below(4) {
            0 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.index(5)],
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..(at + random.index(16)).min(bytes.len()))),
            _ => {
                let piece = bytes[at..(at + random.index(64)).min(bytes.len())].to_vec();
                let to = random.index(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

#[test]
fn every_target_takes_its_corpus_and_mutations_of_it() {
    for target in TARGETS {
        let seeds = inputs(&folder("corpus").join(target.name));
        assert!(!seeds.is_empty(), "{} has no corpus", target.name);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for (name, bytes) in &seeds {
            check(target, name.clone(), bytes.clone());
        }
        for number in 0..MUTATIONS {
            let (name, seed) = &seeds[random.index(seeds.len())];
            let mut bytes = seed.clone();
            mutate(&mut bytes, &mut random);
            check(target, format!("mutation {number} of {name}"), bytes);
        }
    }
}

#[test]
fn the_corpus_is_small_and_belongs_to_targets() {
    let mut bytes = 0;
    for (kind, most) in [("corpus", 2 << 20), ("crashes", 1 << 20)] {
        for entry in fs::read_dir(folder(kind)).expect("folder") {
            let path = entry.expect("entry").path();
            target(&path.file_name().expect("a name").to_string_lossy());
            bytes += inputs(&path).iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        }
        assert!(bytes <= most, "{kind} has {bytes} bytes");
    }
}

/// An input of a past finding, by target and what it did: `fuzz/crashes/TARGET/NAME`.
macro_rules! findings {
    ($($target:ident $name:ident)*) => {
        $(#[test]
        fn $name() {
            let path = folder("crashes").join(stringify!($target)).join(stringify!($name));
            check(target(stringify!($target)), stringify!($name).into(), fs::read(path).expect("the input"));
        })*

        #[test]
        fn every_finding_has_its_test() {
            let known = [$(concat!(stringify!($target), "/", stringify!($name))),*];
            for entry in fs::read_dir(folder("crashes")).expect("folder") {
                let path = entry.expect("entry").path();
                for (name, _) in inputs(&path) {
                    let printed = format!("{}/{name}", path.file_name().expect("a name").to_string_lossy());
                    assert!(known.contains(&printed.as_str()), "fuzz/crashes/{printed} has no line in the table of findings");
                }
            }
        }
    };
}

findings! {
    debug_info section_that_claims_256_mib
    hotspot_memory list_of_200_000_threads
    jfr endless_clock_of_a_chart
    malloc_memory data_that_names_untouched_leaves
    segment holes_of_54_mib
    segment figures_of_8_eib
    segment saved_moment_of_the_year_2554
}
