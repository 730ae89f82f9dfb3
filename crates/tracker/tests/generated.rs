//! docs/hooks.md and docs/options.md are made from the tracker's tables. BLESS=1 writes them; without it, they must
//! equal what would be written.

use plimsoll_tracker::{hooked_calls, hooked_operators, options};
use std::ffi::CStr;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

macro_rules! calls {
    ($(($name:ident, $kind:ident, $n:literal, $module:ident::$target:ident))*) => {
        /// Name, kind, arguments, module.
        const CALLS: &[(&str, &str, usize, &str)] =
            &[$((stringify!($name), stringify!($kind), $n, stringify!($module)),)*];
    };
}
hooked_calls!(calls);

macro_rules! operators {
    ($(($name:ident, $kind:ident))*) => {
        const OPERATORS: &[(&str, &str)] = &[$((stringify!($name), stringify!($kind)),)*];
    };
}
hooked_operators!(operators);

/// For each kind in the table: how the program's call reaches the tracker and continues.
const KINDS: &[(&str, &str)] = &[
    (
        "caller",
        "jumps to the hook with stack and frame pointer as further arguments; the tracker adds a stack frame only if the stack isn't aligned as the ABI requires",
    ),
    (
        "straight",
        "the same, to a hook that accepts any alignment of the stack and aligns the stack only for the functions that it calls",
    ),
    ("plain", "jumps to the hook with the arguments as they are"),
    ("through", "jumps to the version for the program's allocator, which is chosen when the process starts"),
    (
        "stacked",
        "calls the hook with all six argument registers preserved, and stack and frame pointer as further arguments",
    ),
    ("before", "inspects the arguments, then jumps to the real function, whose caller is then the program"),
    (
        "numbered",
        "as *before* for some numbers of system calls, a call of the hook for others, otherwise a jump to the real function",
    ),
    (
        "variadic",
        "calls the hook with the addresses of the stored argument registers and of the arguments on the stack",
    ),
    (
        "around",
        "as *before*; if import tables are patched, it may instead call the real function and act again afterwards",
    ),
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The first paragraph of a hook module's own comment, in its lines.
fn essay(module: &str) -> String {
    let folder = top().join("crates/tracker/src/hook");
    let file = [format!("{module}.rs"), format!("{module}/mod.rs")].map(|file| folder.join(file));
    let source = fs::read_to_string(file.iter().find(|file| file.exists()).expect("hook module")).expect("source");
    let lines = source.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim);
    let text: Vec<&str> = lines.take_while(|l| !l.is_empty()).collect();
    assert!(!text.is_empty(), "hook/{module}.rs begins with a comment");
    text.join("\n")
}

fn hooks() -> String {
    let mut p = String::from(
        "# Hooked calls\n\nWhich functions of a program does the tracker replace? The loader resolves these names to \
         the tracker first.\n[Entries](#entries) explains the third column. `explain` reads all other memory (the \
         loader's own mappings,\nthread stacks, libraries) from the kernel.\n\nThis page is made from the table in \
         crates/tracker/src/sys/hooked_calls.rs and the first comment of each hook\nmodule; edit those.\n",
    );
    let mut modules: Vec<&str> = vec![];
    CALLS.iter().for_each(|c| {
        if !modules.contains(&c.3) {
            modules.push(c.3);
        }
    });
    for module in modules {
        writeln!(p, "\n## {module}\n\n{}\n\n| call | arguments | entry |\n| --- | --- | --- |", essay(module)).unwrap();
        for (name, kind, n, _) in CALLS.iter().filter(|c| c.3 == module) {
            writeln!(p, "| `{name}` | {n} | {kind} |").unwrap();
        }
    }
    writeln!(p, "\n## Operators of C++\n\n{}\n\n| symbol | |\n| --- | --- |", essay("operator")).unwrap();
    for (name, kind) in OPERATORS {
        let what = if *kind == "new" { "allocates a block" } else { "frees a block" };
        writeln!(p, "| `{name}` | {what} |").unwrap();
    }
    p += "\n## Entries\n\n| entry | how a call of the program reaches the tracker and continues |\n| --- | --- |\n";
    for (kind, meaning) in KINDS {
        writeln!(p, "| {kind} | {meaning} |").unwrap();
    }
    p
}

fn option_page() -> String {
    let mut p = String::from(
        "# Options of the tracker\n\n`plimsoll run` sets these variables from its own options ([cli.md](cli.md#run)). \
         In a container without plimsoll, set\nthem by hand, together with LD_PRELOAD. A number beyond its range \
         counts as the nearest one;\nanything else invalid, or empty, as not set. Without a usable directory, the program \
         runs untracked.\n\n\
         LD_PRELOAD names the tracker's library. Copy it into the image, readable for the program's user: on a machine\n\
         with plimsoll, `plimsoll doctor` prints where it is (`libplimsoll-SHA256.so`).\n\nThis page is made from \
         the table in crates/tracker/src/options.rs; edit that one.\n\n| variable | |\n| --- | --- |\n",
    );
    for (variable, meaning) in options::TABLE {
        writeln!(p, "| `{variable}` | {} |", meaning.trim()).unwrap();
    }
    p
}

fn same_or_bless(path: &str, text: &str) {
    let path = top().join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, text).expect("docs can be written");
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    assert!(have == text, "{} is not what the table says; BLESS=1 writes it anew", path.display());
}

/// What docs/options.md says about numbers: each range ends below the largest number.
#[test]
fn a_number_beyond_its_range_is_not_taken_as_not_set() {
    let number = |text: &CStr| options::number(Some(text));
    assert_eq!(number(c"000000000000000000000512"), Some(512));
    assert_eq!(number(c"1099511627776"), Some(1 << 40));
    for long in [c"1000000000000000", c"18446744073709551617"] {
        assert_eq!(number(long), Some(999_999_999_999_999), "{long:?}");
    }
    for invalid in [c"", c"-1", c"1k", c" 1"] {
        assert_eq!(number(invalid), None, "{invalid:?}");
    }
}

#[test]
fn the_generated_pages_are_current() {
    same_or_bless("docs/hooks.md", &hooks());
    same_or_bless("docs/options.md", &option_page());
}

#[test]
fn every_kind_is_explained() {
    assert!(CALLS.iter().all(|c| KINDS.iter().any(|k| k.0 == c.1)), "a kind without an explanation");
    assert!(KINDS.iter().all(|k| CALLS.iter().any(|c| k.0 == c.1)), "an explanation of no kind");
    assert!(options::TABLE.iter().all(|(v, m)| v.starts_with("PLIMSOLL_") && m.ends_with('.')), "a sentence each");
}
