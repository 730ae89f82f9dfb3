//! Instructions that tracking adds to one operation: goldens/instructions.txt; BLESS=1 rewrites it.
//!
//! ```text
//! added = (tracked long run − tracked short run − plain long run + plain short run) / operations more in the long run
//! ```
//! callgrind counts the instructions; those of the start and the end cancel. A change of more than 2 % fails. For mmap
//! and munmap, other allocators and two threads the limit is 4 %: mmap and munmap differ by 2.7 % between two machines
//! with the same program, compiler and libc, whatever the load and the environment.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn tolerance(row: &str) -> f64 {
    if row.starts_with("mmap and munmap") || row.contains("over") || row.contains("another") { 0.04 } else { 0.02 }
}

/// Runs of each program; the least count is taken. Over other allocators one run suffices for the larger tolerance.
const COUNTS: usize = 3;

/// Debian's allocators.
const ALLOCATORS: [(&str, &str); 3] =
    [("jemalloc", "libjemalloc.so.2"), ("tcmalloc", "libtcmalloc_minimal.so.4"), ("mimalloc", "libmimalloc.so.2.0")];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn scratch() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    fs::create_dir_all(&dir).expect("scratch directory");
    dir
}

/// Compiles bench/NAME.c.
fn program(name: &str) -> PathBuf {
    compiled(name, name, &[])
}

fn compiled(name: &str, to: &str, flags: &[&str]) -> PathBuf {
    let to = scratch().join(to);
    let from = top().join(format!("bench/{name}.c"));
    let mut gcc = Command::new("gcc");
    let output = gcc.args(["-O2", "-pthread"]).args(flags).arg(from).arg("-o").arg(&to).output().expect("gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// The tracker's library as `plimsoll run` unpacks it.
fn library() -> PathBuf {
    // LD_PRELOAD cannot express a path with a blank. Elsewhere the path stays, since its length moves the figures.
    let has_blank = scratch().as_os_str().as_encoded_bytes().contains(&b' ');
    let cache = if has_blank { std::env::temp_dir().join("plimsoll-instructions") } else { scratch().join("cache") };
    let segments = scratch().join("segments");
    let _ = fs::remove_dir_all(&cache);
    let mut run = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    run.args(["run", "--", "true"]).env("XDG_CACHE_HOME", &cache).env("PLIMSOLL_DIR", &segments);
    assert!(run.status().expect("plimsoll").success());
    let files = fs::read_dir(cache.join("plimsoll")).expect("cache").map(|e| e.expect("entry").path());
    files.into_iter().find(|p| p.extension().is_some_and(|e| e == "so")).expect("the library is unpacked")
}

/// What runs below a program: plain, or tracked with these sites; over glibc's malloc, or an allocator's library.
#[derive(Clone, Copy, Default)]
struct Below<'a> {
    tracked: Option<(&'a Path, &'a str)>,
    allocator: Option<&'a Path>,
}

/// Instructions of a whole run. The least of several counts: a busy machine or an earlier run only ever adds to a start
/// (look-ups of the linker, pages that are not resident yet).
fn count(program: &Path, arguments: &[&str], below: Below<'_>) -> f64 {
    let counts = if below.allocator.is_some() { 1 } else { COUNTS };
    (0..counts).map(|_| count_once(program, arguments, below)).fold(f64::INFINITY, f64::min)
}

fn count_once(program: &Path, arguments: &[&str], below: Below<'_>) -> f64 {
    // A start looks through the segments of dead processes, one by one: without any, each start costs the same.
    let segments = scratch().join("segments");
    let _ = fs::remove_dir_all(&segments);
    fs::create_dir(&segments).expect("a new folder");
    fs::set_permissions(&segments, PermissionsExt::from_mode(0o700)).expect("our folder");
    // Names of the same length and an environment of the same size: the start of the stack changes the figures by a
    // percent.
    let mut command = Command::new("valgrind");
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(scratch());
    let here = |path: &Path| Path::new(".").join(path.strip_prefix(scratch()).expect("made there"));
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(here(program)).args(arguments);
    let library = below.tracked.map(|(library, _)| here(library));
    let preloads: Vec<String> =
        library.iter().map(PathBuf::as_path).chain(below.allocator).map(|path| path.display().to_string()).collect();
    if !preloads.is_empty() {
        command.env("LD_PRELOAD", preloads.join(":"));
    }
    if let Some((_, sites)) = below.tracked {
        // Here the launcher execs the program, so the tracker must not remove itself from the environment.
        command.env("PLIMSOLL_FOLLOW", "1").env("PLIMSOLL_SITES", sites);
        command.env("PLIMSOLL_DIR", "/proc/self/cwd/segments");
    }
    let output = command.stdin(Stdio::null()).output().expect("valgrind (.ci/setup installs it)");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let line = log.lines().rev().find_map(|l| l.split_once("Collected :")).expect("callgrind's sum").1;
    line.trim().parse().expect("a number")
}

/// Instructions of one operation, whose count is the argument that `arguments` makes. Starts do not cancel exactly, so
/// the number of operations must be large.
fn each(program: &Path, lengths: [u32; 2], arguments: impl Fn(&str) -> Vec<String>, below: Below<'_>) -> f64 {
    let [short, long] = lengths.map(|n| {
        let arguments = arguments(&n.to_string());
        count(program, &arguments.iter().map(String::as_str).collect::<Vec<_>>(), below)
    });
    (long - short) / f64::from(lengths[1] - lengths[0])
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_string).collect()
}

