//! What is linked into the program, as CycloneDX 1.5: the crates that cargo resolves for that CPU, Rust's standard
//! library and the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Release, rustc};
use crate::stage::{Result, must, repository};

pub const FILE: &str = "sbom.cdx.json";

/// What cargo resolves for this CPU.
pub fn metadata(triple: &str) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let printed = must(
        Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", triple])
            .current_dir(repository()),
    )?;
    Ok(serde_json::from_str(&printed)?)
}

pub fn of(metadata: &Value, release: &Release) -> Result<String> {
    let mut components: Vec<Value> = linked(metadata)?.into_iter().map(component).collect();
    let version = rustc(&["-V"])?;
    components.push(json!({"type": "library", "name": "std", "version": version.split(' ').nth(1),
        "licenses": [{"expression": "MIT OR Apache-2.0"}]}));
    components.push(json!({"type": "library", "name": "glibc", "version": libc_version()?,
        "licenses": [{"expression": "LGPL-2.1-or-later"}]}));
    let document = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "name": "plimsoll", "version": release.version,
            "licenses": [{"expression": "Apache-2.0"}],
            "properties": [{"name": "commit", "value": release.commit}]}},
        "components": components,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The licences of the program and of what is linked into it, as one expression of SPDX, by the SBOM in its directory.
pub fn licenses(folder: &Path) -> Result<String> {
    let sbom: Value = serde_json::from_slice(&fs::read(folder.join(FILE))?)?;
    let components = sbom["components"].as_array().ok_or("an SBOM without components")?;
    let all = [&sbom["metadata"]["component"]].into_iter().chain(components);
    let expression = |component: &Value| component["licenses"][0]["expression"].as_str().map(str::to_owned);
    let distinct: BTreeSet<String> = all.filter_map(expression).collect();
    let parts = distinct.into_iter().map(|one| if one.contains(" OR ") { format!("({one})") } else { one });
    Ok(parts.collect::<Vec<_>>().join(" AND "))
}

/// The packages that `plimsoll` reaches by normal dependencies, not by build or test dependencies, and not through
/// macros: these run in the compiler.
pub fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &'_ Value| -> Vec<Value> { value.as_array().cloned().unwrap_or_default() };
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .filter_map(|node| Some((node["id"].as_str()?.to_owned(), node)))
        .collect();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata without packages")?;
    let is_macro = |package: &&Value| {
        list(&package["targets"]).iter().any(|target| list(&target["kind"]).iter().any(|kind| kind == "proc-macro"))
    };
    let macros = packages.iter().filter(is_macro).filter_map(|package| package["id"].as_str());
    let macros: BTreeSet<&str> = macros.collect();
    let program = packages.iter().find(|package| package["name"] == "plimsoll").ok_or("no package plimsoll")?;
    let mut reached = BTreeSet::new();
    let mut open = vec![program["id"].as_str().unwrap_or_default().to_owned()];
    while let Some(id) = open.pop() {
        let Some(node) = nodes.get(&id).filter(|_| reached.insert(id.clone())) else { continue };
        for dependency in list(&node["deps"]) {
            // A normal dependency has no kind.
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                open.extend(dependency["pkg"].as_str().filter(|id| !macros.contains(id)).map(str::to_owned));
            }
        }
    }
    let mut linked: Vec<&Value> =
        packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| reached.contains(id))).collect();
    linked.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    Ok(linked)
}

fn component(package: &Value) -> Value {
    let (name, version) = (&package["name"], &package["version"]);
    let mut component = json!({"type": "library", "name": name, "version": version});
    // This repository's own crates are in no registry.
    if !package["source"].is_null() {
        let (name, version) = (name.as_str().unwrap_or_default(), version.as_str().unwrap_or_default());
        component["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
    }
    if let Some(license) = package["license"].as_str() {
        // Old manifests write a slash for OR.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    component
}

/// The version of this machine's C library; the static one comes from the same packages.
fn libc_version() -> Result<String> {
    let printed = must(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    Ok(printed.trim().trim_start_matches("glibc ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::CPUS;

    #[test]
    fn the_list_has_what_is_linked_and_no_macro() {
        let release = Release {
            version: "0.1.0".to_owned(),
            commit: String::new(),
            time: String::new(),
            out: std::env::temp_dir().join(format!("plimsoll-xtask-sbom-{}", std::process::id())),
        };
        let text = of(&metadata(CPUS[0].triple).expect("cargo metadata"), &release).expect("a list");
        let sbom: Value = serde_json::from_str(&text).expect("JSON");
        let components = sbom["components"].as_array().expect("a list");
        let one = |name: &str| components.iter().find(|component| component["name"] == name);
        for linked in ["clap_builder", "ratatui", "std", "glibc"] {
            assert!(one(linked).is_some(), "{linked}");
        }
        for absent in ["clap_derive", "syn", "quote", "proc-macro2"] {
            assert!(one(absent).is_none(), "{absent} runs in the compiler");
        }
        // Without this, a scanner would look up our own crates at crates.io.
        let url = |name: &str| one(name).expect("a component")["purl"].as_str().map(str::to_owned);
        assert_eq!(url("plimsoll-report"), None);
        assert!(url("ratatui").is_some_and(|url| url.starts_with("pkg:cargo/ratatui@")));
        fs::create_dir_all(&release.out).expect("a folder");
        fs::write(release.out.join(FILE), text).expect("a file");
        let licenses = licenses(&release.out).expect("licences");
        fs::remove_dir_all(&release.out).expect("our folder");
        let parts: Vec<&str> = licenses.split(" AND ").collect();
        for part in ["Apache-2.0", "MIT", "LGPL-2.1-or-later", "(MIT OR Apache-2.0)"] {
            assert!(parts.contains(&part), "{part}: {licenses}");
        }
    }
}
