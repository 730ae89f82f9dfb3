//! Compiles the rules for real objects of this machine: the VM's library, the C library, this program.

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_segment::rules::{Decision, RuleTarget, Rules};
use plimsoll_tracked::rules::{RuleSet, compile, modules, names, read};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[path = "../../../fixtures/jdks.rs"]
mod jdks;

/// The VMs for which the rules were written.
fn homes() -> [PathBuf; 2] {
    [17, 25].map(|major| jdks::jdk(major).unwrap_or_else(|| panic!("this test needs JDK {major} (run .ci/setup)")).home)
}

/// Every function of a file from the file's own symbols: address, size, name.
fn functions(path: &Path) -> Vec<(u64, u64, String)> {
    use object::{Object, ObjectSymbol, SymbolKind};
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.symbols().filter(|s| s.kind() == SymbolKind::Text && !s.is_undefined() && s.size() > 0);
    text.map(|s| (s.address(), s.size(), s.name().unwrap().to_string())).collect()
}

fn compiled_table_equals_the_rules(jdk: &Path) {
    let rules = RuleSet::parse_built_in().unwrap();
    let path = jdk.join("lib/server/libjvm.so");
    let compiled = read::compile(&rules, std::slice::from_ref(&path), None, Deadline::after(NAMES));
    assert_eq!((compiled.compiled, compiled.cached), (1, 0), "{:?}", compiled.without);
    let bytes = std::fs::read(&path).unwrap();
    let blob = Rules::parse(&compiled.blob).unwrap();
    let module = blob.module(b"/x/libjvm.so", &modules::build_id(&bytes[..]).unwrap());
    let functions = functions(&path);
    let mut names_at = std::collections::BTreeMap::<u64, Vec<&str>>::new();
    for (start, _, name) in &functions {
        names_at.entry(*start).or_default().push(name);
    }
    let (mut compared, mut categories, mut through) = (0, 0, 0);
    // Every seventh function, at its first and its last byte. The naive twin tries rule after rule.
    for (start, size, _) in functions.iter().step_by(7) {
        let rule = names_at[start].iter().filter_map(|n| rules.symbol_rule("libjvm.so", &names::qualified(n))).min();
        let expected = rule.map_or(RuleTarget::None, |i| rules.rules[i].target);
        assert_eq!(module.lookup(*start), expected, "{:?}", names_at[start]);
        if names_at[start].len() == 1 {
            assert_eq!(module.lookup(start + size - 1), expected, "{:?}", names_at[start]);
        }
        compared += 1;
        categories += usize::from(matches!(expected, RuleTarget::Category(_)));
        through += usize::from(expected == RuleTarget::Through);
    }
    println!(
        "{}: {} functions, {compared} compared, {categories} with a category, {through} through",
        jdk.display(),
        functions.len()
    );
    assert!(compared > 5_000 && categories > 3_000 && through > 20);
}

// One test for each version, so that they run side by side.

#[test]
fn the_compiled_table_of_jdk_17_equals_the_rules() {
    compiled_table_equals_the_rules(&homes()[0]);
}

#[test]
fn the_compiled_table_of_jdk_25_equals_the_rules() {
    compiled_table_equals_the_rules(&homes()[1]);
}

#[test]
fn the_fast_demangler_equals_the_full_one() {
    let (mut plain, mut not) = (0, 0);
    for jdk in homes() {
        // Every third symbol: the demangler is slow without optimization.
        for (_, _, symbol) in functions(&jdk.join("lib/server/libjvm.so")).iter().step_by(3) {
            match names::plain(symbol).filter(|_| !symbol.contains('.')) {
                Some(name) => {
                    assert_eq!(Some(name), names::demangled(symbol), "{symbol}");
                    plain += 1;
                }
                None => not += 1,
            }
        }
    }
    println!("{plain} plain names, {not} others");
    assert!(plain > 20_000 && not > 1_000);
}

/// Patterns for releases that aren't tested here: the first ZGC in 21, and NMT after 25.
const OTHER_RELEASES: [&str; 3] = ["CommittedMemoryRegion::*", "RegionsTree*", "X[A-Z]*"];

/// A pattern of the VM's rules that matches no function of either JDK is an error; generated code has no functions.
#[test]
fn every_pattern_for_the_vm_matches_a_function() {
    let rules = RuleSet::parse_built_in().unwrap();
    let mut names: Vec<String> = Vec::new();
    for jdk in homes() {
        let functions = functions(&jdk.join("lib/server/libjvm.so"));
        names.extend(functions.iter().map(|f| names::qualified(&f.2).into_owned()));
    }
    names.sort();
    names.dedup();
    let (mut dead, mut alive) = (Vec::new(), 0);
    for rule in rules.rules.iter().filter(|r| r.objects == ["libjvm.so"]) {
        for glob in rule.symbols.iter().filter(|glob| *glob != plimsoll_segment::rules::GENERATED_NAME) {
            let fits = |n: &String| plimsoll_segment::rules::glob_matches(glob.as_bytes(), n.as_bytes());
            if names.iter().any(fits) {
                alive += 1;
            } else if !OTHER_RELEASES.contains(&glob.as_str()) {
                dead.push(format!("{}: {glob}", rule.line));
            }
        }
    }
    assert!(alive > 300);
    assert!(dead.is_empty(), "{} patterns fit no function: {dead:?}", dead.len());
}

