//! Copies what lies beside the program: pages, files for servers and clusters, and headers.
//!
//! | | archive | /usr/share/doc/plimsoll |
//! | --- | --- | --- |
//! | contrib/, include/ | yes | yes |
//! | README and what it links to | yes | no: packages have man pages |
//!
//! A package also installs the unit of systemd, which isn't enabled.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::stage::{Result, must, repository};

const PAGES: [&str; 7] =
    ["LICENSE", "README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "bench/RESULTS.md", "docs"];
const FOLDERS: [&str; 2] = ["contrib", "include"];
const UNIT: &str = "contrib/systemd/plimsoll-serve.service";

/// Copies all into the directory of an archive.
pub fn copy(into: &Path) -> Result<()> {
    copied(&PAGES, into)?;
    copied(&FOLDERS, into)
}

/// Installs the directories and the unit below the root of a package.
pub fn install(root: &Path) -> Result<()> {
    copied(&FOLDERS, &root.join("usr/share/doc/plimsoll"))?;
    let units = root.join("usr/lib/systemd/system");
    fs::create_dir_all(&units)?;
    fs::copy(repository().join(UNIT), units.join("plimsoll-serve.service"))?;
    Ok(())
}

/// Copies files and directories of the repository, under the same names.
fn copied(names: &[&str], into: &Path) -> Result<()> {
    must(Command::new("cp").args(["-r", "--parents"]).args(names).arg(into).current_dir(repository())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_of_the_readme_leads_to_a_file_of_the_archive() {
        let folder = std::env::temp_dir().join(format!("plimsoll-xtask-documents-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        copy(&folder).expect("copied");
        let readme = fs::read_to_string(folder.join("README.md")).expect("a page");
        let links = readme.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let links: Vec<&str> = links.filter(|link| !link.is_empty() && !link.contains("://")).collect();
        let broken: Vec<&&str> = links.iter().filter(|link| !folder.join(link).exists()).collect();
        assert!(links.len() > 20 && broken.is_empty(), "{} links, broken: {broken:?}", links.len());
        fs::remove_dir_all(folder).expect("our folder");
    }

    /// Packages have it in /usr/bin, people copy it to /usr/local/bin. systemd looks for a plain name in both.
    #[test]
    fn the_unit_starts_the_program_wherever_it_is_installed() {
        let unit = fs::read_to_string(repository().join(UNIT)).expect("the unit");
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
        assert!(start.starts_with("plimsoll serve "), "{start}");
        // `serve --keep` writes to /var/lib/plimsoll, and ProtectSystem=strict closes the rest.
        assert!(unit.contains("\nProtectSystem=strict\n") && unit.contains("\nStateDirectory=plimsoll\n"), "{unit}");
    }
}
