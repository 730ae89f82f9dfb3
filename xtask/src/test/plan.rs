//! Finds out what to run: cargo lists the workspace's test programs, each program lists its tests, and each test gets a
//! group.
//!
//! A test belongs to the longest entry of the table that is its program or its module. Nothing is dropped silently: for
//! a program without an entry or an entry without a test, an error names the line to add or to remove.

use super::groups::{GROUPS, Group, TOOLS, Work};
use crate::stage::{Result, must, repository};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test program: `crate/file` in tests/, or `crate` for the unit tests in src/.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    /// The arguments by which cargo selects it.
    pub choose: Vec<String>,
    /// The folder of its package, in which cargo runs it.
    pub folder: PathBuf,
}

/// `crates/cli/tests/attach/main.rs` → `cli/attach`; `crates/cli/src/main.rs` → `cli`.
fn name(source: &Path, kind: &str, target: &str) -> Option<String> {
    let parts: Vec<&str> = source.strip_prefix(repository()).ok()?.iter().filter_map(|part| part.to_str()).collect();
    let package = if parts[0] == "crates" { parts[1] } else { parts[0] };
    Some(if kind == "test" { format!("{package}/{target}") } else { package.to_string() })
}

/// Every test program of the workspace, by name. This builds nothing.
pub fn programs() -> Result<BTreeMap<String, Program>> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(repository());
    let metadata: Value = serde_json::from_str(&must(&mut command)?)?;
    let mut programs = BTreeMap::new();
    for package in list(&metadata, "packages") {
        let manifest = Path::new(text(package, "manifest_path"));
        for target in list(package, "targets").iter().filter(|target| target["test"] == true) {
            let kind = list(target, "kind").first().and_then(Value::as_str).unwrap_or_default();
            let Some(name) = name(Path::new(text(target, "src_path")), kind, text(target, "name")) else { continue };
            let mut choose = vec!["-p".to_string(), text(package, "name").to_string()];
            match kind {
                "test" => choose.extend(["--test".to_string(), text(target, "name").to_string()]),
                "bin" => choose.push("--bins".to_string()),
                _ => choose.push("--lib".to_string()),
            }
            let folder = manifest.parent().unwrap_or(manifest).to_path_buf();
            programs.insert(name.clone(), Program { name, choose, folder });
        }
    }
    Ok(programs)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The program that an entry of the table concerns.
fn program_of(entry: &str) -> &str {
    entry.split_once("::").map_or(entry, |(program, _)| program)
}

/// The programs that a group needs.
pub fn needed(group: &Group) -> BTreeSet<&'static str> {
    match group.work {
        Work::Tests(entries) | Work::Memcheck(entries) => entries.iter().map(|entry| program_of(entry)).collect(),
        Work::Command(_) => BTreeSet::new(),
    }
}

fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    GROUPS.iter().flat_map(|group| match group.work {
        Work::Tests(entries) => entries.iter().map(|entry| (*entry, group.name)).collect(),
        _ => Vec::new(),
    })
}

/// The group of one test; None for a tool, or if the table has no entry.
fn group_of(program: &str, test: &str) -> Option<&'static str> {
    let whole = format!("{program}::{test}");
    if TOOLS.contains(&whole.as_str()) {
        return None;
    }
    let covers = |entry: &str| {
        program == entry || whole == entry || whole.strip_prefix(entry).is_some_and(|rest| rest.starts_with("::"))
    };
    entries().filter(|(entry, _)| covers(entry)).max_by_key(|(entry, _)| entry.len()).map(|(_, group)| group)
}

/// Checks before anything is built: every program has an entry, no entry is repeated, and no entry names a missing
/// program.
pub fn check_programs(programs: &BTreeMap<String, Program>) -> Result<()> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for (entry, group) in entries() {
        if !programs.contains_key(program_of(entry)) {
            faults.push(format!("group {group} names {entry}, and there is no such test program: remove the entry"));
        }
        if !seen.insert(entry) {
            faults.push(format!("{entry} is in two groups, {group} is the second"));
        }
    }
    for program in programs.keys() {
        if !seen.iter().any(|entry| program_of(entry) == program) {
            faults.push(format!("the test program {program} is in no group: add \"{program}\" to one"));
        }
    }
    result_of(faults)
}

fn result_of(faults: Vec<String>) -> Result<()> {
    let table = "xtask/src/test/groups.rs";
    if faults.is_empty() { Ok(()) } else { Err(format!("{table}:\n  {}", faults.join("\n  ")).into()) }
}

/// A built program and its tests.
pub struct Built {
    pub program: Program,
    pub path: PathBuf,
    /// Each test, and whether it is marked `#[ignore]`.
    pub tests: BTreeMap<String, bool>,
}

