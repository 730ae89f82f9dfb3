//! The line `tracker`: every page that exists because of the tracker, and no other. Truth: the same program without it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_tracked::segment;

use crate::fixture::{Explained, Fixture, PLIMSOLL, compiled, fresh};

const PURPOSE_OF_LIBRARY_DATA: u32 = plimsoll_segment::Purpose::Data as u32;

fn tracked(program: &Path, mode: &str, folder: &Path) -> Fixture {
    let mut command = Command::new(PLIMSOLL);
    // The mean is so small that `sampled` has thousands of sites, too.
    command.args(["run", "--sites", mode, "--sample", "256", "--dir"]).arg(folder).arg("--").arg(program);
    Fixture::run(&mut command)
}

fn segment_in(folder: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    files.find(|path| path.extension().is_some_and(|ending| ending == "seg")).expect("a segment")
}

/// Start, end and VmFlags of each mapping in smaps.
fn flags_of_mappings(pid: u32) -> Vec<(u64, u64, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut found: Vec<(u64, u64, String)> = Vec::new();
    for line in text.lines() {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| Some((hex(start)?, hex(end)?))) {
            found.push((start, end, String::new()));
        } else if let (Some(flags), Some(last)) = (line.strip_prefix("VmFlags:"), found.last_mut()) {
            last.2 = format!("{flags} ");
        }
    }
    found
}

fn total(explained: &Explained) -> u64 {
    explained.0["rss_bytes"].as_u64().unwrap()
}

/// The loader allocates its data about one more library before malloc exists, in its own memory.
const LOADER: u64 = 16 << 10;
/// Where these data begin in a page differs from run to run, so either program may have touched one page more.
const PAGE: u64 = 4 << 10;