#[test]
fn a_launchers_vm_and_a_scripts_interpreter_are_found() {
    let java = homes()[1].join("bin/java");
    let modules = read::modules_for_command(&java, Deadline::after(NAMES));
    let has = |end: &str| modules.iter().any(|m| m.to_string_lossy().ends_with(end));
    for end in ["bin/java", "lib/server/libjvm.so", "lib/libnio.so", "lib/libzip.so", "libc.so.6", "libjli.so"] {
        assert!(has(end), "{end} not in {modules:?}");
    }
    let unique: std::collections::BTreeSet<_> = modules.iter().map(|m| std::fs::canonicalize(m).unwrap()).collect();
    assert_eq!(unique.len(), modules.len());

    let directory = std::env::temp_dir().join(format!("plimsoll-rules-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let script = directory.join("script");
    std::fs::write(&script, "#!/bin/sh\nexec true\n").unwrap();
    let modules = read::modules_for_command(&script, Deadline::after(NAMES));
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(modules.iter().any(|m| m.ends_with("libc.so.6")), "{modules:?}");
    assert_eq!(read::modules_for_command(Path::new("/no/such/program"), Deadline::after(NAMES)), Vec::<PathBuf>::new());
}

#[test]
fn the_cache_gives_the_same_bytes_and_ignores_broken_files() {
    let rules = RuleSet::parse_built_in().unwrap();
    let directory = std::env::temp_dir().join(format!("plimsoll-cache-{}", std::process::id()));
    // A killed process may have had our PID.
    let _ = std::fs::remove_dir_all(&directory);
    let modules = read::modules_for_command(Path::new("/usr/bin/env"), Deadline::after(NAMES));
    assert!(!modules.is_empty());
    let first = read::compile(&rules, &modules, Some(&directory), Deadline::after(NAMES));
    let second = read::compile(&rules, &modules, Some(&directory), Deadline::after(NAMES));
    assert_eq!((first.cached, second.compiled), (0, 0));
    assert_eq!(first.compiled, second.cached);
    assert!(first.compiled > 0 && first.blob == second.blob);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    for file in std::fs::read_dir(&directory).unwrap() {
        std::fs::write(file.unwrap().path(), b"PLIMRUL1 broken").unwrap();
    }
    let third = read::compile(&rules, &modules, Some(&directory), Deadline::after(NAMES));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!((third.cached, third.blob), (0, first.blob));
}

/// In this test program: memory of the C library's `strdup` counts for its caller; this function belongs to the
/// program.
#[test]
fn owners_of_frames_in_this_program() {
    let rules = RuleSet::parse_built_in().unwrap();
    let exe = std::env::current_exe().unwrap();
    let modules = read::modules_for_command(&exe, Deadline::after(NAMES));
    let compiled = read::compile(&rules, &modules, None, Deadline::after(NAMES));
    let blob = Rules::parse(&compiled.blob).unwrap();
    let libc = modules.iter().find(|m| m.ends_with("libc.so.6")).unwrap();
    let of = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        blob.module(path.to_str().unwrap().as_bytes(), &modules::build_id(&bytes[..]).unwrap_or_default())
    };
    let dynamic = |path: &Path, name: &str| {
        use object::{Object, ObjectSymbol};
        let bytes = std::fs::read(path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        file.dynamic_symbols().find(|s| s.name() == Ok(name)).unwrap().address()
    };
    let c = of(libc);
    assert!(c.has_symbols());
    let (strdup, fopen) = (dynamic(libc, "strdup"), dynamic(libc, "fopen"));
    assert_eq!(c.lookup(strdup), RuleTarget::Through);
    assert_eq!(blob.classify([(c, strdup), (of(&exe), 1)]), Decision::Object(1));
    let Decision::Category(stdio) = blob.classify([(c, fopen), (of(&exe), 1)]) else { panic!("fopen has no category") };
    assert_eq!(blob.category_name(stdio), b"glibc stdio");
}

/// `cargo test --release --test rules_compile -- --ignored --nocapture` prints the cost of compiling.
#[test]
#[ignore = "a measurement, not a test"]
fn cost() {
    let started = Instant::now();
    let rules = RuleSet::parse_built_in().unwrap();
    println!("parse: {:?}, {} rules, {} categories", started.elapsed(), rules.rules.len(), rules.categories.len());
    for jdk in homes() {
        let bytes = std::fs::read(jdk.join("lib/server/libjvm.so")).unwrap();
        for _ in 0..3 {
            let started = Instant::now();
            let table = compile::table(&rules, "libjvm.so", bytes.as_slice(), None).unwrap();
            println!("{} libjvm.so: {:?}, {} ranges", jdk.display(), started.elapsed(), table.ranges.len());
        }
        let cache = std::env::temp_dir().join(format!("plimsoll-cost-{}", std::process::id()));
        for _ in 0..3 {
            let started = Instant::now();
            let modules = read::modules_for_command(&jdk.join("bin/java"), Deadline::after(NAMES));
            let found = started.elapsed();
            let compiled = read::compile(&rules, &modules, Some(&cache), Deadline::after(NAMES));
            println!(
                " {} objects found in {found:?}; compiled {}, cached {}, {:?} without; {} bytes; {:?} in all",
                modules.len(),
                compiled.compiled,
                compiled.cached,
                compiled.without,
                compiled.blob.len(),
                started.elapsed()
            );
        }
        std::fs::remove_dir_all(&cache).unwrap();
    }
}
