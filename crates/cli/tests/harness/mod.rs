//! Shared by the tests of the program: private folders, compiled fixtures, the program itself, and a reader of its
//! reports that knows only docs/json.md.

#![allow(dead_code, reason = "shared with other test programs")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// An empty folder that only its owner may enter; `test` is the name of the test file.
pub fn scratch(test: &str, name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("scratch folder");
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).expect("private folder");
    folder
}

/// A file below fixtures/.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// A program or library of fixtures/c.
pub fn compiled(source: &str, to: &Path, flags: &[&str]) -> String {
    let c = fixture(&format!("c/{source}.c"));
    let mut command = Command::new("gcc");
    command.args(["-std=gnu17", "-O1", "-g", "-fno-builtin", "-w", "-pthread"]).args(flags).arg(c).arg("-o").arg(to);
    let output = command.arg("-ldl").output().expect("a C compiler");
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    to.to_str().expect("path").to_string()
}

pub fn segments(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("segments").map(|entry| entry.expect("entry").path()).collect()
}

pub fn only_segment(folder: &Path) -> PathBuf {
    let mut found = segments(folder);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub fn plimsoll<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(PLIMSOLL).args(arguments).stdin(Stdio::null()).output().expect("plimsoll")
}

/// The output of the program; it must succeed.
pub fn output_of(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A report's JSON. If it has a table of frames, each site and caller gets its own frames: its `stack` holds indices
/// into the table.
pub fn read_report(text: &str) -> Value {
    let mut report: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("no JSON: {e}\n{text}"));
    let Some(frames) = report["frames"].as_array().cloned() else { return report };
    for list in ["sites", "callers"] {
        for site in report.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let indexes = site["stack"].as_array().expect("a stack").iter();
            let own = indexes.map(|index| frames[index.as_u64().expect("an index") as usize].clone());
            site["frames"] = own.collect();
        }
    }
    report
}

pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}
