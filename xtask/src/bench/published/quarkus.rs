//! Builds the Quarkus server of bench/published/quarkus, by Maven.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Result, folder, made_again, must, repository};

/// The server's jar, with this version of Quarkus; built once, until its source changes.
pub fn server(version: &str) -> Result<PathBuf> {
    let source = repository().join("bench/published/quarkus");
    let folder = folder("bench/published")?.join(format!("quarkus-{version}"));
    let jar = folder.join("target/quarkus-app/quarkus-run.jar");
    let made_of = text_of(&source, &source)?;
    if !jar.exists() || fs::read_to_string(folder.join(RECEIPT)).ok().as_ref() != Some(&made_of) {
        made_again(&folder, |part| {
            must(Command::new("cp").arg("-r").arg(&source).arg(part))?;
            let mut maven = Command::new("mvn");
            maven.args(["-q", "-B", "package", &format!("-Dquarkus={version}")]).current_dir(part);
            must(&mut maven)?;
            Ok(fs::write(part.join(RECEIPT), made_of)?)
        })?;
    }
    Ok(jar)
}

/// The source of the jar, beside it.
const RECEIPT: &str = "made-of";

/// The names below `top` and the text of all files in a directory.
fn text_of(top: &Path, folder: &Path) -> Result<String> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    let mut text = String::new();
    for path in paths {
        text += &match path.is_dir() {
            true => text_of(top, &path)?,
            false => format!("{}\n{}\n", path.strip_prefix(top)?.display(), fs::read_to_string(&path)?),
        };
    }
    Ok(text)
}

#[test]
fn a_changed_source_has_another_text() {
    let top = folder("test-quarkus").expect("a folder");
    fs::create_dir_all(top.join("src")).expect("a folder");
    let text = |name: &str, content: &str| {
        fs::write(top.join(name), content).expect("a file");
        text_of(&top, &top).expect("text")
    };
    text("pom.xml", "a");
    let first = text("src/Blocks.java", "b");
    // A checkout in another place must have the same text.
    assert_eq!(first, "pom.xml\na\nsrc/Blocks.java\nb\n");
    assert_eq!(text("src/Blocks.java", "b"), first);
    assert_ne!(text("src/Blocks.java", "c"), first);
}
