//! An image of the program alone, without a daemon: an OCI image layout in a tar archive (image-spec 1.0,
//! image-layout.md).
//!
//! ```text
//! oci-layout
//! index.json ─▶ blobs/sha256/MANIFEST of each CPU ─┬▶ blobs/sha256/CONFIG   entry point, CPU, digest of the layer unpacked
//!                                                  └▶ blobs/sha256/LAYER    tar.gz with /plimsoll and its licences
//! ```

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
    fs::write(root.join("index.json"), json!({"schemaVersion": 2, "manifests": manifests}).to_string())?;
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
