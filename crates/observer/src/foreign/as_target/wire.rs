//! The packets between the observer and its child.
//!
//! ```text
//! request   op: u8 │ name NUL [name NUL] or bytes
//! answer    Facts, 8 bytes each, native order │ bytes; a descriptor beside it (SCM_RIGHTS)
//! ```

/// Bytes of a file that one packet carries at most.
pub const CHUNK: usize = 32 << 10;
/// Bytes of the facts in front of each answer.
pub const HEAD: usize = 9 * 8;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$note])* $variant),* }

        impl $name {
            pub fn of(number: u8) -> Option<$name> {
                [$($name::$variant),*].get(usize::from(number)).copied()
            }
        }
    };
}

numbered! {
    /// What the child does for its parent: one system call, or two that belong together.
    Op {
        /// The directory at this path of the target's is the one that all names below are in.
        Enter,
        /// The same for the target's working directory.
        EnterCwd,
        /// Makes a directory of that name, if there is none, and enters it.
        Make,
        Stat,
        /// A new file, open for `Write`; it goes with the parent, unless it is renamed.
        Create,
        Write,
        /// Mode 0500; the file is closed.
        Executable,
        Rename,
        Unlink,
        /// Removes what `Create` made, wherever we are by now.
        Discard,
        /// For `Read` and `Touch`.
        Open,
        Read,
        Touch,
        /// Makes a file of that name, if there is none, and touches it.
        Stamp,
        OpenList,
        /// Some more names; none: that was all.
        List,
        /// To the socket of that name, without waiting.
        Connect,
        /// If the parent dies, keeps what `Create` made until this name exists in the directory entered now.
        Outlive,
    }
}

numbered! {
    /// What a child can fail at on its way to becoming the target's user.
    Step { Done, Root, Rights, Groups, User }
}

/// What stat(2) says of the file that a request was about, as far as it was about one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// 0: done.
    pub errno: u64,
    pub step: u64,
    pub mode: u64,
    pub uid: u64,
    pub inode: u64,
    pub size: u64,
    /// Seconds since the epoch.
    pub modified: u64,
    pub accessed: u64,
    /// statvfs(3): `f_flag` of the directory that was entered.
    pub mount: u64,
}

impl Facts {
    pub fn of(stat: &rustix::fs::Stat) -> Facts {
        Facts {
            mode: u64::from(stat.st_mode),
            uid: u64::from(stat.st_uid),
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

pub fn encode(facts: &Facts) -> [u8; HEAD] {
    let Facts { errno, step, mode, uid, inode, size, modified, accessed, mount } = *facts;
    let mut bytes = [0; HEAD];
    let words = [errno, step, mode, uid, inode, size, modified, accessed, mount];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

pub fn decode(bytes: &[u8]) -> Option<Facts> {
    let word = |n: usize| Some(u64::from_ne_bytes(bytes.get(n * 8..n * 8 + 8)?.try_into().ok()?));
    Some(Facts {
        errno: word(0)?,
        step: word(1)?,
        mode: word(2)?,
        uid: word(3)?,
        inode: word(4)?,
        size: word(5)?,
        modified: word(6)?,
        accessed: word(7)?,
        mount: word(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_wire() {
        let facts =
            Facts { errno: 1, step: 2, mode: 3, uid: 4, inode: 5, size: 6, modified: 7, accessed: 8, mount: u64::MAX };
        assert_eq!(decode(&encode(&facts)), Some(facts));
        assert_eq!(decode(&[0; HEAD - 1]), None);
    }

    #[test]
    fn ops_have_their_numbers_back() {
        assert_eq!(Op::of(Op::Outlive as u8), Some(Op::Outlive));
        assert_eq!(Op::of(Op::Outlive as u8 + 1), None);
        assert_eq!(Step::of(Step::User as u8), Some(Step::User));
    }
}
