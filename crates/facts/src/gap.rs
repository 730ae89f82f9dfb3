//! A fact that could not be read: the source, the reason, the effect on the lines, and the command that helps. A gap
//! never ends the program.

/// Where a fact comes from. JSON and documentation use the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Proc,
    Pagemap,
    Cgroup,
    Segment,
    HotSpot,
    Glibc,
    NativeImage,
    Allocator,
    Jfr,
    Symbols,
    /// The earlier report that `--baseline` names.
    Baseline,
}

impl Source {
    pub const ALL: [Source; 11] = [
        Source::Proc,
        Source::Pagemap,
        Source::Cgroup,
        Source::Segment,
        Source::HotSpot,
        Source::Glibc,
        Source::NativeImage,
        Source::Allocator,
        Source::Jfr,
        Source::Symbols,
        Source::Baseline,
    ];

    /// Whether it decides on which line of the ledger memory is counted.
    pub const fn decides_on_lines(self) -> bool {
        !matches!(self, Source::Cgroup | Source::Jfr | Source::Symbols | Source::Baseline)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Source::Proc => "proc",
            Source::Pagemap => "pagemap",
            Source::Cgroup => "cgroup",
            Source::Segment => "segment",
            Source::HotSpot => "hotspot",
            Source::Glibc => "glibc",
            Source::NativeImage => "native-image",
            Source::Allocator => "allocator",
            Source::Jfr => "jfr",
            Source::Symbols => "symbols",
            Source::Baseline => "baseline",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub source: Source,
    /// What could not be read, and why: one sentence without a full stop.
    pub reason: String,
    /// Which lines are affected, and how.
    pub effect: String,
    /// What to type to close the gap; empty if nothing helps.
    pub remedy: String,
}

impl Gap {
    pub fn new(source: Source, reason: impl Into<String>, effect: impl Into<String>) -> Gap {
        Gap { source, reason: reason.into(), effect: effect.into(), remedy: String::new() }
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> Gap {
        self.remedy = remedy.into();
        self
    }
}