/// The figures of another compiler or libc are not comparable.
fn toolchain() -> String {
    let printed = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().expect(program);
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_string()
    };
    let rustc = printed("rustc", "--version");
    let libc = printed("getconf", "GNU_LIBC_VERSION");
    format!("{} {} {libc}", std::env::consts::ARCH, rustc.split(" (").next().unwrap_or(""))
}

#[test]
fn an_operation_gains_what_the_golden_file_says() {
    let folder = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let allocators = ALLOCATORS.map(|(name, file)| (name, folder.join(file)));
    for (_, file) in &allocators {
        assert!(file.exists(), "{} (.ci/setup installs it)", file.display());
    }
    let (library, churn, mapping) = (library(), program("mtalloc"), program("mapping"));
    let as_image = ["-rdynamic", "-Wl,--defsym=__svm_version_info=main", "-fno-asynchronous-unwind-tables"];
    let image = compiled("mtalloc", "mtalloc_image", &as_image);
    let mut figures: Vec<(String, f64)> = vec![];
    let tracked = |sites| Below { tracked: Some((&library, sites)), allocator: None };
    let pairs = |below| each(&churn, [4_000, 64_000], |n| words(&format!("1 {n} 1000 512 8")), below);
    let plain = pairs(Below::default());
    for sites in ["off", "sampled", "exact"] {
        figures.push((format!("malloc and free, sites {sites}"), pairs(tracked(sites)) - plain));
    }
    for (name, allocator) in &allocators {
        let over = |below| pairs(Below { allocator: Some(allocator), ..below });
        let more = over(tracked("sampled")) - over(Below::default());
        figures.push((format!("malloc and free over {name}"), more));
    }
    let (usable, jemalloc) = (program("usable"), &allocators[0].1);
    let sizes = |below| each(&usable, [10_000, 210_000], words, Below { allocator: Some(jemalloc), ..below });
    figures.push(("malloc_usable_size over jemalloc".into(), sizes(tracked("sampled")) - sizes(Below::default())));
    // The tracker takes it for a native image, which has no NMT.
    let pairs_of_image = |below| each(&image, [4_000, 64_000], |n| words(&format!("1 {n} 1000 512 8")), below);
    let more = pairs_of_image(tracked("sampled")) - pairs_of_image(Below::default());
    figures.push(("malloc and free in a native image".into(), more));
    let second_path = program("second_path");
    for (every, what) in [(1_000_000, "another stack was first at its depth"), (2, "two stacks of one depth in turn")] {
        let second = |below| each(&second_path, [4_000, 64_000], |n| words(&format!("{n} {every}")), below);
        let more = second(tracked("sampled")) - second(Below::default());
        figures.push((format!("malloc and free, {what}"), more));
    }
    let remote_free = program("remote_free");
    let by_another = |below| each(&remote_free, [16_384, 212_992], words, below);
    let more = by_another(tracked("sampled")) - by_another(Below::default());
    figures.push(("malloc, and free by another thread".into(), more));
    // About as many rounds of mprotect as mappings: a second round on the same mapping costs less.
    for (mappings, verb, what, most) in [
        (20, "map", "mmap and munmap", 10_100),
        (2_000, "map", "mmap and munmap", 10_100),
        (2_000, "protect", "mprotect twice", 2_100),
        (2_000, "grow", "mprotect of a reservation's next page", 10_100),
        (2_000, "commit", "mmap over a reservation", 10_100),
    ] {
        let calls = |below| each(&mapping, [100, most], |n| words(&format!("{mappings} {n} {verb}")), below);
        let more = calls(tracked("sampled")) - calls(Below::default());
        figures.push((format!("{what}, {mappings} mappings"), more));
    }
    let calls = program("calls");
    let by_number = |below| each(&calls, [10_000, 410_000], words, below);
    let more = by_number(tracked("sampled")) - by_number(Below::default());
    figures.push(("a system call by number".into(), more));
    let file = top().join("goldens/instructions.txt");
    if std::env::var_os("BLESS").is_some() {
        let rows = figures.iter().map(|(what, n)| format!("{n:8.1}  {what}\n"));
        fs::write(&file, format!("{}\n{}", toolchain(), rows.collect::<String>())).expect("golden file");
    }
    let golden = fs::read_to_string(&file).expect("goldens/instructions.txt; BLESS=1 writes it");
    let (machine, rows) = golden.split_once('\n').expect("toolchain, then rows");
    if machine != toolchain() {
        return eprintln!("instructions: skipped, the golden figures are of {machine}, this is {}", toolchain());
    }
    assert_eq!(rows.lines().count(), figures.len(), "rows of {}", file.display());
    let mut changed = String::new();
    for (row, (what, now)) in rows.lines().zip(&figures) {
        let (then, name) = row.trim_start().split_once("  ").expect("figure, two blanks, name");
        let then: f64 = then.parse().expect("a number");
        eprintln!("instructions: {now:8.1}  {what}");
        assert_eq!(name, what);
        if (now - then).abs() > tolerance(name) * then.abs() {
            changed += &format!("{what}: {now:.1}, was {then:.1}\n");
        }
    }
    assert!(changed.is_empty(), "counts changed. Find the cause, then run with BLESS=1:\n{changed}");
}
