//! `make dist`: what people install, in dist/. The same commit gives the same bytes: paths are mapped away, times are
//! the commit's, and archives are sorted.
//!
//! ```text
//! cargo build, static ─▶ program ─┬─ strip ──▶ plimsoll-VERSION-ARCH.tar.gz  (with pages, completions, contrib/, licences)
//!                                 │            plimsoll_VERSION_ARCH.deb, plimsoll-VERSION-1.ARCH.rpm
//!                                 │            plimsoll-VERSION.oci.tar      (an image FROM scratch of all CPUs)
//!                                 └─ objcopy ▶ plimsoll-VERSION-ARCH.debug   (names and lines for a debugger)
//! ```
//!
//! The program is linked statically, so it runs on any C library and on none. The tracker inside it is a shared object
//! for glibc 2.17 and later (crates/cli/build.rs builds it without these flags).

mod deb;
mod documents;
mod oci;
mod pages;
mod rpm;
mod sbom;
mod third_party;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::stage::{Result, must, repository, target};

/// A CPU that the program is built for.
struct Cpu {
    triple: &'static str,
    /// As uname(1) and the names of our archives have it.
    name: &'static str,
    debian: &'static str,
    oci: &'static str,
    /// Prefix of the cross compiler and its tools in Debian's packages.
    tools: &'static str,
    /// Flags of rustc for this CPU alone.
    flags: &'static [&'static str],
    /// Flags where this machine has the CPU and rustc's own choice of linker is LLD.
    native: &'static [&'static str],
}

/// The size that the stripped program may have, in bytes (docs/decisions/one-file.md).
const LARGEST: u64 = 8_000_000;

const CPUS: [Cpu; 2] = [
    Cpu {
        triple: "x86_64-unknown-linux-gnu",
        name: "x86_64",
        debian: "amd64",
        oci: "amd64",
        tools: "x86_64-linux-gnu-",
        // A tenth of the bytes for relocations. The static libc applies them at the start: glibc from 2.36 on.
        flags: &["-Clink-arg=-Wl,-z,pack-relative-relocs"],
        // LLD keeps one of several functions with the same code, also of the static libc. rustc warns where Rust code
        // compares functions by their addresses; in C nothing warns about that.
        native: &["-Clink-arg=-Wl,--icf=all"],
    },
    Cpu {
        triple: "aarch64-unknown-linux-gnu",
        name: "aarch64",
        debian: "arm64",
        oci: "arm64",
        tools: "aarch64-linux-gnu-",
        // Debian 12's linker packs relocations for x86-64 only.
        flags: &[],
        native: &[],
    },
];

/// What all archives carry.
struct Release {
    version: String,
    /// The commit, with a `+` behind it if files differ.
    commit: String,
    /// Seconds since 1970 of the commit.
    time: String,
    out: PathBuf,
}

/// `names` are the CPUs; without a name, all.
pub fn run(names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| CPUS.iter().all(|cpu| cpu.name != name.as_str())) {
        return Err(format!("unknown CPU '{unknown}'. The CPUs: x86_64 aarch64").into());
    }
    let changed = if git(&["status", "--porcelain"])?.is_empty() { "" } else { "+" };
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: format!("{}{changed}", git(&["rev-parse", "--short=12", "HEAD"])?),
        time: git(&["log", "-1", "--format=%ct"])?,
        out: repository().join("dist"),
    };
    if release.out.exists() {
        fs::remove_dir_all(&release.out)?;
    }
    fs::create_dir_all(&release.out)?;
    let pages = pages::made(&release)?;
    let mut folders = Vec::new();
    for cpu in CPUS.iter().filter(|cpu| names.is_empty() || names.iter().any(|name| name == cpu.name)) {
        println!("{}: building", cpu.name);
        let folder = assembled(cpu, &release, &built(cpu, &release)?)?;
        pages::copy(&pages, &folder)?;
        archive(&folder, &release)?;
        deb::write(cpu, &release, &folder, &pages)?;
        rpm::write(cpu, &release, &folder, &pages)?;
        folders.push((cpu, folder));
    }
    oci::write(&release, &folders)?;
    for folder in folders.iter().map(|(_, folder)| folder).chain([&pages]) {
        fs::remove_dir_all(folder)?;
    }
    sums(&release.out)
}

fn git(arguments: &[&str]) -> Result<String> {
    Ok(must(Command::new("git").arg("-C").arg(repository()).args(arguments))?.trim().to_owned())
}

/// Asks the compiler that builds the program.
fn rustc(arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    must(Command::new(program).args(arguments).current_dir(repository()))
}

/// The static program with all its symbols. A variable passes the flags; crates/cli/build.rs removes it before it
/// builds the tracker.
fn built(cpu: &Cpu, release: &Release) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set")?;
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=plimsoll", repository().display()),
        format!("--remap-path-prefix={}=cargo", home.display()),
    ];
    let is_native = cpu.name == std::env::consts::ARCH;
    let has_lld = is_native && links_by_lld(&rustc(&["-V"])?);
    let native = cpu.native.iter().filter(|_| has_lld);
    flags.extend(cpu.flags.iter().chain(native).map(|flag| (*flag).to_owned()));
    let linker = format!("CARGO_TARGET_{}_LINKER", cpu.triple.to_uppercase().replace('-', "_"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "-q", "--release", "--locked", "-p", "plimsoll", "--target", cpu.triple, "--target-dir"]);
    cargo.arg(target()).current_dir(repository()).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    cargo.env("PLIMSOLL_COMMIT", &release.commit).env("SOURCE_DATE_EPOCH", &release.time);
    match is_native {
        true => cargo.env_remove(linker),
        false => cargo.env(linker, format!("{}gcc", cpu.tools)),
    };
    must(&mut cargo)?;
    Ok(target().join(cpu.triple).join("release/plimsoll"))
}

