//! What is linked into the program, as CycloneDX 1.5: the crates that cargo resolves for that CPU, and the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use super::Release;
use crate::stage::{Result, must, repository};

pub fn of(triple: &str, release: &Release) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let metadata = must(
        Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", triple])
            .current_dir(repository()),
    )?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let mut components: Vec<Value> = linked(&metadata)?.into_iter().map(component).collect();
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

/// The packages that `plimsoll` reaches by normal dependencies, not by build or test dependencies.
fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &'_ Value| -> Vec<Value> { value.as_array().cloned().unwrap_or_default() };
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .filter_map(|node| Some((node["id"].as_str()?.to_owned(), node)))
        .collect();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata without packages")?;
    let program = packages.iter().find(|package| package["name"] == "plimsoll").ok_or("no package plimsoll")?;
    let mut reached = BTreeSet::new();
    let mut open = vec![program["id"].as_str().unwrap_or_default().to_owned()];
    while let Some(id) = open.pop() {
        let Some(node) = nodes.get(&id).filter(|_| reached.insert(id.clone())) else { continue };
        for dependency in list(&node["deps"]) {
            // A normal dependency has no kind.
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                open.extend(dependency["pkg"].as_str().map(str::to_owned));
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
    let url = format!("pkg:cargo/{}@{}", name.as_str().unwrap_or_default(), version.as_str().unwrap_or_default());
    let mut component = json!({"type": "library", "name": name, "version": version, "purl": url});
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