impl Built {
    /// Its tests that belong to a group.
    pub fn of_group(&self, group: &str) -> BTreeMap<String, bool> {
        let own = |(test, _): &(&String, &bool)| group_of(&self.program.name, test) == Some(group);
        self.tests.iter().filter(own).map(|(test, ignored)| (test.clone(), *ignored)).collect()
    }
}

/// Builds the programs and asks each for its tests. Cargo prints what it compiles.
pub fn build(wanted: &BTreeMap<String, Program>) -> Result<Vec<Built>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).current_dir(repository());
    // Always of the whole workspace: selecting packages would change the features of their dependencies and rebuild
    // them.
    command.args(["--workspace", "--exclude", "plimsoll-preload"]);
    // Without the names of the packages: `--lib`, `--test NAME`, each once.
    command.args(wanted.values().map(|program| &program.choose[2..]).collect::<BTreeSet<_>>().into_iter().flatten());
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the tests do not build".into());
    }
    let mut built = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line)?;
        let Some(path) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
            continue;
        };
        let target = &message["target"];
        let kind = list(target, "kind").first().and_then(Value::as_str).unwrap_or_default();
        let name = name(Path::new(text(target, "src_path")), kind, text(target, "name")).unwrap_or_default();
        if let Some(program) = wanted.get(&name) {
            let tests = tests(Path::new(path), &program.folder)?;
            built.push(Built { program: program.clone(), path: path.into(), tests });
        }
    }
    let missing: Vec<_> = wanted.keys().filter(|name| built.iter().all(|b| b.program.name != **name)).collect();
    if missing.is_empty() { Ok(built) } else { Err(format!("cargo built no test program for {missing:?}").into()) }
}

fn tests(path: &Path, folder: &Path) -> Result<BTreeMap<String, bool>> {
    let listed = |arguments: &[&str]| -> Result<BTreeSet<String>> {
        let text = must(Command::new(path).args(arguments).current_dir(folder))?;
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored = listed(&["--list", "--ignored"])?;
    Ok(listed(&["--list"])?.into_iter().map(|test| (test.clone(), ignored.contains(&test))).collect())
}

/// Checks after the build: every test has a group or is a tool, and every entry of these programs has a test.
pub fn check_tests(built: &[Built]) -> Result<()> {
    let mut faults = Vec::new();
    for Built { program, tests, .. } in built {
        for (test, ignored) in tests {
            let whole = format!("{}::{test}", program.name);
            let is_tool = TOOLS.contains(&whole.as_str());
            if !is_tool && group_of(&program.name, test).is_none() {
                faults.push(format!("{whole} is in no group: add \"{}\" to one", program.name));
            }
            if is_tool && !ignored {
                faults.push(format!("{whole} is a tool, so it has to carry #[ignore]"));
            }
        }
        let of_this = |entry: &str| program_of(entry) == program.name && entry.contains("::");
        for (entry, group) in entries().filter(|(entry, _)| of_this(entry)) {
            if !tests.keys().any(|test| group_of(&program.name, test) == Some(group)) {
                faults.push(format!("group {group} names {entry}, which has no test: remove the entry"));
            }
        }
        for tool in TOOLS.iter().filter(|tool| of_this(tool)) {
            if !tests.keys().any(|test| format!("{}::{test}", program.name) == *tool) {
                faults.push(format!("the tool {tool} is gone: remove the entry"));
            }
        }
    }
    result_of(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_entry_wins() {
        assert_eq!(group_of("cli/situations", "allocators::jemalloc"), Some("allocators"));
        assert_eq!(group_of("cli/situations", "allocators_too::jemalloc"), Some("situations"));
        assert_eq!(group_of("cli/situations", "maps::basic"), Some("situations"));
        assert_eq!(group_of("cli", "anything"), Some("unit"));
        assert_eq!(group_of("tracked/rules_compile", "cost"), None, "a tool");
        assert_eq!(group_of("cli/of_yesterday", "anything"), None);
    }

    #[test]
    fn a_program_without_a_group_is_named() {
        let mut programs = programs().expect("cargo knows the workspace");
        check_programs(&programs).expect("the table is complete");
        let new = Program { name: "cli/new".into(), choose: vec![], folder: PathBuf::new() };
        programs.insert("cli/new".into(), new);
        programs.remove("cli/run");
        let fault = check_programs(&programs).expect_err("two faults").to_string();
        assert!(fault.contains("the test program cli/new is in no group"), "{fault}");
        assert!(fault.contains("group program names cli/run"), "{fault}");
    }

    #[test]
    fn a_test_without_a_group_is_named() {
        let program = Program { name: "cli/subjects".into(), choose: vec![], folder: PathBuf::new() };
        let tests = [("redis::serves".to_string(), false)].into();
        let built = [Built { program, path: PathBuf::new(), tests }];
        let fault = check_tests(&built).expect_err("entries without tests").to_string();
        assert!(fault.contains("group native-image names cli/subjects::native_image, which has no test"), "{fault}");
        assert!(!fault.contains("redis"), "{fault}");
    }
}
