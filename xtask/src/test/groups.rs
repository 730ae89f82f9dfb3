//! The table of tests: every test program of the workspace belongs to a group, and every group to a tier.
//!
//! A new file in `crates/NAME/tests` needs one line here: `"NAME/file"`, in the group that it concerns. `NAME` alone
//! stands for the unit tests in `crates/NAME/src`. `"NAME/file::module"` moves the tests of one module to another
//! group: the longest entry wins. A program without an entry, and an entry without a test, stop every run (`plan.rs`).
//!
//! A single test of a lower tier that depends on time or luck, or that repeats one situation hundreds of times, carries
//! `#[ignore = "full: REASON"]`. `make test` prints how many of them it left out; `make test-full` runs them.

use Tier::{Check, Full, Test};
use Work::{Command, Memcheck, Tests};

/// The smallest command that runs a group. Each tier contains the ones above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// `make check`: no JVM, no network.
    Check,
    /// `make test`: one case of each kind on real subjects. Continuous integration runs it.
    Test,
    /// `make test-full`: everything.
    Full,
}

pub enum Work {
    /// Test programs and modules, by the names that the module's comment explains.
    Tests(&'static [&'static str]),
    /// A command that passes or fails as a whole, run at the top of the repository.
    Command(&'static [&'static str]),
    /// Test programs that another group runs too, here under valgrind.
    Memcheck(&'static [&'static str]),
}

pub struct Group {
    pub name: &'static str,
    pub tier: Tier,
    /// What the group covers: the error for an unknown group lists it.
    pub covers: &'static str,
    pub work: Work,
}

const fn group(name: &'static str, tier: Tier, covers: &'static str, work: Work) -> Group {
    Group { name, tier, covers, work }
}

