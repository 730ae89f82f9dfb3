//! Whether only trusted users can exchange the entries of a directory, by its owner, mode and access control list
//! (`own_files` states the rules). Plimsoll's own directories and those of a target follow the same rules.

/// What stat(2) returns of a directory.
#[derive(Clone, Copy)]
pub(super) struct Owned {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Owned {
    /// Why a user who isn't trusted can exchange entries. `has_others`: whether the directory's list lets other users
    /// or groups write.
    pub(super) fn why_unsafe(self, trusted: [u32; 3], has_others: impl FnOnce() -> bool) -> Option<String> {
        if !trusted.contains(&self.uid) {
            return Some(format!("belongs to user {}", self.uid));
        }
        let is_sticky = self.mode & 0o1000 != 0;
        (self.is_open_to_others(has_others) && !is_sticky)
            .then(|| format!("can be written to by others (mode {:o})", self.mode & 0o7777))
    }

    /// Whether others may make entries in the directory.
    pub(super) fn is_open_to_others(self, has_others: impl FnOnce() -> bool) -> bool {
        let is_private_group = self.gid == self.uid;
        let others = if is_private_group { 0o002 } else { 0o022 };
        self.mode & others != 0 || (is_private_group && self.mode & 0o020 != 0 && has_others())
    }
}

/// ```text
/// version 4 │ entries: tag 2, rights 2, id 4
/// ```
/// (struct posix_acl_xattr_entry in linux/posix_acl_xattr.h)
pub(super) fn lets_others_write(list: &[u8]) -> bool {
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    const WRITE: u16 = 2;
    let word = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    entries.into_iter().any(|entry| matches!(word(entry, 0), USER | GROUP) && word(entry, 2) & WRITE != 0)
}
