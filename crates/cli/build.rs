//! Builds the tracker's shared object, so that it can lie inside the program: one file is all that has to be copied
//! into a container. It has a target directory of its own below OUT_DIR (the outer cargo holds the lock of the usual
//! one), always the release profile, and no dependencies, so nothing is downloaded.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha2::{Digest, Sha256};

#[path = "build/commit.rs"]
mod commit;

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for part in ["preload", "tracker", "segment"] {
        println!("cargo:rerun-if-changed={}", here.join("..").join(part).display());
    }
    let library = build(&here, &out);
    let bytes = fs::read(&library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&bytes).expect("a Vec takes all");
    fs::write(out.join("libplimsoll.so.z"), packed.finish().expect("a Vec takes all")).expect("OUT_DIR is writable");
    let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    println!("cargo:rustc-env=PLIMSOLL_TRACKER_SHA256={hash}");
    let commit = commit(&here).filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    println!("cargo:rustc-env=PLIMSOLL_VERSION={}{commit}", env!("CARGO_PKG_VERSION"));
}

/// `make dist` sets the commit, and an empty one means none. `cargo install` takes it from the checkout. Debug builds
/// have none: a build after each commit would be slow.
fn commit(here: &Path) -> Option<String> {
    println!("cargo:rerun-if-env-changed=PLIMSOLL_COMMIT");
    if let Ok(commit) = env::var("PLIMSOLL_COMMIT") {
        return Some(commit);
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    let found = commit::of(here)?;
    println!("cargo:rerun-if-changed={}", here.join("..").display());
    for path in commit::changes_with(here) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    Some(found)
}

fn build(here: &Path, out: &Path) -> PathBuf {
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let target_dir = out.join("preload");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"))
        .args(["build", "--release", "--target", &target, "--manifest-path"])
        .arg(here.join("../preload/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        // Lints and coverage of the outer build are not the tracker's: it must be the same in each of them.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the tracker's library doesn't build");
    target_dir.join(target).join("release/libplimsoll.so")
}
