//! `make native-images`: builds images with NMT, JFR and jcmd by the kit beside the checkout, into target/native-images.
//! Opt-in: some two minutes and 3 GB for each image. NI_HOME names the prepared builder, as the kit's README has it.

use crate::stage::{Result, must, repository, target};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub fn build() -> Result<()> {
    let beside = |name: &str| {
        let directories = ["..", "../.."].map(|up| repository().join(up).join("shared").join(name));
        directories.into_iter().find(|path| path.exists())
    };
    let kit = beside("native-image-kit").ok_or("../shared/native-image-kit is not there")?;
    let sources = beside("subjects/native-image/src").ok_or("../shared/subjects/native-image/src is not there")?;
    let home = std::env::var_os("NI_HOME").map(PathBuf::from);
    let home = home.ok_or_else(|| format!("NI_HOME must name a prepared builder: {}/README.md", kit.display()))?;
    let out = target().join("native-images");
    fs::create_dir_all(&out)?;
    let classes = home.join("cl");
    fs::create_dir_all(&classes)?;
    for (main, name) in [("Hello", "hello"), ("App", "app"), ("Gap", "gap")] {
        let source = sources.join(format!("{main}.java"));
        must(Command::new(home.join("jdk/bin/javac")).args(["-nowarn", "-d"]).arg(&classes).arg(source))?;
        let mut build = Command::new("bash");
        build.arg(kit.join("build-image.sh")).args([main, name]).env("NI_HOME", &home);
        if main != "Hello" {
            build.arg("-H:EnableMonitoringFeatures=nmt,jfr,jcmd,heapdump,jvmstat,threaddump");
            build.arg(format!("-H:ReflectionConfigurationFiles={}", sources.join("reflect.json").display()));
        }
        println!("building {name}");
        must(&mut build)?;
        fs::copy(home.join("out").join(name), out.join(name))?;
    }
    println!("in {}", out.display());
    Ok(())
}