/// The folder that the archive holds. The debug file goes to dist/ by itself.
fn assembled(cpu: &Cpu, release: &Release, program: &Path) -> Result<PathBuf> {
    let name = format!("plimsoll-{}-{}", release.version, cpu.name);
    let (folder, debug) = (release.out.join(&name), release.out.join(format!("{name}.debug")));
    fs::create_dir(&folder)?;
    let own = folder.join("plimsoll");
    let objcopy = format!("{}objcopy", cpu.tools);
    must(
        Command::new(&objcopy).args(["--only-keep-debug", "--compress-debug-sections=zlib"]).arg(program).arg(&debug),
    )?;
    must(Command::new(&objcopy).arg("--strip-all").arg("--add-gnu-debuglink").args([&debug]).arg(program).arg(&own))?;
    is_small_enough(cpu.name, fs::metadata(&own)?.len())?;
    documents::copy(&folder)?;
    let metadata = sbom::metadata(cpu.triple)?;
    fs::write(folder.join(sbom::FILE), sbom::of(&metadata, release)?)?;
    fs::write(folder.join(third_party::FILE), third_party::of(&metadata, release)?)?;
    Ok(folder)
}

/// Decides by the output of `rustc -V`: from 1.90 on, rustc links x86-64 by LLD.
fn links_by_lld(rustc: &str) -> bool {
    let version = rustc.split_whitespace().nth(1).unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= (1, 90))
}

fn is_small_enough(cpu: &str, bytes: u64) -> Result<()> {
    match bytes > LARGEST {
        true => Err(format!("the program for {cpu} has {bytes} bytes, {LARGEST} at most: what was tried is in docs/decisions/one-file.md").into()),
        false => Ok(()),
    }
}

/// The folder as a compressed archive beside it.
fn archive(folder: &Path, release: &Release) -> Result<()> {
    let name = folder.file_name().and_then(|name| name.to_str()).ok_or("a folder without a name")?;
    let tar = release.out.join(format!("{name}.tar"));
    must(packed(release).arg("-cf").arg(&tar).arg("-C").arg(&release.out).arg(name))?;
    must(Command::new("gzip").args(["-n", "-9", "-f"]).arg(&tar))?;
    Ok(())
}

/// tar with the same bytes for the same files.
fn packed(release: &Release) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--format=ustar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{}", release.time));
    tar
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA256SUMS as sha256sum(1) checks it, and a list with sizes for the reader.
fn sums(out: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        names.push(entry?.file_name().into_string().map_err(|name| format!("a strange name: {name:?}"))?);
    }
    names.sort();
    let mut lines = String::new();
    for name in &names {
        let bytes = fs::read(out.join(name))?;
        lines += &format!("{}  {name}\n", sha256(&bytes));
        println!("{:>8.1} MB  dist/{name}", bytes.len() as f64 / 1e6);
    }
    fs::write(out.join("SHA256SUMS"), lines)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identical_code_is_folded_only_if_rustc_links_by_lld() {
        assert!(links_by_lld("rustc 1.95.0 (59807616e 2026-04-14)") && links_by_lld("rustc 1.90.0-beta.1 (a)"));
        assert!(links_by_lld("rustc 2.0.0") && !links_by_lld("rustc 1.89.0 (29483883e 2025-08-04)"));
        assert!(!links_by_lld("rustc 1.88.0") && !links_by_lld("") && !links_by_lld("rustc x"));
    }

    /// Without --locked, cargo takes newer dependencies than those that were tested.
    #[test]
    fn the_pages_install_the_dependencies_that_were_tested() {
        let mut commands = 0;
        for page in ["README.md", "CONTRIBUTING.md", "docs/install.md", "docs/compare.md"] {
            let text = fs::read_to_string(repository().join(page)).expect("a page");
            for line in text.lines().filter(|line| line.contains("cargo install")) {
                assert!(line.contains("cargo install --locked"), "{page}: {line}");
                commands += 1;
            }
        }
        assert!(commands >= 3, "{commands} commands");
    }

    /// A release must not need the servers and languages of the tests.
    #[test]
    fn a_release_needs_few_packages() {
        let listed = |word: &str| {
            let printed = must(Command::new(repository().join(".ci/setup")).args(["--list", word])).expect("a list");
            printed.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(listed("demo"), ["gcc", "git", "libc6-dev", "make", "openjdk-17-jdk-headless"]);
        assert_eq!(listed("dist-native"), ["dpkg", "gcc", "git", "libc6-dev", "make", "rpm"]);
        let both = ["dpkg", "gcc", "gcc-aarch64-linux-gnu", "git", "libc6-dev", "libc6-dev-arm64-cross", "make", "rpm"];
        assert_eq!(listed("dist"), both);
        assert!(listed("test").iter().any(|package| package == "redis-server"));
    }

    #[test]
    fn a_program_above_the_bar_is_refused() {
        assert!(is_small_enough("x86_64", LARGEST).is_ok());
        let why = is_small_enough("x86_64", LARGEST + 1).expect_err("too large").to_string();
        assert!(why.contains("x86_64 has 8000001 bytes, 8000000 at most"), "{why}");
    }
}