/// In the order in which they run: what fails soonest comes first.
pub const GROUPS: &[Group] = &[
    group("format", Check, "rustfmt", Command(&["cargo", "fmt", "--all", "--check"])),
    group(
        "lint",
        Check,
        "clippy, warnings as errors",
        Command(&["cargo", "clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ),
    group("layering", Check, "which crate, module and file may use which", Tests(&["cli/layering"])),
    group(
        "unit",
        Check,
        "unit tests of every crate",
        Tests(&[
            "category", "jfr", "segment", "tracker", "facts", "process", "profiles", "tracked", "observer", "trial",
            "report", "cli", "xtask",
        ]),
    ),
    group(
        "doc",
        Check,
        "examples in comments",
        Command(&[
            "cargo",
            "test",
            "-q",
            "--doc",
            "-p",
            "plimsoll-category",
            "-p",
            "plimsoll-jfr",
            "-p",
            "plimsoll-tracker",
        ]),
    ),
    group(
        "tracker",
        Check,
        "books, stacks, maps and lock-free protocols beside naive twins",
        Tests(&[
            "segment/generated",
            "segment/stacks",
            "tracker/books",
            "tracker/filter_kernel",
            "tracker/memory",
            "tracker/pages",
            "tracker/generated",
            "tracker/import_tables",
            "tracker/loader_list",
            "tracker/java_memory",
            "tracker/protocols",
            "tracker/combining_lock",
            "tracker/unwind_image",
            "tracker/unwind_live",
            "tracker/unwind_walk",
            "tracker/vmas_killed",
        ]),
    ),
    group(
        "observer",
        Check,
        "readers on known and on hostile bytes",
        Tests(&["jfr/reader", "tracked/books", "observer/report_lines"]),
    ),
    group(
        "report",
        Check,
        "output formats, to the byte",
        Tests(&[
            "jfr/writer",
            "report/allocation",
            "report/comparison",
            "report/goldens",
            "report/jfr",
            "report/ledger",
            "report/page",
            "report/profile",
            "report/recording_moments",
            "report/live",
            "report/trial",
        ]),
    ),
    group(
        "parsers",
        Check,
        "the corpus of every fuzz target, mutations of it, inputs of past findings",
        Tests(&["fuzz/replay", "fuzz/seeds"]),
    ),
    // In `make check` this group would take a quarter of the time, and a change seldom breaks it first.
    group(
        "twins",
        Test,
        "long random runs: the map beside the kernel's, unwind rules beside gimli's, damaged heaps of other allocators",
        Tests(&[
            "tracker/unwind_rules",
            "tracker/vmas_kernel",
            "observer::source::jemalloc",
            "observer::source::tcmalloc",
        ]),
    ),
    group(
        "sources",
        Test,
        "readers on live processes: glibc's arenas, HotSpot, native images, symbols",
        Tests(&[
            "tracked/diff",
            "observer/glibc",
            "observer/glibc_overwritten",
            "observer/hotspot",
            "observer/native_image",
            "tracked/symbols",
            "report/hotspot_parses",
        ]),
    ),
    group(
        "rules",
        Test,
        "categories beside HotSpot's own tags",
        Tests(&["tracked/rules_compile", "tracked/rules_hotspot"]),
    ),
    group(
        "program",
        Test,
        "verbs, options, messages, man pages, completions",
        Tests(&[
            "cli::pages",
            "cli/containers",
            "cli/doctor",
            "cli/names",
            "cli/run",
            "cli/sanitizers",
            "cli/sentences",
            "cli/retention",
            "cli/serve",
            "cli/terminal",
            "cli/watch",
            "report/profile::go_tool_pprof_opens_it",
        ]),
    ),
    group(
        "try",
        Test,
        "remedies tried, programs compared: known figures, odd programs, nothing left behind",
        Tests(&["cli/trial"]),
    ),
    group(
        "security",
        Test,
        "what an ordinary user may try against root",
        Tests(&["cli/security", "process/as_target"]),
    ),
    group("situations", Test, "one small program for each situation", Tests(&["cli/situations"])),
    group(
        "allocators",
        Test,
        "jemalloc, tcmalloc, mimalloc in place of glibc's; programs over musl",
        Tests(&[
            "cli/situations::allocators",
            "cli/situations::environment::over_musl",
            "cli/situations::heap::over_musl",
            "cli/situations::loading::over_musl",
            "cli/situations::maps::over_musl",
            "cli/situations::musl",
            "cli/situations::processes::over_musl",
            "cli/situations::signals::over_musl",
            "cli/situations::threads::over_musl",
        ]),
    ),
    group("sites", Test, "call stacks of C programs", Tests(&["cli/memo", "cli/site_modes", "cli/sites"])),
    group("instructions", Test, "what a hook costs, by callgrind", Tests(&["cli/instructions"])),
    group("explain", Test, "the ledger of processes that aren't tracked", Tests(&["cli/explain"])),
    group(
        "jdk",
        Test,
        "JVMs of each version",
        Tests(&["cli/explain_java", "cli/java_sites", "cli/jdks", "cli/subjects::java", "cli/subjects::nmt"]),
    ),
    group(
        "roots",
        Test,
        "the program and the tracker in Debian's releases, on aarch64, and in a root without a C library",
        Tests(&["cli/roots", "observer/glibc::each_release"]),
    ),
    group("attach", Test, "attach and detach: containers, roots, users, interruptions", Tests(&["cli/attach"])),
    group(
        "native-image",
        Test,
        "GraalVM native images",
        Tests(&["cli/native_image_stacks", "cli/subjects::native_image"]),
    ),
    group(
        "recording",
        Test,
        "JFR files: written, read, compared with the JDK's reader",
        Tests(&["cli/allocation", "cli/record", "cli/recording", "observer/allocation", "observer/jfr"]),
    ),
    group(
        "servers",
        Test,
        "Redis, PostgreSQL, HTTP",
        Tests(&["cli/subjects::redis", "cli/subjects::postgres", "cli/subjects::http"]),
    ),
    group("languages", Test, "Python, Node, a C++ compiler", Tests(&["cli/subjects::scripts", "cli/subjects::build"])),
    group(
        "incidents",
        Test,
        "kills, cgroup limits, healthy servers that nothing warns of, and libraries that hold memory",
        Tests(&["cli/incidents", "cli/subjects"]),
    ),
    group(
        "fuzz",
        Full,
        "coverage-guided search in every parser, 1,000 inputs from a fixed seed",
        Command(&["fuzz/run", "--runs", "1000"]),
    ),
    group("prometheus", Full, "metrics and alert rules beside promtool", Tests(&["cli/prometheus"])),
    group("page", Full, "the HTML pages in Chromium", Tests(&["report/browser", "cli/serve::browser"])),
    group(
        "kernels",
        Full,
        "the static program and the tracker on Debian's kernels in qemu: limits, OOM kills, Yama, hidepid, huge pages",
        Tests(&["cli/kernels"]),
    ),
    group("memcheck", Full, "the tracker's unit tests under valgrind", Memcheck(&["tracker"])),
];

/// Marked `#[ignore]` because they measure or print: no tier runs them.
pub const TOOLS: &[&str] = &["tracked/rules_compile::cost", "tracked/rules_hotspot::compare_saved_reports"];