#[test]
fn all_lines_but_the_trackers_are_those_of_the_plain_program() {
    let program = compiled("crowd_of_sites", &[]);
    let plain = Fixture::run(&mut Command::new(&program));
    let plain_lines = plain.explained();
    for mode in ["off", "sampled", "exact"] {
        let folder = fresh(&format!("own-{mode}"));
        let fixture = tracked(&program, mode, &folder);
        let explained = fixture.explained();
        assert_eq!(fixture.truth("own_mmap"), plain.truth("own_mmap"));
        let (found, truth) = (explained.line("other-anonymous"), plain_lines.line("other-anonymous"));
        assert!(truth >= plain.truth("own_mmap"));
        assert!(
            (truth - PAGE..=truth + LOADER + PAGE).contains(&found),
            "{mode}: {found}, {truth}\n{:#}",
            explained.0["lines"]
        );
        for line in ["mapped-files", "shared-memory"] {
            assert_eq!(explained.line(line), plain_lines.line(line), "{mode}: {line}");
        }
        let (rest, whole) = (total(&explained) - explained.line("tracker"), total(&plain_lines));
        // The two programs read different pages of libc: the stacks need its unwind tables.
        let libraries = explained.line("libraries").abs_diff(plain_lines.line("libraries"));
        let difference = rest.abs_diff(whole).saturating_sub(libraries);
        assert!(difference * 50 <= whole, "{mode}: {rest} besides the tracker, {whole} without\n{explained:#?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// A huge page of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE: u64 = 2 << 20;

#[test]
fn no_mapping_of_the_tracker_is_made_of_huge_pages() {
    let folder = fresh("own-huge");
    let fixture = tracked(&compiled("crowd_of_sites", &[]), "exact", &folder);
    let listed = segment::own_mappings(&segment_in(&folder), Deadline::after(LOOK)).expect("a segment");
    let mappings = flags_of_mappings(fixture.pid());
    let sparse: Vec<_> = listed.iter().filter(|own| own.purpose != PURPOSE_OF_LIBRARY_DATA).collect();
    assert!(sparse.len() >= 2, "a pool and the index of frames: {listed:?}");
    for own in sparse {
        let within = |(start, end, _): &&(u64, u64, String)| *start < own.range.end.0 && own.range.start.0 < *end;
        let flags: Vec<&str> = mappings.iter().filter(within).map(|(.., flags)| flags.as_str()).collect();
        assert!(!flags.is_empty() && flags.iter().all(|flags| flags.contains(" nh ")), "{own:?}: {flags:?}");
    }
    // The library's own data lacks that flag, and has no space for a huge page.
    let data: Vec<_> = listed.iter().filter(|own| own.purpose == PURPOSE_OF_LIBRARY_DATA).collect();
    assert!(!data.is_empty(), "{listed:?}");
    for own in data {
        let within = |(start, end, _): &&(u64, u64, String)| *start < own.range.end.0 && own.range.start.0 < *end;
        for (start, end, flags) in mappings.iter().filter(within) {
            let has_space = start.next_multiple_of(HUGE) + HUGE <= *end;
            assert!(flags.contains(" nh ") || !has_space, "{start:x}-{end:x}: {flags}");
        }
    }
    drop(fixture);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Another version of plimsoll may track the process. The report must not look as if none did.
#[test]
fn a_segment_of_another_version_is_a_gap() {
    let folder = fresh("own-version");
    let fixture = tracked(&compiled("crowd_of_sites", &[]), "off", &folder);
    let segment = std::fs::File::options().write(true).open(segment_in(&folder)).expect("the segment");
    let set = |version: u32| {
        let at = std::mem::offset_of!(plimsoll_segment::Header, version) as u64;
        segment.write_all_at(&version.to_ne_bytes(), at).expect("the version");
    };
    set(u32::MAX);
    let explained = fixture.explained();
    let other = "is a segment of version 4294967295";
    let is_other = |gap: &serde_json::Value| gap["source"] == "segment" && gap["reason"].to_string().contains(other);
    assert!(explained.0["gaps"].as_array().expect("gaps").iter().any(is_other), "{:#}", explained.0["gaps"]);
    let report = Command::new(PLIMSOLL).args(["report", &fixture.pid().to_string()]).output().expect("plimsoll");
    let stderr = String::from_utf8_lossy(&report.stderr);
    assert!(!report.status.success() && stderr.contains(" is tracked, but ") && stderr.contains(other), "{stderr}");
    assert!(stderr.ends_with(". Use the plimsoll that tracks it\n"), "{stderr}");
    set(plimsoll_segment::VERSION);
    drop(fixture);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A program that locks its memory unseen by the tracker has all of the segment resident, although the file has few
/// blocks on disk. `report` counts that, and `explain` doesn't call the process healthy.
#[test]
fn a_segment_that_the_program_has_locked_counts_whole() {
    let (folder, plain) = (fresh("own-locked"), fresh("own-not-locked"));
    let fixture = tracked(&compiled("lock_unseen", &[]), "sampled", &folder);
    if fixture.truth("failed") != 0 {
        return crate::fixture::skip("locked segment", "this user may not lock so much memory");
    }
    let (explained, own) = (fixture.explained(), own_cost(fixture.pid()));
    let number = |key: &str| own[key].as_u64().expect(key);
    let tracker = explained.line("tracker");
    println!("exercised: {tracker} B resident, {own}");
    assert!(number("segment_bytes") > 150 << 20, "{own:#}");
    assert!(tracker.abs_diff(number("bytes")) <= ONLY_READ, "{tracker}, {own:#}");
    let verdicts = explained.0["verdicts"].to_string();
    assert!(verdicts.contains("\"unclear\"") && !verdicts.contains("\"healthy\""), "{verdicts}");
    assert!(verdicts.contains("Plimsoll itself"), "{verdicts}");
    // In a program that doesn't lock its memory, the line is small, and the verdict doesn't mention it.
    let small = tracked(&compiled("crowd_of_sites", &[]), "sampled", &plain);
    assert!(own_cost(small.pid())["segment_bytes"].as_u64().is_some_and(|bytes| bytes < 16 << 20));
    let verdicts = small.explained().0["verdicts"].to_string();
    assert!(!verdicts.contains("Plimsoll itself, "), "{verdicts}");
}

fn own_cost(pid: u32) -> serde_json::Value {
    let output =
        Command::new(PLIMSOLL).args(["report", &pid.to_string(), "--format", "json"]).output().expect("plimsoll");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")["own"].clone()
}

/// A page that was only read is the kernel's zero page: present in the page map, but not resident.
const ONLY_READ: u64 = 256 << 10;
/// How much two starts of one program differ under allocators that keep pages: this, plus 0.2 %.
const NOISE: u64 = 256 << 10;
const ALLOCATORS: [(&str, Option<&str>); 4] = [
    ("glibc", None),
    ("jemalloc", Some("libjemalloc.so.2")),
    ("tcmalloc", Some("libtcmalloc_minimal.so.4")),
    ("mimalloc", Some("libmimalloc.so.2")),
];

/// tcmalloc has a table of 2 MiB for each 2 GiB of addresses in which its heap lies: two where the heap crosses a
/// multiple of 2 GiB, as after one start in eight.
fn is_heap_below_one_table(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let heap = maps.lines().find(|line| line.ends_with("[heap]")).expect("tcmalloc takes its memory by sbrk");
    let (start, end) = heap.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).expect("an address"));
    start >> 31 == (end - 1) >> 31
}

#[test]
fn the_reports_own_cost_is_what_is_resident_because_of_it() {
    let program = compiled("blocks_of_sizes", &[]);
    for (name, library) in ALLOCATORS {
        let library = library.map(|file| Path::new("/usr/lib/x86_64-linux-gnu").join(file));
        if library.as_ref().is_some_and(|library| !library.exists()) {
            crate::fixture::skip("own cost under other allocators", &format!("{name} is not installed"));
            continue;
        }
        for sizes in ["class", "spread", "pages"] {
            let start = |command: &mut Command| loop {
                let preload = library.iter().map(|library| ("LD_PRELOAD", library));
                let fixture = Fixture::run(command.envs(preload));
                if name != "tcmalloc" || is_heap_below_one_table(fixture.pid()) {
                    let explained = fixture.explained();
                    return (fixture, explained);
                }
            };
            let (plain, explained) = start(Command::new(&program).arg(sizes));
            let without = total(&explained);
            let folder = fresh(&format!("own-{name}-{sizes}"));
            let mut tracked = Command::new(PLIMSOLL);
            tracked.args(["run", "--sites", "off", "--dir"]).arg(&folder).arg("--").arg(&program).arg(sizes);
            let (fixture, explained) = start(&mut tracked);
            let own = own_cost(fixture.pid());
            let difference = total(&explained).saturating_sub(without);
            let noise = NOISE + without / 500;
            let case = format!("{name}, {sizes}: {difference} more than {without}, {own:#}");

            let number = |key: &str| own[key].as_u64().expect(key);
            let of = |key: &str| [0, 1].map(|i| own[key][i].as_f64().expect(key));
            let (bytes, blocks, [least, most]) = (number("bytes"), plain.truth("blocks"), of("heap_growth_bytes"));
            assert_eq!(own["private_by_page"], true);
            assert!(difference + noise >= bytes + least as u64 && difference <= bytes + most as u64 + noise, "{case}");
            // The cost of a block times the number of blocks is what a program without blocks lacks.
            let held = number("trailer_blocks") + number("side_table_blocks");
            assert!(held.abs_diff(blocks) < 100, "{case}");
            let [least, most] = of("bytes_a_block").map(|each| (each * blocks as f64) as u64);
            let of_blocks = difference.saturating_sub(bytes - number("side_table_bytes"));
            assert!(of_blocks + noise >= least && of_blocks <= most + noise, "{case}");
            // `explain` and `report` agree.
            let tracker = explained.line("tracker");
            assert!(tracker <= bytes + (64 << 10) && bytes <= tracker + ONLY_READ, "{tracker}, {case}");
            let rest = total(&explained) - tracker;
            assert!(rest <= without + most + noise && rest + noise >= without, "{rest}, {case}");
            if library.is_none() {
                let growth = fixture.truth("in_use").saturating_sub(plain.truth("in_use"));
                assert!(growth <= own["heap_growth_bytes"][1].as_u64().expect("a number"), "{growth}, {case}");
                assert!(sizes == "pages" || growth > blocks, "{growth}, {case}");
            } else {
                assert!(name == "mimalloc" || own["heap_growth_bytes"] == serde_json::json!([0, 0]), "{case}");
                // Requests of exactly a size class leave no slack.
                assert!(sizes != "pages" || number("side_table_blocks") >= blocks, "{case}");
            }
            crate::stage::log_line(&format!(
                "own cost, {name}, {sizes}: {difference} B, {} a block",
                own["bytes_a_block"]
            ));
            drop(fixture);
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
