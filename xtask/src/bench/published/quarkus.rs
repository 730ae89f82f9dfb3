//! Builds the Quarkus server of bench/published/quarkus, by Maven.

use std::path::PathBuf;
use std::process::Command;

use crate::stage::{Result, folder, must, repository};

/// The server's jar, with this version of Quarkus.
pub fn server(version: &str) -> Result<PathBuf> {
    let folder = folder("bench/published")?.join(format!("quarkus-{version}"));
    let jar = folder.join("target/quarkus-app/quarkus-run.jar");
    if !jar.exists() {
        let _ = std::fs::remove_dir_all(&folder);
        must(Command::new("cp").arg("-r").arg(repository().join("bench/published/quarkus")).arg(&folder))?;
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "package", &format!("-Dquarkus={version}")]).current_dir(&folder);
        must(&mut maven)?;
    }
    Ok(jar)
}
