//! Hostile environments: closed descriptors, limits, full and read-only file systems, chroot.

use crate::build::compiled;
use crate::kit::{End, MODES, Observed, Situation, fresh_dir, scratch, situation, skipped, tidy, verdict};
use crate::situations;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

situations! {
    file_size_limit_later over both_musl_in_full => situation("file_size_limit").moments(2);
    descriptors_exhausted over both_musl_in_full => situation("descriptors_exhausted");
    descriptors_closed over both_musl_in_full => situation("descriptors_closed").moments(2);
    new_root over both_musl_in_full => {
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

/// What a row expects beside the program's own behaviour.
#[derive(Clone, Copy)]
enum Outcome {
    /// Exact books, and nothing on stderr.
    Books,
    /// No books, and one sentence on stderr that contains these words.
    Refused(&'static str),
}
use Outcome::{Books, Refused};

/// Limits from the start: the program must behave as without the tracker.
fn limited(name: &str, shell: &str, outcome: Outcome) {
    // The library is unpacked before the limit applies.
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

/// The program behaves the same, and the rest is what the row expects.
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
                let _ = writeln!(faults, "  {mode}: expected exact books and no stderr: {found:?} stderr {errors:?}");
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
    limited("address_space_limit", "ulimit -v 58000;", Refused("the limit on address space (ulimit -v)"));
    for kib in [59_000, 100_000, 600_000] {
        limited(&format!("address_space_limit_{kib}"), &format!("ulimit -v {kib};"), Books);
    }
}
#[test]
fn data_limit() {
    limited("data_limit", "ulimit -d 30000;", Refused("the limit on writable memory (ulimit -d)"));
    for kib in [40_000, 100_000, 600_000] {
        limited(&format!("data_limit_{kib}"), &format!("ulimit -d {kib};"), Books);
    }
}
#[test]
fn forks_under_an_address_space_limit() {
    for source in ["fork", "fork_threads", "fork_storm", "fork_nested", "fork_snapshot", "fork_execs"] {
        let name = format!("{source}_in_100_mb");
        let row = situation(source).named(&name).shell("ulimit -v 100000;");
        behaves(&name, &row, &compiled(&row.program), Books);
    }
}
#[test]
fn maps_and_threads_under_an_address_space_limit() {
    for source in
        ["map_basic", "map_commit", "map_remap", "map_partial", "map_threads", "threads_sequential", "orphans"]
    {
        let name = format!("{source}_in_400_mb");
        let row = situation(source).named(&name).shell("ulimit -v 400000;");
        behaves(&name, &row, &compiled(&row.program), Books);
    }
}

/// Address space in MiB that the tracker takes from a program under a limit: code and tables. The books' bound does not
/// include it.
const TAKEN: usize = 11;

/// Threads and blocks that fit, without the tracker, into a limit that is lower by the tracker's share, fit with the
/// tracker into the whole limit. If the tracker is inactive, it takes nothing. One arena only: glibc makes more of
/// 64 MiB each as long as they fit.
#[test]
fn what_fits_into_an_address_space_fits_with_the_tracker() {
    let name = "what_fits";
    let (mut faults, mut compared, mut aside) = (String::new(), 0, 0);
    let row = |mib: usize, threads: usize, blocks: usize| {
        let limit = format!("export MALLOC_ARENA_MAX=1; ulimit -v {};", mib << 10);
        situation("address_space").shell(&limit).args(&["fit", &threads.to_string(), &blocks.to_string()])
    };
    // Each needs one page more, for malloc itself.
    let blocks = |mib: usize| mib * 255 / 256 - 1;
    let program = compiled(&row(0, 0, 0).program);
    // A debug build of plimsoll, which starts the program under the limit, has 28 MiB of code itself (a release one 8).
    for mib in (36..=100).step_by(3).chain((100..=700).step_by(50)) {
        let is_aside = mib << 20 < 60_000_000;
        let alone = if is_aside { mib } else { mib - TAKEN };
        // Without the tracker, code, stack and libc of the program are below 4 MiB, a thread's stack and guard above 8.
        let free_kib = alone - 4;
        for (threads, blocks) in
            [(free_kib * 10 / 86, 0), (0, blocks(free_kib)), (free_kib * 5 / 86, blocks(free_kib / 2))]
        {
            let dir = fresh_dir(name);
            let plain = Observed::watch(row(alone, threads, blocks).command(&program, None, &dir), None);
            let more = Observed::watch(row(mib, threads, blocks).command(&program, None, &dir), None);
            assert_eq!((plain.end, more.end), (End::Exit(0), End::Exit(0)), "{mib} MiB: {}", plain.output);
            let tracked = Observed::watch(row(mib, threads, blocks).command(&program, Some("sampled"), &dir), None);
            let segments = fs::read_dir(&dir).expect("a folder").count();
            let printed = tracked.errors.lines().count();
            if (tracked.end, &tracked.output) != (plain.end, &plain.output)
                || (printed, segments) != if is_aside { (1, 0) } else { (0, 1) }
            {
                let _ = writeln!(
                    faults,
                    "  {mib} MiB: {:?} {}plain {:?} {}stderr {:?} {segments} segments",
                    tracked.end, tracked.output, plain.end, plain.output, tracked.errors
                );
            }
            compared += 1;
            aside += usize::from(is_aside);
        }
    }
    tidy(&fresh_dir(name));
    assert!(aside > 20 && compared > aside + 50, "{aside} of {compared} aside");
    verdict(name, &faults, compared);
}

/// A program that limits its own address space gets as much from malloc as without the tracker, less what the tracker
/// uses.
#[test]
fn own_address_space_limit() {
    let name = "own_limit";
    let (mut faults, mut compared) = (String::new(), 0);
    for way in ["setrlimit", "prlimit", "raw", "child"] {
        for mib in [60, 150, 600, 4000] {
            let dir = fresh_dir(name);
            let row = situation("address_space").args(&[way, &mib.to_string()]);
            let program = compiled(&row.program);
            let [plain, tracked] = [None, Some("sampled")].map(|mode| {
                let seen = Observed::watch(row.command(&program, mode, &dir), None);
                let blocks = seen.output.strip_suffix(" blocks\n").and_then(|n| n.parse::<usize>().ok());
                (seen.end, blocks.unwrap_or(0), seen.errors)
            });
            assert!(plain.0 == End::Exit(0) && plain.1 + 10 + mib / 200 > mib, "{way} {mib}: {plain:?}");
            if tracked.0 != plain.0 || tracked.1 + TAKEN < plain.1 || !tracked.2.is_empty() {
                let _ = writeln!(faults, "  {way} {mib} MiB: {tracked:?}, plain {plain:?}");
            }
            compared += 1;
        }
    }
    // A child of a tracked shell, in which the tracker is inactive, lowers its limit further.
    let dir = fresh_dir(name);
    let program = compiled(&situation("address_space").program);
    let script = ["-c", "ulimit -v 58000; exec \"$0\" setrlimit 40", program.to_str().expect("path")];
    let row = situation("address_space").args(&script).follow();
    let [plain, tracked] = [None, Some("sampled")].map(|mode| {
        let seen = Observed::watch(row.command(Path::new("/bin/sh"), mode, &dir), None);
        let blocks = seen.output.strip_suffix(" blocks\n").and_then(|n| n.parse::<usize>().ok());
        (seen.end, blocks.unwrap_or(0), seen.errors)
    });
    // The tracker's code alone takes some.
    if tracked.0 != plain.0 || tracked.1 + 3 < plain.1 || plain.1 < 30 || !tracked.2.is_empty() {
        let _ = writeln!(faults, "  aside: {tracked:?}, plain {plain:?}");
    }
    tidy(&fresh_dir(name));
    verdict(name, &faults, compared + 1);
}

/// The same for a limit on writable private memory, in blocks of 10,000 bytes. The segment is shared, so it doesn't
/// count. Below the least limit the tracker's tables alone are more than that.
#[test]
fn own_data_limit() {
    let name = "own_data_limit";
    let (mut faults, mut compared) = (String::new(), 0);
    for mib in [16, 50, 600] {
        let dir = fresh_dir(name);
        let row = situation("address_space").args(&["data", &mib.to_string()]);
        let program = compiled(&row.program);
        let [plain, tracked] = [None, Some("sampled")].map(|mode| {
            let seen = Observed::watch(row.command(&program, mode, &dir), None);
            let blocks = seen.output.strip_suffix(" blocks\n").and_then(|n| n.parse::<usize>().ok());
            (seen.end, blocks.unwrap_or(0), seen.errors)
        });
        assert!(plain.0 == End::Exit(0) && plain.1 > mib * 90, "{mib}: {plain:?}");
        if tracked.0 != plain.0 || tracked.1 + DATA_TAKEN * 105 < plain.1 || !tracked.2.is_empty() {
            let _ = writeln!(faults, "  {mib} MiB: {tracked:?}, plain {plain:?}");
        }
        compared += 1;
    }
    tidy(&fresh_dir(name));
    verdict(name, &faults, compared);
}

/// Writable private memory in MiB that the tracker takes from a program under a limit.
const DATA_TAKEN: usize = 9;

/// A program that locks its memory has the same memory locked as without the tracker. The tracker's own mappings are
/// neither locked nor made resident, not even those that it makes afterwards. For 300 threads it needs 6 MiB, and 12
/// MiB where it can't read the list of mappings.
#[test]
fn locked_memory() {
    const MOST: i64 = 6 << 10;
    const MOST_UNLISTED: i64 = 12 << 10;
    let name = "locked_memory";
    let (mut faults, mut compared) = (String::new(), 0);
    let root = scratch("empty-root");
    let root = root.to_str().expect("path");
    let ways =
        ["call", "number", "child"].iter().flat_map(|way| ["1", "2", "3", "5", "7"].map(|flags| vec![flags, way]));
    let limits = ["3", "1"].into_iter().flat_map(|flags| ["8192", "1024", "0"].map(|kib| vec![flags, "limited", kib]));
    let refused = ["0", "4", "9"].map(|flags| vec![flags, "call"]);
    // liblocks makes the call before the tracker has a segment.
    let early = ["1", "2", "3"].map(|flags| vec![flags, "early"]);
    let unlisted = ["1", "3"].map(|flags| vec![flags, "chroot", root]);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(name, "without /proc: only root may change the root");
    }
    for args in ways.chain(limits).chain(refused).chain(early).chain(unlisted.into_iter().filter(|_| is_root)) {
        let most = if args[1] == "chroot" { MOST_UNLISTED } else { MOST };
        let dir = fresh_dir(name);
        let row = situation("lock_memory").links(&["liblocks"]).args(&args).env("MALLOC_ARENA_MAX", "1");
        let program = compiled(&row.program);
        let [plain, tracked] = [None, Some("sampled")].map(|mode| {
            let seen = Observed::watch(row.command(&program, mode, &dir), None);
            let (answer, figures) = seen.output.split_once('\n').unwrap_or_default();
            let kib: Vec<i64> = figures.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            (seen.end, answer.to_owned(), kib, seen.errors)
        });
        assert!(plain.0 == End::Exit(0) && plain.2.len() == 4, "{args:?}: {plain:?}");
        let exceeds = |at: usize, most: i64| tracked.2.get(at).is_none_or(|kib| kib - plain.2[at] > most);
        // Locked is the program's memory alone, and nothing after munlockall.
        let is_locked = tracked.2.first().is_some_and(|kib| (kib - plain.2[0]).abs() <= 512);
        let is_as_plain = (&tracked.0, &tracked.1, tracked.2.get(2)) == (&plain.0, &plain.1, Some(&0));
        if !is_as_plain || !is_locked || exceeds(1, most) || exceeds(3, most) || !tracked.3.is_empty() {
            let _ = writeln!(faults, "  {args:?}: {tracked:?}, plain {plain:?}");
        }
        compared += 1;
    }
    tidy(&fresh_dir(name));
    verdict(name, &faults, compared);
}

/// A tracked shell sets the limit: our own command, built without optimisation, needs some 185 KiB, and the environment
/// and a random shift of up to 8 KiB come on top.
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
        let printed = Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={size},mode=0700"))
            .args(["plimsoll-test"])
            .arg(&at)
            .output();
        match printed {
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
    these_on_tmpfs(name, &["mix", "exceptions", "fork", "map_partial", "sandbox"], size, outcome, prepare);
}

fn these_on_tmpfs(name: &str, sources: &[&str], size: &str, outcome: Outcome, prepare: fn(&Path)) {
    let (mut faults, mut compared) = (String::new(), 0);
    for &source in sources {
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

/// On a tmpfs that makes each file of huge pages, the sparse segment has none.
#[test]
fn tmpfs_of_huge_pages() {
    use std::os::unix::fs::MetadataExt;
    let name = "tmpfs_of_huge_pages";
    let (mut faults, mut compared) = (String::new(), 0);
    for mode in MODES {
        let tmpfs = match Tmpfs::mount(&format!("{name}-{mode}"), "64m,huge=always") {
            Ok(tmpfs) => tmpfs,
            Err(reason) => return skipped(name, &reason),
        };
        let row = situation("mix").named(name);
        let program = compiled(&row.program);
        let plain = Observed::watch(row.command(&program, None, &tmpfs.0), None);
        let tracked = Observed::watch(row.command(&program, Some(mode), &tmpfs.0), Some(&tmpfs.0));
        compared += as_expected(&tracked, &plain, &tmpfs.0, mode, Books, &mut faults);
        let files = fs::read_dir(&tmpfs.0).expect("the mount").flatten();
        let blocks: u64 = files.map(|file| file.metadata().expect("a segment").blocks()).sum();
        if blocks == 0 || blocks * 512 >= 1 << 20 {
            let _ = writeln!(faults, "  {mode}: the segment has {blocks} blocks of 512 bytes");
        }
    }
    verdict(name, &faults, compared);
}

#[test]
fn tmpfs_of_one_mebibyte() {
    on_tmpfs("tmpfs_of_one_mebibyte", "1m", Books, |_| ());
}
/// The file system is full while the program runs: the tables stop growing, the totals stay exact.
#[test]
fn tmpfs_too_small_to_grow() {
    on_tmpfs("tmpfs_too_small_to_grow", "300k", Books, |_| ());
}
/// The pages of the books that a fork reads are populated, although another thread requests more pages all the time.
#[test]
fn forks_on_a_tmpfs_too_small_to_grow() {
    these_on_tmpfs("forks_on_a_tmpfs_too_small_to_grow", &["fork_while_full"], "300k", Books, |_| ());
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

/// A server that forks for each request must not fill the file system: of its 500 dead children the default number
/// of segments is kept, besides those of the 20 that may be alive at once.
#[test]
fn retention_bounds_a_fork_storm() {
    let row = situation("fork_storm").named("retention_bounds_a_fork_storm");
    let dir = fresh_dir("retention_bounds_a_fork_storm");
    let seen = Observed::watch(row.command(&compiled(&row.program), Some("off"), &dir), Some(&dir));
    let kept = fs::read_dir(&dir).expect("segments").count();
    let mut faults = String::new();
    if seen.end != End::Exit(0) || !seen.errors.is_empty() || !(16..=16 + 20 + 1).contains(&kept) {
        let _ = writeln!(faults, "  {:?}, {kept} segments are left, stderr {:?}", seen.end, seen.errors);
    }
    crate::kit::tidy(&dir);
    verdict("retention_bounds_a_fork_storm", &faults, 1);
}
