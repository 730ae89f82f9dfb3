//! An image of the program alone, without a daemon: an OCI image layout in a tar archive (image-spec 1.0,
//! image-layout.md).
//!
//! ```text
//! oci-layout
//! index.json ─▶ blobs/sha256/INDEX ─▶ blobs/sha256/MANIFEST of each CPU ─┬▶ CONFIG   entry point, CPU, digest of the
//!    name                                                                │           layer unpacked
//!                                                                        └▶ LAYER    tar.gz with /plimsoll and licences
//! ```
//! Tools take each entry of index.json for an image of its own, so there is only one entry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Cpu, Release, packed, sbom, sha256, third_party};
use crate::stage::{Result, must};

/// `folders`: each CPU with the folder that has its program.
pub fn write(release: &Release, folders: &[(&Cpu, PathBuf)]) -> Result<()> {
    let root = release.out.join("oci");
    let blobs = root.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let mut manifests = Vec::new();
    for (cpu, folder) in folders {
        manifests.push(image(cpu, release, folder, &blobs)?);
    }
    fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let kind = "application/vnd.oci.image.index.v1+json";
    let of_all = json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests});
    let mut of_all = blob(&blobs, kind, of_all.to_string().as_bytes())?;
    of_all["annotations"] = json!({
        "org.opencontainers.image.ref.name": release.version,
        // The name that containerd and podman give the image after an import.
        "io.containerd.image.name": format!("docker.io/library/plimsoll:{}", release.version),
    });
    let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": [of_all]});
    fs::write(root.join("index.json"), index.to_string())?;
    let file = release.out.join(format!("plimsoll-{}.oci.tar", release.version));
    must(packed(release).arg("-cf").arg(file).arg("-C").arg(&root).args(["blobs", "index.json", "oci-layout"]))?;
    fs::remove_dir_all(root)?;
    Ok(())
}

/// Writes the blobs of one CPU, and returns the descriptor of its manifest.
fn image(cpu: &Cpu, release: &Release, folder: &Path, blobs: &Path) -> Result<Value> {
    let tar = blobs.join("layer.tar");
    must(packed(release).arg("-cf").arg(&tar).arg("-C").arg(folder).args(["LICENSE", third_party::FILE, "plimsoll"]))?;
    let unpacked = sha256(&fs::read(&tar)?);
    must(Command::new("gzip").args(["-n", "-9"]).arg(&tar))?;
    let packed = fs::read(blobs.join("layer.tar.gz"))?;
    fs::remove_file(blobs.join("layer.tar.gz"))?;
    let layer = blob(blobs, "application/vnd.oci.image.layer.v1.tar+gzip", &packed)?;
    let config = json!({
        "architecture": cpu.oci, "os": "linux",
        "config": {"Entrypoint": ["/plimsoll"], "Labels": {
            "org.opencontainers.image.version": release.version,
            "org.opencontainers.image.revision": release.commit,
            "org.opencontainers.image.licenses": sbom::licenses(folder)?,
        }},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{unpacked}")]},
    });
    let config = blob(blobs, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]});
    let mut manifest = blob(blobs, kind, manifest.to_string().as_bytes())?;
    manifest["platform"] = json!({"architecture": cpu.oci, "os": "linux"});
    Ok(manifest)
}

/// Writes a blob under the name of its digest, and returns its descriptor.
fn blob(blobs: &Path, kind: &str, bytes: &[u8]) -> Result<Value> {
    let digest = sha256(bytes);
    fs::write(blobs.join(&digest), bytes)?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::CPUS;
    use crate::stage::repository;

    fn json_of(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
    }

    /// The path of what a descriptor names, if its bytes have that digest and size.
    fn named(layout: &Path, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
        let path = layout.join("blobs/sha256").join(digest);
        let bytes = fs::read(&path).expect("a blob");
        assert_eq!((sha256(&bytes).as_str(), descriptor["size"].as_u64()), (digest, Some(bytes.len() as u64)));
        path
    }

    #[test]
    fn the_archive_is_one_image_with_a_name_for_all_cpus() {
        let out = std::env::temp_dir().join(format!("plimsoll-xtask-oci-{}", std::process::id()));
        let _ = fs::remove_dir_all(&out);
        let mut folders = Vec::new();
        for cpu in &CPUS {
            let folder = out.join(cpu.name);
            fs::create_dir_all(&folder).expect("a folder");
            for file in ["LICENSE", third_party::FILE, "plimsoll"] {
                fs::write(folder.join(file), cpu.name).expect("a file");
            }
            fs::write(folder.join(sbom::FILE), json!({"components": []}).to_string()).expect("a file");
            folders.push((cpu, folder));
        }
        let (version, commit, time) = ("0.1.0".to_owned(), String::new(), "1700000000".to_owned());
        let release = Release { version, commit, time, out: out.clone() };
        write(&release, &folders).expect("written");
        let layout = out.join("layout");
        fs::create_dir(&layout).expect("a folder");
        let archive = out.join("plimsoll-0.1.0.oci.tar");
        must(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout)).expect("unpacked");

        let index = json_of(&layout.join("index.json"));
        let [image] = index["manifests"].as_array().expect("a list").as_slice() else { panic!("{index}") };
        assert_eq!(image["annotations"]["org.opencontainers.image.ref.name"], "0.1.0");
        assert_eq!(image["annotations"]["io.containerd.image.name"], "docker.io/library/plimsoll:0.1.0");
        let of_all = json_of(&named(&layout, image));
        let manifests = of_all["manifests"].as_array().expect("a list");
        let cpus: Vec<_> = manifests.iter().filter_map(|of| of["platform"]["architecture"].as_str()).collect();
        assert_eq!(cpus, ["amd64", "arm64"]);
        for manifest in manifests {
            let manifest = json_of(&named(&layout, manifest));
            named(&layout, &manifest["config"]);
            let layer = named(&layout, &manifest["layers"][0]);
            let files = must(Command::new("tar").arg("-tzf").arg(layer)).expect("a layer");
            assert_eq!(files.lines().collect::<Vec<_>>(), ["LICENSE", third_party::FILE, "plimsoll"]);
        }
        fs::remove_dir_all(out).expect("our folder");
    }

    /// The kubelet doesn't fetch an image with a version again, unlike `latest`.
    #[test]
    fn the_manifests_name_this_version() {
        for file in ["daemonset", "sidecar"] {
            let path = repository().join(format!("contrib/kubernetes/{file}.yaml"));
            let text = fs::read_to_string(path).expect("a file");
            let name = concat!("image: REGISTRY/plimsoll:", env!("CARGO_PKG_VERSION"), "\n");
            assert!(text.contains(name), "{file}: no {name}");
        }
    }
}
