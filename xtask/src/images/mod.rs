//! Native images: `make native-images` builds those that tests can use, into target/native-images; the published tables
//! build their server.
//!
//! No registry has a GraalVM, but Maven has its builder. The kit beside the checkout has what else the builder needs;
//! `prepare.sh` puts both together in target/xtask/image-builder. The builder takes some minutes and 3 GB for an image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Result, folder, jdk, must, repository, target};

/// An image to build.
pub struct Image<'a> {
    pub source: &'a Path,
    /// The name of the main class, which is the source's.
    pub class: &'a str,
    /// The name of the program.
    pub name: &'a str,
    /// `-H:` options.
    pub options: &'a [String],
}

/// `-H:EnableMonitoringFeatures` of the images that have everything.
const MONITORED: &str = "-H:EnableMonitoringFeatures=nmt,jfr,jcmd,heapdump,jvmstat,threaddump";

pub fn build() -> Result<()> {
    let sources = beside("subjects/native-image/src")?;
    let reflection = format!("-H:ReflectionConfigurationFiles={}", sources.join("reflect.json").display());
    // Tests look methods up by their symbols.
    let monitored = [MONITORED.to_owned(), reflection, "-H:-DeleteLocalSymbols".to_owned()];
    let out = target().join("native-images");
    fs::create_dir_all(&out)?;
    for (class, name, options) in [("Hello", "hello", &[][..]), ("App", "app", &monitored), ("Gap", "gap", &monitored)]
    {
        let source = sources.join(format!("{class}.java"));
        fs::copy(Image { source: &source, class, name, options }.built()?, out.join(name))?;
    }
    println!("in {}", out.display());
    Ok(())
}

impl Image<'_> {
    /// The program; built once, until its source or its options change.
    pub fn built(&self) -> Result<PathBuf> {
        let home = builder()?;
        let (program, receipt) =
            (home.join("out").join(self.name), home.join("out").join(format!("{}.made", self.name)));
        let made_of = format!("{}\n{}", self.options.join("\n"), fs::read_to_string(self.source)?);
        if program.exists() && fs::read_to_string(&receipt).is_ok_and(|text| text == made_of) {
            return Ok(program);
        }
        let _ = fs::remove_file(&receipt);
        // The builder takes all of the class path into account.
        let classes = home.join("cl");
        let _ = fs::remove_dir_all(&classes);
        must(Command::new(home.join("jdk/bin/javac")).args(["-nowarn", "-d"]).arg(&classes).arg(self.source))?;
        eprintln!("building the native image {}: some minutes", self.name);
        let mut build = Command::new("bash");
        build.arg(beside("native-image-kit")?.join("build-image.sh")).args([self.class, self.name]);
        must(build.args(self.options).env("NI_HOME", &home))?;
        fs::write(receipt, made_of)?;
        Ok(program)
    }
}

/// The prepared builder.
fn builder() -> Result<PathBuf> {
    let home = folder("image-builder")?;
    let jdk = jdk(25).ok_or("the builder needs a JDK 25 with JVMCI, as Temurin's is")?;
    let mut prepare = Command::new("bash");
    prepare.args(["-c", include_str!("prepare.sh")]).arg(&home).arg(beside("native-image-kit")?).arg(jdk);
    must(&mut prepare)?;
    Ok(home)
}

/// A folder of the kit, which lies beside the checkout.
fn beside(name: &str) -> Result<PathBuf> {
    let places = ["..", "../.."].map(|up| repository().join(up).join("shared").join(name));
    places
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| format!("../shared/{name} is missing: it is part of the kit beside the checkout").into())
}
