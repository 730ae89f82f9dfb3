//! Debian's kernels: packages for virtual machines, unpacked below target/ and kept there. Needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suites, oldest kernel first, and the version of each; the last one has Debian's newest.
pub const SUITES: [(&str, &str); 4] = [("bullseye", "5.10."), ("bookworm", "6.1."), ("trixie", "6.12."), ("sid", "")];

/// A bootable kernel. `ram_disk`: the module that makes disks of memory, in suites where the file is not compressed.
pub struct Kernel {
    pub image: PathBuf,
    pub ram_disk: Option<PathBuf>,
}

/// apt-get with lists and status of its own, for any suite. Since 7.0 the kernel itself is in linux-binary-*.
const SCRIPT: &str = r#"
[ -e "$0/whole" ] && exit
set -e
rm -rf "$0" && mkdir -p "$0/state/lists/partial" "$0/cache/archives/partial" && cd "$0"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' | head -n 1)
[ "$mirror" ] || { echo "apt-get has no lists: apt-get update"; exit 1; }
echo "deb [arch=amd64] $mirror $1 main" >sources.list
cat >apt.conf <<END
APT::Architecture "amd64";
Dir::Etc::SourceList "$0/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$0/state";
Dir::State::status "/dev/null";
Dir::Cache "$0/cache";
Acquire::Check-Valid-Until "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
Acquire::Retries "3";
END
export APT_CONFIG=$0/apt.conf
apt-get -q update
package=$(apt-get -s install linux-image-cloud-amd64 | sed -nE 's/^Inst (linux-(image|binary)-[0-9][^ ]*) .*/\1/p' | sort | head -n 1)
apt-get -q download "$package"
dpkg-deb -x "$package"_*.deb unpacked
mv "$(find unpacked -type f -name 'vmlinuz*')" vmlinuz
find unpacked -name brd.ko -exec mv {} brd.ko \;
rm -rf unpacked state cache ./*.deb
touch whole
"#;

impl Kernel {
    /// `target`: cargo's target/.
    pub fn of(suite: &str, target: &Path) -> Kernel {
        let all = target.join("kernels");
        fs::create_dir_all(&all).expect("target/ is ours");
        let folder = all.join(suite);
        let mut made = Command::new("flock");
        made.arg(all.join(format!("{suite}.lock"))).args(["sh", "-c", SCRIPT]).arg(&folder).arg(suite);
        let made = made.output().expect("flock");
        let printed = [made.stdout, made.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(made.status.success(), "the kernel of {suite}: {printed}");
        let ram_disk = folder.join("brd.ko");
        Kernel { image: folder.join("vmlinuz"), ram_disk: ram_disk.exists().then_some(ram_disk) }
    }
}
