//! docs/hooks.md and docs/options.md are made from the tracker's tables. BLESS=1 writes them anew; without it they must be
//! what would be written.

use plimsoll_tracker::{hooked_calls, hooked_operators, options};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

macro_rules! calls {
    ($(($name:ident, $kind:ident, $n:literal, $crate_:ident::hook::$module:ident::$target:ident))*) => {
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

/// How the program's call gets to the tracker and on, by the table's kinds.
const KINDS: &[(&str, &str)] = &[
    (
        "caller",
        "jumps to the hook with stack and frame pointer behind the arguments: no frame of ours is added, but where the stack isn't aligned as the ABI has it",
    ),
    (
        "straight",
        "the same, to a hook that runs on whatever stack the program has and aligns it only for what it calls",
    ),
    ("plain", "jumps to the hook with the arguments as they are"),
    ("through", "jumps to what fits the allocator, chosen when the process starts"),
    ("stacked", "calls the hook, all six argument registers kept, stack and frame pointer behind them"),
    ("before", "looks at the arguments, then jumps to the real function: that one sees the program as its caller"),
    (
        "numbered",
        "the same for some numbers of system calls, a call of the hook for others, else a jump to the real function",
    ),
    ("around", "as *before*; where import tables are patched, it may call the real function and look again afterwards"),
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The first paragraph of a hook module's own comment.
fn essay(module: &str) -> String {
    let folder = top().join("crates/tracker/src/hook");
    let file = [format!("{module}.rs"), format!("{module}/mod.rs")].map(|file| folder.join(file));
    let source = fs::read_to_string(file.iter().find(|file| file.exists()).expect("hook module")).expect("source");
    let lines = source.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim);
    let text: Vec<&str> = lines.take_while(|l| !l.is_empty()).collect();
    assert!(!text.is_empty(), "hook/{module}.rs begins with a comment");
    text.join(" ")
}

fn hooks() -> String {
    let mut p = String::from(
        "# Hooked calls\n\nMade from the table in crates/tracker/src/hook/table.rs; edit that one.\n\nA program under the tracker finds \
         these names in it first. What the others do (the loader's own mappings, thread stacks, libraries) is known to the \
         kernel, and explained from there.\n",
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
        let what = if *kind == "makes" { "gives a block" } else { "takes one back" };
        writeln!(p, "| `{name}` | {what} |").unwrap();
    }
    p += "\n## Entries\n\n";
    for (kind, meaning) in KINDS {
        writeln!(p, "- **{kind}** {meaning}.").unwrap();
    }
    p
}

fn option_page() -> String {
    let mut p = String::from(
        "# Options of the tracker\n\nMade from the table in crates/tracker/src/options.rs; edit that one.\n\n`plimsoll run` sets \
         these variables from its own options (docs/cli.md). Where it can't be, in a container without the program, they are \
         set by hand beside LD_PRELOAD. A value that makes no sense counts as not set, and without a usable directory nothing is \
         tracked: the program starts in any case.\n\n| variable | |\n| --- | --- |\n",
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

#[test]
fn pages_are_current() {
    same_or_bless("docs/hooks.md", &hooks());
    same_or_bless("docs/options.md", &option_page());
}

#[test]
fn every_kind_is_explained() {
    assert!(CALLS.iter().all(|c| KINDS.iter().any(|k| k.0 == c.1)), "a kind without an explanation");
    assert!(KINDS.iter().all(|k| CALLS.iter().any(|c| k.0 == c.1)), "an explanation of no kind");
    assert!(options::TABLE.iter().all(|(v, m)| v.starts_with("PLIMSOLL_") && m.ends_with('.')), "a sentence each");
}
