//! How much of a file is read, by what the file is for.

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program, a library, or a file with its debug information: what is read of it in all, not its length.
    Object,
    /// Names of code that a JIT compiler made: perf map, jitdump.
    JitMap,
    /// Counters of a JVM (hsperfdata).
    Counters,
    /// The segment of a tracked process, by sections.
    Segment,
    /// A text of configuration: ld.so.conf, category rules, `release` of a JDK.
    Text,
    /// A table or a list of names that an earlier run kept.
    Cache,
    /// A saved report, which the user names.
    Saved,
}

/// Most bytes of one file that are read into memory.
struct Cap {
    kind: Kind,
    /// Of a file that is root's or the caller's own.
    own: u64,
    /// Of any other: its owner chooses its contents, and so what reading it costs.
    foreign: u64,
}

const MIB: u64 = 1 << 20;

/// The one table of sizes.
const CAPS: [Cap; 7] = [
    Cap { kind: Kind::Object, own: 2048 * MIB, foreign: 512 * MIB },
    Cap { kind: Kind::JitMap, own: 512 * MIB, foreign: 64 * MIB },
    Cap { kind: Kind::Counters, own: 16 * MIB, foreign: 16 * MIB },
    Cap { kind: Kind::Segment, own: 192 * MIB, foreign: 192 * MIB },
    Cap { kind: Kind::Text, own: 16 * MIB, foreign: MIB },
    Cap { kind: Kind::Cache, own: 128 * MIB, foreign: 0 },
    Cap { kind: Kind::Saved, own: 1024 * MIB, foreign: 256 * MIB },
];

/// Bytes of holes that are read of one file. No tool leaves larger ones in what is read here, and a hole costs its maker
/// nothing.
pub const HOLES: u64 = 16 * MIB;

impl Kind {
    pub fn cap(self, is_own: bool) -> u64 {
        let cap = CAPS.iter().find(|cap| cap.kind == self);
        cap.map_or(0, |cap| if is_own { cap.own } else { cap.foreign })
    }
}
