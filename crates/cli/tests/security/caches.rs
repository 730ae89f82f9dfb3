//! A build id is only a claim: a file that carries the build id of another must not be used in place of that one.

use std::fs;
use std::path::PathBuf;

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_tracked::rules::read as rules;

use crate::commands::{LIMIT, Scratch, ended, only_segment, plimsoll};

const BUILD_ID: &str = "-Wl,--build-id=0xf0f0000000000000000000000000000000000f0f";

/// Two libraries with the same name and build id in two folders; they differ in what their function is called.
fn forged(scratch: &Scratch) -> [PathBuf; 2] {
    ["mallorys", "genuine"].map(|name| {
        fs::create_dir_all(scratch.join(name)).expect("folder");
        let name_is = format!("-DNAME={name}_function");
        scratch.compiled("library", &format!("{name}/libtwin.so"), &["-shared", "-fPIC", &name_is, BUILD_ID])
    })
}

#[test]
fn a_table_of_rules_is_kept_for_one_file_and_not_for_its_build_id() {
    let scratch = Scratch::new("rules");
    let [mallorys, genuine] = forged(&scratch);
    let (rules_file, cache) = (scratch.join("rules"), scratch.join("tables"));
    fs::write(&rules_file, "category genuine\n  function genuine_function\n").expect("rules");
    let rules = rules::rules(&[], Deadline::after(NAMES)).expect("built-in rules");
    let compiled = |path: &PathBuf| {
        let compiled = rules::compile(&rules, std::slice::from_ref(path), Some(&cache), Deadline::after(NAMES));
        assert!(compiled.without.is_empty(), "{:?}", compiled.without);
        (compiled.compiled, compiled.cached)
    };
    assert_eq!(compiled(&mallorys), (1, 0));
    assert_eq!(compiled(&genuine), (1, 0), "the other file's table was taken");
    assert_eq!((compiled(&mallorys), compiled(&genuine)), ((0, 1), (0, 1)), "each has its own");
    // Modified in place, with its old modification time restored: it counts as another file.
    let before = fs::metadata(&genuine).expect("file").modified().expect("time");
    let bytes = fs::read(&genuine).expect("file");
    fs::write(&genuine, bytes).expect("file");
    fs::File::options().write(true).open(&genuine).expect("file").set_modified(before).expect("time");
    assert_eq!(compiled(&genuine), (1, 0), "a changed file has its old table");
}

/// The genuine file is gone at the time of the report: only the cache could supply names.
#[test]
fn names_of_another_users_file_are_not_given_to_one_that_is_gone() {
    if crate::commands::is_skipped("names_of_another_users_file_are_not_given_to_one_that_is_gone") {
        return;
    }
    let scratch = Scratch::new("names");
    let [mallorys, genuine] = forged(&scratch);
    std::os::unix::fs::chown(&mallorys, Some(crate::kit::MALLORY), None).expect("chown");
    let folder = scratch.join("genuine");
    let program = scratch.compiled("caller", "caller", &["-L", folder.to_str().expect("UTF-8"), "-ltwin"]);
    let report = |library: &PathBuf, delete: bool| {
        let segments = library.with_file_name("segments");
        let mut run = plimsoll(&scratch);
        run.env("LD_LIBRARY_PATH", library.parent().expect("a folder"));
        let ran = ended(run.args(["run", "--dir"]).arg(&segments).arg("--").arg(&program), LIMIT);
        assert_eq!(ran.code(), Some(0), "{}", ran.text);
        if delete {
            fs::remove_file(library).expect("removed");
        }
        let report = ended(plimsoll(&scratch).arg("report").arg(only_segment(&segments)).args(["--by", "site"]), LIMIT);
        assert_eq!(report.code(), Some(0), "{}", report.text);
        report.text
    };
    let of_mallory = report(&mallorys, false);
    assert!(of_mallory.contains("mallorys_function"), "{of_mallory}");
    let of_genuine = report(&genuine, true);
    assert!(of_genuine.contains("libtwin.so+0x") && !of_genuine.contains("mallorys_function"), "{of_genuine}");
}
