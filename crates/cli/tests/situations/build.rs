//! Compiles the fixtures with the system's compiler, each once for a run of the tests.

use crate::kit::scratch;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// A fixture and how it is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Its name in fixtures/c, without the extension.
    pub source: String,
    pub flags: Vec<String>,
    /// Libraries to link dynamically: fixtures (`libNAME`) or file names of the system's (`libX.so.2`).
    pub libraries: Vec<String>,
    pub libc: Libc,
}

/// The C library that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Libc {
    Glibc,
    Musl,
}

impl Libc {
    /// The C compiler, and options for what gcc puts into a program by itself.
    fn compiler(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Libc::Glibc => ("gcc", &[]),
            Libc::Musl => ("musl-gcc", &["-Wl,--eh-frame-hdr,--build-id"]),
        }
    }
}

impl Program {
    pub fn of(source: &str) -> Self {
        Program { source: source.to_string(), flags: vec![], libraries: vec![], libc: Libc::Glibc }
    }
    pub fn over_musl(mut self) -> Self {
        self.libc = Libc::Musl;
        self
    }
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|f| f.to_string()));
        self
    }
    /// A shared library fixture.
    pub fn library(source: &str) -> Self {
        Program::of(source).flags(&["-shared", "-fPIC"])
    }
    fn is_library(&self) -> bool {
        self.flags.iter().any(|f| f == "-shared")
    }
}

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/c")
}

/// The folder of the shared library fixtures.
pub fn library_dir() -> PathBuf {
    library_dir_of(Libc::Glibc)
}

/// The same for a C library.
pub fn library_dir_of(libc: Libc) -> PathBuf {
    scratch(if libc == Libc::Musl { "lib-musl" } else { "lib" })
}

/// Its index, which is part of its file name, and its path once it is built.
type Built = Arc<(usize, OnceLock<PathBuf>)>;

/// The path of the compiled program.
pub fn compiled(program: &Program) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<Program, Built>>> = Mutex::new(None);
    let entry = {
        let mut built = BUILT.lock().expect("build table");
        let built = built.get_or_insert_with(HashMap::new);
        let number = built.len();
        built.entry(program.clone()).or_insert_with(|| Arc::new((number, OnceLock::new()))).clone()
    };
    let (number, path) = &*entry;
    path.get_or_init(|| compile(program, *number)).clone()
}

fn compile(program: &Program, number: usize) -> PathBuf {
    let c = fixtures().join(format!("{}.c", program.source));
    let plus = fixtures().join(format!("{}.cc", program.source));
    let is_plus = plus.exists();
    let to = if program.is_library() {
        library_dir_of(program.libc).join(format!("{}.so", program.source))
    } else {
        scratch("bin").join(format!("{}-{number}", program.source))
    };
    let (cc, linking) = program.libc.compiler();
    let mut command = Command::new(if is_plus { "g++" } else { cc });
    command.args(linking);
    // Without -fno-builtin the compiler may remove a malloc whose block is not used.
    command.args([if is_plus { "-std=gnu++17" } else { "-std=gnu17" }, "-O1", "-g", "-fno-builtin", "-pthread", "-w"]);
    command.arg(if is_plus { &plus } else { &c }).args(&program.flags).arg("-o").arg(&to);
    if !program.libraries.is_empty() {
        let folder = library_dir_of(program.libc);
        command.arg("-L").arg(&folder).arg(format!("-Wl,--no-as-needed,-rpath,{}", folder.display()));
    }
    for library in &program.libraries {
        if library.contains(".so") {
            command.arg(format!("-l:{library}"));
        } else {
            compiled(&Program { libc: program.libc, ..Program::library(library) });
            command.arg(format!("-l:{library}.so"));
        }
    }
    if !program.flags.iter().any(|f| f.starts_with("-static")) {
        command.arg("-ldl");
    }
    let output = command.output().expect("a C compiler");
    assert!(output.status.success(), "{}: {}", program.source, String::from_utf8_lossy(&output.stderr));
    to
}
