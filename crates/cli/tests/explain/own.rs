//! The line `tracker`: every page that is there because of the tracker, and no other. Truth: the same program without it.

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_observer::source::segment;

use crate::fixture::{Explained, Fixture, PLIMSOLL, compiled, fresh};

const PURPOSE_OF_LIBRARY_DATA: u32 = plimsoll_segment::Purpose::Data as u32;

fn tracked(program: &Path, mode: &str, folder: &Path) -> Fixture {
    let mut command = Command::new(PLIMSOLL);
    // So small a mean that `sampled` has thousands of sites too.
    command.args(["run", "--sites", mode, "--sample", "256", "--dir"]).arg(folder).arg("--").arg(program);
    Fixture::run(&mut command)
}

fn segment_in(folder: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    files.find(|path| path.extension().is_some_and(|ending| ending == "seg")).expect("a segment")
}

/// Start, end and VmFlags of each mapping, as smaps has them.
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

/// The loader keeps its data of one more library in memory of its own, before malloc.
const LOADER: u64 = 16 << 10;

#[test]
fn invariant_7_all_lines_but_the_tracker_s_are_those_of_the_plain_program() {
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
        assert!((truth..=truth + LOADER).contains(&found), "{mode}: {found}, {truth}\n{:#}", explained.0["lines"]);
        for line in ["mapped-files", "shared-memory"] {
            assert_eq!(explained.line(line), plain_lines.line(line), "{mode}: {line}");
        }
        let (rest, whole) = (total(&explained) - explained.line("tracker"), total(&plain_lines));
        // Of libc, one program reads other pages than the other: its unwind tables, which the stacks need.
        let libraries = explained.line("libraries").abs_diff(plain_lines.line("libraries"));
        let difference = rest.abs_diff(whole).saturating_sub(libraries);
        assert!(difference * 50 <= whole, "{mode}: {rest} besides the tracker, {whole} without\n{explained:#?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn no_mapping_of_the_tracker_is_made_of_huge_pages() {
    let folder = fresh("own-huge");
    let fixture = tracked(&compiled("crowd_of_sites", &[]), "exact", &folder);
    let listed = segment::own_mappings(&segment_in(&folder));
    let mappings = flags_of_mappings(fixture.pid());
    let sparse: Vec<_> = listed.iter().filter(|own| own.purpose != PURPOSE_OF_LIBRARY_DATA).collect();
    assert!(sparse.len() >= 2, "a pool and the index of frames: {listed:?}");
    for own in sparse {
        let within = |(start, end, _): &&(u64, u64, String)| *start < own.range.end.0 && own.range.start.0 < *end;
        let flags: Vec<&str> = mappings.iter().filter(within).map(|(.., flags)| flags.as_str()).collect();
        assert!(!flags.is_empty() && flags.iter().all(|flags| flags.contains(" nh ")), "{own:?}: {flags:?}");
    }
    drop(fixture);
    std::fs::remove_dir_all(folder).unwrap();
}
