//! Hostile surroundings: closed descriptors, limits, full and read-only file systems, chroot.

use crate::build::compiled;
use crate::harness::{End, MODES, Observed, Situation, fresh_dir, scratch, situation, skipped, verdict};
use crate::situations;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

situations! {
    file_size_limit_later => situation("file_size_limit").moments(2);
    descriptors_exhausted => situation("descriptors_exhausted");
    descriptors_closed => situation("descriptors_closed").moments(2);
    new_root => {
        let root = scratch("empty-root");
        situation("new_root").args(&[root.to_str().expect("path")])
    };
}

#[test]
fn closed_standard_descriptors() {
    for close in ["<&- >&- 2>&-", "<&-", ">&-", "2>&-", "<&- 2>&-"] {
        let name = format!("closed_standard {close}");
        for mode in MODES {
            let log = scratch("logs").join("closed_standard-$MODE");
            for kind in ["plain", mode] {
                let _ = fs::remove_file(log.to_str().expect("path").replace("$MODE", kind));
            }
            let row = situation("closed_standard").named(&name).env("BOOKS_LOG", log.to_str().expect("path"));
            row.shell(&format!("exec {close};")).run_modes(&[mode]);
        }
    }
}

/// What a row has beside the program's own behaviour.
#[derive(Clone, Copy)]
enum Outcome {
    /// Exact books, and nothing on stderr.
    Books,
    /// No books, and one sentence on stderr that has these words.
    Refused(&'static str),
}
use Outcome::{Books, Refused};

/// Limits that hold from the start: the program must behave as without the tracker.
fn limited(name: &str, shell: &str, outcome: Outcome) {
    // The library is unpacked before the limit bites.
    let warm = situation("nothing");
    drop(Observed::watch(
        warm.command(&compiled(&warm.program), Some("off"), &fresh_dir(&format!("{name}-warm"))),
        None,
    ));
    let row = situation("mix").named(name).shell(shell);
    behaves(name, &row, &compiled(&row.program), outcome);
}

fn behaves(name: &str, row: &Situation, program: &Path, outcome: Outcome) {
    let (mut faults, mut compared) = (String::new(), 0);
    for mode in MODES {
        let dir = fresh_dir(&format!("{name}-{mode}"));
        let plain = Observed::watch(row.command(program, None, &dir), None);
        assert_eq!(plain.end, End::Exit(0), "{name}: {}", plain.errors);
        let tracked = Observed::watch(row.command(program, Some(mode), &dir), Some(&dir));
        compared += as_expected(&tracked, &plain, &dir, mode, outcome, &mut faults);
    }
    verdict(name, &faults, compared);
}

/// The program behaves the same, and beside that is what the row expects.
fn as_expected(
    tracked: &Observed,
    plain: &Observed,
    dir: &Path,
    mode: &str,
    outcome: Outcome,
    faults: &mut String,
) -> usize {
    if (tracked.end, &tracked.output, tracked.late) != (plain.end, &plain.output, false) {
        let _ = writeln!(
            faults,
            "  {mode}: {:?} {}, plain {:?} {}\n  {}",
            tracked.end, tracked.output, plain.end, plain.output, tracked.errors
        );
    }
    let errors = &tracked.errors;
    match outcome {
        Books => {
            let (compared, found) = tracked.books(dir, || Err("no base".into()));
            if compared == 0 || !found.is_empty() || !errors.is_empty() {
                let _ = writeln!(faults, "  {mode}: expected exact books and no word: {found:?} stderr {errors:?}");
            }
            compared
        }
        Refused(why) => {
            let is_it = errors.lines().count() == 1 && errors.starts_with("plimsoll: ") && errors.contains(why);
            let segments = fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path());
            let left = segments.filter(|path| path.extension().is_some_and(|end| end == "seg")).count();
            if !is_it || left > 0 {
                let _ = writeln!(faults, "  {mode}: expected '{why}' and no segment: {left} left, stderr {errors:?}");
            }
            1
        }
    }
}

