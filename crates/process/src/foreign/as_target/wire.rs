//! The packets between the observer and its child process.
//!
//! ```text
//! request   op: u8 │ name NUL [name NUL] or bytes
//! answer    Facts, 8 bytes each, native order │ bytes; a descriptor beside it (SCM_RIGHTS)
//! ```

/// Maximum number of a file's bytes in one packet.
pub(crate) const CHUNK: usize = 32 << 10;
/// Bytes of the facts before each answer.
pub(crate) const HEAD: usize = 10 * 8;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum $name { $($(#[$note])* $variant),* }

        impl $name {
            pub(crate) fn of(number: u8) -> Option<$name> {
                [$($name::$variant),*].get(usize::from(number)).copied()
            }
        }
    };
}

numbered! {
    /// What the child does for its parent: one system call, or two that belong together.
    Op {
        /// Enters the directory at this path of the target. All names below are relative to it.
        Enter,
        /// Enters the target's working directory.
        EnterCwd,
        /// Enters the target's root.
        EnterRoot,
        /// Enters a subdirectory of the current directory, or returns the text of a link of that name.
        Step,
        /// Returns the current directory's access control list.
        AccessList,
        /// Makes a directory of this name if it doesn't exist, and enters it.
        Make,
        Stat,
        /// Makes a new file, open for `Write`. It is removed when the parent ends, unless it is renamed.
        Create,
        Write,
        /// Sets mode 0500 and closes the file.
        Executable,
        Rename,
        Unlink,
        /// Removes the file that `Create` made, whatever the current directory is.
        Discard,
        /// Opens a file for `Read` and `Touch`.
        Open,
        Read,
        Touch,
        /// Makes a file of this name if it doesn't exist, and touches it.
        Stamp,
        OpenList,
        /// Returns some more names; none at the end.
        List,
        /// Connects to the socket of this name, without waiting.
        Connect,
        /// If the parent dies, keeps the file that `Create` made until this name exists in the current directory.
        Outlive,
    }
}

numbered! {
    /// The step at which a child failed to become the target's user.
    Step { Done, Root, Rights, Groups, User }
}

/// Result of a request, with the stat(2) fields of its file if it had one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// 0 if the request succeeded.
    pub errno: u64,
    pub step: u64,
    pub mode: u64,
    pub uid: u64,
    pub gid: u64,
    pub inode: u64,
    pub size: u64,
    /// Seconds since 1970 UTC.
    pub modified: u64,
    pub accessed: u64,
    /// `f_flag` of statvfs(3) for the directory that was entered.
    pub mount: u64,
}

impl Facts {
    pub fn of(stat: &rustix::fs::Stat) -> Facts {
        Facts {
            mode: u64::from(stat.st_mode),
            uid: u64::from(stat.st_uid),
            gid: u64::from(stat.st_gid),
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified: stat.st_mtime as u64,
            accessed: stat.st_atime as u64,
            ..Facts::default()
        }
    }

    pub fn is(&self, kind: rustix::fs::FileType) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode as _) == kind
    }
}

pub(crate) fn encode(facts: &Facts) -> [u8; HEAD] {
    let Facts { errno, step, mode, uid, gid, inode, size, modified, accessed, mount } = *facts;
    let mut bytes = [0; HEAD];
    let words = [errno, step, mode, uid, gid, inode, size, modified, accessed, mount];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Facts> {
    let word = |n: usize| Some(u64::from_ne_bytes(bytes.get(n * 8..n * 8 + 8)?.try_into().ok()?));
    Some(Facts {
        errno: word(0)?,
        step: word(1)?,
        mode: word(2)?,
        uid: word(3)?,
        gid: word(4)?,
        inode: word(5)?,
        size: word(6)?,
        modified: word(7)?,
        accessed: word(8)?,
        mount: word(9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_wire() {
        let facts = Facts {
            errno: 1,
            step: 2,
            mode: 3,
            uid: 4,
            gid: 5,
            inode: 6,
            size: 7,
            modified: 8,
            accessed: 9,
            mount: u64::MAX,
        };
        assert_eq!(decode(&encode(&facts)), Some(facts));
        assert_eq!(decode(&[0; HEAD - 1]), None);
    }

    #[test]
    fn op_numbers_are_decoded() {
        assert_eq!(Op::of(Op::Outlive as u8), Some(Op::Outlive));
        assert_eq!(Op::of(Op::Outlive as u8 + 1), None);
        assert_eq!(Step::of(Step::User as u8), Some(Step::User));
    }
}
