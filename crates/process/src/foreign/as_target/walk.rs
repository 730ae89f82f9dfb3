//! Walks to a directory of the target, one name at a time: the parent decides about each, and the child makes the
//! system calls. The child reads links itself, so that the kernel follows none, and no `..` leads out of the root.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::wire::{Facts, Op};
use super::{AsTarget, is_one_of, packed};
use crate::foreign::{resolve, trust};

impl AsTarget {
    /// Enters a directory, if only root, the target's user and the owner of the target's root can exchange it, or any
    /// directory or link on the way. The error names the one that others can exchange.
    pub fn enter_trusted(&mut self, directory: &Path) -> io::Result<Facts> {
        let root = self.request(Op::EnterRoot, &[])?;
        let trusted = [0, self.user.uid, root.uid as u32];
        self.walk(directory, Some(trusted))
    }

    /// `trusted`: the only users who may be able to exchange what lies on the way.
    pub(super) fn walk(&mut self, path: &Path, trusted: Option<[u32; 3]>) -> io::Result<Facts> {
        let mut facts = self.request(Op::EnterRoot, &[])?;
        // The names from the root to the entered directory; none of them is a link.
        let mut reached: Vec<OsString> = Vec::new();
        self.check(&facts, trusted, &reached)?;
        let mut left = resolve::parts(path);
        let mut followed = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                // Without a chroot, the kernel's `..` could lead out of the root. The parent of the root is the root.
                reached.pop();
                put_before(&mut left, std::mem::take(&mut reached).into());
                facts = self.request(Op::EnterRoot, &[])?;
                continue;
            }
            let (found, link) = self.step(&name)?;
            reached.push(name);
            if !found.is(FileType::Symlink) {
                facts = found;
                self.check(&facts, trusted, &reached)?;
                continue;
            }
            followed += 1;
            if followed > resolve::MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            if trusted.is_some_and(|trusted| !trusted.contains(&(found.uid as u32))) {
                let shown = whole(&reached).display().to_string();
                return Err(io::Error::other(format!("{shown} is a symbolic link of user {}", found.uid)));
            }
            reached.pop();
            if link.is_absolute() {
                reached.clear();
                facts = self.request(Op::EnterRoot, &[])?;
            }
            put_before(&mut left, resolve::parts(&link));
        }
        Ok(facts)
    }

    /// Enters a subdirectory, or returns where a link leads.
    fn step(&mut self, name: &OsStr) -> io::Result<(Facts, PathBuf)> {
        let (facts, link, _) = self.packet(Op::Step, &packed(&[name])?)?;
        Ok((facts, PathBuf::from(OsString::from_vec(link))))
    }

    /// Whether only trusted users can exchange the entries of the directory that was entered.
    fn check(&mut self, facts: &Facts, trusted: Option<[u32; 3]>, reached: &[OsString]) -> io::Result<()> {
        let Some(trusted) = trusted else { return Ok(()) };
        let owned = trust::Owned { uid: facts.uid as u32, gid: facts.gid as u32, mode: facts.mode as u32 };
        match owned.why_unsafe(trusted, || self.has_others_in_its_list()) {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("{} {why}", whole(reached).display()))),
        }
    }

    /// Whether the access control list of the directory that was entered lets another user or group write. A list that
    /// can't be read counts as one.
    fn has_others_in_its_list(&mut self) -> bool {
        match self.packet(Op::AccessList, &[]) {
            Ok((_, list, _)) => trust::lets_others_write(&list),
            Err(error) => !is_one_of(&error, [Errno::NODATA, Errno::OPNOTSUPP]),
        }
    }
}

fn whole(reached: &[OsString]) -> PathBuf {
    Path::new("/").join(reached.iter().collect::<PathBuf>())
}

fn put_before(left: &mut VecDeque<OsString>, mut names: VecDeque<OsString>) {
    names.append(left);
    *left = names;
}
