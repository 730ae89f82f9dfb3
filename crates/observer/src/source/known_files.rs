//! What a series of readings keeps of the files that a process maps: the version of its libc, and which objects aren't
//! native images. Finding these reads 2 MiB of libc, and the section names of each library.
//!
//! A mapped file keeps its inode. So what was found holds as long as the same file is mapped at the same address.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use plimsoll_facts::snapshot::Vma;
use plimsoll_facts::units::Avma;

/// A file by where it is mapped. The address is part of it because the inode of a deleted file may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    start: Avma,
    device: (u32, u32),
    inode: u64,
}

impl MappedFile {
    pub(crate) fn of(vma: &Vma) -> MappedFile {
        MappedFile { start: vma.range.start, device: vma.device, inode: vma.inode }
    }
}

#[derive(Debug, Default)]
pub struct KnownFiles {
    versions: RefCell<HashMap<MappedFile, Option<String>>>,
    no_images: RefCell<HashSet<MappedFile>>,
}

impl KnownFiles {
    /// Forgets files that aren't mapped any more.
    pub(crate) fn retain(&mut self, vmas: &[Vma]) {
        let mapped: HashSet<MappedFile> = vmas.iter().map(MappedFile::of).collect();
        self.versions.get_mut().retain(|file, _| mapped.contains(file));
        self.no_images.get_mut().retain(|file| mapped.contains(file));
    }

    /// The version of libc that this file names. `read` returns None if the file can't be read.
    pub(crate) fn version(&self, vma: &Vma, read: impl FnOnce() -> Option<Option<String>>) -> Option<String> {
        let file = MappedFile::of(vma);
        let known = self.versions.borrow().get(&file).cloned();
        known.unwrap_or_else(|| {
            let version = read()?;
            self.versions.borrow_mut().insert(file, version.clone());
            version
        })
    }

    pub(crate) fn is_no_image(&self, vma: &Vma) -> bool {
        self.no_images.borrow().contains(&MappedFile::of(vma))
    }

    pub(crate) fn add_no_image(&self, vma: &Vma) {
        self.no_images.borrow_mut().insert(MappedFile::of(vma));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::units::{AddressRange, Bytes};

    fn mapped(start: u64, inode: u64) -> Vma {
        Vma { range: AddressRange::sized(Avma(start), Bytes(4096)), inode, ..Vma::default() }
    }

    #[test]
    fn a_file_is_known_as_long_as_it_is_mapped() {
        let mut files = KnownFiles::default();
        let (libc, other) = (mapped(0x1000, 7), mapped(0x1000, 8));
        assert_eq!(files.version(&libc, || None), None, "it can't be read");
        assert_eq!(files.version(&libc, || Some(Some("2.36".into()))).as_deref(), Some("2.36"));
        assert_eq!(files.version(&other, || Some(None)), None);
        for known in [&libc, &other] {
            files.version(known, || panic!("it is known"));
        }
        files.add_no_image(&libc);
        // The inode of a file that was deleted is used again.
        assert!(files.is_no_image(&libc) && !files.is_no_image(&other) && !files.is_no_image(&mapped(0x5000, 7)));
        files.retain(&[mapped(0x1000, 7)]);
        assert!(files.is_no_image(&libc));
        assert_eq!(files.version(&other, || Some(Some("2.41".into()))).as_deref(), Some("2.41"), "forgotten");
        files.retain(&[]);
        assert!(!files.is_no_image(&libc));
    }
}
