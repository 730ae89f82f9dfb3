//! Debian's kernels: packages for virtual machines, unpacked below target/ and kept there. Needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::roots::APT;

/// The suites, oldest kernel first, and the version of each; the last one has Debian's newest.
pub const SUITES: [(&str, &str); 4] = [("bullseye", "5.10."), ("bookworm", "6.1."), ("trixie", "6.12."), ("sid", "")];

/// A bootable kernel. `ram_disk`: the module that makes disks of memory, in suites where the file is not compressed.
pub struct Kernel {
    pub image: PathBuf,
    pub ram_disk: Option<PathBuf>,
}

/// Since 7.0 the kernel itself is in linux-binary-*.
const SCRIPT: &str = r#"
package=$(apt-get -s install linux-image-cloud-amd64 | sed -nE 's/^Inst (linux-(image|binary)-[0-9][^ ]*) .*/\1/p' | sort | head -n 1)
apt-get -q download "$package"
dpkg-deb -x "$package"_*.deb unpacked
mv "$(find unpacked -type f -name 'vmlinuz*')" vmlinuz
find unpacked -name brd.ko -exec mv {} brd.ko \;
rm -rf unpacked apt ./*.deb
echo "$*" >whole
"#;

impl Kernel {
    /// `target`: cargo's target/.
    pub fn of(suite: &str, target: &Path) -> Kernel {
        let all = target.join("kernels");
        fs::create_dir_all(&all).expect("target/ is ours");
        let folder = all.join(suite);
        let mut made = Command::new("flock");
        made.arg(all.join(format!("{suite}.lock"))).args(["sh", "-c", &[APT, SCRIPT].concat()]).arg(&folder);
        let made = made.args([suite, "amd64"]).output().expect("flock");
        let printed = [made.stdout, made.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(made.status.success(), "the kernel of {suite}: {printed}");
        let ram_disk = folder.join("brd.ko");
        Kernel { image: folder.join("vmlinuz"), ram_disk: ram_disk.exists().then_some(ram_disk) }
    }
}
