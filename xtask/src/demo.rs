//! `make demo`: a JVM that leaks native memory while its Java heap stays flat, and the report that names the leak.

use crate::stage::{Result, any_jdk, folder, must, plimsoll, repository};
use std::path::PathBuf;
use std::process::Command;

/// With an archive that `make dist` has written, shows the archive's program; else the program that was built.
pub fn run(archives: &[String]) -> Result<()> {
    let home = any_jdk()?;
    let classes = folder("demo")?;
    let source = repository().join("fixtures/java/Leak.java");
    must(Command::new(home.join("bin/javac")).arg("-d").arg(&classes).arg(source))?;
    let plimsoll = archives.last().map_or_else(plimsoll, |archive| unpacked(archive))?;
    println!(
        "fixtures/java/Leak.java packs messages and forgets to end its Deflaters. Its Java heap stays flat; its process does not.\n"
    );
    println!("$ plimsoll run --report summary -- java -Xmx64m Leak\n");
    let mut command = Command::new(plimsoll);
    command.args(["run", "--report", "summary", "--"]).arg(home.join("bin/java"));
    let status = command.args(["-Xmx64m", "-cp"]).arg(&classes).arg("Leak").status()?;
    if status.success() { Ok(()) } else { Err(format!("the demo ended with {status}").into()) }
}

/// The program of an archive, which has one folder at its top.
fn unpacked(archive: &str) -> Result<PathBuf> {
    let folder = folder("demo/release")?;
    must(Command::new("tar").args(["--strip-components=1", "-xzf", archive, "-C"]).arg(&folder))?;
    Ok(folder.join("plimsoll"))
}