#[test]
fn file_size_limit_at_start() {
    limited("file_size_limit_at_start", "ulimit -f 1;", Refused("the limit on file sizes (ulimit -f)"));
}
#[test]
fn file_size_limit_none() {
    limited("file_size_limit_none", "ulimit -f 0;", Refused("the limit on file sizes (ulimit -f)"));
}
#[test]
fn five_descriptors() {
    limited("five_descriptors", "ulimit -n 5;", Books);
}
#[test]
fn address_space_limit() {
    limited("address_space_limit", "ulimit -v 100000;", Refused("the limit on address space (ulimit -v)"));
}
/// Set by a shell that is tracked: our own command line, unoptimised, needs some 185 KiB, and the environment and a random
/// shift of up to 8 KiB come on top.
#[test]
fn small_stack() {
    let mix = compiled(&situation("mix").program);
    let script = ["-c", "ulimit -s 128; exec \"$0\"", mix.to_str().expect("path")];
    let row = situation("mix").named("small_stack").args(&script).follow();
    behaves("small_stack", &row, Path::new("/bin/sh"), Books);
}

/// A mounted tmpfs of one size, unmounted at the end.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(name: &str, size: &str) -> Result<Tmpfs, String> {
        let at = scratch("mounts").join(name);
        let _ = fs::create_dir_all(&at);
        let said = Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={size},mode=0700"))
            .args(["plimsoll-test"])
            .arg(&at)
            .output();
        match said {
            Ok(o) if o.status.success() => Ok(Tmpfs(at)),
            Ok(o) => Err(String::from_utf8_lossy(&o.stderr).trim().to_string()),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn on_tmpfs(name: &str, size: &str, outcome: Outcome, prepare: fn(&Path)) {
    let (mut faults, mut compared) = (String::new(), 0);
    for source in ["mix", "exceptions", "fork", "map_partial", "sandbox"] {
        for mode in MODES {
            let tmpfs = match Tmpfs::mount(&format!("{name}-{source}-{mode}"), size) {
                Ok(tmpfs) => tmpfs,
                Err(reason) => return skipped(name, &reason),
            };
            prepare(&tmpfs.0);
            let row = situation(source).named(name);
            let program = compiled(&row.program);
            let plain = Observed::watch(row.command(&program, None, &tmpfs.0), None);
            let tracked = Observed::watch(row.command(&program, Some(mode), &tmpfs.0), Some(&tmpfs.0));
            compared += as_expected(&tracked, &plain, &tmpfs.0, &format!("{source} {mode}"), outcome, &mut faults);
        }
    }
    verdict(name, &faults, compared);
}

#[test]
fn tmpfs_of_one_mebibyte() {
    on_tmpfs("tmpfs_of_one_mebibyte", "1m", Books, |_| ());
}
/// Full while the program runs: the tables stop growing, the totals stay exact.
#[test]
fn tmpfs_too_small_to_grow() {
    on_tmpfs("tmpfs_too_small_to_grow", "300k", Books, |_| ());
}
#[test]
fn tmpfs_full() {
    on_tmpfs("tmpfs_full", "1m", Refused("No space left"), |at| {
        let _ = fs::write(at.join("filler"), vec![1u8; 2 << 20]);
    });
}
#[test]
fn tmpfs_nearly_full() {
    on_tmpfs("tmpfs_nearly_full", "1m", Refused("No space left"), |at| {
        let _ = fs::write(at.join("filler"), vec![1u8; (1 << 20) - 5 * 4096]);
    });
}
#[test]
fn directory_read_only() {
    on_tmpfs("directory_read_only", "1m", Refused("Read-only file system"), |at| {
        let _ = Command::new("mount").args(["-o", "remount,ro"]).arg(at).status();
    });
}

/// A server that forks for each request must not fill the file system: of its 500 dead children at most the default number of
/// segments is kept, beside those of the 20 that may be alive at once.
#[test]
fn retention_bounds_a_fork_storm() {
    let row = situation("fork_storm").named("retention_bounds_a_fork_storm");
    let dir = fresh_dir("retention_bounds_a_fork_storm");
    let seen = Observed::watch(row.command(&compiled(&row.program), Some("off"), &dir), Some(&dir));
    let kept = fs::read_dir(&dir).expect("segments").count();
    let mut faults = String::new();
    if seen.end != End::Exit(0) || kept > 16 + 20 + 1 {
        let _ = writeln!(faults, "  {:?}, {kept} segments are left", seen.end);
    }
    crate::harness::tidy(&dir);
    verdict("retention_bounds_a_fork_storm", &faults, 1);
}
