//! Finds allocators that can be preloaded on this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use plimsoll_trial::remedy::PreloadedAllocator;

/// Where distributions put libraries, local folders first.
fn folders() -> Vec<PathBuf> {
    let machine = std::env::consts::ARCH;
    let multiarch = format!("/usr/lib/{machine}-linux-gnu");
    ["/usr/local/lib", "/usr/local/lib64", &multiarch, "/usr/lib64", "/usr/lib"].map(PathBuf::from).to_vec()
}

pub fn find(allocator: PreloadedAllocator) -> Option<OsString> {
    let in_folder = |folder: &Path| allocator.libraries().iter().map(|name| folder.join(name)).collect::<Vec<_>>();
    let mut all = folders().into_iter().flat_map(|folder| in_folder(&folder));
    all.find(|path| path.is_file()).map(PathBuf::into_os_string)
}
