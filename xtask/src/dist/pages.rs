//! Man pages and completions: a test of the program writes them (crates/cli/src/pages.rs), so all CPUs share them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Release;
use crate::stage::{Result, must, repository};

/// In a package: each completion, and its path below /usr/share.
const INSTALLED: [(&str, &str); 3] = [
    ("completions/plimsoll.bash", "bash-completion/completions/plimsoll"),
    ("completions/_plimsoll", "zsh/vendor-completions/_plimsoll"),
    ("completions/plimsoll.fish", "fish/vendor_completions.d/plimsoll.fish"),
];
/// The folders that hold the pages.
const FOLDERS: [&str; 2] = ["man1", "completions"];

/// Makes the pages in a folder of their own.
pub fn made(release: &Release) -> Result<PathBuf> {
    let folder = release.out.join("pages");
    must(
        Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args([
                "test",
                "-q",
                "--locked",
                "-p",
                "plimsoll",
                "--bins",
                "--",
                "--exact",
                "pages::tests::they_are_written",
            ])
            .current_dir(repository())
            .env("PLIMSOLL_PAGES", &folder),
    )?;
    if !folder.join("man1/plimsoll.1").is_file() {
        return Err("no man page was written".into());
    }
    Ok(folder)
}

/// Copies the pages into an archive's folder, unchanged.
pub fn copy(pages: &Path, into: &Path) -> Result<()> {
    for folder in FOLDERS {
        fs::create_dir(into.join(folder))?;
        for entry in fs::read_dir(pages.join(folder))? {
            let entry = entry?;
            fs::copy(entry.path(), into.join(folder).join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Installs the pages in a package, where man, bash, zsh and fish look. Debian compresses man pages.
pub fn install(pages: &Path, share: &Path) -> Result<()> {
    let manuals = share.join("man/man1");
    fs::create_dir_all(&manuals)?;
    for entry in fs::read_dir(pages.join("man1"))? {
        let entry = entry?;
        let copy = manuals.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        must(Command::new("gzip").args(["-n", "-9"]).arg(copy))?;
    }
    for (page, destination) in INSTALLED {
        let destination = share.join(destination);
        fs::create_dir_all(destination.parent().ok_or("a place without a folder")?)?;
        fs::copy(pages.join(page), destination)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files below a folder, by their path from there.
    fn files(folder: &Path) -> Vec<String> {
        let found = must(Command::new("find").arg(folder).args(["-type", "f", "-printf", "%P\n"])).expect("find(1)");
        let mut names: Vec<String> = found.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    #[test]
    fn pages_are_where_man_and_the_shells_look() {
        let folder = std::env::temp_dir().join(format!("plimsoll-xtask-pages-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let pages = folder.join("pages");
        for file in
            ["man1/plimsoll.1", "completions/plimsoll.bash", "completions/_plimsoll", "completions/plimsoll.fish"]
        {
            let file = pages.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(&file, "text").expect("a file");
        }
        let (archive, share) = (folder.join("archive"), folder.join("share"));
        fs::create_dir(&archive).expect("a folder");
        copy(&pages, &archive).expect("copied");
        install(&pages, &share).expect("installed");
        let (copied, installed, all) = (files(&archive), files(&share), files(&pages));
        fs::remove_dir_all(folder).expect("our folder");
        assert_eq!(copied, all);
        assert_eq!(
            installed,
            [
                "bash-completion/completions/plimsoll",
                "fish/vendor_completions.d/plimsoll.fish",
                "man/man1/plimsoll.1.gz",
                "zsh/vendor-completions/_plimsoll",
            ]
        );
    }
}
