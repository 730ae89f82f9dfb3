//! `make demo`: a JVM that leaks native memory while its Java heap stays flat, and the report that names the leak.

use crate::stage::{Result, any_jdk, folder, must, plimsoll, repository};
use std::process::Command;

pub fn run() -> Result<()> {
    let home = any_jdk()?;
    let classes = folder("demo")?;
    let source = repository().join("fixtures/java/Leak.java");
    must(Command::new(home.join("bin/javac")).arg("-d").arg(&classes).arg(source))?;
    let plimsoll = plimsoll()?;
    println!(
        "fixtures/java/Leak.java packs messages and forgets to end its Deflaters. Its Java heap stays flat; its process does not.\n"
    );
    println!("$ plimsoll run --report summary -- java -Xmx64m Leak\n");
    let mut command = Command::new(plimsoll);
    command.args(["run", "--report", "summary", "--"]).arg(home.join("bin/java"));
    let status = command.args(["-Xmx64m", "-cp"]).arg(&classes).arg("Leak").status()?;
    if status.success() { Ok(()) } else { Err(format!("the demo ended with {status}").into()) }
}
