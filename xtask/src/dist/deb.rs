//! A Debian package: the program in /usr/bin, man pages, completions, a unit of systemd that isn't enabled, and nothing
//! that runs at installation. It depends on no package, since the program is static.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Cpu, Release, documents, pages, third_party};
use crate::stage::{Result, must, repository};

/// `folder` has the program, `manuals` the pages.
pub fn write(cpu: &Cpu, release: &Release, folder: &Path, manuals: &Path) -> Result<()> {
    let root = release.out.join(format!("deb-{}", cpu.name));
    let doc = root.join("usr/share/doc/plimsoll");
    for folder in [root.join("DEBIAN"), root.join("usr/bin"), doc.clone()] {
        fs::create_dir_all(folder)?;
    }
    fs::copy(folder.join("plimsoll"), root.join("usr/bin/plimsoll"))?;
    fs::copy(repository().join("LICENSE"), doc.join("copyright"))?;
    fs::copy(folder.join(third_party::FILE), doc.join(third_party::FILE))?;
    pages::install(manuals, &root.join("usr/share"))?;
    documents::install(&root)?;
    let kilobytes = fs::metadata(folder.join("plimsoll"))?.len().div_ceil(1024);
    let control = format!(
        "Package: plimsoll\nVersion: {}\nArchitecture: {}\nMaintainer: The Plimsoll authors <plimsoll@localhost>\n\
         Installed-Size: {kilobytes}\nSection: devel\nPriority: optional\n\
         Description: native memory tracking for every Linux process\n \
         Shows where every resident byte of a process is, who asked for it, what changed,\n and what to do about it.\n",
        release.version, cpu.debian
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    let file = release.out.join(format!("plimsoll_{}_{}.deb", release.version, cpu.debian));
    // Otherwise the modes would follow the builder's umask: the bytes would differ, and a group might be able to write
    // to directories.
    must(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&root))?;
    // dpkg-deb takes the times from SOURCE_DATE_EPOCH.
    must(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .args([&root, &file])
            .env("SOURCE_DATE_EPOCH", &release.time),
    )?;
    fs::remove_dir_all(root)?;
    Ok(())
}
