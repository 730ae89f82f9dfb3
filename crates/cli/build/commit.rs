//! The commit that a release build was made of, for `plimsoll --version`. Silent where there is no checkout: sources
//! from an archive, no git, a checkout that git doesn't trust (another user's).

use std::path::{Path, PathBuf};
use std::process::Command;

/// `1a2b3c4d5e6f`, or `1a2b3c4d5e6f, modified`. `here`: the folder of the crate. The length is fixed, so that it
/// doesn't depend on how many objects the clone has.
pub fn of(here: &Path) -> Option<String> {
    // An archive that was unpacked inside of another project's checkout isn't of its commit.
    git(here, &["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let commit = git(here, &["rev-parse", "--short=12", "HEAD"])?;
    let is_modified = !git(here, &["status", "--porcelain", "--untracked-files=no", "--", "../.."])?.is_empty();
    Some(if is_modified { commit + ", modified" } else { commit })
}

/// Files that change with the commit.
pub fn changes_with(here: &Path) -> Vec<PathBuf> {
    let path = |name: &str| git(here, &["rev-parse", "--git-path", name]).map(|path| here.join(path));
    ["HEAD", "logs/HEAD", "index"].into_iter().filter_map(path).filter(|path| path.exists()).collect()
}

/// What git prints, if it succeeds.
fn git(here: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // A hook of git's runs its programs with these: they name another checkout.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    let output = command.arg("--no-optional-locks").args(arguments).current_dir(here).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn commit(top: &Path, arguments: &[&str]) {
        let who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
        let output = Command::new("git").args(who).args(arguments).current_dir(top).output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn the_commit_of_a_checkout_and_none_without_one() {
        let top = std::env::temp_dir().join(format!("plimsoll-commit-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let here = top.join("crates/cli");
        fs::create_dir_all(&here).expect("a folder");
        fs::write(here.join("Cargo.toml"), "[package]\n").expect("a file");
        assert_eq!(of(&here), None, "no checkout");
        commit(&top, &["init", "-q"]);
        assert_eq!(of(&here), None, "a checkout that doesn't have the crate");
        commit(&top, &["add", "."]);
        commit(&top, &["commit", "-q", "-m", "first"]);
        let first = of(&here).expect("a commit");
        assert!(first.len() == 12 && first.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
        assert!(changes_with(&here).iter().any(|path| path.ends_with("logs/HEAD")), "{:?}", changes_with(&here));
        fs::write(here.join("Cargo.toml"), "[package]\n\n").expect("a file");
        assert_eq!(of(&here), Some(first.clone() + ", modified"));
        commit(&top, &["commit", "-q", "-a", "-m", "second"]);
        assert!(of(&here).is_some_and(|second| second.len() == 12 && second != first));
        fs::remove_dir_all(&top).expect("it can be removed");
    }
}
