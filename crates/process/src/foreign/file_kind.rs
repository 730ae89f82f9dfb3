//! How much of a file is read, depending on its use.

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A program, a library, or a file with its debug information. The limit applies to the bytes read, not to the
    /// file's length.
    Object,
    /// Names of code that a JIT compiler wrote: perf map, jitdump.
    JitMap,
    /// Counters of a JVM (hsperfdata).
    Counters,
    /// The segment of a tracked process, by sections.
    Segment,
    /// Configuration text: ld.so.conf, category rules, a JDK's `release`.
    Text,
    /// A table or a list of names that an earlier run saved.
    Cache,
    /// A saved report, named by the user.
    Saved,
}

/// Maximum number of bytes of one file that are read into memory.
struct Cap {
    kind: FileKind,
    /// For a file of root or of the caller.
    own: u64,
    /// For any other file: its owner controls its contents, and so the cost of reading it.
    foreign: u64,
}

const MIB: u64 = 1 << 20;

/// All limits.
const CAPS: [Cap; 7] = [
    Cap { kind: FileKind::Object, own: 2048 * MIB, foreign: 512 * MIB },
    Cap { kind: FileKind::JitMap, own: 512 * MIB, foreign: 64 * MIB },
    Cap { kind: FileKind::Counters, own: 16 * MIB, foreign: 16 * MIB },
    Cap { kind: FileKind::Segment, own: 192 * MIB, foreign: 192 * MIB },
    Cap { kind: FileKind::Text, own: 16 * MIB, foreign: MIB },
    Cap { kind: FileKind::Cache, own: 128 * MIB, foreign: 0 },
    Cap { kind: FileKind::Saved, own: 1024 * MIB, foreign: 256 * MIB },
];

/// Limit of bytes in holes that are read from one file. No tool leaves larger holes in these files, and a hole costs
/// its maker nothing.
pub(crate) const HOLES: u64 = 16 * MIB;

impl FileKind {
    pub fn cap(self, is_own: bool) -> u64 {
        let cap = CAPS.iter().find(|cap| cap.kind == self);
        cap.map_or(0, |cap| if is_own { cap.own } else { cap.foreign })
    }
}
