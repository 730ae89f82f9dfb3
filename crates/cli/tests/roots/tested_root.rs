//! A root in which the verbs are tried, and how plimsoll is started in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::roots::{self, Root, SUITES};
use crate::{fixture, output, target, text};

pub const CROSS: &str = "aarch64-linux-gnu-gcc";

pub struct TestedRoot {
    /// As docs/roots.md calls it.
    pub name: &'static str,
    pub library: String,
    pub cpu: &'static str,
    pub root: Root,
    /// The words that start plimsoll inside.
    plimsoll: String,
}

/// Whether `make test-full` runs this test.
pub fn is_full() -> bool {
    std::env::var_os("PLIMSOLL_TESTS").is_some_and(|tier| tier == "full")
}

/// The program that runs without any library: the release file, or one that is built like it.
pub fn self_contained(cpu: &str) -> PathBuf {
    let Some(folder) = std::env::var_os("PLIMSOLL_RELEASE") else {
        return match cpu {
            "aarch64" => roots::static_program_for(cpu, CROSS, target()),
            _ => roots::static_program(target()).to_owned(),
        };
    };
    // Tests run in the folder of their crate; the name is relative to the top of the repository.
    let folder = fixture("..").join(folder);
    let unpacked = target().join("roots").join(format!("release-{cpu}"));
    fs::create_dir_all(&unpacked).expect("target/ is ours");
    let script = r#"set -- "$0"/plimsoll-*-"$1".tar.gz "$2"
        [ $# = 2 ] || { echo "not one release: $*"; exit 1; }
        tar -xzf "$1" -C "$2" --strip-components 1"#;
    let done = output(Command::new("sh").args(["-ec", script]).arg(&folder).arg(cpu).arg(&unpacked));
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    unpacked.join("plimsoll")
}

/// This machine's program and the libraries that it needs, which the root's own may be too old for.
fn with_own_libraries(root: &Root) -> String {
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let listed = output(Command::new("ldd").arg(program));
    let listed = text(&listed.stdout);
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([program]) {
        root.take_into("machine", Path::new(file));
    }
    let loader = listed.split_whitespace().find(|word| word.starts_with("/lib64/ld-")).expect("a loader");
    let loader = loader.rsplit('/').next().expect("a name");
    format!("/machine/{loader} --library-path /machine /machine/plimsoll")
}

impl TestedRoot {
    /// A suite's root, with the C program. None: skipped; a line says why.
    pub fn of(suite: usize) -> Option<TestedRoot> {
        let (name, glibc) = SUITES[suite];
        let root = Root::of(name, target())?;
        let library = fs::read(root.0.join("lib/x86_64-linux-gnu/libc.so.6")).expect("a C library");
        let version = format!("GLIBC {glibc}-");
        assert!(library.windows(version.len()).any(|bytes| bytes == version.as_bytes()), "{name}: not {version}");
        root.compiled(&fixture("c/many_blocks.c"), target())?;
        let plimsoll = if is_full() {
            root.take(&self_contained("x86_64"));
            "/plimsoll".to_owned()
        } else {
            with_own_libraries(&root)
        };
        Some(TestedRoot { name, library: format!("glibc {glibc}"), cpu: "x86-64", root, plimsoll })
    }

    /// Debian's musl with nothing but a shell.
    pub fn of_musl() -> Option<TestedRoot> {
        let root = Root::of_musl(target())?;
        let source = fixture("c/many_blocks.c");
        let done = output(Command::new("musl-gcc").args(["-O1", "-o"]).arg(root.0.join("many_blocks")).arg(source));
        assert!(done.status.success(), "{}", text(&done.stderr));
        root.take(&self_contained("x86_64"));
        Some(TestedRoot {
            name: "musl",
            library: "musl".to_owned(),
            cpu: "x86-64",
            root,
            plimsoll: "/plimsoll".to_owned(),
        })
    }

    pub fn is_musl(&self) -> bool {
        self.name == "musl"
    }

    pub fn of_arm64() -> Option<TestedRoot> {
        if !crate::aarch64::has_tools() {
            return None;
        }
        let root = Root::of_arm64(target())?;
        if !output(&mut root.arm64_command("/bin/true")).status.success() {
            println!("aarch64: skipped, no user namespace with interpreters of its own here (binfmt_misc, Linux 6.7)");
            return None;
        }
        root.take(&self_contained("aarch64"));
        crate::aarch64::compiled(&root.0.join("many_blocks"));
        let (name, library) = ("trixie", "glibc 2.41".to_owned());
        Some(TestedRoot { name, library, cpu: "aarch64", root, plimsoll: "/plimsoll".to_owned() })
    }

    /// A shell inside.
    pub fn shell(&self) -> Command {
        let mut shell = match self.cpu {
            "aarch64" => self.root.arm64_command("/bin/sh"),
            _ => self.root.command("/bin/sh"),
        };
        shell.env("PLIMSOLL", &self.plimsoll);
        shell
    }
}
