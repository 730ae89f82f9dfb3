//! Finds public functions and constants that no other crate uses: they should be private.
//!
//! Names are compared, not paths, so one that another crate uses for something else passes. The compiler finds what
//! can't be reached (`unreachable_pub`), not what is reachable and unused.

use crate::{sources, top};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The tracker isn't one of them: its parts are public for its own tests, the fuzz targets and `preload`.
const LIBRARIES: [&str; 9] =
    ["segment", "jfr", "facts", "process", "profiles", "tracked", "observer", "trial", "report"];

/// Every word of the Rust files below the folder.
fn words(folder: &Path, without: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() && path != without && !path.ends_with("target") {
            words(&path, without, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("source");
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            into.extend(text.split(|c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
}

/// `pub const unsafe fn name(` → `name`; other items have none.
fn promised(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split(|c: char| !c.is_alphanumeric() && c != '_');
    match words.find(|word| !matches!(*word, "const" | "unsafe" | "async"))? {
        "fn" => words.next(),
        // `pub const NAME`: the name follows `const` itself.
        name if line.trim_start().starts_with("pub const ") => Some(name),
        _ => None,
    }
}

#[test]
fn public_functions_have_users_in_other_crates() {
    let (mut found, mut unused) = (0, vec![]);
    for library in LIBRARIES {
        let (root, mut outside) = (top(), BTreeSet::new());
        let own: PathBuf = root.join("crates").join(library).join("src");
        ["crates", "fuzz", "xtask"].iter().for_each(|folder| words(&root.join(folder), &own, &mut outside));
        for (file, text) in sources(library) {
            for name in text.lines().filter_map(promised) {
                found += 1;
                // What a macro names in the crate that calls it.
                let is_of_macro = text.contains("$crate") && text.contains(&format!("::{name}"));
                if !outside.contains(name) && !is_of_macro {
                    unused.push(format!("{file}: {name}"));
                }
            }
        }
    }
    assert!(found > 300, "only {found} public functions found");
    assert!(unused.is_empty(), "no other crate uses these; make them pub(crate): {unused:#?}");
}
