//! Paths that tasks need: the repository, the release program, JDKs, scratch. And commands that must succeed.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[path = "../../fixtures/jdks.rs"]
mod jdks;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

/// Cargo's target folder, wherever it is configured.
pub fn target() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    // The program of the unit tests is one level deeper, in `deps`.
    let folder = own.parent().filter(|folder| !folder.ends_with("deps")).or(own.ancestors().nth(2));
    folder.and_then(Path::parent).expect("target/PROFILE/xtask").to_path_buf()
}

pub fn plimsoll() -> Result<PathBuf> {
    let program = target().join("release/plimsoll");
    if program.exists() { Ok(program) } else { Err("target/release/plimsoll is missing: run `make build`".into()) }
}

/// A folder below target/ for what a task makes.
pub fn folder(name: &str) -> Result<PathBuf> {
    let path = target().join("xtask").join(name);
    fs::create_dir_all(&path)?;
    Ok(path)
}

/// The folder of the JDK of this major version.
pub fn jdk(major: u32) -> Option<PathBuf> {
    jdks::jdk(major).map(|jdk| jdk.home)
}

/// The folder of JDK 25, or of 17 where it is missing.
pub fn any_jdk() -> Result<PathBuf> {
    Ok(jdk(25).or_else(|| jdk(17)).ok_or("a JDK is needed (run .ci/setup)")?)
}

/// Runs a command that must succeed; returns its standard output.
pub fn must(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e} (run .ci/setup)"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies the dependencies of a pom into a folder, unless that exists.
pub fn jars(pom: &Path, target: &Path) -> Result<()> {
    made_whole(target, |part| {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "dependency:copy-dependencies", "-f"]).arg(pom);
        must(maven.arg(format!("-DoutputDirectory={}", part.display()))).map(drop)
    })
}

/// Makes a directory, unless it exists.
fn made_whole(target: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if target.exists() { Ok(()) } else { made_again(target, make) }
}

/// Makes a directory, and replaces an older one. The directory gets its name when it is whole: a build or download that
/// failed or was interrupted leaves a directory of another name beside the older one, and the next run begins again.
pub fn made_again(target: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut part = target.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    make(&part)?;
    if target.exists() {
        fs::remove_dir_all(target)?;
    }
    Ok(fs::rename(part, target)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_made_in_part_is_made_again() {
        let target = folder("test-made-whole").expect("a folder").join("lib-1.0");
        let _ = fs::remove_dir_all(&target);
        let made = |part: &Path, names: &[&str]| -> Result<()> {
            fs::create_dir(part)?;
            for name in names {
                fs::write(part.join(name), name)?;
            }
            Ok(())
        };
        let failed = made_whole(&target, |part| made(part, &["old"]).and(Err("interrupted".into())));
        assert_eq!(failed.expect_err("it failed").to_string(), "interrupted");
        assert!(!target.exists());
        made_whole(&target, |part| made(part, &["a", "b"])).expect("it is made");
        let names = || {
            let files = fs::read_dir(&target).expect("a folder").flatten();
            let mut names: Vec<_> = files.map(|one| one.file_name()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(), ["a", "b"]);
        made_whole(&target, |_| Err("it exists".into())).expect("nothing to make");
        let failed = made_again(&target, |part| made(part, &["c"]).and(Err("no network".into())));
        assert_eq!((failed.is_err(), names()), (true, vec!["a".into(), "b".into()]));
        made_again(&target, |part| made(part, &["c"])).expect("it is made");
        assert_eq!(names(), ["c"]);
    }
}
