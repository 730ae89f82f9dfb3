//! An RPM package: the files of the Debian package. rpmbuild only packs what lies there: it strips, compresses and
//! checks nothing, and no script runs at installation. It depends on no package, since the program is static.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Cpu, Release, documents, pages, sbom, third_party};
use crate::stage::{Result, must, repository};

/// `folder` has the program, `manuals` the pages.
pub fn write(cpu: &Cpu, release: &Release, folder: &Path, manuals: &Path) -> Result<()> {
    let top = release.out.join(format!("rpm-{}", cpu.name));
    let root = top.join("root");
    let doc = root.join("usr/share/doc/plimsoll");
    for folder in [root.join("usr/bin"), doc.clone()] {
        fs::create_dir_all(folder)?;
    }
    fs::copy(folder.join("plimsoll"), root.join("usr/bin/plimsoll"))?;
    fs::copy(repository().join("LICENSE"), doc.join("LICENSE"))?;
    fs::copy(folder.join(third_party::FILE), doc.join(third_party::FILE))?;
    pages::install(manuals, &root.join("usr/share"))?;
    documents::install(&root)?;
    // Debian's zsh has a folder of its own for packages.
    let zsh = root.join("usr/share/zsh");
    fs::rename(zsh.join("vendor-completions"), zsh.join("site-functions"))?;
    let spec = top.join("plimsoll.spec");
    fs::write(&spec, specification(release, &sbom::licenses(folder)?, &files(&root)?))?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    let database = top.join("db");
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--nodeps", "--target", &format!("{}-linux", cpu.name)]);
    rpmbuild.args(define("_topdir", &top.display().to_string()));
    rpmbuild.args(define("_rpmdir", &release.out.display().to_string()));
    rpmbuild.args(define("_build_name_fmt", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"));
    rpmbuild.args(define("_dbpath", &database.display().to_string()));
    rpmbuild.args(define("own_root", &root.display().to_string()));
    // The same bytes on every machine: the times are the commit's, and the name of the build machine is always the
    // same.
    rpmbuild.args(define("_buildhost", "localhost"));
    rpmbuild.args(define("use_source_date_epoch_as_buildtime", "1"));
    rpmbuild.args(define("clamp_mtime_to_source_date_epoch", "1"));
    rpmbuild.args(define("_binary_payload", "w19.xzdio"));
    must(rpmbuild.arg(&spec).env("SOURCE_DATE_EPOCH", &release.time))?;
    check(&release.out.join(format!("plimsoll-{}-1.{}.rpm", release.version, cpu.name)), &database)?;
    fs::remove_dir_all(top)?;
    Ok(())
}

/// Paths of the files below a root, sorted.
fn files(root: &Path) -> Result<Vec<String>> {
    let found = must(Command::new("find").arg(root).args(["-type", "f", "-printf", "/%P\n"]))?;
    let mut paths: Vec<String> = found.lines().map(str::to_owned).collect();
    paths.sort();
    Ok(paths)
}

fn specification(release: &Release, licenses: &str, files: &[String]) -> String {
    let mode = |path: &String| if path.starts_with("/usr/bin/") { 755 } else { 644 };
    let files: String = files.iter().map(|path| format!("%attr({}, root, root) {path}\n", mode(path))).collect();
    format!(
        "Name: plimsoll\nVersion: {}\nRelease: 1\nSummary: Native memory tracking for every Linux process\n\
         License: {licenses}\nAutoReqProv: no\n\
         %global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n%global _build_id_links none\n\
         %description\nShows where every resident byte of a process is, who asked for it, what changed,\nand what to do about it.\n\
         %install\ncp -a %{{own_root}}/. %{{buildroot}}/\n%files\n{files}",
        release.version
    )
}

/// The package must install anywhere: it may depend only on features of rpm itself (`rpmlib`).
fn check(package: &Path, database: &Path) -> Result<()> {
    let mut rpm = Command::new("rpm");
    rpm.args(["--define", &format!("_dbpath {}", database.display()), "-qp", "--requires"]);
    let needs = must(rpm.arg(package))?;
    match needs.lines().find(|need| !need.starts_with("rpmlib(")) {
        Some(need) => Err(format!("{} depends on {need}", package.display()).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dist::CPUS;

    /// The same files, packed in two folders, one after the other.
    #[test]
    fn two_packages_of_the_same_files_have_the_same_bytes_and_depend_on_nothing() {
        if Command::new("rpmbuild").arg("--version").output().is_err() {
            return println!("rpm: skipped, rpmbuild is not installed");
        }
        let folder = std::env::temp_dir().join(format!("plimsoll-xtask-rpm-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for cpu in &CPUS {
            let packed: Vec<Vec<u8>> = ["one", "two"].map(|name| packed(cpu, &folder.join(cpu.name).join(name))).into();
            assert!(packed[0] == packed[1], "{}: other bytes", cpu.name);
        }
        fs::remove_dir_all(folder).expect("our folder");
    }

    fn packed(cpu: &Cpu, out: &Path) -> Vec<u8> {
        let (program, pages) = (out.join("program"), out.join("pages"));
        for file in
            ["man1/plimsoll.1", "completions/plimsoll.bash", "completions/_plimsoll", "completions/plimsoll.fish"]
        {
            let file = pages.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(&file, "text").expect("a file");
        }
        fs::create_dir(&program).expect("a folder");
        fs::write(program.join("plimsoll"), vec![7; 100_000]).expect("a file");
        fs::write(program.join(third_party::FILE), "texts").expect("a file");
        let component = |license: &str| json!({"licenses": [{"expression": license}]});
        let list = json!({"components": [component("MIT"), component("A OR B")]});
        fs::write(program.join(sbom::FILE), list.to_string()).expect("a file");
        let release = Release {
            version: "0.1.0".to_owned(),
            commit: String::new(),
            time: "1700000000".to_owned(),
            out: out.to_owned(),
        };
        write(cpu, &release, &program, &pages).expect("packed");
        let package = out.join(format!("plimsoll-0.1.0-1.{}.rpm", cpu.name));
        let license = must(Command::new("rpm").args(["-qp", "--qf", "%{LICENSE}"]).arg(&package)).expect("a package");
        assert_eq!(license, "(A OR B) AND MIT");
        let files = must(Command::new("rpm").args(["-qlp"]).arg(&package)).expect("a package");
        assert_eq!(
            files.lines().collect::<Vec<_>>(),
            [
                "/usr/bin/plimsoll",
                "/usr/lib/systemd/system/plimsoll-serve.service",
                "/usr/share/bash-completion/completions/plimsoll",
                "/usr/share/doc/plimsoll/LICENSE",
                "/usr/share/doc/plimsoll/THIRD-PARTY",
                "/usr/share/doc/plimsoll/contrib/grafana/plimsoll.json",
                "/usr/share/doc/plimsoll/contrib/kubernetes/daemonset.yaml",
                "/usr/share/doc/plimsoll/contrib/kubernetes/sidecar.yaml",
                "/usr/share/doc/plimsoll/contrib/prometheus/rules.yml",
                "/usr/share/doc/plimsoll/contrib/prometheus/test.yml",
                "/usr/share/doc/plimsoll/contrib/systemd/plimsoll-serve.service",
                "/usr/share/doc/plimsoll/include/plimsoll.h",
                "/usr/share/doc/plimsoll/include/segment.h",
                "/usr/share/fish/vendor_completions.d/plimsoll.fish",
                "/usr/share/man/man1/plimsoll.1.gz",
                "/usr/share/zsh/site-functions/_plimsoll",
            ]
        );
        fs::read(package).expect("a package")
    }
}
