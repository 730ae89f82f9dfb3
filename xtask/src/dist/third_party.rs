//! THIRD-PARTY: the licences of what is linked into the program, word for word, as MIT, Zlib, BSD and the LGPL require.
//!
//! | linked in | its texts are in |
//! | --- | --- |
//! | crates | the directory that cargo unpacked |
//! | Rust's standard library | the documentation of the toolchain |
//! | glibc | the documentation of the C library's development package |
//!
//! A text that an earlier section already has isn't repeated; the section names the earlier one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Release, rustc, sbom};
use crate::stage::Result;

pub const FILE: &str = "THIRD-PARTY";
/// How names of files with a licence begin, in small letters.
const NAMES: [&str; 6] = ["licence", "license", "copying", "copyright", "notice", "unlicense"];
/// What is known of glibc, and where Debian, Fedora and Arch have it.
const GLIBC: [(&str, &[&str]); 2] = [
    ("notices", &["/usr/share/doc/libc6-dev/copyright", "/usr/share/licenses/glibc/LICENSES"]),
    (
        "LGPL-2.1",
        &[
            "/usr/share/common-licenses/LGPL-2.1",
            "/usr/share/licenses/glibc/COPYING.LIB",
            "/usr/share/licenses/spdx/LGPL-2.1-or-later.txt",
        ],
    ),
];

pub fn of(metadata: &Value, release: &Release) -> Result<String> {
    let mut texts = Texts { text: head(release), ..Texts::default() };
    crates(metadata, &mut texts)?;
    standard_library(&mut texts)?;
    c_library(&mut texts)?;
    Ok(texts.text)
}

fn head(release: &Release) -> String {
    format!(
        "Plimsoll (commit {}) is under the Apache License 2.0. The programs of `make dist` are linked statically with\n\
         what follows, and with GCC's unwinder (libgcc_eh: GPL-3.0-or-later with the GCC Runtime Library Exception\n\
         3.1).\n\n\
         glibc is under the LGPL-2.1-or-later. Its sources are at https://ftp.gnu.org/gnu/glibc/ and, as Debian\n\
         builds them, at https://snapshot.debian.org/package/glibc/. To use a changed glibc, install its static\n\
         library and type `make dist` in the sources of Plimsoll.\n",
        release.commit
    )
}

#[derive(Default)]
struct Texts {
    text: String,
    /// Each text, and where it is.
    known: BTreeMap<String, String>,
}

impl Texts {
    fn section(&mut self, title: &str) {
        let line = "=".repeat(80);
        self.text += &format!("\n{line}\n{title}\n{line}\n");
    }

    fn add(&mut self, section: &str, name: &str, text: &str) {
        let text = text.trim();
        match self.known.get(text) {
            Some(place) => self.text += &format!("\n--- {name}: as {place} ---\n"),
            None => {
                self.text += &format!("\n--- {name} ---\n\n{text}\n");
                self.known.insert(text.to_owned(), format!("{name} of {section}"));
            }
        }
    }
}

/// The crates of others: this repository's own crates are under its LICENSE.
fn crates(metadata: &Value, texts: &mut Texts) -> Result<()> {
    for package in sbom::linked(metadata)?.into_iter().filter(|package| !package["source"].is_null()) {
        let word = |key: &str| package[key].as_str().unwrap_or_default();
        let section = format!("{} {}", word("name"), word("version"));
        let folder = Path::new(word("manifest_path")).parent().ok_or("a package without a folder")?;
        let files = licences(folder)?;
        if files.is_empty() {
            return Err(format!("{section}: no file with a licence in {}", folder.display()).into());
        }
        texts.section(&format!("{section}: {}", word("license")));
        for (name, path) in files {
            texts.add(&section, &name, &String::from_utf8_lossy(&fs::read(path)?));
        }
    }
    Ok(())
}

/// Name and path of each file with a licence. Some crates have them in a directory with such a name.
fn licences(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let small = name.to_lowercase();
        if !NAMES.iter().any(|beginning| small.starts_with(beginning)) {
            continue;
        }
        if entry.path().is_file() {
            files.push((name, entry.path()));
            continue;
        }
        for inner in fs::read_dir(entry.path())? {
            let inner = inner?;
            files.push((format!("{name}/{}", inner.file_name().to_string_lossy()), inner.path()));
        }
    }
    files.sort();
    Ok(files)
}

fn standard_library(texts: &mut Texts) -> Result<()> {
    let page = Path::new(rustc(&["--print", "sysroot"])?.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    let html = fs::read_to_string(&page)
        .map_err(|error| format!("{}: {error} (a toolchain of rustup has this file)", page.display()))?;
    texts.section("Rust's standard library: MIT OR Apache-2.0");
    texts.add("Rust's standard library", "COPYRIGHT-library", &plain(&html));
    Ok(())
}

/// The text of a page of HTML, without empty lines one after the other.
fn plain(html: &str) -> String {
    let mut text = String::new();
    let mut parts = html.split('<');
    text += parts.next().unwrap_or_default();
    for part in parts {
        text += part.split_once('>').map_or("", |(_, text)| text);
    }
    for (entity, character) in [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&amp;", "&")] {
        text = text.replace(entity, character);
    }
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.dedup_by(|next, line| next.is_empty() && line.is_empty());
    lines.join("\n")
}

fn c_library(texts: &mut Texts) -> Result<()> {
    texts.section("glibc: LGPL-2.1-or-later");
    for (name, places) in GLIBC {
        let found = places.iter().find_map(|place| fs::read(place).ok());
        let found = found.ok_or_else(|| format!("glibc's {name}: no file at {}", places.join(", ")))?;
        texts.add("glibc", name, &String::from_utf8_lossy(&found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::CPUS;

    #[test]
    fn each_component_of_others_has_its_licence() {
        let metadata = sbom::metadata(CPUS[0].triple).expect("cargo metadata");
        let mut texts = Texts::default();
        crates(&metadata, &mut texts).expect("each has a file");
        let linked = sbom::linked(&metadata).expect("packages");
        let others: Vec<_> = linked.iter().filter(|package| !package["source"].is_null()).collect();
        assert!(others.len() > 30, "{}", others.len());
        for package in others {
            let title = format!("\n{} {}: ", package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
            assert!(texts.text.contains(&title), "{title}");
        }
        // A crate under MIT alone: its text must be there, with the holder's name.
        let (_, ratatui) = texts.text.split_once("\nratatui 0").expect("a section");
        assert!(ratatui.split("\n====").nth(1).is_some_and(|text| text.contains("Copyright (c)")), "{ratatui:.2000}");
        // A text of many is there once.
        assert_eq!(texts.text.matches("TERMS AND CONDITIONS FOR USE, REPRODUCTION").count(), distinct(&texts));
        assert!(texts.text.contains(": as LICENSE"), "no text is shared");
    }

    /// How many different texts contain the Apache License.
    fn distinct(texts: &Texts) -> usize {
        let of = |text: &&String| text.contains("TERMS AND CONDITIONS FOR USE, REPRODUCTION");
        texts.known.keys().filter(of).count()
    }

    #[test]
    fn a_page_of_html_becomes_text() {
        let html = "<html>\n<p>A &#34;b&#34;</p>\n\n \n<pre>\n  c &#60;d&#62;\n</pre>";
        assert_eq!(plain(html).trim(), "A \"b\"\n\n  c <d>");
    }
}
